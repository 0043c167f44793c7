"""Faults that the soak test (tests/soak) has found, each in its smallest form."""

import signal
import threading
import time

import pytest

from resp import Error, encode
from servers import slot_of, until
from migration import Migration, refused


@pytest.mark.parametrize("several", [("MSET", "{moving}a", "old", "{moving}b", "old"), ("DEL", "{moving}a", "{moving}b"),
                                     ("EVAL", "return {redis.call('set', KEYS[1], 'old'), redis.call('set', KEYS[2], 'old')}",
                                      "2", "{moving}a", "{moving}b")],
                         ids=lambda several: several[0])
def test_a_command_that_waits_is_not_overtaken(start_cluster, start_proxy, connect, several):
    """A command with several keys of a slot that is half moved can't be done now (TRYAGAIN). The write behind it in
    the pipeline can, and it comes last: either the first one ends with its error, or the second waits for it."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy)
    slot = slot_of("moving")
    migration = Migration(cluster, [slot])
    source = migration.owner[slot]
    target = cluster.nodes[(cluster.nodes.index(source) + 1) % 3]
    for key in ("{moving}a", "{moving}b"):
        assert client("SET", key, "before") == "OK"
    migration.must(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", migration.ids[source])
    migration.must(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", migration.ids[target])
    migration.must(source, "MIGRATE", target.address[0], target.port, "", 0, 5000, "KEYS", "{moving}a")
    before = refused(source)
    client.send(encode(*several) + encode("SET", "{moving}b", "new"))
    until(lambda: refused(source) > before, 10, "the node's TRYAGAIN", 0.001)
    migration.move(slot, 100)
    first, second = client.read(), client.read()
    assert second == "OK"
    assert client("GET", "{moving}b") == "new", "the first command answered %r" % (first,)
    if isinstance(first, Error):
        assert first.startswith("TRYAGAIN ")
        assert client("GET", "{moving}a") == "before"


def test_a_command_that_waits_alone_is_tried_again(start_cluster, start_proxy, connect):
    """Requests behind it that have nothing to do with its slot are no reason to give up."""
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy)
    slot = slot_of("moving")
    migration = Migration(cluster, [slot])
    source = migration.owner[slot]
    target = cluster.nodes[(cluster.nodes.index(source) + 1) % 3]
    for key in ("{moving}a", "{moving}b"):
        assert client("SET", key, key) == "OK"
    migration.must(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", migration.ids[source])
    migration.must(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", migration.ids[target])
    migration.must(source, "MIGRATE", target.address[0], target.port, "", 0, 5000, "KEYS", "{moving}a")
    before = refused(source)
    client.send(encode("MGET", "{moving}a", "{moving}b") + encode("SET", "elsewhere", "1") + encode("ECHO", "behind"))
    until(lambda: refused(source) > before, 10, "the node's TRYAGAIN", 0.001)
    migration.move(slot, 100)
    assert client.read() == ["{moving}a", "{moving}b"]
    assert client.read() == "OK" and client.read() == "behind"


def test_memory_comes_back_after_replies_that_nobody_read(start_redis, start_proxy, connect):
    """Many buffers of many clients, and small things allocated between them that stay."""
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy)
    if any(name in open("/proc/%d/maps" % proxy.pid).read() for name in ("asan", "tsan")):
        pytest.skip("under AddressSanitizer memory is its own, not malloc's")
    assert client("SET", "big", "x" * (4 << 20)) == "OK"
    before = proxy.memory()

    def reader(number):
        with proxy.client() as greedy:
            greedy.send(encode("GET", "big") * 8)
            locks = proxy.client()
            for n in range(200):
                locks("SETNX", "lock:%d.%d" % (number, n), "1")
            until(lambda: proxy.memory() - before > 100 << 20, 20, "replies that wait")
            locks.close()

    threads = [threading.Thread(target=reader, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: proxy.memory() - before < 24 << 20, 15, "the memory's return")
    assert client("GET", "lock:1.1") == "1"


def test_a_proxy_that_was_stopped_does_not_blame_the_node(start_redis, start_proxy, connect):
    """It did not get to run for longer than upstream-timeout. The answer is there, and so is the connection."""
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 700ms")
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    for _ in range(8):
        server.pause()
        client.send(encode("GET", "k"))
        until(lambda: "in_flight=1" in proxy_info(connect(proxy)), 15, "the request's way to the node")
        proxy.signal(signal.SIGSTOP)
        server.resume()
        time.sleep(0.9)  # what is being tested: longer than upstream-timeout
        proxy.signal(signal.SIGCONT)
        assert client.read() == "v"


def proxy_info(client):
    with client:
        return client("PROXY", "INFO", "upstreams")
