-- release_usual.lua: DEL and UNLINK by the holder of a lease whose guard record is a hash. Keeps S1: nothing is removed
-- unless the lock is the claim's lease.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 attempt   2 claim   3 the command's name; '' or nothing if it is DEL, and the proxy knows the claim's fence
--       4 under a rule with `wait`: what tell() is told (tell.lua)
--
-- Answers a short text (common.lua), or Redis's error. 0: it has done nothing, and the proxy sends release.lua. A repeat
-- finds no token, and answers 0 too.
--@alone
local call, pcall, key, record, name = redis.call, redis.pcall, KEYS[1], KEYS[2], ARGV[3] or ''
local held, g = pcall('GET', key), nil
if not held or type(held) == 'table' then return 0 end
if name ~= '' then g = pcall('HMGET', record, 'token', 'value', 'fence')
else g = pcall('HMGET', record, 'token', 'value') end
-- LT succeeds only if the lease is live: after its end, the record has less than GUARD_OUTLIVES_MS left. Servers before
-- 7.0 do not know LT.
if g[1] ~= ARGV[2] or g[2] ~= held or pcall('PEXPIRE', record, 'GUARD_OUTLIVES_MS', 'LT') ~= 1 then return 0 end
local answer = pcall(name == '' and 'DEL' or name, key)
if answer ~= 1 then -- refused: give the record its expiry back
  local left = call('PTTL', key)
  if left >= 0 and left < 9e15 then call('PEXPIRE', record, string.format('%.0f', left + GUARD_OUTLIVES_MS))
  else call('PERSIST', record) end
  return answer
end
if ARGV[4] then
--@tell
  tell(key, record, string.sub(ARGV[1], 1, 36), ARGV[4])
end
call('HSET', record, 'token', '', 'attempt', ARGV[1])
return g[3] and 'r' .. g[3] or 'r'
