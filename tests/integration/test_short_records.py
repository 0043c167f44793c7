"""Guard records in the short form: plain locks that are acquired without a script, and what is not plain."""

import random
import signal
import threading
import time

import pytest

from fake import Link
from migration import Migration, refused
from resp import Client, Error, encode
from servers import guard_record, is_watermark, slot_of, until

FUTURE_US = 10 ** 12  # eleven days


@pytest.fixture
def short(backend, start_proxy):
    return start_proxy(backend, "guard-records short", "lock lock:waits:* wait 5s", "lock lock:short:* lease 2s", "lock lock:*")


class Slow(Link):
    """Once `held` is set, it holds back what comes from Redis, until `held` is cleared."""

    def __init__(self, to):
        self.held, self.holds = threading.Event(), 0
        super().__init__(to)

    def passes(self, marked, requests, data):
        if not requests and self.held.is_set():
            self.holds += 1
            until(lambda: not self.held.is_set(), 30, "the end of the hold", 0.001)
        return super().passes(marked, requests, data)


class Lock:
    """A lock, and what Redis has of it."""

    def __init__(self, backend, direct, name):
        self.backend, self.direct, self.name = backend, direct, name

    def keys(self):
        return [k for k in self.backend.keys() if k.startswith("lockkeeper:{")]

    def record(self):
        """The key of the guard record, or None."""
        return next((k for k in self.keys() if k.endswith("}:" + self.name)), None)

    def form(self):
        return self.direct("TYPE", self.record()) if self.record() else "none"

    def watermark(self):
        key = next(k for k in self.keys() if is_watermark(k))
        return key, self.direct("PEXPIRETIME", key)


@pytest.fixture
def lock(backend, direct, key):
    return Lock(backend, direct, key("lock:plain"))


