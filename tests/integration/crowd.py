"""Workers of several processes with commands in flight at the same time, in one thread of the test.

A worker's code is a generator. It yields actions, and gets their results:

    send(...)        a command, over whatever connection the process's model has for it
    {place: [...]}   commands, in one packet each, to several places at once; {place: [reply, ...]}
    TAKE, GIVE       from one to the other the worker has a connection of its first place for itself (WATCH ... EXEC)
    0.002            a pause of so many seconds

A place is a server, with the process's connections to it. There are three kinds of connections, as in libraries:

    own            one for each worker
    pool           idle ones are taken for a command, and given back; the last one given back is the first one taken, as in
                   redis-py, Jedis and go-redis, or the first one, where `turns` is set
    multiplexed    one for all of the process
"""

import collections
import heapq
import itertools
import selectors
import time

from resp import Client, encode

TAKE, GIVE = "take", "give"


def send(*command, place=0):
    """One command; its reply."""
    replies = yield {place: [command]}
    return replies[place][0]


class Link:
    """A connection, and the workers that wait for replies over it."""

    def __init__(self, client):
        self.client = client
        self.due = collections.deque()  # (what takes the replies, how many)
        self.taken = False


class Place:
    """A process's connections to one server."""

    def __init__(self, crowd, model, address, name, size):
        self.crowd, self.model, self.address, self.name, self.size = crowd, model, address, name, size
        self.links, self.idle, self.waiting = [], collections.deque(), collections.deque()
        self.of = {}  # own: worker -> Link
        self.turns = False

    def link(self):
        client = Client(self.address, commands=[("CLIENT", "SETNAME", self.name)] if self.name else ())
        link = Link(client)
        self.links.append(link)
        self.crowd.selector.register(client.sock, selectors.EVENT_READ, link)
        return link

    def take(self, worker, alone):
        """A connection for the worker, or None: it has to wait. `alone`: no other worker may send over it."""
        if self.model == "own":
            if worker not in self.of:
                self.of[worker] = self.link()
            return self.of[worker]
        if self.model == "pool":
            if self.idle and (not self.turns or len(self.links) >= self.size):
                return self.idle.popleft() if self.turns else self.idle.pop()
            return self.link() if len(self.links) < self.size else None
        link = self.links[0] if self.links else self.link()
        if link.taken or (alone and link.due):
            return None
        link.taken = alone
        return link

    def give(self, link):
        link.taken = False
        if self.model == "pool":
            self.idle.append(link)
        for _ in range(len(self.waiting)):
            self.crowd.ready.append(self.waiting.popleft())

    def close(self, crash=False):
        for link in self.links:
            if link.client.sock.fileno() >= 0:
                self.crowd.selector.unregister(link.client.sock)
                (link.client.crash if crash else link.client.close)()
        self.links, self.of = [], {}
        self.idle.clear()


class Process:
    def __init__(self, crowd, number, places):
        self.crowd, self.number, self.places = crowd, number, places
        self.local = set()  # what its workers hold among themselves

    def worker(self):
        return Worker(self)

    def close(self, crash=False):
        for place in self.places:
            place.close(crash)


class Worker:
    def __init__(self, process):
        self.process = process
        self.number = next(process.crowd.serial)
        self.held = None  # the Link between TAKE and GIVE
        self.values = 0
        self.cut = 0  # expiries of its own locks that it could not set, as far as its code says so
        self.heard = []  # (command's name, reply), but for what says that a script has to be loaded

    def value(self):
        """A value that no other worker has, the same one in each run."""
        self.values += 1
        return "%08x-%04x" % (self.number * 2654435761 % 2**32, self.values)


class Crowd:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.ready, self.timers = collections.deque(), []
        self.processes, self.serial, self.order = [], itertools.count(1), itertools.count()

    def process(self, model, *addresses, size=8, names=()):
        """A process with its connections to each address; names are for CLIENT SETNAME, one a place."""
        names = list(names) + [None] * (len(addresses) - len(names))
        places = [Place(self, model, address, name, size) for address, name in zip(addresses, names)]
        self.processes.append(Process(self, len(self.processes), places))
        return self.processes[-1]

    def do(self, worker, code):
        """The result of one worker's code."""
        return self.run([(worker, code)])[0]

    def run(self, jobs, timeout=60):
        """All of the (worker, generator), side by side; what they return."""
        results = [None] * len(jobs)
        self.left = len(jobs)
        deadline = time.monotonic() + timeout
        for at, (worker, code) in enumerate(jobs):
            self.ready.append(lambda worker=worker, code=code, at=at: self.step(worker, code, results, at, None))
        while self.left:
            while self.ready:
                self.ready.popleft()()
            if not self.left:
                break
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError("%d of %d workers are not done" % (self.left, len(jobs)))
            pause = max(0, self.timers[0][0] - now) if self.timers else deadline - now
            for event, _ in self.selector.select(min(pause, deadline - now)):
                self.read(event.data)
            while self.timers and self.timers[0][0] <= time.monotonic():
                self.ready.append(heapq.heappop(self.timers)[2])
        return results

    def read(self, link):
        link.client.fill()
        while link.due and link.client.complete():
            take = link.due[0]
            if take(link.client.read()):
                link.due.popleft()

    def step(self, worker, code, results, at, value):
        try:
            wanted = code.send(value)
        except StopIteration as end:
            results[at] = end.value
            self.left -= 1
            return

        def go_on(value=None):
            self.step(worker, code, results, at, value)

        if wanted == TAKE:
            self.take(worker, go_on)
        elif wanted == GIVE:
            worker.process.places[0].give(worker.held)
            worker.held = None
            self.ready.append(go_on)
        elif isinstance(wanted, dict):
            Request(self, worker, wanted, go_on)
        else:
            heapq.heappush(self.timers, (time.monotonic() + wanted, next(self.order), go_on))

    def take(self, worker, go_on):
        place = worker.process.places[0]
        worker.held = place.take(worker, True)
        if worker.held:
            self.ready.append(go_on)
        else:
            place.waiting.append(lambda: self.take(worker, go_on))

    def close(self):
        for process in self.processes:
            process.close()
        self.selector.close()


class Request:
    """Commands of one worker to some places, until all are answered."""

    def __init__(self, crowd, worker, wanted, go_on):
        self.crowd, self.worker, self.wanted, self.go_on = crowd, worker, wanted, go_on
        self.replies = {place: [] for place in wanted}
        self.left = len(wanted)
        for place in wanted:
            self.send(place)

    def send(self, number):
        place = self.worker.process.places[number]
        own = self.worker.held if number == 0 else None
        link = own or place.take(self.worker, False)
        if not link:
            place.waiting.append(lambda: self.send(number))
            return
        link.client.send(b"".join(encode(*command) for command in self.wanted[number]))
        link.due.append(lambda reply: self.take(number, place, link, own, reply))

    def take(self, number, place, link, own, reply):
        """Whether that was the last reply of this place."""
        commands, replies = self.wanted[number], self.replies[number]
        name = commands[len(replies)][0]
        replies.append(reply)
        if not str(reply).startswith("NOSCRIPT "):
            self.worker.heard.append(("EVAL" if name == "EVALSHA" else name, reply))
        if len(replies) < len(commands):
            return False
        if not own:
            place.give(link)
        self.left -= 1
        if not self.left:
            self.crowd.ready.append(lambda: self.go_on(self.replies))
        return True
