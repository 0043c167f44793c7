"""No harm: pools of real clients whose workers are never late lose nothing on the default rule, from the first command on.

    pools.py [--families N] [--seconds S] [--cluster] [--proxies 2] [--restart] [--only NAME] [--minutes M] ...
    pools.py --own [--families N] [--seconds S] [--cluster] [--proxies 2] [--only NAME] [--minutes M] ...

A family is a key whose pattern no proxy has seen, and a pool for it: 4 or 8 workers, 3 or 10 connections, a lease of a minute.
The workers contend for a lock under the default rule. At the same time as many other workers contend for a lock of the same
proxy under `mode off`. No connection has a name, and all connections come from one address.

Families run side by side, in batches. Each batch has fresh proxies. With --restart the proxies are stopped and started in the
middle of each batch. With --proxies 2 a pool's connections alternate between the proxies. The programs of a batch begin at the
same moment. Each batch prints a line of progress on standard error. A program has a time limit (program.py); the line of the
batch names a program that did not end.

--own: each worker has a connection of its own, losers release, and sections outlive their leases. Some families also write
behind a fence. The table then also has double entries and late writes. If the machine delayed a loser's release, so that it looked
like a pool's (came_late), the family is disturbed: the table counts it, and nothing else of it. If more than a third of the families
are disturbed, these are run again under other names, up to twice. If still more are, that is a failure.

The exit status is 1 if a bound of BOUNDS does not hold.
"""

import argparse
import collections
import concurrent.futures
import itertools
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import judge  # noqa: E402
import program  # noqa: E402
import run as contend  # noqa: E402
import servers  # noqa: E402
import standing  # noqa: E402
from clients import PHP_REDIS, node, python, script  # noqa: E402
from run import Contender  # noqa: E402

OFF, PROXY = contend.OFF, contend.PROXY
RULES = ["lock off:* mode off", "lock lock:*", "fence data:* by lock:*"]
LOST_FAMILIES = 0.01  # so many of all families may lose a release; of few families, one may
LONGEST_MS = 2000  # how long a lock may stand without a worker at work, beyond polling and a restart
SHARE = 0.9  # of the acquisitions under `mode off`
AT_ONCE = 6  # families, with two programs each
OWN_AT_ONCE = 12  # families with --own: their workers mostly sleep
NOT_BEGUN = "not begun in time"
DISTURBED = 1 / 3  # so many of the families may be, of workers with connections of their own
AGAIN = 2  # so often disturbed families are run once more
HELD, AT_ONCE_BEHIND = 250000, 5000  # microseconds: a loser's release is held back, and comes at once (C4 of docs/locks.md)
BOUNDS = """of 200 families at most 2 lose a holder's release (of fewer than 200, 1); none stands for more than two seconds;
acquisitions are at least 0.9 of those under `mode off`; workers with connections of their own: no double entry through a
release, and no late write behind a fence, in families that the machine did not disturb: at most a third are."""

POOLS = [
    Contender("redis-py, LIFO", judge.POOL, python("contend/redis_py.py", "pool"), quick=True),
    Contender("redis-py, FIFO", judge.POOL, python("contend/redis_py.py", "fifo"), quick=True),
    Contender("redis-py, random", judge.POOL, python("contend/redis_py.py", "random"), quick=True),
    Contender("redis-py, blocking LIFO", judge.POOL, python("contend/redis_py.py", "blocking-lifo"), quick=True),
    Contender("redis-py, blocking FIFO", judge.POOL, python("contend/redis_py.py", "blocking-fifo"), quick=True),
    Contender("hiredis, random", judge.POOL, lambda shop: [shop.cc("contend/hiredis.c")], quick=True),
    Contender("ioredis 5, generic-pool", judge.POOL, node("contend/node.js", "ioredis")),
    Contender("ioredis 5, generic-pool, silent", judge.POOL, node("contend/node.js", "ioredis", "silent=1")),
    Contender("node-redis 4, isolated", judge.POOL, node("contend/node.js", "redis4")),
    Contender("node-redis 5, pool", judge.POOL, node("contend/node.js", "redis5")),
    Contender("node-redis 5, pool, silent", judge.POOL, node("contend/node.js", "redis5", "silent=1")),
    Contender("go-redis 5", judge.POOL, lambda shop: [shop.go("contend/goredis", "gopkg.in/redis.v5")]),
    Contender("phpredis, pconnect", judge.POOL, script("php", "contend/phpredis.php", probe=PHP_REDIS)),
]
OWN = [
    Contender("redis-py, threads", judge.OWN, python("contend/redis_py.py", "connections"), quick=True),
    Contender("redis-py, processes", judge.OWN, python("contend/redis_py.py", "processes"), quick=True),
    Contender("hiredis, threads", judge.OWN, lambda shop: [shop.cc("contend/hiredis.c")], quick=True),
]

