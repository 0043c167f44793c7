-- text.lua: the short form of a guard record, a string of lines. The build puts it in the place of "--@text".
--
--   1        the version of the form
--   TOKEN    of the live lease
--   VALUE    what the lock is held with; it may have several lines itself
--   FENCE
--   g        if the proxy set the expiry; otherwise the line is empty
--   OWNER    the client identity
--
-- Such a record ends with its lock. Its lease is live as long as the record is there, the lock holds VALUE, and both have
-- the same end (`covers` in common.lua). The proxy writes it together with the lock, without a script
-- (proxy/session/locks/short_form.c); free.lua removes it.

-- Returns the fields of such a record as HMGET would return a hash's: token, fence, value, owner, proxy, leased,
-- attempt, reply, kind, suspect.
local function text_fields(text)
  local token, value, fence, leased, owner = string.match(text, '^1\n([^\n]*)\n(.*)\n(%d+)\n(g?)\n([^\n]*)$')
  if not token then error('the guard record has a form that this lockkeeper does not know') end
  return {token, fence, value, owner, string.sub(token, 1, 36), leased == 'g' and fence or '', false, false, 'string',
    false}
end

-- Returns such a record of these fields; `leased` is '' unless the proxy has set the expiry.
local function text_of(g, leased)
  return table.concat({'1', g[1], g[3], g[2], leased == '' and '' or 'g', g[4]}, '\n')
end
