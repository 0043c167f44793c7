"""Workers with redis-py that contend for one lock: redis_py.py KIND NAME=VALUE ... (run.py and pools.py say what the words
mean). KIND says which connections the workers have:

    pool             threads share redis-py's ConnectionPool, which hands out the connection that came back last
    fifo, random     the same pool hands out the connection that came back first, or any
    blocking-lifo    threads share redis-py's BlockingConnectionPool with its own LifoQueue
    blocking-fifo    the same with queue_class=Queue
    connections      each thread has a connection of its own
    processes        each worker is a process with a connection of its own
"""

import itertools
import json
import multiprocessing
import queue
import random
import sys
import threading
import time
import uuid

import redis

ZERO, DELETED, NOT_MINE, FORGOTTEN, UNSURE = 0, 1, -1, -2, -3
PATIENCE = 10  # seconds for which a command is sent again while connections fail
TEXTS = ("host", "port", "key", "value", "data")
NUMBERS = ("seconds", "forget", "overrun")


def now():
    return time.monotonic_ns() // 1000


class Worker(threading.Thread):
    def __init__(self, number, client, options, start):
        super().__init__()
        self.number = number
        self.client = client
        self.o = options
        self.begin = start
        self.sections, self.writes = [], []
        self.freed = []  # releases of losers that freed something: when the lost attempt was sent, and the release answered
        self.attempts = self.lost = 0
        place = options["seed"] * options["workers"] + number
        share = (number + options["seed"] * 0.754877666 % 1) / options["workers"]
        self.works, self.polls = place * 0.754877666 % 1, place * 0.569840290 % 1
        self.forget, self.overrun = share, (share + 0.5 / options["workers"]) % 1
        self.error = None

    # Numbers that fill their range evenly, so that few of them do as well as many random ones.
    def work(self):
        self.works = (self.works + 0.6180339887) % 1
        return self.o["work_min"] + (self.o["work_max"] - self.o["work_min"]) * self.works

    def poll(self):
        self.polls = (self.polls + 0.4142135624) % 1
        time.sleep((self.o["poll_min"] + (self.o["poll_max"] - self.o["poll_min"]) * self.polls) / 1000)

    def forgets(self):
        self.forget += self.o["forget"]
        due, self.forget = self.forget >= 1, self.forget % 1
        return due

    def overruns(self):
        self.overrun += self.o["overrun"]
        due, self.overrun = self.overrun >= 1, self.overrun % 1
        return due

    def value(self):
        if self.o["value"] == "constant":
            return "1"
        return "worker-%d" % self.number if self.o["value"] == "worker" else str(uuid.uuid4())

    def send(self, command):
        """(reply, whether it was sent more than once): with retry=1 a command whose connection fails is sent again."""
        for times in itertools.count():
            try:
                return command(), times > 0
            except redis.ConnectionError:
                if not self.o.get("retry") or times * 0.02 > PATIENCE:
                    raise
                time.sleep(0.02)

    def acquire(self, value):
        got, again = self.send(lambda: self.client.set(self.o["key"], value, nx=True, px=self.o["lease"]))
        if not got and again and self.o["value"] == "lease":  # the first reply may be lost, and the lock its own
            got = self.send(lambda: self.client.get(self.o["key"]))[0] == value.encode()
        return got

    def release(self, value):
        if self.o["compare"] and self.send(lambda: self.client.get(self.o["key"]))[0] != value.encode():
            return NOT_MINE
        freed, again = self.send(lambda: self.client.delete(self.o["key"]))
        return DELETED if freed else UNSURE if again else ZERO

    def write(self, entered):
        """The write that the lock is for, and whether it was done."""
        sent = now()
        try:
            done = bool(self.client.set(self.o["data"], "%d-%d" % (self.number, sent)))
        except redis.ResponseError as error:
            if not str(error).startswith("FENCED"):
                raise
            done = False
        self.writes.append([self.number, entered, sent, now(), int(done)])

    def section(self, value, sent):
        entered = now()
        work = self.work()
        if self.overruns():
            work = self.o["lease"] * (1.2 + self.works)
        time.sleep(work / 1000)
        if self.o.get("data"):
            self.write(entered)
        left = now()
        outcome = FORGOTTEN if self.forgets() else self.release(value)
        self.sections.append([self.number, sent, entered, left, now(), outcome])

    def lose(self, value, sent):
        """An attempt in vain: with losers=1 its code releases all the same, after `tries` attempts in a row."""
        self.lost += 1
        if self.o["losers"] and self.lost % self.o.get("tries", 1) == 0 and self.release(value) == DELETED:
            self.freed.append([sent, now()])

    def run(self):
        try:
            end = self.begin + self.o["seconds"] * 1e6
            time.sleep(max(0, self.begin - now()) / 1e6)
            while now() < end:
                value, sent = self.value(), now()
                self.attempts += 1
                if self.acquire(value):
                    self.lost = 0
                    self.section(value, sent)
                else:
                    self.lose(value, sent)
                self.poll()
        except Exception as error:  # said by the main thread
            self.error = error


