"""Ordinary clients of a soak run, each with its own keys and a model that predicts every reply.

A key whose state is not known any more (an outcome was unknown, a node came back empty) is left for a new one. What it
may hold at the very end is remembered: a write that was answered is there, one that was not sent is not, one whose
outcome is unknown was done once or not at all.
"""

import asyncio

from resp import Error
from servers import slot_of
from wire import GONE

ALLOWED = ("UPSTREAM ", "CLUSTERDOWN ", "TRYAGAIN ", "LOADING ", "MASTERDOWN ", "EXECABORT ", "READONLY ")
ERROR_MARGIN = 6.0
PAST = 60  # writes that are remembered; more than most keys have in a failover


def not_sent(reply):
    return "not sent" in reply or reply.startswith(("CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "READONLY"))


class Key:
    """One key's model. A number counts; a text is set."""

    def __init__(self, client, index, kind, tag):
        self.client, self.index, self.kind, self.tag = client, index, kind, tag
        self.generation = 0
        self.renew()

    def renew(self):
        self.generation += 1
        self.name = "%s%s%s.%d.%d" % ("lock:own:" if self.kind == "lock" else "", self.client.id + "." + self.kind,
                                      self.tag, self.index, self.generation)
        self.value = None
        self.slot = slot_of(self.name)
        self.past = [Written(0, 0, None, False)]
        self.since = self.client.record.now()
        self.low = self.high = 0  # of a counter
        self.possible = {None}
        self.lowest, self.older = None, set()  # the same, where a failover has lost writes

    def wrote(self, sent, acknowledged, value, depends):
        self.past = [*self.past[-PAST:], Written(sent, acknowledged, None if self.client.big else value, depends)]

    def lose(self, record):
        """True where a failover may have lost writes to it: it may hold again what it held before them, or since."""
        unsafe = [n for n, w in enumerate(self.past) if n and record.endangered(self.slot, w.sent, w.acknowledged)]
        if not unsafe:
            return False
        back = self.past[unsafe[0] - 1 :]
        self.older = {w.value for w in back}
        self.lowest = min(w.value or 0 for w in back) if self.kind == "number" else 0
        if unsafe[0] == 1 and len(self.past) > PAST or any(w.depends for w in back[1:]):
            self.possible = None  # not known any more, or made of what was lost
        return True


class Written:
    """A write that was acknowledged; `depends`: on what was there."""

    __slots__ = ("sent", "acknowledged", "value", "depends")

    def __init__(self, sent, acknowledged, value, depends):
        self.sent, self.acknowledged, self.value, self.depends = sent, acknowledged, value, depends


class Op:
    """A command, what its reply has to be, and what it writes: {key: value}, or {key: +1} for a counter."""

    __slots__ = ("command", "expected", "keys", "writes")

    def __init__(self, command, expected, keys=(), writes=None):
        self.command, self.expected, self.keys, self.writes = command, expected, keys, writes or {}


class Ordinary:
    def __init__(self, world, proxy, number, rng, big=False):
        self.world, self.record, self.net, self.proxy, self.rng = world, world.record, world.net, proxy, rng
        self.id = "c%d" % number
        self.big = big
        self.serial = 0
        self.known = self.record.now()
        self.link = None
        self.db = rng.choice([0, 0, 0, 3, 9]) if world.backend.kind == "standalone" else 0
        self.protocol = rng.choice([2, 2, 3])
        tags = ["", "", "", "", "{%s}" % self.id] + ["{%s}" % t for t in world.moving_tags[:3]]
        many = 3 if big else 8
        self.texts = [Key(self, n, "text", rng.choice(tags)) for n in range(many)]
        self.numbers = [Key(self, n, "number", rng.choice(tags)) for n in range(0 if big else 4)]
        self.locks = [Key(self, n, "lock", rng.choice(tags)) for n in range(0 if big else 3)]

    # ---- what to send

    def word(self):
        self.serial += 1
        word = "%s/%d/" % (self.id, self.serial)
        roll = self.rng.random()
        if self.big:
            size = self.rng.choice([100000, 300000, 1000000, 5000000]) if roll < 0.5 else 70000
        else:
            size = self.rng.randrange(2000, 40000) if roll < 0.03 else self.rng.randrange(0, 60)
        return word + (word * (size // len(word) + 1))[:size]

    def one(self):
        rng = self.rng
        key = rng.choice(self.texts)
        some = rng.sample(self.texts, rng.randint(2, len(self.texts)))
        kinds = ["set", "set", "get", "get", "mget", "del", "mset"] if self.big else [
            "set", "set", "set", "get", "get", "get", "incr", "incr", "incr", "mset", "mget", "del", "exists", "append",
            "getset", "getdel", "strlen", "setnx", "echo", "name", "eval", "count", "lock", "lock", "unlock", "lockread",
            "unlockmany"]
        kind = rng.choice(kinds)
        if kind == "set":
            word = self.word()
            op = Op(("SET", key.name, word) + (("EX", 3600) if self.big else ()), "OK", [key], {key: word})
        elif kind == "get":
            op = Op(("GET", key.name), key.value, [key])
        elif kind == "incr":
            key = rng.choice(self.numbers)
            op = Op(("INCR", key.name), (key.value or 0) + 1, [key], {key: (key.value or 0) + 1})
        elif kind == "count":
            key = rng.choice(self.numbers)
            op = Op(("GET", key.name), None if key.value is None else str(key.value), [key])
        elif kind == "mset":
            words = {k: self.word() for k in some}
            op = Op(("MSET", *[x for k, w in words.items() for x in (k.name, w)]), "OK", some, words)
        elif kind == "mget":
            op = Op(("MGET", *[k.name for k in some]), [k.value for k in some], some)
        elif kind == "del":
            op = Op((rng.choice(["DEL", "UNLINK"]), *[k.name for k in some]),
                    sum(k.value is not None for k in some), some, {k: None for k in some})
        elif kind == "exists":
            op = Op(("EXISTS", *[k.name for k in some]), sum(k.value is not None for k in some), some)
        elif kind == "append":
            word = self.word()
            new = (key.value or "") + word
            if len(new) > 100000:
                return self.one()
            op = Op(("APPEND", key.name, word), len(new), [key], {key: new})
        elif kind == "getset":
            word = self.word()
            command = rng.choice([("GETSET", key.name, word), ("SET", key.name, word, "GET")])
            op = Op(command, key.value, [key], {key: word})
        elif kind == "getdel":
            op = Op(("GETDEL", key.name), key.value, [key], {key: None})
        elif kind == "strlen":
            op = Op(("STRLEN", key.name), len(key.value or ""), [key])
        elif kind == "setnx":
            word = self.word()
            free = key.value is None
            op = Op(("SETNX", key.name, word), int(free), [key], {key: word} if free else {})
        elif kind == "echo":
            word = self.word()
            op = Op((rng.choice(["ECHO", "PING"]), word), word)
        elif kind == "name":
            op = Op(("CLIENT", "GETNAME"), self.id)
        elif kind == "eval":
            word = self.word()
            op = Op(("EVAL", "return {KEYS[1], redis.call('get', KEYS[1]), ARGV[1]}", 1, key.name, word),
                    [key.name, key.value, word], [key])
        else:
            op = self.own_lock(kind)
        for key, value in op.writes.items():
            key.value = value
        return op

    def own_lock(self, kind):
        """Locks that only this client uses: the replies must be exactly Redis's."""
        rng = self.rng
        key = rng.choice(self.locks)
        if kind == "lock":
            word, free = self.word(), key.value is None
            writes = {key: word} if free else {}
            if rng.random() < 0.5:
                return Op(("SETNX", key.name, word), int(free), [key], writes)
            return Op(("SET", key.name, word, "NX", "PX", 3600000), "OK" if free else None, [key], writes)
        if kind == "unlock":
            return Op(("DEL", key.name), int(key.value is not None), [key], {key: None})
        if kind == "unlockmany":
            keys = [key, *rng.sample(self.texts, 2)]
            return Op(("DEL", *[k.name for k in keys]), sum(k.value is not None for k in keys), keys,
                      {k: None for k in keys})
        return Op(("GET", key.name), key.value, [key])

    # ---- what came

    def check(self, ops, replies, begun):
        """Compares, and gives up the keys whose state is not known."""
        lost = set()
        gone = False
        for op, reply in zip(ops, replies):
            if reply is GONE:
                gone = True
                self.account(op, "unknown", begun)
                lost.update(op.keys)
                continue
            if isinstance(reply, Error):
                self.world.check_error(self.id, op.command, reply)
                self.account(op, "no" if not_sent(reply) and len(op.keys) == 1 else "unknown", begun)
                lost.update(op.keys)
                continue
            sure = not lost.intersection(op.keys)
            self.account(op, "yes" if sure else "answered", begun)
            if sure and reply != op.expected and not self.record.disturbed(begun, ("kill",)):
                if any([key.lose(self.record) for key in op.keys]):
                    self.record.counts["replies after a loss of Redis's"] += 1
                else:
                    self.wrong(op, reply, ops)
            self.check_owner(op, reply)
        self.record.counts["unsure replies"] += len(lost)
        if self.record.disturbed(begun, ("kill",)):
            lost = {*self.texts, *self.numbers, *self.locks}
        for key in (*self.texts, *self.numbers, *self.locks):
            if key.lose(self.record):
                lost.add(key)
        for op in ops:  # what these write depends on what was there
            if op.command[0] in ("APPEND", "SETNX"):
                for key in lost.intersection(op.keys):
                    key.possible = None
        for key in lost:
            self.leave(key)
        return gone

    def account(self, op, done, sent):
        for key, value in op.writes.items():
            if done == "yes" or done == "answered":
                key.wrote(sent, self.record.now(), value, op.command[0] in ("APPEND", "SETNX"))
            if key.kind == "number":
                key.low += done == "yes" or done == "answered"
                key.high += done != "no"
            elif done == "yes":
                key.possible = {value}
            elif done != "no" and key.possible is not None:
                key.possible.add(value)

    def leave(self, key):
        """Its state is unknown: what it may hold at the end is looked at then."""
        if key.kind != "lock" and key.possible is not None and not self.big:
            self.world.retire(self.db, key)
        key.renew()

    def check_owner(self, op, reply):
        """Whatever the state: no other client's values."""
        for text in reply if isinstance(reply, list) else [reply]:
            if isinstance(text, str) and "/" in text and not text.startswith(self.id + "/"):
                self.record.violation("another client's reply", "%s %s: %r" % (self.id, self.show(op), text[:100]))

    def show(self, op):
        return " ".join(str(a)[:50] for a in op.command[:8])

    def wrong(self, op, reply, ops):
        at = ops.index(op)
        self.record.violation(
            "wrong reply", "%s on port %d, db %d: number %d of %d in a pipeline: %s: got %r, expected %r" % (
                self.id, self.proxy.port, self.db, at + 1, len(ops), self.show(op), str(reply)[:160],
                str(op.expected)[:160]),
            ["before: " + self.show(o) for o in ops[max(0, at - 12):at] if set(o.keys) & set(op.keys)],
            [key.slot for key in op.keys])
        self.record.counts["wrong"] += 1

    # ---- the loop

    async def connect(self):
        for key in self.locks:  # attribution on another connection does not give exact replies
            self.leave(key)
        setup = [("HELLO", "3")] if self.protocol == 3 else []
        setup.append(("CLIENT", "SETNAME", self.id))
        if self.db:
            setup.append(("SELECT", self.db))
        self.link = await self.net.open(self.proxy, self.id, setup)
        return self.link is not None

    async def run(self):
        rng = self.rng
        await asyncio.sleep(rng.uniform(0, 2))
        while not self.record.over:
            if (not self.link or self.link.closed) and not await self.connect():
                await asyncio.sleep(0.3)
                continue
            if self.record.disturbed(self.known, ("kill",)):  # while it slept
                for key in (*self.texts, *self.numbers, *self.locks):
                    self.leave(key)
            self.known = self.record.now()
            ops = [self.one() for _ in range(rng.choice([1, 1, 2, 5, 12, 40]) if not self.big else rng.randint(1, 4))]
            begun = self.record.now()
            future = self.link.exchange([op.command for op in ops])
            roll = rng.random()
            if roll < 0.02:  # leaves with requests in flight
                await asyncio.sleep(rng.choice([0, 0, 0.002, 0.02]))
                self.link.close()
            elif roll < 0.03 and not self.big:  # says that it is done, and waits for its replies
                self.link.half_close()
            replies = await future
            self.record.counts["pipelines"] += 1
            if self.check(ops, replies, begun) and 0.02 <= roll < 0.03 and not self.net.may_close(self.proxy.address):
                self.record.violation("half-close", "%s: %d of %d replies before the end" % (
                    self.id, sum(r is not GONE for r in replies), len(replies)))
            if 0.02 <= roll < 0.03 and not self.big:
                await self.link.done
            if 0.03 <= roll < 0.05:
                self.link.close()
            await asyncio.sleep(rng.expovariate(1 / (self.world.pause * (5 if self.big else 1))))
        if self.link:
            self.link.close()
