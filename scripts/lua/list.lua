-- list.lua: what the scripts for list locks share, in the place of their line "--@list". Keeps S1, S2, S5, S6, L1.
--
-- The lock is a queue: a list of nodes. The owner of the head is the holder as soon as it has seen its node there. A
-- party is a session, or a client identity if connections are pooled. Here
--   ARGV  5 right   'own'     a party is one worker, which does one thing after another: its older nodes are dead. A
--                             node is its party's, and its identity's once the party has left
--                   'auto'    a node is its identity's, with the differences below
--                   'client'  the party is the identity
--                   'any'     a node is every session's
--         8 seen    '=' and the caller's party
-- Fields of the guard record, besides those of common.lua (`value` is the holder's node). All times are in ms:
--   until           when the holder's lease ends; '0' never
--   by              the party that saw the node at the head
--   may             the parties that may be the holder, with a token each: lines PARTY=TOKEN
--   early, early_at the parties that were shown the head while the party that pushed it seemed to be connected:
--                   lines as in `may`; and when this last happened
--   head, head_at   the node that was seen at the head, and since when
--   n:NODE          its party, the attempt that pushed it, and its identity: a line each
--   p:PARTY         until when the party's nodes count unless it reads again. '0': as long as it is connected.
--                   Negative: the party has left, and its worker may come back for the nodes until then
--   p:IDENTITY      right 'auto': until when the last read here counts, over any connection of the identity
--   h:IDENTITY      the same for reads of parties without a node here: perhaps a worker that has come back
--   k:PARTY         how many nodes the party has here
--   l:PARTY         the node that the party pushed last
--   v:PARTY         EXISTS has told the party that there is no queue, and the party has not pushed since. If the party
--                   is an identity: how often
--   d:PARTY         the attempt of the party's last push that was refused because of v:, for its repeat
--   x:IDENTITY      how far its releases come over other connections than its pushes, as a pool's do (list_remove.lua)
-- The envelope has three more elements than in common.lua: how many dead heads were removed; the identity of the last
-- one's owner; the node whose lease was granted to the caller, or which may be the caller's.
--
-- docs/locks.md (List locks) says whose a node is. Within one client identity a session that names a node is believed,
-- and a session that is shown a node at the head may be its owner. The owner does not look again; a session that waits
-- does. This decides for which session the lease is renewed:
--   - A party that has another node here waits. The lease that its read began ends, unless the node's own party reads
--     or renews it.
--   - A party without a node here, or of an identity that is known as a pool (x:), gets a seat in `may`: a token, by
--     which its proxy renews the lease while the party is connected. A party that looks again loses its seat, except in
--     a pool. One lease may have several tokens (look_at_list in common.lua); it has one fence.
-- A worker may reconnect before the proxy knows that its earlier connection is gone. A party without a node here that
-- was shown the head shortly before (QUEUE_EARLY_MS) gets its seat when the earlier party is said to have left.
--
-- The nodes of a party that has left are removed once no session of its identity without a node has read here for some
-- seconds (grace), and the holder's lease runs out. If the rule releases on disconnect, both end at once.
--
-- S6: between different identities none of this holds. The cost within one: if the owner of the head walks away while
-- other workers read, its node stays for one lease; in a pool, as long as the pool's connections are open.
local party = string.sub(seen, 2)
local MAY_MAX, POOL = 8192, 3
local pooled = right == 'client' or right == 'any'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lost, lost_owner, granted = 0, '', ''

local function type_of_lock()
  return redis.call('TYPE', lock).ok
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

-- Whether the time in the field is still to come, or the field says that there is no end.
local function lasts(field)
  local ends = tonumber(redis.call('HGET', guard, field) or '')
  return ends and (ends == 0 or math.abs(ends) > now)
end

local function has_left(who)
  local ends = redis.call('HGET', guard, 'p:' .. who)
  return not ends or string.sub(ends, 1, 1) == '-'
end

-- For how many ms the scripts wait for a party that has left, and for how many a read without a node here counts.
local function grace()
  return lease > 0 and math.min(lease, QUEUE_LOOKS_WITHIN_MS) or QUEUE_LOOKS_WITHIN_MS
end

-- Whether a session may be there that owns the node.
local function attended(record)
  if lasts('p:' .. record.party) then return true end
  if redis.call('HEXISTS', guard, 'p:' .. record.party) == 0 then return false end
  -- The worker may come back before the proxy says that the party has left. If that proxy has ended, it never says so.
  return lasts(((right == 'own' or has_left(record.party)) and 'h:' or 'p:') .. record.identity)
end

-- Whether the caller's party has no node here.
local function homeless()
  return redis.call('HEXISTS', guard, 'k:' .. party) == 0
end

local function pools()
  return right == 'auto' and tonumber(redis.call('HGET', guard, 'x:' .. identity) or 0) >= POOL
end

-- Whether the node is another party's of the caller's identity.
local function near(record)
  return record and not pooled and record.party ~= party and record.identity == identity
end

-- Whether the node is another party's of the caller's identity, and the caller may be its owner.
local function kin(record)
  return near(record) and (right == 'auto' or has_left(record.party))
end

-- Whether a caller that names the node may do with it what its owner may.
local function mine(record)
  if right == 'any' then return true end
  if not record then return false end
  return record.party == party or (right == 'client' and record.identity == identity) or kin(record)
end

-- L1: has the queue last for one more lease, and the guard record longer than the queue.
local function keep_queue()
  local pttl = redis.call('PTTL', lock)
  if pttl == -2 then
    if redis.call('EXISTS', guard) == 1 then redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS) end
    return
  end
  if lease > 0 and pttl < lease then -- also if there is no expiry (-1)
    redis.call('PEXPIRE', lock, lease)
    pttl = lease
  end
  keep_guard(pttl)
