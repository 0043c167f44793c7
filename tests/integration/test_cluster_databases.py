"""Several databases on a cluster, which Valkey 9 allows (`cluster-databases`)."""

import re
import subprocess
import threading

import pytest

import servers
from resp import Error, encode
from test_waiting_channels import await_listeners, channel_of, hand_over


def version():
    """The major version of the server if it is Valkey; else 0."""
    said = subprocess.run([servers.REDIS_SERVER, "--version"], capture_output=True, text=True).stdout
    found = re.match(r"Valkey server v=(\d+)", said)
    return int(found.group(1)) if found else 0


@pytest.fixture(scope="module")
def backend():
    if version() < 9:
        pytest.skip("the server's clusters have one database; scripts/newest_servers.sh downloads Valkey 9")
    cluster = servers.RedisCluster("--cluster-databases", "16")
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def proxies(backend):
    pair = [servers.Proxy(backend, "lock lock:* wait 60s", "lock queue:* kind list") for _ in range(2)]
    yield pair
    for proxy in pair:
        proxy.stop()
        proxy.remove()


@pytest.fixture
def both(backend, proxies, connect):
    """Two clients of one proxy in database 5, and the cluster is empty."""
    backend.flush()
    clients = [connect(proxies[0], commands=[("CLIENT", "SETNAME", name), ("SELECT", "5")]) for name in "ab"]
    return clients


def test_data_is_a_databases_own(both, proxies, connect):
    one, zero = both[0], connect(proxies[0])
    names = ["k%d" % i for i in range(20)]
    for n in names:
        assert one("SET", n, "five") == "OK"
    assert one("MGET", *names) == ["five"] * 20 and zero("MGET", *names) == [None] * 20
    assert (one("DBSIZE"), zero("DBSIZE")) == (20, 0)
    seen, cursor = set(), "0"
    while cursor != "0" or not seen:
        cursor, some = one("SCAN", cursor, "COUNT", "1000")
        seen.update(some)
    assert seen == set(names)
    assert one("SELECT", "0") == "OK" and one("GET", "k1") is None
    assert zero("FLUSHDB") == "OK" and one("SELECT", "5") == "OK" and one("DBSIZE") == 20
    assert one("FLUSHDB") == "OK" and one("DBSIZE") == 0


def test_locks_of_two_databases(both, proxies, connect):
    one, two = both
    zero = connect(proxies[0], commands=[("CLIENT", "SETNAME", "c")])
    assert one("SETNX", "lock:a", "1") == 1 and zero("SET", "lock:a", "1", "NX", "EX", "50") == "OK"
    assert two("DEL", "lock:a") == 0 and 0 < one("TTL", "lock:a") <= 30
    assert one("PROXY", "TOKEN", "lock:a") != zero("PROXY", "TOKEN", "lock:a")
    assert zero("DEL", "lock:a") == 1 and one("EXISTS", "lock:a") == 1
    assert one("DEL", "lock:a") == 1
    assert one("MULTI") == "OK"
    for words in (("SETNX", "lock:{m}", "1"), ("SELECT", "3"), ("SETNX", "lock:{m}", "2"), ("SELECT", "5")):
        assert one(*words) == "QUEUED"
    assert one("EXEC") == [1, "OK", 1, "OK"]
    assert two("DEL", "lock:{m}") == 0 and one("DEL", "lock:{m}") == 1
    assert one("SELECT", "3") == "OK" and one("DEL", "lock:{m}") == 1


def test_moves_between_databases(both, proxies, connect):
    one, two = both
    three = connect(proxies[0], commands=[("CLIENT", "SETNAME", "c"), ("SELECT", "3")])
    assert three("SETNX", "lock:c", "1") == 1
    assert one("SET", "data", "v") == "OK" and one("MOVE", "data", "3") == 1 and three("GET", "data") == "v"
    assert one("SETNX", "lock:c", "2") == 1
    assert two("MOVE", "lock:c", "4").startswith("LOCKED ")
    assert one("COPY", "lock:c", "lock:c", "DB", "3") == 0, "another client's lock is there"
    assert three("GET", "lock:c") == "1"
    assert one("DEL", "lock:c") == 1 and three("DEL", "lock:c") == 1


