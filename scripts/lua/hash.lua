-- hash.lua: HSETNX (shape 'int'), HSET, HMSET, HINCRBYFLOAT and HDEL on a hash lock, which is held with one of its
-- fields. Keeps S1, S4, S5. HINCRBY is in count.lua.
--
-- Free: the caller acquires the lock, with the first field that the command names. Holder: as on Redis; the command
-- releases the lock if it removes the holder's field, or sets the count of a lease that HINCRBY has acquired to 0.
-- Other: HSETNX and HDEL answer 0, the rest LOCKED, since a 1 would say that the caller holds the lock.
local s = look()
if s.value and redis.call('EXISTS', lock) == 0 then s.value = false end -- to look removes fields that have expired
local name = string.lower(ARGV[11])
local function text(reply)
  if type(reply) == 'number' then return int(reply) end
  return type(reply) == 'table' and reply.ok or reply
end
local function remember(reply)
  redis.call('HSET', guard, 'attempt', attempt, 'reply', text(reply))
end

-- A repeat gets the first reply again. Exception (S5): a repeated HSETNX whose lease has ended meanwhile is a new
-- attempt, since a 1 would say that the caller holds the lock. If its lease is live, it has acquired, whatever command
-- another session has sent since.
local live = s.token and (s.token == attempt or s.token == claim)
if name == 'hsetnx' and s.token == attempt then return envelope(1, 'granted', s, lease_pttl(s.held)) end
if s.attempt == attempt and (live or name ~= 'hsetnx') then
  local reply = s.reply
  if name == 'hmset' then reply = {ok = reply} elseif name ~= 'hincrbyfloat' then reply = tonumber(reply) end
  local outcome = s.token == attempt and 'granted' or (s.token and s.token == claim and 'done' or 'released')
  return envelope(reply, outcome, s, lease_pttl(live and s.held))
end
if not s.value then
  secure(s, name == 'hdel')
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then return envelope(reply, 'free', nil, -2) end
  local mine, pttl = take(s, ARGV[10 + at], 'hash')
  remember(reply)
  return envelope(reply, 'granted', mine, pttl)
end
if redis.call('TYPE', lock).ok ~= 'hash' then return envelope(command(), 'error') end
local how, why = may_touch(s)
-- S1: another session's live lease is not changed.
if not how then
  ask_to_write()
  if name == 'hsetnx' or name == 'hdel' then return envelope(0, why, s) end
  return envelope(locked(s), why, s)
end
secure(s, name == 'hdel')
local counts = s.token and string.match(redis.call('HGET', guard, 'extra') or '', '^%d+') == int(s.fence)
local before = counts and redis.call('HGET', lock, s.held)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
local count = counts and redis.call('HGET', lock, s.held)
if count and count ~= before then redis.call('HSET', guard, 'extra', int(s.fence) .. ':0') end -- it is all the holder's
if s.token and (redis.call('HEXISTS', lock, s.held) == 0 or (count and (tonumber(count) or 1) <= 0)) then
  if counts and s.leased then redis.call('PERSIST', lock) end -- as in count.lua
  forget(s, text(reply))
  return envelope(reply, 'released', s, redis.call('PTTL', lock))
end
s.keeps_lease = true
local pttl = follow(s, s.held)
if s.token then remember(reply) end
return envelope(reply, how, s, pttl)
