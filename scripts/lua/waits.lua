-- Who waits for the lock, at which proxy: the guard record's field `waits` has an entry "SINCE:UNTIL:PROXY" of each proxy
-- where somebody does, who has waited longest first, with commas between; by the node's clock, so that proxies' clocks say
-- nothing of the order. It stands in the place of a script's line "--@waits", and sets the script's local `mark`.
--
-- Puts the proxy's own entry, of somebody who has waited for so many ms; '' nobody waits there, and the entry goes. So do those
-- that are not believed any more. Returns how long somebody has waited at another proxy, as the end of an answer.
function mark(record, proxy, age)
  local said, t = redis.pcall('HGET', record, 'waits'), redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  local marks = age ~= '' and string.format('%.0f:%.0f:', now - age, now + WAITS_MARK_MS) .. proxy
  local oldest
  if type(said) == 'string' and string.match(said, '^%d+:%d+:(.*)$') ~= proxy then
    local own, all = marks, {}
    for entry, since, ends, at in string.gmatch(said, '((%d+):(%d+):([^,]+))') do
      if at ~= proxy and tonumber(ends) >= now and #all < WAITS_PROXIES then
        oldest = oldest or tonumber(since)
        if own and now - age <= tonumber(since) then own, all[#all + 1] = nil, own end
        all[#all + 1] = entry
      end
    end
    if own and #all < WAITS_PROXIES then all[#all + 1] = own end
    marks = #all > 0 and table.concat(all, ',')
  end
  if marks then redis.pcall('HSET', record, 'waits', marks)
  elseif said then redis.pcall('HDEL', record, 'waits') end
  return oldest and string.format(':%.0f', math.max(now - oldest, 1)) or ''
end
