"""Attribution over several connections and threads: threads that share the ledger, clients that are recognised as
sharing, two proxies on one Redis, a proxy that takes over from its predecessor.

Two proxies with three threads each stand before one Redis. The kernel distributes connections of one name over the
threads; there are enough of them for several threads.
"""

import itertools
import queue
import random
import threading
import time

import pytest

import servers
from resp import Client, Error, encode
from servers import until

THREADS = 3
MANY = 12  # connections of a client
SHORT = 250  # ms
LONG = 60000
RULES = [
    "lock lock:client:* owner client claim-memory 30s",
    "lock lock:memory:* owner client claim-memory 300ms",
    "lock lock:connection:* owner connection",
    "lock lock:any:* owner any",
    "lock lock:release:* on-disconnect release",
    "lock lock:pool-release:* owner client on-disconnect release",
    "lock lock:wait:* owner client wait 4s",
    "lock lock:lease:* owner client lease 2s max-hold 5s",
    "lock lock:*",
]
serial = itertools.count(1)


@pytest.fixture(scope="module")
def pairs(farm):
    """pairs(backend): two proxies in front of it."""
    started = {}

    def pair(backend):
        if backend.kind not in started:
            started[backend.kind] = [servers.Proxy(backend, "threads %d" % THREADS, *RULES) for _ in range(2)]
        return started[backend.kind]

    yield pair
    for proxy in itertools.chain(*started.values()):
        proxy.stop()
        proxy.remove()


@pytest.fixture
def proxies(pairs, backend):
    return pairs(backend)


class People:
    """Connections that are closed in the end."""

    def __init__(self):
        self.open = []

    def client(self, proxies, count=1, name=None, library=None):
        """So many connections of one client, to one proxy or to several by turns."""
        name = name or "client-%d" % next(serial)
        where = itertools.cycle(proxies if isinstance(proxies, list) else [proxies])
        made = []
        for _ in range(count):
            c = Client(next(where).address)
            assert c("CLIENT", "SETNAME", name) == "OK"
            if library:
                c("CLIENT", "SETINFO", "lib-name", library)
            made.append(c)
        self.open += made
        return made


@pytest.fixture
def people():
    people = People()
    yield people
    for c in people.open:
        c.close()


def kinds(client, name):
    found = [i if isinstance(i, dict) else dict(zip(i[0::2], i[1::2])) for i in client("PROXY", "INCIDENTS", 10000)]
    return [i["kind"] for i in reversed(found) if i["key"] == name]


def acquire(c, name, px=LONG, value="1"):
    return c("SET", name, value, "NX", "PX", px) == "OK"


def gone(direct, name):
    until(lambda: direct("EXISTS", name) == 0, 10, "the end of " + name)


# ---- one ledger for all threads -----------------------------------------------------------------------


def test_threads_share_the_ledger(proxies, people, direct, key):
    mine = people.client(proxies[0], MANY)
    (stranger,) = people.client(proxies[0])
    for n, c in enumerate(mine):
        name = key("lock:client:threads")
        assert acquire(c, name)
        assert stranger("DEL", name) == stranger("EXPIRE", name, 5) == 0
        assert mine[n - 1]("EXPIRE", name, 100) == 1
        assert mine[n - 5]("DEL", name) == 1
        assert direct("EXISTS", name) == 0


def test_late_releases_over_any_thread(proxies, people, direct, key):
    """The late DEL is spent on the lease that ended, whichever connections the two came over."""
    mine = people.client(proxies[0], MANY)
    names = [key("lock:client:late") for _ in mine]
    for c, name in zip(mine, names):
        assert acquire(c, name, SHORT)
    for name in names:
        gone(direct, name)
    for n, name in enumerate(names):
        assert acquire(mine[n - 1], name)
        assert mine[n - 2]("DEL", name) == 0, "late"
        assert mine[n - 3]("DEL", name) == 1


def test_a_queued_release_counts_from_exec_on(proxies, people, direct, key):
    """Until then it may be discarded: a colleague's late DEL is spent on the lease that ended all the same."""
    late, holder, third = people.client(proxies[0], 3)
    name = key("lock:client:queued")
    assert acquire(late, name, SHORT)
    gone(direct, name)
    assert acquire(holder, name)
    assert [holder("MULTI"), holder("DEL", name)] == ["OK", "QUEUED"]
    assert late("DEL", name) == 0 and direct("EXISTS", name) == 1
    assert holder("DISCARD") == "OK"
    assert [holder("MULTI"), holder("DEL", name), third("EXPIRE", name, 100), holder("EXEC")] == ["OK", "QUEUED", 1, [1]]
    assert direct("EXISTS", name) == 0
    assert late("DEL", name) == 0


