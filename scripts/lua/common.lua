-- common.lua: what all lock scripts share. KEYS and ARGV, and the locals made of them, are arguments.lua's.
--
-- Returns {reply, outcome, fence, pttl, owner, flags}:
--   reply    for the application, in the shape that Redis gives for its command
--   outcome  granted   acquired: the attempt is now the live lease (also when repeated)
--            done      carried out on the lease of the claim (or of whoever, by right)
--            released  carried out, and the lock is free now
--            adopted   carried out on a lease of the same identity made through another proxy
--            open      carried out on data, or on a foreign lock whose value the caller had read
--            counted   a counter was changed that somebody else holds
--            held      refused: another lease is live
--            foreign   refused: a lock without a matching guard record
--            free      there was no lock, and nothing was done
--            error     Redis refused the command; nothing was done
--   fence    of the live lease (of the attempt if granted; of the one in the way if held), else 0
--   pttl     the lock key's PTTL afterwards, -1 no expiry, -2 no key, -3 not asked
--   owner    the identity in the guard record of the live lease, else ''
--   flags    of the live lease, added up: 1 its expiry is the proxy's own; 2 its family shares connections; 4 it is the
--            caller's identity's; 8 to 24 so many releases of losers were refused meanwhile, 3 at most; 32 another
--            proxy gave it; 64 times the ms for which the release of an older lease of the identity's was expected, where
--            another proxy has counted one for that lease meanwhile, 1 at least
-- The usual outcomes of acquire.lua and release.lua come as one text that says the same in fewer steps:
--   the fence: granted; 'g' and the fence: granted, leased; 'h', a byte ('0' and the flags), fence: held, and where who asks waits a
--   colon and the ms that the lease has left, '' no end (both may be followed by a colon and for how long somebody has waited
--   at another proxy); 'r', and the fence where the proxy
--   does not know it: released. The proxy knows the reply that belongs to it, the expiry that it has asked for, and who for.
--
-- Guard record: token fence value kind owner proxy since (value: of a hash lock, its holder's field); leased (the fence,
-- while the expiry is the proxy's own); attempt, reply (the last attempt that released or counted, so that its repeat finds
-- itself done); extra (count.lua); vacant (adopt.lua: the last attempt that found no lock before its script); suspect (the
-- fence, how many releases of losers of the holder's identity were refused, with SUSPECTS_SHIFTED added where another one
-- was counted for an older lease, and the attempt of the last one, with colons between); shifted (until when, in ms of the
-- node's clock, that older lease's release was expected). leased, extra and suspect name the fence that they are said of: a
-- new lease need not undo them. A token's last digit is odd where its family is known to share connections.
--
-- Rules kept by every script: S2 (a fence only grows), S4 (a refused command changes nothing), and that
-- sending it twice with the same attempt is sending it once.
-- Names in capitals that no script defines are numbers of proxy/lock/script_constants.h.

local function int(n)
  return string.format('%.0f', n)
end

