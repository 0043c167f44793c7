"""Subscriptions and MONITOR: messages come as from Redis, between replies, and delay no other client."""

import re
import threading

import pytest

from migration import give_slot
from resp import Closed, Error, Push, encode
from servers import slot_of, until


def info(client, field):
    """A number of PROXY INFO."""
    for line in client("PROXY", "INFO").splitlines():
        if line.startswith(field + ":"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO has no " + field)


@pytest.fixture
def channel(key):
    return key("channel")


def publish(client, channel, message, receivers=None):
    """Repeats until there is a receiver: on a cluster the proxy publishes on any node, and the message has to reach the
    others."""
    reply = client("PUBLISH", channel, message)
    assert isinstance(reply, int) and (receivers is None or reply == receivers), reply


# ---- as in Redis ------------------------------------------------------------------------------------------

# Each is sent command by command; the numbers say how many messages each command is answered with.
SCRIPTS = {
    "one": "SUBSCRIBE a=1|UNSUBSCRIBE a=1|GET {s}k=1",
    "several": "SUBSCRIBE a b c=3|UNSUBSCRIBE b=1|UNSUBSCRIBE a c=2|GET {s}k=1",
    "twice": "SUBSCRIBE a=1|SUBSCRIBE a a b=3|UNSUBSCRIBE a=1|UNSUBSCRIBE a=1|UNSUBSCRIBE b=1|PING=1",
    "patterns": "PSUBSCRIBE a* b*=2|SUBSCRIBE a=1|PUNSUBSCRIBE a*=1|PUNSUBSCRIBE=1|PUNSUBSCRIBE=1|UNSUBSCRIBE a=1|PING=1",
    "nothing": "UNSUBSCRIBE=1|PUNSUBSCRIBE=1|SUNSUBSCRIBE=1|UNSUBSCRIBE a b=2|PUNSUBSCRIBE a*=1|SUNSUBSCRIBE {s}x=1|PING=1",
    "nothing of one kind": "SUBSCRIBE a=1|PUNSUBSCRIBE=1|PUNSUBSCRIBE b=1|SUNSUBSCRIBE=1|UNSUBSCRIBE nosuch=1"
                           "|UNSUBSCRIBE a=1|GET {s}k=1",
    "shards": "SSUBSCRIBE {s}a {s}b=2|SUBSCRIBE c=1|SUNSUBSCRIBE {s}a=1|UNSUBSCRIBE c=1|SUNSUBSCRIBE=1|GET {s}k=1",
    "ping": "SUBSCRIBE a=1|PING=1|PING hello=1|PING x y=1|UNSUBSCRIBE a=1|PING=1",
    "wrong": "SUBSCRIBE=1|SUBSCRIBE a=1|SUBSCRIBE=1|PSUBSCRIBE=1|UNSUBSCRIBE a=1|PSUBSCRIBE=1",
    "reset": "SUBSCRIBE a=1|RESET=1|GET {s}k=1|PING=1",
    "not allowed": "SUBSCRIBE a=1|GET {s}k=1|get=1|NOSUCH=1|SET {s}k 1=1|CLIENT ID=1|CONFIG GET x=1|MULTI=1|EXEC=1|HELLO=1"
                   "|PUBLISH a x=1|BLPOP {s}k 0=1|MGET {s}k {s}l=1|MONITOR=1|SELECT 0=1|PUBSUB CHANNELS=1|INFO=1|GET a b=1"
                   "|UNSUBSCRIBE a=1|GET {s}k=1",
    "quit": "SUBSCRIBE a=1|QUIT=1",
    "hello": "SUBSCRIBE a=1|HELLO 2=1|publish=1|PING=1|PING x=1|GET {s}k=1|UNSUBSCRIBE=1|UNSUBSCRIBE=1|GET {s}k=1|HELLO 3=1"
             "|PSUBSCRIBE a*=1|HELLO 2=1|publish=1|PSUBSCRIBE b=1|HELLO 3=1|PUNSUBSCRIBE=2|GET {s}k=1",
    "hello 3": "HELLO 2=1|SUBSCRIBE a=1|HELLO 3=1|publish=1|RESET=1|PING=1",
    "message": "SUBSCRIBE a=1|publish=1|PSUBSCRIBE ?=1|publish=2|UNSUBSCRIBE=1|publish=1|PUNSUBSCRIBE=1|GET {s}k=1",
}


def play(client, publisher, script, protocol):
    if protocol == 3:
        client("HELLO", "3")
    out = []
    for step in script.split("|"):
        command, count = step.rsplit("=", 1)
        if command == "publish":
            publisher("PUBLISH", "a", "to all")
        else:
            client.send(encode(*command.split(" ")))
        replies = [client.read_raw() for _ in range(int(count))]
        out.append([re.sub(rb"(\$2\r\nid\r\n:)\d+", rb"\1N", reply) for reply in replies])
    return out


@pytest.mark.parametrize("script", [s for s in SCRIPTS if "hello" not in s])
def test_trap_24_same_bytes_resp2(backend, proxy, connect, client, script):
    node = backend.node_of("{s}")
    found = play(connect(proxy), client, SCRIPTS[script], 2)
    expected = play(connect(node), connect(node), SCRIPTS[script], 2)
    if script == "shards":
        found = [sorted(step) for step in found]
        expected = [sorted(step) for step in expected]
    assert found == expected


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s not in ("not allowed", "ping")])
def test_trap_24_same_bytes_resp3(farm, connect, script):
    """On a standalone: the other commands are answered too."""
    backend = farm.backend("standalone")
    backend.flush()
    proxy = farm.proxy("standalone")
    found = play(connect(proxy), connect(proxy), SCRIPTS[script], 3)
    assert found == play(connect(backend), connect(backend), SCRIPTS[script], 3)


