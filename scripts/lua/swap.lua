-- swap.lua: GETSET and SET ... GET; and SET after WATCH and GET of its key in a transaction (K3, shape 'ok'). Keeps
-- S1, S4.
--
-- Free: the caller acquires the lock. Holder: the value is replaced, and the reply is the old value. Data is swapped as on
-- Redis. Other: the caller takes over the lease or the foreign lock that it last read, if the lock still holds the value
-- that it read. Otherwise the reply is the present value; or LOCKED if that would look like success, and always with
-- shape 'ok'.
--
-- The caller counts as 'other' in two cases even if its client holds the lock. It last read another lease than the live
-- one: then it competes with another worker of its client. Or it last read the live lease, and its client holds that lease
-- through another proxy; the exception is a caller that was recognised for the lease (right 'fence').
local s = look()
local function swap()
  secure(s)
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then return envelope(reply, 'free') end
  local mine, pttl = take(s, ARGV[10 + at])
  redis.call('HSET', guard, 'attempt', attempt, 'reply', s.value or '')
  return envelope(reply, 'granted', mine, pttl)
end
if s.token == attempt and shape == 'ok' then return envelope(success(), 'granted', s, redis.call('PTTL', lock)) end
if s.token == attempt then -- a repeat: the old value is in the guard record
  local old = s.attempt == attempt and s.reply ~= '' and s.reply or false
  return envelope(old, 'granted', s, redis.call('PTTL', lock))
end
if s.attempt == attempt .. '*' then return envelope(s.reply, 'open') end -- a repeat: it was data
local left = delayed(s)
if left then return envelope(locked(s), 'held', s, left) end
if not s.value then return swap() end
if type(s.value) ~= 'string' then return envelope(command(), is_data(s) and 'open' or 'error') end
local shown, stale = was_shown(s)
if s.token then stale = read ~= '0' and read ~= int(s.fence)
else stale = not shown end
local how, why = may_touch(s)
if (how == 'done' and not stale) or (how == 'adopted' and (read == '0' or right == 'fence')) then
  local old = s.value
  secure(s)
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then
    forget(s, '1')
    return envelope(reply, 'released', s, -2)
  end
  s.keeps_lease = keeps_ttl()
  return envelope(reply, how, s, follow(s, ARGV[10 + at], true))
end
if is_data(s) then
  secure(s)
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  redis.call('HSET', guard, 'token', '', 'attempt', attempt .. '*', 'reply', s.value)
  redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS)
  return envelope(reply, how, s)
end
-- S1: the takeover needs the value that the caller read. If the holder has set another value since, the reply would be
-- that value, and the caller would believe that it lost.
if how == 'open' or (s.token and read ~= '0' and not stale and (shown or seen == '' or seen == '*')) then return swap() end
ask_to_write()
if shown or shape == 'ok' then return envelope(locked(s), why or 'held', s) end
return envelope(s.value, why or 'held', s)
