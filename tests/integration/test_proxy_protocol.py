"""The PROXY protocol: behind a load balancer each client has its own address again, and no other client can choose its address.

If HAProxy is installed, it sends the headers; other headers are written by hand.
"""

import contextlib
import os
import shutil
import socket
import struct
import time

import pytest

from resp import Closed, encode
from servers import HOST, Process, RedisServer, free_port, until

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FRONT = "10.9.8.7"  # a client's address that no other test uses


@pytest.fixture(scope="module")
def server():
    server = RedisServer()
    yield server
    server.stop()


def v2(command=1, kind=0x11, body=b""):
    return SIGNATURE + bytes([0x20 | command, kind]) + struct.pack(">H", len(body)) + body


def v4(source, port, tlvs=b""):
    return v2(body=socket.inet_aton(source) + socket.inet_aton("10.0.0.1") + struct.pack(">HH", port, 6380) + tlvs)


def v6(source, port):
    pack = lambda address: socket.inet_pton(socket.AF_INET6, address)
    return v2(kind=0x21, body=pack(source) + pack("fd00::1") + struct.pack(">HH", port, 6380))


def line(source, port, family="TCP4", reached="10.0.0.1"):
    return b"PROXY %s %s %s %d 6380\r\n" % (family.encode(), source.encode(), reached.encode(), port)


class Raw:
    """A connection whose first bytes the test writes, then a client."""

    def __init__(self, address, *pieces, source=None):
        unix = isinstance(address, str)
        self.socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.socket.settimeout(20)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(address)
        for piece in pieces:
            self.socket.sendall(piece)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def __call__(self, *words):
        """A reply of one line or one bulk string."""
        self.socket.sendall(encode(*words))
        data = b""
        while not data.endswith(b"\r\n") or (data[:1] == b"$" and data.count(b"\r\n") < 2 and data != b"$-1\r\n"):
            more = self.socket.recv(65536)
            if not more:
                raise Closed(data)
            data += more
        return data.split(b"\r\n", 1)[1][:-2].decode() if data[:1] == b"$" else data[:-2].decode()

    def info(self):
        return dict(word.split("=", 1) for word in self("CLIENT", "INFO").split() if "=" in word)

    def closed(self):
        """What came before the end."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while True:
                more = self.socket.recv(65536)
                if not more:
                    break
                data += more
        return data


# ---- headers that are right ------------------------------------------------------------------------------

TLVS = b"\x04\0\x03abc" + b"\x03\0\x04\1\2\3\4" + b"\xea\0\x01x" + b"\x20\0\x05\1\0\0\0\0"
HEADERS = {
    "1, IPv4": (line(FRONT, 50123), FRONT + ":50123"),
    "1, IPv6": (line("fd00::5", 50123, "TCP6", "fd00::1"), "[fd00::5]:50123"),
    "1, IPv4 as IPv6": (line("::ffff:10.9.8.7", 50123, "TCP6", "::ffff:10.0.0.1"), FRONT + ":50123"),
    "1, unknown": (b"PROXY UNKNOWN\r\n", None),
    "1, unknown and more": (b"PROXY UNKNOWN ffff::1 ffff::1 1 2\r\n", None),
    "2, IPv4": (v4(FRONT, 50123), FRONT + ":50123"),
    "2, IPv6": (v6("fd00::5", 50123), "[fd00::5]:50123"),
    "2, TLVs": (v4(FRONT, 50123, TLVS), FRONT + ":50123"),
    "2, as long as may be": (v4(FRONT, 50123, b"\x04\x01\xf9" + bytes(505)), FRONT + ":50123"),
    "2, unix": (v2(kind=0x31, body=b"/run/a".ljust(108, b"\0") * 2), "unix:0"),
    "2, local": (v2(command=0), None),
    "2, local with addresses": (v2(command=0, kind=0x11, body=bytes(12)), None),
    "2, unspecified": (v2(kind=0), None),
    "2, datagrams": (v2(kind=0x12, body=bytes(12)), None),
}


@pytest.mark.parametrize("listener", ["TCP", "TLS", "unix"])
def test_who_the_client_is(server, start_proxy, certificates, tmp_path, listener):
    """Whole, with the first command behind it, and byte by byte."""
    path, tls_port = str(tmp_path / "s"), free_port()
    lines = certificates.server_lines(tls_port, "tls-auth-clients no") if listener == "TLS" else []
    proxy = start_proxy(server, "proxy-protocol yes", "unixsocket " + path, *lines)
    address = {"TCP": proxy.address, "TLS": (HOST, tls_port), "unix": path}[listener]
    for name, (header, expected) in HEADERS.items():
        for split in (False, True):
            pieces = [header[i:i + 1] for i in range(len(header))] if split else [header]
            with Raw(address, *pieces) as c:
                if listener == "TLS":
                    c.socket = certificates.context().wrap_socket(c.socket, server_hostname=HOST)
                got = c.info()["addr"]
                if expected:
                    assert got == expected, name
                elif listener == "unix":
                    assert got == (path + ":0" if "local" in name else "unix:0"), name
                else:
                    assert got == "%s:%d" % c.socket.getsockname(), name
                if not split and listener != "TLS":
                    assert c("SET", "k", "v") == "+OK"


def test_a_command_in_the_same_piece(server, start_proxy):
    proxy = start_proxy(server, "proxy-protocol yes")
    for header in (line(FRONT, 7), v4(FRONT, 7)):
        with Raw(proxy.address, header + encode("ECHO", "hello") + encode("PING")) as c:
            until(lambda: c.socket.recv(100, socket.MSG_PEEK) == b"$5\r\nhello\r\n+PONG\r\n")


# ---- what follows from it --------------------------------------------------------------------------------


def test_clients_of_a_balancer_are_several(server, start_proxy):
    """With owner client, all clients behind the balancer were one client, and could release each other's locks."""
    proxy = start_proxy(server, "proxy-protocol 127.0.0.1", "lock lock:* owner client")
    with Raw(proxy.address, line("10.1.0.1", 1)) as a, Raw(proxy.address, line("10.1.0.1", 2)) as a2, \
            Raw(proxy.address, v4("10.1.0.2", 1)) as b, Raw(proxy.address, v6("fd00::7", 1)) as c:
        assert a("SETNX", "lock:balanced", "1") == ":1"
        assert b("DEL", "lock:balanced") == c("DEL", "lock:balanced") == ":0"
        assert b("PROXY", "EXPLAIN", "GET", "k")
        assert a2("DEL", "lock:balanced") == ":1", "the same client over another connection"
        assert "foreign_release: DEL on lock:balanced by 10.1.0.2:1" in proxy.log()
        assert "by [fd00::7]:1" in proxy.log()
        ids = c.info()
        assert ids["addr"] == "[fd00::7]:1"
        assert b("CLIENT", "KILL", "ADDR", "[fd00::7]:1") == ":1"
        assert c.closed() == b""
        assert b("CLIENT", "KILL", "ADDR", "10.1.0.1:2") == ":1"


