"""List locks: a queue of nodes whose head is the holder (RPUSH, LRANGE, LREM), plain and reentrant.

If an application's code fails directly on Redis, it is run there too and must fail. There are three kinds of connections: D
one for each worker, P a pool, M one for all workers of a process.
"""

import itertools
import os
import time

import pytest

import servers
from resp import Client, Error, encode
from servers import until

RULES = ["lock lock:slow:* lease 60s", "lock lock:connection:* owner connection lease 2400ms",
         "lock lock:client:* owner client lease 2400ms", "lock lock:slowclient:* owner client lease 60s",
         "lock lock:any:* owner any lease 2400ms", "lock lock:hold:* lease 1200ms max-hold 2s",
         "lock lock:release:* on-disconnect release lease 2400ms", "lock lock:nolease:* lease 0", "lock lock:* lease 2400ms"]
RULES = [rule + " kind any" for rule in RULES]


@pytest.fixture(scope="module")
def list_proxies(farm):
    started = {}

    def proxy(backend):
        if backend.kind not in started:
            started[backend.kind] = servers.Proxy(backend, *RULES)
        return started[backend.kind]

    yield proxy
    for p in started.values():
        p.stop()
        p.remove()


@pytest.fixture
def proxy(list_proxies, backend):
    proxy = list_proxies(backend)
    if os.environ.get("LOCKKEEPER_THREADS"):
        proxy.await_alone()
    return proxy


class Process:
    """A process of an application, with a name where the server can be told one."""

    def __init__(self, connect, model, name):
        self.connect, self.model, self.name = connect, model, name
        self.connections = [] if model == "D" else [self.opened() for _ in range(3 if model == "P" else 1)]
        self.turn = itertools.cycle(self.connections)

    def opened(self):
        connection = self.connect()
        connection("CLIENT", "SETNAME", self.name)
        return connection

    def worker(self):
        """What a worker calls: on its own connection, or on the next of the process's."""
        if self.model == "D":
            self.connections.append(self.opened())
            return self.connections[-1]
        return lambda *words: next(self.turn)(*words)

    def die(self):
        for connection in self.connections:
            connection.close()


@pytest.fixture(params=["D", "P", "M"])
def model(request):
    return request.param


@pytest.fixture
def sides(backend, proxy, key):
    """Both sides of a scenario: (process(name), lock's name), directly and through the proxy."""
    processes = []

    def both(model, lock):
        for connect in (backend.direct, lambda: Client(proxy.address)):
            def process(name, connect=connect):
                processes.append(Process(connect, model, name))
                return processes[-1]
            yield process, key(lock if model == "D" else lock.replace("lock:", "lock:client:").replace(
                "client:slow:", "slowclient:"))

    yield both
    for p in processes:
        p.die()


def is_locked(reply):
    return isinstance(reply, Error) and str(reply).startswith("LOCKED ")


def kinds(client, name):
    return [dict(zip(row[::2], row[1::2]))["kind"] for row in client("PROXY", "INCIDENTS", 500)
            if dict(zip(row[::2], row[1::2]))["key"] == name]


# ---- row 9 -------------------------------------------------------------------------------------------------


def test_9_works(sides, model):
    def scenario(process, name):
        a, b = process("one").worker(), process("two").worker()
        got = [a("RPUSH", name, "a:1"), a("LRANGE", name, 0, 0), b("RPUSH", name, "b:1"), b("LRANGE", name, 0, 0),
               a("LREM", name, 1, "a:1"), b("LRANGE", name, 0, 0), b("LREM", name, 1, "b:1"), b("LRANGE", name, 0, 0)]
        return got, b("EXISTS", name)

    direct, proxied = [scenario(*side) for side in sides(model, "lock:queue")]
    assert direct == proxied == ([1, ["a:1"], 2, ["a:1"], 1, ["b:1"], 1, []], 0)


def test_9_a_loser_that_walked_away(sides):
    """Its node blocks the queue for ever; through the proxy for 5 s. All models at once, for the time it takes."""

    def prepare(process, name):
        a, b, c = process("one").worker(), process("two").worker(), process("three").worker()
        for worker, node in ((a, "a:1"), (b, "b:1"), (c, "c:1")):
            worker("RPUSH", name, node)
        assert a("LRANGE", name, 0, 0) == b("LRANGE", name, 0, 0) == ["a:1"]
        assert a("LREM", name, 1, "a:1") == 1
        return c, name  # b never looks again

    began = time.monotonic()
    directs, proxied = zip(*[[prepare(*side) for side in sides(model, "lock:slow:walked")] for model in "DPM"])
    for c, name in proxied:
        until(lambda: c("LRANGE", name, 0, 0) == ["c:1"], 20, "the loser's end", 0.05)
        assert time.monotonic() - began > 4.5
        assert c("LREM", name, 1, "c:1") == 1
    for c, name in directs:
        assert c("LRANGE", name, 0, 0) == ["b:1"]


def test_9_a_process_dies(sides, model):
    """The holder dies, and the next in the queue with it."""

    def scenario(process, name, seconds):
        one, three = process("one"), process("three").worker()
        a, b = one.worker(), one.worker()
        for worker, node in ((a, "a:1"), (b, "b:1"), (three, "c:1")):
            worker("RPUSH", name, node)
        assert a("LRANGE", name, 0, 0) == ["a:1"]
        one.die()
        try:
            until(lambda: three("LRANGE", name, 0, 0) == ["c:1"], seconds, "the dead nodes' end")
            return True
        except AssertionError:
            return False

    assert [scenario(*side, seconds) for side, seconds in zip(sides(model, "lock:dies"), (1, 15))] == [False, True]


