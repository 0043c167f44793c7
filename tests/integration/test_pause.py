"""PROXY PAUSE and PROXY RESUME: Redis is restarted with its data, and the proxy's clients only wait."""

import re
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


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_redis_is_restarted_with_its_data(start_redis, start_cluster, start_proxy, connect, kind, threads):
    """8 clients work and 1,000 leases are live, each shorter than the time in which Redis is away. No client sees an error,
    and no lease is lost."""
    upstream = start_redis() if kind == "standalone" else start_cluster()
    proxy = start_proxy(upstream, "threads %d" % threads, "lock lock:* lease 3s")
    holder, operator, stop = connect(proxy), connect(proxy), threading.Event()
    holder.send(b"".join(encode("SETNX", "lock:held:%d" % i, "v%d" % i) for i in range(LEASES)))
    assert [holder.read() for _ in range(LEASES)] == [1] * LEASES
    work = [Work(proxy.address, "work%d" % i, stop) for i in range(8)]
    for worker in work:
        worker.start()
    try:
        until(lambda: all(worker.rounds > 5 for worker in work), what="work")
        assert operator("PROXY", "PAUSE", "60s") == "OK"
        paused, rounds = time.monotonic(), [worker.rounds for worker in work]
        assert 0 < info(operator, "pause_left_ms") <= 60000
        late = connect(proxy)
        late.send(encode("GET", "late"))
        for node in upstream.nodes:
            shut_down(node)
        until(lambda: time.monotonic() > paused + 3.5, what="the end of what the leases had left")
        assert [worker.rounds for worker in work] == rounds
        for node in upstream.nodes:
            node.start()
        assert operator("PROXY", "RESUME") == "OK"
        assert info(operator, "pause_left_ms") == 0
        until(lambda: all(w.rounds > n + 5 or w.wrong for w, n in zip(work, rounds)), what="work after the pause")
        assert late.read() is None
    finally:
        stop.set()
        for worker in work:
            worker.join()
            worker.client.close()
    assert [worker.wrong for worker in work] == [[]] * 8
    holder.send(b"".join(encode("DEL", "lock:held:%d" % i) for i in range(LEASES)))
    assert [holder.read() for _ in range(LEASES)] == [1] * LEASES
    assert {dict(zip(row[::2], row[1::2]))["kind"] for row in operator("PROXY", "INCIDENTS", "SUMMARY")} == {"no_expiry"}


@pytest.fixture
def paused(start_redis, start_proxy, connect):
    """A proxy before a Redis, and its operator."""
    redis = start_redis()
    proxy = start_proxy(redis, "upstream-timeout 500ms")
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
