"""TLS towards clients and towards nodes: certificates, the traffic over it, failures, and reloads."""

import functools
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading

import pytest
import redis

from migration import Migration
from resp import Client, Closed, Error, encode
from servers import HOST, RedisCluster, RedisServer, Sentinel, binary, free_port, proxy_environment, slot_of, until


@pytest.fixture(scope="session", params=["standalone", "cluster"])
def tls_backend(request, certificates):
    make = functools.partial(RedisServer, tls=certificates)
    backend = make() if request.param == "standalone" else RedisCluster(make=make)
    yield backend
    backend.stop()


def start_tls(start_proxy, certificates, upstream, *lines, name="server", **options):
    """A proxy with both ports; its TLS side is `proxy.tls_address`."""
    port = free_port()
    proxy = start_proxy(upstream, *certificates.server_lines(port, *lines, name=name), **options)
    proxy.tls_address = (HOST, port)
    return proxy


@pytest.fixture
def both(start_proxy, certificates, tls_backend):
    """TLS on both sides, in two threads."""
    tls_backend.flush()
    return start_tls(start_proxy, certificates, tls_backend, "threads 2", *certificates.upstream_lines())


def refused(address, context):
    """Why a client's handshake, or its first command, failed; None: it did not."""
    try:
        with Client(address, tls=context, timeout=10) as c:
            c("PING")
    except (ssl.SSLError, Closed, ConnectionError) as error:
        return str(error)
    return None


# ---- what flows over it ----------------------------------------------------------------------------------


def test_both_ports_and_both_sides(both, certificates, tls_backend, key):
    with Client(both.tls_address, tls=certificates.context()) as secure, both.client() as plain:
        for i in range(30):
            assert secure("SET", key("a%d" % i), i) == "OK"
        names = [key("b%d" % i) for i in range(30)]
        assert plain("MSET", *[x for n in names for x in (n, n)]) == "OK"
        assert secure("MGET", *names) == names
        assert secure("INCR", "counter") == 1 and plain("INCR", "counter") == 2
        # A client that came over TLS is told the TLS port, and other clients the other port.
        if tls_backend.kind == "cluster":
            assert secure("CLUSTER", "SLOTS")[0][2][:2] == list(both.tls_address)
            assert plain("CLUSTER", "SLOTS")[0][2][:2] == list(both.address)
    assert "Ready to accept connections on %s:%d, %s:%d (TLS)" % (HOST, both.port, *both.tls_address) in both.log()


def test_locks_messages_and_blocking(both, certificates, key):
    context = certificates.context()
    a, b = (Client(both.tls_address, tls=context) for _ in range(2))
    lock, queue, channel = key("lock:tls"), key("queue"), key("channel")
    assert a("SET", lock, "1", "NX", "PX", 20000) == "OK"
    assert b.at_once(("SET", lock, "1", "NX", "PX", 20000), ("DEL", lock)) == [None, 0]
    assert a("DEL", lock) == 1
    a.send(encode("BLPOP", queue, 10))
    until(lambda: "pinned_blocking:1" in b("PROXY", "INFO"), what="the blocked client")
    assert b("RPUSH", queue, "x") == 1
    assert a.read() == [queue, "x"]
    a.send(encode("SUBSCRIBE", channel))
    assert a.read() == ["subscribe", channel, 1]
    assert b("PUBLISH", channel, "hello") in (0, 1)  # on a cluster maybe by another node
    assert a.read() == ["message", channel, "hello"]
    assert b("MULTI") == "OK" and b("SET", queue, "1") == "QUEUED" and b("EXEC") == ["OK"]
    # A client that leaves in the middle of a blocking command is noticed.
    c = Client(both.tls_address, tls=context)
    c.send(encode("BLPOP", key("never"), 0))
    until(lambda: "pinned_blocking:1" in b("PROXY", "INFO"), what="the blocked client")
    c.close()
    until(lambda: "pinned_blocking:0" in b("PROXY", "INFO"), what="the end of the blocked client")
    a.close()
    b.close()


