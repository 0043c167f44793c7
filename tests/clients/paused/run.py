"""Workers that are stopped between reading and writing, until another worker has the lock: counts lost updates, on Redis and
through the proxy with a fence.

    run.py [--lockkeeper PROGRAM] [--pauses N] [--client NAME] [--place NAME] [--on-loss close|error] [--markdown] [--seed N]

A cell is one client in one place: data and lock on one Redis, in one slot of a cluster, or in two slots of it on two nodes.
Three workers each take the lock (SET NX PX), read a number, work, write the number plus one, and release by a script that
compares. The holder is stopped (SIGSTOP) at any moment, again and again, and goes on (SIGCONT) when another worker has the
lock; every second time, when the other worker has written, too. An update is lost if the number at the end is less than the
count of writes that were answered OK. On Redis that must happen; through the proxy it must not, and the late worker gets
FENCED. With two slots it may happen, if the lock is lost between the proxy's check and the write (docs/fences.md): there it is
counted, and must be rare.

With --on-loss the rule says so in place of the fence, and the worker hears that its lease is over: by an error or by the end of its
connection, each counted as FENCED. It is stopped for a while longer then, in which the proxy tells it.

A client's program in this folder gets words NAME=VALUE: host; lock_port and data_port (of one connection where they are the
same); lock and data, the keys; lease and work, in ms; name, with which the lock's value begins. It ends when its standard
input does, and prints one line of JSON: version, entered (the lock was acquired), written, fenced.
"""

