"""Nodes that are replaced by others: replicas promoted on a cluster, masters demoted, addresses that change, nodes that
vanish without a word, that are full, or that are still loading.

Clients of other nodes go on meanwhile, an application's write is executed at most once, and locks keep their holders.
"""

import os
import signal
import socket
import subprocess
import threading
import time

import pytest

import servers
from resp import Client, Error, encode
from servers import HOST, REDIS_SERVER, RedisCluster, free_port, slot_of, until

TIMEOUT = 30


@pytest.fixture(scope="module")
def cluster():
    """Its first master and the replica change places from test to test."""
    found = RedisCluster(timeout_ms=1500, replica=True)
    yield found
    found.stop()


@pytest.fixture
def roles(cluster):
    """The master of the first slots and its replica, in step."""
    first = [cluster.nodes[0], cluster.replica]
    for node in first:
        if not node.running():
            node.start()
    master = until(lambda: next((n for n in first if n.run("ROLE")[0] == "master"
                                 and "cluster_state:ok" in n.run("CLUSTER", "INFO")), None), TIMEOUT, "a master")
    replica = first[1 - first.index(master)]
    until(lambda: replica.run("ROLE")[0] == "slave" and replica.run("ROLE")[3] == "connected", TIMEOUT, "its replica")
    with master.client() as c:
        until(lambda: c("SET", KEY, "0") == "OK" and c("WAIT", 1, 100) == 1, TIMEOUT, "a replica in step")
    return master, replica


def name_in(first, last, start):
    """A key in one of these slots."""
    return next(k for k in (start + ":%d" % n for n in range(100000)) if first <= slot_of(k) <= last)


KEY = name_in(0, 5460, "count")
LOCK = name_in(0, 5460, "lock:failover")
ELSEWHERE = name_in(5461, 16383, "elsewhere")


def known_to_all(cluster, master):
    """Every node that runs names it for the first slots, and serves."""
    nodes = [*cluster.nodes[1:], master]
    until(lambda: all(n.owner(slot_of(KEY)) == master.port for n in nodes), TIMEOUT, "everybody's knowledge", 0.05)
    until(lambda: all("cluster_state:ok" in n.run("CLUSTER", "INFO") for n in nodes), TIMEOUT, "the recovery", 0.05)


def works(client, *command, reply="OK"):
    until(lambda: client(*command) == reply, TIMEOUT, "service")


class Load(threading.Thread):
    """Counts a key up and takes and gives back a lock, each for itself, until it is told to stop."""

    def __init__(self, address, name, lock):
        super().__init__()
        self.address, self.name, self.lock = address, name, lock
        self.over = threading.Event()
        self.counted, self.unknown, self.wrong, self.slowest = 0, 0, [], 0.0
        self.start()

    def run(self):
        with Client(self.address, timeout=TIMEOUT) as client:
            while not self.over.is_set():
                begin = time.monotonic()
                reply = client("INCR", self.name)
                replies = [client("SETNX", self.lock, "1"), client("DEL", self.lock)]
                self.slowest = max(self.slowest, time.monotonic() - begin)
                self.counted += isinstance(reply, int)
                self.unknown += isinstance(reply, Error) and "unknown" in reply
                self.wrong += [r for r in (reply, *replies)
                               if isinstance(r, Error) and not r.startswith(("UPSTREAM ", "CLUSTERDOWN "))]

    def finish(self):
        self.over.set()
        self.join(TIMEOUT)
        assert not self.wrong, self.wrong[:5]


