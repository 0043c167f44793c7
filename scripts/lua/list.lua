-- list.lua: what the scripts for list locks share; the build puts it, behind common.lua, at their line "--@list".
--
-- The lock is a queue: a list of nodes, of which the head is the holder as soon as its owner has seen it there. Here
--   ARGV  5 right   'own'     a party is one worker and does one thing after another, so that its older nodes are dead.
--                             A node is its party's, and once that has left its identity's
--                   'auto'    a node is its identity's, with the differences below
--                   'client'  the party is the identity
--                   'any'     a node is whoever's
--         8 seen    '=' and the caller's party: its session, or its identity where connections are shared
-- Guard record, besides the fields of common.lua (value is the holder's node):
--   until           ms, when the holder's lease ends; '0' never
--   by              the party that saw it there
--   may             who else may be the holder, see below: a line each, PARTY=TOKEN
--   early, early_at who was shown the head while the party that pushed it seemed to be there: likewise, and when last
--   head, head_at   the node that was seen at the head, and since when
--   n:NODE          who pushed it: party, attempt, identity, a line each
--   p:PARTY         ms, until when the party's nodes count unless it reads again; '0': while it is connected; negative:
--                   it has left, and somebody may come back for them until then
--   p:IDENTITY      right 'auto': ms, until when somebody of the identity reads here, over whichever connection
--   h:IDENTITY      ms, until when somebody of it reads that has no node here: a worker that came back, perhaps
--   k:PARTY         how many nodes it has here
--   l:PARTY         the node that it pushed last
--   v:PARTY         EXISTS has told it that there is no queue, and it has not pushed since; of an identity how often
--   d:PARTY         the attempt of its last push that was refused for that, for its repeat
--   x:IDENTITY      how far its releases go over other connections than its pushes: as a pool's do
-- Envelope: behind common.lua's six elements: lost (dead heads removed), the identity of the last one's owner, and
-- the node of a lease that was granted, or that the caller may have.
--
-- Whose is a node? Its value tells one worker's from another's, and everybody is told it who reads the head: the
-- application decides whether it is the holder. A worker may come back over another connection, or take any of a pool
-- for each command. So within one client identity, whoever
--   names a node (LREM, RPUSH of the same) is believed, LSET, which names a place, with more care (list_set.lua);
--   is shown a node at the head may be its owner: from then on a lease is live. Who renews it is the question: the owner
--     works now, and does not look again; who waits looks again soon. A party that has a node of its own here, which is
--     not this one, waits, and the lease ends unless the node's own party reads or renews it. One that has none, and
--     one of an identity that is known for a pool (x:), has a seat in `may`: a token, by which its proxy renews the
--     lease while it is connected, until it looks again. One lease may have several such tokens (look_at_list in
--     common.lua); its fence is one.
-- A worker may be back before it is known that its former connection is gone: who has no node here, and was shown the head
-- shortly before (QUEUE_EARLY_MS), has a seat from the moment in which that is said.
-- A party that has left and does not come back is dead: its nodes go when nobody of its identity that has none looks for
-- some seconds (grace), and the holder's lease runs out (where the rule releases what disconnects, both go at once).
-- Between different identities nothing of this holds. What it costs: a node that its owner has walked away from, while
-- colleagues of the same identity look, stays at the head for one lease; of a pool, where nobody can tell its owner's
-- reading from a colleague's, for as long as its connections are there. S1, S2, S5, S6, L1.
local party = string.sub(seen, 2)
local MAY_MAX, POOL = 8192, 3
local shared = right == 'client' or right == 'any'
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

-- Whether the end that the field says is to come.
local function lasts(field)
  local ends = tonumber(redis.call('HGET', guard, field) or '')
  return ends and (ends == 0 or math.abs(ends) > now)
end

local function has_left(who)
  local ends = redis.call('HGET', guard, 'p:' .. who)
  return not ends or string.sub(ends, 1, 1) == '-'
end

-- How long those that have left, or that nobody hears of, are waited for.
local function grace()
  return lease > 0 and math.min(lease, QUEUE_LOOKS_WITHIN_MS) or QUEUE_LOOKS_WITHIN_MS
end

-- Whether somebody is there for whom the node may be.
local function attended(record)
  if lasts('p:' .. record.party) then return true end
  if redis.call('HEXISTS', guard, 'p:' .. record.party) == 0 then return false end
  -- Its leaving may be said later than its worker came back, or never: the proxy went, too.
  return lasts(((right == 'own' or has_left(record.party)) and 'h:' or 'p:') .. record.identity)
end

local function homeless()
  return redis.call('HEXISTS', guard, 'k:' .. party) == 0
end

local function pools()
  return right == 'auto' and tonumber(redis.call('HGET', guard, 'x:' .. identity) or 0) >= POOL
end

-- The node is another party's of the identity.
local function near(record)
  return record and not shared and record.party ~= party and record.identity == identity
end

-- And the caller may be its owner.
local function kin(record)
  return near(record) and (right == 'auto' or has_left(record.party))
end

-- Whether the caller may do with a node what its owner may, if it names it.
local function mine(record)
  if right == 'any' then return true end
  if not record then return false end
  return record.party == party or (right == 'client' and record.identity == identity) or kin(record)
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

local function unregister(node, record)
  if not record then return end
  redis.call('HDEL', guard, 'n:' .. node)
  if newest(record, node) then redis.call('HDEL', guard, 'l:' .. record.party) end
  if redis.call('HINCRBY', guard, 'k:' .. record.party, -1) <= 0 then
    redis.call('HDEL', guard, 'k:' .. record.party, 'p:' .. record.party)
  end
end

-- The node is the caller's party's from now on.
local function register(node)
  local record = node_record(node)
  if record and record.party ~= party then unregister(node, record) end
  if not record or record.party ~= party then redis.call('HINCRBY', guard, 'k:' .. party, 1) end
  redis.call('HSET', guard, 'n:' .. node, party .. '\n' .. attempt .. '\n' .. identity, 'l:' .. party, node)
end

local function end_lease(s)
  redis.call('HSET', guard, 'token', '')
  redis.call('HDEL', guard, 'may', 'early', 'early_at')
  s.token, s.fence, s.leased = nil, 0, false
end

-- The party's seat in `may` or `early`: its token, '' where it has none any more, nil where it never had one; all of
-- them, and where it stands there.
local function seat(field)
  local all = redis.call('HGET', guard, field) or '\n'
  local _, at = string.find(all, '\n' .. party .. '=', 1, true)
  return at and string.match(all, '^[^\n]*', at + 1), all, at
end

local function lose_seat(field)
  local token, all, at = seat(field)
  if token then redis.call('HSET', guard, field, string.sub(all, 1, at) .. string.sub(all, at + #token + 1)) end
end

-- Whether those of `early` came lately.
local function early()
  return tonumber(redis.call('HGET', guard, 'early_at') or 0) >= now - QUEUE_EARLY_MS
end

-- Whether the head is dead: its lease is over, nobody is there who pushed it, or its owner has not looked in time.
-- One that the proxies know nothing of gets a lease from when it was first seen.
local function dead(s, head, since)
  if s.token then return false end
  if s.overdue then return true end
  local record = node_record(head)
  if not record then return lease > 0 and now >= since + lease end
  if not attended(record) then return true end
  if right == 'own' and not newest(record, head) then return true end
  return now >= since + QUEUE_LOOKS_WITHIN_MS
end

-- Removes dead heads, no more than QUEUE_PRUNED_AT_ONCE; returns the head, or nil where the queue is empty now, and whether the
-- head is one more of them. s is the state as look found it, and follows.
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
    if not dead(s, head, since) then return head, false end
    if lost >= QUEUE_PRUNED_AT_ONCE then return head, true end
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
  return nil, false
end

-- The head's owner, perhaps, has seen it there: the attempt is the live lease from now on. `seated`: the caller's proxy
-- may renew it.
local function hold(s, head, seated)
  local fence = math.max(s.last_fence + 1, clock[1] * 1000000 + clock[2])
  s.token, s.fence, s.owner, s.leased = attempt, fence, identity, lease > 0
  s.ends = lease > 0 and now + lease or 0
  if seated then granted = head end
  redis.call('HSET', guard, 'token', attempt, 'fence', int(fence), 'value', head, 'kind', 'list',
    'owner', identity, 'proxy', proxy, 'leased', s.leased and int(fence) or '', 'since', int(now),
    'until', int(s.ends), 'by', party,
    'may', '\n' .. (shared and '' or party) .. '=' .. (seated and attempt or '') .. '\n')
end

-- The lease is live, and the attempt stands for it too from now on. `owns`: the caller has pushed the head itself.
local function join(s, head, owns)
  local _, may = seat('may')
  granted = head
  redis.call('HSET', guard, 'token', attempt, 'proxy', proxy,
    'may', may .. (shared and '' or party) .. '=' .. attempt .. '\n')
  s.token = attempt
  if lease == 0 and not s.leased then s.ends = 0 elseif owns and s.leased then s.ends = math.max(s.ends, now + lease) end
  redis.call('HSET', guard, 'until', int(s.ends))
  if owns then redis.call('HSET', guard, 'by', party) end
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
