-- witness_take.lua: at a witness, a lock's record becomes a lease's, or its end is moved (docs/quorum.md).
--
-- KEYS  1 the lock's record   2 the mark of this witness
-- ARGV  1 token; '' if the lease is known by its fence alone: only its end is moved then   2 fence
--       3 over: a token whose lease was released, which therefore holds nothing any more; or '=' and the token that the same
--         lease, with its fence, had at another proxy, which has let go of it; '' none
--       4 the promise: for how many ms the record keeps other leases out   5 the quarantine in ms   6 the namespace
--
-- The record is a hash: token ('' once the lease was released) and fence. It holds while it has more than
-- GUARD_OUTLIVES_MS left, and is kept for that time behind its promise, so that fences grow. A promise is never made
-- shorter: requests may come in another order.
--
-- The mark has the server's run and the time of the first question since it began. A server that was started again may
-- have lost what it promised: it promises nothing for the quarantine, until all that was promised before has ended.
--
-- Answers 'ok'; 'held TOKEN FENCE', the lease that the record is of; 'none', without a token where no lease is known;
-- 'low FENCE', which the lease's fence must exceed; or 'quarantine MS', for how long. If it is a newcomer among the
-- witnesses of the namespace (witness_join.lua), ' joins MS' follows: for how long it does not vote.
--@alone
local call, record, mark = redis.call, KEYS[1], KEYS[2]
local token, fence, over, promise = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local t, run = call('TIME'), string.match(call('INFO', 'server'), 'run_id:(%w+)')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local known = call('HMGET', mark, 'run', 'since', 'joins:' .. ARGV[6])
if known[1] ~= run then
  call('HSET', mark, 'run', run, 'since', string.format('%.0f', now))
  known[2] = now
end
local left, joins = known[2] + ARGV[5] - now, (tonumber(known[3]) or 0) - now
local joining = joins > 0 and string.format(' joins %.0f', joins) or ''
if left > 0 then return string.format('quarantine %.0f', left) .. joining end

local r, ends = call('HMGET', record, 'token', 'fence'), call('PTTL', record)
local holds = r[1] and r[1] ~= '' and ends > GUARD_OUTLIVES_MS
local mine = holds and (r[1] == token or (token == '' and r[2] == fence))
if not mine then
  if token == '' and not holds then return 'none' .. joining end
  local moved = string.sub(over, 1, 1) == '=' and string.sub(over, 2)
  if holds and r[1] ~= over and r[1] ~= moved then return 'held ' .. r[1] .. ' ' .. r[2] .. joining end
  if r[2] and not (moved and holds and r[2] == fence) and tonumber(r[2]) >= tonumber(fence) then return 'low ' .. r[2] .. joining end
end
if token ~= '' then call('HSET', record, 'token', token, 'fence', fence) end
if ends < promise + GUARD_OUTLIVES_MS then
  call('PEXPIRE', record, string.format('%.0f', promise + GUARD_OUTLIVES_MS))
end
return 'ok' .. joining
