-- common.lua: what the lock scripts share. arguments.lua defines KEYS, ARGV and the locals made of them.
--
-- A script returns an envelope {reply, outcome, fence, pttl, owner, flags}:
--   reply    for the application, in the form of Redis's reply to its command
--   outcome  what has become of the command: docs/locks.md (Scripts) has the words
--   fence    of the live lease, else 0. If granted, the attempt's; if held, the fence of the lease that refused it
--   pttl     the lock key's PTTL afterwards: -1 no expiry, -2 no key, -3 not asked
--   owner    the identity in the guard record of the live lease, else ''
--   flags    of the live lease, a sum: 1 its expiry was set by the proxy. 2 its workload shares connections. 4 its
--            owner is the caller's identity. 8 to 24 how many releases of losers it has refused, 3 at most. 32 another
--            proxy gave it. Multiples of 64: a release at another proxy counted for an older lease of the same identity;
--            for how many ms more the older lease's release was expected, at least 1
--
-- The scripts for the usual states answer one short text instead, which takes fewer steps; 0: they have done nothing.
--   FENCE           granted
--   gFENCE          granted, and the proxy set the expiry
--   hBYTEFENCE      held; BYTE is '0' plus the flags. For a caller that waits, ':' and the ms left follow ('': no end)
--   r or rFENCE     released; with the fence if the proxy does not know it
-- A grant or a refusal may end with ':' and for how many ms a session at another proxy has waited (waits.lua).
--
-- docs/locks.md (The guard record) has the fields of a guard record. `suspect` is FENCE:COUNT:ATTEMPT, where COUNT is how
-- many releases of losers of the holder's identity were refused, plus SUSPECTS_SHIFTED if a release was counted for an
-- older lease; ATTEMPT is the last one. leased, extra and suspect contain the fence of their lease, so a new lease need not
-- reset them. The last digit of a token is odd if its workload is known to share connections. A script that changes
-- anything rewrites a guard record in the short form (text.lua) as a hash first.
--
-- Every script keeps S2 (a fence only grows) and S4 (a refused command changes nothing), and to send it twice with the same
-- attempt has the effect of sending it once. The build replaces the names in capitals that no script defines by the numbers
-- of proxy/lock/script_constants.h.

local function int(n)
  return string.format('%.0f', n)
end