def test_9_another_removes_the_holders_node(sides, model):
    """A client that clears what it takes for stale: the holder's node goes, and two are inside."""

    def scenario(process, name):
        a, b = process("one").worker(), process("two").worker()
        a("RPUSH", name, "a:1")
        assert a("LRANGE", name, 0, 0) == ["a:1"]
        b("RPUSH", name, "b:1")
        replies = [b("LREM", name, 1, "a:1"), b("LRANGE", name, 0, 0)]
        a("LREM", name, 1, "a:1")
        return replies

    assert [scenario(*side) for side in sides(model, "lock:stale")] == [[1, ["b:1"]], [0, ["a:1"]]]


@pytest.mark.parametrize("command", [["LPOP", "K"], ["DEL", "K"], ["UNLINK", "K"]])
def test_9_another_pops_or_deletes(sides, model, command):
    def scenario(process, name):
        a, b = process("one").worker(), process("two").worker()
        a("RPUSH", name, "a:1")
        assert a("LRANGE", name, 0, 0) == ["a:1"]
        b("RPUSH", name, "b:1")
        words = [name if word == "K" else word for word in command]
        refused, head = b(*words), b("LRANGE", name, 0, 0)
        done = a(*words)
        return refused, head, done, b("LRANGE", name, 0, 0)

    direct, proxied = [scenario(*side) for side in sides(model, "lock:pop")]
    no, yes = (None, "a:1") if command[0] == "LPOP" else (0, 1)
    assert direct[0] == yes
    assert proxied == (no, ["a:1"], yes, ["b:1"])


def test_9_holder_keeps_its_lock_beyond_the_lease(proxy, model, key, sides):
    _, (process, name) = sides(model, "lock:long")
    a, b = process("one").worker(), process("two").worker()
    a("RPUSH", name, "a:1")
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    b("RPUSH", name, "b:1")
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        assert b("LRANGE", name, 0, 0) == ["a:1"]
        time.sleep(0.05)
    assert a("LREM", name, 1, "a:1") == 1
    assert b("LRANGE", name, 0, 0) == ["b:1"]


# ---- row 10 ------------------------------------------------------------------------------------------------


def test_10_two_see_no_queue(sides, model):
    """Both see EXISTS 0, both push, both take themselves for the holder."""

    def scenario(process, name):
        one = process("one")
        a, b, c = one.worker(), one.worker(), process("two").worker()
        assert [w("EXISTS", name) for w in (a, b, c)] == [0, 0, 0]
        return [isinstance(w("RPUSH", name, node), int) for w, node in ((b, "b:1"), (a, "a:1"), (c, "c:1"))]

    assert [scenario(*side) for side in sides(model, "lock:two")] == [[True, True, True], [True, False, False]]


def test_10_works(sides, model):
    def scenario(process, name):
        a, b = process("one").worker(), process("two").worker()
        got = [a("EXISTS", name), a("RPUSH", name, "a:1"), b("EXISTS", name), b("LRANGE", name, 0, 0),
               a("EXISTS", name), a("LRANGE", name, 0, 0), a("LSET", name, 0, "a:2"), a("LSET", name, 0, "a:1"),
               b("RPUSH", name, "b:1"), a("LREM", name, 1, "a:1"), b("LRANGE", name, 0, 0), b("LREM", name, 1, "b:1")]
        return [str(x) if isinstance(x, Error) else x for x in got] + [b("EXISTS", name)]

    good = [0, 1, 1, ["a:1"], 1, ["a:1"], "OK", "OK", 2, 1, ["b:1"], 1, 0]
    assert [scenario(*side) for side in sides(model, "lock:reentrant")] == [good, good]


def test_10_lset_hits_anothers_head(sides, model):
    def scenario(process, name):
        one, two = process("one"), process("two")
        a, b = one.worker(), two.worker()
        assert a("EXISTS", name) == 0
        a("RPUSH", name, "a:1")
        b("RPUSH", name, "b:1")
        assert a("LREM", name, 1, "a:1") == 1  # its lease was over, say
        assert b("LRANGE", name, 0, 0) == ["b:1"]
        late = a("LSET", name, 0, "a:2")
        return late, b("LRANGE", name, 0, 0)

    direct, proxied = [scenario(*side) for side in sides(model, "lock:lset")]
    assert direct == ("OK", ["a:2"])
    assert is_locked(proxied[0]) and proxied[1] == ["b:1"]


def test_10_changed_node_is_the_holders(proxy, connect, key):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:slow:changed")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    fence = a("PROXY", "TOKEN", name)
    assert a("LSET", name, 0, "a:2") == "OK"
    assert a("PROXY", "TOKEN", name) == fence
    b("RPUSH", name, "b:1")
    assert a("LREM", name, 1, "a:1") == 0
    assert b("LREM", name, 1, "a:2") == 0
    assert a("LREM", name, 1, "a:2") == 1
    assert b("LINDEX", name, 0) == "b:1"
    assert b("PROXY", "TOKEN", name) > fence


