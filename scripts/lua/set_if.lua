-- set_if.lua: SET with IFEQ, IFNE, IFDEQ or IFDNE, which compares for itself (compare.lua). Keeps S1, S2, S4.
--
-- What says no of itself changes nothing. Otherwise:
-- Free (IFNE): with shape 'ok' the caller acquires the lock, if it gets an expiry. Else the value is data.
-- Holder: value and expiry change inside the lease. Data: as on the server.
-- Other: the caller takes over the lease that it was shown last, if it compares with this lease's value and writes
-- another one (K3). Otherwise the server's own no; LOCKED if GET would make the no look like a success.
local compare
--@compare
local gets, expires, keeps = false, false, false
local i = 11 + at
while i <= #ARGV do
  local word = string.lower(ARGV[i])
  if word == 'get' then gets = true end
  if word == 'keepttl' then keeps = true end
  local sets_expiry = word == 'ex' or word == 'px' or word == 'exat' or word == 'pxat'
  expires = expires or sets_expiry
  if sets_expiry or string.find(word, '^ifd?eq$') or string.find(word, '^ifd?ne$') then i = i + 1 end -- its argument
  i = i + 1
end
local function remember(s)
  local old = s.value and '=' .. s.value or '-'
  redis.call('HSET', guard, 'attempt', attempt, 'reply', gets and old or 'OK')
  if not s.token then redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS) end
end

local s = look()
if s.attempt == attempt then -- a repeat: the first reply is in the guard record
  local old = string.match(s.reply or '', '^=(.*)$')
  local live = s.token == attempt and 'granted' or (s.token and s.token == claim and 'done') or 'open'
  return envelope(old or s.reply ~= '-' and {ok = s.reply}, live, s, redis.call('PTTL', lock))
end
local acts, no, equal = compare(s, 11)
if not acts then
  return envelope(known(acts == nil and redis.pcall(unpack(no)) or command(), 11), 'error', s)
end
local value = ARGV[10 + at]
if not s.value then
  local acquires = shape == 'ok' and expires
  local left = acquires and delayed(s)
  if left then return envelope(gets and locked(s) or false, 'held', s, left) end
  if acquires then secure(s) end
  local reply = known(command(), 11)
  if failed(reply) then return envelope(reply, 'error') end
  if not acquires or redis.call('EXISTS', lock) == 0 then
    disown(s)
    return envelope(reply, 'free', nil, -3)
  end
  remember(s)
  local mine, pttl = take(s, value)
  return envelope(reply, 'granted', mine, pttl)
end
if right == 'suspect' then right = 'claim' end -- only a release makes a lease suspect
if equal == 'eq' and not s.token then seen = '=' .. s.value end -- the caller knows the value
local how, why = may_touch(s)
local takes_over = not how and s.token and equal == 'eq' and value ~= s.value and read == int(s.fence)
-- S1: another session's live lease is not overwritten.
if not how and not takes_over then
  ask_to_write()
  local reply = known(redis.pcall(unpack(no)), 11)
  if failed(reply) then return envelope(reply, 'error') end
  return envelope(gets and locked(s) or false, why, s)
end
secure(s)
local reply = known(command(), 11)
if failed(reply) or not (reply or gets) then return envelope(reply, 'error') end
if redis.call('EXISTS', lock) == 0 then -- an expiry in the past
  if s.token then forget(s, '1') else disown(s) end
  remember(s)
  return envelope(reply, s.token and 'released' or how, s, -2)
end
value = redis.call('GET', lock)
if takes_over then
  local mine, pttl = take(s, value)
  remember(s)
  return envelope(reply, 'granted', mine, pttl)
end
s.keeps_lease = keeps
local pttl = follow(s, value, true)
remember(s)
return envelope(reply, how, s, pttl)
