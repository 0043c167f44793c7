"""WAIT: how many replicas have this connection's writes, although the writes went over shared connections."""

import time

import pytest

import servers
from resp import Client, Error, encode
from servers import until


def replicas_of(master):
    lines = master.run("INFO", "replication").splitlines()
    return sum("state=online" in line for line in lines)


def in_step(master, count=1):
    """The replicas have all that was written: WAIT asked around the proxy says so."""
    with master.client() as c:
        until(lambda: c("SET", "step", "1") == "OK" and c("WAIT", count, 100) >= count, 30, "the replicas", 0.05)


@pytest.fixture(scope="module")
def pair():
    """A master with a replica, and a proxy in front."""
    master = servers.RedisServer("--repl-diskless-sync-delay", "0")
    replica = servers.RedisServer()
    replica.run("REPLICAOF", master.address[0], master.port)
    proxy = servers.Proxy(master, "lock lock:*", "upstream-timeout 1s")
    in_step(master)
    yield master, replica, proxy
    proxy.stop()
    proxy.remove()
    replica.stop()
    master.stop()


@pytest.fixture
def paused(pair):
    _, replica, _ = pair
    replica.pause()
    yield replica
    replica.resume()


def test_counts_after_nothing_but_lock_commands(pair, connect):
    client = connect(pair[2])
    assert client("SETNX", "lock:alone", "1") == 1
    assert client("WAIT", 1, 5000) == 1
    assert client("DEL", "lock:alone") == 1


def test_counts_the_replicas(pair, connect):
    _, _, proxy = pair
    client = connect(proxy)
    assert client("WAIT", 0, 0) in (0, 1)
    assert client("SET", "a", "1") == "OK"
    assert client("WAIT", 1, 5000) == 1
    assert client("WAIT", 1, 5000) == 1  # nothing new was written
    assert client("SET", "lock:a", "1", "NX", "PX", 60000) == "OK" and client("WAIT", 1, 5000) == 1
    assert client.pipeline([("SET", "a", "2"), ("WAIT", 1, 5000), ("GET", "a")]) == [b"+OK\r\n", b":1\r\n", b"$1\r\n2\r\n"]


def test_script_and_wait_in_one_batch(pair, connect):
    """As Redisson sends them where there are replicas."""
    _, _, proxy = pair
    client = connect(proxy)
    script = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
    got = client.pipeline([("EVAL", script, 1, "lock:batch", "v", 60000), ("WAIT", 1, 5000), ("DEL", "lock:batch")])
    assert got == [b"+OK\r\n", b":1\r\n", b":1\r\n"]


def test_words_of_redis_for_wrong_arguments(pair, connect):
    master, _, proxy = pair
    through, direct = connect(proxy), connect(master)
    for command in (("WAIT", "x", 0), ("WAIT", 1), ("WAIT", 1, -1), ("WAIT", 1, "x"), ("WAITAOF", 0, 0)):
        assert through.raw(*command) == direct.raw(*command)
    assert through("PING") == "PONG"


def test_inside_multi(pair, connect):
    _, _, proxy = pair
    client = connect(proxy)
    assert [client("MULTI"), client("SET", "a", "1"), client("WAIT", 0, 0)] == ["OK", "QUEUED", "QUEUED"]
    assert client("EXEC")[0] == "OK"
    assert client("WAIT", 1, 5000) == 1


def test_a_paused_replica_has_not_got_it(pair, connect, paused):
    """The answer is for this session's writes, and comes when the time is up; longer than upstream-timeout."""
    _, _, proxy = pair
    client = connect(proxy)
    assert client("SET", "a", "1") == "OK"
    began = time.monotonic()
    assert client("WAIT", 1, 1500) == 0
    assert time.monotonic() - began > 1.4
    assert client("GET", "a") == "1"


def test_nobody_else_waits(pair, connect, paused):
    _, _, proxy = pair
    client, other = connect(proxy), connect(proxy)
    me = client("CLIENT", "ID")
    assert client("SET", "a", "1") == "OK"
    client.send(encode("WAIT", 1, 0))
    until(lambda: "pinned_blocking:1" in other("PROXY", "INFO"), what="the WAIT")
    for i in range(200):
        assert other("SET", "b", i) == "OK"
        assert other("EVAL", "return redis.call('get', KEYS[1])", 1, "b") == str(i)
    assert other("CLIENT", "UNBLOCK", me) == 1
    assert client.read() == 0