def test_same_client_another_connection(proxy, connect, direct, key):
    """Two connections of one client under owner auto: a command that names a node is believed; LSET names a position."""
    a, b = connect(proxy), connect(proxy)
    for name in (key("lock:slow:peer"), key("lock:connection:peer")):
        a("RPUSH", name, "a:1")
        assert is_locked(b("LSET", name, 0, "b:1"))
        assert a("LRANGE", name, 0, 0) == ["a:1"]
        assert is_locked(b("LSET", name, 0, "b:1"))
        assert b("DEL", name) == 0 and b("LPOP", name) is None
        assert direct("LRANGE", name, 0, -1) == ["a:1"]
        if "connection" in name:
            assert is_locked(b("LSET", name, 0, "a:2")) and b("LREM", name, 1, "a:1") == 0
        else:  # another count of the same node names it
            assert b("LSET", name, 0, "a:2") == "OK" and b("LREM", name, 1, "a:2") == 1


# ---- one client identity: workers that reconnect, pools ------------------------------------------------------


def holds_for(worker, others, name, node, seconds=4):
    """Whether the node stays the head for longer than its lease, although others look, until its worker removes it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for other in others:
            assert other("LRANGE", name, 0, 0) == [node]
        time.sleep(0.02)
    return worker("LREM", name, 1, node) == 1


def named(connect, proxy, name):
    return connect(proxy, commands=[("CLIENT", "SETNAME", name)])


@pytest.fixture(params=["lock:", "lock:connection:"])
def prefix(request):
    return request.param


def test_a_holder_that_reconnects_keeps_its_lock(proxy, connect, key, prefix):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key(prefix + "back")
    a("RPUSH", name, "a:1")
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    b("RPUSH", name, "b:1")
    a.close()
    again = connect(proxy)
    assert again("LRANGE", name, 0, 0) == ["a:1"]
    assert holds_for(again, [b], name, "a:1")
    assert b("LRANGE", name, 0, 0) == ["b:1"]


def test_a_worker_that_reconnects_before_it_looks(proxy, connect, key, prefix):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key(prefix + "back")
    a("RPUSH", name, "a:1")
    b("RPUSH", name, "b:1")
    a.close()
    again = connect(proxy)
    assert again("LINDEX", name, 0) == "a:1"
    assert holds_for(again, [b], name, "a:1")
    assert b("LRANGE", name, 0, 0) == ["b:1"]


def test_a_waiting_worker_that_reconnects(proxy, connect, key, prefix):
    """Its node keeps its place for as long as it looks."""
    a, b, c = connect(proxy), named(connect, proxy, "other"), named(connect, proxy, "third")
    name = key(prefix + "back")
    for worker, node in ((b, "b:1"), (a, "a:1"), (c, "c:1")):
        worker("RPUSH", name, node)
    assert b("LRANGE", name, 0, 0) == ["b:1"]
    a.close()
    again = connect(proxy)
    assert holds_for(b, [again, c], name, "b:1")
    assert again("LRANGE", name, 0, 0) == ["a:1"]
    assert holds_for(again, [c], name, "a:1")
    assert c("LRANGE", name, 0, 0) == ["c:1"]


def test_all_reconnect(proxy, connect, key, prefix):
    """Each sees the nodes of all, and takes its own for a lock of its own."""
    name = key(prefix + "all")
    other = named(connect, proxy, "other")
    before = [connect(proxy) for _ in range(4)]
    for n, worker in enumerate(before):
        worker("RPUSH", name, "n:%d" % n)
    assert before[0]("LRANGE", name, 0, 0) == ["n:0"]
    for worker in before:
        worker.close()
    now = [connect(proxy) for _ in range(4)]
    for n, worker in enumerate(now):
        for waiting in now[n:] + [other]:
            assert waiting("LRANGE", name, 0, 0) == ["n:%d" % n]
        assert holds_for(worker, now[n + 1:] + [other], name, "n:%d" % n)
    assert other("LLEN", name) == 0


def test_through_another_proxy(proxy, backend, start_proxy, connect, key):
    second = start_proxy(backend, *RULES)
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:back")
    a("RPUSH", name, "a:1")
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    b("RPUSH", name, "b:1")
    a.close()
    again = connect(second)
    assert again("LRANGE", name, 0, 0) == ["a:1"]
    assert holds_for(again, [b], name, "a:1")


def test_back_before_the_proxy_knows(proxy, backend, start_proxy, connect, direct, key, prefix):
    """The worker reads over its new connection, and works, before the old one closes."""
    second = start_proxy(backend, *RULES)
    for back in (proxy, second):
        a, b = connect(proxy), named(connect, proxy, "other")
        name = key(prefix + "early")
        a("RPUSH", name, "a:1")
        assert a("LRANGE", name, 0, 0) == ["a:1"]
        b("RPUSH", name, "b:1")
        again = connect(back)
        assert again("LRANGE", name, 0, 0) == ["a:1"]
        a.close()
        assert holds_for(again, [b], name, "a:1")
        assert b("LRANGE", name, 0, 0) == ["b:1"]


def test_nobody_comes_back(proxy, connect, key, prefix):
    """Colleagues on the same machine look, and wait for nodes of their own: the dead ones' go."""
    dead, colleague = [connect(proxy) for _ in range(3)], connect(proxy)
    name = key(prefix + "gone")
    for n, worker in enumerate(dead):
        worker("RPUSH", name, "n:%d" % n)
    assert dead[0]("LRANGE", name, 0, 0) == ["n:0"]
    colleague("RPUSH", name, "c:1")
    for worker in dead:
        worker.close()
    until(lambda: colleague("LRANGE", name, 0, 0) == ["c:1"], 15, "the dead nodes' end", 0.02)


