-- list_trim.lua: LTRIM. It would remove other sessions' nodes, and its reply could not say no. If there is a queue,
-- the reply is LOCKED. Keeps S4.
local s = look()
local reply
if not s.value or type(s.value) == 'string' then
  reply = command()
  return envelope(reply, failed(reply) and 'error' or 'done')
end
if redis.call('TYPE', lock).ok ~= 'list' then return envelope(command(), 'error') end
return envelope(locked(s), s.token and 'held' or 'foreign', s)
