-- count.lua: INCR, INCRBY, DECR, DECRBY, INCRBYFLOAT, APPEND, SETRANGE, SETBIT: commands that change a lock's
-- value in place. Free (or a counter that is not above zero): acquires, when the result is above zero or no
-- number. Otherwise as Redis; the guard's value follows, the owner stays. A counter brought to zero or below
-- is free: its holder released it. Nobody else may do that: refused, with the reply that a release expects. S1, S2, S4.
local s = look()
if s.attempt == attempt then -- repeated; a float's reply is text, as Redis gives it
  local outcome = (s.token == attempt) and 'granted' or 'counted'
  return envelope(tonumber(s.reply) and not string.find(s.reply, '[^%-%d]') and shape == 'int' and tonumber(s.reply) or s.reply,
    outcome, s, redis.call('PTTL', lock))
end
local function above_zero(value)
  local n = tonumber(value)
  return n == nil or n > 0
end
local old = s.value
local before = old and redis.call('PTTL', lock)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
local value = redis.call('GET', lock)
local said = tostring(reply)
if type(reply) == 'number' then said = string.format('%.0f', reply) end
if not value then return envelope(reply, 'free', nil, -2) end -- SETRANGE with an empty value
if not old or not above_zero(old) then
  if not above_zero(value) then -- still free
    return envelope(reply, 'free', nil, redis.call('PTTL', lock))
  end
  local mine, pttl = take(s, value, 'counter')
  redis.call('HSET', guard, 'attempt', attempt, 'reply', said)
  return envelope(reply, 'granted', mine, pttl)
end
local how, why = may_touch(s)
if not above_zero(value) and not how then -- undo: somebody else would have released it
  redis.call('SET', lock, old)
  if before > 0 then redis.call('PEXPIRE', lock, before) end
  return envelope(type(reply) == 'number' and 0 or reply, why, s)
end
if not above_zero(value) then
  if s.leased then redis.call('PERSIST', lock) end -- the application gave it no expiry
  if s.token then
    redis.call('HSET', guard, 'value', value)
    forget(s, said)
  end
  return envelope(reply, 'released', s, redis.call('PTTL', lock))
end
s.keeps_lease = true
local pttl = s.token and follow(s, value) or redis.call('PTTL', lock)
redis.call('HSET', guard, 'attempt', attempt, 'reply', said)
if not s.token then redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS) end
return envelope(reply, how or 'counted', s, pttl)
