-- free_all.lua: free.lua for several locks, whose keys differ. Keeps S1, as free.lua does.
--
-- KEYS  each lock key, and behind it its guard record
-- ARGV  a claim for each lock
--
-- Answers a text with a character for each lock: 'r' or 0, as free.lua's answers. An error says that nothing was done.
--@alone
local call, keys, argv, find, gone, n, answers = redis.call, KEYS, ARGV, string.find, {}, 0, ''
local found = call('MGET', unpack(keys))
for i = 1, #argv do
  local held, text, answer = found[2 * i - 1], found[2 * i], '0'
  if held and text and find(text, '1\n' .. argv[i] .. '\n' .. held .. '\n', 1, true) == 1 then
    gone[n + 1], gone[n + 2], n, answer = keys[2 * i - 1], keys[2 * i], n + 2, 'r'
  end
  answers = answers .. answer
end
if n > 0 then call('DEL', unpack(gone)) end
return answers
