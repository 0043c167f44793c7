"""Connections of a soak run: many of them on one event loop, each with its replies in order and a watch for hangs.

Reuses the encoder and parser of the integration tests. Knows nothing of what the commands mean.
"""

import asyncio
import collections
import socket

from resp import Error, encode, parse, reply_end

TICK = 0.1
SCRIPTS = ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO")
SLOW = 0.6  # seconds without a reply after which the machine is busy with something else: renewals are late, too


class Gone:
    """In the place of a reply: the connection ended before it came."""

    def __repr__(self):
        return "GONE"


GONE = Gone()


class Batch:
    def __init__(self, net, count, future, text, script):
        self.net, self.count, self.future, self.text, self.script = net, count, future, text, script
        self.replies = []
        self.progress()

    def progress(self):
        """It is waited for from here on."""
        self.sent, self.since = self.net.clock, self.net.record.now()


class Link(asyncio.Protocol):
    """One connection. exchange() may be called again before the last one has its replies."""

    def __init__(self, net, who, address):
        self.net, self.who, self.address = net, who, address
        self.batches = collections.deque()
        self.buffer = bytearray()
        self.needed = 0
        self.transport = None
        self.closed = False
        self.expected = False  # our own close, or one that is due (garbage, half-close, limits)
        self.lazy = False  # does not read: not watched
        self.done = asyncio.get_running_loop().create_future()
        self.stray = 0

    # ---- asyncio

    def half_close(self):
        """Says that no more requests come."""
        self.expected = True
        try:
            self.transport.write_eof()
        except OSError:  # it is closed already, which this program has not read yet
            pass

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.net.links.add(self)

    def connection_lost(self, error):
        self.closed = True
        self.net.links.discard(self)
        while self.batches:
            self.finish(self.batches.popleft())
        if not self.done.done():
            self.done.set_result(None)
        if not self.expected:
            self.net.unexpected_close(self, error)

    def eof_received(self):
        return False

    def data_received(self, data):
        self.buffer += data
        if len(self.buffer) < self.needed:
            return
        at = 0
        try:
            while at < len(self.buffer):
                end = reply_end(self.buffer, at)
                if end < 0:
                    break
                self.take(parse(self.buffer, at)[0])
                at = end
        except (AssertionError, ValueError) as error:
            self.net.violation("reply is no RESP", "%s got %s" % (self.who, str(error)[:300]))
            self.abort()
        if at:
            del self.buffer[:at]
        self.needed = 0
        if self.buffer[:1] == b"$" and len(self.buffer) > 65536:  # a large one is not scanned at each arrival
            eol = self.buffer.find(b"\r\n")
            self.needed = eol + int(self.buffer[1:eol]) + 4

    def take(self, reply):
        if not self.batches:
            self.stray += 1
            if not self.expected:
                self.net.violation("stray reply", "%s got %r, which nothing had asked for" % (self.who, str(reply)[:200]))
            return
        batch = self.batches[0]
        batch.replies.append(reply)
        batch.progress()
        self.net.counts["replies"] += 1
        if len(batch.replies) == batch.count:
            self.batches.popleft()
            self.finish(batch)
            if self.batches:
                self.batches[0].progress()

    def finish(self, batch):
        batch.replies += [GONE] * (batch.count - len(batch.replies))
        if not batch.future.done():
            batch.future.set_result(batch.replies)

    # ---- use

    def exchange(self, commands):
        """Sends them in one piece; a future of the replies, in order."""
        text = " | ".join(" ".join(str(a)[:60] for a in (c if len(c) < 6 else [*c[:3], "...", c[-1]]))
                          for c in commands[:3])
        script = any(c[0] in SCRIPTS for c in commands)
        return self.exchange_bytes(b"".join(encode(*c) for c in commands), len(commands), text, script)

    def exchange_bytes(self, payload, count, text="", script=False):
        future = asyncio.get_running_loop().create_future()
        batch = Batch(self.net, count, future, text, script)
        self.net.counts["requests"] += count
        if self.closed:
            self.finish(batch)
        else:
            self.batches.append(batch)
            self.transport.write(payload)
        return future

    async def __call__(self, *command):
        return (await self.exchange([command]))[0]

    def close(self):
        """Leaves at once, whatever is in flight."""
        self.expected = True
        if self.transport and not self.closed:
            self.transport.abort()

    def polite_close(self):
        self.expected = True
        if self.transport and not self.closed:
            self.transport.close()

    def abort(self):
        self.close()


