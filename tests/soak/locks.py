"""Lock workers of a soak run: lock code of real applications, on the three connection models, with leases that are too
short, pauses that are too long, and deaths; and the checker that knows what each worker was promised.

A worker is sure of its lock from the reply that granted it until its lease can have ended or it has begun to release. Two
workers sure of one lock are a violation. So are a holder's refused release, a successful release by a worker that holds
nothing, and a lock that stays held when no worker can be its holder any more.
"""

import asyncio
import collections
import itertools

from resp import Error
from servers import slot_of
from wire import GONE

SLACK = 0.01  # the clocks' resolution
LEASE = 2.0  # of the rules in soak.py
MAX_HOLD = 4.0
DEAD_SLACK = 1.0
HISTORY = 50
ALL_FAULTS = ("kill", "stop", "connections", "migrate", "second", "failover")
serial = itertools.count(1)


class Hold:
    def __init__(self, lock, worker, sent, replied, px):
        self.lock, self.worker, self.sent, self.replied, self.px = lock, worker, sent, replied, px
        self.until = sent + (px or LEASE) - SLACK  # sure until then
        self.over = replied + (px or LEASE) + SLACK  # certainly ended then, if it is not renewed
        self.renewed = px is None
        self.released = False
        self.touched = replied  # the last write that it depends on
        self.confirmed = lock.confirmed

    def endangered(self, record):
        """A failover may have lost it, or what its holder did with it since."""
        if self.confirmed and self.touched == self.replied:
            return False
        return record.endangered(self.lock.slot, self.sent, self.touched)

    def sure(self, at, record):
        """Whether the lease certainly lives: by the clock, or by renewals that nothing can have disturbed."""
        if self.released or self.worker.gone() or record.disturbed(self.sent, ("kill",)):
            return False
        if self.endangered(record):
            return False
        if at < self.until:
            return True
        return (self.renewed and at < self.sent + MAX_HOLD - SLACK and
                not record.disturbed(self.sent - 1, (*ALL_FAULTS, "slow")))

    def certainly_over(self, at, record):
        return not self.renewed and at > self.over and not self.endangered(record)


class Lock:
    """One lock key, its idiom, and what is known of it."""

    def __init__(self, world, name, idiom, px):
        self.world, self.record, self.name, self.idiom, self.px = world, world.record, name, idiom, px
        self.holds = []
        self.history = collections.deque(maxlen=HISTORY)
        self.free_by = 0.0  # no worker can hold it later than that
        self.fence = 0
        self.suspect = None
        self.auto = name.startswith(("lock:d:", "lock:m:"))
        self.late = collections.deque(maxlen=HISTORY)  # late releases over shared connections: process, sent, replied
        self.confirmed = name.startswith("lock:r:")  # by its replicas, before a client is told that it is held
        self.slot = slot_of(name)

    def note(self, who, text):
        self.history.append("%s %s %s" % (self.record.stamp(), who, text))

    def violation(self, kind, text):
        safe = self.confirmed and kind in ("double holder", "lost lease")
        self.record.violation(kind, "%s (%s): %s" % (self.name, self.idiom, text), list(self.history),
                              () if safe else (self.slot,))

    def freed_by_colleague(self, hold):
        """Whether a late release of the holder's own process may have freed it: over shared connections nothing tells
        one worker's release from another's. Some of them may be taken for the holder's, not most."""
        process = hold.worker.process
        if not any(p is process and replied >= hold.sent for p, sent, replied in self.late):
            return False
        self.record.counts["freed by a late colleague"] += 1
        return True

    def granted(self, worker, sent, replied, px, until=None):
        self.record.counts["locks"] += 1
        self.suspect = None
        self.note(worker.who, "granted, lease %s" % px)
        hold = Hold(self, worker, sent, replied, px)
        if until is not None:
            hold.until, hold.renewed = min(hold.until, until), False
        for other in self.holds:
            both = hold.sure(replied, self.record) and other.sure(replied, self.record)
            if both and not self.freed_by_colleague(other):
                self.violation("double holder", "%s was granted it while %s holds it" % (worker.who, other.worker.who))
        self.holds = [h for h in self.holds if h.sure(replied, self.record) or h.renewed]
        self.holds.append(hold)
        self.might_be_held(MAX_HOLD + LEASE if px is None else px)
        return hold

    def might_be_held(self, seconds):
        self.free_by = max(self.free_by, self.record.now() + seconds + DEAD_SLACK)

    def prolonged(self, px):
        """A worker that does not hold it has set its expiry, as a colleague of the holder."""
        for hold in self.holds:
            hold.until = min(hold.until, self.record.now() - SLACK)
            hold.over += px

    def ended(self, hold):
        """Its holder begins to release it, or dies."""
        hold.released = True
        if hold in self.holds:
            self.holds.remove(hold)

    def lost(self, worker, sent):
        """An attempt that was refused: some worker must be able to hold the lock."""
        late = self.record.disturbed(sent - 2, ("slow",))  # so may be the grant's reply
        faults = ("kill", "stop", "second", "failover")
        if self.holds or sent < self.free_by or late or self.record.disturbed(self.free_by - 6, faults, 3):
            self.suspect = None
        elif self.suspect is None:
            self.suspect = self.record.now()  # the grant's reply may be on its way
        elif sent > self.suspect + 1:
            self.violation("stuck", "%s was refused %.1f s after the last possible end" % (
                worker.who, sent - self.free_by))
            self.suspect = None


