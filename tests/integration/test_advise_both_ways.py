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


class Now(float):
    """A word: the time at which it is sent, and so many seconds."""


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


def tokens_of(key, i, pop, push, order="ab"):
    """Two tokens. In each round one worker takes one a few times, and then two workers keep theirs at a time."""
    if i == 0:
        yield 0, "RPUSH", key % 0, "a", "b"
    for j in range(4):
        yield j % 2, *pop
        yield j % 2, push, key % 0, order[j % 2]
    yield 0, *pop
    yield 1, *pop
    yield Wait(0.03)
    yield 0, push, key % 0, order[0]
    yield 1, push, key % 0, order[1]


def tokens(key, i):
    return tokens_of(key, i, ("LPOP", key % 0), "RPUSH")


def tokens_that_are_waited_for(key, i):
    return tokens_of(key, i, ("BRPOP", key % 0, "1"), "LPUSH", "ba")


def members(key, i):
    for worker in (0, 1, 2, 0, 1, 2):
        yield worker, "ZREMRANGEBYSCORE", key % 0, "-inf", Now(-60)
        yield worker, "ZADD", key % 0, Now(0), "worker-%d-%d" % (worker, i)
        yield (worker, "ZRANK", key % 0, "worker-%d-%d" % (worker, i)) if i % 2 else (worker, "ZCARD", key % 0)
        if worker == 2:
            yield Wait(0.03)
    for worker in range(3):
        yield worker, "ZREM", key % 0, "worker-%d-%d" % (worker, i)


def jobs(key, i):
    """Connection 0 pushes, two workers pop; now and then a job fails, and is pushed back."""
    for j in range(4):
        yield 0, "RPUSH", key % 0, "job-%d-%d" % (i, j)
    for j in range(4):
        yield 1 + j % 2, *(("LPOP", key % 0) if i % 2 else ("BLPOP", key % 0, "1"))
    if i % 3 == 0:
        yield Wait(0.03)
        yield 2, "RPUSH", key % 0, "job-%d-3" % i
        yield 2, "LPOP", key % 0


def pages(key, i):
    """Workers push what they have found on a page to the queue from which they take pages."""
    if i == 0:
        yield 0, "RPUSH", key % 0, "page-a", "page-b"
    for j in range(4):
        yield j % 2, "LPOP", key % 0
    yield Wait(0.03)
    for j in range(4):
        yield j % 2, "RPUSH", key % 0, "page-%d-%d" % (i, j)


def both_sides(key, i):
    """Each process pushes jobs and polls for them, over one connection; most polls find nothing."""
    for j in range(6):
        yield j % 3, "LPOP", key % 0
    yield Wait(0.03)
    yield i % 3, "RPUSH", key % 0, "user-%d" % (i % 4)


def rate_limiter(key, i):
    for j in range(6):
        yield j % 3, "ZREMRANGEBYSCORE", key % 0, "-inf", Now(-1)
        yield j % 3, "ZADD", key % 0, Now(0), "request-%d-%d" % (i, j)
        yield j % 3, "ZCARD", key % 0
        if j % 3 == 0: # it is one too many
            yield Wait(0.03)
            yield j % 3, "ZREM", key % 0, "request-%d-%d" % (i, j)


def leaderboard(key, i):
    for j in range(6):
        yield j % 3, "ZADD", key % 0, str(i * 10 + j), "player-%d" % j
        yield j % 3, "ZRANK", key % 0, "player-%d" % j
    yield Wait(0.03)
    for j in range(6):
        yield j % 3, "ZREM", key % 0, "player-%d" % j


def delayed_jobs(key, i):
    for j in range(6):
        yield j % 3, "ZADD", key % 0, Now(0 if i % 2 else 5), "job-%d-%d" % (i, j)
        yield j % 3, "ZCARD", key % 0
    yield Wait(0.03)
    for j in range(6):
        yield 3, "ZRANGEBYSCORE", key % 0, "-inf", Now(0), "LIMIT", "0", "1"
        yield 3, "ZREM", key % 0, "job-%d-%d" % (i, j)