QUICK, SLOW = (4, 20), (50, 300)  # ms between two attempts
WORK = (2, 20)  # ms
LEASE = 60000  # ms
IDIOMS = [("constant", False), ("lease", True), ("lease", False)]  # what is written, and whether a release compares


def letters(rng):
    """A name with a pattern of its own: no digits, and nothing that reads as hex."""
    return "".join(rng.choice("ghijklmnopqrstuvwxyz") for _ in range(10))


def came_late(freed):
    """Whether the first loser's release that freed a lock came later than at once behind its loss, by the clock of its worker, and
    was held back in vain. The proxy cannot tell such a release from a pool's. What else is freed is the proxy's fault. `freed`: of
    each such release, when the lost attempt was sent and when the release was answered."""
    sent, answered = min(freed, key=lambda times: times[1], default=(0, 0))
    return answered - sent > HELD + AT_ONCE_BEHIND


class Family:
    """The workers of one pool, or workers with a connection each, and what they did. `words`: their program's arguments."""

    def __init__(self, contender, name, poll, lease, words, fence=False):
        self.contender = contender
        self.name = name
        self.poll = poll
        self.lease = lease
        self.words = words
        self.fence = fence
        self.error = ""
        self.disturbed = False
        self.acquired, self.counts, self.lost, self.late_writes = {}, {}, {}, {}
        self.longest_ms = {}
        self.version = ""

    def key(self, target, prefix=None):
        return "%s:{%s}" % (prefix or {OFF: "off", PROXY: "lock"}[target], self.name)

    def anew(self):
        """Prepares another run, under a name that no proxy has seen."""
        self.name = self.name.split("-")[0] + "-" + letters(random.Random(self.name))
        self.disturbed = False

    def text(self):
        return "%s: %s" % (self.contender.name, " ".join("%s=%s" % item for item in self.words.items()))


def pool_families(contenders, number, rng):
    """`number` families for each contender. No mixture of workers, connections, pace and idiom comes again before each has come
    once."""
    found = []
    mixtures = list(itertools.product((4, 8), (3, 10), (QUICK, SLOW), IDIOMS))
    for contender in contenders:
        rng.shuffle(mixtures)
        for workers, connections, poll, (value, compare) in itertools.islice(itertools.cycle(mixtures), number):
            words = dict(workers=workers, connections=connections, work_min=WORK[0], work_max=WORK[1], value=value,
                         compare=int(compare), losers=0, overrun=0)
            found.append(Family(contender, "pool-" + letters(rng), poll, LEASE, words))
    rng.shuffle(found)
    return found


def own_families(contenders, number, rng):
    """Families whose workers have a connection each, whose losers release, and whose sections outlive their lease."""
    found = []
    mixtures = list(itertools.product((2, 3, 4, 5), (0.05, 0.15, 0.5), (QUICK, SLOW), (1, 3), (False, True)))
    for contender in contenders:
        rng.shuffle(mixtures)
        for workers, overrun, poll, tries, fence in itertools.islice(itertools.cycle(mixtures), number):
            lease = rng.choice((150, 200, 300))
            words = dict(workers=workers, work_min=WORK[0], work_max=lease // 3, value=rng.choice(("constant", "lease")),
                         compare=0, losers=1, tries=tries, overrun=overrun)
            found.append(Family(contender, "own-" + letters(rng), poll, lease, words, fence))
    rng.shuffle(found)
    return found


