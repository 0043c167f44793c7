"""Before a cluster, an attempt that waits at another proxy is told of a release over the channel of the lock's slot."""

import itertools
import time

import pytest

import servers
from migration import give_slot
from resp import encode
from servers import slot_of
from test_waiting import await_waiting

RULE = "lock lock:* wait 60s"
PLAIN = "lockkeeper-freed"
PLACES = 1024  # so many slots a thread listens for at once


@pytest.fixture(scope="module")
def cluster(farm):
    return farm.backend("cluster")


@pytest.fixture
def pair(start_proxy, connect):
    """pair(cluster, line...): makers of clients of two proxies."""
    serial = itertools.count(1)

    def maker(proxy):
        return lambda: connect(proxy, commands=[("CLIENT", "SETNAME", "pair-%d" % next(serial))])

    return lambda backend, *lines: [maker(start_proxy(backend, *(lines or (RULE,)))) for _ in range(2)]


def channel_of(node, name):
    """The channel of the slot of a lock that is held."""
    guard = next(k for k in node.run("KEYS", "lockkeeper:*") if k.endswith("}:" + name))
    channel = PLAIN + guard[len("lockkeeper"):-len(name) - 1]
    assert slot_of(channel) == slot_of(name)
    return channel


def listeners(node, channel):
    return node.run("PUBSUB", "SHARDNUMSUB", channel)[1]


def await_listeners(node, channel, count):
    servers.until(lambda: listeners(node, channel) == count, what="%d who listen on %s" % (count, channel))


def hand_over(holder, waiter, name):
    """Returns the time from the release until the waiting client has the lock."""
    begun = time.monotonic()
    assert holder("DEL", name) == 1
    assert waiter.read() == 1
    return time.monotonic() - begun


def rounds(here, there, names, ready):
    """Has each of the locks change hands from a proxy to the other one, and returns how long that took. ready(NAME): the
    other proxy listens."""
    took = []
    for name in names:
        holder, second = here(), there()
        assert holder("SETNX", name, 1) == 1
        second.send(encode("SETNX", name, 2))
        await_waiting(second.other, 1)
        ready(name)
        took.append(hand_over(holder, second, name))
        assert second("DEL", name) == 1
    return sorted(took)


@pytest.fixture
def watched():
    """watched(MAKER): the same, with another client on each, which may look while clients wait."""

    def wrap(maker):
        watch = maker()

        def make():
            client = maker()
            client.other = watch
            return client

        return make

    return wrap


