"""Nodes that send what no Redis sends: numbers out of range, lengths without data."""

import socket
import threading

import pytest

from fake import FakeNode, slot_map, whole_map
from helpers import polite, works_again
from resp import Error, encode
from servers import HOST, SLOTS, Proxy, slot_of, until

GREATEST = 2**63 - 1
BELOW_ZERO = 2**64 - 256  # what Redis 8 writes for a size of -256


def bulk(text):
    data = text if isinstance(text, bytes) else str(text).encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def page(dataset, maxmemory):
    return bulk("# Memory\r\nused_memory_dataset:%d\r\nused_memory:%d\r\nused_memory_human:1K\r\n"
                "blocked_clients:%d\r\n\r\n# Keyspace\r\ndb0:keys=%d,expires=%d,avg_ttl=%d\r\n"
                % (dataset, maxmemory, maxmemory, maxmemory, maxmemory, maxmemory))


@pytest.fixture
def halves():
    """Two masters that answer everything from `says`: first word -> reply of each."""
    says = {}
    nodes = []

    def handler(number):
        def answer(words, connection):
            name = words[0].upper()
            if name == b"CLUSTER":
                half = slot_of("{b}")
                return slot_map((half + 1, SLOTS - 1, HOST, nodes[0].port), (0, half, HOST, nodes[1].port))
            return says[name][number] if name in says else polite(words) or b"+fine\r\n"
        return answer

    nodes += [FakeNode(handler(0)), FakeNode(handler(1))]
    nodes[0].says = says
    yield nodes
    for node in nodes:
        node.stop()


def test_sizes_that_have_no_sum(halves, start_proxy, connect):
    halves[0].says[b"INFO"] = [page(BELOW_ZERO, GREATEST), page(BELOW_ZERO, GREATEST)]
    client = connect(start_proxy("cluster %s:%d" % halves[0].address))
    text = client("INFO")
    assert "used_memory_dataset:0\r" in text, text
    assert "used_memory:%d\r" % GREATEST in text and "blocked_clients:%d\r" % GREATEST in text, text
    assert "keys=%d," % GREATEST in text, text
    halves[0].says[b"INFO"] = [page(BELOW_ZERO, 1), page(100256, 2)]
    text = client("INFO")
    assert "used_memory_dataset:100000\r" in text, "one node's is -256: " + text
    assert "used_memory:3\r" in text, text


def test_counts_that_have_no_sum(halves, start_proxy, connect):
    most = b":%d\r\n" % GREATEST
    envelope = b"*6\r\n" + most + bulk("released") + b":1\r\n:-2\r\n$0\r\n\r\n:0\r\n"
    halves[0].says.update({
        b"DEL": [most, most], b"EVALSHA": [envelope, envelope], b"DBSIZE": [most, most],
        b"PUBSUB": [b"*2\r\n$1\r\nc\r\n" + most] * 2,
        b"MULTI": [b"+OK\r\n"] * 2, b"EXEC": [b"*2\r\n" + most + envelope] * 2})
    client = connect(start_proxy("cluster %s:%d" % halves[0].address, "lock lock:*"))
    assert client("DEL", "{a}", "{b}") == GREATEST
    assert client("DEL", "lock:{a}", "lock:{b}") == GREATEST
    assert client("DBSIZE") == GREATEST
    assert client("PUBSUB", "NUMSUB", "c") == ["c", GREATEST]


def test_counts_of_a_transaction_that_have_no_sum(fake, start_proxy, connect):
    most = b":%d\r\n" % GREATEST
    envelope = b"*6\r\n" + most + bulk("released") + b":1\r\n:-2\r\n$0\r\n\r\n:0\r\n"
    queued = []

    def handler(words, connection):
        name = words[0].upper()
        if name == b"MULTI":
            queued.clear()
            return b"+OK\r\n"
        if name == b"EXEC":
            return b"*%d\r\n" % len(queued) + b"".join(queued)
        if name in (b"DEL", b"EVALSHA", b"EVAL"):
            queued.append(most if name == b"DEL" else envelope)
            return b"+QUEUED\r\n"
        if name == b"SCRIPT":
            return b"*1\r\n:1\r\n" if words[1].upper() == b"EXISTS" else bulk(words[-1][:40])
        return polite(words) or b"+fine\r\n"

    client = connect(start_proxy("standalone %s:%d" % fake(handler).address, "lock lock:*"))
    assert client("MULTI") == "OK"
    assert client("DEL", "a", "lock:b", "lock:c") == "QUEUED"
    assert client("EXEC") == [GREATEST]


@pytest.mark.parametrize("pttl", [GREATEST, -GREATEST - 1, GREATEST - 10**12])
def test_expiries_that_no_clock_reaches(fake, start_proxy, connect, pttl):
    def handler(words, connection):
        if words[0].upper() in (b"EVAL", b"EVALSHA"):
            return b"*6\r\n:1\r\n" + bulk("granted") + b":%d\r\n:%d\r\n$0\r\n\r\n:1\r\n" % (GREATEST, pttl)
        return polite(words) or b"+fine\r\n"

    proxy = start_proxy("standalone %s:%d" % fake(handler).address, "lock lock:*")
    client = connect(proxy)
    assert client("SETNX", "lock:a", "1") == 1
    assert client("EXPIRE", "lock:a", "10") == 1
    assert client("GET", "lock:a") in ("1", 1)
    assert isinstance(client("PROXY", "LOCKS"), list)