class Batch:
    """Families that run side by side before fresh proxies of one backend."""

    def __init__(self, bench, backend, families, seconds, proxies, restart):
        self.bench = bench  # contend.Bench, which runs a contender's program
        self.backend = backend
        self.families = families
        self.seconds = seconds
        self.restart = restart
        self.outages = []
        self.incidents = collections.Counter()
        self.gate = program.Gate(2 * len(families))  # all workers begin at the same moment
        self.proxies = [servers.Proxy(backend, *RULES) for _ in range(proxies)]

    def words(self, family, target):
        words = dict(host=servers.HOST, port=",".join(str(p.port) for p in self.proxies), key=family.key(target),
                     seconds=self.seconds, lease=family.lease, poll_min=family.poll[0], poll_max=family.poll[1], forget=0,
                     seed=self.bench.seed, retry=int(self.restart), **family.words)
        if family.fence:
            words["data"] = family.key(target, "data" if target == PROXY else "free")
        return ["%s=%s" % item for item in words.items()]

    def one(self, family, target):
        said = self.bench.program(family.contender, target, self.words(family, target), self.seconds, self.gate)
        sections, began = said["sections"], said["began"]
        family.version = said["version"]
        if target == PROXY and family.contender.model == judge.OWN:
            family.disturbed = came_late(said["losers_freed"])
        family.counts[target] = judge.count(sections, family.lease, said["freed"])
        family.lost[target] = [round((t - began) / 1000) for t in standing.lost(sections, family.lease)]
        family.late_writes[target] = standing.late_writes(sections, said.get("writes", ()), family.lease)
        family.longest_ms[target] = standing.longest(sections, began, began + self.seconds * judge.SECOND,
                                                     family.poll[1] * 1000, self.outages) / 1000

    def start_again(self):
        """Half way through, each proxy is stopped and started."""
        self.gate.wait()
        time.sleep(self.seconds / 2)
        for proxy in self.proxies:
            self.note_incidents(proxy)
            down = time.monotonic_ns() // 1000
            ready = proxy.log().count("Ready to accept connections")
            proxy.stop()
            proxy.launch()
            servers.until(lambda: proxy.log().count("Ready to accept connections") > ready, 20, "the proxy's restart")
            self.outages.append((down, time.monotonic_ns() // 1000))

    def note_incidents(self, proxy):
        """Adds the proxy's incidents, by kind, except `shared`, which only says that the proxy has learnt of a pool."""
        proxy.check()  # if the proxy crashed, this raises the error
        with proxy.client() as c:
            for row in c("PROXY", "INCIDENTS", 1000):
                row = row if isinstance(row, dict) else dict(zip(row[0::2], row[1::2]))
                if row["kind"] != "shared":
                    self.incidents[row["kind"]] += int(row["count"])

    def run(self):
        try:
            with concurrent.futures.ThreadPoolExecutor(2 * len(self.families) + 1) as threads:
                again = threads.submit(self.start_again) if self.restart else None
                jobs = {(f.name, target): (f, threads.submit(self.one, f, target)) for f in self.families
                        for target in (OFF, PROXY)}
                for family, job in jobs.values():
                    try:
                        job.result()
                    except contend.Disturbed as error:
                        family.error += ("; " if family.error else "") + str(error)
                if again:
                    again.result()
            for proxy in self.proxies:
                self.note_incidents(proxy)
                proxy.stop()
        finally:
            for proxy in self.proxies:
                proxy.kill()
                if proxy in servers.Proxy.started:
                    servers.Proxy.started.remove(proxy)
                proxy.remove()


def shortly(families):
    """A line for a batch, and a line for each family whose programs did not end."""
    row = Row(families)
    text = "share %.2f, %d lost releases, longest %d ms" % (row.share(), row.lost, row.longest_ms)
    return "\n".join([text] + ["DISTURBED: %s: %s" % (f.text(), f.error) for f in families if f.error])


def too_disturbed(families):
    """The families that are disturbed, if they are too many; else none."""
    disturbed = [f for f in families if f.disturbed]
    return disturbed if len(disturbed) > DISTURBED * len(families) else []


def run(bench, families, kind="standalone", seconds=3.0, proxies=1, restart=False, at_once=AT_ONCE,
        minutes=None, tell=lambda text: None):
    """Runs the families on one Redis or a cluster, in batches, and disturbed families again if they are too many. After `minutes` no
    further batch begins; the first always does. The families of the other batches get the error NOT_BEGUN. Tells a line for each
    batch. Returns the proxies' incidents, by kind."""
    incidents = collections.Counter()
    began = time.monotonic()
    backend = servers.RedisServer() if kind == "standalone" else servers.RedisCluster()
    try:
        for times in range(1 + AGAIN):
            wanted = too_disturbed(families) if times else families
            for family in wanted if times else ():
                family.anew()
            for start in range(0, len(wanted), at_once):
                some = wanted[start : start + at_once]
                since = time.monotonic()
                if minutes and (start or times) and since - began > 60 * minutes:
                    for family in wanted[start:]:
                        family.error = NOT_BEGUN
                    break
                batch = Batch(bench, backend, some, seconds, proxies, restart)
                batch.run()
                incidents += batch.incidents
                tell("%d of %d families; this batch took %.1f s; load %.1f; %s" % (
                    start + len(some), len(wanted), time.monotonic() - since, os.getloadavg()[0], shortly(some)))
    finally:
        backend.stop()
    return incidents


# ---- judged, and shown ----------------------------------------------------------------------------


class Row:
    """The sums over families of one client."""

    def __init__(self, families):
        self.families = families
        self.done = done = [f for f in families if not f.error and not f.disturbed]
        self.disturbed = len([f for f in families if f.disturbed])
        self.acquired = {t: sum(f.counts[t].acquired for f in done) for t in (OFF, PROXY)}
        self.losers = [f for f in done if f.lost[PROXY]]
        self.lost = sum(len(f.lost[PROXY]) for f in done)
        self.lost_off = sum(len(f.lost[OFF]) for f in done)
        self.doubles = {t: sum(f.counts[t].released for f in done) for t in (OFF, PROXY)}
        self.longest_ms = max((f.longest_ms[PROXY] for f in done), default=0)
        self.stood = [f for f in done if f.longest_ms[PROXY] > LONGEST_MS and f.longest_ms[OFF] <= LONGEST_MS]
        self.late_writes = {t: sum(f.late_writes[t] for f in done if f.fence) for t in (OFF, PROXY)}

    def share(self):
        return self.acquired[PROXY] / max(1, self.acquired[OFF])


def disturbances(whole):
    """What kept families from their end: a text for each family, and one text for all families that were not begun."""
    wrong = ["%s: %s" % (f.text(), f.error) for f in whole.families if f.error and f.error != NOT_BEGUN]
    late = len([f for f in whole.families if f.error == NOT_BEGUN])
    disturbed = len(too_disturbed(whole.families))
    return (wrong + (["%d families were not begun in time" % late] if late else []) +
            (["%d of %d families were disturbed: the machine did not let them run" % (disturbed, len(whole.families))]
             if disturbed else []))


def failures(rows, whole):
    """The bounds that do not hold for pools. `rows`: by client's name; `whole`: the row of all families."""
    wrong = disturbances(whole)
    allowed = max(1, int(len(whole.families) * LOST_FAMILIES))
    if len(whole.losers) > allowed:
        wrong.append("%d of %d families lost a holder's release, at most %d may" % (len(whole.losers), len(whole.families), allowed))
    if whole.stood:
        wrong.append("%d locks stood with nobody at work, up to %d ms" % (len(whole.stood), whole.longest_ms))
    for name, row in rows.items():
        if row.done and row.share() < SHARE:
            wrong.append("%s: %.2f of the acquisitions under `mode off`" % (name, row.share()))
        if row.doubles[PROXY]:
            wrong.append("%s: %d double entries" % (name, row.doubles[PROXY]))
    return wrong


def own_failures(rows, whole):
    """The bounds that do not hold for workers with a connection each. Arguments as above."""
    wrong = disturbances(whole)
    for name, row in rows.items():
        if row.doubles[PROXY]:
            wrong.append("%s: %d double entries through a release" % (name, row.doubles[PROXY]))
        if row.late_writes[PROXY]:
            wrong.append("%s: %d late writes passed the fence" % (name, row.late_writes[PROXY]))
    if not whole.doubles[OFF] and not whole.families[0].error:
        wrong.append("losers' releases did no harm under `mode off`: this shows nothing")
    return wrong


def by_client(families):
    names = sorted({f.contender.name for f in families})
    return {name: Row([f for f in families if f.contender.name == name]) for name in names}


HEAD = ["client", "families", "acquisitions: `off`", "proxy", "share", "families with a lost release", "lost releases: `off`",
        "proxy", "stood over 2 s", "longest, ms", "double entries: `off`", "proxy", "late writes: no fence", "fence", "disturbed"]


def cells_of(name, row):
    return [name, len(row.families), row.acquired[OFF], row.acquired[PROXY], "%.2f" % row.share(), len(row.losers), row.lost_off,
            row.lost, len(row.stood), round(row.longest_ms), row.doubles[OFF], row.doubles[PROXY], row.late_writes[OFF],
            row.late_writes[PROXY], row.disturbed]


def table(families, own=False, markdown=False):
    rows = {**by_client(families), "all": Row(families)}
    columns = range(len(HEAD)) if own else range(len(HEAD) - 3)
    lines = [[HEAD[i] for i in columns]] + [[cells_of(name, row)[i] for i in columns] for name, row in rows.items()]
    if not markdown:
        return contend.table(lines)
    lines.insert(1, ["---"] + ["---:"] * (len(lines[0]) - 1))
    return "\n".join("| %s |" % " | ".join(str(text) for text in line) for line in lines)


def worst(families, number=20):
    """A line for each of the families that lost most."""
    bad = [f for f in Row(families).done if (f.lost[PROXY] or f.longest_ms[PROXY] > LONGEST_MS or
                                                   f.counts[PROXY].released or f.fence and f.late_writes[PROXY])]
    bad.sort(key=lambda f: -f.longest_ms[PROXY])
    return "\n".join("%s: acquired %d (off %d), lost at %s ms, stood %d ms, %d double, %d late writes" % (
        f.text(), f.counts[PROXY].acquired, f.counts[OFF].acquired, f.lost[PROXY][:6], f.longest_ms[PROXY],
        f.counts[PROXY].released, f.late_writes[PROXY]) for f in bad[:number])


def arguments(words):
    parser = argparse.ArgumentParser(description="Pools of real clients lose nothing on the default rule.")
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="the proxy; LOCKKEEPER in the environment says so, too")
    parser.add_argument("--quick", action="store_true", help="redis-py and hiredis")
    parser.add_argument("--own", action="store_true", help="workers with connections of their own, late, with losers that release")
    parser.add_argument("--families", type=int, default=24, help="of each client")
    parser.add_argument("--seconds", type=float, help="of a family")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--proxies", type=int, default=1)
    parser.add_argument("--restart", action="store_true", help="of the proxies, in the middle")
    parser.add_argument("--only", action="append", choices=[c.name for c in POOLS + OWN], metavar="NAME", help="of a client")
    parser.add_argument("--at-once", type=int, help="families")
    parser.add_argument("--minutes", type=float, default=60, help="after which no further batch begins")
    parser.add_argument("--markdown", action="store_true", help="for the documentation")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1000000)
    options = parser.parse_args(words)
    options.seconds = options.seconds or (8.0 if options.own else 3.0)
    options.at_once = options.at_once or (OWN_AT_ONCE if options.own else AT_ONCE)
    return options