def test_wrong_passwords_count_for_the_client(start_redis, start_proxy):
    """Not for the balancer: otherwise all other clients behind it would be locked out, too."""
    server = start_redis("--requirepass", "right")
    proxy = start_proxy("standalone %s:%d" % server.address, "proxy-protocol yes")
    with Raw(proxy.address, line("10.1.0.1", 1)) as bad, Raw(proxy.address, line("10.1.0.2", 1)) as good:
        answers = [bad("AUTH", "wrong %d" % i) for i in range(200)]
        assert any("too many wrong passwords" in a for a in answers)
        assert good("AUTH", "right") == "+OK"


def test_nobody_becomes_an_operator_by_a_header(start_redis, start_proxy, tmp_path):
    """A client of the unix socket may use PROXY; a client that was forwarded over it, or claims to have used one, may not."""
    server = start_redis()
    server.run("ACL", "SETUSER", "default", "-config")
    path = str(tmp_path / "s")
    proxy = start_proxy(server, "proxy-protocol yes", "unixsocket " + path)
    body = b"/run/a".ljust(108, b"\0") * 2
    for address in (proxy.address, path):
        for header in (v2(kind=0x31, body=body), v2(kind=0), line(FRONT, 1), b"PROXY UNKNOWN\r\n"):
            with Raw(address, header) as c:
                assert c("PROXY", "CONFIG", "port").startswith("-NOPERM")
    with Raw(path, v2(command=0)) as c:
        c.socket.sendall(encode("PROXY", "CONFIG", "port"))
        until(lambda: b"$4\r\nport\r\n" in c.socket.recv(1000, socket.MSG_PEEK))


