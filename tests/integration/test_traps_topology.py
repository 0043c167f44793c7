"""Traps that other proxies fell into, 36 and 37: a topology that changes, and nodes that are not ready."""

import threading
import time

import pytest

from fake import whole_map
from helpers import keys_of, polite, works_again
from migration import Migration
from resp import Error, encode, parse
from servers import HOST, slot_of, until


# ---- 36: the map ----------------------------------------------------------------------------------


def test_trap_36_topology_that_makes_no_sense(fake, start_proxy, connect):
    """Bad slot maps are survived, and the first good one is used."""
    maps = [b"+OK\r\n", b"*0\r\n", b"*1\r\n:5\r\n", b"*1\r\n*3\r\n:0\r\n:99999999\r\n*2\r\n$1\r\nx\r\n:1\r\n", b"-ERR not now\r\n",
            b"*1\r\n*3\r\n:10\r\n:5\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n", b"garbage\r\n"]
    state = {"next": 0}

    def handler(words, connection):
        if words[0].upper() == b"CLUSTER":
            state["next"] += 1
            return maps[state["next"] - 1] if state["next"] <= len(maps) else whole_map(node.port)
        return polite(words) or b"+fine\r\n"

    node = fake(handler)
    proxy = start_proxy("cluster %s:%d" % node.address, wait=False)
    until(lambda: "Ready to accept connections" in proxy.log(), 30, "the proxy")
    client = connect(proxy)
    works_again(client, ("GET", "k"), "fine", timeout=60)
    assert state["next"] > len(maps)


def test_trap_36_slot_without_owner(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy)
    name = keys_of(cluster)[0]
    assert client("SET", name, "v") == "OK"
    for node in cluster.nodes:
        node.run("CLUSTER", "DELSLOTS", slot_of(name))
    reply = client("GET", name)
    assert isinstance(reply, Error) and reply.startswith(("CLUSTERDOWN ", "UPSTREAM ", "MOVED ")), reply
    cluster.nodes[0].run("CLUSTER", "ADDSLOTS", slot_of(name))
    works_again(client, ("SET", name, "again"))


def test_trap_36_nobody_takes_the_place_of_a_master(fake, start_proxy, connect):
    """It accepts connections and says nothing more. Whether another one serves by now is asked, which takes a while here; then
    the request fails, and no other connection is waited for."""
    over = threading.Event()

    def answer(words, connection):
        if words[0].upper() == b"CLUSTER":
            if state["mute"]:
                over.wait(0.5)  # longer than the proxy leaves a node alone that it could not reach
            return whole_map(node.port)
        if words[0].upper() == b"HELLO" and state["mute"]:
            return b""
        return polite(words) or (b"_\r\n" if not state["mute"] else b"")

    state = {"mute": False}
    node = fake(answer)
    client = connect(start_proxy("cluster %s:%d" % node.address, "upstream-timeout 2s", "threads 1"), timeout=60)
    assert isinstance(client("HELLO", "3"), dict)
    assert client("GET", "k") is None
    state["mute"] = True
    assert "unknown" in client("GET", "k")
    asked = node.count(b"HELLO")
    time.sleep(1)  # for the map to be an old one
    assert "not sent" in client("GET", "k")
    assert node.count(b"HELLO") == asked + 1
    over.set()


def test_trap_36_one_refresh_for_all_clients(fake, start_proxy, connect):
    """A master is replaced, at another address, under many clients: the map is asked for a few times, not by each."""
    nodes, state = [], {"owner": 0}

    def node(number):
        def answer(words, connection):
            if words[0].upper() == b"CLUSTER":
                return whole_map(nodes[state["owner"]].port)
            if polite(words):
                return polite(words)
            if state["owner"] != number:
                return b"-MOVED %d %s:%d\r\n" % (slot_of(words[1].decode()), HOST.encode(), nodes[state["owner"]].port)
            return b"+%d\r\n" % number

        return answer

    nodes += [fake(node(0)), fake(node(1))]
    proxy = start_proxy("cluster %s:%d %s:%d" % (*nodes[0].address, *nodes[1].address), "threads 1")  # each asks for itself
    clients = [connect(proxy) for _ in range(150)]
    for n, client in enumerate(clients):
        assert client("GET", "k%d" % n) == "0"
    asked = sum(n.count(b"CLUSTER") for n in nodes)
    opened = len(nodes[1].connections)
    state["owner"] = 1
    for n, client in enumerate(clients):
        client.send(encode("GET", "k%d" % n) * 5)
    for client in clients:
        assert [client.read() for _ in range(5)] == ["1"] * 5
    until(lambda: sum(n.count(b"CLUSTER") for n in nodes) > asked, what="a refresh")
    assert sum(n.count(b"CLUSTER") for n in nodes) - asked <= 6
    assert len(nodes[1].connections) - opened <= 8


