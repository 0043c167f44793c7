"""The application's own scripts on lock keys: they run unchanged. The proxy knows what they acquire, renew and release, so
that careless commands besides careful scripts are checked."""

import hashlib
import time

import pytest

import servers
from resp import Client, Error, encode
from servers import until

ACQUIRE = "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end"
SETNX = "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
ENDLESS = "redis.call('set', KEYS[1], ARGV[1]) return {ok = 'HELD'}"

# As Redisson writes them: a hash with a field for each owner, counted.
HASH_LOCK = """
if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
"""
HASH_RENEW = """
if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('pexpire', KEYS[1], ARGV[1]) return 1 end
return 0
"""
HASH_UNLOCK = """
if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil end
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1)
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]) return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""


def lock_facts(client, name):
    words = client("PROXY", "LOCK", name)
    return dict(zip(words[0::2], words[1::2]))


@pytest.fixture
def pair(proxy, connect):
    """Two processes, as their names say."""
    return [connect(proxy, commands=[("CLIENT", "SETNAME", "process-%d" % i)]) for i in (1, 2)]


# ---- a lease from a script ----------------------------------------------------------------------------


@pytest.mark.parametrize("script", [ACQUIRE, SETNX], ids=["set", "setnx"])
def test_careless_commands_beside_careful_scripts(pair, key, script):
    a, b = pair
    name = key("lock:script")
    assert a("EVAL", script, 1, name, "a-value", 60000) == 1
    assert b("EVAL", script, 1, name, "b-value", 60000) == 0
    facts = lock_facts(a, name)
    assert (facts["state"], facts["value"], facts["kind"], facts["expiry"]) == ("held", "a-value", "string", "application")
    assert [b("PEXPIRE", name, 1), b("DEL", name), b("GETDEL", name), b("PERSIST", name)] == [0, 0, None, 0]
    assert isinstance(b("SET", name, "b-value"), Error)
    assert a("PROXY", "TOKEN", name) == facts["fence"] and b("PROXY", "TOKEN", name) is None
    assert a("PEXPIRE", name, 90000) == 1 and a("PTTL", name) > 60000
    assert a("DEL", name) == 1
    assert b("EVAL", script, 1, name, "b-value", 60000) == 1
    assert lock_facts(b, name)["fence"] > facts["fence"]


def test_a_release_by_script_spends_the_claim(client, key):
    """Otherwise the next DEL would count for the lease that the script has released."""
    name = key("lock:script")
    for _ in range(3):
        assert client("EVAL", ACQUIRE, 1, name, "constant", 60000) == 1
        assert client("EVAL", RELEASE, 1, name, "constant") == 1
    assert client("PROXY", "LOCKS", name) == []
    assert client("SET", name, "constant", "NX", "PX", 60000) == "OK"
    assert client("DEL", name) == 1


def test_a_renewal_by_script_moves_the_guard_records_end(pair, backend, direct, key):
    a, b = pair
    name = key("lock:script")
    assert a("EVAL", ACQUIRE, 1, name, "v", 1000) == 1
    assert a("EVAL", RENEW, 1, name, "v", 60000) == 1
    assert b("DEL", name) == 0
    guard = next(k for k in backend.keys() if k.startswith("lockkeeper:") and k.endswith(":" + name))
    assert direct("PTTL", guard) > 65000
    assert a("EVAL", RENEW, 1, name, "v", 1) == 1
    until(lambda: a("EXISTS", name) == 0, 15, "the end of the lease", 0.005)


def test_no_expiry_gets_the_rules_lease_renewed(pair, key):
    a, b = pair
    name = key("lock:short:script")
    assert a("EVAL", ENDLESS, 1, name, "v") == "HELD"
    assert 0 < b("PTTL", name) <= 2000
    assert lock_facts(b, name)["expiry"] == "lease"
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert b("SETNX", name, "w") == 0
    assert a("DEL", name) == 1


def test_the_applications_expiry_is_not_renewed(pair, key):
    """Also where it takes the place of the proxy's lease."""
    a, b = pair
    name = key("lock:short:script")
    assert a("EVAL", ENDLESS, 1, name, "v") == "HELD"
    assert a("EVAL", RENEW, 1, name, "v", 1500) == 1
    assert lock_facts(a, name)["expiry"] == "application"
    until(lambda: b("EXISTS", name) == 0, 15, "the end of the application's expiry", 0.005)


