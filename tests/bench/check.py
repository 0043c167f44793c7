#!/usr/bin/env python3
"""Checks bounds: the proxy's instructions and system calls for a forwarded request, its instructions for a lock compared with
forwarded requests, Redis's work for a write behind a fence compared with a script with one SET, and the memory of a session
that waits for a lock.

check.py --lockkeeper PROGRAM

Instructions are counted under callgrind, system calls inside the process (count_calls.c). Everything runs on one core, and a
process that wakes up does not preempt another (SCHED_BATCH). So the number of requests in one turn of the proxy's loop does not
depend on the machine, and the figures repeat within about 2 %. README.md in this folder explains the method. About two
minutes.
"""
import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from scale import FENCE, ONE_SET, VALUE
from servers import Connection, Failed, Fleet, encode, need, redis_benchmark, settled_memory

FEW, MANY = 2000, 12000
CALLS_FEW, CALLS_MANY = 5000, 65000
CLUSTER = 1.15  # of what a standalone may cost

# test, pipeline depth, connections, instructions, system calls
BOUNDS = [
    ("get", 1, 50, 1800, 2.1),
    ("set", 1, 50, 1800, 2.1),
    ("get", 16, 50, 800, 0.2),
    ("set", 16, 50, 800, 0.2),
]

# Acquire and release of an uncontended lock: the proxy's instructions, and Redis's. The bounds are absolute: as a share of what
# a forwarded SET and DEL cost, each saving there would count against the lock.
LOCK_PAIR = 6900
LOCK_PAIR_OF_REDIS = 134000
# The same with guard records in the short form.
SHORT_PAIR = 10000
SHORT_PAIR_OF_REDIS = 70000
SHORT = ["--guard-records", "short"]
# System calls of 16 commands in one write of each client, a pair: the replies of one lock come one by one, and are written
# together.
PIPELINED_CALLS = 1.5
MAY_WAIT = ["--lock", "lock:*", "wait", "600s"]
TOKEN = "0123456789abcdef0123456789abcdef0123"
FORWARDED = ["=+OK", "SET", "none:{c}", TOKEN, ";", "=:1", "DEL", "none:{c}"]
ON_A_LOCK = ["=+OK", "SET", "lock:{c}", TOKEN, "NX", "PX", "30000", ";", "=:1", "DEL", "lock:{c}"]

# The same under a rule with `wait`, by instructions of the pair without it.
WAITING_PAIR = 1.12

# Bytes of a session that waits, beside an idle connection. So many sessions that what the allocator keeps free, up to 128 kB,
# counts for little.
WAITING, WAITERS = 400, 8000

# A SET of fenced data by the lock's holder, by Redis's instructions of a forwarded EVALSHA with one SET.
FENCED_SET = 3


def benchmark(test, depth, connections, requests):
    return lambda server: redis_benchmark(server.port, test, depth, connections, requests)


def pair_load(program, words, commands):
    def load(server):
        done = subprocess.run([program, "-p", str(server.port), "-c", "50", "-n", str(commands), *words],
                              capture_output=True, text=True, timeout=300)
        if done.returncode or json.loads(done.stdout)["wrong"]:
            raise Failed("load: " + (done.stdout or done.stderr).strip())
    return load


def build(folder, name, *flags):
    program = os.path.join(folder, name)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".c")
    try:
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", *flags, "-o", program, source],
                       check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed("%s.c was not built: %s" % (name, error))
    return program


def run(server, load):
    try:
        load(server)
    finally:
        server.stop()


def instructions_of(fleet, start, load):
    """The instructions of a whole run."""
    out = tempfile.mktemp(prefix="callgrind-", dir=fleet.folder)
    run(start(wrapper=[need("valgrind"), "--tool=callgrind", "--callgrind-out-file=" + out]), load)
    with open(out, errors="replace") as f:
        found = re.findall(r"^(?:totals|summary): (\d+)", f.read(), re.MULTILINE)
    if not found:
        raise Failed("callgrind wrote no total")
    return int(found[-1])


def calls_of(fleet, counter, start, load):
    """The system calls of a whole run."""
    out = tempfile.mktemp(prefix="calls-", dir=fleet.folder)
    run(start(wrapper=["env", "LD_PRELOAD=" + counter, "COUNT_CALLS_TO=" + out]), load)
    with open(out) as f:
        return int(f.read())


