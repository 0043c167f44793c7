"""Workers in redis-py, ioredis and hiredis are killed with -9 while they take, hold and give back permits. Through the proxy no
permit is lost, and none is there twice. On one Redis, and on a cluster with a semaphore on each of its masters.

LOCKKEEPER_KILLS: how many workers are killed for each shape (36). LOCKKEEPER_KILLS_DIRECT: also on Redis alone, where permits must
get lost. Both print their figures (pytest -s)."""

import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import servers
from servers import until

sys.path.insert(0, os.path.join(servers.ROOT, "tests", "clients"))
from clients import Missing, Workshop  # noqa: E402

pytest.importorskip("redis")

KILLS = int(os.environ.get("LOCKKEEPER_KILLS") or 36)
AT_ONCE = 4  # permits of the semaphore
KEY = "sem:kills"
TOKENS = ["t%d" % i for i in range(AT_ONCE)]
CLIENTS = os.path.join(servers.ROOT, "tests", "clients")


class Forker:
    """A process that forks workers, one for each line."""

    def __init__(self, words, env=None):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.pids = queue.Queue()
        threading.Thread(target=lambda: [self.pids.put(int(line)) for line in self.process.stdout], daemon=True).start()

    def worker(self):
        self.process.stdin.write(b"1\n")
        self.process.stdin.flush()
        return self.pids.get(timeout=30)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


class Starter:
    """Starts a process for each worker."""

    def __init__(self, words, env=None):
        self.words, self.env, self.started = words, env, {}

    def worker(self):
        process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.env)
        pid = int(process.stdout.readline())
        self.started[pid] = process
        return pid

    def stop(self):
        for process in self.started.values():
            process.kill()
            process.wait()
            process.stdout.close()


def makers(folder, port, shape, key):
    """A maker of workers for each library that is here."""
    words = [str(port), shape, key]
    made = [Forker(["/usr/bin/python3", "-B", os.path.join(CLIENTS, "semaphore.py"), *words])]
    program = os.path.join(folder, "semaphore")
    if not os.path.exists(program):
        subprocess.run(["gcc", "-O2", "-o", program, os.path.join(CLIENTS, "semaphore.c"), "-lhiredis"], check=True)
    made.append(Forker([program, *words]))
    try:
        shop = Workshop(fetch=False)
        shop.npm()
        env = dict(os.environ, NODE_PATH=os.path.join(shop.folder, "npm", "node_modules"))
        made.append(Starter([shutil.which("node"), os.path.join(CLIENTS, "semaphore.js"), *words], env))
    except Missing:
        pass
    return made


def gone(pid):
    """Whether the process is gone, or only its status is left."""
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill_workers(made, kills, rng):
    """Starts so many workers, some at a time, and kills each within a quarter of a second of its first permit."""

    def life(i):
        pid = made[i % len(made)].worker()
        time.sleep(rng.uniform(0.1, 0.25))  # what is tested is a kill at any time
        os.kill(pid, signal.SIGKILL)
        until(lambda: gone(pid), 10, "the end of a worker")

    with ThreadPoolExecutor(AT_ONCE - 1) as pool:
        list(pool.map(life, range(kills)))


def fill(redis, shape, key):
    redis("DEL", key)
    if shape == "token":
        redis("RPUSH", key, *TOKENS)


def lost(redis, shape, key):
    """How many permits are not where they belong, when no worker is left."""
    if shape == "count":
        return int(redis("GET", key) or 0)
    if shape == "member":
        return redis("ZCARD", key)
    there = redis("LRANGE", key, 0, -1)
    assert len(set(there)) == len(there), "a token is there twice: %r" % there
    return len(TOKENS) - len(there)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("semaphore"))


@pytest.fixture
def made(request, folder):
    """made(port, shape, keys): makers of workers, stopped at the end."""
    started = []

    def make(port, shape, keys):
        for key in keys:
            started.extend(makers(folder, port, shape, key))
        return started

    yield make
    for maker in started:
        maker.stop()


@pytest.fixture
def rng():
    return random.Random(os.environ.get("LOCKKEEPER_SEED") or 1)


@pytest.mark.parametrize("shape", ["count", "token", "member"])
def test_no_permit_is_lost(start_proxy, backend, direct, made, rng, shape):
    nodes = {backend.node_of("sem:kills:%d" % i): "sem:kills:%d" % i for i in range(100)}
    keys = list(nodes.values())
    assert len(keys) == (3 if backend.kind == "cluster" else 1)
    proxy = start_proxy(backend, "lock sem:* kind semaphore", "threads 2")
    for key in keys:
        fill(direct, shape, key)
    workers = made(proxy.port, shape, keys)
    kill_workers(workers, KILLS, rng)
    for key in keys:
        until(lambda: lost(direct, shape, key) == 0, 10, "the last permit")
    with proxy.client() as c:
        info = dict(line.split(":", 1) for line in c("PROXY", "INFO").splitlines() if ":" in line)
    print("%s, %s, %d clients: %d kills, %s permits given back by the proxy, 0 lost"
          % (backend.kind, shape, len(workers) // len(keys), KILLS, info["permits_returned"]))
    assert int(info["permits_returned"]) > KILLS // 4 and int(info["permits_lost"]) == 0


@pytest.mark.skipif(not os.environ.get("LOCKKEEPER_KILLS_DIRECT"), reason="only by hand: what Redis alone loses")
@pytest.mark.parametrize("shape", ["count", "token", "member"])
def test_redis_alone_loses_permits(start_redis, made, rng, shape):
    """A few kills at a time: the semaphore is filled again before its lost permits have used it up."""
    redis = start_redis()
    direct = redis.direct()
    total, each = 0, AT_ONCE - 1
    fill(direct, shape, KEY)
    workers = made(redis.port, shape, [KEY])
    kills = min(KILLS, 300) // each * each
    for _ in range(kills // each):
        kill_workers(workers, each, rng)
        total += lost(direct, shape, KEY)
        fill(direct, shape, KEY)
    print("%s, %d clients: %d kills, %d permits lost by Redis alone" % (shape, len(workers), kills, total))
    assert total > 0
