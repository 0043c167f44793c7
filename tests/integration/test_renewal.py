"""Leases that the proxy gives last as long as their client is there: long jobs, connections that are cut and come back, proxies
that stop and others that take over. And the warning if Redis may evict locks.
"""

import itertools
import signal
import threading
import time

import pytest

import servers
from resp import Client, Closed
from servers import tail, until

LEASE = 2.0
RULES = ["lock lock:brief:* lease 3s handover 6s", "lock lock:counter:* kind any lease 2s", "lock lock:pool:* owner client lease 2s", "lock lock:connection:* owner connection lease 2s",
         "lock lock:* lease 2s handover 30s"]
GONE = (Closed, ConnectionResetError, BrokenPipeError)


@pytest.fixture(scope="module")
def started(farm):
    proxies = {}

    def start(backend):
        if backend.kind not in proxies:
            proxies[backend.kind] = servers.Proxy(backend, *RULES)
        return proxies[backend.kind]

    yield start
    for proxy in proxies.values():
        proxy.stop()
        proxy.remove()


@pytest.fixture
def proxy(started, backend):
    return started(backend)


@pytest.fixture
def named(connect):
    """named(where, name): a connection that calls itself so."""

    def named(where, name):
        client = connect(where)
        assert client("CLIENT", "SETNAME", name) == "OK"
        return client

    return named


def held(direct, other, name, seconds, value="1"):
    """The lock is there for so long, and no other client gets it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert direct("GET", name) == value
        assert other("SETNX", name, "other") == 0
        time.sleep(0.05)


def knows(proxy, name):
    """The proxy renews the lock for a connected client."""
    with proxy.client() as c:
        found = [dict(zip(i[0::2], i[1::2])) for i in c("PROXY", "LOCKS", name)]
    return len(found) == 1 and "(disconnected)" not in str(found[0]["owner"])


def free(direct, name):
    until(lambda: direct("EXISTS", name) == 0, 10, "the end of the lease")


def incidents(client, name, kind):
    found = [dict(zip(i[0::2], i[1::2])) for i in client("PROXY", "INCIDENTS", 1000)]
    return [i for i in found if i["key"] == name and i["kind"] == kind]


def test_a_job_outlives_its_leases(proxy, connect, named, direct, key):
    """Redis alone would have kept a lock without an expiry for as long as it takes."""
    name, a, b = key("lock:job"), named(proxy, "a"), named(proxy, "b")
    assert a("SETNX", name, "1") == 1
    held(direct, b, name, 6 * LEASE)
    assert 0 < direct("PTTL", name) <= 1000 * LEASE
    assert a("DEL", name) == 1
    assert b("SETNX", name, "1") == 1
    assert not incidents(b, name, "overrun")


def test_max_hold_has_no_end_by_default(proxy, connect):
    assert "max-hold 0 " in str(connect(proxy)("PROXY", "RULES"))


@pytest.mark.parametrize("rule", ["lock:", "lock:pool:"])
def test_a_connection_is_cut_and_comes_back(proxy, named, direct, key, rule):
    """It says nothing about the lock until it releases it."""
    name, b = key(rule + "cut"), named(proxy, "b")
    a = named(proxy, "a")
    assert a("SETNX", name, "1") == 1
    for _ in range(3):
        a.close()
        held(direct, b, name, 0.2)
        a = named(proxy, "a")
        held(direct, b, name, 2 * LEASE)
    assert a("DEL", name) == 1
    assert b("SETNX", name, "1") == 1


def test_the_new_connection_comes_before_the_old_one_ends(proxy, named, direct, key):
    name, b, a = key("lock:early"), named(proxy, "b"), named(proxy, "a")
    assert a("SETNX", name, "1") == 1
    again = named(proxy, "a")
    a.crash()
    held(direct, b, name, 3 * LEASE)
    again.close()
    free(direct, name)


def test_a_crashed_workers_lock_is_free(proxy, named, direct, key):
    """Also where its colleagues are connected, and where another takes its place that asks for the lock."""
    name, colleague, a = key("lock:crash"), named(proxy, "a"), named(proxy, "a")
    until(lambda: colleague("PING") == "PONG", 5)
    time.sleep(1.1)  # a colleague that has just come might be the holder
    assert a("SETNX", name, "1") == 1
    a.crash()
    free(direct, name)
    a = named(proxy, "a")
    assert a("SETNX", name, "1") == 1
    a.crash()
    a = named(proxy, "a")
    until(lambda: a("SETNX", name, "1") == 1, 10, "the lock, for who has to wait for it")


@pytest.mark.parametrize("acquire", [("SETNX", "1"), ("INCR",)], ids=["setnx", "counter"])
def test_a_worker_started_anew_takes_other_locks(proxy, named, direct, key, acquire):
    """It is never refused, and its colleagues of other names wait for the lock that it had when it crashed."""
    lock, rival, a = key("lock:counter:anew") + ":%d", named(proxy, "b"), named(proxy, "a")
    assert a(acquire[0], lock % 1, *acquire[1:]) == 1
    a.crash()
    a, count = named(proxy, "a"), itertools.count(2)

    def works():
        other = lock % next(count)
        assert a(acquire[0], other, *acquire[1:]) == 1
        assert a("DEL", other) == 1
        return rival("SETNX", lock % 1, "1") == 1

    until(works, 5 * LEASE, "the lock, while the new worker works", 0.1)


def test_a_worker_that_came_back_takes_other_locks(proxy, named, direct, key):
    """It holds them all, or has looked at the lock that it holds."""
    lock, other, a = key("lock:brief:several") + ":%d", named(proxy, "b"), named(proxy, "a")
    assert a("SETNX", lock % 1, "a") == 1
    a.close()
    a = named(proxy, "a")
    for n in range(2, 9):
        assert a("SETNX", lock % n, "a") == 1
    held(direct, other, lock % 1, 2 * LEASE, "a")
    assert a("SET", lock % 1, "a", "NX", "GET") == "a"
    for n in range(2, 9):
        assert a("DEL", lock % n) == 1
    held(direct, other, lock % 1, 2 * LEASE, "a")
    assert a("DEL", lock % 1) == 1


def test_a_connections_own_lock_is_not_kept_for_another(proxy, named, direct, key):
    name, a = key("lock:connection:cut"), named(proxy, "a")
    assert a("SETNX", name, "1") == 1
    a.close()
    assert named(proxy, "a")("DEL", name) == 0
    free(direct, name)


# ---- a proxy that stops ---------------------------------------------------------------------------------------------


class Rivals:
    """Clients that try for the lock all the time, through whichever proxy has the port, and put load on the proxy."""

    def __init__(self, address, name, count=4):
        self.address, self.name, self.over = address, name, threading.Event()
        self.got, self.problems, self.tries = [], [], 0
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        try:
            while not self.over.is_set():
                try:
                    with Client(self.address) as c:
                        c("CLIENT", "SETNAME", "rival%d" % number)
                        while not self.over.is_set():
                            if c("SETNX", self.name, "rival") != 0:
                                self.got.append(time.monotonic())
                            c("SET", "load:%d" % number, "x" * 1000)
                            self.tries += 1
                except (*GONE, ConnectionRefusedError):
                    time.sleep(0.01)
        except BaseException as error:  # noqa: B902: handed to the test's own thread
            self.problems.append(repr(error))

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.problems and not any(thread.is_alive() for thread in self.threads)


class Successor(servers.Proxy):
    """A proxy on another's port, and with its configuration."""

    def __init__(self, before):
        servers.Process.__init__(self, "proxy")
        self.port, self.address, self.config = before.port, before.address, before.config
        self.launch()
        self.await_ready()


