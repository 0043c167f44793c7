#!/usr/bin/env python3
"""Measures lockkeeper beside Redis itself, nutcracker and haproxy, and prints Markdown tables.

bench.py --lockkeeper PROGRAM --load PROGRAM --bare PROGRAM --contend PROGRAM [--quick] [--only TABLE] ... [--json FILE]
TABLE: speed, instructions, syscalls, memory, locks, verbs, contended, pairs, quorum, contention, fenced, latency,
cores, idle, threads. README.md in this folder explains the method.

A peer that is missing or fails is a '-' in the tables, and a line under them says why; the others go on.
"""
import argparse
import concurrent.futures
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import contended
import scale
import verbs
from servers import Connection, Failed, Fleet, need, redis_benchmark, settled_memory

TABLES = ["speed", "instructions", "syscalls", "memory", "locks", "verbs", "contended", *scale.TABLES]
CONNECTIONS = 50
IDLE_CONNECTIONS = 2000
PEERS = ["redis", "lockkeeper", "lockkeeper cluster", "nutcracker", "haproxy"]
PROXIES = PEERS[1:]
BARE = "bare"  # bare.c, which is measured without pipelining only
SPEED_PEERS = [*PEERS, BARE]
TITLES = {"redis": "Redis, direct", "lockkeeper": "lockkeeper", "lockkeeper cluster": "lockkeeper, cluster",
          "nutcracker": "nutcracker", "haproxy": "haproxy (TCP)", BARE: "bare forwarding"}

# name: (redis-benchmark test, pipeline depth, connections)
WORKLOADS = {
    "GET, 50 connections": ("get", 1, 50),
    "SET, 50 connections": ("set", 1, 50),
    "GET, 50 connections, -P 16": ("get", 16, 50),
    "SET, 50 connections, -P 16": ("set", 16, 50),
    "GET, 1 connection, -P 16": ("get", 16, 1),
    "SET, 1 connection, -P 16": ("set", 16, 1),
}

HOLD = ["NX", "PX", "30000"]

# name: (peer, the pair of commands as tests/bench/load takes it). The token is as long as a UUID.
TOKEN = "5b1d7c52-0d6e-4f0c-9d53-3f9f8a3f1c77"
LOCK_PAIRS = {
    "Redis, direct: `SET NX PX`, `DEL` (unsafe)":
        ("redis", ["=+OK", "SET", "lock:{c}", TOKEN, *HOLD, ";", "=:1", "DEL", "lock:{c}"]),
    "Redis, direct: `SET NX PX`, `EVALSHA` compare-and-delete":
        ("redis", ["=+OK", "SET", "lock:{c}", TOKEN, *HOLD, ";", "=:1", "EVALSHA", "{sha}", "1", "lock:{c}", TOKEN]),
    "lockkeeper: `SET`, `DEL` forwarded":
        ("lockkeeper", ["=+OK", "SET", "none:{c}", TOKEN, ";", "=:1", "DEL", "none:{c}"]),
    "lockkeeper: `SET NX PX`, `DEL` forwarded (no lock rule)":
        ("lockkeeper", ["=+OK", "SET", "none:{c}", TOKEN, *HOLD, ";", "=:1", "DEL", "none:{c}"]),
    "lockkeeper: `SET NX PX`, `DEL` on a lock":
        ("lockkeeper", ["=+OK", "SET", "lock:{c}", TOKEN, *HOLD, ";", "=:1", "DEL", "lock:{c}"]),
    "lockkeeper, cluster: forwarded":
        ("lockkeeper cluster", ["=+OK", "SET", "none:{c}", TOKEN, *HOLD, ";", "=:1", "DEL", "none:{c}"]),
    "lockkeeper, cluster: on a lock":
        ("lockkeeper cluster", ["=+OK", "SET", "lock:{c}", TOKEN, *HOLD, ";", "=:1", "DEL", "lock:{c}"]),
}


