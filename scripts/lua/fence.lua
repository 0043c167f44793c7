-- fence.lua: a write of fenced data, together with the check whether its sender has lost the lock. Keeps S4, S7.
--
-- KEYS  n times a guard record and its lock, then m watermarks, then the command's keys
-- ARGV  1 n
--       2 the protocol of the command's reply: '3' if a client of RESP3 gets types that RESP2 lacks. If ' each'
--         follows, the command is a name and keys (LPOP a b): it runs for one key after the other until a key has
--         something. The reply begins with that key, as BLPOP's does in a transaction
--       3 the writer's client identity
--       4 m
--       then n + m fences of the leases under which the command writes. One of the first n is '0' if the writer has no
--         lease on that lock; it may then write only if its identity holds the lock. Tokens may follow the fence
--         ('41 TOKEN TOKEN'): attempts before this write in its transaction. The writer may also write if one of these
--         attempts holds the lock; with the fence '0', only then
--       then the command, unchanged
--
-- Returns the command's own reply. If nothing was done, it returns an error, from which the proxy makes the client's:
--   FENCED i now owner   the i-th lock has had another holder since: its fence is `now`, its identity `owner`. A `now`
--                        of 0 says that there is no guard record: the lease has been over for GUARD_OUTLIVES_MS, or
--                        Redis has lost the record, and another session may have held the lock since
--
-- The script is never sent twice, since data has no guard record to know a repeat by. A watermark stands in for the guard
-- record of a lock in another slot: it holds the greatest fence that has written here. Usually the check is one HGET.
--@alone
local argv, keys, redis = ARGV, KEYS, redis
local n, m = tonumber(argv[1]), tonumber(argv[4])
--@text

-- Returns fence, owner and token of a guard record.
local function record_of(key)
  local g = redis.pcall('HMGET', key, 'fence', 'owner', 'token')
  if not g.err then return g end
  g = text_fields(redis.call('GET', key))
  return {g[2], g[4], g[1]}
end

-- S7: if another session has held one of the locks since, nothing is written.
for i = 1, n do
  local mine = argv[4 + i]
  if redis.pcall('HGET', keys[2 * i - 1], 'fence') ~= mine then
    local g = record_of(keys[2 * i - 1])
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
-- A look at a lock in another slot (fenced_command.c) asks for the fence alone. HGET can't read a guard record's short form.
if argv[at] == 'HGET' and argv[at + 1] == keys[1] then return record_of(keys[1])[1] end
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

-- Lua's numbers are exact up to here. Beyond, the reply is the text that the key or field holds.
if type(reply) ~= 'number' or (reply <= 9007199254740991 and reply >= -9007199254740991) then return reply end
if string.lower(argv[at]) == 'hincrby' then return redis.call('HGET', argv[at + 1], argv[at + 2]) end
return redis.call('GET', argv[at + 1])