def visitors(key, i):
    """A set of visitors: no visitor's connection asks how many."""
    for j in range(6):
        yield j % 3, "ZADD", key % 0, Now(0), "visitor-%d" % (j % 3)
    yield 3, "ZCARD", key % 0
    yield Wait(0.03)
    for j in range(3):
        yield j, "ZREM", key % 0, "visitor-%d" % j


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
                transactions, queued, heartbeats, no_locks, dead, tokens, tokens_that_are_waited_for, members, jobs, pages, both_sides,
                rate_limiter, leaderboard, delayed_jobs, visitors]
SEMAPHORES = {"tokens", "tokens_that_are_waited_for", "members"}
NOTHING = {"no_locks", "jobs", "pages", "both_sides", "rate_limiter", "leaderboard", "delayed_jobs", "visitors"}


def recording(application):
    """The commands of an application. Its keys have a pattern of their own."""
    name = application.__name__
    return name, [step for i in range(ROUNDS) for step in application(name + ":%s:lock", i)]


def play(address, recordings, own=None):
    """Sends the recordings, one command at a time. Each worker has the recording's name, or with `own` a name or an address of its
    own. Returns the clients, and the longest time that one step took: a machine that
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
                client = resp.Client(address, source="127.0.1.%d" % (number + 1) if own == "address" else None)
                clients[name, number] = client
                assert own == "address" or client("CLIENT", "SETNAME", "%s-%d" % (name, number) if own else name) == "OK"
            clients[name, number](*["%.6f" % (time.time() + w) if isinstance(w, Now) else w for w in words])
    return clients, max(longest, time.monotonic() - last)


def comparable(lines):
    """A report without what differs by docs/advise.md: the listener's own lines, users, which a capture does not show, and measured
    times."""
    times = re.compile(r"\b\d+ ms\b|ms lost with each \d+")
    return sorted(times.sub("(a time)", line).replace(" user=default", "") for line in lines if not line.startswith("#"))


def seen_by_the_proxy(server, recordings, own=None):
    proxy = servers.Proxy(server, "threads 1")
    try:
        clients, longest = play(proxy.address, recordings, own)
        with proxy.client() as client:
            lines = client("PROXY", "ADVISE")
        for client in clients.values():
            client.close()
        return lines, longest
    finally:
        proxy.stop()
        proxy.remove()


def read_from_a_capture(server, recordings, path, own=None):
    with open(path, "wb") as out:
        monitor = subprocess.Popen(["redis-cli", "-p", str(server.port), "MONITOR"], stdout=out)
    try:
        until(lambda: path.stat().st_size > 0)
        clients, longest = play(("127.0.0.1", server.port), recordings, own)
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
    assert bool(live) == (application not in NOTHING), live
    assert (application in SEMAPHORES) == any("kind semaphore" in line for line in live), live


def test_nothing_else_is_said(reports):
    live, capture = reports
    assert live == capture


WORKERS = 240


def workers_that_come_once(key, i):
    yield i, "SET", key, "1", "NX", "EX", "50"
    yield (i + 1) % WORKERS, "SET", key, "1", "NX", "EX", "50"
    yield (i + 1) % WORKERS, "DEL", key
    yield i, "DEL", key


@pytest.mark.parametrize("own", ["name", "address"])
def test_many_workers_are_one_application(start_redis, tmp_path, own):
    """As pods are: each worker has a name or an address of its own, and hardly comes twice."""
    steps = [step for i in range(WORKERS) for step in workers_that_come_once("report:lock", i)]
    server = start_redis("--protected-mode", "no")  # it would refuse 127.0.1.1
    live, _ = seen_by_the_proxy(server, [("report", steps)], own)
    server.flush()
    capture, _ = read_from_a_capture(server, [("report", steps)], tmp_path / "capture", own)
    capture = [line for line in capture if not line.startswith("#")]
    for lines, user in ((live, " user=default"), (capture, "")):
        unsafe, unruled, line = lines
        assert unsafe.startswith("UNSAFE report:lock: 240 times a loser deleted another worker's lock. "
                                 "Rule that cures it: lock report:lock")
        assert unruled == "1 key pattern looks like a lock and matches no rule"
        client = "127.0.0.1%s name=report-*" % user if own == "name" else "127.0.1.*" + user
        assert line.startswith("report:lock by %s: " % client), line
        assert "acquired 240, lost 240, released 240, losers delete: 240 times, in vain 240," in line
