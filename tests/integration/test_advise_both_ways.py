"""One recording of several applications' commands, played twice: PROXY ADVISE sees it pass through the proxy, and --advise-from
reads it from a capture of MONITOR. Both reports say the same."""

import re
import subprocess
import time

import pytest

import resp
import servers
from servers import until

ROUNDS = 24
HELD_UP = 0.5  # seconds; behind a sleep of more than one second a client does not count as polling

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
EXTEND = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
ACQUIRE = ("if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then redis.call('pexpire', KEYS[1], ARGV[2]) return 1 else return 0 end")
ENTER = ("if redis.call('exists', KEYS[1]) == 0 then redis.call('hincrby', KEYS[1], ARGV[2], 1) "
         "redis.call('pexpire', KEYS[1], ARGV[1]) return nil end "
         "if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then redis.call('hincrby', KEYS[1], ARGV[2], 1) "
         "redis.call('pexpire', KEYS[1], ARGV[1]) return nil end return redis.call('pttl', KEYS[1])")
LEAVE = ("if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end "
         "local n = redis.call('hincrby', KEYS[1], ARGV[2], -1) "
         "if n > 0 then redis.call('pexpire', KEYS[1], ARGV[1]) return 0 else redis.call('del', KEYS[1]) return 1 end")


class Wait(float):
    """Seconds in which nothing is sent."""


# An application yields (its connection's number, words...) or Wait. What it sends does not depend on replies.


def own_connections(key, i):
    holder, loser = i % 3, (i + 1) % 3
    yield holder, "SET", key % i, "1", "NX", "EX", "50"
    yield loser, "SET", key % i, "1", "NX", "EX", "50"
    yield holder, "DEL", key % i


def losers_that_delete(key, i):
    holder, loser = i % 3, (i + 1) % 3
    yield holder, "SETNX", key % i, "1"
    yield holder, "EXPIRE", key % i, "50"
    yield loser, "SETNX", key % i, "1"
    yield loser, "DEL", key % i
    yield holder, "DEL", key % i


def a_pool(key, i):
    yield i % 3, "SET", key % i, "v%d" % i, "NX", "PX", "50000"
    yield (i + 1) % 3, "SET", key % i, "w%d" % i, "NX", "PX", "50000"
    yield i * 7 % 3, "GET", key % i
    yield i * 7 % 3, "DEL", key % i


def values_that_are_compared(key, i):
    yield 0, "SET", key % i, "token-%d" % i, "NX", "PX", "30000"
    yield 1, "SET", key % i, "other-%d" % i, "NX", "PX", "30000"
    yield 0, "EVAL", EXTEND, "1", key % i, "token-%d" % i, "40000"
    yield 1, "EVAL", RELEASE, "1", key % i, "other-%d" % i
    yield 0, "EVAL", RELEASE, "1", key % i, "token-%d" % i


def scripts_that_acquire(key, i):
    yield 0, "EVAL", ACQUIRE, "1", key % i, "token-%d" % i, "30000"
    yield 1, "EVAL", ACQUIRE, "1", key % i, "other-%d" % i, "30000"
    yield 0, "EVAL", RELEASE, "1", key % i, "token-%d" % i


def scripts_on_hashes(key, i):
    yield 0, "EVAL", ENTER, "1", key % i, "30000", "id:0"
    yield 1, "EVAL", ENTER, "1", key % i, "30000", "id:1"
    yield 0, "EVAL", LEAVE, "1", key % i, "30000", "id:0"


def counters(key, i):
    for j in range(6):
        yield j % 2, "INCR", key % 0
        if j == 0:
            yield 0, "EXPIRE", key % 0, "60"
    yield 0, "DEL", key % 0


def hash_locks(key, i):
    for j in range(6):
        yield j % 2, "HSETNX", key % 0, "owner", "w%d" % j
    yield 0, "HDEL", key % 0, "owner"


def queues(key, i):
    holder, other = i % 2, 1 - i % 2
    yield holder, "RPUSH", key % 0, "node-%d-a" % i
    yield holder, "LINDEX", key % 0, "0"
    yield other, "RPUSH", key % 0, "node-%d-b" % i
    yield other, "LINDEX", key % 0, "0"
    yield holder, "LREM", key % 0, "1", "node-%d-a" % i
    yield other, "LINDEX", key % 0, "0"
    yield other, "LREM", key % 0, "1", "node-%d-b" % i


def late_releases(key, i):
    yield i % 2, "SET", key % i, "1", "NX", "PX", "20"
    yield Wait(0.03)
    yield i % 2, "DEL", key % i


def late_releases_over_others(key, i):
    yield 0, "SET", key % i, "1", "NX", "PX", "20"
    yield Wait(0.03)
    yield 1, "SET", key % i, "1", "NX", "PX", "30000"
    yield 0, "DEL", key % i
    yield 1, "DEL", key % i


def sleepers(key, i):
    holder, other = i % 2, 1 - i % 2
    yield holder, "SET", key % 0, "1", "NX", "PX", "30000"
    yield other, "SET", key % 0, "1", "NX", "PX", "30000"
    yield holder, "DEL", key % 0
    yield Wait(0.03)


def forgotten(key, i):
    yield i % 2, "SET", key % i, "1", "NX", "PX", "20"


