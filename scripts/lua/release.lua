-- release.lua: DEL, UNLINK, GETDEL, DELIFEQ, DELEX, and PROXY RELEASE (right 'operator'), in every state of the lock;
-- release_usual.lua and free.lua come first where they may do. Keeps S1, S4, L2. If the caller is the holder, the lock is
-- released. On data the command runs as on Redis. Otherwise it is refused with 0 or nil. Of a list lock only the head is
-- removed. DELIFEQ and DELEX compare for themselves (compare.lua): what says no of itself leaves the claim, unless its
-- lease has ended.
--
-- ARGV 9 is, under a rule with `wait`, what tell() is told (tell.lua), else '0'. ARGV 6 is by right 'operator' the rule's
-- lock-delay.
--@usual
local compares = string.find(string.lower(ARGV[11]), '^del[ei]')
if ARGV[10] == 'int' and not compares then -- a refusal is told by few steps, before the functions below are made
  local value, g, flags = usual_lease(KEYS[1], KEYS[2], ARGV[3], ARGV[4])
  if value and g[7] ~= ARGV[1] and usual_refusal(KEYS[1], g, ARGV[2], ARGV[3], ARGV[5]) then
    return {0, 'held', tonumber(g[2]), -3, g[4], flags}
  end
end
--@common
--@list
--@tell
local name = ARGV[11]
if right == 'operator' then delay = lease end
local s = look()
if s.attempt == attempt and s.token ~= attempt then -- a repeat; another lease may be live by now
  return envelope(shape == 'int' and 1 or s.reply, 'released', nil, -2)
end
local how, why, compare, no, equal = false, 'free', nil, nil, nil
if compares then
--@compare
  local acts
  acts, no, equal = compare(s, 11)
  if not s.value or not acts then
    local reply = known(acts == nil and redis.pcall(unpack(no)) or command(), 11)
    if not s.value and not failed(reply) then return envelope(reply, 'free', nil, -2) end
    local over = claim ~= '' and s.token ~= claim and not failed(reply)
    return envelope(reply, over and (s.token and 'held' or 'foreign') or 'error', s)
  end
  if equal == 'eq' and type(s.value) == 'string' then seen = '=' .. s.value end -- the caller knows the value
end
if s.value then how, why = may_touch(s) end
-- The late release of a lease that ended without one ends the rule's lock-delay. So does PROXY RELEASE.
if not s.value and s.stale_token and not s.short and
  (delayed(s) or s.stale_token == claim and redis.call('HGET', guard, 'delay')) then
  redis.call('HSET', guard, 'token', '')
  if right == 'operator' then return envelope(1, 'released', s, -2) end
end
if not how then
  ask_to_write()
  local reply = no and known(redis.pcall(unpack(no)), 11)
  if failed(reply) then return envelope(reply, 'error') end
  if not s.value then return envelope(refusal(), 'free', nil, -2) end
  if shape == 'nil' and type(s.value) ~= 'string' then return envelope(s.value, 'error') end
  return envelope(refusal(), why, s)
end
if s.list and shape == 'nil' then return envelope(redis.pcall(name, lock), 'error') end
-- The sessions that wait keep their places.
if s.list then return (release_head(s, how == 'done' and 'released' or how, '1')) end
secure(s, true)
-- Of Redisson's read lock, a hash with a field for each reader and one for the mode, only the holder's field is deleted.
-- Without a live lease, the record's `kind` says nothing about the lock.
local readable = s.token and shape == 'int' and s.kind == 'hash' and right ~= 'operator'
local reads = readable and redis.call('HGET', lock, 'mode') == 'read'
if reads and redis.call('HLEN', lock) > 2 then
  local fence = s.fence or 0
  redis.call('HDEL', lock, s.held)
  forget(s, '1')
  return {1, how == 'done' and 'released' or how, fence, redis.call('PTTL', lock), s.owner or '', 0}
end
local reply = no and known(command(), 11) or redis.pcall(name, lock)
if failed(reply) or reply == 0 then return envelope(reply, 'error') end
forget(s, shape == 'nil' and s.value or '1')
if ARGV[9] ~= '0' then tell(lock, guard, proxy, ARGV[9]) end
return envelope(reply, how == 'done' and 'released' or how, s, -2)
