"""Rules in mode audit: no byte is changed, and the incidents are inferred. Also rules that are switched while locks are
held."""

import random
import signal
import threading

import pytest

import servers
from fake import RECORD as LEARNT
from fake import Relay
from resp import Client, encode, parse
from servers import until

AUDIT = "lock lock:* mode audit"
RECORD = LEARNT.decode()


def incidents(client, key):
    """The incidents on a key, oldest first."""
    rows = [dict(zip(row[::2], row[1::2])) for row in client("PROXY", "INCIDENTS", "1000")]
    return [row for row in reversed(rows) if row["key"] == key]


def kinds(client, key):
    return [row["kind"] for row in incidents(client, key)]


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def audited(farm, request):
    """A proxy of its own before the shared servers, everything in audit."""
    proxy = servers.Proxy(
        farm.backend(request.param),
        "lock lock:any:* mode audit owner any",
        "lock lock:client:* mode audit owner client",
        "lock lock:nolease:* mode audit lease 0",
        AUDIT,
    )
    yield proxy
    proxy.stop()
    proxy.remove()


@pytest.fixture
def three(audited, connect, request):
    """Of a client identity of their own: what one test proves of its connections is nothing to another."""
    name = [("CLIENT", "SETNAME", request.function.__name__)]
    return [connect(audited, commands=name) for _ in range(3)]


# ---- incidents ------------------------------------------------------------------------------------------


def test_right_use_is_silent(three):
    a, b, _ = three
    key = "lock:right"
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert b("SET", key, "1", "NX", "PX", "5000") is None
    assert a("PEXPIRE", key, "6000") == 1
    assert a("DEL", key) == 1
    assert b("SET", key, "1", "NX", "EX", "5") == "OK"
    assert b("GETDEL", key) == "1"
    assert kinds(a, key) == []


