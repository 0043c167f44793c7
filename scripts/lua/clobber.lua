-- clobber.lua: RENAME, RENAMENX, COPY, MOVE, RESTORE, MSET, MSETNX, MSETEX, *STORE, ...: commands that remove or replace whole
-- keys. n of the command's keys are lock keys. Keeps S1, S4.
--
-- KEYS  lock 1, its guard record, ... lock n, its guard record, then the command's other keys
-- ARGV  1 to 10 as in arguments.lua, but 2 (claim) is n. Then n claims, n rights, n attempts, and n times what was
--       seen. Then the database of the locks, '' if it is the connection's; the connection's database; the command
--
-- The command runs if each lock is free, is data, or is held by the caller under the lock's own claim. Otherwise nothing
-- is done, and the reply is LOCKED. Exception: a command that says no itself if the lock exists (MSETNX, MSETEX NX, ...)
-- runs, and its own reply is the refusal. The envelope of a refusal has a seventh element: which of the n locks refuses,
-- from 1. Outcomes:
--   granted   MSETNX, or MSETEX with NX, has acquired all of the locks, with one fence
--   released  a lock of the caller's is gone or changed, and its lease is over
--   done      the command left the caller's locks as they were (RENAMENX that answers 0), or moved the end of a hash
--             lock's field. Of one lock, the envelope says how the lease stands
--   open      there was data alone
--   free      there was nothing at the lock keys
-- What the command puts at a lock key otherwise belongs to no lease, and has the expiry that the command gave it.
local n = tonumber(claim)
local each = {}
for i = 1, n do
  each[i] = {claim = ARGV[10 + i], right = ARGV[10 + n + i], attempt = ARGV[10 + 2 * n + i], seen = ARGV[10 + 3 * n + i]}
end
local there, here = ARGV[11 + 4 * n], ARGV[12 + 4 * n]
local at = 13 + 4 * n
local name = string.lower(ARGV[at])
local function run()
  if there ~= '' then redis.call('SELECT', here) end
  local reply = known(redis.pcall(unpack(ARGV, at)), at)
  if there ~= '' then redis.call('SELECT', there) end
  return reply
end
if there ~= '' then redis.call('SELECT', there) end -- for this script alone

-- Whether the command acquires all of the locks, or none: MSETNX, and MSETEX with NX behind its pairs.
local acquires = name == 'msetnx'
for i = at + 2 + 2 * (name == 'msetex' and tonumber(ARGV[at + 1]) or #ARGV), #ARGV do
  acquires = acquires or string.lower(ARGV[i]) == 'nx'
end

-- Whether the command changes nothing if the lock exists, and its own reply says so.
local function says_no()
  if acquires then return true end
  if name == 'renamenx' then return lock == ARGV[at + 2] end
  if name ~= 'copy' and name ~= 'restore' and name ~= 'restore-asking' then return false end
  for i = at + 3, #ARGV do
    if string.lower(ARGV[i]) == 'replace' and (i > at + 3 or name == 'copy') then return false end
  end
  return true
end

local frees = name == 'rename' or name == 'renamenx' or name == 'move'
local states, outcome, fence = {}, 'free', 0
for i = 1, n do
  lock, guard = KEYS[2 * i - 1], KEYS[2 * i]
  claim, right, seen = each[i].claim, each[i].right, each[i].seen
  local s = look()
  s.lock, s.guard = lock, guard
  s.pttl = redis.call('PTTL', lock)
  states[i] = s
  if s.value then
    -- S1: another session's live lease is not ended.
    local how, why = may_touch(s)
    -- Other sessions' nodes wait in a list lock. What acquires is refused by whatever is there, but says no itself to the
    -- caller's own lease.
    if s.list or (acquires and s.token ~= claim) then how, why = false, s.token and 'held' or 'foreign' end
    if acquires and s.token == each[i].attempt then return envelope(1, 'granted', s, s.pttl) end -- a repeat
    if not how then
      local refusal = envelope(says_no() and run() or locked(s), why, s, s.pttl)
      refusal[7] = i
      return refusal
    end
    if outcome ~= 'done' then outcome = s.token and 'done' or 'open' end
  end
  fence = math.max(fence, s.last_fence, acquires and watermark(now_ms()) or 0)
  if s.token or s.stale_token or acquires then secure(s, frees) end
end
local reply = run()
if failed(reply) then return envelope(reply, 'error') end
if acquires and reply == 1 then
  local mine, pttl
  for i = 1, n do
    lock, guard = KEYS[2 * i - 1], KEYS[2 * i]
    states[i].last_fence = fence
    mine, pttl = own(states[i], each[i].attempt, redis.call('GET', lock), 'string', mine and mine.fence)
  end
  return envelope(reply, 'granted', mine, pttl)
end
for i = 1, n do
  local s = states[i]
  lock, guard = s.lock, s.guard
  if s.token then
    local now = examine()
    local same = now.token == s.token and (redis.call('PTTL', lock) == -1) == (s.pttl == -1)
    if not same then
      outcome = 'released'
      forget(s, '1')
    elseif s.kind == 'hash' then -- HPEXPIRE and the like: the lease ends with the holder's field
      s.keeps_lease = true
      s.pttl = follow(s, s.held)
    end
  else
    disown(s)
  end
end
if n == 1 and outcome == 'done' and not acquires then return envelope(reply, outcome, states[1], states[1].pttl) end
return envelope(reply, outcome)
