#!/usr/bin/env python3
"""split.py: a proxy that moves between two Redis servers with other data, and workers that count how often two were inside.

    tests/soak/split.py --rounds 100

In each round the configuration gets the other Redis, and the proxy is told to take over from itself (SIGUSR2). At first
without `take-over switch`: the new process refuses, and the workers go on at the old Redis. Then with it: the old process lets
its clients go, and the new one gives out no lock before the longest lease is over. A worker counts a double entry if it enters
while another worker is inside whose lease has not ended.

Prints a line. Exit status 1 if there was a double entry, or a round in which a lock was not acquired again.
"""

import argparse
import ctypes
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("integration", "history", "clients", "clients/contend"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))
sys.path.insert(0, HERE)

import prove
import servers
import two_holders
from servers import until

two_holders.LEASE_MS = 8000
ENDS = r"Process (\d+) takes over at another Redis|No take-over: the new process"
INSIDE = 5  # s that a worker stays inside: longer than a take-over takes
WORKERS = 4


class Rig:
    rests = over = False

    def __init__(self):
        self.room = two_holders.Room("lock:split")
        self.redis = [servers.RedisServer() for _ in range(2)]
        self.proxy = prove.Proxy(self.redis[0], "shutdown-timeout 2", "lock lock:*")
        self.workers = [two_holders.Worker(self, self.room, self.proxy.address) for _ in range(WORKERS)]

    @property
    def keep_since(self):
        return time.monotonic() - INSIDE

    def configure(self, upstream, *lines):
        """The configuration with another upstream and with `lines` of take-over."""
        with open(self.proxy.config) as f:
            kept = [line for line in f.read().splitlines() if not line.startswith(("upstream ", "take-over "))]
        with open(self.proxy.config, "w") as f:
            f.write("\n".join(["upstream " + upstream.upstream(), *lines, *kept]) + "\n")

    def acquired_anew(self):
        before = self.room.entries
        until(lambda: self.room.entries > before, 60, "an acquisition")

    def round(self, n):
        there = self.redis[(n + 1) % 2]
        self.configure(there)
        assert not self.proxy.take_over(ENDS), "a process took over at another Redis"
        self.acquired_anew()
        self.configure(there, "take-over switch")
        assert self.proxy.take_over(ENDS), "no process took over"
        self.acquired_anew()
        until(lambda: there.run("EXISTS", "lock:split"), 60, "a lock at the other Redis", 0.01)

    def stop(self):
        self.over = True
        for worker in self.workers:
            worker.join(60)
        self.proxy.end()
        for redis in self.redis:
            redis.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: processes that take over stay its children
    rig, done, began = Rig(), 0, time.monotonic()
    try:
        for worker in rig.workers:
            worker.start()
        while done < rounds:
            rig.round(done)
            done += 1
    except AssertionError as error:
        print("round %d: %s\n%s" % (done, error, servers.tail(rig.proxy.log_path)))
    finally:
        rig.stop()
    print("%d rounds in %d s: %d double entries of %d" % (done, time.monotonic() - began, rig.room.doubles, rig.room.entries))
    sys.exit(done < rounds or rig.room.doubles > 0)


if __name__ == "__main__":
    main()
