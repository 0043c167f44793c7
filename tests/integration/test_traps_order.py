"""Traps that other proxies fell into, 1 to 9: order and redirects. The numbers are those of the list of traps."""

import random
import socket
import threading
import time

import pytest

from fake import slot_map, whole_map
from helpers import is_upstream, keys_of, polite, works_again
from migration import Migration
from resp import Client, Error, encode, parse
from servers import HOST, SLOTS, slot_of, until


# ---- 1: a pipeline over three nodes, one of them stopped ------------------------------------------


def test_trap_01_one_node_of_three_is_stopped(start_cluster, start_proxy, connect):
    """A pipeline over three nodes, one stopped: order is kept, and the other nodes' clients don't suffer."""
    cluster = start_cluster(timeout_ms=60000)
    proxy = start_proxy(cluster, "upstream-timeout 60s")
    client, other = connect(proxy), connect(proxy)
    names = keys_of(cluster)
    for name in names:
        assert client("SET", name, name) == "OK"
    cluster.nodes[1].pause()
    client.send(b"".join(encode("GET", name) for name in names) * 100)
    for _ in range(100):
        for name in (names[0], names[2]):
            assert other("GET", name) == name
    cluster.nodes[1].resume()
    for _ in range(100):
        for name in names:
            assert client.read() == name


def test_trap_01_memory_while_a_node_is_stopped(start_cluster, start_proxy, connect):
    """A client that goes on sending to a stopped node is not read any further."""
    cluster = start_cluster(timeout_ms=60000)
    proxy = start_proxy(cluster, "upstream-timeout 60s")
    client, other = connect(proxy), connect(proxy)
    names = keys_of(cluster)
    value = "x" * 20000
    for name in names:
        assert other("SET", name, name) == "OK"
    before = proxy.memory()
    cluster.nodes[1].pause()
    payload, sent = encode("SET", names[1], value) * 50, 0
    client.sock.setblocking(False)
    deadline = time.monotonic() + 20
    quiet = time.monotonic()
    while time.monotonic() - quiet < 1 and sent < 200 << 20 and time.monotonic() < deadline:
        try:
            sent += client.sock.send(payload)
            quiet = time.monotonic()
        except BlockingIOError:
            assert other("GET", names[0]) == names[0]
    assert sent < 100 << 20, "the client was read without a bound"
    assert proxy.memory() - before < 150 << 20
    cluster.nodes[1].resume()


# ---- 2: MOVED in the middle of a pipeline ---------------------------------------------------------