# ---- connections -------------------------------------------------------------------------------------


class Own:
    """D: one connection a worker, gone with it."""

    model = "D"

    def __init__(self, world, proxy, name, nameless):
        self.world, self.proxy, self.name = world, proxy, name
        self.setup = [] if nameless else [("CLIENT", "SETNAME", name)]
        self.link = None

    async def ready(self):
        if self.link is None or self.link.closed:
            self.link = await self.world.net.open(self.proxy, self.name, self.setup)
        return self.link is not None

    async def __call__(self, *command):
        return await self.link(*command) if self.link else GONE

    async def batch(self, commands):
        return await self.link.exchange(commands) if self.link else [GONE] * len(commands)

    def broken(self):
        return self.link is None or self.link.closed

    def die(self):
        if self.link:
            self.link.close()


class Process:
    """P: any worker takes any free connection for any command. M: all share one."""

    def __init__(self, world, proxy, name, model, size):
        self.world, self.proxy, self.base, self.model, self.size = world, proxy, name, model, size
        self.links = []
        self.free = asyncio.Queue()
        self.generation = 0
        self.opening = asyncio.Lock()
        self.name = name

    async def ready(self):
        async with self.opening:
            if self.links and not any(link.closed for link in self.links):
                return True
            self.die()
            self.name = "%s.%d" % (self.base, self.generation)
            self.free = asyncio.Queue()
            for n in range(self.size):
                link = await self.world.net.open(self.proxy, self.name, [("CLIENT", "SETNAME", self.name)])
                if link is None:
                    self.die()
                    return False
                self.links.append(link)
                self.free.put_nowait(link)
            return True

    async def __call__(self, *command):
        return (await self.batch([command]))[0]

    async def batch(self, commands):
        """In one piece, over one connection."""
        if not self.links:
            return [GONE] * len(commands)
        if self.model == "M":
            return await self.links[0].exchange(commands)
        free = self.free
        link = await free.get()
        try:
            return await link.exchange(commands)
        finally:
            free.put_nowait(link)

    def broken(self):
        return not self.links or any(link.closed for link in self.links)

    def die(self):
        """The process crashes: every connection closes, whatever is in flight."""
        self.generation += 1
        for link in self.links:
            link.close()
        self.links = []


# ---- workers -----------------------------------------------------------------------------------------


class Dead(Exception):
    """The worker ends here, without a word."""


