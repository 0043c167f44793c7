-- arguments.lua: what a lock script is called with; the build puts it, with common.lua behind it, before each of them or in
-- the place of a line "--@common". acquire.lua and release.lua, of which there are many, have shorter calls of their own
-- and take common.lua alone, at a line "--@functions": they define these locals themselves.
--
-- KEYS  1 lock key   2 its guard record (a hash in the same slot, see below)
-- ARGV  1 attempt    a fresh token for this very attempt; the lease's token if it acquires
--       2 claim      the token of the claim that the command uses, '' if there is none
--       3 identity   the caller's client identity
--       4 proxy      the id of the calling proxy process
--       5 right      'claim'     only the claim's lease may be touched
--                    'adopt'     also one acquired by the same identity through another proxy process
--                    'believe'   also any of the same identity
--                    'suspect'   as 'claim'; a refusal by a lease of the same identity is counted there
--                    'older'     release.lua alone: as 'claim', whose release is expected for ARGV 6 ms more; a refusal by a
--                                lease of the same identity that another proxy gave is noted there, with that time
--                    'spent'     release.lua alone: the claim's lease made way early. As 'claim', and any of the same identity
--                                if another proxy gave it, or did the lock's last release: the claim was released there
--                    'leased'    extend.lua: also one of the same identity whose expiry is the proxy's own
--                    'later'     extend.lua: also any of the same identity, if it ends later by that
--                    'fence'     also one of the same identity whose fence is `read`
--                    'enrol'     as 'claim', and a lock without a guard record that holds what was seen is the claim's
--                    'any'       whoever asks (owner any)
--                    'operator'  PROXY RELEASE
--                    'heir'      renew.lua alone: the lease of `claim`, which another proxy let go of, becomes `attempt`'s
--                    'always'    renew.lua alone: the claim's lease, also if its expiry is the application's own
--                    'look'      renew.lua alone: the claim's lease is not renewed, its guard record follows it
--       6 lease      ms given to a lock that is acquired without an expiry; 0 none
--       7 read       fence of the lease that the caller last read, '0' if it read none or a foreign lock; renew.lua: ms
--                    that the lease had left when its renewal was asked for, '0' not known
--       8 seen       '=' and the value that the caller last read, '' if none is known; before it '*' where what stands there
--                    without a live lease is data for the caller, which it may touch whatever it holds
--       9 at         where the value stands in the command (1 is its name); 0 if it has none
--      10 shape      the reply of a success and of a refusal: 'int' 1 and 0, 'ok' OK and nil, 'nil' nil and nil
--      11... the application's command, as it came
local lock, guard = KEYS[1], KEYS[2]
local attempt, claim, identity, proxy, right = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, read, seen, at, shape = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9]), ARGV[10]

local function command()
  return redis.pcall(unpack(ARGV, 11))
end

-- Whether the command (SET) says that the expiry stays as it is.
local function keeps_ttl()
  for i = 10 + at + 1, #ARGV do
    if string.lower(ARGV[i]) == 'keepttl' then return true end
  end
  return false
end
