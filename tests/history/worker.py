"""One worker of a history: it takes a lock by an idiom of docs/locks.md, reads a value, works, writes another value, releases, and
writes each call and each answer down. The idioms are here once, in their legacy form. The commands go out through the hand of a real
client: redis-py in this process, or a program (hand.js, hand.c and gohand of tests/clients, redis-cli) to which a pipe leads.

A hand gets a line for a command, its words between tabs, and says a line: "+text", ":number", "_" (nil), "*" and elements between
tabs, "-error" of the server, or "!reason" if the connection was lost.
"""

import contextlib
import json
import os
import random
import subprocess
import time

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
HASH_ACQUIRE = ("if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HINCRBY', KEYS[1], ARGV[2], 1) "
                "redis.call('PEXPIRE', KEYS[1], ARGV[1]) return nil end return redis.call('PTTL', KEYS[1])")
HASH_EXTEND = ("if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 1 end return 0")
HASH_RELEASE = ("if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end redis.call('DEL', KEYS[1]) return 1")
LEASE = 400  # ms
LOCKS = 8  # of each idiom: where one stands, its workers go on with the next
PATIENCE = 3  # s without an acquisition, until a worker does so
SECOND = 1000  # ms: leases by EXPIRE
NO = ("LOCKED", "FENCED", "LOST")  # errors by which the proxy says that nothing was done


class Lost(Exception):
    """It is not known whether the command was done."""


class Refused(Exception):
    """The proxy has said that it was not."""


class RedisPy:
    def __init__(self, port, name):
        import redis

        self.redis, self.client = redis, None
        self.open = lambda: redis.Redis("127.0.0.1", port, single_connection_client=True, client_name=name, decode_responses=True,
                                        socket_timeout=8)  # which connects

    def __call__(self, *words):
        try:
            if not self.client:
                self.client = self.open()
                self.client.response_callbacks.clear()
            return self.client.execute_command(*words)
        except self.redis.ResponseError as error:
            raise (Refused if str(error).startswith(NO) else Lost)(str(error)) from None
        except (self.redis.RedisError, OSError) as error:
            raise Lost(str(error)) from None


class Program:
    """A client in a process of its own."""

    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __call__(self, *words):
        self.child.stdin.write("\t".join(map(str, words)) + "\n")
        self.child.stdin.flush()
        said = self.child.stdout.readline().rstrip("\n")
        kind, text = said[:1], said[1:]
        if kind == "-" and text.startswith(NO):
            raise Refused(text)
        if kind in "-!":
            raise Lost(text)
        return {"_": None, ":": text and kind == ":" and int(text)}.get(kind, text.split("\t") if kind == "*" else text)


