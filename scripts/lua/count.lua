-- count.lua: INCR, INCRBY, DECR, DECRBY on a counter that is a lock. Keeps S1, S2, S4.
--
-- If the lock is free, or its counter is not above zero, the caller acquires it if the result is above zero or is no
-- number. Otherwise the command runs as on Redis: the guard record's value follows, and the owner stays.
--
-- The guard record's field `extra` is FENCE:N. N is what other sessions have counted on top of the holder's part. They
-- may take it back (a loser's INCR and DECR). If the holder takes back all of its own part, it has released the lock,
-- also while a loser's part remains. No other session can take back the holder's part: the command is refused with the
-- reply that a release expects.
local s = look()
if s.attempt == attempt then -- a repeat; a float is text, as in Redis's reply
  local number = shape == 'int' and not string.find(s.reply, '[^%-%d]') and tonumber(s.reply)
  return envelope(number or s.reply, s.token == attempt and 'granted' or 'counted', s, redis.call('PTTL', lock))
end
if right == 'release_then_acquire' and s.token == claim and type(s.value) == 'string' then
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

-- Returns what the command would make of the counter. Returns nil if the counter or the step is no integer of at most
-- 15 characters: then only the command itself can tell.
local function foreseen()
  local by = ({incr = '1', decr = '-1', incrby = ARGV[13], decrby = ARGV[13]})[string.lower(ARGV[11])]
  for _, n in ipairs({old, by or ''}) do
    if type(n) ~= 'string' or n ~= '0' and (#n > 15 or not string.find(n, '^-?[1-9]%d*$')) then return end
  end
  return int(was + (string.lower(ARGV[11]) == 'decrby' and -by or by))
end
-- For a lock that the caller may not touch, and that would hold `value` after the command: returns the refusal, or nil
-- if the command may run. `reply`: what a release expects.
local function refuse(value, reply)
  if s.token and not above_zero(old) and above_zero(value) then return envelope(locked(s), why, s) end -- 1 says acquired
  local now = tonumber(value)
  local by = now and was and now - was or 0
  -- the holder has released, and a loser takes back its own part
  local remains = not s.token and not s.stale_token and was and was <= extra and extra + by >= 0
  if remains then return end
  if not above_zero(value) or (s.token and now and now <= math.max(extra + by, 0)) then
    return envelope(reply, why, s)
  end
end
local others = old and not how and (s.token or above_zero(old))
local value = others and foreseen()
local refusal = value and refuse(value, 0)
if refusal then return refusal end -- S4: before any write, since a session may watch the key

if not old then redis.call('DEL', lock) end -- deletes nothing; checks that the user may DEL (undo)
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
if type(reply) == 'number' and math.abs(reply) > 9007199254740991 then -- Lua can't hold it exactly
  undo()
  return envelope({err = 'ERR the number is too large for a lock key; nothing was changed'}, 'error')
end
value = redis.call('GET', lock)
local said = tostring(reply)
if type(reply) == 'number' then said = int(reply) end
if not value then return envelope(reply, 'free', nil, -2) end -- the command left no key
if not old or (not s.token and not above_zero(old)) then
  if not above_zero(value) then -- still free; a new counter gets an expiry, as a lock would
    disown(s)
    return envelope(reply, 'free', nil, old and redis.call('PTTL', lock) or bound())
  end
  if old then redis.call('PERSIST', lock) end -- the rest of an earlier lease's time is not the new lease's
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
