-- read.lua: GET. Changes nothing. The envelope says which lease's value the reply shows, so that a later GETSET or DEL
-- of the same client can count for that lease (C2).
local s = look(true)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if not s.value then return envelope(reply, 'free', nil, -2) end
return envelope(reply, s.token and 'held' or 'foreign', s)
