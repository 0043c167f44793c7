"""Blocking commands on data behind fences: the holder waits as on Redis, and a session that has lost the lock takes nothing."""

import collections
import random
import re
import socket
import threading
import time

import pytest

import servers
from migration import Migration
from resp import Client, Closed, Error, encode
from servers import until
from test_fences import AUDIT, fence_of, fenced, fresh, late_writes, lost, named, places, protocol, worker  # noqa: F401
from test_reload import reloaded
from test_takeover import ended, orphans, take_over  # noqa: F401: a fixture


def words(text, key):
    return [{"K": key, "K2": key + "2", "O": "other" + key[5:]}.get(word, word) for word in text.split(" ")]


def blocked(client):
    """How many wait, in whatever way."""
    return int(re.search(r"^pinned_blocking:(\d+)", client("PROXY", "INFO"), re.M).group(1))


def held(client, kind="stock", ms="60000"):
    """Data and its lock, which the client acquires."""
    key, lock = named(kind, fresh())
    assert client("SET", lock, "h", "NX", "PX", ms) == "OK"
    return key, lock


# What blocks, what ends it, and what has to be there before.
BLOCKERS = {
    "BLPOP K 0": ("RPUSH K a", None),
    "BRPOP K2 K 0": ("RPUSH K a b", None),
    "BLMOVE K K2 LEFT RIGHT 0": ("RPUSH K a", None),
    "BLMOVE K2 K LEFT RIGHT 0": ("RPUSH K2 a", None),
    "BRPOPLPUSH K K2 0": ("RPUSH K a", None),
    "BLMPOP 0 2 K2 K LEFT COUNT 2": ("RPUSH K a b c", None),
    "BZPOPMIN K 0": ("ZADD K 1 a", None),
    "BZPOPMAX K K2 0": ("ZADD K2 1.5 a", None),
    "BZMPOP 0 1 K MIN": ("ZADD K 0.1 a", None),
    "XREADGROUP GROUP g c BLOCK 0 STREAMS K >": ("XADD K 1-1 f v", "XGROUP CREATE K g $ MKSTREAM"),
}


def test_every_blocking_write_is_named():
    with open(servers.ROOT + "/parser/command_table.h") as f:
        table = re.findall(r'^COMMAND\(\w+, "([a-z-]+)", [^,]+, ([A-Z_| ]+),.*, (NEED_\w+)\)', f.read(), re.M)
    writes = {name for name, flags, need in table if "COMMAND_WRITE" in flags and need == "NEED_BLOCKING"}
    assert writes == {command.split()[0].lower() for command in BLOCKERS}


@places
@pytest.mark.parametrize("command", BLOCKERS)
def test_blocks_and_wakes(worker, connect, oracle, fenced, protocol, kind, command):
    holder, other, watch = worker("holder"), worker("other"), connect(fenced)
    plain, pusher = connect(oracle, commands=[("HELLO", str(protocol))]), connect(oracle)
    key, lock = held(holder, kind)
    wakes, before = BLOCKERS[command]
    for client in (other, pusher) if before else ():
        assert client(*words(before, key)) == "OK"
    for client in (holder, plain):
        client.send(encode(*words(command, key)) + encode("EXISTS", key, key + "2"))
    until(lambda: blocked(watch) == 1, what="the holder to wait")
    for client in (other, pusher):
        client(*words(wakes, key))
    assert [holder.read_raw(), holder.read_raw()] == [plain.read_raw(), plain.read_raw()]
    assert blocked(watch) == 0 and watch("PROXY", "LOCK", lock) is not None


BY_THEMSELVES = [
    "BLPOP K 0.02", "BRPOP K K2 0.02", "BLMOVE K K2 LEFT LEFT 0.02", "BRPOPLPUSH K K2 0.02", "BZPOPMIN K K2 0.02",
    "BZPOPMAX K 0.2", "BLMPOP 0.02 1 K LEFT", "BZMPOP 0.02 1 K MIN", "BLPOP K x", "BLPOP K -1", "BLMOVE K K2 LEFT LEFT -1",
    "BLMOVE K K2 LEFT UP 0", "BRPOPLPUSH K K2 x", "BLPOP K 1e400", "BLMPOP x 1 K LEFT", "BLMPOP 0 9 K LEFT",
    "BLMPOP 0 1 K UP", "BZMPOP -1 1 K MIN", "BZPOPMIN K nan", "XREADGROUP GROUP g c BLOCK 20 STREAMS K >",
    "XREADGROUP GROUP g c BLOCK x STREAMS K >", "XREADGROUP GROUP g c BLOCK -1 STREAMS K >", "BLPOP K", "BLPOP",
]


