-- pass.lua: commands that write data, and no lock, under the rule's kinds. Keeps S1, S4. They are SET without an
-- expiry, APPEND, SETRANGE, SETBIT, INCRBYFLOAT, and commands of the kinds that the rule lacks: SETEX and GETSET; INCR
-- and DECR; HSET and HDEL; LPOP, RPOP, LREM, LSET and LTRIM (refused if the key is a live list lock for another proxy).
--
-- Free, or data: the command runs as it came, and acquires nothing. Holder: as on Redis; the lease is over if nothing
-- remains of what the lock was held with. Other: LOCKED if the command could change the lock, or 0 for HSETNX and HDEL.
--
-- The script is never sent twice, since data has no guard record to know a repeat by.
local name = string.lower(ARGV[11])
local of_hash = string.sub(name, 1, 1) == 'h'
local of_list = name == 'lpop' or name == 'rpop' or name == 'lrem' or name == 'lset' or name == 'ltrim'
local frees = name == 'hdel'
local replaces = name == 'set' or name == 'setex' or name == 'psetex'

-- Lua can pass some thousand arguments to one command. More fields go in several commands, still in one script's step.
local WORDS_AT_ONCE = 4000
local function run()
  local many = name == 'hset' or name == 'hmset' or name == 'hdel'
  if not many or #ARGV <= 12 + WORDS_AT_ONCE then return command() end
  if name ~= 'hdel' and #ARGV % 2 == 1 then
    return {err = "ERR wrong number of arguments for '" .. name .. "' command"}
  end
  local reply
  for first = 13, #ARGV, WORDS_AT_ONCE do
    local part = redis.pcall(ARGV[11], lock, unpack(ARGV, first, math.min(first + WORDS_AT_ONCE - 1, #ARGV)))
    if failed(part) then return part end
    if type(part) == 'number' then reply = (reply or 0) + part else reply = part end
  end
  return reply
end

-- Lua's numbers are exact up to here. Beyond, the reply is the text that the key or field holds.
local function exact(reply)
  if type(reply) ~= 'number' or math.abs(reply) <= 9007199254740991 then return reply end
  if of_hash then return redis.call('HGET', lock, ARGV[13]) end
  return redis.call('GET', lock)
end

local s = look()
local how, why = 'free', nil
if s.value then how, why = may_touch(s) end
if s.list and replaces then how, why = false, s.token and 'held' or 'foreign' end -- other sessions' nodes wait in it
if of_list then
  if s.list and s.token and not how then return envelope(locked(s), why, s) end
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  return envelope(reply, how or why, s)
end
-- S1: another session's live lease is not changed.
if not how and (replaces or (not s.list and (type(s.value) ~= 'string') == of_hash)) then
  ask_to_write()
  if name == 'hsetnx' or name == 'hdel' then return envelope(0, why, s) end
  return envelope(locked(s), why, s)
end
if how and (s.token or s.stale_token) then secure(s, frees) end
local reply = run()
if failed(reply) then return envelope(reply, 'error') end
if not s.token then
  disown(s)
  return envelope(exact(reply), how or why, s)
end
local there = redis.call('EXISTS', lock) == 1
local gone = not there or (s.kind == 'hash' and not replaces and redis.call('HEXISTS', lock, s.held) == 0)
if gone then
  forget(s, '1')
  return envelope(exact(reply), 'released', s, there and redis.call('PTTL', lock) or -2)
end
local anew = replaces or name == 'getset'
s.keeps_lease = not anew or (name == 'set' and keeps_ttl())
return envelope(exact(reply), how, s, follow(s, s.kind == 'hash' and not anew and s.held or redis.call('GET', lock), anew))