import argparse
import concurrent.futures
import json
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENTS = os.path.dirname(HERE)
for folder in (CLIENTS, os.path.join(os.path.dirname(CLIENTS), "integration")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import servers  # noqa: E402
from clients import Missing, Workshop, node, python  # noqa: E402
from servers import until  # noqa: E402

WORKERS = 3
LEASE, LONGER, WORK = 40, 400, 4  # ms; the longer one with --on-loss: a holder that is slow for less hears of nothing

PROGRAMS = {
    "redis-py": python("paused/redis_py.py"),
    "ioredis": node("paused/ioredis.js"),
    "hiredis": lambda shop: [shop.cc("paused/hiredis.c")],
}

# name: (whether on a cluster, lock, data)
PLACES = {
    "one Redis": (False, "lock:stock:1", "stock:1"),
    "cluster, one slot": (True, "lock:stock:{1}", "stock:{1}"),
    "cluster, two slots": (True, "lock:stock:1", "stock:1"),
}
FENCE = "fence stock:* by lock:stock:*"
LOSS = "lock lock:stock:* owner connection on-loss %s"
STAYS = 1.5  # s: the proxy tells a holder of its loss within a second
REPEATS = ["ioredis"]  # on-loss error is for these
RARE = 100  # pauses for each update that may be lost in two slots


class Worker:
    def __init__(self, command, env, folder, **words):
        self.child = subprocess.Popen([*command, *("%s=%s" % item for item in words.items())], env=env, cwd=folder, text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def stopped(self):
        with open("/proc/%d/stat" % self.child.pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"

    def stop(self):
        self.child.send_signal(signal.SIGSTOP)
        until(self.stopped, what="its stop", pause=0.0002)

    def go_on(self):
        self.child.send_signal(signal.SIGCONT)

    def end(self):
        """What it says of itself."""
        self.go_on()
        out, err = self.child.communicate(timeout=20)
        if self.child.returncode:
            raise AssertionError("a worker failed: %s" % err[-300:])
        return json.loads(out)


class Run:
    """Workers of one client at one lock, through `ports` (the lock's and the data's); `direct` shows the lock's value and
    the data's."""

    def __init__(self, command, shop, ports, lock, data, direct, seed, stays):
        self.lock, self.data, self.direct = lock, data, direct
        self.dice = random.Random(seed)
        env = dict(os.environ, NODE_PATH=shop.path(os.path.join("npm", "node_modules")))
        self.workers = [Worker(command, env, shop.folder, host=servers.HOST, lock_port=ports[0], data_port=ports[1], lock=lock,
                               data=data, lease=LONGER if stays else LEASE, work=WORK, name="w%d" % n) for n in range(WORKERS)]
        self.pauses = 0
        self.stays = stays  # s: how much longer a holder is stopped

    def holder(self):
        """The lock's value, and its owner's number; None, None: it is free."""
        value = self.direct("GET", self.lock)
        return (value, int(value[1:].split(":")[0])) if value else (None, None)

    def pause(self):
        """Stops the holder until another worker has the lock. False: it let go before it stopped."""
        value, number = self.holder()
        if not value:
            return False
        worker = self.workers[number]
        worker.stop()
        try:
            if self.holder()[0] != value:
                return False
            until(lambda: self.holder()[1] not in (None, number), 20, "another holder", pause=0.0005)
            if self.dice.random() < 0.5:
                before = self.direct("GET", self.data)
                until(lambda: self.direct("GET", self.data) != before, 20, "its write", pause=0.0005)
            time.sleep(self.stays)
        finally:
            worker.go_on()
        return True

    def run(self, pauses):
        until(lambda: self.direct("GET", self.data), 20, "the first write")
        while self.pauses < pauses:
            time.sleep(self.dice.random() * 0.01)
            self.pauses += self.pause()
            for worker in self.workers:
                if worker.child.poll() is not None:
                    worker.end()

    def end(self):
        """Waits for the workers, and counts."""
        said = [worker.end() for worker in self.workers]
        total = {name: sum(one[name] for one in said) for name in ("entered", "written", "fenced")}
        number = int(self.direct("GET", self.data) or 0)
        return dict(total, version=said[0]["version"], pauses=self.pauses, lost=total["written"] - number)

    def kill(self):
        for worker in self.workers:
            if worker.child.poll() is None:
                worker.child.kill()
                worker.child.communicate()


def measure(command, shop, backend, proxy, place, pauses, seed, stays):
    """One run; proxy None: on Redis itself. Returns what Run.end does."""
    _, lock, data = PLACES[place]
    ports = [proxy.port] * 2 if proxy else [backend.node_of(key).port for key in (lock, data)]
    run = Run(command, shop, ports, lock, data, backend.direct(), seed, stays)
    try:
        run.run(pauses)
        return run.end()
    finally:
        run.kill()
        run.direct.close()


def cell(command, shop, place, pauses, seed, on_loss=None):
    """Both runs, each on servers of its own: on Redis, and through the proxy."""
    made = []
    try:
        backends = [servers.RedisCluster() if PLACES[place][0] else servers.RedisServer() for _ in range(2)]
        made += backends
        proxy = servers.Proxy(backends[1], LOSS % on_loss if on_loss else FENCE)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(measure, command, shop, backend, through, place, pauses, seed, STAYS if on_loss else 0)
                    for backend, through in zip(backends, (None, proxy))]
            results = [run.result() for run in runs]
        proxy.stop()
        proxy.remove()
        return results
    finally:
        for backend in made:
            backend.stop()


HEAD = ["client", "place", "pauses", "Redis: updates", "lost", "proxy: updates", "lost", "FENCED"]


def table(rows, markdown):
    if markdown:
        lines = ["| %s |" % " | ".join(row) for row in rows]
        return "\n".join([lines[0], "| --- | --- |" + " ---: |" * (len(HEAD) - 2), *lines[1:]])
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows)


def main(words):
    parser = argparse.ArgumentParser(description="Workers are stopped inside their critical sections: lost updates.")
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="the proxy; LOCKKEEPER in the environment says so, too")
    parser.add_argument("--pauses", type=int, default=1000)
    parser.add_argument("--client", action="append", choices=list(PROGRAMS))
    parser.add_argument("--place", action="append", choices=list(PLACES))
    parser.add_argument("--on-loss", choices=["close", "error"], help="the holder hears of its loss, in place of a fence")
    parser.add_argument("--markdown", action="store_true", help="for the documentation")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = os.path.abspath(options.lockkeeper)
    servers.binary()
    shop, rows, failed, versions = Workshop(), [HEAD], 0, {}
    for client in options.client or PROGRAMS:
        if options.on_loss == "close" and client in REPEATS:
            print("not run: %s sends again over a new connection what a closed one has not answered" % client)
            continue
        try:
            command = PROGRAMS[client](shop)
        except Missing as missing:
            print("not run: %s: %s" % (client, missing))
            continue
        for place in options.place or PLACES:
            direct, proxy = cell(command, shop, place, options.pauses, options.seed, options.on_loss)
            versions[client] = direct["version"]
            may_lose = options.pauses // RARE if place == "cluster, two slots" else 0
            failed += not 0 <= proxy["lost"] <= may_lose or direct["lost"] == 0 or proxy["fenced"] == 0
            rows.append([client, place, *("%d" % n for n in (options.pauses, direct["written"], direct["lost"],
                                                             proxy["written"], proxy["lost"], proxy["fenced"]))])
            print(table(rows[-1:], False), flush=True)
    print("\n" + table(rows, options.markdown))
    print("versions: " + ", ".join("%s %s" % item for item in versions.items()))
    return 1 if failed or len(rows) == 1 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
