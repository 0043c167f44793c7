"""The faults of a soak run: nodes killed, stopped and emptied of scripts, connections killed, slots moved, lines cut,
configurations reloaded, proxies put to sleep, a second proxy killed or replaced; and failovers (failovers.py). Each is noted
in the record with its time.

Only one fault of nodes at a time, and no slot moves meanwhile: a key lost in half a move would not be the proxy's fault.
"""

import asyncio
import signal

import failovers
from resp import Closed, Error
from servers import until

OWN_NAME = "soak"


async def away(function, *args):
    """Something that waits, off the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


class Faults(failovers.Failovers):
    def __init__(self, world, rng, allowed):
        self.world, self.record, self.rng, self.allowed = world, world.record, rng, allowed
        self.nodes = world.backend.nodes
        self.replicated = world.replicated
        self.harm = asyncio.Lock()
        self.second_busy = asyncio.Lock()
        for node in self.nodes:
            node.harmed = False  # by a fault of this list
        self.bad_config = False

    async def run(self):
        """Storms, and calm in between, in which waits that nothing disturbs can be looked at."""
        rng = self.rng
        tasks = []
        if "migrate" in self.allowed and self.world.backend.kind == "cluster":
            tasks.append(asyncio.ensure_future(self.migrations()))
        if "doze" in self.allowed:
            tasks.append(asyncio.ensure_future(self.dozes()))
        kinds = [kind for kind in ("kill", "stop", "blink", "connections", "connections", "scripts", "reload", "second",
                                   "handover", "cut", "cut", "mute")
                 if kind in self.allowed and not (self.replicated and kind == "kill")]
        if self.replicated:  # what is killed there is replaced
            of_kind = failovers.CLUSTER if self.world.backend.kind == "cluster" else failovers.SENTINEL
            kinds += [kind for kind in of_kind if kind in self.allowed] * 2
        try:
            while kinds:
                await asyncio.sleep(rng.uniform(5, 10) * min(1, self.world.args.seconds / 60))
                end = self.record.now() + rng.uniform(5, 12)
                while self.record.now() < end:
                    await self.guarded(getattr(self, rng.choice(kinds)))
                    await asyncio.sleep(rng.uniform(0.05, 1.5))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def guarded(self, fault):
        """Runs one fault, and waits for its end even if this is cancelled."""
        task = asyncio.ensure_future(fault())
        cancelled = None
        try:
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                cancelled = error
                await task
        except (failovers.TooBusy, TimeoutError):  # a node itself does not answer
            self.record.counts["faults left out"] += 1
        except (AssertionError, OSError, Closed) as error:
            self.record.violation("fault", "%s: %r" % (fault.__name__, error))
        if cancelled:
            raise cancelled

    # ---- nodes

    async def kill(self):
        async with self.harm:
            node = self.rng.choice(self.nodes)
            window = self.record.begin("kill", "port %d" % node.port)
            node.harmed = True
            try:
                await away(node.kill)
                await asyncio.sleep(self.rng.uniform(0, 2))
                await away(node.start)
                await away(self.settled)
            finally:
                node.harmed = False
                self.record.end(window)

    def settled(self):
        if self.replicated:
            until(self.world.backend.settled, 90, "the backend's recovery", 0.3)
            return

        def fine():
            return all("cluster_state:ok" in node.run("CLUSTER", "INFO") for node in self.nodes)

        if self.world.backend.kind == "cluster":
            until(fine, 30, "the cluster's recovery", 0.1)

    async def stop(self, seconds=None):
        """For longer than upstream-timeout."""
        async with self.harm:
            node = self.rng.choice(self.nodes)
            seconds = seconds or self.world.upstream_timeout + self.rng.uniform(0.3, 2.5)
            loss = await self.danger(node)
            window = self.record.begin("stop", "port %d for %.1f s" % (node.port, seconds))
            node.harmed = True
            node.pause()
            try:
                await asyncio.sleep(seconds)
            finally:
                node.resume()
                await away(self.settled)
                node.harmed = False
                self.record.end(window)
                await self.danger_over(loss)

    async def cut(self):
        """Its line is cut: for shorter or longer than upstream-timeout, and than the cluster's patience."""
        await self.apart("cut", self.rng.choice([0.3, 1.0, 3.0, 5.0]))

    async def mute(self):
        await self.apart("mute", self.rng.choice([0.3, 1.0, 3.0]))

    async def apart(self, how, seconds):
        async with self.harm:
            node = self.rng.choice(self.nodes)
            seconds *= self.rng.uniform(0.8, 1.2)
            loss = await self.danger(node)
            window = self.record.begin("stop", "%s: port %d for %.1f s" % (how, node.port, seconds), how)
            node.harmed = True
            await away(getattr(node, how))
            try:
                await asyncio.sleep(seconds)
            finally:
                await away(node.mend)
                await away(self.settled)
                node.harmed = False
                self.record.end(window)
                await self.danger_over(loss)

    async def blink(self):
        """For less than upstream-timeout: only slow."""
        await self.stop(self.rng.uniform(0.1, self.world.upstream_timeout * 0.6))

    async def connections(self):
        """Some or all of the proxies' connections, on the node itself. A slot's move is left its own."""
        node = self.rng.choice(self.nodes)
        share = self.rng.choice([0.2, 1.0])
        window = self.record.begin("connections", "port %d" % node.port)
        try:
            for _ in range(self.rng.choice([1, 1, 5])):
                await away(self.kill_connections, node, share)
                await asyncio.sleep(0.02)
        finally:
            self.record.end(window)

    def kill_connections(self, node, share):
        with node.client() as control:
            for line in control("CLIENT", "LIST", "TYPE", "normal").splitlines():
                fields = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
                own = fields["name"] == OWN_NAME or fields["cmd"].startswith(
                    ("NULL", "client|", "cluster|", "restore", "migrate", "info"))
                if not own and self.rng.random() < share:
                    control("CLIENT", "KILL", "ID", fields["id"])

    async def scripts(self):
        self.record.moment("scripts")
        for node in self.nodes:
            if self.rng.random() < 0.7:
                async with self.harm:
                    await away(node.run, "SCRIPT", "FLUSH", self.rng.choice(["SYNC", "ASYNC"]))

    # ---- proxies

    async def dozes(self):
        """A proxy gets no processor for a while, whatever befalls the nodes meanwhile: it wakes up with clocks that have run
        on, old connections and old news."""
        while True:
            await asyncio.sleep(self.rng.uniform(3, 12))
            await self.guarded(self.doze)

    async def doze(self):
        proxy = self.rng.choice(self.world.proxies)
        seconds = self.rng.choice([0.2, 1.0, 2.5, 6.0]) * self.rng.uniform(0.8, 1.2)
        async with self.second_busy:
            window = self.record.begin("stop", "doze: proxy on port %d for %.1f s" % (proxy.port, seconds), "doze")
            self.world.net.held += 1
            proxy.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                proxy.signal(signal.SIGCONT)
                self.world.net.held -= 1
                self.record.end(window)

    async def reload(self):
        """Other words for the same rules, or a file that is wrong: nothing changes."""
        proxy = self.world.proxies[0]
        self.bad_config = not self.bad_config and self.rng.random() < 0.3
        lines = list(self.world.config)
        if self.bad_config:
            lines.append("lock x:* owner nobody")
        else:
            lines.append("lock other:%d:* lease %dms" % (self.rng.randrange(100), self.rng.randrange(100, 9999)))
        self.record.moment("reload", "bad" if self.bad_config else "")
        proxy.write_config(lines)
        proxy.signal(signal.SIGHUP)

    async def second(self):
        """The second proxy dies at once, and comes back on the same port."""
        proxy = self.world.proxies[1]
        async with self.second_busy:
            window = self.record.begin("second", "port %d" % proxy.port)
            self.world.net.dying[proxy.address] = "dies"
            try:
                await away(proxy.kill)
                await away(proxy.check_log)
                await asyncio.sleep(self.rng.uniform(0, 1))
                await away(proxy.again)
            finally:
                self.record.end(window)
                await asyncio.sleep(0.3)  # what was on its way meanwhile is heard of later
                self.world.net.dying[proxy.address] = None

    async def handover(self):
        """Another process takes over the second proxy's port: no client is refused meanwhile."""
        proxy = self.world.proxies[1]
        async with self.second_busy:
            window = self.record.begin("second", "handover of port %d" % proxy.port, "handover")
            self.world.net.dying[proxy.address] = "leaves"
            try:
                await away(proxy.hand_over)
                await away(proxy.check_log)
            finally:
                self.record.end(window)
                await asyncio.sleep(0.3)
                self.world.net.dying[proxy.address] = None

    # ---- slots

    async def migrations(self):
        """Slots that are in use move from node to node, some keys at a time, so that each stays open for a while."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 2))
            await self.guarded(self.migrate)

    async def migrate(self):
        async with self.harm:
            slot = self.rng.choice(self.world.moving_slots)
            window = self.record.begin("migrate", "slot %d" % slot)
            try:
                await away(self.move, slot)
            finally:
                self.record.end(window)

    def move(self, slot):
        import time
        source = self.world.backend.owner_of(slot)
        masters = self.world.backend.masters() if self.replicated else self.nodes
        target = self.rng.choice([n for n in masters if n is not source])
        with source.client() as a, target.client() as b:
            for client in (a, b):
                client("CLIENT", "SETNAME", OWN_NAME)
            ids = [c("CLUSTER", "MYID") for c in (a, b)]
            self.fine(b("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0]))
            self.fine(a("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1]))
            deadline = time.monotonic() + 0.6
            while True:
                keys = a("CLUSTER", "GETKEYSINSLOT", slot, 5 if time.monotonic() < deadline else 1000)
                if not keys:
                    break
                self.migrate_keys(a, target, keys)
                time.sleep(0.01 if time.monotonic() < deadline else 0)
            self.fine(b("CLUSTER", "SETSLOT", slot, "NODE", ids[1]))
            self.fine(a("CLUSTER", "SETSLOT", slot, "NODE", ids[1]))
        for node in masters:
            if node not in (source, target):
                node.run("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        if self.replicated:  # a replica that has not heard of it would take the slot back when it is promoted
            until(lambda: all(n.owner(slot) == target.port for n in self.nodes), 30, "everybody's knowledge", 0.1)

    def migrate_keys(self, source, target, keys):
        """After a cut a node may find out late, and for a moment, that it has been alone: it takes nothing then."""
        from servers import until

        def taken():
            reply = source("MIGRATE", target.host, target.port, "", 0, 15000, "KEYS", *keys)
            if isinstance(reply, Error) and "CLUSTERDOWN" in reply:
                return False
            self.fine(reply)
            return True

        until(taken, 30, "the target's readiness", 0.1)

    def fine(self, reply):
        assert not isinstance(reply, Error), reply
