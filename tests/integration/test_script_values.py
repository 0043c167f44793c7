"""Locks that the application's own scripts acquire are recognised, whatever their value: the key did not exist before the
script and exists after it, with no other command in between."""

import hashlib
import threading
import time

import pytest

import servers
from helpers import NOSCRIPT
from resp import parse
from servers import until

SCRIPTS = {
    "literal": ("if redis.call('set', KEYS[1], 'locked', 'NX') then return 1 end return 0", ()),
    "literal-expiry": ("return redis.call('set', KEYS[1], 'locked', 'NX', 'PX', 60000) and 1 or 0", ()),
    "composed": ("return redis.call('set', KEYS[1], ARGV[1] .. ':' .. ARGV[2], 'NX', 'EX', 60) and 1 or 0", ("node", 7)),
    "setex": ("if redis.call('exists', KEYS[1]) == 1 then return 0 end redis.call('setex', KEYS[1], 60, 'mine') return 1", ()),
    "hash": ("if redis.call('exists', KEYS[1]) == 1 then return 0 end "
             "redis.call('hset', KEYS[1], 'holder', 1) redis.call('pexpire', KEYS[1], 60000) return 1", ()),
}
DOOR = "redis.call('hset', KEYS[1], 'colour', 'green', 'width', 80) return 1"


def lock_facts(client, name):
    words = client("PROXY", "LOCK", name)
    return dict(zip(words[0::2], words[1::2]))


def told(client, commands):
    return [parse(reply)[0] for reply in client.pipeline(commands)]