def tell(text):
    """Prints a line of progress."""
    print("pools.py: " + text, file=sys.stderr, flush=True)


def main(words):
    options = arguments(words)
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = os.path.abspath(options.lockkeeper)
    servers.binary()
    started = time.monotonic()
    shop = contend.Workshop()
    wanted = [c for c in (OWN if options.own else POOLS) if c.quick or not options.quick]
    wanted = [c for c in wanted if not options.only or c.name in options.only]
    tell("preparing %d clients" % len(wanted))
    commands, absent = contend.prepare(wanted, shop)
    present = [c for c in wanted if c.name in commands]
    families = (own_families if options.own else pool_families)(present, options.families, random.Random(options.seed))
    incidents, broken = collections.Counter(), []
    try:
        incidents = run(contend.Bench(commands, shop, seed=options.seed), families, "cluster" if options.cluster else "standalone",
                        options.seconds, options.proxies, options.restart, options.at_once, options.minutes, tell)
    except (AssertionError, OSError) as error:  # a server that did not start, a proxy that crashed or does not answer
        broken = ["%s: %s" % (type(error).__name__, error)]
        tell(broken[0])
        for family in families:
            family.error = family.error or ("" if PROXY in family.longest_ms and OFF in family.longest_ms else NOT_BEGUN)
    print(table(families, options.own, options.markdown))
    if worst(families):
        print("\n" + worst(families))
    print("\nbounds: " + BOUNDS)
    print("versions: " + ", ".join("%s (%s)" % item for item in {f.contender.name: f.version for f in families}.items()))
    print("incidents: " + (", ".join("%d %s" % (count, kind) for kind, count in incidents.most_common()) or "none"))
    print("load at the end: %.1f of %d processors" % (os.getloadavg()[0], os.cpu_count()))
    for name, why in absent.items():
        print("not run: %s: %s" % (name, why))
    wrong = (own_failures if options.own else failures)(by_client(families), Row(families)) if families else ["nothing was run"]
    wrong = broken + wrong
    for text in wrong:
        print("FAILED: " + text)
    print("%d families, %d bounds FAILED; seed %d; %.0f s" % (len(families), len(wrong), options.seed, time.monotonic() - started))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
