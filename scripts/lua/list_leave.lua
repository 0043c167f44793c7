-- list_leave.lua: the proxy says that a party has disconnected: its nodes are dead. No command. A live lease is not
-- touched: that is release.lua's.
--@common
--@list
local s = look()
redis.call('HDEL', guard, 'p:' .. party, 'k:' .. party, 'l:' .. party, 'v:' .. party, 'd:' .. party)
if type_of_lock() == 'list' then prune(s) end
keep_queue()
return queue_envelope(0, 'done', nil)
