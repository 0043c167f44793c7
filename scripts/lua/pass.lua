-- pass.lua: commands that write what is no lock under the rule's kinds: SET without an expiry, APPEND, SETRANGE, SETBIT,
-- INCRBYFLOAT, and those of the kinds that the rule lacks (SETEX, GETSET; INCR and its kin; HSET and its kin; what may take or
-- replace the head of a list, which is refused where another proxy guards it as a list lock that is live).
-- Free, or data: runs as it came; nobody holds anything by it, and nothing is remembered. Holder: as Redis; the guard
-- record follows, and the lease is over where nothing is left that it was held with. Other, where the command could
-- change the lock: LOCKED, or 0 for HSETNX and HDEL. Never sent twice: data has no guard record to know a repeat by.
-- S1, S4.
local name = string.lower(ARGV[11])
local of_hash = string.sub(name, 1, 1) == 'h'
local of_list = name == 'lpop' or name == 'rpop' or name == 'lrem' or name == 'lset' or name == 'ltrim'
local frees = name == 'hdel'
local replaces = name == 'set' or name == 'setex' or name == 'psetex'

-- A script can pass on some thousand words at once: fields come in several commands, which are one step all the same.
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

-- A script's numbers are exact up to here; beyond, the reply is the text that stands there.
local function exact(reply)
  if type(reply) ~= 'number' or math.abs(reply) <= 9007199254740991 then return reply end
  if of_hash then return redis.call('HGET', lock, ARGV[13]) end
  return redis.call('GET', lock)
end

local s = look()
local how, why = 'free', nil
if s.value then how, why = may_touch(s) end
if s.list and replaces then how, why = false, s.token and 'held' or 'foreign' end -- nodes of others wait in it
if of_list then
  if s.list and s.token and not how then return envelope(locked(s), why, s) end
  local reply = command()
  if failed(reply) then return envelope(reply, 'error') end
  return envelope(reply, how or why, s)
end
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
