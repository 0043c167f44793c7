-- compare.lua: what the scripts share for commands that compare the lock's value themselves: DELIFEQ, DELEX, and SET with
-- IFEQ, IFNE, IFDEQ or IFDNE. The build puts it in the place of "--@compare". It sets the script's local `compare`.
--
-- compare(s, first), for the command that begins at ARGV[first], returns
--   whether the command would act on the lock as it is. If false, the caller runs it: it says no, or its own error. nil:
--   the user may not run DIGEST, so that this is not known, and the caller refuses
--   the same command with a comparison that fails. It is run for a refusal: it changes nothing, and its reply is the
--   server's no, or the server's error
--   how it compares: 'eq' the lock must have the value, 'ne' it must not, nil the command does not compare (DELEX key)
function compare(s, first)
  local no, i, how, with = {unpack(ARGV, first)}, 3, nil, nil
  local name, value = string.lower(no[1]), type(s.value) == 'string' and s.value or ''
  local takes = {ifeq = 'eq', ifne = 'ne', ifdeq = 'eq', ifdne = 'ne', ex = 0, px = 0, exat = 0, pxat = 0}
  if name == 'set' then i = 4 end
  if name == 'delifeq' then how, with, no[3], i = 'ifeq', no[3], value .. '.', 4 end
  while i <= #no do
    local word = string.lower(no[i])
    if takes[word] and takes[word] ~= 0 then
      how, with, no[i], no[i + 1] = word, no[i + 1], 'IFEQ', value .. '.'
    end
    i = i + (takes[word] and 2 or 1)
  end
  if not how then
    no[3], no[4] = 'IFEQ', value .. '.'
    return s.value, no
  end
  if s.value and type(s.value) ~= 'string' then return false, no end
  local is, equal = s.value, takes[how] == 'eq'
  if s.value and string.sub(how, 3, 3) == 'd' then
    is, with = redis.pcall('DIGEST', lock), string.lower(with)
    if failed(is) then return nil, no end
  end
  return (is == with) == equal, no, takes[how]
end
