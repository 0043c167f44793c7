"""Stopping within a bound, whatever clients do; another process taking over the port; reloading under load.

test_config.py has the plain cases of SIGTERM, SIGINT and SIGHUP.
"""

import signal
import ssl
import subprocess
import threading

import pytest

import servers
from resp import Client, Closed, encode
from servers import HOST, tail, until


class Successor(servers.Proxy):
    """A proxy on another's port, and with its configuration."""

    def __init__(self, before):
        servers.Process.__init__(self, "proxy")
        self.port, self.address, self.config = before.port, before.address, before.config
        self.launch()
        self.await_ready()


class Traffic:
    """Clients that count: every increment that was answered was done once, the others not at all."""

    def __init__(self, address, prefix, tls=None):
        self.address, self.prefix, self.tls = address, prefix, tls
        self.over = threading.Event()
        self.problems, self.cut, self.answered = [], 0, {}
        self.threads = [threading.Thread(target=self.guarded, args=(run, n))
                        for n, run in enumerate([self.short] * 6 + [self.lasting] * 3)]
        for thread in self.threads:
            thread.start()

    def guarded(self, run, number):
        try:
            run("%s%d" % (self.prefix, number), number)
        except BaseException as error:  # noqa: B902: handed to the test's own thread
            self.problems.append("%s %d: %r" % (run.__name__, number, error))

    def short(self, key, number):
        """Connects, says a few things, and leaves: nothing of that may fail. Over TLS it takes longer than half a second
        on a busy machine, so that it may be cut as the lasting ones are, and comes again; it is never refused."""
        done = [0]
        while not self.over.is_set():
            try:
                self.visit(key, number, done)
            except (Closed, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                if not self.tls:
                    raise
            self.answered[key] = done[0]

    def visit(self, key, number, done):
        with Client(self.address, tls=self.tls) as c:
            for _ in range(1 + number % 3):
                assert c("INCR", key) == done[0] + 1
                done[0] += 1
            assert c("SETNX", "lock:" + key, "1") in ([0, 1] if self.tls else [1])  # of the visit that was cut, perhaps
            assert c("DEL", "lock:" + key) in ([0, 1] if self.tls else [1])

    def lasting(self, key, number):
        """Stays connected. It may lose its connection, and then the request that was on its way was not run."""
        count, c = 0, Client(self.address, tls=self.tls)
        while not self.over.is_set():
            try:
                reply = c("INCR", key)
            except (Closed, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                self.cut += 1
                c.close()
                c = Client(self.address, tls=self.tls)
                continue
            count += 1
            assert reply == count
            self.answered[key] = count
        c.close()

    def everybody_was_served(self):
        return self.problems or (len(self.answered) == len(self.threads) and min(self.answered.values()) > 20)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)
        assert not self.problems, self.problems


@pytest.mark.parametrize("kind, threads, tls", [("standalone", 1, False), ("cluster", 3, False), ("standalone", 2, True)])
def test_another_process_takes_over(farm, start_proxy, certificates, key, kind, threads, tls):
    """No client is refused, no reply is lost, no command is done twice, while a process replaces another, twice."""
    backend = farm.backend(kind)
    backend.flush()
    tls_port = servers.free_port()
    lines = certificates.server_lines(tls_port) if tls else []
    before = start_proxy(backend, "reuse-port yes", "shutdown-timeout 2", "threads %d" % threads, *lines)
    traffic = Traffic((HOST, tls_port) if tls else before.address, key("handover"), certificates.context() if tls else None)
    made = []
    try:
        for _ in range(2):
            made.append(Successor(before))
            before.expected = False
            before.signal(signal.SIGTERM)
            assert before.process.wait(30) == 0, tail(before.log_path)
            before = made[-1]
            until(lambda: accepted(before) > 20, 60, "the successor's clients")
        until(traffic.everybody_was_served, 60, "more than a few requests of each client")
    finally:
        try:
            traffic.stop()
        finally:
            for proxy in made:
                if proxy.expected:
                    proxy.stop()
                else:
                    servers.Proxy.started.remove(proxy)
                    proxy.check()
                proxy.remove()
    with_client = backend.direct()
    for name, count in traffic.answered.items():
        assert int(with_client("GET", name)) == count
    with_client.close()
    assert traffic.cut <= 2 * 3, "each connection that lasts is closed once by each process that stops"


def accepted(proxy):
    with proxy.client() as c:
        return int(c("PROXY", "INFO", "clients").split("clients_total:")[1].split("\r")[0])


def test_who_stops_leaves_its_successors_files_alone(farm, start_proxy, connect, tmp_path):
    backend = farm.backend("standalone")
    socket_path, pid_path = str(tmp_path / "socket"), tmp_path / "pid"
    first = start_proxy(backend, "reuse-port yes", "unixsocket " + socket_path, "pidfile %s" % pid_path)
    second = Successor(first)
    first.stop()
    assert pid_path.read_text() == "%d\n" % second.pid
    assert connect(socket_path)("PING") == "PONG"
    second.stop()
    assert not pid_path.exists() and not (tmp_path / "socket").exists()


def test_a_port_is_shared_only_where_both_want_it(farm, start_proxy):
    backend = farm.backend("standalone")
    first = start_proxy(backend, "reuse-port yes")
    other = subprocess.run([servers.binary(), "--port", str(first.port), "--bind", HOST, "--upstream",
                            *backend.upstream().split()], capture_output=True, timeout=20)
    assert other.returncode == 1 and b"Address already in use" in other.stderr


@pytest.mark.parametrize("reuse", ["no", "yes"])
def test_a_stop_has_an_end(start_redis, start_proxy, connect, reuse):
    """Clients that are blocked, subscribed, in MULTI, in the middle of a request, that do not read, or that wait for a
    node that is silent. Nothing of an open transaction or of half a request has happened."""
    server = start_redis()
    proxy = start_proxy(server, "reuse-port " + reuse, "shutdown-timeout 2", "upstream-timeout 60s")
    clients = [connect(proxy) for _ in range(9)]
    blocked, subscribed, queuing, monitor, half, long, deaf, waiting, idle = clients
    assert idle("SET", "big", "x" * 1000000) == "OK"
    assert subscribed("SUBSCRIBE", "channel") == ["subscribe", "channel", 1]
    assert queuing("MULTI") == "OK" and queuing("SET", "queued", "1") == "QUEUED"
    assert monitor("MONITOR") == "OK"
    blocked.send(encode("BLPOP", "list", 0))
    half.send(encode("SET", "half", "1")[:-3])
    long.send(encode("SET", "long", "x" * 3000000)[:-100000])
    deaf.send(encode("GET", "big") * 40)
    until(lambda: "blocked_clients:1" in server.run("INFO", "clients"), 10, "the blocked client's way to the node")
    until(lambda: deaf.sock.recv(1), 10, "the first of the replies that are not read")
    server.pause()
    waiting.send(encode("INCR", "counter"))
    proxy.expected = False
    proxy.signal(signal.SIGTERM)
    assert proxy.process.wait(30) == 0, tail(proxy.log_path)
    server.resume()
    assert server.run("MGET", "queued", "half", "long") == [None, None, None]
    assert server.run("RPUSH", "list", "1") == 1, "nobody is blocked any more"
    assert server.run("LLEN", "list") == 1


@pytest.mark.parametrize("kind, threads", [("standalone", 1), ("cluster", 3)])
def test_reload_under_load(farm, start_proxy, key, kind, threads):
    """Rules change while requests come all the time: each request is answered, and no connection is lost."""
    backend = farm.backend(kind)
    backend.flush()
    proxy = start_proxy(backend, "lock lock:*", "threads %d" % threads)
    text = open(proxy.config).read()
    traffic = Traffic(proxy.address, key("reload"))
    try:
        for n in range(15):
            lines = ["lock other:%d:* lease %ds" % (n, n + 1), "lock lock:*"] if n % 3 else ["lock lock:* owner nobody"]
            with open(proxy.config, "w") as f:
                f.write(text.replace("lock lock:*", "\n".join(lines)))
            proxy.signal(signal.SIGHUP)
            until(lambda: proxy.log().count("onfiguration ") > n, 10, "the reload")
    finally:
        traffic.stop()
    assert traffic.cut == 0
    assert proxy.log().count("Configuration not reloaded") == 5
    with proxy.client() as c:
        assert "other:14:*" in str(c("PROXY", "RULES"))
    assert all(count > 0 for count in traffic.answered.values())