local function failed(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- Whether the lock still holds what the guard record says: the value, or the holder's field of a hash lock.
local function stands(s)
  if type(s.value) == 'string' then return s.value == s.held end
  return s.kind == 'hash' and redis.pcall('HEXISTS', lock, s.held) == 1
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A list lock is held by its head until the time in `until` (0: without end); the key lives longer, for the sessions that
-- wait. Each session that may be the holder has a token for the lease, in `may` (list.lua). Sets s.overdue if the lease
-- has ended and the holder's node is still the head.
local function look_at_list(s, g)
  local head, now = redis.pcall('LINDEX', lock, 0), now_ms()
  s.list, s.ends = type(head) == 'string', tonumber(redis.call('HGET', guard, 'until') or 0)
  if not s.stale_token or head ~= s.held then return end
  if s.ends == 0 or s.ends > now then
    s.stale_token, s.head = false, head
    s.token, s.fence, s.owner, s.proxy, s.leased = g[1], s.last_fence, g[4], g[5], g[6] == g[2]
    local may = claim ~= '' and redis.call('HGET', guard, 'may')
    if may and string.find(may, '=' .. claim .. '\n', 1, true) then s.token = claim end
  else
    s.overdue = true
  end
end

--@text

-- Whether the lock, which holds `value`, is the lease of a guard record in its short form. An attempt without a script
-- may set its guard record although another lock stands at the key, perhaps with the same value. Its own lock would end
-- with it, but for the time that Redis took between two commands, or to move the two to another node.
local function covers(held, value)
  return held == value and math.abs(redis.call('PTTL', lock) - redis.call('PTTL', guard)) <= SHORT_APART_MS
end

-- Rewrites a guard record in its short form as a hash. It ends after the lock, if the lock is its lease; if not, its
-- lease is over. Returns false if Redis takes no writes. If the user may not write a hash, the record stays as it was. If
-- its slot is moving, the node refuses to make a key: the script ends before any write, and the proxy sends it again.
local function expand(value)
  local text, ends = redis.call('GET', guard), redis.call('PTTL', guard)
  local g = text_fields(text)
  local left = covers(g[3], value) and redis.call('PTTL', lock) or -2
  if failed(redis.pcall('EXISTS', guard .. ':none')) then
    error({err = 'TRYAGAIN The slot of the lock is moving to another node'})
  end
  if redis.pcall('DEL', guard) ~= 1 then return false end
  local answer = redis.pcall('HSET', guard, 'token', g[1], 'fence', g[2], 'value', g[3], 'kind', 'string', 'owner', g[4],
    'proxy', g[5], 'leased', g[6]) -- without `since`: the lease may be an unfinished attempt's (acquire_usual.lua)
  if not failed(answer) then
    answer = redis.pcall('PEXPIRE', guard, left >= 0 and int(left + GUARD_OUTLIVES_MS) or GUARD_OUTLIVES_MS - 1)
  end
  if failed(answer) then
    redis.call('SET', guard, text, 'PX', int(math.max(ends, 1)))
    error(answer)
  end
  return true
end

-- Reads the state of the lock. `reads`: the script changes nothing.
--   s.value   the string; false if there is no key; an error table if the key is not a string
--   s.token   the live lease's token; nil if the lock is free or foreign
--   s.held    what the lock is held with, according to the guard record
-- A guard record outlives its lease. A lock at the key is then not the record's: it was made anew, perhaps with the same
-- constant value.
local function examine(reads)
  local s = {}
  s.value = redis.pcall('GET', lock)
  if failed(s.value) and not string.find(s.value.err, 'WRONGTYPE', 1, true) then redis.call('GET', lock) end -- raises it
  local function fields(call)
    return call('HMGET', guard, 'token', 'fence', 'value', 'owner', 'proxy', 'leased', 'attempt', 'reply',
      'kind', 'suspect')
  end
  local g = fields(redis.pcall)
  if failed(g) then
    s.short = reads or not expand(s.value)
    g = s.short and text_fields(redis.call('GET', guard)) or fields(redis.call)
  end
  s.last_fence = tonumber(g[2] or 0)
  s.held, s.attempt, s.reply, s.kind, s.suspect = g[3], g[7], g[8], g[9], g[10]
  s.stale_token = g[1] and g[1] ~= '' and g[1]
  if s.stale_token and s.value and stands(s) then
    local left = redis.call('PTTL', guard)
    if s.short and covers(s.held, s.value) or not s.short and (left == -1 or left >= GUARD_OUTLIVES_MS) then
      s.stale_token = false
      s.token, s.fence, s.owner, s.proxy, s.leased = g[1], s.last_fence, g[4], g[5], g[6] == g[2]
    end
  end
  if type(s.value) == 'table' and s.kind == 'list' then look_at_list(s, g) end
  return s
end

-- Returns the count in `suspect` if it is about the lease with this fence, else 0.
local function suspects(said, fence)
  local of, n = string.match(said or '', '^(%d+):(%d+):')
  return of == fence and tonumber(n) or 0
end

-- Notes in the guard record that it refused a release by right 'suspect' or 'older'. Each attempt is noted once.
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

-- Whether the lock holds the value that the caller last read.
local function was_shown(s)
  return type(s.value) == 'string' and (seen == '=' .. s.value or seen == '*=' .. s.value)
end

-- Redisson's read lock is a hash with a field for each reader. Others may remain after the guard record's has left.
local function has_readers(s)
  return type(s.value) == 'table' and redis.pcall('HGET', lock, 'mode') == 'read' and redis.call('PTTL', lock) >= 0
end

-- Whether the key holds data that is no lock for the caller. The nodes of a queue are never data.
local function is_data(s)
  return s.value and not s.token and not s.list and string.sub(seen, 1, 1) == '*' and not has_readers(s)
end

-- S1, S6: returns 'done', 'adopted' or 'open' if the caller may touch the lock; otherwise false, and 'held' or 'foreign'.
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

-- Whether an error says that Redis takes no writes now.
local function takes_no_writes(why)
  for _, word in ipairs({'READONLY', 'MISCONF', 'OOM', 'NOREPLICAS'}) do
    if string.find(why, word, 1, true) then return true end
  end
end

-- Called before a refusal. If Redis takes no writes now, the application gets Redis's error instead. The HDEL changes
-- nothing: no guard record has a field ''. A user without the right to HDEL gets the refusal.
local function ask_to_write()
  local answer = redis.pcall('HDEL', guard, '')
  if failed(answer) and takes_no_writes(answer.err) then redis.call('HDEL', guard, '') end
end

local function locked(s)
  ask_to_write()
  local who = s.owner and s.owner ~= '' and (' by ' .. s.owner) or ''
  return {err = 'LOCKED the lock is held' .. who .. '; nothing was changed'}
end

-- The rule's lock-delay: a lease that ended without its release, which would have taken the token out of the guard record,
-- keeps others out for `delay` ms more. The record ends GUARD_OUTLIVES_MS after the lease, which tells how long ago that
-- was. The lease of a lock that was removed around the proxies ends now. Returns how long others are still kept out, and
-- makes `s` the state of a lock that is held; nil: they are not.
local function delayed(s, reads)
  if not s.stale_token or s.value or s.short or (tonumber(delay) or 0) == 0 then return nil end
  local left = redis.call('PTTL', guard)
  if left == -1 or left > GUARD_OUTLIVES_MS then
    left = GUARD_OUTLIVES_MS
    if not reads then redis.call('PEXPIRE', guard, left) end
  end
  left = left - GUARD_OUTLIVES_MS + tonumber(delay)
  if left <= 0 then return nil end
  s.fence, s.owner = s.last_fence, redis.call('HGET', guard, 'owner')
  return left
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

-- For how many ms a field of the lock still lasts; -1 if it has no end of its own, or the server knows none.
local function field_pttl(field)
  local left = redis.pcall('HPTTL', lock, 'FIELDS', '1', field)
  return type(left) == 'table' and not failed(left) and math.max(tonumber(left[1]), -1) or -1
end

-- The PTTL of the lock, or of the field that it is held with (nil or false: none), if that ends earlier.
local function lease_pttl(field)
  local pttl, left = redis.call('PTTL', lock), field and field_pttl(field) or -1
  return left >= 0 and (pttl == -1 or left < pttl) and left or pttl
end

-- L1: gives the lock the rule's lease if neither it nor the holder's field has an expiry. Returns the lease's PTTL, and
-- whether the lock got the rule's lease.
local function bound(field)
  local pttl = lease_pttl(field)
  local leased = pttl == -1 and lease > 0
  if leased then
    redis.call('PEXPIRE', lock, lease)
    pttl = lease
  end
  return pttl, leased
end

-- Has the guard record end after the lock; not at all if the sum is too large for PEXPIRE.
local function keep_guard(pttl)
  if pttl >= 0 and pttl < 9e15 then
    redis.call('PEXPIRE', guard, int(pttl + GUARD_OUTLIVES_MS))
  else
    redis.call('PERSIST', guard)
  end
end

-- Called before a command that may acquire or change the lock. It tries on the guard record the commands that must
-- succeed afterwards, and leaves it as it was. If the user lacks a right, the error comes here, and no lock comes into
-- being that the proxy does not know. Redis checks its memory limit only until a script's first write, so the first write
-- here is one that Redis refuses when memory is full. `frees`: the caller's command is one that Redis allows even then, so
-- the guard record must be writable, too.
local function secure(s, frees)
  redis.call('TIME')
  local there = redis.call('EXISTS', lock) == 1
  if not frees then redis.call('SET', lock, '', there and 'NX' or 'XX') end -- changes nothing
  if not s.value then redis.call('PEXPIRE', lock, 1) end
  local ends = redis.call('PTTL', guard)
  if ends > 0 then redis.call('PEXPIRE', guard, ends) else redis.call('PERSIST', guard) end
  redis.call('HSET', guard, 'kind', s.kind or '')
  redis.call('PERSIST', guard)
  -- 0 deletes it: there was no guard record. Redis also deletes a key whose new expiry passes before it is set, so a record
  -- without an end gets one that is far away.
  redis.call('PEXPIRE', guard, ends == -2 and 0 or ends == -1 and GUARD_OUTLIVES_MS or math.max(ends, 1))
  if ends == -1 then redis.call('PERSIST', guard) end
end

-- The key whose expiry is at least the fence of every short-form lease in this slot: named as the guard record of {TAG}.
local function watermark_key()
  local tag = string.match(guard, '{[^}]*}')
  return 'lockkeeper:' .. tag .. ':' .. tag
end

-- Returns that fence, or a little more; 0 if the short form is not in use. `now` is the node's clock in ms. Also 0 if the
-- watermark has moved to another node with its slot: the guard record, which is still here, has the lock's last fence.
local function watermark(now)
  local left = redis.pcall('PTTL', watermark_key())
  if failed(left) or left < 0 then return 0 end
  local fence = redis.pcall('PEXPIRETIME', watermark_key()) -- the user may lack the right to it
  return failed(fence) and now + left + 1 or fence
end

-- Returns a fence above that of every earlier lease, which is the node's clock in microseconds if that is the greatest.
-- Also returns that clock in ms.
local function next_fence(s)
  local t = redis.call('TIME')
  local now = t[1] * 1000 + math.floor(t[2] / 1000)
  return math.max(s.last_fence + 1, t[1] * 1000000 + t[2], watermark(now) + 1), now
end

-- Makes `token` the live lease of the lock, which holds `value` now. `same`: a fence that several locks share because
-- they are acquired together. Returns the lease's state and the lock's PTTL.
local function own(s, token, value, kind, same)
  local pttl, leased = bound(kind == 'hash' and value)
  local fence, since = next_fence(s)
  fence = same or fence
  -- S2: a fence that is ahead of the node's clock has to outlive the guard record.
  if fence >= (since + 1) * 1000 then redis.pcall('SET', watermark_key(), '', 'PXAT', int(fence)) end
  redis.call('HSET', guard, 'token', token, 'fence', int(fence), 'value', value, 'kind', kind or 'string',
    'owner', identity, 'proxy', proxy, 'leased', leased and int(fence) or '',
    'since', int(since))
  keep_guard(pttl)
  return {token = token, fence = fence, owner = identity, leased = leased}, pttl
end

local function take(s, value, kind)
  local state, pttl = own(s, attempt, value, kind)
  if (delay or '') ~= '' then redis.call('HSET', guard, 'delay', delay) end -- for release.lua, which is not told
  return state, pttl
end

-- Reads the state of the lock, and carries out right 'enrol': the lock was acquired while its rule was in audit, and this
-- proxy saw that. While the value still stands, the claim's lease begins now. An earlier lease of this proxy, by the
-- number of its token, does not prevent that.
local function look(reads)
  local s = examine(reads)
  if right ~= 'enrol' or type(s.value) ~= 'string' or seen ~= '=' .. s.value then return s end
  local function number(token) return tonumber(string.match(token, ':(%d+)$') or 0) end
  if s.token and (s.proxy ~= proxy or number(s.token) >= number(claim)) then return s end
  own(s, claim, s.value)
  return examine()
end

-- Called after a foreign lock was changed. Its new value may equal the value in an old guard record, so the record's token
-- is removed.
local function disown(s)
  if s.stale_token then redis.call('HSET', guard, 'token', '') end
end

-- Called after a command has changed the lock (`anew`: its whole value) within its lease: updates the guard record, and
-- returns the PTTL. A key without a lease gets no expiry.
local function follow(s, value, anew)
  if s.token then
    local pttl, leased = bound(s.kind == 'hash' and value)
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

-- Called when the lock is free. The guard record keeps the fence, and the reply for a repeat.
local function forget(s, reply)
  redis.call('HSET', guard, 'token', '', 'attempt', attempt, 'reply', reply, 'over', s.token or '')
  redis.call('PEXPIRE', guard, GUARD_OUTLIVES_MS)
end

-- If the server does not know the command, which begins at ARGV[first], it has another error for scripts: turns the reply
-- into the server's for clients, byte for byte.
local function known(reply, first)
  if not failed(reply) or not string.find(reply.err, 'Unknown %a* ?command called from') then return reply end
  local words = ''
  for i = first + 1, #ARGV do
    if #words >= 128 then break end
    words = words .. "'" .. string.match(string.sub(ARGV[i], 1, 128 - #words), '^%Z*') .. "' "
  end
  local name = string.match(string.sub(ARGV[first], 1, 128), '^%Z*')
  return {err = (string.gsub("ERR unknown command '" .. name .. "', with args beginning with: " .. words, '[\r\n]', ' '))}
end
