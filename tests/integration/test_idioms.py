"""Lock code as applications have it, one connection a worker.

Each scenario is first run directly on Redis, where it must go wrong in the way that is known of it, and then the
very same code runs through the proxy, where it must not.
"""

import pickle

import pytest

from resp import Client, Error
from servers import until

T = 150  # ms; the end of a lease


class Stage:
    """Workers A, B, C, ... of a scenario: connections of the same client, either all direct or all through the
    proxy."""

    def __init__(self, connect, direct, name):
        self.connect = connect
        self.direct = direct
        self.name = name
        self.workers = []

    def worker(self):
        worker = self.connect()
        self.workers.append(worker)
        return worker

    def several(self, count):
        return [self.worker() for _ in range(count)]

    def ended(self, timeout=10):
        """Waits for the end of the lock's lease (T)."""
        until(lambda: self.direct("EXISTS", self.name) == 0, timeout, "the end of " + self.name, 0.005)

    def free(self):
        return self.direct("EXISTS", self.name) == 0

    def ttl(self):
        return self.direct("PTTL", self.name)

    def crash(self, worker):
        """The worker's process is gone."""
        self.workers.remove(worker)
        worker.close()

    def close(self):
        for worker in self.workers:
            worker.close()


# Short leases make the scenarios of crashes quick; the rules differ in nothing else.
OWNERS = {"auto": "lock {p} owner auto lease 1s", "connection": "lock {p} owner connection lease 1s"}


@pytest.fixture(scope="module", params=OWNERS)
def idiom_proxies(request, farm):
    """A proxy for each backend, with one rule: owner auto, or owner connection."""
    import servers

    started = {}

    def proxy(backend):
        if backend.kind not in started:
            started[backend.kind] = servers.Proxy(
                backend, *[OWNERS[request.param].format(p=p) for p in ("lock:*", ":1:lock*")])
        return started[backend.kind]

    yield proxy
    for p in started.values():
        p.stop()
        p.remove()


@pytest.fixture
def run(idiom_proxies, backend, direct, key):
    """run(scenario, name): what it gives on Redis, and what it gives through the proxy."""
    stages = []

    def both(scenario, name="lock:idiom"):
        results = []
        for connect in (backend.direct, lambda: Client(proxy.address)):
            stage = Stage(connect, direct, key(name))
            stages.append(stage)
            results.append(scenario(stage))
        return results

    proxy = idiom_proxies(backend)
    yield both
    for stage in stages:
        stage.close()


# ---- 1 ----


def test_1_crash_after_setnx(run):
    """SETNX without an expiry; the holder crashes: locked for ever."""

    def scenario(s):
        a, b = s.several(2)
        assert a("SETNX", s.name, "1") == 1
        assert b("SETNX", s.name, "1") == 0
        ends = s.ttl() != -1
        s.crash(a)
        if ends:
            s.ended()
        return b("SETNX", s.name, "1")

    assert run(scenario) == [0, 1]


def test_1_lease_is_renewed_while_connected(run):
    """And a holder that works longer than the lease keeps its lock."""
    import time

    def scenario(s):
        a, b = s.several(2)
        assert a("SETNX", s.name, "1") == 1
        deadline = time.monotonic() + 2.2
        while time.monotonic() < deadline:
            assert b("SETNX", s.name, "1") == 0
        return a("DEL", s.name), b("SETNX", s.name, "1")

    assert run(scenario) == [(1, 1), (1, 1)]


# ---- 2 ----


def test_2_crash_between_setnx_and_expire(run):
    def scenario(s):
        a, b = s.several(2)
        assert a("SETNX", s.name, "1") == 1
        s.crash(a)  # before its EXPIRE
        return s.ttl() == -1

    assert run(scenario) == [True, False]


