-- renew.lua: the proxy renews the lease of `claim` for `lease` ms. There is no command. Keeps S3, L4.
--
-- S3: only a live lease is renewed, while its owner is connected. An expiry that the application has set, perhaps since the
-- proxy asked, is renewed only by right 'always' (renew always), and not if it is less than half of the time that was known:
-- some applications release in this way. By right 'look' nothing is renewed.
--
-- L4: in each case the guard record follows an expiry that was set past all proxies. Otherwise the lock would have no
-- lease, and its holder's release would be refused.
--
-- By right 'successor' the lease moves from the proxy that gave it to this proxy, because its owner has come back here; the
-- attempt becomes its token. Exception: a lease with more than `read` ms left was renewed after the other proxy let go.
--
-- The outcome is 'done'; or 'held', 'foreign' or 'free' if the lease is gone. By right 'look' it is 'open' if the lease is
-- over, and a lock with its value is still there: most probably its holder has moved the expiry past all proxies.
local s = look()
if not s.value then return envelope(0, 'free', nil, -2) end
-- Whether the claim is of a party that was shown the head early (list.lua): its token may come to stand for the lease.
local function early()
  local g = redis.call('HMGET', guard, 'early', 'early_at')
  local fresh = g[2] and tonumber(g[2]) >= now_ms() - QUEUE_EARLY_MS
  return s.token and claim ~= '' and fresh and string.find(g[1], '=' .. claim .. '\n', 1, true)
end
-- S3: a lease that is not the claim's is not renewed.
local inherits = right == 'successor' and s.token and s.owner == identity
if s.token ~= claim and not (inherits and s.token == attempt) and not (s.list and early()) then
  local stands_on = right == 'look' and s.stale_token == claim and s.value and stands(s)
  return envelope(0, s.token and 'held' or stands_on and 'open' or 'foreign', s)
end
local left = redis.call('PTTL', lock)
if right == 'successor' then
  if s.list or not inherits or not s.leased or left > tonumber(read) then return envelope(0, 'held', s) end
  redis.call('HSET', guard, 'token', attempt, 'proxy', proxy)
end
local function renewable(ms)
  if right == 'look' then return false end
  return s.leased or (right == 'always' and ms >= 0 and ms >= tonumber(read) / 2)
end
if s.list then
  local now = now_ms()
  local mine = s.ends == 0 and -1 or s.ends - now
  if not renewable(mine) then return envelope(0, 'done', s, mine) end
  s.ends = math.max(s.ends, now + lease)
  redis.call('HSET', guard, 'until', int(s.ends))
  if left >= 0 and left < lease then redis.call('PEXPIRE', lock, ARGV[6]) end
  keep_guard(redis.call('PTTL', lock))
  return envelope(1, 'done', s, s.ends - now)
end
local ends = redis.call('PTTL', guard)
local SLACK_MS = 2 -- the clock of older servers goes on while a script runs
local function apart()
  return (left == -1) ~= (ends == -1) or (left >= 0 and math.abs(left + GUARD_OUTLIVES_MS - ends) > SLACK_MS)
end
-- A hash lock may end with its holder's field (fields.lua). The guard record follows the field then, and nothing is renewed.
if s.kind == 'hash' and apart() then
  local of_field = field_pttl(s.held)
  if of_field >= 0 and (left == -1 or of_field < left) then
    keep_guard(of_field)
    return envelope(0, 'done', s, of_field)
  end
end
local renewed = renewable(left)
if renewed and (left == -1 or left < lease) then -- never shorter: the holder may have set a longer expiry
  redis.call('PEXPIRE', lock, ARGV[6])
  left = lease
  if s.kind == 'hash' then left = lease_pttl(s.held) end -- now the holder's field may end first
end
if apart() then
  keep_guard(left)
end
return envelope(renewed and 1 or 0, 'done', s, left)
