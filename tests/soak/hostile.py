"""Clients of a soak run that misbehave: garbage, slow and greedy readers, half a request and gone."""

import asyncio
import itertools

from resp import Error, encode
from servers import slot_of
from wire import GONE

MB = 1000000


class Hostile:
    def __init__(self, world, proxy, number, rng):
        self.world, self.record, self.net, self.proxy, self.rng = world, world.record, world.net, proxy, rng
        self.id = "h%d" % number

    async def run(self):
        kinds = [self.garbage, self.broken, self.half, self.slow, self.greedy, self.flood]
        while not self.record.over:
            await self.rng.choice(kinds)()
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))

    async def opened(self):
        link = await self.net.open(self.proxy, self.id)
        if link:
            link.expected = True
        return link

    async def wait_closed(self, link, seconds):
        try:
            await asyncio.wait_for(asyncio.shield(link.done), seconds)
            return True
        except asyncio.TimeoutError:
            return False

    async def garbage(self):
        link = await self.opened()
        if link:
            link.take = lambda reply: None
            link.transport.write(bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(1, 3000))))
            await self.wait_closed(link, self.rng.uniform(0.05, 0.5))
            link.close()

    async def broken(self):
        """A protocol error behind good requests: their replies, Redis's words, and the end."""
        link = await self.opened()
        if not link:
            return
        word = "%s/%d" % (self.id, self.rng.randrange(10**9))
        bad = self.rng.choice([b"*x\r\n", b"*1\r\n$-5\r\n", b"*1\r\n!3\r\nabc\r\n", b"*99999999999\r\n"])
        begun = self.record.now()
        replies = await link.exchange_bytes(encode("ECHO", word) * 3 + bad + encode("ECHO", "never"), 4)
        if self.net.may_close(self.proxy.address):
            return
        if self.record.disturbed(begun, self.world.error_causes, 6):
            replies[:3] = [word if str(reply).startswith("UPSTREAM ") else reply for reply in replies[:3]]
        if replies[:3] != [word] * 3 or not str(replies[3]).startswith("ERR Protocol error"):
            self.record.violation("protocol error", "%s: %r" % (self.id, replies))
        if not await self.wait_closed(link, self.world.bound):
            self.record.violation("protocol error", "%s: the connection stays open behind %r" % (self.id, bad))
            link.close()

    async def half(self):
        """Part of a request, then nothing, or the end."""
        link = await self.opened()
        if link:
            whole = encode("SET", self.id + "/half", "x" * self.rng.choice([10, 100000]))
            link.transport.write(whole[: self.rng.randrange(1, len(whole))])
            await asyncio.sleep(self.rng.uniform(0, 0.5))
            if self.rng.random() < 0.5 and not link.closed:
                link.transport.write_eof()
                if not await self.wait_closed(link, self.world.bound):
                    self.record.violation("half-close", "%s: half a request and the end: it stays open" % self.id)
            link.close()

    async def slow(self):
        """Reads its replies late, and then wants them all, in order."""
        link = await self.opened()
        if not link:
            return
        link.lazy = True
        key, word = "%s/slow" % self.id, "%s/%d/" % (self.id, self.rng.randrange(10**6))
        value = (word * (MB // len(word) + 1))[: self.rng.choice([20000, 200000, MB])]
        begun = self.record.now()
        count = max(2, min(200, 12 * MB // len(value)))
        commands = [("SET", key, value, "EX", 100)]
        for n in range(count):
            commands += [("GET", key), ("ECHO", "%s/%d" % (self.id, n))]
        link.transport.pause_reading()
        future = link.exchange(commands)
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        if not link.closed:
            link.transport.resume_reading()
        replies = await self.net.wait_for(future, 20)
        if replies is None:
            self.record.violation("hang", "%s: a slow reader never got its replies" % self.id)
            link.close()
            return
        causes = self.record.disturbed(begun, self.world.error_causes, 6)
        values = [value]
        if replies[0] != "OK" or self.record.endangered(slot_of(key), begun, self.record.now()):
            # What was there before; and then its own, once, where a node that was given up carries it out late.
            seen = [r for r in replies[1::2] if isinstance(r, str) and r.startswith(self.id + "/")]
            values = [v for v, _ in itertools.groupby(seen)][:2] or values
        for n, reply in enumerate(replies):
            if n % 2 and len(values) > 1 and reply == values[1]:
                values = values[1:]
            expected = "OK" if n == 0 else values[0] if n % 2 else "%s/%d" % (self.id, n // 2 - 1)
            if reply != expected and not (causes and (isinstance(reply, Error) or reply is GONE or reply is None and n % 2)) \
                    and not (reply is GONE and self.net.may_close(self.proxy.address)):
                self.record.violation("slow reader", "%s: reply %d of %d is %.80r, expected %.80r" % (
                    self.id, n, len(replies), reply, expected))
                break
        link.close()

    async def greedy(self):
        """Asks for far more than the output limit and reads nothing: it is dropped, or leaves."""
        link = await self.opened()
        if not link:
            return
        link.lazy = True
        key = "%s/greedy" % self.id
        await link("SET", key, "x" * (4 * MB), "EX", 60)
        if link.closed:
            return
        link.transport.pause_reading()
        link.exchange([("GET", key)] * 30)
        await asyncio.sleep(self.rng.uniform(0.2, 2))
        link.close()

    async def flood(self):
        """A great many small requests at once, and gone before the replies."""
        link = await self.opened()
        if link:
            link.exchange([("SET", "%s/f%d" % (self.id, n % 50), n) for n in range(3000)])
            await asyncio.sleep(self.rng.choice([0, 0.005, 0.05]))
            link.close()
