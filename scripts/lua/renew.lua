-- renew.lua: the proxy renews the lease of `claim` for `lease` ms. No command. Keeps S3: only the live lease
-- whose owner is connected is ever renewed. Returns 'done', or 'held', 'foreign', 'free' where it is gone.
local s = look()
if not s.value then return envelope(0, 'free', nil, -2) end
if s.token ~= claim then return envelope(0, s.token and 'held' or 'foreign', s) end
redis.call('PEXPIRE', lock, lease)
redis.call('PEXPIRE', guard, lease + GUARD_OUTLIVES_MS)
return envelope(1, 'done', s, lease)