@pytest.mark.parametrize("release", ["DEL", "GETDEL"])
def test_a_lock_is_handed_over(both, proxies, connect, release):
    """Also to another proxy, which hears of the release in the lock's database."""
    one = both[0]
    other = connect(proxies[1], commands=[("CLIENT", "SETNAME", "c"), ("SELECT", "5")])
    info = connect(proxies[1])
    for name in ("lock:h1", "lock:h2", "lock:h3"):
        assert one("SETNX", name, "1") == 1
        other.send(encode("SETNX", name, "2"))
        servers.until(lambda: "\r\nwaiting:1\r\n" in info("PROXY", "INFO"))
        assert one(release, name) in (1, "1")
        assert other.read() == 1 and other("DEL", name) == 1


def test_what_another_proxy_is_told(both, backend, proxies, connect):
    one, name = both[0], "lock:told"
    node = backend.node_of(name)
    zero = connect(proxies[0], commands=[("CLIENT", "SETNAME", "zero")])
    assert zero("SETNX", name, "0") == 1
    channel = channel_of(node, name)  # it looks in database 0
    other = connect(proxies[1], commands=[("CLIENT", "SETNAME", "c"), ("SELECT", "5")])
    info = connect(proxies[1])
    assert one("SETNX", name, "1") == 1
    with node.client() as ear:
        assert ear("SSUBSCRIBE", channel) == ["ssubscribe", channel, 1]
        other.send(encode("SETNX", name, "2"))
        servers.until(lambda: "\r\nwaiting:1\r\n" in info("PROXY", "INFO"))
        await_listeners(node, channel, 2)
        hand_over(one, other, name)
        kind, _, said = ear.read()
        assert kind == "smessage" and said.endswith(" 5 " + name)
    assert other("DEL", name) == 1 and zero("DEL", name) == 1


def test_a_queue_and_a_script(both):
    one, two = both
    assert one("RPUSH", "queue:q", "n1") == 1 and two("RPUSH", "queue:q", "n2") == 2
    assert one("LRANGE", "queue:q", "0", "0") == ["n1"] and two("LREM", "queue:q", "1", "n1") == 0
    assert one("LREM", "queue:q", "1", "n1") == 1 and two("LRANGE", "queue:q", "0", "0") == ["n2"]
    assert two("LREM", "queue:q", "1", "n2") == 1
    text = "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', 60000)"
    assert one("EVAL", text, "1", "lock:s", "v1") == "OK" and two("EVAL", text, "1", "lock:s", "v2") is None
    assert two("DEL", "lock:s") == 0 and one("DEL", "lock:s") == 1


def test_workers_in_two_databases(both, proxies, connect):
    """Contention for one name in each of two databases, over two proxies: one worker at a time in each."""
    inside, failures = {"5": 0, "6": 0}, []

    def work(proxy, db, name):
        client = connect(proxy, commands=[("CLIENT", "SETNAME", name), ("SELECT", db)])
        for _ in range(15):
            if client("SET", "lock:w", name, "NX", "PX", "20000") != "OK":
                failures.append("refused")
            inside[db] += 1
            if inside[db] > 1:
                failures.append("two are inside")
            inside[db] -= 1
            if client("DEL", "lock:w") != 1:
                failures.append("not released")

    jobs = [threading.Thread(target=work, args=(proxy, db, "w%s%d" % (db, i))) for i, proxy in enumerate(proxies) for db in inside]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert not any(job.is_alive() for job in jobs) and not failures, failures


@pytest.mark.parametrize("argument", ["16", "-1", "1000000", "1000001", "abc"])
def test_errors_are_the_nodes(both, backend, connect, argument):
    said = both[0]("SELECT", argument)
    assert isinstance(said, Error) and said == connect(backend.nodes[0])("SELECT", argument)
    assert both[0]("SET", "k", "v") == "OK" and both[1]("GET", "k") == "v"
