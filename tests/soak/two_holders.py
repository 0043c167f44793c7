#!/usr/bin/env python3
"""two_holders.py: rounds of failovers that forget locks, and workers that count how often two of them were inside at once.

    tests/soak/two_holders.py --backend sentinel --rounds 500

Workers of two proxies contend for two locks, lock:plain:* and lock:q:*. The second is under `quorum yes`, with three witnesses.
A worker counts a double entry if it enters while another worker is inside whose lease has not ended. In each round:

1. One witness is stopped, or killed and started empty: it is down, or in quarantine, for the whole round.
2. No lock is held. The replica loses the link to its master. Then a worker acquires each lock, and stays inside.
3. The master is killed (SIGKILL). `sentinel` and `cluster` promote the replica, which has not got the locks. `single` starts the
   server again, empty.
4. All other workers try on, until each has had ATTEMPTS answers, or is inside. Then the workers inside release.
5. Each lock is acquired once more, by a majority of two witnesses. The killed server comes back as a replica.

Prints a line. Exit status 1 if there was a double entry under `quorum`, or a round in which the lock was not acquired again.
"""

import argparse
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

import servers
from resp import Client, Closed, Error
from servers import until

LEASE_MS = 15 * 1000  # an attempt whose reply is lost with the master keeps others out for so long
ATTEMPTS = 3
TIMEOUT = 60
WORKERS = 4  # of each lock
TAG = next("{%d}" % n for n in range(1000) if servers.slot_of(str(n)) < 5000)  # of a slot of the cluster's first master
PAUSE = 0.005  # s between a worker's attempts
PROXY_LINES = ("witness-timeout 300ms", "lock lock:q:* quorum yes lease 60s", "lock lock:*")


class Single(servers.RedisServer):
    """One Redis that keeps no file."""

    def isolate(self):
        pass

    def fail(self):
        self.kill()
        self.start()

    def mend(self):
        pass


def lose_the_link(master, replica):
    """The replica knows all releases, but no later acquisition. (What it has as held stays so until its expiry.)"""
    with master.client() as c:
        until(lambda: c("SET", "step" + TAG, "1") == "OK" and c("WAIT", 1, 1000) >= 1, TIMEOUT, "the replica", 0.05)
    replica.run("CONFIG", "SET", "masteruser", "nobody")
    replica.run("CONFIG", "SET", "masterauth", "nothing")
    master.run("CLIENT", "KILL", "TYPE", "replica")


def forget_the_login(node):
    node.run("CONFIG", "SET", "masteruser", "")
    node.run("CONFIG", "SET", "masterauth", "")


class Sentinels(servers.RedisSentinels):
    """A master, a replica, three Sentinels. The node that was killed is started when it has a successor."""

    def __init__(self):
        super().__init__(patience_ms=3000)
        self.old = None

    def isolate(self):
        self.old = self.master
        lose_the_link(self.old, next(n for n in self.nodes if n is not self.old))

    def fail(self):
        self.old.kill()
        self.failover(self.old)

    def mend(self):
        forget_the_login(next(n for n in self.nodes if n is not self.old))
        self.old.start()
        until(self.agreed, TIMEOUT, "the Sentinels' agreement", 0.05)


class Cluster(servers.RedisCluster):
    """Three masters; the first has a replica, with which it changes places."""

    def __init__(self):
        super().__init__(replica=True)
        self.pair = [self.nodes[0], self.replica]

    def isolate(self):
        lose_the_link(*self.pair)

    def fail(self):
        self.pair[0].kill()
        self.pair[1].run("CLUSTER", "FAILOVER", "TAKEOVER")
        self.pair.reverse()

    def mend(self):
        master, old = self.pair
        forget_the_login(master)
        old.start()
        until(old.is_replica, TIMEOUT, "the place of the killed master", 0.05)
        until(lambda: "master_link_status:up" in old.run("INFO", "replication"), TIMEOUT, "the replica's link", 0.05)


BACKENDS = {"single": Single, "sentinel": Sentinels, "cluster": Cluster}


class Room:
    """A lock's critical section: which workers are inside, and until when."""

    def __init__(self, key):
        self.key = key
        self.mutex = threading.Lock()
        self.inside = {}  # worker -> (when it asked, end of its lease)
        self.entries = self.doubles = 0

    def enter(self, worker, asked):
        with self.mutex:
            now, end = time.monotonic(), asked + LEASE_MS / 1000
            self.entries += 1
            self.doubles += now < end and any(now < other for _, other in self.inside.values())
            self.inside[worker] = asked, end

    def leave(self, worker):
        with self.mutex:
            del self.inside[worker]

    def entered_since(self, when):
        with self.mutex:
            return any(asked > when for asked, _ in self.inside.values())