def test_nobody_comes_back_but_to_wait(proxy, connect, key, prefix):
    """A waiting worker reconnects, the holder does not. The one that looks again and again does not hold."""
    dead, waiting, idle = connect(proxy), connect(proxy), named(connect, proxy, "idle")
    name = key(prefix + "gone")
    dead("RPUSH", name, "d:1")
    assert dead("LRANGE", name, 0, 0) == ["d:1"]
    waiting("RPUSH", name, "w:1")
    idle("RPUSH", name, "i:1")
    dead.close()
    waiting.close()
    again = connect(proxy)
    until(lambda: again("LRANGE", name, 0, 0) == ["w:1"], 15, "the dead node's end", 0.02)
    assert holds_for(again, [idle], name, "w:1")


def test_pushed_over_one_connection_read_over_another(proxy, connect, key):
    """A pool, under owner auto, without a name."""
    one, two, three = [connect(proxy) for _ in range(3)]
    other = named(connect, proxy, "other")
    name = key("lock:pool")
    assert one("RPUSH", name, "a:1") == 1
    assert two("LRANGE", name, 0, 0) == ["a:1"]
    other("RPUSH", name, "b:1")
    assert holds_for(three, [other], name, "a:1")
    assert other("LRANGE", name, 0, 0) == ["b:1"]


def test_a_pool_whose_workers_wait_for_each_other(proxy, connect, key):
    """Each worker takes the next connection for each command. Only the head's worker removes the head."""
    turn = itertools.cycle([connect(proxy) for _ in range(3)])
    name = key("lock:pool")
    waiting, inside, done, node = {}, None, 0, 0
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        while len(waiting) < 5:
            node += 1
            assert isinstance(next(turn)("RPUSH", name, "n:%d" % node), int)
            waiting["n:%d" % node] = time.monotonic()
        head = next(turn)("LRANGE", name, 0, 0)[0]
        assert head == min(waiting, key=lambda n: int(n[2:])), "a node that somebody waits for is gone"
        inside = inside or time.monotonic()
        if time.monotonic() - inside > 0.02:
            assert next(turn)("LREM", name, 1, head) == 1
            del waiting[head]
            inside, done = None, done + 1
    assert done > 100


def test_a_pool_that_is_known_holds_beyond_the_lease(proxy, connect, key):
    """Two releases over other connections than pushed have shown it."""
    one, two, three = [connect(proxy) for _ in range(3)]
    name = key("lock:pool")
    for n in range(2):
        one("RPUSH", name, "a:%d" % n)
        two("RPUSH", name, "b:%d" % n)
        for remover, node in ((three, "a:%d" % n), (one, "b:%d" % n)):
            assert three("LRANGE", name, 0, 0) == [node]
            assert remover("LREM", name, 1, node) == 1
    one("RPUSH", name, "a:9")
    two("RPUSH", name, "b:9")
    assert two("LRANGE", name, 0, 0) == ["a:9"]
    assert holds_for(three, [two, three], name, "a:9")


def test_a_loser_of_the_same_client_that_walked_away(proxy, connect, key, prefix):
    """It is connected, and does not look; the node blocks the queue for no longer than a lease."""
    a, b, c = [connect(proxy) for _ in range(3)]
    name = key(prefix + "walked")
    for worker, node in ((a, "a:1"), (b, "b:1"), (c, "c:1")):
        worker("RPUSH", name, node)
    assert a("LRANGE", name, 0, 0) == b("LRANGE", name, 0, 0) == ["a:1"]
    assert a("LREM", name, 1, "a:1") == 1
    until(lambda: c("LRANGE", name, 0, 0) == ["c:1"], 8, "the loser's end", 0.02)
    assert c("LREM", name, 1, "c:1") == 1


def test_a_strange_identity_is_never_believed(proxy, connect, direct, key):
    """Also where the owner has left."""
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:slow:strange")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    for _ in range(2):
        assert b("LREM", name, 1, "a:1") == 0 and is_locked(b("LSET", name, 0, "b:2"))
        assert is_locked(b("RPUSH", name, "a:1"))
        assert direct("LRANGE", name, 0, -1) == ["a:1", "b:1"]
        a.close()


def test_a_seat_that_was_given_up_is_nobodys(proxy, connect, direct, key):
    """A session without a claim does not speak for one that has read again."""
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:slow:seat")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    a.close()
    again = connect(proxy)
    for _ in range(3):
        assert again("LRANGE", name, 0, 0) == ["a:1"]
    assert b("DEL", name) == 0 and b("LPOP", name) is None and b("EXPIRE", name, 1) == 0
    assert direct("LRANGE", name, 0, -1) == ["a:1", "b:1"]