def test_nothing_is_adopted_that_the_script_does_not_hold(pair, direct, key):
    a, b = pair
    name = key("lock:script")
    direct("SET", name, "somebody", "PX", 60000)
    assert a("EVAL", ACQUIRE, 1, name, "a-value", 60000) == 0
    assert lock_facts(a, name)["state"] == "foreign"
    assert [a("SETNX", name, "a"), b("SETNX", name, "b")] == [0, 0]  # else it is data for them
    assert [a("DEL", name), a("PEXPIRE", name, 1), b("DEL", name)] == [0, 0, 0]


def test_noscript_and_errors_pass_through(pair, oracle, key):
    a, b = pair
    name = key("lock:script")
    sha = hashlib.sha1((ACQUIRE + " -- %s" % name).encode()).hexdigest()
    with oracle.client() as redis:
        for command in (("EVALSHA", sha, 1, name, "v", 1), ("EVAL", "return redis.call('nonsense')", 1, name),
                        ("EVAL", "not lua", 1, name), ("FCALL", "none", 1, name), ("EVAL", ACQUIRE, 2, name)):
            assert a.raw(*command) == redis.raw(*command)
    assert a("PROXY", "LOCKS", name) == []
    assert a("EVAL", ACQUIRE + " -- %s" % name, 1, name, "v", 60000) == 1
    assert a("EVALSHA", sha, 1, name, "w", 60000) == 0
    assert b("DEL", name) == 0 and a("DEL", name) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_redis_own(proxy, oracle, connect, key, protocol):
    """Whatever shape they have, in one packet with what is before and behind."""
    name = "{%s}" % key("t")
    locks, plain = ["lock:%s:%d" % (name, i) for i in (1, 2)], "plain:" + name
    scripts = [
        ("EVAL", "return redis.call('set', KEYS[1], ARGV[1], 'PX', 50000)", 1, locks[0], "v"),
        ("EVAL", "return {1, {2, 'three', false}, redis.call('get', KEYS[2])}", 2, plain, locks[0], "v"),
        ("EVAL", "return ARGV[1]", 1, locks[0], "x" * 300000),
        ("EVAL", "redis.setresp(3) return redis.call('hgetall', KEYS[1])", 1, "lock:none" + name),
        ("EVAL", "for i = 1, #KEYS do redis.call('set', KEYS[i], ARGV[i], 'PX', 9000) end", 2, *locks, "v", "w"),
        ("EVAL", "return {err = 'MINE no'}", 1, locks[1], *range(500)),
        ("EVAL", "return nil", 2, locks[1], locks[1], ""),
        ("EVAL_RO", "return redis.call('get', KEYS[1])", 1, locks[1]),
        ("EVAL", "return 1", 0, locks[1]),
    ]
    commands = [("HELLO", protocol)]
    for script in scripts:
        commands += [("SET", plain, script[0]), script, ("GET", plain), script, ("EXISTS", *locks)]
    got = connect(proxy).pipeline(commands)[1:]
    want = connect(oracle).pipeline(commands)[1:]
    assert got == want


def test_two_steps_a_lock_and_only_on_lock_keys(proxy, backend, client, key):
    def calls():
        total = 0
        for server in backend.nodes:
            with Client(server.address) as node:
                for line in node("INFO", "commandstats").splitlines():
                    if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:")):
                        total += int(line.split("calls=")[1].split(",")[0])
        return total

    name = key("{lock}")
    client("EVAL", "return 1", 1, "lock:" + name)  # the steps' own script is known from here on
    for keys, steps in (([name], 0), (["lock:" + name], 2), (["lock:a" + name, "lock:b" + name, name], 4)):
        before = calls()
        assert client("EVAL", "return 1", len(keys), *keys) == 1
        assert calls() - before == 1 + steps


def test_several_locks_in_one_script(pair, key):
    """Redlock clients and multi-locks name several."""
    a, b = pair
    tag = "{%s}" % key("t")
    names = ["lock:%s:%d" % (tag, i) for i in range(3)]
    every = "for i, k in ipairs(KEYS) do if redis.call('exists', k) == 1 then return 0 end end " \
            "for i, k in ipairs(KEYS) do redis.call('set', k, ARGV[1], 'PX', ARGV[2]) end return #KEYS"
    assert a("EVAL", every, 3, *names, "v", 60000) == 3
    assert b("EVAL", every, 3, *names, "w", 60000) == 0
    assert b("DEL", *names) == 0
    assert a("DEL", *names) == 3
    assert b("EVAL", every, 3, *names, "w", 60000) == 3