@places
def test_ends_by_itself(worker, connect, oracle, fenced, protocol, kind):
    holder, plain = worker("holder"), connect(oracle, commands=[("HELLO", str(protocol))])
    key, _ = held(holder, kind)
    for before, commands in ((None, BY_THEMSELVES), ("SET K 1", BY_THEMSELVES),
                             ("XGROUP CREATE K g $ MKSTREAM", [c for c in BY_THEMSELVES if c.startswith("X")])):
        for client in (holder, plain):
            client("DEL", key)
            assert not before or client(*words(before, key)) == "OK"
        for command in commands:
            began = time.monotonic()
            assert holder.raw(*words(command, key)) == plain.raw(*words(command, key)), (before, command)
            assert time.monotonic() - began < 10
        assert holder("PING") == "PONG"


@places
def test_waits_as_long_as_it_is_told(worker, kind):
    holder = worker("holder")
    key, _ = held(holder, kind)
    for seconds in (0.03, 0.3):
        began = time.monotonic()
        assert holder("BLPOP", key, str(seconds)) is None
        assert seconds - 0.002 < time.monotonic() - began < seconds + 2


@places
def test_what_is_there_already(worker, kind):
    holder = worker("holder")
    key, _ = held(holder, kind)
    requests = [["RPUSH", key, "a", "b", "c"], ["BLPOP", key, "0"], ["BRPOP", key, "0"], ["LLEN", key], ["BLPOP", key, "0"],
                ["SET", key, "1"], ["BLPOP", key, "0"], ["DEL", key]]
    holder.send(b"".join(encode(*request) for request in requests))
    replies = [holder.read() for _ in requests]
    assert replies[:6] == [3, [key, "a"], [key, "c"], 1, [key, "b"], "OK"]
    assert replies[6].startswith("WRONGTYPE ") and replies[7] == 1


# ---- the lock is lost -----------------------------------------------------------------------------------------