def test_a_replica_takes_over_in_good_order(roles, cluster, start_proxy, connect):
    """CLUSTER FAILOVER: nothing is lost, and no client gets an error."""
    master, replica = roles
    proxy = start_proxy(cluster)
    client = connect(proxy)
    load, other = Load(proxy.address, KEY, LOCK + ":a"), Load(proxy.address, ELSEWHERE, "lock:" + ELSEWHERE)
    until(lambda: load.counted > 50, TIMEOUT, "a beginning")
    assert replica.run("CLUSTER", "FAILOVER") == "OK"
    until(lambda: replica.run("ROLE")[0] == "master", TIMEOUT, "the promotion")
    at = load.counted
    until(lambda: load.counted > at + 50, TIMEOUT, "work on the new master")
    load.finish()
    other.finish()
    assert other.unknown == 0
    count = int(client("GET", KEY))
    assert load.counted <= count <= load.counted + load.unknown
    assert int(replica.run("GET", KEY)) == count


def test_a_master_is_killed_and_replaced(roles, cluster, start_proxy, connect):
    master, replica = roles
    proxy = start_proxy(cluster)
    holder, rival = [connect(proxy, timeout=TIMEOUT, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "rival")]
    assert holder("SETNX", LOCK, "1") == 1
    assert holder("WAIT", 1, 5000) == 1
    load, other = Load(proxy.address, KEY, LOCK + ":a"), Load(proxy.address, ELSEWHERE, "lock:" + ELSEWHERE)
    until(lambda: load.counted > 20, TIMEOUT, "a beginning")
    master.kill()
    until(lambda: replica.run("ROLE")[0] == "master", TIMEOUT, "the promotion")
    known_to_all(cluster, replica)  # whichever node a thread asks
    at = load.counted
    until(lambda: load.counted > at + 50, TIMEOUT, "work on the new master")
    load.finish()
    other.finish()
    assert other.unknown == 0 and other.slowest < 3, "the other nodes' clients go on"
    assert rival("DEL", LOCK) == 0 and rival("SETNX", LOCK, "1") == 0
    assert holder("DEL", LOCK) == 1
    master.start()
    until(master.is_replica, TIMEOUT, "the old master's return")
    assert holder("SET", KEY, "1") == "OK"


def test_a_failover_that_nobody_noticed(roles, cluster, start_proxy, connect):
    """No request came meanwhile, so the proxy still has the old master in its map: the first requests find that out, without
    an error."""
    master, replica = roles
    proxy = start_proxy(cluster, "threads 1")
    clients = [connect(proxy, timeout=TIMEOUT) for _ in range(4)]
    for client in clients:
        assert client("GET", KEY) == "0"
    master.kill()
    until(lambda: replica.run("ROLE")[0] == "master", TIMEOUT, "the promotion")
    known_to_all(cluster, replica)
    writer, pipeliner, locker, splitter = clients
    writer.send(encode("INCR", KEY))
    pipeliner.send(b"".join(encode("APPEND", "{%s}" % KEY, n) for n in range(5)) + encode("GET", "{%s}" % KEY))
    locker.send(encode("SETNX", LOCK, "1"))
    splitter.send(encode("MSET", "{%s}:m" % KEY, "1", ELSEWHERE, "2"))
    assert writer.read() == 1
    assert [pipeliner.read() for _ in range(6)] == [1, 2, 3, 4, 5, "01234"]
    assert locker.read() == 1 and locker("DEL", LOCK) == 1
    assert splitter.read() == "OK"
    assert replica.run("GET", KEY) == "1" and replica.run("DEL", "{%s}" % KEY) == 1
    master.start()
    until(master.is_replica, TIMEOUT, "the old master's return")


def test_a_takeover_right_after_the_map_was_asked_for(roles, cluster, start_proxy, connect):
    """The proxy asks when the connections end, and hears of no other master yet; a moment later there is one. Its first
    request finds the old one out of reach, and waits for another look at the map, however new that is."""
    master, replica = roles
    proxy = start_proxy(cluster, "threads 1")
    client = connect(proxy, timeout=TIMEOUT)
    assert client("GET", KEY) == "0"
    master.kill()
    assert replica.run("CLUSTER", "FAILOVER", "TAKEOVER") == "OK"
    known_to_all(cluster, replica)
    assert client("INCR", KEY) == 1
    assert replica.run("GET", KEY) == "1"
    master.start()
    until(master.is_replica, TIMEOUT, "the old master's return")


