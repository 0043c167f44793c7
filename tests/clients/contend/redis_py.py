"""Workers with redis-py that contend for one lock: redis_py.py pool|connections NAME=VALUE ... (run.py says what they
mean). 'pool': threads with one client's pool; 'connections': a thread has a connection of its own."""

import json
import sys
import threading
import time
import uuid

import redis

ZERO, DELETED, NOT_MINE, FORGOTTEN = 0, 1, -1, -2


def now():
    return time.monotonic_ns() // 1000


class Worker(threading.Thread):
    def __init__(self, number, client, options, start):
        super().__init__()
        self.number = number
        self.client = client
        self.o = options
        self.begin = start
        self.sections = []
        self.freed = self.attempts = 0
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

    def release(self, value):
        if self.o["compare"] and self.client.get(self.o["key"]) != value.encode():
            return NOT_MINE
        return DELETED if self.client.delete(self.o["key"]) else ZERO

    def section(self, value, sent):
        entered = now()
        work = self.work()
        if self.overruns():
            work = self.o["lease"] * (1.2 + self.works)
        time.sleep(work / 1000)
        left = now()
        outcome = FORGOTTEN if self.forgets() else self.release(value)
        self.sections.append([self.number, sent, entered, left, now(), outcome])

    def run(self):
        try:
            end = self.begin + self.o["seconds"] * 1e6
            time.sleep(max(0, self.begin - now()) / 1e6)
            while now() < end:
                value, sent = self.value(), now()
                self.attempts += 1
                if self.client.set(self.o["key"], value, nx=True, px=self.o["lease"]):
                    self.section(value, sent)
                elif self.o["losers"]:
                    self.freed += self.release(value) == DELETED
                self.poll()
        except Exception as error:  # said by the main thread
            self.error = error


def main(model, words):
    options = dict(word.split("=", 1) for word in words)
    for name, text in options.items():
        if name not in ("host", "key", "value"):
            options[name] = float(text) if name in ("seconds", "forget", "overrun") else int(text)
    address = options["host"], options["port"]
    pool = redis.Redis(*address, socket_timeout=20)
    clients = [pool if model == "pool" else redis.Redis(*address, socket_timeout=20, single_connection_client=True)
               for _ in range(options["workers"])]
    for client in clients:
        client.ping()
    start = now() + 20000
    workers = [Worker(n, client, options, start) for n, client in enumerate(clients)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.error:
            raise worker.error
    print(json.dumps({"version": redis.__version__, "attempts": sum(w.attempts for w in workers),
                      "freed": sum(w.freed for w in workers), "sections": [s for w in workers for s in w.sections]}))


main(sys.argv[1], sys.argv[2:])
