-- adopt.lua: two steps around a script of the application's (EVAL, EVALSHA, FCALL) that names the lock key. They find out
-- what has become of the lock; neither carries out a command.
--
-- In one transaction with the script (ARGV 10 'together'), so that nobody's command comes between:
--   the first one, with the attempt as its only ARGV, notes in the guard record that there is no lock: field `vacant`,
--   with a '!' behind the attempt where the record itself is made for it, to be undone
--   the second one finds the lock, or none: what was not there before and is there now, the caller has acquired, whatever
--   value the script has given it
-- Where there was no transaction, the second step comes alone, as soon behind the script as can be. ARGV 11... are that
-- script's arguments. The reply is what the lock is held with: its value, or of a hash lock the holder's field, which is
-- an argument, or the first.
--   granted   it was not there; or it is held with one of the arguments, and no live lease was known: the lease is the
--             caller's from here on
--   held      the lease that was known is live; its guard record follows an expiry that the script has set
--   released  the lease that was known ended before its time: the script has ended it
--   free, foreign   nothing of that
-- A script that took the expiry away, or set none, gets the rule's lease; but not a hash of which no argument is a field:
-- that may be data. S2, S3, L1.
if #ARGV == 1 then
  if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
  local there = redis.call('EXISTS', KEYS[2]) == 1
  redis.call('HSET', KEYS[2], 'vacant', there and ARGV[1] or ARGV[1] .. '!')
  if not there then redis.call('PEXPIRE', KEYS[2], GUARD_VACANT_MS) end
  return 1
end
--@common
local SLACK_MS = 2 -- the clock of older servers goes on while a script runs
local FIELDS_MAX = 16 -- of a hash that is a lock, and not data
local s = look()
local pttl, ends = redis.call('PTTL', lock), redis.call('PTTL', guard)
local hash = type(s.value) == 'table' and redis.call('TYPE', lock).ok == 'hash'

local function held_with_argument()
  for i = 11, #ARGV do
    if s.value == ARGV[i] then return ARGV[i], 'string' end
    if hash and redis.call('HEXISTS', lock, ARGV[i]) == 1 then return ARGV[i], 'hash' end
  end
end

-- What the lock is held with that the script has made.
local function made()
  local value, kind = held_with_argument()
  if value or type(s.value) == 'string' then return value or s.value, kind end
  local count = hash and redis.pcall('HLEN', lock)
  local fields = type(count) == 'number' and count <= FIELDS_MAX and redis.pcall('HKEYS', lock) or {}
  lease = 0
  return fields[1], 'hash'
end

if s.list then return envelope(false, s.token and 'held' or 'foreign', s) end -- its nodes are not the script's
if s.token and s.token == attempt then return envelope(s.held, 'granted', s, pttl) end
local vacant = shape == 'together' and redis.call('HGET', guard, 'vacant')
if vacant and (vacant == attempt or vacant == attempt .. '!') then
  local value, kind
  if s.value then value, kind = made() end
  if value then
    local mine, left = take(s, value, kind)
    return envelope(value, 'granted', mine, left)
  end
  if vacant ~= attempt then redis.call('DEL', guard) end
  return envelope(false, s.value and 'foreign' or 'free', nil, pttl)
end
if s.token then
  local moved = (pttl == -1) ~= (ends == -1) or (pttl >= 0 and math.abs(pttl + GUARD_OUTLIVES_MS - ends) > SLACK_MS)
  if moved then
    pttl, s.leased = bound()
    redis.call('HSET', guard, 'leased', s.leased and int(s.fence) or '')
    keep_guard(pttl)
  end
  return envelope(held_with_argument() == s.held and s.held, 'held', s, pttl)
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