def test_trap_02_writes_to_one_key_keep_their_order(start_cluster, start_proxy, connect):
    """A pipeline of appends to keys of a slot that moves: nothing is lost, doubled or overtaken."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    tags = ["a", "b", "c", "d"]
    migration = Migration(cluster, [slot_of(t) for t in tags])
    client = connect(proxy, timeout=60)
    expected = {t: "" for t in tags}
    migration.start()
    try:
        for batch in range(1000):
            if batch >= 30 and migration.moves >= 8:
                break
            script = []
            for n in range(200):
                tag = tags[(batch + n) % len(tags)]
                word = "%d.%d," % (batch, n)
                expected[tag] += word
                script.append(("APPEND", tag, word))
            lengths = {t: 0 for t in tags}
            for command, raw in zip(script, client.pipeline(script)):
                length = parse(raw)[0]
                assert isinstance(length, int), (command, raw)
                assert length > lengths[command[1]], "overtaken: %r" % (command,)
                lengths[command[1]] = length
    finally:
        migration.finish()
    for tag in tags:
        assert client("GET", tag) == expected[tag]
    assert migration.moves >= 8


def test_trap_02_second_of_five_is_moved(fake, start_proxy, connect):
    nodes, slot = [], slot_of("k2")
    moved = []

    def first(words, connection):
        if words[0].upper() == b"CLUSTER":
            parts = [(0, slot - 1, 0), (slot, slot, 1), (slot + 1, SLOTS - 1, 0)] if moved else [(0, SLOTS - 1, 0)]
            return slot_map(*[(begin, end, HOST, nodes[n].port) for begin, end, n in parts])
        if polite(words):
            return polite(words)
        if words[1] != b"k2":
            return b"+first\r\n"
        moved.append(True)
        return b"-MOVED %d %s:%d\r\n" % (slot, HOST.encode(), nodes[1].port)

    nodes += [fake(first), fake(lambda words, connection: polite(words) or b"+second\r\n")]
    client = connect(start_proxy("cluster %s:%d" % nodes[0].address))
    assert client.pipeline([("GET", "k%d" % n) for n in range(1, 6)]) == [
        b"+first\r\n", b"+second\r\n", b"+first\r\n", b"+first\r\n", b"+first\r\n"]
    assert [words[1] for words in nodes[1].requests if words[0] == b"GET"] == [b"k2"]
    assert client("GET", "k2") == "second"  # and the map has learnt it
    assert nodes[0].count(b"GET") == 5


# ---- 3: ASK with many clients at once -------------------------------------------------------------


def test_trap_03_asking_and_its_command_are_one_unit(fake, start_proxy, connect):
    """Many clients at once, each redirected by ASK: behind each ASKING comes exactly the command it is for."""
    nodes = []

    def first(words, connection):
        if words[0].upper() == b"CLUSTER":
            return whole_map(nodes[0].port)
        if polite(words):
            return polite(words)
        if words[1].startswith(b"ask"):
            return b"-ASK 1 %s:%d\r\n" % (HOST.encode(), nodes[1].port)
        return b"$%d\r\n%s\r\n" % (len(words[1]), words[1])

    def second(words, connection):
        asked = getattr(connection, "asked", False)
        connection.asked = words[0].upper() == b"ASKING"
        if polite(words):
            return polite(words)
        return b"+%s\r\n" % (words[1] if asked else b"WITHOUT ASKING")

    nodes += [fake(first), fake(second)]
    proxy = start_proxy("cluster %s:%d" % nodes[0].address)
    failures = []

    def run(number):
        rng = random.Random(number)
        try:
            with Client(proxy.address) as client:
                for _ in range(20):
                    names = ["%s:%d:%d" % (rng.choice(["ask", "stay"]), number, n) for n in range(10)]
                    replies = client.pipeline([("GET", n) for n in names])
                    for name, raw in zip(names, replies):
                        assert name.encode() in raw, (name, raw)
        except Exception as error:  # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures[0]


def test_trap_03_asking_over_a_connection_that_is_lost(fake, start_proxy, connect):
    """The node asked closes between ASKING and a command that is too long for one write: neither goes alone."""
    nodes, lost = [], []

    def first(words, connection):
        if words[0].upper() == b"CLUSTER":
            return whole_map(nodes[0].port)
        return polite(words) or b"-ASK 1 %s:%d\r\n" % (HOST.encode(), nodes[1].port)

    def second(words, connection):
        asked = getattr(connection, "asked", False)
        connection.asked = words[0].upper() == b"ASKING"
        if connection.asked and len(lost) < 3:
            lost.append(connection)
            return None
        return polite(words) or (b"+OK\r\n" if asked else b"-ERR without ASKING\r\n")

    nodes += [fake(first), fake(second)]
    client = connect(start_proxy("cluster %s:%d" % nodes[0].address))
    value = "x" * (3 << 20)
    replies = []

    def done():
        replies.append(client("SET", "k", value))
        return replies[-1] == "OK"

    until(done, what="a SET that comes through")  # the proxy leaves a node alone that closes at once, for a moment
    assert all(is_upstream(reply) for reply in replies[:-1]), [r[:100] for r in replies]
    assert len(lost) == 3


# ---- 4: MOVED to and fro, and to odd places -------------------------------------------------------


def test_trap_04_moved_loop(fake, start_proxy, connect):
    """A says B and B says A: bounded hops, then the node's own error."""
    ports = []

    def handler(number):
        def answer(words, connection):
            if words[0].upper() == b"CLUSTER":
                return whole_map(ports[0])
            if polite(words):
                return polite(words)
            return b"-MOVED 1 %s:%d\r\n" % (HOST.encode(), ports[1 - number])

        return answer

    nodes = [fake(handler(0)), fake(handler(1))]
    ports += [n.port for n in nodes]
    proxy = start_proxy("cluster %s:%d" % nodes[0].address)
    client = connect(proxy)
    for command in (("GET", "k"), ("SETNX", "lock:k", "1"), ("SET", "k", "v")):
        before = sum(len(n.requests) for n in nodes)
        reply = client(*command)
        assert isinstance(reply, Error) and reply.startswith("MOVED "), reply
        assert sum(len(n.requests) for n in nodes) - before < 60
    assert isinstance(client("MGET", "a", "b", "c"), Error)


