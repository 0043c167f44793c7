-- acquire.lua: SETNX, SET ... NX. Keeps S2 and S5: the reply is a success only if the attempt is the live lease.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 attempt   2 identity   3 the value
--       then one of three forms:
--       SET NX with PX or EX:      4 the expiry in ms   5 the guard record's expiry in ms
--       SETNX, or SET NX alone:    4 the lease that the lock gets in ms, '' none   5 the guard record's expiry, '' none
--                                  6 'SETNX' or 'SET'
--       SET NX with other options, and MSETNX of one key; also to release a lease first:
--                                  4 the lease in ms, '0' none   5 shape, as in arguments.lua
--                                  6 a claim whose lease is released first, if it is live; '' none. For a lease that
--                                    another proxy gave to the caller's identity: its fence. '+', '!', or '-' and the
--                                    fence: the attempt was sent without a script before, and came to nothing
--                                  7... the command
--       The first two forms may have two arguments more, if the attempt may wait when it is refused: for how many ms
--       it has waited, and for how many ms the next session in its proxy's queue has waited, '' there is none. The one
--       that keeps waiting is noted in the guard record (waits.lua): the attempt if refused, the next one if granted.
--
-- The short way: the first two forms, where the lock is free or held by another lease. One SET ... NX GET both asks and
-- acquires. If Redis then refuses a write to the guard record, the script deletes the key again, so that no lock stands
-- without its guard record. The answer is a short text (common.lua).
--
-- The long way: all else. That includes a repeated attempt, another kind of key, a lock without a valid guard record,
-- and servers before 7.0, which do not know NX with GET.
--
-- An attempt without a script (proxy/session/locks/short_form.c) sets the guard record in its short form and the lock at
-- once. The proxy sends this script behind it where it set only one of both, or where its fence was not above the
-- slot's watermark. '!' says that the lock at the key, if it holds the value, is the attempt's own. '-' says that it is
-- not: a guard record of the attempt that has the fence behind the '-' is removed. '+' says neither. The guard record gets
-- the short form again, with a greater fence, and the watermark follows. So where a repeat of the script with '-' finds a
-- guard record with another fence, the script has acquired the lock the first time.
--
-- The short way is written for few steps, since each costs Redis time for every lock: globals are looked up once, the
-- type of an answer is checked only where its value leaves it open, and only the fields that are needed are written.
local argv, redis, sub = ARGV, redis, string.sub
local key, record, mine, value, kind = KEYS[1], KEYS[2], argv[1], argv[3], #argv
local pcall, lifetime, waits = redis.pcall, argv[4], kind == 7 or kind == 8
if waits then kind = kind - 2 end
local given = kind == 6

local mark
if waits then
--@waits
end

local there
if kind > 6 then there = pcall('GET', key)
elseif lifetime ~= '' then there = pcall('SET', key, value, 'PX', lifetime, 'NX', 'GET')
else there, given = pcall('SET', key, value, 'NX', 'GET'), false end
if there and type(there) == 'table' then
  local old = kind <= 6 and string.find(there.err, 'syntax', 1, true)
  if not old and not string.find(there.err, 'WRONGTYPE', 1, true) then return there end
