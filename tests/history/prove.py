"""Histories of real clients under faults, judged by checker.py, as a table: prove.sh runs it.

    prove.py [--minutes N] [--lockkeeper PROGRAM] [--setting NAME] ... [--idiom NAME] ... [--seed N] [--keep FOLDER] [--markdown]

A setting is what the workers speak to. All idioms run beside each other in it, three workers each, under one schedule of faults. The
minutes are divided among the settings, two of which run at a time. The schedule, the histories and the seed are kept in FOLDER. The
exit status is 1 if the proxy's promises were broken.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (HERE, *(os.path.join(os.path.dirname(HERE), name) for name in ("clients", "clients/contend", "integration"))):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import checker  # noqa: E402
import program  # noqa: E402
import servers  # noqa: E402
import worker  # noqa: E402
from clients import Missing, Workshop, node  # noqa: E402
from crew import Crew, Relay  # noqa: E402
from migration import Migration  # noqa: E402
from servers import until  # noqa: E402

WORKERS = 3
KEPT = ("--appendonly", "yes", "--appendfsync", "always")
LEGACY = [name for name, idiom in worker.IDIOMS.items() if not idiom.safe]
SAFE = ["token", "watchdog"]
CONFIRMED = ["setnx", "setnx-expire", "constant", "unique", "compared", "deadline", "short", "looked", "token"]  # as witnesses do

# What happens how often, relative to each other. A stop is of a worker, for longer than its lease.
FAULTS = {"stop": 120, "kill": 12, "cut": 2, "half": 2, "redis slow": 2, "redis killed": 2}
PROXY = {**FAULTS, "proxy slow": 2, "proxy killed": 2, "take-over": 2, "reload": 2}


class Setting:
    """`lines`: of the configuration; None: no proxy. `also`: what each rule says besides. `make`: makes what serves. `counted`:
    columns that are no promise here."""

    def __init__(self, text, lines=(), also="", faults=PROXY, proxies=1, named=True, idioms=None, promises=True,
                 options=KEPT, witnesses=False, wait=0, make=servers.RedisServer, counted=()):
        self.text, self.lines, self.also, self.faults, self.proxies = text, lines, also, faults, proxies
        self.named, self.promises, self.options, self.witnesses, self.wait = named, promises, options, witnesses, wait
        self.make, self.counted = make, counted
        self.idioms = idioms or LEGACY + SAFE


class Clocked(servers.RedisServer):
    """A Redis whose time of day can be set (time_of_day.c)."""

    def start(self):
        library, self.file = (os.path.join(self.folder, name) for name in ("clock.so", "clock"))
        source = os.path.join(HERE, "time_of_day.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, source], check=True)
        self.before = ("env", "LD_PRELOAD=" + library, "CLOCK=" + self.file)
        self.set_clock(0)
        super().start()

    def set_clock(self, seconds):
        with open(self.file, "r+b" if os.path.exists(self.file) else "wb") as f:
            f.write(struct.pack("q", int(seconds * 1e6)))


class Promoting(servers.RedisCluster):
    """A cluster whose first master has a replica, which can be promoted without the master's consent: what the replica has not got
    yet is forgotten."""

    def __init__(self, *options):
        super().__init__(*options, replica=True)
        self.master = self.nodes[0]

    def failover(self, old):
        new, self.replica = self.replica, old
        until(lambda: "master_link_status:up" in new.run("INFO", "replication"), 60, "the replica's link", 0.05)
        new.run("CLUSTER", "FAILOVER", "TAKEOVER")
        until(old.is_replica, 60, "the place of the old master", 0.05)
        self.master, self.nodes[0] = new, new
        return new


FENCE = ["fence stock:* by lock:* unlocked refuse"]  # a proxy that was started since does not know a late session
SETTINGS = {
    "redis": Setting("Redis alone", None, faults=FAULTS, promises=False),
    "default": Setting("the default rule"),
    "fence": Setting("`fence`", FENCE),
    "quorum": Setting("`quorum`", also="quorum yes", witnesses=True, idioms=CONFIRMED),
    "cluster": Setting("the default rule, a cluster", faults={**PROXY, "slot": 4}, make=servers.RedisCluster),
    "cluster-fence": Setting("`fence`, a cluster", FENCE, faults={**PROXY, "slot": 4}, make=servers.RedisCluster),
    "two": Setting("the default rule, two proxies", proxies=2),
    "unnamed": Setting("the default rule, workers without names", named=False, promises=False),
    "failover": Setting("`quorum`, failovers", also="quorum yes", witnesses=True, idioms=CONFIRMED, make=servers.RedisSentinels,
                        faults={**PROXY, "failover": 4}, counted=["in a live lease"]),  # it may forget values, too
    "cluster-failover": Setting("`quorum`, failovers of a cluster", also="quorum yes", witnesses=True, idioms=CONFIRMED,
                                make=Promoting, faults={**PROXY, "failover": 4}, counted=["in a live lease"]),
    "clock": Setting("`quorum`, Redis's clock is set", also="quorum yes", witnesses=True, idioms=CONFIRMED, make=Clocked,
                     faults={**PROXY, "clock": 8}, counted=["foreign releases"]),  # docs/safety.md
    "wait": Setting("`wait 500ms`", also="wait 500ms", wait=500, idioms=["setnx", "constant", "unique", "token"]),
    "redlock": Setting("npm's redlock, five nodes", None, faults=FAULTS, idioms=["redlock"], promises=False),
}
SHORT = ["redis", "default", "fence", "quorum", "cluster", "redlock"]  # what prove.sh runs by itself


class Proxy(servers.Proxy):
    """A proxy that takes over from itself; `now` is the process that accepts connections."""

    def __init__(self, *args):
        super().__init__(*args)
        self.now = self.pid

    def signal(self, number):
        os.kill(self.now, number)

    def take_over(self, ends=r"Process (\d+) has taken over|No take-over"):
        """Whether it came to it: it does not while Redis does not answer. `ends`: what the log says at its end."""
        count = len(re.findall(ends, self.log()))
        self.signal(signal.SIGUSR2)
        pid = until(lambda: re.findall(ends, self.log())[count:], 60, "a take-over")[0]
        self.now = int(pid or self.now)
        return pid

    def die(self):
        """Killed and started again, on the same port."""
        os.kill(self.now, signal.SIGKILL)
        until(lambda: (program.stat(self.now) or "Z")[0] == "Z", 20, "the proxy's end")
        self.launch()
        self.now = self.pid
        until(self.answers, 60, "the proxy's return")

    def answers(self):
        try:
            with self.client(timeout=5) as c:
                return c("PING") == "PONG"
        except (OSError, servers.Closed):
            return False

    def invariants(self):
        """How many were broken: of the process that serves, and in the log of all."""
        with self.client() as c:
            return int(re.search(r"invariants_failed:(\d+)", c("PROXY", "INFO")).group(1)) + self.log().count("invariant")

    def end(self):
        for pid in {self.now, self.pid}:
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        until(lambda: all((program.stat(pid) or "Z")[0] == "Z" for pid in {self.now, self.pid}), 30, "the proxy's end")
        self.check_report()
        servers.Proxy.started.remove(self)


class Run:
    """One setting with its servers, its workers and its faults."""

    def __init__(self, name, idioms, seed, folder, shop):
        self.name, self.setting, self.seed, self.shop = name, SETTINGS[name], seed, shop
        self.dice = random.Random("%s %s" % (seed, name))
        self.crew = Crew(folder, "%s %s" % (seed, name))
        self.idioms = [i for i in self.setting.idioms if not idioms or i in idioms]
        self.nodes, self.proxies, self.relays, self.witnesses, self.later, self.counts = [], [], [], [], [], {}
        self.backend = self.move = None

    # ---- servers

    def serve(self):
        s = self.setting
        backends = [s.make(*s.options) for _ in range(5 if self.name == "redlock" else 1)]
        self.backend, self.nodes = backends[0], [node for backend in backends for node in backend.nodes]
        if s.lines is not None:
            if s.witnesses:
                self.witnesses = [servers.RedisServer() for _ in range(3)]
            self.proxies = [Proxy(self.backend, *self.lines()) for _ in range(s.proxies)]
            for proxy in self.proxies:
                with proxy.client() as c:
                    for w in self.witnesses:
                        assert c("PROXY", "WITNESS", "TRUST", "%s:%d" % w.address) == "OK"
        if "slot" in s.faults:
            self.move = Migration(self.backend, sorted({servers.slot_of("{%s-%d}" % (idiom, n)) for idiom in self.idioms
                                                        for n in range(worker.LOCKS)}))
        self.relays = [Relay(server.port, self.seed) for server in (self.proxies or self.nodes)]

    def lines(self):
        s = self.setting
        witness = ["witness " + " ".join("%s:%d" % w.address for w in self.witnesses)] if self.witnesses else []
        rules = ["lock lock:{%s-* %s %s" % (name, worker.IDIOMS[name].rule, s.also) for name in self.idioms if worker.IDIOMS[name].rule]
        return ["shutdown-timeout 2", "loglevel notice", *witness, *rules, "lock lock:* " + s.also, *s.lines]

    def ports(self, number):
        """Every third worker speaks through a relay."""
        among = self.relays if number % WORKERS == 0 else self.proxies or self.nodes
        return [s.port for s in among] if self.name == "redlock" else [among[number % len(among)].port]

    def hands(self):
        """Functions that give a worker its client."""
        def name(member):
            return member.name if self.setting.named else "-"

        c, js = self.shop.cc("hand.c"), None
        try:
            js = node("hand.js")(self.shop)
            os.environ["NODE_PATH"] = self.shop.path(os.path.join("npm", "node_modules"))
        except Missing as missing:
            print("%s: without ioredis: %s" % (self.name, missing), file=sys.stderr)
        ioredis = js and (lambda m, one=False: worker.Program([*js, name(m), *map(str, self.ports(m.number)[:1 if one else None])]))
        python = lambda m, one=False: worker.RedisPy(self.ports(m.number)[0], None if name(m) == "-" else name(m))  # noqa: E731
        hiredis = lambda m, one=False: worker.Program([c, name(m), str(self.ports(m.number)[0])])  # noqa: E731
        if self.name == "redlock":
            if not js:
                raise Missing("no npm")
            return [lambda m, one=False: python(m) if one else ioredis(m)]
        hands = [python, hiredis, *([ioredis] if js else [])]  # ioredis last: its MULTI is no single command
        if not self.setting.named:  # their libraries give a connection no name
            hands.append(lambda m, one=False: worker.RedisCli(self.ports(m.number)[0]))
            try:
                go = self.shop.go("gohand", "gopkg.in/redis.v5")
                hands.append(lambda m, one=False: worker.Program([go, str(self.ports(m.number)[0])]))
            except Missing as missing:
                print("%s: without go-redis: %s" % (self.name, missing), file=sys.stderr)
        return hands

    # ---- faults

    def do(self, kind):
        """One fault. False: it was not possible now."""
        act = getattr(self, kind.replace(" ", "_").replace("-", "_"))
        what = act()
        if what is None:
            return
        self.crew.note("", "fault", kind, what)
        count = self.counts.setdefault(kind, {})
        idiom = what.split(".")[0] if kind in ("stop", "kill") else ""
        count[idiom] = count.get(idiom, 0) + 1

    def after(self, seconds, function):
        self.later.append((time.monotonic() + seconds, function))

    def stop(self):
        member = self.crew.aim(self.dice)
        if member:
            name, lease = member.worker(), worker.IDIOMS[member.idiom].lease or worker.SECOND
            member.stop()
            self.after(lease / 1000 * self.dice.uniform(0.5, 2), lambda: member.stopped and member.go_on())
            return name
        return None

    def kill(self):
        member = self.crew.aim(self.dice)
        if member:
            name = member.worker()
            member.kill()
            self.after(self.dice.uniform(0, 0.2), member.start)
            return name
        return None

    def cut(self):
        self.dice.choice(self.relays).do("cut")
        return ""

    def half(self):
        self.dice.choice(self.relays).do("half")
        return ""

    def slow(self, server):
        server.signal(signal.SIGSTOP)
        self.after(self.dice.uniform(0.05, 0.8), lambda: server.signal(signal.SIGCONT))
        return "port %d" % server.port

    def redis_slow(self):
        return self.slow(self.dice.choice(self.nodes))

    def proxy_slow(self):
        return self.slow(self.dice.choice(self.proxies))

    def quiet(self):
        """All servers run again that were slow."""
        for _, function in self.later:
            function()
        self.later = []

    def redis_killed(self):
        self.quiet()
        server = self.dice.choice(self.nodes)
        server.restart()
        return "port %d" % server.port

    def proxy_killed(self):
        self.quiet()
        proxy = self.dice.choice(self.proxies)
        proxy.die()
        return "port %d" % proxy.port

    def take_over(self):
        self.quiet()
        proxy = self.dice.choice(self.proxies)
        return "port %d" % proxy.port if proxy.take_over() else None

    def reload(self):
        proxy = self.dice.choice(self.proxies)
        proxy.signal(signal.SIGHUP)
        return "port %d" % proxy.port

    def failover(self):
        self.quiet()
        return "port %d" % self.backend.failover(self.backend.master).port

    def clock(self):
        seconds = self.dice.uniform(-5, 5)
        self.backend.set_clock(seconds)
        return "%+.3f s" % seconds

    def slot(self):
        self.quiet()
        until(self.backend.agreed, 20, "the cluster's agreement", 0.05)
        slot = self.dice.choice(self.move.slots)
        self.move.clients = {n: n.client(timeout=20) for n in self.nodes}
        self.move.move(slot, 1)
        for client in self.move.clients.values():
            client.close()
        return "slot %d" % slot

    # ---- the run

    def wreck(self, seconds):
        """Faults until the time is over, each at its time. The schedule follows from the seed; where a fault falls, from the machine."""
        kinds = list(self.setting.faults)
        weights = list(self.setting.faults.values())
        pace = 0.9 / len(self.idioms)  # s between two faults, on average
        end, due = time.monotonic() + seconds, time.monotonic() + 0.3
        while time.monotonic() < end:
            for item in [item for item in self.later if item[0] <= time.monotonic()]:
                self.later.remove(item)
                item[1]()
            if time.monotonic() >= due:
                self.do(self.dice.choices(kinds, weights)[0])
                due = time.monotonic() + self.dice.expovariate(1 / pace)
            time.sleep(0.002)
        self.quiet()

    def run(self, seconds):
        try:
            self.serve()
            hands = self.hands()
            for place, idiom in enumerate(self.idioms):
                some = hands[:2] if idiom == "multi" else hands
                for n in range(WORKERS):
                    self.crew.add(idiom, some[(place + n) % len(some)], "%s-%d" % (idiom, n))
            for member in self.crew.members:
                member.start()
            self.wreck(seconds)
            events = self.crew.end()
            broken = sum(proxy.invariants() for proxy in self.proxies)
            for proxy in self.proxies:
                proxy.end()
            return self.judge(events, broken)
        except AssertionError:
            for proxy in self.proxies:
                print(servers.tail(proxy.log_path), file=sys.stderr)
            raise
        finally:
            self.crew.abandon()
            for relay in self.relays:
                relay.stop()
            also = [*getattr(self.backend, "sentinels", ()), *filter(None, [getattr(self.backend, "replica", None)])]
            for server in {*self.proxies, *also, *self.nodes, *self.witnesses}:
                server.kill()
                server.remove()

    def faults_of(self, idiom):
        """How many may have touched an idiom: those of its workers, and those of servers and connections."""
        return {kind: by[""] if "" in by else by.get(idiom, 0) for kind, by in self.counts.items()}

    def judge(self, events, broken):
        rows = []
        for idiom in self.idioms:
            own = [e for e in events if e[1].split(".")[0] == idiom]
            row = dict(checker.judge(own), setting=self.name, idiom=idiom, invariants=broken, faults=self.faults_of(idiom))
            if self.setting.wait:
                late, overtaken = checker.waits(checker.read(own)[0], self.setting.wait)
                row["late answers"], row["overtaken"] = len(late), len(overtaken)
            rows.append(row)
        return rows


# ---- the table ----------------------------------------------------------------------------------

COLUMNS = ["acquisitions", "double holders", "lost updates", "in a live lease", "foreign releases", "refused releases"]


def broken_promises(row):
    """What the proxy promises, and a row shows otherwise. With a fence no update is lost at all. A write that was refused and is done all
    the same is a client's that has sent it twice, over two connections (ioredis)."""
    promised = ["double holders", "foreign releases", "in a live lease", "invariants"]
    if "fence" in row["setting"]:
        promised.append("lost updates")
    setting = SETTINGS[row["setting"]]
    return ["%s: %d" % (name, row[name]) for name in promised if row[name] and name not in setting.counted] if setting.promises else []