@pytest.mark.parametrize("tls_backend", ["cluster"], indirect=True)
def test_redirects_of_a_cluster(both, certificates, tls_backend):
    """ASK while a slot moves, and MOVED when it has: the node that a redirect names is spoken to over TLS too."""
    slot, names = slot_of("open"), ["{open}%d" % n for n in range(20)]
    migration = Migration(tls_backend, [slot])
    with Client(both.tls_address, tls=certificates.context()) as client:
        for name in names:
            assert client("SET", name, name) == "OK"
        source, target = migration.open(slot)
        migration.migrate(source, target, names[::2])
        for _ in range(2):
            assert [client("GET", name) for name in names] == names
            assert client.pipeline([("STRLEN", name) for name in names]) == [b":%d\r\n" % len(name) for name in names]
        assert client("SET", "{open}new", "v") == "OK" and client("GET", "{open}new") == "v"
        assert target.run("CLUSTER", "COUNTKEYSINSLOT", slot) == 11
        for number, _ in enumerate(tls_backend.nodes, 1):  # the first ends what has begun; the last brings it back
            migration.move(slot, 100)
            assert client("BLPOP", "{open}none", "0.01") is None, "over a connection of its own, which has to follow"
            assert client("INCR", "{open}counter") == number
            assert client("MGET", *names) == names
            assert [client("MULTI"), client("GET", names[0]), client("EXEC")] == ["OK", "QUEUED", [names[0]]]
        assert migration.owner[slot] is source
    for c in migration.clients.values():
        c.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_large_values_and_pipelines(both, certificates, key, version, rng):
    """As bytes: through one connection, in pieces of any size, with replies that wait for a slow reader."""
    big = rng.randbytes(4 << 20)
    with Client(both.tls_address, tls=certificates.context(version=version)) as c:
        assert c.sock.version() == "TLSv1.%d" % (version - ssl.TLSVersion.TLSv1)
        assert c("SET", "big", big) == "OK"
        assert c.raw("GET", "big") == b"$%d\r\n%s\r\n" % (len(big), big)
        commands, expected = [], []
        for i in range(1600):
            name, value = "k%d" % rng.randrange(50), rng.randbytes(rng.choice((0, 3, 100, 16300, 16384, 17000)))
            commands += [("SET", name, value), ("GET", name)]
            expected += [b"+OK\r\n", b"$%d\r\n%s\r\n" % (len(value), value)]
        assert c.pipeline(commands[:2800]) == expected[:2800]
        payload = b"".join(encode(*x) for x in commands[2800:3200])
        at = 0
        while at < len(payload):  # a record each
            size = rng.choice((1, 2, 7, 500, 16384, 70000))
            c.send(payload[at : at + size])
            at += size
            while select.select([c.sock], [], [], 0)[0] and c.sock.pending() == 0 and len(c.buffer) < 1 << 16:
                try:
                    c.sock.setblocking(False)
                    c.fill()
                except (ssl.SSLWantReadError, BlockingIOError):
                    pass
                finally:
                    c.sock.settimeout(c.timeout)
        assert [c.read_raw() for _ in range(400)] == expected[2800:3200]
        # Sixteen times four megabytes before the first is read; meanwhile others are served.
        c.send(b"".join(encode("GET", "big") for _ in range(16)))
        with both.client() as other:
            until(lambda: int(re.search(r"client_bytes_out:(\d+)", other("PROXY", "INFO")).group(1)) > 0)
            for _ in range(50):
                assert other("PING") == "PONG"
        for _ in range(16):
            assert c.read_raw() == b"$%d\r\n%s\r\n" % (len(big), big)


WINDOW = 32  # requests of a client that are under way


