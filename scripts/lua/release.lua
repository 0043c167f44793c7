-- release.lua: DEL, UNLINK, GETDEL, DELIFEQ, DELEX, and PROXY RELEASE (right 'operator'). Keeps S1, S4, L2. If the
-- caller is the holder, the lock is released. On data the command runs as on Redis. Otherwise it is refused with 0 or
-- nil. Of a list lock only the head is removed. DELIFEQ and DELEX compare for themselves (compare.lua): what says no of
-- itself is no release, and leaves the claim. Exception: the claim is spent if its lease has ended.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 attempt   2 claim
--       No more, if the command is DEL, the proxy knows the claim's fence, the right is 'claim' and `seen` is ''. Else:
--       3 the command's name, in capitals
--       No more, if the right is 'claim' and `seen` is ''. Else:
--       4 right   5 identity   6 lease; by right 'fence', read   7 seen (all as in arguments.lua)
--       Under a rule with `wait`, all arguments above, and:
--       8 the database, on a cluster with a plus before it
--       9 only if this proxy leaves the lock to another proxy: for how many ms its longest waiting session has waited
--       DELIFEQ and DELEX have all arguments above, ARGV 9 '' if the proxy does not leave the lock, and:
--       10... the command, as the client wrote it
--
-- Under a rule with `wait`, if the session that has waited longest is at another proxy (waits.lua), the script
-- publishes the release. On a cluster it uses the sharded channel of the lock's slot, if the node knows sharded
-- channels.
--
-- The short way: the holder releases its own live lease, a string. It takes few steps and answers with a short text
-- (common.lua). The long way: all else, but for the refusals that are told by few steps.
local argv, redis = ARGV, redis
local key, record, attempt, claim, call, name = KEYS[1], KEYS[2], argv[1], argv[2], redis.call, argv[3] or 'DEL'
local tell
if argv[8] then
  local mark
