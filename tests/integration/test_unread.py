"""A client that does not read its replies, or asks for long ones, only delays itself: its own requests wait, not other
clients', and not in the proxy's memory."""

import select
import socket

import pytest

from resp import encode
from servers import until

BIG = 1 << 20
COUNT = 400


def start_measured(start_redis, start_proxy, *lines):
    server = start_redis()
    proxy = start_proxy(server, *lines, measured=True)
    with proxy.client() as c:
        assert c("SET", "big", "x" * BIG) == "OK" and c("SET", "k", "v") == "OK"
    return server, proxy


def silent(proxy):
    """A client that takes few bytes into its socket's buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.settimeout(60)
    sock.connect(proxy.address)
    return sock


def take(sock, count):
    """Reads so many bytes."""
    left = count
    while left:
        data = sock.recv(min(left, 1 << 20))
        assert data, "closed with %d bytes to come" % left
        left -= len(data)


def handed_out(server):
    """GETs that the node has answered."""
    line = [row for row in server.run("INFO", "commandstats").split("\r\n") if row.startswith("cmdstat_get:")]
    return int(line[0].split("calls=")[1].split(",")[0]) if line else 0


def test_long_replies_that_are_not_read(start_redis, start_proxy, connect):
    """Most of its requests never reach the node, the others' do, and all are answered once it reads."""
    server, proxy = start_measured(start_redis, start_proxy)
    other = connect(proxy)
    assert other("GET", "k") == "v"
    before, memory = handed_out(server), proxy.memory()
    sock = silent(proxy)
    sock.sendall(encode("GET", "big") * COUNT)
    for _ in range(200):
        assert other("GET", "k") == "v"
    until(lambda: other("GET", "k") == "v" and select.select([sock], [], [], 0)[0], what="the first bytes")
    seen = handed_out(server) - before - 201
    assert seen < 150, "%d of %d requests were sent for a client that reads nothing" % (seen, COUNT)
    assert proxy.memory() - memory < 100 << 20
    take(sock, COUNT * len(b"$%d\r\n%s\r\n" % (BIG, b"x" * BIG)))
    assert handed_out(server) - before >= COUNT
    sock.sendall(encode("GET", "k"))
    take(sock, len(b"$1\r\nv\r\n"))
    sock.close()
    assert other("GET", "k") == "v"


def test_neighbours_do_not_wait_behind_long_replies(start_redis, start_proxy, connect):
    """What is due to one client before another one's reply is a window's worth, however much it has asked for."""
    server, proxy = start_measured(start_redis, start_proxy)
    other, greedy = connect(proxy), connect(proxy)
    assert other("GET", "k") == "v" and greedy("GET", "k") == "v"
    server.pause()  # then they stand in one line
    greedy.send(encode("GET", "big") * COUNT)
    until(lambda: "in_flight=0," not in info(proxy), what="its requests' way to the node")
    other.send(encode("GET", "k"))
    until(lambda: in_flight(proxy) >= 33, what="the other one's request")
    assert in_flight(proxy) == 33
    before = proxy.memory()
    server.resume()
    assert other.read() == "v"
    assert proxy.memory() - before < 120 << 20
    for _ in range(100):
        assert other("GET", "k") == "v"
    for _ in range(COUNT):
        assert len(greedy.read_raw()) > BIG


def info(proxy):
    with proxy.client() as c:
        return c("PROXY", "INFO", "upstreams")


def in_flight(proxy):
    return int(info(proxy).split("in_flight=")[1].split(",")[0])


def test_requests_that_are_all_written_before_any_reply_is_read(start_redis, start_proxy):
    """Most clients' pipelines do that. What waits is read on, or both sides would wait for ever."""
    server, proxy = start_measured(start_redis, start_proxy)
    with proxy.client() as c:
        assert c("SET", "middle", "m" * 10000) == "OK"
    count = 20000
    sock = silent(proxy)
    request = encode("GET", "middle", )
    payload = request * 2000 + encode("SET", "note", "n" * 200) * count + encode("GET", "note")
    sock.sendall(payload)
    take(sock, 2000 * len(b"$10000\r\n%s\r\n" % (b"m" * 10000)))
    take(sock, count * len(b"+OK\r\n") + len(b"$200\r\n%s\r\n" % (b"n" * 200)))
    sock.close()


def test_small_replies_that_are_not_read(start_redis, start_proxy, connect):
    """They take memory up to a megabyte; from then on it is the requests that wait."""
    server, proxy = start_measured(start_redis, start_proxy)
    with proxy.client() as c:
        assert c("SET", "middle", "m" * 10000) == "OK"
    other = connect(proxy)
    before = proxy.memory()
    sock = silent(proxy)
    count = 20000  # 200 MB of replies to 600 KB of requests
    sock.sendall(encode("GET", "middle") * count)
    for _ in range(300):
        assert other("GET", "k") == "v"
    assert proxy.memory() - before < 30 << 20
    assert handed_out(server) < count // 2
    sock.close()
    assert other("GET", "k") == "v"


@pytest.mark.parametrize("words", [("ECHO", "e" * 60000), ("CLIENT", "LIST")])
def test_other_replies_that_are_not_read(start_redis, start_proxy, connect, words):
    """The proxy's own, and those that are as long as the requests."""
    server, proxy = start_measured(start_redis, start_proxy)
    other = connect(proxy)
    others = [connect(proxy) for _ in range(50)] if words[0] == "CLIENT" else []
    assert all(c("PING") == "PONG" for c in others)
    before = proxy.memory()
    sock = silent(proxy)
    sock.setblocking(False)
    payload, sent = encode(*words) * 50, 0
    while sent < 40 << 20 and select.select([], [sock], [], 0.5)[1] and sent < 4000 * len(encode(*words)):
        sent += sock.send(payload[sent % len(payload):])
    for _ in range(50):
        assert other("GET", "k") == "v"
    assert proxy.memory() - before < 4 * sent + (40 << 20)
    sock.close()
    assert other("GET", "k") == "v"


def test_one_long_reply_at_a_time(start_redis, start_proxy, connect):
    """Without pipelining they pass as before, and the order stays."""
    server, proxy = start_measured(start_redis, start_proxy)
    one, other = connect(proxy), connect(proxy)
    for n in range(30):
        one.send(encode("GET", "big"))
        other.send(encode("INCR", "n"))
        assert other.read() == n + 1
        assert len(one.read_raw()) > BIG


def test_order_is_kept_where_long_replies_change_the_connection(start_redis, start_proxy, connect):
    server, proxy = start_measured(start_redis, start_proxy)
    one = connect(proxy)
    got = []
    for start in range(0, 60, 20):
        one.send(b"".join(encode("GET", "big") + encode("INCR", "n") for _ in range(start, start + 20)))
    for n in range(60):
        assert len(one.read_raw()) > BIG
        got.append(one.read())
    assert got == list(range(1, 61))


def test_subscribers_that_do_not_read(start_redis, start_proxy, connect):
    """Messages can't be delayed: a client that does not read them is dropped by default, as by Redis."""
    server, proxy = start_measured(start_redis, start_proxy)
    slow, other = silent(proxy), connect(proxy)
    slow.sendall(encode("SUBSCRIBE", "news"))
    until(lambda: other("PUBSUB", "NUMSUB", "news") == ["news", 1], what="the subscription")
    before = proxy.memory()
    for _ in range(60):
        other("PUBLISH", "news", "x" * BIG)
    until(lambda: other("PUBSUB", "NUMSUB", "news") == ["news", 0], what="its end")
    assert "client-output-buffer-limit" in proxy.log()
    assert proxy.memory() - before < 100 << 20
    slow.close()
