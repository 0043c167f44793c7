-- inspect.lua: PROXY LOCK and PROXY TOKEN. Changes nothing. The reply is a list of names and values. The outcome is
-- 'done' if the claim's lease is the live one, else 'held', 'foreign' or 'free'.
local s = look(true)
local delay_left = delayed(s, true)
local kind = redis.call('TYPE', lock).ok
local pairs_ = {'key', lock, 'state', s.token and 'held' or (s.value and 'foreign' or delay_left and 'delayed' or 'free'), 'type', kind}
local function add(name, value)
  pairs_[#pairs_ + 1] = name
  pairs_[#pairs_ + 1] = value
end
local pttl = lease_pttl(s.token and s.kind == 'hash' and s.held)
if s.value then add('pttl', pttl) end
if type(s.value) == 'string' then add('value', s.value) end
if s.list then
  if s.head then add('value', s.head) end
  add('nodes', redis.call('LLEN', lock))
end
if s.token then
  local since = not s.short and redis.call('HGET', guard, 'since') or int(s.fence / 1000)
  if s.kind == 'hash' then add('field', s.held) end
  add('kind', s.kind)
  add('owner', s.owner)
  add('proxy', s.proxy)
  add('fence', s.fence)
  add('since', tonumber(since))
  add('expiry', s.leased and 'lease' or (pttl == -1 and 'none' or 'application'))
elseif delay_left then
  add('delay-left', delay_left)
  add('owner', s.owner)
  add('fence', s.fence)
elseif s.last_fence > 0 then
  add('last-fence', s.last_fence)
end
local outcome = s.token and (may_touch(s) or 'held') or (s.value and 'foreign' or 'free')
return envelope(pairs_, outcome, s, pttl)
