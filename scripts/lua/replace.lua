-- replace.lua: SET with an expiry, SETEX, PSETEX without a condition (shape 'ok'), and SET ... XX (shape 'nil'). Keeps
-- S1, S4.
--
-- Free: the caller acquires the lock (XX: nil). Holder: value and expiry change inside the lease. Data: as on Redis.
-- Other: LOCKED (XX: nil).
--
-- Exception: the caller acquires data too (not with XX) while an earlier lease's guard record is there: it may be the lock
-- of an attempt in the short form, whose acquire.lua is still to come. One of the two gets the lock.
local s = look()
if s.token == attempt then
  return envelope(success(), 'granted', s, redis.call('PTTL', lock))
end
local left = shape ~= 'nil' and delayed(s)
if left then return envelope(locked(s), 'held', s, left) end
if not s.value then
  if shape ~= 'nil' then secure(s) end
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  if redis.call('EXISTS', lock) == 0 then return envelope(reply, 'free') end
  local mine, pttl = take(s, ARGV[10 + at])
  return envelope(reply, 'granted', mine, pttl)
end
-- C5: whether the command leaves the lock half of its time or less, and so may be a release. Only a refused release makes
-- a lease suspect.
local function shortens()
  local left = redis.call('PTTL', lock)
  for i = 11 + at, #ARGV - 1 do
    local by = ({px = 1, ex = 1000})[string.lower(ARGV[i])]
    if by then return left >= 0 and (tonumber(ARGV[i + 1]) or 0) * by <= left / 2 end
  end
  return false
end
if right == 'suspect' and not shortens() then right = 'claim' end
local how, why = may_touch(s)
if s.list then how, why = false, s.token and 'held' or 'foreign' end -- other sessions' nodes wait in it
-- S1: another session's live lease is not overwritten.
if not how then
  ask_to_write()
  if shape == 'nil' then return envelope(false, why, s) end
  return envelope(locked(s), why, s)
end
if s.last_fence > 0 then secure(s) end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if redis.call('EXISTS', lock) == 0 then -- an expiry in the past
  if s.token then forget(s, '1') else disown(s) end
  return envelope(reply, s.token and 'released' or how, s, -2)
end
if not s.token and s.last_fence > 0 and shape ~= 'nil' then
  local mine, pttl = take(s, ARGV[10 + at])
  return envelope(reply, 'granted', mine, pttl)
end
s.keeps_lease = keeps_ttl()
return envelope(reply, how, s, follow(s, ARGV[10 + at], true))