def test_an_onlooker_that_leaves_releases_nothing(proxy, connect, direct, key):
    """It may have been the owner; with on-disconnect release, what is the owner's goes with its own connection alone."""
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:release:seen")
    a("RPUSH", name, "a:1")
    b("RPUSH", name, "b:1")
    onlooker = connect(proxy)
    assert onlooker("LRANGE", name, 0, 0) == ["a:1"]
    onlooker.close()
    assert holds_for(a, [b], name, "a:1", 1)
    a("RPUSH", name, "a:2")
    assert b("LRANGE", name, 0, 0) == ["b:1"] and b("LREM", name, 1, "b:1") == 1
    assert a("LRANGE", name, 0, 0) == ["a:2"]
    b("RPUSH", name, "b:2")
    a.close()
    until(lambda: b("LRANGE", name, 0, 0) == ["b:2"], 2, "the owner's end")


def test_a_push_that_is_repeated_after_a_reconnect(proxy, connect, direct, key, prefix):
    """The node is there: it keeps its place."""
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key(prefix + "repeated")
    b("RPUSH", name, "b:1")
    assert b("LRANGE", name, 0, 0) == ["b:1"]
    assert a("RPUSH", name, "a:1") == 2
    a.close()
    again = connect(proxy)
    until(lambda: again("RPUSH", name, "a:1") == 2, 5, "the owner's end")
    assert direct("LRANGE", name, 0, -1) == ["b:1", "a:1"]
    assert b("LREM", name, 1, "b:1") == 1
    b("RPUSH", name, "b:2")
    assert again("LRANGE", name, 0, 0) == ["a:1"]
    assert holds_for(again, [b], name, "a:1")
    assert b("LRANGE", name, 0, 0) == ["b:2"]


def test_a_reentrant_holder_that_reconnects(proxy, connect, key, prefix):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key(prefix + "reentrant")
    assert a("EXISTS", name) == 0 and a("RPUSH", name, "a:1") == 1
    b("RPUSH", name, "b:1")
    a.close()
    again = connect(proxy)
    assert again("EXISTS", name) == 1 and again("LRANGE", name, 0, 0) == ["a:1"]
    until(lambda: again("LSET", name, 0, "a:1:2") == "OK", 5, "the owner's end")
    assert holds_for(again, [b, again], name, "a:1:2")
    assert b("LRANGE", name, 0, 0) == ["b:1"]


def test_exists_counts_once(proxy, connect, key, prefix):
    """However often it was asked, one push is refused that follows it."""
    a, b = connect(proxy), connect(proxy)
    name = key(prefix + "asked")
    for _ in range(4):
        assert a("EXISTS", name) == 0
    assert b("RPUSH", name, "b:1") == 1
    assert is_locked(a("RPUSH", name, "a:1"))
    assert a("RPUSH", name, "a:2") == 2 and a("RPUSH", name, "a:3") == 3


def test_a_worker_that_comes_again(proxy, connect, direct, key):
    """It walked away from an older node, which does not stand in its way for ever."""
    a, b = connect(proxy), connect(proxy)
    for name in (key("lock:connection:again"), key("lock:again")):
        b("RPUSH", name, "b:1")
        b("LRANGE", name, 0, 0)
        a("RPUSH", name, "a:1")
        a("RPUSH", name, "a:2")
        assert b("LREM", name, 1, "b:1") == 1
        until(lambda: a("LRANGE", name, 0, 0) == ["a:2"], 15, "the older node's end", 0.05)
        assert a("LREM", name, 1, "a:2") == 1


# ---- dead nodes --------------------------------------------------------------------------------------------


def test_dead_when_the_owner_does_not_read_for_a_lease(proxy, connect, key):
    a, b, c = [named(connect, proxy, name) for name in "abc"]
    name = key("lock:unread")
    for w, node in ((a, "a:1"), (b, "b:1"), (c, "c:1")):
        w("RPUSH", name, node)
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    deadline = time.monotonic() + 3  # b does not look; the lease is 2.4 s
    while time.monotonic() < deadline:
        assert c("LRANGE", name, 0, 0) == ["a:1"]
        time.sleep(0.05)
    assert a("LREM", name, 1, "a:1") == 1
    assert c("LRANGE", name, 0, 0) == ["c:1"]
    assert "lost_head" in kinds(c, name)


def test_max_hold_ends_a_holder(proxy, connect, key):
    a, b = connect(proxy), connect(proxy)
    name = key("lock:hold:q")
    a("RPUSH", name, "a:1")
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    b("RPUSH", name, "b:1")
    until(lambda: b("LRANGE", name, 0, 0) == ["b:1"], 15, "the end of max-hold")
    assert a("LREM", name, 1, "a:1") == 0
    assert "late_release" in kinds(a, name)
    assert b("LREM", name, 1, "b:1") == 1


def test_many_dead_nodes_are_removed_little_by_little(proxy, connect, direct, key):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:slow:many")
    for start in range(0, 2000, 500):
        a("RPUSH", name, *["a:%d" % n for n in range(start, start + 500)])
    assert b("RPUSH", name, "b:1") == 2001
    a.close()
    until(lambda: b("LLEN", name) < 2000, 15, "the owner's end")
    rounds = 0
    while b("LRANGE", name, 0, 0) != ["b:1"]:
        rounds += 1
        assert rounds < 50
    assert rounds >= 15
    b("LREM", name, 1, "b:1")
    assert direct("EXISTS", name) == 0


def test_everything_ends(proxy, connect, direct, key):
    """When all workers have left, key and guard record go."""
    a, b = connect(proxy), connect(proxy)
    name = key("lock:ends")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    a.close()
    b.close()
    until(lambda: direct("EXISTS", name) == 0, 15, "the end of the queue")


