-- acquire.lua: SETNX, SET ... NX, and MSETNX of one key, in every state of the lock; acquire_usual.lua comes first where
-- it may do. Keeps S2 and S5: the reply is a success only if the attempt is the live lease.
--
-- Right 'release_then_acquire': the claim's lease is released first, if it is live. For a lease that another proxy gave to
-- the caller's identity, the claim is its fence. By any other right the claim does not count, unless it says that the
-- attempt was sent without a script before (unfinished.lua).
--@common
--@unfinished
local value, expires, late = ARGV[10 + at], ARGV[15], string.find(claim, '^[-+!]')
local own_lock, left_over = false, 0
if late then own_lock, left_over = clear_unfinished(value) end
local s = look()
s.last_fence = math.max(s.last_fence, left_over)
if own_lock and not s.token then
  redis.call('DEL', lock)
  s.value = false
end
if s.token == attempt then
  if not late then return envelope(success(), 'granted', s, redis.call('PTTL', lock)) end
  local kept = s.value == value and keep_short(s, value, expires)
  if kept then return kept end
  if not expires then redis.call('PERSIST', lock) end -- it gets the rule's lease again
  local mine, pttl = own(s, attempt, s.value) -- other sessions have counted on it since
  return envelope(success(), 'granted', mine, pttl)
end
local release_first = right == 'release_then_acquire' and s.token and type(s.value) == 'string' and
  (s.token == claim or (s.owner == identity and int(s.fence) == claim))
if release_first then
  secure(s, true)
  redis.call('DEL', lock)
  forget(s, '1')
  s = look()
end
local left = not release_first and delayed(s)
if left then return envelope(shape == 'nil' and s.held or refusal(), 'held', s, left) end
if not s.value then
  redis.call('PTTL', lock)
  secure(s)
end
local answer = command()
if failed(answer) then return envelope(answer, 'error') end
if s.value then return envelope(answer, s.token and 'held' or 'foreign', s) end
if redis.call('EXISTS', lock) == 0 then return envelope(answer, 'free', nil, -2) end -- its expiry is in the past
-- Another proxy made the lock's last release: right 'spent' asks for that, and only a hash keeps it.
local elsewhere = (s.attempt or '') ~= '' and string.sub(s.attempt, 1, 36) ~= proxy
local kept = late and not elsewhere and keep_short(s, value, expires)
if kept then return kept end
local mine, pttl = take(s, value)
return envelope(answer, 'granted', mine, pttl)
