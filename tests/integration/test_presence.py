"""Proxies that were before one Redis, and of which some stay before the Redis of before: the others say so."""

import re

from servers import until

HASH = "lockkeeper:{%s}:lockkeeper-proxies"


def meet(*proxies):
    """Each proxy sees a lock of each other one: only such proxies write that they are there."""
    clients = [proxy.client() for proxy in proxies]
    for holder in clients:
        assert holder("SET", "lock:met", "1", "NX", "PX", 60000) == "OK"
        assert not any(c("SET", "lock:met", "2", "NX", "PX", 60000) for c in clients if c is not holder)
        assert holder("DEL", "lock:met") == 1
    for c in clients:
        c.close()


def away(proxy):
    with proxy.client() as c:
        return int(re.search(r"^proxies_away:(\d+)", c("PROXY", "INFO", "upstreams"), re.M)[1])


def hash_of(redis):
    """The hash of the proxies, once `redis` has it: its name and its fields."""
    (name,) = until(lambda: redis.run("KEYS", "lockkeeper:*:lockkeeper-proxies"), 20, "the hash of the proxies")
    fields = redis.run("HGETALL", name)
    return name, dict(zip(fields[::2], fields[1::2]))


def test_a_proxy_that_stays_behind(start_redis, start_proxy):
    """A replica is promoted by hand. One proxy is told, and the other is forgotten before the old master. Time is moved on by
    70 s in the hash, which has all times."""
    old, new = start_redis(), start_redis()
    told = start_proxy(old, "lock lock:*")
    forgotten = start_proxy(old, "lock lock:*")
    meet(told, forgotten)
    until(lambda: len(hash_of(old)[1]) == 3, 20, "both proxies")
    new.run("REPLICAOF", old.host, old.port)
    until(lambda: "master_link_status:up" in new.run("INFO", "replication"), 20, "the replica")
    new.run("REPLICAOF", "NO", "ONE")
    told.stop()
    told, other = (start_proxy(new, "lock lock:*") for _ in range(2))
    meet(told, other)
    name, fields = until(lambda: len(hash_of(new)[1]) >= 5 and hash_of(new), 30, "the proxies at the new master")
    for field, value in fields.items():
        new.run("HSET", name, field, re.sub(r"^\d+", lambda t: str(int(t[0]) - 70), value))
    until(lambda: away(told) > 0, 30, "the warning")
    assert ":%d, process %d" % (forgotten.port, forgotten.pid) in told.log()
    assert away(forgotten) == 0


def test_proxies_that_follow(start_redis, start_proxy):
    """Redis forgets nothing in a restart, and one proxy stops before it: nothing is away."""
    redis = start_redis("--appendonly", "yes")
    one, two = start_proxy(redis, "lock lock:*"), start_proxy(redis, "lock lock:*")
    assert redis.run("DBSIZE") == 0, "a proxy by itself writes nothing"
    meet(one, two)
    until(lambda: len(hash_of(redis)[1]) == 3, 20, "both proxies")
    two.stop()
    until(lambda: len(hash_of(redis)[1]) == 2, 20, "the end of one")
    redis.restart()
    name, fields = hash_of(redis)
    moved = {f: re.sub(r"^\d+", lambda t: str(int(t[0]) - 70), v) for f, v in fields.items()}
    for field, value in moved.items():
        redis.run("HSET", name, field, value)
    (process,) = (f for f in fields if not f.startswith("since"))
    until(lambda: hash_of(redis)[1][process] != moved[process], 30, "the word of the other")
    assert away(one) == 0
