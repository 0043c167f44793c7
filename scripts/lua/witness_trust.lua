-- witness_trust.lua: ends the quarantine of a witness (PROXY WITNESS TRUST).
--
-- KEYS  1 and 2 the mark of this witness
--
-- Answers 1.
--@alone
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('HSET', KEYS[1], 'run', run, 'since', '0')
return 1
