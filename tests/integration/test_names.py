"""Upstreams by name: a name server that is slow, silent, or changes its answers only affects clients of the node with that
name."""

import re

import pytest

from helpers import is_upstream, keys_of, works_again
from resp import Client, Error, Push, encode
from servers import HOST, RedisServer, Sentinel, until

TIMEOUT = 30


@pytest.fixture
def redis(farm):
    return farm.backend("standalone")


def test_a_name_server_that_is_silent_about_one_node(names, start_cluster, start_proxy, connect):
    """A cluster whose nodes announce names. While one name is being looked up, clients of the other nodes go on."""
    cluster = start_cluster()
    for n, node in enumerate(cluster.nodes):
        names.known["node%d.test" % n] = [HOST]
        node.run("CONFIG", "SET", "cluster-announce-hostname", "node%d.test" % n)
        node.run("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")

    def announced():
        slots = [node.run("CLUSTER", "SLOTS") for node in cluster.nodes]
        return all(sorted(entry[2][0] for entry in s) == ["node0.test", "node1.test", "node2.test"] for s in slots)

    until(announced, TIMEOUT, "the names at all nodes")
    keys = keys_of(cluster)
    names.hold("node2.test")
    proxy = start_proxy("cluster node0.test:%d" % cluster.nodes[0].port, "threads 1", before=names.before)
    client, other = connect(proxy, timeout=TIMEOUT), connect(proxy, timeout=TIMEOUT / 2)  # a look-up is given up after 30 s
    works_again(other, ("SET", keys[0], "0"))
    client.send(encode("SET", keys[2], "2"))
    until(lambda: "node2.test" in names.asked, TIMEOUT, "the question for the name")
    for _ in range(50):
        assert other("GET", keys[0]) == "0"
        assert other("SET", keys[1], "1") == "OK"
    assert names.waiting
    names.release()
    reply = client.read()
    assert reply == "OK" or is_upstream(reply), reply
    works_again(client, ("SET", keys[2], "3"))
    assert cluster.nodes[2].run("GET", keys[2]) == "3"
    assert client("SET", "lock:{%s}" % keys[2], "1", "NX") == "OK"


def test_a_name_server_that_is_silent_from_the_start(names, redis, start_proxy, connect):
    """A client that needs the node gets the reason; so does a client of PROXY, before a node has said which users may use
    it."""
    names.known["redis.test"] = [HOST]
    names.hold("redis.test")
    proxy = start_proxy("standalone redis.test:%d" % redis.port, "threads 1", "upstream-timeout 300ms", before=names.before)
    client, other = connect(proxy, timeout=TIMEOUT), connect(proxy, timeout=TIMEOUT)
    client.send(encode("GET", "k"))
    assert is_upstream(other("PROXY", "LOCKS"))
    reply = client.read()
    assert is_upstream(reply) and "name server" in reply, reply
    names.release()
    works_again(client)


def test_a_name_that_comes_to_be(names, redis, start_proxy, connect):
    proxy = start_proxy("standalone redis.test:%d" % redis.port, before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    reply = client("GET", "k")
    assert is_upstream(reply) and "redis.test" in reply and "not known" in reply, reply
    names.known["redis.test"] = [HOST]
    works_again(client)


def test_a_name_that_moves(names, start_redis, start_proxy, connect):
    """As with a failover by the name server: the new address is found when the old one is gone."""
    moved = start_redis()
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % moved.port, before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    assert client("SET", "k", "there") == "OK"
    moved.kill()
    moved.host = "127.0.0.77"
    moved.address = (moved.host, moved.port)
    moved.start()
    assert isinstance(client("GET", "k"), Error)
    names.known["redis.test"] = ["127.0.0.77"]
    works_again(client, ("SET", "k", "here"))
    assert moved.run("GET", "k") == "here"


def test_a_name_that_moves_while_its_machine_stays(names, start_redis, start_proxy, connect):
    """A planned failover: the old master is a replica of the new one, and goes on answering."""
    old = start_redis()
    new = start_redis("--repl-diskless-sync-delay", "0")
    with new.client() as c:  # the same port, at another address
        c("CONFIG", "SET", "bind", "127.0.0.77")
        c("CONFIG", "SET", "port", old.port)
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % old.port, "threads 1", before=names.before)
    client, other, listener = (connect(proxy, timeout=TIMEOUT) for _ in range(3))
    assert client("SET", "k", "there") == "OK"
    assert other("SET", "lock:k", "1", "NX") == "OK"
    assert other("BLPOP", "none", "0.01") is None  # leaves a connection behind
    assert listener("SUBSCRIBE", "news") == ["subscribe", "news", 1]
    old.run("REPLICAOF", "127.0.0.77", old.port)
    with Client(("127.0.0.77", old.port), timeout=TIMEOUT) as there:
        names.known["redis.test"] = ["127.0.0.77"]
        works_again(client, ("SET", "k", "here"))
        assert there("GET", "k") == "here"
        assert other("BLPOP", "none", "0.01") is None
        assert "cmd=blpop" in there("CLIENT", "LIST")
        until(lambda: "master_link_status:up" in old.run("INFO", "replication"), TIMEOUT, "the replica's link")
        there("PUBLISH", "news", "hello")
        assert listener.read() == ["message", "news", "hello"]
        assert client("SET", "lock:new", "1", "NX") == "OK"
        assert there("EXISTS", "lock:new") == 1


