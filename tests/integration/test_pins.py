"""Connections to a node that only one client uses: no client exhausts the limits of the node or the system, and the other
clients' requests go on."""

import re
import socket

import pytest

from helpers import is_upstream
from resp import Client, Error, encode
from servers import until


def small(start_redis, maxclients=300):
    server = start_redis()
    server.run("CONFIG", "SET", "maxclients", maxclients)
    return server


def pinned_max(proxy):
    with proxy.client() as c:
        found = re.search(r"pinned_max=(\d+)", c("PROXY", "INFO", "upstreams"))
        return int(found.group(1)) if found else 0


def refusals(proxy):
    with proxy.client() as c:
        return int(re.search(r"pinned_refused=(\d+)", c("PROXY", "INFO", "upstreams")).group(1))


def knows(proxy, maxclients):
    until(lambda: pinned_max(proxy) == maxclients - maxclients // 4, 30, "the proxy's word of maxclients")


def answers_of(clients, timeout=0.0):
    """The replies of the clients that were answered."""
    got = []
    for c in clients:
        c.sock.settimeout(5)
        c.sock.setblocking(False)
        try:
            c.fill()
        except BlockingIOError:
            continue
        finally:
            c.sock.setblocking(True)
        got.append(c.read())
    return got


def works(client, other):
    """What needs a shared connection, the scripts' own, and one for a moment."""
    assert client("SET", "k", "v") == "OK" and client("GET", "k") == "v"
    assert client("MULTI") == "OK" and client("INCR", "n") == "QUEUED" and isinstance(client("EXEC")[0], int)
    assert client("EVAL", "return redis.call('get', KEYS[1])", "1", "k") == "v"
    assert client("SETNX", "lock:{x}", "1") == 1 and client("DEL", "lock:{x}") == 1
    assert client("SELECT", "3") == "OK" and client("SET", "k", "v") == "OK" and client("SELECT", "0") == "OK"
    assert client("WATCH", "k") == "OK" and client("UNWATCH") == "OK"
    assert other("GET", "k") == "v"


@pytest.mark.parametrize("threads", [1, 3])
def test_blocked_clients_leave_room(start_redis, start_proxy, connect, threads):
    """400 BLPOPs at a Redis that accepts 300 clients: some wait, the others get an error, and all other clients go on."""
    server = small(start_redis)
    proxy = start_proxy(server, "threads %d" % threads)
    knows(proxy, 300)
    client, other = connect(proxy), connect(proxy)
    crowd = [connect(proxy) for _ in range(400)]
    for c in crowd:
        c.send(encode("BLPOP", "nothing", "0"))
    refused = []
    until(lambda: refused.extend(answers_of(crowd)) or len(refused) >= 400 - 112, what="the refusals")
    assert len(refused) == 400 - 112
    assert all(is_upstream(text) and "max-pinned-connections-per-client" in text for text in refused), refused[0]
    for _ in range(3):
        works(client, other)
    assert client("LPUSH", "nothing", *range(112)) == 112
    until(lambda: client("LLEN", "nothing") == 0, what="the elements' way to those who wait")
    assert crowd[0].sock.fileno() >= 0
    until(lambda: len(answers_of(crowd)) == 0 and client("BLPOP", "nothing", "0.01") is None, what="room again")


def test_open_transactions_leave_room(start_redis, start_proxy, connect):
    server = small(start_redis)
    proxy = start_proxy(server)
    knows(proxy, 300)
    client = connect(proxy)
    crowd = [connect(proxy) for _ in range(250)]
    replies = [c("MULTI") for c in crowd]
    assert replies.count("OK") == 112
    assert client("SET", "k", "v") == "OK"
    assert client("EVAL", "return redis.call('get', KEYS[1])", "1", "k") == "v"
    assert client("SELECT", "3") == "OK" and client("SETNX", "lock:{x}", "1") == 1
    assert client("BLPOP", "nothing", "0.01") is None
    with Client(proxy.address) as elsewhere:
        elsewhere.sock.close()
        elsewhere.sock = socket.create_connection(proxy.address, 20, source_address=("127.0.0.2", 0))
        assert elsewhere("MULTI") == "OK" and elsewhere("EXEC") == []
    assert is_upstream(client("MULTI")) and client("EXEC") == "ERR EXEC without MULTI"
    for c in crowd:
        c.close()
    until(lambda: client("MULTI") == "OK", what="room again")
    assert client("EXEC") == []


def test_limits_by_directive(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "max-pinned-connections 8", "max-pinned-connections-per-client 5", "threads 2")
    clients = [connect(proxy) for _ in range(8)]
    for n, c in enumerate(clients[:5]):
        assert c("SUBSCRIBE", "news") == ["subscribe", "news", 1]
    text = clients[5]("SUBSCRIBE", "news")
    assert isinstance(text, Error) and "max-pinned-connections-per-client can be raised" in text, text
    assert text.endswith("the request was not sent")
    assert "PING" and clients[5]("PING") == "PONG"
    assert is_upstream(clients[6]("MONITOR"))
    assert is_upstream(clients[6]("BLPOP", "x", "0"))
    assert clients[5]("MULTI") == "OK", "that is another kind"
    with socket.create_connection(proxy.address, 20, source_address=("127.0.0.2", 0)) as elsewhere:
        elsewhere.sendall(encode("BLPOP", "x", "0.01"))
        assert elsewhere.recv(100) == b"*-1\r\n"
        elsewhere.sendall(encode("SUBSCRIBE", "news"))
        assert elsewhere.recv(100).startswith(b"*3\r\n")
        elsewhere.sendall(encode("PING"))
        assert elsewhere.recv(100)
    clients[0].close()
    until(lambda: clients[6]("SUBSCRIBE", "news") == ["subscribe", "news", 1], what="room for one more")
    assert "max-pinned-connections-per-client can be raised" in proxy.log()
    until(lambda: refusals(proxy) >= 3, what="all threads' figures")


def test_clients_that_track_keys_count(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "max-pinned-connections-per-client 2")
    clients = [connect(proxy) for _ in range(4)]
    assert all(c.raw("HELLO", "3") for c in clients)
    assert clients[0]("CLIENT", "TRACKING", "ON") == "OK" and clients[1]("CLIENT", "TRACKING", "ON") == "OK"
    assert "max-pinned-connections-per-client" in clients[2]("CLIENT", "TRACKING", "ON")
    assert clients[2]("SET", "k", "v") == "OK" and clients[2]("GET", "k") == "v"
    assert clients[0]("CLIENT", "TRACKING", "OFF") == "OK"
    until(lambda: clients[3]("CLIENT", "TRACKING", "ON") == "OK", what="room for one more")
    assert clients[3]("GET", "k") == "v"


def test_a_node_that_takes_no_more_clients(start_redis, start_proxy, connect):
    """Other programs have used it up: a client that needs its own connection gets an error, and shared connections go
    on."""
    server = start_redis()
    proxy = start_proxy(server)
    client, late = connect(proxy), connect(proxy)
    assert client("EVAL", "return 1", "0") == 1 and client("SET", "k", "v") == "OK"
    with server.client() as control:
        control("CONFIG", "SET", "maxclients", 1)
        for _ in range(5):
            assert "max number of clients" in late("MULTI")
            assert client("GET", "k") == "v" and client("EVAL", "return 1", "0") == 1
        control("CONFIG", "SET", "maxclients", 100)
    until(lambda: late("MULTI") == "OK", what="the node's taking clients again")


@pytest.mark.parametrize("words", [("SUBSCRIBE", "news"), ("BLPOP", "nothing", "0")])
def test_descriptors_last(start_redis, start_proxy, connect, words):
    """With 256 open files there is room for so many clients, and for so many of them with their own connections."""
    proxy = start_proxy(start_redis(), before=("prlimit", "--nofile=256:256"))
    found = re.search(r"only (\d+) are possible with 256 open files, (\d+) of which", proxy.log())
    assert found, "the proxy says so"
    most, pins = int(found.group(1)), int(found.group(2))
    assert 60 < most < 128 and 20 < pins < 64
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    crowd = [connect(proxy) for _ in range(most - 1)]
    for c in crowd:
        c.send(encode(*words))
    refused = []
    until(lambda: refused.extend(a for a in answers_of(crowd) if isinstance(a, Error)) or len(refused) >= most - 1 - pins,
          what="the refusals")
    assert len(refused) == most - 1 - pins and "ulimit -n" in refused[0]
    with Client(proxy.address) as one_too_many:
        assert "max number of clients" in one_too_many.read()
    assert client("GET", "k") == "v" and client("EVAL", "return 1", "0") == 1 and client("SETNX", "lock:a", "1") == 1
    assert client("SELECT", "1") == "OK" and client("GET", "k") is None
    assert "accepting pauses" not in proxy.log()


def test_idle_connections_make_room(start_redis, start_proxy, connect):
    """Those that are kept for the next one in their database go where others are needed."""
    server = start_redis()
    proxy = start_proxy(server, "max-pinned-connections 6")
    c = connect(proxy)
    for db in range(10):
        assert c("SELECT", db) == "OK" and c("MULTI") == "OK" and c("EXEC") == []
    pinned = int(re.search(r",pinned=(\d+)", c("PROXY", "INFO", "upstreams")).group(1))
    assert pinned <= 6
