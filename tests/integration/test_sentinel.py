"""A master that Sentinels watch: found through any Sentinel, left when another node has been promoted.

The failovers are real. Tests that share servers continue with the roles that the test before has left.
"""

import re
import signal
import threading

import pytest

from helpers import works_again
from resp import Client, Error, encode
from servers import HOST, RedisSentinels, free_port, until
from test_reload import reloaded

TIMEOUT = 30


@pytest.fixture(scope="module")
def sentinels():
    found = RedisSentinels()
    yield found
    found.stop()


@pytest.fixture
def master(sentinels):
    """The present master, empty, all servers running."""
    for server in [*sentinels.sentinels, *sentinels.nodes]:
        if not server.running():
            server.start()
    until(sentinels.agreed, TIMEOUT, "the Sentinels' agreement", 0.05)
    master = sentinels.master
    master.run("FLUSHALL")
    return master


def info(client):
    lines = client("PROXY", "INFO", "upstreams").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def master_of(client):
    """The address of the proxy's master, from PROXY INFO."""
    fields = info(client)
    nodes = [fields[f] for f in fields if f.startswith("node")]
    return [n.split(",")[0].split("=")[1] for n in nodes if ",role=master," in n]


def address(server):
    return "%s:%d" % server.address


def serves(client, node):
    until(lambda: master_of(client) == [address(node)], TIMEOUT, "the proxy's change to %s" % address(node))
    until(lambda: client("SET", "serves", "1") == "OK", TIMEOUT, "the new master's service")


def test_serves_and_says_whom_it_asks(sentinels, master, start_proxy, connect):
    dead = "%s:%d" % (HOST, free_port())
    proxy = start_proxy("sentinel mymaster %s %s" % (dead, address(sentinels.sentinels[1])), "threads 2")
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    assert client("SET", "lock:k", "1", "NX", "EX", "30") == "OK"
    assert connect(proxy, commands=[("CLIENT", "SETNAME", "other")])("DEL", "lock:k") == 0
    assert client("SELECT", "3") == "OK" and client("GET", "k") is None, "databases are the master's own"
    assert master_of(client) == [address(master)]
    up = {"address=%s,state=up" % address(s) for s in sentinels.sentinels}
    until(lambda: up <= set(info(client).values()), TIMEOUT, "subscriptions to the Sentinels that were found")
    assert "address=%s,state=down" % dead in info(client).values()
    assert "sentinel mymaster" in info(client)["upstream"]


def test_a_failover_under_load(sentinels, master, start_proxy, connect):
    """SENTINEL FAILOVER with writes and locks under way: no answer is lost, none is wrong, no write is counted twice."""
    proxy = start_proxy(sentinels)
    over = threading.Event()
    problems, granted, unknown = [], [], []

    def count(n):
        with Client(proxy.address, timeout=TIMEOUT) as client:
            while not over.is_set():
                reply = client("INCR", "count:%d" % n)
                if isinstance(reply, int):
                    granted.append((n, reply))
                elif "unknown" in reply:
                    unknown.append(n)
                elif not reply.startswith(("UPSTREAM ", "READONLY ")):
                    problems.append(reply)

    def lock(n):
        name = "lock:load:%d" % n
        with Client(proxy.address, timeout=TIMEOUT) as client:
            while not over.is_set():
                replies = client("SETNX", name, "1"), client("DEL", name)
                if any(isinstance(r, Error) and not r.startswith(("UPSTREAM ", "READONLY ")) for r in replies):
                    problems.append(replies)

    threads = [threading.Thread(target=f, args=(n,)) for n in range(3) for f in (count, lock)]
    for thread in threads:
        thread.start()
    watcher = connect(proxy)
    try:
        until(lambda: len(granted) > 100, TIMEOUT, "a beginning")
        new = sentinels.failover(master)
        serves(watcher, new)
        at = len(granted)
        until(lambda: len(granted) > at + 100, TIMEOUT, "work on the new master")
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert not problems
    for n in range(3):
        replies = [reply for who, reply in granted if who == n]
        assert int(new.run("GET", "count:%d" % n)) <= len(replies) + unknown.count(n)
    assert "readonly" not in proxy.log().lower()


