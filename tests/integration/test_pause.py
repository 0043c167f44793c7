"""PROXY PAUSE and PROXY RESUME: Redis is restarted with its data, and the proxy's clients only wait."""

import contextlib
import re
import signal
import threading
import time

import pytest

from resp import Client, Closed, Error, encode
from servers import until

LEASES = 1000


def info(client, field):
    return int(re.search(r"^%s:(-?\d+)" % field, client("PROXY", "INFO"), re.M)[1])


def shut_down(node):
    """The node ends, and keeps its data."""
    with node.client() as c:
        c.send(encode("SHUTDOWN", "SAVE"))
        with pytest.raises(Closed):
            c.read()
    node.process.wait(20)


class Work(threading.Thread):
    """A client that acquires and releases a lock, and counts below it, for as long as the test goes on."""

    def __init__(self, address, name, stop):
        super().__init__()
        self.client, self.name, self.stop, self.rounds, self.wrong = Client(address), name, stop, 0, []

    def run(self):
        while not self.stop.is_set() and not self.wrong:
            got = [self.client("SETNX", "lock:" + self.name, "1"), self.client("INCR", "count:" + self.name),
                   self.client("DEL", "lock:" + self.name)]
            self.rounds += 1
            if got != [1, self.rounds, 1]:
                self.wrong.append(got)


@contextlib.contextmanager
def working(proxy):
    """Eight clients at work. None gets a wrong answer."""
    stop = threading.Event()
    work = [Work(proxy.address, "work%d" % i, stop) for i in range(8)]
    for worker in work:
        worker.start()
    try:
        until(lambda: all(worker.rounds > 5 for worker in work), timeout=60, what="work")
        yield work
    finally:
        stop.set()
        for worker in work:
            worker.join()
            worker.client.close()
    assert [worker.wrong for worker in work] == [[]] * 8


def go_on(work, rounds):
    until(lambda: all(w.rounds > n + 5 or w.wrong for w, n in zip(work, rounds)), timeout=60, what="work after the pause")


def holding(client):
    """The client, which now holds many locks."""
    client.send(b"".join(encode("SETNX", "lock:held:%d" % i, "v%d" % i) for i in range(LEASES)))
    assert [client.read() for _ in range(LEASES)] == [1] * LEASES
    return client


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_redis_is_restarted_with_its_data(start_redis, start_cluster, start_proxy, connect, kind, threads):
    """8 clients work and 1,000 leases are live. No client sees an error, and no lease is lost: each lasts for longer than the
    pause."""
    upstream = start_redis() if kind == "standalone" else start_cluster()
    proxy = start_proxy(upstream, "threads %d" % threads, "upstream-timeout 60s")
    holder, operator = holding(connect(proxy)), connect(proxy)
    with working(proxy) as work:
        assert operator("PROXY", "PAUSE", "60s") == "OK"
        rounds = [worker.rounds for worker in work]
        assert 0 < info(operator, "pause_left_ms") <= 60000
        late = connect(proxy)
        late.send(encode("GET", "late"))
        direct = upstream.direct()
        assert all(direct("PTTL", "lock:held:%d" % i) > 60000 for i in range(LEASES))
        direct.close()
        for node in upstream.nodes:
            shut_down(node)
        assert [worker.rounds for worker in work] == rounds
        for node in upstream.nodes:
            node.start()
        assert operator("PROXY", "RESUME") == "OK"
        assert info(operator, "pause_left_ms") == 0
        go_on(work, rounds)
        assert late.read() is None
    holder.send(b"".join(encode("DEL", "lock:held:%d" % i) for i in range(LEASES)))
    assert [holder.read() for _ in range(LEASES)] == [1] * LEASES
    assert {dict(zip(row[::2], row[1::2]))["kind"] for row in operator("PROXY", "INCIDENTS", "SUMMARY")} == {"no_expiry"}


@pytest.fixture
def paused(start_redis, start_proxy, connect):
    """A proxy before a Redis, and its operator."""
    redis = start_redis()
    proxy = start_proxy(redis, "upstream-timeout 2s")
    return redis, proxy, connect(proxy)


def await_blocked(operator, count):
    until(lambda: len([c for c in operator("CLIENT", "LIST").splitlines() if "flags=b" in c]) == count, what="blocked clients")