# ---- commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    ["LPUSH", "K", "x"], ["LPUSHX", "K", "x"], ["LINSERT", "K", "BEFORE", "a:1", "x"], ["LTRIM", "K", "1", "-1"],
    ["LSET", "K", "0", "x"], ["RPUSH", "K", "a:1"], ["SET", "K", "x"], ["RPOPLPUSH", "K", "K"],
    ["LMOVE", "K", "K", "LEFT", "RIGHT"], ["LMPOP", "1", "K", "LEFT"], ["BLPOP", "K", "1"], ["BRPOP", "K", "1"],
    ["BLMPOP", "1", "1", "K", "LEFT"], ["RENAME", "K", "K"], ["BLMOVE", "K", "K", "LEFT", "RIGHT", "1"]])
def test_locked(proxy, connect, direct, key, words):
    a, b = connect(proxy), connect(proxy)
    name = key("lock:slow:no")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    assert is_locked(b(*[name if word == "K" else word for word in words]))
    assert direct("LRANGE", name, 0, -1) == ["a:1", "b:1"]


@pytest.mark.parametrize("words, reply", [
    (["LREM", "K", "0", "a:1"], b":0\r\n"), (["LPOP", "K"], b"$-1\r\n"), (["LPOP", "K", "1"], b"*-1\r\n"),
    (["RPOP", "K"], b"$-1\r\n"), (["RPOP", "K", "2"], b"*-1\r\n"), (["DEL", "K"], b":0\r\n"),
    (["EXPIRE", "K", "1"], b":0\r\n"), (["PERSIST", "K"], b":0\r\n"), (["SETNX", "K", "1"], b":0\r\n"),
    (["SET", "K", "1", "NX"], b"$-1\r\n"), (["SET", "K", "1", "XX"], b"$-1\r\n"), (["LPOP", "K", "0"], b"*0\r\n"),
    (["LREM", "K", "0", "gone"], b":0\r\n")])
@pytest.mark.parametrize("protocol", [2, 3])
def test_refused(proxy, connect, direct, key, words, reply, protocol):
    a, b = connect(proxy), connect(proxy, commands=[("HELLO", str(protocol)), ("CLIENT", "SETNAME", "other")])
    name = key("lock:slow:no")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    if protocol == 3 and reply in (b"$-1\r\n", b"*-1\r\n"):
        reply = b"_\r\n"
    assert b.raw(*[name if word == "K" else word for word in words]) == reply
    assert direct("LRANGE", name, 0, -1) == ["a:1", "b:1"]


SAME = [
    ["RPUSH", "K", "n:1"], ["LRANGE", "K", "0", "-1"], ["LRANGE", "K", "a", "b"],
    ["LINDEX", "K", "0"], ["LINDEX", "K", "9"], ["LINDEX", "K", "x"], ["LLEN", "K"], ["LPOS", "K", "n:1"],
    ["LPOS", "K", "zz"], ["LPOS", "K", "n:1", "COUNT", "0"], ["EXISTS", "K"], ["EXISTS", "K", "K"], ["TYPE", "K"],
    ["LSET", "K", "0", "n:1:2"], ["LSET", "K", "9", "x"], ["LSET", "K", "x", "x"], ["LREM", "K", "x", "n:2"],
    ["LREM", "K", "1", "n:2"], ["GET", "K"], ["INCR", "K"], ["GETSET", "K", "1"], ["SETNX", "K", "1"], ["STRLEN", "K"],
    ["SET", "K", "1", "NX", "GET"], ["GETDEL", "K"], ["GETEX", "K"], ["SADD", "K", "1"], ["LPOP", "K", "x"],
    ["RPUSHX", "K", "n:4"], ["LPOP", "K"], ["LRANGE", "K", "0", "-1"], ["LPOP", "K", "1"], ["LINDEX", "K", "0"],
    ["DEL", "K"], ["LRANGE", "K", "0", "0"], ["LINDEX", "K", "0"], ["LLEN", "K"], ["LPOS", "K", "x"], ["LPOP", "K"],
    ["LPOP", "K", "2"], ["LREM", "K", "0", "x"], ["LSET", "K", "0", "x"], ["RPUSHX", "K", "x"], ["LPUSHX", "K", "x"],
    ["LINSERT", "K", "BEFORE", "a", "b"], ["LTRIM", "K", "0", "1"], ["EXISTS", "K"], ["LPUSH", "K", "n:9"],
    ["LRANGE", "K", "0", "0"], ["EXPIRE", "K", "100"], ["PERSIST", "K"], ["EXPIRE", "K", "-1"], ["EXISTS", "K"],
    ["SET", "K", "text"], ["RPUSH", "K", "n"], ["LRANGE", "K", "0", "0"], ["LREM", "K", "0", "n"], ["LPOP", "K"],
    ["LSET", "K", "0", "n"], ["LTRIM", "K", "0", "0"], ["LPUSH", "K", "n"], ["EXISTS", "K"], ["DEL", "K"]]


@pytest.mark.parametrize("protocol", [2, 3])
def test_one_client_sees_redis(proxy, oracle, connect, key, protocol):
    """Byte for byte."""
    name = key("lock:slow:same")
    ours, theirs = [connect(x, commands=[("HELLO", str(protocol))]) for x in (proxy, oracle)]
    for words in SAME:
        words = [name if word == "K" else word for word in words]
        assert ours.raw(*words) == theirs.raw(*words), words


