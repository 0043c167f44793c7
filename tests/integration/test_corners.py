"""Rare cases that a review of the code found: each test here failed once."""

import os
import signal
import socket
import time

import pytest

from fake import FakeNode, slot_map
from resp import Error, encode
from servers import HOST, SLOTS, Proxy, guard_record, slot_of, until


# ---- ways around a lock -----------------------------------------------------------------------


@pytest.fixture
def held(proxy, connect, key):
    """A lock that another client holds: its name."""
    name = key("lock:{corner}")
    owner = connect(proxy, commands=[("CLIENT", "SETNAME", "owner")])
    assert owner("SET", name, "mine", "NX", "EX", 50) == "OK"
    return name


MANY = 14  # of a word that Redis lets one repeat


@pytest.mark.parametrize("words, refusal", [
    (["SET", None, "theirs"] + ["XX"] * MANY, None),
    (["SET", None, "theirs", "EX", 5] + ["XX"] * 100, None),
    (["EXPIRE", None, 1] + ["XX"] * MANY, 0),
    (["PEXPIRE", None, 1] + ["XX"] * 100, 0),
    (["GETEX", None] + ["PERSIST"] * 16, "mine"),
])
def test_words_that_are_repeated_lead_around_no_lock(held, client, direct, words, refusal):
    reply = client(*[held if w is None else w for w in words])
    assert reply == refusal or isinstance(reply, Error)
    assert direct("GET", held) == "mine"
    assert direct("PTTL", held) > 20000


def test_repeated_words_do_what_they_do_in_redis(client, oracle, connect, key):
    name = key("lock:words")
    plain = connect(oracle)
    for words in [["SET", name, "a"] + ["KEEPTTL"] * 20, ["SET", name, "b"] + ["XX"] * 20,
                  ["EXPIRE", name, 100] + ["XX"] * 20, ["EXPIRE", name, 100] + ["NX"] * 20,
                  ["SET", name, "c"] + ["EX", 10] * 10, ["GETEX", name] + ["PERSIST"] * 30, ["DEL", name]]:
        reply, right = client.raw(*words), plain.raw(*words)
        assert reply == right or words[0] == "EXPIRE", words


@pytest.mark.parametrize("words", [
    ["SORT", "{corner}list", "STORE", "{corner}other", "STORE", None],
    ["SORT", "{corner}list", "GET", "store", "STORE", None],
    ["SORT", "{corner}list", "BY", "store", "STORE", None],
    ["GEORADIUS", "{corner}places", 15, 37, 200, "km", "STORE", "{corner}other", "STORE", None],
    ["GEORADIUS", "{corner}places", 15, 37, 200, "km", "STORE", "{corner}other", "STOREDIST", None],
    ["GEORADIUSBYMEMBER", "{corner}places", "store", 200, "km", "STORE", None],
])
def test_the_destination_is_the_one_that_redis_takes(held, client, direct, words):
    client("RPUSH", "{corner}list", 3, 1, 2)
    client("GEOADD", "{corner}places", 13.36, 38.11, "store", 15.08, 37.5, "b")
    reply = client(*[held if w is None else w for w in words])
    assert direct("TYPE", held) == "string" and direct("GET", held) == "mine", reply
    assert str(reply).startswith("LOCKED"), reply


def test_restore_asking_is_a_restore(held, client, direct, connect, backend, key):
    client("SET", "{corner}x", "theirs")
    with connect(backend.node_of(held)) as node:
        node.send(encode("DUMP", "{corner}x"))
        raw = node.read_raw()
    dump = raw[raw.index(b"\r\n") + 2 : -2]
    reply = client("RESTORE-ASKING", held, 0, dump, "REPLACE")
    assert direct("GET", held) == "mine"
    assert str(reply).startswith("LOCKED")


# ---- order ------------------------------------------------------------------------------------