def test_the_pause_ends_by_itself(paused, connect):
    redis, proxy, operator = paused
    client = connect(proxy)
    assert operator("PROXY", "PAUSE", "1s") == "OK"
    since = time.monotonic()
    assert client("SETNX", "lock:a", "1") == 1 and time.monotonic() > since + 0.7
    assert operator("PROXY", "RESUME") == "ERR PROXY RESUME: there is no PROXY PAUSE"
    assert operator("PROXY", "PAUSE", "60s") == "OK"
    proxy.signal(signal.SIGUSR2)
    until(lambda: "No take-over during PROXY PAUSE" in proxy.log(), what="the refusal of a take-over")
    assert operator("PROXY", "RESUME") == "OK"
    for wrong in ("1ms", "2h", "x", "-1"):
        assert operator("PROXY", "PAUSE", wrong) == "ERR PROXY PAUSE: expected a time of 100ms to 1h, such as 30s"
    assert "time of PROXY PAUSE is over" in proxy.log()


def test_what_is_under_way(paused, connect):
    """A transaction goes on to its end, and PAUSE waits for it. A client that is blocked at its node stays so, and PAUSE says
    it."""
    redis, proxy, operator = paused
    transaction, blocked, client = connect(proxy), connect(proxy), connect(proxy)
    assert transaction("MULTI") == "OK" and transaction("INCR", "n") == "QUEUED"
    blocked.send(encode("BLPOP", "list", 0))
    await_blocked(client, 1)
    assert operator("PROXY", "PAUSE") == "OK, and 2 clients still wait for a node, blocked or in a transaction"
    assert transaction("INCR", "n") == "QUEUED" and transaction("EXEC") == [1, 2]
    transaction.send(encode("GET", "n"))
    assert operator("PROXY", "PAUSE") == "OK, and 1 clients still wait for a node, blocked or in a transaction"
    redis.run("RPUSH", "list", "x")
    assert blocked.read() == ["list", "x"]
    client.send(encode("GET", "n") + encode("NOSUCH") + encode("GET", "x", "y"))
    assert operator("PROXY", "PAUSE") == "OK"
    assert operator("PROXY", "RESUME") == "OK"
    assert transaction.read() == "2" and client.read() == "2"
    assert all(isinstance(client.read(), Error) for _ in range(2))


def test_redis_is_away_at_the_resume(paused, connect):
    """RESUME waits for Redis. The pause goes on without it, also for clients that come meanwhile."""
    redis, proxy, operator = paused
    client = connect(proxy)
    assert client("SETNX", "lock:a", "1") == 1
    assert operator("PROXY", "PAUSE", "60s") == "OK"
    shut_down(redis)
    client.send(encode("DEL", "lock:a"))
    until(lambda: "lost" in proxy.log() or "can't be reached" in proxy.log(), what="the proxy's knowledge of it")
    late = connect(proxy)
    late.send(encode("HELLO", 3) + encode("SETNX", "lock:b", "1"))
    assert operator("PROXY", "RESUME").startswith("UPSTREAM ")
    assert info(operator, "pause_left_ms") > 0
    redis.start()
    assert connect(proxy)("HELLO", 3)["proto"] == 3  # clients may log in again
    assert operator("PROXY", "RESUME") == "OK"
    assert client.read() == 1
    assert late.read()["proto"] == 3 and late.read() == 1


def test_who_may_pause(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis)
    redis.run("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+get", "+config|get")
    client = connect(proxy, commands=[("AUTH", "reader", "secret")])
    assert client("PROXY", "PAUSE").startswith("NOPERM PROXY PAUSE")
    assert client("PROXY", "RESUME").startswith("NOPERM PROXY RESUME")
    assert client("GET", "k") is None


# ---- SWITCH -----------------------------------------------------------------------------------------------


def name_upstream(proxy, redis):
    """The configuration names another upstream."""
    with open(proxy.config) as f:
        lines = [line for line in f.read().splitlines() if not line.startswith("upstream ")]
    with open(proxy.config, "w") as f:
        f.writelines(line + "\n" for line in [*lines, "upstream " + redis.upstream()])


def promote(replica, master):
    """The replica becomes the master, and the master its replica."""
    replica.run("REPLICAOF", "NO", "ONE")
    master.run("REPLICAOF", replica.host, replica.port)
    until(master.is_replica, what="the former master's new part")


