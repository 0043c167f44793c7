-- hash.lua: HSETNX (shape 'int'), HSET, HMSET, HINCRBYFLOAT and HDEL on a hash lock, which is held with one of its
-- fields. As fields.lua, by the same text, it serves HSETEX, HGETEX and HGETDEL. Keeps S1, S4, S5. HINCRBY is in count.lua.
--
-- Free: the caller acquires the lock, with the first field that the command names. Holder: as on Redis; the command
-- releases the lock if it removes the holder's field, or sets the count of a lease that HINCRBY has acquired to 0.
-- Other: nothing changes. HSETNX, HDEL and HSETEX with a condition answer 0, HGETEX answers the values, and HGETDEL a nil
-- for each field; the rest answers LOCKED, since a 1 would say that the caller holds the lock.
--
-- The lease of a holder's field that has an expiry ends with the field. The key gets no expiry then.
local name = string.lower(ARGV[11])
local sets, gets, takes = name == 'hsetex', name == 'hgetex', name == 'hgetdel'
local newer = sets or gets or takes -- these say how many fields they name, have arrays as replies, and are not on all servers
local frees = gets or takes or name == 'hdel'
local conditional, absent, reads = name == 'hsetnx' or name == 'hdel', name == 'hsetnx', gets
for i = 13, newer and #ARGV or 0 do -- options stand before and behind the fields
  local word = string.lower(ARGV[i])
  if i < 10 + at - 2 or i >= 10 + at + (sets and 2 or 1) * tonumber(ARGV[9 + at]) then
    absent, reads = absent or word == 'fnx', false
    conditional = conditional or word == 'fnx' or word == 'fxx'
  end
end

local s = look()
if s.value and redis.call('EXISTS', lock) == 0 then s.value = false end -- to look removes fields that have expired
local function text(reply)
  if newer then return cmsgpack.pack(reply) end
  if type(reply) == 'number' then return int(reply) end
  return type(reply) == 'table' and reply.ok or reply
end
local function remember(reply)
  redis.call('HSET', guard, 'attempt', attempt, 'reply', text(reply))
end
local function run()
  if newer then return known(command(), 11) end
  return command()
end

-- A repeat gets the first reply again. Exception (S5): a repeated HSETNX or HSETEX FNX whose lease has ended meanwhile is
-- a new attempt, since a 1 would say that the caller holds the lock. If its lease is live, it has acquired, whatever
-- command another session has sent since.
local live = s.token and (s.token == attempt or s.token == claim)
if absent and s.token == attempt then return envelope(1, 'granted', s, lease_pttl(s.held)) end
if s.attempt == attempt and (live or not absent) then
  local reply = s.reply
  if newer then reply = cmsgpack.unpack(reply)
  elseif name == 'hmset' then reply = {ok = reply} elseif name ~= 'hincrbyfloat' then reply = tonumber(reply) end
  local outcome = s.token == attempt and 'granted' or (s.token and s.token == claim and 'done' or 'released')
  return envelope(reply, outcome, s, lease_pttl(live and s.held))
end
if not s.value then
  if not (gets or takes) then secure(s, frees) end
  local reply = run()
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then return envelope(reply, 'free', nil, -2) end
  local mine, pttl = take(s, ARGV[10 + at], 'hash')
  remember(reply)
  return envelope(reply, 'granted', mine, pttl)
end
if redis.call('TYPE', lock).ok ~= 'hash' then return envelope(run(), 'error') end
local how, why = may_touch(s)
-- S1: another session's live lease is not changed.
if not how then
  ask_to_write()
  local fields = {}
  for i = 1, newer and tonumber(ARGV[9 + at]) or 0 do fields[i] = ARGV[10 + at + (i - 1) * (sets and 2 or 1)] end
  if newer then -- HGETEX without an option changes nothing. A server without it has none of the three.
    local reply = known(redis.pcall('HGETEX', lock, 'FIELDS', #fields, unpack(fields)), 11)
    if failed(reply) and (gets or string.find(reply.err, '^ERR unknown')) then return envelope(reply, 'error') end
    if gets then return envelope(reply, reads and 'error' or why, s) end -- a read is no attempt to extend
  end
  if takes then
    for i = 1, #fields do fields[i] = false end
    return envelope(fields, why, s)
  end
  return envelope(conditional and 0 or locked(s), why, s)
end
secure(s, frees)
local counts = not newer and s.token and string.match(redis.call('HGET', guard, 'extra') or '', '^%d+') == int(s.fence)
local before = counts and redis.call('HGET', lock, s.held)
local reply = run()
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
