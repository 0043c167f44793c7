-- witness_free.lua: at a witness, a lease's record holds no longer: it was released. It keeps its fence until its end.
--
-- KEYS  1 the lock's record   2 the mark of this witness
-- ARGV  1 token, '' not known   2 fence, '0' not known
--
-- Answers 1 if the record was the lease's, else 0.
--@alone
local r = redis.call('HMGET', KEYS[1], 'token', 'fence')
if not r[1] or r[1] == '' or (r[1] ~= ARGV[1] and r[2] ~= ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'token', '')
return 1
