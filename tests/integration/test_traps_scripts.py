"""Traps that other proxies fell into, 13 and 14: scripts on new masters, and scripts that don't end."""

import hashlib
import time

import pytest

from resp import Error, encode
from helpers import NOSCRIPT
from servers import until

LOOP = "while true do end"
LASTS = "local t = redis.call('time') local e = t[1] * 1000000 + t[2] + ARGV[1] * 1000 " \
        "repeat t = redis.call('time') until t[1] * 1000000 + t[2] > e return 'done'"
BOUND_S = 8  # for what is given up after one or two upstream-timeouts of 500 ms


def test_trap_13_noscript(backend, client, key):
    """The proxy's own scripts repeat invisibly; the application hears that its script is gone, and loads it again."""
    source = "return redis.call('get', KEYS[1])"
    sha = client("SCRIPT", "LOAD", source)
    assert sha == hashlib.sha1(source.encode()).hexdigest()
    name, lock = key("plain"), key("lock:noscript")
    client("SET", name, "v")
    assert client("EVALSHA", sha, 1, name) == "v"
    for node in backend.nodes:
        node.run("SCRIPT", "FLUSH")
    assert client("SET", lock, 1, "NX", "EX", 100) == "OK"
    assert client("DEL", lock) == 1
    assert client("EVALSHA", sha, 1, name) == NOSCRIPT
    assert client("EVALSHA_RO", sha, 1, name) == NOSCRIPT
    assert client("EVAL", source, 1, name) == "v"
    assert client("EVALSHA", sha, 1, name) == "v"
    assert client("SCRIPT", "LOAD", source) == sha
    assert [node.run("SCRIPT", "EXISTS", sha) for node in backend.nodes] == [[1]] * len(backend.nodes)


@pytest.mark.parametrize("kill", ["SCRIPT", "FUNCTION"])
def test_trap_14_busy_and_kill(backend, start_proxy, connect, kill):
    """The kill reaches the node that runs the script, over another connection than the script's."""
    proxy = start_proxy(backend, "upstream-timeout 60s")
    client, other, third = connect(proxy), connect(proxy), connect(proxy)
    code = "#!lua name=loop\nredis.register_function('loop', function() %s end)" % LOOP
    assert client("CONFIG", "SET", "busy-reply-threshold", 50) == "OK"
    try:
        assert other("FUNCTION", "LOAD", "REPLACE", code) == "loop"
        # Also for a session in another database, which no busy node would select.
        if backend.kind == "standalone":
            assert other("SELECT", 3) == "OK"
        client.send(encode("EVAL", LOOP, 1, "busy") if kill == "SCRIPT" else encode("FCALL", "loop", 1, "busy"))
        with backend.node_of("busy").client() as direct:
            until(lambda: str(direct("PING")).startswith("BUSY"), what="BUSY")
        assert str(third("BLPOP", "busy", 1)).startswith("BUSY")
        if kill == "FUNCTION":
            assert other("FUNCTION", "STATS")[1][1] == "loop"
        assert other(kill, "KILL") == "OK"
        reply = client.read()
        assert isinstance(reply, Error) and "killed" in reply.lower(), reply
        assert client("SET", "busy", 1) == "OK"
        assert other(kill, "KILL").startswith("NOTBUSY")
    finally:
        client("CONFIG", "SET", "busy-reply-threshold", 5000)
        client("FUNCTION", "FLUSH")


def test_trap_14_a_script_that_has_written(backend, start_proxy, connect):
    """What the busy node says counts, not that the others run nothing."""
    proxy = start_proxy(backend, "upstream-timeout 60s")
    client, other = connect(proxy), connect(proxy)
    try:
        assert client("CONFIG", "SET", "busy-reply-threshold", 50) == "OK"
        bounded = "redis.call('set', KEYS[1], 1) local t = redis.call('time') local e = t[1] * 1000000 + t[2] + 1500000 " \
                  "repeat t = redis.call('time') until t[1] * 1000000 + t[2] > e return 1"
        client.send(encode("EVAL", bounded, 1, "busy"))
        until(lambda: str(other("SCRIPT", "KILL")).startswith("UNKILLABLE"), what="UNKILLABLE")
        assert client.read() == 1
    finally:
        client("CONFIG", "SET", "busy-reply-threshold", 5000)


