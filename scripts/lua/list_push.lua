-- list_push.lua: RPUSH, RPUSHX, LPUSH, LPUSHX, LINSERT: a node joins the queue. Keeps S4, S5.
--
-- The script first removes dead heads, and registers the new nodes for the caller's party. It refuses with LOCKED, and
-- pushes nothing, in three cases:
--   - EXISTS has told the caller that there is no queue, and now there is one. The caller would believe that it holds
--     the lock (S5).
--   - The node would come before another session's node.
--   - The node is another party's already. Exception: a worker that has reconnected repeats its push. The node keeps its
--     place, and is the caller's from then on.
--
-- The outcome is 'granted' if the caller may believe that it holds the lock: EXISTS has answered 0 and there is no
-- queue, or the node that it repeats is the head.
--@common
--@list
local s = look()
if s.attempt == attempt then -- a repeat
  return queue_envelope(tonumber(s.reply), s.token == attempt and 'granted' or 'done', s)
end
local kind = type_of_lock()
if kind ~= 'list' and kind ~= 'none' then return envelope(command(), 'error') end
local name = string.lower(ARGV[11])
local first = name == 'linsert' and #ARGV or 13
local head = kind == 'list' and prune(s)
for i = first, #ARGV do
  local record = node_record(ARGV[i])
  if record and record.attempt == attempt then
    local at = redis.call('LPOS', lock, ARGV[i]) or 0 -- gone meanwhile, but it was pushed
    return queue_envelope(at + 1, s.token == attempt and 'granted' or 'done', s)
  end
end
local function refused()
  keep_queue()
  return queue_envelope(locked(s), s.token and 'held' or 'foreign', s)
end
-- Whether the caller may be the worker that pushed the node: the party that pushed has left; or the caller has no node
-- here, and the party has not read for long or is another proxy's, so that this proxy may not know that it has left.
local function may_repeat(record)
  if not kin(record) then return mine(record) end
  if has_left(record.party) then return true end
  return homeless() and (not lasts('p:' .. record.party) or string.sub(record.party, 1, #proxy) ~= proxy)
end
-- Returns the position of the node, if the caller pushes again a node of another party that may be its own.
local function place()
  local record = #ARGV == first and node_record(ARGV[first])
  return record and kin(record) and redis.call('LPOS', lock, ARGV[first])
end
local told = redis.call('HMGET', guard, 'v:' .. party, 'd:' .. party)
local denied = told[2] == attempt -- a repeat: the first time has used up v:
local vacant = denied or tonumber(told[1] or 0) > 0
if vacant and not denied and redis.call('HINCRBY', guard, 'v:' .. party, -1) <= 0 then
  redis.call('HDEL', guard, 'v:' .. party)
end
if head then
  if vacant then redis.call('HSET', guard, 'd:' .. party, attempt) end
  if vacant or (name ~= 'rpush' and name ~= 'rpushx') then return refused() end
  for i = first, #ARGV do
    local record = node_record(ARGV[i])
    if record and not may_repeat(record) then return refused() end
  end
end
secure_queue(s)
local at = head and place()
if at then
  register(ARGV[first])
  refresh(party)
  redis.call('HSET', guard, 'attempt', attempt, 'reply', at + 1)
  if at == 0 and s.token then join(s, head, true) elseif at == 0 then hold(s, head, true) end
  keep_queue()
  return queue_envelope(at + 1, at == 0 and 'granted' or 'done', s)
end
local reply = command()
if failed(reply) then return envelope(reply, 'error') end
if redis.call('EXISTS', lock) == 0 then return queue_envelope(reply, 'free') end -- RPUSHX, LPUSHX, LINSERT
for i = first, #ARGV do register(ARGV[i]) end
refresh(party)
redis.call('HSET', guard, 'attempt', attempt, 'reply', reply)
if not head then
  end_lease(s)
  head = prune(s)
  if vacant then hold(s, head, true) end
end
keep_queue()
return queue_envelope(reply, s.token == attempt and 'granted' or 'done', s)