@pytest.mark.parametrize("target", ["", "localhost", "::1", "nosuchhost.invalid", "?", "127.0.0.1:notaport", "[", "999.1.1.1"])
def test_trap_04_moved_to_odd_addresses(fake, start_proxy, connect, target):
    """A host name, an IPv6 address, an empty host (the same host), and what can't be reached."""
    nodes = []

    def first(words, connection):
        if words[0].upper() == b"CLUSTER":
            return whole_map(nodes[0].port)
        if polite(words):
            return polite(words)
        where = target if "notaport" in target else "%s:%d" % (target, nodes[1].port)
        return b"-MOVED 1 %s\r\n" % where.encode()

    nodes.append(fake(first))
    nodes.append(fake(lambda words, connection: polite(words) or b"+second\r\n"))
    proxy = start_proxy("cluster %s:%d" % nodes[0].address, "upstream-timeout 2s")
    client = connect(proxy)
    reply = client("GET", "k")
    if target in ("", "localhost"):
        assert reply == "second"
    else:
        assert isinstance(reply, Error), reply
    assert client("CLIENT", "GETNAME") is None


# ---- 5: a redirected part of a split --------------------------------------------------------------


def test_trap_05_only_the_moved_part_repeats(fake, start_proxy, connect):
    nodes = []
    names = ["a", "b", "c", "{a}2", "{b}2"]
    moved = slot_of("b")

    def node(number):
        def answer(words, connection):
            if words[0].upper() == b"CLUSTER":
                return whole_map(nodes[0].port)
            if polite(words):
                return polite(words)
            if number == 0 and slot_of(words[1].decode()) == moved:
                return b"-MOVED %d %s:%d\r\n" % (moved, HOST.encode(), nodes[1].port)
            if words[0] == b"MGET":
                return b"*%d\r\n" % (len(words) - 1) + b"".join(encode(w)[4:] for w in words[1:])
            return b":%d\r\n" % (len(words) - 1)

        return answer

    nodes += [fake(node(0)), fake(node(1))]
    for command, reply in (("MGET", names), ("DEL", 5)):
        for n in nodes:
            n.requests.clear()
        client = connect(start_proxy("cluster %s:%d" % nodes[0].address))
        assert client(command, *names) == reply
        seen = [[tuple(w.decode() for w in words[1:]) for words in n.requests if words[0] == command.encode()]
                for n in nodes]
        assert sorted(seen[0]) == [("a", "{a}2"), ("b", "{b}2"), ("c",)]
        assert seen[1] == [("b", "{b}2")]


# ---- 6: a split with one node down ----------------------------------------------------------------


def test_trap_06_a_master_is_killed(start_cluster, start_proxy, connect):
    """Without a replica its slots are down; the others go on."""
    cluster = start_cluster(timeout_ms=1500)
    proxy = start_proxy(cluster)
    client, other = connect(proxy), connect(proxy)
    names = keys_of(cluster)
    for name in names:
        assert client("SET", name, name) == "OK"
    cluster.nodes[0].kill()
    for _ in range(3):
        begin = time.monotonic()
        client.send(b"".join(encode("GET", name) for name in names))
        replies = [client.read() for _ in names]
        assert isinstance(replies[0], Error), replies
        assert replies[0].startswith(("UPSTREAM ", "CLUSTERDOWN ")), replies
        assert replies[1:] == names[1:]
        reply = client("MGET", *names)
        assert isinstance(reply, Error), "a split with one node down is answered with an error"
        assert isinstance(client("DEL", names[0], "no:1", "no:2"), Error)
        assert time.monotonic() - begin < 20
        assert other("GET", names[1]) == names[1]
    cluster.nodes[0].start()
    works_again(client, ("SET", names[0], "back"), timeout=40)
    works_again(client, ("MGET", *names), ["back", *names[1:]])


