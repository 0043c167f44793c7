-- acquire.lua: SETNX, SET ... NX. Keeps S2 and S5: the caller hears of success only if its attempt is the
-- live lease. shape is the command's reply to a success: 'int' SETNX, 'ok' SET NX, 'nil' SET NX GET.
local s = look()
if s.token == attempt then
  return envelope(success(), 'granted', s, redis.call('PTTL', lock))
end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if s.value then
  return envelope(reply, s.token and 'held' or 'foreign', s)
end
if redis.call('EXISTS', lock) == 0 then -- an expiry in the past
  return envelope(reply, 'free')
end
local mine, pttl = take(s, ARGV[10 + at])
return envelope(reply, 'granted', mine, pttl)
