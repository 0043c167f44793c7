-- count.lua: INCR, INCRBY, DECR, DECRBY on a counter that is a lock. Free (or a counter that is not above zero): acquires, when the result is above zero or no
-- number. Otherwise as Redis; the guard's value follows, the owner stays.
-- The guard's `extra` is what others have counted on top of the holder's own and may take back (a loser's INCR and
-- DECR), behind the fence and a colon. The holder that takes back all of its own has released the lock, also while a
-- loser's part is still there; nobody else can bring the holder's part to zero: refused, with the reply that a release
-- expects. S1, S2, S4.
local s = look()
if s.attempt == attempt then -- repeated; a float's reply is text, as Redis gives it
  local number = shape == 'int' and not string.find(s.reply, '[^%-%d]') and tonumber(s.reply)
  return envelope(number or s.reply, s.token == attempt and 'granted' or 'counted', s, redis.call('PTTL', lock))
end
if right == 'instead' and s.token == claim and type(s.value) == 'string' then
  secure(s, true)
  redis.call('DEL', lock)
  forget(s, '1')
  s = look()
end
local function above_zero(value)
  local n = tonumber(value)
  return n == nil or n > 0
end
local old = s.value
local before = old and redis.call('PTTL', lock)
secure(s)
local said_of, counted = string.match(redis.call('HGET', guard, 'extra') or '', '^(%d+):(%d+)$')
local extra, was = said_of == int(s.last_fence) and tonumber(counted) or 0, tonumber(old)
local how, why = may_touch(s)

-- What INCR and its kin would make of an integer: nothing where only the command itself can tell.
local function foreseen()
  local by = ({incr = '1', decr = '-1', incrby = ARGV[13], decrby = ARGV[13]})[string.lower(ARGV[11])]
  for _, n in ipairs({old, by or ''}) do
    if type(n) ~= 'string' or n ~= '0' and (#n > 15 or not string.find(n, '^-?[1-9]%d*$')) then return end
  end
  return int(was + (string.lower(ARGV[11]) == 'decrby' and -by or by))
end
-- Somebody else's lock that would hold `value` then: the refusal, where there has to be one. `reply`: a release's.
local function refuse(value, reply)
  if s.token and not above_zero(old) and above_zero(value) then return envelope(locked(s), why, s) end -- 1: acquired
  local now = tonumber(value)
  local by = now and was and now - was or 0
  -- the holder has released, and a loser takes back its own
  local remains = not s.token and not s.stale_token and was and was <= extra and extra + by >= 0
  if remains then return end
  if not above_zero(value) or (s.token and now and now <= math.max(extra + by, 0)) then
    return envelope(reply, why, s)
  end
end
local others = old and not how and (s.token or above_zero(old))
local value = others and foreseen()
local refusal = value and refuse(value, 0)
if refusal then return refusal end -- the lock was not touched: somebody may watch it

if not old then redis.call('DEL', lock) end -- nothing; undo has to be allowed to
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
local function undo()
  if old then
    redis.call('SET', lock, old)
    if before > 0 then redis.call('PEXPIRE', lock, int(before)) end
  else
    redis.call('DEL', lock)
  end
end
if type(reply) == 'number' and math.abs(reply) > 9007199254740991 then -- a script can't repeat it exactly
  undo()
  return envelope({err = 'ERR the number is too large for a lock key; nothing was changed'}, 'error')
end
value = redis.call('GET', lock)
local said = tostring(reply)
if type(reply) == 'number' then said = int(reply) end
if not value then return envelope(reply, 'free', nil, -2) end -- SETRANGE with an empty value
if not old or (not s.token and not above_zero(old)) then
  if not above_zero(value) then -- still free; what was made of nothing ends as a lock would
    disown(s)
    return envelope(reply, 'free', nil, old and redis.call('PTTL', lock) or bound())
  end
  if old then redis.call('PERSIST', lock) end -- what is left of an earlier lease's time is not this one's
  local mine, pttl = take(s, value, 'counter')
  redis.call('HSET', guard, 'attempt', attempt, 'reply', said)
  return envelope(reply, 'granted', mine, pttl)
end

local now = tonumber(value)

if how and (not above_zero(value) or (s.token and now and now <= extra)) then -- released
  if s.token then
    redis.call('HSET', guard, 'value', value)
    forget(s, said)
    if now > 0 then keep_guard(redis.call('PTTL', lock)) end
  else
    disown(s)
  end
  return envelope(reply, 'released', s, redis.call('PTTL', lock))
end

if not how then
  refusal = refuse(value, type(reply) == 'number' and 0 or reply)
  if refusal then
    undo()
    return refusal
  end
  extra = math.max(extra + (now and was and now - was or 0), 0)
  redis.call('HSET', guard, 'extra', int(s.last_fence) .. ':' .. int(extra))
end
redis.call('HSET', guard, 'attempt', attempt, 'reply', said)
s.keeps_lease = true
local pttl
if s.token then
  pttl = follow(s, value)
else
  pttl = redis.call('PTTL', lock)
  disown(s)
  keep_guard(math.max(pttl, 0))
end
return envelope(reply, how or 'counted', s, pttl)
