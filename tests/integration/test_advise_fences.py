"""PROXY ADVISE finds the data that is written under locks, on the default rule."""

import threading

import pytest
import redis

import servers
from servers import until

WRITES = 30  # of each round: more than what is advised from on


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def proxy(farm, request):
    proxy = servers.Proxy(farm.backend(request.param))
    yield proxy
    proxy.stop()
    proxy.remove()


def advice(client, pattern):
    lines = [line for line in client("PROXY", "ADVISE") if line.startswith(pattern + " is written by holders of ")]
    assert len(lines) < 2, lines
    return lines[0] if lines else ""


def until_advised(client, pattern, work):
    """Works under locks, round after round, until that is noticed: writes are looked at from the second on."""

    def noticed():
        work()
        return advice(client, pattern)

    until(noticed, 30, "the advice on " + pattern)
    return advice(client, pattern)


def counts(line):
    words = line.split(": ")[1].replace(",", "").split()
    assert words[1] == "of" and words[3] == "writes", line
    return int(words[0]), int(words[2]), int(words[4]) if len(words) > 4 else 0


def under_lock(client, lock, *commands, expiry="20000"):
    assert client("SET", lock, client.who, "NX", "PX", expiry) == "OK"
    for words in commands:
        client(*words)
    assert client("DEL", lock) == 1


def worker(connect, proxy, name):
    client = connect(proxy, commands=[("CLIENT", "SETNAME", name)])
    client.who = name
    return client


def test_a_lock_each(proxy, connect):
    one, other = worker(connect, proxy, "each"), worker(connect, proxy, "else")

    def work():
        for i in range(WRITES):
            under_lock(one, "lock:stock:%d" % i, ("GET", "stock:%d" % i), ("SET", "stock:%d" % i, i))
            other("SET", "unlocked:%d" % i, i)

    line = until_advised(one, "stock:*", work)
    by_holders, writes, late = counts(line)
    assert by_holders == writes >= 20 and late == 0
    assert line.endswith(" writes: fence stock:* by lock:stock:*")
    assert not advice(one, "unlocked:*")


def test_one_lock_for_all(proxy, connect):
    one = worker(connect, proxy, "all")

    def work():
        for i in range(WRITES):
            under_lock(one, "lock:accounts", ("INCRBY", "account:%d" % i, 1), ("HSET", "account:names", i, "a"))

    line = until_advised(one, "account:*", work)
    assert line.endswith(": fence account:* by lock:accounts")
    assert not advice(one, "account:names")  # the other line says it


def test_names_without_numbers(proxy, connect):
    one = worker(connect, proxy, "names")
    names = ["alice", "bob", "carol", "dora", "emil"]

    def work():
        for name in names * 4:
            under_lock(one, "lock:user:" + name, ("HSET", "user:profile:" + name, "seen", "1"))

    assert until_advised(one, "user:profile:*", work).endswith(": fence user:profile:* by lock:user:*")


def test_transactions_and_scripts(proxy, connect):
    one = worker(connect, proxy, "steps")
    script = "return redis.call('INCR', KEYS[1])"

    def work():
        for i in range(WRITES):
            under_lock(one, "lock:cart:%d" % i, ("MULTI",), ("INCR", "cart:%d:sum" % i), ("EXEC",),
                       ("EVAL", script, "1", "cart:%d:items" % i))

    assert until_advised(one, "cart:*:sum", work).endswith(": fence cart:*:sum by lock:cart:*")
    assert until_advised(one, "cart:*:items", work).endswith(": fence cart:*:items by lock:cart:*")


def test_most_writes_without_a_lock(proxy, connect):
    """Some writes are made under a lock, most without: no fence is advised."""
    one, other = worker(connect, proxy, "some"), worker(connect, proxy, "most")

    def work():
        for i in range(WRITES):
            under_lock(one, "lock:seat:%d" % i, ("SET", "seat:%d" % i, "1"), ("SET", "bed:%d" % i, "1"))
            under_lock(one, "lock:bed:%d" % i, ("SET", "bed:%d" % i, "1"))
            for _ in range(3):
                other("SET", "bed:%d" % i, "0")

    until_advised(one, "seat:*", work)
    assert not advice(one, "bed:*")


def test_late_writes(proxy, connect):
    """A worker whose lease is over writes on; another worker may hold the lock by now."""
    one, other = worker(connect, proxy, "late"), worker(connect, proxy, "next")
    for i in range(3):
        assert one("SET", "lock:late:%d" % i, "late", "NX", "PX", "1") == "OK"
    until(lambda: all(other("EXISTS", "lock:late:%d" % i) == 0 for i in range(3)))
    assert other("SET", "lock:late:0", "next", "NX", "PX", "60000") == "OK"

    def work():
        for i in range(10, 10 + WRITES):
            under_lock(other, "lock:late:%d" % i, ("SET", "late:%d" % i, i))

    until_advised(other, "late:*", work)
    before = counts(advice(other, "late:*"))

    def late():
        for i in range(3):
            one("SET", "late:%d" % i, "late")
        work()
        return counts(advice(other, "late:*"))[2] >= 3

    until(late)
    by_holders, writes, late = counts(advice(other, "late:*"))
    assert writes > before[1] and by_holders == writes
    assert ", %d of them after the lease was over: fence late:* by lock:late:*" % late in advice(other, "late:*")


def test_a_pool(proxy, connect):
    """Threads that share a pool: acquisition, write and release come over any of its connections."""
    pool = redis.Redis(port=proxy.port, client_name="pool")
    watcher = worker(connect, proxy, "watcher")
    stop = threading.Event()
    failed = []

    def thread(number):
        try:
            i = number
            while not stop.is_set():
                i += 4
                if pool.set("lock:basket:%d" % (i % 40), number, nx=True, px=20000):
                    pool.get("basket:%d" % (i % 40))
                    pool.set("basket:%d" % (i % 40), i)
                    pool.delete("lock:basket:%d" % (i % 40))
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    try:
        until(lambda: advice(watcher, "basket:*") or failed, 30)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not failed
    line = advice(watcher, "basket:*")
    by_holders, writes, late = counts(line)
    assert by_holders * 10 >= writes * 9
    assert line.endswith(": fence basket:* by lock:basket:*")


def test_an_audited_rule(start_proxy, farm, connect):
    """Where nothing is enforced as well: the line comes before the first lease is."""
    proxy = start_proxy(farm.backend("standalone"), "lock lock:* mode audit")
    one = worker(connect, proxy, "audit")

    def work():
        for i in range(WRITES):
            under_lock(one, "lock:shelf:%d" % i, ("SET", "shelf:%d" % i, i))

    assert until_advised(one, "shelf:*", work).endswith(": fence shelf:* by lock:shelf:*")
