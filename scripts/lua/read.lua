-- read.lua: GET. Changes nothing; tells the proxy which lease's value it showed, so that a later GETSET or
-- DEL of the same client can count for exactly that lease.
local s = look()
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if not s.value then return envelope(reply, 'free', nil, -2) end
return envelope(reply, s.token and 'held' or 'foreign', s)