# ---- lengths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [b"*2147483646\r\n", b"*1\r\n*2147483646\r\n", b"*1\r\n*3\r\n:0\r\n:1\r\n*2147483646\r\n"])
def test_an_array_that_is_never_sent(fake, start_proxy, connect, reply):
    """hiredis takes memory for all elements of an array when it hears how many there are: 16 GB, and 12 s to give them back."""
    state = {"asked": 0}

    def handler(words, connection):
        if words[0].upper() == b"CLUSTER":
            state["asked"] += 1
            return reply if state["asked"] <= 2 else whole_map(node.port)
        return polite(words) or b"+fine\r\n"

    node = fake(handler)
    proxy = start_proxy("cluster %s:%d" % node.address, wait=False, measured=True)
    until(lambda: "Ready to accept connections" in proxy.log(), 30, "the proxy")
    client = connect(proxy)
    works_again(client, ("GET", "k"), "fine", timeout=60)
    assert state["asked"] > 2
    assert "CLUSTER SLOTS" in proxy.log() or "it sent a reply without a request" in proxy.log(), proxy.log()
    peak = int(next(line for line in open("/proc/%d/status" % proxy.pid) if line.startswith("VmHWM")).split()[1])
    assert peak < 400 * 1024, "kB at most: %d" % peak


def test_an_answer_to_a_script_without_an_end(fake, start_proxy, connect):
    """It is not collected: 256 MB come, and are dropped."""
    megabyte = b"x" * (1 << 20)

    def handler(words, connection):
        if words[0].upper() not in (b"EVAL", b"EVALSHA"):
            return polite(words) or b"+fine\r\n"
        connection.send(b"$%d\r\n" % (256 << 20))
        for _ in range(256):
            connection.send(megabyte)
        return b"\r\n"

    proxy = start_proxy("standalone %s:%d" % fake(handler).address, "lock lock:*", "proto-max-bulk-len 1mb", measured=True)
    client = connect(proxy, timeout=60)
    before = proxy.memory()
    reply = client("SETNX", "lock:a", "1")
    assert isinstance(reply, Error) and "too long" in reply, str(reply)[:100]
    peak = int(next(line for line in open("/proc/%d/status" % proxy.pid) if line.startswith("VmHWM")).split()[1])
    assert peak * 1024 - before < 220 << 20, "a buffer of 64 MB grows by a half, and both are there meanwhile"
    assert client("GET", "k") == "fine"


# ---- the tests' own ---------------------------------------------------------------------------------------


def test_a_report_fails_one_test(tmp_path):
    """A proxy that tests share has its log for all of them: what one has caused is said once."""
    proxy = object.__new__(Proxy)
    proxy.log_path = str(tmp_path / "log")
    proxy.expected = False
    line = "x.c:1:2: runtime error: signed integer overflow\n"
    with open(proxy.log_path, "w") as log:
        log.write("Ready to accept connections\n" + line)
        log.flush()
        with pytest.raises(AssertionError, match="runtime error"):
            proxy.check()
        proxy.check()
        log.write(line)
        log.flush()
        with pytest.raises(AssertionError, match="runtime error"):
            proxy.check()


def test_a_reply_before_the_master_is_confirmed(start_proxy, connect):
    """A connection that was lost behind Sentinels waits until they have named the master again. What the node sends meanwhile is
    no reply to anything."""
    quiet = threading.Event()
    quiet.set()
    master = FakeNode(lambda words, connection: b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n" if words[0] == b"ROLE" else
                      polite(words) or b"+fine\r\n")

    def watch(words, connection):
        if words[0] == b"SUBSCRIBE":
            return b"*3\r\n" + bulk("subscribe") + bulk("+switch-master") + b":1\r\n"
        if words[0] != b"SENTINEL":
            return polite(words)
        quiet.wait(10)
        if words[1] == b"get-master-addr-by-name":
            return b"*2\r\n" + bulk(HOST) + bulk(master.port)
        return b"*2\r\n" + bulk("config-epoch") + bulk(1) if words[1] == b"MASTER" else b"*0\r\n"

    sentinel = FakeNode(watch)
    try:
        proxy = start_proxy("sentinel mymaster %s:%d" % (HOST, sentinel.port))
        client = connect(proxy)
        until(lambda: client("GET", "k") == "fine", 10, "service")
        quiet.clear()
        with master.lock:
            lost = len(master.connections)
            for connection in master.connections:
                if connection.request.fileno() >= 0:
                    connection.request.shutdown(socket.SHUT_RDWR)
        client.send(encode("GET", "k"))
        until(lambda: len(master.connections) > lost, 10, "a new connection")
        for connection in master.connections[lost:]:
            connection.send(b"+surplus\r\n")
        until(lambda: "it sent a reply without a request" in proxy.log(), 10, "its end")
        quiet.set()
        client.read()
        until(lambda: client("GET", "k") == "fine", 10, "service")
    finally:
        quiet.set()
        sentinel.stop()
        master.stop()
