"""The operator's HTTP server against clients that stall, pretend and flood; and when it reports that the proxy is
ready."""

import http.client
import socket
import threading
import time

import pytest

from resp import Client, encode
from servers import HOST, free_port, until


class Visited:
    def __init__(self, start_proxy, upstream, *lines):
        self.port = free_port()
        self.proxy = start_proxy(upstream, "admin-port %d" % self.port, *lines)

    def get(self, path, host=None, timeout=10):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.request("GET", path, headers={"Host": host} if host else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def raw(self, data):
        """Everything that is answered until the connection is closed."""
        with socket.create_connection((HOST, self.port), timeout=15) as s:
            s.sendall(data)
            return b"".join(iter(lambda: s.recv(65536), b"")).decode()

    def connect(self, source=HOST):
        return socket.create_connection((HOST, self.port), timeout=15, source_address=(source, 0))


@pytest.fixture
def visited(start_proxy, start_redis):
    return Visited(start_proxy, start_redis(), "lock lock:*")


class Trickle:
    """Connections that send a byte of a header now and then, and are made anew when they are closed."""

    def __init__(self, visited, count, *sources):
        self.visited = visited
        self.sockets = [self.made(sources[n % len(sources)]) for n in range(count)]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.sources = sources

    def made(self, source):
        s = self.visited.connect(source)
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
        return s

    def run(self):
        while not self.ended.wait(0.05):
            for n, s in enumerate(self.sockets):
                try:
                    s.sendall(b"x")
                except OSError:
                    s.close()
                    self.sockets[n] = self.made(self.sources[n % len(self.sources)])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(30)
        for s in self.sockets:
            s.close()


@pytest.mark.parametrize("count, sources", [(64, [HOST]), (500, [HOST]), (500, ["127.0.0.2", "127.0.0.3", "127.0.0.4"])],
                         ids=["64", "500", "500 of three addresses"])
def test_health_is_told_whoever_trickles(visited, count, sources):
    """The probes come from an address that stalls, too."""
    with Trickle(visited, count, *sources):
        for _ in range(30):
            began = time.monotonic()
            assert visited.get("/healthz") == (200, "ok\n")
            assert time.monotonic() - began < 3
    until(lambda: visited.get("/readyz") == (200, "ok\n"))


def test_a_request_has_ten_seconds_whatever_it_sends(visited):
    began = time.monotonic()
    with visited.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        slow.settimeout(0.1)
        while True:
            try:
                slow.sendall(b"X: y\r\n")
                if slow.recv(100) == b"":
                    break
            except socket.timeout:
                assert time.monotonic() - began < 20, "the connection is held by who sends a header now and then"
            except OSError:
                break
    assert 9 < time.monotonic() - began < 20


def test_who_does_not_read_is_closed_too(visited):
    """Answers that are larger than what the system buffers, and are not read."""
    with Client(visited.proxy.address) as c:
        for n in range(1000):
            c.send(encode("SET", "lock:%d:%s" % (n, "x" * 200), "v", "NX", "PX", "600000"))
        assert [c.read() for _ in range(1000)] == ["OK"] * 1000
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect((HOST, visited.port))
        s.sendall(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: len(connections(visited)) == 0, 20, "the end of a connection that is not read")


def connections(visited):
    """The established connections of the HTTP port, as the system has them, but for the ones that only the visitor has."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return [row for row in rows if row[1].endswith(":%04X" % visited.port) and row[3] == "01"]


@pytest.mark.parametrize("host, status", [
    ("127.0.0.1", 200), ("127.0.0.1:1", 200), ("10.1.2.3", 200), ("[::1]:9090", 200), ("[2001:db8::1]", 200),
    ("localhost", 200), ("LOCALHOST.:9090", 200), (socket.gethostname(), 200),
    ("evil.example", 421), ("evil.example:9090", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421),
    ("127.0.0.1@evil.example", 421), ("[::1", 421), ("[::1]x", 421), ("", 421), (":9090", 421), ("0x7f.1", 421),
    ("x" * 300, 421)])
def test_the_host_is_ours(visited, host, status):
    for path in ("/", "/status.json", "/metrics", "/healthz", "/readyz"):
        answer = visited.raw(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path.encode(), host.encode()))
        assert answer.startswith("HTTP/1.1 %d " % status), (path, answer)
        assert status == 200 or "admin-host" in answer


def test_a_request_has_one_host(visited):
    assert visited.raw(b"GET /healthz HTTP/1.0\r\n\r\n").split()[1] == "200"
    assert visited.raw(b"GET /healthz HTTP/1.1\r\n\r\n").split()[1] == "400"
    assert visited.raw(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").split()[1] == "400"


def test_names_that_the_configuration_has(start_proxy, start_redis):
    named = Visited(start_proxy, start_redis(), "admin-host proxy1.example.com Proxy2")
    assert named.get("/healthz", "PROXY1.example.com:9090")[0] == named.get("/healthz", "proxy2")[0] == 200
    assert named.get("/healthz", "proxy3")[0] == 421
    assert Visited(start_proxy, start_redis(), "admin-host *").get("/healthz", "evil.example")[0] == 200


def test_ready_while_any_node_answers(start_cluster, start_proxy):
    cluster = start_cluster()
    visited = Visited(start_proxy, cluster)
    with Client(visited.proxy.address) as client:
        for n in range(100):
            client("SET", "k%d" % n, "v")
        assert visited.get("/readyz") == visited.get("/readyz?all") == (200, "ok\n")
        cluster.nodes[0].kill()
        try:
            name = next("k%d" % n for n in range(100) if cluster.node_of("k%d" % n) is cluster.nodes[0])

            def strictly():
                client("GET", name)
                return visited.get("/readyz?all")

            gone = "%s:%d gives no locks: UPSTREAM" % cluster.nodes[0].address
            until(lambda: strictly()[0] == 503 and strictly()[1].startswith(gone), 30, "the strict page's word")
            assert visited.get("/readyz") == visited.get("/readyz?x=1") == (200, "ok\n")
            assert visited.get("/readyz?x&all=1")[0] == 503
        finally:
            cluster.nodes[0].start()
        until(lambda: visited.get("/readyz?all")[0] == 200, 30, "the node to be back")


def test_many_ask_for_the_status_at_once(visited):
    """All requests that come while the page is gathered get the same page, and no other request waits for it."""
    with Client(visited.proxy.address) as c:
        for start in range(0, 20000, 1000):
            c.send(b"".join(encode("SET", "lock:%d" % n, "v", "NX", "PX", "600000") for n in range(start, start + 1000)))
            assert [c.read() for _ in range(1000)] == ["OK"] * 1000
        before = visited.get("/status.json")[1]
        sockets = [visited.connect() for _ in range(20)]
        for s in sockets:
            s.sendall(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sockets.pop().close()  # and one leaves
        for s in sockets:
            text = b"".join(iter(lambda s=s: s.recv(65536), b""))
            assert text.startswith(b"HTTP/1.1 200 ") and text.count(b'"fence"') == 1000
            s.close()
        assert before.count('"fence"') == 1000
        sockets = [visited.connect() for _ in range(5)]
        for s in sockets:
            s.sendall(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        visited.proxy.stop()  # whatever it was about to answer
        for s in sockets:
            s.close()


def test_a_node_that_is_back_is_found_without_requests(start_redis, start_proxy):
    """A proxy that is not ready gets none. Whether a node that stands still is connected to just now does not count."""
    redis = start_redis()
    visited = Visited(start_proxy, redis, "upstream-timeout 300ms", "threads 2")
    with Client(visited.proxy.address) as client:
        assert client("GET", "k") is None
        redis.pause()
        try:
            assert client("GET", "k").startswith("UPSTREAM")
            until(lambda: visited.get("/readyz")[0] == 503, 15, "the news that the node is silent")
            ended = time.monotonic() + 3
            while time.monotonic() < ended:
                assert visited.get("/readyz")[0] == visited.get("/readyz?all")[0] == 503
                assert visited.get("/healthz")[0] == 200
        finally:
            redis.resume()
        until(lambda: visited.get("/readyz?all")[0] == 200, 15, "the node to be found")
        assert client("GET", "k") is None