def test_functions(pair, backend, key):
    a, b = pair
    code = "#!lua name=%s\nredis.register_function('%s', function(KEYS, ARGV) " \
           "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0 end)"
    name, library = key("lock:script"), "lib" + str(time.time_ns())
    assert a("FUNCTION", "LOAD", code % (library, library)) == library
    assert a("FCALL", library, 1, name, "v", 60000) == 1
    assert b("FCALL", library, 1, name, "w", 60000) == 0
    assert [b("PEXPIRE", name, 1), b("DEL", name), a("PEXPIRE", name, 9000), a("DEL", name)] == [0, 0, 1, 1]
    a("FUNCTION", "DELETE", library)


def test_inside_multi(pair, key):
    """EXEC's array has the application's elements alone; what follows in the transaction speaks for the lease."""
    a, b = pair
    name = key("lock:{script}")
    for command in (("MULTI",), ("EVAL", ACQUIRE, 1, name, "v", 60000), ("SET", "plain:{script}", "x"),
                    ("PEXPIRE", name, 90000), ("GET", name)):
        assert a(*command) in ("OK", "QUEUED")
    assert a("EXEC") == [1, "OK", 1, "v"]
    assert b("DEL", name) == 0
    for command in (("MULTI",), ("EVAL", RENEW, 1, name, "v", 70000), ("PEXPIRE", name, 50000), ("DEL", name)):
        assert a(*command) in ("OK", "QUEUED")
    assert a("EXEC") == [1, 1, 1]
    for command in (("MULTI",), ("EVAL", ACQUIRE, 1, name, "w", 60000)):
        assert b(*command) in ("OK", "QUEUED")
    assert b("EXEC") == [1]
    for command in (("MULTI",), ("EVAL", ACQUIRE, 1, name, "v", 60000), ("PEXPIRE", name, 1), ("DEL", name)):
        assert a(*command) in ("OK", "QUEUED")
    assert a("EXEC") == [0, 0, 0]
    assert b("DEL", name) == 1
    assert b("MULTI") == "OK" and b("EVAL", ACQUIRE, 1, name, "w", 60000) == "QUEUED" and b("DISCARD") == "OK"
    assert b("EXISTS", name) == 0


def test_a_client_that_leaves_behind_its_script(proxy, connect, backend, key):
    """Its lease still has an owner: no other client removes it."""
    name = key("lock:script")
    gone = connect(proxy, commands=[("CLIENT", "SETNAME", "gone")])
    gone.pipeline([("PING",)])
    from resp import encode

    gone.send(encode("EVAL", ACQUIRE, 1, name, "v", 60000))
    gone.close()
    other = connect(proxy, commands=[("CLIENT", "SETNAME", "other")])
    until(lambda: other("EXISTS", name) == 1, 15, "the lock of who left")
    until(lambda: lock_facts(other, name)["state"] == "held", 15, "its lease")
    assert other("DEL", name) == 0


# ---- hash locks ----------------------------------------------------------------------------------------


def test_hash_lock_as_redisson_has_it(pair, key):
    a, b = pair
    tag = "{%s}" % key("t")
    name, channel = "lock:" + tag, "redisson_lock__channel:" + tag
    assert a("EVAL", HASH_LOCK, 1, name, 60000, "uuid-a:1") is None
    assert a("EVAL", HASH_LOCK, 1, name, 60000, "uuid-a:1") is None
    assert 0 < b("EVAL", HASH_LOCK, 1, name, 60000, "uuid-b:1") <= 60000
    facts = lock_facts(a, name)
    assert (facts["state"], facts["kind"], facts["field"]) == ("held", "hash", "uuid-a:1")
    assert [b("PEXPIRE", name, 1), b("DEL", name), b("UNLINK", name)] == [0, 0, 0]
    assert isinstance(b("SET", name, "mine"), Error) and isinstance(b("RENAME", name, name + "x"), Error)
    assert b("SETNX", name, "mine") == 0
    assert a("EVAL", HASH_RENEW, 1, name, 90000, "uuid-a:1") == 1
    assert a("PEXPIRE", name, 95000) == 1 and b("PTTL", name) > 90000
    assert b("EVAL", HASH_UNLOCK, 2, name, channel, 0, 30000, "uuid-b:1") is None
    assert a("EVAL", HASH_UNLOCK, 2, name, channel, 0, 30000, "uuid-a:1") == 0
    assert b("DEL", name) == 0 and lock_facts(b, name)["fence"] == facts["fence"]
    assert a("EVAL", HASH_UNLOCK, 2, name, channel, 0, 30000, "uuid-a:1") == 1
    assert b("EVAL", HASH_LOCK, 1, name, 60000, "uuid-b:1") is None
    assert lock_facts(b, name)["fence"] > facts["fence"]
    assert a("DEL", name) == 0 and b("DEL", name) == 1


