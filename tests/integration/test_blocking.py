"""BLPOP and similar commands: each has its own connection, so no other client waits, and it ends with its client."""

import threading
import time

import pytest

from migration import give_slot
from resp import Client, Closed, Error, encode
from servers import slot_of, until


def info(client, field):
    """A number of PROXY INFO."""
    for line in client("PROXY", "INFO").splitlines():
        if line.startswith(field + ":"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO has no " + field)


def blocked_at(node):
    return int(node.run("INFO", "clients").split("blocked_clients:")[1].split()[0])


def blocked(backend):
    return sum(blocked_at(node) for node in backend.nodes)


@pytest.fixture
def name(key):
    return "{%s}" % key("b")


def words(text, name):
    return [{"K": name, "K2": name + "2"}.get(word, word) for word in text.split(" ")]


# ---- as in Redis ------------------------------------------------------------------------------------------

# What blocks, what ends it, and what must not be there before.
BLOCKERS = {
    "BLPOP K 0": "RPUSH K a",
    "BRPOP K2 K 0": "RPUSH K a b",
    "BLMOVE K K2 LEFT RIGHT 0": "RPUSH K a",
    "BRPOPLPUSH K K2 0": "RPUSH K a",
    "BLMPOP 0 2 K2 K LEFT COUNT 2": "RPUSH K a b c",
    "BZPOPMIN K 0": "ZADD K 1 a",
    "BZPOPMAX K K2 0": "ZADD K2 1.5 a",
    "BZMPOP 0 1 K MIN": "ZADD K 1 a",
    "XREAD BLOCK 0 STREAMS K $": "XADD K 1-1 f v",
    "XREAD COUNT 1 BLOCK 0 STREAMS K K2 0 0": "XADD K 1-1 f v",
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("command", BLOCKERS)
def test_blocks_and_wakes(backend, proxy, connect, name, command, protocol):
    replies = []
    for address in (backend.node_of(name), proxy):
        waiter, other = connect(address), connect(address)
        if protocol == 3:
            waiter("HELLO", "3")
        waiter.send(encode(*words(command, name)) + encode("PING"))
        until(lambda: blocked(backend) == 1, what="the client to be blocked")
        other(*words(BLOCKERS[command], name))
        replies.append([waiter.read_raw(), waiter.read_raw()])
        backend.flush()
    assert replies[1] == replies[0]
    assert blocked(backend) == 0


@pytest.mark.parametrize("command", ["BLPOP K 0.02", "BLMOVE K K2 LEFT LEFT 0.02", "BZPOPMIN K K2 0.02",
                                     "XREAD BLOCK 20 STREAMS K $", "BLMPOP 0.02 1 K LEFT", "BLPOP K x", "BLPOP K -1",
                                     "BLPOP K", "BLPOP", "BLMPOP 0 0 K LEFT", "BLMPOP x 1 K LEFT", "BLMPOP 0 9 K LEFT",
                                     "XREAD BLOCK x STREAMS K $", "XREAD BLOCK 20 STREAMS K K2 $",
                                     "XREADGROUP GROUP g c BLOCK 20 STREAMS K >"])
def test_ends_by_itself(backend, proxy, connect, name, command):
    for protocol in ("2", "3"):
        one, two = connect(backend.node_of(name)), connect(proxy)
        one("HELLO", protocol), two("HELLO", protocol)
        assert two.raw(*words(command, name)) == one.raw(*words(command, name))
        assert two("PING") == "PONG"


def test_wrong_type_and_ready_data(client, name):
    assert client.pipeline([["SET", name, "1"], ["BLPOP", name, "0"], ["DEL", name], ["RPUSH", name, "a", "b", "c"],
                            ["BLPOP", name, "0"], ["BRPOP", name, "0"], ["LLEN", name]]) == [
        b"+OK\r\n", b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", b":1\r\n", b":3\r\n",
        b"*2\r\n$%d\r\n%s\r\n$1\r\na\r\n" % (len(name), name.encode()),
        b"*2\r\n$%d\r\n%s\r\n$1\r\nc\r\n" % (len(name), name.encode()), b":1\r\n"]


def test_consumer_groups(client, proxy, connect, name):
    assert client("XGROUP", "CREATE", name, "g", "$", "MKSTREAM") == "OK"
    other = connect(proxy)
    other.send(encode("XREADGROUP", "GROUP", "g", "me", "BLOCK", "0", "STREAMS", name, ">"))
    until(lambda: info(client, "pinned_blocking") == 1, what="the client to be pinned")
    entry = client("XADD", name, "*", "f", "v")
    assert other.read() == [[name, [[entry, ["f", "v"]]]]]


def test_large_element(client, proxy, connect, name):
    value = "x" * 3000000
    other = connect(proxy)
    other.send(encode("BLPOP", name, "0"))
    until(lambda: info(client, "pinned_blocking") == 1, what="the client to be pinned")
    assert client("RPUSH", name, value) == 1
    assert other.read() == [name, value]


def test_keys_of_several_slots(farm, connect):
    client = connect(farm.proxy("cluster"))
    assert client("BLPOP", "a", "b", "0") == "CROSSSLOT Keys in request don't hash to the same slot"
    client = connect(farm.proxy("standalone"))
    assert client("BLPOP", "a", "b", "0.01") is None


# ---- trap 25: other clients do not wait ----------------------------------------------------------------------


def test_trap_25_others_do_not_wait_with_the_blocked(backend, proxy, client, connect, name):
    waiters = [connect(proxy) for _ in range(40)]
    for i, waiter in enumerate(waiters):
        waiter.send(encode("BLPOP", name + str(i), "0"))
    until(lambda: blocked(backend) == 40, what="all clients to be blocked")
    assert info(client, "pinned_blocking") == 40
    for i in range(300):
        assert client("SET", name + "x", i) == "OK"
    for i, waiter in reversed(list(enumerate(waiters))):
        assert client("RPUSH", name + str(i), i) == 1
        assert waiter.read() == [name + str(i), str(i)]
    assert info(client, "pinned_blocking") == 0
    assert info(client, "pinned_connections") == 0


def test_a_blocked_client_s_later_requests_wait(backend, proxy, client, connect, name):
    other = connect(proxy)
    other.send(encode("BLPOP", name, "0") + encode("SET", name + "2", "1") + encode("LLEN", name))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    assert client("EXISTS", name + "2") == 0
    client("RPUSH", name, "a", "b")
    assert [other.read() for _ in range(3)] == [[name, "a"], "OK", 1]


def test_first_come_first_served(backend, proxy, client, connect, name):
    waiters = []
    for i in range(5):
        waiters.append(connect(proxy))
        waiters[-1].send(encode("BLPOP", name, "0"))
        until(lambda: blocked(backend) == i + 1, what="one more to be blocked")
    for i, waiter in enumerate(waiters):
        client("RPUSH", name, i)
        assert waiter.read() == [name, str(i)]


def test_queue_of_jobs(proxy, connect, name):
    """Producers and consumers: every element is popped once, none is lost."""
    got = []

    def consume():
        c = connect(proxy)
        while True:
            _, value = c("BLPOP", name, "0")
            if value == "end":
                return
            got.append(value)

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for t in threads:
        t.start()
    producer = connect(proxy)
    for i in range(300):
        producer("RPUSH", name, i)
    for _ in threads:
        producer("RPUSH", name, "end")
    for t in threads:
        t.join()
    assert sorted(map(int, got)) == list(range(300))


# ---- trap 28: clients that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "half-close", "reset", "with requests behind it"])
def test_trap_28_leaves_while_blocked(backend, proxy, client, connect, name, how):
    """The next pushed element is not popped for the client that has left."""
    import socket
    import struct

    other = connect(proxy)
    other.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    if how == "with requests behind it":
        other.send(encode("PING") * 10)
    if how == "half-close":
        other.shutdown()
    else:
        if how == "reset":
            other.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
    until(lambda: blocked(backend) == 0, what="the connection to be closed")
    assert client("RPUSH", name, "kept") == 1
    assert client("LRANGE", name, "0", "-1") == ["kept"]
    assert info(client, "pinned_blocking") == 0


HALVES = {
    "data is there": [["RPUSH", "K", "a", "b"], ["BLPOP", "K", "0"], ["PING"], ["LRANGE", "K", "0", "-1"]],
    "it would block": [["SET", "K2", "1"], ["BLPOP", "K", "0"], ["SET", "K2", "2"]],
    "it would block for a while": [["SET", "K2", "1"], ["BLPOP", "K", "30"], ["SET", "K2", "2"]],
    "several": [["RPUSH", "K", "a", "b"], ["BLPOP", "K", "0"], ["BLMOVE", "K", "K2", "LEFT", "LEFT", "0"], ["BRPOP", "K2", "5"], ["PING"],
                ["BZPOPMIN", "K", "0"], ["RPUSH", "K2", "not"]],
    "a stream": [["XADD", "K", "1-1", "f", "v"], ["XREAD", "BLOCK", "0", "STREAMS", "K", "0"], ["PING"],
                 ["XREAD", "BLOCK", "0", "STREAMS", "K", "$"], ["PING"]],
    "an error": [["SET", "K", "1"], ["BLPOP", "K", "0"], ["PING"]],
    "nothing behind it": [["RPUSH", "K", "a"], ["BLPOP", "K", "0"]],
    "nothing to wait for": [["SET", "K", "1"], ["WAIT", "0", "0"], ["GET", "K"]],
    "a replica that is not there": [["SET", "K", "1"], ["WAIT", "1", "0"], ["SET", "K", "2"]],
    "in a transaction": [["MULTI"], ["BLPOP", "K", "0"], ["EXEC"], ["PING"]],
}


@pytest.mark.parametrize("pieces", ["whole", "and then the end"])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("commands", HALVES.values(), ids=list(HALVES))
def test_trap_33_half_closed_behind_what_blocks(backend, proxy, connect, name, commands, protocol, pieces):
    """printf ... | nc: what need not wait is answered, and so is what is behind it; what would is Redis's end too."""
    found = []
    for address in (backend.node_of(name), proxy):
        client = connect(address)
        client("HELLO", protocol)
        client.send(b"".join(encode(*words(" ".join(c), name)) for c in commands))
        if pieces != "whole":
            client.fill()  # the first reply has come
        client.shutdown()
        got = client.read_all()
        with connect(address) as other:
            found.append((got, other.raw("TYPE", name), other("EXISTS", name + "2") and other.raw("GET", name + "2")))
        until(lambda: blocked(backend) == 0, what="nobody to be blocked")
        backend.flush()
    assert found[1] == found[0]


def test_leaves_behind_megabytes_of_requests(backend, proxy, client, connect, name):
    """More than sockets' buffers hold: that the client has left is behind it all, and is noticed."""
    other = connect(proxy)
    other.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    payload = encode("SET", name + "2", "x" * 4000) * 2500
    other.send(payload)
    other.close()
    until(lambda: blocked(backend) == 0, what="the connection to be closed")
    assert client("RPUSH", name, "kept") == 1
    assert client("EXISTS", name + "2") == 0


def test_element_is_lost_without_care(backend, connect, name):
    """What a proxy that keeps the connection open does, shown with a connection that is kept open."""
    waiter = connect(backend.node_of(name))
    waiter.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    assert backend.node_of(name).run("RPUSH", name, "lost") == 1
    assert backend.node_of(name).run("LLEN", name) == 0


def test_stop_does_not_wait_for_blocked_clients(backend, start_proxy, connect, name):
    proxy = start_proxy(backend, "shutdown-timeout 60")
    other = connect(proxy)
    other.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    proxy.stop()
    with pytest.raises(Closed):
        other.read()
    until(lambda: blocked(backend) == 0, what="the connection to be closed")


# ---- trap 29: time -----------------------------------------------------------------------------------------


def test_trap_29_outlives_every_timeout(backend, start_proxy, connect, name):
    """upstream-timeout and the idle timeout of clients are far shorter than the wait."""
    proxy = start_proxy(backend, "upstream-timeout 300ms", "timeout 1")
    waiter, reader, idle = connect(proxy), connect(proxy), connect(proxy)
    waiter.send(encode("BLPOP", name, "0"))
    reader.send(encode("XREAD", "BLOCK", "0", "STREAMS", name + "2", "$"))
    with pytest.raises(Closed):
        idle.read()  # the idle one is closed meanwhile
    assert blocked(backend) == 2
    node = backend.node_of(name)
    node.run("RPUSH", name, "a")
    node.run("XADD", name + "2", "1-1", "f", "v")
    assert waiter.read() == [name, "a"]
    assert reader.read() == [[name + "2", [["1-1", ["f", "v"]]]]]
    assert waiter("PING") == "PONG"


# ---- nodes -------------------------------------------------------------------------------------------------


def test_node_lost(backend, client, name):
    client.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    backend.node_of(name).run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    reply = client.read()
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM") and "unknown" in reply, reply
    assert client("RPUSH", name, "a") == 1
    assert client("BLPOP", name, "0") == [name, "a"]


def test_node_down(start_redis, start_proxy, connect, name):
    redis = start_redis()
    client = connect(start_proxy(redis))
    assert client("PING") == "PONG"
    redis.kill()
    reply = client("BLPOP", name, "0")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM"), reply
    redis.start()
    until(lambda: client("RPUSH", name, "a") == 1, what="the node to be served again")
    assert client("BLPOP", name, "0") == [name, "a"]


@pytest.mark.parametrize("command", ["BLPOP K 0.05", "XREAD BLOCK 50 STREAMS K $", "BLMPOP 0.05 1 K LEFT", "WAIT 1 50"])
def test_node_stands_still(start_redis, start_proxy, connect, name, command):
    """It was to end by itself, and its node says nothing: that is late, as any other reply."""
    redis = start_redis()
    client = connect(start_proxy(redis, "upstream-timeout 300ms"), timeout=60)
    assert client("SET", "k", "v") == "OK"
    assert client("BLPOP", name, "0.01") is None
    redis.pause()
    reply = client(*words(command, name))
    redis.resume()
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM"), reply
    until(lambda: client("RPUSH", name + "3", "a") == 1, what="the node to be served again")
    assert client("BLPOP", name + "3", "0") == [name + "3", "a"]


def test_node_runs_a_script(start_redis, start_proxy, connect, name):
    """While a script runs, the node ends no blocking command. A client that has waited longer than its timeout still gets its
    reply."""
    redis = start_redis("--busy-reply-threshold", "20")
    client = connect(start_proxy(redis, "upstream-timeout 300ms"), timeout=60)
    with redis.client(timeout=60) as slow, redis.client(timeout=60) as operator:
        client.send(encode("BLPOP", name, "0.5"))
        until(lambda: "cmd=blpop" in operator("CLIENT", "LIST"), what="the client to be blocked")
        slow.send(encode("EVAL", "while true do end", "0"))

        def busy():
            reply = operator("PING")
            return isinstance(reply, Error) and reply.startswith("BUSY")

        until(busy, what="the script")
        end = time.monotonic() + 1.5  # twice as long as a node may be silent to it
        while time.monotonic() < end:
            assert busy()
        assert operator("SCRIPT", "KILL") == "OK"
        assert client.read() is None
    assert client("RPUSH", name, "a") == 1


def test_unblocked_by_an_operator(backend, client, name):
    client.send(encode("BLPOP", name, "0"))
    until(lambda: blocked(backend) == 1, what="the client to be blocked")
    node = backend.node_of(name)
    for line in node.run("CLIENT", "LIST").splitlines():
        if "flags=b" in line:
            assert node.run("CLIENT", "UNBLOCK", line.split()[0][3:], "ERROR") == 1
    assert str(client.read()).startswith("UNBLOCKED")
    assert client("PING") == "PONG"


def test_slots_move(start_cluster, start_proxy, connect):
    """MOVED, ASK and a slot that moves away while a client is blocked on it."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy)
    name = "{slots}"
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    slot = slot_of(name)
    assert client("LLEN", name) == 0

    give_slot(cluster, slot, source, target)  # the proxy's map is old: MOVED
    client.send(encode("BLPOP", name, "0"))
    until(lambda: blocked_at(target) == 1, what="the client to be blocked at the slot's node")
    give_slot(cluster, slot, target, source)  # Redis sends those that are blocked after the slot
    until(lambda: blocked_at(source) == 1, what="the client to have followed")
    assert client_of(proxy)("RPUSH", name, "a") == 1
    assert client.read() == [name, "a"]

    target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source.run("CLUSTER", "MYID"))
    source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target.run("CLUSTER", "MYID"))
    client.send(encode("BLPOP", name, "0"))  # the key is not there: ASK
    until(lambda: blocked_at(target) == 1, what="the client to be blocked at the importing node")
    with target.client() as importing:
        importing.send(encode("ASKING") + encode("RPUSH", name, "b"))
        assert [importing.read(), importing.read()] == ["OK", 1]
    assert client.read() == [name, "b"]


def client_of(proxy):
    return Client(proxy.address)


# ---- a client library ---------------------------------------------------------------------------------------


def test_library(proxy, name):
    redis = pytest.importorskip("redis")
    library = redis.Redis(*proxy.address, socket_timeout=20, decode_responses=True)
    library.rpush(name, 1, 2)
    assert library.blpop([name, name + "2"], 1) == (name, "1")
    assert library.blmove(name, name + "2", 1) == "2"
    assert library.brpop(name, 1) is None
    library.xadd(name + "s", {"a": 1}, id="1-1")
    assert library.xread({name + "s": "0"}, block=1000) == [[name + "s", [("1-1", {"a": "1"})]]]
    library.close()