def test_a_name_that_moves_with_a_lock_command_on_its_way(names, start_redis, start_proxy, connect):
    """A session that tracks keys has a connection of its own, which ends when the name has moved. What is sent again then
    opens another one, to the new machine."""
    old = start_redis()
    new = start_redis("--repl-diskless-sync-delay", "0")
    with new.client() as c:
        c("CONFIG", "SET", "bind", "127.0.0.77")
        c("CONFIG", "SET", "port", old.port)
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % old.port, "threads 1", "upstream-timeout 30s", before=names.before)
    client, other, tracker = (connect(proxy, timeout=TIMEOUT) for _ in range(3))
    tracker("HELLO", "3")
    assert tracker("CLIENT", "TRACKING", "ON") == "OK"
    assert tracker("GET", "k") is None
    names.hold("redis.test")
    old.run("REPLICAOF", "127.0.0.77", old.port)
    until(lambda: isinstance(client("SET", "k", "v"), Error) and names.waiting, TIMEOUT, "a look at the name")
    old.pause()
    try:
        tracker.send(encode("SETNX", "lock:k", "1"))
        until(lambda: "in_flight=1" in other("PROXY", "INFO", "upstreams"), TIMEOUT, "the command on its way")
        names.known["redis.test"] = ["127.0.0.77"]
        names.release()
        assert next(r for r in iter(tracker.read, None) if not isinstance(r, Push)) == 1
        assert "can't be reached" not in proxy.log()
    finally:
        old.resume()
    with Client(("127.0.0.77", old.port), timeout=TIMEOUT) as there:
        assert there("GET", "lock:k") == "1"


# The system prefers the loopback address nearest to its own, so HOST is the one without a listener.
class RedisElsewhere(RedisServer):
    host = "127.0.0.77"


class SentinelElsewhere(Sentinel):
    host = "127.0.0.77"


BOTH = [HOST, "127.0.0.77"]


def test_a_name_of_several_machines(names, start_proxy, connect):
    server = RedisElsewhere()
    try:
        names.known["redis.test"] = BOTH
        proxy = start_proxy("standalone redis.test:%d" % server.port, before=names.before)
        client = connect(proxy, timeout=TIMEOUT)
        assert client("SET", "k", "v") == "OK"
        assert client("BLPOP", "none", "0.01") is None
        assert "can't be reached" not in proxy.log()
    finally:
        server.stop()


