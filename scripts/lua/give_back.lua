-- give_back.lua: gives back a permit of a semaphore whose taker has gone, or whose lease is over. Changes nothing if the
-- key shows that the permit is back already, or that the semaphore was reset.
--
-- KEYS  1 the semaphore
-- ARGV  1 shape: 'count', 'token' or 'member'
--       2 how many; the token; the member
--       3 of a token 'alike', if tokens of the list are known to be equal, else ''; of a member its score
--
-- Answers 1 if it has given the permit back, else 0.
--@alone
local call, key, shape, what, more = redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if shape == 'count' then
  local count = tonumber(call('GET', key) or nil)
  if not count or count < tonumber(what) then return 0 end
  call('DECRBY', key, what)
  return 1
elseif shape == 'token' then
  -- A token that is there once is back already. If it is there twice, tokens are equal.
  if more ~= 'alike' and #call('LPOS', key, what, 'COUNT', 2) == 1 then return 0 end
  call('RPUSH', key, what)
  return 1
end
local score = call('ZSCORE', key, what)
if not score or tonumber(score) ~= tonumber(more) then return 0 end
return call('ZREM', key, what)