def test_hash_lock_without_expiry_is_renewed(pair, key):
    a, b = pair
    name = key("lock:short:hash")
    assert a("EVAL", "return redis.call('hset', KEYS[1], ARGV[1], 1)", 1, name, "me") == 1
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert b("EXISTS", name) == 1
    assert a("DEL", name) == 1


# ---- Redisson's read and write locks: a field for each reader, `mode`, and a key for each reader's time -----------

READ_LOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  redis.call('hset', KEYS[1], 'mode', 'read')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('set', KEYS[2] .. ':1', 1)
  redis.call('pexpire', KEYS[2] .. ':1', ARGV[1])
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if (mode == 'read') or (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1) then
  local ind = redis.call('hincrby', KEYS[1], ARGV[2], 1)
  local key = KEYS[2] .. ':' .. ind
  redis.call('set', key, 1)
  redis.call('pexpire', key, ARGV[1])
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
  return nil
end
return redis.call('pttl', KEYS[1])
"""
READ_UNLOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then redis.call('publish', KEYS[2], ARGV[1]) return 1 end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
local counter = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if counter == 0 then redis.call('hdel', KEYS[1], ARGV[2]) end
redis.call('del', KEYS[3] .. ':' .. (counter + 1))
if redis.call('hlen', KEYS[1]) > 1 then
  local most = -3
  for _, key in ipairs(redis.call('hkeys', KEYS[1])) do
    counter = tonumber(redis.call('hget', KEYS[1], key))
    if type(counter) == 'number' then
      for i = counter, 1, -1 do
        most = math.max(redis.call('pttl', KEYS[4] .. ':' .. key .. ':rwlock_timeout:' .. i), most)
      end
    end
  end
  if most > 0 then redis.call('pexpire', KEYS[1], most) return 0 end
  if mode == 'write' then return 0 end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""
READ_RENEW = """
if redis.call('hget', KEYS[1], ARGV[2]) == false then return 0 end
redis.call('pexpire', KEYS[1], ARGV[1])
for _, key in ipairs(redis.call('hkeys', KEYS[1])) do
  local counter = tonumber(redis.call('hget', KEYS[1], key))
  if type(counter) == 'number' then
    for i = counter, 1, -1 do
      redis.call('pexpire', KEYS[2] .. ':' .. key .. ':rwlock_timeout:' .. i, ARGV[1])
    end
  end
end
return 1
"""
WRITE_LOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
  redis.call('hset', KEYS[1], 'mode', 'write')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
"""
WRITE_UNLOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then redis.call('publish', KEYS[2], ARGV[1]) return 1 end
if mode ~= 'write' or redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then redis.call('pexpire', KEYS[1], ARGV[2]) return 0 end
redis.call('hdel', KEYS[1], ARGV[3])
if redis.call('hlen', KEYS[1]) == 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], ARGV[1])
else
  redis.call('hset', KEYS[1], 'mode', 'read')
end
return 1
"""


class ReadWriteLock:
    """One thread's, as Redisson sends it."""

    def __init__(self, client, name, thread, tag):
        self.client, self.name, self.me, self.writer = client, name, thread, thread + ":write"
        self.channel, self.timeout = "redisson_rwlock:" + tag, "%s:%s:rwlock_timeout" % (tag, thread)
        self.prefix = tag

    def read(self, ms=60000):
        return self.client("EVAL", READ_LOCK, 2, self.name, self.timeout, ms, self.me, self.writer)

    def unread(self):
        return self.client("EVAL", READ_UNLOCK, 4, self.name, self.channel, self.timeout, self.prefix, 0, self.me)

    def renew(self, ms=90000):
        return self.client("EVAL", READ_RENEW, 2, self.name, self.prefix, ms, self.me)

    def write(self, ms=60000):
        return self.client("EVAL", WRITE_LOCK, 1, self.name, ms, self.writer)

    def unwrite(self):
        return self.client("EVAL", WRITE_UNLOCK, 2, self.name, self.channel, 0, 30000, self.writer)


