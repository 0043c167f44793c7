"""The lock idioms that applications have, on the default rule: no owner option, connections without names, all from one
address; `kind` is set if the idiom needs it. Each idiom runs over a connection for each worker, a pool, and one connection for
all. No two workers are inside, and no holder's release is refused (a pool may lose two before it is known as a pool). A late
holder takes nothing from the present holder.

Idiom 18, the throttle, has a test of its own; 20, Redlock, is test_library_locks.py's.
"""

import pickle
import time

import pytest

from contention import LEASE, Runs, part
from crowd import GIVE, TAKE, Crowd, send
from library_locks import DELETE_IF_MINE, EXPIRE_IF_MINE, Library, Script
from resp import Error
from servers import until
from test_scripts import HASH_LOCK, HASH_RENEW, HASH_UNLOCK

MODELS = ("own", "pool", "multiplexed")
GOAL = {"standalone": 120, "cluster": 60}
RULES = ["lock lock:* lease 3s"]
KIND_RULES = ["lock lock:*List:* kind list lease 3s", "lock lock:Count*:* kind counter lease 3s"]


class Idiom(Library):
    careful, extends = False, False
    value = "1"
    late_extension = True  # a late holder's is refused
    losers_release = False
    settles = True  # losers change nothing on Redis either
    told_apart = True  # two that acquire at the same time
    tells = True  # the reply to a release says whether it was one
    expires = True  # the holder's EXPIRE is never refused
    goes = False  # the lock is gone with its holder's connection
    doubles = 20  # of losers that release, before that is learnt

    def __init__(self, model):
        self.keys, self.connections = "lock:%s:%s:{%%d}" % (type(self).__name__, model), model  # a pattern for each

    def made(self, me):
        return self.value or me.value()

    def acquire(self, me, key, ms):
        value = self.made(me)
        return value if (yield from send("SET", key, value, "NX", "PX", ms)) == "OK" else None

    def release(self, me, key, value):
        return (yield from send("DEL", key)) == 1


class Setnx(Idiom):
    """A lease that the proxy renews ends before its time by an operator's hand alone, and with it what is remembered of it where
    connections are shared."""

    endless = True

    def __init__(self, model):
        super().__init__(model)
        self.ends = model == "own"

    def acquire(self, me, key, ms):
        return "1" if (yield from send("SETNX", key, "1")) == 1 else None


class SetnxExpire(Idiom):
    everybody = False  # sends its EXPIRE, whether its SETNX has won or not

    def acquire(self, me, key, ms):
        won = (yield from send("SETNX", key, "1")) == 1
        if won or self.everybody:
            moved = yield from send("PEXPIRE", key, ms)
            me.cut += won and moved == 0
        return "1" if won else None


class EverybodysExpire(SetnxExpire):
    """Where connections are shared a loser's may be the first that a lock gets, and the holder's the one that is refused."""

    everybody, settles = True, False

    def __init__(self, model):
        super().__init__(model)
        self.expires = model == "own"


class Transaction(Idiom):
    settles = False

    def acquire(self, me, key, ms):
        replies = (yield {0: [("MULTI",), ("SETNX", key, "1"), ("PEXPIRE", key, ms), ("EXEC",)]})[0]
        me.cut += replies[-1] == [1, 0]
        return "1" if replies[-1][0] == 1 else None


class BareUuid(Idiom):
    value = None


class ReadCompareDelete(Idiom):
    value, looks = None, True

    def release(self, me, key, value):
        return (yield from send("GET", key)) == value and (yield from send("DEL", key)) == 1


class Watchdog(Idiom):
    """Scripts acquire and release, and a thread that renews sends a bare PEXPIRE, over any of the connections."""

    value, extends, looks = None, True, True
    obtain = Script("if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0")
    delete = Script(DELETE_IF_MINE)
    place = 0

    def __init__(self, model):
        super().__init__(model)
        self.late_extension = model == "own" and not self.place

    def acquire(self, me, key, ms):
        value = self.made(me)
        return value if (yield from self.obtain.run([key], value, ms)) == 1 else None

    def extend(self, me, key, value, ms):
        return (yield from send("PEXPIRE", key, ms, place=self.place)) == 1

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


class WatchdogAside(Watchdog):
    """The same with connections of its own."""

    second_place, place = True, 1


class Deadline(Idiom):
    """The value is the time of its end, well after the lease; a worker that sees that it has passed takes over by GETSET."""

    endless, ends = True, False

    def acquire(self, me, key, ms):
        now = int(time.time() * 1000)
        mine = "%d.%d" % (now + 3 * ms, me.number)
        if (yield from send("SETNX", key, mine)) == 1:
            return mine
        there = yield from send("GET", key)
        if there is None or float(there) > now:
            return None
        return mine if (yield from send("GETSET", key, mine)) == there else None

    def release(self, me, key, value):
        return float(value) > time.time() * 1000 and (yield from send("DEL", key)) == 1


