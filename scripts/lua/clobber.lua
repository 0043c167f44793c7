-- clobber.lua: RENAME, RENAMENX, COPY, MOVE, RESTORE, MSET, MSETNX, *STORE, ...: commands that remove or
-- replace whole keys, n of which are lock keys.
-- KEYS  lock 1, guard 1, ... lock n, guard n, then the command's other keys
-- ARGV  1 to 10 as in common.lua, but 2 (claim) is n; then n claims, n rights and n attempts, then the command
-- Every lock must be free or the caller's (each by its own claim), else LOCKED and nothing is done. Afterwards a
-- lock that is gone or changed has lost its lease: the outcome is 'released', or 'done' where the command left the
-- caller's locks as they were (RENAMENX that answers 0). MSETNX acquires all of them ('granted', with one fence). Else a
-- string that stands at a lock key now and has no expiry gets the rule's lease, once: nobody owns it, but it ends. Commands that say no themselves where something stands at the
-- lock (MSETNX, ...) do so, also where it is somebody else's. S1, S4, L1.
local n = tonumber(claim)
local rights = {}
for i = 1, n do rights[i] = {claim = ARGV[10 + i], right = ARGV[10 + n + i], attempt = ARGV[10 + 2 * n + i]} end
local at = 11 + 3 * n
local name = string.lower(ARGV[at])
local function run()
  return redis.pcall(unpack(ARGV, at))
end

-- Whether the command changes nothing where the lock exists, and its own reply says so.
local function says_no()
  if name == 'msetnx' then return true end
  if name == 'renamenx' then return lock == ARGV[at + 2] end
  if name == 'copy' then return #ARGV == at + 2 end
  if name ~= 'restore' and name ~= 'restore-asking' then return false end
  for i = at + 4, #ARGV do
    if string.lower(ARGV[i]) == 'replace' then return false end
  end
  return true
end

local frees = name == 'rename' or name == 'renamenx' or name == 'move'
local states, outcome, fence = {}, 'free', 0
for i = 1, n do
  lock, guard = KEYS[2 * i - 1], KEYS[2 * i]
  claim, right = rights[i].claim, rights[i].right
  local s = look()
  s.lock, s.guard = lock, guard
  s.pttl = redis.call('PTTL', lock)
  states[i] = s
  if s.value then
    local how, why = may_touch(s)
    if s.list then how, why = false, s.token and 'held' or 'foreign' end -- nodes of others wait in it
    if name == 'msetnx' and s.token == rights[i].attempt then return envelope(1, 'granted', s, s.pttl) end -- repeated
    if not how then return envelope(says_no() and run() or locked(s), why, s) end
    outcome = 'done'
  end
  fence = math.max(fence, s.last_fence)
  if s.token or s.stale_token or name == 'msetnx' then secure(s, frees) end
end
local reply = run()
if failed(reply) then return envelope(reply, 'error') end
if name == 'msetnx' and reply == 1 then
  local mine, pttl
  for i = 1, n do
    lock, guard = KEYS[2 * i - 1], KEYS[2 * i]
    states[i].last_fence = fence
    mine, pttl = own(states[i], rights[i].attempt, redis.call('GET', lock), 'string', mine and mine.fence)
  end
  return envelope(reply, 'granted', mine, pttl)
end
for i = 1, n do
  local s = states[i]
  lock, guard = s.lock, s.guard
  local now = look()
  local value = now.value
  local same = value and (now.token or value) == (s.token or s.value) and (redis.call('PTTL', lock) == -1) == (s.pttl == -1)
  if s.value and not same then outcome = 'released' end
  if type(value) == 'string' and not same then bound() end
  if s.token and not same then forget(s, '1') else disown(s) end
end
return envelope(reply, outcome)
