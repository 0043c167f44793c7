"""Lock code of public applications that the proxy broke, as users reported: one test for each report. All of it works on
Redis alone. If no worker is late or refused, the proxy records no incident, except for locks without an expiry, which get a
lease.
"""

import itertools
import time

import pytest

import servers
from resp import Client, Error

serial = itertools.count(1)


@pytest.fixture
def started(backend, request):
    """A proxy of its own: what it learns of a client it learns in the test. A test may give its lines as parameter."""
    proxy = servers.Proxy(backend, *getattr(request, "param", ()))
    yield proxy
    proxy.stop()
    proxy.remove()


@pytest.fixture
def opened(started):
    """opened(name): a connection through the proxy, named, if a name is given; closed in the end."""
    clients = []

    def one(name=None):
        client = Client(started.address, commands=[("CLIENT", "SETNAME", name)] if name else ())
        clients.append(client)
        return client

    yield one
    for client in clients:
        client.close()


def fresh(kind):
    return "lock:%s:{%d}%d" % (kind, next(serial), time.time_ns())


def incidents(client):
    """The kinds of incidents that the proxy knows of, but for no_expiry."""
    kinds = {dict(zip(row[::2], row[1::2]))["kind"] for row in client("PROXY", "INCIDENTS", 100)}
    return kinds - {"no_expiry"}


def test_01_heartbeat_by_getset_after_a_reconnect(opened):
    """fujiwara/raus: the worker's id is the value; GETSET of its own id, then EXPIRE, is its heartbeat."""
    key, value = fresh("id"), "9c4fd9a0-%d" % time.time_ns()
    first = opened()
    assert first("SET", key, value, "NX", "EX", 60) == "OK"
    first.close()
    second = opened()
    for length in (100, 200):
        assert second("GETSET", key, value) == value
        assert second("EXPIRE", key, length) == 1
        assert length - 5 <= second("TTL", key) <= length
    assert second("DEL", key) == 1
    other = opened("other")
    assert other("SET", key, "w", "NX", "EX", 5) == "OK"
    assert other("DEL", key) == 1
    assert incidents(other) == set()


def test_03_master_by_its_name_after_a_reconnect(opened):
    """actionhero/node-resque: a scheduler that is refused, and reads its own name, is still the master."""
    key = fresh("master")
    first = opened()
    assert first("SET", key, "BOB", "NX", "PX", 1000) == "OK"
    first.close()
    second, rival = opened(), opened("rival")
    began = time.monotonic()
    while time.monotonic() < began + 1.5:
        assert second("SET", key, "BOB", "NX", "PX", 1000) is None
        assert second("GET", key) == "BOB"
        assert second("PEXPIRE", key, 1000) == 1
        assert rival("SET", key, "EVE", "NX", "PX", 1000) is None
        time.sleep(0.1)
    assert incidents(rival) == set()


def test_04_heartbeat_by_set_over_another_connection(opened):
    """CERT-Polska/Artemis: a thread sets the worker's own value anew, over whichever connection of the pool."""
    for i in range(3):
        key, value = fresh("res"), "uuid-%d-%d" % (i, time.time_ns())
        worker, thread = opened(), opened()
        assert worker("SET", key, value, "NX", "EX", 60) == "OK"
        assert thread("GET", key) == value
        assert thread("SET", key, value, "EX", 90) == "OK"
        assert 85 <= thread("TTL", key) <= 90
        assert thread("DEL", key) == 1
        assert worker("EXISTS", key) == 0
    assert incidents(opened()) == set()


def test_05_takeover_behind_watch(opened):
    """ServiceStack.Redis, mini_scheduler: a worker that finds the deadline passed takes over by WATCH, GET, MULTI, SET,
    EXEC."""
    key = fresh("cron")
    hung, following = opened("hung"), opened("next")
    assert hung("SETNX", key, int(time.time()) - 2) == 1
    deadline = str(int(time.time()) + 60)
    assert following("SETNX", key, deadline) == 0
    assert following("WATCH", key) == "OK"
    assert int(following("GET", key)) < time.time()
    assert following("MULTI") == "OK"
    assert following("SET", key, deadline) == "QUEUED"
    assert following("EXEC") == ["OK"]
    assert following("GET", key) == deadline
    assert incidents(following) == set()
    assert 0 < following("TTL", key) <= 30
    assert hung("DEL", key) == 0
    assert following("GET", key) == deadline
    assert following("DEL", key) == 1


@pytest.mark.parametrize("started", [("lock lock:* kind hash",)], indirect=True)
def test_07_a_count_in_the_hash_of_a_session(opened):
    """Cm_RedisSession: HINCRBY of the field `lock`, where 1 says mine; losers count, too; the release writes data and a 0."""
    a, b = opened("a"), opened("b")
    for n in range(3):
        key = fresh("session")
        assert [a("HINCRBY", key, "lock", 1), b("HINCRBY", key, "lock", 1), b("HINCRBY", key, "lock", 1)] == [1, 2, 3]
        assert a("HMSET", key, "pid", "a", "lock", 1) == "OK"
        assert b("HINCRBY", key, "lock", 1) == 2
        release = [("HMSET", key, "data", "x", "lock", 0), ("HSET", key, "data", "x", "lock", 0), ("HINCRBY", key, "lock", -1)][n]
        assert a(*release) in ("OK", 1)
        if n == 2:  # the loser has counted, too
            assert b("HINCRBY", key, "lock", -1) == 0
        assert b("HINCRBY", key, "lock", 1) == 1
        assert isinstance(a("HSET", key, "lock", 0), Error), "the lock is b's"
        assert b("HGET", key, "pid") == "a"
        assert b("HINCRBY", key, "lock", -1) == 0