@pytest.fixture
def threads(pair, key, backend):
    """threads(rule) on a lock of their own: a and b of two processes through the proxy, and the lock's name."""
    def make(rule="lock:"):
        tag = "{%s}" % key("t")
        return [ReadWriteLock(c, rule + tag, "uuid-%d:1" % i, tag) for i, c in enumerate(pair)]
    return make


def test_readers_and_writers_as_redisson_has_them(threads, direct):
    a, b = threads()
    name = a.name
    assert a.read() is None and b.read() is None and a.read() is None, "several read, one of them twice"
    assert 0 < b.write() <= 60000, "nobody writes meanwhile"
    assert a.client("PEXPIRE", name, 1000) in (0, 1) and b.client("DEL", name) == 0
    assert [a.unread(), a.unread()] == [0, 0], "the other one still reads"
    assert direct("HGETALL", name) in (["mode", "read", b.me, "1"], {"mode": "read", b.me: "1"})
    assert 0 < a.write() and b.renew() == 1 and direct("PTTL", name) > 60000
    assert lock_facts(a.client, name)["field"] == b.me, "the one that is left is known by its watchdog"
    assert a.client("PEXPIRE", name, 1) == 0 and a.client("DEL", name) == 0
    assert b.unread() == 1 and direct("EXISTS", name) == 0
    assert a.write() is None and a.write() is None and 0 < b.read() and 0 < b.write()
    assert lock_facts(b.client, name)["field"] == a.writer
    assert b.client("DEL", name) == 0 and b.unwrite() is None
    assert a.read() is None and [a.unwrite(), a.unwrite()] == [0, 1], "what wrote goes on reading"
    assert b.read() is None and 0 < b.write()
    assert [a.unread(), b.unread()] == [0, 1] and direct("EXISTS", name) == 0


def test_a_reader_that_leaves_takes_nobody_else_with_it(threads, direct, proxy, connect):
    a, b = threads("lock:release:")
    assert a.read() is None and b.read() is None
    assert lock_facts(b.client, a.name)["field"] == a.me
    a.client.close()
    until(lambda: direct("HEXISTS", a.name, a.me) == 0, 15, "the end of who has left")
    assert direct("HGET", b.name, b.me) == "1" and b.renew() == 1
    assert lock_facts(b.client, b.name)["field"] == b.me
    assert b.unread() == 1


def test_a_careless_del_of_a_reader_is_its_own(threads, direct):
    a, b = threads()
    assert a.read() is None and b.read() is None
    assert a.client("DEL", a.name) == 1
    assert direct("HGET", b.name, b.me) == "1" and b.renew() == 1 and a.client("DEL", a.name) == 0
    assert b.client("DEL", b.name) == 1 and direct("EXISTS", b.name) == 0


# ---- hash commands outside of scripts ----------------------------------------------------------------


@pytest.fixture
def both(proxy, backend, connect, key):
    """both(*commands) of one session on a key of its own: what Redis answers and what the proxy does."""

    def run(*commands):
        name = key("lock:hash")
        results = []
        for client in (backend.direct(), connect(proxy)):
            results.append([client(*[name if w == "K" else w for w in c]) for c in commands])
            client("DEL", name)
            client.close()
        return results

    return run


def test_a_holders_hash_commands_are_redis_own(both):
    for acquire in (("HSETNX", "K", "f", "me"), ("HSET", "K", "f", "1"), ("HSET", "K", "f", "1", "g", "2"),
                    ("HMSET", "K", "f", "1"), ("HINCRBY", "K", "f", "1"), ("HINCRBYFLOAT", "K", "f", "1.5")):
        direct, through = both(acquire, acquire, ("HGETALL", "K"), ("HSETNX", "K", "f", "x"), ("HSETNX", "K", "h", "x"),
                               ("HDEL", "K", "g", "h"), ("HEXISTS", "K", "f"), ("PEXPIRE", "K", 50000),
                               ("HINCRBY", "K", "n", 3), ("HINCRBY", "K", "n", "x"), ("HGET", "K", "f"),
                               ("HDEL", "K", "n", "f"), ("EXISTS", "K"), ("HDEL", "K", "f"), acquire, ("DEL", "K"),
                               ("SET", "K", "text"), ("HSETNX", "K", "f", "me"), ("HDEL", "K", "f"))
        assert through == direct


