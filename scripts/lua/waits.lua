-- waits.lua: notes in the guard record at which proxies sessions wait for the lock. The build puts it in the place of
-- "--@waits". It sets the script's local `mark`.
--
-- The field `waits` has an entry "SINCE:UNTIL:PROXY" for each proxy where a session waits, the longest wait first,
-- separated by commas. The times are of the node's clock, in ms. An entry is believed until UNTIL.
--
-- mark() replaces the entry of `proxy`, where a session has waited for `age` ms; '': none waits there any more. Returns
-- ':' and for how many ms the longest wait at another proxy has lasted, which ends the script's answer; '' if none waits.
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
