"""The request that reaches the proxy first reaches the node first, and the client that is answered first continues
first.

The proxy is stopped (SIGSTOP) while the bytes come in a known order: each client sends after the kernel has acknowledged
the bytes of the one before. So the proxy finds all bytes at once.
"""

import contextlib
import fcntl
import random
import signal
import struct
import termios

import pytest

from fake import FakeNode
from resp import encode
from servers import until
from test_tls import start_tls


def arrives(sock, data):
    """Sends it, and waits until it is in the other side's socket."""
    sock.sendall(data)
    until(lambda: struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0] == 0, pause=0.001,
          what="the other system's acknowledgement")


@contextlib.contextmanager
def stopped(proxy):
    """The proxy does not run meanwhile."""
    proxy.signal(signal.SIGSTOP)
    try:
        until(lambda: state_of(proxy.pid) == "T", what="its stop")
        yield
    finally:
        proxy.signal(signal.SIGCONT)


def state_of(pid):
    with open("/proc/%d/stat" % pid) as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def shuffled(count):
    order = list(range(count))
    random.Random(count).shuffle(order)
    return order


def await_turn(proxy, connect, text=""):
    """Until PROXY INFO says so, and then one more turn of the loop: the kernel is only then told of new connections, and
    still has those of the last turn at the front of its list."""
    with connect(proxy) as observer:
        until(lambda: text in observer("PROXY", "INFO"), what=text)
        observer("PROXY", "INFO")


def pushed_in_order(proxy, connect, clients):
    """Lets all clients push their numbers in a known order; returns it as it should be in the list."""
    await_turn(proxy, connect, "clients_connected:%d\r" % (len(clients) + 1))
    order = shuffled(len(clients))
    with stopped(proxy):
        for number in order:
            arrives(clients[number].sock, encode("RPUSH", "order", number))
    assert sorted(client.read() for client in clients) == list(range(1, len(clients) + 1))
    return [str(number) for number in order]


# More than the kernel tells of at once: the rest is for the next turn.
@pytest.mark.parametrize("count", [12, 150])
def test_clients_are_served_in_the_order_in_which_they_wrote(backend, start_proxy, connect, direct, count):
    proxy = start_proxy(backend, "threads 1")
    order = pushed_in_order(proxy, connect, [connect(proxy) for _ in range(count)])
    assert direct("LRANGE", "order", 0, -1) == order


def test_clients_over_tls_are_served_in_that_order_too(certificates, start_redis, start_proxy, connect):  # noqa: F811
    server = start_redis()
    proxy = start_tls(start_proxy, certificates, server, "threads 1")
    order = pushed_in_order(proxy, connect, [
        connect(proxy.tls_address, tls=certificates.context()) if number % 2 else connect(proxy)
        for number in range(12)])
    assert server.run("LRANGE", "order", 0, -1) == order


def test_replies_are_handed_on_in_the_order_in_which_they_came(start_proxy, connect):
    """Each blocked client has a connection of its own; what it sends next waits for the reply, and shows its place."""
    blocked, pushed = {}, []

    def handler(words, connection):
        if words[0] == b"BLPOP":
            blocked[int(words[1])] = connection.request
            return b""
        if words[0] == b"RPUSH":
            pushed.append(int(words[2]))
        return b":%d\r\n" % len(pushed)

    node = FakeNode(handler)
    proxy = start_proxy("standalone 127.0.0.1:%d" % node.port, "threads 1")
    clients = [connect(proxy) for _ in range(12)]
    for number, client in enumerate(clients):
        client.send(encode("BLPOP", number, 0) + encode("RPUSH", "order", number))
    until(lambda: len(blocked) == len(clients), what="their blocking")
    await_turn(proxy, connect)
    order = shuffled(len(clients))
    with stopped(proxy):
        for number in order:
            arrives(blocked[number], b"*2\r\n$1\r\nk\r\n$1\r\nv\r\n")
    for client in clients:
        assert client.read() == ["k", "v"]
    assert sorted(client.read() for client in clients) == list(range(1, len(clients) + 1))
    assert pushed == order
    node.stop()
