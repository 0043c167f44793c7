-- list_read.lua: LRANGE, LINDEX, LLEN, LPOS, and EXISTS of one key, on a lock key of whatever type.
-- Dead heads are removed first. Whoever reads shows that it is there. If the head is the caller's own node, the caller
-- is the holder from now on ('granted', or 'done' where it was already, with a new lease); EXISTS alone says nothing of
-- the head, but its 0 is remembered for a RPUSH. Where connections are shared a read does not make a lease longer: it
-- may be a colleague's. 'adopted': a node that is the caller's by its identity alone, or that its party has walked away
-- from as it seems (it has pushed another since), has a lease from now on that nobody renews; the node's own party takes
-- it over when it reads. Where Redis takes no writes the command runs as it is, but not for whom it would make the holder.
-- S2, S5, L1.
--@common
--@list
local s = look()
local kind, exists = type_of_lock(), string.lower(ARGV[11]) == 'exists'
local shared = right == 'client' or right == 'any'

-- Whether the caller's party has pushed the head itself, and whether its lease needs nobody to begin it.
local function known_holder(s, head, record)
  local own = record and record.party == party and (shared or newest(record, head))
  return own, s.token and (redis.call('HGET', guard, 'by') == party or not own)
end

local function read()
  if kind ~= 'list' then
    local reply = command()
    if failed(reply) then return envelope(reply, 'error') end
    if kind == 'none' and exists then
      redis.call('HINCRBY', guard, 'v:' .. party, 1)
      redis.call('HSET', guard, 'token', '')
      if redis.call('PTTL', guard) < VACANCY_MS then redis.call('PEXPIRE', guard, VACANCY_MS) end
    end
    return queue_envelope(reply, kind == 'none' and 'free' or 'done')
  end
  local head = prune(s)
  if exists and head and right ~= 'client' and right ~= 'any' then redis.call('HDEL', guard, 'v:' .. party) end
  if counts(party) then refresh(party) end
  local outcome = head and (s.token and 'held' or 'foreign') or 'free'
  local record = head and not exists and node_record(head)
  if head and not exists and (s.token == attempt or mine(record, true)) then
    local own, known = known_holder(s, head, record)
    if s.token == attempt then
      granted = head
    elseif not known then
      hold(s, head)
    elseif own and s.leased and not shared then
      s.ends = math.max(s.ends, now + lease)
      redis.call('HSET', guard, 'until', int(s.ends))
    end
    outcome = 'done'
    if s.token == attempt then outcome = (own or right ~= 'auto') and 'granted' or 'adopted' end
  end
  keep_queue()
  if exists and not head then
    redis.call('HINCRBY', guard, 'v:' .. party, 1)
    redis.call('PEXPIRE', guard, VACANCY_MS)
  end
  local reply = command()
  if failed(reply) then return queue_envelope(reply, 'error') end
  return queue_envelope(reply, outcome, s)
end

local fine, answer = pcall(read)
if fine then return answer end
local why = type(answer) == 'table' and answer or {err = tostring(answer)}
if not takes_no_writes(why.err) then return why end
local head = kind == 'list' and not exists and redis.call('LINDEX', lock, 0)
local record = head and node_record(head)
if head and mine(record, true) then
  local _, known = known_holder(s, head, record)
  if not known then return why end
end
return envelope(command(), 'error')