def ask_in_transaction(client, *words):
    assert client("MULTI") == "OK"
    assert client(*words) == "QUEUED"
    client.send(encode("EXEC"))


def ask_behind_another(client, *words):
    client.send(encode("GET", "{busy}plain") + encode(*words))
    assert client.read() is None


WAYS = {"alone": lambda client, *words: client.send(encode(*words)), "in MULTI": ask_in_transaction,
        "behind a GET": ask_behind_another}


def await_busy(node):
    with node.client() as direct:
        until(lambda: str(direct("PING")).startswith("BUSY"), what="BUSY")


@pytest.mark.parametrize("way", WAYS)
def test_a_script_that_outlasts_the_timeout(backend, start_proxy, connect, way):
    """Its node says BUSY to others, so it is there: the reply is waited for. So is that of the next client's script,
    which the connection has to carry behind it."""
    proxy = start_proxy(backend, "upstream-timeout 500ms")
    client, next_one, admin = connect(proxy), connect(proxy), connect(proxy)
    try:
        assert admin("CONFIG", "SET", "busy-reply-threshold", 50) == "OK"
        WAYS[way](client, "EVAL", LASTS, 1, "{busy}", 1500)
        await_busy(backend.node_of("{busy}"))
        assert admin("GET", "{busy}").startswith("BUSY")  # no request waits behind it
        next_one.send(encode("EVAL", "return 'next'", 1, "{busy}"))
        assert client.read() == (["done"] if way == "in MULTI" else "done")
        # It may have come to the node while that was busy.
        reply = next_one.read()
        assert reply == "next" or reply.startswith("BUSY"), reply
    finally:
        admin("CONFIG", "SET", "busy-reply-threshold", 5000)


def test_a_script_that_was_given_up_by_its_client(start_redis, start_proxy, connect):
    """It still runs, and others wait behind it on its connection."""
    server = start_redis("--busy-reply-threshold", "50")
    proxy = start_proxy(server, "upstream-timeout 1500ms", "threads 1")  # one thread: one connection for scripts
    leaver, other, admin = connect(proxy), connect(proxy), connect(proxy)
    assert other("EVAL", "return 1", 0) == 1  # the scripts' connection is there
    server.pause()
    leaver.send(encode("EVAL", LASTS, 0, 3000))
    until(lambda: "in_flight=1" in admin("PROXY", "INFO", "upstreams"), what="the script's way to the node")
    other.send(encode("EVAL", "return 'behind'", 0))
    until(lambda: "in_flight=2" in admin("PROXY", "INFO", "upstreams"), what="the next one's way to the node")
    server.resume()
    leaver.close()
    assert other.read() == "behind"


@pytest.mark.parametrize("way", WAYS)
def test_a_script_on_a_node_that_stops(start_redis, start_proxy, connect, way):
    """The node answers no client: the script's client gets an error soon, and so do the others; the node is used again
    later."""
    server = start_redis("--busy-reply-threshold", "50")
    proxy = start_proxy(server, "upstream-timeout 500ms")
    client, other = connect(proxy), connect(proxy)
    WAYS[way](client, "EVAL", LASTS, 1, "{busy}", 20000)
    await_busy(server)
    time.sleep(0.8)  # what is being tested: it has outlasted the timeout when the node stops
    server.pause()
    start = time.monotonic()
    assert client.read().startswith("UPSTREAM node")
    assert time.monotonic() - start < BOUND_S
    assert str(other("GET", "k")).startswith("UPSTREAM")
    server.resume()
    until(lambda: server.client()("SCRIPT", "KILL") == "OK", what="the script's end")
    until(lambda: other("GET", "k") is None, what="the node's return")
    assert client("EVAL", "return 1", 0) == 1
