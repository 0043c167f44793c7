"""Lock code that crowd.py's workers run, and the situations that are tested: workers of two processes that contend; then, step
by step over the same connections, a lock's life; a holder whose lease has ended; a holder that crashes. A Library
(library_locks.py) has the commands of the lock code."""

import collections
import concurrent.futures
import os
import random
import time
import traceback

import servers
from crowd import Crowd
from servers import until

SIDE_BY_SIDE = 8
WORKERS = 3  # of each of two processes
SECONDS = 60
LEASE = 3000  # ms: longer than any worker works
SHORT = 150  # ms: a lease that ends while its worker is still at it


class Figures:
    def __init__(self):
        self.acquired = self.lost = self.refused = self.double = self.cut = 0
        self.inside = collections.Counter()
        self.seconds = 0.0


def workers_of(library, crowd, addresses):
    """Two processes with their workers, and a place for each address."""
    processes = [crowd.process(library.connections, *addresses, names=library.names) for _ in range(2)]
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
            figures.cut += not (yield from library.extend(me, key, value, 2 * LEASE))
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

    crowd.run([(worker, work(worker)) for worker in workers], timeout=2 * SECONDS)
    figures.cut += sum(worker.cut for worker in workers)
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
        return all(self.library.is_free(node, key) for node in self.nodes(key))

    def left(self, key):
        """ms until the lock's end."""
        return min(node("PTTL", self.library.shows(key)) for node in self.nodes(key))

    def freed(self, key):
        """Whether it is free at once; or as soon as the library wants it to be, or what a dead holder's lock has left on one of
        several servers."""
        if self.library.kept or self.library.redlock:
            until(lambda: self.free(key), LEASE / 2000, "the end of what is kept", 0.002)
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
        """Acquired, contended for, extended, released, acquired by the loser, released; returns the result, and all replies."""
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
            self.do(c, "lost", key, None)
        return outcome + [self.do(b, "release", key, second), self.freed(key)]

    def crash(self):
        """A's process is gone. It is on another machine if workers share connections, since a pool counts as gone only as a
        whole, or if its lease is renewed, since a new connection of the same client within the second may be A coming back.
        Returns whether another worker gets the lock in time, and frees it."""
        library = self.library
        same = library.connections == "own" and not library.endless
        elsewhere = () if same else ("elsewhere-%08x" % self.rng.getrandbits(32),) * len(self.addresses)
        names = elsewhere if library.endless else library.names or elsewhere
        process = self.crowd.process(library.connections, *self.addresses, names=names)
        a, (_, _, c) = process.worker(), self.people()
        key = self.key()
        lease = 3000 if library.endless else max(1000, library.step)
        assert self.do(a, "acquire", key, lease) is not None
        began = time.monotonic()
        process.close(crash=True)
        at_once = self.do(c, "acquire", key, LEASE)
        held = at_once or until(lambda: self.do(c, "acquire", key, LEASE), 15, "the end of a dead holder's lease", 0.02)
        seconds = time.monotonic() - began
        return at_once is None, seconds < lease / 1000 + 6, self.do(c, "release", key, held), self.freed(key)


def heard(name, reply):
    return name, "some" if name in ("PTTL", "EVAL") and isinstance(reply, int) and reply > 1 else reply


Result = collections.namedtuple("Result", "figures direct direct_late steps late crash problem")


class Runs:
    """Backends with a proxy each, and what ran on them: `libraries` by title, under `rules`; `goal`: acquisitions by kind of
    backend."""

    def __init__(self, farm, libraries, rules, goal):
        self.farm, self.libraries, self.rules, self.goal = farm, libraries, rules, goal
        self.seed = int(os.environ.get("LOCKKEEPER_SEED") or time.time_ns() % 1000000007)
        self.made, self.own, self.results = {}, [], {}

    def sides(self, kind):
        """[(backend, proxy)]: three of them for Redlock."""
        if kind not in self.made:
            backends = [servers.RedisServer() for _ in range(3)] if kind == "redlock" else [self.farm.backend(kind)]
            if kind == "redlock":
                self.own += backends
            self.made[kind] = [(backend, servers.Proxy(backend, *self.rules)) for backend in backends]
        return self.made[kind]

    def start(self, kind, titles):
        sides = self.sides(kind)
        for backend, _ in sides:
            backend.flush()
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            futures = {title: pool.submit(self.one, kind, sides, title) for title in titles}
            self.results[kind] = {title: future.result() for title, future in futures.items()}

    def one(self, kind, sides, title):
        library, found = self.libraries[title], {}
        clients = {}

        def nodes(key):
            these = [backend.node_of(library.shows(key)) for backend, _ in sides]
            return [clients.setdefault(node, node.client()) if node not in clients else clients[node] for node in these]

        def run(addresses):
            if library.second_place:
                addresses = 2 * addresses
            return Run(library, title, kind, addresses, nodes, self.seed)

        direct = through = None
        try:
            direct = run([node.address for node in (backend.node_of(library.key(1)) for backend, _ in sides)])
            found["direct"] = direct.steps()
            if kind == "standalone" and library.ends and not library.endless:
                found["direct_late"] = direct.late()
            through = run([proxy.address for _, proxy in sides])
            found["figures"] = through.contend(self.goal[kind])
            for _ in range(4 if library.connections == "pool" and not library.careful else 1):
                found["steps"] = through.steps()
            if library.ends and (not library.handed_over or library.careful):
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

    def wanted(self, request):
        """(library, its Result, kind) of a test's (kind, title). All that tests want of a backend run with the first one."""
        kind, title = request.param
        if kind not in self.results:
            specs = [getattr(item, "callspec", None) for item in request.session.items if item.module is request.module]
            cases = {spec.params[request.fixturename] for spec in specs if spec and request.fixturename in spec.params}
            self.start(kind, sorted(t for k, t in cases if k == kind))
        print("LOCKKEEPER_SEED=%d" % self.seed)
        return self.libraries[title], self.results[kind][title], kind

    def table(self):
        """The figures of contention, a line each."""
        line = "%-34s %-12s %-10s %8s %7s %8s %8s %7s"
        lines = [line % ("", "connections", "backend", "acquired", "lost", "refused", "double", "a s")]
        for kind, results in self.results.items():
            for title, found in results.items():
                f = found.figures
                if f:
                    lines.append(line % (title, self.libraries[title].connections, kind, f.acquired, f.lost, f.refused, f.double,
                                         round(f.acquired / f.seconds)))
        return "\n".join(lines)


def part(result, name):
    value = getattr(result, name)
    assert value is not None, result.problem
    return value