@pytest.fixture
def pair(proxy, connect):
    """Two processes, as their names say. Scripts that another test has flushed are known again (test_flushed_scripts)."""
    warm = connect(proxy)
    for n in range(10):  # on every node
        warm("EVAL", "return 1", 1, "lock:warm:%d" % n)
    return [connect(proxy, commands=[("CLIENT", "SETNAME", "process-%d" % i)]) for i in (1, 2)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_acquired_whatever_the_value(pair, key, script):
    a, b = pair
    source, arguments = SCRIPTS[script]
    name = key("lock:script")
    for _ in range(3):
        assert a("EVAL", source, 1, name, *arguments) == 1
        assert b("EVAL", source, 1, name, *arguments) == 0
        assert lock_facts(b, name)["state"] == "held"
        assert 0 < b("PTTL", name) <= 60000
        assert [b("DEL", name), b("PEXPIRE", name, 1), b("PERSIST", name)] == [0, 0, 0]
        assert a("PROXY", "TOKEN", name) > 0 and b("PROXY", "TOKEN", name) is None
        assert a("DEL", name) == 1
    assert b("EVAL", source, 1, name, *arguments) == 1
    assert a("DEL", name) == 0 and b("DEL", name) == 1


def test_a_literal_without_an_expiry_is_leased_and_renewed(pair, key):
    a, b = pair
    name = key("lock:short:script")
    assert a("EVAL", SCRIPTS["literal"][0], 1, name) == 1
    assert lock_facts(b, name)["expiry"] == "lease"
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert b("EVAL", SCRIPTS["literal"][0], 1, name) == 0
        assert 0 < b("PTTL", name) <= 2000
    assert a("DEL", name) == 1
    assert b("EVAL", SCRIPTS["literal"][0], 1, name) == 1


def test_evalsha_and_functions(pair, backend, key):
    a, b = pair
    name = key("lock:script")
    source = SCRIPTS["literal"][0] + " -- " + name
    sha = hashlib.sha1(source.encode()).hexdigest()
    assert a("EVALSHA", sha, 1, name) == NOSCRIPT
    assert a("EXISTS", name) == 0 and a("PROXY", "LOCKS", name) == []
    assert a("EVAL", source, 1, name) == 1
    assert b("EVALSHA", sha, 1, name) == 0 and b("DEL", name) == 0 and a("DEL", name) == 1
    assert b("EVALSHA", sha, 1, name) == 1 and a("DEL", name) == 0 and b("DEL", name) == 1
    library = "lib" + str(time.time_ns())
    code = "#!lua name=%s\nredis.register_function('%s', function(KEYS, ARGV) " \
           "if redis.call('set', KEYS[1], 'in use', 'NX') then return 1 end return 0 end)"
    assert a("FUNCTION", "LOAD", code % (library, library)) == library
    assert a("FCALL", library, 1, name) == 1 and b("FCALL", library, 1, name) == 0
    assert [b("DEL", name), a("PEXPIRE", name, 9000), a("DEL", name)] == [0, 1, 1]
    a("FUNCTION", "DELETE", library)


def test_data_that_a_script_makes(pair, direct, key):
    """Its owner alone removes it, but nothing gives it an end."""
    a, b = pair
    name = key("lock:script")
    assert a("EVAL", DOOR, 1, name) == 1
    assert direct("PTTL", name) == -1
    assert b("HGETALL", name) == a("HGETALL", name) == ["colour", "green", "width", "80"]
    assert a("DEL", name) == 1
    for make in ("redis.call('zadd', KEYS[1], 1, 'x')", "redis.call('sadd', KEYS[1], 'x')",
                 "redis.call('xadd', KEYS[1], '*', 'a', 'b')"):
        assert a("EVAL", make + " return 1", 1, name) == 1
        assert direct("PTTL", name) == -1 and lock_facts(a, name)["state"] == "foreign"
        direct("DEL", name)


def test_what_was_there_before_is_not_acquired(pair, direct, key):
    a, b = pair
    name = key("lock:script")
    direct("SET", name, "locked", "PX", 60000)
    assert a("EVAL", SCRIPTS["literal"][0], 1, name) == 0
    assert lock_facts(a, name)["state"] == "foreign"
    assert a("PROXY", "TOKEN", name) is None
    assert b("DEL", name) == 1, "it is nobody's lease"
    assert a("EVAL", "return redis.call('get', KEYS[1])", 1, name) is None
    assert a("PROXY", "LOCKS", name) == []


def test_no_record_is_left_of_a_script_that_makes_nothing(client, direct, key):
    name = key("lock:{script}")
    assert client("EVAL", "return redis.call('get', KEYS[1])", 1, name) is None
    assert client("EVAL", "redis.call('set', KEYS[1], 1) redis.call('del', KEYS[1]) return 1", 1, name) == 1
    assert [k for k in direct("KEYS", "*" + name)] == []


@pytest.mark.parametrize("protocol", [2, 3])
def test_errors_are_redis_own(proxy, oracle, connect, key, protocol):
    """Those of scripts, and those by which it refuses one, with what is pipelined before and behind."""
    tag = "{%s}" % key("t")
    name, plain = "lock:" + tag, "plain:" + tag
    scripts = [
        ("EVAL", "return redis.call('nonsense')", 1, name),
        ("EVAL", "redis.call('set', KEYS[1], 'x') return redis.call('lpush', KEYS[1], 1)", 1, name),
        ("EVAL", "not lua", 1, name),
        ("EVAL", "return redis.error_reply('MOVED 1 127.0.0.1:1')", 1, name),
        ("EVAL", "return redis.error_reply('EXECABORT mine')", 1, name),
        ("EVAL", "return {err = 'NOSCRIPT mine'}", 1, name),
        ("EVAL", "return {redis.pcall('nonsense'), 1, {}}", 1, name),
        ("EVAL", "return {1, 2, 3}", 1, name),
        ("EVAL", "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 1)", 1, name),
        ("EVAL", "#!lua flags=wrong\nreturn 1", 1, name),
        ("EVALSHA", "0" * 40, 1, name),
        ("EVALSHA", "short", 1, name),
        ("FCALL", "none", 1, name),
        ("EVAL", "return 1", 2, name),
    ]
    commands = [("HELLO", protocol)]
    for script in scripts:
        commands += [("SET", plain, "v"), script, ("GET", plain), ("GET", name), ("DEL", name)]
    assert connect(proxy).pipeline(commands)[1:] == connect(oracle).pipeline(commands)[1:]


def test_large_replies(proxy, oracle, connect, key):
    """Longer than what the proxy reads at once, and cut anywhere."""
    name = key("lock:script")
    for size in (1, 4000, 65521, 262144, 3000000):
        script = ("EVAL", "return {string.rep('x', %d), 7}" % size, 1, name)
        assert connect(proxy).raw(*script) == connect(oracle).raw(*script)


def test_pipelines_keep_their_order(pair, key):
    a, b = pair
    tag = "{%s}" % key("t")
    names = ["lock:%s:%d" % (tag, i) for i in range(50)]
    source = SCRIPTS["literal"][0]
    commands = []
    for name in names:
        commands += [("EVAL", source, 1, name), ("EVAL", source, 1, name), ("GET", name), ("DEL", name), ("EXISTS", name)]
    assert told(a, commands) == [1, 0, "locked", 1, 0] * len(names)
    commands = [("EVAL", source, 1, name) for name in names]
    assert told(a, commands) == [1] * len(names) and told(b, commands) == [0] * len(names)
    assert b("DEL", *names) == 0 and a("DEL", *names) == len(names)


def test_inside_the_clients_own_transaction(pair, key):
    a, b = pair
    name, source = key("lock:{script}"), SCRIPTS["literal"][0]
    plan = [("MULTI",), ("SET", "plain:{script}", 1), ("EVAL", source, 1, name), ("EVAL", source, 1, name),
            ("PEXPIRE", name, 90000), ("GET", name), ("EXEC",)]
    assert told(a, plan)[-1] == ["OK", 1, 0, 1, "locked"]
    assert told(b, [("MULTI",), ("EVAL", source, 1, name), ("DEL", name), ("EXEC",)])[-1] == [0, 0]
    assert told(a, [("MULTI",), ("DEL", name), ("EVAL", source, 1, name), ("EXEC",)])[-1] == [1, 1]
    assert b("DEL", name) == 0 and a("DEL", name) == 1


def test_two_proxies(backend, start_proxy, connect, key):
    """The lease is in Redis: another proxy's clients are refused, and the same identity's may release."""
    proxies = [start_proxy(backend), start_proxy(backend)]
    a = connect(proxies[0], commands=[("CLIENT", "SETNAME", "one")])
    b, again = [connect(proxies[1], commands=[("CLIENT", "SETNAME", n)]) for n in ("two", "one")]
    name, source = key("lock:script"), SCRIPTS["composed"][0]
    assert a("EVAL", source, 1, name, "x", "y") == 1
    assert b("EVAL", source, 1, name, "x", "y") == 0
    assert [b("DEL", name), b("PEXPIRE", name, 1)] == [0, 0]
    assert again("DEL", name) == 1
    assert b("EVAL", source, 1, name, "x", "y") == 1
    assert a("DEL", name) == 0 and b("DEL", name) == 1


def test_nobody_comes_between(pair, backend, key):
    """A client that goes around the proxy takes and frees the lock all the time, with the same value: a script that
    found it taken has acquired nothing, so that its client never removes the other one's lock."""
    a, _ = pair
    name, source = key("lock:script"), SCRIPTS["literal-expiry"][0]
    stop, taken, stolen = threading.Event(), [0], []

    def around():
        with backend.node_of(name).client() as redis:
            while not stop.is_set():
                if redis("SET", name, "locked", "NX", "PX", 60000) == "OK":
                    taken[0] += 1
                    for _ in range(3):
                        if redis("GET", name) is None:
                            stolen.append(taken[0])
                    if redis("DEL", name) == 0:
                        stolen.append(taken[0])

    other = threading.Thread(target=around)
    other.start()
    counts = {0: 0, 1: 0}
    try:
        deadline = time.monotonic() + 30
        while (min(counts.values()) < 100 or taken[0] < 100) and time.monotonic() < deadline:
            won = a("EVAL", source, 1, name)
            counts[won] += 1
            assert (a("PROXY", "TOKEN", name) is not None) == won
            if won:
                assert a("DEL", name) == 1
    finally:
        stop.set()
        other.join()
    assert min(counts.values()) >= 100 and taken[0] >= 100, (counts, taken)
    assert stolen == []


def test_a_full_memory_refuses_no_release(start_redis, start_proxy, connect):
    """Redis queues nothing then: a script that deletes runs all the same, by itself."""
    redis = start_redis()
    proxy = start_proxy(redis)
    client, direct = connect(proxy), connect(redis)
    source, release = SCRIPTS["literal"][0], "return redis.call('del', KEYS[1])"
    assert client("EVAL", source, 1, "lock:a") == 1 and client("EVAL", source, 1, "lock:b") == 1
    direct("CONFIG", "SET", "maxmemory", 1)
    for words in (("EVAL", source, 1, "lock:c"), ("EVAL", release, 1, "lock:c"), ("EVAL", "return 1", 1, "lock:c")):
        assert client.raw(*words) == direct.raw(*words)
    assert client("EVAL", release, 1, "lock:a") == 1
    direct("CONFIG", "SET", "maxmemory", 0)
    assert direct("EXISTS", "lock:a") == 0
    until(lambda: client("EVAL", source, 1, "lock:d") == 1 and client("DEL", "lock:d") == 1, 10, "a known acquisition")
    assert client("DEL", "lock:b") == 1


def test_who_may_not_begin_a_transaction(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis)
    direct = connect(redis)
    direct("ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", "-multi")
    client = connect(proxy, commands=[("AUTH", "plain", "secret")])
    other = connect(proxy, commands=[("CLIENT", "SETNAME", "other")])
    source = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 60000) and {1, 'yes'} or 0"
    for i in range(4):
        name = "lock:%d" % i
        assert client("EVAL", source, 1, name, "v") == [1, "yes"]
        assert client("EVAL", source, 1, name, "v") == 0
        assert other("DEL", name) == 0 and client("DEL", name) == 1
    assert client("EVALSHA", "0" * 40, 1, "lock:x") == NOSCRIPT