def test_a_replacing_script_is_not_overtaken(backend, client, key):
    """The node knows no script at first: the command is sent twice, and what is behind it has to wait."""
    for _ in range(3):
        lock, other = key("lock:{order}"), key("{order}other")
        for node in backend.nodes:
            node.run("SCRIPT", "FLUSH")
        replies = client.pipeline([["MSET", lock, 1, other, "first"], ["SET", other, "second"], ["GET", other],
                                   ["DEL", lock]])
        assert replies[:3] == [b"+OK\r\n", b"+OK\r\n", b"$6\r\nsecond\r\n"]
        assert client("GET", other) == "second"


def test_a_look_at_all_keys_is_behind_the_lock_commands_before_it(backend, client, key):
    lock = key("lock:order")
    for node in backend.nodes:
        node.run("SCRIPT", "FLUSH")
    replies = client.pipeline([["SETNX", lock, 1], ["KEYS", "lock:*"]])
    assert replies == [b":1\r\n", b"*1\r\n$%d\r\n%s\r\n" % (len(lock), lock.encode())]
    for node in backend.nodes:
        node.run("SCRIPT", "FLUSH")
    client("DEL", lock)
    for node in backend.nodes:
        node.run("SCRIPT", "FLUSH")
    replies = client.pipeline([["SETNX", lock, 1], ["FLUSHALL"], ["EXISTS", lock]])
    assert replies == [b":1\r\n", b"+OK\r\n", b":0\r\n"]


@pytest.mark.parametrize("first", ["node", "client"])
def test_half_close_while_requests_wait(start_proxy, connect, first):
    """The answer that lets them go on and the client's end come in the same turn of the loop."""
    waiting, selects = [], []

    def handler(words, connection):
        if words[0].upper() == b"SELECT":
            selects.append(connection)
            if len(selects) == 2:  # the first begins the connection, the second is the client's
                waiting.append(connection)
                return b""
        return b"+PONG\r\n" if words[0].upper() == b"PING" else b"+OK\r\n"

    node = FakeNode(handler)
    proxy = start_proxy("standalone 127.0.0.1:%d" % node.port)
    with connect(proxy) as c:
        c.send(encode("SELECT", 3) + encode("SET", "a", 1) + encode("SET", "b", 2))
        until(lambda: waiting, what="the node's being asked")
        proxy.signal(signal.SIGSTOP)
        if first == "node":
            waiting[0].send(b"+OK\r\n")
            c.shutdown()
        else:
            c.shutdown()
            waiting[0].send(b"+OK\r\n")
        proxy.signal(signal.SIGCONT)
        assert c.read_all() == b"+OK\r\n+OK\r\n+OK\r\n"
    node.stop()


class TwoNodes:
    """A cluster of two nodes: a key {a} is the first one's, a key {b} the second one's. Answers are given by hand."""

    def __init__(self):
        self.asked = []
        self.nodes = []
        self.nodes += [FakeNode(self.handle), FakeNode(self.handle)]
        self.upstream = "cluster 127.0.0.1:%d" % self.nodes[0].port

    def handle(self, words, connection):
        if words[0].upper() == b"CLUSTER":
            half = slot_of("{b}")
            assert slot_of("{a}") > half
            return slot_map((half + 1, SLOTS - 1, HOST, self.nodes[0].port), (0, half, HOST, self.nodes[1].port))
        if words[0].upper() == b"PING":
            return b"+PONG\r\n"
        self.asked.append((words, connection))
        return b""

    def await_asked(self, count):
        until(lambda: len(self.asked) >= count, what="%d requests at the nodes" % count)

    def answer(self, word, data):
        next(c for words, c in self.asked if word in words).send(data)

    def stop(self):
        for node in self.nodes:
            node.stop()


@pytest.fixture
def two_nodes():
    nodes = TwoNodes()
    yield nodes
    nodes.stop()


