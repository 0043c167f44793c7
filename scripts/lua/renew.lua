-- renew.lua: the proxy renews the lease of `claim` for `lease` ms. No command. Keeps S3: only the live lease
-- whose owner is connected is ever renewed. An expiry of the application's own, which it may have set since the
-- renewal was asked for, is renewed only by right 'always' (renew always), and not where it is a much shorter one than
-- was known: that is how some release. By right 'look' nothing is renewed.
-- In each case the guard record follows an expiry that was set past all proxies, so that it does not end before its lock:
-- the lease would be nobody's then, and its holder's release refused. L4.
-- By right 'heir' the lease moves from the proxy that gave it to this one, under a token of its own, because its owner has
-- come back here. Not where somebody has renewed it since that proxy let go of it: it has more than `read` ms left then.
-- Returns 'done', or 'held', 'foreign', 'free' where it is gone.
local s = look()
if not s.value then return envelope(0, 'free', nil, -2) end
-- Who came early to a list lock's head (list.lua) waits until it is known whether its token stands for the lease.
local function early()
  local g, t = redis.call('HMGET', guard, 'early', 'early_at'), redis.call('TIME')
  local fresh = g[2] and tonumber(g[2]) >= t[1] * 1000 + math.floor(t[2] / 1000) - QUEUE_EARLY_MS
  return s.token and claim ~= '' and fresh and string.find(g[1], '=' .. claim .. '\n', 1, true)
end
local inherits = right == 'heir' and s.token and s.owner == identity
if s.token ~= claim and not (inherits and s.token == attempt) and not (s.list and early()) then
  return envelope(0, s.token and 'held' or 'foreign', s)
end
local left = redis.call('PTTL', lock)
if right == 'heir' then
  if s.list or not inherits or not s.leased or left > tonumber(read) then return envelope(0, 'held', s) end
  redis.call('HSET', guard, 'token', attempt, 'proxy', proxy)
end
local function renewable(ms)
  if right == 'look' then return false end
  return s.leased or (right == 'always' and ms >= 0 and ms >= tonumber(read) / 2)
end
if s.list then
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  local mine = s.ends == 0 and -1 or s.ends - now
  if not renewable(mine) then return envelope(0, 'done', s, mine) end
  s.ends = math.max(s.ends, now + lease)
  redis.call('HSET', guard, 'until', int(s.ends))
  if left >= 0 and left < lease then redis.call('PEXPIRE', lock, ARGV[6]) end
  keep_guard(redis.call('PTTL', lock))
  return envelope(1, 'done', s, s.ends - now)
end
local renewed, ends = renewable(left), redis.call('PTTL', guard)
if renewed and (left == -1 or left < lease) then -- never shorter: the holder may have set a longer one meanwhile
  redis.call('PEXPIRE', lock, ARGV[6])
  left = lease
end
local SLACK_MS = 2 -- the clock of older servers goes on while a script runs
if (left == -1) ~= (ends == -1) or (left >= 0 and math.abs(left + GUARD_OUTLIVES_MS - ends) > SLACK_MS) then
  keep_guard(left)
end
return envelope(renewed and 1 or 0, 'done', s, left)