def test_clients_behind_a_balancer_here_are_no_neighbours(start_redis, start_proxy):
    """With bind on loopback, clients without login are upstream-user; but a client that a balancer forwards may come from
    anywhere."""
    server = start_redis("--requirepass", "right")
    for directive, answer in (("no", "+OK"), ("127.0.0.1", "-NOAUTH")):
        proxy = start_proxy("standalone %s:%d" % server.address, "upstream-password right", "proxy-protocol " + directive)
        with Raw(proxy.address, *([line(FRONT, 1)] if directive != "no" else [])) as c:
            assert c("SET", "k", "v").startswith(answer)


def test_a_cluster_client_is_sent_to_the_balancer(start_cluster, start_proxy):
    proxy = start_proxy(start_cluster(), "proxy-protocol yes")
    with Raw(proxy.address, line(FRONT, 1, reached="10.77.0.1")) as c:
        c.socket.sendall(encode("CLUSTER", "SLOTS"))
        until(lambda: b"10.77.0.1\r\n:6380" in c.socket.recv(1000, socket.MSG_PEEK))


# ---- trusted addresses, and malformed headers --------------------------------------------------------------


def test_only_who_is_believed(server, start_proxy):
    """Others are served without a header, and refused with one."""
    proxy = start_proxy(server, "proxy-protocol 127.0.0.1 10.0.0.0/8 fd00::/8")
    with Raw(proxy.address, source="127.0.0.3") as c:
        assert c.info()["addr"].startswith("127.0.0.3:")
    for header in (line(FRONT, 1), v4(FRONT, 1), b"PROXY UNKNOWN\r\n"):
        with Raw(proxy.address, header + encode("SET", "stolen", "1"), source="127.0.0.3") as c:
            said = c.closed()
            assert said.startswith(b"-ERR Protocol error: a PROXY protocol header") and said.count(b"\r\n") == 1, said
    with Raw(proxy.address, line(FRONT, 1)) as c:
        assert c("EXISTS", "stolen") == ":0"


def test_without_the_directive_nobody_is_believed(server, start_proxy):
    proxy = start_proxy(server, "requirepass pw")
    for header in (line(FRONT, 1), v4(FRONT, 1)):
        with Raw(proxy.address, header) as c:
            assert c.closed().startswith(b"-ERR Protocol error: a PROXY protocol header")


WRONG = {
    "none": encode("PING"), "inline": b"PING\r\n", "TLS": b"\x16\x03\x01\x02\0\x01",
    "address": b"PROXY TCP4 10.0.0 10.0.0.1 1 2\r\n", "port": b"PROXY TCP4 10.0.0.1 10.0.0.1 1 65536\r\n",
    "kind": b"PROXY UDP4 10.0.0.1 10.0.0.1 1 2\r\n", "endless line": b"PROXY TCP4 " + b"1" * 4000,
    "long": v2(body=bytes(521)), "short": v2(body=bytes(11)), "version": SIGNATURE + b"\x31\x11\0\x0c" + bytes(12),
    "command": SIGNATURE + b"\x22\x11\0\x0c" + bytes(12), "family": v2(kind=0x51, body=bytes(12)),
    "huge": SIGNATURE + b"\x21\x11\xff\xff" + bytes(100), "ends": b"PROXY TCP4 10.0",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_headers(server, start_proxy, name):
    proxy = start_proxy(server, "proxy-protocol 127.0.0.1")
    with Raw(proxy.address, WRONG[name]) as c:
        if name == "ends":
            c.socket.shutdown(socket.SHUT_WR)
        assert c.closed() == b""
    assert "PROXY protocol with 127.0.0.1:" in proxy.log()
    with Raw(proxy.address, line(FRONT, 1) + encode("PROXY", "INFO")) as c:
        until(lambda: b"proxy_headers_refused:1\r" in c.socket.recv(100000, socket.MSG_PEEK))


def test_half_headers_end_in_time(server, start_proxy):
    """A client that sends no header, or half of it, is closed. It delays no other client, counts as a client, and fills no
    log."""
    proxy = start_proxy(server, "proxy-protocol yes", "maxclients 60")
    began = time.monotonic()
    halves = [Raw(proxy.address, (b"", b"PROXY TCP4 10.0", SIGNATURE[:7], v4(FRONT, 1)[:20])[i % 4]) for i in range(40)]
    with Raw(proxy.address, line(FRONT, 1)) as c:
        assert c("PING") == "+PONG"
    for half in halves:
        assert half.closed() == b""
        half.socket.close()
    assert 4 < time.monotonic() - began < 15
    assert 1 <= proxy.log().count("PROXY protocol with") <= 10
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(Raw(proxy.address, line(FRONT, 1))) for _ in range(60)]
        assert [c("PING") for c in many] == ["+PONG"] * 60, "the places of the others are free again"


