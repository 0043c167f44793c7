-- acquire.lua: SETNX, SET ... NX. Keeps S2 and S5: the caller hears of success only if its attempt is the
-- live lease. shape is the command's reply to a success: 'int' SETNX, 'ok' SET NX, 'nil' SET NX GET.
--
-- The two usual cases, a free lock and one that somebody else holds, are done before common.lua is reached, with as
-- few calls as they take; they do what take and look do there.
local key, record, mine = KEYS[1], KEYS[2], ARGV[1]
local answer, success_is = redis.pcall(unpack(ARGV, 11)), ARGV[10]
local won
if success_is == 'int' then won = answer == 1
elseif success_is == 'ok' then won = type(answer) == 'table' and answer.ok ~= nil
else won = answer == false end

if won then
  local before, pttl, given = redis.call('HGET', record, 'fence'), redis.call('PTTL', key), '0'
  if pttl == -2 then return {answer, 'free', 0, -2, '', 0} end -- an expiry in the past
  if pttl == -1 and ARGV[6] ~= '0' then
    redis.call('PEXPIRE', key, ARGV[6])
    pttl, given = tonumber(ARGV[6]), '1'
  end
  local t = redis.call('TIME')
  local micros = string.sub('00000' .. t[2], -6)
  local fence = t[1] .. micros
  if before and (#before > #fence or (#before == #fence and before >= fence)) then
    fence = string.format('%.0f', before + 1)
  end
  redis.call('HSET', record, 'token', mine, 'fence', fence, 'value', ARGV[10 + ARGV[9]], 'kind', 'string',
    'extra', '0', 'owner', ARGV[3], 'proxy', ARGV[4], 'leased', given, 'since', t[1] .. string.sub(micros, 1, 3))
  if pttl >= 0 and pttl < 9e15 then
    redis.call('PEXPIRE', record, string.format('%.0f', pttl + 10000))
  else
    redis.call('PERSIST', record)
  end
  return {answer, 'granted', tonumber(fence), pttl, ARGV[3], tonumber(given)}
end

local value = redis.pcall('GET', key)
if type(value) == 'string' then
  local g = redis.call('HMGET', record, 'token', 'value', 'fence', 'owner', 'leased')
  if g[2] == value and g[1] ~= '' and g[1] ~= mine then
    local left = redis.call('PTTL', record)
    if left == -1 or left >= 10000 then
      return {answer, 'held', tonumber(g[3]), -3, g[4], g[5] == '1' and 1 or 0}
    end
  end
end
--@common
if failed(answer) then return envelope(answer, 'error') end
local s = look()
if s.token == attempt then
  return envelope(success(), 'granted', s, redis.call('PTTL', lock))
end
return envelope(answer, s.token and 'held' or (s.value and 'foreign' or 'free'), s)