# ---- 7: what can't be split -----------------------------------------------------------------------


def test_trap_07_crossslot_never_a_silent_split(client, backend, direct):
    """What can't be split without losing atomicity is CROSSSLOT on a cluster, and works on a single Redis."""
    refused = [("MSETNX", "a", 1, "b", 2), ("RENAME", "a", "b"), ("SINTER", "a", "b"), ("SUNIONSTORE", "c", "a", "b"),
               ("EVAL", "return 1", 2, "a", "b"), ("LMOVE", "a", "b", "LEFT", "LEFT"), ("BITOP", "AND", "a", "b"),
               ("PFCOUNT", "a", "b"), ("COPY", "a", "b"), ("SMOVE", "a", "b", "m"), ("ZUNION", 2, "a", "b")]
    for command in refused:
        reply = client(*command)
        if backend.kind == "cluster":
            assert isinstance(reply, Error) and reply.startswith("CROSSSLOT "), command
        else:
            assert not str(reply).startswith("CROSSSLOT"), command
    if backend.kind == "cluster":
        assert backend.keys() == []
        assert client("MSETNX", "a", 1, "b", 2) == direct.node(backend.nodes[0])("MSETNX", "a", 1, "b", 2)


# ---- 8: read your own writes ----------------------------------------------------------------------


def test_trap_08_read_your_own_writes(backend, start_proxy, connect):
    """Several connections to each node: one session's requests don't overtake each other on them."""
    proxy = start_proxy(backend, "upstream-connections 8", "threads 2")
    clients = [connect(proxy) for _ in range(12)]
    for number, client in enumerate(clients):
        commands, expected = [], []
        for i in range(300):
            name = "own:%d:%d" % (number, i % 7)
            commands += [("SET", name, i), ("GET", name)]
            expected += [b"+OK\r\n", b"$%d\r\n%d\r\n" % (len(str(i)), i)]
        client.send(b"".join(encode(*c) for c in commands))
        client.expected = expected
    for client in clients:
        assert [client.read_raw() for _ in client.expected] == client.expected


# ---- 9: replies without a request ------------------------------------------------------------------


def test_trap_09_answer_before_the_request_is_complete(start_proxy, connect):
    """A node that replies while most of the request is still to come can't be trusted any more: its connection is closed, and
    no client gets its bytes as a reply."""
    listener = socket.create_server((HOST, 0))
    over = threading.Event()

    def node():
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    def talk(connection):
        with connection:
            try:
                head = connection.recv(4096)
                if b"early" in head:
                    connection.sendall(b"+EARLY\r\n")
                    while connection.recv(65536):
                        pass
                while head and b"early" not in head:
                    connection.sendall(b"+sane\r\n" * head.count(b"*"))
                    head = connection.recv(4096)
            except OSError:
                pass

    thread = threading.Thread(target=node, daemon=True)
    thread.start()
    try:
        proxy = start_proxy("standalone %s:%d" % listener.getsockname(), "upstream-timeout 2s")
        client, other = connect(proxy), connect(proxy)
        client.send(encode("SET", "early", "x" * (30 << 20)))
        reply = client.read()
        assert reply == "EARLY" or is_upstream(reply)
        works_again(other, ("GET", "sane"), "sane")
        works_again(client, ("GET", "sane"), "sane")
    finally:
        over.set()
        listener.close()


def test_trap_09_stray_reply(fake, start_proxy, connect):
    """A node that answers without being asked: that connection can't be trusted any more."""

    def handler(words, connection):
        if polite(words):
            return polite(words)
        if words[1] == b"twice":
            return b"+one\r\n+two\r\n"
        return b"$%d\r\n%s\r\n" % (len(words[1]), words[1])

    node = fake(handler)
    proxy = start_proxy("standalone %s:%d" % node.address)
    client = connect(proxy)
    for n in range(20):
        assert client("GET", "twice") == "one"
        until(lambda: client("GET", "own:%d" % n) == "own:%d" % n or None, 5)
        for m in range(5):
            assert client("GET", "k:%d" % m) == "k:%d" % m, "a stray reply is nobody's answer"

