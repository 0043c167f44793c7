"""Lock libraries, by what they put on the wire (library_locks.py), under the rule that fits their keys, over the connections
that they mostly have: on one Redis, on a cluster, and, for Redlock, on three Redis that know nothing of each other, each
behind a proxy of its own.

A test is a library on a backend; all that are wanted of a backend run side by side before the first test looks at its own. A
run is: workers of two processes that contend; then, step by step over the same connections, what Redis answers too; a holder
whose lease has ended; a holder that crashes. Workers release in time, and so a holder's release frees its lock: a pool whose
releases are bare may lose two before it is known as one.
"""

import collections
import concurrent.futures
import os
import random
import re
import shlex
import time
import traceback

import pytest

import servers
from crowd import Crowd, send
from library_locks import LIBRARIES
from resp import Error
from servers import until

SIDE_BY_SIDE = 8
WORKERS = 3  # of each of two processes
GOAL = {"standalone": 300, "cluster": 150, "redlock": 90}  # acquisitions
GOAL_ADVISED = 30
SECONDS = 20  # a run with its lock lost again and again ends here
LEASE = 5000  # ms: longer than anybody works
SHORT = 150  # ms: a lease that ends while its worker is still at it
RULES = sorted((library.rule for library in LIBRARIES.values()), key=lambda rule: -len(rule.split()[1]))


class Figures:
    def __init__(self):
        self.acquired = self.lost = self.refused = self.double = self.cut = 0
        self.inside = collections.Counter()
        self.seconds = 0.0


def workers_of(library, crowd, addresses):
    """Two processes with their workers. A place for each address; where locks are handed over the second is that of those
    who release, on another machine."""
    names = ("web", "worker") if library.handed_over else ()
    processes = [crowd.process(library.connections, *addresses, names=names) for _ in range(2)]
    return processes, [process.worker() for process in processes for _ in range(WORKERS)]


def contend(library, crowd, workers, keys, goal, rng):
    """Workers acquire, work, now and then extend, and release in time. The figures are theirs, not the proxy's."""
    figures = Figures()
    began = time.monotonic()

    def critical_section(me, key):
        value = yield from library.acquire(me, key, LEASE)
        if value is None:
            figures.lost += 1
            yield from library.lost(me, key, value)
            return
        figures.acquired += 1
        figures.double += figures.inside[key] > 0
        figures.inside[key] += 1
        yield rng.uniform(0, 0.003)
        if library.extends and rng.random() < 0.2:
            figures.cut += not (yield from library.extend(me, key, value, LEASE))
        figures.inside[key] -= 1
        figures.refused += not (yield from library.release(me, key, value))

    def work(me):
        while figures.acquired < goal and time.monotonic() - began < SECONDS:
            key = rng.choice(keys)
            if not library.local or key not in me.process.local:
                me.process.local.add(key)
                yield from critical_section(me, key)
                me.process.local.discard(key)
            yield rng.uniform(0.0005, 0.004)

    crowd.run([(worker, work(worker)) for worker in workers])
    figures.seconds = time.monotonic() - began
    return figures