def soon(took):
    """No attempt needed its next check, which comes after 100 ms; a busy machine may spoil some rounds."""
    assert took[len(took) // 3] < 0.06, took


def test_release_wakes_over_the_slots_channel(cluster, pair, watched):
    """On each node, and the other nodes hear nothing of it."""
    here, there = pair(cluster)
    with cluster.nodes[0].client() as ear, cluster.nodes[0].client() as mark:
        assert ear("SUBSCRIBE", PLAIN)[0] == "subscribe"
        names = ["lock:slot:wake:%d" % i for i in range(9)]
        assert {cluster.node_of(name) for name in names} == set(cluster.nodes)

        def ready(name):
            node = cluster.node_of(name)
            await_listeners(node, channel_of(node, name), 1)

        soon(rounds(here, watched(there), names, ready))
        assert mark("PUBLISH", PLAIN, "the end") >= 1
        assert ear.read() == ["message", PLAIN, "the end"]


def test_what_is_said(cluster, pair, connect, key):
    """The waiting proxy's name, the database and the lock's name, once."""
    here, there = pair(cluster)
    name = key("lock:slot:said")
    node = cluster.node_of(name)
    holder, second, watch = here(), there(), there()
    assert holder("SETNX", name, 1) == 1
    channel = channel_of(node, name)
    with node.client() as ear:
        assert ear("SSUBSCRIBE", channel) == ["ssubscribe", channel, 1]
        second.send(encode("SETNX", name, 2))
        await_waiting(watch, 1)
        await_listeners(node, channel, 2)
        hand_over(holder, second, name)
        kind, where, said = ear.read()
        assert (kind, where, said.split(" ", 1)[1]) == ("smessage", channel, "0 " + name)
        assert second("DEL", name) == 1
        assert node.run("SPUBLISH", channel, "the end") == 2
        assert ear.read() == ["smessage", channel, "the end"]


def test_release_right_behind_the_first_refusal(cluster, pair, watched, key):
    """The proxy does not listen for the slot yet: it looks again soon."""
    here, there = pair(cluster)
    there = watched(there)
    first = there()
    assert first("SETNX", key("lock:other"), 1) == 1
    took = rounds(here, there, [key("lock:slot:quick:%d" % i) for i in range(9)], lambda name: None)
    soon(took)


def test_slot_moves(start_cluster, pair, watched):
    """The node reports that it has given the slot up; the proxy of the waiting client listens at the other node."""
    cluster = start_cluster()
    here, there = pair(cluster, RULE, "threads 1")
    there = watched(there)
    name = "lock:slot:moves"
    slot = slot_of(name)
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    took = []
    for old, new in [(source, target), (target, source), (source, target)]:
        holder, second = here(), there()
        assert holder("SETNX", name, 1) == 1
        channel = channel_of(old, name)
        second.send(encode("SETNX", name, 2))
        await_waiting(second.other, 1)
        await_listeners(old, channel, 1)
        keys = old.run("CLUSTER", "GETKEYSINSLOT", slot, 10)
        assert name in keys
        new.run("CLUSTER", "SETSLOT", slot, "IMPORTING", old.run("CLUSTER", "MYID"))
        old.run("CLUSTER", "SETSLOT", slot, "MIGRATING", new.run("CLUSTER", "MYID"))
        old.run("MIGRATE", new.host, new.port, "", 0, 5000, "KEYS", *keys)
        give_slot(cluster, slot, old, new)
        await_listeners(new, channel, 1)
        assert listeners(old, channel) == 0
        took.append(hand_over(holder, second, name))
        assert second("DEL", name) == 1
    assert min(took) < 0.06, took


def test_lost_node_is_listened_to_again(start_cluster, pair, watched):
    """Its connection is closed: the waiting attempts subscribe to the slot again."""
    cluster = start_cluster()
    here, there = pair(cluster, RULE, "threads 1")
    there = watched(there)
    name = "lock:slot:closed"
    node = cluster.node_of(name)
    holder, second = here(), there()
    assert holder("SETNX", name, 1) == 1
    channel = channel_of(node, name)
    second.send(encode("SETNX", name, 2))
    await_waiting(second.other, 1)
    await_listeners(node, channel, 1)
    assert node.run("CLIENT", "KILL", "TYPE", "pubsub") == 1
    await_listeners(node, channel, 1)
    hand_over(holder, second, name)


def test_nodes_that_know_no_channels_of_slots(start_cluster, pair, watched):
    """Servers before 7.0: all is said to all nodes, and each proxy hears it once."""
    cluster = start_cluster("--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", "")
    here, there = pair(cluster, RULE, "threads 1")

    def ready(name):
        servers.until(lambda: sum(n.run("PUBSUB", "NUMSUB", PLAIN)[1] for n in cluster.nodes) == 1, what="who listens")

    soon(rounds(here, watched(there), ["lock:old:%d" % i for i in range(9)], ready))


def colliding():
    """Two names whose slots use the same place."""
    by_place = {}
    for i in itertools.count():
        name = "lock:place:%d" % i
        other = by_place.setdefault(slot_of(name) % PLACES, name)
        if slot_of(other) != slot_of(name):
            return other, name


def test_places_are_bounded(cluster, pair, watched):
    """An attempt for a lock whose slot's place is taken learns of the release by its check; an unused place is freed."""
    here, there = pair(cluster, RULE, "threads 1")
    there = watched(there)
    names = colliding()
    nodes = [cluster.node_of(name) for name in names]
    holder, first, second = here(), there(), there()
    for name in names:
        assert holder("SETNX", name, 1) == 1
    channels = [channel_of(node, name) for node, name in zip(nodes, names)]
    first.send(encode("SETNX", names[0], 2))
    await_waiting(first.other, 1)
    await_listeners(nodes[0], channels[0], 1)
    second.send(encode("SETNX", names[1], 2))
    await_waiting(first.other, 2)
    hand_over(holder, second, names[1])
    assert listeners(nodes[1], channels[1]) == 0 and listeners(nodes[0], channels[0]) == 1
    hand_over(holder, first, names[0])
    third = there()
    third.send(encode("SETNX", names[1], 3))  # the other place is free a second later
    await_waiting(first.other, 1)
    await_listeners(nodes[1], channels[1], 1)
    await_listeners(nodes[0], channels[0], 0)
    assert second("DEL", names[1]) == 1
    assert third.read() == 1
    assert third("DEL", names[1]) == 1 and first("DEL", names[0]) == 1


# What is forbidden, and to which user: that of the releasing client, or the proxy's own.
REFUSALS = {"channel": ("app", ["resetchannels"]), "spublish": ("app", ["-spublish"]), "ssubscribe": ("own", ["-ssubscribe"]),
            "subscribe": ("own", ["resetchannels"])}


@pytest.mark.parametrize("what", REFUSALS)
def test_who_may_not_speak_or_listen(start_cluster, start_proxy, connect, what):
    """The release is carried out, and the waiting attempt learns of it by its next check."""
    who, less = REFUSALS[what]
    cluster = start_cluster()
    for node in cluster.nodes:
        for user in ("app", "own"):
            node.run("ACL", "SETUSER", user, "on", ">p", "~*", "&*", "+@all", *(less if user == who else []))
    lines = [RULE, "upstream-user own", "upstream-password p"]
    here, there = [start_proxy(cluster, *lines) for _ in range(2)]

    def client(proxy):
        return connect(proxy, commands=[("AUTH", "app", "p")])

    holder, second, watch = client(here), client(there), client(there)
    for i in range(3):
        name = "lock:acl:%d" % i
        assert holder("SETNX", name, 1) == 1
        second.send(encode("SETNX", name, 2))
        await_waiting(watch, 1)
        hand_over(holder, second, name)
        assert second("DEL", name) == 1