class List(Idiom):
    """The worker at the head holds the lock; a worker that has waited too long removes its node."""

    endless, ends, goes = True, False, True

    def node(self, me):
        return me.value() + ":1700000000"

    def acquire(self, me, key, ms):
        node = self.node(me)
        yield from send("RPUSH", key, node)
        for _ in range(5):
            if (yield from send("LRANGE", key, 0, 0)) == [node]:
                return node
            yield 0.001
        assert (yield from send("LREM", key, 1, node)) in (0, 1)
        return None

    def release(self, me, key, value):
        return (yield from send("LREM", key, 1, value)) == 1


class ReentrantList(List):
    extends = True

    def acquire(self, me, key, ms):
        node = self.node(me) + ":1"
        if (yield from send("EXISTS", key)) == 1:
            return None
        if isinstance((yield from send("RPUSH", key, node)), Error):
            return None
        if (yield from send("LRANGE", key, 0, 0)) == [node]:
            return node
        yield from send("LREM", key, 1, node)
        return None

    def extend(self, me, key, value, ms):
        """Once more, and back."""
        for node in (value[:-1] + "2", value):
            if (yield from send("LSET", key, 0, node)) != "OK":
                return False
        return True


class Watched(Idiom):
    value, looks = None, True

    def release(self, me, key, value):
        yield TAKE
        yield from send("WATCH", key)
        done = None
        if (yield from send("GET", key)) == value:
            yield from send("MULTI")
            yield from send("DEL", key)
            done = yield from send("EXEC")
        else:
            yield from send("UNWATCH")
        yield GIVE
        return done == [1]


class Redisson(Idiom):
    value, careful, extends = None, True, True
    obtain, renew, delete = Script(HASH_LOCK), Script(HASH_RENEW), Script(HASH_UNLOCK)

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from self.obtain.run([key], ms, value)) is None else None

    def extend(self, me, key, value, ms):
        return (yield from self.renew.run([key], ms, value)) == 1

    def release(self, me, key, value):
        return (yield from self.delete.run([key, "released:" + key], 0, LEASE, value)) == 1


class Counter(Idiom):
    settles = False

    def acquire(self, me, key, ms):
        if (yield from send("INCR", key)) != 1:
            return None
        me.cut += (yield from send("PEXPIRE", key, ms)) == 0
        return "1"


class CountedDown(Counter):
    """Losers take back what they have added. A pool is known by two that do so in a row over one connection. If a lease has run
    out before that, what is still taken back of it is missing in the next one's count, as on Redis, and goes on missing: in 25
    runs up to 32 of 120 were inside with another one."""

    tells, losers_release, doubles = False, True, 60

    def is_free(self, node, key):
        return node("GET", key) in (None, "0")

    def lost(self, me, key, value):
        yield from send("DECR", key)

    def release(self, me, key, value):
        return (yield from send("DECR", key)) >= 0


class Finally(Idiom):
    """Losers delete too."""

    losers_release = True

    def lost(self, me, key, value):
        yield from send("DEL", key)


class SetXX(Idiom):
    """SET XX extends, and releases by a short expiry. The value that it writes says whose it is."""

    value, extends, kept = None, True, 2

    def extend(self, me, key, value, ms):
        return (yield from send("SET", key, value, "XX", "PX", ms)) == "OK"

    def release(self, me, key, value):
        return (yield from send("SET", key, value, "XX", "PX", self.kept)) == "OK"


class LookThenSet(Idiom):
    """Where connections are shared nothing on the wire tells a colleague's first SET from a holder's next one."""

    value = None

    def __init__(self, model):
        super().__init__(model)
        self.told_apart = model == "own"

    def acquire(self, me, key, ms):
        if (yield from send("GET", key)) is not None:
            return None
        value = self.made(me)
        reply = yield from send("SET", key, value, "PX", ms)
        assert reply == "OK" or reply.startswith("LOCKED "), reply
        return value if reply == "OK" else None


class CacheAdd(Idiom):
    value = pickle.dumps(True)


class Queued(Idiom):
    """Released by a process that never acquires: all of one identity here, and believed."""

    value, second_place, handed_over = None, True, True

    def release(self, me, key, value):
        return (yield from send("DEL", key, place=1)) == 1


IDIOMS = {"1": Setnx, "2": SetnxExpire, "2b": EverybodysExpire, "3": Transaction, "4": Idiom, "5": BareUuid, "6": ReadCompareDelete,
          "7": Watchdog, "7b": WatchdogAside, "8": Deadline, "11": Watched, "12": Redisson, "14": Finally, "15": SetXX,
          "16": LookThenSet, "17": CacheAdd, "19": Queued}