elseif kind <= 6 and not there then
  local t, before, answer = pcall('TIME'), pcall('HGET', record, 'fence'), nil
  if type(before) ~= 'table' or not string.find(before.err, 'WRONGTYPE', 1, true) then
    if t.err then answer = t
    elseif before and type(before) == 'table' then answer = before
    else
      if not before then -- an earlier lease may have had the short form: ask for the watermark
        local watermark = sub(record, 1, -#key - 1) .. sub(record, 12, -#key - 2)
        local left = pcall('PTTL', watermark)
        if type(left) == 'number' and left >= 0 then -- as the function watermark in common.lua
          local last = pcall('PEXPIRETIME', watermark)
          if type(last) ~= 'number' then last = t[1] * 1000 + math.floor(t[2] / 1000) + left + 1 end
          before = string.format('%.0f', last)
        end
      end
      local micros = t[2]
      if #micros < 6 then micros = sub('00000' .. micros, -6) end
      local fence = t[1] .. micros
      if before and (#before > #fence or (#before == #fence and before >= fence)) then
        fence = string.format('%.0f', before + 1)
      end
      local process, since = sub(mine, 1, 36), sub(fence, 1, -4)
      if given then
        answer = pcall('HSET', record, 'token', mine, 'fence', fence, 'value', value, 'kind', 'string',
          'owner', argv[2], 'proxy', process, 'since', since, 'leased', fence)
      else
        answer = pcall('HSET', record, 'token', mine, 'fence', fence, 'value', value, 'kind', 'string',
          'owner', argv[2], 'proxy', process, 'since', since)
      end
      if answer == 0 or type(answer) == 'number' then
        if argv[5] ~= '' then answer = pcall('PEXPIRE', record, argv[5]) else answer = pcall('PERSIST', record) end
        if answer == 1 or type(answer) == 'number' then
          if waits then fence = fence .. mark(record, process, argv[#argv]) end
          return given and 'g' .. fence or fence
        end
      end
    end
    if type(pcall('DEL', key)) ~= 'number' then pcall('SET', key, value, 'PX', '1') end
    if type(pcall('HSET', record, 'token', '')) == 'number' then pcall('PEXPIRE', record, 'GUARD_OUTLIVES_MS') end
    return answer
  end
  pcall('DEL', key) -- the guard record of a lease that is over has the short form: the long way
elseif kind <= 6 then
  local g = pcall('HMGET', record, 'token', 'value', 'fence', 'leased', 'owner', 'suspect')
  if g[2] == there and g[1] ~= '' and g[1] ~= mine then
    local left, n, of = redis.call('PTTL', record), 0, nil
    if g[6] then
      of, n = string.match(g[6], '^(%d+):(%d+):')
      n = of == g[3] and tonumber(n) or 0
    end
    if n < SUSPECTS_SHIFTED and (left == -1 or left >= GUARD_OUTLIVES_MS) then
      local flags = 48 + (tonumber(sub(g[1], -1)) or 0) % 2 * 2 + 8 * n
      if g[4] == g[3] then flags = flags + 1 end
      if g[5] == argv[2] then flags = flags + 4 end
      if sub(g[1], 1, 36) ~= sub(mine, 1, 36) then flags = flags + 32 end
      if not waits then return 'h' .. string.char(flags) .. g[3] end
      return 'h' .. string.char(flags) .. g[3] .. ':' .. (left == -1 and '' or math.max(left - GUARD_OUTLIVES_MS, 0))
        .. mark(record, sub(mine, 1, 36), argv[#argv - 1])
    end
  end
end

local SLACK_MS = 2 -- the clock of older servers goes on between the commands of a transaction
local lock, guard, attempt, identity, proxy = key, record, mine, argv[2], sub(mine, 1, 36)
local claim, right, seen, lease, shape = '', 'claim', '', tonumber(argv[4]) or 0, 'ok'
local delay
if kind > 6 then shape, delay = string.match(argv[5], '^(%a+):?(%d*)$') elseif argv[6] == 'SETNX' then shape = 'int' end
--@functions
local function command()
  if kind == 5 then return pcall('SET', key, value, 'NX', 'PX', lifetime) end
  if kind > 6 then return pcall(unpack(argv, 7)) end
  if argv[6] == 'SETNX' then return pcall('SETNX', key, value) end
  return pcall('SET', key, value, 'NX')
end

local late = kind > 6 and string.match(argv[6], '^[-+!]')
local unset = late == '-' and sub(argv[6], 2) -- the fence of the attempt, which has not set the lock
-- Removes a guard record that is not the lock's. The lock of an attempt and its guard record have the same expiry, unless
-- the attempt set only one of both. If the lock is the attempt's, a guard record of another expiry is of a lease that was
-- over before, whatever value the lock holds. A session that had read the same value may have sent PERSIST meanwhile: the
-- attempt's lock has no end then, and is removed all the same, unless another attempt's short record is there.
local own_lock
if late then
  local text, left, ends = pcall('GET', guard), redis.call('PTTL', lock), redis.call('PTTL', guard)
  local short, head = type(text) == 'string', '1\n' .. attempt .. '\n' .. value .. '\n'
  local apart = left - (short and ends or ends - GUARD_OUTLIVES_MS)
  local its = short and sub(text, 1, #head) == head
  own_lock = late == '!' and there == value and (left >= 0 or its or not short)
  if its then
    local left_over = unset and sub(text, #head + 1, #head + #unset + 1) == unset .. '\n'
    if left_over or there ~= value or apart < 0 or apart > SLACK_MS then redis.call('DEL', guard) end
  elseif own_lock and left >= 0 and ends ~= -2 and math.abs(apart) > SLACK_MS then
    if short then redis.call('DEL', guard) else redis.call('HSET', guard, 'token', '') end
  elseif unset and not short and pcall('HGET', guard, 'token') == attempt and redis.call('HGET', guard, 'fence') == unset then
    redis.call('HSET', guard, 'token', '') -- another script has rewritten the attempt's guard record as a hash
  end
end
local s = look()
if unset then s.last_fence = math.max(s.last_fence, tonumber(unset)) end
if own_lock and not s.token then
  redis.call('DEL', lock)
  s.value = false
end
-- Ends an attempt that was sent without a script before, and now has the lock: its guard record gets the short form, with
-- a fence above the watermark, and the watermark moves there. Returns nil, and does nothing, if the watermark is already
-- at the node that the slot moves to.
local function keep_short()
  local pttl, fence = int(bound()), int(next_fence(s))
  if failed(redis.pcall('SET', watermark_key(), '', 'PXAT', fence)) then return nil end
  local record = table.concat({'1', attempt, value, fence, argv[11] and '' or 'g', identity}, '\n')
  redis.call('SET', guard, record, 'PX', pttl)
  redis.call('PEXPIRE', lock, pttl) -- behind the record: the clock of older servers goes on while a script runs
  return argv[11] and fence or 'g' .. fence
end
if late and s.token == attempt then
  local kept = s.value == value and keep_short()
  if kept then return kept end
  if not argv[11] then redis.call('PERSIST', lock) end -- it gets the rule's lease again
  local mine, pttl = own(s, attempt, s.value) -- other sessions have counted on it since
  return envelope(success(), 'granted', mine, pttl)
end
if s.token == attempt then
  return envelope(success(), 'granted', s, redis.call('PTTL', lock))
end
local release_then_acquire = kind > 6 and argv[6] ~= '' and s.token and type(s.value) == 'string' and
  (s.token == argv[6] or (s.owner == identity and int(s.fence) == argv[6]))
if release_then_acquire then
  secure(s, true)
  redis.call('DEL', lock)
  forget(s, '1')
  s = look()
end
local left = not release_then_acquire and delayed(s)
if left then return envelope(shape == 'nil' and s.held or refusal(), 'held', s, left) end
if not s.value then
  redis.call('PTTL', lock)
  secure(s)
end
local answer = command()
if failed(answer) then return envelope(answer, 'error') end
if s.value then return envelope(answer, s.token and 'held' or 'foreign', s) end
if redis.call('EXISTS', lock) == 0 then return envelope(answer, 'free', nil, -2) end -- its expiry is in the past
-- Another proxy made the lock's last release: right 'spent' asks for that, and only a hash keeps it.
local elsewhere = (s.attempt or '') ~= '' and sub(s.attempt, 1, 36) ~= proxy
local kept = late and not elsewhere and keep_short()
if kept then return kept end
local own_state, pttl = take(s, value)
return envelope(answer, 'granted', own_state, pttl)