class Run:
    """A library on one backend, through a proxy or not."""

    def __init__(self, library, title, kind, addresses, nodes, seed):
        self.library, self.kind = library, kind
        self.rng = random.Random("%s %s %d" % (title, kind, seed))
        self.crowd = Crowd()
        self.nodes = nodes  # nodes(key): connections to the Redis that have it
        self.numbers = iter(range(1, 1000))
        self.processes, self.workers = workers_of(library, self.crowd, addresses)
        self.addresses = addresses

    def close(self):
        self.crowd.close()

    def key(self):
        return self.library.key(next(self.numbers))

    def do(self, worker, what, *args):
        return self.crowd.do(worker, getattr(self.library, what)(worker, *args))

    def free(self, key):
        return all(node("EXISTS", self.library.shows(key)) == 0 for node in self.nodes(key))

    def left(self, key):
        """ms until the lock's end."""
        return min(node("PTTL", self.library.shows(key)) for node in self.nodes(key))

    def freed(self, key):
        """Whether it is free at once, or as soon as the library wants it to be."""
        if self.library.kept:
            until(lambda: self.free(key), 2, "the end of what is kept", 0.002)
        return self.free(key)

    def contend(self, goal):
        return contend(self.library, self.crowd, self.workers, [self.key(), self.key()], goal, self.rng)

    def people(self):
        """Two colleagues and a worker of the other process; those of a pool take its connections by turns from now on."""
        for place in (place for process in self.processes for place in process.places):
            place.turns = True
        first, second = self.processes
        people = first.worker(), first.worker(), second.worker()
        for number, worker in enumerate(people):
            worker.number = number + 1  # the same values in each run
        return people

    def steps(self):
        """Acquired, contended for, extended, released, acquired by who had lost, released; what came of it, and all replies."""
        a, b, c = self.people()
        library, key = self.library, self.key()
        held = self.do(a, "acquire", key, LEASE)
        outcome = [held is not None]
        losers = [c] if library.local else [b, c]
        for loser in losers:
            outcome.append(self.do(loser, "acquire", key, LEASE))
            self.do(loser, "lost", key, None)
        if library.extends:
            outcome += [self.do(a, "extend", key, held, 2 * LEASE), self.left(key) > LEASE]
        outcome += [self.do(a, "release", key, held), self.freed(key)]
        held = self.do(c, "acquire", key, LEASE)
        outcome += [held is not None, self.do(b, "acquire", key, LEASE)]
        self.do(b, "lost", key, None)
        outcome += [self.do(c, "release", key, held), self.freed(key)]
        return outcome, [[heard(*what) for what in worker.heard if what[0] != "SCRIPT"] for worker in (a, b, c)]

    def late(self):
        """The lease of A ends, B acquires, A extends and releases."""
        a, b, c = self.people()
        if self.library.local:
            b, c = c, b
        library, key = self.library, self.key()
        first = self.do(a, "acquire", key, max(SHORT, library.step))
        if library.endless:
            with servers.Client(self.addresses[0]) as operator:
                operator("PROXY", "RELEASE", key)
        until(lambda: self.free(key), 10, "the end of the lease", 0.01)
        second = self.do(b, "acquire", key, LEASE)
        assert first is not None and second is not None
        outcome = []
        if library.extends:
            outcome += [self.do(a, "extend", key, first, 30 * LEASE), self.left(key) > LEASE]
        outcome += [self.do(a, "release", key, first), self.free(key)]
        if not library.local:
            outcome.append(self.do(c, "acquire", key, LEASE))
        return outcome + [self.do(b, "release", key, second), self.freed(key)]

    def crash(self):
        """A's process is gone; how long until somebody else has its lock, and whether its release frees it."""
        process = self.crowd.process(self.library.connections, *self.addresses, names=("web", "worker"))
        a, (_, _, c) = process.worker(), self.people()
        key = self.key()
        lease = 1000 if self.library.endless else max(1000, self.library.step)
        assert self.do(a, "acquire", key, lease) is not None
        began = time.monotonic()
        process.close()
        before = self.do(c, "acquire", key, LEASE)
        held = until(lambda: self.do(c, "acquire", key, LEASE), 10, "the end of a dead holder's lease", 0.02)
        seconds = time.monotonic() - began
        return before, seconds < lease / 1000 + 3, self.do(c, "release", key, held), self.freed(key)


def heard(name, reply):
    return name, "some" if name in ("PTTL", "EVAL") and isinstance(reply, int) and reply > 1 else reply


Result = collections.namedtuple("Result", "figures direct direct_late steps late crash problem")