def test_holder_expires(proxy, connect, direct, key):
    """The holder's expiry ends its hold, not the queue."""
    a, b = connect(proxy), connect(proxy)
    name = key("lock:slow:expire")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    assert b("PEXPIRE", name, 300) == 0
    assert a("PEXPIRE", name, 300) == 1
    until(lambda: b("LRANGE", name, 0, 0) == ["b:1"], 15, "the expiry", 0.02)
    assert a("DEL", name) == 0
    assert b("DEL", name) == 1


def test_holder_expires_and_nobody_reads(proxy, connect, direct, key):
    """The others keep their places, although none of them looks before the holder's expiry."""
    a, b, c = connect(proxy), connect(proxy), connect(proxy)
    name = key("lock:expire")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    c("RPUSH", name, "c:1")
    assert a("PEXPIRE", name, 100) == 1
    assert direct("PTTL", name) > 1000  # the lease of the waiting workers
    until(lambda: b("LRANGE", name, 0, 0) == ["b:1"], 15, "the expiry", 0.2)
    assert b("LRANGE", name, 0, -1) == ["b:1", "c:1"]
    # Alone, it ends with its expiry.
    assert b("LREM", name, 1, "b:1") == 1
    assert c("LRANGE", name, 0, 0) == ["c:1"]
    assert c("PEXPIRE", name, 100) == 1
    until(lambda: direct("EXISTS", name) == 0, 5, "the key's end")


def test_pushed_around_the_proxy(proxy, connect, direct, key):
    """A node that the proxy knows nothing of gets a lease from when it is first seen at the head."""
    a = connect(proxy)
    name = key("lock:foreign")
    direct("RPUSH", name, "old")
    assert a("RPUSH", name, "a:1") == 2
    assert a("LREM", name, 1, "old") == 0
    assert a("LRANGE", name, 0, 0) == ["old"]
    until(lambda: a("LRANGE", name, 0, 0) == ["a:1"], 15, "the old node's lease")


def test_in_a_transaction(proxy, connect, direct, key):
    a, b = connect(proxy), named(connect, proxy, "other")
    name = key("lock:slow:multi")
    assert a("MULTI") == "OK"
    for words in (("EXISTS", name), ("RPUSH", name, "a:1"), ("LRANGE", name, 0, 0)):
        assert a(*words) == "QUEUED"
    assert a("EXEC") == [0, 1, ["a:1"]]
    b("MULTI")
    b("RPUSH", name, "b:1")
    b("LREM", name, 1, "a:1")
    b("LPOP", name, 1)
    b("LSET", name, 0, "b:2")
    pushed, removed, popped, changed = b("EXEC")
    assert (pushed, removed, popped) == (2, 0, None) and is_locked(changed)
    a("MULTI")
    a("LREM", name, 1, "a:1")
    assert a("EXEC") == [1]
    assert direct("LRANGE", name, 0, -1) == ["b:1"]


def test_operator(proxy, connect, key):
    a, b = connect(proxy), connect(proxy)
    name = key("lock:slow:operator")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    b("RPUSH", name, "b:1")
    shown = b("PROXY", "LOCK", name)
    assert shown[shown.index("kind") + 1] == "list" and shown[shown.index("value") + 1] == "a:1"
    assert b("PROXY", "RELEASE", name) == 1
    assert b("LRANGE", name, 0, -1) == ["b:1"]


def test_owner_any(proxy, connect, key):
    a, b = connect(proxy), connect(proxy, commands=[("CLIENT", "SETNAME", "somebody")])
    name = key("lock:any:q")
    a("RPUSH", name, "a:1")
    a("LRANGE", name, 0, 0)
    a.close()
    assert b("LREM", name, 1, "a:1") == 1


def test_lease_zero(proxy, connect, direct, key):
    a, b = connect(proxy), connect(proxy)
    name = key("lock:nolease:q")
    a("RPUSH", name, "a:1")
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    b("RPUSH", name, "b:1")
    assert direct("TTL", name) == -1
    assert b("LRANGE", name, 0, 0) == ["a:1"]
    a.close()
    until(lambda: b("LRANGE", name, 0, 0) == ["b:1"], 15, "the owner's end")


# ---- proxies -----------------------------------------------------------------------------------------------


def test_two_proxies(proxy, backend, start_proxy, connect, direct, key):
    second = start_proxy(backend, *RULES)
    a = connect(proxy, commands=[("CLIENT", "SETNAME", "lists-a")])
    b = connect(second, commands=[("CLIENT", "SETNAME", "lists-b")])
    name, vacant = key("lock:two"), key("lock:two")
    assert a("EXISTS", vacant) == b("EXISTS", vacant) == 0
    assert b("RPUSH", vacant, "b:1") == 1
    assert is_locked(a("RPUSH", vacant, "a:1"))
    assert a("RPUSH", name, "a:1") == 1 and b("RPUSH", name, "b:1") == 2
    assert a("LRANGE", name, 0, 0) == b("LRANGE", name, 0, 0) == ["a:1"]
    fence = int(a("PROXY", "TOKEN", name))
    assert b("LREM", name, 1, "a:1") == 0 and b("LPOP", name) is None and is_locked(b("LSET", name, 0, "x"))
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert b("LRANGE", name, 0, 0) == ["a:1"]
        time.sleep(0.05)
    a.close()
    until(lambda: b("LRANGE", name, 0, 0) == ["b:1"], 15, "the owner's end")
    assert int(b("PROXY", "TOKEN", name)) > fence


