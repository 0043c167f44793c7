"""More than the proxy, its limits or the system can take: it stays bounded, says no, and recovers."""

import errno
import os
import resource
import select
import socket
import time

import pytest

from helpers import is_upstream
from resp import Client, encode
from servers import under, until


def raise_own_limit(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), hard))


def test_many_writers_to_a_node_that_stands_still(start_redis, start_proxy, connect):
    """Each may have a few megabytes on its way, but not all at once: from 128 MB a thread on each gets a small share."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 60s", "threads 1", measured=True)
    clients = [connect(proxy) for _ in range(150)]
    assert all(c("PING") == "PONG" for c in clients)
    before = proxy.memory()
    server.pause()
    request = encode("SET", "k", "x" * 10000)
    batch, sent = request * 50, [0] * len(clients)
    poll = select.poll()
    number = {c.sock.fileno(): n for n, c in enumerate(clients)}
    for c in clients:
        c.sock.setblocking(False)
        poll.register(c.sock, select.POLLOUT)
    while poll.poll(1000):  # until a second passes in which no client can send
        for fd, _ in poll.poll(0):
            c = clients[number[fd]]
            try:
                sent[number[fd]] += c.sock.send(batch[sent[number[fd]] % len(request):])
            except BlockingIOError:
                pass
            if sent[number[fd]] > 64 << 20:
                poll.unregister(fd)
    grown = proxy.memory() - before
    server.resume()
    for n, c in enumerate(clients):
        c.sock.settimeout(30)
        if sent[n] % len(request):
            c.send(request[sent[n] % len(request):])
    for n, c in enumerate(clients):
        for _ in range(-(-sent[n] // len(request))):
            assert c.read() == "OK"
    assert grown < 350 << 20, "%d MB for %d MB of %d clients" % (grown >> 20, sum(sent) >> 20, len(clients))


@pytest.mark.parametrize("threads", [1, 2])
def test_no_descriptors_left(start_redis, start_proxy, connect, threads):
    """Connected clients are served. A new client waits, and is served as soon as another leaves."""
    if under():
        pytest.skip("the tool keeps descriptors of its own beyond the limit")
    proxy = start_proxy(start_redis(), "threads %d" % threads)
    clients = [connect(proxy) for _ in range(20)]
    for c in clients:
        assert c("SET", "k", "v") == "OK"
    used = len(os.listdir("/proc/%d/fd" % proxy.pid))
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (used, used))
    late = [connect(proxy) for _ in range(5)]
    for c in late:
        c.send(encode("PING"))
    until(lambda: "accepting pauses" in proxy.log(), 10, "the proxy's word of it")
    for c in clients:
        assert c("GET", "k") == "v"
    assert is_upstream(clients[0]("BLPOP", "list", 1)), "a connection of its own can't be had"
    assert clients[0]("GET", "k") == "v"
    for c in clients[1:]:
        c.close()
    for c in late:
        assert c.read() == "PONG"
    assert clients[0]("BLPOP", "list", 0.01) is None


def test_thousands_connect_at_once(start_redis, start_proxy):
    """None is refused, each is served, and when they have left the memory comes back."""
    count = 2000
    raise_own_limit(count + 500)
    proxy = start_proxy(start_redis(), "threads 2")
    sockets = []
    try:
        for _ in range(count):
            s = socket.socket()
            s.setblocking(False)
            assert s.connect_ex(proxy.address) in (0, errno.EINPROGRESS)
            sockets.append(s)
        poll = select.poll()
        for s in sockets:
            poll.register(s, select.POLLOUT)
        waiting = set(s.fileno() for s in sockets)
        by_number = {s.fileno(): s for s in sockets}
        until_when = time.monotonic() + 60
        while waiting and time.monotonic() < until_when:
            for fd, _ in poll.poll(1000):
                assert by_number[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                by_number[fd].send(encode("SETNX", "lock:%d" % fd, "1"))
                poll.unregister(fd)
                waiting.discard(fd)
        assert not waiting
        for s in sockets:
            s.settimeout(30)
            assert s.recv(100) == b":1\r\n"
    finally:
        for s in sockets:
            s.close()

    def left():
        with Client(proxy.address) as c:
            return "clients_connected:1\r" in c("PROXY", "INFO", "clients")

    until(left, 20, "their leaving")
