"""lock-delay: a lease that ended without its release keeps others out for so long; a released lock is free at once."""

import itertools
import time

import pytest

import servers
from helpers import module_proxy, second_proxy
from resp import Error
from servers import until

DELAY = 1.5  # s
CONFIG = [
    "guard-records short",  # is not for these rules
    "lock lock:slow:* lock-delay 6s lease 2s",
    "lock lock:conn:* owner connection lock-delay 1500ms lease 2s",
    "lock lock:any:* owner any lock-delay 1500ms",
    "lock lock:* lock-delay 1500ms lease 2s",
]
serial = itertools.count(1)

proxy = module_proxy(*CONFIG)
second = second_proxy(*CONFIG)


@pytest.fixture(params=["lock:", "lock:conn:"])
def key(request):
    return "%sk%d" % (request.param, next(serial))


@pytest.fixture
def pair(proxy, second, connect):
    """A at one proxy, B at the other one."""
    return [connect(where, commands=[("CLIENT", "SETNAME", name)]) for where, name in ((proxy, "a"), (second, "b"))]


ACQUIRES = {
    "SETNX": (("SETNX", "K", "2"), 1, 0),
    "SET NX": (("SET", "K", "2", "NX"), "OK", None),
    "SET NX PX": (("SET", "K", "2", "NX", "PX", "3000"), "OK", None),
    "SET NX EXAT": (("SET", "K", "2", "NX", "EXAT", "9999999999"), "OK", None),
    "SET NX GET": (("SET", "K", "2", "NX", "GET", "PX", "3000"), None, "1"),
    "MSETNX": (("MSETNX", "K", "2"), 1, 0),
    "SETEX": (("SETEX", "K", "9", "2"), "OK", "LOCKED"),
    "SET PX": (("SET", "K", "2", "PX", "3000"), "OK", "LOCKED"),
    "GETSET": (("GETSET", "K", "2"), None, "LOCKED"),
    "MULTI": (("SETNX", "K", "2"), 1, 0),
}


def locks(client):
    return {row["key"]: row for row in (dict(zip(r[::2], r[1::2])) for r in client("PROXY", "LOCKS", "lock:*"))}


def sends(client, form, key):
    words = [key if word == "K" else word for word in ACQUIRES[form][0]]
    if form != "MULTI":
        return client(*words)
    assert client("MULTI") == "OK"
    assert client(*words) == "QUEUED"
    return client("EXEC")[0]


def is_refused(form, reply):
    no = ACQUIRES[form][2]
    return reply.startswith("LOCKED ") if no == "LOCKED" and isinstance(reply, Error) else reply == no


def gone(direct, key, since, ms):
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end", pause=0.005)


@pytest.fixture
def direct(proxy):
    client = proxy.backend.direct()
    yield client
    client.close()


@pytest.mark.parametrize("form", list(ACQUIRES))
def test_others_are_kept_out(pair, direct, key, form):
    a, b = pair
    ended = time.monotonic() + 0.3  # at the earliest
    assert a("SET", key, "1", "NX", "PX", "300") == "OK"
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end", pause=0.005)
    tries, reply = 0, sends(b, form, key)
    while is_refused(form, reply):
        assert direct("EXISTS", key) == 0
        tries += 1
        time.sleep(0.05)
        reply = sends(b, form, key)
    waited = time.monotonic() - ended
    assert reply == ACQUIRES[form][1], reply
    assert DELAY - 0.1 < waited < DELAY + 5 and tries > 0
    assert b("DEL", key) == 1


@pytest.mark.parametrize("end", [("DEL",), ("UNLINK",), ("GETDEL",), ("EVAL",), ("MULTI",), ("PEXPIRE", "0")])
def test_a_release_frees_at_once(pair, key, end):
    a, b = pair
    assert a("SET", key, "1", "NX", "PX", "5000") == "OK"
    if end[0] == "EVAL":
        assert a("EVAL", "return redis.call('DEL', KEYS[1])", "1", key) == 1
    elif end[0] == "MULTI":
        assert [a("MULTI"), a("DEL", key), a("EXEC")] == ["OK", "QUEUED", [1]]
    else:
        assert a(end[0], key, *end[1:]) in (1, "1")
    assert b("SET", key, "2", "NX", "PX", "5000") == "OK"
    assert b("DEL", key) == 1
    assert a("SETNX", key, "1") == 1
    assert a("DEL", key) == 1


def test_a_late_release_ends_the_delay(pair, direct, key):
    """The holder has finished. Another session's release does not end it."""
    a, b = pair
    assert a("SET", key, "1", "NX", "PX", "200") == "OK"
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end")
    assert b("DEL", key) == 0
    assert b("SETNX", key, "2") == 0
    assert a("DEL", key) == 0
    assert b("SETNX", key, "2") == 1
    assert b("DEL", key) == 1


def test_the_former_holder_waits_too(pair, direct, key):
    a, _ = pair
    assert a("SET", key, "1", "NX", "PX", "200") == "OK"
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end", pause=0.0002)
    assert a("SET", key, "1", "NX", "PX", "200") is None, "perhaps before the proxy knows that the lease has ended"
    until(lambda: a("SET", key, "1", "NX", "PX", "5000") == "OK", 3, "the lock")
    assert a("DEL", key) == 1