def test_a_refused_push_whose_answer_is_lost(start_redis, start_proxy, fake, connect):
    """It is sent again, and has used up what EXISTS had told its session: refused all the same."""
    redis = start_redis()
    lost = []

    def relay(words, connection):
        if not hasattr(connection, "redis"):
            connection.redis = redis.client()
        connection.redis.send(encode(*words))
        reply = connection.redis.read_raw()
        if words[-1] == b"a:1" and not lost and not reply.startswith(b"-NOSCRIPT"):
            lost.append(reply)
            return None
        return reply

    proxy = start_proxy("standalone %s:%d" % fake(relay).address, *RULES)
    a, b = connect(proxy), connect(proxy)
    assert a("EXISTS", "lock:q") == 0
    assert b("RPUSH", "lock:q", "b:1") == 1 and b("LRANGE", "lock:q", 0, 0) == ["b:1"]
    assert is_locked(a("RPUSH", "lock:q", "a:1"))
    assert b"LOCKED" in lost[0]
    assert redis.run("LRANGE", "lock:q", 0, -1) == ["b:1"]
    assert a("RPUSH", "lock:q", "a:2") == 2


def test_proxy_killed(proxy, backend, start_proxy, connect, key):
    """No proxy is left that knows that the owners are gone: their leases end."""
    first = start_proxy(backend, *RULES)
    a, b = connect(first), connect(first)
    c = connect(proxy, commands=[("CLIENT", "SETNAME", "survivor")])
    name = key("lock:killed")
    for w, node in ((a, "a:1"), (b, "b:1"), (c, "c:1")):
        w("RPUSH", name, node)
    assert a("LRANGE", name, 0, 0) == ["a:1"]
    first.expected = False
    first.kill()
    assert c("LRANGE", name, 0, 0) == ["a:1"]
    until(lambda: c("LRANGE", name, 0, 0) == ["c:1"], 15, "the leases' end")


LIST_COMMANDS = [
    ["LPOP", "K"], ["LPOP", "K", "2"], ["LPOP", "K", "0"], ["LPOP", "K", "-1"], ["LPOP", "K", "x"], ["LPOP", "K", "1", "2"],
    ["RPOP", "K"], ["RPOP", "K", "3"], ["RPOP", "K", "0"], ["LREM", "K", "0", "a"], ["LREM", "K", "x", "a"], ["LSET", "K", "1", "z"],
    ["LSET", "K", "9", "z"], ["LSET", "K", "x", "z"], ["LTRIM", "K", "1", "2"], ["LTRIM", "K", "5", "9"], ["LTRIM", "K", "x", "y"],
]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("there", ["a list", "a string", "nothing"])
def test_lists_of_data_under_a_rule_without_the_kind(backend, start_proxy, connect, key, protocol, there):
    """They answer and change as on Redis, also in a transaction."""
    proxy, name = connect(start_proxy(backend, "lock lock:*")), key("lock:data")
    redis = backend.node_of(name).client()
    for client in (proxy, redis):
        client.raw("HELLO", str(protocol))

    def said(client, words, transaction):
        client("DEL", name)
        if there == "a list":
            client("RPUSH", name, "a", "b", "a", "c")
        elif there == "a string":
            client("SET", name, "text")
        words = [name if word == "K" else word for word in words]
        if transaction:
            client.raw("MULTI")
            found = [client.raw(*words), client.raw("EXEC")]
        else:
            found = [client.raw(*words)]
        return found, client.raw("DUMP", name)

    for words in LIST_COMMANDS:
        for transaction in (False, True):
            assert said(proxy, words, transaction) == said(redis, words, transaction), (words, transaction)


def test_a_proxy_whose_rule_lacks_list(backend, start_proxy, connect, key):
    """It refuses what may take or replace the head of a queue that another proxy guards. Pushes, blocking pops and moves pass as
    they came (docs/limits.md)."""
    name = key("lock:lacks")
    guarding, other = start_proxy(backend, "lock lock:* kind list"), start_proxy(backend, "lock lock:*")
    holder, waiter = (connect(guarding, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "waiter"))
    third = connect(other, commands=[("CLIENT", "SETNAME", "third")])
    assert holder("RPUSH", name, "h") == 1 and holder("LRANGE", name, "0", "0") == ["h"]
    assert waiter("RPUSH", name, "w") == 2 and waiter("LRANGE", name, "0", "0") == ["h"]
    assert third("DEL", name) == 0 and third("EXPIRE", name, "1") == 0
    assert third("SET", name, "1").startswith("LOCKED ")
    for words in (["LPOP", name], ["LPOP", name, "2"], ["RPOP", name], ["LREM", name, "1", "h"], ["LSET", name, "0", "x"],
                  ["LTRIM", name, "1", "-1"]):
        assert third(*words).startswith("LOCKED "), words
    assert holder("LRANGE", name, "0", "-1") == ["h", "w"]
    assert third("BLPOP", name, "1") == [name, "h"]
    assert waiter("LRANGE", name, "0", "0") == ["w"]
    assert holder("LREM", name, "1", "h") == 0
    assert waiter("LREM", name, "1", "w") == 1