class Worker(threading.Thread):
    """Acquires its room's lock, and releases it, again and again. Stays inside while `rig.keep_since` says so."""

    def __init__(self, rig, room, address):
        super().__init__(daemon=True)
        self.rig, self.room, self.address = rig, room, address
        self.answers, self.resting, self.client, self.failure = 0, False, None, None

    def ask(self, *command):
        """The reply; an Error if there is none."""
        try:
            self.client = self.client or Client(self.address, timeout=TIMEOUT, commands=[("CLIENT", "SETNAME", self.name)])
            return self.client(*command)
        except (OSError, Closed) as error:
            self.client = None
            return Error(str(error))

    def turn(self):
        asked = time.monotonic()
        reply = self.ask("SET", self.room.key, "1", "NX", "PX", LEASE_MS)
        if reply == "OK":
            self.room.enter(self, asked)
            while asked > self.rig.keep_since:
                time.sleep(PAUSE)
            self.room.leave(self)
            self.ask("DEL", self.room.key)
        elif isinstance(reply, Error) and "unknown" in reply:
            self.ask("DEL", self.room.key)  # it may have been acquired
        self.answers += not isinstance(reply, Error)
        time.sleep(PAUSE)

    def run(self):
        try:
            while not self.rig.over:
                self.resting = self.rig.rests
                if self.resting:
                    time.sleep(PAUSE)
                else:
                    self.turn()
        except BaseException as error:
            self.failure = error
            raise

    def has_tried(self, before):
        """Whether it is inside, or has had its answers since it had `before`."""
        assert not self.failure, self.failure
        return self in self.room.inside or self.answers >= before + ATTEMPTS


class Rig:
    NEVER = float("inf")

    def __init__(self, backend):
        self.over = self.rests = False
        self.keep_since = self.NEVER
        self.stack = [backend]
        self.backend = backend
        self.workers = []
        self.plain, self.quorum = Room("lock:plain:" + TAG), Room("lock:q:" + TAG)
        self.rooms = [self.plain, self.quorum]

    def start(self):
        self.witnesses = [self.owned(servers.RedisServer()) for _ in range(3)]
        line = "witness " + " ".join("%s:%d" % w.address for w in self.witnesses)
        self.proxies = [self.owned(servers.Proxy(self.backend, line, *PROXY_LINES)) for _ in range(2)]
        self.trust(*self.witnesses)
        self.workers = [Worker(self, room, self.proxies[n % 2].address) for room in self.rooms for n in range(WORKERS)]
        for worker in self.workers:
            worker.start()

    def owned(self, server):
        self.stack.append(server)
        return server

    def trust(self, *witnesses):
        with Client(self.proxies[0].address) as c:
            for w in witnesses:
                until(lambda w=w: c("PROXY", "WITNESS", "TRUST", "%s:%d" % w.address) == "OK", TIMEOUT, "the witness's answer")

    def acquired_anew(self):
        before = [room.entries for room in self.rooms]
        until(lambda: all(room.entries > n for room, n in zip(self.rooms, before)), TIMEOUT, "an acquisition of each lock")

    def rest(self):
        self.rests = True
        until(lambda: all(worker.resting for worker in self.workers), TIMEOUT, "the workers' rest")

    def round(self, n):
        witness, empty = self.witnesses[n % 3], n % 2
        if empty:
            witness.kill()
            witness.start()
        else:
            witness.pause()
        self.acquired_anew()
        self.rest()
        self.backend.isolate()
        self.keep_since = time.monotonic()
        self.rests = False
        until(lambda: all(r.entered_since(self.keep_since) for r in self.rooms), TIMEOUT, "a holder of each lock")
        self.backend.fail()
        before = [(worker, worker.answers) for worker in self.workers]
        until(lambda: all(worker.has_tried(n) for worker, n in before), TIMEOUT, "the others' attempts")
        self.keep_since = self.NEVER
        self.acquired_anew()
        self.rest()
        if empty:
            self.trust(witness)  # no lock is held
        else:
            witness.resume()
        self.backend.mend()
        self.rests = False

    def stop(self):
        self.over = True
        self.keep_since = self.NEVER
        for worker in self.workers:
            worker.join(TIMEOUT)
        for server in reversed(self.stack):
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="single")
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    rig, done, began = Rig(BACKENDS[given.backend]()), 0, time.monotonic()
    try:
        rig.start()
        for n in range(given.rounds):
            rig.round(n)
            done += 1
            if done % 50 == 0:
                print("%d rounds, %d s: double entries %d without quorum, %d with it" % (
                    done, time.monotonic() - began, rig.plain.doubles, rig.quorum.doubles), flush=True)
    except AssertionError as error:
        print("round %d: %s" % (done, error))
    finally:
        rig.stop()
    print("%s: %d rounds in %d s; without quorum %d double entries of %d, with quorum %d of %d" % (
        given.backend, done, time.monotonic() - began, rig.plain.doubles, rig.plain.entries, rig.quorum.doubles,
        rig.quorum.entries))
    sys.exit(done < given.rounds or rig.quorum.doubles > 0)


if __name__ == "__main__":
    main()
