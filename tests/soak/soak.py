#!/usr/bin/env python3
"""soak.py: hundreds of clients on the proxy while its Redis servers, its configuration and a second proxy suffer.

    tests/soak/soak.py --seconds 60 --seed 1 --backend standalone|cluster|sentinel|all

Runs the proxy of $LOCKKEEPER (build/lockkeeper), best one built with SANITIZE=address,undefined, and checks every
reply: traffic.py says what ordinary clients are owed, locks.py what lock workers are owed, faults.py and failovers.py
what goes wrong meanwhile. Quiet; a table at the end; exit status 1 if a promise was broken, with the last events of what it
was broken for. The seed repeats the choices, not the timing.
"""

import argparse
import asyncio
import os
import random
import resource
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
sys.path.insert(1, HERE)

import babble
import failovers
import hostile
import locks
import partition
import pulse
import replicated
import servers
import tide
import traffic
import wire
from record import Record
from resp import Error

MB = 1 << 20
UPSTREAM_TIMEOUT = 2.0
HANG = 2 * UPSTREAM_TIMEOUT + 3  # a script may last: where one is under way the node itself is asked first, for as long again
MEMORY_ALLOWED = {"": 32 * MB, "asan": 96 * MB, "tsan": 1024 * MB, "tool": 1024 * MB}  # above the start; some is their own
RETIRED_MAX = 20000
LOOK_AGAIN = 10.0
READY = "Ready to accept connections"
FAULTS = ("kill", "stop", "blink", "connections", "scripts", "reload", "second", "handover", "migrate", "cut", "mute",
          "doze")
FAULTS += tuple(dict.fromkeys(failovers.CLUSTER + failovers.SENTINEL))
PARTITIONS = {"cut", "mute", "split"}
FAILOVERS = {*failovers.CLUSTER, *failovers.SENTINEL}
RULES = [
    "lock lock:own:* owner connection lease 1h",
    "lock lock:c:* kind string,counter owner connection lease %dms max-hold %dms" % (locks.LEASE * 1000, locks.MAX_HOLD * 1000),
    "lock lock:d:* kind string,counter lease %dms max-hold %dms" % (locks.LEASE * 1000, locks.MAX_HOLD * 1000),
    "lock lock:m:* kind string,counter lease %dms max-hold %dms" % (locks.LEASE * 1000, locks.MAX_HOLD * 1000),
    "lock lock:p:* kind string,counter owner client lease %dms max-hold %dms" % (locks.LEASE * 1000, locks.MAX_HOLD * 1000),
    "lock lock:release:* on-disconnect release",
]


class SoakProxy(servers.Proxy):
    def launch(self, args=()):
        env = servers.proxy_environment()
        env["ASAN_OPTIONS"] += ":quarantine_size_mb=16:allocator_release_to_os_interval_ms=300"
        self.spawn([*servers.under(), servers.binary(), self.config, *args], env)
        self.expected = True

    def sanitizer(self):
        if servers.under():
            return "tool"
        with open("/proc/%d/maps" % self.pid) as f:
            text = f.read()
        return next((name for name in ("asan", "tsan") if "lib%s.so" % name in text), "")

    def check_log(self):
        assert not servers.REPORT.search(self.log()), self.report_text()

    def hand_over(self):
        """A new process on the same port; the old one ends when it likes, within its bound."""
        before, ready = self.process, self.log().count(READY)
        self.launch()
        servers.until(lambda: self.log().count(READY) > ready, 30, "the new process's readiness")
        before.terminate()
        assert before.wait(20) == 0, self.report_text()

    def again(self):
        """After a kill, on the same port."""
        with open(self.log_path, "wb"):
            pass
        self.told = 0
        self.launch()
        self.await_ready()


class Retired:
    """What is known of a key that no client uses any more; `lowest`, `older`: if a failover has lost writes."""

    def __init__(self, db, key):
        self.db, self.kind, self.slot, self.since, self.at = db, key.kind, key.slot, key.since, key.client.record.now()
        self.low, self.high, self.possible = key.low, key.high, set(key.possible)
        self.lowest, self.older = key.lowest, key.older

    def fits(self, value):
        return self.low <= int(value or 0) <= self.high if self.kind == "number" else value in self.possible

    def fits_a_loss(self, value):
        if self.kind == "number":
            return self.lowest is not None and self.lowest <= int(value or 0) <= self.high
        return value in self.older

    def __str__(self):
        if self.kind == "number":
            return "%d were done and %d at most; at least %s with Redis's losses" % (self.low, self.high, self.lowest)
        return "%r; with Redis's losses %r" % tuple([v and v[:60] for v in s] for s in (self.possible, self.older))