@pytest.mark.parametrize("expire", ["EXPIRE", "PEXPIRE"])
def test_2_losers_keep_a_dead_lock_alive(run, expire):
    """Every contender sends its EXPIRE whether its SETNX won or not."""

    def scenario(s):
        a, b = s.several(2)
        assert a("SETNX", s.name, "1") == 1
        assert a("PEXPIRE", s.name, T) == 1
        s.crash(a)
        assert b("SETNX", s.name, "1") == 0
        answer = b(expire, s.name, 100 if expire == "EXPIRE" else 100000)
        return answer, s.ttl() > T

    assert run(scenario) == [(1, True), (0, False)]


def test_2_works(run):
    """The good case gives the same replies."""

    def scenario(s):
        a, b = s.several(2)
        return [a("SETNX", s.name, "1"), b("SETNX", s.name, "1"), a("EXPIRE", s.name, 5), 4000 < s.ttl() <= 5000,
                a("DEL", s.name), b("SETNX", s.name, "1"), b("EXPIRE", s.name, 5), b("DEL", s.name), s.free()]

    good = [1, 0, 1, True, 1, 1, 1, 1, True]
    assert run(scenario) == [good, good]


# ---- 4, 5, 17: a late DEL ----


LATE = {
    "4 constant value, seconds": (["SET", "K", "true", "NX", "PX", str(T)], "lock:idiom"),
    "5 a value of one's own, never compared": (["SET", "K", "W", "NX", "PX", str(T)], "lock:idiom"),
    "17 a cache library's add": (["SET", "K", "P", "PX", str(T), "NX"], ":1:lock-report"),
    "4 SETNX and PEXPIRE": (["SETNX", "K", "1"], "lock:idiom"),
}


def acquire(stage, worker, number, form, expiry=None):
    words = {"K": stage.name, "W": "7d2b-%d" % number, "P": pickle.dumps(True)}
    command = [words.get(word, word) for word in form]
    if expiry:
        command = [str(expiry) if word == str(T) else word for word in command]
    won = worker(*command) in ("OK", 1)
    if won and form[0] == "SETNX":
        worker("PEXPIRE", stage.name, expiry or T)
    return won


@pytest.mark.parametrize("case", LATE)
def test_late_delete(run, case):
    """A acquires, its lease ends, B acquires, A's DEL frees B's lock, C enters: two in the critical section."""
    form, name = LATE[case]

    def scenario(s):
        a, b, c = s.several(3)
        assert acquire(s, a, 1, form)
        s.ended()
        assert acquire(s, b, 2, form, 60000)
        late = a("DEL", s.name)
        two_inside = acquire(s, c, 3, form, 60000)
        return late, two_inside, b("DEL", s.name)

    assert run(scenario, name) == [(1, True, 1), (0, False, 1)]


def test_17_the_value_comes_back(run):
    value = pickle.dumps({"a": [1, 2.5, b"\0\r\n"], "b": None})

    def scenario(s):
        (a,) = s.several(1)
        assert a("SET", s.name, value, "NX", "PX", 60000) == "OK"
        return a("GET", s.name).encode("utf-8", "surrogateescape"), a("DEL", s.name), s.free()

    assert run(scenario, ":1:lock-report") == [(value, 1, True)] * 2


# ---- 6 ----


def test_6_get_compare_delete(run):
    """A's GET still shows A's value; then the lease ends, B acquires, and A's DEL frees B's lock."""

    def scenario(s):
        a, b, c = s.several(3)
        assert a("SET", s.name, "uuid-a", "NX", "PX", T) == "OK"
        assert a("GET", s.name) == "uuid-a"  # mine: I may delete it
        s.ended()
        assert b("SET", s.name, "uuid-b", "NX", "PX", 60000) == "OK"
        late = a("DEL", s.name)
        two_inside = c("SET", s.name, "uuid-c", "NX", "PX", 60000) == "OK"
        if not two_inside:
            assert b("GET", s.name) == "uuid-b"
        return late, two_inside, b("DEL", s.name)

    assert run(scenario) == [(1, True, 1), (0, False, 1)]