class Slammer(threading.Thread):
    """Takes every connection to an address, and closes it before it has read a word."""

    def __init__(self, address):
        super().__init__()
        self.listener = socket.create_server(address, backlog=64)
        self.listener.settimeout(TIMEOUT)
        self.seen = 0
        self.start()

    def run(self):
        try:
            while True:
                self.listener.accept()[0].close()
                self.seen += 1
        except OSError:
            pass

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.join(TIMEOUT)
        self.listener.close()


@pytest.mark.parametrize("slams", [False, True], ids=["nobody-there", "closes-at-once"])
def test_a_failover_that_nobody_noticed_and_connections_of_ones_own(roles, cluster, start_proxy, connect, slams):
    """The same for what needs a connection that is not shared: the first one goes to the new master, whether the old one's
    port is closed, or ends connections before anything could be said."""
    master, replica = roles
    proxy = start_proxy(cluster, "threads 1")
    clients = [connect(proxy, timeout=TIMEOUT) for _ in range(4)]
    for client in clients:
        client("HELLO", 3)  # so that a connection begins with a question
        assert client("GET", KEY) == "0"
    queueing, watching, blocking, subscribing = clients
    master.kill()
    until(lambda: replica.run("ROLE")[0] == "master", TIMEOUT, "the promotion")
    known_to_all(cluster, replica)
    replica.run("RPUSH", "{%s}:list" % KEY, "a")
    slammer = Slammer(master.address) if slams else None
    try:
        proxy.signal(signal.SIGSTOP)  # all come at once, before the map can be asked for
        queueing.send(encode("MULTI") + encode("INCR", KEY) + encode("EXEC"))
        watching.send(encode("WATCH", "{%s}:none" % KEY) + encode("MULTI") + encode("INCR", "{%s}:n" % KEY) + encode("EXEC"))
        blocking.send(encode("BLPOP", "{%s}:list" % KEY, 0))
        subscribing.send(encode("SSUBSCRIBE", "{%s}" % KEY))
        proxy.signal(signal.SIGCONT)
        assert [queueing.read() for _ in range(3)] == ["OK", "QUEUED", [1]]
        assert [watching.read() for _ in range(4)] == ["OK", "OK", "QUEUED", [1]]
        assert blocking.read() == ["{%s}:list" % KEY, "a"]
        assert subscribing.read() == ["ssubscribe", "{%s}" % KEY, 1]
        assert replica.run("SPUBLISH", "{%s}" % KEY, "hello") == 1
        assert subscribing.read() == ["smessage", "{%s}" % KEY, "hello"]
        assert replica.run("GET", KEY) == "1" and replica.run("GETDEL", "{%s}:n" % KEY) == "1"
        assert not slams or slammer.seen >= 4
    finally:
        if slammer:
            slammer.stop()
    master.start()
    until(master.is_replica, TIMEOUT, "the old master's return")


def test_a_master_that_is_stopped_and_replaced(roles, cluster, start_proxy, connect):
    """What was under way when it stopped: a lock script is repeated on the new master, a write is not."""
    master, replica = roles
    proxy = start_proxy(cluster, "upstream-timeout 60s")
    writer, locker, late = [connect(proxy, timeout=TIMEOUT, commands=[("CLIENT", "SETNAME", n)])
                            for n in ("writer", "locker", "late")]
    works(writer, "SET", KEY, "0")
    master.pause()
    try:
        writer.send(encode("INCR", KEY))
        locker.send(encode("SETNX", LOCK, "1"))
        until(lambda: replica.run("ROLE")[0] == "master", TIMEOUT, "the promotion")
        reply = writer.read()
        assert isinstance(reply, Error) and "unknown" in reply, reply
        assert locker.read() == 1
        assert replica.run("GET", KEY) == "0"
        works(late, "SET", KEY, "late")
        assert late("DEL", LOCK) == 0 and locker("DEL", LOCK) == 1
    finally:
        master.resume()
    until(master.is_replica, TIMEOUT, "the old master's demotion")
    assert replica.run("GET", KEY) == "late"
    assert late("GET", KEY) == "late"


