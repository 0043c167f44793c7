-- swap.lua: GETSET, SET ... GET; and SET behind WATCH and GET of its key in a transaction (shape 'ok').
-- Free: acquires. Holder: replaces, old value. Other: takes over only the
-- lease (or the foreign lock) that the caller last read, with the value that it read; otherwise nothing is set
-- and the present value is the answer, or LOCKED where that would look like success (shape 'ok': always LOCKED). A caller
-- that last read another lease than the live one is 'other' even if its client holds the lock: it competes with its own
-- colleague. So is one that last read the live one, where its client holds that through another proxy, unless it is
-- recognised for that lease (right 'fence'). Data is swapped as Redis does it, and nobody's lock comes of it. S1, S4.
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
if s.token == attempt then -- repeated: the old value is in the guard record
  local old = s.attempt == attempt and s.reply ~= '' and s.reply or false
  return envelope(old, 'granted', s, redis.call('PTTL', lock))
end
if s.attempt == attempt .. '*' then return envelope(s.reply, 'open') end -- repeated: it was data
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
-- The holder may have set another value since: it would be told the caller, who would take that for a loss.
if how == 'open' or (s.token and read ~= '0' and not stale and (shown or seen == '' or seen == '*')) then return swap() end
ask_to_write()
if shown or shape == 'ok' then return envelope(locked(s), why or 'held', s) end
return envelope(s.value, why or 'held', s)