@pytest.mark.parametrize("protocol", [2, 3])
def test_one_packet(farm, connect, protocol):
    backend = farm.backend("standalone")
    backend.flush()
    commands = [["SET", "k", "1"], ["INCR", "k"], ["SUBSCRIBE", "a", "b"], ["PING"], ["GET", "k"], ["UNSUBSCRIBE"],
                ["GET", "k"], ["SUBSCRIBE", "c"], ["UNSUBSCRIBE", "c"], ["GET", "k"]]
    replies = []
    for address in (backend, farm.proxy("standalone")):
        client = connect(address)
        if protocol == 3:
            client("HELLO", "3")
        client.send(b"".join(encode(*c) for c in commands))
        got = [client.read_raw() for _ in range(12)]
        assert client("DEL", "k") == 1
        unordered = [i for i, reply in enumerate(got) if b"unsubscribe" in reply][:2]
        # Redis ends the subscriptions of one UNSUBSCRIBE in the order of a hash table
        replies.append([r for i, r in enumerate(got) if i not in unordered] + [len(unordered)])
    assert replies[1] == replies[0]


def test_messages(proxy, connect, client, channel):
    subscriber, pattern = connect(proxy), connect(proxy)
    assert subscriber("SUBSCRIBE", channel) == ["subscribe", channel, 1]
    assert pattern("PSUBSCRIBE", channel + "*") == ["psubscribe", channel + "*", 1]
    for i in range(100):
        publish(client, channel, "message %d" % i)
    for i in range(100):
        assert subscriber.read() == ["message", channel, "message %d" % i]
        assert pattern.read() == ["pmessage", channel + "*", channel, "message %d" % i]
    publish(client, channel + "x", "only patterns")
    assert pattern.read() == ["pmessage", channel + "*", channel + "x", "only patterns"]
    assert subscriber("PING") == ["pong", ""]


def test_large_messages(proxy, connect, client, channel):
    subscriber = connect(proxy)
    subscriber("SUBSCRIBE", channel)
    for size in (0, 1, 4095, 65536, 70000, 5000000):
        publish(client, channel, "x" * size)
        assert subscriber.read() == ["message", channel, "x" * size]


def test_many_subscribers(proxy, connect, client, channel):
    subscribers = [connect(proxy) for _ in range(60)]
    for s in subscribers:
        s("SUBSCRIBE", channel)
    assert info(client, "pinned_subscribed") == 60
    publish(client, channel, "hello")
    for s in subscribers:
        assert s.read() == ["message", channel, "hello"]
        s.close()
    until(lambda: info(client, "pinned_subscribed") == 0, what="the ends of the pins")
    until(lambda: client("PUBSUB", "NUMSUB", channel) == [channel, 0], what="nobody to be subscribed")


def test_mode_is_left_for_good(client, proxy, connect, channel):
    """After the last UNSUBSCRIBE the session is what it was."""
    other = connect(proxy)
    for _ in range(20):
        assert client("SUBSCRIBE", channel) == ["subscribe", channel, 1]
        assert client("UNSUBSCRIBE", channel) == ["unsubscribe", channel, 0]
        assert client("SET", channel, "1") == "OK"
        assert client.pipeline([["MULTI"], ["GET", channel], ["EXEC"]])[-1] == b"*1\r\n$1\r\n1\r\n"
        assert client("SETNX", "lock:" + channel, "1") == 1
        assert client("DEL", "lock:" + channel) == 1
    assert info(other, "pinned_connections") == 0