@places
@pytest.mark.parametrize("command", BLOCKERS)
def test_lost_while_it_waits(worker, connect, fenced, kind, command):
    """The session gets FENCED once another one has acquired since, and takes none of the later elements."""
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    wakes, before = BLOCKERS[command]
    key, lock = named(kind, fresh())
    if before:
        assert watch(*words(before, key)) == "OK"
    assert a("SET", lock, "a", "NX", "PX", "100") == "OK"
    old = fence_of(a, lock)
    a.send(encode(*words(command, key)))
    until(lambda: blocked(watch) == 1, what="the holder to wait")
    until(lambda: b("SET", lock, "b", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    assert a.read() == "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, fence_of(b, lock))
    b(*words(wakes, key))
    dump = watch.raw("DUMP", key)
    assert a(*words(command, key)).startswith("FENCED ")
    assert watch.raw("DUMP", key) == dump
    late = late_writes(watch, key) + late_writes(watch, key + "2")  # the first of them that this lock is about
    assert [row["command"] for row in late] == [command.split()[0]] * 2
    assert blocked(watch) == 0


@places
def test_nobody_has_it_since(worker, connect, fenced, kind):
    """The lease's end alone does not end the wait."""
    a, watch = worker("a"), connect(fenced)
    key, lock = held(a, kind, "50")
    a.send(encode("BLPOP", key, "0"))
    until(lambda: watch("EXISTS", lock) == 0, 10, "the lease's end")
    assert watch("RPUSH", key, "x") == 1
    assert a.read() == [key, "x"]


@places
def test_who_never_held_it_waits_in_redis(worker, connect, fenced, kind):
    c, watch = worker("c"), connect(fenced)
    key, _ = named(kind, fresh())
    c.send(encode("BLPOP", key, "0"))
    nodes = fenced.backend.nodes if fenced.backend.kind == "cluster" else [fenced.backend]
    until(lambda: any("blocked_clients:1" in node.run("INFO", "clients") for node in nodes), what="a client blocked in Redis")
    assert watch("RPUSH", key, "x") == 1
    assert c.read() == [key, "x"]


@pytest.mark.parametrize("kind", ["sole", "alone"])
def test_unlocked_refuse(worker, connect, fenced, kind):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    key, lock = held(a, kind)
    assert b("BLPOP", key, "0") == "FENCED %s is not held by this client; nothing was written" % lock
    a.send(encode("BLPOP", key, "0") + encode("RPUSH", key, "y"))
    until(lambda: blocked(watch) == 1, what="the holder to wait")
    colleague = worker("a")
    assert colleague("RPUSH", key, "x") == 1
    assert [a.read(), a.read()] == [[key, "x"], 1]


def test_released_by_a_colleague(fenced, connect):
    """Of one client over shared connections: what it has released it has not lost."""
    name = [("CLIENT", "SETNAME", "app"), ("CLIENT", "SETINFO", "LIB-NAME", "ioredis")]
    pops, locks, other = connect(fenced, commands=name), connect(fenced, commands=name), connect(fenced)
    key, lock = held(locks)
    pops.send(encode("BLPOP", key, "0"))
    until(lambda: blocked(other) == 1, what="the client to wait")
    assert locks("DEL", lock) == 1
    assert other("SET", lock, "o", "NX", "PX", "60000") == "OK"
    assert other("RPUSH", key, "x") == 1
    assert pops.read() == [key, "x"]


def test_another_fence_meanwhile(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), *AUDIT)
    a, b, watch = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in ("a", "b", "watch")]
    key, lock = held(a, ms="100")
    a.send(encode("BLPOP", key, "0"))
    until(lambda: blocked(watch) == 1, what="the holder to wait")
    assert reloaded(proxy, "lock lock:*", "fence stock:* by lock:stock:* mode off", client=watch) == "OK"
    until(lambda: b("SET", lock, "b", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    assert b("RPUSH", key, "x") == 1
    assert a.read() == [key, "x"]


# ---- ends before its time --------------------------------------------------------------------------------------


@places
@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR", ""])
def test_client_unblock(worker, connect, fenced, kind, protocol, how):
    a, watch = worker("a"), connect(fenced)
    key, _ = held(a, kind)
    number = a("CLIENT", "ID")
    assert watch("CLIENT", "UNBLOCK", str(number)) == 0
    for command, nil in (("BLPOP K 0", b"*-1\r\n"), ("BLMOVE K K2 LEFT LEFT 0", b"*-1\r\n")):
        a.send(encode(*words(command, key)) + encode("LLEN", key))
        until(lambda: blocked(watch) == 1, what="the client to wait")
        until(lambda: " flags=b " in watch("CLIENT", "LIST", "ID", str(number)), what="CLIENT LIST to say so")
        assert watch("CLIENT", "UNBLOCK", str(number), *([how] if how else [])) == 1
        error = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"
        assert a.read_raw() == (error if how == "ERROR" else b"_\r\n" if protocol == 3 else nil)
        assert a.read() == 0
        assert watch("CLIENT", "UNBLOCK", str(number)) == 0
    assert watch("RPUSH", key, "x") == 1
    assert a("BLPOP", key, "0") == [key, "x"]


@places
@pytest.mark.parametrize("how", ["close", "half-close", "with requests behind it"])
def test_leaves_while_it_waits(worker, connect, fenced, kind, how):
    a, watch = worker("a"), connect(fenced)
    key, _ = held(a, kind)
    a.send(encode("BLPOP", key, "0"))
    until(lambda: blocked(watch) == 1, what="the client to wait")
    if how == "with requests behind it":
        a.send(encode("PING") * 10)
    if how == "half-close":
        a.shutdown()
        assert a.read_all() == b""
    else:
        a.close()
    until(lambda: blocked(watch) == 0, what="the wait's end")
    assert watch("RPUSH", key, "kept") == 1
    assert watch("LRANGE", key, "0", "-1") == ["kept"]


@places
def test_says_no_more(worker, connect, fenced, kind):
    """printf ... | nc: what need not wait is answered."""
    a, watch = worker("a"), connect(fenced)
    key, _ = held(a, kind)
    a.send(b"".join(encode(*c) for c in [("RPUSH", key, "x"), ("BLPOP", key, "0"), ("PING",), ("BLPOP", key, "0"), ("PING",)]))
    a.shutdown()
    assert a.read_all() == b":1\r\n" + encode(key, "x") + b"+PONG\r\n"
    until(lambda: blocked(watch) == 0, what="nobody to wait")


def test_the_proxy_stops(farm, start_proxy, connect):
    for kind in ("standalone", "cluster"):
        proxy = start_proxy(farm.backend(kind), *AUDIT)
        with Client(proxy.address) as a, Client(proxy.address) as watch:
            key, _ = held(a, "far")
            a.send(encode("BLPOP", key, "0"))
            until(lambda: blocked(watch) == 1, what="the client to wait")
            began = time.monotonic()
            proxy.stop()
            assert time.monotonic() - began < 15
            with pytest.raises((Closed, ConnectionError)):
                a.read()


@places
def test_a_take_over(farm, start_proxy, connect, orphans, backend_kind, kind):  # noqa: F811
    """The old process goes on with what its clients wait for: one gets its element, one hears that it has lost the lock,
    which a client of the next process has acquired."""
    proxy = start_proxy(farm.backend(backend_kind), *AUDIT, "shutdown-timeout 60")
    a, b, watch = (connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in ("a", "b", "watch"))
    (key, lock), (lost_key, lost_lock) = held(a, kind), held(b, kind)
    for client, name in ((a, key), (b, lost_key)):
        client.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(watch) == 2, what="both to wait")
    take_over(proxy, orphans)
    comer = connect(proxy, commands=[("CLIENT", "SETNAME", "comer")])
    assert comer("RPUSH", key, "x") == 1
    assert a.read() == [key, "x"]
    assert comer("PROXY", "RELEASE", lost_lock) == 1
    assert comer("SET", lost_lock, "1", "NX", "PX", "60000") == "OK"
    reply = b.read()
    assert isinstance(reply, Error) and reply.startswith("FENCED "), reply
    assert comer("RPUSH", lost_key, "x") == 1
    assert b("BLPOP", lost_key, "0").startswith("FENCED ")
    assert comer("LPOP", lost_key) == "x"
    assert a("DEL", lock) == 1
    for client in (a, b, watch):
        client.close()
    ended(proxy, 10)


def test_paused(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), *AUDIT)
    a, watch, direct = connect(proxy), connect(proxy), farm.backend("standalone").direct()
    key, _ = held(a)
    a.send(encode("BLPOP", key, "0"))
    until(lambda: blocked(watch) == 1, what="the client to wait")
    assert watch("CLIENT", "PAUSE", "60000", "WRITE") == "OK"
    assert watch("CLIENT", "LIST")  # behind it: every attempt before has ended
    time.sleep(0.2)
    assert direct("RPUSH", key, "x") == 1
    time.sleep(0.3)
    assert direct("LLEN", key) == 1
    assert watch("CLIENT", "UNPAUSE") == "OK"
    assert a.read() == [key, "x"]
    direct.close()


