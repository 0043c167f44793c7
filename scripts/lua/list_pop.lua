-- list_pop.lua: LPOP and RPOP. Keeps S1, S4, L2. The holder's command releases; all other callers get nil. RPOP takes
-- the head only if the head is the only node. The script never takes more than one node.
--@common
--@list
local s = look()
local count = ARGV[13]
local function answer(node)
  if count and node then return {node} end
  return node
end
if s.attempt == attempt and s.token ~= attempt then
  return queue_envelope(answer(s.reply), 'released')
end
local kind = type_of_lock()
if kind ~= 'list' or count == '0' or (count and not string.find(count, '^%d+$')) or #ARGV > 13 then
  local reply = command() -- Redis's own reply: nil, an empty array or an error
  return envelope(reply, failed(reply) and 'error' or (kind == 'none' and 'free' or 'done'))
end
local how, why = false, s.token and 'held' or 'foreign'
if s.token then how, why = may_touch(s) end
if not how and right == 'any' then how = 'done' end
-- S1: only the holder takes the head.
if not how or (string.lower(ARGV[11]) == 'rpop' and redis.call('LLEN', lock) > 1) then
  ask_to_write()
  return queue_envelope(false, why or 'held', s)
end
local released, head = release_head(s, how == 'adopted' and how or 'released')
released[1] = answer(head)
return released