def settled(measure, bound):
    """The figure; where it is above its bound the median of three, since how much a turn of the loop has to do is chance."""
    figures = [measure()]
    if figures[0] > bound:
        figures += [measure(), measure()]
    return sorted(figures)[len(figures) // 2]


def check(fleet, counter):
    """Returns how many figures are above their bound."""
    above = 0
    print("%-34s %22s %22s" % ("", "instructions (bound)", "system calls (bound)"))
    for name, start, factor in (("standalone", fleet.start_lockkeeper, 1),
                                ("cluster", fleet.start_lockkeeper_cluster, CLUSTER)):
        for test, depth, connections, instructions, calls in BOUNDS:
            def a_request(count, few, many):
                """What a request more costs."""
                totals = [count(start, benchmark(test, depth, connections, n)) for n in (few, many)]
                return (totals[1] - totals[0]) / (many - few)
            times = min(depth, 2)
            bounds = [instructions * factor]
            got = [settled(lambda: a_request(lambda *run: instructions_of(fleet, *run), FEW * times, MANY * times), bounds[0])]
            if factor == 1:  # a cluster's requests go to three nodes: what a turn costs is not paid once, but three times
                bounds.append(calls)
                got.append(settled(lambda: a_request(lambda *run: calls_of(fleet, counter, *run), CALLS_FEW, CALLS_MANY), calls))
            bad = [value > bound for value, bound in zip(got, bounds)]
            above += sum(bad)
            print("%-34s %14.0f (%5.0f) %s%s"
                  % ("%s, %s, -P %d -c %d" % (name, test.upper(), depth, connections), got[0], bounds[0],
                     "%15.3f (%.1f)" % (got[1], bounds[1]) if len(got) > 1 else "", "  ABOVE" if any(bad) else ""),
                  flush=True)
    return above


def is_above(name, cost, other, others_cost, times, bound):
    """Prints a figure beside the one that it is measured by; returns whether it is above its bound."""
    print("%-34s %14.0f, %s: %.0f; times %.2f (%.2f)%s"
          % (name, cost, other, others_cost, times, bound, "  ABOVE" if times > bound else ""), flush=True)
    return times > bound


def check_pipelined(fleet, counter, program):
    """Returns whether pipelined pairs of an uncontended lock take too many system calls."""
    def a_pair():
        few, many = (calls_of(fleet, counter, fleet.start_lockkeeper, pair_load(program, ["-P", "16", *ON_A_LOCK], n))
                     for n in (CALLS_FEW, CALLS_MANY))
        return (many - few) / ((CALLS_MANY - CALLS_FEW) / 2)

    calls = settled(a_pair, PIPELINED_CALLS)
    print("%-34s %22s %15.3f (%.1f)%s" % ("acquire and release, -P 16 -c 50", "", calls, PIPELINED_CALLS,
                                          "  ABOVE" if calls > PIPELINED_CALLS else ""), flush=True)
    return calls > PIPELINED_CALLS


def check_pair(fleet, program):
    """Returns whether a lock costs too much."""
    # A Redis that has not seen the scripts gets their sources from each connection that needs them: once for all.
    run(fleet.start_lockkeeper(), pair_load(program, ON_A_LOCK, FEW))

    def cost(words, extra=()):
        def start(wrapper=()):
            return fleet.start_lockkeeper(wrapper, extra=extra)
        few, many = (instructions_of(fleet, start, pair_load(program, words, n)) for n in (FEW, MANY))
        return (many - few) / ((MANY - FEW) / 2)

    def of_redis(extra):
        def total(count):
            def load(redis):
                run(fleet.start_lockkeeper(upstream=redis, extra=extra), pair_load(program, ON_A_LOCK, count))
            return instructions_of(fleet, fleet.start_redis, load)
        return (total(MANY) - total(FEW)) / ((MANY - FEW) / 2)

    def is_dear(what, measure, bound, remark=""):
        value = settled(measure, bound)
        print("%-34s %14.0f (%5d)%s%s" % (what, value, bound, remark, "  ABOVE" if value > bound else ""), flush=True)
        return value > bound

    costs = []

    def waiting_ratio():
        costs[:] = cost(ON_A_LOCK), cost(ON_A_LOCK, MAY_WAIT)
        return costs[1] / costs[0]

    above = is_dear("acquire and release, -P 1 -c 50", lambda: cost(ON_A_LOCK), LOCK_PAIR, ", forwarded: %.0f" % cost(FORWARDED))
    above += is_dear("Redis: acquire and release, -c 50", lambda: of_redis(()), LOCK_PAIR_OF_REDIS)
    above += is_dear("the same, short guard records", lambda: cost(ON_A_LOCK, SHORT), SHORT_PAIR)
    above += is_dear("Redis, short guard records", lambda: of_redis(SHORT), SHORT_PAIR_OF_REDIS)
    times = settled(waiting_ratio, WAITING_PAIR)
    return above + is_above(
        "the same, where others may wait", costs[1], "without", costs[0], times, WAITING_PAIR)


def waiting_bytes(fleet):
    """The memory that a session takes which waits, beside that of its connection."""
    words, begun = ["SET", "lock:taken", TOKEN, "NX", "PX", "30000"], [0]
    proxy = fleet.start_lockkeeper(extra=MAY_WAIT)
    holder = Connection(proxy.port)
    holder.call("SET", "lock:taken", "holder", "NX", "PX", "600000")

    def begin(number):
        connections = [Connection(proxy.port) for _ in range(number)]
        for connection in connections:
            connection.call("GET", "none")
        idle = settled_memory(proxy)
        for connection in connections:
            connection.socket.sendall(encode(*words))
            begun[0] += 1
            while begun[0] % 100 == 0 and "\nwaiting:%d\r\n" % begun[0] not in holder.call("PROXY", "INFO"):
                time.sleep(0.01)
        return connections, settled_memory(proxy) - idle

    first, _ = begin(100)  # what a thread needs once
    rest, taken = begin(WAITERS)
    for connection in first + rest:
        connection.close()
    holder.call("DEL", "lock:taken")
    proxy.stop()
    return taken / WAITERS


def check_waiting(fleet):
    """Returns whether a session that waits takes too much memory."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    taken = settled(lambda: waiting_bytes(fleet), WAITING)
    print("%-34s %14.0f bytes beside its connection's (%d)%s"
          % ("a session that waits", taken, WAITING, "  ABOVE" if taken > WAITING else ""), flush=True)
    return taken > WAITING


def check_fenced(fleet, program):
    """Returns whether a write behind a fence costs Redis too much."""
    def cost(count, of_script):
        def load(redis):
            sha = Connection(redis.port).call("SCRIPT", "LOAD", ONE_SET)
            proxy = fleet.start_lockkeeper(upstream=redis, extra=FENCE)
            holder = Connection(proxy.port)
            holder.call("SET", "lock:fenced", "holder", "NX", "PX", "600000")
            script = ["=+OK", "EVALSHA", sha, "1", "none:{c}", VALUE]
            run(proxy, pair_load(program, script if of_script else ["=+OK", "SET", "fenced:{c}", VALUE], count))
        return instructions_of(fleet, fleet.start_redis, load)

    costs = []

    def ratio():
        costs[:] = [(cost(MANY, of_script) - cost(FEW, of_script)) / (MANY - FEW) for of_script in (True, False)]
        return costs[1] / costs[0]

    times = settled(ratio, FENCED_SET)
    return is_above("Redis: SET behind a fence, -c 50", costs[1], "a script with one", costs[0], times, FENCED_SET)


def main():
    parser = argparse.ArgumentParser(description="Fails where a forwarded request costs the proxy too much.")
    parser.add_argument("--lockkeeper", required=True, metavar="PROGRAM", help="a Release build")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    folder = tempfile.mkdtemp(prefix="lockkeeper-check-")
    fleet = Fleet(folder, os.path.abspath(options.lockkeeper))
    try:
        fleet.start_upstreams()
        counter, load = build(folder, "count_calls", "-shared", "-fPIC"), build(folder, "load")
        above = check(fleet, counter) + check_pipelined(fleet, counter, load)
        above += check_pair(fleet, load) + check_fenced(fleet, load) + check_waiting(fleet)
    except Failed as error:
        sys.exit("check: %s" % error)
    finally:
        fleet.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if above:
        sys.exit("check: %d figures are above their bounds" % above)


if __name__ == "__main__":
    main()