def test_a_new_master_knows_no_scripts(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis)
    client, other = connect(proxy), connect(proxy, commands=[("CLIENT", "SETNAME", "other")])
    source = SCRIPTS["literal"][0]
    assert client("EVAL", source, 1, "lock:a") == 1
    redis.restart()
    until(lambda: client("PING") == "PONG", 15, "the new one")
    client("DEL", "lock:b")
    until(lambda: client("EVAL", source, 1, "lock:b") in (0, 1), 15, "a script's answer")
    assert other("DEL", "lock:b") == 0 and client("DEL", "lock:b") == 1


def test_flushed_scripts(backend, client, key):
    """One that was flushed behind the proxy's back takes a way around: by its argument the lock is known all the same."""
    name = key("lock:script")
    source = "return redis.call('set', KEYS[1], ARGV[1], 'NX') and 1 or 0"
    for _ in range(2):
        assert client("EVAL", source, 1, name, "v") == 1
        assert client("PROXY", "TOKEN", name) > 0 and client("DEL", name) == 1
        for node in backend.nodes:
            node.run("SCRIPT", "FLUSH")
    assert client("EVAL", source, 1, name, "v") == 1
    until(lambda: client("PROXY", "TOKEN", name), 5, "the lease")
    assert client("DEL", name) == 1
    assert client("EVAL", SCRIPTS["literal"][0], 1, name) == 1
    assert client("PROXY", "TOKEN", name) > 0 and client("DEL", name) == 1


