-- extend.lua: EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, PERSIST (shape 'int'), GETEX (shape 'nil'). Keeps S3, S4.
--
-- If the caller is the holder, or F1 lets it, the expiries of the lock and of its guard record change together. Otherwise
-- the reply is 0, or GETEX's value. On a list lock the command moves the end of the head's lease; the key lives longer.
--
-- While the expiry is the lease that the proxy set, the lock has no expiry in the application's view: NX, XX, GT and LT act
-- as on a lock without an expiry.
--
-- The short way: EXPIRE and PEXPIRE without options on a lock in its usual state, by its holder or by a session that has no
-- right to it. A guard record in the short form keeps it. The guard record's expiry is set first, and set back if Redis
-- refuses the command.
--@usual
local units, n = ({expire = 1000, pexpire = 1})[string.lower(ARGV[11])], tonumber(ARGV[13] or '')
if units and #ARGV == 13 and n and n >= 1 and n < 1e12 and n % 1 == 0 then
  local value, g, flags, short = usual_lease(KEYS[1], KEYS[2], ARGV[3], ARGV[4])
  if value and usual_refusal(KEYS[1], g, ARGV[2], ARGV[3], ARGV[5]) then
    return {0, 'held', tonumber(g[2]), -3, g[4], flags}
  end
  if value and g[1] == ARGV[2] then
    local ms, left = n * units, redis.call('PTTL', KEYS[2])
    local leased = g[6] == g[2]
    local function set_leased(fence)
      if short then redis.call('SET', KEYS[2], text_of(g, fence), 'KEEPTTL')
      else redis.call('HSET', KEYS[2], 'leased', fence) end
    end
    if leased then set_leased('') end
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', short and ms or ms + GUARD_OUTLIVES_MS))
    local reply = redis.pcall(ARGV[11], KEYS[1], ARGV[13])
    if reply ~= 1 then
      if left >= 0 then redis.call('PEXPIRE', KEYS[2], left) else redis.call('PERSIST', KEYS[2]) end
      if leased then set_leased(g[2]) end
      return {reply, 'error', 0, -3, '', 0}
    end
    return {1, 'done', tonumber(g[2]), ms, g[4], leased and flags - 1 or flags}
  end
end
--@common
--@list
-- Moves the end of the head's lease. An end in the past releases the lock; the sessions that wait keep their places.
local function extend_head(s, how)
  local name, n = string.lower(ARGV[11]), tonumber(ARGV[13] or '')
  if n and name == 'expireat' then n = n - now / 1000 end
  if n and name == 'pexpireat' then n = n - now end
  if n and n <= 0 then
    if #ARGV > 13 then return queue_envelope(0, how, s) end
    return (release_head(s, 'released', '1'))
  end
  local before, persists = redis.call('PTTL', lock), name == 'persist'
  if s.leased then redis.call('PERSIST', lock) end
  local reply = command()
  local after = redis.call('PTTL', lock)
  if after == -1 and s.leased and before >= 0 then -- the command set nothing
    redis.call('PEXPIRE', lock, math.max(before, 1))
  end
  if failed(reply) then return envelope(reply, 'error') end
  if persists then reply = s.token and s.ends > 0 and 1 or reply
  elseif reply == 0 then return queue_envelope(reply, how, s) end
  if s.token then
    s.leased = persists and lease > 0
    s.ends = s.leased and now + lease or (persists and 0 or now + after)
    redis.call('HSET', guard, 'until', int(s.ends), 'leased', s.leased and int(s.fence) or '')
  end
  if persists or redis.call('LLEN', lock) > 1 then keep_queue() else keep_guard(after) end
  return queue_envelope(reply, how, s)
end
-- Whether the command makes the lock end later, options aside: Redis itself applies NX, XX, GT and LT.
local function ends_later()
  local name, n, pttl = string.lower(ARGV[11]), tonumber(ARGV[13] or ''), redis.call('PTTL', lock)
  if name == 'persist' then return true end
  if name == 'getex' then name, n = 'get' .. string.lower(ARGV[13] or ''), tonumber(ARGV[14] or '') end
  if name == 'getpersist' then return true end
  if not n or pttl == -1 then return false end
  local clock = now_ms()
  local ms = ({expire = n * 1000, pexpire = n, expireat = n * 1000 - clock, pexpireat = n - clock,
    getex = n * 1000, getpx = n, getexat = n * 1000 - clock, getpxat = n - clock})[name]
  return ms and ms > pttl
end
-- F1: a session of the lease's identity may replace an expiry that the proxy set (rights 'leased' and 'later'). By
-- right 'later', which a session without a claim has if it has not just lost, it may also make any lease longer.
local function may_extend(s)
  if not s.token or s.list or s.owner ~= identity then return false end
  if right == 'leased' then return s.leased end
  return right == 'later' and (s.leased or ends_later())
end
local s = look()
if not s.value then return envelope(command(), 'free', nil, -2) end
local how, why = may_touch(s)
if not how and may_extend(s) then how = 'adopted' end
if not how then
  ask_to_write()
  if shape == 'int' then return envelope(0, why, s) end
  if type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(s.value, why, s)
end
if s.list and shape == 'nil' then return envelope(command(), 'error') end
if s.token or s.stale_token then secure(s, true) end
if s.list then return extend_head(s, how) end
local before = redis.call('PTTL', lock)
if s.leased then redis.call('PERSIST', lock) end
local reply = command()
if redis.call('EXISTS', lock) == 0 then -- an expiry in the past deletes
  if s.token then forget(s, '1') else disown(s) end
  return envelope(reply, s.token and 'released' or how, s, -2)
end
local after = redis.call('PTTL', lock)
if s.leased and after == -1 then -- the command set nothing: the lease goes on as it was
  if before >= 0 then redis.call('PEXPIRE', lock, math.max(before, 1)) end
  if string.lower(ARGV[11]) == 'persist' then reply = 1 end
  s.keeps_lease = true
end
if failed(reply) then return envelope(reply, 'error') end
return envelope(reply, how, s, follow(s, s.held))
