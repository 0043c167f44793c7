"""Locks with redis-py through the proxy: its own Lock, and the hand-written SETNX, EXPIRE, DEL of old code.

    locks_redis_py.py library               redis.lock.Lock over a pool
    locks_redis_py.py setnx connection      a connection for each thread
    locks_redis_py.py setnx pool            threads that share a pool, under a rule with 'owner client'
    ... hold SECONDS                        takes the lock, says so, and waits to be killed

exclusion: threads add to a counter that only the lock protects. extend: a lock whose holder extends it outlives its
first lease. late: a release after the end of the worker's lease frees no other worker's lock. killed: the lock of a
killed process ends.
"""

import os
import subprocess
import sys
import threading
import time

import redis

from features import HOST, PORT, expect, run, say

KIND = sys.argv[1]
POOLED = KIND == "library" or sys.argv[2] == "pool"
KEY = "lock:pool:hand" if KIND == "setnx" and POOLED else "lock:hand"
THREADS, ROUNDS = 8, 10

# Processes on one machine are told apart by name: 'owner client' takes connections with the same name for one client.
NAME = "app-%d" % os.getpid()
pool = redis.BlockingConnectionPool(4, host=HOST, port=PORT, socket_timeout=8, client_name=NAME)


def new():
    if POOLED:
        return redis.Redis(connection_pool=pool)
    return redis.Redis(host=HOST, port=PORT, socket_timeout=8, single_connection_client=True)


class Worker:
    """A lock's client: `acquire` waits, `release` returns whether there was a lock of its own to release."""

    def __init__(self):
        self.client = new()

    def acquire(self, seconds, wait=8.0):
        """Returns whether it got the lock, which then ends after so many seconds."""
        deadline = time.monotonic() + wait
        if KIND == "library":
            self.lock = self.client.lock(KEY, timeout=seconds, sleep=0.005, thread_local=False)
            self.tried = time.monotonic()
            self.safe_until = self.tried + seconds
            return self.lock.acquire(blocking_timeout=wait)
        while True:
            self.tried = time.monotonic()
            if self.client.setnx(KEY, "1"):
                self.safe_until = time.monotonic() + seconds
                expect(self.client.pexpire(KEY, int(seconds * 1000)), True)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)

    def release(self):
        if KIND == "library":
            try:
                self.lock.release()
                return True
            except redis.exceptions.LockNotOwnedError:
                return False
        return self.client.delete(KEY) == 1


    def extend(self, seconds):
        """The lock ends so many seconds from now."""
        if KIND == "library":
            return self.lock.extend(seconds, replace_ttl=True)
        return self.client.pexpire(KEY, int(seconds * 1000))


def in_threads(work):
    failures = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def count(lock, unlock):
    """What a counter says after all threads have added to it, each under the lock."""
    total = [0]

    def work(number):
        for _ in range(ROUNDS):
            held = lock()
            value = total[0]
            time.sleep(0.001)
            total[0] = value + 1
            unlock(held)

    in_threads(work)
    return total[0]


def exclusion():
    unlocked = count(lambda: None, lambda held: None)
    assert unlocked < THREADS * ROUNDS, "without a lock nothing was lost: this shows nothing"

    workers = threading.local()

    def lock():
        if not hasattr(workers, "mine"):
            workers.mine = Worker()
        assert workers.mine.acquire(5)
        return workers.mine

    def unlock(worker):
        expect(worker.release(), True)

    expect(count(lock, unlock), THREADS * ROUNDS)


def extend():
    a, b = Worker(), Worker()
    assert a.acquire(0.4)
    expect(a.extend(3), True)
    expect(b.acquire(1, wait=0.7), False)
    expect(a.release(), True)
    expect(b.acquire(0.3), True)
    expect(b.release(), True)


def late():
    a, b, c = Worker(), Worker(), Worker()
    assert a.acquire(0.3)
    assert b.acquire(5)  # once A's lease is over
    expect(a.release(), False)
    expect(c.acquire(1, wait=0.2), False)
    expect(b.release(), True)
    expect(c.acquire(1), True)
    expect(c.release(), True)
    late_among_many()


def late_among_many():
    """Some threads hold the lock for too long: no other gets in beside a holder whose lease is not over."""
    inside = {}  # number: (when it was in, until when its lease lasts)
    guard = threading.Lock()

    def work(number):
        worker = Worker()
        for round_ in range(4):
            assert worker.acquire(0.25)
            now = time.monotonic()
            with guard:
                beside = [n for n, (since, until) in inside.items() if since < worker.tried and now < until]
                inside[number] = (now, worker.safe_until)
            assert not beside, "%d got in beside %s" % (number, beside)
            time.sleep(0.35 if (number + round_) % 4 == 0 else 0.002)
            with guard:
                del inside[number]
            worker.release()

    in_threads(work)


def killed():
    holder = subprocess.Popen([sys.executable, "-B", *sys.argv, "hold", "1.5"], stdout=subprocess.PIPE)
    expect(holder.stdout.readline(), b"held\n")
    me = Worker()
    expect(me.acquire(1, wait=0.1), False)
    holder.kill()
    holder.communicate()
    expect(me.acquire(1), True)
    expect(me.release(), True)


if sys.argv[-2] == "hold":
    if KIND == "library":
        assert Worker().acquire(float(sys.argv[-1]))
    else:
        assert new().setnx(KEY, "1")  # and killed before the EXPIRE
    print("held", flush=True)
    time.sleep(60)
else:
    say("version", redis.__version__)
    run([(f.__name__, f) for f in (exclusion, extend, late, killed)])
