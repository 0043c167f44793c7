-- tell.lua: tells other proxies of a release, under a rule with `wait`. The build puts it in the place of "--@tell".
--
-- tell() is called behind the release. `about` is the lock's database with a '=' before it, on a cluster a '+'; and, only if
-- this proxy leaves the lock to another proxy, ':' and for how many ms its longest waiting session has waited. If the
-- session that has waited longest is at another proxy (waits.lua), the release is published: on a cluster on the sharded
-- channel of the lock's slot, if the node knows such channels.
local function tell(key, record, own, about)
  local sharded, db, age = string.match(about, '^([+=])(%d+):?(%d*)$')
  if age ~= '' then
    local mark
--@waits
    mark(record, own, age)
  end
  local waits = redis.pcall('HGET', record, 'waits')
  local to = type(waits) == 'string' and string.match(waits, '^%d+:%d+:([^,]*)')
  if not to or to == own then return end
  local channel, text = 'lockkeeper-freed', to .. ' ' .. db .. ' ' .. key
  if sharded == '+' then -- the record is lockkeeper:{TAG}:KEY, the channel lockkeeper-freed:{TAG}
    local answer = redis.pcall('SPUBLISH', channel .. string.sub(record, 11, -#key - 2), text)
    if type(answer) == 'number' or not string.find(answer.err, 'nknown', 1, true) then return end
  end
  redis.pcall('PUBLISH', channel, text)
end