def test_half_of_an_answer_that_is_not_the_clients(start_proxy, connect, two_nodes):
    """A script's answer is in the middle when the reply before it leaves: nothing of it is the client's yet."""
    proxy = start_proxy(two_nodes.upstream, "lock lock:*")
    value = b"v" * 300000
    envelope = b"*6\r\n$%d\r\n%s\r\n$4\r\nheld\r\n:5\r\n:-3\r\n$1\r\no\r\n:0\r\n" % (len(value), value)
    with connect(proxy) as c:
        c.send(encode("GET", "{a}") + encode("GET", "lock:{b}"))
        two_nodes.await_asked(2)
        two_nodes.answer(b"lock:{b}", envelope[:200000])
        until(lambda: "in_flight=1" in c2_info(proxy), what="both nodes' being asked")
        time.sleep(0.2)  # for the part to arrive, which shows nowhere
        two_nodes.answer(b"{a}", b"$1\r\na\r\n")
        assert c.read_raw() == b"$1\r\na\r\n"
        two_nodes.answer(b"lock:{b}", envelope[200000:])
        assert c.read_raw() == b"$%d\r\n%s\r\n" % (len(value), value)


def c2_info(proxy):
    with proxy.client() as c:
        return c("PROXY", "INFO", "upstreams")


def test_info_speaks_for_all_threads(start_redis, start_proxy, connect):
    """Whichever thread is asked: the nodes' figures are the sums, and a second old at most."""
    redis = start_redis()
    proxy = start_proxy(redis, "threads 3", "upstream-timeout 60s")
    clients = [connect(proxy) for _ in range(24)]
    assert [c("GET", "k") for c in clients] == [None] * 24
    redis.pause()
    for c in clients:
        c.send(encode("GET", "k"))
    for _ in range(8):
        until(lambda: "in_flight=24," in c2_info(proxy), what="all threads' requests")
    redis.resume()
    assert [c.read() for c in clients] == [None] * 24
    until(lambda: "in_flight=0," in c2_info(proxy), what="the end of all threads' requests")


def test_replies_that_wait_for_others_count_as_output(start_proxy, connect, two_nodes):
    """One node is slow, another sends much: the client's limit is for both."""
    proxy = start_proxy(two_nodes.upstream, "client-output-buffer-limit normal 2mb 0 0")
    with connect(proxy) as c:
        c.send(encode("GET", "{a}") + encode("GET", "{b}") * 8)
        two_nodes.await_asked(9)
        big = b"$1000000\r\n" + b"v" * 1000000 + b"\r\n"
        two_nodes.answer(b"{b}", big)
        assert "client-output-buffer-limit" not in proxy.log()
        two_nodes.answer(b"{b}", big * 2)
        assert c.read_all() == b""
    until(lambda: "does not read its replies" in proxy.log(), what="the limit's work")


# ---- start and stop -----------------------------------------------------------------------------


def test_stop_before_the_first_answer_of_the_node(start_proxy):
    """It never was ready, and doesn't say so while it stops."""
    node = FakeNode(lambda words, connection: b"", strangers=False)
    proxy = start_proxy("standalone 127.0.0.1:%d" % node.port, wait=False)
    until(lambda: node.requests, what="the proxy's first request")
    proxy.stop()
    assert "Ready to accept connections" not in proxy.log()
    node.stop()


