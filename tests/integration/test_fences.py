"""Fences: who has lost the lock under which data is written is recorded (audit), or kept from writing (enforce)."""

import itertools
import subprocess

import pytest

import servers
from resp import Error
from servers import until
from test_audit import incidents
from test_reload import reloaded

NUMBERS = itertools.count(1)

LOCKS = ["lock lock:*"]
AUDIT = [
    *LOCKS,
    "fence audit:off:* by lock:audit:* mode off",
    "fence audit:all:* by lock:audit:all mode audit",
    "fence audit:* by lock:audit:* mode audit",
]


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def fenced(farm, request):
    proxy = servers.Proxy(farm.backend(request.param), *AUDIT)
    yield proxy
    proxy.stop()
    proxy.remove()


@pytest.fixture(params=[2, 3])
def worker(fenced, connect, request):
    """worker(name): a connection of a client of that name."""

    def worker(name, **options):
        return connect(fenced, commands=[("HELLO", str(request.param)), ("CLIENT", "SETNAME", name)], **options)

    return worker


def fresh():
    """A part of a name, in one slot on a cluster."""
    return "{%d}" % next(NUMBERS)


def lose(loser, lock, winner):
    """`loser` acquires the lock, and its lease ends; then `winner` has it."""
    assert loser("SET", lock, "l", "NX", "PX", "60") == "OK"
    until(lambda: winner("SET", lock, "w", "NX", "PX", "60000") == "OK", 10, "the lease's end")


def rows(client):
    """The fences of PROXY RULES, by their patterns."""
    all_rows = [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for row in client("PROXY", "RULES")]
    return {row["fence"].split()[0]: row for row in all_rows if "fence" in row}


def late_writes(client, key):
    return [row for row in incidents(client, key) if row["kind"] == "late_write"]


# ---- audit ------------------------------------------------------------------------------------------------