def crosses(acquirer, releaser, name):
    """The other connection's release is for a lease that it did not acquire."""
    assert acquire(acquirer, name)
    return releaser("DEL", name)


def test_what_one_thread_learns_holds_in_all(proxies, people, key):
    """Under auto, two crossing releases show that the client's connections are shared, for similar keys. From then on a
    release frees the lock also over a connection whose last attempt was lost. Before that, a release right after its loss
    is held back for a moment, and refused if nothing more is learnt meanwhile."""
    mine = people.client(proxies[0], MANY)
    name, alike = key("lock:learnt"), key("lock:learnt")
    for c in mine:
        assert crosses(c, c, name) == 1
    assert acquire(mine[0], name) and not acquire(mine[1], name)
    assert mine[1]("DEL", name) == 0 and mine[0]("DEL", name) == 1
    # This client has neither lost nor released.
    assert crosses(mine[0], mine[1], alike) == crosses(mine[2], mine[3], alike) == 1
    for n, c in enumerate(mine):
        assert acquire(c, name) and not any(acquire(mine[n - 1], name) for _ in range(3))
        assert mine[n - 1]("DEL", name) == 1
        assert c("DEL", name) == 0


def test_what_is_learnt_is_learnt_of_keys_alike(proxies, people, key):
    """L6: what one application shows says nothing of another one on the same machine."""
    mine = people.client(proxies[0], 4)
    pooled, other = key("lock:pooled"), key("lock:neighbour")
    for name in (pooled, other):
        for c in mine:
            assert crosses(c, c, name) == 1
    assert crosses(mine[0], mine[1], pooled) == crosses(mine[2], mine[3], pooled) == 1
    for name, released in ((pooled, 1), (other, 0)):
        assert acquire(mine[0], name) and not acquire(mine[1], name)
        assert mine[1]("DEL", name) == released


@pytest.mark.parametrize("library, shares", [("Lettuce", 1), ("ioredis", 1), ("node-redis", 1), ("SE.Redis", 1),
                                             ("jedis", 0), ("go-redis", 0), ("redis-py", 0), ("redis-py(rq_v1.9)", 0),
                                             ("phpredis", 0), ("Predis", 0), ("hiredis", 0), ("iorediss", 0), ("", 0)])
def test_libraries(proxies, people, key, library, shares):
    """Multiplexing libraries are known by their names; a pool shows itself by its releases."""
    a, b, c = people.client(proxies[0], 3, library=library)
    name = key("lock:library")
    assert acquire(a, name)
    lost, released = c.at_once(("SETNX", name, "1"), ("DEL", name))
    assert lost == 0 and released == shares, "where connections are shared, who has lost is not known"
    assert a("DEL", name) == (not shares)


# ---- claim-memory, client-identity, on-disconnect, max-hold ----------------------------------------------


@pytest.mark.parametrize("rule, released", [("lock:client:x", 0), ("lock:memory:x", 1)])
def test_claim_memory(proxies, people, direct, key, rule, released):
    """How long a late release is still expected: until then, the next holder's DEL may be taken for it."""
    a, b, c = people.client(proxies[0], 3)
    name = key(rule)
    assert acquire(a, name, 50)  # and never released: its worker is dead
    gone(direct, name)
    time.sleep(0.3 + 0.3)  # longer than the shorter memory
    assert acquire(b, name)
    assert c("DEL", name) == released
    assert ("ambiguous" in kinds(c, name)) == (not released)
    assert c("DEL", name) == 1 - released, "the release that was expected, if it was"
    assert direct("EXISTS", name) == 0


@pytest.mark.parametrize("fields, shared", [("address user name", (1, 0, 0)), ("address", (1, 1, 1)), ("name", (1, 0, 1)),
                                            ("address user", (1, 1, 0))])
def test_client_identity(start_redis, start_proxy, people, fields, shared):
    """Which connections are one client: same name; another name; another user."""
    redis = start_redis()
    redis.run("ACL", "SETUSER", "other", "on", "nopass", "~*", "&*", "+@all")
    proxy = start_proxy(redis, "client-identity " + fields, "lock lock:* owner client")
    (holder,) = people.client(proxy, name="one")
    (same,) = people.client(proxy, name="one")
    (renamed,) = people.client(proxy, name="two")
    (user,) = people.client(proxy, name="one")
    assert user("AUTH", "other", "x") == "OK"
    replies = []
    for c in (same, renamed, user):
        assert acquire(holder, "lock:identity")
        replies.append(c("DEL", "lock:identity"))
        assert holder("DEL", "lock:identity") == 1 - replies[-1]
    assert tuple(replies) == shared


