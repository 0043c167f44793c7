"""Failovers of a soak run, on the backends of replicated.py: masters killed, stopped, cut off, asked to give way, and
pushed aside while they still take writes.

Replication is asynchronous: before each the replicas are seen in step (tide.py); until the backend is itself again,
acknowledged writes to the failed-over slots may be lost by Redis (record.py's Loss). A CLUSTER FAILOVER, in which the
master waits for its replica, loses nothing, and is given no such window.
"""

import asyncio
import time

import replicated
from resp import Closed, Error
from servers import until

CLUSTER = ("promote", "handed", "takeover", "split", "halt")
SENTINEL = ("promote", "asked", "halt")
TIMEOUT = 60
FAILOVER_TIMEOUT = 6  # a CLUSTER FAILOVER gives up after five seconds


class TooBusy(Exception):
    """The machine, for a failover of which the losses are known: there is none now."""


async def away(function, *args):
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


class Failovers:
    """A part of faults.Faults."""

    async def lossy(self, how, fault, seconds=0):
        """One failover: `fault` begins it and gives back what mends it, or nothing; then all is waited for."""
        async with self.harm:
            master = self.rng.choice(await away(self.world.backend.masters))
            replicas = await away(self.world.backend.replicas_of, master)
            danger = await self.danger(master)
            if not danger:  # it has lost its place without this
                return
            window = self.record.begin("failover", "%s: port %d" % (how, master.port), how)
            master.harmed = True
            try:
                await asyncio.sleep(self.rng.uniform(0, 0.2))  # for writes that can be lost
                mend = await away(fault, master, replicas)
                await asyncio.sleep(seconds)
                if mend:
                    await away(mend)
                await away(self.settled)
            finally:
                master.harmed = False
                self.record.end(window)
                await self.danger_over(danger)

    async def danger(self, node):
        """Something is about to befall a node: where it is a master it may lose its place, for `danger_over`."""
        if not self.replicated:
            return None
        shard = self.world.tide.shard_of(node)
        seen = await self.in_step(shard)
        ranges = await away(self.world.backend.ranges_of, node)
        if (await away(replicated.role, node))[:1] != ["master"] or shard.last.id != seen.id:
            return None
        shard.excused += 1
        return shard, seen, self.record.may_lose(seen.begun, ranges)

    async def in_step(self, shard):
        try:
            return await self.world.tide.fresh(shard)
        except AssertionError as error:
            raise TooBusy(str(error)) from None

    async def danger_over(self, danger):
        if danger:
            shard, before, loss = danger
            try:
                seen = await self.world.tide.fresh(shard)
            finally:
                shard.excused -= 1
            self.record.lost(loss, seen.id != before.id)

    def replaced(self, master):
        until(lambda: self.world.backend.replaced(master), TIMEOUT, "the promotion and everybody's knowledge of it", 0.05)

    async def promote(self):
        """kill -9; the node comes back, empty, once all nodes know its successor. Earlier it would still be the master, and
        all data would be lost."""
        def fault(master, replicas):
            master.kill()
            self.replaced(master)
            return master.start

        await self.lossy("promote", fault, self.rng.uniform(0, 1.5))

    async def halt(self):
        """SIGSTOP until another one has its place; then it goes on where it was, and has to learn."""
        def fault(master, replicas):
            master.pause()
            try:
                self.replaced(master)
            except BaseException:
                master.resume()
                raise
            return master.resume

        await self.lossy("halt", fault, self.rng.uniform(0, 1))

    async def takeover(self):
        """Cut off from all others; its replica takes over without a request."""
        def fault(master, replicas):
            getattr(master, "cut", master.pause)()
            with replicas[0].client() as c:
                c("CLUSTER", "FAILOVER", "TAKEOVER")
            self.replaced(master)
            return getattr(master, "mend", master.resume)

        await self.lossy("takeover", fault, self.rng.uniform(0, 2))

    async def split(self):
        """The master's replica and the other nodes can't reach it any more, but the proxies can: it takes writes that will
        be lost, until it finds that it is alone."""
        def fault(master, replicas):
            others = [n for n in self.nodes if n is not master]
            master.divide(others)
            with replicas[0].client() as c:
                c("CLUSTER", "FAILOVER", "TAKEOVER")
            self.replaced(master)
            return lambda: master.unite(others)

        await self.lossy("split", fault, self.rng.uniform(0, 2))

    async def asked(self):
        """SENTINEL FAILOVER: the old master takes writes until it is told."""
        def fault(master, replicas):
            def done():
                if self.world.backend.master is master:
                    with self.rng.choice(self.world.backend.sentinels).client() as c:
                        c("SENTINEL", "FAILOVER", self.world.backend.name)
                return self.world.backend.master is not master

            until(done, TIMEOUT, "the failover", 0.2)

        await self.lossy("asked", fault)

    async def handed(self):
        """CLUSTER FAILOVER: nothing may be lost. Until its replica has caught up, for ten seconds on a busy machine, the
        master delays writes and scripts, but answers other commands: a client that waits for it does not hang."""
        async with self.harm:
            master = self.rng.choice(await away(self.world.backend.masters))
            replica = (await away(self.world.backend.replicas_of, master))[0]
            shard = self.world.tide.shard_of(master)
            await self.in_step(shard)
            window = self.record.begin("failover", "handed: port %d" % master.port, "handed")
            shard.handed += 1
            again = 0

            def done():
                nonlocal again
                if replicated.role(replica)[:1] == ["master"]:
                    return True
                if time.monotonic() < again:  # asked once more it would begin anew
                    return False
                again = time.monotonic() + FAILOVER_TIMEOUT
                try:
                    with replica.client() as c:
                        c("CLUSTER", "FAILOVER")
                except (OSError, Closed):
                    pass
                return False

            self.world.net.held += 1
            try:
                await away(until, done, TIMEOUT, "the promotion", 0.5)
                await away(self.settled)
                await self.world.tide.fresh(shard)
            finally:
                shard.handed -= 1
                self.world.net.held -= 1
                self.record.end(window)