def test_nobody_elses_field(pair, key):
    a, b = pair
    name = key("lock:kinds:hash")
    assert a("HSETNX", name, "owner", "a") == 1 and 0 < b("PTTL", name) <= 30000
    fence = lock_facts(a, name)["fence"]
    assert [b("HSETNX", name, "owner", "b"), b("HSETNX", name, "other", "b"), b("HDEL", name, "owner")] == [0, 0, 0]
    for command in (("HSET", name, "owner", "b"), ("HINCRBY", name, "mine", 1), ("HMSET", name, "mine", 1),
                    ("HINCRBYFLOAT", name, "mine", 1)):
        reply = b(*command)
        assert isinstance(reply, Error) and reply.startswith("LOCKED")
    assert b("HGETALL", name) in (["owner", "a"], {"owner": "a"})
    assert a("HDEL", name, "owner") == 1
    assert b("HSETNX", name, "owner", "b") == 1 and lock_facts(b, name)["fence"] > fence
    assert a("HDEL", name, "owner") == 0 and b("HGET", name, "owner") == "b"


# ---- counts in hashes ----------------------------------------------------------------------------------------


def test_a_count_says_no(pair, key, direct):
    """HINCRBY of one field: 1 acquires. A loser gets its number, and may take back what it has counted, and no more."""
    a, b = pair
    name = key("lock:kinds:count")
    assert a("HINCRBY", name, "lock", 1) == 1 and 0 < b("PTTL", name) <= 30000
    facts = lock_facts(a, name)
    assert [b("HINCRBY", name, "lock", n) for n in (1, 2, -3)] == [2, 4, 1]
    for command in (("HINCRBY", name, "lock", -1), ("HINCRBY", name, "lock", -5), ("HDEL", name, "lock")):
        assert b(*command) == 0 and direct("HGET", name, "lock") == "1"
    for command in (("HSET", name, "lock", 0), ("HSET", name, "data", "x"), ("HMSET", name, "data", "x", "lock", 0),
                    ("HINCRBYFLOAT", name, "lock", 1)):
        reply = b(*command)
        assert isinstance(reply, Error) and reply.startswith("LOCKED"), command
    assert direct("HGETALL", name) == ["lock", "1"]
    assert lock_facts(a, name)["fence"] == facts["fence"]
    assert [a("HINCRBY", name, "lock", n) for n in (1, -1)] == [2, 1], "it is held twice, and then once"
    assert [a("HINCRBY", name, "writes", 7), b("HINCRBY", name, "wait", 1), b("HINCRBY", name, "wait", -1)] == [7, 1, 0]
    assert [a("HINCRBY", name, "writes", -7), b("HINCRBY", name, "wait", -1)] == [0, -1], "these fields hold no lock"
    assert isinstance(b("HSET", name, "data", "x"), Error), "the lock is held still"
    assert a("HINCRBY", name, "lock", -1) == 0
    assert a("HINCRBY", name, "lock", 1) == 1 and a("HSET", name, "lock", 0) == 0
    assert [a("HINCRBY", name, "beside", 1), b("HINCRBY", name, "beside", 1)] == [1, 2], "data, behind the release"
    assert b("HINCRBY", name, "lock", 1) == 1 and lock_facts(b, name)["fence"] > facts["fence"]
    assert a("HINCRBY", name, "lock", -1) == 0 and direct("HGET", name, "lock") == "1"
    assert a("HINCRBY", name, "lock", 1) == 2


def test_what_losers_have_counted_stays(pair, key, direct):
    a, b = pair
    name = key("lock:kinds:count")
    assert [a("HINCRBY", name, "lock", 1), b("HINCRBY", name, "lock", 1)] == [1, 2]
    assert a("HINCRBY", name, "lock", -1) == 1
    assert a("PROXY", "LOCK", name) is None or "fence" not in lock_facts(a, name) or lock_facts(a, name)["fence"] == 0
    assert [b("HINCRBY", name, "lock", n) for n in (1, -1, -1, 1)] == [2, 1, 0, 1]
    assert isinstance(a("HSET", name, "x", 1), Error), "the lock is b's"


@pytest.mark.parametrize("release", ["HINCRBY lock -1", "HSET lock 0", "HMSET more y lock 0", "HSET lock -1", "HINCRBYFLOAT lock -1",
                                     "HDEL lock"])