@pytest.fixture
def successors():
    made = []

    def start(before):
        made.append(Successor(before))
        return made[-1]

    yield start
    for proxy in made:
        if proxy.expected:
            proxy.stop()
        else:
            servers.Proxy.started.remove(proxy)
            proxy.check()
        proxy.remove()


def end(proxy):
    proxy.expected = False
    proxy.signal(signal.SIGTERM)


def ended(proxy):
    assert proxy.process.wait(30) == 0, tail(proxy.log_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_take_over_lets_nobody_in(backend, start_proxy, named, successors, direct, key, threads):
    """A new process takes over the port under load, twice: an idle holder keeps its lock, with a connection to the new process,
    and releases it there."""
    name, quiet = key("lock:over"), key("lock:quiet")
    proxy = start_proxy(backend, "reuse-port yes", "shutdown-timeout 3", "threads %d" % threads, *RULES)
    holder, other = named(proxy, "holder"), named(proxy, "quiet")
    assert holder("SETNX", name, "mine") == 1 and other("SETNX", quiet, "mine") == 1
    rivals = Rivals(proxy.address, name)
    try:
        until(lambda: rivals.tries > 50, 20, "some load")
        for _ in range(2):
            before, proxy = proxy, successors(proxy)
            end(before)
            ended(before)
            with pytest.raises(GONE):
                holder("PING")
            holder = named(proxy, "holder")
            tries = rivals.tries
            until(lambda: rivals.tries > tries + 50, 20, "load on the new one")
            assert before.log().count("last expiry") >= 1 or 20000 < direct("PTTL", name) <= 30000
            until(lambda: knows(proxy, name), 15, "the new one's own renewals")
        held(direct, named(proxy, "somebody"), name, 3 * LEASE, "mine")
        assert direct("GET", quiet) == "mine", "it is kept until handover is over, also for who has not come yet"
    finally:
        rivals.stop()
    assert not rivals.got
    assert holder("DEL", name) == 1
    assert direct("EXISTS", name) == 0


def test_a_restart_lets_nobody_in(backend, start_proxy, named, successors, direct, key):
    name, own = key("lock:restart"), key("lock:own")
    proxy = start_proxy(backend, *RULES)
    holder = named(proxy, "holder")
    assert holder("SETNX", name, "mine") == 1
    assert holder("SET", own, "mine", "NX", "PX", 60000) == "OK"
    end(proxy)
    ended(proxy)
    assert 20000 < direct("PTTL", name) <= 30000
    assert 50000 < direct("PTTL", own) <= 60000, "none of the proxy's"
    proxy = successors(proxy)
    holder, other = named(proxy, "holder"), named(proxy, "other")
    held(direct, other, name, 2 * LEASE, "mine")
    assert holder("GET", name) == "mine"
    assert other("DEL", name) == 0
    assert holder("DEL", name) == 1


@pytest.mark.parametrize("reuse", ["yes", "no"])
def test_who_says_nothing_is_known_by_the_next_proxy(backend, start_proxy, named, successors, direct, key, reuse):
    """For longer than handover, at one proxy after another."""
    name = key("lock:brief:idle")
    proxy = start_proxy(backend, "reuse-port " + reuse, "shutdown-timeout 3", *RULES)
    holder, other = named(proxy, "holder"), None
    assert holder("SETNX", name, "mine") == 1
    for hop in range(2):
        before = proxy
        if reuse == "yes":
            proxy = successors(before)
            end(before)
        else:
            end(before)
            ended(before)
            proxy = successors(before)
        ended(before)
        holder.close()
        holder = named(proxy, "holder")
        other = named(proxy, "other")
        until(lambda: knows(proxy, name), 5, "the new proxy's own renewals")
        held(direct, other, name, 10 if hop else 1, "mine")
    assert 0 < direct("PTTL", name) <= 3000
    assert other("DEL", name) == 0
    assert holder("DEL", name) == 1
    assert other("SETNX", name, "other") == 1


def test_who_comes_back_at_another_proxy(backend, start_proxy, named, direct, key):
    """Both proxies run; there is no incident for the lock. A client that does not come back has left it."""
    name, gone = key("lock:brief:moved"), key("lock:brief:gone")
    one, two = start_proxy(backend, *RULES), start_proxy(backend, *RULES)
    watch = named(two, "watch")
    until(lambda: "locks_evictable:no" in watch("PROXY", "INFO", "upstreams"), 20, "the first look around")
    holder, lost, other = named(one, "holder"), named(one, "lost"), named(two, "other")
    assert holder("SETNX", name, "mine") == 1 and lost("SETNX", gone, "mine") == 1
    holder.crash()
    lost.crash()
    holder = named(two, "holder")
    held(direct, other, name, 8, "mine")
    assert direct("EXISTS", gone) == 0
    assert "renewal_lost" not in one.log() + two.log()
    holder.close()
    free(direct, name)


def test_many_leases_are_handed_over_in_time(backend, start_proxy, named, direct, key):
    count = 3000
    proxy = start_proxy(backend, "shutdown-timeout 5", "lock lock:* lease 10s handover 60s")
    holder = named(proxy, "holder")
    names = [key("lock:many:%d" % n) for n in range(count)]
    for at in range(0, count, 500):
        holder.send(b"".join(b"*3\r\n$5\r\nSETNX\r\n$%d\r\n%s\r\n$1\r\n1\r\n" % (len(n), n.encode())
                             for n in names[at : at + 500]))
        assert [holder.read() for _ in range(500)] == [1] * 500
    began = time.monotonic()
    end(proxy)
    ended(proxy)
    assert time.monotonic() - began < 6
    assert all(direct("PTTL", name) > 30000 for name in names[:: count // 50])


# ---- evictions --------------------------------------------------------------------------------------------------------


def test_a_policy_that_evicts_is_a_warning(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server, "admin-port 0")
    client = connect(proxy)

    def says(line):
        return line + "\r" in client("PROXY", "INFO", "upstreams")

    until(lambda: says("locks_evictable:no") and says("maxmemory_policy:noeviction"), 20, "the first answer")
    assert "evict" not in proxy.log()
    server.run("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    until(lambda: says("maxmemory_policy:volatile-ttl"), 30, "another policy")
    assert says("locks_evictable:no"), "there is no limit"
    server.run("CONFIG", "SET", "maxmemory", "100mb")
    until(lambda: says("locks_evictable:yes"), 30, "a limit")
    assert proxy.log().count("may evict locks") == 1 and "volatile-ttl" in proxy.log()
    server.run("CONFIG", "SET", "maxmemory", "0")
    until(lambda: says("locks_evictable:no"), 30, "none again")
    assert "not evicted any more" in proxy.log()


def test_who_may_not_ask_says_nothing(start_redis, start_proxy, connect):
    server = start_redis()
    server.run("CONFIG", "SET", "maxmemory", "100mb")
    server.run("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.run("ACL", "SETUSER", "proxy", "on", ">secret", "~*", "&*", "+@all", "-info")
    proxy = start_proxy(server, "upstream-user proxy", "upstream-password secret")
    client = connect(proxy)
    until(lambda: server.run("ACL", "LOG"), 20, "the question")
    assert "locks_evictable:unknown\r" in client("PROXY", "INFO", "upstreams")
    assert "evict" not in proxy.log()
