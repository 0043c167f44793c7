-- fields.lua: HSETEX, HGETEX and HGETDEL on a hash lock, which is held with one of its fields. Keeps S1, S4, S5.
--
-- Free: HSETEX acquires the lock, with the first field that it names. Holder: as on Redis; HGETDEL releases the lock if
-- it removes the holder's field. Other: HSETEX with a condition answers 0, and without one LOCKED (a 1 would say that the
-- caller holds the lock), HGETEX the values, and HGETDEL nils; nothing changes.
--
-- The lease of a holder's field that has an expiry ends with the field. The key gets no expiry then.
local name = string.lower(ARGV[11])
local sets, gets = name == 'hsetex', name == 'hgetex'
local conditional, absent, reads = false, false, gets
for i = 13, #ARGV do -- options stand before and behind the fields
  local word = string.lower(ARGV[i])
  if i < 10 + at - 2 or i >= 10 + at + (sets and 2 or 1) * tonumber(ARGV[9 + at]) then
    absent, reads = absent or word == 'fnx', false
    conditional = conditional or word == 'fnx' or word == 'fxx'
  end
end

local s = look()
if s.value and redis.call('EXISTS', lock) == 0 then s.value = false end -- to look removes fields that have expired
local function remember(reply)
  redis.call('HSET', guard, 'attempt', attempt, 'reply', cmsgpack.pack(reply))
end
local function none()
  local reply = {}
  for i = 1, tonumber(ARGV[9 + at]) do reply[i] = false end
  return reply
end

-- A repeat gets the first reply again. Exception (S5): a repeated HSETEX FNX whose lease has ended meanwhile is a new
-- attempt, since a 1 would say that the caller holds the lock. If its lease is live, it has acquired, whatever command
-- another session has sent since.
local live = s.token and (s.token == attempt or s.token == claim)
if absent and s.token == attempt then return envelope(1, 'granted', s, lease_pttl(s.held)) end
if s.attempt == attempt and (live or not absent) then
  local outcome = s.token == attempt and 'granted' or (s.token and s.token == claim and 'done' or 'released')
  return envelope(cmsgpack.unpack(s.reply), outcome, s, lease_pttl(live and s.held))
end
if not s.value then
  if sets then secure(s) end
  local reply = known(command(), 11)
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then return envelope(reply, 'free', nil, -2) end
  local mine, pttl = take(s, ARGV[10 + at], 'hash')
  remember(reply)
  return envelope(reply, 'granted', mine, pttl)
end
if redis.call('TYPE', lock).ok ~= 'hash' then return envelope(known(command(), 11), 'error') end
local how, why = may_touch(s)
-- S1: another session's live lease is not changed.
if not how then
  ask_to_write()
  -- HGETEX without an option changes nothing. A server without it has none of the three.
  local fields = {}
  for i = 1, tonumber(ARGV[9 + at]) do fields[i] = ARGV[10 + at + (i - 1) * (sets and 2 or 1)] end
  local reply = known(redis.pcall('HGETEX', lock, 'FIELDS', #fields, unpack(fields)), 11)
  if failed(reply) and (gets or string.find(reply.err, '^ERR unknown')) then return envelope(reply, 'error') end
  if gets then return envelope(reply, reads and 'error' or why, s) end -- a read is no attempt to extend
  if sets then return envelope(conditional and 0 or locked(s), why, s) end
  return envelope(none(), why, s)
end
secure(s, not sets)
local reply = known(command(), 11)
if failed(reply) then return envelope(reply, 'error') end
if s.token and redis.call('HEXISTS', lock, s.held) == 0 then
  forget(s, cmsgpack.pack(reply))
  return envelope(reply, 'released', s, redis.call('PTTL', lock))
end
s.keeps_lease = true
local pttl = follow(s, s.held)
if s.token then remember(reply) end
return envelope(reply, how, s, pttl)