@places
def test_its_connection_is_lost(worker, connect, fenced, kind):
    """Between two attempts this has no effect."""
    a, watch = worker("a"), connect(fenced)
    key, _ = held(a, kind)
    nodes = fenced.backend.nodes if fenced.backend.kind == "cluster" else [fenced.backend]
    survived = 0
    for i in range(8):
        a.send(encode("BLPOP", key, "0"))
        until(lambda: blocked(watch) == 1, what="the client to wait")
        time.sleep(0.1 + random.random() * 0.05)
        for node in nodes:
            node.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        until(lambda: not isinstance(watch("RPUSH", key, str(i)), Error), what="an element")
        reply = a.read()
        assert reply == [key, str(i)] or reply.startswith("UPSTREAM "), reply
        survived += not isinstance(reply, Error)
        until(lambda: not isinstance(a("DEL", key), Error), what="no element")
    assert survived > 4


# ---- all together ------------------------------------------------------------------------------------------------


def test_explain(worker):
    a, c = worker("a"), worker("c")
    key, _ = held(a)

    def check(client, *command):
        said = client("PROXY", "EXPLAIN", *command)
        return (said if isinstance(said, dict) else dict(zip(said[::2], said[1::2])))["fence-check"]

    assert check(a, "BLPOP", key, "0").startswith("asks whether the lock has had another holder, in one step with an attempt")
    assert check(c, "BLPOP", key, "0") == "passes as it came"


IN_A_TRANSACTION = [
    ("RPUSH K a b c d e f", ["BLPOP K2 K 0", "BRPOP K 1.5", "BLMOVE K K2 LEFT RIGHT 0", "BRPOPLPUSH K K2 0", "BLMPOP 0 2 O K LEFT COUNT 2",
                             "BLPOP K K2 0", "BLPOP K 0", "BRPOP K K 1", "BLMOVE K O LEFT LEFT 0", "BRPOPLPUSH K O 0.5", "BLMPOP 0 1 K LEFT",
                             "BLPOP O K 0", "BLMPOP 0 1 K UP", "BLMOVE K K UP LEFT 0"]),
    ("ZADD K 1.5 a 2 b 0.1 c 7 d", ["BZPOPMIN K2 K 0", "BZPOPMAX K K2 0", "BZMPOP 0 1 K MIN", "BZMPOP 0 1 K MIN", "BZMPOP 0 1 K MIN",
                                    "BZPOPMIN K 0", "BZPOPMAX K 0"]),
    ("SET K x", ["BLPOP K2 K 0", "BLMOVE K K2 LEFT LEFT 0", "BZPOPMIN K 0", "BZMPOP 0 1 K MIN"]),
]