def test_while_its_slot_moves(start_cluster, start_proxy, connect):
    """MOVED and ASK send the script and its steps after the key, together."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in "ab"]
    source = SCRIPTS["literal-expiry"][0]
    name = "lock:{moving}"
    slot = servers.slot_of(name)
    old = cluster.node_of(name)
    new = next(node for node in cluster.nodes if node is not old)
    ids = {node: node.run("CLUSTER", "MYID") for node in (old, new)}
    assert a("EVAL", source, 1, name) == 1
    new.run("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
    old.run("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
    assert b("EVAL", source, 1, name) == 0
    with old.client() as redis:
        keys = redis("CLUSTER", "GETKEYSINSLOT", slot, 100)
        assert redis("MIGRATE", *new.address, "", 0, 5000, "KEYS", *keys) == "OK"
    assert b("EVAL", source, 1, name) == 0 and b("DEL", name) == 0
    assert b("EVAL", source, 1, "lock:{moving}:2") == 1 and a("EVAL", source, 1, "lock:{moving}:2") == 0
    for node in (new, old):
        node.run("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
    assert b("EVAL", source, 1, name) == 0 and b("DEL", name) == 0 and a("DEL", name) == 1
    assert b("EVAL", source, 1, name) == 1 and b("DEL", name) == 1
