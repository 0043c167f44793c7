-- release.lua: DEL, UNLINK (shape 'int'), GETDEL (shape 'nil'), PROXY RELEASE (right 'operator').
-- Holder: releases. Anybody else: 0 or nil. Of a list lock only the head goes. S1, S4, L2.
--
-- The usual case, the holder's own release, is done before common.lua is reached; it does what look and forget do.
local key, record = KEYS[1], KEYS[2]
local held = ARGV[2] ~= '' and redis.pcall('GET', key)
if type(held) == 'string' then
  local g = redis.call('HMGET', record, 'token', 'value', 'fence', 'owner', 'attempt')
  if g[1] == ARGV[2] and g[2] == held and g[5] ~= ARGV[1] then
    local left = redis.call('PTTL', record)
    if left == -1 or left >= 10000 then
      local answer = redis.call(unpack(ARGV, 11))
      redis.call('HSET', record, 'token', '', 'attempt', ARGV[1], 'reply', ARGV[10] == 'nil' and held or '1')
      redis.call('PEXPIRE', record, '10000')
      return {answer, 'released', tonumber(g[3]), -2, g[4], 0}
    end
  end
end
--@common
--@list
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
if s.list and shape == 'nil' then return envelope(command(), 'error') end
if s.list then -- those who wait keep their places
  local fence = s.fence or 0
  remove_head(s, '1')
  return {1, how == 'done' and 'released' or how, fence, -2, s.owner or '', 0, lost, lost_owner, ''}
end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
forget(s, shape == 'nil' and s.value or '1')
return envelope(reply, how == 'done' and 'released' or how, s, -2)