# ---- RESP3: pushes between replies --------------------------------------------------------------------------


def test_trap_24_pushes_come_between_replies(proxy, connect, client, channel):
    """Replies large and small, and messages all the while: each whole, in its order."""
    subscriber = connect(proxy)
    subscriber("HELLO", "3")
    value = "v" * 400000
    assert subscriber("SET", channel, value) == "OK"
    subscriber.send(encode("SUBSCRIBE", channel))
    assert subscriber.read() == Push(["subscribe", channel, 1])
    done = threading.Event()
    sent = []

    def chatter():
        i = 0
        with connect(proxy) as other:
            while not done.is_set() or i < 50:
                other("PUBLISH", channel, "m%d" % i)
                sent.append(i)
                i += 1

    thread = threading.Thread(target=chatter)
    thread.start()
    pushes = []

    def reply():
        while True:
            got = subscriber.read()
            if not isinstance(got, Push):
                return got
            assert got == ["message", channel, "m%d" % len(pushes)]
            pushes.append(got)

    for i in range(60):
        subscriber.send(encode("GET", channel) + encode("PING") + encode("GET", channel + "none"))
        assert [reply() == value, reply(), reply()] == [True, "PONG", None]
    done.set()
    thread.join()
    while len(pushes) < len(sent):
        got = subscriber.read()
        assert got == Push(["message", channel, "m%d" % len(pushes)])
        pushes.append(got)
    assert len(pushes) >= 50


def test_everything_works_while_subscribed(client, proxy, connect, channel):
    other = connect(proxy)
    client("HELLO", "3")
    assert client("SUBSCRIBE", channel) == ["subscribe", channel, 1]
    assert client("SET", "k", "1") == "OK"
    assert client("SETNX", "lock:" + channel, "1") == 1
    assert client.pipeline([["MULTI"], ["GET", "k"], ["EXEC"]])[-1] == b"*1\r\n$1\r\n1\r\n"
    assert client("RPUSH", channel + "l", "a") == 1
    assert client("BLPOP", channel + "l", "0") == [channel + "l", "a"]
    client.send(encode("BLPOP", channel + "l", "0"))
    until(lambda: info(other, "pinned_blocking") == 1, what="the client to be blocked")
    publish(other, channel, "while blocked")
    assert client.read() == Push(["message", channel, "while blocked"])
    other("RPUSH", channel + "l", "b")
    assert client.read() == [channel + "l", "b"]
    assert client("DEL", "lock:" + channel) == 1
    assert client("RESET") == "RESET"
    assert client("PING") == "PONG"


# ---- shard channels ----------------------------------------------------------------------------------------


def channels_of_nodes(cluster, channel):
    names = {}
    for i in range(200):
        names.setdefault(cluster.node_of("%s-%d" % (channel, i)), "%s-%d" % (channel, i))
    assert len(names) == 3
    return list(names.values())


def test_shard_channels_of_all_nodes(farm, connect, channel):
    cluster = farm.backend("cluster")
    proxy = farm.proxy("cluster")
    subscriber, other = connect(proxy), connect(proxy)
    names = channels_of_nodes(cluster, channel)
    assert subscriber("SSUBSCRIBE", names[0], names[1]) == "CROSSSLOT Keys in request don't hash to the same slot"
    for i, name in enumerate(names, 1):
        assert subscriber("SSUBSCRIBE", name) == ["ssubscribe", name, i]
    assert subscriber("SUBSCRIBE", channel) == ["subscribe", channel, 1]
    for name in names:
        assert other("SPUBLISH", name, "to " + name) == 1
        assert subscriber.read() == ["smessage", name, "to " + name]
    other("PUBLISH", channel, "to all")
    assert subscriber.read() == ["message", channel, "to all"]
    assert subscriber("SUNSUBSCRIBE", names[1]) == ["sunsubscribe", names[1], 2]
    assert subscriber("SUNSUBSCRIBE", names[1]) == ["sunsubscribe", names[1], 2]
    assert str(subscriber("GET", "k")).startswith("ERR Can't execute 'get'")
    assert subscriber("UNSUBSCRIBE") == ["unsubscribe", channel, 0]
    assert str(subscriber("GET", "k")).startswith("ERR Can't execute 'get'")
    subscriber.send(encode("SUNSUBSCRIBE"))
    got = [subscriber.read(), subscriber.read()]
    assert sorted(g[1] for g in got) == sorted([names[0], names[2]])
    assert [g[2] for g in got] == [1, 0]
    assert subscriber("SET", channel, "1") == "OK"
    assert info(other, "pinned_subscribed") == 0


