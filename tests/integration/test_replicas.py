"""A rule's `replicas N TIME`: a client that is told that it has acquired a lock has it on so many replicas, too. If that can't
be confirmed, the client is told that it lost, or gets an error, and holds nothing. And the losses of a failover without the
option are noticed."""

import pytest

import servers
from resp import Client, Error, encode
from servers import until

TIMEOUT = 30


@pytest.fixture(scope="module")
def pair():
    """A master with a replica, and a proxy in front."""
    master = servers.RedisServer("--repl-diskless-sync-delay", "0")
    replica = servers.RedisServer()
    replica.run("REPLICAOF", *master.address)
    proxy = servers.Proxy(master, "lock lock:two:* replicas 2 100ms", "lock lock:plain:*", "lock lock:* kind any replicas 1 300ms",
                          "upstream-timeout 2s")
    in_step(master)
    yield master, replica, proxy
    proxy.stop()
    proxy.remove()
    replica.stop()
    master.stop()


def in_step(master):
    with master.client() as c:
        until(lambda: c("SET", "step", "1") == "OK" and c("WAIT", 1, 100) >= 1, TIMEOUT, "the replica", 0.05)


@pytest.fixture
def paused(pair):
    _, replica, _ = pair
    replica.pause()
    yield replica
    replica.resume()
    in_step(pair[0])


def incidents(client, kind):
    return [i for i in client("PROXY", "INCIDENTS", 1000) if dict(zip(i[0::2], i[1::2]))["kind"] == kind]


def gone(master, name):
    until(lambda: master.run("EXISTS", name) == 0, TIMEOUT, "the undoing of " + name)


def test_confirmed_locks_are_on_the_replica_when_the_client_hears_of_them(pair, connect, key):
    master, replica, proxy = pair
    client, copy = connect(proxy), connect(replica)
    for n in range(50):
        name = key("lock:sure")
        command = [("SETNX", name, "1"), ("SET", name, "1", "NX", "PX", "60000"), ("SET", name, "1", "EX", "60"),
                   ("GETSET", name, "1"), ("INCR", name), ("HSETNX", name, "f", "1")][n % 6]
        assert client(*command) == [1, "OK", "OK", None, 1, 1][n % 6]
        assert copy("EXISTS", name) == 1
        assert client("SETNX", name, "2") == 0, "others are answered as ever"
        assert client("DEL", name) == 1


def test_unconfirmed_locks_are_lost(pair, paused, connect, key):
    master, _, proxy = pair
    client, other = connect(proxy), connect(proxy)
    before = len(incidents(other, "unconfirmed"))
    for command, reply in ((("SETNX", "1"), 0), (("SET", "1", "NX", "EX", "60"), None), (("HSETNX", "f", "1"), 0)):
        name = key("lock:lost")
        assert client(command[0], name, *command[1:]) == reply
        gone(master, name)
        assert client("DEL", name) == 0
    for command in (("SET", "1", "EX", "60"), ("SETEX", "60", "1"), ("GETSET", "1"), ("INCR",), ("SET", "1", "NX", "GET")):
        name = key("lock:error")
        reply = client(command[0], name, *command[1:])
        assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed by enough replicas"), (
            command, reply)
        gone(master, name)
    found = incidents(other, "unconfirmed")
    assert len(found) == before + 8
    assert "0 of 1 replicas had it within 300 ms" in str(found[0])
    client("HELLO", "3")
    assert client("SET", key("lock:lost"), "1", "NX") is None
    name = key("lock:plain:a")
    assert client("SETNX", name, "1") == 1, "another rule asks no replica"
    assert client("DEL", name) == 1


def test_transactions(pair, connect, key):
    """EXEC is answered when the replicas have what it did; the parts that acquired say so, or that they lost."""
    master, replica, proxy = pair
    client, copy = connect(proxy), connect(replica)
    name = key("lock:exec")
    commands = [("MULTI",), ("SETNX", name, "1"), ("EXPIRE", name, "60"), ("SET", "k", "v"), ("EXEC",)]
    for n in range(20):
        assert client.pipeline(commands)[-1] == b"*3\r\n:1\r\n:1\r\n+OK\r\n"
        assert copy("EXISTS", name) == 1
        assert client.pipeline(commands)[-1] == b"*3\r\n:0\r\n:0\r\n+OK\r\n", "held"
        assert client.pipeline([("MULTI",), ("DEL", name), ("EXEC",)])[-1] == b"*1\r\n:1\r\n"
    replica.pause()
    try:
        assert client.pipeline(commands)[-1] == b"*3\r\n:0\r\n:1\r\n+OK\r\n"
        gone(master, name)
        reply = client.pipeline([("MULTI",), ("SET", name, "1", "EX", "60"), ("GET", "k"), ("EXEC",)])[-1]
        assert reply.startswith(b"*2\r\n-UPSTREAM the lock was not confirmed") and reply.endswith(b"$1\r\nv\r\n"), reply
        gone(master, name)
        client.send(b"".join(encode(*c) for c in commands))
        until(lambda: master.run("EXISTS", name) == 1, TIMEOUT, "the attempt")
        client.close()
        gone(master, name)
    finally:
        replica.resume()
    in_step(master)