def test_a_master_that_is_killed(sentinels, master, start_proxy, connect):
    proxy = start_proxy(sentinels, "lock lock:* lease 120s")  # Sentinels on a busy machine may need some elections
    client = connect(proxy, timeout=TIMEOUT)
    assert client("SETNX", "lock:killed", "1") == 1
    client("WAIT", 1, 5000)
    sentinels.sentinels[0].kill()  # one of three may be gone as well
    master.kill()
    reply = client("SET", "k", "v")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM "), reply
    sentinels.sentinels[0].start()
    new = sentinels.await_switch(master)
    serves(client, new)
    other = connect(proxy, commands=[("CLIENT", "SETNAME", "other")])
    assert other("DEL", "lock:killed") == 0, "the lock has come over, with its guard"
    assert client("DEL", "lock:killed") == 1


def test_a_master_that_is_stopped(sentinels, master, start_proxy, connect):
    """Nothing answers and nothing closes the connections: they are left when the Sentinels name another. A lock script
    that was under way is repeated with its token; a write is not, and its outcome is said to be unknown."""
    proxy = start_proxy(sentinels, "upstream-timeout 60s")
    client, writer, locker = connect(proxy), connect(proxy, timeout=TIMEOUT), connect(proxy, timeout=TIMEOUT)
    assert locker("SETNX", "lock:before", "1") == 1
    assert locker("WAIT", 1, 5000) == 1
    master.pause()
    try:
        writer.send(encode("INCR", "count"))
        locker.send(encode("SETNX", "lock:repeated", "1"))
        new = sentinels.await_switch(master)
        reply = writer.read()
        assert isinstance(reply, Error) and "unknown" in reply and "another node is the master" in reply, reply
        assert locker.read() == 1
        assert new.run("GET", "count") is None
        assert connect(proxy, commands=[("CLIENT", "SETNAME", "other")])("DEL", "lock:repeated") == 0
        assert locker("DEL", "lock:repeated") == 1
        assert locker("DEL", "lock:before") == 1
        serves(client, new)
    finally:
        master.resume()
    until(master.is_replica, TIMEOUT, "the old master's demotion")
    assert client("SET", "k", "v") == "OK" and new.run("GET", "k") == "v"


def refusals(node):
    """How often it said READONLY."""
    found = re.search(r"errorstat_READONLY:count=(\d+)", node.run("INFO", "errorstats"))
    return int(found.group(1)) if found else 0


def test_a_master_that_is_demoted_behind_the_sentinels_backs(sentinels, master, start_proxy, connect):
    """READONLY: the write was not executed, so it waits for a master, and goes there. So does what may block."""
    proxy = start_proxy(sentinels)
    client, popper = connect(proxy, timeout=TIMEOUT), connect(proxy, timeout=TIMEOUT)
    assert client("SET", "k", "v") == "OK"
    master.run("CONFIG", "RESETSTAT")
    master.run("REPLICAOF", HOST, next(n for n in sentinels.nodes if n is not master).port)
    client.send(encode("SET", "k", "w"))
    popper.send(encode("BLPOP", "list", 0))
    until(lambda: refusals(master) > 1, TIMEOUT, "two refusals")
    master.run("REPLICAOF", "NO", "ONE")
    assert client.read() == "OK"
    assert client("RPUSH", "list", "a") == 1
    assert popper.read() == ["list", "a"]
    assert master.run("GET", "k") == "w"


def publish_every(sentinels, ms):
    """A Sentinel that finds an old master back makes it a replica after four times as long."""
    for sentinel in sentinels.sentinels:
        sentinel.run("SENTINEL", "DEBUG", "PUBLISH-PERIOD", str(ms))


def test_a_proxy_that_slept_through_a_failover(sentinels, master, start_proxy, connect):
    """When it wakes up, the old master is back, without the locks, and takes itself for the master still."""
    proxy = start_proxy(sentinels, "lock lock:*")
    clients = [connect(proxy) for _ in range(8)]
    for n, client in enumerate(clients):
        assert client("SET", "lock:%d" % n, "held", "NX", "PX", "100000") == "OK"
    until(lambda: all(node.run("DBSIZE") == master.run("DBSIZE") for node in sentinels.nodes), TIMEOUT, "the replica's data")
    proxy.signal(signal.SIGSTOP)
    try:
        new = sentinels.failover(master)
        publish_every(sentinels, 60000)
        master.restart()
        master.run("FLUSHALL")  # it may have saved what its new master had sent
        for n, client in enumerate(clients):
            client.send(encode("SET", "lock:%d" % n, "again", "NX") if n % 2 else
                        encode("MULTI") + encode("SETNX", "lock:%d" % n, "again") + encode("EXEC"))
        assert master.run("ROLE")[0] == "master"
    finally:
        proxy.signal(signal.SIGCONT)
    for n, client in enumerate(clients):
        replies = [client.read() for _ in range(1 if n % 2 else 3)]
        assert replies[-1] in (None, [0]) or isinstance(replies[-1], Error), replies
    assert master.run("ROLE")[0] == "master" and master.run("KEYS", "lock:*") == []
    serves(clients[1], new)
    publish_every(sentinels, 200)