def test_6_works(run):
    def scenario(s):
        a, b = s.several(2)
        replies = []
        for worker, value in ((a, "uuid-a"), (b, "uuid-b"), (a, "uuid-a2")):
            replies.append(worker("SET", s.name, value, "NX", "PX", 60000))
            replies.append(worker("GET", s.name) == value)
            replies.append(worker("DEL", s.name))
        return replies

    assert run(scenario) == [["OK", True, 1] * 3] * 2


# ---- 13 ----


def test_13_counter_crash(run):
    """INCR, 1 means acquired; a crash before EXPIRE: locked for ever."""

    def scenario(s):
        a, b = s.several(2)
        assert a("INCR", s.name) == 1
        assert b("INCR", s.name) == 2
        ends = s.ttl() != -1
        s.crash(a)
        if ends:
            s.ended()
        return b("INCR", s.name) == 1

    assert run(scenario) == [False, True]


def test_13_counter_losers_expire(run):
    """A loser's EXPIRE keeps the dead counter alive."""

    def scenario(s):
        a, b = s.several(2)
        assert a("INCR", s.name) == 1
        assert a("PEXPIRE", s.name, T) == 1
        s.crash(a)
        assert b("INCR", s.name) == 2
        return b("EXPIRE", s.name, 100), s.ttl() > T

    assert run(scenario) == [(1, True), (0, False)]


def test_13_counter_late_delete(run):
    def scenario(s):
        a, b, c = s.several(3)
        assert a("INCR", s.name) == 1
        assert a("PEXPIRE", s.name, T) == 1
        s.ended()
        assert b("INCR", s.name) == 1
        assert b("EXPIRE", s.name, 100) == 1
        late = a("DEL", s.name)
        return late, c("INCR", s.name) == 1

    assert run(scenario) == [(1, True), (0, False)]


def test_13_counter_late_decrement(run):
    """Release by DECR: a late one makes the counter zero under its holder, and the next INCR wins."""

    def scenario(s):
        a, b, c = s.several(3)
        assert a("INCR", s.name) == 1
        assert a("PEXPIRE", s.name, T) == 1
        s.ended()
        assert b("INCR", s.name) == 1
        assert b("EXPIRE", s.name, 100) == 1
        late = a("DECR", s.name)
        return late, c("INCR", s.name) == 1

    assert run(scenario) == [(0, True), (0, False)]


def test_13_works(run):
    def scenario(s):
        a, b = s.several(2)
        return [a("INCR", s.name), a("EXPIRE", s.name, 50), b("INCR", s.name), b("DECR", s.name), a("DECR", s.name),
                b("INCR", s.name), b("EXPIRE", s.name, 50), b("DEL", s.name), s.free()]

    good = [1, 1, 2, 1, 0, 1, 1, 1, True]
    assert run(scenario) == [good, good]


# ---- 14 ----


@pytest.mark.parametrize("release", ["DEL", "UNLINK", "GETDEL"])
def test_14_delete_in_finally(run, release):
    """The loser deletes too."""

    def scenario(s):
        a, b, c = s.several(3)
        assert a("SET", s.name, "1", "NX", "PX", 60000) == "OK"
        assert b("SET", s.name, "1", "NX", "PX", 60000) is None
        answer = b(release, s.name)
        two_inside = c("SET", s.name, "1", "NX", "PX", 60000) == "OK"
        return answer, two_inside

    assert run(scenario) == [(1 if release != "GETDEL" else "1", True), (0 if release != "GETDEL" else None, False)]


# ---- 15 ----


def test_15_set_xx_as_a_release(run):
    """A's late SET XX overwrites B's value and shortens B's expiry."""

    def scenario(s):
        a, b, c = s.several(3)
        assert a("SET", s.name, "a", "NX", "PX", T) == "OK"
        s.ended()
        assert b("SET", s.name, "b", "NX", "PX", 60000) == "OK"
        late = a("SET", s.name, "a", "XX", "PX", 1)
        until(lambda: s.free() or late is None, 5, "the end")
        two_inside = c("SET", s.name, "c", "NX", "PX", 60000) == "OK"
        return late, two_inside

    assert run(scenario) == [("OK", True), (None, False)]