# ---- 37: nodes that are not ready -------------------------------------------------------------------


def test_trap_37_slot_that_stays_open(start_cluster, start_proxy, connect):
    """A migration that stands still with half of the keys moved. Single keys are found on either side; what needs
    several keys at once (a new lock and its guard record, too) is tried for a while, and answered in any case."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy, timeout=30)
    names = ["{open}%d" % n for n in range(20)]
    for name in names:
        assert client("SET", name, name) == "OK"
    slot = slot_of("open")
    migration = Migration(cluster, [slot])
    source, target = migration.open(slot)
    migration.migrate(source, target, names[::2])
    for _ in range(3):
        assert client.pipeline([("GET", n) for n in names]) == [encode(n)[4:] for n in names]
        assert [parse(r)[0] for r in client.pipeline([("APPEND", n, "") for n in names])] == [len(n) for n in names]
    assert client("SET", "{open}new", "v") == "OK"
    assert client("GET", "{open}new") == "v"
    assert target.run("CLUSTER", "COUNTKEYSINSLOT", slot) == 11
    begin = time.monotonic()
    for command in (("MGET", *names), ("DEL", "{open}none", names[0]), ("SETNX", "lock:{open}", "1")):
        reply = client(*command)
        assert isinstance(reply, Error) and reply.startswith("TRYAGAIN") or reply in (1, names), (command, reply)
    assert time.monotonic() - begin < 25
    client.send(encode("SETNX", "lock:{open}later", "1") + encode("GET", names[1]))
    migration.move(slot, 100)
    assert client.read() == 1, "it was tried again until the slot was closed"
    assert client.read() == names[1]
    assert client("MGET", *names[1:]) == names[1:]


@pytest.mark.parametrize("error", ["LOADING Redis is loading the dataset in memory", "CLUSTERDOWN The cluster is down",
                                   "TRYAGAIN Multiple keys request during rehashing of slot",
                                   "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."])
def test_trap_37_not_ready_is_tried_again_within_bounds(fake, start_proxy, connect, error):
    state = {"left": 2}

    def answer(words, connection):
        if words[0].upper() == b"CLUSTER":
            return whole_map(node.port)
        if polite(words):
            return polite(words)
        state["left"] -= 1
        return b"-%s\r\n" % error.encode() if state["left"] >= 0 else b"+ready\r\n"

    node = fake(answer)
    client = connect(start_proxy("cluster %s:%d" % node.address))
    assert client("SET", "k", "v") == "ready"
    assert node.count(b"SET") == 3
    state["left"] = 1000
    assert client("SET", "k", "v") == error  # in the node's own words, when it has been tried for a while
    assert node.count(b"SET") < 15


def test_trap_37_a_replica_without_its_master(start_redis, start_proxy, connect):
    """What a real one says, MASTERDOWN and READONLY, is what the client hears; and the node is there again when it is."""
    redis, server = (start_redis("--replica-serve-stale-data", "no") for _ in range(2))
    client = connect(start_proxy(server))
    assert client("SET", "k", "v") == "OK"
    for node in (redis, server):
        node.run("REPLICAOF", HOST, 1)  # without a listener
    commands = [("GET", "k"), ("SET", "k", "w"), ("PING",), ("MGET", "k", "l"), ("EVAL", "return redis.call('get', KEYS[1])", 1, "k"),
                ("MULTI",), ("GET", "k"), ("EXEC",), ("BLPOP", "l", "0.1"), ("SUBSCRIBE", "c")]
    expected = connect(redis).pipeline(commands)
    assert expected[0].startswith(b"-MASTERDOWN ")
    assert client.pipeline(commands) == expected
    assert client("UNSUBSCRIBE", "c") == ["unsubscribe", "c", 0]
    server.run("REPLICAOF", "NO", "ONE")
    until(lambda: client("GET", "k") == "v", what="the node that serves again")
