-- list_leave.lua: the proxy says that a party has disconnected. If `read` is '1', its worker may come back for its nodes
-- for some time (grace). Otherwise they are dead. Keeps L1.
--
-- A live lease is not ended here; release.lua does that. Exception: a lease without an end gets an end if its holder may
-- come back, and ends then if the holder does not.
--@common
--@list
local s = look()
redis.call('HDEL', guard, 'v:' .. party, 'd:' .. party)
if read ~= '1' then redis.call('HDEL', guard, 'p:' .. party, 'k:' .. party, 'l:' .. party)
elseif redis.call('HEXISTS', guard, 'p:' .. party) == 1 then
  redis.call('HSET', guard, 'p:' .. party, '-' .. int(now + grace()))
end
if s.token then
  lose_seat('may')
  lose_seat('early')
  local record = node_record(s.held)
  if read == '1' and record and record.party == party and early() then
    redis.call('HSET', guard, 'may', (redis.call('HGET', guard, 'may') or '\n') ..
      string.sub(redis.call('HGET', guard, 'early'), 2))
    redis.call('HDEL', guard, 'early', 'early_at')
  end
  if read == '1' and s.ends == 0 and redis.call('HGET', guard, 'by') == party then
    redis.call('HSET', guard, 'until', int(now + grace()))
  end
end
if type_of_lock() == 'list' then prune(s) end
keep_queue()
return queue_envelope(0, 'done', nil)