class Bench:
    def __init__(self, fleet, load_program, contend_program, quick):
        self.fleet, self.load_program, self.quick = fleet, load_program, quick
        self.contend_program = contend_program
        self.rounds, self.samples = (3, 5) if quick else (5, 20)  # samples: short runs of each peer in a round
        self.titles = TITLES
        self.results = {}
        self.notes = []
        self.starters = {"lockkeeper": fleet.start_lockkeeper, "lockkeeper cluster": fleet.start_lockkeeper_cluster,
                         "nutcracker": fleet.start_nutcracker, "haproxy": fleet.start_haproxy, BARE: fleet.start_bare}
        self.sha = Connection(fleet.redis.port).call("SCRIPT", "LOAD", scale.COMPARE_AND_DELETE)

    # Small things

    def attempt(self, what, function, *arguments):
        """The function's result, or None and a note. The same failure is noted once."""
        try:
            return function(*arguments)
        except (Failed, OSError, subprocess.SubprocessError, ValueError) as error:
            if not any(note.endswith(": %s" % error) for note in self.notes):
                self.notes.append("%s: %s" % (what, error))
            return None

    @staticmethod
    def two_at_once(calls):
        """Runs (function, arguments ...) calls, two at a time: for counts, which don't depend on the time taken."""
        pool = concurrent.futures.ThreadPoolExecutor(2)
        try:
            for job in [pool.submit(*call) for call in calls]:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def start_peers(self, names):
        """name -> Server, for the servers that start. Redis itself is always there."""
        peers = {}
        for name in names:
            server = self.fleet.redis if name == "redis" else self.attempt(TITLES[name], self.starters[name])
            if server:
                peers[name] = server
        return peers

    def upstreams(self, peer):
        return self.fleet.cluster if peer == "lockkeeper cluster" else [self.fleet.redis]

    def run(self, table):
        if table not in scale.TABLES:
            getattr(self, table)()
            return
        progress(table)
        rows = self.attempt(table, scale.TABLES[table][1], self)
        if rows:
            self.results[table] = rows

    # Load

    @staticmethod
    def redis_benchmark(port, workload, requests):
        return redis_benchmark(port, *WORKLOADS[workload], requests)

    def pair_load(self, port, pair, depth, commands):
        words = [word.replace("{sha}", self.sha) for word in LOCK_PAIRS[pair][1]]
        return self.load(port, CONNECTIONS, depth, commands, words)

    def load(self, port, connections, depth, commands, words):
        run = subprocess.run([self.load_program, "-p", str(port), "-c", str(connections), "-P", str(depth),
                              "-n", str(commands), *words], capture_output=True, text=True, timeout=120)
        if not run.stdout.startswith("{"):
            raise Failed("load: %s" % run.stderr.strip())
        result = json.loads(run.stdout)
        if result["wrong"]:
            raise Failed("%d of %d replies were wrong, first: %s"
                         % (result["wrong"], result["requests"], result["first_wrong"]))
        return result

    def with_cpu(self, server, upstreams, function, *arguments):
        """function's result, and the CPU seconds of server and of the upstreams while it ran."""
        def used():
            return server.cpu_seconds(), sum(upstream.cpu_seconds() for upstream in upstreams)
        before = used()
        result = function(*arguments)
        after = used()
        result["proxy_cpu"] = 0 if server in upstreams else after[0] - before[0]
        result["redis_cpu"] = after[1] - before[1]
        return result

    # Tables

    def speed(self):
        """Rounds over all peers, so that a busy moment of the machine meets all of them."""
        peers = self.start_peers(SPEED_PEERS)
        runs = {}
        for number in range(self.rounds):
            for workload, (_, depth, connections) in WORKLOADS.items():
                names = [peer for peer in peers if peer != BARE or depth == 1]
                requests = 100000 if depth > 1 and connections > 1 else 10000
                progress("speed, round %d of %d: %s" % (number + 1, self.rounds, workload))
                # The cost of a request depends on which programs share a core: many short runs.
                for peer in scale.shuffled(names, self.samples, number):
                    result = self.attempt("%s, %s" % (TITLES[peer], workload), self.with_cpu, peers[peer],
                                          self.upstreams(peer), self.redis_benchmark, peers[peer].port, workload,
                                          requests)
                    if result:
                        runs.setdefault((workload, peer), []).append(result)
        for name, peer in peers.items():
            if name != "redis":
                peer.stop()
        table = self.results["speed"] = {}
        for (workload, peer), results in runs.items():
            table.setdefault(workload, {})[peer] = scale.figures(results)

    def counted(self, count, start, load, few, many):
        """Events per request: a run with few requests and one with many; the difference has no start-up in it. start(wrapper)
        starts the server; load(port, n) sends n requests to it and returns how many there were."""
        totals = []
        for requests in (few, many):
            wrapper, read = count(self.fleet)
            server = start(wrapper)
            try:
                done = load(server, requests)
            finally:
                server.stop()
            totals.append((done, read()))
        return (totals[1][1] - totals[0][1]) / (totals[1][0] - totals[0][0])

    def count_workloads(self, table, count, few, many):
        workloads = [w for w in WORKLOADS if not self.quick or w.startswith("GET")]
        results = self.results[table] = {workload: {} for workload in workloads}

        def one(workload, peer):
            progress("%s: %s, %s" % (table, workload, TITLES[peer]))

            def load(server, requests):
                self.redis_benchmark(server.port, workload, requests)
                return requests
            depth = WORKLOADS[workload][1]
            value = self.attempt("%s, %s, %s" % (TITLES[peer], workload, table), self.counted, count,
                                 self.starters[peer], load, few * min(depth, 2), many * min(depth, 2))
            if value is not None:
                results[workload][peer] = value
        self.two_at_once([(one, workload, peer) for workload in workloads for peer in PROXIES])

    def instructions(self):
        self.count_workloads("instructions", callgrind, 2000, 6000 if self.quick else 12000)

    def syscalls(self):
        self.count_workloads("syscalls", strace, 2000, 6000 if self.quick else 12000)

    def memory(self):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = min(500 if self.quick else IDLE_CONNECTIONS, (limit - 200) // 2)
        self.results["memory"] = {"connections": wanted, "peers": {}}
        for peer in PROXIES:
            progress("memory: %s, %d idle connections" % (TITLES[peer], wanted))
            server = self.attempt(TITLES[peer], self.starters[peer])
            if server:
                result = self.attempt("%s, memory" % TITLES[peer], self.idle_memory, server, wanted)
                server.stop()
                if result:
                    self.results["memory"]["peers"][peer] = result

    @staticmethod
    def idle_memory(server, count):
        """Each connection does one GET and then stays. What the first ten needed is not counted."""
        def use(number):
            connections = [Connection(server.port) for _ in range(number)]
            for connection in connections:
                connection.call("GET", "key:000000000000")
            return connections, settled_memory(server)
        first, before = use(10)
        rest, after = use(count)
        for connection in first + rest:
            connection.close()
        return {"process": before, "connection": (after - before) / count}

    def locks(self):
        depths = [1] if self.quick else [1, 16]
        peers = self.start_peers(["redis", "lockkeeper", "lockkeeper cluster"])
        runs = {}
        for number in range(self.rounds):
            for depth in depths:
                progress("locks, round %d of %d, -P %d" % (number + 1, self.rounds, depth))
                commands = 10000 if depth == 1 else 40000
                pairs = [(pair, peer) for pair, (peer, _) in LOCK_PAIRS.items() if peer in peers]
                for pair, peer in scale.shuffled(pairs, self.samples // (1 if depth == 1 else 5), number):
                    result = self.attempt("%s, -P %d" % (pair, depth), self.with_cpu, peers[peer],
                                          self.upstreams(peer), self.pair_load, peers[peer].port, pair, depth,
                                          commands)
                    if result:
                        runs.setdefault((depth, pair), []).append(result)
        for name, peer in peers.items():
            if name != "redis":
                peer.stop()
        table = self.results["locks"] = {}
        for (depth, pair), results in runs.items():
            table.setdefault(depth, {})[pair] = scale.figures(results, unit=2)
        self.count_locks(table, depths)

    def verbs(self):
        progress("verbs")
        rows = self.attempt("verbs", verbs.measure, self, callgrind)
        if rows:
            self.results["verbs"] = rows

    def contended(self):
        progress("contended")
        rows = self.attempt("contended", contended.handing_over, self)
        if rows:
            self.results["contended"] = rows

    def count_locks(self, table, depths):
        """Instructions a pair, of the proxy and of Redis (of a Redis of its own; not of the cluster's three)."""
        few, many = 1000, 3000 if self.quick else 6000

        def of_proxy(pair, depth):
            def load(server, commands):
                return self.pair_load(server.port, pair, depth, commands)["requests"] / 2
            return self.counted(callgrind, self.starters[LOCK_PAIRS[pair][0]], load, few, many)

        def of_redis(pair, depth):
            def load(redis, commands):
                Connection(redis.port).call("SCRIPT", "LOAD", scale.COMPARE_AND_DELETE)
                if LOCK_PAIRS[pair][0] == "redis":
                    return self.pair_load(redis.port, pair, depth, commands)["requests"] / 2
                proxy = self.fleet.start_lockkeeper(upstream=redis)
                try:
                    return self.pair_load(proxy.port, pair, depth, commands)["requests"] / 2
                finally:
                    proxy.stop()
            return self.counted(callgrind, self.fleet.start_redis, load, few, many)

        def one(name, count, pair, depth):
            progress("locks, %s: %s, -P %d" % (name, pair, depth))
            value = self.attempt("%s, -P %d, %s" % (pair, depth, name), count, pair, depth)
            if value is not None:
                table.setdefault(depth, {}).setdefault(pair, {})[name] = value
        calls = []
        for depth in depths:
            for pair, (peer, _) in LOCK_PAIRS.items():
                if peer != "redis":
                    calls.append((one, "proxy_instructions", of_proxy, pair, depth))
                if peer != "lockkeeper cluster":
                    calls.append((one, "redis_instructions", of_redis, pair, depth))
        self.two_at_once(calls)


# Counting tools: each returns the command line to put before the server's, and a function that reads the total
# after the server has ended.


def callgrind(fleet):
    out = tempfile.mktemp(prefix="callgrind-", dir=fleet.folder)

    def read():
        with open(out, errors="replace") as f:
            found = re.findall(r"^(?:totals|summary): (\d+)", f.read(), re.MULTILINE)
        if not found:
            raise Failed("callgrind wrote no total")
        return int(found[-1])
    return [need("valgrind"), "--tool=callgrind", "--callgrind-out-file=" + out], read


def strace(fleet):
    out = tempfile.mktemp(prefix="strace-", dir=fleet.folder)

    def read():
        with open(out) as f:
            found = re.findall(r"^\s*100\.00\s+\S+\s+\d+\s+(\d+).*total$", f.read(), re.MULTILINE)
        if not found:
            raise Failed("strace wrote no total")
        return int(found[-1])
    return [need("strace"), "-f", "-c", "-o", out], read


def progress(text):
    print("\r\033[K%s ..." % text if sys.stderr.isatty() else "%s ..." % text, file=sys.stderr,
          end="" if sys.stderr.isatty() else "\n", flush=True)


# Markdown


def markdown(header, rows):
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
    rule = "|" + "|".join("-" * (width + 2 if i == 0 else width + 1) + ("" if i == 0 else ":")
                          for i, width in enumerate(widths)) + "|"
    print("\n".join([line(header), rule, *map(line, rows)]) + "\n")


def number(value, digits=0):
    return "-" if value is None else "{:,.{}f}".format(value, digits)


def print_matrix(title, table, peers, cell):
    """A row a workload, a column a peer."""
    if not table:
        return
    print("**%s**\n" % title)
    markdown([""] + [TITLES[peer] for peer in peers],
             [[workload] + [cell(row[peer]) if peer in row else "-" for peer in peers]
              for workload, row in table.items()])


def print_results(results):
    speed = results.get("speed")
    if speed:
        print_matrix("Requests a second", speed, SPEED_PEERS, lambda r: number(r["rps"]))
        print_matrix("Latency, median / 99th percentile, ms", speed, SPEED_PEERS,
                     lambda r: "%.2f / %.2f" % (r["p50_ms"], r["p99_ms"]))
        print_matrix("CPU time of the proxy, µs a request", speed, SPEED_PEERS[1:],
                     lambda r: number(r["proxy_cpu_us"], 2))
        print_matrix("CPU time of Redis, µs a request", speed, SPEED_PEERS, lambda r: number(r["redis_cpu_us"], 2))
    print_matrix("User instructions of the proxy, a request", results.get("instructions"), PROXIES, number)
    print_matrix("System calls of the proxy, a request", results.get("syscalls"), PROXIES, lambda n: number(n, 2))
    memory = results.get("memory")
    if memory:
        print("**Memory, bytes an idle connection** (%s of them)\n" % number(memory["connections"]))
        markdown([""] + [TITLES[peer] for peer in PROXIES],
                 [[title] + [number(memory["peers"].get(peer, {}).get(field)) for peer in PROXIES]
                  for title, field in (("a connection", "connection"), ("the process, 10 connections", "process"))])
    for depth, table in (results.get("locks") or {}).items():
        print("**Locks: acquire and release, a pair** (%d connections, -P %d)\n" % (CONNECTIONS, depth))
        markdown(["", "pairs a second", "p50 / p99, ms", "proxy CPU, µs", "Redis CPU, µs", "proxy instructions",
                  "Redis instructions"],
                 [[pair, number(r.get("rps")),
                   "%.2f / %.2f" % (r["p50_ms"], r["p99_ms"]) if "p50_ms" in r else "-",
                   number(r.get("proxy_cpu_us") or None, 1), number(r.get("redis_cpu_us"), 1),
                   number(r.get("proxy_instructions")), number(r.get("redis_instructions"))]
                  for pair, r in ((pair, table.get(pair, {})) for pair in LOCK_PAIRS)])
    if results.get("verbs"):
        print("**Commands on locks** (%d connections)\n" % verbs.CONNECTIONS)
        markdown(verbs.HEADER, verbs.rows(results["verbs"]))
    for load, by_way in (results.get("contended") or {}).items():
        print("**One lock, contended: %s**\n" % load)
        markdown(contended.HEADER, contended.rows(by_way))
    for name, (title, _) in scale.TABLES.items():
        if results.get(name):
            print("**%s**\n" % title)
            shares = any("smaller_share" in row for row in results[name].values())
            witnesses = any("witness_cpu_us" in row for row in results[name].values())
            markdown(["", "a second", "p50 / p99, ms", "proxy CPU, µs", "Redis CPU, µs"] +
                     ["the less busy thread"] * shares + ["a witness's CPU, µs"] * witnesses,
                     [[row, number(r["rps"]), "%.3f / %.3f" % (r["p50_ms"], r["p99_ms"]),
                       number(r["proxy_cpu_us"] or None, 2), number(r["redis_cpu_us"], 2)] +
                      (["%.0f %%" % (100 * r["smaller_share"]) if "smaller_share" in r else ""] if shares else []) +
                      ([number(r["witness_cpu_us"], 2)] if witnesses else [])
                      for row, r in results[name].items()])


def version(command):
    try:
        run = subprocess.run([need(command[0]), *command[1:]], capture_output=True, text=True, timeout=10)
    except (Failed, OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\d+\.\d+(\.\d+)*", run.stdout + run.stderr)
    return found.group(0) if found else None


def versions(lockkeeper):
    commands = {"Redis": ["redis-server", "--version"], "nutcracker": ["nutcracker", "--version"],
                "haproxy": ["haproxy", "-v"]}
    if lockkeeper:
        commands["lockkeeper"] = [lockkeeper, "--version"]
    return {name: version(command) for name, command in commands.items()}


def main():
    parser = argparse.ArgumentParser(description="Measures lockkeeper beside Redis, nutcracker and haproxy.")
    parser.add_argument("--lockkeeper", default="", metavar="PROGRAM", help="the proxy; without it, a '-'")
    parser.add_argument("--load", required=True, metavar="PROGRAM", help="tests/bench/load.c, compiled")
    parser.add_argument("--bare", default="", metavar="PROGRAM", help="tests/bench/bare.c, compiled; without it, a '-'")
    parser.add_argument("--contend", default="", metavar="PROGRAM", help="tests/bench/contend.c, compiled; without it, a '-'")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, runs and requests, three minutes")
    parser.add_argument("--only", action="append", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--json", metavar="FILE", help="the figures, for machines")
    options = parser.parse_args()

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    folder = tempfile.mkdtemp(prefix="lockkeeper-bench-")
    fleet = Fleet(folder, options.lockkeeper and os.path.abspath(options.lockkeeper),
                  options.bare and os.path.abspath(options.bare))
    began = time.monotonic()
    try:
        fleet.start_upstreams()
        bench = Bench(fleet, os.path.abspath(options.load), options.contend and os.path.abspath(options.contend),
                      options.quick)
        for table in TABLES:
            if not options.only or table in options.only:
                bench.run(table)
    except Failed as error:
        sys.exit("bench: %s" % error)
    finally:
        fleet.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if sys.stderr.isatty():
        print("\r\033[K", file=sys.stderr, end="")

    known = versions(fleet.lockkeeper)
    print("%d shared cores; everything on the loopback interface; %s. %sOne thread a proxy, 64-byte values, "
          "%d rounds.\n"
          % (os.cpu_count(), ", ".join("%s %s" % item for item in known.items() if item[1]),
             "Quick run. " if options.quick else "", bench.rounds))
    print_results(bench.results)
    for note in bench.notes:
        print("- %s" % note)
    print("took %.0f s" % (time.monotonic() - began), file=sys.stderr)
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"cores": os.cpu_count(), "quick": options.quick, "rounds": bench.rounds, "versions": known,
                       "results": bench.results, "notes": bench.notes}, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