local function failed(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Whether the lock still is what the guard record says: its value, or of a hash lock the holder's field.
local function stands(s)
  if type(s.value) == 'string' then return s.value == s.held end
  return s.kind == 'hash' and redis.pcall('HEXISTS', lock, s.held) == 1
end

-- A list lock is held by its head, until its own end (0 never): the key outlives it for those who wait. s.overdue: the
-- holder's node is still there. Each of those who may be the holder has a token for the lease (list.lua).
local function look_at_list(s, g)
  local head, t = redis.pcall('LINDEX', lock, 0), redis.call('TIME')
  s.list, s.ends = type(head) == 'string', tonumber(redis.call('HGET', guard, 'until') or 0)
  if not s.stale_token or head ~= s.held then return end
  if s.ends == 0 or s.ends > t[1] * 1000 + math.floor(t[2] / 1000) then
    s.stale_token, s.head = false, head
    s.token, s.fence, s.owner, s.proxy, s.leased = g[1], s.last_fence, g[4], g[5], g[6] == g[2]
    local may = claim ~= '' and redis.call('HGET', guard, 'may')
    if may and string.find(may, '=' .. claim .. '\n', 1, true) then s.token = claim end
  else
    s.overdue = true
  end
end

-- What Redis has of the lock. s.value: a string, false (free), or an error table (not a string); s.token: the
-- live lease's token, nil if the lock is free or foreign; s.held: what the guard record says that it is held with.
-- A guard record in the time that it outlives its lease
-- says nothing of a lock that is there: somebody made that one anew, perhaps with the same constant value.
local function examine()
  local s = {}
  s.value = redis.pcall('GET', lock)
  if failed(s.value) and not string.find(s.value.err, 'WRONGTYPE', 1, true) then redis.call('GET', lock) end -- as an error
  local g = redis.call('HMGET', guard, 'token', 'fence', 'value', 'owner', 'proxy', 'leased', 'attempt', 'reply',
    'kind', 'suspect')
  s.last_fence = tonumber(g[2] or 0)
  s.held, s.attempt, s.reply, s.kind, s.suspect = g[3], g[7], g[8], g[9], g[10]
  s.stale_token = g[1] and g[1] ~= ''
  if s.stale_token and s.value and stands(s) then
    local left = redis.call('PTTL', guard)
    if left == -1 or left >= GUARD_OUTLIVES_MS then
      s.stale_token = false
      s.token, s.fence, s.owner, s.proxy, s.leased = g[1], s.last_fence, g[4], g[5], g[6] == g[2]
    end
  end
  if type(s.value) == 'table' and s.kind == 'list' then look_at_list(s, g) end
  return s
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- What `suspect` says of the lease with that fence.
local function suspects(said, fence)
  local of, n = string.match(said or '', '^(%d+):(%d+):')
  return of == fence and tonumber(n) or 0
end

-- A release is refused, by right 'suspect' or 'older': that goes into the guard record, once for each attempt.
local function note_refused(s)
  if string.sub(s.suspect or '', -#attempt) == attempt then return end
  local fence = int(s.fence)
  local n = suspects(s.suspect, fence)
  if right == 'older' then
    if n < SUSPECTS_SHIFTED then n = n + SUSPECTS_SHIFTED end
    redis.pcall('HSET', guard, 'shifted', int(now_ms() + lease))
  elseif n % SUSPECTS_SHIFTED < SUSPECTS_MAX then
    n = n + 1
  end
  s.suspect = fence .. ':' .. int(n) .. ':' .. attempt
  redis.pcall('HSET', guard, 'suspect', s.suspect)
end

-- Whether the lock holds what the caller read last.
local function was_shown(s)
  return type(s.value) == 'string' and (seen == '=' .. s.value or seen == '*=' .. s.value)
end

-- Redisson's read lock is a hash with a field for each reader: some are in it when the one that the guard record knows
-- has left.
local function has_readers(s)
  return type(s.value) == 'table' and redis.pcall('HGET', lock, 'mode') == 'read' and redis.call('PTTL', lock) >= 0
end

-- Whether what stands there is nobody's lock for the caller. A queue's nodes are their owners'.
local function is_data(s)
  return s.value and not s.token and not s.list and string.sub(seen, 1, 1) == '*' and not has_readers(s)
end

-- 'done', 'adopted', 'open' where the caller may touch the lock, else false and 'held' or 'foreign'.
local function may_touch(s)
  if s.token then
    if s.token == claim or right == 'any' or right == 'operator' then return 'done' end
    local other = s.proxy ~= proxy or (right == 'believe' and not s.list)
    if right == 'fence' and s.owner == identity and read == int(s.fence) and not s.list then return 'adopted' end
    if (right == 'adopt' or right == 'believe') and s.owner == identity and other then return 'adopted' end
    if right == 'spent' and s.owner == identity and not s.list and
      (other or ((s.attempt or '') ~= '' and string.sub(s.attempt, 1, 36) ~= proxy)) then return 'adopted' end
    local noted = right == 'suspect' or (right == 'older' and s.proxy ~= proxy)
    if noted and s.owner == identity and not s.list then note_refused(s) end
    return false, 'held'
  end
  if right == 'any' or right == 'operator' then return 'done' end
  if is_data(s) or was_shown(s) then return 'open' end
  return false, 'foreign'
end

local function success()
  if shape == 'int' then return 1 elseif shape == 'ok' then return {ok = 'OK'} else return false end
end

local function refusal()
  if shape == 'int' then return 0 else return false end
end

-- Why Redis takes no writes at present: it is a replica, its disk or its memory is full, replicas are missing.
local function takes_no_writes(why)
  for _, word in ipairs({'READONLY', 'MISCONF', 'OOM', 'NOREPLICAS'}) do
    if string.find(why, word, 1, true) then return true end
  end
end

-- Before a refusal: where Redis takes no writes, the application hears that, as an error in Redis's words. Nobody has such
-- a field. Who may not delete fields has no list locks, and hears the refusal.
local function ask_to_write()
  local answer = redis.pcall('HDEL', guard, '')
  if failed(answer) and takes_no_writes(answer.err) then redis.call('HDEL', guard, '') end
end

local function locked(s)
  ask_to_write()
  local who = s.owner and s.owner ~= '' and (' by ' .. s.owner) or ''
  return {err = 'LOCKED the lock is held' .. who .. '; nothing was changed'}
end

local function flags(s)
  if not s or not s.token then return 0 end
  local sum = s.leased and 1 or 0
  if (tonumber(string.sub(s.token, -1)) or 0) % 2 == 1 then sum = sum + 2 end
  if s.owner == identity then sum = sum + 4 end
  if s.proxy and s.proxy ~= proxy then sum = sum + 32 end
  local n = suspects(s.suspect, int(s.fence))
  if n >= SUSPECTS_SHIFTED then
    sum = sum + 64 * math.max(tonumber(redis.call('HGET', guard, 'shifted') or 0) - now_ms(), 1)
  end
  return sum + 8 * (n % SUSPECTS_SHIFTED)
end

local function envelope(reply, outcome, s, pttl)
  return {reply, outcome, s and s.fence or 0, pttl or -3, s and s.owner or '', flags(s)}
end

-- Sets the guard record's end after the lock's own, and gives the lock the rule's lease if it has no end.
-- Returns the lock's PTTL.
local function bound()
  local pttl = redis.call('PTTL', lock)
  local leased = pttl == -1 and lease > 0
  if leased then
    redis.call('PEXPIRE', lock, lease)
    pttl = lease
  end
  return pttl, leased
end

-- A lock that outlives civilisation has a guard record without an end: its sum may be none that PEXPIRE takes.
local function keep_guard(pttl)
  if pttl >= 0 and pttl < 9e15 then
    redis.call('PEXPIRE', guard, int(pttl + GUARD_OUTLIVES_MS))
  else
    redis.call('PERSIST', guard)
  end
end

-- Before a command that may acquire or change the lock: does to the guard record what will have to be done afterwards, and
-- leaves it as it is. A user who has not the rights for it gets the error now, and no lock comes of it that the proxy does
-- not know.
-- Redis looks at its memory until a script has written something. `frees`: the command is none that Redis refuses when
-- that is full, and so the guard record may be written.
local function secure(s, frees)
  redis.call('TIME')
  local there = redis.call('EXISTS', lock) == 1
  if not frees then redis.call('SET', lock, '', there and 'NX' or 'XX') end -- nothing
  if not s.value then redis.call('PEXPIRE', lock, 1) end
  local ends = redis.call('PTTL', guard)
  if ends > 0 then redis.call('PEXPIRE', guard, ends) else redis.call('PERSIST', guard) end
  redis.call('HSET', guard, 'kind', s.kind or '')
  redis.call('PERSIST', guard)
  redis.call('PEXPIRE', guard, ends == -2 and 0 or math.max(ends, 1)) -- 0: there was none, and there is none again
  if ends == -1 then redis.call('PERSIST', guard) end
end

-- Makes `token` the live lease of the lock, which holds `value` now. `same`: a fence that it shares with others, taken
-- with them. Returns its state and PTTL.
local function own(s, token, value, kind, same)
  local pttl, leased = bound()
  local t = redis.call('TIME')
  local fence = same or math.max(s.last_fence + 1, t[1] * 1000000 + t[2])
  redis.call('HSET', guard, 'token', token, 'fence', int(fence), 'value', value, 'kind', kind or 'string',
    'owner', identity, 'proxy', proxy, 'leased', leased and int(fence) or '',
    'since', int(t[1] * 1000 + math.floor(t[2] / 1000)))
  keep_guard(pttl)
  return {token = token, fence = fence, owner = identity, leased = leased}, pttl
end

local function take(s, value, kind)
  return own(s, attempt, value, kind)
end

-- The lock as it stands. By right 'enrol' it was acquired as it came, while its rule was in audit: this proxy saw the
-- claim granted, and while what it wrote still stands, the claim's lease begins now. The guard record of an earlier lease
-- says nothing against it: this proxy numbers its tokens, and saw that one end.
local function look()
  local s = examine()
  if right ~= 'enrol' or type(s.value) ~= 'string' or seen ~= '=' .. s.value then return s end
  local function number(token) return tonumber(string.match(token, ':(%d+)$') or 0) end
  if s.token and (s.proxy ~= proxy or number(s.token) >= number(claim)) then return s end
  own(s, claim, s.value)
  return examine()
end

-- A foreign lock was changed: it must not come to look like the lease of an old guard record.
local function disown(s)
  if s.stale_token then redis.call('HSET', guard, 'token', '') end
end

-- The lock was changed within its lease: the guard record follows. A value set anew is all the holder's. What is no
-- lease's gets no expiry.
local function follow(s, value, anew)
  if s.token then
    local pttl, leased = bound()
    leased = leased or (s.leased and s.keeps_lease) or false
    redis.call('HSET', guard, 'value', value)
    if leased ~= s.leased then redis.call('HSET', guard, 'leased', leased and int(s.fence) or '') end
    s.leased = leased
    if anew then redis.call('HSET', guard, 'extra', '', 'kind', 'string') end
    keep_guard(pttl)
    return pttl
  end
  disown(s)
  return redis.call('PTTL', lock)
end

-- The lock is free now; its fence and the attempt's reply are remembered for a while.
local function forget(s, reply)
  redis.call('HSET', guard, 'token', '', 'attempt', attempt, 'reply', reply)
  redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS)
end
