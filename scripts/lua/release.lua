-- release.lua: DEL, UNLINK (shape 'int'), GETDEL (shape 'nil'), PROXY RELEASE (right 'operator').
-- Holder: releases. Anybody else: 0 or nil. S1, S4, L2.
local s = look()
if not s.value then
  if s.attempt == attempt then -- repeated
    return envelope(shape == 'int' and 1 or s.last_value, 'released', nil, -2)
  end
  return envelope(refusal(), 'free', nil, -2)
end
local how, why = may_touch(s)
if not how then
  if shape == 'nil' and type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(refusal(), why, s)
end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if s.token then forget(s, '1') end
return envelope(reply, how == 'done' and 'released' or how, s, -2)
