-- renew_all.lua: the proxy renews the leases of several claims. Keeps S3, as renew.lua does.
--
-- KEYS  each lock key, and behind it its guard record
-- ARGV  1 the lease in ms   2 the expiry in ms of a guard record that is a hash   3... a claim for each lock
--
-- Answers a text with a digit for each lock:
--   1   renewed
--   2   renewed, and its guard record has the short form (text.lua)
--   0   nothing was done, and the proxy sends renew.lua. Only what is usual is done here: a lock that is a string, whose
--       expiry the proxy has set, and which does not end later than the lease that is asked for
--@alone
local pcall, argv, keys, sub, answers = redis.pcall, ARGV, KEYS, string.sub, {}
local lease = argv[1]

local function renews_text(lock, guard, head)
  local text = pcall('GET', guard)
  return type(text) == 'string' and sub(text, 1, #head) == head and string.find(text, '^%d+\ng\n', #head + 1) and
    math.abs(redis.call('PTTL', lock) - redis.call('PTTL', guard)) <= SHORT_APART_MS and
    pcall('PEXPIRE', lock, lease, 'GT') == 1
end

for i = 1, #keys, 2 do
  local lock, guard, claim, answer = keys[i], keys[i + 1], argv[(i + 5) / 2], '0'
  local value, g = pcall('GET', lock), pcall('HMGET', guard, 'token', 'value', 'fence', 'leased')
  if type(value) == 'string' then
    if g.err then
      if renews_text(lock, guard, '1\n' .. claim .. '\n' .. value .. '\n') then
        redis.call('PEXPIRE', guard, lease)
        answer = '2'
      end
    elseif g[1] == claim and g[2] == value and g[3] == g[4] and redis.call('PTTL', guard) >= GUARD_OUTLIVES_MS and
      pcall('PEXPIRE', lock, lease, 'GT') == 1 then
      redis.call('PEXPIRE', guard, argv[2])
      answer = '1'
    end
  end
  answers[#answers + 1] = answer
end
return table.concat(answers)