def test_in_a_transaction(worker, connect, oracle, protocol):
    """There they do not block: each is asked for within EXEC."""
    a, b, plain = worker("a"), worker("b"), connect(oracle, commands=[("HELLO", str(protocol))])
    key, lock, _, _ = lost(a, b)
    for before, commands in IN_A_TRANSACTION:
        for client in (b, plain):
            client("DEL", key, key + "2")
            assert not isinstance(client(*words(before, key)), Error)
        for client in (a, b, plain):
            assert client("MULTI") == "OK"
            for command in commands:
                assert client(*words(command, key)) == "QUEUED", command
        refused = a("EXEC")
        assert len(refused) == len(commands) and all(reply.startswith("FENCED ") for reply in refused)
        assert b.raw("EXEC") == plain.raw("EXEC")
        assert b.raw("DUMP", key) == plain.raw("DUMP", key)
    for command in ("BLPOP K x", "BLPOP K -1", "BLPOP K 1e3", "BLMPOP 0x1 1 K LEFT", "XREADGROUP GROUP g c BLOCK 1 STREAMS K >"):
        assert b("MULTI") == "OK"
        assert b(*words(command, key)).startswith("ERR the write of fenced data can't be checked"), command
        assert b("EXEC").startswith("EXECABORT ")


def test_several_slots(farm, start_proxy, connect):
    a = connect(start_proxy(farm.backend("cluster"), *AUDIT))
    here, there = held(a)[0], named("stock", fresh())[0]
    assert servers.slot_of(here) != servers.slot_of(there)
    assert a("BLPOP", here, there, "0") == "CROSSSLOT Keys in request don't hash to the same slot"


def test_slots_move(start_cluster, start_proxy, connect):
    """Each element is taken once, wherever its slot is; while that is on its way, an attempt may fail with TRYAGAIN."""
    cluster = start_cluster()
    proxy = start_proxy(cluster, *AUDIT)
    a, pusher = connect(proxy, commands=[("CLIENT", "SETNAME", "a")]), connect(proxy)
    took, pushed, errors = [], 0, 0
    key, lock = held(a)
    migration = Migration(cluster, [servers.slot_of(key)])
    migration.start()
    until_when = time.monotonic() + 6
    try:
        while time.monotonic() < until_when or len(took) < pushed:
            if time.monotonic() < until_when and not isinstance(pusher("RPUSH", key, str(pushed)), Error):
                pushed += 1
            reply = a("BLPOP", key, "1")
            if isinstance(reply, Error):
                assert reply.startswith("TRYAGAIN "), reply
                errors += 1
            elif reply is not None:
                took.append(int(reply[1]))
    finally:
        migration.finish()
    assert took == list(range(pushed)) and pushed > 50, (pushed, errors)
    assert migration.moves > 5 and errors < pushed


@places
def test_torture(fenced, connect, kind):
    """Workers with leases that are mostly too short take elements: no element of an earlier lease after one of a later lease,
    none twice."""
    key, lock = named(kind, fresh())
    until_when, problems, took, counts = time.monotonic() + 5, [], [], collections.Counter()

    def work(i):
        rand = random.Random(i)
        with Client(fenced.address, commands=[("CLIENT", "SETNAME", "takes-%d" % i)]) as client:
            while time.monotonic() < until_when:
                if client("SET", lock, str(i), "NX", "PX", str(rand.randrange(5, 60))) != "OK":
                    time.sleep(0.002)
                    continue
                fence = client("PROXY", "TOKEN", lock)
                for _ in range(6 if fence else 0):
                    reply = client("BLPOP", key, rand.choice(["0.01", "0.05", "0.2"]))
                    if isinstance(reply, list):
                        took.append((int(reply[1]), fence))
                    elif isinstance(reply, Error) and not reply.startswith("FENCED "):
                        problems.append(reply)
                    counts["refused" if isinstance(reply, Error) else "took" if reply else "nothing"] += 1
                client("DEL", lock)

    def push():
        with Client(fenced.address) as client:
            while time.monotonic() < until_when:
                counts["pushed"] += 1
                client("RPUSH", key, str(counts["pushed"]))
                time.sleep(0.003)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)] + [threading.Thread(target=push)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = connect(fenced)("LRANGE", key, "0", "-1")
    assert problems == []
    assert sorted(n for n, _ in took) + list(map(int, left)) == list(range(1, counts["pushed"] + 1))
    fences = [fence for _, fence in sorted(took)]
    assert fences == sorted(fences)
    assert len(set(fences)) > 10 and counts["refused"] > 5 and counts["took"] > 50, counts
