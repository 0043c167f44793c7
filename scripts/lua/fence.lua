-- fence.lua: a write of data that is fenced, together with the question whether its sender has lost the lock meanwhile.
-- KEYS  n times a guard record and its lock, then the command's keys
-- ARGV  1 n   2 the protocol in which the command is to answer: '3' where a client of RESP3 gets types that RESP2 lacks
--       3 the writer's client identity   4 to 3 + n the fences of the leases that it writes under: '0' where it has none,
--       and only who holds the lock may write   then the command, as it came
-- Returns the command's own reply, or, where nothing was done, an error that the proxy makes one for the client of:
--   FENCED i now owner   the i-th lock has had another holder since: its fence is `now`, its owner's identity `owner`; a
--                        `now` of 0 says that there is no guard record any more, so that nobody knows
-- A guard record that is gone says that the lease has been over for GUARD_OUTLIVES_MS, or that Redis has lost it: somebody
-- may have had the lock since. Never sent twice: data has no guard record to know a repeat by. S4, S7.
--@alone
local n, identity = tonumber(ARGV[1]), ARGV[3]

local function refused(i, now, owner)
  return {err = 'FENCED ' .. i .. ' ' .. now .. ' ' .. (owner or '')}
end

for i = 1, n do
  local mine = ARGV[3 + i]
  local g = redis.call('HMGET', KEYS[2 * i - 1], 'fence', 'owner', 'token')
  local now = g[1] or '0'
  if mine == '0' then
    local holds = g[3] and g[3] ~= '' and g[2] == identity and redis.call('EXISTS', KEYS[2 * i]) == 1
    if not holds then return refused(i, now, g[2]) end
  elseif now == '0' or tonumber(now) > tonumber(mine) then
    return refused(i, now, g[2])
  end
end

local at = 4 + n
if ARGV[2] == '3' then redis.setresp(3) end
local reply = redis.pcall(unpack(ARGV, at))

-- A script's numbers are exact up to here; beyond, the reply is the text that stands there.
if type(reply) ~= 'number' or math.abs(reply) <= 9007199254740991 then return reply end
if string.lower(ARGV[at]) == 'hincrby' then return redis.call('HGET', ARGV[at + 1], ARGV[at + 2]) end
return redis.call('GET', ARGV[at + 1])