def test_foreign_release_and_what_follows(three):
    a, b, c = three
    key = "lock:foreign"
    assert b("CLIENT", "SETNAME", "another") == "OK"
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert b("DEL", key) == 1
    assert c("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert a("DEL", key) == 1
    first, second = incidents(a, key)
    assert (first["kind"], second["kind"]) == ("foreign_release", "late_release")
    assert first["action"] == "would be refused: 0; this client holds no lease of the lock"
    assert first["command"] == "DEL" and first["holder"]
    assert second["action"].startswith("would be refused: 0")


def test_release_by_a_colleague(three):
    """A release by the same client: enforcing would believe it, and later commands cause no incidents."""
    a, b, _ = three
    key = "lock:believed"
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert b("DEL", key) == 1
    (row,) = incidents(a, key)
    assert row["kind"] == "believed" and row["command"] == "DEL"
    assert row["action"].startswith("released: ")
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert a("DEL", key) == 1
    assert kinds(a, key) == ["believed"]


def test_late_release_and_overrun(three):
    a, b, _ = three
    key = "lock:late"
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert a("DEL", key) == 1
    assert a("SET", key, "1", "NX", "PX", "60") == "OK"
    until(lambda: kinds(a, key) == ["overrun"])
    assert b("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert a("DEL", key) == 1, "the damage is done"
    assert kinds(a, key) == ["overrun", "late_release"]


def test_foreign_extend(three):
    a, b, _ = three
    key = "lock:extend"
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    assert b("SETNX", key, "1") == 0
    assert b("EXPIRE", key, "50") == 1
    assert a("DEL", key) == 1
    assert kinds(a, key) == ["foreign_extend"]


def test_overwrite(three):
    a, b, _ = three
    key = "lock:overwrite"
    assert a("SET", key, "1", "EX", "50") == "OK"
    assert b("SET", key, "2", "EX", "50") == "OK"
    (row,) = incidents(a, key)
    assert row["kind"] == "overwrite"
    assert row["action"].startswith("would be refused: LOCKED")
    assert b("DEL", key) == 1
    assert kinds(a, key) == ["overwrite"]


def test_no_expiry_and_abandoned(audited, three):
    a, b, _ = three
    key = "lock:abandoned"
    with Client(audited.address, commands=[("CLIENT", "SETNAME", "dying")]) as dying:
        assert dying("SETNX", key, "1") == 1
        dying.crash()
    until(lambda: kinds(b, key) == ["no_expiry", "abandoned"])
    assert a("TTL", key) == -1, "nothing was done about it"
    assert incidents(b, key)[0]["action"].startswith("would be given a lease of 30000 ms")


def test_ambiguous(three):
    a, _, _ = three
    key = "lock:client:ambiguous"
    assert a("SET", key, "1", "NX", "PX", "50") == "OK"
    until(lambda: a("SET", key, "1", "NX", "PX", "5000") == "OK")
    assert a("DEL", key) == 1
    assert set(kinds(a, key)) >= {"late_release", "ambiguous"}


def test_owner_any_is_silent(three):
    a, b, _ = three
    key = "lock:any:queued"
    assert a("SET", key, "1", "NX", "EX", "50") == "OK"
    assert b("DEL", key) == 1
    assert kinds(a, key) == []


def test_transactions(three):
    a, b, _ = three
    key = "lock:{t}multi"
    for command in ("MULTI", ("SETNX", key, "1"), ("EXPIRE", key, "50"), ("GET", "{t}else")):
        a(*([command] if isinstance(command, str) else command))
    assert a("EXEC") == [1, 1, None]
    for command in ("MULTI", ("SETNX", key, "1"), ("EXPIRE", key, "50")):
        b(*([command] if isinstance(command, str) else command))
    assert b("EXEC") == [0, 1]
    assert kinds(a, key) == ["no_expiry", "foreign_extend"]
    a("MULTI")
    a("DEL", key)
    assert a("DISCARD") == "OK"
    a("MULTI")
    a("DEL", key)
    assert a("EXEC") == [1]
    assert kinds(a, key) == ["no_expiry", "foreign_extend"]


def test_several_keys_at_once(three, audited):
    a, b, _ = three
    keys = ["lock:many:%d" % i for i in range(4)]
    assert b("CLIENT", "SETNAME", "another") == "OK"
    for key in keys:
        assert a("SET", key, "1", "NX", "EX", "50") == "OK"
    assert b("DEL", *keys) == 4
    assert [kinds(a, key) for key in keys] == [["foreign_release"]] * 4
    for key in keys[:2]:
        assert a("SET", key, "1", "NX", "EX", "50") == "OK"
    assert b("DEL", *keys) == 2  # it is not known which session it was, so no holder is named
    assert [kinds(a, key) for key in keys] == [["foreign_release"]] * 4


def test_scripts_leave_the_lock_unknown(three):
    a, b, _ = three
    key = "lock:script"
    release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
    assert a("SET", key, "a", "NX", "EX", "50") == "OK"
    assert a("EVAL", release, "1", key, "a") == 1
    assert b("SET", key, "", "NX", "EX", "50") == "OK"
    assert a("EVAL", release, "1", key, "a") == 0
    assert b("DEL", key) == 1
    assert kinds(a, key) == []


# ---- bytes ----------------------------------------------------------------------------------------------


class Recorder(Relay):
    """Records both directions of every connection."""

    def __init__(self, to):
        self.requests, self.replies = [], []
        super().__init__(to)

    def connected(self):
        self.requests.append(bytearray())
        self.replies.append(bytearray())
        return self.requests[-1], self.replies[-1]

    def passes(self, records, requests, data):
        records[0 if requests else 1].extend(data)
        return True

    def without_what_is_learnt(self):
        """Of each connection the requests and the replies, but the proxy's own for its record of what it has learnt."""
        both = []
        for request, reply in zip(self.requests, self.replies):
            kept, at, heard = (bytearray(), bytearray()), 0, 0
            while at < len(request) and heard < len(reply):
                words, end = parse(request, at)
                _, over = parse(reply, heard)
                if words[1:2] != [RECORD]:
                    kept[0].extend(request[at:end])
                    kept[1].extend(reply[heard:over])
                at, heard = end, over
            both.append(kept)
        return both


def lock_commands(rng, keys):
    key = rng.choice(keys)
    return rng.choice(
        [
            ("SETNX", key, "1"),
            ("SET", key, "1", "NX", "PX", "40"),
            ("set", key, "2", "nx", "ex", "9", "GET"),
            ("SET", key, "3", "XX", "KEEPTTL"),
            ("SET", key, "4"),
            ("SETEX", key, "5", "5"),
            ("GETSET", key, "6"),
            ("GET", key),
            ("GETEX", key, "PX", "100"),
            ("GETDEL", key),
            ("EXPIRE", key, "5"),
            ("EXPIRE", key, "-1"),
            ("PEXPIRE", key, "500", "NX"),
            ("PERSIST", key),
            ("DEL", key),
            ("UNLINK", *keys),
            ("MGET", *keys),
            ("MSET", key, "7", "other", "7"),
            ("RENAME", key, keys[0]),
            ("INCR", key + ":n"),
            ("DECR", key + ":n"),
            ("APPEND", key, "x"),
            ("RPUSH", key + ":l", "a"),
            ("LREM", key + ":l", "1", "a"),
            ("SET", key, "1", "NX", "EX", "no"),
            ("EXPIRE", key),
            ("SET", key, ""),
        ]
    )


def test_not_a_byte_is_changed(farm):
    """What Redis gets is what the client sent, and what the client gets is what Redis sent; nothing is added but
    the proxy's reading of its own record."""
    redis = farm.backend("standalone")
    redis.flush()
    relay = Recorder(redis.address)
    proxy = servers.Proxy("standalone %s:%d" % (servers.HOST, relay.port), AUDIT)
    rng = random.Random(11)
    keys = ["lock:bytes:%d" % i for i in range(3)]
    try:
        with Client(proxy.address) as client:
            sent, got = bytearray(), bytearray()
            for _ in range(40):
                batch = [encode(*lock_commands(rng, keys)) for _ in range(rng.randint(1, 30))]
                client.send(b"".join(batch))
                sent += b"".join(batch)
                for _ in batch:
                    got += client.read_raw()
            assert any(sent in requests and got in replies for requests, replies in relay.without_what_is_learnt())
            script = encode("EVAL", "return {redis.call('get', KEYS[1]), 'script'}", "1", keys[0])
            client.send(script)
            got = client.read_raw()
            assert any(script in r for r in relay.requests)
            assert any(got in r for r in relay.replies)
            batch = b"".join(encode(*c) for c in (["MULTI"], ["SETNX", keys[0], "1"], ["DEL", *keys], ["EXEC"]))
            client.send(batch)
            got = b"".join(client.read_raw() for _ in range(4))
            assert any(batch in r for r in relay.requests)
            assert any(got in r for r in relay.replies)
            script = encode("EVAL", "return redis.call('set', KEYS[1], 'script')", "1", keys[0])
            client.send(script + encode("GET", keys[0]))  # scripts have a connection of their own
            assert [client.read(), client.read()] == ["OK", "script"]
            assert any(script in r for r in relay.requests)
            assert not any(b"EVALSHA" in r or b"XADD" in r for r in relay.requests)
            assert client("PROXY", "INCIDENTS"), "and it was watched"
    finally:
        proxy.stop()
        proxy.remove()
        relay.close()


# ---- switching ------------------------------------------------------------------------------------------


class Switched:
    def __init__(self, backend):
        self.upstream = "upstream " + backend.upstream()
        self.proxy = servers.Proxy(backend, AUDIT)

    def to(self, client, mode):
        self.proxy.write_config([self.upstream, "lock lock:* mode " + mode])
        assert client("PROXY", "RELOAD") == "OK"
        until(lambda: ("mode " + mode) in client("PROXY", "RULES")[0][1])


@pytest.fixture
def switched(backend):
    switched = Switched(backend)
    yield switched
    switched.proxy.stop()
    switched.proxy.remove()


def test_locks_held_across_the_switch(switched, connect):
    a, b = connect(switched.proxy), connect(switched.proxy)
    for i in range(6):
        assert a("SET", "lock:held:%d" % i, "1", "NX", "EX", "50") == "OK"
    assert a("SETNX", "lock:bare", "1") == 1
    switched.to(b, "enforce")
    assert [b("DEL", "lock:held:%d" % i) for i in range(6)] == [0] * 6, "the locks are somebody else's"
    assert b("GET", "lock:held:1") == "1"
    assert b("DEL", "lock:held:1") == 0, "also for who has seen them"
    assert b("SETNX", "lock:held:1", "1") == 0
    assert b("EXPIRE", "lock:held:0", "500") == 0
    assert a("DEL", "lock:held:0") == 1
    assert a("DEL", "lock:held:1") == 1
    assert a("EXPIRE", "lock:held:2", "100") == 1
    assert a("PROXY", "TOKEN", "lock:held:2") > 0, "it has a guard record from the first use on"
    assert a("DEL", "lock:held:2") == 1
    assert a("SET", "lock:held:3", "2", "EX", "50") == "OK"
    assert a("GETDEL", "lock:held:3") == "2"
    assert a("DEL", "lock:held:4", "lock:held:5") == 2
    assert a("PERSIST", "lock:bare") in (0, 1)
    assert a("TTL", "lock:bare") > 0, "a lease from the first use on"
    assert a("DEL", "lock:bare") == 1


def test_ended_locks_are_not_revived_by_the_switch(switched, connect):
    a, b = connect(switched.proxy), connect(switched.proxy)
    assert a("SET", "lock:x", "1", "NX", "PX", "50") == "OK"
    until(lambda: b("SET", "lock:x", "1", "NX", "PX", "20000") == "OK")
    switched.to(b, "enforce")
    assert a("DEL", "lock:x") == 0
    assert b("DEL", "lock:x") == 1


def test_a_lock_that_was_written_past_the_proxy_is_not_the_holders(switched, connect, direct):
    """Under audit a session acquired the lock. By the switch, another client has written another value, past the proxy."""
    a = connect(switched.proxy)
    assert a("SET", "lock:x", "1", "NX", "EX", "50") == "OK"
    direct("SET", "lock:x", "other", "EX", "50")
    switched.to(a, "enforce")
    assert a("DEL", "lock:x") == 0
    assert direct("GET", "lock:x") == "other"


def test_back_to_audit_and_again(switched, connect):
    a, b = (connect(switched.proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab")
    switched.to(a, "enforce")
    assert a("SET", "lock:x", "1", "NX", "EX", "50") == "OK"
    switched.to(a, "audit")
    assert a("DEL", "lock:x") == 1
    assert b("SET", "lock:x", "1", "NX", "EX", "50") == "OK"
    switched.to(a, "enforce")  # the guard record of a's lease is still there, with the same value
    assert a("DEL", "lock:x") == 0
    assert b("DEL", "lock:x") == 1
    assert kinds(a, "lock:x")[-1] == "foreign_release"


def test_switching_under_load(switched, connect):
    """Many workers acquire and release while the rule is switched to and fro: every holder can release its lock, and no
    connection is lost."""
    operator = connect(switched.proxy)
    stop = threading.Event()
    wrong, done = [], []

    def work(seed):
        rng = random.Random(seed)
        with Client(switched.proxy.address) as client:
            while not stop.is_set():
                key = "lock:load:%d" % rng.randrange(20)
                pipelined = rng.random() < 0.3
                value = str(rng.random()) if rng.random() < 0.5 else "1"
                if pipelined:
                    client.send(encode("SET", key, value, "NX", "EX", "50") + encode("GET", "else"))
                    won = client.read() == "OK"
                    client.read()
                else:
                    won = client("SET", key, value, "NX", "EX", "50") == "OK"
                if won:
                    reply = client("DEL", key)
                    done.append(1)
                    if reply != 1:
                        wrong.append((key, reply))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    try:
        for mode in ["enforce", "audit"] * 6:
            count = len(done)
            until(lambda: wrong or len(done) > count + 150)
            switched.to(operator, mode)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert wrong == [], (len(wrong), len(done), incidents(operator, wrong[0][0]))


def test_reload_by_signal(switched, connect):
    a = connect(switched.proxy)
    assert a("SETNX", "lock:x", "1") == 1
    switched.proxy.write_config([switched.upstream, "lock lock:*"])
    switched.proxy.signal(signal.SIGHUP)
    until(lambda: "mode enforce" in a("PROXY", "RULES")[0][1])
    assert a("DEL", "lock:x") == 1
