"""Nodes that die, stop, come back or talk nonsense, and clients that leave, are slow, or are many.

Whatever happens: every request gets one answer, an error says whether its outcome is unknown or it was not sent, and
later requests work again by themselves.
"""

import resource
import signal
import socket
import struct
import threading
import time

import pytest

from fake import Link
from helpers import is_upstream, keys_of, polite, says_unknown, works_again
from resp import Client, Closed, Error, encode
from servers import HOST, free_port, until


# ---- standalone ----------------------------------------------------------------------------------


def test_killed_and_restarted(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    assert client("SETNX", "lock:k", "1") == 1
    server.kill()
    for command in (("GET", "k"), ("SET", "k", "w"), ("DEL", "lock:k"), ("SETNX", "lock:k", "1"), ("MGET", "a", "b"),
                    ("DEL", "a", "b"), ("KEYS", "*"), ("DBSIZE",)):
        reply = client(*command)
        assert is_upstream(reply), (command, reply)
    assert client("CLIENT", "GETNAME") is None, "what the session knows itself still works"
    server.start()
    works_again(client)
    assert client("GET", "k") is None, "it came back empty"
    assert client("SETNX", "lock:new", "1") == 1
    assert client("DEL", "lock:new") == 1


def test_killed_with_requests_in_flight(start_redis, start_proxy, connect):
    """Written, but not answered: unknown. Nothing of it is ever sent again."""
    server = start_redis()
    proxy = start_proxy(server)
    clients = [connect(proxy) for _ in range(5)]
    for c in clients:
        assert c("SET", "k", "0") == "OK"
    server.pause()
    for c in clients:
        c.send(encode("INCR", "k") * 3 + encode("GET", "k"))
    until(lambda: in_flight(connect(proxy)) >= 20, 10, "the requests' way to the node")
    server.kill()
    for c in clients:
        for _ in range(3):
            assert says_unknown(c.read())
        assert is_upstream(c.read())
    server.start()
    for c in clients:
        works_again(c, ("SET", "k", "0"))
    assert clients[0]("GET", "k") == "0"


def in_flight(client):
    """What PROXY INFO says of requests on their way, or a large number if it does not say."""
    with client:
        text = client("PROXY", "INFO", "upstreams")
    total = 0
    for word in text.replace("\r\n", ",").split(","):
        if "in_flight=" in word:
            total += int(word.split("in_flight=")[1])
    return total


def test_trap_31_no_late_reply_after_a_timeout(start_redis, start_proxy, connect):
    """SIGSTOP: no answer. After upstream-timeout the requests fail as unknown, and no client gets a late reply."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 700ms")
    one, two = connect(proxy), connect(proxy)
    assert one("SET", "k", "first") == "OK"
    server.pause()
    begin = time.monotonic()
    one.send(encode("GET", "k") + encode("SET", "k", "second"))
    two.send(encode("GET", "k"))
    replies = [one.read(), one.read(), two.read()]
    took = time.monotonic() - begin
    assert all(says_unknown(r) for r in replies), replies
    assert 0.5 < took < 8, took
    server.resume()
    works_again(one, ("PING",), "PONG")
    for n in range(50):
        assert one("SET", "n", n) == "OK"
        assert two("GET", "n") == str(n), "nobody gets a late reply of before"


def test_short_stop_is_only_slow(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy)
    assert client("PING") == "PONG"
    server.pause()
    client.send(encode("SET", "k", "v") + encode("GET", "k"))
    time.sleep(0.3)  # what is being tested: nothing comes for a while
    server.resume()
    assert client.read() == "OK" and client.read() == "v"


def test_a_reply_before_one_that_is_late(start_cluster, start_proxy, connect):
    """The proxy writes the replies of pipelined lock commands together. A reply does not wait for a later command whose node
    does not answer."""
    cluster = start_cluster()
    client = connect(start_proxy(cluster))
    here, there = ("lock:{%s}" % name for name in keys_of(cluster)[:2])
    node = cluster.node_of(there)
    node.pause()
    try:
        client.send(b"".join(encode(*words) for words in (("SETNX", here, "1"), ("DEL", here), ("SETNX", there, "1"), ("DEL", there))))
        assert [client.read() for _ in range(2)] == [1, 1]
    finally:
        node.resume()
    assert [client.read() for _ in range(2)] == [1, 1]


def test_started_before_redis(start_redis, start_proxy, connect):
    """The proxy may come first: clients get an UPSTREAM error until the node is there."""
    server = start_redis()
    server.kill()
    proxy = start_proxy(server, wait=False)
    until(lambda: "Ready to accept connections" in proxy.log(), 20, "the proxy without a Redis")
    client = connect(proxy)
    assert is_upstream(client("SET", "k", "v"))
    server.start()
    works_again(client)


def test_pending_requests_of_a_dead_node_never_hang(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy)
    assert client("PING") == "PONG"
    server.kill()
    script = [("SET", "k%d" % i, "v") for i in range(2000)]
    begin = time.monotonic()
    replies = client.pipeline(script)
    assert time.monotonic() - begin < 15
    assert all(r.startswith(b"-UPSTREAM ") for r in replies)


def test_locks_survive_a_lost_connection(start_redis, start_proxy, connect):
    """An acquire whose connection was lost is repeated with the same token: the client is told once that it has
    acquired."""
    server = start_redis()
    proxy = start_proxy(server)
    client, other = [connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("one", "two")]
    for n in range(30):
        name = "lock:lost:%d" % n
        client.send(encode("SET", name, "1", "NX", "PX", 60000))
        server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        reply = client.read()
        assert reply == "OK" or is_upstream(reply), reply
        if reply == "OK":
            assert other("DEL", name) == 0
            until(lambda: client("DEL", name) == 1, 15, "the holder's release")
            assert server.run("EXISTS", name) == 0


class Late(Link):
    """Behind the answer that it has swallowed, it holds back what concerns locks until `goes_on` is set."""

    def __init__(self, to):
        self.goes_on = threading.Event()
        super().__init__(to)

    def passes(self, marked, requests, data):
        if requests and self.swallowed and b"lock:x" in data:
            self.goes_on.wait(30)
        return super().passes(marked, requests, data)


def test_a_field_whose_lease_ends_before_its_repeat(start_redis, start_proxy, connect):
    """HSETNX is sent again when its lease has ended, and is a new attempt: 1 says that the client holds the lock."""
    redis = start_redis()
    link = Late(redis.address)
    client = connect(start_proxy("standalone %s:%d" % link.address, "lock lock:* lease 1s kind hash"))
    direct = redis.client()
    assert client("HSETNX", "lock:y", "worker", "1") == 1  # Redis knows the script
    link.swallows = True
    client.send(encode("HSETNX", "lock:x", "worker", "1"))
    until(lambda: link.swallowed, 30, "the first reply")
    until(lambda: not direct("EXISTS", "lock:x"), 30, "the end of the first lease")
    link.goes_on.set()
    assert client.read() == 1
    assert direct("HGET", "lock:x", "worker") == "1"
    link.close()


def test_no_renewal_is_repeated_for_an_owner_that_is_gone(start_redis, start_proxy, connect):
    """It was sent and not carried out when its connection was lost; its owner has left meanwhile."""
    server = start_redis()
    proxy = start_proxy(server, "lock lock:* lease 9s")
    owner, other = connect(proxy), connect(proxy)
    assert owner("SETNX", "lock:left", "1") == 1
    with server.client() as control:
        assert control("CLIENT", "PAUSE", 120000, "WRITE") == "OK"
        until(lambda: in_flight(connect(proxy)) >= 1, 30, "the renewal's way to the node")
        ends = control("PEXPIRETIME", "lock:left")
        owner.close()
        until(lambda: "incident abandoned" in proxy.log(), 30, "the owner's end")
        control("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert control("CLIENT", "UNPAUSE") == "OK"
        works_again(other)  # behind what is sent again
        assert control("PEXPIRETIME", "lock:left") in (ends, -2)


@pytest.mark.parametrize("stays", [False, True])
def test_no_renewal_is_sent_for_an_owner_that_left_while_it_waited(start_redis, start_proxy, connect, stays):
    """The renewal waited for a connection, since a stopped node did not answer its login."""
    server = start_redis("--requirepass", "s3cret")
    proxy = start_proxy(server, "upstream-password s3cret", "upstream-timeout 100s", "lock lock:* lease 12s")
    owner, other = connect(proxy), connect(proxy)
    assert owner("SETNX", "lock:left", "1") == 1
    with server.client() as control:
        ends = control("PEXPIRETIME", "lock:left")
        proxy.signal(signal.SIGSTOP)  # it shall connect to a node that is stopped
        control("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        server.pause()
        try:
            proxy.signal(signal.SIGCONT)
            until(lambda: in_flight(connect(proxy)) >= 1, 30, "the renewal's waiting")
            if not stays:
                owner.crash()
                until(lambda: "incident abandoned" in proxy.log(), 30, "the owner's end")
        finally:
            server.resume()
        assert other("SETNX", "lock:behind", "1") == 1  # over the same connection
        if stays:
            until(lambda: control("PEXPIRETIME", "lock:left") != ends, 30, "the renewal")
        else:
            assert control("PEXPIRETIME", "lock:left") in (ends, -2)


def test_no_renewal_takes_a_release_by_a_short_expiry_back(start_redis, start_proxy, connect):
    """It was asked for while the release was on its way, and runs behind it."""
    server = start_redis()
    owner = connect(start_proxy(server, "lock lock:* renew always"))
    assert owner("SET", "lock:short", "1", "NX", "PX", 9000) == "OK"
    with server.client() as control:
        assert control("CLIENT", "PAUSE", 120000, "WRITE") == "OK"
        owner.send(encode("SET", "lock:short", "1", "XX", "PX", 700))
        with connect(owner.address) as other:
            until(lambda: in_flight(connect(owner.address)) >= 2, 30, "the renewal's way to the node")
            assert control("CLIENT", "UNPAUSE") == "OK"
            assert owner.read() == "OK"
            works_again(other)  # behind the renewal
        assert control("PTTL", "lock:short") <= 700


def test_trap_32_connections_killed_all_the_time(start_redis, start_proxy, connect):
    """Counters never count twice: a write is not repeated after any byte of it was sent."""
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy, timeout=30)
    over = threading.Event()

    def killer():
        with server.client() as control:
            while not over.is_set():
                control("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.003)

    thread = threading.Thread(target=killer)
    thread.start()
    granted = unknown = 0
    try:
        for _ in range(60):
            for raw in client.pipeline([("INCR", "count")] * 50):
                if raw[:1] == b":":
                    granted += 1
                elif b"unknown" in raw:
                    unknown += 1
                else:
                    assert raw.startswith(b"-UPSTREAM "), raw
    finally:
        over.set()
        thread.join(20)
    count = int(server.run("GET", "count") or 0)
    assert granted <= count <= granted + unknown
    works_again(client)


def test_trap_21_session_state_outlives_upstream_connections(start_redis, start_proxy, connect):
    """Database, user and protocol are the client's, whatever becomes of the connections to the node."""
    server = start_redis()
    server.run("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
    proxy = start_proxy(server)
    plain = connect(proxy)
    three = connect(proxy, commands=[("SELECT", "3")])
    resp3 = connect(proxy, commands=[("HELLO", "3")])
    reader = connect(proxy, commands=[("AUTH", "reader", "pw")])
    for n in range(10):
        server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        works_again(plain, ("SET", "where", "zero"))
        works_again(three, ("SET", "where", "three"))
        works_again(reader, ("GET", "where"), "zero")
        assert reader("SET", "where", "x").startswith("NOPERM")
        assert three("GET", "where") == "three"
        works_again(resp3, ("GET", "none"), None)
        assert resp3.raw("GET", "none") == b"_\r\n"
        assert plain.raw("GET", "none") == b"$-1\r\n"


# ---- cluster -----------------------------------------------------------------------------------------


def test_cluster_pending_requests_when_stopped(start_cluster, start_proxy, connect):
    cluster = start_cluster(timeout_ms=60000)
    proxy = start_proxy(cluster, "upstream-timeout 1s")
    client = connect(proxy)
    names = keys_of(cluster)
    for name in names:
        assert client("SET", name, name) == "OK"
    cluster.nodes[1].pause()
    client.send(b"".join(encode("GET", name) for name in names))
    replies = [client.read() for _ in names]
    assert replies[0] == names[0] and replies[2] == names[2]
    assert says_unknown(replies[1])
    cluster.nodes[1].resume()
    works_again(client, ("GET", names[1]), names[1])


def test_cluster_seed_that_is_down(start_cluster, start_proxy, connect):
    """One of the seeds answers: that is enough."""
    cluster = start_cluster()
    dead = "%s:%d" % (HOST, free_port())
    alive = "%s:%d" % cluster.nodes[2].address
    proxy = start_proxy("cluster %s %s" % (dead, alive))
    client = connect(proxy)
    for name in keys_of(cluster):
        assert client("SET", name, "v") == "OK"


# ---- nodes that talk nonsense --------------------------------------------------------------------------


NONSENSE = {
    "garbage": b"hello world\r\n",
    "binary": b"\x00\xff\xfe\x01" * 10,
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "bad length": b"$abc\r\n",
    "negative length": b"$-5\r\n",
    "huge length": b"$99999999999999999999\r\n",
    "huge array": b"*99999999999999999999\r\n",
    "no CRLF behind a bulk": b"$3\r\nabcXY",
    "empty line": b"\r\n",
    "type without a line": b"+\n",
    "nested nonsense": b"*2\r\n:1\r\n?\r\n",
}


def test_a_command_that_the_node_would_be_asked_for_while_it_is_away(start_redis, start_proxy, connect):
    """The question fails at once, and so does the command: no later event would wake the waiting client."""
    server = start_redis()
    client = connect(start_proxy(server, "threads 1"), timeout=5)
    assert client("GET", "k") is None
    server.stop()
    until(lambda: is_upstream(client("GET", "k")), what="the node to be missed")
    for n in range(5):
        assert is_upstream(client("NOSUCH%d" % n, "k"))
    replies = client.pipeline([("GET", "k"), ("NOSUCH", "k"), ("GET", "k")])
    assert all(reply.startswith(b"-UPSTREAM ") for reply in replies)


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_from_a_node(fake, start_proxy, connect, name):
    """The connection to it is dropped, its requests fail, and the proxy goes on."""
    sane = threading.Event()

    def handler(words, connection):
        if polite(words):
            return polite(words)
        return b"+fine\r\n" if sane.is_set() else NONSENSE[name]

    node = fake(handler)
    proxy = start_proxy("standalone %s:%d" % node.address, "upstream-timeout 1s")
    client, other = connect(proxy), connect(proxy)
    for command in (("GET", "k"), ("SETNX", "lock:k", "1"), ("DEL", "lock:k"), ("MGET", "a", "b"), ("KEYS", "*")):
        reply = client(*command)
        assert is_upstream(reply), (command, reply)
    client.send(encode("GET", "a") + encode("GET", "b"))
    other.send(encode("GET", "c"))
    for reply in (client.read(), client.read(), other.read()):
        assert is_upstream(reply), reply
    sane.set()
    works_again(client, ("GET", "k"), "fine")
    works_again(other, ("GET", "k"), "fine")


ODD_SCRIPT_REPLIES = {
    "status": b"+OK\r\n",
    "number": b":1\r\n",
    "empty array": b"*0\r\n",
    "null": b"*-1\r\n",
    "short envelope": b"*2\r\n:1\r\n$7\r\ngranted\r\n",
    "envelope of nonsense": b"*6\r\n*0\r\n:1\r\n+x\r\n+y\r\n:3\r\n*0\r\n",
    "unknown outcome": b"*6\r\n:1\r\n$5\r\nwhat?\r\n:1\r\n:100\r\n$0\r\n\r\n:0\r\n",
    "error": b"-ERR out of order\r\n",
}


@pytest.mark.parametrize("name", ODD_SCRIPT_REPLIES)
def test_odd_answers_to_lock_scripts(fake, start_proxy, connect, name):
    """An envelope that is none: an error, never a lock."""

    def handler(words, connection):
        if polite(words):
            return polite(words)
        return ODD_SCRIPT_REPLIES[name] if words[0].upper() in (b"EVAL", b"EVALSHA") else b"+fine\r\n"

    node = fake(handler)
    proxy = start_proxy("standalone %s:%d" % node.address)
    client = connect(proxy)
    for command in (("SETNX", "lock:k", "1"), ("DEL", "lock:k"), ("GET", "lock:k"), ("EXPIRE", "lock:k", 5)):
        reply = client(*command)
        assert isinstance(reply, Error), (command, reply)
    assert client("PING") == "PONG"
    assert client("GET", "plain") == "fine"


def test_trap_20_reply_nested_thousands_deep(fake, start_proxy, connect):
    deep = b"*1\r\n" * 100000 + b":1\r\n"
    node = fake(lambda words, connection: polite(words) or deep)
    proxy = start_proxy("standalone %s:%d" % node.address)
    client = connect(proxy)
    client.send(encode("LRANGE", "k", 0, -1))
    data = b""
    while len(data) < len(deep):
        data += client.sock.recv(65536)
    assert data == deep
    assert client("PING") == "PONG"


def test_reply_in_single_bytes(fake, start_proxy, connect):
    def handler(words, connection):
        if polite(words):
            return polite(words)
        for byte in b"*3\r\n$5\r\nhello\r\n:12\r\n":
            connection.send(bytes([byte]))
        return b"$-1\r\n"

    node = fake(handler)
    proxy = start_proxy("standalone %s:%d" % node.address)
    client = connect(proxy)
    for _ in range(3):
        assert client("LRANGE", "k", 0, -1) == ["hello", 12, None]


# ---- clients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 10000, 1000000])
def test_writer_faster_than_the_node(start_redis, start_proxy, connect, size):
    """The node stands still and the client goes on writing: it has to wait, and memory stays bounded."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 60s")
    client, other = connect(proxy), connect(proxy)
    assert client("SET", "k", "v") == "OK" and other("PING") == "PONG"
    before = proxy.memory()
    server.pause()
    request = encode("SET", "k", "x" * size)
    batch = request * max(1, 1000000 // len(request))
    client.sock.settimeout(1.0)
    sent = 0
    try:
        while sent < 600 << 20:
            sent += client.sock.send(batch[sent % len(batch) :])
    except TimeoutError:
        pass
    grown = proxy.memory() - before
    server.resume()
    assert sent < 256 << 20, "%d MB were taken" % (sent >> 20)
    assert grown < 384 << 20, "%d MB of memory for %d MB" % (grown >> 20, sent >> 20)
    client.sock.settimeout(20)
    whole, rest = divmod(sent, len(request))
    if rest:
        client.send(request[rest:])
    for _ in range(whole + bool(rest)):
        assert client.read() == "OK"
    assert other("STRLEN", "k") == size


def test_clients_that_disappear(start_redis, start_proxy, connect):
    """With requests in flight, in the middle of a request, with a reset: the others keep their places."""
    server = start_redis()
    proxy = start_proxy(server)
    steady = connect(proxy)
    assert steady("SET", "k", "v") == "OK"
    assert steady("SET", "big", "x" * 300000) == "OK"
    for n in range(60):
        leaver = Client(proxy.address)
        leaver.send([encode("GET", "big") * 20, encode("SETNX", "lock:leave:%d" % n, "1") * 3, encode("GET", "k")[:-5],
                     encode("MGET", *["k"] * 100) * 10, encode("DEL", "a", "b", "lock:c") * 20][n % 5])
        if n % 2:
            leaver.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        steady.send(encode("GET", "k") + encode("PING", str(n)))
        leaver.close()
        assert steady.read() == "v" and steady.read() == str(n)
    assert steady("PING") == "PONG"


def test_trap_30_leaver_with_a_stopped_node(start_redis, start_proxy, connect):
    """Its replies come when it is long gone: they are dropped, the others' places are kept."""
    server = start_redis()
    proxy = start_proxy(server)
    one, two, three = connect(proxy), connect(proxy), connect(proxy)
    for c in (one, two, three):
        assert c("PING") == "PONG"
    assert one("SET", "k", "v") == "OK"
    server.pause()
    one.send(encode("GET", "k"))
    two.send(encode("GET", "k") * 30 + encode("SETNX", "lock:gone", "1"))
    three.send(encode("ECHO", "three"))
    until(lambda: in_flight(connect(proxy)) >= 32, 10, "the requests' way to the node")
    two.close()
    server.resume()
    assert one.read() == "v"
    assert three.read() == "three"
    assert one("GET", "k") == "v"
    # What the client that left was granted is accounted for all the same: it has a lease, and ends.
    if server.run("EXISTS", "lock:gone"):
        assert server.run("PTTL", "lock:gone") > 0


def test_trap_34_slow_reader(start_redis, start_proxy, connect):
    """It reads nothing: the memory it takes is bounded, and those on the same upstream connection don't wait."""
    server = start_redis()
    proxy = start_proxy(server, "client-output-buffer-limit normal 16mb 0 0")
    other = connect(proxy)
    assert other("SET", "big", "x" * (1 << 20)) == "OK"
    assert other("GET", "big") == "x" * (1 << 20)
    before = proxy.memory()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.connect(proxy.address)
    slow.settimeout(20)
    slow.sendall(encode("GET", "big") * 300)
    for n in range(200):
        begin = time.monotonic()
        assert other("SET", "k", n) == "OK"
        assert time.monotonic() - begin < 10  # where they wait, it is until the reader is dropped
    assert proxy.memory() - before < 250 << 20, "300 MB of replies are not kept"
    received = 0
    try:
        while True:
            data = slow.recv(1 << 20)
            if not data:
                break
            received += len(data)
            if received >= 300 * ((1 << 20) + 12):
                break
    except ConnectionResetError:
        pass
    assert received <= 300 * ((1 << 20) + 12)
    slow.close()
    assert other("PING") == "PONG"


def test_reader_slower_than_the_node(start_redis, start_proxy, connect):
    """Slow, but reading: everything arrives."""
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy, timeout=30)
    assert client("SET", "big", "x" * 100000) == "OK"
    client.send(encode("GET", "big") * 200)
    expected = b"$100000\r\n" + b"x" * 100000 + b"\r\n"
    data = bytearray()
    while len(data) < 200 * len(expected):
        data += client.sock.recv(30000)
        if len(data) % 50 == 0:
            time.sleep(0.001)
    assert bytes(data) == expected * 200


def test_a_thousand_connections(start_redis, start_proxy, backend_kind, start_cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    backend = start_redis() if backend_kind == "standalone" else start_cluster()
    proxy = start_proxy(backend)
    clients = [Client(proxy.address, timeout=40) for _ in range(1000)]
    try:
        for n, c in enumerate(clients):
            c.send(encode("SET", "conn:%d" % n, n) + encode("GET", "conn:%d" % n) + encode("SETNX", "lock:%d" % n, n))
        for n, c in enumerate(clients):
            assert (c.read(), c.read(), c.read()) == ("OK", str(n), 1)
        for n, c in enumerate(clients):
            c.send(encode("DEL", "lock:%d" % n))
        for c in clients:
            assert c.read() == 1
    finally:
        for c in clients:
            c.close()
    with Client(proxy.address) as c:
        assert c("PING") == "PONG"


def test_maxclients(start_redis, start_proxy):
    proxy = start_proxy(start_redis(), "maxclients 5")
    clients = [Client(proxy.address) for _ in range(5)]
    assert all(c("PING") == "PONG" for c in clients)
    one_more = Client(proxy.address)
    assert one_more.read_all().startswith(b"-ERR max number of clients reached")
    clients[0].close()

    def comes_in():
        with Client(proxy.address) as c:
            try:
                return c("PING") == "PONG"
            except (Closed, BrokenPipeError):
                return False

    until(comes_in, 15, "a free place")
    for c in [*clients, one_more]:
        c.close()


def test_idle_timeout(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "timeout 1")
    client = connect(proxy)
    assert client("PING") == "PONG"
    with pytest.raises(Closed):
        client.read()


def test_large_values_both_ways_at_once(start_redis, start_proxy):
    """Sends and reads large values on many connections: nothing is mixed up."""
    proxy = start_proxy(start_redis())
    failures = []

    def run(number):
        try:
            value = bytes([65 + number]) * (1 << 19)
            with Client(proxy.address, timeout=40) as c:
                for _ in range(8):
                    replies = c.pipeline([("SET", "v%d" % number, value), ("GET", "v%d" % number)] * 3)
                    assert replies == [b"+OK\r\n", b"$%d\r\n%s\r\n" % (len(value), value)] * 3
        except Exception as error:  # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failures, failures[0]
