"""read-from replicas | nearest: which node answers a read, on a cluster and behind Sentinels.

A replica whose stream is held (CLIENT PAUSE WRITE) goes on answering reads with old data: its answer shows that it was asked.
"""

import re
import subprocess
import threading
import time

import pytest

import servers
from fake import Relay
from resp import Client, Error, encode
from servers import HOST, RedisCluster, RedisSentinels, slot_of, until

TIMEOUT = 30
RULES = ["lock lock:*", "lock off:* mode off", "fence data:{*} by lock:{*}"]


def name_in(first, last, start):
    return next(k for k in (start + "%d" % n for n in range(100000)) if first <= slot_of(k) <= last)


def near(start):
    """A key of the master that has a replica."""
    return name_in(0, 5460, start)


class Deployment:
    """A master with a replica, in a cluster or behind Sentinels."""

    def __init__(self, kind):
        self.kind = kind
        self.servers = RedisCluster(timeout_ms=1500, replica=True) if kind == "cluster" else RedisSentinels()
        self.pair = [self.servers.nodes[0], self.servers.replica] if kind == "cluster" else self.servers.nodes

    def settle(self):
        for node in self.pair:
            if node.running():
                node.resume()
            else:
                node.start()
        until(self.in_step, 60, "a master and its replica", 0.05)
        for node in self.pair:
            node.run("CLIENT", "UNPAUSE")
        self.master.run("FLUSHALL")
        self.catch_up()

    def in_step(self):
        try:
            roles = [node.run("ROLE") for node in self.pair]
        except (OSError, servers.Closed):
            return False
        if sorted(r[0] for r in roles) != ["master", "slave"] or next(r for r in roles if r[0] == "slave")[3] != "connected":
            return False
        self.master, self.replica = self.pair if roles[0][0] == "master" else self.pair[::-1]
        if self.kind == "sentinel":
            return self.servers.agreed() and self.servers.master is self.master
        slots = self.servers.nodes[1].run("CLUSTER", "SLOTS")
        return any(s[0] == 0 and s[2][1] == self.master.port and [r[1] for r in s[3:]] == [self.replica.port] for s in slots)

    def catch_up(self):
        with self.master.client() as c:
            until(lambda: c("SET", near("step"), "1") == "OK" and c("WAIT", 1, 200) == 1, TIMEOUT, "a replica in step")

    def hold(self):
        """The replica gets no writes any more, and still answers reads."""
        self.catch_up()
        self.replica.run("CLIENT", "PAUSE", 600000, "WRITE")

    def release(self):
        self.replica.run("CLIENT", "UNPAUSE")

    def upstream(self):
        return self.servers.upstream()


@pytest.fixture(scope="module", params=["cluster", "sentinel"])
def shared(request):
    found = Deployment(request.param)
    yield found
    found.servers.stop()


@pytest.fixture
def deployment(shared):
    shared.settle()
    return shared


def calls(node, command="get"):
    found = re.search(r"cmdstat_%s:calls=(\d+)" % re.escape(command), node.run("INFO", "commandstats"))
    return int(found.group(1)) if found else 0


def reads_there(node, client, key, count=1):
    """Waits until the node has answered so many reads in a row."""
    def all_there():
        before = calls(node)
        replies = [client("GET", key) for _ in range(count)]
        assert not any(isinstance(r, Error) for r in replies), replies
        return calls(node) == before + count

    until(all_there, TIMEOUT, "reads from one node")


def replica_reads(client):
    return sum(map(int, re.findall(r"replica_reads=(\d+)", client("PROXY", "INFO", "upstreams"))))


def named(connect, proxy, name, **options):
    return connect(proxy, commands=[("CLIENT", "SETNAME", name)], **options)


def reads_away(client, key, timeout=TIMEOUT):
    """Waits until a replica answers the client's reads of the key."""
    until(lambda: dict(zip(*[iter(client("PROXY", "EXPLAIN", "GET", key))] * 2))["read-from"] != "the master", timeout,
          "reads from a replica")


