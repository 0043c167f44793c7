-- release.lua: DEL, UNLINK (shape 'int'), GETDEL (shape 'nil'), PROXY RELEASE (right 'operator').
-- Holder: releases. Anybody else: 0 or nil. S1, S4, L2.
local s = look()
if s.attempt == attempt and s.token ~= attempt then -- repeated; somebody else may have the lock by now
  return envelope(shape == 'int' and 1 or s.reply, 'released', nil, -2)
end
if not s.value then return envelope(refusal(), 'free', nil, -2) end
local how, why = may_touch(s)
if not how then
  if shape == 'nil' and type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(refusal(), why, s)
end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
forget(s, shape == 'nil' and s.value or '1')
return envelope(reply, how == 'done' and 'released' or how, s, -2)
