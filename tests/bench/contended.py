"""One contended lock: workers that poll, on Redis and through the proxy, and workers that wait for a message.

handing_over(bench) returns {load: {way: figures}}, print_rows what bench.py prints of it. The figures of a way are the
medians of its rounds, and the longest wait of all.
"""
import itertools
import json
import re
import statistics
import subprocess

from servers import Connection, Failed

# title: workers, work and pause between in ms
LOADS = {
    "10 workers, 5 ms of work, 5 ms between": (10, 5, 5),
    "50 workers, 1 ms of work, 5 ms between": (50, 1, 5),
    "4 workers, 20 ms of work, none between": (4, 20, 0),
}
POLL_MS = 100
serial = itertools.count()  # each run leaves a lock that its last holder held
POLLING, NOTIFIED = "Redis, polled every 100 ms", "Redis, told by a channel (script)"
ONE, TWO = "lockkeeper, `wait 1s`", "two lockkeepers, `wait 1s`"
RULE = ["--lock", "lock:*", "wait", "1s"]


def scripts(redis):
    """Scripts that Redis has run, and commands of clients in all."""
    page = Connection(redis.port).call("INFO", "commandstats")
    calls = dict(re.findall(r"cmdstat_(\w+):calls=(\d+)", page if isinstance(page, str) else page.decode()))
    return sum(int(calls.get(name, 0)) for name in ("eval", "evalsha"))


def run(bench, workers, work, between, ports, notify):
    program = bench.contend_program
    if not program:
        raise Failed("contend was not built")
    words = [program, "--workers", workers, "--work-us", work * 1000, "--between-us", between * 1000, "--poll-us",
             POLL_MS * 1000, "--seconds", 3 if bench.quick else 10, "--key", "lock:contended:%d" % next(serial)]
    done = subprocess.run([*map(str, words), *(["--notify", "contended"] if notify else []), *map(str, ports)],
                          capture_output=True, text=True, timeout=60)
    if not done.stdout.startswith("{"):
        raise Failed("contend: %s" % done.stderr.strip())
    return json.loads(done.stdout)


def possible(result, workers, work, between):
    """Acquisitions a second, were the lock handed on in no time: it is held all the time, or all workers are busy. A
    holder's section takes what it took, with its round trip."""
    section = max(result["sections"]["mean"] / 1e6, work / 1e3)
    return min(1 / section, workers / (section + between / 1e3)) if section else 0


def measured(bench, load, ports, redis, notify=False):
    workers, work, between = load
    before = scripts(redis)
    result = run(bench, workers, work, between, ports, notify)
    if not result["acquired"]:
        raise Failed("nobody acquired the lock")
    return {"rps": result["acquired"] / result["seconds"], "possible": possible(result, workers, work, between),
            "p99_ms": result["waits"]["p99"] / 1e3, "max_ms": result["waits"]["max"] / 1e3,
            "least": min(result["turns"]), "most": max(result["turns"]),
            "handover_ms": result["handovers"]["p50"] / 1e3,
            "scripts": (scripts(redis) - before) / result["acquired"]}


def handing_over(bench):
    redis = bench.fleet.start_redis()
    proxies = [bench.fleet.start_lockkeeper(upstream=redis, extra=RULE) for _ in range(2)]
    ways = {POLLING: ([redis.port], False), NOTIFIED: ([redis.port], True), ONE: ([proxies[0].port], False),
            TWO: ([proxy.port for proxy in proxies], False)}
    runs = {}
    try:
        for number in range(1 if bench.quick else 3):
            for title, load in LOADS.items():
                for way, (ports, notify) in ways.items():
                    result = bench.attempt("%s, %s" % (title, way), measured, bench, load, ports, redis, notify)
                    if result:
                        runs.setdefault(title, {}).setdefault(way, []).append(result)
    finally:
        for server in (*proxies, redis):
            server.stop()
    return {title: {way: {name: (max if name == "max_ms" else statistics.median)([r[name] for r in results])
                          for name in results[0]} for way, results in by_way.items()} for title, by_way in runs.items()}


HEADER = ["", "acquired a second", "of what is possible", "p99 of waits, ms", "longest, ms", "turns of a worker",
          "handover, median, ms", "scripts an acquisition"]


def rows(by_way):
    return [[way, "%.0f" % r["rps"], "%.2f" % (r["rps"] / r["possible"]), "%.0f" % r["p99_ms"], "%.0f" % r["max_ms"],
             "%.0f to %.0f" % (r["least"], r["most"]), "%.2f" % r["handover_ms"], "%.2f" % r["scripts"]]
            for way, r in by_way.items()]