def test_who_does_not_read(start_proxy, start_redis, certificates):
    """As on the plain port: requests wait in the proxy, a few long replies in Redis, and a limit drops the client."""
    size, count = 1 << 20, 64
    server = start_redis()
    expected = b"$%d\r\n%s\r\n" % (size, b"x" * size)

    looks = []

    def stands_still():
        """What waits in Redis is the same in three looks, and no more than a window's."""
        looks.append(sum(map(int, re.findall(r" omem=(\d+)", server.run("CLIENT", "LIST")))))
        return len(looks) >= 3 and len(set(looks[-3:])) == 1 and looks[-1] <= WINDOW * (size + 1024)

    proxy = start_tls(start_proxy, certificates, server, measured=True)
    with proxy.client() as other, Client(proxy.tls_address, tls=certificates.context()) as slow:
        assert other("SET", "big", "x" * size) == "OK" and slow.raw("GET", "big") == expected
        before = proxy.memory()
        slow.send(encode("GET", "big") * count)
        until(lambda: select.select([slow.sock], [], [], 0)[0], what="the first bytes")
        until(stands_still, what="replies that wait in Redis", pause=0.2)
        assert proxy.memory() - before < 16 << 20
        assert other("PING") == "PONG"
        assert all(slow.read_raw() == expected for _ in range(count))
    proxy = start_tls(start_proxy, certificates, server, "client-output-buffer-limit normal 8mb 0 0")
    with proxy.client() as other, Client(proxy.tls_address, tls=certificates.context()) as slow:
        slow.send(encode("GET", "big") * count)
        until(lambda: "client-output-buffer-limit" in proxy.log(), what="the client's end")
        assert other("PING") == "PONG"
        with pytest.raises((Closed, ConnectionError, ssl.SSLError)):
            for _ in range(count):
                assert slow.read_raw() == expected


def test_many_connections(both, certificates, key):
    """They come at once, and work at once."""
    context = certificates.context()
    failures = []

    def work(number):
        try:
            clients = [Client(both.tls_address, tls=context, timeout=60) for _ in range(12)]
            for i, c in enumerate(clients):
                c.send(b"".join(encode("INCR", "many:%d:%d" % (number, i)) for _ in range(20)))
            for c in clients:
                assert [c.read() for _ in range(20)] == list(range(1, 21))
                c.close()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    with both.client() as c:
        until(lambda: "clients_connected:1\r" in c("PROXY", "INFO"), what="the end of all connections")


class Halves:
    """A TLS client whose two directions end one after the other."""

    def __init__(self, address, context):
        self.sock = socket.create_connection(address, timeout=20)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.into, self.out, server_hostname=address[0])
        self.step(self.tls.do_handshake)

    def step(self, do, *args):
        while True:
            try:
                result = do(*args)
                self.sock.sendall(self.out.read())
                return result
            except ssl.SSLWantReadError:
                self.sock.sendall(self.out.read())
                data = self.sock.recv(65536)
                if not data:
                    return b""
                self.into.write(data)

    def end(self):
        """close_notify, without waiting for the other side's."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass
        self.sock.sendall(self.out.read())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_half_close(both, certificates, version):
    """All replies come, then the proxy's own end."""
    c = Halves(both.tls_address, certificates.context(version=version))
    c.step(c.tls.write, b"".join(encode("ECHO", "%05d" % i) for i in range(3000)))
    c.end()
    expected = b"".join(b"$5\r\n%05d\r\n" % i for i in range(3000))
    got = b""
    while True:
        data = c.sock.recv(65536)
        if not data:
            break
        c.into.write(data)
    c.into.write_eof()
    while len(got) < len(expected):
        got += c.tls.read(65536)
    assert got == expected
    with pytest.raises(ssl.SSLError) as end:  # a close_notify, not merely the end of the socket
        c.tls.read(1)
    assert end.type is ssl.SSLZeroReturnError
    c.sock.close()


def test_key_update(both, certificates):
    """openssl s_client asks for new keys in the middle of a conversation (its command K)."""
    cert, private = certificates.pair("client")
    with open(os.path.join(both.folder, "s_client"), "wb") as told:
        p = subprocess.Popen(["openssl", "s_client", "-connect", "%s:%d" % both.tls_address, "-CAfile",
                              certificates.path("ca.crt"), "-cert", cert, "-key", private, "-brief"], bufsize=0,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told)
    try:
        for n, word in enumerate((b"one", b"two", b"three"), 1):
            p.stdin.write(b"ECHO %s\n" % word)
            assert p.stdout.readline() == b"$%d\r\n" % len(word) and p.stdout.readline() == word + b"\r\n"
            p.stdin.write(b"K\n")
            until(lambda i=n: open(told.name, "rb").read().count(b"KEYUPDATE") == i, what="the new keys")
    finally:
        p.kill()
        p.wait()


