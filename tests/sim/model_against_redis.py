#!/usr/bin/env python3
"""Holds the simulator's model of the lock scripts against the scripts themselves in a real Redis.

model_dump prints random calls with the model's answers; each is made here too, and the envelope and what is left in
Redis are compared. Fences come from different clocks: what counts is that equal ones stay equal and greater ones
greater. Times to live may differ by what the run takes.
"""
import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE_MS = 60000


class Redis:
    """A redis-server of its own on a unix socket, and a client that knows no more RESP than is needed."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="model-")
        path = os.path.join(self.folder, "socket")
        self.process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", self.folder],
            stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.close()
                    sys.exit("redis-server does not answer")
                time.sleep(0.02)
        self.input = self.socket.makefile("rb")
        self.path = path

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *words):
        out = [b"*%d\r\n" % len(words)]
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(data), data))
        self.socket.sendall(b"".join(out))
        return self.read()

    def read(self):
        line = self.input.readline()[:-2]
        kind, rest = line[:1], line[1:].decode()
        if kind == b":":
            return "int:" + rest
        if kind == b"+":
            return rest.lower()
        if kind == b"-":
            return "error" if not rest.startswith("ERR Error") else "broken script: " + rest
        if kind == b"$":
            if rest == "-1":
                return "nil"
            return "text:" + self.input.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(rest))] if rest != "-1" else "nil"
        raise ValueError(line)


class Watcher(Redis):
    """Another client of the same server, which WATCHes a key while something is done to it."""

    def __init__(self, redis):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(redis.path)
        self.input = self.socket.makefile("rb")

    def watch(self, key):
        self.call("WATCH", key)

    def touched(self):
        self.call("MULTI")
        return self.call("EXEC") == "nil"


def load_scripts(redis):
    folder = os.path.join(ROOT, "scripts", "lua")
    def text_of(name):
        with open(os.path.join(folder, name + ".lua"), encoding="utf-8") as f:
            return f.read()

    common = text_of("arguments") + text_of("common")
    parts = {part: text_of(part) for part in ("usual", "unfinished", "tell", "list", "waits", "text", "compare", "hash")}
    with open(os.path.join(ROOT, "proxy", "lock", "script_constants.h"), encoding="utf-8") as f:
        constants = re.findall(r"^    ([A-Z_]+) = ([0-9]+)", f.read(), re.M)
    shas = {}
    with open(os.path.join(ROOT, "proxy", "upstream", "script.h"), encoding="utf-8") as f:
        names = [name.lower() for name in re.findall(r"^    SCRIPT_([A-Z_]+),$", f.read(), re.M)]
    for name in names:
        own = text_of(name)  # as scripts/embed_lua.cmake has it, but with functions and comments that are not needed
        whole = own.replace("--@common\n", common).replace("--@alone\n", "")
        whole = common + own if whole == own else whole
        for part, text in parts.items():
            whole = whole.replace("--@%s\n" % part, text)
        for constant, value in constants:
            whole = whole.replace(constant, value)
        shas[name] = redis.call("SCRIPT", "LOAD", whole)[5:]
    return shas


def plain(field):
    return field[1:] if field.startswith("=") else field


def number(reply):
    return int(reply.split(":", 1)[1])


def text(reply):
    return "" if reply == "nil" else reply.split(":", 1)[1]


class Fences:
    """Which fence of Redis stands for which of the model."""

    def __init__(self):
        self.real = {0: 0}

    def same(self, model, real):
        if model in self.real:
            return self.real[model] == real
        newest = max(self.real)
        if model < newest or real <= self.real[newest]:
            return False
        self.real[model] = real
        return True

    def above(self):
        """A fence greater than each one so far."""
        return max(int(time.time() * 1000000), max(self.real.values()) + 1)


class Run:
    def __init__(self, redis, shas):
        self.redis, self.shas, self.fences, self.batches = redis, shas, {}, {}
        self.watcher = Watcher(redis)
        self.refused = False  # the last script has refused its command

    def lock(self, key):
        return "lock:" + key

    def guard(self, key):
        return "lockkeeper:{t%s}:lock:%s" % (key, key)

    def watermark(self, key):
        return "lockkeeper:{t%s}:{t%s}" % (key, key)

    def words(self, key, fields):
        return [self.lock(key) if f == "K" else plain(f) for f in fields]

    def fence(self, key):
        return self.fences.setdefault(key, Fences())

    def compare(self, key, got, want, asked=-1, identified=True):
        if got == "error" and want[1] == "error":  # a command that Redis refuses ends the script in both
            return ""
        if isinstance(got, str) and got.startswith("text:"):
            got = self.in_full(got[5:], want, asked, self.fence(key).real.get(int(want[2]), 0))
        if not isinstance(got, list) or len(got) not in (6, 7, 9):
            return "no envelope: %r" % (got,)
        reply, outcome, fence, pttl, owner, flags = want
        problems = []
        if self.single(got[0]) != reply:
            problems.append("reply")
        if got[1] != "text:" + outcome:
            problems.append("outcome")
        if not self.fence(key).same(int(fence), number(got[2])):
            problems.append("fence")
        if outcome != "free" and not self.near(int(pttl), number(got[3])):
            problems.append("pttl")
        if got[4] != "text:" + plain(owner) and (outcome != "released" or got[4] != "text:"):
            problems.append("owner")
        # Of its own lease the caller need not be told more than that the expiry is the proxy's; nor of a list's. A caller that has not
        # said its identity can't be told whether the lease is its own.
        said = 1 if outcome == "granted" or flags.startswith("list:") else ~0 if identified else 27
        flags = flags.replace("list:", "")
        if outcome != "released" and number(got[5]) & said != int(flags) & said:
            problems.append("flags")
        return ", ".join(problems)

    @staticmethod
    def single(reply):
        """The content of an array of one."""
        return reply[0] if isinstance(reply, list) and len(reply) == 1 else reply

    @staticmethod
    def in_full(short, want, asked, known):
        """The short text of common.lua as an envelope: `asked` is the expiry that the call has asked for, `known` the
        fence that the proxy knows."""
        outcome = {"h": "held", "r": "released"}.get(short[0], "granted")
        flags, fence, owner = "1" if short[0] == "g" else "0", short.lstrip("g"), want[4]
        if outcome == "held":
            flags, fence = str(ord(short[1]) - ord("0")), short[2:]
        if outcome == "released":
            flags, fence, owner = "0", short[1:] or str(known), ""
        if want[0].startswith("int:"):
            reply = "int:0" if outcome == "held" else "int:1"
        else:
            reply = "nil" if outcome == "held" else "ok"
        pttl = {"granted": asked, "held": -3, "released": -2}[outcome]
        return [reply, "text:" + outcome, "int:" + fence, "int:%d" % pttl, "text:" + plain(owner), "int:" + flags]

    @staticmethod
    def usual_words(name, attempt, claim, identity, right, lease, command):
        """ARGV of the script for the usual states as the proxy makes it; None: the script for all states goes first."""
        if name == "release" and command[0] == "DEL" and claim and right not in ("older", "spent"):
            return [attempt, claim]
        if name != "acquire" or right[0] in "+-!" or right == "release_then_acquire" or "GET" in command or "PXAT" in command:
            return None
        expires = "PX" in command
        value, ms = command[2], int(command[command.index("PX") + 1] if expires else lease)
        return [attempt, identity, value] + ([ms, ms + 10000] if ms else ["", ""]) + ([] if expires else ["g" if ms else ""])

    @staticmethod
    def near(model, real):
        if model < 0 or real < 0:
            return model == real
        return model - PATIENCE_MS <= real <= model + 5

    def script(self, name, key, attempt, claim, identity, proxy, right, lease, read, seen, at, shape, *rest):
        split = rest.index("|")
        command, want = self.words(key, rest[:split]), rest[split + 1:]
        # count.lua takes a count back; a look at a list lock renews what its party waits for
        self.refused = want[1] in ("held", "foreign") and name != "count" and not name.startswith("list") and shape != "together"
        read = self.fence(key).real.get(int(read), 0)
        header = [attempt, plain(claim), identity, proxy, right, lease, read, plain(seen), at, shape]
        if name == "clobber":
            header[1] = "1"
            header += [plain(claim), right, attempt, plain(seen), "", "0"]
        if right in ("-", "!"):
            right += str(self.batches[key])
        if right[0] in "+-!":
            header[1], header[4] = right, "claim"
        asked = int(command[command.index("PX") + 1]) if "PX" in command else int(lease) or -1
        usual, keys = self.usual_words(name, attempt, plain(claim), identity, right, lease, command), (self.lock(key), self.guard(key))
        got = usual and self.redis.call("EVALSHA", self.shas[name + "_usual"], 2, *keys, *usual)
        if not usual or got == "int:0":
            got = self.redis.call("EVALSHA", self.shas[name], 2, *keys, *header, *command)
        return self.compare(key, got, want, asked), got

    def renew(self, key, claim, right, lease, left, _bar, *want):
        """As the proxy does it: with others at first, by itself if that does nothing."""
        if right == "claim":
            words = [lease, int(lease) + 10000, plain(claim)]
            answer = self.redis.call("EVALSHA", self.shas["renew_all"], 2, self.lock(key), self.guard(key), *words)
            if answer != "text:0":
                got = ["int:0", "text:done", "int:0", "int:%s" % lease, "text:", "int:1"]
                return self.compare(key, got, want, identified=False), got
        header = ["none", plain(claim), "", "", right, lease, left, "", 0, "int"]
        got = self.redis.call("EVALSHA", self.shas["renew"], 2, self.lock(key), self.guard(key), *header)
        return self.compare(key, got, want, identified=False), got

    def touched(self, key, changed):
        """A transaction that had watched the lock fails where the model says that the lock was changed, and not where
        its command was refused."""
        got = self.watcher.touched()
        wrong = not got if changed == "1" else got and self.refused
        return "WATCH: %s" % ("touched" if got else "not touched") if wrong else "", got

    def batch(self, key, attempt, identity, value, fence, ms, leased, where, _bar, raised, record, placed):
        fences = self.fence(key)
        mark = number(self.redis.call("PEXPIRETIME", self.watermark(key)))
        real = mark if where == "equal" else max(fences.above(), mark + 1)
        self.batches[key] = real
        form = "\n".join(["1", attempt, plain(value), str(real), "g" if leased == "1" else "", identity])
        self.redis.call("MULTI")
        self.redis.call("PEXPIREAT", self.watermark(key), real, "GT")
        self.redis.call("SET", self.guard(key), form, "NX", "GET", "PX", ms)
        self.redis.call("SET", self.lock(key), plain(value), "NX", "PX", ms)
        got = self.redis.call("EXEC")
        want = ["int:" + raised, record, "ok" if placed == "1" else "nil"]
        have = [got[0], "text" if got[1].startswith("text:") else got[1], got[2]]
        known = raised == "0" or fences.same(int(fence), real)
        return "" if have == want and known else "answers %s, not %s" % (have, want), got

    def free(self, key, claim, _bar, answer):
        name = "free_all" if plain(claim)[-2:] and ord(plain(claim)[-2]) % 2 else "free"  # as model_run_free
        got = self.redis.call("EVALSHA", self.shas[name], 2, self.lock(key), self.guard(key), plain(claim))
        done = got == "text:r"  # an error, too, has done nothing
        return "" if done == (answer == "1") else "answer", got

    def leave(self, key, party, right, waits, lease):
        header = ["none", "", "", "", right, lease, waits, "=" + party, 0, "int"]
        got = self.redis.call("EVALSHA", self.shas["list_leave"], 2, self.lock(key), self.guard(key), *header)
        time.sleep(0.002)  # a millisecond of the model
        return "", got

    def before(self, key, attempt):
        got = self.redis.call("EVALSHA", self.shas["adopt"], 2, self.lock(key), self.guard(key), attempt)
        return "" if got in ("int:0", "int:1") else "reply", got

    def native(self, key, *rest):
        split = rest.index("|")
        got = self.single(self.redis.call(*self.words(key, rest[:split])))
        return "" if got == rest[split + 1] else "reply", got

    MARK = "lockkeeper-witness"

    def record(self, key):
        """The record of a lock at a witness; the mark has a number as well."""
        return self.MARK if key == "4" else "%s::0:%s" % (self.MARK, self.lock(key))

    def restart(self, key, forgets):
        if forgets == "1":
            return "", self.redis.call("DEL", self.MARK, *(self.record(str(k)) for k in range(4)))
        there = self.redis.call("EXISTS", self.MARK) == "int:1"
        return "", there and self.redis.call("HSET", self.MARK, "run", "an earlier one")

    def lapse(self, key):
        return "", self.redis.call("PEXPIRE", self.record(key), 9000)

    def witness(self, key, name, *rest):
        split = rest.index("|")
        want = [plain(field) for field in rest[split + 1:]]
        got = self.redis.call("EVALSHA", self.shas[name], 2, self.record(key), self.MARK, *map(plain, rest[:split]))
        have = [got, *(text(field) for field in self.redis.call("HMGET", self.record(key), "token", "fence"))]
        quarantined = [answer.rpartition(" ") for answer in (want[0], got)]
        if quarantined[0][0] == quarantined[1][0] == "text:quarantine" and self.near(*(int(q[2]) for q in quarantined)):
            have[0] = want[0]
        lasts = self.near(int(want[3]), number(self.redis.call("PTTL", self.record(key))))
        return "" if have == want[:3] and lasts else "answers %s, not %s" % (have, want), got

    def list(self, key):
        self.redis.call("DEL", self.lock(key))
        return "", self.redis.call("RPUSH", self.lock(key), "x")

    def drop(self, key, what):
        return "", self.redis.call("DEL", self.lock(key) if what == "lock" else self.guard(key))

    @staticmethod
    def extra(field, fence):
        said_of, _, counted = field.partition(":")
        return int(counted) if counted and said_of == (fence or "0") else 0

    def state(self, key, exists, value, pttl, token, fence, held, owner, proxy, leased, extra, guard_pttl, nodes):
        got = self.redis.call("GET", self.lock(key))
        guard = self.redis.call("HMGET", self.guard(key), "token", "fence", "value", "owner", "proxy", "leased", "extra")
        if guard == "error":
            _, *lines = text(self.redis.call("GET", self.guard(key))).split("\n")
            guard = ["text:" + line for line in (lines[0], lines[-3], "\n".join(lines[1:-3]), lines[-1], lines[0][:36],
                                                 lines[-3] if lines[-2] else "", "")]
        ends = [number(self.redis.call("PTTL", k)) for k in (self.lock(key), self.guard(key))]
        there = number(self.redis.call("EXISTS", self.lock(key)))
        have = [there, "" if got == "error" else text(got), text(guard[0]), text(guard[2]), text(guard[3]), text(guard[4]),
                int(bool(text(guard[5])) and text(guard[5]) == text(guard[1])), self.extra(text(guard[6]), text(guard[1]))]
        want = [int(exists), plain(value), plain(token), plain(held), plain(owner), plain(proxy), int(leased), int(extra)]
        if self.redis.call("TYPE", self.lock(key)) == "list":
            got = [text(node) for node in self.redis.call("LRANGE", self.lock(key), 0, -1)]
            have.append(got)
            want.append(plain(nodes).split())
        if self.redis.call("TYPE", self.lock(key)) == "hash":
            got, fields = [text(f) for f in self.redis.call("HGETALL", self.lock(key))], plain(nodes).split()
            have.append(dict(zip(got[::2], got[1::2])))
            want.append(dict(zip(fields[::2], fields[1::2])))
        problems = ["%s, not %s" % (h, w) for h, w in zip(have, want) if h != w]
        if not self.fence(key).same(int(fence), int(text(guard[1]) or 0)):
            problems.append("fence")
        if not self.near(int(pttl), ends[0]) or not self.near(int(guard_pttl), ends[1]):
            problems.append("ends %s, not %s %s" % (ends, pttl, guard_pttl))
        return "; ".join(problems), have


def has_newest(redis):
    """Whether the server has the commands of Redis 8.4."""
    return "nil" not in redis.call("COMMAND", "INFO", "hsetex", "hgetdel", "hgetex", "delex", "msetex")


def play(redis, shas, dump, seed, calls, newest):
    redis.call("FLUSHALL")
    run = Run(redis, shas)
    options = ["--newest", "1"] if newest else []
    lines = subprocess.run([dump, "--seed", str(seed), "--calls", str(calls), *options], check=True, stdout=subprocess.PIPE,
                           universal_newlines=True).stdout.splitlines()
    for i, line in enumerate(lines):
        what, *fields = line.split("\t")
        if what not in ("state", "touched", "witness", "restart", "lapse"):
            run.watcher.watch(run.lock(fields[1] if what == "script" else fields[0]))
            run.refused = False
        problem, got = getattr(run, what)(*fields)
        if problem:
            print("seed %d, line %d: the scripts and the model differ: %s" % (seed, i + 1, problem))
            key = fields[1] if what == "script" else fields[0]
            before = [l for l in lines[:i + 1] if l.split("\t")[2 if l.startswith("script") else 1] == key]
            print("\n".join(before[-14:]))
            print("Redis:", got)
            return False
    return True


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dump", required=True, help="the model_dump program")
    options.add_argument("--redis", default="redis-server")
    options.add_argument("--seed", type=int, help="one seed instead of the usual ones")
    # A guard record outlives its lock by 10 s in the real Redis: so many calls take a fraction of that on a busy machine.
    options.add_argument("--calls", type=int, default=500)
    o = options.parse_args()
    seeds = [o.seed] if o.seed is not None else range(1, 21)
    redis = Redis(o.redis)
    try:
        shas, newest = load_scripts(redis), has_newest(redis)
        for seed in seeds:
            if not play(redis, shas, o.dump, seed, o.calls, newest):
                return 1
    finally:
        redis.close()
    print("the model and the scripts agree over %d calls%s" % (len(seeds) * o.calls, ", the newest commands among them" if newest else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
