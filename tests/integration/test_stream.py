"""Long requests and replies: they are forwarded while they arrive, in memory far below their size.

A request above one megabyte is streamed, over a pin. The result must be the same as Redis's, and a client, a node or a
slot that goes away in the middle does not affect other clients.
"""

import socket
import threading

import pytest

import oracle as bytes_oracle
from resp import Client, Closed, Error, encode
from servers import slot_of, until, valkey
from test_passthrough import Migration

MB = 1 << 20
LONG = bytes(range(256)) * (3 * MB // 256)


def head(*words, rest):
    """The beginning of a request whose last argument has `rest` bytes."""
    whole = encode(*words, b"x" * rest)
    return whole[: -rest - 2]


def streams(client):
    """How many requests are being passed on."""
    for line in client("PROXY", "INFO", "upstreams").splitlines():
        if line.startswith("pinned_streams:"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO shows no pinned_streams")


def begin(client, watcher, *words, size=4 * MB, sent=2 * MB):
    """Sends the request but for its last bytes, until it is on its way. Returns what is left."""
    before = streams(watcher)
    client.send(head(*words, rest=size) + b"x" * sent)
    until(lambda: streams(watcher) > before, 10, "the request's way to the node")
    return b"x" * (size - sent) + b"\r\n"


def test_a_long_request_is_one_of_many(client, direct, key):
    """In a pipeline with others: in their order, as the others see them."""
    name = key("long")
    replies = client.pipeline([
        ("SET", name, "a"), ("APPEND", name, LONG), ("STRLEN", name), ("SETRANGE", name, 1, b"-" * (2 * MB)),
        ("GETRANGE", name, 0, 2), ("SET", name, LONG, "EX", 100), ("TTL", name), ("SET", name, LONG, "GET"),
        ("SETEX", name, 50, LONG), ("TTL", name), ("GETSET", name, "z"), ("GET", name), ("ECHO", LONG),
        ("LPUSH", name + "l", LONG, "b", LONG), ("LINDEX", name + "l", 1), ("HSET", name + "h", "f", LONG, "g", "1"),
        ("SET", name, LONG, "NX"), ("SET", name, LONG, "WRONG"), ("LPUSH", name, LONG), ("SETEX", name, 0, LONG),
        ("HGET", name + "h", "f"), ("SET", name), ("GET", name)])
    bulk = b"$%d\r\n%s\r\n" % (len(LONG), LONG)
    assert replies == [
        b"+OK\r\n", b":%d\r\n" % (len(LONG) + 1), b":%d\r\n" % (len(LONG) + 1), b":%d\r\n" % (len(LONG) + 1),
        b"$3\r\na--\r\n", b"+OK\r\n", b":100\r\n", bulk,
        b"+OK\r\n", b":50\r\n", bulk, b"$1\r\nz\r\n", bulk,
        b":3\r\n", b"$1\r\nb\r\n", b":2\r\n",
        b"$-1\r\n", b"-ERR syntax error\r\n",
        b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        b"-ERR invalid expire time in 'setex' command\r\n",
        bulk, b"-ERR wrong number of arguments for 'set' command\r\n", b"$1\r\nz\r\n"]
    assert streams(client) == 0
    for suffix in ("", "l", "h"):
        assert direct("DEL", name + suffix) == 1


@pytest.mark.parametrize("piece", [1000, 65536, 65537, 3 * MB])
def test_pieces_of_any_size(client, key, piece):
    name = key("pieces")
    data = encode("RPUSH", name, *[LONG[:n] for n in (0, 1, 5, 3000, 70000, 2 * MB, 11)]) + encode("LLEN", name)
    for at in range(0, len(data), piece):
        client.send(data[at : at + piece])
    assert (client.read(), client.read()) == (7, 7)
    assert client.raw("LINDEX", name, 5) == b"$%d\r\n%s\r\n" % (2 * MB, LONG[: 2 * MB])
    assert client("DEL", name) == 1


def test_held_where_it_has_to_be(client, connect, proxy, backend, direct, key):
    """Lock keys, transactions and commands with several keys are decided when they are complete."""
    lock, name = key("lock:long"), key("{t}long")
    assert client("SET", lock, LONG, "NX", "EX", 30) == "OK"
    assert connect(proxy)("SET", lock, LONG, "NX") is None
    assert client.raw("GET", lock) == b"$%d\r\n%s\r\n" % (len(LONG), LONG)
    guard = next(name for name in backend.keys() if name.startswith("lockkeeper:") and name.endswith(lock))
    reply = client("SET", guard, LONG)
    assert isinstance(reply, Error) and "guard record" in reply
    assert client("DEL", lock) == 1
    assert client("MSET", name, LONG, name + "2", LONG) == "OK"
    assert client("MULTI") == "OK"
    assert client("SET", name, LONG + b"!") == "QUEUED"
    assert client("EXEC") == ["OK"]
    assert client("STRLEN", name) == len(LONG) + 1
    assert client("EVAL", "return #ARGV[1]", 1, name, LONG) == len(LONG)
    assert direct("DEL", name) + direct("DEL", name + "2") == 2


def test_replies_that_are_not_wanted(client, key):
    name = key("mute")
    client.send(encode("CLIENT", "REPLY", "SKIP") + encode("SET", name, LONG) + encode("STRLEN", name))
    assert client.read() == len(LONG)
    client.send(encode("CLIENT", "REPLY", "OFF") + encode("SET", name, LONG) * 2 + encode("CLIENT", "REPLY", "ON"))
    assert client.read() == "OK"
    assert client("DEL", name) == 1


def test_pause(start_redis, start_proxy, connect):
    """A paused write waits where it is, and goes on."""
    proxy = start_proxy(start_redis())
    client, other = connect(proxy), connect(proxy)
    assert other("CLIENT", "PAUSE", "20000", "WRITE") == "OK"
    thread = threading.Thread(target=client.send, args=(encode("SET", "k", LONG),), daemon=True)
    thread.start()
    for _ in range(20):
        assert other("EXISTS", "k") == 0
    assert streams(other) == 0
    assert other("CLIENT", "UNPAUSE") == "OK"
    assert client.read() == "OK"
    thread.join(10)


# ---- malformed, as Redis has it ---------------------------------------------------------------------

BEHIND = {
    "nothing": b"",
    "a request": b"$1\r\nb\r\n*1\r\n$4\r\nPING\r\n",
    "no bulk": b":1\r\nb\r\n",
    "minus one": b"$-1\r\n",
    "plus": b"$+1\r\nb\r\n",
    "leading zero": b"$01\r\nb\r\n",
    "no number": b"$\r\nb\r\n",
    "empty line": b"\r\n",
    "a long number": b"$%s\r\n" % (b"1" * 40),
    "too long": b"$536870913\r\n",
    "a NUL byte": b"$1\0\r\nb\r\n*1\r\n$4\r\nPING\r\n",
    "no end": b"$" + b"1" * 70000,
    "CR and another byte": b"$1\rXb\r\n*1\r\n$4\r\nPING\r\n",
    "no CR LF behind the bulk": b"$1\r\nbXY*1\r\n$4\r\nPING\r\n",
}


@pytest.mark.parametrize("name", BEHIND)
def test_malformed_behind_a_long_argument(farm, name):
    """Redis is the oracle; the malformed part arrives while the request is on its way."""
    if valkey() and name == "a NUL byte":
        pytest.skip("Valkey takes it for no number")
    beginning = encode("SMISMEMBER", "odd", "a" * (2 * MB), "b")
    beginning = beginning[: -len("$1\r\nb\r\n")]
    pieces = [beginning[:MB], beginning[MB:], BEHIND[name]]
    bytes_oracle.compare(farm.backend("standalone"), farm.proxy("standalone").address, pieces)


def test_limits_are_those_of_redis(start_redis, start_proxy, connect):
    server = start_redis("--client-query-buffer-limit", "2mb", "--proto-max-bulk-len", "4mb")
    proxy = start_proxy(server, "client-query-buffer-limit 2mb", "proto-max-bulk-len 4mb")
    for data in (encode("RPUSH", "l", b"a" * (MB + 1000), b"b" * (3 * MB)),
                 encode("SET", "k", b"a" * (4 * MB + 1)), encode("RPUSH", "l", b"a" * MB, b"b" * (4 * MB + 1))):
        with Client(server.address) as theirs, Client(proxy.address) as ours:
            ends = []
            for c in (theirs, ours):
                bytes_oracle.send(c, [data])
                ends.append(c.read_all())
            assert ends[0] == ends[1], data[:30]
    client = connect(proxy)
    assert client("EXISTS", "l", "k") == 0
    assert client("RPUSH", "l", *[b"a" * (MB + MB // 2)] * 5) == 5


def test_node_with_a_lower_limit(start_redis, start_proxy, connect):
    """It answers before it has the whole request, and closes: its words are in the error, and others are not hurt."""
    proxy = start_proxy(start_redis("--proto-max-bulk-len", "2mb"))
    client, other = connect(proxy), connect(proxy)
    for _ in range(3):
        reply = client.pipeline([("SET", "k", b"x" * (8 * MB)), ("GET", "k")])
        assert reply[0].startswith(b"-UPSTREAM ") and b"invalid bulk length" in reply[0], reply[0]
        assert b"the request was not sent" in reply[0]
        assert reply[1] == b"$-1\r\n"
        assert other("PING") == "PONG"


# ---- in the middle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half-close", "error"])
def test_client_that_leaves_in_the_middle(proxy, connect, direct, key, how):
    client, other = connect(proxy), connect(proxy)
    name = key("left")
    begin(client, other, "SET", name)
    if how == "error":
        name = key("left")
        client = connect(proxy)
        client.send(encode("RPUSH", name, b"x" * (2 * MB), "b")[:-7])
        until(lambda: streams(other) == 2)
        client.send(b"nonsense\r\n")
        assert client.read_all() == b"-ERR Protocol error: expected '$', got 'n'\r\n"
    elif how == "half-close":
        client.shutdown()
        assert client.read_all() == b""
    elif how == "reset":
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    else:
        client.close()
    until(lambda: streams(other) == (how == "error"), 10, "the end of the connection")
    assert other("SET", name, "mine") == "OK"
    assert direct("GET", name) == "mine"


def test_client_that_stalls_in_the_middle(start_redis, start_proxy, connect):
    """For longer than any reply may take: no other client waits for it, and it may go on."""
    proxy = start_proxy(start_redis(), "upstream-timeout 500ms")
    client, other = connect(proxy), connect(proxy)
    rest = begin(client, other, "SET", "k")
    deadline = threading.Event()
    for n in range(8):
        assert other("SET", "other", n) == "OK"
        deadline.wait(0.1)
    assert streams(other) == 1
    client.send(rest + encode("STRLEN", "k"))
    assert (client.read(), client.read()) == ("OK", 4 * MB)


def test_client_that_stalls_for_too_long(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "timeout 1")
    client = connect(proxy)
    client.send(head("SET", "k", rest=4 * MB) + b"x" * (2 * MB))
    with pytest.raises(Closed):
        client.read()
    assert connect(proxy)("EXISTS", "k") == 0


def test_node_lost_in_the_middle(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client, other = connect(proxy), connect(proxy)
    rest = begin(client, other, "SET", "k")
    server.kill()
    reply = client.read()
    assert reply.startswith("UPSTREAM ") and reply.endswith("the request was not sent"), reply
    server.restart()
    until(lambda: other("EXISTS", "k") == 0, 10, "the node's return")
    client.send(rest + encode("PING"))
    assert client.read() == "PONG", "what was left of the request is dropped"
    assert client("EXISTS", "k") == 0


def test_node_lost_before_the_reply(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client, other = connect(proxy), connect(proxy)
    rest = begin(client, other, "SET", "k")
    server.pause()
    client.send(rest)
    other.send(encode("PING"))
    server.kill()
    for c in (client, other):
        reply = c.read()
        assert isinstance(reply, Error) and reply.startswith("UPSTREAM "), reply


def test_stop_in_the_middle(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis())
    client, other = connect(proxy), connect(proxy)
    begin(client, other, "SET", "k")
    proxy.stop()
    assert client.read_all() == b""


def test_node_that_takes_nothing(start_redis, start_proxy, connect):
    """The client has to wait, memory stays low, and nothing is lost."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 60s", measured=True)
    client, other = connect(proxy), connect(proxy)
    size = 200 * MB
    assert other("PING") == "PONG"
    before = proxy.memory()
    begin(client, other, "SET", "k", size=size, sent=2 * MB)
    server.pause()
    client.sock.settimeout(1)
    sent, piece = 2 * MB, b"x" * MB
    try:
        while sent < size:
            sent += client.sock.send(piece)
    except TimeoutError:
        pass
    grown = proxy.memory() - before
    server.resume()
    assert sent < size, "somebody kept it all"
    assert grown < 16 * MB, "%d MB of memory" % (grown // MB)
    client.sock.settimeout(30)
    client.send(b"x" * (size - sent) + b"\r\n")
    assert client.read() == "OK"
    assert other("STRLEN", "k") == size


# ---- cluster -------------------------------------------------------------------------------------------


def test_slots_that_move(start_cluster, start_proxy, connect):
    """The node is asked before anything is sent, so MOVED and ASK are followed; a slot that moves while the request is
    on its way makes an error, and nothing is done."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client, other = connect(proxy), connect(proxy)
    slot = slot_of("s")
    migration = Migration(cluster, [slot])
    assert client("SET", "{s}0", LONG) == "OK"
    migration.move(slot, 10)
    assert client("SET", "{s}1", LONG) == "OK", "MOVED"
    source = migration.owner[slot]
    target = cluster.nodes[(cluster.nodes.index(source) + 1) % 3]
    migration.must(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", migration.ids[source])
    migration.must(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", migration.ids[target])
    assert client("SET", "{s}2", LONG) == "OK", "ASK"
    assert client("APPEND", "{s}1", LONG) == 2 * len(LONG)
    assert target.run("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
    rest = begin(client, other, "APPEND", "{s}1")
    migration.move(slot, 10)
    client.send(rest)
    reply = client.read()
    assert isinstance(reply, Error) and reply.startswith("TRYAGAIN "), reply
    assert client("EXISTS", "{s}0", "{s}1", "{s}2") == 3
    assert client("STRLEN", "{s}1") == 2 * len(LONG)
    assert client("APPEND", "{s}1", LONG) == 3 * len(LONG)


def test_user_who_may_not_ask(start_redis, start_cluster, start_proxy, connect):
    """The probe is refused: the request goes where the map says."""
    cluster = start_cluster()
    for node in cluster.nodes:
        assert node.run("ACL", "SETUSER", "writer", "on", ">pw", "~*", "+set") == "OK"
    client = connect(start_proxy(cluster), commands=[("AUTH", "writer", "pw")])
    assert client("SET", "k", LONG) == "OK"
    assert client("APPEND", "k", LONG).startswith("NOPERM ")
    assert client("SET", "k", "v") == "OK"


def test_no_node_to_be_found(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    for node in cluster.nodes:
        assert node.run("CONFIG", "SET", "cluster-require-full-coverage", "no") == "OK"
    proxy = start_proxy(cluster)
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    cluster.node_of("k").kill()
    reply, pong = client.pipeline([("SET", "k", LONG), ("PING",)])
    assert reply.startswith((b"-UPSTREAM ", b"-CLUSTERDOWN ")), reply
    assert pong == b"+PONG\r\n"


# ---- replies ---------------------------------------------------------------------------------------------


def test_reader_slower_than_its_long_reply(backend, start_proxy, connect):
    """The part of the reply that it has not read is left to the node, in memory far below its size; no other client
    waits for it."""
    proxy = start_proxy(backend, measured=True)
    client, other = connect(proxy), connect(proxy)
    size = 100 * MB
    assert other("SET", "slow", b"x" * size) == "OK"
    before = proxy.memory()
    client.send(encode("GET", "slow"))
    assert client.sock.recv(10)  # it has begun
    for n in range(50):
        assert other("APPEND", "quick", "x") == n + 1
    assert proxy.memory() - before < 16 * MB
    client.send(encode("SET", "slow", "v") + encode("GET", "slow"))
    left, last = size - 10 + len("$%d\r\n\r\n" % size), b""
    while left > 0:
        last = client.sock.recv(min(left, MB))
        left -= len(last)
    assert last.endswith(b"x\r\n")
    assert (client.read(), client.read()) == ("OK", "v")
    assert proxy.memory() - before < 16 * MB
    assert other("DEL", "quick") == 1


def test_own_questions_behind_a_long_reply(start_redis, start_proxy, connect):
    """The proxy's own questions do not wait behind a reply that is not read, which stays with the node."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 60s", measured=True)
    client, other = connect(proxy), connect(proxy)
    assert other("SET", "slow", b"x" * (100 * MB)) == "OK"
    before = proxy.memory()

    def in_flight():
        line = [line for line in other("PROXY", "INFO", "upstreams").splitlines() if line.startswith("node")][0]
        return int(dict(part.split("=") for part in line.split(":", 1)[1].split(","))["in_flight"])
    server.pause()
    client.send(encode("GET", "slow"))
    until(lambda: in_flight() >= 2, 30, "a question of the proxy's behind the GET")
    server.resume()
    assert client.sock.recv(10)
    for n in range(50):
        assert other("APPEND", "quick", "x") == n + 1
    assert proxy.memory() - before < 16 * MB
    until(lambda: "maxmemory_policy:noeviction" in other("PROXY", "INFO", "upstreams"), 30, "the answers to them")


def test_reader_that_leaves_in_a_long_reply(backend, start_proxy, connect):
    proxy = start_proxy(backend)
    client, other = connect(proxy), connect(proxy)
    assert other("SET", "slow", b"x" * (64 * MB)) == "OK"
    client.send(encode("GET", "slow") * 3)
    assert client.sock.recv(10)
    client.close()
    assert other("STRLEN", "slow") == 64 * MB
    assert other("DEL", "slow") == 1