def test_a_lock_that_a_takeover_loses(roles, cluster, start_proxy, connect):
    """The promoted replica had not caught up: the next renewal finds the lease gone. With `replicas` no client would have
    been told that it had acquired."""
    master, replica = roles
    sure, lost = name_in(0, 5460, "lock:sure"), name_in(0, 5460, "lock:lost")
    proxy = start_proxy(cluster, "lock lock:sure:* replicas 1 200ms", "lock lock:* lease 2s")
    client = connect(proxy, timeout=TIMEOUT)
    assert client("SETNX", sure, "1") == 1
    assert client("DEL", sure) == 1
    replica.run("CONFIG", "SET", "masterauth", "nothing", "masteruser", "nobody")
    try:
        with master.client() as c:
            c("CLIENT", "KILL", "TYPE", "replica")
        assert client("SETNX", lost, "1") == 1
        assert client("SETNX", sure, "1") == 0
        assert replica.run("CLUSTER", "FAILOVER", "TAKEOVER") == "OK"
        until(lambda: "renewal_lost" in str(client("PROXY", "INCIDENTS", 10)), TIMEOUT, "the incident")
        works(connect(proxy), "SETNX", lost, "2", reply=1)
        assert client("DEL", lost) == 0
    finally:
        replica.run("CONFIG", "SET", "masterauth", "", "masteruser", "")


def test_a_node_that_comes_back_with_another_address(roles, cluster, start_proxy, connect):
    proxy = start_proxy(cluster)
    client = connect(proxy)
    node = cluster.nodes[1]
    name = name_in(*cluster.ranges[1], "moved")
    assert client("SET", name, "1") == "OK"
    node.kill()
    node.port = free_port()
    node.address = (HOST, node.port)
    node.start()
    works(client, "SET", name, "2")
    assert node.run("GET", name) == "2"
    assert client("SETNX", "lock:{%s}" % name, "1") == 1 and client("DEL", "lock:{%s}" % name) == 1


def test_a_node_that_is_full(start_redis, start_proxy, connect):
    """maxclients: clients with open connections go on; the others get Redis's own error."""
    server = start_redis()
    proxy = start_proxy(server)
    client, other = connect(proxy), connect(proxy)
    assert client("SET", "k", "v") == "OK"
    with server.client() as control:
        control("CONFIG", "SET", "maxclients", "2")
        for _ in range(3):
            replies = other.pipeline([("SELECT", 1), ("WATCH", "k"), ("BLPOP", "l", 1), ("CLIENT", "TRACKING", "ON")])
            assert all(b"max number of clients reached" in r and b"unknown" not in r for r in replies), replies
            assert client("GET", "k") == "v"
        control("CONFIG", "SET", "maxclients", "100")
        works(other, "SELECT", 1)
        assert other("INCR", "n") == 1
        assert other("SETNX", "lock:full", "1") == 1


def test_a_node_that_is_loading(cluster, start_proxy, connect):
    """It is not ready yet, and nothing was executed: requests wait for a while, and hear so if that was too short."""
    node = cluster.nodes[2]
    name, tag = name_in(*cluster.ranges[2], "load"), name_in(*cluster.ranges[2], "tag")
    proxy = start_proxy(cluster)
    client, other = connect(proxy, timeout=TIMEOUT), connect(proxy)
    with node.client() as c:
        c.pipeline([("SET", "{%s}%d" % (tag, n), "v" * 100) for n in range(3000)])
    assert client("SET", name, "v") == "OK"
    node.run("SAVE")
    node.kill()
    starting = node.start_slowly()
    replies = []
    while starting.is_alive():
        replies.append(client("GET", name))
        assert other("SET", KEY, "0") == "OK", "other nodes go on"
    starting.join()
    assert all(r == "v" or r.startswith(("UPSTREAM ", "LOADING ", "CLUSTERDOWN ")) for r in replies), replies
    works(client, "GET", name, reply="v")
    assert "errorstat_LOADING" in node.run("INFO", "errorstats")
    assert client("SETNX", "lock:{%s}" % name, "1") == 1 and client("DEL", "lock:{%s}" % name) == 1