def test_15_set_xx_as_an_extension(run):
    def scenario(s):
        a, b = s.several(2)
        assert a("SET", s.name, "a", "NX", "PX", T) == "OK"
        s.ended()
        assert b("SET", s.name, "b", "NX", "PX", 60000) == "OK"
        late = a("SET", s.name, "a", "XX", "PX", 600000)
        return late, b("GET", s.name) == "b", s.ttl() <= 60000

    assert run(scenario) == [("OK", False, False), (None, True, True)]


def test_15_works(run):
    def scenario(s):
        a, b = s.several(2)
        first = [a("SET", s.name, "a", "NX", "PX", 5000), a("SET", s.name, "a2", "XX", "PX", 60000), 50000 < s.ttl(),
                 b("SET", s.name, "b", "NX"), a("SET", s.name, "a3", "XX", "PX", 1)]
        s.ended()
        return first + [b("SET", s.name, "b", "NX", "PX", 1000)]

    good = ["OK", "OK", True, None, "OK", "OK"]
    assert run(scenario) == [good, good]


# ---- 16 ----


@pytest.mark.parametrize("form", [["SET", "K", "W", "EX", "5"], ["SETEX", "K", "5", "W"], ["SET", "K", "W"]], ids=" ".join)
def test_16_set_after_a_get_that_showed_nothing(run, form):
    """Both see nothing, both set, both work."""

    def scenario(s):
        a, b = s.several(2)
        assert a("GET", s.name) is None
        assert b("GET", s.name) is None
        inside = []
        for worker, value in ((a, "a"), (b, "b")):
            reply = worker(*[{"K": s.name, "W": value}.get(word, word) for word in form])
            if reply == "OK":
                inside.append(value)
            else:
                assert isinstance(reply, Error) and reply.startswith("LOCKED ")
        return inside, a("GET", s.name), a("DEL", s.name)

    assert run(scenario) == [(["a", "b"], "b", 1), (["a"], "a", 1)]


# ---- 18 ----


def test_18_throttle(run):
    """Nothing is wrong with it, and nothing changes: it expires exactly when the application said."""

    def scenario(s):
        a, b = s.several(2)
        replies = [a("SET", s.name, "1", "NX", "PX", 1500), b("SET", s.name, "1", "NX", "PX", 1500)]
        assert 1000 < s.ttl() <= 1500
        s.crash(a)
        assert s.ttl() <= 1500
        s.ended(3)
        return replies + [b("SET", s.name, "1", "NX", "PX", 1500)]

    assert run(scenario) == [["OK", None, "OK"]] * 2


# ---- all at once ----


def test_many_workers_are_never_two(run, rng):
    """Workers with idiom 4 under contention, some of them slower than their lease: directly, two are inside at the
    same time; through the proxy, every late DEL answers 0 and the lock is only ever released by its holder."""

    def scenario(s):
        workers = s.several(6)
        stolen = 0
        holder = None
        overdue = []
        for _ in range(40):
            worker = rng.choice(workers)
            if worker in overdue:
                before = s.direct("GET", s.name)
                if worker("DEL", s.name) == 1 and holder is not None and before is not None:
                    stolen += 1
                    holder = None
                overdue.remove(worker)
            elif worker is holder:
                if worker("DEL", s.name) == 1:
                    holder = None
            elif holder is None:
                slow = rng.random() < 0.5
                if worker("SET", s.name, "true", "NX", "PX", 20 if slow else 60000) == "OK":
                    if slow:
                        s.ended()
                        overdue.append(worker)
                    else:
                        holder = worker
        return stolen

    on_redis, through_the_proxy = run(scenario)
    while on_redis == 0:  # the dice have to show it first
        on_redis, through_the_proxy = run(scenario)
    assert on_redis > 0 and through_the_proxy == 0
