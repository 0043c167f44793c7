-- acquire_usual.lua: SETNX, and SET NX with no other option than PX or EX, where the lock is free or held by a live
-- lease. Keeps S2 and S5, as acquire.lua does for every other state.
--
-- KEYS  1 lock key   2 its guard record
-- ARGV  1 attempt   2 identity   3 the value   4 the lock's expiry in ms, '' none   5 the guard record's, '' none
--       6 'g' if the rule gives the expiry, or ''; nothing more unless the attempt may wait when it is refused
--       7 for how many ms it has waited   8 for how many ms the next session of its proxy's queue has, '' there is none.
--         The one that keeps waiting is noted in the guard record (waits.lua): the attempt if refused, else the next one
--
-- Answers a short text (common.lua), or Redis's error. 0: it has done nothing, and the proxy sends acquire.lua. The
-- attempt is repeated, the key is of another kind, its guard record is missing, not valid, or has or had the short form
-- (`since` is missing then), its fence has to be ahead of the node's clock, or the server does not know NX with GET.
--
-- One SET ... NX GET both asks and acquires. If Redis then refuses a write to the guard record, the script deletes the key
-- again. Each step costs Redis time for every lock: the type of an answer is checked only where its value leaves it open.
--@alone
local argv, pcall, sub, key, record, mine, value = ARGV, redis.pcall, string.sub, KEYS[1], KEYS[2], ARGV[1], ARGV[3]
local lifetime, given, waits, process = argv[4], argv[6] == 'g', argv[7], sub(mine, 1, 36)
local mark
if waits then
--@waits
end
local there
if lifetime ~= '' then there = pcall('SET', key, value, 'PX', lifetime, 'NX', 'GET')
else there = pcall('SET', key, value, 'NX', 'GET') end
if not there then
  local t, before, answer = pcall('TIME'), pcall('HGET', record, 'fence'), nil
  local known = before
  if type(before) == 'table' and string.find(before.err, 'WRONGTYPE', 1, true) then -- the short form
    pcall('DEL', key)
    return 0
  end
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
      pcall('DEL', key)
      return 0
    end
    if given then
      answer = pcall('HSET', record, 'token', mine, 'fence', fence, 'value', value, 'kind', 'string',
        'owner', argv[2], 'proxy', process, 'since', sub(fence, 1, -4), 'leased', fence)
    else
      answer = pcall('HSET', record, 'token', mine, 'fence', fence, 'value', value, 'kind', 'string',
        'owner', argv[2], 'proxy', process, 'since', sub(fence, 1, -4))
    end
    if known and type(answer) == 'number' and answer > 0 then -- a field was missing
      pcall('HSET', record, 'token', '')
      pcall('DEL', key)
      return 0
    end
    if answer == 0 or type(answer) == 'number' then
      if lifetime ~= '' then answer = pcall('PEXPIRE', record, argv[5]) else answer = pcall('PERSIST', record) end
      if answer == 1 or type(answer) == 'number' then
        if waits then fence = fence .. mark(record, process, argv[8]) end
        return given and 'g' .. fence or fence
      end
    end
  end
  if type(pcall('DEL', key)) ~= 'number' then pcall('SET', key, value, 'PX', '1') end
  if type(pcall('HSET', record, 'token', '')) == 'number' then pcall('PEXPIRE', record, 'GUARD_OUTLIVES_MS') end
  return answer
end
if type(there) == 'table' then
  local other = string.find(there.err, 'syntax', 1, true) or string.find(there.err, 'WRONGTYPE', 1, true)
  return other and 0 or there
end
local g = pcall('HMGET', record, 'token', 'value', 'fence', 'leased', 'owner', 'suspect')
if g[2] ~= there or g[1] == '' or g[1] == mine then return 0 end
local left, n, of = redis.call('PTTL', record), 0, nil
if g[6] then
  of, n = string.match(g[6], '^(%d+):(%d+):')
  n = of == g[3] and tonumber(n) or 0
end
if n >= SUSPECTS_SHIFTED or (left ~= -1 and left < GUARD_OUTLIVES_MS) then return 0 end
local flags = 48 + (tonumber(sub(g[1], -1)) or 0) % 2 * 2 + 8 * n
if g[4] == g[3] then flags = flags + 1 end
if g[5] == argv[2] then flags = flags + 4 end
if sub(g[1], 1, 36) ~= process then flags = flags + 32 end
if not waits then return 'h' .. string.char(flags) .. g[3] end
return 'h' .. string.char(flags) .. g[3] .. ':' .. (left == -1 and '' or math.max(left - GUARD_OUTLIVES_MS, 0))
  .. mark(record, process, waits)
