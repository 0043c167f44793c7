-- witness_join.lua: a witness has come to the witnesses of a namespace by a reload, and remembers for how long it does not vote:
-- a process that is started meanwhile hears it from the witness (docs/quorum.md). The latest end counts.
--
-- KEYS  1 and 2 the mark of this witness
-- ARGV  1 for how many ms   2 the namespace
--
-- Answers 1.
--@alone
local t, field = redis.call('TIME'), 'joins:' .. ARGV[2]
local votes = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[1]
if votes > (tonumber(redis.call('HGET', KEYS[1], field)) or 0) then
  redis.call('HSET', KEYS[1], field, string.format('%.0f', votes))
end
return 1