def test_release_on_disconnect(proxies, people, direct, key):
    """For a dedicated connection at once; for a pool when its last connection closes, on any thread."""
    (alone,) = people.client(proxies[0])
    name, kept = key("lock:release:x"), key("lock:other")
    assert acquire(alone, name) and acquire(alone, kept)
    alone.close()
    gone(direct, name)
    pool = people.client(proxies[0], MANY)
    name = key("lock:pool-release:x")
    assert acquire(pool[0], name)
    for c in pool[:-1]:
        c.close()
    assert pool[-1]("EXPIRE", name, 100) == 1, "somebody is there"
    assert not acquire(pool[-1], name)
    pool[-1].close()
    gone(direct, name)
    assert direct("EXISTS", kept) == 1


def test_a_pools_lease_is_renewed_until_max_hold(proxies, people, direct, key):
    """Also when the connection that acquired has closed; not beyond max-hold."""
    a, b = people.client(proxies[0], 2)
    name = key("lock:lease:x")
    began = time.monotonic()
    assert a("SETNX", name, "1") == 1
    a.close()
    gone(direct, name)
    assert time.monotonic() - began > 4.5, "longer than one lease of 2 s, and renewed while b is there"


# ---- two proxies on one Redis ---------------------------------------------------------------------------


def fields_of(c, name):
    reply = c("PROXY", "LOCK", name)
    return reply if isinstance(reply, dict) else dict(zip(reply[0::2], reply[1::2]))


@pytest.mark.parametrize("rule", ["lock:two", "lock:connection:two"])
def test_two_proxies_agree(proxies, people, direct, key, rng, rule):
    """Workers with a connection each, on both: every reply is what one table of holders says, and both proxies tell the
    same of the lock."""
    workers = [people.client(proxies[n % 2])[0] for n in range(8)]
    name, holder, fence = key(rule), None, 0
    for _ in range(120):
        c = rng.choice(workers)
        act = rng.choice(["acquire", "acquire", "release", "extend", "overwrite", "swap", "xx"])
        if act == "acquire":
            assert acquire(c, name) == (holder is None)
            if holder is None:
                holder = c
                now = int(c("PROXY", "TOKEN", name))
                assert now > fence
                fence = now
        elif act == "release":
            assert c("DEL", name) == int(c is holder)
            holder = None if c is holder else holder
        elif act == "extend":
            assert c("PEXPIRE", name, LONG) == int(c is holder)
        elif act == "overwrite" and holder:
            reply = c("SET", name, "1", "PX", LONG)
            assert reply == "OK" if c is holder else reply.startswith("LOCKED ")
        elif act == "swap" and holder:
            assert c("GETSET", name, "1") == "1"
        elif act == "xx":
            assert c("SET", name, "1", "XX", "PX", LONG) == ("OK" if c is holder else None)
        seen = [fields_of(w, name) for w in workers[:2]]
        assert [s["state"] for s in seen] == ["held" if holder else "free"] * 2
        assert not holder or [int(s["fence"]) for s in seen] == [fence] * 2
        assert [w("PROXY", "TOKEN", name) is not None for w in workers] == [w is holder for w in workers]


def test_takeover_across_proxies(proxies, people, direct, key):
    """A deadline read on one proxy by each of two losers: one GETSET wins, the other's changes nothing."""
    (a,), (b,), (c,) = [people.client(proxies[n % 2]) for n in range(3)]
    name = key("lock:takeover")
    assert a("SETNX", name, "100") == 1
    assert b("GET", name) == c("GET", name) == "100"
    assert b("GETSET", name, "900") == "100"
    assert c("GETSET", name, "901") == "900"
    assert direct("GET", name) == "900"
    assert a("DEL", name) == c("DEL", name) == 0
    assert b("DEL", name) == 1


@pytest.mark.parametrize("rule", ["lock:client:x", "lock:shared"])
def test_a_lease_counts_at_the_other_proxy(proxies, people, direct, key, rule):
    """Connections of one client end at either: its own lease counts on the other proxy as a closed session's."""
    pool = people.client(proxies, 4, library="jedis")
    (stranger,) = people.client(proxies[1])
    name = key(rule)
    assert acquire(pool[0], name)
    assert stranger("DEL", name) == 0
    assert pool[1]("EXPIRE", name, 100) == 1
    assert pool[1]("DEL", name) == 1
    assert acquire(pool[1], name)
    assert pool[3]("DEL", name) == 1, "by the claim that is known there"
    assert direct("EXISTS", name) == 0


