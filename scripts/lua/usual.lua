-- usual.lua: the usual state of a lock, for scripts that deal with it before the functions of common.lua are made, which
-- takes as long as five commands. The build puts it in the place of "--@usual".
--@text

-- Returns the lock's value, fields of its guard record as text_fields has them, and the flags of an envelope, if the lock
-- is a string under a live lease whose guard record has refused no release. Otherwise returns nil. The fourth result is
-- true if the guard record has the short form.
local function usual_lease(lock, guard, identity, proxy)
  local both = redis.pcall('MGET', lock, guard)
  local value, text = both[1], both[2]
  if not value then return nil end
  local g = text and text_fields(text) or redis.pcall('HMGET', guard, 'token', 'fence', 'value', 'owner', 'proxy', 'leased',
    'attempt', 'suspect')
  if not g[1] or g[1] == '' or g[3] ~= value or g[8] then return nil end
  local left = redis.call('PTTL', guard)
  if text then
    if math.abs(redis.call('PTTL', lock) - left) > SHORT_APART_MS then return nil end
  elseif left ~= -1 and left < GUARD_OUTLIVES_MS then
    return nil
  end
  local flags = (tonumber(string.sub(g[1], -1)) or 0) % 2 * 2
  if g[6] == g[2] then flags = flags + 1 end
  if g[4] == identity then flags = flags + 4 end
  if g[5] ~= proxy then flags = flags + 32 end
  return value, g, flags, text and true
end

-- Whether the lease, whose fields these are, is another one than the claim's, and the right does not allow a command on it.
-- SET changes nothing: it tells whether Redis takes writes now. If not, the application gets Redis's error.
local function usual_refusal(lock, g, claim, identity, right)
  if g[1] == claim or right == 'any' or right == 'operator' or right == 'enrol' then return false end
  return (right == 'claim' or g[4] ~= identity) and redis.pcall('SET', lock, '', 'NX') == false
end