end

-- As `secure`, also for the commands that change the records of nodes.
local function secure_queue(s, frees)
  secure(s, frees)
  redis.call('LINDEX', lock, 0)
  redis.call('HEXISTS', guard, 'probe')
  redis.call('HINCRBY', guard, 'probe', 0)
  redis.call('HDEL', guard, 'probe')
end

-- The party has shown that it is there: its nodes count for one more lease.
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

-- Makes the node the caller's party's.
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

-- Returns the token of the caller's party in the field `may` or `early` ('': it has lost its seat; nil: it never had one),
-- the whole field, and where the '=' before the token is in it.
local function seat(field)
  local all = redis.call('HGET', guard, field) or '\n'
  local _, at = string.find(all, '\n' .. party .. '=', 1, true)
  return at and string.match(all, '^[^\n]*', at + 1), all, at
end

local function lose_seat(field)
  local token, all, at = seat(field)
  if token then redis.call('HSET', guard, field, string.sub(all, 1, at) .. string.sub(all, at + #token + 1)) end
end

-- Whether the parties in `early` were shown the head shortly before.
local function early()
  return tonumber(redis.call('HGET', guard, 'early_at') or 0) >= now - QUEUE_EARLY_MS
end

-- Whether the head is dead: its lease is over, no session is there that may own it, its party has pushed a newer node
-- (right 'own'), or its owner has not looked in time. A head without a record has one lease of time from when it was first
-- seen.
local function dead(s, head, since)
  if s.token then return false end
  if s.overdue then return true end
  local record = node_record(head)
  if not record then return lease > 0 and now >= since + lease end
  if not attended(record) then return true end
  if right == 'own' and not newest(record, head) then return true end
  return now >= since + QUEUE_LOOKS_WITHIN_MS
end

-- Removes dead heads, at most QUEUE_PRUNED_AT_ONCE. Returns the head (nil: none) and whether it is dead, too. Updates `s`.
local function prune(s)
  local known = redis.call('HMGET', guard, 'head', 'head_at')
  local seen_head, since = known[1], tonumber(known[2] or 0)
  local head = redis.call('LINDEX', lock, 0)
  if head and s.kind ~= 'list' then -- the record is of an earlier lock of another kind
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

-- Makes the attempt the live lease, since the caller may own the head and has seen it. `seated`: the caller's proxy may
-- renew the lease. S2: the fence grows.
local function hold(s, head, seated)
  local fence = math.max(s.last_fence + 1, clock[1] * 1000000 + clock[2])
  s.token, s.fence, s.owner, s.leased = attempt, fence, identity, lease > 0
  s.ends = lease > 0 and now + lease or 0
  if seated then granted = head end
  redis.call('HSET', guard, 'token', attempt, 'fence', int(fence), 'value', head, 'kind', 'list',
    'owner', identity, 'proxy', proxy, 'leased', s.leased and int(fence) or '', 'since', int(now),
    'until', int(s.ends), 'by', party,
    'may', '\n' .. (pooled and '' or party) .. '=' .. (seated and attempt or '') .. '\n')
end

-- Makes the attempt one more token of the live lease. `owns`: the caller's party pushed the head itself.
local function join(s, head, owns)
  local _, may = seat('may')
  granted = head
  redis.call('HSET', guard, 'token', attempt, 'proxy', proxy,
    'may', may .. (pooled and '' or party) .. '=' .. attempt .. '\n')
  s.token = attempt
  if lease == 0 and not s.leased then s.ends = 0 elseif owns and s.leased then s.ends = math.max(s.ends, now + lease) end
  redis.call('HSET', guard, 'until', int(s.ends))
  if owns then redis.call('HSET', guard, 'by', party) end
end

-- Removes the head, and so ends its lease. A repeat finds `reply`, or else the node. Returns a release's envelope, and the
-- node.
local function release_head(s, outcome, reply)
  local fence, owner, head = s.fence or 0, s.owner or '', redis.call('LPOP', lock)
  unregister(head, node_record(head))
  redis.call('HSET', guard, 'attempt', attempt, 'reply', reply or head)
  end_lease(s)
  prune(s)
  keep_queue()
  return {1, outcome, fence, -2, owner, 0, lost, lost_owner, ''}, head
end
