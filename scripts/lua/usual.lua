-- usual.lua: the usual state of a lock, for scripts that deal with it before the functions of common.lua are made. Redis
-- makes all of them anew in each call, which takes as long as five commands. The build puts this file in the place of a
-- script's line "--@usual".

-- Returns the lock's value, fields of its guard record, and the flags of an envelope without the first one, if the lock
-- is a string under a live lease, whose guard record is a hash and has refused no release. Otherwise returns nil.
local function usual_lease(lock, guard, identity, proxy)
  local value = redis.pcall('GET', lock)
  if type(value) ~= 'string' then return nil end
  local g = redis.pcall('HMGET', guard, 'token', 'value', 'fence', 'owner', 'proxy', 'leased', 'suspect')
  if not g[1] or g[1] == '' or g[2] ~= value or g[7] then return nil end
  local left, flags = redis.call('PTTL', guard), (tonumber(string.sub(g[1], -1)) or 0) % 2 * 2
  if left ~= -1 and left < GUARD_OUTLIVES_MS then return nil end
  if g[4] == identity then flags = flags + 4 end
  if g[5] ~= proxy then flags = flags + 32 end
  return value, g, flags
end
