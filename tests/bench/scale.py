"""Measurements over the number of connections and threads: waiting on one lock, idle neighbours, shared cores, two threads.

Each function takes a Bench and returns the rows of its table: {row: {column: figure}}. Knows nothing of printing.
"""
import os
import random
import resource
import statistics
import subprocess
import time

from servers import Connection, Failed, median, redis_benchmark, thread_seconds

SPINNING = ["=$-1", "SET", "lock:spin", "another", "NX", "PX", "30000"]
IDLE = 5000
# All connections of the load are one client's: what one of them holds, each of them writes under.
FENCE = ["--fence", "fenced:*", "by", "lock:fenced"]
COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
ONE_SET = "return redis.call('SET', KEYS[1], ARGV[1])"
VALUE = "0123456789abcdef0123456789abcdef0123"


def room_for(connections):
    """Whether so many sockets may be open here, and in the proxy, which has one more for each with haproxy's way."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] > connections + 200


def contention(bench):
    """Connections that try again and again to acquire one lock that is held."""
    rows = {}
    requests = 20000 if bench.quick else 60000
    for connections in (50, 1000, 10000):
        if not room_for(connections):
            bench.notes.append("%d connections need a higher limit of open files (ulimit -n)" % connections)
            continue
        redis = bench.fleet.start_redis(extra=["--maxclients", str(connections + 200)])
        try:
            proxy = bench.fleet.start_lockkeeper(upstream=redis, extra=["--maxclients", str(connections + 200)])
            for title, server in (("Redis, direct", redis), ("lockkeeper", proxy)):
                holder = Connection(server.port)
                holder.call("SET", "lock:spin", "holder", "NX", "PX", "300000")
                result = bench.attempt("%s, %d connections on one lock" % (title, connections), bench.with_cpu, server,
                                       [redis], bench.load, server.port, connections, 1, requests, SPINNING)
                holder.call("DEL", "lock:spin")
                holder.close()
                if result:
                    rows["%s, %d connections" % (title, connections)] = figures([result])
            proxy.stop()
        finally:
            redis.stop()
    return rows


def middle(values):
    """The mean of the middle half. A run has one of a few arrangements of programs and cores. A median jumps between them,
    and a mean includes programs that the machine has delayed."""
    values = sorted(values)
    cut = len(values) // 4
    return statistics.mean(values[cut:len(values) - cut])


def figures(results, unit=1):
    """unit: so many requests count as one. Latencies: the medians of the runs' own."""
    return {"rps": middle(r["rps"] / unit for r in results),
            "p50_ms": median(r["p50_ms"] for r in results),
            "p99_ms": median(r["p99_ms"] for r in results),
            "proxy_cpu_us": middle(r["proxy_cpu"] / r["requests"] * unit * 1e6 for r in results),
            "redis_cpu_us": middle(r["redis_cpu"] / r["requests"] * unit * 1e6 for r in results)}


def shuffled(names, times, seed):
    """The names so many times over, each time in another order: where the programs ran last decides where they run next,
    and so a peer must not always come behind the same other one. The same seed gives the same orders."""
    chance = random.Random(seed)
    return [name for _ in range(times) for name in chance.sample(list(names), len(names))]


def take_turns(bench, what, servers, measure):
    """Rounds in which measure(server) is run for each server, many times: {title: figures}. servers: {title: Server};
    what: for the note of a run that failed."""
    runs = {title: [] for title in servers}
    for number in range(bench.rounds):
        for title in shuffled(servers, bench.samples, number):
            result = bench.attempt("%s, %s" % (what, title), bench.with_cpu, servers[title], [bench.fleet.redis],
                                   measure, servers[title])
            if result:
                runs[title].append(result)
    return {title: figures(results) for title, results in runs.items() if results}


def titled(bench, peers):
    return {bench.titles[name]: server for name, server in peers.items()}


def pin(pid, cores):
    for task in os.listdir("/proc/%d/task" % pid):
        os.sched_setaffinity(int(task), cores)


def one_core(bench):
    """One connection without pipelining, and everything on one core: how long a request's way is."""
    every = os.sched_getaffinity(0)
    core = {max(every)}
    peers = bench.start_peers(["redis", "lockkeeper", "haproxy", "nutcracker"])
    try:
        os.sched_setaffinity(0, core)
        for server in peers.values():
            pin(server.pid, core)
        return take_turns(bench, "latency", titled(bench, peers), lambda server: bench.load(
            server.port, 1, 1, 3000, ["=$64", "GET", "key:000000000001"]))
    finally:
        os.sched_setaffinity(0, every)
        pin(bench.fleet.redis.pid, every)
        for name, server in peers.items():
            if name != "redis":
                server.stop()


