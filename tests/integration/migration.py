"""Slots that move with their keys while a test goes on."""

import threading

from resp import Error
from servers import until


def give_slot(cluster, slot, source, target):
    """An empty slot changes its master at once. It is imported for a moment first: that gives the target a new epoch, without
    which the word of the old master, still on its way to the others, may be the newer one."""
    target_id = target.run("CLUSTER", "MYID")
    target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source.run("CLUSTER", "MYID"))
    for node in (target, source, *[n for n in cluster.nodes if n not in (source, target)]):
        node.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def refused(node):
    """How many TRYAGAIN a node has answered."""
    text = node.run("INFO", "errorstats")
    return int(text.split("errorstat_TRYAGAIN:count=")[1].split("\r")[0]) if "TRYAGAIN" in text else 0


class Migration(threading.Thread):
    """Moves slots with their keys to and fro between two masters until it is told to stop."""

    def __init__(self, cluster, slots):
        super().__init__()
        self.cluster = cluster
        self.slots = slots
        self.over = threading.Event()
        self.moves = 0
        self.error = None
        self.ids = {node: node.run("CLUSTER", "MYID") for node in cluster.nodes}
        self.owner = {slot: cluster.owner_of(slot) for slot in slots}
        self.clients = {node: node.client(timeout=60) for node in cluster.nodes}

    def must(self, node, *args):
        reply = self.clients[node](*args)
        if isinstance(reply, Error):
            raise AssertionError("%r: %s" % (args, reply))
        return reply

    def migrate(self, source, target, keys):
        self.must(source, "MIGRATE", target.host, target.tls_port or target.port, "", 0, 5000, "KEYS", *keys)

    def open(self, slot):
        """Begins to move it, and returns where from and where to."""
        source = self.owner[slot]
        target = self.cluster.nodes[(self.cluster.nodes.index(source) + 1) % len(self.cluster.nodes)]
        self.must(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.must(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])
        return source, target

    def move(self, slot, keys_at_once):
        source, target = self.open(slot)
        while True:
            keys = self.must(source, "CLUSTER", "GETKEYSINSLOT", slot, keys_at_once)
            if not keys:
                break
            self.migrate(source, target, keys)
        for node in (target, source, *self.cluster.nodes):
            self.must(node, "CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])
        self.owner[slot] = target
        self.moves += 1
        # The nodes spread the news themselves, and moves in quick succession could confuse them: a node's stale claim
        # to a slot it gave away may overrule a new owner that has not heard of the latest epoch yet.
        until(lambda: len({self.view(node) for node in self.cluster.nodes}) == 1, 20, "the nodes' agreement", 0.001)

    def view(self, node):
        """The slots of each node with their epochs, as this node sees them."""
        lines = self.must(node, "CLUSTER", "NODES").splitlines()
        return tuple(sorted((words[0], words[6], *words[8:]) for words in (line.split() for line in lines)))

    def run(self):
        try:
            while not self.over.is_set():
                for slot in self.slots:
                    self.move(slot, 1 + self.moves % 3)
                    if self.over.is_set():
                        break
        except Exception as error:  # handed to the test's own thread
            self.error = error

    def finish(self):
        self.over.set()
        self.join(60)
        if self.error:
            raise self.error
