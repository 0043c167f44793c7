-- adopt.lua: runs right behind a script of the application's (EVAL, EVALSHA, FCALL) that names the lock key, and finds
-- out what has become of the lock. ARGV 11... are that script's arguments. It carries out no command; the reply is
-- what the lock is held with: its value, or of a hash lock the holder's field.
--   granted   it is held with one of the arguments, and no live lease was known: the lease is the caller's from here on
--   held      the lease that was known is live; its guard record follows an expiry that the script has set
--   released  the lease that was known ended before its time: the script has ended it
--   free, foreign   nothing of that
-- A script that took the expiry away, or set none, gets the rule's lease. S2, S3, L1.
local SLACK_MS = 2 -- the clock of older servers goes on while a script runs
local s = look()
local pttl, ends = redis.call('PTTL', lock), redis.call('PTTL', guard)

local function held_with_argument()
  local hash = type(s.value) == 'table' and redis.call('TYPE', lock).ok == 'hash'
  for i = 11, #ARGV do
    if s.value == ARGV[i] then return ARGV[i], 'string' end
    if hash and redis.call('HEXISTS', lock, ARGV[i]) == 1 then return ARGV[i], 'hash' end
  end
end

if s.list then return envelope(false, s.token and 'held' or 'foreign', s) end -- its nodes are not the script's
if s.token then
  if s.token == attempt then return envelope(s.held, 'granted', s, pttl) end
  local moved = (pttl == -1) ~= (ends == -1) or (pttl >= 0 and math.abs(pttl + GUARD_OUTLIVES_MS - ends) > SLACK_MS)
  if moved then
    pttl, s.leased = bound()
    redis.call('HSET', guard, 'leased', s.leased and int(s.fence) or '')
    keep_guard(pttl)
  end
  return envelope(s.held, 'held', s, pttl)
end
if s.attempt == attempt then return envelope(false, 'released', {fence = tonumber(s.reply)}, pttl) end -- repeated

local value, kind
if s.value then value, kind = held_with_argument() end
if value then
  local mine, left = take(s, value, kind)
  return envelope(value, 'granted', mine, left)
end
if s.stale_token and (ends == -1 or ends >= GUARD_OUTLIVES_MS) then
  forget(s, int(s.last_fence))
  return envelope(false, 'released', {fence = s.last_fence}, pttl)
end
return envelope(false, s.value and 'foreign' or 'free', nil, pttl)