class RedisCli:
    """redis-cli with commands on its standard input. It reconnects, and sends a command again, by itself. Its lines for an error of a
    connection and for a reply are told apart by an ECHO behind each command."""

    def __init__(self, port):
        self.child = subprocess.Popen(["redis-cli", "-p", str(port), "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
        self.count = 0

    def line(self, *words):
        self.child.stdin.write(" ".join('"%s"' % word for word in words) + "\n")
        self.child.stdin.flush()

    def __call__(self, *words):
        said, line = [], ""
        self.line(*words)
        while line != '"said %d"' % self.count:
            if not line.startswith('"said'):  # the first, or what says that there is no connection
                self.count += 1
                self.line("ECHO", "said %d" % self.count)
            line = self.child.stdout.readline().strip()
            while not line.startswith(('"said', "Error", "Could not")):
                said.append(line)
                line = self.child.stdout.readline().strip()
            if not line.startswith('"said'):
                said.append(line)
                time.sleep(0.02)
        if said[0].startswith("error:"):
            raise (Refused if said[0][7:].startswith(NO) else Lost)(said[0])
        if len(said) != 1 or said[0].startswith(("Error", "Could not")):
            raise Lost(said[0])
        return json.loads(said[0])


# ---- the idioms ---------------------------------------------------------------------------------
# acquire(worker) returns whether the worker has the lock, release(worker) whether it freed it. `do` sends a command.


class Idiom:
    """`number`: of the table in docs/locks.md. `lease`: what the application knows of its end, in ms. `rule`: what the key's rule
    says, if the default rule does not know the idiom. `stays`: the key outlives the lease. `safe`: the application compares."""

    number, lease, rule, stays, safe = 0, LEASE, "", False, False

    def acquire(self, w):
        return w.do("SET", w.lock, w.value, "NX", "PX", self.lease) == "OK"

    def release(self, w):
        return w.do("DEL", w.lock) == 1

    def work(self, w, ms):
        time.sleep(ms / 1000)


class Setnx(Idiom):
    number, lease = 1, None

    def acquire(self, w):
        return w.do("SETNX", w.lock, 1) == 1


class SetnxExpire(Setnx):
    number = 2

    def acquire(self, w):
        w.value = 1
        return w.do("SETNX", w.lock, w.value) == 1

    def work(self, w, ms):
        w.extend(SECOND, lambda: w.do("EXPIRE", w.lock, SECOND // 1000) == 1)
        super().work(w, ms)


class Multi(Idiom):
    number, lease = 3, SECOND

    def acquire(self, w):
        try:
            w.do("MULTI")
            w.do("SETNX", w.lock, 1)
            w.do("EXPIRE", w.lock, SECOND // 1000)
            return str(w.do("EXEC")[0]) == "1"
        except Lost:
            with contextlib.suppress(Lost):
                w.do("DISCARD")
            raise


class Constant(Idiom):
    number = 4

    def acquire(self, w):
        w.value = "true"
        return super().acquire(w)


class Unique(Idiom):
    number = 5


class Compared(Idiom):
    number = 6

    def release(self, w):
        return w.do("GET", w.lock) == w.value and w.do("DEL", w.lock) == 1


class Deadline(Idiom):
    number, stays = 8, True

    def acquire(self, w):
        now = int(time.time() * 1000)
        deadline = str(now + LEASE)
        if w.do("SETNX", w.lock, deadline) == 1:
            return True
        seen = w.do("GET", w.lock)
        return bool(seen and int(seen) < now and w.do("GETSET", w.lock, deadline) == seen)


class Queue(Idiom):
    number, lease, rule = 9, None, "kind list"

    def acquire(self, w):
        w.do("RPUSH", w.lock, w.value)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            if (w.do("LRANGE", w.lock, 0, 0) or [None])[0] == w.value:
                return True
            time.sleep(0.01)
        w.do("LREM", w.lock, 1, w.value)
        return False

    def release(self, w):
        return w.do("LREM", w.lock, 1, w.value) == 1


class Counter(SetnxExpire):
    number, rule = 13, "kind counter"

    def acquire(self, w):
        return w.do("INCR", w.lock) == 1


class Short(Idiom):
    number = 15

    def release(self, w):
        return w.do("SET", w.lock, w.value, "PX", 1, "XX") == "OK"


class Looked(Idiom):
    number = 16

    def acquire(self, w):
        return w.do("GET", w.lock) is None and w.do("SET", w.lock, w.value, "PX", self.lease) == "OK"


class Token(Idiom):
    number, safe = 7, True

    def release(self, w):
        return w.do("EVAL", RELEASE, 1, w.lock, w.value) == 1


class Watchdog(Idiom):
    """As Redisson: a hash, and a lease that a watchdog extends while the worker works."""

    number, safe = 12, True

    def acquire(self, w):
        return w.do("EVAL", HASH_ACQUIRE, 1, w.lock, LEASE, w.value) is None

    def work(self, w, ms):
        for _ in range(3):
            w.extend(LEASE, lambda: w.do("EVAL", HASH_EXTEND, 1, w.lock, LEASE, w.value) == 1)
            super().work(w, ms)

    def release(self, w):
        return w.do("EVAL", HASH_RELEASE, 1, w.lock, LEASE, w.value) == 1


class Redlock(Idiom):
    """npm's redlock over five nodes, by hand.js. The answer is the time for which the lock is valid."""

    number, safe = 20, True

    def acquire(self, w):
        valid = w.do("REDLOCK", w.lock, LEASE)
        w.named = valid
        return bool(valid)

    def release(self, w):
        return w.do("REDUNLOCK") == 1


IDIOMS = {"setnx": Setnx, "setnx-expire": SetnxExpire, "multi": Multi, "constant": Constant, "unique": Unique,
          "compared": Compared, "deadline": Deadline, "queue": Queue, "counter": Counter, "short": Short, "looked": Looked,
          "token": Token, "watchdog": Watchdog, "redlock": Redlock}


# ---- the worker ---------------------------------------------------------------------------------


class Worker:
    """`hand` sends commands on locks, `data_hand` on values, which are in one slot with their locks."""

    def __init__(self, name, idiom, path, hand, data_hand, seed):
        self.name, self.idiom, self.tag = name, IDIOMS[idiom](), "{%s-%%d}" % idiom
        self.at, self.since = 0, time.monotonic()  # which lock it takes; its last acquisition
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.do, self.data, self.dice, self.rounds = hand, data_hand or hand, random.Random(seed), 0
        self.named = None

    def note(self, *words):
        os.write(self.file, (json.dumps([time.monotonic_ns() // 1000, self.name, *words]) + "\n").encode())

    def call(self, what, function, *words):
        """Notes a call, does it, and notes its answer, which it returns."""
        self.note("call", what, *words)
        try:
            said = function()
            result = said if what == "read" else "yes" if said else "no"
        except Refused:
            result = "no"
        except Lost:
            result = "unknown"
        self.note("answer", result, *([self.named] if what == "acquire" and result == "yes" and self.named else []))
        return result

    def extend(self, lease, function):
        return self.call("extend", function, self.lock, lease)

    def section(self):
        """What the lock is for: the value is read and, after some work, replaced."""
        read = self.call("read", lambda: self.data("GET", self.key) or "0", self.key)
        self.idiom.work(self, self.dice.uniform(3, 15))
        if read != "unknown":
            value = "%d:%s:%d" % (int(read.split(":")[0]) + 1, self.name, self.rounds)
            self.call("write", lambda: self.data("SET", self.key, value) == "OK", self.key, value)

    def round(self, inside):
        """One attempt, and the section if it got the lock. `inside` is told when the worker enters and leaves it. A lost answer of a
        release is asked for again, as `finally` with a retry does, until there is an answer."""
        self.rounds += 1
        self.lock, self.key = "lock:" + self.tag % self.at, "stock:" + self.tag % self.at
        self.value = "%s-%d" % (self.name, self.rounds)
        if self.call("acquire", lambda: self.idiom.acquire(self), self.lock, self.idiom.lease,
                     *(["stays"] if self.idiom.stays else [])) == "yes":
            inside(True)
            self.section()
            for _ in range(20):
                if self.call("release", lambda: self.idiom.release(self), self.lock) != "unknown":
                    break
                time.sleep(0.05)
            inside(False)
            self.since = time.monotonic()
        elif time.monotonic() > self.since + PATIENCE:
            self.at, self.since = (self.at + 1) % LOCKS, time.monotonic()
        time.sleep(self.dice.uniform(0.01, 0.04))
