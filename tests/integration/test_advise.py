"""PROXY ADVISE recognises what applications do, in every mode, and suggests a valid line."""

import hashlib
import subprocess
import threading
import time

import pytest

import resp
import servers
from servers import until

ROUNDS = 15


@pytest.fixture(params=["standalone", "cluster"])
def advising(farm, request):
    """A proxy for each test: of many events in a minute, few are looked at."""
    proxy = servers.Proxy(
        farm.backend(request.param),
        "lock enforced:* kind any",
        "lock audited:* mode audit kind any",
        "lock off:* mode off",
        "lock counter-enforced:*",
        "lock hash-enforced:*",
        "lock counter-audited:* mode audit",
        "lock hash-audited:* mode audit",
    )
    yield proxy
    proxy.stop()
    proxy.remove()


MODES = ["enforced:", "audited:", "off:", "app:"]  # each a group of its own: of keys that begin alike few are looked at


def line_for(client, prefix, name):
    (line,) = [l for l in client("PROXY", "ADVISE") if l.startswith(prefix) and " name=%s:" % name in l]
    return line


def named(proxy, connect, name, count):
    return [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for _ in range(count)]


def advised(line):
    return line[line.index(" events: ") + 9 :]


def accepted(line, tmp_path):
    rule = advised(line)
    path = tmp_path / "advised.conf"
    path.write_text(rule + "\n")
    done = subprocess.run([servers.binary(), "--test-conf", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return rule


@pytest.mark.parametrize("prefix", MODES)
def test_one_connection_a_worker(advising, connect, prefix, tmp_path):
    workers = named(advising, connect, "d", 3)
    for i in range(ROUNDS):
        key = prefix + "d%d" % i
        holder, loser = workers[i % 3], workers[(i + 1) % 3]
        assert holder("SET", key, "1", "NX", "EX", "50") == "OK"
        assert loser("SET", key, "1", "NX", "EX", "50") is None
        assert holder("DEL", key) == 1
    line = line_for(workers[0], prefix, "d")
    assert "a connection for each worker; values constant; acquired 15, lost 15, released 15" in line
    assert accepted(line, tmp_path) == "lock " + line.rsplit("lock ", 1)[1] and " owner " not in line


@pytest.mark.parametrize("prefix", MODES)
def test_a_multiplexed_connection(advising, connect, prefix, tmp_path):
    """A lock command that comes while an earlier one has not been answered: several workers send."""
    (only,) = named(advising, connect, "m", 1)
    before = resp.encode("GET", "else") * 200

    def overlapped():
        for i in range(ROUNDS):
            key = prefix + "m%d" % i
            only.send(before)
            only.send(resp.encode("SET", key, "value %d" % i, "NX", "EX", "50"))
            assert [only.read() for _ in range(201)][-1] == "OK"
            assert only("DEL", key) == 1
        return "one connection for several workers; values distinct" in line_for(only, prefix, "m")

    until(overlapped)
    assert accepted(line_for(only, prefix, "m"), tmp_path).endswith(" owner client")


def test_a_long_pipeline_is_one_workers(advising, connect):
    """Its rest comes in later reads, when its beginning has been sent on; here it never ends between two requests."""
    (only,) = named(advising, connect, "r", 1)
    prefix = MODES[0]
    for i in range(ROUNDS):
        key = prefix + "r%d" % i
        words = [resp.encode("GET", "else") * 50, resp.encode("SET", "large", "x" * 3000000),
                 resp.encode("SET", key, "value %d" % i, "NX", "EX", "50")]
        only.send(b"".join(words))
        assert [only.read() for _ in range(52)][-1] == "OK"
        assert only("DEL", key) == 1
    assert "one connection for several workers" not in line_for(only, prefix, "r")


@pytest.mark.parametrize("prefix", MODES)
def test_nested_attempts(advising, connect, prefix, tmp_path):
    (only,) = named(advising, connect, "n", 1)
    for i in range(ROUNDS):
        key = prefix + "n%d" % i
        assert only("SET", key, "value %d" % i, "NX", "EX", "50") == "OK"
        assert only("SET", key, "other", "NX", "EX", "50") is None
        assert only("DEL", key) == 1
    line = line_for(only, prefix, "n")
    assert "connections not known; values distinct; acquired 15, lost 15, released 15" in line
    assert " owner " not in accepted(line, tmp_path)


@pytest.mark.parametrize("prefix", MODES)
def test_losers_that_delete(advising, connect, prefix, tmp_path):
    """Each worker has its connection, and sends DEL in `finally`, whether it has acquired or not."""
    workers = named(advising, connect, "l", 3)
    for i in range(20):
        key = prefix + "l%d" % (i % 4)
        holder, loser = workers[i % 3], workers[(i + 1) % 3]
        assert holder("SET", key, "1", "NX", "EX", "50") == "OK"
        released = int(prefix != "enforced:")
        assert loser.at_once(("SET", key, "1", "NX", "EX", "50"), ("DEL", key)) == [None, released]
        assert holder("DEL", key) == (prefix == "enforced:")
    line = line_for(workers[0], prefix, "l")
    assert ", losers delete: 20 times" in line
    assert (" owner connection" in accepted(line, tmp_path)) == (prefix == "enforced:"), line
    assert " owner client" not in line and " owner any" not in line


@pytest.mark.parametrize("prefix", ["audited:", "off:", "app:"])
def test_dead_locks(advising, connect, prefix):
    """SETNX without an expiry, and its owner is gone: said at once."""
    owner, other = named(advising, connect, "dead", 2)
    assert owner("SETNX", prefix + "report", "1") == 1
    owner.close()

    def said():
        assert other("SETNX", prefix + "report", "1") == 0
        return [line for line in other("PROXY", "ADVISE") if line.startswith("dead lock: %sreport by " % prefix)]

    until(said)
    assert "no expiry, its owner is gone" in said()[0]
    assert other("DEL", prefix + "report") == 1
    assert not [line for line in other("PROXY", "ADVISE") if line.startswith("dead lock: %sreport " % prefix)]


@pytest.mark.parametrize("prefix", MODES)
def test_a_pool_of_redis_py(advising, connect, prefix, tmp_path):
    redis = pytest.importorskip("redis")
    pool = redis.ConnectionPool(host=advising.address[0], port=advising.address[1], client_name="p")
    client = redis.Redis(connection_pool=pool)
    held = [0]

    def work(seed):
        for i in range(ROUNDS):
            key = "%sp%d" % (prefix, i % 3)
            if client.set(key, "1", nx=True, ex=50):
                client.get("else")
                held[0] += client.delete(key)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    connections = [pool.get_connection("_") for _ in range(2)]
    for i in range(12):  # acquired over one, released over the other, as it happens in a pool
        for connection, command in zip(connections, (("SET", prefix + "p9", "1", "NX", "EX", "50"), ("DEL", prefix + "p9"))):
            connection.send_command(*command)
            connection.read_response()
    pool.disconnect()
    other = connect(advising)
    line = line_for(other, prefix, "p")
    assert "a pool of connections" in line
    assert " owner client" in accepted(line, tmp_path)


@pytest.mark.parametrize("prefix", MODES)
def test_queued_jobs(advising, connect, prefix, tmp_path):
    (queue,), (worker,) = named(advising, connect, "queue", 1), named(advising, connect, "worker", 1)
    for i in range(ROUNDS):
        key = prefix + "q%d" % i
        assert queue("SET", key, str(i), "NX", "EX", "50") == "OK"
        worker("DEL", key)
    line = line_for(queue, prefix, "queue")
    if prefix == "enforced:":  # refused, and no evidence
        assert "released 0, refused 15" in line
        assert " owner " not in accepted(line, tmp_path)
    else:
        assert "by others 15" in line
        assert accepted(line, tmp_path).endswith(" owner any")


@pytest.mark.parametrize("prefix", MODES)
def test_throttles(advising, connect, prefix):
    (only,) = named(advising, connect, "throttle", 1)
    for i in range(ROUNDS):
        assert only("SET", prefix + "t%d" % i, "1", "NX", "PX", "20") == "OK"
    until(lambda: only("EXISTS", prefix + "t14") == 0)
    line = line_for(only, prefix, "throttle")
    assert "overruns 0" in line and "a throttle, never released" in line


@pytest.mark.parametrize("prefix", MODES)
@pytest.mark.parametrize("release", ["LREM", "LPOP"])
def test_list_locks(advising, connect, prefix, release, tmp_path):
    name = "list" + release.lower()
    workers = named(advising, connect, name, 2)
    for i in range(ROUNDS + 1):  # outside of the rules the first looks at a head are what makes a list interesting
        for number, worker in enumerate(workers):
            key, node = prefix + name, "%s %d %d" % (release, i, number)
            assert worker("RPUSH", key, node) == 1
            head = worker("LRANGE", key, 0, 0) if i % 2 else [worker("LINDEX", key, 0)]
            assert head == [node]
            assert worker(*(["LREM", key, 1, node] if release == "LREM" else ["LPOP", key])) in (1, node)
    line = line_for(workers[0], prefix, name)
    assert "a list lock; connections not known; values distinct; acquired 3" in line, line
    assert accepted(line, tmp_path).startswith("lock " + prefix) and advised(line).endswith(" kind list"), line


def test_reentrant_list_lock_outside_of_rules(advising, connect, tmp_path):
    (only,) = named(advising, connect, "reentrant", 1)
    key = "turn-of-all"
    for i in range(ROUNDS):
        first, second = "n%d:1" % i, "n%d:2" % i
        assert only("EXISTS", key) == 0 and only("RPUSH", key, first) == 1
        assert only("LRANGE", key, 0, 0) == [first]
        assert only("LSET", key, 0, second) == "OK" and only("LRANGE", key, 0, 0) == [second]
        assert only("LREM", key, 1, second) == 1
    line = line_for(only, key, "reentrant")
    assert "a list lock" in line and "acquired 15, lost 0, released 15" in line, line
    assert accepted(line, tmp_path) == "lock %s kind list" % key


def test_lists_that_are_no_locks(advising, connect):
    (only,) = named(advising, connect, "lists", 1)
    for i in range(ROUNDS * 2):
        only("LPUSH", "feed", str(i))
        assert only("LRANGE", "feed", 0, 9)[0] == str(i)
        only("RPUSH", "jobs", str(i))
        assert only("LINDEX", "jobs", 0) == only("LPOP", "jobs") == str(i) or i
        only("RPUSH", "processing", str(i))
        assert only("LREM", "processing", 1, str(i)) == 1
    lines = [l for l in only("PROXY", "ADVISE") if " name=lists:" in l]
    assert not [l for l in lines if l.startswith(("feed", "processing"))]


@pytest.mark.parametrize("way", ["EVAL", "EVALSHA after EVAL", "EVALSHA after SCRIPT LOAD"])
@pytest.mark.parametrize("kind", ["string", "hash"])
def test_scripts_outside_of_rules(advising, connect, way, kind, tmp_path):
    prefix = "%s-%s" % (kind, way.replace(" ", "-").lower())
    (only,) = named(advising, connect, prefix, 1)
    acquire = {"string": "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])",
               "hash": "if redis.call('exists', KEYS[1]) == 0 then redis.call('hincrby', KEYS[1], ARGV[1], 1) "
                       "redis.call('pexpire', KEYS[1], ARGV[2]) return nil end return redis.call('pttl', KEYS[1])"}[kind]
    release = {"string": 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0',
               "hash": "if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end "
                       "redis.call('del', KEYS[1]) return 1"}[kind]
    sha = {source: hashlib.sha1(source.encode()).hexdigest() for source in (acquire, release)}
    known = set()
    if way == "EVALSHA after SCRIPT LOAD":
        assert [only("SCRIPT", "LOAD", source) for source in sha] == list(sha.values())

    def run(source, *args):
        if way == "EVALSHA after SCRIPT LOAD" or (way == "EVALSHA after EVAL" and (source, key) in known):
            return only("EVALSHA", sha[source], 1, key, *args)
        known.add((source, key))
        return only("EVAL", source, 1, key, *args)
    for i in range(ROUNDS):
        key = "%s:%d:lock" % (prefix, i % 3)
        assert run(acquire, "value %d" % i, 50000) == ("OK" if kind == "string" else None)
        assert run(acquire, "other", 50000) != ("OK" if kind == "string" else None)
        assert run(release, "value %d" % i) == 1
    line = line_for(only, prefix, prefix)
    assert "values distinct; acquired 15, lost 15, released 15" in line, line
    assert accepted(line, tmp_path) == "lock %s:*:lock" % prefix


def test_transactions_outside_of_rules(advising, connect, tmp_path):
    (only,) = named(advising, connect, "multi", 1)
    for i in range(ROUNDS):
        assert [only("MULTI"), only("SETNX", "multi-lock", "1"), only("EXPIRE", "multi-lock", "50"), only("EXEC")][-1] == [1, 1]
        assert [only("MULTI"), only("GET", "multi-lock"), only("DEL", "multi-lock"), only("EXEC")][-1] == ["1", 1]
    line = line_for(only, "multi-lock", "multi")
    assert "acquired 15, lost 0, released 15" in line, line
    assert accepted(line, tmp_path) == "lock multi-lock"


@pytest.mark.parametrize("mode", ["enforced", "audited"])
@pytest.mark.parametrize("kind", ["counter", "hash"])
def test_kinds_that_the_rule_lacks(advising, connect, mode, kind, tmp_path):
    """What the rule takes for data is a lock."""
    prefix, name = "%s-%s:" % (kind, mode), "lacks" + kind
    holder, loser = named(advising, connect, name, 2)
    key = prefix + name
    attempt = ("INCR", key) if kind == "counter" else ("HSETNX", key, "owner", "me")
    for _ in range(100):
        assert holder(*attempt) == 1
        assert loser(*attempt) == (2 if kind == "counter" else 0)
        holder("EXPIRE", key, "50")
        assert holder("DEL", key) == 1
    line = line_for(holder, prefix, name)
    assert accepted(line, tmp_path).split()[:4] == ["lock", prefix + "*", "kind", kind], line


def test_counters_outside_of_rules(advising, connect, tmp_path):
    (only,) = named(advising, connect, "counter", 1)
    for _ in range(400):
        assert only("INCR", "cron-lock") == 1
        only("EXPIRE", "cron-lock", "50")
        assert only("DEL", "cron-lock") == 1
    line = line_for(only, "cron-lock", "counter")
    assert accepted(line, tmp_path) == "lock cron-lock kind counter"


def test_semaphores_outside_of_rules(advising, connect, tmp_path):
    """Two sessions have the counter at a time: a lock's loser would take its number back at once."""
    first, second = named(advising, connect, "semaphore", 2)
    for _ in range(100):
        assert first("INCR", "jobs-limit") == 1 and first("DECR", "jobs-limit") == 0
    for _ in range(10):
        assert first("INCR", "jobs-limit") == 1 and second("INCR", "jobs-limit") == 2
        time.sleep(0.03)  # the time is what is told apart
        assert second("DECR", "jobs-limit") == 1 and first("DECR", "jobs-limit") == 0
    line = line_for(first, "jobs-limit", "semaphore")
    assert accepted(line, tmp_path) == "lock jobs-limit kind semaphore"


@pytest.mark.parametrize("multi", [False, True])
def test_sorted_sets_that_are_semaphores(advising, connect, tmp_path, multi):
    workers = named(advising, connect, "members", 3)
    for i in range(40):
        for n, worker in enumerate(workers):
            add = [("ZREMRANGEBYSCORE", "slots", "-inf", str(time.time() - 60)), ("ZADD", "slots", str(time.time()), "id-%d" % n),
                   ("ZRANK", "slots", "id-%d" % n)]
            for c in [("MULTI",), *add, ("EXEC",)] if multi else add:
                reply = worker(*c)
            assert (reply[1:] if multi else [1, reply]) == [1, n]
        time.sleep(0.03 if i > 20 else 0)  # the time is what is told apart
        for n, worker in enumerate(workers):
            assert worker("ZREM", "slots", "id-%d" % n) == 1
    line = line_for(workers[0], "slots", "members")
    assert accepted(line, tmp_path) == "lock slots kind semaphore"


def test_lists_whose_tokens_are_waited_for(advising, connect, tmp_path):
    """A worker is blocked until another one pushes its token; what a timeout ends has taken none."""
    first, second, third = named(advising, connect, "tokens", 3)
    assert first("RPUSH", "tokens", "1", "2") == 2
    assert third("BLPOP", "none", "0.01") is None
    for i in range(70):
        assert first("BLPOP", "tokens", "0") == ["tokens", "1"] and second("BLPOP", "tokens", "0") == ["tokens", "2"]
        third.send(resp.encode("BLPOP", "tokens", "0"))
        time.sleep(0.03 if i > 60 else 0)  # the time is what is told apart
        assert second("RPUSH", "tokens", "2") == 1
        assert third.read() == ["tokens", "2"]
        assert first("RPUSH", "tokens", "1") == 1 and third("RPUSH", "tokens", "2") == 2
    line = line_for(first, "tokens", "tokens")
    assert accepted(line, tmp_path) == "lock tokens kind semaphore"


@pytest.mark.parametrize("shape", ["tokens", "jobs"])
def test_a_queue_whose_jobs_fail_is_no_semaphore(advising, connect, tmp_path, shape):
    """Both lists are alike, but for what is in them: the workers push back nearly all that they pop, a while later and beside each
    other. A pool has the same tokens for ever; of the jobs, one of ten is done, and a new one comes."""
    first, second, producer = named(advising, connect, "both", 3)
    name = "list-of-" + shape
    for text in ("0", "1", "2"):
        producer("RPUSH", name, text)
    for i in range(180):
        popped = first("LPOP", name), second("LPOP", name)
        time.sleep(0.03 if i % 9 == 8 else 0)  # the time is what is told apart
        producer_pushes = shape == "jobs" and i % 5 == 4  # one of ten is done at last
        assert second("RPUSH", name, popped[1]) == 2
        assert producer("RPUSH", name, "job-%d" % i) if producer_pushes else first("RPUSH", name, popped[0])
    if shape == "tokens":
        assert accepted(line_for(first, name, "both"), tmp_path) == "lock %s kind semaphore" % name
    else:
        assert not any("kind semaphore" in line for line in first("PROXY", "ADVISE"))


def test_hashes_outside_of_rules(advising, connect, tmp_path):
    (only,) = named(advising, connect, "hash", 1)
    for i in range(400):
        assert only("HSETNX", "door-lock", "owner", str(i)) == 1
        only("EXPIRE", "door-lock", "50")
        assert only(*(("DEL", "door-lock") if i % 2 else ("HDEL", "door-lock", "owner"))) == 1
    line = line_for(only, "door-lock", "hash")
    assert accepted(line, tmp_path) == "lock door-lock kind hash"


@pytest.mark.parametrize("prefix", MODES)
def test_released_by_expiry(advising, connect, prefix, tmp_path):
    """SET XX: a while longer, and then a short time that keeps others away."""
    (only,) = named(advising, connect, "x", 1)
    for i in range(ROUNDS):
        key = prefix + "x%d" % i
        assert only("SET", key, "a", "NX", "PX", "50000") == "OK"
        assert only("SET", key, "a", "XX", "PX", "60000") == "OK"
        assert only("SET", key, "a", "XX", "PX", "500") == "OK"
    line = line_for(only, prefix, "x")
    assert "acquired 15, lost 0, released 15, overruns 0" in line
    assert accepted(line, tmp_path).startswith("lock " + prefix)


@pytest.mark.parametrize("keys", [1, 2])
def test_msetnx_outside_of_rules(advising, connect, keys, tmp_path):
    (only,) = named(advising, connect, "msetnx%d" % keys, 1)
    names = ["{%s}:%s" % ("alone" if keys == 1 else "both", which) for which in ("first", "second")[:keys]]
    for i in range(ROUNDS):
        assert only("MSETNX", *[word for name in names for word in (name, "value %d" % i)]) == 1
        assert only("MSETNX", *[word for name in names for word in (name, "other")]) == 0
        for name in names:
            assert only("DEL", name) == 1
    for name in names:
        line = line_for(only, name, "msetnx%d" % keys)
        assert "values distinct; acquired 15, lost 15, released 15" in line, line
        assert accepted(line, tmp_path).startswith("lock ")


def test_what_is_watched_and_set_outside_of_rules(advising, connect, tmp_path):
    (only,) = named(advising, connect, "watch", 1)

    def watched(*command):
        return [only("MULTI"), only(*command), only("EXEC")][-1]

    for i in range(ROUNDS):
        only("WATCH", "watch-lock")
        assert only("GET", "watch-lock") is None
        assert watched("SETEX", "watch-lock", "50", str(i)) == ["OK"]
        only("WATCH", "watch-lock")
        assert watched("SETEX", "watch-lock", "60", str(i)) == ["OK"]
        only("WATCH", "watch-lock")
        assert watched("DEL", "watch-lock") == [1]
    line = line_for(only, "watch-lock", "watch")
    assert "acquired 15, lost 0, released 15, overruns 0" in line, line
    assert accepted(line, tmp_path) == "lock watch-lock"


def test_a_script_whose_lock_is_another_key(advising, connect, tmp_path):
    (only,) = named(advising, connect, "third", 1)
    acquire = """if redis.call('hlen', KEYS[3]) > 0 then return nil end
                 redis.call('hset', KEYS[3], ARGV[1], 1) redis.call('pexpire', KEYS[3], ARGV[2])
                 redis.call('unlink', KEYS[1]) return ARGV[1]"""
    release = """if redis.call('hexists', KEYS[2], ARGV[1]) == 0 then return nil end
                 redis.call('hdel', KEYS[2], ARGV[1]) redis.call('unlink', KEYS[2]) return ARGV[1]"""
    for i in range(ROUNDS):
        keys = ["{third}:queue", "{third}:info", "{third}:held:%d" % (i % 3)]
        assert only("EVAL", acquire, 3, *keys, "job %d" % i, 50000) == "job %d" % i
        assert only("EVAL", acquire, 3, *keys, "other", 50000) is None
        assert only("EVAL", release, 2, keys[0], keys[2], "job %d" % i) == "job %d" % i
    line = line_for(only, "{third}:held:*", "third")
    assert "values distinct; acquired 15, lost 15, released 15" in line, line
    assert accepted(line, tmp_path) == "lock {third}:held:*"


def test_what_is_no_lock_is_not_advised(advising, connect):
    (only,) = named(advising, connect, "ordinary", 1)
    for i in range(50):
        only("SET", "cache:%d" % i, "1")
        only("SET", "cache:%d" % i, "1", "EX", "5")
        only("GET", "cache:%d" % i)
        only("DEL", "cache:%d" % i)
        only("INCR", "hits")
        only("RPUSH", "queue", "1")
    assert not [l for l in only("PROXY", "ADVISE") if " name=ordinary:" in l and "lock " in l.split("events:")[1]]