@pytest.fixture
def slow():
    return "lock:slow:k%d" % next(serial)


def test_operators_see_it_and_end_it(pair, direct, slow):
    (a, b), key = pair, slow
    assert a("SET", key, "1", "NX", "PX", "200") == "OK"
    fence = int(a("PROXY", "TOKEN", key))
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end")
    words = b("PROXY", "LOCK", key)
    seen = dict(zip(words[::2], words[1::2]))
    assert seen["state"] == "delayed" and 0 < int(seen["delay-left"]) <= 6000 and int(seen["fence"]) == fence
    assert "user=default" in seen["owner"]
    row = lambda: locks(a).get(key)
    until(row, 5, "its proxy's row")
    assert row()["left-ms"] == 0 and 0 < row()["delay-left-ms"] <= 6000 and row()["fence"] == fence
    assert a("PROXY", "RELEASE", key) == 1
    assert row() is None
    words = b("PROXY", "LOCK", key)
    assert dict(zip(words[::2], words[1::2]))["state"] == "free"
    assert b("SETNX", key, "2") == 1
    assert b("PROXY", "RELEASE", key) == 1
    assert b("PROXY", "RELEASE", key) == 0


def test_the_list_shows_it_until_it_is_over(proxy, pair, connect, slow):
    """The holder has crashed: its lease is over, and the lock is not free yet. TOP lists the leases that are held."""
    (a, b), key, watch = pair, slow, connect(proxy)
    assert a("SET", key, "1", "NX", "PX", "200") == "OK"
    a.crash()
    until(lambda: "delay-left-ms" in locks(watch).get(key, {}), 5, "the delay", pause=0.01)
    assert locks(watch)[key]["owner"].endswith("(disconnected)")
    assert key not in str(watch("PROXY", "TOP"))
    until(lambda: b("SETNX", key, "2") == 1, 10, "the lock", pause=0.02)
    until(lambda: key not in locks(watch), 2, "the end of the row")
    assert b("DEL", key) == 1


def test_deleted_around_the_proxy(pair, direct, key):
    """The lease ends when a proxy first sees that the lock is gone, and not with the rest of its time."""
    a, b = pair
    assert a("SET", key, "1", "NX", "PX", "60000") == "OK"
    assert direct("DEL", key) == 1
    began = time.monotonic()
    assert b("SETNX", key, "2") == 0
    until(lambda: b("SETNX", key, "2") == 1, 4, "the lock", pause=0.02)
    assert time.monotonic() - began > DELAY - 0.1
    assert b("DEL", key) == 1


def test_a_crash_and_a_restart(proxy, second, connect, direct, key):
    """The worker is gone, and so is its proxy's memory."""
    a = connect(proxy)
    ended = time.monotonic() + 0.5  # at the earliest
    assert a("SET", key, "1", "NX", "PX", "500") == "OK"
    a.crash()
    third = servers.Proxy(proxy.backend, *CONFIG)
    try:
        b = connect(third)
        until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end", pause=0.005)
        until(lambda: b("SETNX", key, "2") == 1, 4, "the lock", pause=0.02)
        assert time.monotonic() - ended > DELAY - 0.1
        assert b("DEL", key) == 1
    finally:
        third.stop()
        third.remove()


def test_many_contend(proxy, second, connect, direct):
    """No attempt is granted within the delay, and one is granted after it; attempts that join one script are refused, too."""
    clients = [connect(where, commands=[("CLIENT", "SETNAME", "c%d" % n)]) for n in range(6) for where in (proxy, second)]
    name = "lock:many:%d" % next(serial)
    for round_ in range(2):
        def ends():
            """When the lease ends at the earliest, if it begins now."""
            end = time.monotonic() + 0.15
            return clients[round_]("SET", name, "1", "NX", "PX", "150") == "OK" and end

        ended, granted = until(ends, 5, "the lock"), []
        until(lambda: direct("EXISTS", name) == 0, 5, "the lease's end", pause=0.002)
        while not granted:
            for client in clients:
                client.send(b"*6\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\n2\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n60000\r\n" %
                            (len(name), name.encode()))
            granted = [client for client in clients if client.read() == "OK"]
        assert len(granted) == 1 and time.monotonic() - ended > DELAY - 0.1
        assert granted[0]("DEL", name) == 1


def test_data_is_no_lock(pair, direct, key):
    """Reads see that there is no lock, and a plain write is data, as without the delay."""
    a, b = pair
    assert a("SET", key, "1", "NX", "PX", "200") == "OK"
    until(lambda: direct("EXISTS", key) == 0, 5, "the lease's end")
    assert [b("GET", key), b("EXISTS", key), b("TTL", key), b("EXPIRE", key, "5")] == [None, 0, -2, 0]
    assert b("SET", key, "data", "XX", "PX", "100") is None


def test_owner_any(proxy, connect):
    a, b = connect(proxy), connect(proxy)
    name = "lock:any:%d" % next(serial)
    assert a("SET", name, "1", "NX", "PX", "5000") == "OK"
    assert b("DEL", name) == 1
    assert b("SET", name, "1", "NX", "PX", "5000") == "OK"
    assert a("DEL", name) == 1
