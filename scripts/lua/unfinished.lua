-- unfinished.lua: an attempt that was sent without a script before, and came to nothing (proxy/session/locks/short_form.c):
-- it has set only one of the lock and its guard record, or its fence was not above the slot's watermark. The build puts
-- it in the place of "--@unfinished".
--
-- The claim says what is known of the attempt. '!': it has set its lock, which is the lock at the key if that holds the
-- value and no later lease stands there. Its fence follows if it was above the watermark. '-' and its fence: it has not,
-- and a guard record of the attempt with this fence is left over. '+': neither is known.

local SLACK_MS = 2 -- the clock of older servers goes on between the commands of a transaction

-- Removes a guard record that is not the lock's. The lock of an attempt and its guard record have the same expiry, unless
-- the attempt set only one of both. If the lock is the attempt's, a guard record of another expiry is of a lease that was
-- over before. If the attempt's lock has no end, a session that had read the same value has sent PERSIST: it is removed all
-- the same, unless another attempt's short record is there. A live record with a greater fence than the attempt's is of a
-- lease that was acquired since (S2): the attempt's lock is gone, and a client around the proxies has moved the end of the
-- lock at the key. Returns whether the lock is the attempt's, and the fence that is left over.
local function clear_unfinished(value)
  local text, there, left, ends = redis.pcall('GET', guard), redis.pcall('GET', lock), redis.call('PTTL', lock),
    redis.call('PTTL', guard)
  local short, head = type(text) == 'string', '1\n' .. attempt .. '\n' .. value .. '\n'
  local apart = left - (short and ends or ends - GUARD_OUTLIVES_MS)
  local its, unset = short and string.sub(text, 1, #head) == head, string.match(claim, '^-(%d+)')
  local set, g = string.match(claim, '^!(%d*)'), short and text_fields(text) or redis.pcall('HMGET', guard, 'token', 'fence')
  local in_time = short or ends == -1 or ends >= GUARD_OUTLIVES_MS
  local later = set and not its and in_time and g[1] and g[1] ~= '' and (tonumber(g[2]) or 0) > (tonumber(set) or math.huge)
  local own_lock = set and not later and there == value and (left >= 0 or its or not short)
  if its then
    local left_over = unset and string.sub(text, #head + 1, #head + #unset + 1) == unset .. '\n'
    if left_over or there ~= value or apart < 0 or apart > SLACK_MS then redis.call('DEL', guard) end
  elseif own_lock and left >= 0 and ends ~= -2 and math.abs(apart) > SLACK_MS then
    if short then redis.call('DEL', guard) else redis.call('HSET', guard, 'token', '') end
  elseif unset and not short and redis.pcall('HGET', guard, 'token') == attempt
    and redis.call('HGET', guard, 'fence') == unset then
    redis.call('HSET', guard, 'token', '') -- another script has rewritten the attempt's guard record as a hash
  end
  return own_lock, tonumber(unset or 0)
end

-- Ends the attempt if it has the lock now: its guard record gets the short form, with a fence above the watermark, and
-- the watermark moves there. So where a repeat finds a guard record with another fence, the script has acquired the lock
-- the first time. Returns nil, and does nothing, if the watermark is already at the node that the slot moves to.
local function keep_short(s, value, expires)
  local pttl, fence = int(bound()), int(next_fence(s))
  if failed(redis.pcall('SET', watermark_key(), '', 'PXAT', fence)) then return nil end
  local record = table.concat({'1', attempt, value, fence, expires and '' or 'g', identity}, '\n')
  redis.call('SET', guard, record, 'PX', pttl)
  redis.call('PEXPIRE', lock, pttl) -- behind the record: the clock of older servers goes on while a script runs
  return expires and fence or 'g' .. fence
end
