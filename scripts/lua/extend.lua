-- extend.lua: EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, PERSIST (shape 'int'), GETEX (shape 'nil').
-- Holder: lock and guard record together. Anybody else: 0, or GETEX's value with its expiry unchanged. S3, S4.
-- While the expiry is the proxy's own lease, the application's view is 'no expiry': NX, XX, GT and LT see that.
local s = look()
if not s.value then return envelope(command(), 'free', nil, -2) end
local how, why = may_touch(s)
if not how then
  if shape == 'int' then return envelope(0, why, s) end
  if type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(s.value, why, s)
end
local before = redis.call('PTTL', lock)
if s.leased then redis.call('PERSIST', lock) end
local reply = command()
if redis.call('EXISTS', lock) == 0 then -- an expiry in the past deletes
  if s.token then forget(s, '1') end
  return envelope(reply, 'released', s, -2)
end
local after = redis.call('PTTL', lock)
if s.leased and after == -1 then -- nothing was set: the lease goes on as it was
  if before >= 0 then redis.call('PEXPIRE', lock, math.max(before, 1)) end
  if string.lower(ARGV[11]) == 'persist' then reply = 1 end
  s.keeps_lease = true
end
if failed(reply) then return envelope(reply, 'error') end
return envelope(reply, how, s, follow(s, s.held))
