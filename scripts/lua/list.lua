-- list.lua: what the scripts for list locks share; the build puts it, behind common.lua, at their line "--@list".
--
-- The lock is a queue: a list of nodes, of which the head is the holder as soon as its owner has seen it there. Here
--   ARGV  5 right   'own'     a node is the caller's if its party pushed it; a party does one thing after another, so
--                             that its older nodes are dead
--                   'auto'    also one of the same identity that was pushed through another proxy process, where the
--                             caller's party has none itself; a read counts for those of this process too
--                   'client'  also one of the same identity
--                   'any'     every one
--         8 seen    '=' and the caller's party: its session, or its identity where connections are shared
-- Guard record, besides the fields of common.lua (value is the holder's node):
--   until           ms, when the holder's lease ends; '0' never
--   by              the party that saw it there
--   head, head_at   the node that was seen at the head, and since when
--   n:NODE          who pushed it: party, attempt, identity, a line each
--   p:PARTY         ms, until when the party's nodes count unless it reads again; '0': while it is connected
--   k:PARTY         how many nodes it has here
--   l:PARTY         the node that it pushed last
--   v:PARTY         how often EXISTS has told it that there is no queue, and it has not pushed since
--   d:PARTY         the attempt of its last push that was refused for that, for its repeat
-- Envelope: behind common.lua's six elements: lost (dead heads removed), the identity of the last one's owner, and
-- the node of a lease that was granted.
local party = string.sub(seen, 2)
local HEAD_LOOKS_WITHIN_MS, PRUNED_AT_ONCE, VACANCY_MS = 5000, 100, 60000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lost, lost_owner, granted = 0, '', ''

local function type_of_lock()
  local kind = redis.call('TYPE', lock)
  return kind.ok or kind
end

local function queue_envelope(reply, outcome, s)
  local pttl = -3
  if s and s.token then pttl = s.ends == 0 and -1 or s.ends - now end
  return {reply, outcome, s and s.fence or 0, pttl, s and s.owner or '', s and s.leased and 1 or 0, lost, lost_owner,
    granted}
end

local function node_record(node)
  local record = redis.call('HGET', guard, 'n:' .. node)
  if not record then return nil end
  local r = {}
  r.party, r.attempt, r.identity = string.match(record, '^(.-)\n(.-)\n(.*)$')
  return r
end

local function counts(who)
  local ends = redis.call('HGET', guard, 'p:' .. who)
  return ends and (ends == '0' or tonumber(ends) > now)
end

local function mine(record, reads)
  if right == 'any' then return true end
  if not record then return false end
  if record.party == party then return true end
  if record.identity ~= identity then return false end
  if right ~= 'auto' then return right == 'client' end
  return not counts(party) and (reads or string.sub(record.party, 1, #proxy) ~= proxy)
end

-- The queue and its guard record last as long as anything in them counts.
local function keep_queue()
  local pttl = redis.call('PTTL', lock)
  if pttl == -2 then
    if redis.call('EXISTS', guard) == 1 then redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS) end
    return
  end
  if lease > 0 and pttl < lease then -- also where there is no end yet
    redis.call('PEXPIRE', lock, lease)
    pttl = lease
  end
  keep_guard(pttl)
end

-- As secure, for what is done to the records of nodes.
local function secure_queue(s, frees)
  secure(s, frees)
  redis.call('LINDEX', lock, 0)
  redis.call('HEXISTS', guard, 'probe')
  redis.call('HINCRBY', guard, 'probe', 0)
  redis.call('HDEL', guard, 'probe')
end

-- The party has shown that it is there.
local function refresh(who)
  redis.call('HSET', guard, 'p:' .. who, lease > 0 and int(now + lease) or '0')
end

local function newest(record, node)
  return redis.call('HGET', guard, 'l:' .. record.party) == node
end

local function register(node)
  if redis.call('HEXISTS', guard, 'n:' .. node) == 0 then redis.call('HINCRBY', guard, 'k:' .. party, 1) end
  redis.call('HSET', guard, 'n:' .. node, party .. '\n' .. attempt .. '\n' .. identity, 'l:' .. party, node)
end

local function unregister(node, record)
  if not record then return end
  redis.call('HDEL', guard, 'n:' .. node)
  if newest(record, node) then redis.call('HDEL', guard, 'l:' .. record.party) end
  if redis.call('HINCRBY', guard, 'k:' .. record.party, -1) <= 0 then
    redis.call('HDEL', guard, 'k:' .. record.party, 'p:' .. record.party)
  end
end

local function end_lease(s)
  redis.call('HSET', guard, 'token', '')
  s.token, s.fence, s.leased = nil, 0, false
end

-- Whether the head is dead: its lease is over, nobody is there who pushed it, or its owner has not looked in time.
-- One that the proxies know nothing of gets a lease from when it was first seen.
local function dead(s, head, since)
  if s.token then return false end
  if s.overdue then return true end
  local record = node_record(head)
  if not record then return lease > 0 and now >= since + lease end
  if not counts(record.party) and not counts(record.identity) then return true end
  if right == 'own' and not newest(record, head) then return true end
  return now >= since + HEAD_LOOKS_WITHIN_MS
end

-- Removes dead heads, no more than PRUNED_AT_ONCE; returns the head, or nil where the queue is empty now. s is the
-- state as look found it, and follows.
local function prune(s)
  local known = redis.call('HMGET', guard, 'head', 'head_at')
  local seen_head, since = known[1], tonumber(known[2] or 0)
  local head = redis.call('LINDEX', lock, 0)
  if head and s.kind ~= 'list' then -- what was here before has left its guard record
    end_lease(s)
    s.kind = 'list'
  end
  while head do
    if head ~= seen_head then
      seen_head, since = head, now
      redis.call('HSET', guard, 'head', head, 'head_at', int(now), 'kind', 'list')
    end
    if lost >= PRUNED_AT_ONCE or not dead(s, head, since) then return head end
    local record = node_record(head)
    redis.call('LPOP', lock)
    unregister(head, record)
    if s.overdue then
      s.overdue = false
      end_lease(s)
    end
    lost, lost_owner = lost + 1, record and record.identity or ''
    seen_head = nil
    head = redis.call('LINDEX', lock, 0)
  end
  redis.call('HDEL', guard, 'head', 'head_at')
  return nil
end

-- The head's owner has seen it there: the attempt is the live lease from now on.
local function hold(s, head)
  local fence = math.max(s.last_fence + 1, clock[1] * 1000000 + clock[2])
  s.token, s.fence, s.owner, s.leased = attempt, fence, identity, lease > 0
  s.ends = lease > 0 and now + lease or 0
  granted = head
  redis.call('HSET', guard, 'token', attempt, 'fence', int(fence), 'value', head, 'kind', 'list',
    'owner', identity, 'proxy', proxy, 'leased', s.leased and int(fence) or '', 'since', int(now),
    'until', int(s.ends), 'by', party)
end

-- Takes the head out of the queue: its lease is over.
local function remove_head(s, reply)
  local head = redis.call('LPOP', lock)
  unregister(head, node_record(head))
  redis.call('HSET', guard, 'attempt', attempt, 'reply', reply or head)
  end_lease(s)
  prune(s)
  keep_queue()
  return head
end