class Farms:
    """Backends with a proxy each, and what ran on them."""

    def __init__(self, farm):
        self.farm = farm
        self.seed = int(os.environ.get("LOCKKEEPER_SEED") or time.time_ns() % 1000000007)
        self.made, self.own, self.results = {}, [], {}

    def sides(self, kind):
        """[(backend, proxy)]: three of them for Redlock."""
        if kind not in self.made:
            backends = [servers.RedisServer() for _ in range(3)] if kind == "redlock" else [self.farm.backend(kind)]
            if kind == "redlock":
                self.own += backends
            self.made[kind] = [(backend, servers.Proxy(backend, *RULES)) for backend in backends]
        return self.made[kind]

    def start(self, kind, titles):
        sides = self.sides(kind)
        for backend, _ in sides:
            backend.flush()
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            futures = {title: pool.submit(self.one, kind, sides, title) for title in titles}
            self.results[kind] = {title: future.result() for title, future in futures.items()}

    def one(self, kind, sides, title):
        library, found = LIBRARIES[title], {}
        clients = {}

        def nodes(key):
            these = [backend.node_of(library.shows(key)) for backend, _ in sides]
            return [clients.setdefault(node, node.client()) if node not in clients else clients[node] for node in these]

        def run(addresses):
            if library.handed_over:
                addresses = 2 * addresses
            return Run(library, title, kind, addresses, nodes, self.seed)

        direct = through = None
        try:
            direct = run([node.address for node in (backend.node_of(library.key(1)) for backend, _ in sides)])
            found["direct"] = direct.steps()
            if kind == "standalone" and not library.endless:
                found["direct_late"] = direct.late()
            through = run([proxy.address for _, proxy in sides])
            found["figures"] = through.contend(GOAL[kind])
            for _ in range(3 if library.connections == "pool" and not library.careful else 1):
                found["steps"] = through.steps()
            if not library.handed_over or library.careful:
                found["late"] = through.late()
            found["crash"] = through.crash()
        except Exception:  # shown by the tests
            found["problem"] = traceback.format_exc()
        finally:
            for one in (direct, through, *clients.values()):
                if one:
                    one.close()
        return Result(**{name: found.get(name) for name in Result._fields})

    def stop(self):
        try:
            for sides in self.made.values():
                for _, proxy in sides:
                    proxy.stop()
                    proxy.remove()
        finally:
            for server in self.own:
                server.stop()


@pytest.fixture(scope="module")
def farms(farm):
    farms = Farms(farm)
    yield farms
    farms.stop()


CASES = [(kind, title) for kind in ("standalone", "cluster", "redlock") for title, library in LIBRARIES.items()
         if library.redlock == (kind == "redlock") and (library.cluster or kind != "cluster")]


@pytest.fixture(params=CASES, ids=lambda case: "%s-%s" % case)
def case(request, farms):
    """(library, what its run gave)."""
    kind, title = request.param
    if kind not in farms.results:
        wanted = [getattr(item, "callspec", None) for item in request.session.items if item.module is request.module]
        wanted = {found.params["case"] for found in wanted if found and "case" in found.params}
        farms.start(kind, sorted(t for k, t in wanted if k == kind))
    print("LOCKKEEPER_SEED=%d" % farms.seed)
    return LIBRARIES[title], farms.results[kind][title], kind


def part(result, name):
    value = getattr(result, name)
    assert value is not None, result.problem
    return value


def test_contention(case):
    """Nobody is late: no two are inside, every release frees the lock, and every extension is one."""
    library, result, kind = case
    figures = part(result, "figures")
    lost = 2 if library.connections == "pool" and not library.careful else 0
    assert figures.double == 0 and figures.refused <= lost and figures.cut == 0, vars(figures)
    assert figures.acquired >= GOAL[kind], vars(figures)


def test_step_by_step(case):
    """The loser loses, the holder's extension counts, its release frees the lock at once; all replies are as on Redis."""
    library, result, _ = case
    outcome, replies = part(result, "steps")
    losers = [None] if library.local else [None, None]
    extended = [True, True] if library.extends else []
    assert outcome == [True, *losers, *extended, True, True, True, None, True, True]
    assert (outcome, replies) == part(result, "direct")


def test_late_holder(case):
    """Its extension is none, and its release takes nothing from who has the lock by now, as it does on Redis where libraries
    are careless."""
    library, result, kind = case
    if library.handed_over and not library.careful:
        pytest.skip("whoever asks may release, on purpose")
    extended = [False, False] if library.extends else []
    third = [] if library.local else [None]
    safe = [*extended, False, False, *third, True, True]
    assert part(result, "late") == safe
    if kind == "standalone" and not library.endless:
        assert (part(result, "direct_late") == safe) == (library.careful or library.looks)