def reads_here(client, key):
    until(lambda: dict(zip(*[iter(client("PROXY", "EXPLAIN", "GET", key))] * 2))["read-from"] == "the master", TIMEOUT,
          "reads from the master")


@pytest.mark.parametrize("threads", [1, 2])
def test_reads_reach_the_replica(deployment, start_proxy, connect, threads):
    proxy = start_proxy(deployment, "read-from replicas", "threads %d" % threads)
    key, client = near("reach"), connect(proxy)
    deployment.master.run("SET", key, "v")
    deployment.catch_up()
    reads_away(client, key)
    there = calls(deployment.replica)
    reads_there(deployment.replica, client, key, 50)
    read = calls(deployment.replica) - there
    until(lambda: replica_reads(client) == read, TIMEOUT, "the count, of all threads")
    assert re.search("address=%s:%d,state=up,role=replica," % deployment.replica.address, client("PROXY", "INFO", "upstreams"))
    assert client("GET", key) == "v"
    assert client("TYPE", key) == "string" and client("EXISTS", key) == 1 and client("MGET", key, key) == ["v", "v"]
    assert client("STRLEN", key) == 1 and client("LLEN", key).startswith("WRONGTYPE"), "an error is the master's"


def test_masters_is_the_default(deployment, start_proxy, connect):
    client = connect(start_proxy(deployment))
    there = calls(deployment.replica)
    assert [client("GET", near("reach")) for _ in range(20)] == [None] * 20
    assert calls(deployment.replica) == there
    assert "read-from" not in client("PROXY", "EXPLAIN", "GET", "k")


def test_a_client_reads_back_its_own_writes(deployment, start_proxy, connect):
    """With the replica's stream held. The connections of a pool are one client; another client reads from the replica."""
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 1h", "threads 2")
    writer, pooled = (named(connect, proxy, "pool") for _ in range(2))
    reader, key = named(connect, proxy, "reader"), near("own")
    deployment.master.run("SET", key, "0")
    deployment.hold()
    reads_away(reader, key)
    for n in range(1, 100):
        assert writer("SET", key, n) == "OK"
        assert writer("GET", key) == pooled("GET", key) == str(n)
        assert writer.at_once(("INCRBY", key, 0), ("GET", key), ("MGET", key, key)) == [n, str(n), [str(n)] * 2]
    until(lambda: reader("GET", key) == "0", TIMEOUT, "another client's read, from the replica")
    for write in (("MULTI",), ("SET", key, "multi"), ("EXEC",)):
        writer(*write)
    assert pooled("GET", near("elsewhere")) is None and writer("GET", key) == "multi"
    scripted = named(connect, proxy, "scripted")
    assert scripted("EVAL", "return redis.call('SET', KEYS[1], 'script')", 1, key) == "OK"
    assert scripted("GET", key) == "script"
    longer = named(connect, proxy, "longer")
    assert longer("SET", key, "x" * 3000000) == "OK" and longer("STRLEN", key) == 3000000
    deployment.release()