@pytest.mark.parametrize("expiry", [None, 500])
def test_a_count_that_is_taken_back_releases(pair, proxy, connect, key, direct, release, expiry):
    """The hash stays, with the expiry that the application gave it, and without the proxy's."""
    a, b = pair
    third = connect(proxy)
    name = key("lock:kinds:count")
    command, *words = release.split()
    for _ in range(2):
        assert a("HINCRBY", name, "lock", 1) == 1
        assert a("HSET", name, "data", "x") in (0, 1)
        if expiry:
            assert a("EXPIRE", name, expiry) == 1
        assert isinstance(b("HSET", name, "more", "z"), Error)
        assert not isinstance(a(command, name, *words), Error)
        assert b("HGET", name, "data") == "x"
        ttl = b("TTL", name)
        assert ttl == -1 or expiry
        assert not expiry or expiry - 5 <= ttl <= expiry
        count = 1 if command == "HDEL" or "-1" not in release else int(float(b("HGET", name, "lock"))) + 1
        assert third("HINCRBY", name, "lock", 1) == count
        if count == 1:
            assert isinstance(a("HSET", name, "more", "z"), Error), "it is the third session's lock"
            assert third("HINCRBY", name, "lock", -1) == 0


def test_a_zero_in_a_field_that_is_no_count(pair, key):
    """HSETNX and HSET hold the lock by the field, whatever it contains."""
    a, b = pair
    for acquire in ("HSETNX", "HSET"):
        name = key("lock:kinds:field:" + acquire)
        assert a(acquire, name, "lock", 1) == 1
        assert isinstance(b("HINCRBY", name, "lock", 1), Error)
        assert a("HSET", name, "lock", 0) == 0
        assert a("HINCRBY", name, "lock", 1) == 1 and a("HINCRBY", name, "lock", -1) == 0
        assert isinstance(b("HINCRBY", name, "lock", 1), Error)
        assert a("HDEL", name, "lock") == 1
        assert b("HINCRBY", name, "lock", 1) == 1


def test_counts_in_hashes_are_redis_own(both):
    direct, through = both(("HINCRBY", "K", "n", -2), ("TTL", "K"), ("HINCRBY", "K", "n", 1), ("HINCRBY", "K", "n", 0), ("HINCRBY", "K", "n", 3),
                           ("HINCRBY", "K", "n", "x"), ("HINCRBY", "K", "n"), ("HINCRBY", "K", "n", 1, 2), ("HINCRBY", "K", "m", 5), ("HGETALL", "K"),
                           ("HSET", "K", "t", "text"), ("HINCRBY", "K", "t", 1), ("HINCRBY", "K", "n", -2), ("TTL", "K"), ("HGETALL", "K"), ("DEL", "K"),
                           ("HINCRBY", "K", "n", "9223372036854775808"), ("EXISTS", "K"), ("SET", "K", "text"), ("HINCRBY", "K", "n", 1), ("DEL", "K"),
                           ("RPUSH", "K", "x"), ("HINCRBY", "K", "n", 1), ("DEL", "K"), ("EXISTS", "K"))
    assert through == direct


def test_a_count_that_no_script_can_hold(pair, key, direct):
    a, _ = pair
    name = key("lock:kinds:count")
    for there in ((), ("n", str(2 ** 60))):
        if there:
            direct("HSET", name, *there)
        reply = a("HINCRBY", name, "n", str(2 ** 60))
        assert isinstance(reply, Error) and "too large" in reply
        assert direct("HGETALL", name) == list(there)


def test_a_late_count_frees_nothing(pair, key):
    a, b = pair
    name = key("lock:kinds:count")
    assert a("HINCRBY", name, "lock", 1) == 1 and a("PEXPIRE", name, 30) == 1
    until(lambda: b("HINCRBY", name, "lock", 1) == 1, 15, "the end of the lease", 0.005)
    assert a("HINCRBY", name, "lock", -1) == 0
    assert isinstance(a("HSET", name, "lock", 0), Error)
    assert b("HGET", name, "lock") == "1" and b("HINCRBY", name, "lock", -1) == 0


def test_counts_in_transactions(pair, key):
    a, b = pair
    name = key("lock:kinds:count")
    for client, number in ((a, 1), (b, 2)):
        assert client("MULTI") == "OK"
        assert [client("HINCRBY", name, "lock", 1), client("EXPIRE", name, 100)] == ["QUEUED"] * 2
        assert client("EXEC") == [number, 1 if client is a else 0]
    assert a("MULTI") == "OK"
    assert [a("EXPIRE", name, 500), a("HMSET", name, "data", "x", "lock", 0), a("HINCRBY", name, "writes", 1)] == ["QUEUED"] * 3
    assert a("EXEC") == [1, "OK", 1]
    assert 490 < b("TTL", name) <= 500
    assert b("HINCRBY", name, "lock", 1) == 1


