"""Real clients that poll for a lock every 80 to 120 ms, on Redis and through a proxy under `wait 1s`.

    waits.py [--lockkeeper PROGRAM] [--client NAME] ...

run.py describes the programs and their arguments. Through the proxy no two workers may be inside, no release may be refused,
and no time limit may pass. Workers with a connection each must get in sooner: more acquisitions in the same seconds, without
long waits. Otherwise the exit status is 1.

The pause varies. With 100 ms each time, workers of one program keep step, so that in some runs all ask at the same moment,
one of them gets the lock, and no worker asks until all ask again: 40 to 170 acquisitions in 4 s, on Redis alone, too.
"""

import argparse
import concurrent.futures
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:
    sys.path.insert(0, HERE)

import judge  # noqa: E402
import run as contend  # noqa: E402
import servers  # noqa: E402

RULE = "lock lock:* wait 1s"
WORKERS, WORK_MS, LEASE_MS, SECONDS, AT_ONCE = 12, 5, 5000, 4, 2
POLL_MS = (80, 120)
AGAIN = 2  # so often at most a client that has failed is run once more: a neighbour may have been in its way
GAIN = 1.1  # times the acquisitions on Redis, where connections are not shared: 1.5 and more without other load
LIKE_REDIS = 0.8  # no worker waits there
LONGEST_MS = 1000  # from a release to one's next acquisition, work of others and the pause between included


class Polled:
    """What one client's workers reached on Redis and through the proxy."""

    def __init__(self, contender, cluster):
        self.contender = contender
        self.cluster = cluster
        self.counts, self.longest_ms, self.even, self.failures = {}, {}, {}, []

    def name(self):
        return self.contender.name + (", cluster" if self.cluster else "")


def words(target, port):
    return ["host=" + servers.HOST, "port=%d" % port, "key=lock:polled-" + target, "workers=%d" % WORKERS, "seconds=%d" % SECONDS,
            "lease=%d" % LEASE_MS, "work_min=%d" % WORK_MS, "work_max=%d" % WORK_MS, "poll_min=%d" % POLL_MS[0],
            "poll_max=%d" % POLL_MS[1], "value=lease", "compare=1", "forget=0", "overrun=0", "losers=0", "seed=1"]


def longest(sections):
    """The longest time, in ms, between a worker's release and its next acquisition."""
    last, most = {}, 0
    for worker, _, entered, _, answered, _ in sorted(sections, key=lambda s: s[2]):
        most = max(most, entered - last.get(worker, entered))
        last[worker] = answered
    return most / 1000


def turns(sections):
    """The fewest and the most acquisitions of a worker."""
    each = [0] * WORKERS
    for section in sections:
        each[section[0]] += 1
    return min(each), max(each)


def look(p, target, said):
    p.counts[target] = judge.count(said["sections"], LEASE_MS, said["freed"])
    p.longest_ms[target] = longest(said["sections"])
    p.even[target] = turns(said["sections"])


def judged(p):
    direct, proxy = p.counts[contend.DIRECT], p.counts[contend.PROXY]
    shared = p.contender.model == judge.MULTIPLEXED
    least = direct.acquired * (LIKE_REDIS if shared else GAIN)
    wrong = []
    if proxy.released or proxy.lapsed or proxy.taken:
        wrong.append("%d double entries, %d locks taken" % (proxy.released + proxy.lapsed, proxy.taken))
    if proxy.refused > (judge.AMBIGUOUS if p.contender.model == judge.POOL else 0):
        wrong.append("%d holders' releases refused" % proxy.refused)
    if proxy.acquired < least:
        wrong.append("acquired %d, at least %d expected" % (proxy.acquired, least))
    if not shared and p.longest_ms[contend.PROXY] > LONGEST_MS:
        wrong.append("%d ms between two turns of a worker" % p.longest_ms[contend.PROXY])
    return wrong


def once(p, command, shop):
    backend = servers.RedisCluster() if p.cluster else servers.RedisServer()
    proxy = servers.Proxy(backend, RULE)
    bench = contend.Bench({p.contender.name: command}, shop)
    try:
        ports = {contend.DIRECT: backend.node_of("lock:polled-" + contend.DIRECT).port, contend.PROXY: proxy.port}
        with concurrent.futures.ThreadPoolExecutor(len(ports)) as threads:
            said = {t: threads.submit(bench.program, p.contender, t, words(t, port), SECONDS) for t, port in ports.items()}
            for target in ports:
                look(p, target, said[target].result())
        p.failures = judged(p)
    except contend.Disturbed as error:
        p.failures = [str(error)]
    finally:
        proxy.stop()
        proxy.remove()
        backend.stop()


def run(contenders, commands, shop):
    """All of them on one Redis, the first that has connections of its own on a cluster, too."""
    wanted = [Polled(c, False) for c in contenders if c.name in commands]
    wanted += [Polled(p.contender, True) for p in wanted if p.contender.model == judge.OWN][:1]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda p: once(p, commands[p.contender.name], shop), wanted))
    for p in wanted:
        for _ in range(AGAIN):
            if p.failures:
                once(p, commands[p.contender.name], shop)
    return wanted


def table(polled):
    rows = [["client", "acquired: Redis", "proxy", "longest between turns: Redis", "proxy", "turns a worker: Redis", "proxy", ""]]
    for p in polled:
        row = ["-"] * 6
        if contend.PROXY in p.counts:
            both = (contend.DIRECT, contend.PROXY)
            row = ([p.counts[t].acquired for t in both] + ["%d ms" % p.longest_ms[t] for t in both] +
                   ["%d to %d" % p.even[t] for t in both])
        rows.append([p.name(), *row, "FAILED: " + "; ".join(p.failures) if p.failures else "ok"])
    return contend.table(rows)


def main(argv):
    parser = argparse.ArgumentParser(description="Clients that poll for a lock, on Redis and under wait.")
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="the proxy; LOCKKEEPER in the environment says so, too")
    parser.add_argument("--client", action="append", choices=[c.name for c in contend.CONTENDERS])
    options = parser.parse_args(argv)
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = os.path.abspath(options.lockkeeper)
    servers.binary()
    started = time.monotonic()
    shop = contend.Workshop()
    wanted = [c for c in contend.CONTENDERS if not options.client or c.name in options.client]
    commands, absent = contend.prepare(wanted, shop)
    polled = run(wanted, commands, shop)
    print(table(polled))
    for name, why in absent.items():
        print("not run: %s: %s" % (name, why))
    failed = [p for p in polled if p.failures]
    print("%d clients, %d FAILED; %d not run; %.0f s" % (len(polled), len(failed), len(absent), time.monotonic() - started))
    return 1 if failed or not polled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
