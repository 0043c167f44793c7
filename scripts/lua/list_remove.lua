-- list_remove.lua: LREM: a node leaves the queue. Only its owner may remove it; other callers get 0. Keeps S1, S4. The
-- outcome is 'released' if the node was the holder's, and 'done' if the node was waiting.
--
-- A release over another connection than the push, which is still open, is a pool's. Two make the identity known as a
-- pool (x:). Releases over the connection of the push take that back.
--@common
--@list
local s = look()
if s.attempt == attempt then return queue_envelope(tonumber(s.reply), 'released') end
local kind = type_of_lock()
if kind ~= 'list' then
  local reply = command()
  return envelope(reply, failed(reply) and 'error' or 'free')
end
if not string.find(ARGV[13], '^-?%d+$') then return envelope(command(), 'error') end
local node = ARGV[14]
local record = node_record(node)
-- S1: only the owner of a node removes it.
if not (record or right == 'any') or not mine(record) then
  ask_to_write()
  return queue_envelope(0, s.token and 'held' or (record and 'foreign' or 'free'), s)
end
secure_queue(s, true)
local at_head, crosses = redis.call('LINDEX', lock, 0) == node, kin(record) and not has_left(record.party)
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if reply == 0 then return queue_envelope(0, s.token and 'held' or 'free', s) end
if not redis.call('LPOS', lock, node) then unregister(node, record) end
redis.call('HSET', guard, 'attempt', attempt, 'reply', reply)
local holder, fence = at_head and s.token, s.fence
if at_head and (s.token or s.overdue) then
  s.overdue = false
  end_lease(s)
end
if holder and right == 'auto' then
  local known = tonumber(redis.call('HGET', guard, 'x:' .. identity) or 0)
  if crosses then known = math.min(known + 2, 3 * POOL)
  elseif record.party == party and known > 0 then known = known - 1 end
  redis.call('HSET', guard, 'x:' .. identity, known)
end
prune(s)
keep_queue()
if holder then return {reply, 'released', fence, -2, s.owner, 0, lost, lost_owner, ''} end
return queue_envelope(reply, 'done', s)