# ---- the network ---------------------------------------------------------------------------------


class Namespace:
    """A network of its own for one Redis, behind a cable that can be cut: no RST, no ICMP, nothing."""

    def __init__(self):
        self.name = "lockkeeper-%d" % os.getpid()
        net = "10.213.%d" % (os.getpid() % 250)
        self.here, self.there = net + ".1", net + ".2"
        self.cable = "lk%d" % os.getpid()
        self.server = None
        self.run("ip", "netns", "add", self.name)
        self.run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "far", "netns", self.name)
        self.run("ip", "addr", "add", self.here + "/30", "dev", self.cable)
        self.run("ip", "link", "set", self.cable, "up")
        self.inside("addr", "add", self.there + "/30", "dev", "far")
        self.inside("link", "set", "far", "up")

    def run(self, *command):
        subprocess.run(command, check=True, capture_output=True, timeout=20)

    def inside(self, *command):
        self.run("ip", "-n", self.name, *command)

    def redis(self, port):
        self.server = subprocess.Popen(["ip", "netns", "exec", self.name, REDIS_SERVER, "--port", str(port), "--bind",
                                        self.there, "--save", "", "--protected-mode", "no"], stdout=subprocess.DEVNULL)
        self.address = (self.there, port)
        until(self.answers, 20, "redis-server in its network", 0.05)

    def answers(self):
        try:
            with Client(self.address, timeout=5) as c:
                return c("PING") == "PONG"
        except OSError:
            return False

    def cut(self):
        self.inside("route", "add", "blackhole", self.here + "/32")

    def mend(self):
        self.inside("route", "del", "blackhole", self.here + "/32")

    def remove(self):
        if self.server:
            self.server.kill()
            self.server.wait(20)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, timeout=20)


@pytest.fixture
def namespace():
    try:
        found = Namespace()
    except FileNotFoundError as error:
        pytest.skip("no network namespaces here: %s" % error)
    except (OSError, subprocess.CalledProcessError) as error:
        subprocess.run(["ip", "netns", "del", "lockkeeper-%d" % os.getpid()], capture_output=True, timeout=20)
        pytest.skip("no network namespaces here: %s" % error)
    yield found
    found.remove()


def test_a_node_that_vanishes_without_a_word(namespace, start_proxy, connect):
    """Packets go nowhere. What was sent is unknown after upstream-timeout, what comes then is not sent, and when the way is
    there again it works."""
    namespace.redis(free_port())
    proxy = start_proxy("standalone %s:%d" % namespace.address, "upstream-timeout 700ms")
    client, other = [connect(proxy, timeout=TIMEOUT, commands=[("CLIENT", "SETNAME", n)]) for n in ("one", "two")]
    assert client("SET", "k", "1") == "OK"
    assert client("SETNX", "lock:k", "1") == 1
    namespace.cut()
    begin = time.monotonic()
    client.send(encode("INCR", "k"))
    other.send(encode("SETNX", "lock:other", "1"))
    replies = client.read(), other.read()
    assert all(isinstance(r, Error) and "unknown" in r for r in replies), replies
    until(lambda: "not sent" in client("INCR", "k"), TIMEOUT, "the proxy's conclusion")
    assert time.monotonic() - begin < 10
    namespace.mend()
    until(lambda: client("GET", "k") in ("1", "2"), TIMEOUT, "service")
    assert other("DEL", "lock:k") == 0
    assert client("DEL", "lock:k") == 1