@pytest.fixture
def two(short, connect):
    return [connect(short, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]


@pytest.mark.parametrize("words", [("SET", "v", "NX", "PX", 60000), ("SET", "v", "NX", "EX", 60), ("SET", "v", "NX"),
                                   ("SETNX", "v")], ids=lambda words: " ".join(map(str, words)))
@pytest.mark.parametrize("value", ["v", "", "1\nx\n5\ng\nb", "\0\r\n\xff"], ids=["text", "empty", "lines", "bytes"])
def test_a_plain_lock(two, lock, words, value):
    a, b = two
    verb, _, *options = words
    won, lost = (1, 0) if verb == "SETNX" else ("OK", None)
    for _ in range(3):  # the first one may find no watermark
        assert a(verb, lock.name, value, *options) == won
        assert lock.form() == "string"
        record_ends, ends = lock.direct("PEXPIRETIME", lock.record()), lock.direct("PEXPIRETIME", lock.name)
        assert 0 < record_ends <= ends and ends - record_ends < 1000
        record = guard_record(lock.direct, lock.record())
        assert record["owner"].startswith("127.0.0.1") and record["leased"] == ("" if options[1:] else record["fence"])
        assert b(verb, lock.name, "other", *options) == lost
        assert a(verb, lock.name, "other", *options) == lost
        assert b("GET", lock.name) == value
        facts = dict(zip(*[iter(b("PROXY", "LOCK", lock.name))] * 2))
        assert facts["state"] == "held" and str(facts["fence"]) == record["fence"] and facts["kind"] == "string"
        assert facts["expiry"] == ("application" if options[1:] else "lease")
        assert lock.form() == "string", "what only reads rewrites nothing"
        assert a("DEL", lock.name) == 1
        assert lock.record() is None and not lock.direct("EXISTS", lock.name)


def test_a_losers_release_is_refused(two, lock):
    a, b = two
    assert a("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
    assert b.at_once(("SET", lock.name, "w", "NX", "PX", 60000), ("DEL", lock.name)) == [None, 0]
    assert lock.direct("GET", lock.name) == "v"
    assert a("DEL", lock.name) == 1
    assert b("SET", lock.name, "w", "NX", "PX", 60000) == "OK"
    assert a("DEL", lock.name) == 0 and b("UNLINK", lock.name) == 1


def test_fences_grow(two, lock, short, backend, start_proxy, connect):
    """Over releases, over what Redis has seen of proxies whose clocks are ahead, and over both forms."""
    hashes = connect(start_proxy(backend, "guard-records hash"))
    last = 0
    for n in range(40):
        client = [*two, hashes][n % 3]
        if n == 20:
            last += FUTURE_US
            lock.direct("SET", lock.watermark()[0], "", "PXAT", last)
        assert client("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
        fence = client("PROXY", "TOKEN", lock.name)
        assert fence > last
        last = fence
        assert client("DEL", lock.name) == 1


def test_fences_grow_beyond_a_record(two, lock, backend, start_proxy, connect):
    """Behind a proxy whose clock was ahead, locks with hashes have greater fences, too, whatever record is gone."""
    hashes = connect(start_proxy(backend, "guard-records hash"))
    assert two[0]("SET", lock.name, "v", "NX", "PX", 60000) == "OK" and two[0]("DEL", lock.name) == 1
    last = lock.watermark()[1] + FUTURE_US
    lock.direct("SET", lock.watermark()[0], "", "PXAT", last)
    for n in range(6):
        assert hashes("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
        fence = hashes("PROXY", "TOKEN", lock.name)
        assert fence > last
        last = fence
        assert hashes("DEL", lock.name) == 1
        if n % 2:
            lock.direct("DEL", lock.record())  # as it is in 10 s


def test_fences_grow_behind_an_unfinished_attempt(two, lock, backend, start_proxy, connect):
    """Its proxy, whose clock is behind, has stopped, and another script has rewritten its guard record as a hash."""
    hashes = connect(start_proxy(backend, "guard-records hash"))
    assert two[0]("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
    record = lock.record()
    assert two[0]("DEL", lock.name) == 1
    last = lock.watermark()[1] + FUTURE_US
    lock.direct("SET", lock.watermark()[0], "", "PXAT", last)
    lock.direct("SET", record, "1\ntoken\nv\n5\n\nowner", "PX", 60000)
    lock.direct("SET", lock.name, "v", "PX", 60000)
    assert hashes("SET", lock.name, "v", "NX", "PX", 60000) is None and lock.form() == "hash"
    lock.direct("DEL", lock.name)
    assert hashes("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
    assert hashes("PROXY", "TOKEN", lock.name) > last


def test_fences_grow_for_locks_of_several_slots(two, lock, key, backend_kind):
    """MSETNX gives its locks one fence, which has to be above the watermark of each slot."""
    if backend_kind == "cluster":
        pytest.skip("on a cluster the locks of an MSETNX share a slot")
    other = key("lock:plain")
    assert two[0]("SET", other, "v", "NX", "PX", 60000) == "OK" and two[0]("DEL", other) == 1
    last = lock.watermark()[1] + FUTURE_US
    lock.direct("SET", lock.watermark()[0], "", "PXAT", last)
    assert two[0]("MSETNX", lock.name, "v", other, "v") == 1
    assert two[0]("PROXY", "TOKEN", other) > last


STATES = {
    "a lock past the proxy": ([("SET", "{lock}", "outside", "PX", 60000)], False),
    "the same value past the proxy": ([("SET", "{lock}", "v", "PX", 60000)], False),
    "a list": ([("RPUSH", "{lock}", "x")], False),
    "a hash": ([("HSET", "{lock}", "f", "x")], False),
    "a record of a lease that is over": ([("HSET", "{record}", "token", "", "fence", "5")], True),
    "a short record alone": ([("SET", "{record}", "1\ntoken\nv\n5\n\nowner", "PX", 30000)], True),
    "no watermark": ([("DEL", "{watermark}")], True),
}


@pytest.mark.parametrize("state", STATES)
def test_what_the_attempt_finds(two, lock, state):
    """Where the lock is not simply free or held, the script finishes or undoes what the attempt has set."""
    a, b = two
    commands, free = STATES[state]
    for client in two:
        assert client("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
        record, watermark = lock.record(), lock.watermark()[0]
        assert client("DEL", lock.name) == 1
    for command in commands:
        lock.direct(*[str(w).format(lock=lock.name, record=record, watermark=watermark) for w in command])
    before = lock.direct("DUMP", lock.name)
    assert a("SET", lock.name, "v", "NX", "PX", 60000) == ("OK" if free else None)
    if not free:
        assert lock.direct("DUMP", lock.name) == before and lock.record() is None
        lock.direct("DEL", lock.name)
        assert a("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
    assert lock.form() == "string"
    assert b("SET", lock.name, "v", "NX", "PX", 60000) is None
    assert b("DEL", lock.name) == 0
    assert a("DEL", lock.name) == 1


@pytest.mark.parametrize("words", [("EXPIRE", 100, "XX"), ("GETEX", "EX", 100), ("SET", "w", "XX", "EX", 100),
                                   ("SET", "w", "EX", 100), ("GETSET", "w")], ids=lambda words: " ".join(map(str, words)))
def test_a_lease_that_changes_gets_a_hash(two, lock, words):
    a, b = two
    assert a("SET", lock.name, "v", "NX", "PX", 60000) == "OK"
    fence = a("PROXY", "TOKEN", lock.name)
    assert not isinstance(a(words[0], lock.name, *words[1:]), Error)
    assert lock.form() == "hash" and a("PROXY", "TOKEN", lock.name) == fence
    assert lock.direct("PTTL", lock.record()) > lock.direct("PTTL", lock.name) > 0
    assert b("SET", lock.name, "v", "NX", "PX", 60000) is None and b("DEL", lock.name) == 0
    assert a("DEL", lock.name) == 1 and not lock.direct("EXISTS", lock.name)
    assert b("SET", lock.name, "v", "NX", "PX", 60000) == "OK" and lock.form() == "string"


@pytest.mark.parametrize("words", [("EXPIRE", 100), ("pexpire", 100000)], ids=lambda words: words[0])
@pytest.mark.parametrize("value", ["v", "1\nx\n5\ng\nb"], ids=["text", "lines"])
@pytest.mark.parametrize("leased", [False, True], ids=["own", "leased"])
def test_an_extension_keeps_the_form(two, lock, words, value, leased):
    """Also of a lease that the proxy had set: it is the application's from then on."""
    a, b = two
    assert a("SET", lock.name, value, "NX", *([] if leased else ["PX", 60000])) == "OK"
    fence = a("PROXY", "TOKEN", lock.name)
    assert guard_record(lock.direct, lock.record())["leased"] == (str(fence) if leased else "")
    assert b(words[0], lock.name, words[1]) == 0
    assert a(words[0], lock.name, words[1]) == 1
    assert lock.form() == "string" and a("PROXY", "TOKEN", lock.name) == fence
    assert guard_record(lock.direct, lock.record())["leased"] == ""
    lefts = [lock.direct("PTTL", key) for key in (lock.name, lock.record())]
    assert all(90000 < left <= 100000 for left in lefts), lefts
    assert a("GET", lock.name) == b("GET", lock.name) == value
    assert b("SET", lock.name, "w", "NX", "PX", 60000) is None and b("DEL", lock.name) == 0
    assert lock.form() == "string"
    assert a("DEL", lock.name) == 1 and lock.form() == "none"


def test_a_lease_is_renewed(short, connect, direct, backend, key):
    name = key("lock:short:renewed")  # a lease of 2 s
    a, b = connect(short), connect(short, commands=[("CLIENT", "SETNAME", "b")])
    assert a("SETNX", name, "v") == 1
    begun = time.monotonic()
    while time.monotonic() < begun + 4:
        assert b("SETNX", name, "v") == 0
    assert a("DEL", name) == 1


@pytest.mark.parametrize("name", ["lock:waits:1", "lock:plain:in-multi"])
def test_what_is_not_plain_has_a_hash(two, backend, direct, name):
    a, _ = two
    if "multi" in name:
        assert [a("MULTI"), a("SET", name, "v", "NX", "PX", 60000), a("EXEC")] == ["OK", "QUEUED", ["OK"]]
    else:
        assert a("SET", name, "v", "NX", "PX", 60000) == "OK"
    assert Lock(backend, direct, name).form() == "hash"
    assert a("DEL", name) == 1


def test_a_user_without_multi(start_redis, start_proxy, connect):
    """Attempts then use the script, and nothing stands in between."""
    redis = start_redis()
    redis.client()("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-multi")
    proxy = start_proxy(redis, "guard-records short")
    app = connect(proxy, commands=[("AUTH", "app", "pw")])
    for _ in range(3):
        assert app("SET", "lock:x", "v", "NX", "PX", 60000) == "OK"
        assert app("SET", "lock:x", "w", "NX", "PX", 60000) is None
        assert app("DEL", "lock:x") == 1


@pytest.mark.parametrize("connection", ["used", "new"])
@pytest.mark.parametrize("command", ["acquire", "release"])
def test_an_answer_that_is_lost(start_redis, start_proxy, connect, command, connection):
    """The command is sent once more over another connection, and answers as if it had been sent once; also if the answer
    would have been the first one over its connection."""
    redis = start_redis()
    link = Link(redis.address)
    client = connect(start_proxy("standalone %s:%d" % link.address, "guard-records short"))
    for n in range(1, 4):
        if connection == "new":
            redis.client()("CLIENT", "KILL", "TYPE", "normal")
            until(lambda: ",connections=0," in client("PROXY", "INFO"), 10, "the end of all connections")
        link.swallows = command == "acquire"
        assert client("SET", "lock:x", "v", "NX", "PX", 60000) == "OK"
        link.swallows = command == "release"
        assert client("DEL", "lock:x") == 1
        assert not redis.client()("EXISTS", "lock:x")
        assert link.swallowed == n
    link.close()


@pytest.mark.parametrize("rest", ["record", "no record"])
def test_a_set_between_an_attempt_and_its_script(start_redis, start_proxy, connect, rest):
    """A worker finds no lock, and sets it without NX. Meanwhile an attempt has set the same value, and its script is still
    to come: one of the two gets the lock."""
    redis = start_redis()
    direct, slow = redis.client(), Slow(redis.address)
    proxies = [start_proxy(to, "guard-records short") for to in ("standalone %s:%d" % slow.address, redis)]
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for proxy, name in zip(proxies, "ab")]
    for client in (a, b):
        assert client("SET", "lock:x", "v", "NX", "PX", 60000) == "OK" and client("EXPIRE", "lock:x", 60, "XX") == 1
        assert client("DEL", "lock:x") == 1  # its record, a hash, stays for 10 s
    if rest == "no record":
        direct("DEL", *[k for k in direct("KEYS", "lockkeeper:{*") if k.endswith("}:lock:x")])
    slow.held.set()
    a.send(encode("SET", "lock:x", "v", "NX", "PX", 60000))
    until(lambda: direct("EXISTS", "lock:x"), 10, "the attempt", 0.001)
    set_by_b = b("SET", "lock:x", "v", "PX", 60000)
    slow.held.clear()
    winner, loser = (b, a) if rest == "record" else (a, b)
    assert (set_by_b == "OK") == (winner is b) and a.read() == (None if winner is b else "OK")
    assert loser("DEL", "lock:x") == 0 and winner("DEL", "lock:x") == 1
    slow.close()


@pytest.mark.parametrize("form", ["hash", "short"])
def test_an_attempts_script_that_comes_to_a_later_lease(start_redis, start_proxy, connect, form):
    """The attempt's own lock is gone, another session has acquired the lock with the same value, and a client around the
    proxies has moved its end: the script does not take the later lease for what the attempt has set."""
    redis = start_redis()
    direct, slow = redis.client(), Slow(redis.address)
    proxies = [start_proxy("standalone %s:%d" % slow.address, "guard-records short"), start_proxy(redis, "guard-records " + form)]
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for proxy, name in zip(proxies, "ab")]
    assert a("SET", "lock:x", "v", "NX", "PX", 60000) == "OK" and a("EXPIRE", "lock:x", 60, "XX") == 1
    assert a("DEL", "lock:x") == 1  # its record, a hash, stays for 10 s
    record = next(k for k in direct("KEYS", "lockkeeper:{*") if k.endswith("}:lock:x"))
    slow.held.set()
    a.send(encode("SET", "lock:x", "v", "NX", "PX", 60000))
    until(lambda: slow.holds and direct("EXISTS", "lock:x"), 10, "the attempt", 0.001)
    direct("DEL", "lock:x", *[record] * (form == "short"))
    assert b("SET", "lock:x", "v", "NX", "PX", 60000) == "OK"
    assert direct("TYPE", record) == ("hash" if form == "hash" else "string")
    assert direct("PEXPIRE", "lock:x", 50000) == 1
    slow.held.clear()
    assert a.read() is None and a("DEL", "lock:x") == 0
    assert direct("GET", "lock:x") == "v"
    assert form == "short" or b("DEL", "lock:x") == 1  # a record in the short form does not follow an end that was moved
    slow.close()


def test_an_attempts_script_that_is_sent_twice(start_redis, start_proxy, connect):
    """The attempt finds the lock held, and its script finds it free: the script's repeat finds that it has acquired."""
    redis = start_redis()
    slow = Slow(redis.address)
    proxies = [start_proxy(to, "guard-records short") for to in ("standalone %s:%d" % slow.address, redis)]
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for proxy, name in zip(proxies, "ab")]
    for client in (a, b):
        assert client("SET", "lock:x", "v", "NX", "PX", 60000) == "OK" and client("EXPIRE", "lock:x", 60, "XX") == 1
        if client is a:
            assert client("DEL", "lock:x") == 1
    slow.held.set()
    a.send(encode("SET", "lock:x", "v", "NX", "PX", 60000))
    until(lambda: slow.holds, 10, "the attempt's answer", 0.001)
    assert b("DEL", "lock:x") == 1
    slow.swallows = True  # the answer to the script
    slow.held.clear()
    assert a.read() == "OK" and slow.swallowed == 1
    assert b("SET", "lock:x", "v", "NX", "PX", 60000) is None and b("DEL", "lock:x") == 0
    assert a("DEL", "lock:x") == 1
    slow.close()


@pytest.mark.parametrize("form", ["hash", "short"])
@pytest.mark.parametrize("words", [("SET", "w", "XX", "EX", 100), ("SET", "w", "EX", 100), ("GETSET", "w"), ("DEL",)],
                         ids=lambda words: " ".join(map(str, words)))
def test_a_slot_that_moves(start_cluster, start_proxy, connect, form, words):
    """The holder's commands work while its slot moves, wherever the slot's watermark is."""
    cluster = start_cluster()
    name, slot = "lock:{moving}", slot_of("moving")
    a = connect(start_proxy(cluster, "guard-records " + form))
    last = 0
    for _ in range(3):
        migration = Migration(cluster, [slot])
        assert a("SET", name, "v", "NX", "PX", 60000) == "OK"
        fence = a("PROXY", "TOKEN", name)
        assert fence > last
        source, target = migration.open(slot)
        watermarks = [k for k in source.keys() if is_watermark(k)]
        if watermarks:
            migration.migrate(source, target, watermarks)
        wanted, before = {"SET": "OK", "GETSET": "v", "DEL": 1}[words[0]], refused(source)
        if form == "short" and words[0] != "DEL":  # the record gets another form, once the slot has moved
            a.send(encode(words[0], name, *words[1:]))
            until(lambda: refused(source) > before, 10, "the script's TRYAGAIN", 0.001)
        else:
            assert a(words[0], name, *words[1:]) == wanted and refused(source) == before
        keys = source.run("CLUSTER", "GETKEYSINSLOT", slot, 10)
        if keys:
            migration.migrate(source, target, keys)
        for node in (target, source, *cluster.nodes):
            migration.must(node, "CLUSTER", "SETSLOT", slot, "NODE", migration.ids[target])
        assert refused(source) == before or a.read() == wanted
        last = fence if words[0] == "DEL" else a("PROXY", "TOKEN", name)
        assert words[0] == "DEL" or a("DEL", name) == 1


def test_rolling_upgrade(backend, start_proxy, connect, rng):
    """Workers at two proxies, of which one changes the form after the other, and back: no lock has two holders, and no
    holder's release is refused."""
    proxies = [start_proxy(backend, "guard-records hash", "lock lock:*") for _ in range(2)]
    names, stop = ["lock:rolling:%d" % i for i in range(3)], threading.Event()
    inside, faults, acquired = {name: set() for name in names}, [], [0] * 8

    def work(number):
        draw = random.Random(rng.random())
        with Client(proxies[number % 2].address, commands=[("CLIENT", "SETNAME", "worker-%d" % number)]) as client:
            while not stop.is_set():
                name = draw.choice(names)
                if client("SET", name, "constant", "NX", "PX", 60000) != "OK":
                    continue
                inside[name].add(number)
                if inside[name] != {number}:
                    faults.append("two hold %s: %s" % (name, inside[name]))
                acquired[number] += 1
                if draw.random() < 0.2:
                    client("EXPIRE", name, 50)
                inside[name].discard(number)
                if client("DEL", name) != 1:
                    faults.append("a holder's release of %s was refused" % name)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(acquired))]
    for worker in workers:
        worker.start()
    try:
        for proxy, form in [(0, "short"), (1, "short"), (0, "hash"), (1, "hash")]:
            before = sum(acquired)
            until(lambda: sum(acquired) > before + 300 or faults, 60, "acquisitions")
            proxies[proxy].write_config(["upstream " + backend.upstream(), "guard-records " + form, "lock lock:*"])
            proxies[proxy].signal(signal.SIGHUP)
            with Client(proxies[proxy].address) as operator:
                until(lambda: "guard_records:" + form in operator("PROXY", "INFO"), 10, "the reload")
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not faults and min(acquired) > 0


# Releases that the proxy reads in one turn of its loop.

def released_at_once(proxy, clients, *requests):
    """The requests are there before the proxy reads any. Returns the clients' next answers."""
    proxy.signal(signal.SIGSTOP)
    for client, request in zip(clients, requests):
        client.send(request)
    proxy.signal(signal.SIGCONT)
    return [client.read() for client in clients]


def script_calls(redis):
    stats = redis.client()("INFO", "commandstats")
    return int(next((line.split("calls=")[1].split(",")[0] for line in stats.splitlines() if "cmdstat_evalsha:" in line), 0))


def locked(connect, proxy, names):
    clients = [connect(proxy) for _ in names]
    for client, name in zip(clients, names):
        assert client("SET", name, "v", "NX", "PX", 60000) == "OK"
    return clients


def test_releases_go_together(short, backend, direct, connect, key):
    """Also what another client has changed: each answer is that of a release by itself."""
    names = [key("lock:together:%d" % n) for n in range(20)]
    clients = locked(connect, short, names)
    changes = {3: [("SET", "another")], 5: [("DEL",)], 7: [("DEL",), ("RPUSH", "x")], 11: [("DEL",), ("SET", "v", "PX", 60000)]}
    alone = {}
    for n, commands in changes.items():
        name = key("lock:alone:%d" % n)
        client, = locked(connect, short, [name])
        for verb, *rest in commands:
            for changed in (name, names[n]):
                direct(verb, changed, *rest)
        alone[n] = client("DEL", name), direct("TYPE", name)
    assert released_at_once(short, clients, *[encode("DEL", name) for name in names]) == [
        alone[n][0] if n in alone else 1 for n in range(20)]
    for n, name in enumerate(names):
        assert direct("TYPE", name) == (alone[n][1] if n in alone else "none"), n


def test_releases_share_calls(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis, "guard-records short")
    names = ["lock:%d" % n for n in range(24)]
    clients = locked(connect, proxy, names)
    before = script_calls(redis)
    assert released_at_once(proxy, clients, *[encode("DEL", name) for name in names]) == [1] * 24
    assert script_calls(redis) - before <= 12
    assert redis.client()("EXISTS", *names) == 0


def test_one_lock_is_released_once(short, connect, key):
    """Two sessions of one client, which shares its leases, release one lock in one turn."""
    name = key("lock:shared")
    a, b = [connect(short, commands=[("CLIENT", "SETNAME", "pool")]) for _ in range(2)]
    for _ in range(3):
        assert a("SET", name, "v", "NX", "PX", 60000) == "OK"
        answers = released_at_once(short, [a, b], encode("DEL", name), encode("DEL", name))
        assert sorted(answers) == [0, 1]


def test_later_requests_do_not_overtake(start_redis, start_proxy, connect):
    """What a session sends behind its release runs behind it, also if another session's release goes with it."""
    redis = start_redis()
    proxy = start_proxy(redis, "guard-records short", "upstream-connections 4")
    names = ["lock:%d" % n for n in range(8)]
    client, = locked(connect, proxy, names[:1])
    assert client("DEL", names[0]) == 1  # Redis knows the script now
    clients = locked(connect, proxy, names)
    monitor = redis.client()
    assert monitor("MONITOR") == "OK"
    answers = released_at_once(proxy, clients, *[
        encode("DEL", name) + (encode("SET", "data:" + name, "1") if n % 2 else b"") for n, name in enumerate(names)])
    assert answers == [1] * 8 and [client.read() for client in clients[1::2]] == ["OK"] * 4
    assert redis.client()("PING", "the end") == "the end"
    lines = []
    while not lines or "the end" not in lines[-1]:
        lines.append(monitor.read())
    for name in names[1::2]:
        gone = next(i for i, line in enumerate(lines) if 'lua] "DEL"' in line and '"%s"' % name in line)
        assert gone < next(i for i, line in enumerate(lines) if '"data:%s"' % name in line), name


def test_a_release_of_a_client_that_leaves(short, connect, direct, key):
    names = [key("lock:left:%d" % n) for n in range(6)]
    clients = locked(connect, short, names)
    short.signal(signal.SIGSTOP)
    for client, name in zip(clients, names):
        client.send(encode("DEL", name))
    for client in clients[::2]:
        client.close()
    short.signal(signal.SIGCONT)
    assert [client.read() for client in clients[1::2]] == [1] * 3
    until(lambda: not any(direct("EXISTS", name) for name in names), 5, "the releases")


def test_the_answer_to_many_releases_is_lost(start_redis, start_proxy, connect):
    """The call is sent again, and finds no lock: each release has released the first time."""
    redis = start_redis()
    link = Link(redis.address)
    proxy = start_proxy("standalone %s:%d" % link.address, "guard-records short")
    names = ["lock:x%d" % n for n in range(6)]
    clients = locked(connect, proxy, names)
    link.swallows = True
    assert released_at_once(proxy, clients, *[encode("DEL", name) for name in names]) == [1] * 6
    assert link.swallowed >= 1 and redis.client()("EXISTS", *names) == 0
    link.close()


def test_releases_together_are_in_the_slowlog(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis, "guard-records short", "slowlog-log-slower-than 0")
    names = ["lock:%d" % n for n in range(8)]
    clients, operator = locked(connect, proxy, names), connect(proxy)
    assert released_at_once(proxy, clients, *[encode("DEL", name) for name in names]) == [1] * 8
    slow = [dict(zip(row[::2], row[1::2]))["command"] for row in operator("PROXY", "SLOWLOG", "GET", -1)]
    assert sorted(c for c in slow if c.startswith("DEL")) == ["DEL %s ..." % name for name in names]