def test_other_slots_and_the_end_of_read_after_write(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 300ms")
    client, key, other = connect(proxy), near("a"), near("b")
    deployment.hold()
    reads_away(client, key)
    assert client("SET", key, "new") == "OK"
    reads_there(deployment.replica, client, other)
    until(lambda: client("GET", key) is None, TIMEOUT, "a read from the replica, which has old data")
    deployment.release()


def test_a_slow_write_is_read_back(deployment, start_proxy, connect):
    """The time of a write is that of its reply, however long it took."""
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 3s")
    blocked, pooled = (named(connect, proxy, "pool", timeout=60) for _ in range(2))
    queue = near("queue")
    reads_away(pooled, queue)
    blocked.send(encode("BLMPOP", 20, 1, queue, "LEFT"))
    until(lambda: "blocked_clients:1\r" in deployment.master.run("INFO", "clients"), TIMEOUT, "the blocked client")
    reads_away(pooled, queue)  # it has begun more than read-after-write ago
    deployment.hold()
    with deployment.master.client() as direct:
        direct("RPUSH", queue, "1", "2")
    assert blocked.read() == [queue, ["1"]]
    assert pooled("LRANGE", queue, 0, -1) == ["2"], "the replica has an empty list"
    deployment.release()


def test_a_read_is_not_overtaken_by_a_write(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 1ms")
    client, key = connect(proxy, timeout=60), near("order")
    assert client("SET", key, "0") == "OK"
    deployment.catch_up()
    reads_away(client, key)
    for n in range(200):
        replies = client.at_once(("GET", key), ("SET", key, "later"), ("GET", key), ("SET", key, n + 1))
        assert replies[0] in (str(n), str(n - 1)) and replies[1::2] == ["OK", "OK"], replies
        deployment.catch_up()

    def waits():
        return int(re.search(r"requests_waiting:(\d+)", client("PROXY", "INFO")).group(1))

    reads_there(deployment.replica, client, near("other"))
    waited = waits()
    assert client.at_once(*[("SET", near("many"), n) for n in range(20)]) == ["OK"] * 20
    assert waits() == waited, "writes behind reads that are answered are a pipeline"


def test_locks_and_fenced_data_are_read_from_masters_alone(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 1ms", *RULES)
    word = next(w for w in ("w%d" % n for n in range(1000)) if slot_of(w) <= 5460)
    names = ["lock:{%s}" % word, "off:{%s}" % word, "data:{%s}" % word]
    holder, reader = named(connect, proxy, "holder"), named(connect, proxy, "reader")
    assert holder("SET", names[0], "1", "NX", "PX", 600000) == "OK"
    plain = near("plain")
    reads_away(reader, plain)
    guard = next(k for k in deployment.master.run("KEYS", "lockkeeper:*") if names[0] in k or word in k)
    there = calls(deployment.replica), calls(deployment.replica, "type"), calls(deployment.replica, "mget")
    for name in [*names, guard]:
        for _ in range(5):
            assert not isinstance(reader("TYPE", name), Error)
            if name != guard:
                assert not isinstance(reader("GET", name), Error)
                assert not isinstance(reader("MGET", "{%s}" % word, name), Error)
    assert (calls(deployment.replica), calls(deployment.replica, "type"), calls(deployment.replica, "mget")) == there
    reads_there(deployment.replica, reader, plain)


def test_sessions_with_state_read_from_masters(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 1ms")
    key = near("state")
    reads_away(connect(proxy), key)
    there = calls(deployment.replica)

    def stays(*commands, reply=None, setup=()):
        client = connect(proxy, commands=setup)
        assert [client(*c) for c in commands][-1] == reply
        client.close()

    stays(("MULTI",), ("GET", key), ("EXEC",), reply=[None])
    stays(("WATCH", key), ("GET", key))
    stays(("GET", key), setup=[("HELLO", "3"), ("CLIENT", "TRACKING", "ON")])
    stays(("EVAL_RO", "return redis.call('GET', KEYS[1])", 1, key))
    stays(("GET", key), setup=[("HELLO", "3"), ("SUBSCRIBE", "channel")] if not servers.valkey() else [("WATCH", key)])
    assert calls(deployment.replica) == there
    modes = [("READONLY",), ("READWRITE",)] if deployment.kind == "cluster" else []
    reads_there(deployment.replica, connect(proxy, commands=modes), key)


def test_a_replica_that_does_not_answer(deployment, start_proxy, connect):
    """It is stopped: what it owes the master answers within upstream-timeout, and it is used again when it goes on."""
    proxy = start_proxy(deployment, "read-from replicas", "upstream-timeout 1s")
    client, key = connect(proxy, timeout=60), near("stopped")
    deployment.master.run("SET", key, "v")
    deployment.catch_up()
    reads_away(client, key)
    deployment.replica.pause()
    assert client.at_once(*[("GET", key)] * 20) == ["v"] * 20
    reads_here(client, key)
    assert [client("GET", key) for _ in range(20)] == ["v"] * 20
    deployment.replica.resume()
    reads_away(client, key)


def test_a_replica_is_lost_and_comes_back(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas", "threads 2")
    key, wrong, over, done = near("lost"), [], threading.Event(), [0]
    deployment.master.run("SET", key, "v")
    deployment.catch_up()

    def read(n):
        with Client(proxy.address, timeout=60) as client:
            while not over.is_set():
                replies = client.at_once(*[("GET", key)] * 5)
                wrong.extend(r for r in replies if r != "v")
                done[0] += 1

    client = connect(proxy, timeout=60)
    reads_away(client, key)
    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            deployment.replica.kill()
            reads_here(client, key)
            at = done[0]
            until(lambda: done[0] > at + 50, TIMEOUT, "reads without the replica")
            deployment.replica.start()
            until(deployment.in_step, 60, "the replica", 0.05)
            reads_away(client, key, 60)
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert not wrong, wrong[:5]


def test_a_replica_whose_link_is_down_is_not_used(deployment, start_proxy, connect):
    proxy = start_proxy(deployment, "read-from replicas")
    client, key = connect(proxy), near("link")
    reads_away(client, key)
    deployment.replica.run("CONFIG", "SET", "masteruser", "nobody")
    deployment.replica.run("CONFIG", "SET", "masterauth", "wrong")
    try:
        deployment.replica.run("CLIENT", "KILL", "TYPE", "MASTER")
        reads_here(client, key)
        there = calls(deployment.replica)
        assert client("GET", key) is None and calls(deployment.replica) == there
    finally:
        deployment.replica.run("CONFIG", "SET", "masteruser", "")
        deployment.replica.run("CONFIG", "SET", "masterauth", "")
    reads_away(client, key)


def test_a_user_that_the_replica_lacks(deployment, start_proxy, connect):
    """Redis does not replicate users. The master answers, and no client gets an error."""
    masters = {deployment.master, *(deployment.servers.nodes if deployment.kind == "cluster" else ())} - {deployment.replica}
    for node in masters:
        node.run("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    try:
        proxy = start_proxy(deployment, "read-from replicas")
        key = near("user")
        reads_away(connect(proxy), key)
        client = connect(proxy, commands=[("AUTH", "app", "secret")])
        for _ in range(20):
            assert client("GET", key) is None
            assert client("SET", near("other"), "1") == "OK"
    finally:
        for node in masters:
            node.run("ACL", "DELUSER", "app")


def test_databases(deployment, start_proxy, connect):
    if deployment.kind == "cluster":
        pytest.skip("a cluster has one database")
    proxy = start_proxy(deployment, "read-from replicas", "read-after-write 1ms")
    client = connect(proxy, commands=[("SELECT", "3"), ("SET", "k", "3")])
    deployment.catch_up()
    reads_away(client, "k")
    reads_there(deployment.replica, client, "k")
    assert client("GET", "k") == "3" and client("SELECT", "4") == "OK"
    reads_there(deployment.replica, client, "k")
    assert client("GET", "k") is None


def test_a_failover(deployment, start_proxy, connect):
    """Reads and writes go on; what a client has written it reads back through the change."""
    proxy = start_proxy(deployment, "read-from replicas", "threads 2")
    key, over, problems, done = near("failover"), threading.Event(), [], [0]
    old, new = deployment.master, deployment.replica

    def work(n):
        name = "%s{%s}:%d" % ("w", key, n)
        with Client(proxy.address, timeout=60) as client:
            client("CLIENT", "SETNAME", "worker%d" % n)
            while not over.is_set():
                wrote, read = client("SET", name, done[0]), client("GET", name)
                problems.extend(r for r in (wrote, read)
                                if isinstance(r, Error) and not r.startswith(("UPSTREAM ", "READONLY ", "CLUSTERDOWN ")))
                done[0] += 1

    client = connect(proxy, timeout=60)
    reads_away(client, key)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        if deployment.kind == "sentinel":
            deployment.servers.failover(old)
        else:
            assert new.run("CLUSTER", "FAILOVER") == "OK"
        until(lambda: deployment.in_step() and deployment.master is new, 60, "the promotion", 0.05)
        at = done[0]
        until(lambda: done[0] > at + 50, TIMEOUT, "work on the new master")
        until(lambda: client("GET", key) is None, TIMEOUT, "reads")
        reads_away(client, key, 60)
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert not problems, problems[:5]
    reads_there(old, client, key)


# ---- clusters ---------------------------------------------------------------------------------


def test_a_slot_moves_and_a_split(start_cluster, start_proxy, connect):
    """The replica's MOVED leads to the slot's new master. MGET of several slots is one reply of several nodes."""
    cluster = start_cluster(replica=True)
    proxy = start_proxy(cluster, "read-from replicas", "read-after-write 1ms")
    client, key = connect(proxy), near("moves")
    other = name_in(5461, 16383, "other")
    assert client("SET", other, "o") == "OK"
    reads_away(client, key)
    there = calls(cluster.replica, "mget")
    until(lambda: client("MGET", key, other, key) == [None, "o", None] and calls(cluster.replica, "mget") > there, TIMEOUT,
          "an MGET of two nodes")
    assert client("EXISTS", key, other) == 1
    target = cluster.nodes[1].run("CLUSTER", "MYID")
    for node in [cluster.nodes[1], cluster.nodes[0], cluster.nodes[2]]:
        node.run("CLUSTER", "SETSLOT", slot_of(key), "NODE", target)
    cluster.nodes[1].run("SET", key, "moved")
    until(lambda: cluster.replica.owner(slot_of(key)) == cluster.nodes[1].port, TIMEOUT, "the replica's knowledge")
    assert client.at_once(*[("GET", key)] * 5) == ["moved"] * 5


class Slow(Relay):
    def accept(self):
        try:
            super().accept()
        except OSError:  # the node has ended
            pass

    def passes(self, kept, requests, data):
        time.sleep(0.03 if requests else 0)
        return True


@pytest.mark.parametrize("slow", ["master", "replica"])
def test_the_nearest_answers(start_cluster, start_proxy, connect, slow):
    cluster = start_cluster(replica=True)
    far = cluster.nodes[0] if slow == "master" else cluster.replica
    relay = Slow(far.address)
    far.run("CONFIG", "SET", "cluster-announce-port", relay.port)
    ports = {relay.port, cluster.replica.port if slow == "master" else cluster.nodes[0].port}

    def known():
        return any(s[0] == 0 and {n[1] for n in s[2:]} == ports for s in cluster.nodes[1].run("CLUSTER", "SLOTS"))

    until(known, TIMEOUT, "the announced port")
    proxy = start_proxy("cluster %s:%d" % (HOST, cluster.nodes[1].port), "read-from nearest")
    client, key = connect(proxy), near("nearest")
    if slow == "master":
        reads_away(client, key)
        reads_there(cluster.replica, client, key)
    else:
        until(lambda: len(re.findall(r"round_trip_us=[1-9]", client("PROXY", "INFO", "upstreams"))) >= 2
              and client("GET", key) is None, TIMEOUT, "round trips that are known")
        reads_here(client, key)
        there = calls(cluster.replica)
        assert client("GET", key) is None and calls(cluster.replica) == there
    relay.close()


# ---- the directive ------------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", ["standalone 127.0.0.1:6379", "embedded"])
def test_a_standalone_has_no_replicas_that_are_known(tmp_path, upstream):
    path = tmp_path / "lockkeeper.conf"
    path.write_text("upstream %s\nread-from nearest\n" % upstream)
    done = subprocess.run([servers.binary(), "--test-conf", str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "read-from: expected masters, or upstream cluster or sentinel" in done.stdout + done.stderr
