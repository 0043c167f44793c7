"""Ordinary applications on the default rule: workers of real clients contend for one lock. The table compares their results on
Redis itself and through the proxy.

    run.py [--lockkeeper PROGRAM] [--quick] [--markdown] [--client NAME] [--value NAME] [--fault NAME] ...

A cell is one client, one idiom and one fault. It runs against three targets at the same time: Redis itself, a proxy with
`lock lock:* mode off`, and a proxy without any configuration but its port and upstream. The workers' connections have no names
and come from one address. If a cell fails and noise may be the cause, it runs once more, for longer. The exit status is 1 if a
cell fails.

A client's program in this folder gets arguments NAME=VALUE:

    host, port, key
    workers              how many
    seconds              for how long they work
    lease                ms
    work_min, work_max   ms: the work in a critical section
    poll_min, poll_max   ms: the pause after a section, and after a refused attempt
    value                what a worker writes: constant, lease or worker
    compare              1: a worker releases by GET, and DEL if the value is its own
    forget               the share of sections without a release
    overrun              the share of sections whose work outlives the lease
    losers               1: a worker that lost an attempt sends a release, too
    seed
    ready                see program.py

It prints one line of JSON: version, attempts, freed (the releases of losers that were answered 1) and sections, as judge.py
has them.
"""