def test_it_comes_as_soon_as_the_replica_has_it(pair, connect):
    _, replica, proxy = pair
    client = connect(proxy)
    replica.pause()
    try:
        assert client("SET", "a", "1") == "OK"
        client.send(encode("WAIT", 1, 0) + encode("PING"))
        with connect(proxy) as other:
            until(lambda: "pinned_blocking:1" in other("PROXY", "INFO").replace("\r", ""), 15, "the WAIT")
    finally:
        replica.resume()
    assert client.read() == 1 and client.read() == "PONG"


def test_a_client_that_leaves_lets_its_connection_go(pair, connect, paused):
    _, _, proxy = pair
    client, other = connect(proxy), connect(proxy)
    client("SET", "a", "1")
    client.send(encode("WAIT", 1, 0))
    until(lambda: "pinned_blocking:1" in other("PROXY", "INFO"), 15, "the WAIT")
    client.close()
    until(lambda: "pinned_blocking:0" in other("PROXY", "INFO"), 15, "its end")


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR", ""])
def test_unblocked_by_an_operator(pair, connect, paused, how):
    master, _, proxy = pair
    found = []
    for where in (master, proxy):
        client, other = connect(where), connect(where)
        me = client("CLIENT", "ID")
        client("SET", "a", "1")
        client.send(encode("WAIT", 1, 0) + encode("PING"))
        unblock = ["CLIENT", "UNBLOCK", me, *([how] if how else [])]
        until(lambda: other(*unblock) == 1, 15, "the WAIT")
        found.append((client.read_raw(), client.read_raw(), other.raw(*unblock)))
    assert found[1] == found[0]


def test_no_replica(start_redis, start_proxy, connect):
    master = start_redis()
    client = connect(start_proxy(master))
    assert client("SET", "a", "1") == "OK"
    assert client("WAIT", 1, 50) == 0 and client("WAIT", 0, 0) == 0


def test_the_mark_is_never_seen(pair, connect):
    master, _, proxy = pair
    client = connect(proxy)
    client("FLUSHALL")
    client("SET", "a", "1")
    for _ in range(20):
        client("WAIT", 1, 5000)
    assert master.keys() == ["a"]


def test_cluster_counts_for_the_masters_that_were_written(farm, connect):
    """Two masters with a replica, one without."""
    cluster = servers.RedisCluster()
    replicas = []
    proxy = None
    try:
        for node in cluster.nodes[:2]:
            replica = servers.RedisServer("--repl-diskless-sync-delay", "0", cluster=True)
            replicas.append(replica)
            replica.run("CLUSTER", "MEET", node.address[0], node.port, node.bus)
        for node, replica in zip(cluster.nodes, replicas):
            name = node.run("CLUSTER", "MYID")
            with replica.client() as c:
                until(lambda: c("CLUSTER", "REPLICATE", name) == "OK", 20, "the replica to know its master", 0.05)
        for node in cluster.nodes[:2]:
            until(lambda: replicas_of(node) == 1, 20, "the replica", 0.05)
        proxy = servers.Proxy(cluster)
        names = [next(n for n in ("k%d" % i for i in range(1000)) if cluster.node_of(n) is node) for node in cluster.nodes]
        one, two, three = (connect(proxy) for _ in range(3))
        assert one("SET", names[0], "1") == "OK" and one("WAIT", 1, 10000) == 1
        assert two("MSET", names[0], "2", names[1], "2") == "OK" and two("WAIT", 1, 10000) == 1
        assert three("SET", names[2], "3") == "OK" and three("WAIT", 1, 50) == 0
        assert one("SET", names[2], "3") == "OK" and one("WAIT", 1, 50) == 0
        replicas[1].pause()
        assert two("SET", names[1], "4") == "OK" and two("WAIT", 1, 200) == 0
        replicas[1].resume()
        assert two("WAIT", 1, 10000) == 1
    finally:
        if proxy:
            proxy.stop()
            proxy.remove()
        for replica in replicas:
            replica.stop()
        cluster.stop()


def test_a_lost_node(start_redis, start_proxy, connect):
    master = start_redis()
    proxy = start_proxy(master)
    client = connect(proxy)
    client("SET", "a", "1")
    client.send(encode("WAIT", 1, 0))
    until(lambda: "blocked_clients:1" in master.run("INFO", "clients"), 15, "the WAIT")
    master.kill()
    assert isinstance(client.read(), Error)
