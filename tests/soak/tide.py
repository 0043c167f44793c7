"""Watches how far the replicas are, so that the losses of unplanned failovers are known, too.

        step ──────── look ──────── another master ──────── all follow it: a new step
          └────── writes acknowledged in here may be lost ──────┘

A server that gets no processor time for some seconds counts as dead and is replaced. Each promotion gives the data a new
replication id: if a shard's master still has the old id, it was not replaced meanwhile.
"""

import asyncio
import collections
import concurrent.futures
import time

from resp import Closed, Error
from servers import until

PAUSE = 0.3  # between looks
PATIENCE = 90

# `begun`: what was acknowledged until then, all nodes have. `id` of the data, `before`: of which it was made by a promotion.
Look = collections.namedtuple("Look", "begun id before")


def replication(node):
    """INFO replication; empty from a node that is away."""
    if not node.running():
        return {}
    try:
        with node.client(timeout=2) as c:
            text = c("INFO", "replication")
    except (OSError, Closed):
        return {}
    return {} if isinstance(text, Error) else dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def look(nodes):
    """A Look, or None: where one does not answer, is on its way to another master, or lags behind."""
    begun = time.monotonic()
    first = [replication(node) for node in nodes]
    masters = [said for said in first if said.get("role") == "master"]
    if len(masters) != 1 or not all(first):
        return None
    master = masters[0]
    for was, node in zip(first, nodes):
        now = replication(node)
        if now.get("role") != was["role"] or now["master_replid"] != master["master_replid"]:
            return None
        if was is not master and (now["master_link_status"] != "up" or
                                  int(now["slave_repl_offset"]) < int(master["master_repl_offset"])):
            return None
    return Look(begun, master["master_replid"], master["master_replid2"])


class Shard:
    """Nodes, one of which is the master of these slots."""

    def __init__(self, nodes, ranges):
        self.nodes, self.ranges = nodes, ranges
        self.looking = asyncio.Lock()
        self.last = None  # Look
        self.excused = 0  # faults in progress whose losses are accounted for
        self.handed = 0  # failovers under way that lose nothing


class Tide:
    def __init__(self, world):
        self.record = world.record
        self.shards = [Shard(*shard) for shard in world.backend.shards()]
        self.threads = concurrent.futures.ThreadPoolExecutor(len(self.shards))
        self.moving = [(slot, slot) for slot in world.moving_slots] if len(self.shards) > 1 else []

    def shard_of(self, node):
        return next(shard for shard in self.shards if node in shard.nodes)

    def away(self, function, *args):
        return asyncio.get_running_loop().run_in_executor(self.threads, function, *args)

    async def watch(self, shard):
        while True:
            async with shard.looking:
                seen = await self.away(look, shard.nodes)
                if seen:
                    self.learn(shard, seen)
            await asyncio.sleep(PAUSE)

    async def fresh(self, shard):
        """A Look that was begun after this."""
        async with shard.looking:
            seen = await self.away(until, lambda: look(shard.nodes), PATIENCE, "replicas in step", 0.02)
            self.learn(shard, seen)
            return seen

    async def all_known(self):
        """What was lost until now is known afterwards; or the run can't be judged."""
        try:
            for shard in self.shards:
                await self.fresh(shard)
        except AssertionError as error:
            self.record.void = str(error)

    def learn(self, shard, seen):
        last, shard.last = shard.last, seen
        handed = shard.handed and seen.before == last.id
        if last and seen.id != last.id and not shard.excused and not handed:
            self.record.replaced(last.begun, shard.ranges, self.moving)
        if all(s.last for s in self.shards):
            self.record.resolve(min(s.last.begun for s in self.shards))