def test_health_checks_that_only_connect(server, start_proxy):
    proxy = start_proxy(server, "proxy-protocol yes")
    for _ in range(5):
        Raw(proxy.address).socket.close()
    with Raw(proxy.address, line(FRONT, 1)) as c:
        assert c("PING") == "+PONG"
    assert "PROXY protocol with" not in proxy.log()


def test_a_warning_where_everybody_is_believed(server, start_proxy):
    for bind, warns in (("0.0.0.0", True), ("127.0.0.1", False)):
        for directive in ("yes", "127.0.0.1"):
            log = start_proxy(server, "bind " + bind, "proxy-protocol " + directive).log()
            assert ("any client can claim any address" in log) == (warns and directive == "yes")


def test_whom_to_believe_changes_with_a_reload(server, start_proxy, connect):
    proxy = start_proxy(server, "threads 2")
    client = connect(proxy)
    for line_, header in (("proxy-protocol 127.0.0.1", True), ("proxy-protocol no", False), ("proxy-protocol yes", True)):
        text = [x for x in open(proxy.config).read().splitlines() if not x.startswith("proxy-protocol")] + [line_]
        with open(proxy.config, "w") as f:
            f.write("\n".join(text) + "\n")
        assert client("PROXY", "RELOAD") == "OK"
        assert client("PROXY", "CONFIG", "proxy-protocol")[1] == line_.split()[1]

        def right(header=header):
            with Raw(proxy.address, *([line(FRONT, 1)] if header else [])) as c:
                c.socket.sendall(encode("PING"))
                return c.socket.recv(100) == b"+PONG\r\n"

        until(right)
        assert all(right() for _ in range(8)), "both threads"


# ---- HAProxy ---------------------------------------------------------------------------------------------


class HAProxy(Process):
    def __init__(self, backends):
        super().__init__("haproxy")
        self.ports = {name: free_port() for name in backends}
        config = ["global", "  maxconn 200", "defaults", "  mode tcp", "  timeout connect 5s", "  timeout client 60s", "  timeout server 60s"]
        for name, target in backends.items():
            config += ["listen " + name, "  bind 127.0.0.1:%d" % self.ports[name], "  server s " + target]
        path = os.path.join(self.folder, "haproxy.cfg")
        with open(path, "w") as f:
            f.write("\n".join(config) + "\n")
        self.spawn(["haproxy", "-db", "-f", path])

    def open(self, name, source="127.0.0.9"):
        address = (HOST, self.ports[name])

        def listens():
            try:
                socket.create_connection(address).close()
                return True
            except OSError:
                return False

        until(listens, what="haproxy")
        return Raw(address, source=source)


@pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
def test_behind_haproxy(server, start_proxy, certificates, tmp_path):
    """Both versions, with its extensions, over TLS and a unix socket, and its health checks."""
    path, tls_port = str(tmp_path / "s"), free_port()
    proxy = start_proxy(server, "proxy-protocol 127.0.0.1 unix", "unixsocket " + path, "loglevel verbose",
                        *certificates.server_lines(tls_port, "tls-auth-clients no"))
    target = "%s:%d" % proxy.address
    haproxy = HAProxy({
        "v1": target + " send-proxy",
        "v2": target + " send-proxy-v2",
        "v2more": target + " send-proxy-v2 proxy-v2-options crc32c,unique-id,ssl,cert-cn",
        "v2ssl": target + " send-proxy-v2-ssl",
        "checked": target + " send-proxy-v2 check check-send-proxy inter 100ms",
        "tls": "%s:%d send-proxy-v2 ssl verify none" % (HOST, tls_port),
        "unix": "unix@%s send-proxy-v2" % path,
        "bare": target,
    })
    try:
        for name in haproxy.ports:
            with haproxy.open(name) as c:
                if name == "bare":
                    c.socket.sendall(encode("PING"))
                    assert c.closed() == b"", "who should send a header, and does not"
                    continue
                assert c.info()["addr"] == "%s:%d" % c.socket.getsockname(), name
                assert c("SETNX", "lock:haproxy", "1") == ":1"
                with haproxy.open(name, source="127.0.0.10") as other:
                    assert other("DEL", "lock:haproxy") == ":0"
                assert c("DEL", "lock:haproxy") == ":1"
        refused = proxy.log().count("PROXY protocol with")
        assert refused == 1, "but for the bare one nothing was wrong, and checks are no failures"
    finally:
        haproxy.kill()
