-- fence.lua: a write of data that is fenced, together with the question whether its sender has lost the lock meanwhile.
-- KEYS  n times a guard record and its lock, then m watermarks, then the command's keys
-- ARGV  1 n   2 the protocol in which the command is to answer: '3' where a client of RESP3 gets types that RESP2 lacks;
--       with ' each' behind it the command is a name and keys (LPOP a b): it is run for each of them until one has
--       something, and the reply begins with that key (in a transaction BLPOP is that)
--       3 the writer's client identity   4 m   then n + m fences of the leases that it writes under: of the first n '0'
--       where it has none, and only who holds the lock may write. Behind the fence there may be tokens ('41 TOKEN TOKEN'), of
--       attempts that come before this write in its transaction: the writer may write if one of them holds the lock,
--       and with '0' only then   then the command, as it came
-- Returns the command's own reply, or, where nothing was done, an error that the proxy makes one for the client of:
--   FENCED i now owner   the i-th lock has had another holder since: its fence is `now`, its owner's identity `owner`; a
--                        `now` of 0 says that there is no guard record any more, so that nobody knows
-- A guard record that is gone says that the lease has been over for GUARD_OUTLIVES_MS, or that Redis has lost it: somebody
-- may have had the lock since. Never sent twice: data has no guard record to know a repeat by. S4, S7.
-- A watermark stands in for the guard record of a lock in another slot: the greatest fence that has written here.
-- The usual case, the lease that is the lock's last, is one HGET.
--@alone
local argv, keys, redis = ARGV, KEYS, redis
local n, m = tonumber(argv[1]), tonumber(argv[4])

for i = 1, n do
  local mine = argv[4 + i]
  if redis.call('HGET', keys[2 * i - 1], 'fence') ~= mine then
    local g = redis.call('HMGET', keys[2 * i - 1], 'fence', 'owner', 'token')
    local now, refused = g[1] or '0', nil
    local attempts = string.find(mine, ' ', 1, true)
    if attempts then
      local token = g[3] or ''
      local holds = token ~= '' and string.find(mine .. ' ', ' ' .. token .. ' ', 1, true) and
        redis.call('EXISTS', keys[2 * i]) == 1
      mine = string.sub(mine, 1, attempts - 1)
      refused = not holds and (mine == '0' or now == '0' or tonumber(now) > tonumber(mine))
    elseif mine == '0' then
      refused = not (g[3] and g[3] ~= '' and g[2] == argv[3] and redis.call('EXISTS', keys[2 * i]) == 1)
    else
      refused = now == '0' or tonumber(now) > tonumber(mine)
    end
    if refused then return {err = 'FENCED ' .. i .. ' ' .. now .. ' ' .. (g[2] or '')} end
  end
end

local behind = {}
for i = 1, m do
  local mine, now = argv[4 + n + i], redis.call('GET', keys[2 * n + i])
  if now and tonumber(now) > tonumber(mine) then return {err = 'FENCED ' .. n + i .. ' ' .. now .. ' '} end
  behind[i] = now ~= mine or redis.call('PTTL', keys[2 * n + i]) < WATERMARK_MS / 2
end
for i = 1, m do
  if behind[i] then redis.call('SET', keys[2 * n + i], argv[4 + n + i], 'PX', WATERMARK_MS) end
end

local at = 5 + n + m
if argv[2] ~= '2' then
  if string.sub(argv[2], 1, 1) == '3' then redis.setresp(3) end
  if #argv[2] > 1 then
    for i = at + 1, #argv do
      local got = redis.pcall(argv[at], argv[i])
      if type(got) == 'string' then return {argv[i], got} end
      if type(got) == 'table' and (got.err or #got > 0) then return got.err and got or {argv[i], unpack(got)} end
    end
    return nil
  end
end
local reply = redis.pcall(unpack(argv, at))

-- A script's numbers are exact up to here; beyond, the reply is the text that stands there.
if type(reply) ~= 'number' or (reply <= 9007199254740991 and reply >= -9007199254740991) then return reply end
if string.lower(argv[at]) == 'hincrby' then return redis.call('HGET', argv[at + 1], argv[at + 2]) end
return redis.call('GET', argv[at + 1])