def several_keys(key, i):
    yield 0, "MSETNX", key % "a", "1", key % "b", "1"
    yield 1, "MSETNX", key % "a", "1", key % "b", "1"
    yield 0, "DEL", key % "a", key % "b"


def timestamps(key, i):
    yield 0, "SETNX", key % i, "17000"
    yield 1, "SETNX", key % i, "17001"
    yield 1, "GET", key % i
    yield 1, "GETSET", key % i, "17002"
    yield 1, "DEL", key % i


def transactions(key, i):
    yield 0, "WATCH", key % i
    yield 0, "GET", key % i
    yield 0, "MULTI"
    yield 0, "SETEX", key % i, "50", "v%d" % i
    yield 0, "EXEC"
    yield 1, "SET", key % i, "1", "NX", "EX", "50"
    yield 0, "DEL", key % i


def queued(key, i):
    yield 0, "MULTI"
    yield 0, "SETNX", key % i, "1"
    yield 0, "EXPIRE", key % i, "50"
    yield 0, "EXEC"
    yield 1, "SETNX", key % i, "1"
    yield 0, "UNLINK", key % i


def heartbeats(key, i):
    yield 0, "SET", key % i, "v%d" % i, "NX", "EX", "30"
    yield 1, "EXPIRE", key % i, "60"
    yield 1, "SET", key % i, "v%d" % i, "XX", "EX", "90"
    yield 0, "GETDEL", key % i


def no_locks(key, i):
    yield 0, "SET", key % i, "data"
    yield 1, "INCR", key % "hits"
    yield 1, "HSET", key % "hash", "field", "1"
    yield 0, "RPUSH", key % "jobs", "job"
    yield 1, "LPOP", key % "jobs"
    yield 1, "DEL", key % i


def dead(key, i):
    """Its owner leaves behind the lock, without an expiry. After two commands it is no one-shot client, which a capture does not
    show."""
    if i == 0:
        yield 0, "GET", key % 0
        yield 0, "SETNX", key % 0, "1"
        yield 0, "QUIT"
    else:
        yield 1, "SETNX", key % 0, "1"


APPLICATIONS = [own_connections, losers_that_delete, a_pool, values_that_are_compared, scripts_that_acquire, scripts_on_hashes,
                counters, hash_locks, queues, late_releases, late_releases_over_others, sleepers, forgotten, several_keys, timestamps,
                transactions, queued, heartbeats, no_locks, dead]


def recording(application):
    """The commands of an application. Its keys have a pattern of their own."""
    name = application.__name__
    return name, [step for i in range(ROUNDS) for step in application(name + ":%s:lock", i)]


def play(address, recordings):
    """Sends the recordings, one command at a time. Returns the clients, and the longest time that one step took: a machine that
    was held up for long has played something else."""
    clients, longest, last = {}, 0, time.monotonic()
    for name, steps in recordings:
        for step in steps:
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if isinstance(step, Wait):
                time.sleep(step)
                continue
            number, *words = step
            if (name, number) not in clients:
                clients[name, number] = client = resp.Client(address)
                assert client("CLIENT", "SETNAME", name) == "OK"
            clients[name, number](*words)
    return clients, max(longest, time.monotonic() - last)


def comparable(lines):
    """A report without what differs by docs/advise.md: the listener's own lines, users, which a capture does not show, and measured
    times."""
    times = re.compile(r"\b\d+ ms\b|ms lost with each \d+")
    return sorted(times.sub("(a time)", line).replace(" user=default", "") for line in lines if not line.startswith("#"))


def seen_by_the_proxy(server, recordings):
    proxy = servers.Proxy(server, "threads 1")
    try:
        clients, longest = play(proxy.address, recordings)
        with proxy.client() as client:
            lines = client("PROXY", "ADVISE")
        for client in clients.values():
            client.close()
        return lines, longest
    finally:
        proxy.stop()
        proxy.remove()


def read_from_a_capture(server, recordings, path):
    with open(path, "wb") as out:
        monitor = subprocess.Popen(["redis-cli", "-p", str(server.port), "MONITOR"], stdout=out)
    try:
        until(lambda: path.stat().st_size > 0)
        clients, longest = play(("127.0.0.1", server.port), recordings)
        with server.direct() as client:
            client("ECHO", "the end")
        until(lambda: b"the end" in path.read_bytes())
        for client in clients.values():
            client.close()
    finally:
        monitor.terminate()
        monitor.wait()
    done = subprocess.run([servers.binary(), "--advise-from", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), longest


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What both say of all applications."""
    recordings = [recording(application) for application in APPLICATIONS]
    path = tmp_path_factory.mktemp("both") / "capture"
    server = servers.RedisServer()

    def undisturbed(see, *more):
        for _ in range(10):
            server.flush()
            lines, longest = see(server, recordings, *more)
            if longest < HELD_UP:
                return comparable(lines)
        raise AssertionError("this machine is too busy: a step took %.1f s" % longest)

    try:
        return undisturbed(seen_by_the_proxy), undisturbed(read_from_a_capture, path)
    finally:
        server.stop()


@pytest.mark.parametrize("application", [application.__name__ for application in APPLICATIONS])
def test_the_same_is_said(reports, application):
    live, capture = ([line for line in lines if application + ":" in line] for lines in reports)
    assert live == capture
    assert bool(live) == (application != "no_locks"), live


def test_nothing_else_is_said(reports):
    live, capture = reports
    assert live == capture