def shared_core(bench):
    """Which programs share one of two cores: the kernel decides it anew in each run, and the cost of a request depends on
    it."""
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        raise Failed("this needs two cores")
    first, second = ({core} for core in sorted(every)[:2])
    peers = bench.start_peers(["lockkeeper", "nutcracker", "haproxy", "bare"])
    rows = {}
    try:
        for sharing, proxy, redis, load in (("load and Redis share", first, second, second),
                                            ("proxy and load share", first, second, first),
                                            ("proxy and Redis share", first, first, second)):
            pin(bench.fleet.redis.pid, redis)
            os.sched_setaffinity(0, load)
            for server in peers.values():
                pin(server.pid, proxy)
            for title, row in take_turns(bench, sharing, titled(bench, peers), lambda server: redis_benchmark(
                    server.port, "set", 1, 50, 10000)).items():
                rows["%s: %s" % (sharing, title)] = row
    finally:
        os.sched_setaffinity(0, every)
        pin(bench.fleet.redis.pid, every)
        for server in peers.values():
            server.stop()
    return rows


def idle_neighbours(bench):
    """50 busy connections, with and without idle ones beside them: two proxies, by turns."""
    if not room_for(IDLE):
        raise Failed("%d connections need a higher limit of open files (ulimit -n)" % IDLE)
    alone, crowded = bench.fleet.start_lockkeeper(), bench.fleet.start_lockkeeper()
    idle = [Connection(crowded.port) for _ in range(IDLE)]
    try:
        for connection in idle:
            connection.call("GET", "key:000000000000")
        return take_turns(bench, "idle", {"50 busy connections": alone,
                                          "50 busy beside %s idle" % "{:,}".format(IDLE): crowded},
                          lambda server: redis_benchmark(server.port, "get", 1, 50, 10000))
    finally:
        for connection in idle:
            connection.close()
        alone.stop()
        crowded.stop()