def test_shard_channel_moves(start_cluster, start_proxy, connect):
    """The proxy's map is old: it follows; and a subscription ends as Redis ends it when its slot moves away."""
    cluster = start_cluster()
    client = connect(start_proxy(cluster))
    name = "{shard}"
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    assert client("GET", name) is None
    give_slot(cluster, slot_of(name), source, target)
    assert client("SSUBSCRIBE", name) == ["ssubscribe", name, 1]
    assert target.run("SPUBLISH", name, "x") == 1
    assert client.read() == ["smessage", name, "x"]
    give_slot(cluster, slot_of(name), target, source)
    assert client.read() == ["sunsubscribe", name, 0]
    assert client("GET", name) is None


# ---- MONITOR ------------------------------------------------------------------------------------------------


def test_monitor(backend, proxy, connect, client, key):
    monitor = connect(proxy)
    assert monitor("MONITOR") == "OK"
    names = [key("seen") for _ in range(30)]
    for name in names:
        assert client("SET", name, "1") == "OK"
    seen = set()
    while len(seen) < len(names):
        line = monitor.read()
        for name in names:
            if '"SET" "%s"' % name in line:
                seen.add(name)
    assert info(client, "pinned_monitor") == len(backend.nodes)
    monitor.close()
    until(lambda: info(client, "pinned_monitor") == 0, what="the ends of the pins")


def test_monitor_ends_with_reset(client, proxy, connect):
    other = connect(proxy)
    assert client("MONITOR") == "OK"
    client.send(encode("RESET"))
    until(lambda: client.read() == "RESET", what="the answer to RESET")
    assert info(other, "pinned_monitor") == 0
    other("SET", "k", "1")
    assert client("GET", "k") == "1"


def test_trap_25_monitor_holds_nobody_up(backend, start_proxy, connect):
    """A MONITOR whose output is not read is dropped at the output limit; other clients don't wait."""
    proxy = start_proxy(backend, "client-output-buffer-limit normal 256kb 0 0")
    monitor, other = connect(proxy), connect(proxy)
    assert monitor("MONITOR") == "OK"
    value = "x" * 50000
    for _ in range(400):
        assert other("SET", "k", value) == "OK"
    until(lambda: info(other, "pinned_monitor") == 0, what="the end of the MONITOR")
    assert other("GET", "k") == value
    assert "client-output-buffer-limit" in proxy.log()


def test_other_commands_beside_monitor(client, connect, proxy):
    assert client("MONITOR") == "OK"
    client.send(encode("SET", "mine", "1") + encode("MONITOR") + encode("GET", "mine"))
    replies = []
    while len(replies) < 2:
        got = client.read()
        if not (got and got[0].isdigit() and "[0 " in got):
            replies.append(got)
    assert replies == ["OK", "1"]


# ---- clients that leave, connections that are lost --------------------------------------------------------------


def test_slow_subscriber(backend, start_proxy, connect, channel):
    proxy = start_proxy(backend, "client-output-buffer-limit normal 256kb 0 0")
    slow, quick, other = connect(proxy), connect(proxy), connect(proxy)
    slow("SUBSCRIBE", channel)
    quick("SUBSCRIBE", channel)
    for i in range(300):
        other("PUBLISH", channel, "x" * 50000)
        assert quick.read()[2] == "x" * 50000
    until(lambda: info(other, "pinned_subscribed") == 1, what="the slow one to be dropped")


def test_half_close_and_close(client, proxy, connect, channel):
    for leave in ("close", "shutdown"):
        other = connect(proxy)
        other("SUBSCRIBE", channel)
        getattr(other, leave)()
        until(lambda: info(client, "pinned_subscribed") == 0, what="the end of the pin")


