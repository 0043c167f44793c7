-- read.lua: GET. Changes nothing. The envelope says which lease's value the reply shows, so that a later GETSET or DEL
-- of the same client can count for that lease (C2).
--
-- The short way, before the functions that the other scripts share: a string under a live lease whose guard record is a
-- hash, and which has refused no release.
local key, record, argv, pcall, sub = KEYS[1], KEYS[2], ARGV, redis.pcall, string.sub
local value = pcall('GET', key)
if type(value) == 'string' then
  local g = pcall('HMGET', record, 'token', 'value', 'fence', 'owner', 'proxy', 'leased', 'suspect')
  if g[1] and g[1] ~= '' and g[2] == value and not g[7] then
    local left, flags = pcall('PTTL', record), (tonumber(sub(g[1], -1)) or 0) % 2 * 2
    if left == -1 or left >= GUARD_OUTLIVES_MS then
      if g[6] == g[3] then flags = flags + 1 end
      if g[4] == argv[3] then flags = flags + 4 end
      if g[5] ~= argv[4] then flags = flags + 32 end
      return {value, 'held', tonumber(g[3]), -3, g[4], flags}
    end
  end
end
--@common
local s = look(true)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if not s.value then return envelope(reply, 'free', nil, -2) end
return envelope(reply, s.token and 'held' or 'foreign', s)