@pytest.fixture
def pair(start_redis):
    """A Redis and its replica."""
    redis, replica = start_redis("--repl-diskless-sync-delay", "0"), start_redis()
    replica.run("REPLICAOF", redis.host, redis.port)
    until(lambda: "master_link_status:up" in replica.run("INFO", "replication"), what="the replica's link")
    return redis, replica


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ends", ["gone", "replica"])
def test_move_to_another_redis(pair, start_proxy, connect, threads, ends):
    """8 clients work and 1,000 leases are live. The replica takes over; no client sees an error, and no lease is lost."""
    redis, replica = pair
    proxy = start_proxy(redis, "threads %d" % threads, "upstream-timeout 60s")
    holder, operator = holding(connect(proxy)), connect(proxy)
    fence = holder("PROXY", "TOKEN", "lock:held:0")
    with working(proxy) as work:
        name_upstream(proxy, replica)
        assert operator("PROXY", "SWITCH").startswith("ERR PROXY SWITCH: send PROXY PAUSE first")
        assert operator("PROXY", "PAUSE", "60s") == "OK"
        rounds = [worker.rounds for worker in work]
        until(lambda: replica.run("KEYS", "*lockkeeper-pause*"), timeout=60, what="the mark at the replica")
        if ends == "replica":
            promote(replica, redis)
        else:
            redis.kill()
            replica.run("REPLICAOF", "NO", "ONE")
        assert operator("PROXY", "SWITCH") == "OK"
        go_on(work, rounds)
    assert "upstream:" + replica.upstream() in operator("PROXY", "INFO")
    assert operator("PROXY", "CONFIG", "upstream") == ["upstream", replica.upstream()]
    assert operator("PROXY", "RELOAD") == "OK" and info(operator, "restart_needed") == 0
    assert holder("PROXY", "TOKEN", "lock:held:0") == fence
    holder.send(b"".join(encode("DEL", "lock:held:%d" % i) for i in range(LEASES)))
    assert [holder.read() for _ in range(LEASES)] == [1] * LEASES
    assert replica.run("EXISTS", "lock:held:0") == 0
    assert {dict(zip(row[::2], row[1::2]))["kind"] for row in operator("PROXY", "INCIDENTS", "SUMMARY")} == {"no_expiry"}


def test_a_redis_that_is_another_one(pair, start_redis, start_proxy, connect):
    """SWITCH refuses what would split the locks: other data; a copy beside a Redis that takes writes. Then the pause goes on,
    and ends where it began. The same server under another name is no other one."""
    redis, replica = pair
    proxy = start_proxy(redis, "upstream-timeout 1s")
    operator, client, other = connect(proxy), connect(proxy), start_redis()
    assert client("SETNX", "lock:a", "1") == 1
    assert operator("PROXY", "PAUSE", "60s") == "OK"
    client.send(encode("DEL", "lock:a"))
    assert operator("PROXY", "SWITCH") == "ERR PROXY SWITCH: the configuration names the upstream in force"
    name_upstream(proxy, other)
    assert "it has other data" in operator("PROXY", "SWITCH")
    until(lambda: replica.run("KEYS", "*lockkeeper-pause*"), what="the mark at the replica")
    name_upstream(proxy, replica)
    assert "READONLY" in operator("PROXY", "SWITCH")
    replica.run("REPLICAOF", "NO", "ONE")
    assert "the old Redis still takes writes" in operator("PROXY", "SWITCH")
    replica.run("REPLICAOF", redis.host, redis.port)  # a copy of what the last attempt has left there, too
    until(lambda: "master_link_status:up" in replica.run("INFO", "replication"), what="the replica's link")
    replica.run("REPLICAOF", "NO", "ONE")
    assert "the old Redis still takes writes" in operator("PROXY", "SWITCH")
    assert info(operator, "pause_left_ms") > 0
    redis.host = "localhost"
    name_upstream(proxy, redis)
    assert operator("PROXY", "SWITCH") == "OK"
    assert client.read() == 1 and redis.run("EXISTS", "lock:a") == 0
    assert "upstream:standalone localhost:%d" % redis.port in operator("PROXY", "INFO")


def test_a_cluster_switches_by_itself(start_cluster, start_proxy, connect):
    operator = connect(start_proxy(start_cluster()))
    assert operator("PROXY", "SWITCH") == \
        "ERR PROXY SWITCH is for upstream standalone: clusters and Sentinels tell where Redis is"