import argparse
import concurrent.futures
import copy
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = os.path.dirname(HERE)
for folder in (HERE, CLIENTS, os.path.join(os.path.dirname(CLIENTS), "integration")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import judge  # noqa: E402
import program  # noqa: E402
import servers  # noqa: E402
from clients import PHP_REDIS, Missing, Workshop, node, python, script  # noqa: E402
from judge import FORGOTTEN_DELS, LOSERS, MULTIPLEXED, NONE, OVERRUNS, OWN, POOL  # noqa: E402
from program import Disturbed  # noqa: E402

DIRECT, OFF, PROXY = "direct", "off", "proxy"
WORKERS = 4


class Contender:
    """A client library, and how its workers share connections.

    quick: it needs neither npm nor another language. A name with "silent": the library does not say which one it is."""

    def __init__(self, name, model, prepare, quick=False):
        self.name = name
        self.model = model
        self.prepare = prepare
        self.quick = quick


CONTENDERS = [
    Contender("redis-py, pool", POOL, python("contend/redis_py.py", "pool"), quick=True),
    Contender("redis-py, connections", OWN, python("contend/redis_py.py", "connections"), quick=True),
    Contender("hiredis, connections", OWN, lambda shop: [shop.cc("contend/hiredis.c")], quick=True),
    Contender("ioredis 5", MULTIPLEXED, node("contend/node.js", "ioredis"), quick=True),
    Contender("ioredis 5, silent", MULTIPLEXED, node("contend/node.js", "ioredis", "silent=1")),
    Contender("node-redis 5", MULTIPLEXED, node("contend/node.js", "redis5")),
    Contender("node-redis 5, silent", MULTIPLEXED, node("contend/node.js", "redis5", "silent=1")),
    Contender("phpredis, processes", OWN, script("php", "contend/phpredis.php", probe=PHP_REDIS)),
    Contender("go-redis 5, pool", POOL, lambda shop: [shop.go("contend/goredis", "gopkg.in/redis.v5")]),
]

# (name, which value is written, whether a release compares)
IDIOMS = [
    ("constant", "constant", False),
    ("lease", "lease", False),
    ("lease, compared", "lease", True),
    ("worker", "worker", False),
    ("worker, compared", "worker", True),
]
QUICK_IDIOMS = ("constant", "lease, compared")


class Pace:
    """Times, in milliseconds except `seconds`.

    FAST has short sections under long leases. A second run is much longer, so that one lease after a refused release is a small
    part of it. SLOW is for faults with late or missing releases. Its sections are a large part of a lease, and its leases are
    half the proxy's least `claim-memory`. Its workers mostly sleep."""

    def __init__(self, at_once, seconds, longer, lease, work, poll):
        self.at_once = at_once  # cells
        self.seconds = seconds
        self.longer = longer  # a second run takes so many times `seconds`
        self.lease = lease
        self.work = work
        self.poll = poll


FAST = Pace(3, 2.5, 8, 1000, (2, 20), (2, 10))
SLOW = Pace(16, 20, 2, 500, (30, 170), (15, 60))
PACES = {NONE: FAST, LOSERS: FAST, FORGOTTEN_DELS: SLOW, OVERRUNS: SLOW}
FAULTS = {
    NONE: {},
    FORGOTTEN_DELS: {"forget": 0.01},
    OVERRUNS: {"overrun": 0.02},
    LOSERS: {"losers": 1},
}


class Cell:
    def __init__(self, contender, idiom, fault, cluster=False):
        self.contender = contender
        self.idiom, self.value, self.compare = idiom
        self.fault = fault
        self.cluster = cluster
        self.counts = {}  # by target
        self.failures = []
        self.again = False  # it was run more than once
        self.disturbed = False  # the failure may have another cause than the proxy
        self.version = ""

    def name(self):
        return "%s%s" % (self.contender.name, ", cluster" if self.cluster else "")


class Bench:
    """Runs cells. Has the commands of the prepared programs, and the times that the command line sets."""

    def __init__(self, commands, shop, paces=PACES, seed=1):
        self.commands = commands  # by contender's name
        self.shop = shop
        self.paces = paces
        self.seed = seed

    def words(self, cell, target, port, pace, factor):
        faults = {} if target == OFF and cell.fault == LOSERS else FAULTS[cell.fault]
        words = dict(host=servers.HOST, port=port, key="lock:contend-" + target, workers=WORKERS,
                     seconds=pace.seconds * factor, lease=pace.lease, work_min=pace.work[0], work_max=pace.work[1],
                     poll_min=pace.poll[0], poll_max=pace.poll[1], value=cell.value, compare=int(cell.compare), forget=0,
                     overrun=0, losers=0, seed=self.seed + factor)
        return ["%s=%s" % item for item in {**words, **faults}.items()]

    def program(self, contender, target, words, seconds, gate=None):
        """Runs a contender's program, which takes `seconds`, and returns what it prints. With a gate, its workers begin when the
        gate opens."""
        env = dict(os.environ, NODE_PATH=self.shop.path(os.path.join("npm", "node_modules")))
        try:
            return program.run([*self.commands[contender.name], *words], seconds, gate, cwd=self.shop.folder, env=env)
        except Disturbed as error:
            raise Disturbed("%s: %s" % (target, error)) from None

    def group(self, cell, target, port, pace, factor):
        """Runs one program with its workers against one target."""
        said = self.program(cell.contender, target, self.words(cell, target, port, pace, factor), pace.seconds * factor)
        cell.version = said["version"]
        return judge.count(said["sections"], pace.lease, said["freed"])

    def once(self, cell, factor):
        pace = self.paces[cell.fault]
        backend, proxies = None, []
        try:
            backend = servers.RedisCluster() if cell.cluster else servers.RedisServer()
            proxies.append(servers.Proxy(backend, "lock lock:* mode off"))
            proxies.append(servers.Proxy(backend))
            ports = {DIRECT: backend.node_of("lock:contend-" + DIRECT).port, OFF: proxies[0].port, PROXY: proxies[1].port}
            with concurrent.futures.ThreadPoolExecutor(len(ports)) as threads:
                groups = {target: threads.submit(self.group, cell, target, port, pace, factor)
                          for target, port in ports.items()}
                cell.counts = {target: group.result() for target, group in groups.items()}
            for proxy in proxies:
                proxy.stop()
        except Disturbed:
            for proxy in proxies:
                proxy.check()  # if the proxy crashed, this raises the error
            raise
        finally:
            for proxy in proxies:
                proxy.kill()
                if proxy in servers.Proxy.started:
                    servers.Proxy.started.remove(proxy)
                proxy.remove()
            if backend:
                backend.stop()

    def attempt(self, cell, factor):
        """Runs the cell for `factor` times its time, and notes its failures. Returns whether it failed and a longer run may not."""
        cell.again = factor > 1
        cell.counts = {}
        try:
            self.once(cell, factor)
        except Disturbed as error:
            cell.failures = [str(error)]
            return True
        except AssertionError as error:  # a server that did not start, or a proxy that did not end well
            cell.failures = [str(error)]
            return False
        cell.failures, more = judge.failures(cell.contender.model, cell.compare, cell.fault,
                                             *(cell.counts[t] for t in (DIRECT, OFF, PROXY)))
        return bool(cell.failures) and more

    def cell(self, cell):
        longer = self.paces[cell.fault].longer
        cell.disturbed = self.attempt(cell, 1) and self.attempt(cell, longer)

    def run(self, cells):
        """Runs all cells: first the cells that keep processors busy, a few at once, then the cells that sleep. At last the cells
        that other cells may have disturbed run one by one."""
        for pace in (FAST, SLOW):
            with concurrent.futures.ThreadPoolExecutor(pace.at_once) as threads:
                list(threads.map(self.cell, [c for c in cells if PACES[c.fault] is pace]))
        for cell in cells:
            if cell.disturbed:
                self.attempt(cell, self.paces[cell.fault].longer)


def prepare(contenders, shop):
    """The commands of the clients that can run here, and the reasons why the other clients can't, by name."""
    commands, absent = {}, {}
    for contender in contenders:
        try:
            commands[contender.name] = contender.prepare(shop)
        except Missing as missing:
            absent[contender.name] = str(missing)
    return commands, absent


# ---- tables -----------------------------------------------------------------------------------

HEAD = ["Redis", "off", "proxy", "share", "0: Redis", "proxy", "released: Redis", "proxy", "lapsed: Redis", "proxy"]
NOTES = """acquisitions on Redis itself, through a proxy with `mode off`, through the proxy, and the proxy's share of what it is
held against: of `mode off` without faults; with forgotten DELs and overruns, of those on Redis that were no double entry
through a release. Where losers DEL, nothing is exclusive on Redis, so `off` is without these DELs, and the share is of
that. 0: holders' DELs answered 0, or their lock found gone, while their lease was live. Double entries: released,
somebody's release took away the live lease of a worker who was inside; lapsed, its lease had come to its own end."""


def figures(cells):
    """The columns of one row: the sums over the cells."""
    total = {t: judge.Counts() for t in (DIRECT, OFF, PROXY)}
    for cell in cells:
        for target in total:
            total[target] = total[target].plus(cell.counts[target])
    d, o, p = total[DIRECT], total[OFF], total[PROXY]
    return [d.acquired, o.acquired, p.acquired, "%.2f" % judge.share(cells[0].fault, d, o, p), d.refused + d.taken,
            p.refused + p.taken, d.released, p.released, d.lapsed, p.lapsed]


def table(rows):
    rows = [[str(text) for text in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(" ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows)


def text_table(cells):
    rows = [["client", "value", "fault", *HEAD, ""]]
    for cell in cells:
        why = ("again; " if cell.again else "") + ("FAILED: " + "; ".join(cell.failures) if cell.failures else "ok")
        row = figures([cell]) if cell.counts else ["-"] * len(HEAD)
        rows.append([cell.name(), cell.idiom, cell.fault, *row, why])
    return table(rows)


def markdown(cells):
    """A row for each client and fault: the sums over the idioms."""
    rows = {}
    for cell in cells:
        if cell.counts:
            rows.setdefault((cell.name(), cell.fault), []).append(cell)
    lines = ["| client | fault | acquisitions: Redis | `mode off` | proxy | share | DELs answered 0: Redis | proxy "
             "| double entries through releases: Redis | proxy | at a lease's end: Redis | proxy |", "| --- " * 2 + "| ---: " * 10 + "|"]
    for (name, fault), some in rows.items():
        lines.append("| %s |" % " | ".join(str(text) for text in [name, fault, *figures(some)]))
    return "\n".join(lines)


def cells_of(contenders, commands, idioms=IDIOMS, faults=tuple(FAULTS), cluster=True):
    cells = [Cell(contender, idiom, fault) for contender in contenders if contender.name in commands
             for idiom in idioms for fault in faults]
    if cluster:
        cells += [Cell(contender, IDIOMS[0], fault, cluster=True) for contender in contenders[:2]
                  for fault in (NONE, LOSERS) if contender.name in commands and fault in faults][::3]
    return cells


def pair(text):
    low, high = text.split("-")
    return int(low), int(high)


def arguments(words):
    parser = argparse.ArgumentParser(description="Workers of real clients contend for a lock: what they reach.")
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="the proxy; LOCKKEEPER in the environment says so, too")
    parser.add_argument("--quick", action="store_true", help="four clients, two idioms")
    parser.add_argument("--markdown", action="store_true", help="for the documentation")
    parser.add_argument("--client", action="append", choices=[c.name for c in CONTENDERS])
    parser.add_argument("--value", action="append", choices=[name for name, _, _ in IDIOMS])
    parser.add_argument("--fault", action="append", choices=list(FAULTS))
    parser.add_argument("--no-cluster", action="store_true")
    parser.add_argument("--seconds", type=float, help="of a run; so for all faults, as are these (ms):")
    parser.add_argument("--lease", type=int)
    parser.add_argument("--work", type=pair, metavar="FROM-TO")
    parser.add_argument("--poll", type=pair, metavar="FROM-TO")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(words)


def main(words):
    options = arguments(words)
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = os.path.abspath(options.lockkeeper)
    servers.binary()
    started = time.monotonic()
    shop = Workshop()
    wanted = [c for c in CONTENDERS if c.name in options.client] if options.client else CONTENDERS
    wanted = [c for c in wanted if c.quick or not options.quick]
    names = options.value or (QUICK_IDIOMS if options.quick else [name for name, _, _ in IDIOMS])
    commands, absent = prepare(wanted, shop)
    paces = {fault: copy.copy(pace) for fault, pace in PACES.items()}
    for name in ("seconds", "lease", "work", "poll"):
        for pace in paces.values() if getattr(options, name) else ():
            setattr(pace, name, getattr(options, name))
    cells = cells_of(wanted, commands, [i for i in IDIOMS if i[0] in names], options.fault or tuple(FAULTS),
                     not options.no_cluster)
    Bench(commands, shop, paces, options.seed).run(cells)
    print(markdown(cells) if options.markdown else text_table(cells))
    print("\n" + NOTES)
    print("versions: " + ", ".join("%s (%s)" % pair for pair in {c.contender.name: c.version for c in cells}.items()))
    for name, why in absent.items():
        print("not run: %s: %s" % (name, why))
    failed = [cell for cell in cells if cell.failures]
    print("%d cells, %d FAILED; %d clients not run; %.0f s" % (len(cells), len(failed), len(absent),
                                                              time.monotonic() - started))
    return 1 if failed or not cells else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