class HandedOut(list):
    """A pool's free connections: which of them goes out next."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def pop(self):
        return super().pop(0 if self.kind == "fifo" else random.randrange(len(self)) if self else -1)


class OtherPool(redis.ConnectionPool):
    """redis-py's pool, with another order."""

    kind = None

    def reset(self):
        super().reset()
        self._available_connections = HandedOut(self.kind)


def make_pool(kind, o, **options):
    if kind.startswith("blocking"):
        order = queue.LifoQueue if kind == "blocking-lifo" else queue.Queue
        return redis.BlockingConnectionPool(max_connections=o["connections"], queue_class=order, **options)
    OtherPool.kind = kind
    return (redis.ConnectionPool if kind == "pool" else OtherPool)(**options)


def open_all(pool, count):
    """Makes the pool connect so many times before the workers start."""
    connections = [pool.get_connection("PING") for _ in range(count)]
    for connection in connections:
        pool.release(connection)


def make_clients(kind, o):
    """A client for each worker. Connections go to the ports by turns."""
    ports = itertools.cycle(int(port) for port in o["port"].split(","))

    def connection(**options):
        return redis.Connection(**{**options, "port": next(ports)})

    if kind in ("connections", "processes"):
        return [redis.Redis(o["host"], next(ports), socket_timeout=20, single_connection_client=kind == "connections")
                for _ in range(o["workers"])]
    pool = make_pool(kind, o, connection_class=connection, host=o["host"], socket_timeout=20)
    open_all(pool, o.get("connections", 1))
    return [redis.Redis(connection_pool=pool)] * o["workers"]


def run_processes(workers):
    """Runs each worker in a process, and brings home what it did."""
    def child(worker, pipe):
        worker.run()
        pipe.send((worker.error, worker.attempts, worker.freed, worker.sections, worker.writes))

    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(False) for _ in workers]
    children = [fork.Process(target=child, args=(worker, pipe[1])) for worker, pipe in zip(workers, pipes)]
    for process in children:
        process.start()
    for worker, pipe, process in zip(workers, pipes, children):
        worker.error, worker.attempts, worker.freed, worker.sections, worker.writes = pipe[0].recv()
        process.join()


def run_threads(workers):
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main(kind, words):
    options = dict(word.split("=", 1) for word in words)
    for name, text in options.items():
        if name not in TEXTS:
            options[name] = float(text) if name in NUMBERS else int(text)
    clients = make_clients(kind, options)
    for client in clients if kind != "processes" else ():  # a process connects by itself
        client.ping()
    if options.get("ready"):  # program.py
        print("ready", flush=True)
        sys.stdin.readline()
    start = now() + 20000
    workers = [Worker(n, client, options, start) for n, client in enumerate(clients)]
    (run_processes if kind == "processes" else run_threads)(workers)
    for worker in workers:
        if worker.error:
            raise worker.error
    print(json.dumps({"version": redis.__version__, "attempts": sum(w.attempts for w in workers),
                      "freed": sum(len(w.freed) for w in workers), "losers_freed": [f for w in workers for f in w.freed],
                      "sections": [s for w in workers for s in w.sections],
                      "writes": [s for w in workers for s in w.writes], "began": start}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
