-- arguments.lua: the arguments of a lock script. The build puts this file, and common.lua after it, before each script,
-- or in the place of a line "--@common". acquire_usual.lua, release_usual.lua and free.lua have shorter calls.
--
-- KEYS  1 lock key   2 its guard record (a hash in the same slot, see common.lua)
-- ARGV  1 attempt    a new token for this attempt; becomes the lease's token if the attempt acquires the lock
--       2 claim      the token of the claim that the command uses, '' if there is none
--       3 identity   the caller's client identity
--       4 proxy      the id of the calling proxy process
--       5 right      which leases the command may touch: docs/locks.md (Scripts) says what each right allows
--       6 lease      the expiry in ms of a lock that is acquired without one; 0 none
--       7 read       the fence of the lease that the caller last read; '0' if it read none, or a foreign lock.
--                    renew.lua: how many ms the lease had left when its renewal was asked for, '0' not known
--       8 seen       '=' and the value that the caller last read, or '' if none is known. A '*' before it means: a value
--                    without a live lease is data that the caller may touch, whatever it is
--       9 at         the index of the value in the command (1 is the command's name); 0 if it has none. release.lua:
--                    what tell() is told (tell.lua), under a rule with `wait`
--      10 shape      the reply for a success and for a refusal: 'int' 1 and 0, 'ok' OK and nil, 'nil' nil and nil. Behind
--                    a ':' the rule's lock-delay in ms, if it has one
--      11... the application's command, unchanged
local lock, guard = KEYS[1], KEYS[2]
local attempt, claim, identity, proxy, right = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, read, seen, at, shape = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9]), ARGV[10]
local delay
if #shape > 3 then shape, delay = string.match(shape, '^(%a+):?(%d*)$') end

local function command()
  return redis.pcall(unpack(ARGV, 11))
end

-- Whether the command, a SET, has the option KEEPTTL.
local function keeps_ttl()
  for i = 10 + at + 1, #ARGV do
    if string.lower(ARGV[i]) == 'keepttl' then return true end
  end
  return false
end