def test_a_counting_worker_that_leaves(proxy, connect, key):
    """The lease that the proxy gave ends, and with it what losers have counted."""
    a, b = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("a", "b"))
    name = key("lock:short:kinds:count")
    assert [a("HINCRBY", name, "lock", 1), b("HINCRBY", name, "lock", 1), a("PING")] == [1, 2, "PONG"]  # no one-shot client
    a.close()
    until(lambda: b("EXISTS", name) == 0, 15, "the end of the lease")
    assert b("HINCRBY", name, "lock", 1) == 1


def test_late_hdel(pair, key):
    """A's lease ends, B acquires with the same field, A's release is refused."""
    a, b = pair
    name = key("lock:kinds:hash")
    assert a("HSETNX", name, "owner", "a") == 1 and a("PEXPIRE", name, 30) == 1
    until(lambda: b("HSETNX", name, "owner", "b") == 1, 15, "the end of the lease", 0.005)
    assert a("HDEL", name, "owner") == 0
    assert b("HDEL", name, "owner") == 1


def test_hash_commands_inside_multi(pair, key):
    a, b = pair
    name = key("lock:kinds:hash")
    for command in (("MULTI",), ("HSETNX", name, "f", "a"), ("HSET", name, "f", "aa"), ("PEXPIRE", name, 60000)):
        assert a(*command) in ("OK", "QUEUED")
    assert a("EXEC") == [1, 0, 1]
    for command in (("MULTI",), ("HSETNX", name, "f", "b"), ("HDEL", name, "f")):
        assert b(*command) in ("OK", "QUEUED")
    assert b("EXEC") == [0, 0] and a("HGET", name, "f") == "aa"


# ---- scripts that run long ---------------------------------------------------------------------------------

LIBRARY = "#!lua name=lib\nredis.register_function('endless', function() while true do redis.call('ping') end end)"


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def impatient(request):
    """A proxy in front of nodes that call a script slow after 20 ms."""
    make = servers.RedisServer if request.param == "standalone" else servers.RedisCluster
    backend = make("--busy-reply-threshold", "20")
    proxy = servers.Proxy(backend)
    yield proxy
    proxy.stop()
    proxy.remove()
    backend.stop()


@pytest.mark.parametrize("kill, words", [
    (("SCRIPT", "KILL"), ("EVAL", "while true do redis.call('ping') end", "1", "k")),
    (("FUNCTION", "KILL"), ("FCALL", "endless", "1", "k")),
], ids=["eval", "fcall"])
def test_trap_14_busy_and_kill_on_another_connection(impatient, connect, kill, words):
    """Others hear BUSY from the node while a script runs, none waits behind it, and one of them may kill it."""
    script, other, third = connect(impatient), connect(impatient), connect(impatient)
    if words[0] == "FCALL":
        assert other("FUNCTION", "LOAD", "REPLACE", LIBRARY) == "lib"
    script.send(encode(*words) + encode("SET", "k", "behind") + encode("GET", "k"))
    until(lambda: str(other("GET", "k")).startswith("BUSY "))
    assert third("SET", "k", "other").startswith("BUSY ")
    assert third("SETNX", "lock:{k}", "1").startswith("BUSY ")
    wrong = ("FUNCTION" if kill[0] == "SCRIPT" else "SCRIPT", "KILL")
    assert third(*wrong).startswith("BUSY ")
    assert third(*kill) == "OK"
    assert "killed by user" in script.read()
    assert script.read() == "OK" and script.read() == "behind"
    assert third("SETNX", "lock:{k}", "1") == 1 and third("DEL", "lock:{k}") == 1


def test_a_session_stays_behind_its_own_script(client, key):
    """Pipelined around scripts, a session's requests are executed in its order."""
    name = key("order")
    script = "return redis.call('append', KEYS[1], ARGV[1])"
    for _ in range(20):
        batch = [("DEL", name), ("EVAL", script, "1", name, "b"), ("APPEND", name, "c"), ("EVAL", script, "1", name, "d"),
                 ("GET", name)]
        assert client.pipeline(batch)[-1] == b"$3\r\nbcd\r\n"
        client("DEL", name)
        assert client.pipeline(batch[1:])[-1] == b"$3\r\nbcd\r\n"