def test_node_lost(backend, proxy, client, connect, channel):
    """As if Redis itself had gone: the client is told by the end of its connection, and can subscribe anew."""
    subscriber = connect(proxy)
    subscriber("SUBSCRIBE", channel)
    for node in backend.nodes:
        node.run("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises(Closed):
        subscriber.read()
    assert client("SUBSCRIBE", channel) == ["subscribe", channel, 1]


def test_node_down(start_redis, start_proxy, connect, channel):
    redis = start_redis()
    client = connect(start_proxy(redis))
    assert client("PING") == "PONG"
    redis.kill()
    for command in (["SUBSCRIBE", channel], ["MONITOR"], ["SSUBSCRIBE", channel]):
        reply = client(*command)
        assert isinstance(reply, Error) and reply.startswith("UPSTREAM"), reply
    redis.start()
    until(lambda: client("PING") == "PONG", what="the node to be served again")
    assert client("SUBSCRIBE", channel) == ["subscribe", channel, 1]


def test_idle_timeout_spares_subscribers(backend, start_proxy, connect, channel):
    proxy = start_proxy(backend, "upstream-timeout 300ms", "timeout 1")
    subscriber, idle = connect(proxy), connect(proxy)
    subscriber("SUBSCRIBE", channel)
    with pytest.raises(Closed):
        idle.read()
    with connect(proxy) as other:
        publish(other, channel, "still there")
    assert subscriber.read() == ["message", channel, "still there"]


def test_users(start_redis, start_proxy, connect):
    redis = start_redis()
    redis.run("ACL", "SETUSER", "bob", "on", ">secret", "~*", "+@all", "-monitor", "resetchannels", "&mine")
    client = connect(start_proxy(redis))
    assert client("AUTH", "bob", "secret") == "OK"
    assert str(client("SUBSCRIBE", "other")).startswith("NOPERM")
    assert client("PING") == "PONG"
    assert str(client("MONITOR")).startswith("NOPERM")
    assert client("PING") == "PONG"
    assert client("SUBSCRIBE", "mine") == ["subscribe", "mine", 1]
    assert str(client("SUBSCRIBE", "other")).startswith("NOPERM")
    assert client("UNSUBSCRIBE") == ["unsubscribe", "mine", 0]


# ---- a client library -------------------------------------------------------------------------------------------


def test_library(proxy, channel):
    redis = pytest.importorskip("redis")
    library = redis.Redis(*proxy.address, socket_timeout=20, decode_responses=True)
    pubsub = library.pubsub()
    pubsub.subscribe(channel)
    pubsub.psubscribe(channel + "*")
    assert [pubsub.get_message(timeout=10)["type"] for _ in range(2)] == ["subscribe", "psubscribe"]
    library.publish(channel, "hello")
    kinds = sorted(pubsub.get_message(timeout=10)["type"] for _ in range(2))
    assert kinds == ["message", "pmessage"]
    pubsub.unsubscribe()
    pubsub.punsubscribe()
    assert [pubsub.get_message(timeout=10)["type"] for _ in range(2)] == ["unsubscribe", "punsubscribe"]
    pubsub.close()
    with library.monitor() as monitor:
        library.set(channel, "1")
        until(lambda: channel in monitor.next_command()["command"], what="the command to be seen")
    library.close()


# ---- PUBSUB -------------------------------------------------------------------------------------------------


def test_pubsub_counts_all_clients(backend, start_proxy, connect, oracle):
    """Whatever thread a client is on and whatever node it subscribed at: what one Redis would say of them."""
    own = start_proxy(backend, "threads 2")
    found = []
    for where in (oracle, own):
        made = [connect(where) for _ in range(8)]
        for i, c in enumerate(made):
            c("SUBSCRIBE", "news:%d" % (i % 3))
            c("PSUBSCRIBE", "pattern:%d*" % i)
            c("SSUBSCRIBE", "shard:%d" % (i % 2))
        asker = connect(where)
        found.append([sorted(asker("PUBSUB", "CHANNELS")), sorted(asker("PUBSUB", "CHANNELS", "news:[01]")),
                      asker("PUBSUB", "NUMSUB", "news:0", "nosuch", "news:1", "news:0"), asker("PUBSUB", "NUMSUB"),
                      asker("PUBSUB", "NUMPAT"), sorted(asker("PUBSUB", "SHARDCHANNELS")),
                      asker("PUBSUB", "SHARDNUMSUB", "shard:0", "shard:1", "nosuch"), asker("PUBSUB", "NOSUCH"), asker("PUBSUB"),
                      asker("SPUBLISH", "shard:0", "x"), asker("PUBLISH", "nobody:hears", "x")])
    assert found[1] == found[0]


# ---- keyspace notifications ---------------------------------------------------------------------------------

# With an expiry, or as data: the proxy adds nothing to these events, and so they look as they do in Redis.
SAME_EVENTS = [
    ("SET", "lock:a", "v", "NX", "PX", 60000), ("SET", "lock:a", "w", "NX", "PX", 60000), ("GET", "lock:a"),
    ("PEXPIRE", "lock:a", 90000), ("DEL", "lock:a"), ("DEL", "lock:a"), ("SET", "plain", "v"), ("SETEX", "plain", 60, "v"),
    ("SETEX", "lock:b", 60, "v"), ("SETEX", "lock:b", 60, "w"), ("PERSIST", "plain"), ("UNLINK", "lock:b"),
    ("EVAL", "return redis.call('set', KEYS[1], 'literal', 'NX', 'PX', 60000)", 1, "lock:c"), ("GETDEL", "lock:c"),
    ("EVAL", "return redis.call('get', KEYS[1])", 1, "lock:c"), ("DEL", "plain", "lock:a"),
    ("SET", "lockkeeper:{x}:y", "mine"),
]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("subscribe", [("SUBSCRIBE", "__keyevent@0__:set", "__keyevent@0__:hset", "__keyevent@0__:expire",
                                        "__keyevent@0__:del", "__keyevent@0__:expired"),
                                       ("PSUBSCRIBE", "__keyevent@0__:*"), ("PSUBSCRIBE", "__keyspace@0__:*"),
                                       ("PSUBSCRIBE", "*")])
def test_keyspace_notifications_without_guard_records(start_redis, start_proxy, connect, protocol, subscribe):
    redis, other = start_redis(), start_redis()
    proxy = start_proxy(redis)
    told = []
    for node, front in ((redis, proxy), (other, other)):
        node.run("CONFIG", "SET", "notify-keyspace-events", "KEA")
        listener, client = connect(front, commands=[("HELLO", protocol)]), connect(front)
        listener.send(encode(*subscribe))
        for _ in subscribe[1:]:
            listener.read()
        for command in SAME_EVENTS:
            client(*command)
        node.run("SET", "last", 1)
        node.run("DEL", "last")
        found = []
        while sum("last" in str(message) for message in found) < (4 if subscribe[1] == "*" else 2):
            found.append(listener.read())
        told.append(found)
    assert told[0] == told[1]


def test_events_of_a_lease_given(start_redis, start_proxy, connect):
    """The expiry that the proxy sets causes an event of the lock; its guard record causes none."""
    redis = start_redis()
    proxy = start_proxy(redis)
    redis.run("CONFIG", "SET", "notify-keyspace-events", "KEA")
    listener, client = connect(proxy), connect(proxy)
    listener("PSUBSCRIBE", "__keyevent@0__:*")
    assert client("SETNX", "lock:a", "v") == 1 and client("DEL", "lock:a") == 1
    assert client("EVAL", "return redis.call('setnx', KEYS[1], 'v')", 1, "lock:a") == 1 and client("DEL", "lock:a") == 1
    redis.run("SET", "last", 1)
    found = []
    while not found or found[-1][-1] != "last":
        found.append(listener.read()[2:])
    assert found[:-1] == [["__keyevent@0__:" + event, "lock:a"] for event in ("set", "expire", "del") * 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_subscribers_that_come_and_go_are_not_counted(start_redis, start_proxy, connect, threads):
    """On any threads: a client that left before Redis is asked is not counted, as by Redis itself."""
    proxy = start_proxy(start_redis(), "threads %d" % threads)
    asker = connect(proxy)
    for n in range(100):
        crowd = [connect(proxy) for _ in range(5)]
        for c in crowd:
            assert c("SUBSCRIBE", "news") == ["subscribe", "news", 1]
        assert asker("PUBSUB", "NUMSUB", "news") == ["news", 5]
        for c in crowd:
            c.close()
        if n % 2:
            asker = connect(proxy)
        assert asker("PUBSUB", "NUMSUB", "news") == ["news", 0]
        assert asker("PUBSUB", "CHANNELS") == []
    one, two = connect(proxy), connect(proxy)
    assert one.pipeline([["PUBSUB", "NUMPAT"], ["PUBSUB", "NUMPAT"], ["PING"], ["PUBSUB", "NUMSUB"]]) == [
        b":0\r\n", b":0\r\n", b"+PONG\r\n", b"*0\r\n"]
    two.send(encode("PUBSUB", "NUMSUB", "news"))
    two.close()
    assert one("PUBSUB", "HELP")[0].startswith("PUBSUB")