def test_more_replicas_than_there_are(pair, connect, key):
    master, replica, proxy = pair
    name = key("lock:two:a")
    assert connect(proxy)("SETNX", name, "1") == 0
    gone(master, name)
    assert "1 of 2 replicas had it within 100 ms" in str(incidents(connect(proxy), "unconfirmed")[0])


def test_others_do_not_wait(pair, paused, connect, key):
    _, _, proxy = pair
    client, other = connect(proxy), connect(proxy)
    name, plain = key("lock:wait"), key("plain")
    client.send(encode("SETNX", name, "1") + encode("SET", plain, "1") + encode("DEL", name))
    until(lambda: other("EXISTS", name) == 1, TIMEOUT, "the attempt")
    assert other("SET", key("plain"), "1") == "OK"
    assert other("SETNX", name, "1") == 0, "it is taken until it is undone"
    assert [client.read() for _ in range(3)] == [0, "OK", 0], "order is kept, and the DEL waited for its lock's fate"


def test_a_client_that_leaves_meanwhile(pair, paused, connect, key):
    master, _, proxy = pair
    client, name = Client(proxy.address), key("lock:left")
    client.send(encode("SETNX", name, "1"))
    until(lambda: master.run("EXISTS", name) == 1, TIMEOUT, "the attempt")
    client.close()
    gone(master, name)


def test_a_master_that_stops_before_it_answers(pair, connect, key):
    """The client hears something, in bounded time, and what it hears is true."""
    master, replica, proxy = pair
    client, name = connect(proxy, timeout=TIMEOUT), key("lock:stopped")
    replica.pause()
    try:
        client.send(encode("SETNX", name, "1"))
        until(lambda: master.run("EXISTS", name) == 1, TIMEOUT, "the attempt")
        master.pause()
        assert client.read() == 0
    finally:
        master.resume()
        replica.resume()
    gone(master, name)
    in_step(master)
    until(lambda: client("SETNX", name, "1") == 1, TIMEOUT, "service")
    assert client("DEL", name) == 1


def test_shown(pair, connect):
    client = connect(pair[2])
    assert "replicas 1 300ms" in str(client("PROXY", "EXPLAIN", "SETNX", "lock:a", "1"))
    rules = str(client("PROXY", "RULES"))
    assert "replicas 2 100ms" in rules and "replicas 0" in rules


def lose_the_link(replica):
    """From here on the replica gets nothing from its master."""
    replica.run("CONFIG", "SET", "masteruser", "nobody")
    replica.run("CONFIG", "SET", "masterauth", "nothing")


def test_a_failover_that_loses_a_lock(start_proxy, connect):
    """The promoted replica had not caught up. The owner's next renewal finds its lease gone; with `replicas` no client would
    have been told that it had acquired."""
    found = servers.RedisSentinels(sentinels=1)
    try:
        proxy = start_proxy(found, "lock lock:sure:* replicas 1 100ms", "lock lock:* lease 4s")
        client = connect(proxy, timeout=TIMEOUT)
        assert client("SETNX", "lock:safe", "1") == 1
        assert client("WAIT", 1, 5000) == 1
        master, replica = found.nodes
        lose_the_link(replica)
        with master.client() as c:
            c("CLIENT", "KILL", "TYPE", "replica")
        assert client("SETNX", "lock:lost", "1") == 1
        assert client("SETNX", "lock:sure:a", "1") == 0
        new = found.failover(master)
        until(lambda: client("SET", "k", "v") == "OK" and new.run("GET", "k") == "v", TIMEOUT, "the new master")
        until(lambda: incidents(client, "renewal_lost"), TIMEOUT, "the incident")
        lost = [dict(zip(i[0::2], i[1::2]))["key"] for i in incidents(client, "renewal_lost")]
        assert lost == ["lock:lost"]
        assert connect(proxy)("SETNX", "lock:lost", "2") == 1, "it is free"
        assert client("DEL", "lock:lost") == 0, "and its former owner's no more"
        assert client("DEL", "lock:safe") == 1
    finally:
        found.stop()
