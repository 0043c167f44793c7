"""Many clients that ask for one lock at once: the answer to one attempt may also answer the others."""

import contextlib
import signal

import pytest

from resp import Error, encode
from servers import until

CROWD = 12


def number(client, field):
    """A number of PROXY INFO."""
    for line in client("PROXY", "INFO").splitlines():
        if line.startswith(field + ":"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO has no " + field)


@contextlib.contextmanager
def standing(proxy):
    """The proxy stands still; what is sent meanwhile it finds all at once."""
    proxy.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        proxy.signal(signal.SIGCONT)


@pytest.fixture
def crowd(proxy, connect, key):
    """Clients with identities of their own; every third speaks RESP3."""
    clients = []
    for i in range(CROWD):
        commands = [("CLIENT", "SETNAME", "%s-%d" % (key("crowd").replace(":", "-"), i))]
        clients.append(connect(proxy, commands=([("HELLO", "3")] if i % 3 == 2 else []) + commands))
    return clients


def refusals(crowd, name):
    if name == "SETNX":
        return [b":0\r\n"] * len(crowd)
    return [b"_\r\n" if i % 3 == 2 else b"$-1\r\n" for i in range(len(crowd))]


FORMS = {
    "SETNX": (("SETNX", "{key}", "v{i}"), b":1\r\n"),
    "SET": (("SET", "{key}", "v{i}", "NX", "PX", "60000"), b"+OK\r\n"),
    "SETEX": (("SET", "{key}", "v{i}", "EX", "60", "NX"), b"+OK\r\n"),
}


def words(form, name, i):
    return [word.replace("{key}", name).replace("{i}", str(i)) for word in FORMS[form][0]]


def all_at_once(proxy, crowd, form, name):
    with standing(proxy):
        for i, client in enumerate(crowd):
            client.send(encode(*words(form, name, i)))
    return [client.read_raw() for client in crowd]


@pytest.mark.parametrize("form", FORMS)
def test_held_lock(proxy, client, crowd, direct, key, form):
    """Each client is refused with its own reply, and each attempt counts as lost; most attempts were never sent."""
    name = key("lock:held")
    assert client("SET", name, "holder", "NX", "PX", 60000) == "OK"
    before, joined = number(client, "acquisitions_lost"), number(client, "requests_joined")
    rounds = 0

    def some_joined():
        nonlocal rounds
        assert all_at_once(proxy, crowd, form, name) == refusals(crowd, form)
        rounds += 1
        return number(client, "requests_joined") > joined

    until(some_joined, what="attempts that joined another's")
    assert number(client, "acquisitions_lost") == before + rounds * CROWD
    assert direct("GET", name) == "holder"
    assert [c("DEL", name) for c in crowd] == [0] * CROWD
    assert client("DEL", name) == 1


@pytest.mark.parametrize("form", FORMS)
def test_free_lock(proxy, client, crowd, direct, key, form):
    """One client gets the lock, with its own value, and no other can release it."""
    joined = number(client, "requests_joined")
    rounds = 0

    def some_joined():
        nonlocal rounds
        rounds += 1
        name = key("lock:free%d" % rounds)
        replies = all_at_once(proxy, crowd, form, name)
        granted = FORMS[form][1]
        assert replies.count(granted) == 1, replies
        winner = replies.index(granted)
        assert [r for i, r in enumerate(replies) if i != winner] == [
            r for i, r in enumerate(refusals(crowd, form)) if i != winner
        ]
        assert direct("GET", name) == "v%d" % winner
        assert [c("DEL", name) for i, c in enumerate(crowd) if i != winner] == [0] * (CROWD - 1)
        assert crowd[winner]("DEL", name) == 1
        return number(client, "requests_joined") > joined

    until(some_joined, what="attempts that joined another's")


def test_foreign_lock(proxy, client, crowd, direct, key):
    """If the answer is not the usual one, each client's attempt is sent."""
    name = key("lock:foreign")
    direct("SET", name, "somebody")
    for form in FORMS:
        assert all_at_once(proxy, crowd, form, name) == refusals(crowd, form)
    direct("DEL", name)
    direct("RPUSH", name, "a list")
    for form in FORMS:
        assert all_at_once(proxy, crowd, form, name) == refusals(crowd, form)
    assert direct("LRANGE", name, 0, -1) == ["a list"]


def test_order(proxy, client, crowd, direct, key):
    """What a client sent before its attempt runs before it, and what it sends behind it later."""
    lock, counter = key("lock:order"), key("order")
    assert client("SETNX", lock, "holder") == 1
    with standing(proxy):
        for i, c in enumerate(crowd):
            before = encode("INCR", counter) if i % 2 else b""
            c.send(before + encode("SETNX", lock, "v") + encode("GET", counter) + encode("SETNX", lock, "w"))
    for i, c in enumerate(crowd):
        if i % 2:
            assert int(c.read()) > 0
        assert c.read() == 0
        assert (c.read() is not None) or not i % 2
        assert c.read() == 0
    assert direct("GET", counter) == str(CROWD // 2)


def test_some_leave(proxy, client, crowd, direct, key):
    """Some clients have gone before the answer came: the others are answered, and one of all clients holds the lock."""
    name = key("lock:leave")
    with standing(proxy):
        for i, c in enumerate(crowd):
            c.send(encode("SET", name, "v%d" % i, "NX", "PX", "60000"))
        for c in crowd[::2]:
            c.close()
    replies = [c.read_raw() for c in crowd[1::2]]
    holder = int(direct("GET", name)[1:])
    assert replies.count(b"+OK\r\n") == holder % 2
    if holder % 2:
        assert crowd[holder]("DEL", name) == 1


def test_node_is_gone(start_redis, start_proxy, connect, key):
    """Each client gets the error, and none waits for ever for another client's answer."""
    redis = start_redis()
    proxy = start_proxy(redis, "upstream-timeout 1s")
    crowd = [connect(proxy) for _ in range(CROWD)]
    name = "lock:gone"
    until(lambda: all(c("PING") == "PONG" for c in crowd), what="the node")
    redis.pause()
    try:
        for c in crowd:
            c.send(encode("SETNX", name, "v"))
        replies = [c.read() for c in crowd]
    finally:
        redis.resume()
    assert all(isinstance(r, Error) and r.startswith("UPSTREAM ") for r in replies), replies
    until(lambda: not isinstance(crowd[0]("PING"), Error), what="the node")