def test_a_name_of_several_seeds(names, farm, start_proxy, connect):
    """One name for all nodes of a cluster."""
    cluster = farm.backend("cluster")
    names.known["seeds.test"] = ["127.0.0.78", "127.0.0.79", HOST]
    proxy = start_proxy("cluster seeds.test:%d" % cluster.nodes[1].port, before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    for key in keys_of(cluster):
        works_again(client, ("SET", key, "1"))


def test_a_sentinel_s_name_of_several_machines(names, redis, start_proxy, connect):
    """It is asked, and subscribed to, at the address where it is."""
    sentinel = SentinelElsewhere("sentinel monitor mymaster %s %d 1" % redis.address, "bind 127.0.0.77")
    try:
        names.known["sentinel.test"] = BOTH
        proxy = start_proxy("sentinel mymaster sentinel.test:%d" % sentinel.port, "threads 1", before=names.before)
        client = connect(proxy, timeout=TIMEOUT)
        assert client("SET", "k", "v") == "OK"
        until(lambda: "address=sentinel.test:%d,state=up" % sentinel.port in client("PROXY", "INFO", "upstreams"), TIMEOUT,
              "the subscription")
        assert "No subscription to Sentinel" not in proxy.log()
    finally:
        sentinel.stop()


# ---- a look each dns-refresh -----------------------------------------------------------------------------


@pytest.fixture
def elsewhere():
    """Starts a Redis at the other address, on the same port."""
    servers = []

    def start(like):
        servers.append(RedisElsewhere("--repl-diskless-sync-delay", "0", port=like.port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def moved(client):
    """Why the proxy is not where the name leads."""
    return re.search(r"^upstream_moved:(.*?)\r?$", client("PROXY", "INFO", "upstreams"), re.M)[1]


def await_trouble(client, what):
    until(lambda: what in moved(client), TIMEOUT, what)


def await_move(proxy):
    until(lambda: "the proxy goes there" in proxy.log(), TIMEOUT, "the move")


def copy_of(master, elsewhere):
    """A replica at the other address, which has the proxy's mark."""
    replica = elsewhere(master)
    replica.run("REPLICAOF", *master.address)
    until(lambda: "master_link_status:up" in replica.run("INFO", "replication"), TIMEOUT, "the replica's link")
    until(lambda: replica.run("KEYS", "*lockkeeper-host*"), TIMEOUT, "the mark at the replica")
    return replica


@pytest.mark.parametrize("threads", [1, 3])
def test_a_name_that_leads_to_another_redis(names, start_redis, elsewhere, start_proxy, connect, threads):
    """The proxy stays where the locks are, over new connections too, and says so."""
    old = start_redis()
    other = elsewhere(old)
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % old.port, "threads %d" % threads, "dns-refresh 200ms", before=names.before)
    clients = [connect(proxy, timeout=TIMEOUT) for _ in range(6)]
    assert clients[0]("SETNX", "lock:a", "1") == 1
    names.known["redis.test"] = ["127.0.0.77"]
    await_trouble(clients[0], "that Redis has other data, and the one before it still answers")
    asked = len(names.asked)
    for _ in range(3):
        old.run("CLIENT", "KILL", "TYPE", "normal")
        for client in clients[1:]:
            works_again(client, ("SET", "k", "v"))
            assert client("SETNX", "lock:a", "2") == 0
    until(lambda: len(names.asked) > asked + 8, TIMEOUT, "more looks at the name")
    assert clients[0]("DEL", "lock:a") == 1
    assert other.run("EXISTS", "k", "lock:a") == 0
    assert proxy.log().count("leads to 127.0.0.77 now") == 1
    names.known["redis.test"] = [HOST]
    until(lambda: not moved(clients[0]), TIMEOUT, "peace")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("asked", ["in time", "by a reload"])
def test_the_same_redis_at_another_address(names, start_redis, start_proxy, connect, threads, asked):
    """All threads go there. No client sees an error."""
    redis = start_redis()
    redis.run("CONFIG", "SET", "bind", HOST + " 127.0.0.77")
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % redis.port, "threads %d" % threads,
                        "dns-refresh " + ("200ms" if asked == "in time" else "1d"), before=names.before)
    clients = [connect(proxy, timeout=TIMEOUT) for _ in range(6)]
    assert clients[0]("SETNX", "lock:a", "1") == 1
    listener, transaction = connect(proxy, timeout=TIMEOUT), connect(proxy, timeout=TIMEOUT)
    assert listener("SUBSCRIBE", "news") == ["subscribe", "news", 1]
    assert transaction("MULTI") == "OK" and transaction("INCR", "m") == "QUEUED"
    until(lambda: redis.run("KEYS", "*lockkeeper-host*"), TIMEOUT, "the first look at the name")
    names.known["redis.test"] = ["127.0.0.77"]
    if asked == "by a reload":
        assert clients[1]("PROXY", "RELOAD") == "OK"

    def are_there():
        for client in clients[1:]:
            assert isinstance(client("INCR", "n"), int) and client("SETNX", "lock:a", "2") == 0
        left = [c for c in redis.run("CLIENT", "LIST").splitlines() if "laddr=%s:" % HOST in c and "multi=-1" in c]
        return "the proxy goes there" in proxy.log() and not [c for c in left if "cmd=evalsha" in c or "cmd=incr" in c]

    until(are_there, TIMEOUT, "the move")
    assert redis.run("PUBLISH", "news", "x") == 1 and listener.read() == ["message", "news", "x"]
    assert transaction("EXEC") == [1]
    assert clients[0]("DEL", "lock:a") == 1 and moved(clients[0]) == ""


@pytest.mark.parametrize("ends", ["replica", "gone"])
def test_a_replica_that_was_promoted(names, start_redis, elsewhere, start_proxy, connect, ends):
    """While both take writes the proxy stays; when the old master is a replica, or gone, it goes. The lock is there."""
    old = start_redis()
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % old.port, "threads 2", "dns-refresh 200ms", before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    assert client("SETNX", "lock:a", "1") == 1
    new = copy_of(old, elsewhere)
    names.known["redis.test"] = ["127.0.0.77"]
    await_trouble(client, "that Redis says: READONLY")
    new.run("REPLICAOF", "NO", "ONE")
    await_trouble(client, "that Redis takes writes, and the one before it still does too")
    assert client("SET", "k", "there") == "OK" and old.run("GET", "k") == "there"
    if ends == "replica":
        old.run("REPLICAOF", *new.address)
    else:
        old.kill()
    await_move(proxy)
    works_again(client, ("SET", "k", "here"))
    assert new.run("GET", "k") == "here" and client("DEL", "lock:a") == 1
    assert "leases are lost" not in proxy.log() and moved(client) == ""


def test_a_name_whose_redis_is_gone_for_another_one(names, start_redis, elsewhere, start_proxy, connect):
    """It goes there, and says that the data is another."""
    old = start_redis()
    names.known["redis.test"] = [HOST]
    proxy = start_proxy("standalone redis.test:%d" % old.port, "threads 2", "dns-refresh 200ms", before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    assert client("SET", "k", "there") == "OK"
    other = elsewhere(old)
    names.known["redis.test"] = ["127.0.0.77"]
    await_trouble(client, "that Redis has other data")
    old.kill()
    await_move(proxy)
    assert "has other data: leases are lost" in proxy.log()
    works_again(client, ("SET", "k", "here"))
    assert other.run("GET", "k") == "here"