class Unknown(Exception):
    """A reply that says nothing of the outcome, or no reply."""


class Worker:
    """`nameless` ones with a connection of their own are all one client identity."""

    def __init__(self, world, proxy, locks, rng, process=None, prefix="w", nameless=False):
        self.world, self.record, self.proxy, self.locks, self.rng = world, world.record, proxy, locks, rng
        self.process, self.prefix, self.nameless = process, prefix, nameless
        self.born()

    def born(self):
        self.who = "%s%d" % (self.prefix, next(serial))
        self.calls = self.process or Own(self.world, self.proxy, self.who, self.nameless)
        self.alone = self.process is None
        self.generation = self.process.generation if self.process else 0
        self.maybe = {}  # lock: until when it may be held without this worker's knowing
        self.left = set()  # locks that it once let end: under owner auto a later release may count for those leases

    def gone(self):
        """Its process has crashed, and it has not noticed yet."""
        return self.process is not None and self.process.generation != self.generation

    async def call(self, lock, *command):
        return (await self.batch(lock, command))[-1]

    async def batch(self, lock, *commands):
        """Several in one piece; the replies."""
        if self.gone():
            raise Dead
        sent = self.record.now()
        replies = await self.calls.batch(list(commands))
        for command, reply in zip(commands, replies):
            self.look(lock, command, reply, sent)
        return replies

    def look(self, lock, command, reply, sent):
        shown = reply if not isinstance(reply, str) else reply[:80]
        who = self.who if self.alone else "%s of %s" % (self.who, self.process.name)
        lock.note(who, "%s -> %r  (sent %s)" % (" ".join(str(c) for c in command), shown, self.record.stamp(sent)))
        if reply is GONE:
            raise Dead
        if isinstance(reply, Error) and not reply.startswith("LOCKED "):
            self.world.check_error(self.who, command, reply)
            raise Unknown
        if isinstance(reply, str) and "/" in reply and not reply.startswith(lock.name + "/"):
            self.record.violation("another client's reply", "%s %r: %r" % (self.who, command, reply))

    async def run(self):
        rng = self.rng
        await asyncio.sleep(rng.uniform(0, 2))
        while not self.record.over:
            if self.calls.broken() and not await self.calls.ready():
                await asyncio.sleep(0.3)
                continue
            if self.process:
                self.generation = self.process.generation
            lock = rng.choice(self.locks)
            self.hold = None
            try:
                await getattr(self, lock.idiom)(lock)
            except Dead:
                self.record.counts["deaths"] += 1
                lock.might_be_held(MAX_HOLD + LEASE)
                if self.alone:
                    self.calls.die()
                self.end(lock)
                self.born()
            except Unknown:
                lock.might_be_held(MAX_HOLD + LEASE)
                self.maybe[lock] = self.record.now() + MAX_HOLD + 2 * LEASE
                self.left.add(lock)
            self.end(lock)
            await asyncio.sleep(rng.expovariate(1 / self.world.pause) / 2)
        self.calls.die()

    def end(self, lock):
        if self.hold:
            lock.ended(self.hold)
            self.hold = None

    # ---- the steps that idioms are made of

    async def acquire(self, lock, *command, won=(1, "OK"), px=None, until=None):
        sent = self.record.now()
        reply = await self.call(lock, *command)
        if reply not in won or reply is None:
            lock.lost(self, sent)
            return reply, False
        self.hold = lock.granted(self, sent, self.record.now(), px, until)
        if self.alone and self.rng.random() < 0.1:
            await self.check_fence(lock)
        return reply, True

    async def check_fence(self, lock):
        """The fence of the lease: greater than every earlier one."""
        hold = self.hold
        fence = await self.call(lock, "PROXY", "TOKEN", lock.name)
        if fence is None:
            if hold.sure(self.record.now(), self.record) and not (lock.auto and lock in self.left):
                lock.violation("fence", "%s holds it, and PROXY TOKEN says nil" % self.who)
        elif hold.sure(self.record.now(), self.record):
            if fence <= lock.fence:
                lock.violation("fence", "%s: %d after %d" % (self.who, fence, lock.fence))
            lock.fence = fence

    async def work(self, lock, px):
        """Mostly short, sometimes longer than the lease, sometimes the end."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.65:
            await asyncio.sleep(rng.uniform(0, 0.05))
        elif roll < 0.85:
            await asyncio.sleep((px or LEASE) * rng.uniform(0.1, 0.7))
        else:
            await asyncio.sleep((px or LEASE) * rng.uniform(1.1, 2.2))
        if rng.random() < 0.06:
            if self.process and rng.random() < 0.2:
                self.process.die()
            raise Dead

    async def release(self, lock, *command):
        """The release of a worker that acquired, in time or too late."""
        hold = self.hold
        sent = self.record.now()
        lock.note(self.who, "begins to release it")
        sure_before = hold.sure(sent, self.record)
        lock.ended(hold)  # from here on others may have it
        reply = await self.call(lock, *command)
        replied = self.record.now()
        hold.released = False
        if self.alone:
            # A release that was done, whose reply was lost, and that is repeated after others have acquired and released,
            # finds no trace of itself: 0.
            repeated = self.record.disturbed(sent, ("connections", "stop", "failover"))
            mine = not repeated and not (lock.auto and lock in self.left)
            if reply == 0 and mine and sure_before and hold.sure(replied, self.record):
                lock.violation("refused release", "%s holds it, and %s answers 0" % (self.who, command[0]))
            if reply == 1 and hold.certainly_over(sent, self.record) and command[0] == "DEL":
                lock.violation("late release", "%s released it %.3f s after its lease" % (self.who, sent - hold.over))
        elif not sure_before:
            # Late, or perhaps late: if the reply to an EXPIRE was slow, it is not known from when on it counts.
            if hold.certainly_over(replied, self.record):
                self.record.counts["late releases of colleagues"] += 1
            lock.late.append((self.process, sent, replied))
        hold.released = True
        self.hold = None
        self.record.counts["releases"] += 1
        if reply == 0:
            self.record.counts["releases refused"] += 1
            lock.might_be_held(MAX_HOLD + LEASE)
            self.maybe[lock] = self.record.now() + MAX_HOLD + 2 * LEASE
        return reply

    async def loser(self, lock):
        """What careless code does after it has lost: an EXPIRE, a DEL in `finally`. On a connection of its own, both
        answer 0."""
        if not self.alone or self.maybe.get(lock, 0) > self.record.now():
            return
        roll = self.rng.random()
        if roll < 0.15:
            if await self.call(lock, "PEXPIRE", lock.name, 60000) != 0:
                lock.violation("loser's EXPIRE", "%s lost, and its PEXPIRE answers 1" % self.who)
        elif roll < 0.3:
            if await self.call(lock, "DEL", lock.name) != 0:
                lock.violation("loser's DEL", "%s lost, and its DEL answers 1" % self.who)

    # ---- idioms; the numbers are those of the design's list

    async def setnx_del(self, lock):  # 1
        _, won = await self.acquire(lock, "SETNX", lock.name, lock.name + "/1")
        if not won:
            return await self.loser(lock)
        await self.work(lock, None)
        await self.release(lock, "DEL", lock.name)

    async def setnx_expire_del(self, lock):  # 2
        _, won = await self.acquire(lock, "SETNX", lock.name, lock.name + "/1")
        if not won:
            return await self.loser(lock)
        if self.rng.random() < 0.05:
            raise Dead
        await self.expire(lock)
        await self.work(lock, lock.px)
        await self.release(lock, "DEL", lock.name)

    async def expire(self, lock):
        hold = self.hold
        sent = self.record.now()
        px = lock.px
        was_sure = hold.sure(sent, self.record)
        until, hold.until, hold.renewed = hold.until, min(hold.until, sent + px - SLACK), False
        hold.over = max(hold.over, sent + 60)  # not known before the reply
        reply = await self.call(lock, "PEXPIRE", lock.name, int(px * 1000))
        now = self.record.now()
        hold.touched = now
        if reply == 1:
            hold.until, hold.over = sent + px - SLACK, now + px + SLACK
        else:
            hold.over = max(until, now) + MAX_HOLD
            if self.alone and was_sure and now < until and hold.sure(now, self.record):
                lock.violation("refused EXPIRE", "%s holds it, and PEXPIRE answers %r" % (self.who, reply))

    async def constant(self, lock):  # 4
        px = lock.px
        _, won = await self.acquire(lock, "SET", lock.name, lock.name + "/1", "NX", "PX", int(px * 1000), px=px)
        if not won:
            return await self.loser(lock)
        await self.work(lock, px)
        await self.release(lock, "DEL", lock.name)

    async def compared(self, lock):  # 6, and 15 as an extension
        px = lock.px
        value = "%s/%s/%d" % (lock.name, self.who, next(serial))
        _, won = await self.acquire(lock, "SET", lock.name, value, "PX", int(px * 1000), "NX", px=px)
        if not won:
            return await self.loser(lock)
        if self.alone and self.rng.random() < 0.3:  # with shared connections it may be a colleague's lease
            await self.work(lock, px)
            await self.extend(lock, value, px)
        await self.work(lock, px)
        hold = self.hold
        shown = await self.call(lock, "GET", lock.name)
        if shown != value:
            if hold.sure(self.record.now(), self.record) and not lock.freed_by_colleague(hold):
                lock.violation("lost lease", "%s holds it, and GET says %r" % (self.who, shown))
            self.left.add(lock)
            return
        if self.rng.random() < 0.2:  # between the look and the release
            await self.work(lock, px)
        await self.release(lock, "DEL", lock.name)

    async def compared_once(self, lock):
        """The same with nothing in between that only its own master has heard of."""
        px = lock.px
        value = "%s/%s/%d" % (lock.name, self.who, next(serial))
        _, won = await self.acquire(lock, "SET", lock.name, value, "PX", int(px * 1000), "NX", px=px)
        if not won:
            return
        await self.work(lock, px)
        hold = self.hold
        if await self.call(lock, "GET", lock.name) == value:
            await self.release(lock, "DEL", lock.name)
        elif hold.sure(self.record.now(), self.record):
            lock.violation("lost lease", "%s holds it, confirmed by its replicas, and GET does not say so" % self.who)

    async def extend(self, lock, value, px):
        hold = self.hold
        sent = self.record.now()
        late = hold.certainly_over(sent, self.record)
        sure = hold.sure(sent, self.record)
        until = hold.until
        hold.until, hold.over = min(hold.until, sent + px - SLACK), hold.over + 60
        reply = await self.call(lock, "SET", lock.name, value, "PX", int(px * 1000), "XX")
        now = self.record.now()
        hold.touched = now
        if reply == "OK":
            if late:
                lock.violation("late extension", "%s extended a lease that had ended" % self.who)
            hold.until, hold.over = sent + px - SLACK, now + px + SLACK
        else:
            hold.over = max(hold.over - 60, now)
            if sure and now < until and hold.sure(now, self.record):
                lock.violation("refused extension", "%s holds it, and SET XX answers %r" % (self.who, reply))

    async def takeover(self, lock):  # 8
        def deadline():
            self.mark = self.record.now() + lock.px
            return "%s/%d.%d" % (lock.name, self.mark * 1000, next(serial))

        mine = deadline()
        _, won = await self.acquire(lock, "SETNX", lock.name, mine, until=self.mark - SLACK)
        if not won:
            shown = await self.call(lock, "GET", lock.name)
            if shown is None or int(shown.rsplit("/", 1)[1].split(".")[0]) / 1000 + SLACK > self.record.now():
                return
            mine = deadline()
            sent = self.record.now()
            old = await self.call(lock, "GETSET", lock.name, mine)
            if old != shown:  # another one was faster; or it was free, and is this worker's without its knowing
                lock.might_be_held(MAX_HOLD + LEASE)
                self.maybe[lock] = self.record.now() + MAX_HOLD + 2 * LEASE
                self.left.add(lock)
                return
            self.record.counts["takeovers"] += 1
            self.hold = lock.granted(self, sent, self.record.now(), None, self.mark - SLACK)
        self.hold.renewed = False
        self.hold.over = self.hold.replied + MAX_HOLD + LEASE
        await self.work(lock, lock.px)
        if self.record.now() < self.mark:
            await self.release(lock, "DEL", lock.name)
        else:
            self.left.add(lock)
            lock.might_be_held(MAX_HOLD + LEASE)

    async def transaction(self, lock):  # 3
        px = lock.px
        sent = self.record.now()
        replies = (await self.batch(lock, ("MULTI",), ("SETNX", lock.name, lock.name + "/1"),
                                    ("PEXPIRE", lock.name, int(px * 1000)), ("EXEC",)))[-1]
        for reply in replies or ():
            if isinstance(reply, Error):  # the node is a master no more
                self.world.check_error(self.who, ("EXEC",), reply)
                raise Unknown
        if replies not in ([1, 1], [0, 0], [0, 1]) or (replies[1] > replies[0] and self.alone and
                                                       self.maybe.get(lock, 0) < sent):
            lock.violation("transaction", "%s: EXEC answers %r" % (self.who, replies))
        if replies != [1, 1]:
            lock.lost(self, sent)
            if replies == [0, 1]:  # a colleague's, as far as can be told
                lock.might_be_held(px)
                lock.prolonged(px)
            return
        self.hold = lock.granted(self, sent, self.record.now(), px)
        await self.work(lock, px)
        await self.release(lock, "DEL", lock.name)

    async def watched(self, lock):  # 11
        px = lock.px
        value = "%s/%s/%d" % (lock.name, self.who, next(serial))
        _, won = await self.acquire(lock, "SET", lock.name, value, "NX", "PX", int(px * 1000), px=px)
        if not won:
            return
        await self.work(lock, px)
        hold = self.hold
        sent = self.record.now()
        try:
            _, shown = await self.batch(lock, ("WATCH", lock.name), ("GET", lock.name))
        except Unknown:
            await self.calls("UNWATCH")
            raise
        if self.rng.random() < 0.3:
            await self.work(lock, px)
        if shown != value:
            await self.call(lock, "UNWATCH")
        else:
            lock.note(self.who, "begins to release it")
            sure = hold.sure(self.record.now(), self.record)
            lock.ended(hold)
            reply = (await self.batch(lock, ("MULTI",), ("DEL", lock.name), ("EXEC",)))[-1]
            hold.released = False
            undisturbed = not (lock.auto and lock in self.left) and not self.record.disturbed(
                sent, ("connections", "stop", "kill", "migrate", "failover"))
            if reply != [1] and sure and undisturbed and hold.sure(self.record.now(), self.record):
                lock.violation("refused release", "%s holds it, and EXEC answers %r" % (self.who, reply))
            hold.released = True
            if reply == [1]:
                self.record.counts["releases"] += 1
                return
        self.left.add(lock)
        self.maybe[lock] = self.record.now() + 2 * px

    async def get_set(self, lock):  # 16
        px = lock.px
        if await self.call(lock, "GET", lock.name) is not None:
            return
        _, won = await self.acquire(lock, "SET", lock.name, lock.name + "/1", "PX", int(px * 1000), px=px)
        if won:
            await self.work(lock, px)
            await self.release(lock, "DEL", lock.name)

    async def throttle(self, lock):  # 18
        """The lock is not released, and no worker gets it before its time."""
        _, won = await self.acquire(lock, "SET", lock.name, lock.name + "/1", "NX", "PX", int(lock.px * 1000), px=lock.px)
        if won:
            self.hold = None

    async def incr_del(self, lock):  # 13
        _, won = await self.acquire(lock, "INCR", lock.name, won=(1,))
        if not won:
            return await self.loser(lock)
        await self.expire(lock)
        await self.work(lock, lock.px)
        await self.release(lock, "DEL", lock.name)

    async def incr_decr(self, lock):
        """The losers take back what they have counted, the holder too."""
        # Not sure of it before its own EXPIRE: the expiry of the one before is still on the key, as without the proxy.
        _, won = await self.acquire(lock, "INCR", lock.name, won=(1,), until=0)
        if won:
            await self.expire(lock)
            await self.work(lock, lock.px)
            self.hold.over = self.hold.replied + 100
            lock.ended(self.hold)
            self.hold = None
        await self.call(lock, "DECR", lock.name)
        lock.might_be_held(MAX_HOLD + LEASE)


class Crasher:
    """Acquires locks without contenders, dies, and checks whether they are free when they have to be."""

    def __init__(self, world, proxy, number, rng):
        self.world, self.record, self.proxy, self.rng = world, world.record, proxy, rng
        self.id = "x%d" % number

    async def run(self):
        rng = self.rng
        while not self.record.over:
            link = await self.world.net.open(self.proxy, self.id)
            if not link:
                await asyncio.sleep(0.5)
                continue
            at_once = rng.random() < 0.3
            prefix = "lock:release:" if at_once else "lock:d:"
            name = "%s%s.%d" % (prefix, self.id, next(serial))
            px = rng.choice([None, 0.4, 1.5])
            begun = self.record.now()
            command = ("SETNX", name, name + "/1") if px is None else (
                "SET", name, name + "/1", "NX", "PX", int(px * 1000))
            reply = await link(*command)
            if reply is not GONE and not isinstance(reply, Error) and reply not in (1, "OK"):
                self.record.violation("fresh lock", "%s: %r answers %r" % (self.id, command, reply))
            await asyncio.sleep(rng.uniform(0, LEASE * 1.4) if px is None else rng.uniform(0, px / 2))
            if rng.random() < 0.3:
                link.exchange([("GET", name)] * 20)
            link.close()
            left = self.record.now()
            await asyncio.sleep((0 if at_once else px or LEASE) + DEAD_SLACK)
            await self.probe(name, begun, left)

    async def probe(self, name, begun, left):
        link = await self.world.net.open(self.proxy, self.id + "p")
        if not link:
            return
        reply = await link("SETNX", name, name + "/2")
        disturbed = self.record.disturbed(begun, ALL_FAULTS, 2)
        if reply == 0 and not disturbed and self.record.disturbed(left, ("slow",)):
            # A connection that ends while its requests wait for a busy node is seen to end when they are answered.
            await asyncio.sleep(LEASE + DEAD_SLACK)
            reply = await link("SETNX", name, name + "/2")
            disturbed = self.record.disturbed(begun, ALL_FAULTS, 2)
        if reply == 0 and not disturbed and begun + MAX_HOLD + LEASE > self.record.now() - DEAD_SLACK:
            # It had no name: another nameless client that came just then may be taken for it, until max-hold.
            self.record.counts["crashed holders kept for another"] += 1
            await asyncio.sleep(begun + MAX_HOLD + LEASE + DEAD_SLACK - self.record.now())
            reply = await link("SETNX", name, name + "/2")
            disturbed = self.record.disturbed(begun, ALL_FAULTS, 2)
        if reply == 0 and not disturbed:
            self.record.violation("dead holder", "%s: still held %.1f s after it was acquired by a client that left: %r" % (
                name, self.record.now() - begun, await link("PROXY", "LOCK", name)))
        self.record.counts["crashed holders"] += 1
        await link("DEL", name)
        link.close()