def threads(bench):
    """One thread and two, by turns; and how the connections' work is spread over the two."""
    servers = {1: bench.fleet.start_lockkeeper(), 2: bench.fleet.start_lockkeeper(extra=["--threads", "2"])}
    rows = {}
    try:
        for depth in (1, 16):
            runs = {count: [] for count in servers}
            shares = []
            for number in range(bench.rounds):
                for count in shuffled(servers, bench.samples // 4, number):
                    server = servers[count]
                    before = thread_seconds(server.pid)
                    runs[count].append(bench.with_cpu(server, [bench.fleet.redis], redis_benchmark, server.port, "get",
                                                      depth, 50, 20000 * min(depth, 4)))
                    after = thread_seconds(server.pid)
                    if count == 2:
                        spent = sorted(after[task] - before.get(task, 0) for task in after)[-2:]
                        shares.append(spent[0] / sum(spent))
            for count, results in runs.items():
                row = figures(results)
                if count == 2:
                    row["smaller_share"] = median(shares)
                rows["%d thread%s, -P %d" % (count, "s" if count > 1 else "", depth)] = row
    finally:
        for server in servers.values():
            server.stop()
    return rows


def fenced(bench):
    """A SET of data under a lock, by the holder and by others, compared with a SET without a fence, and with a script with
    one SET."""
    redis = bench.fleet.start_redis()
    proxy = holder = None
    try:
        proxy = bench.fleet.start_lockkeeper(upstream=redis, extra=FENCE)
        sha = Connection(redis.port).call("SCRIPT", "LOAD", ONE_SET)
        holder = Connection(proxy.port)
        holder.call("SET", "lock:fenced", "holder", "NX", "PX", "600000")
        ways = {"Redis, direct: `SET`": (redis, ["=+OK", "SET", "none:{c}", VALUE]),
                "Redis, direct: `EVALSHA` with one `SET`": (redis, ["=+OK", "EVALSHA", sha, "1", "none:{c}", VALUE]),
                "lockkeeper: `SET` without a fence": (proxy, ["=+OK", "SET", "none:{c}", VALUE]),
                "lockkeeper: `EVALSHA` with one `SET`": (proxy, ["=+OK", "EVALSHA", sha, "1", "none:{c}", VALUE]),
                "lockkeeper: `SET` behind a fence, by the holder": (proxy, ["=+OK", "SET", "fenced:{c}", VALUE])}
        runs = {}
        for number in range(bench.rounds):
            for way in shuffled(ways, bench.samples // 4, number):
                server, words = ways[way]
                result = bench.attempt(way, bench.with_cpu, server, [redis], bench.load, server.port, 50, 1, 10000, words)
                if result:
                    runs.setdefault(way, []).append(result)
        return {way: figures(runs[way]) for way in ways if way in runs}
    finally:
        if holder:
            holder.close()
        if proxy:
            proxy.stop()
        redis.stop()


def by_connections(bench):
    """Acquire and release of uncontended locks, by few and many connections, one pair at a time and 16 in one write: written
    by hand without a proxy, and through the proxy with both forms of guard records."""
    limit = ["--maxclients", "5200"]
    redis = bench.fleet.start_redis(extra=limit)
    started = []
    try:
        sha = Connection(redis.port).call("SCRIPT", "LOAD", COMPARE_AND_DELETE)
        servers = {"by hand": redis}
        for records in ("hash", "short"):
            started.append(bench.fleet.start_lockkeeper(upstream=redis, extra=["--guard-records", records, *limit]))
            servers["`guard-records %s`" % records] = started[-1]
        acquire = ["=+OK", "SET", "lock:{c}", VALUE, "NX", "PX", "60000", ";"]
        release = {redis: ["=:1", "EVALSHA", sha, "1", "lock:{c}", VALUE]}
        rows, runs = {}, {}
        for number in range(bench.rounds):
            for connections in (1, 8, 50, 500, 5000):
                for pairs in (1, 16):
                    commands = (4000 if connections == 1 else 20000) * (1 if pairs == 1 else 4)
                    for way in shuffled(servers, max(1, bench.samples // 10), number) if room_for(connections) else ():
                        server = servers[way]
                        name = "%s connection%s, %s: %s" % ("{:,}".format(connections), "s" * (connections > 1),
                                                            "a pair at a time" if pairs == 1 else "16 pairs", way)
                        result = bench.attempt(name, bench.with_cpu, server, [redis], bench.load, server.port, connections,
                                               1 if pairs == 1 else 32, max(commands, 2 * pairs * connections),
                                               acquire + release.get(server, ["=:1", "DEL", "lock:{c}"]))
                        if result:
                            runs.setdefault(name, []).append(result)
        for name, results in runs.items():
            rows[name] = figures(results, unit=2)
        return rows
    finally:
        for server in started:
            server.stop()
        redis.stop()


def trust(proxy, witnesses):
    """Ends the witnesses' quarantine: they are new."""
    connection, deadline = Connection(proxy.port), time.monotonic() + 10
    for witness in witnesses:
        while connection.call("PROXY", "WITNESS", "TRUST", "127.0.0.1:%d" % witness.port) != "OK":
            if time.monotonic() > deadline:
                raise Failed("a witness is not there")
            time.sleep(0.05)
    connection.close()


def by_witnesses(bench):
    """Acquire and release of uncontended locks under `quorum yes`."""
    redis, rows, runs = bench.fleet.start_redis(), {}, {}
    witnesses = [bench.fleet.start_redis(name="witness") for _ in range(5)]
    proxies = {}
    try:
        for count in (0, 1, 3, 5):
            named = witnesses[:count]
            extra = ["--witness", *("127.0.0.1:%d" % w.port for w in named), "--lock", "lock:*", "quorum", "yes"]
            proxy = proxies[count] = bench.fleet.start_lockkeeper(upstream=redis, extra=extra if count else [])
            trust(proxy, named)
        pair = ["=+OK", "SET", "lock:{c}", VALUE, "NX", "PX", "60000", ";", "=:1", "DEL", "lock:{c}"]
        for number in range(bench.rounds):
            for connections in (1, 50):
                for count in shuffled(proxies, max(1, bench.samples // 5), number):
                    name = "%d connection%s, %s" % (connections, "s" * (connections > 1),
                                                    "witnesses: %d" % count if count else "without quorum")
                    before = witnesses[0].cpu_seconds()
                    result = bench.attempt(name, bench.with_cpu, proxies[count], [redis], bench.load, proxies[count].port,
                                           connections, 1, 4000 if connections == 1 else 20000, pair)
                    if result:
                        result["witness_cpu"] = witnesses[0].cpu_seconds() - before
                        runs.setdefault(name, []).append(result)
        for name, results in runs.items():
            rows[name] = figures(results, unit=2)
            rows[name]["witness_cpu_us"] = middle(r["witness_cpu"] / r["requests"] * 2e6 for r in results)
        return rows
    finally:
        for server in (*proxies.values(), *witnesses, redis):
            server.stop()


TABLES = {"pairs": ("Acquire and release, by connections", by_connections),
          "quorum": ("Acquire and release under `quorum yes`, by witnesses", by_witnesses),
          "contention": ("One held lock, spun on", contention),
          "fenced": ("Data behind a fence: SET, 50 connections", fenced),
          "latency": ("One connection, everything on one core: GET", one_core),
          "cores": ("50 connections, two cores, two of three programs on one of them: SET", shared_core),
          "idle": ("Idle connections beside busy ones: GET", idle_neighbours),
          "threads": ("One thread and two, 50 connections: GET", threads)}
