-- list_set.lua: LSET: the owner changes its node, and keeps its place (the count of a reentrant lock). Other callers
-- get LOCKED. Keeps S1, S4.
--
-- LSET names a position, so that a late one would change another worker's node. Over a connection that did not push the
-- node, LSET is believed in four cases:
--   - The connection that pushed the node is gone.
--   - The lease is live, and the party that pushed the node did not begin it either.
--   - The identity is known as a pool.
--   - The new node is the old one but for the number at its end, and so names the old one.
--@common
--@list
local s = look()
local kind = type_of_lock()
local head = kind == 'list' and prune(s)
local node, old = ARGV[14], head and redis.pcall('LINDEX', lock, ARGV[13])
if not head or type(old) ~= 'string' then -- no such key or index: Redis's own error
  if kind == 'list' then keep_queue() end
  return queue_envelope(command(), 'error')
end
local record, other = node_record(old), node_record(node)
if other and other.attempt == attempt and old == node then -- a repeat
  return queue_envelope({ok = 'OK'}, 'done', s)
end
-- Whether the nodes differ only in the number at their end, behind a character that is no letter or digit.
local function counted_anew()
  local name = string.match(old, '^(.*%W)%d+$')
  return name and name == string.match(node, '^(.*%W)%d+$')
end
local function believed()
  if not mine(record) or not kin(record) then return mine(record) end
  if has_left(record.party) or pools() or counted_anew() then return true end
  return s.token and old == head and redis.call('HGET', guard, 'by') ~= record.party
end
-- S1: only the owner of a node changes it.
if not believed() or (other and not mine(other)) then
  keep_queue()
  return queue_envelope(locked(s), s.token and 'held' or 'foreign', s)
end
secure_queue(s)
local at_head = old == head and redis.call('LINDEX', lock, 0) == head
local reply = command()
if failed(reply) then return queue_envelope(reply, 'error') end
local changed_head = at_head and redis.call('LINDEX', lock, 0) == node
if not redis.call('LPOS', lock, old) then unregister(old, record) end
register(node)
refresh(party)
if changed_head then
  redis.call('HSET', guard, 'head', node)
  if s.token then redis.call('HSET', guard, 'value', node) end
end
keep_queue()
return queue_envelope(reply, 'done', changed_head and s or nil)