def test_crash(case):
    """The lock of a holder that is gone is free within its lease, and not before."""
    assert part(case[1], "crash") == (None, True, True, True)


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_a_release_s_message(farms, connect, kind):
    """Spring's registry in its other mode: who waits is woken by the release."""
    library = LIBRARIES["Spring Integration, messages"]
    ((_, proxy),) = farms.sides(kind)
    key, crowd = library.key(900), Crowd()
    try:
        holder, waiter = [crowd.process("multiplexed", proxy.address).worker() for _ in range(2)]
        ear = connect(proxy)
        assert ear("PSUBSCRIBE", "order-locks-channel:*") == ["psubscribe", "order-locks-channel:*", 1]
        held = crowd.do(holder, library.acquire(holder, key, LEASE))
        assert held and crowd.do(waiter, library.acquire(waiter, key, LEASE)) is None
        assert crowd.do(holder, library.release(holder, key, held))
        assert ear.read() == ["pmessage", "order-locks-channel:*", "order-locks-channel:" + key, key]
        held = crowd.do(waiter, library.acquire(waiter, key, LEASE))
        assert held and crowd.do(waiter, library.release(waiter, key, held))
        assert ear.read()[-1] == key
    finally:
        crowd.close()


# ---- PROXY ADVISE ----------------------------------------------------------------------------------------------


def matches(pattern, key):
    """Whether a Redis glob matches."""
    words = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.S)
    regex = "".join(".*" if w == "*" else "." if w == "?" else w.replace("[^", "[^", 1) if w[0] == "[" else re.escape(w[-1]) for w in words)
    return re.fullmatch(regex, key, re.S) is not None


def stem(text):
    """Its first letters."""
    return "".join(filter(str.isalpha, text))[:6]


def rule_words(text):
    return shlex.split(text) if '"' in text else text.split()


@pytest.fixture(scope="module")
def advice(farm, farms):
    """What a proxy without any rule advises after all of the libraries' traffic."""
    backend = farm.backend("standalone")
    backend.flush()
    backend.run("SCRIPT", "FLUSH")  # a script of whose source nothing is heard says nothing
    proxy = servers.Proxy(backend, "lock lock:nothing")

    def traffic(title):
        library, crowd = LIBRARIES[title], Crowd()
        try:
            addresses = [proxy.address] * (2 if library.handed_over else 1)
            _, workers = workers_of(library, crowd, addresses)
            keys = [library.key(number) for number in range(5001, 5005)]
            contend(library, crowd, workers, keys, GOAL_ADVISED, random.Random(title))
            for number in range(20):
                for name in library.beside:
                    crowd.do(workers[0], send("SETEX", name % number, 60, "data"))
                    crowd.do(workers[0], send("GET", name % number))
        finally:
            crowd.close()

    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(traffic, LIBRARIES))
    with proxy.client() as client:
        lines = client("PROXY", "ADVISE")
    yield lines
    proxy.stop()
    proxy.remove()


@pytest.mark.parametrize("title", LIBRARIES)
def test_advice(advice, title):
    """Without any rule: the line names a pattern that has all of the library's locks and nothing else, and a rule that fits."""
    library = LIBRARIES[title]
    rules = [(rule_words(line.split(" events: ", 1)[1]), line) for line in advice if " events: lock " in line]
    locks = [library.shows(library.key(number)) for number in (5001, 5002, 77)]
    found = [(words, line) for words, line in rules if all(matches(words[1], lock) for lock in locks)]
    assert len(found) == 1, "\n".join(line for line in advice if stem(locks[0]) == stem(line))
    words, line = found[0]
    assert not [name for name in library.beside if matches(words[1], name % 7)], line
    assert "".join(" " + word for word in words[2:]) in library.options, line


# ---- the figures -----------------------------------------------------------------------------------------------


def test_table(farms, capsys):
    """What the contention came to, for whoever reads the tests' output."""
    lines = ["%-30s %-12s %-10s %8s %7s %8s %8s %7s" % ("library", "connections", "backend", "acquired", "lost", "refused",
                                                        "double", "a s")]
    for kind, results in farms.results.items():
        for title, result in results.items():
            f = result.figures
            if f:
                lines.append("%-30s %-12s %-10s %8d %7d %8d %8d %7.0f" % (
                    title, LIBRARIES[title].connections, kind, f.acquired, f.lost, f.refused, f.double, f.acquired / f.seconds))
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert all(result.figures is None or result.figures.double == 0 for r in farms.results.values() for result in r.values())