def test_audit_records_who_has_lost_the_lock(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    key, lock = "audit:" + n, "lock:audit:" + n
    before = int(rows(watch)["audit:*"]["late"])
    assert b("SET", key, "outside") == "OK"
    assert a("SET", lock, "a", "NX", "PX", "60000") == "OK"
    assert a("SET", key, "a") == "OK"
    assert a("DEL", lock) == 1
    assert a("SET", key, "after") == "OK"
    assert late_writes(watch, key) == []
    lose(a, lock, b)
    assert b("SET", key, "b") == "OK"
    assert a("GET", key) == "b"
    assert late_writes(watch, key) == []
    assert a("SET", key, "late") == "OK"
    assert b("GET", key) == "late"
    [late] = late_writes(watch, key)
    assert late["command"] == "SET" and late["client"].endswith(" a") and "name=b" in late["holder"]
    assert late["action"].startswith("passed on under audit: its lease on %s (fence " % lock)
    assert int(rows(watch)["audit:*"]["late"]) == before + 1


def test_audit_of_a_lease_that_nobody_has_taken(worker, connect, fenced):
    """Its end alone is no harm."""
    a, watch = worker("a"), connect(fenced)
    n = fresh()
    assert a("SET", "lock:audit:" + n, "a", "NX", "PX", "30") == "OK"
    until(lambda: watch("EXISTS", "lock:audit:" + n) == 0, 10, "the lease's end")
    assert a("SET", "audit:" + n, "late") == "OK"
    assert late_writes(watch, "audit:" + n) == []


def test_audit_sees_every_way(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    key, other, lock = "audit:" + n, "plain:" + n, "lock:audit:" + n
    lose(a, lock, b)
    written = 0
    for command, counts in [
        (("GET", key), 0),
        (("EXISTS", key), 0),
        (("GETEX", key), 0),
        (("SORT", key), 0),
        (("SET", key, "1"), 1),
        (("GETEX", key, "PERSIST"), 1),
        (("MSET", key, "1", other, "2"), 1),
        (("COPY", key, other), 0),
        (("COPY", other, key, "REPLACE"), 1),
        (("RENAME", key, other), 1),
        (("DEL", other, key), 1),
        (("DEL", key), 1),
        (("SADD", key, "1"), 1),
        (("SUNIONSTORE", other, key), 0),
        (("SUNIONSTORE", key, other), 1),
        (("SORT", other, "STORE", key), 1),
        (("BLPOP", key, "0.01"), 1),
        (("EVAL", "return redis.call('DEL', KEYS[1])", "1", key), 1),
        (("EXPIRE", key, "100"), 1),
    ]:
        reply = a(*command)
        assert not isinstance(reply, Error) or command[0] == "SORT" or command[0] == "BLPOP", (command, reply)
        written += counts
        assert len(late_writes(watch, key)) == written, command
    assert a("MULTI") == "OK"
    assert a("HSET", key, "f", "1") == "QUEUED"
    assert a("EXEC") == [1]
    assert len(late_writes(watch, key)) == written + 1


def test_audit_one_lock_for_all(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    lose(a, "lock:audit:all", b)
    assert a("INCR", "audit:all:" + n) == 1
    assert a("INCR", "audit:off:" + n) == 1
    assert len(late_writes(watch, "audit:all:" + n)) == 1
    assert len(late_writes(watch, "audit:off:" + n)) == 0
    assert b("DEL", "lock:audit:all") == 1


def test_shared_connections_write_with_the_newest_lease(fenced, connect):
    """Of one client: over connections that several workers use, what any of them holds counts."""
    name = [("CLIENT", "SETNAME", "pool")]
    a, b, watch = connect(fenced, commands=name), connect(fenced, commands=name), connect(fenced)
    assert a("CLIENT", "SETINFO", "LIB-NAME", "ioredis") == "OK"
    assert b("CLIENT", "SETINFO", "LIB-NAME", "ioredis") == "OK"
    n = fresh()
    key, lock = "audit:" + n, "lock:audit:" + n
    lose(a, lock, b)
    assert a("SET", key, "1") == "OK"  # in the name of b's
    assert late_writes(watch, key) == []
    other = connect(fenced, commands=[("CLIENT", "SETNAME", "other")])
    assert b("PEXPIRE", lock, "30") == 1
    until(lambda: other("SET", lock, "o", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    assert a("SET", key, "1") == "OK"
    assert b("SET", key, "1") == "OK"
    assert len(late_writes(watch, key)) == 2


# ---- the directive ------------------------------------------------------------------------------------------


def test_rules_config_and_explain(farm, start_proxy, connect):
    line = "fence \"a b:*:*\" by lock:*:of:* mode audit unlocked refuse"
    client = connect(start_proxy(farm.backend("standalone"), *LOCKS, line))
    assert client("PROXY", "CONFIG", "fence") == ["fence", line[len("fence "):]]
    assert client("SET", "a b:1:2", "x") == "OK"
    assert rows(client) == {'"a': {"fence": line[len("fence "):], "hits": 1, "late": 0, "refused": 0}}
    said = client("PROXY", "EXPLAIN", "SET", "a b:1:2", "x")
    said = dict(zip(said[::2], said[1::2]))
    assert said["fence"] == line[len("fence "):] and said["fence-lock"] == "lock:1:of:2"


def test_reload(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), *LOCKS)
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]
    n = fresh()
    key, lock = "stock:" + n, "lock:stock:" + n
    lose(a, lock, b)
    assert a("SET", key, "1") == "OK"
    assert late_writes(a, key) == [] and rows(a) == {}
    assert reloaded(proxy, "fence stock:* by lock:stock:* mode audit", client=a) == "OK"
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 1
    assert reloaded(proxy, "fence stock:* by stock mode audit", client=a).startswith("ERR ")
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 2
    assert reloaded(proxy, "fence stock:* by lock:stock:* mode off", client=a) == "OK"
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 2


def test_what_can_not_be_done_is_refused(farm, tmp_path):
    """Never passed silently."""
    for line, why in [
        ("fence stock:* by lock:stock:*", "mode enforce is not there yet: expected mode audit or off"),
        ("fence stock:* by stock mode audit", "no lock rule matches 'stock': expected the name of a lock"),
        ("fence lock:* by lock:* mode audit", "its keys are locks of the rule 'lock:*'"),
    ]:
        path = tmp_path / "lockkeeper.conf"
        path.write_text("port 0\nunixsocket /tmp/none.sock\n%s\n" % line)
        done = subprocess.run([servers.binary(), "--test-conf", str(path)], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and why in done.stdout + done.stderr, done
