-- free.lua: DEL and UNLINK by the holder of a lease whose guard record has the short form (text.lua). Keeps S1: nothing
-- is removed unless the lock is the claim's lease.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 claim
--
-- Answers 'r' if it has released the lock (common.lua). If it answers 0 or an error, it has done nothing, and the proxy
-- sends release.lua. A repeat may answer 0 although the first call released the lock.
--@alone
local call, key, record = redis.call, KEYS[1], KEYS[2]
local held, text = call('GET', key), call('GET', record)
if held and text and string.find(text, '1\n' .. ARGV[1] .. '\n' .. held .. '\n', 1, true) == 1 then
  call('DEL', key, record)
  return 'r'
end
return 0
