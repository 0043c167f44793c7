-- list_trim.lua: LTRIM: it would remove nodes of others, and its reply could not say no. LOCKED where there is a queue.
-- S4.
local s = look()
local reply
if not s.value or type(s.value) == 'string' then
  reply = command()
  return envelope(reply, failed(reply) and 'error' or 'done')
end
local kind = redis.call('TYPE', lock)
if (kind.ok or kind) ~= 'list' then return envelope(command(), 'error') end
return envelope(locked(s), s.token and 'held' or 'foreign', s)