def test_a_lost_connection_while_no_sentinel_is_there(sentinels, master, start_proxy, connect):
    """Then the last one named is the master."""
    proxy = start_proxy(sentinels)
    client = connect(proxy)
    assert client("SET", "key", "1") == "OK"
    for sentinel in sentinels.sentinels:
        sentinel.kill()
    master.run("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: client("GET", "key") == "1", TIMEOUT, "the master's service")


def test_all_are_down_at_the_start(start_proxy, connect):
    """The proxy starts, says what is missing, and serves as soon as it is there."""
    sentinel = free_port()
    proxy = start_proxy("sentinel mymaster %s:%d" % (HOST, sentinel))
    client = connect(proxy)
    reply = client("GET", "k")
    assert reply.startswith("UPSTREAM the master 'mymaster' is not known yet: no Sentinel") and "not sent" in reply
    assert client("SETNX", "lock:k", "1").startswith("UPSTREAM ")
    assert "Connection refused); trying on" in proxy.log()
    found = RedisSentinels(replicas=0, sentinels=1, ports=[sentinel])
    try:
        until(lambda: client("SET", "k", "v") == "OK", TIMEOUT, "service")
        assert found.nodes[0].run("GET", "k") == "v"
    finally:
        found.stop()


def test_logins(start_proxy, connect):
    """A password on the nodes, and for the proxy a user at the Sentinels that may do no more than it has to."""
    user = "user proxy on >sesame &+switch-master +sentinel|get-master-addr-by-name +subscribe"
    found = RedisSentinels("--requirepass", "pw", "--masterauth", "pw", replicas=1, sentinels=1,
                           sentinel_lines=["requirepass own", "sentinel sentinel-pass own", user])
    try:
        proxy = start_proxy(found, "upstream-password pw", "sentinel-user proxy", "sentinel-password sesame")
        client = connect(proxy)
        assert client("SET", "k", "v") == "OK"
        old = found.master
        serves(client, found.failover(old))
        found.sentinels[0].run("ACL", "SETUSER", "next", "on", ">again", "&+switch-master", "+sentinel|get-master-addr-by-name",
                               "+subscribe")
        assert reloaded(proxy, "sentinel-user next", "sentinel-password again", client=client) == "OK"
        found.sentinels[0].run("ACL", "DELUSER", "proxy")  # which closes the subscription
        serves(client, found.failover(found.master))
        assert "sesame" not in proxy.log() and "sesame" not in str(info(client))
        refused = start_proxy(found, "upstream-password pw", "sentinel-user proxy", "sentinel-password open")
        reply = connect(refused)("GET", "k")
        assert "WRONGPASS" in reply, reply
        assert "open" not in reply
    finally:
        found.stop()


def test_a_name_that_no_sentinel_knows(sentinels, master, start_proxy, connect):
    proxy = start_proxy("sentinel other %s" % address(sentinels.sentinels[0]))
    reply = connect(proxy)("GET", "k")
    assert "it watches no master named 'other'" in reply, reply


def test_sentinels_by_name(sentinels, master, names, start_proxy, connect):
    """Both the round of questions and the subscriptions go to what the name means."""
    sentinel = sentinels.sentinels[0]
    names.known["sentinel.test"] = [HOST]
    names.hold("silent.test")
    proxy = start_proxy("sentinel mymaster silent.test:%d sentinel.test:%d" % (free_port(), sentinel.port), "threads 1",
                        before=names.before)
    client = connect(proxy, timeout=TIMEOUT)
    works_again(client, timeout=TIMEOUT)
    state = "address=sentinel.test:%d,state=up" % sentinel.port
    until(lambda: state in client("PROXY", "INFO", "upstreams"), TIMEOUT, "the subscription")
    assert client("SET", "lock:k", "1", "NX") == "OK"
    assert client("DEL", "lock:k") == 1