@pytest.mark.parametrize("rule", ["lock:shared", "lock:wait:x"])
def test_what_a_missed_release_shifts_ends_at_the_other_proxy_too(proxies, people, direct, key, rule):
    """A lease ends at one proxy, whose next release counts for it, and not for the lease that the other proxy has given.
    The other proxy also stops expecting that lease's release after a second, so it shifts no further ones."""
    pool = people.client(proxies, 4, library="ioredis" if rule == "lock:shared" else None)
    here, there = pool[0::2], pool[1::2]
    name = key(rule)
    assert acquire(there[0], name, SHORT)
    gone(direct, name)
    assert acquire(here[0], name, 1500)
    assert there[1]("DEL", name) == 0, "late"
    attempt = encode("SET", name, "1", "NX", "PX", LONG)
    here[1].send(attempt)
    if rule == "lock:shared":
        assert here[1].read() is None
        gone(direct, name)
        here[1].send(attempt)
    assert here[1].read() == "OK"
    assert here[1]("DEL", name) == 1


def test_a_lock_that_redis_has_forgotten_was_not_released_elsewhere(start_redis, start_proxy):
    """Two proxies before a Redis that comes back empty, twice. A worker with one connection loses its lease, and another worker
    acquires at the other proxy. That is no release through the other proxy, so it does not show that the worker has a pool."""
    redis = start_redis()
    here, there = (start_proxy(redis, "lock lock:*") for _ in range(2))
    worker, onlooker, other = (Client(p.address, commands=[("CLIENT", "SETNAME", name)])
                               for p, name in ((here, "worker"), (here, "onlooker"), (there, "other")))

    def comes_back():
        redis.kill()
        redis.start()
        for client in (worker, onlooker, other):
            until(lambda c=client: not isinstance(c("GET", "any"), Error), 30, "Redis behind the proxy")

    with worker, onlooker, other:
        for _ in range(2):
            assert acquire(other, "lock:a") and not acquire(worker, "lock:a") and other("DEL", "lock:a") == 1
            assert acquire(worker, "lock:a") and not acquire(other, "lock:a") and worker("DEL", "lock:a") == 1
        for _ in range(2):
            assert acquire(worker, "lock:a")
            comes_back()
            assert acquire(other, "lock:a") and not acquire(onlooker, "lock:a")
            assert worker("DEL", "lock:a") == 0
            assert other("DEL", "lock:a") == 1
        found = [dict(zip(i[::2], i[1::2]))["kind"] for i in worker("PROXY", "INCIDENTS", 100)]
        assert "shared" not in found, found


def test_connections_over_two_proxies_stay_apart(proxies, people, key):
    """`owner connection`: another connection's guard record does not count."""
    one, two = people.client(proxies, 2)
    name = key("lock:connection:x")
    assert acquire(one, name)
    assert two("DEL", name) == two("EXPIRE", name, 5) == 0
    assert one("DEL", name) == 1


# ---- a proxy's successor ---------------------------------------------------------------------------------


def succeed(proxy):
    """The proxy is killed, and another starts on the same port."""
    proxy.expected = False
    proxy.kill()
    with open(proxy.log_path, "wb"):
        pass
    proxy.launch()
    proxy.await_ready()


def test_a_successor_serves_its_predecessors_locks(backend, start_proxy, people, direct, key):
    proxy = start_proxy(backend, "threads %d" % THREADS, "lock lock:connection:* owner connection",
                        "lock lock:client:* owner client", "lock lock:any:* owner any", "lock lock:* lease 900ms")
    names = {rule: key(rule) for rule in ("lock:client:x", "lock:auto", "lock:connection:x", "lock:any:x")}
    late, leased = key("lock:client:late"), key("lock:leased")
    (before,) = people.client(proxy, name="app")
    for name in names.values():
        assert acquire(before, name)
    fence = int(before("PROXY", "TOKEN", names["lock:auto"]))
    assert acquire(before, late, SHORT)
    assert before("SETNX", leased, "1") == 1
    succeed(proxy)
    stranger, other = people.client(proxy, 2, "stranger")
    mine = people.client(proxy, 3, "app")
    for rule, name in names.items():
        assert not acquire(stranger, name), "it is held"
        if rule != "lock:any:x":
            assert other("DEL", name) == other("EXPIRE", name, 5) == 0
    assert mine[0]("EXPIRE", names["lock:auto"], 100) == 1
    assert [mine[n]("DEL", name) for n, name in enumerate(list(names.values())[:3])] == [1, 1, 0]
    assert other("DEL", names["lock:any:x"]) == 1
    assert acquire(stranger, names["lock:auto"])
    assert int(stranger("PROXY", "TOKEN", names["lock:auto"])) > fence
    gone(direct, late)
    assert acquire(stranger, late)
    assert mine[0]("DEL", late) == 0, "late, though nobody here remembers its lease"
    gone(direct, leased)  # not renewed any more