# ---- clients of the field --------------------------------------------------------------------------------


def test_redis_cli_and_redis_py(both, certificates, key):
    cert, private = certificates.pair("client")
    name = key("cli")
    common = ["redis-cli", "-p", str(both.tls_address[1]), "--tls", "--cacert", certificates.path("ca.crt")]

    def cli(*args):
        return subprocess.run([*common, *args], timeout=30, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True).stdout.strip()

    assert cli("--cert", cert, "--key", private, "SET", name, "1") == "OK"
    assert cli("--cert", cert, "--key", private, "-3", "GET", name) == '"1"' or "1"
    assert "1" not in cli("GET", name)
    r = redis.Redis(host="localhost", port=both.tls_address[1], ssl=True, ssl_ca_certs=certificates.path("ca.crt"),
                    ssl_certfile=cert, ssl_keyfile=private, ssl_check_hostname=True)
    assert r.get(name) == b"1"
    with r.lock(key("lock:py"), timeout=10) as lock:
        assert lock.owned() and not r.lock(lock.name, timeout=10).acquire(blocking=False)
    r.close()


def test_password_over_tls(start_proxy, certificates, farm):
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"), "requirepass secret-word")
    with Client(proxy.tls_address, tls=certificates.context()) as c:
        assert c("GET", "x").startswith("NOAUTH")
        assert c("AUTH", "secret-word") == "OK"
        assert c("GET", "x") is None
        info = c("PROXY", "INFO")
    assert "secret-word" not in info + proxy.log()


# ---- client certificates --------------------------------------------------------------------------------

WHO = [None, "client", "stranger", "expired"]
AUTH_CLIENTS = {
    "yes": ["certificate", None, "unknown|self|issuer", "expired"],
    "optional": [None, None, "unknown|self|issuer", "expired"],
    "no": [None, None, None, None],
}


@pytest.mark.parametrize("auth", AUTH_CLIENTS)
def test_client_certificates(start_proxy, certificates, farm, auth):
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"), "tls-auth-clients " + auth)
    failures = 0
    for who, why in zip(WHO, AUTH_CLIENTS[auth]):
        before = len(proxy.log())
        reason = refused(proxy.tls_address, certificates.context(who))
        assert (reason is None) == (why is None), (who, reason)
        if why is None:
            continue
        # The log names the reason, or counts it among the failures of the same second.
        failures += 1
        with proxy.client() as c:
            until(lambda: "tls_handshakes_failed:%d\r" % failures in c("PROXY", "INFO"))
        line = proxy.log()[before:]
        if "TLS handshake with" in line:
            assert re.search(r"TLS handshake with 127\.0\.0\.1:\d+ failed: [^\n]*(%s)" % why, line), line
    with Client(proxy.tls_address, tls=certificates.context()) as c:
        assert c("PING") == "PONG"


def test_failures_are_logged_with_their_reason(start_proxy, certificates, farm):
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"), "loglevel verbose")
    for who, why in list(zip(WHO, AUTH_CLIENTS["yes"])):
        if why:
            assert refused(proxy.tls_address, certificates.context(who))
            until(lambda w=why: re.search(r"TLS handshake with 127\.0\.0\.1:\d+ failed: [^\n]*(%s)" % w, proxy.log()))
    with socket.create_connection(proxy.tls_address, timeout=10) as s:
        s.sendall(b"PING\r\n" * 10)
        data = b""
        try:
            while True:
                more = s.recv(4096)
                if not more:
                    break
                data += more
        except ConnectionResetError:
            pass
        assert b"PONG" not in data
    until(lambda: "the other side does not speak TLS" in proxy.log())
    with socket.create_connection(proxy.tls_address, timeout=10):
        pass
    until(lambda: "the other side closed the connection" in proxy.log())
    assert proxy.log().count("TLS handshake with") == 5


