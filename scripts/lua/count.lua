-- count.lua: INCR, INCRBY, DECR, DECRBY on a counter that is a lock, and HINCRBY on a hash lock. Keeps S1, S2, S4.
--
-- If the lock is free, or its counter is not above zero, the caller acquires it if the result is above zero or is no
-- number. Otherwise the command runs as on Redis: the guard record's value follows, and the owner stays.
--
-- The guard record's field `extra` is FENCE:N. N is what other sessions have counted on top of the holder's part, and may
-- take back (a loser's INCR and DECR). The holder releases by taking back its own part, also while a loser's part
-- remains. No other session can: the command is refused with the reply that a release expects.
--
-- A hash lock counts in the field that HINCRBY names. A lease that HINCRBY has acquired has `extra` from the start, and
-- counts in other fields are data beside it. Other hash locks only the holder counts on. A hash without a live lease
-- becomes a lock where the field's count is not above zero, or was the last lease's; other counts are data. The release
-- leaves the hash without the expiry that the proxy gave it.
local s = look()
local field = at > 0 and ARGV[10 + at]
if s.attempt == attempt then -- a repeat; a float is text, as in Redis's reply
  local number = shape == 'int' and not string.find(s.reply, '[^%-%d]') and tonumber(s.reply)
  local pttl = lease_pttl(s.token and s.kind == 'hash' and s.held)
  return envelope(number or s.reply, s.token == attempt and 'granted' or 'counted', s, pttl)
end
if right == 'release_then_acquire' and s.token == claim and (field or type(s.value) == 'string') then
  secure(s, true)
  if field then redis.call('HDEL', lock, s.held) else redis.call('DEL', lock) end
  forget(s, '1')
  s = look()
end
local function above_zero(value)
  local n = tonumber(value)
  return n == nil or n > 0
end
local function content()
  if field then return redis.call('HGET', lock, field) end
  return redis.call('GET', lock)
end
local old = s.value
if field and old then
  if redis.call('TYPE', lock).ok ~= 'hash' then return envelope(command(), 'error') end
  old = content()
end
local before = old and redis.call('PTTL', lock)
secure(s)
local said_of, counted = string.match(redis.call('HGET', guard, 'extra') or '', '^(%d+):(%d+)$')
local counts = not field or said_of == int(s.last_fence)
local extra, was = said_of == int(s.last_fence) and tonumber(counted) or 0, tonumber(old)
local how, why = may_touch(s)
local beside = field and s.value and (s.token and (field ~= s.held or not counts) or not (old or s.token or field == s.held))
if s.token and not how and not counts then return envelope(locked(s), why, s) end

-- What the command would make of the counter; nil: the counter or the step is no integer of at most 15 characters.
local function foreseen()
  local by = ({incr = '1', decr = '-1', incrby = ARGV[13], decrby = ARGV[13], hincrby = ARGV[14]})[string.lower(ARGV[11])]
  for _, n in ipairs({old, by or ''}) do
    if type(n) ~= 'string' or n ~= '0' and (#n > 15 or not string.find(n, '^-?[1-9]%d*$')) then return end
  end
  return int(was + (string.lower(ARGV[11]) == 'decrby' and -by or by))
end
-- Returns the refusal for a lock that the caller may not touch, and that would hold `value` after the command; nil: the
-- command may run. `reply`: what a release expects.
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
local others = old and not how and not beside and (s.token or above_zero(old))
local value = others and foreseen()
local refusal = value and refuse(value, 0)
if refusal then return refusal end -- S4: before any write, since a session may watch the key

if not s.value then redis.call('DEL', lock) end -- deletes nothing; checks that the user may DEL (undo)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
local function undo()
  if field then
    if old then redis.call('HSET', lock, field, old) else redis.call('HDEL', lock, field) end
  elseif old then
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
value = content()
local said = tostring(reply)
if type(reply) == 'number' then said = int(reply) end
if not value then return envelope(reply, 'free', nil, -2) end -- the command left no key
if not s.token and not beside and (not old or not above_zero(old)) then
  if not above_zero(value) then -- still free; a new counter gets an expiry, as a lock would
    disown(s)
    return envelope(reply, 'free', nil, (old or field) and redis.call('PTTL', lock) or bound())
  end
  if old and not field then redis.call('PERSIST', lock) end -- the rest of an earlier lease's time is not the new lease's
  local mine, pttl = take(s, field or value, field and 'hash' or 'counter')
  redis.call('HSET', guard, 'attempt', attempt, 'reply', said)
  if field then redis.call('HSET', guard, 'extra', int(mine.fence) .. ':0') end
  return envelope(reply, 'granted', mine, pttl)
end

local now = tonumber(value)

if how and (not above_zero(value) or (s.token and now and now <= extra)) and not beside then -- released
  if s.token then
    if field and s.leased then redis.call('PERSIST', lock) end
    if not field then redis.call('HSET', guard, 'value', value) end
    forget(s, said)
    local left = redis.call('PTTL', lock)
    if now > 0 and (left > 0 or not field) then keep_guard(left) end
  else
    disown(s)
  end
  return envelope(reply, 'released', s, redis.call('PTTL', lock))
end

if not how and not beside then
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
  pttl = follow(s, field and s.held or value)
else
  pttl = redis.call('PTTL', lock)
  disown(s)
  keep_guard(math.max(pttl, 0))
end
return envelope(reply, how or 'counted', s, pttl)