class Net:
    """All connections of a run, and the watch over them."""

    def __init__(self, record, bound):
        self.record, self.bound = record, bound
        self.counts = record.counts
        self.links = set()
        self.clock = 0.0  # seconds that this process was there to look, and the nodes to answer: their delays do not count
        self.held = 0  # by so many nodes
        self.slowest = 0.0
        self.slow = None  # how long a client waits at most
        self.dying = {}  # address -> "dies" or "leaves" (closes, but refuses no client), or None

    def violation(self, *args, **options):
        self.record.violation(*args, **options)

    async def open(self, proxy, who, setup=()):
        """A Link, or None if there is no listener."""
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_connection(lambda: Link(self, who, proxy.address), *proxy.address)
        except OSError as error:
            if not self.record.over and self.dying.get(proxy.address) != "dies":
                self.violation("connect", "%s: %s" % (who, error))
            return None
        self.counts["connections"] += 1
        for command in setup:
            reply = await link(*command)
            if reply is GONE:
                return None
            if isinstance(reply, Error):
                if not reply.startswith("UPSTREAM ") or not self.record.disturbed(
                        self.record.now(), ("kill", "stop", "connections", "failover"), 6):
                    self.violation("setup", "%s %r: %r" % (who, command, reply))
                link.close()
                return None
        return link

    async def wait_for(self, future, seconds):
        """What it brings; None where it does not within so many seconds of the clock that counts."""
        end = self.clock + seconds
        while not future.done() and self.clock < end:
            await asyncio.wait([future], timeout=TICK)
        return future.result() if future.done() else None

    def may_close(self, address):
        return self.record.over or self.dying.get(address) is not None

    def unexpected_close(self, link, error):
        if link.buffer and self.record.disturbed(self.record.now(), ("kill", "stop", "connections", "failover"), 3):
            self.counts["closed in the middle of a reply"] += 1  # its node was lost: nothing else can be said
            return
        if not self.may_close(link.address):
            self.violation("closed", "%s: the proxy closed its connection (%s)" % (link.who, error))

    def line_recovers(self, batch):
        """Whether a script's reply may still be on its way over a line that was cut or mute. A script may run on while its
        node answers others, so the proxy waits, and TCP tries again after pauses that double: as long again as it had
        waited when the line was mended. If the line is cut again, that is found out in twice the proxy's patience."""
        ends = self.record.ends(("cut", "mute"), batch.since) if batch.script else []
        return bool(ends) and self.record.now() < ends[-1] + max(ends[-1] - batch.since, self.bound) + 1

    async def watch(self):
        """Every request gets a reply or a close in time."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            if self.held == 0:
                self.clock += min(now - last, 3 * TICK)
            oldest = now - last  # this process, too
            last = now
            for link in list(self.links):
                if not link.batches or link.lazy:
                    continue
                batch = link.batches[0]
                age = self.clock - batch.sent
                self.slowest = max(self.slowest, age)
                oldest = max(oldest, age)
                if age > self.bound and not self.line_recovers(batch):
                    self.violation("hang", "%s: no reply for %.1f s to number %d of %d: %s" % (
                        link.who, age, len(batch.replies) + 1, batch.count, batch.text))
                    link.close()
            if oldest > SLOW and not self.slow:
                self.slow = self.record.begin("slow")
            elif oldest <= SLOW and self.slow:
                self.record.end(self.slow)
                self.slow = None