class World:
    def __init__(self, args, kind):
        self.args, self.record = args, Record(args.verbose)
        self.rng = random.Random("%s/%s" % (args.seed, kind))
        self.bound, self.upstream_timeout = HANG, UPSTREAM_TIMEOUT
        self.pause = 0.25 / args.load
        self.error_causes = ("kill", "stop", "connections", "migrate", "failover")
        self.retired = {}
        self.moving_tags = ["m%d" % n for n in range(6)]
        self.moving_slots = [servers.slot_of(tag) for tag in self.moving_tags]
        self.backend = self.start_backend(kind)
        self.replicated = getattr(self.backend, "replicated", 0)
        confirmed = ["lock lock:r:* kind string,counter owner connection replicas %d 500ms" % self.replicated] if self.replicated else []
        self.config = ["upstream " + self.backend.upstream(), "upstream-timeout %ds" % UPSTREAM_TIMEOUT,
                       "client-output-buffer-limit normal 48mb 0 0", "maxclients 3000",
                       "reuse-port yes", "shutdown-timeout 3",
                       "upstream-connections %d" % self.rng.choice([1, 1, 2]),
                       "threads %d" % (args.threads or self.rng.choice([1, 1, 2])), *confirmed, *RULES]
        self.proxies = []
        try:
            for _ in range(2):
                self.proxies.append(SoakProxy(self.backend, *self.config[1:]))
        except BaseException:
            self.stop()
            raise
        self.net = wire.Net(self.record, HANG)
        self.tide = None

    def start_backend(self, kind):
        make = partition.RemoteRedis if PARTITIONS.intersection(self.args.faults) else servers.RedisServer
        if kind == "standalone":
            return make()
        if kind == "sentinel":
            return replicated.Sentinels(make)
        return replicated.Cluster(make) if FAILOVERS.intersection(self.args.faults) else servers.RedisCluster(make=make)

    def stop(self):
        for proxy in self.proxies:
            proxy.kill()
            if not self.record.judged():
                proxy.remove()
        self.backend.stop()

    # ---- what several kinds of clients need

    def check_error(self, who, command, reply):
        self.record.counts["error replies"] += 1
        text = "%s %s: %r" % (who, " ".join(str(c)[:50] for c in command), reply)
        if not reply.startswith(traffic.ALLOWED):
            self.record.violation("unexpected error", text)
        elif not self.record.disturbed(self.record.now(), self.error_causes, traffic.ERROR_MARGIN):
            self.record.violation("error without a cause", text)

    def retire(self, db, key):
        if len(self.retired) < RETIRED_MAX:
            self.retired[key.name] = Retired(db, key)

    # ---- the participants

    def cast(self):
        """All participants, each with a random generator of its own."""
        rng, main, second = self.rng, self.proxies[0], self.proxies[1]
        scale = self.args.clients / 100

        def own():
            return random.Random(rng.getrandbits(64))

        def many(n):
            return range(max(1, int(n * scale)))

        people = [traffic.Ordinary(self, main, n, own()) for n in many(90)]
        people += [traffic.Ordinary(self, second, 1000 + n, own()) for n in many(15)]
        people += [traffic.Ordinary(self, main, 2000 + n, own(), big=True) for n in many(4)]
        people += [hostile.Hostile(self, main, n, own()) for n in many(6)]
        common = babble.grammar(self)
        people += [babble.Babbler(self, main, n, own(), common) for n in many(10)]
        people += [locks.Crasher(self, main, n, own()) for n in many(8)]

        def keys(prefix, idioms, count):
            made = []
            for idiom in idioms:
                for n in range(count):
                    tag = "{%s}" % rng.choice(self.moving_tags) if n % 2 else ""
                    made.append(locks.Lock(self, "lock:%s:%s%s%d" % (prefix, idiom, tag, n), idiom,
                                           rng.choice([0.25, 0.5, 1.2])))
            return made

        shared = ["setnx_del", "setnx_expire_del", "transaction", "constant", "compared", "incr_del", "throttle"]
        alone = [*shared, "takeover", "watched", "incr_decr", "get_set"]
        for prefix in ("c", "d"):
            names = keys(prefix, alone, 2)
            people += [locks.Worker(self, main, names, own(), nameless=prefix == "c" and n % 2) for n in many(30)]
            people += [locks.Worker(self, second, names, own()) for n in many(8)]
        if self.replicated:
            names = keys("r", ["constant", "compared_once", "throttle"], 4)
            people += [locks.Worker(self, second if n % 4 == 3 else main, names, own()) for n in many(16)]
        for prefix, count, models in (("p", 6, "PM"), ("m", 3, "M")):  # owner client, and auto for one connection
            names = keys(prefix, shared, 3)
            for n in many(count):
                proxy = second if n % 3 == 2 else main
                model = models[n % len(models)]
                process = locks.Process(self, proxy, "%s%d" % (prefix, n), model, 4 if model == "P" else 1)
                people += [locks.Worker(self, proxy, names, own(), process, "q") for _ in range(7)]
        return people

    async def run(self):
        import faults

        watches = [asyncio.ensure_future(self.net.watch())]
        watches += [asyncio.ensure_future(pulse.watch(self.net, node)) for node in self.backend.nodes]
        if self.replicated:
            self.tide = tide.Tide(self)
            self.record.suspicions = []
            await self.tide.all_known()
            watches += [asyncio.ensure_future(self.tide.watch(shard)) for shard in self.tide.shards]
        start_memory = self.proxies[0].memory()
        people = [asyncio.ensure_future(p.run()) for p in self.cast()]
        trouble = asyncio.ensure_future(faults.Faults(self, random.Random(self.rng.getrandbits(64)),
                                                      self.args.faults).run())
        end = self.record.now() + self.args.seconds
        while self.record.now() < end and self.proxies[0].running():
            await asyncio.sleep(0.2)
            for task in [*people, trouble]:
                if task.done():
                    task.result()  # a mistake of this program, or its end
        await self.quiet(trouble)
        self.record.over = True
        self.record.counts["clients"] = len(people)
        late, seen = people, None
        while late and seen != (len(late), self.record.counts["replies"]):  # on a busy machine they take their time
            seen = len(late), self.record.counts["replies"]
            done, late = await asyncio.wait(late, timeout=30)
            for task in done:
                task.result()
        if late:
            self.record.violation("hang", "%d clients have not ended" % len(late))
            for task in late:
                task.cancel()
        for link in list(self.net.links):
            link.close()
        freed, belated = self.record.counts["freed by a late colleague"], self.record.counts["late releases of colleagues"]
        if freed > 2 + belated // 4:
            self.record.violation("lost lease", "%d of %d late releases over shared connections freed a colleague's lease" % (
                freed, belated))
        kept, crashed = (self.record.counts["crashed holders" + which] for which in (" kept for another", ""))
        if kept > 2 + crashed // 50:
            self.record.violation("dead holder", "%d of %d crashed holders' locks were kept for another client" % (kept, crashed))
        await self.aftermath(start_memory)
        if self.replicated:
            await self.tide.all_known()  # failovers while there was no load any more
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def quiet(self, trouble):
        """Lets the fault that is under way end."""
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        for node in self.backend.nodes:
            if not node.running():
                await asyncio.get_running_loop().run_in_executor(None, node.start)

    # ---- afterwards

    async def aftermath(self, start_memory):
        main = self.proxies[0]
        if not main.running():
            self.record.violation("crash", "the proxy ended with %s:\n%s" % (main.process.returncode, main.report_text()))
            return
        deadline = self.record.now() + 90
        allowed = MEMORY_ALLOWED[main.sanitizer()]
        link = None
        while self.record.now() < deadline:
            await asyncio.sleep(0.2)
            if link is None or link.closed:
                link = await self.net.open(main, "check")
                continue
            info = await self.info(link)
            grown = main.memory() - start_memory
            if info["in_flight"] == 0 and info["clients_connected"] == 1 and grown < allowed:
                break
        else:
            self.record.violation("not at rest", "in flight %s, clients %s, memory +%d MB" % (
                info["in_flight"], info["clients_connected"], grown // MB))
        self.record.counts["memory +MB"] = grown // MB
        if self.replicated:
            await self.tide.all_known()
        await self.check_retired(main)
        await asyncio.sleep(0.1)
        link.close()
        self.final_stop()

    async def info(self, link):
        text = await link("PROXY", "INFO")
        found = {"in_flight": 0, "clients_connected": -1}
        for line in text.split("\r\n"):
            if line.startswith("clients_connected:"):
                found["clients_connected"] = int(line.split(":")[1])
            for word in line.split(","):
                if word.startswith("in_flight="):
                    found["in_flight"] += int(word[10:])
        return found

    async def look_again(self, link, *command):
        """As often as a node that is back is still said to be away: each thread tries it again in its own time."""
        while True:
            value = await link(*command)
            if not isinstance(value, Error) or "not sent" not in value or self.record.now() > self.look_until:
                return value
            await asyncio.sleep(0.1)

    async def check_retired(self, main):
        """What was written, or perhaps written, once or not at all."""
        links = {}
        self.look_until = self.record.now() + LOOK_AGAIN
        for name, key in self.retired.items():
            if self.record.disturbed(key.since, ("kill",)):
                continue
            if key.db not in links:
                links[key.db] = await self.net.open(main, "check", [("SELECT", key.db)] if key.db else [])
            value = await self.look_again(links[key.db], "GET", name)
            self.record.counts["looked at afterwards"] += 1
            if isinstance(value, Error) or value is wire.GONE:
                self.record.violation("afterwards", "%s: %r" % (name, value))
            elif key.fits(value):
                continue
            elif key.fits_a_loss(value):
                self.record.counts["lost by Redis"] += 1
            elif self.record.unjudged((key.slot,), key.since, key.at):
                self.record.counts["explained by a failover"] += 1
            else:
                self.record.violation("count" if key.kind == "number" else "lost write", "%s is %r: %s" % (
                    name, value and value[:60], key), slots=(key.slot,))
        for link in links.values():
            link.close()

    def final_stop(self):
        for proxy in self.proxies:
            try:
                proxy.stop()
            except AssertionError as error:
                self.record.violation("end", str(error)[-6000:])


def summary(kind, record, net, args):
    print("\n%s, seed %s, %d s" % (kind, args.seed, args.seconds))
    rows = [(name, record.counts[name]) for name in sorted(record.counts)]
    rows.append(("slowest reply, ms", int(net.slowest * 1000)))
    rows.append(("seconds watched for hangs", int(net.clock)))
    rows += [("fault: " + name, n) for name, n in sorted(record.faults.items())]
    rows += [("VIOLATION: " + name, n) for name, n in sorted(record.violations.items())]
    if not record.violations:
        rows.append(("violations", 0))
    if record.void:
        print("  losses not judged: %s" % record.void)
    for name, n in rows:
        print("  %-28s %10d" % (name, n))


def soak(args, kind):
    """One run; True if every promise was kept."""
    world = World(args, kind)
    try:
        asyncio.run(world.run())
    finally:
        world.stop()
        summary(kind, world.record, world.net, args)
    if world.record.judged():
        print("  proxy's logs: %s" % " ".join(p.log_path for p in world.proxies))
        print("  its configuration:\n    " + "\n    ".join(world.config))
        print("  again: LOCKKEEPER=%s %s --seconds %d --seed %s --backend %s --clients %d --load %s --faults %s" % (
            servers.binary(), sys.argv[0], args.seconds, args.seed, kind, args.clients, args.load, ",".join(args.faults)))
    return not world.record.judged()


def main():
    parser = argparse.ArgumentParser(description="Soak test with faults; exit status 1 on a broken promise.")
    parser.add_argument("--seconds", type=int, default=60, help="of load, for each backend")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--backend", choices=["standalone", "cluster", "sentinel", "all"], default="all")
    parser.add_argument("--clients", type=int, default=100, help="percent of the usual number (about 250)")
    parser.add_argument("--load", type=float, default=1.0, help="requests: 2 is twice as many")
    parser.add_argument("--threads", type=int, default=0, help="of the proxy; chosen by the seed if not given")
    parser.add_argument("--faults", default=",".join(FAULTS), help="of %s" % ", ".join(FAULTS))
    parser.add_argument("--verbose", action="store_true", help="faults as they happen")
    args = parser.parse_args()
    args.faults = [f for f in args.faults.split(",") if f]
    unknown = set(args.faults) - set(FAULTS)
    if unknown:
        parser.error("unknown faults: %s" % ", ".join(sorted(unknown)))
    if PARTITIONS.intersection(args.faults) and partition.missing():
        print("no partitions: %s" % partition.missing())
        args.faults = [f for f in args.faults if f not in PARTITIONS]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    kinds = ["standalone", "cluster", "sentinel"] if args.backend == "all" else [args.backend]
    results = [soak(args, kind) for kind in kinds]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
