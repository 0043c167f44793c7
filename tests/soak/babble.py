"""Clients of a soak run that send random requests over all of Redis's data types, well formed and not (grammar.py), with
a marker after each: whatever the reply to a request is, it must come in the request's place.
"""

import asyncio
import copy

from grammar import Grammar
from resp import Error
from wire import GONE

GROUPS = {"string", "list", "hash", "set", "sorted-set", "geo", "stream", "hyperloglog", "bitmap", "generic"}
# Keys of others, whole databases, other servers, a time of their own, or seconds of Redis's time.
NOT = {"keys", "migrate", "move", "wait", "waitaof", "randomkey", "scan", "object|help", "pfselftest", "pfdebug"}


def grammar(world):
    """One for all: it asks a server for its commands."""
    node = world.backend.nodes[0]
    with node.client() as client:
        made = Grammar(client, world.rng, [] if world.backend.kind == "standalone" else ["b%d" % n for n in range(6)])
    made.names = [name for name in made.names if made.commands[name][0] in GROUPS and name not in NOT]
    return made


class Babbler:
    def __init__(self, world, proxy, number, rng, common):
        self.world, self.record, self.net, self.proxy, self.rng = world, world.record, world.net, proxy, rng
        self.id = "b%d" % number
        self.grammar = copy.copy(common)
        self.grammar.rng = rng
        self.serial = 0

    def batch(self):
        """[(request, the word behind it)]"""
        made = []
        for _ in range(self.rng.choice([1, 3, 20])):
            self.serial += 1
            made.append((self.grammar.request(self.rng.choice(self.grammar.names))[0], "%s/%d" % (self.id, self.serial)))
        return made

    async def run(self):
        link = None
        while not self.record.over:
            if link is None or link.closed:
                link = await self.net.open(self.proxy, self.id)
                if link is None:
                    await asyncio.sleep(0.3)
                    continue
            made = self.batch()
            replies = await link.exchange([words for request, mark in made for words in (request, ("ECHO", mark))])
            for n, (request, mark) in enumerate(made):
                self.check(request, mark, replies[2 * n + 1])
            self.record.counts["random requests"] += len(made)
            if self.rng.random() < 0.05:
                link.close()
            await asyncio.sleep(self.rng.expovariate(1 / (4 * self.world.pause)))

    def check(self, request, mark, reply):
        if isinstance(reply, Error):
            self.world.check_error(self.id, ("ECHO", mark), reply)
        elif reply is not GONE and reply != mark:
            self.record.violation("out of place", "%s: %r behind %s" % (self.id, str(reply)[:100], str(request)[:300]))
