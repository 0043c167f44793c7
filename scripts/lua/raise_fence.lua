-- raise_fence.lua: gives a lease that was just acquired a greater fence, since a witness knows a greater one.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 the lease's token   2 the fence
--
-- Answers 1, or 0 if the lease is not live. A repeat changes nothing more.
--@alone
local g = redis.call('HMGET', KEYS[2], 'token', 'fence', 'leased', 'extra')
if g[1] ~= ARGV[1] or redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if tonumber(g[2]) < tonumber(ARGV[2]) then
  if g[3] == g[2] then redis.call('HSET', KEYS[2], 'leased', ARGV[2]) end
  local extra = g[4] and string.match(g[4], '^(%d+):') == g[2] and string.match(g[4], ':.*')
  if extra then redis.call('HSET', KEYS[2], 'extra', ARGV[2] .. extra) end
  redis.call('HSET', KEYS[2], 'fence', ARGV[2])
end
return 1