--@waits
  function tell()
    local own = string.sub(attempt, 1, 36)
    if (argv[9] or '') ~= '' then mark(record, own, argv[9]) end
    local waits = redis.pcall('HGET', record, 'waits')
    local proxy = type(waits) == 'string' and string.match(waits, '^%d+:%d+:([^,]*)')
    if not proxy or proxy == own then return end
    local sharded, db = string.match(argv[8], '(%+?)(%d+)')
    local channel, text = 'lockkeeper-freed', proxy .. ' ' .. db .. ' ' .. key
    if sharded ~= '' then -- the record is lockkeeper:{TAG}:KEY, the channel lockkeeper-freed:{TAG}
      local answer = redis.pcall('SPUBLISH', channel .. string.sub(record, 11, -#key - 2), text)
      if type(answer) == 'number' or not string.find(answer.err, 'nknown', 1, true) then return end
    end
    redis.pcall('PUBLISH', channel, text)
  end
end
local held = claim ~= '' and not argv[10] and redis.pcall('GET', key)
if held and type(held) == 'string' then
  local g -- a repeated release finds that the token is gone, and goes the long way
  if argv[3] then g = redis.pcall('HMGET', record, 'token', 'value', 'fence')
  else g = redis.pcall('HMGET', record, 'token', 'value') end
  -- LT succeeds only if the lease is live: after its end, the record has less than GUARD_OUTLIVES_MS left. Servers
  -- before 7.0 do not know LT, and go the long way.
  if g[1] == claim and g[2] == held and redis.pcall('PEXPIRE', record, 'GUARD_OUTLIVES_MS', 'LT') == 1 then
    local answer = redis.pcall(name, key)
    if answer ~= 1 and type(answer) == 'table' then -- refused: give the record its expiry back
      local left = call('PTTL', key)
      if left >= 0 and left < 9e15 then call('PEXPIRE', record, string.format('%.0f', left + GUARD_OUTLIVES_MS))
      else call('PERSIST', record) end
      return answer
    end
    if tell then tell() end
    if name == 'GETDEL' then
      call('HSET', record, 'token', '', 'attempt', attempt, 'reply', held)
      return {answer, 'released', tonumber(g[3]), -2, '', 0}
    end
    call('HSET', record, 'token', '', 'attempt', attempt)
    return g[3] and 'r' .. g[3] or 'r'
  end
end

local lock, guard, proxy = key, record, string.sub(attempt, 1, 36)
local right, identity, lease, seen = argv[4] or 'claim', argv[5] or '', tonumber(argv[6] or 0), argv[7] or ''
local read = argv[6] -- by right 'fence'
local shape = name == 'GETDEL' and 'nil' or 'int'
--@usual
if not argv[10] and name ~= 'GETDEL' then
  local value, g, flags = usual_lease(key, record, identity, proxy)
  if value and g[7] ~= attempt and usual_refusal(key, g, claim, identity, right) then
    return {0, 'held', tonumber(g[2]), -3, g[4], flags}
  end
end
local delay = right == 'operator' and lease -- the rule's lock-delay
--@functions
--@list
local s = look()
if s.attempt == attempt and s.token ~= attempt then -- a repeat; another lease may be live by now
  return envelope(shape == 'int' and 1 or s.reply, 'released', nil, -2)
end
local how, why, compare, no, equal = false, 'free', nil, nil, nil
if argv[10] then
--@compare
  local acts
  acts, no, equal = compare(s, 10)
  if not s.value or not acts then
    local reply = known(redis.pcall(unpack(acts == nil and no or argv, acts == nil and 1 or 10)), 10)
    if not s.value and not failed(reply) then return envelope(reply, 'free', nil, -2) end
    local over = claim ~= '' and s.token ~= claim and not failed(reply)
    return envelope(reply, over and (s.token and 'held' or 'foreign') or 'error', s)
  end
  if equal == 'eq' and type(s.value) == 'string' then seen = '=' .. s.value end -- the caller knows the value
end
if s.value then how, why = may_touch(s) end
-- The late release of a lease that ended without one ends the rule's lock-delay: its holder has finished. So does PROXY
-- RELEASE.
if not s.value and s.stale_token and not s.short and
  (delayed(s) or s.stale_token == claim and redis.call('HGET', guard, 'delay')) then
  redis.call('HSET', guard, 'token', '')
  if right == 'operator' then return envelope(1, 'released', s, -2) end
end
if not how then
  ask_to_write()
  local reply = no and known(redis.pcall(unpack(no)), 10)
  if failed(reply) then return envelope(reply, 'error') end
  if not s.value then return envelope(refusal(), 'free', nil, -2) end
  if shape == 'nil' and type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(refusal(), why, s)
end
if s.list and shape == 'nil' then return envelope(redis.pcall('GETDEL', lock), 'error') end
if s.list then -- the sessions that wait keep their places
  local fence = s.fence or 0
  remove_head(s, '1')
  return {1, how == 'done' and 'released' or how, fence, -2, s.owner or '', 0, lost, lost_owner, ''}
end
secure(s, true)
-- Redisson's read lock is a hash with a field for each reader, and one for the mode. Other readers go on reading, so
-- only the holder's field is deleted. Without a live lease, the record's `kind` says nothing about the lock.
local readable = s.token and shape == 'int' and s.kind == 'hash' and right ~= 'operator'
local reads = readable and redis.call('HGET', lock, 'mode') == 'read'
if reads and redis.call('HLEN', lock) > 2 then
  local fence = s.fence or 0
  redis.call('HDEL', lock, s.held)
  forget(s, '1')
  return {1, how == 'done' and 'released' or how, fence, redis.call('PTTL', lock), s.owner or '', 0}
end
local reply = no and known(redis.pcall(unpack(argv, 10)), 10) or redis.pcall(name, lock)
if failed(reply) or reply == 0 then return envelope(reply, 'error') end
forget(s, shape == 'nil' and s.value or '1')
if tell then tell() end
return envelope(reply, how == 'done' and 'released' or how, s, -2)
