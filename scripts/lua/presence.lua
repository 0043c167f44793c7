-- presence.lua: a proxy says that it is before this Redis, and asks which others were and are not any more
-- (worker/questions.c).
--
-- KEYS  1 and 2 the hash of the proxies
-- ARGV  1 the process   2 where it is; '' it ends
--
-- The hash has a field for each process, with the time of its last word, the data's replication id then, and where it is;
-- and fields 'since ID', with the time when that id was seen first. A Redis that is promoted or started again has a new
-- id, and the processes of before follow within seconds. If one was there less than PRESENCE_FORK_S before the first word
-- under the new id, and has not followed for PRESENCE_AWAY_S, it has ended, or it stays before the Redis of before.
-- Answers the places of the processes that have not followed.
--@alone
local call, hash, process, place = redis.call, KEYS[1], ARGV[1], ARGV[2]
if place == '' then
  call('HDEL', hash, process)
  return {}
end
local now = tonumber(call('TIME')[1])
local id = string.match(call('INFO', 'replication'), 'master_replid:(%w+)')
call('HSETNX', hash, 'since ' .. id, now)
call('HSET', hash, process, now .. ' ' .. id .. ' ' .. place)
call('EXPIRE', hash, PRESENCE_KEPT_S)
local since, away, all = tonumber(call('HGET', hash, 'since ' .. id)), {}, call('HGETALL', hash)
for i = 1, #all, 2 do
  local seen, known, where = string.match(all[i + 1], '^(%d+) ?(%w*) ?(.*)$')
  seen = tonumber(seen)
  if now - seen > PRESENCE_KEPT_S and all[i] ~= 'since ' .. id then call('HDEL', hash, all[i])
  elseif where ~= '' and known ~= id and seen >= since - PRESENCE_FORK_S and now - seen > PRESENCE_AWAY_S then
    away[#away + 1] = where
  end
end
return away