def test_a_slow_handshake_holds_nobody_up(start_proxy, certificates, farm):
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"), "tls-handshake-timeout 2s",
                      "maxclients 70")
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        certificates.context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=HOST).do_handshake()
    hello = out.read()
    slow = [socket.create_connection(proxy.tls_address, timeout=20) for _ in range(60)]
    for i, s in enumerate(slow):
        s.sendall(hello[: i * len(hello) // 60])
    with Client(proxy.tls_address, tls=certificates.context()) as c, proxy.client() as plain:
        for _ in range(20):
            assert c("PING") == "PONG"
        # They count as clients, and are gone after their time.
        more = [proxy.client() for _ in range(8)]
        assert all(m("PING") == "PONG" for m in more)
        with proxy.client() as late:
            assert late.read().endswith("max number of clients reached")
        for s in slow:
            try:
                while s.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            s.close()
        assert plain("PING") == "PONG" and c("PING") == "PONG"
        for m in more:
            m.close()
    until(lambda: "longer than tls-handshake-timeout" in proxy.log())


def test_stopping_with_handshakes_under_way(start_proxy, certificates, farm):
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"))
    with socket.create_connection(proxy.tls_address, timeout=10) as s, \
            Client(proxy.tls_address, tls=certificates.context()) as c:
        assert c("PING") == "PONG"
        proxy.signal(signal.SIGTERM)
        assert s.recv(10) == b""
        with pytest.raises(Closed):
            c.fill()
        proxy.expected = False
        assert proxy.process.wait(20) == 0


def test_tls_alone_and_old_versions(start_proxy, certificates, farm):
    port = free_port()
    proxy = start_proxy(farm.backend("standalone"), "port 0", *certificates.server_lines(port, "tls-protocols TLSv1.2",
                        "tls-ciphers ECDHE-ECDSA-AES256-GCM-SHA384", "tls-session-cache-timeout 60"))
    with pytest.raises(ConnectionRefusedError):
        proxy.client()
    context = certificates.context()
    with Client((HOST, port), tls=context) as c:
        assert c("PING") == "PONG"
        assert c.sock.version() == "TLSv1.2" and c.sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        session = c.sock.session
    sock = socket.create_connection((HOST, port), timeout=10)
    sock = context.wrap_socket(sock, server_hostname=HOST, session=session)
    assert sock.session_reused
    sock.close()
    assert refused((HOST, port), certificates.context(version=ssl.TLSVersion.TLSv1_3))


# ---- nodes -----------------------------------------------------------------------------------------------

NODES = {
    "an unknown authority": (["upstream-tls yes"], "certificate verify failed: self-signed certificate"),
    "another name": (["upstream-tls-server-name redis.example.org"], "hostname mismatch"),
    "no certificate": (["upstream-tls-cert-file ''", "upstream-tls-key-file ''"], "certificate required"),
    "a stranger's certificate": (["STRANGER"], "unknown ca"),
}


@pytest.mark.parametrize("case", NODES)
def test_what_a_node_refuses_or_is_refused_for(start_proxy, certificates, tls_backend, case):
    lines, why = NODES[case]
    if lines == ["STRANGER"]:
        cert, private = certificates.pair("stranger")
        lines = ["upstream-tls-cert-file " + cert, "upstream-tls-key-file " + private]
    if case != "an unknown authority":
        lines = certificates.upstream_lines() + lines
    proxy = start_proxy(tls_backend, *lines)

    def says_why():
        with proxy.client() as c:
            reply = c("GET", "a")
        return isinstance(reply, Error) and why in reply

    until(says_why, what="the reason")


@pytest.mark.parametrize("lines, works", [
    (["upstream-tls-verify yes"], False),
    (["upstream-tls-verify yes", "upstream-tls-server-name redis.example.org"], True),
    (["upstream-tls-verify ca"], True),
    (["upstream-tls-verify no", "upstream-tls-ca-cert-file ''"], True),
    (["upstream-tls-verify ca", "upstream-tls-ca-cert-file OTHER"], False),
])
def test_names_of_nodes(start_proxy, certificates, start_redis, lines, works):
    tls_port = free_port()
    cert, private = certificates.pair("named")
    start_redis("--tls-port", str(tls_port), "--tls-cert-file", cert, "--tls-key-file", private, "--tls-ca-cert-file",
                certificates.path("ca.crt"))
    proxy = start_proxy("standalone %s:%d" % (HOST, tls_port), *certificates.upstream_lines(),
                        *[line.replace("OTHER", certificates.path("other-ca.crt")) for line in lines])
    with proxy.client() as c:
        reply = c("SET", "a", "1")
        assert reply == "OK" if works else "certificate verify failed" in reply


def test_a_node_that_speaks_no_tls(start_proxy, certificates, farm, fake):
    proxy = start_proxy(farm.backend("standalone"), *certificates.upstream_lines(), "upstream-timeout 500ms")
    with proxy.client() as c:
        assert "can't be reached (the TLS handshake took more than 500 ms)" in c("GET", "a")


def test_a_node_that_stops_in_its_handshake(start_proxy, certificates):
    """The node accepts and is silent: an error within the time limit, and no other client waits."""
    with socket.create_server((HOST, 0), backlog=50) as deaf:
        proxy = start_proxy("standalone %s:%d" % deaf.getsockname(), *certificates.upstream_lines(),
                            "upstream-timeout 500ms")
        with proxy.client() as c:
            assert "the TLS handshake took more than 500 ms" in c("GET", "a")


def test_a_node_that_is_lost_and_comes_back(start_proxy, start_redis, certificates):
    node = start_redis(tls=certificates)
    proxy = start_proxy(node, *certificates.upstream_lines())
    with proxy.client() as c:
        assert c("SET", "a", "1") == "OK"
        node.kill()
        until(lambda: isinstance(c("GET", "a"), Error))
        node.start()
        until(lambda: c("SET", "a", "2") == "OK")


def test_sentinels_over_tls(start_proxy, start_redis, certificates):
    """The control plane's connections, of rounds and of subscriptions."""
    node = start_redis(tls=certificates)
    tls_port = free_port()
    options = certificates.redis_options(tls_port)
    lines = ["%s %s" % (name[2:], value) for name, value in zip(options[0::2], options[1::2]) if "cluster" not in name]
    sentinel = Sentinel("sentinel monitor m %s %d 1" % (HOST, node.tls_port), *lines)
    try:
        proxy = start_proxy("sentinel m %s:%d" % (HOST, tls_port), *certificates.upstream_lines())
        with proxy.client() as c:
            until(lambda: c("SET", "a", "1") == "OK", what="the master")
            until(lambda: "sentinel0:address=%s:%d,state=up" % (HOST, tls_port) in c("PROXY", "INFO"))
    finally:
        sentinel.stop()


# ---- files -----------------------------------------------------------------------------------------------


def start_fails(*lines):
    done = subprocess.run([binary(), "-"], input="port 0\nupstream standalone 127.0.0.1:1\n" + "\n".join(lines),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, env=proxy_environment(),
                          text=True)
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_errors_at_start(certificates):
    c, port = certificates, free_port()
    good = c.server_lines(port)
    missing = c.path("missing.pem")
    for lines, words in [
        (["tls-port %d" % port], ["tls-cert-file: expected"]),
        (good + ["tls-cert-file " + missing], ["tls-cert-file '%s'" % missing, "No such file"]),
        (good + ["tls-key-file " + c.path("client.key")], ["tls-key-file '", "client.key'", "mismatch"]),
        (good + ["tls-key-file " + c.path("server.crt")], ["tls-key-file '", "server.crt'"]),
        (good + ["tls-key-file ''"], ["tls-key-file: expected"]),
        (good + ["tls-key-file " + c.path("locked.key")], ["locked.key'", "tls-key-file-pass"]),
        (good + ["tls-key-file " + c.path("locked.key"), "tls-key-file-pass wrong-words"], ["locked.key'"]),
        (good + ["tls-ca-cert-file ''"], ["tls-ca-cert-file: expected", "tls-auth-clients no"]),
        (good + ["tls-ca-cert-file " + c.path("server.key")], ["tls-ca-cert-file '", "server.key'"]),
        (good + ["tls-ca-cert-dir " + missing], ["tls-ca-cert-dir '%s'" % missing]),
        (good + ["tls-dh-params-file " + c.path("server.key")], ["tls-dh-params-file '", "server.key'"]),
        (good + ["tls-ciphers nonsense"], ["tls-ciphers 'nonsense': expected"]),
        (good + ["tls-ciphersuites nonsense"], ["tls-ciphersuites 'nonsense': expected"]),
        (["tls-port 0", "upstream-tls yes", "upstream-tls-cert-file " + c.path("client.crt")],
         ["upstream-tls-key-file: expected"]),
        (c.upstream_lines("upstream-tls-ca-cert-file " + missing), ["upstream-tls-ca-cert-file '%s'" % missing]),
    ]:
        error = start_fails(*lines)
        assert all(word in error for word in words), error
        assert "wrong-words" not in error
    taken = socket.create_server((HOST, port))
    assert "tls-port %d: can't listen" % port in start_fails("bind " + HOST, *good)
    taken.close()
    done = subprocess.run([binary(), "--test-conf", "-"], input="\n".join(good + ["tls-key-file " + missing]),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, text=True)
    assert done.returncode == 1 and missing in done.stdout


def test_an_encrypted_key(start_proxy, certificates, farm):
    """Its passphrase is in no log, in no answer, and not in memory."""
    proxy = start_tls(start_proxy, certificates, farm.backend("standalone"),
                      "tls-key-file " + certificates.path("locked.key"), "tls-key-file-pass " + certificates.PASSPHRASE)
    with Client(proxy.tls_address, tls=certificates.context()) as c:
        assert c("PROXY", "RELOAD") == "OK"
        shown = c("PROXY", "INFO")
    assert certificates.PASSPHRASE not in shown + proxy.log()
    assert not memory_has(proxy.pid, certificates.PASSPHRASE.encode())
    assert memory_has(proxy.pid, certificates.path("locked.key").encode())  # it does look


def memory_has(pid, text):
    with open("/proc/%d/maps" % pid) as maps, open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not found or "/" in line:
                continue
            start, end = (int(x, 16) for x in found.groups())
            if end - start > 1 << 30:  # a sanitizer's shadow
                continue
            try:
                memory.seek(start)
                if text in memory.read(end - start):
                    return True
            except OSError:
                pass
    return False


def serial(address, context):
    with Client(address, tls=context) as c:
        assert c("PING") == "PONG"
        return c.sock.getpeercert()["serialNumber"]


def test_reload(start_proxy, certificates, farm, tmp_path):
    """New connections get the new certificate, open ones go on, and what can't be read changes nothing."""
    files = {name: str(tmp_path / name) for name in ("crt", "key")}

    def install(name):
        for end, source in zip(("crt", "key"), certificates.pair(name)):
            shutil.copy(source, files[end])

    install("server")
    port = free_port()
    proxy = start_proxy(farm.backend("standalone"), *certificates.server_lines(port), "threads 2",
                        "tls-cert-file " + files["crt"], "tls-key-file " + files["key"])
    context = certificates.context()
    old = Client((HOST, port), tls=context)
    assert old("PING") == "PONG"
    first = serial((HOST, port), context)

    certificates.make("renewed", "IP:127.0.0.1")
    install("renewed")
    assert serial((HOST, port), context) == first
    assert old("PROXY", "RELOAD") == "OK"
    second = {serial((HOST, port), context) for _ in range(6)}  # of both threads
    assert len(second) == 1 and first not in second

    for broken in ("crt", "key"):
        with open(files[broken], "w") as f:
            f.write("no PEM\n")
        with proxy.client() as c:
            said = len(proxy.log())
            reply = c("PROXY", "RELOAD")
            assert isinstance(reply, Error) and "log says where" in reply and files[broken] not in reply
            assert files[broken] in proxy.log()[said:]
        assert {serial((HOST, port), context)} == second
        install("renewed")
    os.unlink(files["crt"])
    proxy.signal(signal.SIGHUP)
    until(lambda: "not reloaded, nothing was changed: %s:9: tls-cert-file '%s'" % (proxy.config, files["crt"]) in proxy.log())
    assert {serial((HOST, port), context)} == second
    install("server")
    proxy.signal(signal.SIGHUP)
    until(lambda: serial((HOST, port), context) == first)
    assert old("PING") == "PONG" and old("SET", "a", "1") == "OK"
    old.close()
