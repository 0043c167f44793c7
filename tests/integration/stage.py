"""Runs applications' lock code: workers of a process on one of three connection models, either all directly on Redis or all
through the proxy.

    D   one connection a worker
    P   a pool: every command of a worker takes the next of the process's connections
    M   one connection, multiplexed by all workers of a process

On D each worker is a process, and all workers of a stage are one client identity. The processes of P and M set a name with
CLIENT SETNAME, as the README asks of several processes on one machine. Under `owner auto` they also show their connection
model: M sets its library's name; P has twice released over another connection than it had acquired over.
"""

import itertools
import time

from resp import Client, Error
from servers import until

T = 700  # ms: a lease that ends while its worker is still at it
LONG = 60000
POOL = 3
serial = itertools.count(1)


class Process:
    def __init__(self, stage):
        self.stage = stage
        self.name = stage.machine if stage.model == "D" else "process-%d" % next(serial)
        self.links = [self.connect() for _ in range(POOL if stage.model == "P" else 1)]
        self.turn = itertools.cycle(self.links)
        if stage.model == "P" and stage.owner == "auto":
            self.prove()

    def connect(self):
        link = self.stage.connect()
        assert link("CLIENT", "SETNAME", self.name) == "OK"
        if self.stage.model == "M":
            link("CLIENT", "SETINFO", "lib-name", "ioredis")  # older servers don't know it, and ioredis doesn't mind
        return link

    def prove(self):
        """Two releases cross, over connections that have tried for the lock before."""
        one, other, name = self.links[0], self.links[1], self.stage.name
        for worker, releases in ((other, other), (one, other), (one, other)):
            assert worker("SET", name, "1", "NX", "PX", LONG) == "OK"
            assert releases("DEL", name) == 1

    def close(self, crash=False):
        for link in self.links:
            (link.crash if crash else link.close)()


class Worker:
    """Calls send a command over whatever connection the model gives it."""

    def __init__(self, process):
        self.process = process

    def __call__(self, *command):
        return next(self.process.turn)(*command)

    def own(self):
        """A connection for several commands in a row, as libraries take for a transaction."""
        if self.process.stage.model == "M":
            self.process.links.append(self.process.connect())
            return self.process.links[-1]
        return next(self.process.turn)

    def at_once(self, *commands):
        """The replies to commands of which one follows right behind the other: in one packet, but where each command takes
        another connection."""
        if self.process.stage.model == "P":
            return [self(*c) for c in commands]
        return next(self.process.turn).at_once(*commands)

    def transaction(self, *commands):
        """MULTI, the commands, EXEC in one packet; EXEC's reply."""
        link = next(self.process.turn)
        replies = link.pipeline([("MULTI",), *commands, ("EXEC",)])
        assert replies[0] == b"+OK\r\n" and set(replies[1:-1]) == {b"+QUEUED\r\n"}, replies
        return replies[-1]


class Stage:
    """`address` is Redis's own or the proxy's; `node` the address of the Redis that has the lock."""

    def __init__(self, address, node, model, owner, name, proxied):
        self.address, self.model, self.owner, self.name, self.proxied = address, model, owner, name, proxied
        self.machine = "machine-%d" % next(serial)
        self.node = Client(node)
        self.processes = []

    def connect(self):
        return Client(self.address)

    def process(self):
        self.processes.append(Process(self))
        return self.processes[-1]

    def workers(self, count):
        """Colleagues: of one process, where the model lets a process have several."""
        if self.model == "D":
            return [Worker(self.process()) for _ in range(count)]
        process = self.process()
        return [Worker(process) for _ in range(count)]

    def rivals(self, count):
        """Each of a process of its own."""
        return [Worker(self.process()) for _ in range(count)]

    def crash(self, worker):
        """The worker's process is gone."""
        worker.process.close(crash=True)

    def ended(self, timeout=30):
        """Waits for the end of the lock's lease."""
        until(self.free, timeout, "the end of " + self.name, 0.02)

    def free(self):
        return self.node("EXISTS", self.name) == 0

    def value(self):
        return self.node("GET", self.name)

    def ttl(self):
        return self.node("PTTL", self.name)

    def incidents(self):
        """What the proxy has to say of the lock: the kinds, oldest first; not that its pool is one."""
        if not self.proxied:
            return []
        with self.connect() as client:
            found = [i if isinstance(i, dict) else dict(zip(i[0::2], i[1::2])) for i in client("PROXY", "INCIDENTS", 10000)]
        return [i["kind"] for i in reversed(found) if i["key"] == self.name and i["kind"] != "shared"]

    def close(self):
        for process in self.processes:
            process.close()
        self.node.close()


def watch(seconds, check):
    """Calls `check` again and again for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        check()
        time.sleep(0.02)


def is_locked(reply):
    return isinstance(reply, Error) and reply.startswith("LOCKED ")
