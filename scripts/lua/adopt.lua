-- adopt.lua: two steps around a script of the application's (EVAL, EVALSHA, FCALL) that names the lock key. They find
-- out whether it has acquired, renewed or released the lock, and carry out no command. Keeps S2, S3, L1.
--
-- Both steps run in one transaction with the script (ARGV 10 'together'):
--   first step   its only ARGV is the attempt. If there is no lock, it notes the attempt in the guard record's field
--                `vacant`, with a '!' behind it if it had to make the record, which the second step may delete again
--   second step  looks for the lock. If there was none before the script and there is one now, the caller has acquired
--                it, whatever value the script gave it
-- Without a transaction, the second step comes alone. Its ARGV 11... are the script's arguments. Its reply is what the
-- lock is held with: the value of a string, or the holder's field of a hash (an argument, or the first field). Outcomes:
--   granted        there was no lock before; or the lock is held with one of the arguments, and no live lease was
--                  known. The caller's lease begins now
--   held           the known lease is live. Its guard record follows an expiry that the script has set
--   released       the known lease ended before its time: the script has ended it
--   free, foreign  none of the above
-- If the script left no expiry, the lock gets the rule's lease. Exception: a hash without a field that is an argument gets
-- no expiry, since it may be data.
if #ARGV == 1 then
  if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
  if redis.call('TYPE', KEYS[2]).ok == 'string' then redis.call('DEL', KEYS[2]) end -- of a lease that is over
  local there = redis.call('EXISTS', KEYS[2]) == 1
  redis.call('HSET', KEYS[2], 'vacant', there and ARGV[1] or ARGV[1] .. '!')
  if not there then redis.call('PEXPIRE', KEYS[2], GUARD_VACANT_MS) end
  return 1
end
--@common
local SLACK_MS = 2 -- the clock of older servers goes on while a script runs
local FIELDS_MAX = 16 -- a hash with more fields is data, unless an argument is one of them
local s = look()
local pttl, ends = redis.call('PTTL', lock), redis.call('PTTL', guard)
local hash = type(s.value) == 'table' and redis.call('TYPE', lock).ok == 'hash'

local function held_with_argument()
  for i = 11, #ARGV do
    if s.value == ARGV[i] then return ARGV[i], 'string' end
    if hash and redis.call('HEXISTS', lock, ARGV[i]) == 1 then return ARGV[i], 'hash' end
  end
end

-- Returns the value or field that the new lock is held with, and its kind. A hash without a known field gets no expiry.
local function made()
  local value, kind = held_with_argument()
  if value or type(s.value) == 'string' then return value or s.value, kind end
  local count = hash and redis.pcall('HLEN', lock)
  local fields = type(count) == 'number' and count <= FIELDS_MAX and redis.pcall('HKEYS', lock) or {}
  lease = 0
  return fields[1], 'hash'
end

if s.list then return envelope(false, s.token and 'held' or 'foreign', s) end -- a script does not own nodes
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
    pttl, s.leased = bound(s.kind == 'hash' and s.held)
    redis.call('HSET', guard, 'leased', s.leased and int(s.fence) or '')
    keep_guard(pttl)
  end
  return envelope(held_with_argument() == s.held and s.held, 'held', s, pttl)
end
if s.attempt == attempt then return envelope(false, 'released', {fence = tonumber(s.reply)}, pttl) end -- a repeat

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
