#!/usr/bin/env python3
"""Fails where a forwarded request costs the proxy more instructions or system calls than it may, or a lock more
instructions than so many forwarded requests.

check.py --lockkeeper PROGRAM

Both are counted under callgrind, with everything on one core: then it is not the machine's mood that decides how many
requests are found waiting in one turn of the proxy's loop, and the figures repeat within about 2 %. README.md in this
folder explains the method. About a minute.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from servers import Failed, Fleet, need, redis_benchmark

FEW, MANY = 2000, 12000
CLUSTER = 1.15  # of what a standalone may cost

# test, pipeline depth, connections, instructions, system calls
BOUNDS = [
    ("get", 1, 50, 1800, 2.5),
    ("set", 1, 50, 1800, 2.5),
    ("get", 16, 50, 800, 0.2),
    ("set", 16, 50, 800, 0.2),
]

# Acquire and release of a lock that nobody else wants, by instructions of a forwarded SET and DEL in the same run.
LOCK_PAIR = 3.0
TOKEN = "0123456789abcdef0123456789abcdef0123"
FORWARDED = ["=+OK", "SET", "none:{c}", TOKEN, ";", "=:1", "DEL", "none:{c}"]
ON_A_LOCK = ["=+OK", "SET", "lock:{c}", TOKEN, "NX", "PX", "30000", ";", "=:1", "DEL", "lock:{c}"]


def benchmark(test, depth, connections, requests):
    return lambda server: redis_benchmark(server.port, test, depth, connections, requests)


def pair_load(program, words, commands):
    def run(server):
        done = subprocess.run([program, "-p", str(server.port), "-c", "50", "-n", str(commands), *words],
                              capture_output=True, text=True, timeout=300)
        if done.returncode or json.loads(done.stdout)["wrong"]:
            raise Failed("load: " + (done.stdout or done.stderr).strip())
    return run


def build_load(folder):
    program = os.path.join(folder, "load")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load.c")
    try:
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed("the load generator was not built: %s" % error)
    return program


def totals(fleet, start, load):
    """[instructions, system calls] of a whole run."""
    out = tempfile.mktemp(prefix="callgrind-", dir=fleet.folder)
    server = start(wrapper=[need("valgrind"), "--tool=callgrind", "--collect-systime=yes",
                            "--callgrind-out-file=" + out])
    try:
        load(server)
    finally:
        server.stop()
    with open(out, errors="replace") as f:
        text = f.read()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)
    found = re.findall(r"^(?:totals|summary): (.*)$", text, re.MULTILINE)
    if not events or not found:
        raise Failed("callgrind wrote no total")
    row = dict(zip(events.group(1).split(), (int(n) for n in found[-1].split())))
    return [row["Ir"], row["sysCount"]]


def check(fleet):
    """Returns how many figures are above their bound."""
    above = 0
    print("%-34s %22s %22s" % ("", "instructions (bound)", "system calls (bound)"))
    for name, start, factor in (("standalone", fleet.start_lockkeeper, 1),
                                ("cluster", fleet.start_lockkeeper_cluster, CLUSTER)):
        for test, depth, connections, instructions, syscalls in BOUNDS:
            few, many = (totals(fleet, start, benchmark(test, depth, connections, n * min(depth, 2)))
                         for n in (FEW, MANY))
            requests = (MANY - FEW) * min(depth, 2)
            got = [(b - a) / requests for a, b in zip(few, many)]
            # A cluster's requests go to three nodes: what a turn costs is not paid once, but three times.
            bounds = [instructions * factor, syscalls if factor == 1 else None]
            bad = [bound is not None and value > bound for value, bound in zip(got, bounds)]
            above += sum(bad)
            print("%-34s %14.0f (%5.0f) %15.2f %6s%s"
                  % ("%s, %s, -P %d -c %d" % (name, test.upper(), depth, connections), got[0], bounds[0], got[1],
                     "(%.1f)" % bounds[1] if bounds[1] else "", "  ABOVE" if any(bad) else ""), flush=True)
    return above


def check_pair(fleet, folder):
    """Returns whether a lock costs too much."""
    program = build_load(folder)
    costs = []
    for words in FORWARDED, ON_A_LOCK:
        few, many = (totals(fleet, fleet.start_lockkeeper, pair_load(program, words, n))[0] for n in (FEW, MANY))
        costs.append((many - few) / ((MANY - FEW) / 2))
    ratio = costs[1] / costs[0]
    print("%-34s %14.0f, forwarded: %.0f; times %.2f (%.1f)%s"
          % ("acquire and release, -P 1 -c 50", costs[1], costs[0], ratio, LOCK_PAIR,
             "  ABOVE" if ratio > LOCK_PAIR else ""), flush=True)
    return ratio > LOCK_PAIR


def main():
    parser = argparse.ArgumentParser(description="Fails where a forwarded request costs the proxy too much.")
    parser.add_argument("--lockkeeper", required=True, metavar="PROGRAM", help="a Release build")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    folder = tempfile.mkdtemp(prefix="lockkeeper-check-")
    fleet = Fleet(folder, os.path.abspath(options.lockkeeper))
    try:
        fleet.start_upstreams()
        above = check(fleet) + check_pair(fleet, folder)
    except Failed as error:
        sys.exit("check: %s" % error)
    finally:
        fleet.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if above:
        sys.exit("check: %d figures are above their bounds" % above)


if __name__ == "__main__":
    main()