OF_KINDS = {"9": List, "10": ReentrantList, "13": Counter, "13b": CountedDown}


def titles(idioms):
    return {"%s %s, %s" % (number, made.__name__, model): made(model) for number, made in idioms.items() for model in MODELS}


@pytest.fixture(scope="module")
def runs(farm):
    runs = Runs(farm, titles(IDIOMS), RULES, GOAL)
    yield runs
    runs.stop()


@pytest.fixture(scope="module")
def kind_runs(farm):
    runs = Runs(farm, titles(OF_KINDS), KIND_RULES, GOAL)
    yield runs
    runs.stop()


def cases(idioms):
    return [(kind, title) for kind in GOAL for title in titles(idioms)]


@pytest.fixture(params=cases(IDIOMS), ids=lambda case: "%s-%s" % case)
def case(request, runs):
    """(idiom, what its run gave, kind of backend)."""
    return runs.wanted(request)


@pytest.fixture(params=cases(OF_KINDS), ids=lambda case: "%s-%s" % case)
def kind_case(request, kind_runs):
    return kind_runs.wanted(request)


def check_contention(case):
    idiom, result, kind = case
    figures = part(result, "figures")
    assert figures.acquired >= GOAL[kind], vars(figures)
    if not idiom.told_apart:
        pytest.skip("as on Redis")
    if idiom.losers_release and idiom.connections != "own":  # before that is learnt
        assert figures.double <= idiom.doubles, vars(figures)
        return
    lost = idiom.pool_loses if idiom.connections == "pool" and not idiom.careful else 0
    assert figures.double == 0 and figures.refused <= lost, vars(figures)
    assert figures.cut <= lost or not idiom.expires, vars(figures)


def check_steps(case):
    """As on Redis, but where the idiom itself goes wrong there, or where losers change something that a proxy keeps them from."""
    idiom, result, _ = case
    if idiom.losers_release and idiom.connections != "own":
        pytest.skip("which of the releases frees the lock does not matter")
    extended = [True, True] if idiom.extends else []
    outcome, replies = part(result, "steps")
    if idiom.extends and idiom.endless:
        extended = [True, False]  # to hold it once more is no extension
    assert outcome == [True, None, None, *extended, True, True, True, None, True, True]
    if idiom.settles and not idiom.losers_release and not idiom.endless:
        assert (outcome, replies) == part(result, "direct")


def check_late_holder(case):
    idiom, result, kind = case
    if not idiom.ends or idiom.handed_over:
        pytest.skip("its lease does not end, or whoever asks may release")
    outcome = part(result, "late")
    extended = 2 if idiom.extends else 0
    told = extended if idiom.tells else extended + 1
    safe = [False, False, None, True, True][told - extended:]
    if idiom.late_extension:
        assert outcome[:extended] == [False] * extended
    assert outcome[told:] == safe
    if kind == "standalone" and not idiom.endless:
        assert (part(result, "direct_late")[told:] == safe) == (idiom.careful or idiom.looks)


def check_crash(case):
    idiom, result, _ = case
    lasts, in_time = part(result, "crash")[:2]
    assert in_time and (lasts or idiom.goes)
    if idiom.handed_over:  # a release without a claim may have been the dead holder's
        return
    if not idiom.losers_release or idiom.connections == "own":
        assert part(result, "crash")[2:] == (True, True)


CHECKS = [check_contention, check_steps, check_late_holder, check_crash]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_idiom(case, check):
    check(case)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_idiom_of_a_kind(kind_case, check):
    check(kind_case)


@pytest.mark.parametrize("model", MODELS)
def test_18_a_throttle(runs, backend, model, key):
    """It is never released, and ends exactly when the application said; nothing is learnt from it that changes a lock's fate."""
    (_, proxy), = runs.sides(backend.kind)
    name, period, crowd = key("lock:18"), 500, Crowd()
    node = backend.node_of(name).client()
    try:
        process = crowd.process(model, proxy.address)
        workers = [process.worker() for _ in range(4)]
        granted = []

        def ask(me):
            while len(granted) < 3:
                if (yield from send("SET", name, "1", "NX", "PX", period)) == "OK":
                    granted.append(time.monotonic())
                    assert 0 < node("PTTL", name) <= period
                yield 0.005

        crowd.run([(worker, ask(worker)) for worker in workers])
        gaps = [after - before for before, after in zip(granted, granted[1:])]
        assert all(0.3 < gap < 2 for gap in gaps), gaps
        until(lambda: node("EXISTS", name) == 0, 5, "the end of the last one")
    finally:
        crowd.close()
        node.close()


def test_table(runs, kind_runs, capsys):
    """The contention's results, printed with the tests' output."""
    with capsys.disabled():
        print("\n" + runs.table() + "\n" + kind_runs.table())