@pytest.fixture
def at_two_proxies(backend, start_proxy):
    """Two connections of one client at one proxy, and two at another one before the same Redis."""
    proxies = [start_proxy(backend) for _ in range(2)]
    return [[Client(proxy.address) for _ in range(2)] for proxy in proxies]


def test_released_through_a_proxy_that_was_not_met(at_two_proxies, backend, key):
    """A pool's connection has acquired, and a colleague's at another proxy has released. The connection's next DEL is for the
    lease that the first proxy gave since. Where the lease vanished instead, as with a lost node, that DEL is late."""
    (here, also_here), (there, _) = at_two_proxies
    pooled, vanished = key("lock:pooled"), key("lock:vanished")
    assert acquire(here, pooled) and acquire(here, vanished)
    assert there("DEL", pooled) == 1
    with backend.node_of(vanished).client() as direct:
        assert direct("DEL", vanished) == 1
    assert acquire(also_here, pooled) and acquire(also_here, vanished)
    assert [here("DEL", pooled), here("DEL", vanished)] == [1, 0]


def test_released_and_acquired_through_a_proxy_that_was_not_met(at_two_proxies, key):
    """The first proxy has heard of neither, and no session has lost an attempt there. The DEL frees the lock all the same."""
    (here, _), (there, also_there) = at_two_proxies
    name = key("lock:unheard")
    assert acquire(here, name)
    assert there("DEL", name) == 1 and acquire(also_there, name)
    assert here("DEL", name) == 1


def test_an_older_lease_made_way_with_one_of_another_proxy(at_two_proxies, key):
    """The release of another proxy's lease says that an older lease of this proxy is over: its claim takes no later release."""
    (here, also_here), (there, also_there) = at_two_proxies
    name = key("lock:older")
    assert acquire(here, name)
    assert there("DEL", name) == 1 and acquire(also_there, name)
    assert also_here("DEL", name) == 1 and acquire(also_here, name)
    assert here("DEL", name) == 1


def test_a_release_that_was_refused_wrongly_does_not_stop_the_lock(at_two_proxies, key):
    """A lease that another proxy has released leaves a claim here, and the holder's DEL is taken for that claim's. No session here
    has met the other proxy. Further attempts show that the lease has no holder."""
    (here, also_here), (there, _) = at_two_proxies
    name = key("lock:stands")
    assert acquire(here, name) and not acquire(here, name)  # the attempt of a colleague, over the holder's connection
    assert there("DEL", name) == 1
    assert acquire(also_here, name) and also_here("DEL", name) == 1
    assert acquire(here, name)
    if here("DEL", name) == 0:  # by chance this release cannot be told from a late one
        assert [acquire(also_here, name) for _ in range(6)].count(True) == 1


@pytest.mark.parametrize("idle", [queue.LifoQueue, queue.Queue], ids=["last-one-first", "by-turns"])
def test_a_pool_over_two_proxies(backend, start_proxy, key, idle):
    """No worker is late and none crashes: both proxies learn that it is a pool, whichever of them its connections lead
    to. Before that some releases are refused, four at most in a few dozen runs: those of sessions whose lease made way
    through the other proxy."""
    proxies = [start_proxy(backend) for _ in range(2)]
    clients = [Client(proxies[i % 2].address) for i in range(6)]
    connections, name, until_s = idle(), key("lock:two-proxies"), time.monotonic() + 60
    counts, guard, inside = {"acquired": 0, "refused": 0, "double": 0}, threading.Lock(), []
    for client in clients:
        connections.put(client)

    def send(*words):
        client = connections.get()
        try:
            return client(*words)
        finally:
            connections.put(client)

    def note(what, step=1):
        with guard:
            counts[what] += step

    def work(number):
        rng = random.Random(number)
        while counts["acquired"] < 150 and time.monotonic() < until_s:
            if send("SET", name, "1", "NX", "PX", 1000) == "OK":
                note("acquired")
                note("double", len(inside))
                inside.append(number)
                time.sleep(rng.uniform(0.001, 0.005))
                inside.remove(number)
                note("refused", send("DEL", name) != 1)
            time.sleep(rng.uniform(0.001, 0.005))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for client in clients:
        client.close()
    assert counts["acquired"] >= 150 and counts["double"] == 0 and counts["refused"] <= 6, counts
