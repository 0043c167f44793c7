"""What each command on a lock costs Redis, in instructions: written by hand without a proxy, and through the proxy with
both forms of guard records.

measure(bench, count) returns {command: {way: instructions}}; rows what bench.py prints of it.
"""
import re
import time

from scale import COMPARE_AND_DELETE
from servers import Connection, Failed

CONNECTIONS, LEASES, TIMES = 50, 2000, 4
TOKEN = "5b1d7c52-0d6e-4f0c-9d53-3f9f8a3f1c77"
EXTEND = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end"
HAND, HASH, SHORT = "by hand", "hash", "short"
ACQUIRE = ["=+OK", "SET", "lock:{c}", TOKEN, "NX", "PX", "60000"]
RELEASE = {HAND: ["=:1", "EVALSHA", "{delete}", "1", "lock:{c}", TOKEN], HASH: ["=:1", "DEL", "lock:{c}"]}
RENEWAL = "renewal by a watchdog; by the proxy, 2,000 leases"

# command: whether another client holds the lock; the words by hand, and through the proxy
ALONE = {
    "refused `SET NX PX`": (True, ["=$-1", *ACQUIRE[1:]], ["=$-1", *ACQUIRE[1:]]),
    "refused release": (True, ["=:0", "EVALSHA", "{delete}", "1", "lock:{c}", TOKEN], ["=:0", "DEL", "lock:{c}"]),
    "`GET`": (True, ["=$", "GET", "lock:{c}"], ["=$", "GET", "lock:{c}"]),
    "`EXISTS`": (True, ["=:1", "EXISTS", "lock:{c}"], ["=:1", "EXISTS", "lock:{c}"]),
    "`PTTL`": (True, ["=:", "PTTL", "lock:{c}"], ["=:", "PTTL", "lock:{c}"]),
}
# What the holder sends: TIMES times between an acquisition and a release.
HOLDERS = {
    "`PEXPIRE` by the holder": (["=:1", "EVALSHA", "{extend}", "1", "lock:{c}", TOKEN, "60000"],
                                ["=:1", "PEXPIRE", "lock:{c}", "60000"]),
}


def joined(commands):
    words = []
    for command in commands:
        words += [*([";"] if words else []), *command]
    return words


class Verbs:
    def __init__(self, bench, count):
        self.bench, self.count = bench, count
        self.few, self.many = (1000, 3000) if bench.quick else (2000, 8000)

    def with_proxy(self, redis, way, use, extra=()):
        """Calls use(server), with Redis itself or a proxy before it."""
        if way == HAND:
            return use(redis)
        proxy = self.bench.fleet.start_lockkeeper(upstream=redis, extra=["--guard-records", way, *extra])
        try:
            return use(proxy)
        finally:
            proxy.stop()

    def cost(self, way, held, commands):
        """Redis's instructions for one round of the commands."""
        def load(redis, rounds):
            direct = Connection(redis.port)
            shas = {name: direct.call("SCRIPT", "LOAD", script) for name, script in (("delete", COMPARE_AND_DELETE), ("extend", EXTEND))}
            words = [re.sub(r"\{(delete|extend)\}", lambda found: shas[found.group(1)], word) for word in joined(commands)]

            def use(server):
                holder = Connection(server.port)
                holder.call("CLIENT", "SETNAME", "holder")  # another client than those of the load
                for n in range(CONNECTIONS if held else 0):
                    holder.call("SET", "lock:%d" % n, "holder", "NX", "PX", "600000")
                self.bench.load(server.port, CONNECTIONS, 1, rounds * len(commands), words)
                return rounds
            return self.with_proxy(redis, way, use)
        return self.bench.counted(self.count, self.bench.fleet.start_redis, load, self.few, self.many)

    def pair(self, way, times=0, between=()):
        release = RELEASE[HAND if way == HAND else HASH]
        return self.cost(way, False, [ACQUIRE, *[between] * times, release])

    def renewal(self, way):
        def load(redis, wanted):
            def use(proxy):
                client = Connection(proxy.port)
                for n in range(LEASES):
                    client.call("SETNX", "lock:lease:%d" % n, TOKEN)
                until = time.monotonic() + 120
                while time.monotonic() < until:
                    done = int(re.search(r"\brenewals:(\d+)", client.call("PROXY", "INFO")).group(1))
                    if done >= wanted:
                        return done
                    time.sleep(0.02)
                raise Failed("the leases were not renewed")
            return self.with_proxy(redis, way, use, ["--lock", "lock:*", "lease", "6s"])
        return self.bench.counted(self.count, self.bench.fleet.start_redis, load, LEASES, 5 * LEASES)


def measure(bench, count):
    verbs, result = Verbs(bench, count), {}
    pairs = {way: verbs.pair(way) for way in (HAND, HASH, SHORT)}
    result["`SET NX PX` and its release"] = pairs
    for title, (held, by_hand, through) in ALONE.items():
        result[title] = {way: verbs.cost(way, held, [by_hand if way == HAND else through]) for way in pairs}
    for title, (by_hand, through) in HOLDERS.items():
        result[title] = {way: (verbs.pair(way, TIMES, by_hand if way == HAND else through) - pairs[way]) / TIMES
                         for way in pairs}
    result[RENEWAL] = {HAND: result["`PEXPIRE` by the holder"][HAND], HASH: verbs.renewal(HASH), SHORT: verbs.renewal(SHORT)}
    return result


HEADER = ["Redis's instructions", HAND, "`guard-records hash`", "`guard-records short`", "times"]


def rows(result):
    return [[title, *("{:,.0f}".format(by_way[way]) for way in (HAND, HASH, SHORT)),
             "%.2f, %.2f" % (by_way[HASH] / by_way[HAND], by_way[SHORT] / by_way[HAND])] for title, by_way in result.items()]