def test_release_on_disconnect_when_the_proxy_stops(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* on-disconnect release")
    assert connect(proxy)("SET", "lock:a", 1, "NX", "EX", 1000) == "OK"
    proxy.stop()
    with redis.client() as direct:
        assert direct("EXISTS", "lock:a") == 0


def drop(proxy):
    proxy.kill()
    if proxy in Proxy.started:
        Proxy.started.remove(proxy)
    proxy.remove()


def test_second_signal_while_other_threads_work(start_redis, connect):
    """A client is on one of four threads: usually not on the first one, whose loop handles the signals."""
    redis = start_redis()
    proxy = Proxy(redis, "threads 4", "shutdown-timeout 60", "upstream-timeout 60s")
    try:
        with connect(proxy) as c:
            assert c("PING") == "PONG"
            redis.pause()
            c.send(encode("GET", "a"))
            proxy.expected = False
            proxy.signal(signal.SIGTERM)
            until(lambda: "Received SIGTERM" in proxy.log(), what="the first signal's work")
            time.sleep(0.1)  # for the first thread's end, which shows nowhere
            proxy.signal(signal.SIGTERM)
            assert proxy.process.wait(30) == 0
            proxy.check()
    finally:
        redis.resume()
        drop(proxy)


def test_ctrl_c_is_for_the_proxy_alone(connect):
    """A terminal sends SIGINT to the whole process group; the embedded Redis must live until the proxy has done."""
    proxy = Proxy("embedded", wait=False)
    try:
        proxy.await_ready()
        children = open("/proc/%d/task/%d/children" % (proxy.pid, proxy.pid)).read().split()
        assert len(children) == 1
        assert os.getpgid(int(children[0])) != os.getpgid(proxy.pid)
        proxy.stop()
        until(lambda: not os.path.exists("/proc/" + children[0]), what="the embedded Redis's end")
    finally:
        drop(proxy)


@pytest.mark.parametrize("address", ["127.0.0.1*", "-", "no.such.host.invalid"])
def test_bind_of_what_is_no_address(start_redis, address):
    redis = start_redis()
    proxy = Proxy(redis, "bind " + address, wait=False)
    proxy.expected = False
    try:
        assert proxy.process.wait(20) == 1
        proxy.check()
        assert "bind" in proxy.log() and "expected" in proxy.log()
    finally:
        drop(proxy)


# ---- memory -----------------------------------------------------------------------------------


def test_too_many_lock_keys_for_one_del(proxy, connect, direct, key):
    """Each would be a script's call of its own, and one request of a few MB gigabytes of them."""
    client, name = connect(proxy, timeout=60), key("lock:many")
    assert client("SET", name, 1, "NX", "EX", 50) == "OK"
    many = ["%s:%d" % (name, i) for i in range(10000)]
    assert str(client("DEL", name, *many)).startswith("ERR too many lock keys")
    assert direct("GET", name) == "1"
    assert client("DEL", name, *many[1:]) == 1
    assert client("DEL", *["plain:%d" % i for i in range(20000)]) == 0


# ---- what nodes say -----------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [b"9223372036854775807", b"18446744073709551615", b"-1", b"x"])
def test_cursors_of_a_node_that_makes_no_sense(start_proxy, connect, cursor):
    def handler(words, connection):
        name = words[0].upper()
        if name == b"CLUSTER":
            return slot_map((0, 8000, "127.0.0.1", nodes[0].port), (8001, 16383, "127.0.0.1", nodes[1].port))
        if name == b"SCAN":
            return b"*2\r\n$%d\r\n%s\r\n*0\r\n" % (len(cursor), cursor)
        return b"+PONG\r\n"

    nodes = []
    nodes += [FakeNode(handler), FakeNode(handler)]
    proxy = start_proxy("cluster 127.0.0.1:%d" % nodes[0].port)
    with connect(proxy) as c:
        assert str(c("SCAN", 0)).startswith("UPSTREAM")
        assert c("PING") == "PONG"
    proxy.check()
    for n in nodes:
        n.stop()


# ---- locks that never ended, and replies that said too much -------------------------------------


def test_a_count_does_not_take_a_lock_whose_value_is_zero(proxy, connect, direct, key):
    a, b, name = connect(proxy), connect(proxy), key("lock:kinds:zero")
    assert a("SET", name, "0", "NX", "EX", 50) == "OK"
    reply = b("INCR", name)
    assert isinstance(reply, Error) and str(reply).startswith("LOCKED"), "1 would say: acquired"
    assert b("DECR", name) == 0
    assert direct("GET", name) == "0" and direct("PTTL", name) > 40000
    assert a("DEL", name) == 1


def test_numbers_that_a_script_cannot_hold(proxy, connect, direct, key):
    a, name = connect(proxy), key("lock:kinds:big")
    for by in ("9007199254740993", str(2 ** 63 - 1), str(-2 ** 63)):
        reply = a("INCRBY", name, by)
        assert isinstance(reply, Error), "not a wrong number"
        assert direct("EXISTS", name) == 0
    assert a("INCRBY", name, 2 ** 53 - 1) == 2 ** 53 - 1
    assert isinstance(a("INCR", name), Error)
    assert direct("GET", name) == str(2 ** 53 - 1) and direct("PTTL", name) > 0


@pytest.mark.parametrize("seconds", [900719925474099, 9000000000000])
def test_an_expiry_in_the_far_future(proxy, connect, direct, key, seconds):
    a, name = connect(proxy), key("lock:far")
    assert a("SET", name, "1", "NX", "EX", seconds) == "OK"
    assert a("PROXY", "TOKEN", name) is not None
    assert a("EXPIRE", name, seconds) == 1
    assert connect(proxy, commands=[("CLIENT", "SETNAME", "other")])("DEL", name) == 0
    assert a("DEL", name) == 1 and direct("EXISTS", name) == 0


@pytest.mark.parametrize("words", [["MSET", None, "2"], ["MSETNX", None, "2"], ["DECR", None],
                                   ["COPY", "source", None, "REPLACE"]], ids=lambda words: words[0])
@pytest.mark.parametrize("held", [False, True], ids=["free", "one's own"])
def test_what_replaces_a_lock_ends(proxy, connect, direct, key, words, held):
    a, name, source = connect(proxy), key("lock:{end}"), key("source:{end}")
    assert a("SET", source, "v") == "OK"
    if held:
        assert a("SETNX", name, "1") == 1
    reply = a(*[name if w is None else source if w == "source" else w for w in words])
    assert not isinstance(reply, Error)
    ends = direct("EXISTS", name) == 0 or 0 < direct("PTTL", name) <= 30000
    assert ends or connect(proxy)("DEL", name) == 1, "a lock would be locked for ever, and data is everybody's"


def test_guard_records_are_the_proxys_alone(proxy, connect, direct, backend, key):
    a, b, name = connect(proxy), connect(proxy), key("lock:guarded")
    assert a("SETNX", name, "1") == 1
    guard = next(k for k in backend.keys() if k.startswith("lockkeeper:{") and k.endswith(":" + name))
    tag = guard[len("lockkeeper:"):guard.index("}") + 1]
    for words in (["DEL", guard], ["DEL", "x" + tag, guard], ["HSET", guard, "token", "mine"], ["EXPIRE", guard, "1"],
                  ["RENAME", guard, "x" + tag], ["SET", guard, "1"], ["EVAL", "return redis.call('del', KEYS[1])", "1", guard],
                  ["BLMOVE", "x" + tag, guard, "LEFT", "LEFT", "0.01"], ["UNLINK", guard]):
        reply = b(*words)
        assert isinstance(reply, Error) and "guard record" in str(reply), words
    assert b("MULTI") == "OK"
    assert isinstance(b("DEL", guard), Error)
    assert isinstance(b("EXEC"), Error)
    assert b("TYPE", guard) in ("hash", "string"), "looking is allowed"
    assert b("SET", "x" + tag, guard) == "OK", "it is no key here"
    assert guard_record(direct, guard)["token"]
    assert a("DEL", name) == 1


# ---- keys that only the node sees ----------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    ("MSETNX", "{b}a", "1", "{b}b"),
    ("EVAL", "return 1", "+1", "{b}a"),
    ("EVALSHA", "0" * 40, "1 ", "{b}a"),
    ("BZMPOP", "0.01", "+1", "{b}a", "MAX", "COUNT", "5"),
    ("CLUSTER", "REPLICAS", "me\r\n"),
    ("CLUSTER", "REPLICAS", "m\r\ne"),
], ids=str)
def test_malformed_on_a_cluster(farm, connect, words):
    """The client hears what is wrong from a node that serves the key, never MOVED; and in Redis's words."""
    cluster = farm.backend("cluster")
    client, node = connect(farm.proxy("cluster")), connect(cluster.node_of("{b}a").address)
    assert client.raw(*words) == node.raw(*words)
