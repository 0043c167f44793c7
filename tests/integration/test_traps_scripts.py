"""Traps that other proxies fell into, 13 and 14: scripts on new masters, and scripts that don't end."""

import hashlib

import pytest

from resp import Error, encode
from servers import until

LOOP = "while true do end"


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
    assert client("EVALSHA", sha, 1, name) == "NOSCRIPT No matching script. Please use EVAL."
    assert client("EVALSHA_RO", sha, 1, name) == "NOSCRIPT No matching script. Please use EVAL."
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