def table(rows):
    lines = ["| served by | idiom | %s | free lock stood, s | stops | other faults |" % " | ".join(COLUMNS),
             "| --- | --- |" + " ---: |" * (len(COLUMNS) + 3)]
    for row in rows:
        number, stops = worker.IDIOMS[row["idiom"]].number, row["faults"].get("stop", 0)
        lines.append("| %s | %d %s | %s | %.1f | %d | %d |" % (
            SETTINGS[row["setting"]].text, number, row["idiom"], " | ".join("{:,}".format(row[name]) for name in COLUMNS),
            row["stood free"] / 1e6, stops, sum(row["faults"].values()) - stops))
    return "\n".join(lines)


def one(name, seconds, options, folder):
    """One setting in a process of its own, since it forks workers."""
    command = [sys.executable, "-B", __file__, "--one", name, "--seconds", str(seconds), "--seed", str(options.seed), "--keep", folder]
    for idiom in options.idiom or ():
        command += ["--idiom", idiom]
    if options.offline:
        command.append("--offline")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return [], "%s: the run failed" % name
    rows = json.loads(done.stdout)
    print(table(rows), flush=True)
    return rows, None


def run_one(options):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: processes that take over stay its children
    folder = os.path.join(options.keep, options.one)
    os.makedirs(folder)
    print(json.dumps(Run(options.one, options.idiom, options.seed, folder, Workshop(not options.offline)).run(options.seconds)))
    return 0


def main(words):
    parser = argparse.ArgumentParser(description="Histories of real clients under faults, judged by a checker that reads them alone.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="the proxy; LOCKKEEPER in the environment says so, too")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="default: " + ", ".join(SHORT))
    parser.add_argument("--idiom", action="append", choices=list(worker.IDIOMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", metavar="FOLDER", help="for histories and schedules; without it they are removed")
    parser.add_argument("--offline", action="store_true", help="npm's packages are not fetched: without them, other clients work")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = os.path.abspath(options.lockkeeper)
    if options.one:
        return run_one(options)
    servers.binary()
    names = options.setting or SHORT
    folder = options.keep or tempfile.mkdtemp(prefix="lockkeeper-histories-")
    seconds = options.minutes * 60 * min(2, len(names)) / len(names)
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            results = list(threads.map(lambda name: one(name, seconds, options, folder), names))
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    rows = [row for some, _ in results for row in some]
    print("\n" + table(rows))
    wrong = [why for _, why in results if why]
    wrong += ["%s, %s: %s" % (row["setting"], row["idiom"], why) for row in rows for why in broken_promises(row)]
    print("\nseed %d; %s" % (options.seed, "; ".join(["BROKEN: " + why for why in wrong] or ["no promise was broken"])))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
