-- list_read.lua: LRANGE, LINDEX, LLEN, LPOS, and EXISTS of one key, on a lock key of any type. Keeps S2, S5, L1.
--
-- Removes dead heads first. A read shows that the caller's party is there. EXISTS says nothing about the head, but its 0
-- is remembered for a later RPUSH. Outcomes of a read that shows the head:
--   granted  the head is the caller's own node: the caller is the holder from now on
--   done     the caller was the holder already. Its lease starts anew, but not over pooled connections: the read may
--            be another worker's
--   adopted  the caller may be the owner by its identity alone, or has pushed another node since. A lease is live from
--            now on. The caller's proxy renews it if the envelope names the node
--   held     the caller looks again, and so waits (list.lua)
--
-- If Redis takes no writes, the script only runs the command; a caller that would become the holder gets Redis's error.
--@common
--@list
local s = look()
local kind, exists, away = type_of_lock(), string.lower(ARGV[11]) == 'exists', false

-- Each function below returns the step to take when a reply shows the head to the caller. Here: the caller's own node.
local function own_step(head, record)
  local first = record and record.party == party and (pooled or newest(record, head))
  if not s.token then return (first or right ~= 'auto') and 'hold' or 'lend' end
  if not first then return 'known' end
  return (away or redis.call('HGET', guard, 'by') ~= party) and 'join' or 'stay'
end

-- For a node of another party that seems to be connected. That party is the holder, or alone may be (right 'own').
local function early_step()
  if not homeless() then return s.token and 'waits' or nil end
  local token, all = seat('early')
  if not early() then return 'early' end
  if token then return token ~= '' and token ~= attempt and 'late' or token == attempt and 'early' or 'waits' end
  return #all < MAY_MAX and 'early' or 'waits'
end

-- For a node of another party of the caller's identity.
local function near_step(record)
  local token, may = seat('may')
  if s.token and token then
    if token == attempt or pools() then return 'seated' end
    return token == '' and 'waits' or 'again'
  end
  if not has_left(record.party) then
    if right == 'own' or (s.token and redis.call('HGET', guard, 'by') == record.party) then return early_step() end
  end
  local seated = homeless() or pools()
  if not s.token then return seated and 'hold' or 'lend' end
  return seated and #may < MAY_MAX and 'join' or 'waits'
end

-- Puts the caller into `early`: until the node's own party leaves, its token does not stand for the lease.
local function come_early(head)
  if not s.token then
    hold(s, head, false)
    redis.call('HSET', guard, 'token', attempt .. ':early', 'may', '\n')
  end
  local token, all = seat('early')
  if not early() then token, all = nil, '\n' end
  if not token then all = all .. party .. '=' .. attempt .. '\n' end
  redis.call('HSET', guard, 'early', all, 'early_at', int(now))
  granted = head
  return 'adopted'
end

-- Whether the reply shows the head.
local function shows(head, reply)
  if type(reply) == 'table' then return reply[1] == head end
  return reply == head or (reply == 0 and ARGV[13] == head)
end

-- Returns the step, or nil if there is none, and whether the head is the caller's own.
local function step_of(head, record, reply)
  if near(record) then return shows(head, reply) and near_step(record) or nil, false end
  if not mine(record) then return nil, false end
  return own_step(head, record), true
end

-- Carries out the step, and returns the outcome.
local function take(step, own, head)
  if step == 'early' then return come_early(head) end
  local _, may = seat('may')
  local seated = s.token and string.find(may, '=' .. attempt .. '\n', 1, true)
  if seated or s.token == attempt then -- a repeat
    if seated then granted = head end
    return own and seated and 'granted' or 'adopted'
  end
  if step == 'hold' or step == 'lend' then hold(s, head, step == 'hold') end
  if step == 'join' then join(s, head, own) end
  if step == 'hold' or step == 'join' then return own and 'granted' or 'adopted' end
  if step == 'lend' then return 'adopted' end
  if step == 'again' then lose_seat('may') elseif step == 'late' then lose_seat('early') end
  if step == 'again' or step == 'late' or step == 'waits' then return 'held' end
  if step == 'stay' and s.leased and not pooled then
    s.ends = math.max(s.ends, now + lease)
    redis.call('HSET', guard, 'until', int(s.ends))
  end
  return 'done'
end

-- Notes that the caller reads: its nodes go on counting, and nodes that it may own.
local function present()
  away = string.sub(redis.call('HGET', guard, 'p:' .. party) or '', 1, 1) == '-'
  if lasts('p:' .. party) and (pooled or not away) then refresh(party) end -- a read may run after its session's end
  if pooled then return end
  if right == 'auto' and lease > 0 then redis.call('HSET', guard, 'p:' .. identity, int(now + lease)) end
  if not exists and homeless() then redis.call('HSET', guard, 'h:' .. identity, int(now + grace())) end
end

local function told_vacant()
  if pooled then redis.call('HINCRBY', guard, 'v:' .. party, 1) else redis.call('HSET', guard, 'v:' .. party, 1) end
end

local function read()
  if kind ~= 'list' then
    local reply = command()
    if failed(reply) then return envelope(reply, 'error') end
    if kind == 'none' and exists then
      told_vacant()
      redis.call('HSET', guard, 'token', '')
      if redis.call('PTTL', guard) < GUARD_VACANT_MS then redis.call('PEXPIRE', guard, GUARD_VACANT_MS) end
    end
    return queue_envelope(reply, kind == 'none' and 'free' or 'done')
  end
  present()
  local head, gone = prune(s)
  local reply = command()
  if exists and head and not pooled then redis.call('HDEL', guard, 'v:' .. party) end
  local outcome = head and (s.token and 'held' or 'foreign') or 'free'
  local step, own
  if head and not exists and not gone and not failed(reply) then
    step, own = step_of(head, node_record(head), reply)
  end
  if step then outcome = take(step, own, head) end
  keep_queue()
  if exists and not head then
    told_vacant()
    redis.call('PEXPIRE', guard, GUARD_VACANT_MS)
  end
  if failed(reply) then return queue_envelope(reply, 'error') end
  return queue_envelope(reply, outcome, s)
end

local fine, answer = pcall(read)
if fine then return answer end
local why = type(answer) == 'table' and answer or {err = tostring(answer)}
if not takes_no_writes(why.err) then return why end
local head, reply = kind == 'list' and not exists and redis.call('LINDEX', lock, 0), command()
local step = head and step_of(head, node_record(head), reply)
if step == 'hold' or step == 'lend' or step == 'join' or step == 'early' then return why end
return envelope(reply, 'error')
