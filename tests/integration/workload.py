"""Random commands whose replies depend on nothing but the commands before them.

Given to a single Redis and to the proxy, they must give the same bytes. So: no commands whose reply depends on
time, on a server's random seed or on the number of servers, and lock commands only as one client uses them.
"""

KEYS_EACH = 40
TYPES = ("string", "number", "list", "hash", "zset", "set", "stream")
LOCKS = 25
LOCK = "lock:connection:"  # the rule says so, since random commands may look as if several workers sent them


def names(prefix):
    return ["%s%s:%d" % (prefix, kind, n) for kind in TYPES for n in range(KEYS_EACH)] + [
        LOCK + "%s%d" % (prefix, n) for n in range(LOCKS)
    ]


def mixed(rng, count, prefix="", many_keys=True):
    """`count` commands as tuples."""
    return [_one(rng, prefix, many_keys) for _ in range(count)]


def of_one_worker(script):
    """Without the lock commands by which a worker would look like several: attempts on what it holds, and releases of what
    it does not hold. The locks get the default rule."""
    held, kept = set(), []
    for command in script:
        words = [w.replace(LOCK, "lock:") if isinstance(w, str) else w for w in command]
        locks = [w for w in words[1:] if isinstance(w, str) and w.startswith("lock:")]
        if locks and words[0] in ("DEL", "UNLINK", "GETDEL"):
            if not held.issuperset(locks):
                continue
            held.difference_update(locks)
        elif locks and (words[0] == "SETNX" or "NX" in words) and len(words) > 2:
            if not held.isdisjoint(locks):
                continue
            held.update(locks)
        elif locks and words[0] == "SETEX":
            held.update(locks)
        kept.append(tuple(words))
    return kept


def _one(rng, prefix, many_keys):
    def key(kind):
        if rng.random() < 0.03:  # now and then the wrong type
            kind = rng.choice(TYPES)
        return "%s%s:%d" % (prefix, kind, rng.randrange(KEYS_EACH))

    def any_key():
        return key(rng.choice(TYPES))

    def some(make, most=6):
        return [make() for _ in range(rng.randint(1, most if many_keys else 1))]

    def lock():
        return LOCK + "%s%d" % (prefix, rng.randrange(LOCKS))

    def word():
        n = rng.random()
        if n < 0.02:
            return "x" * rng.randrange(1, 30000)
        if n < 0.05:
            return ""
        if n < 0.15:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
        return "w%d" % rng.randrange(1000)

    def field():
        return "f%d" % rng.randrange(8)

    def string():
        return rng.choice([
            lambda: ("GET", key("string")),
            lambda: ("SET", key("string"), word()),
            lambda: ("SET", key("string"), word(), "EX", 1000),
            lambda: ("SET", key("string"), word(), "GET"),
            lambda: ("SET", key("string"), word(), rng.choice(["NX", "XX"])),
            lambda: ("SETNX", key("string"), word()),
            lambda: ("GETSET", key("string"), word()),
            lambda: ("GETDEL", key("string")),
            lambda: ("APPEND", key("string"), "w%d" % rng.randrange(100)),
            lambda: ("STRLEN", key("string")),
            lambda: ("GETRANGE", key("string"), rng.randint(-5, 5), rng.randint(-5, 50)),
            lambda: ("INCR", key("number")),
            lambda: ("INCRBY", key("number"), rng.randint(-100, 100)),
            lambda: ("DECR", key("number")),
            lambda: ("INCRBYFLOAT", key("number"), "1"),
        ])()

    def several():
        return rng.choice([
            lambda: ("MGET", *some(any_key)),
            lambda: ("DEL", *some(any_key)),
            lambda: ("UNLINK", *some(any_key)),
            lambda: ("EXISTS", *some(any_key)),
            lambda: ("TOUCH", *some(any_key)),
            lambda: ("MSET", *[x for k in some(lambda: key("string")) for x in (k, word())]),
            lambda: ("MGET", *some(lambda: key("string"), 20)),
        ])()

    def collection():
        return rng.choice([
            lambda: (rng.choice(["LPUSH", "RPUSH"]), key("list"), *some(word, 4)),
            lambda: (rng.choice(["LPOP", "RPOP"]), key("list")),
            lambda: ("LRANGE", key("list"), rng.randint(-4, 4), rng.randint(-4, 10)),
            lambda: ("LLEN", key("list")),
            lambda: ("LREM", key("list"), rng.randint(-1, 1), "w%d" % rng.randrange(1000)),
            lambda: ("LTRIM", key("list"), 0, 20),
            lambda: ("LINDEX", key("list"), rng.randint(-3, 3)),
            lambda: ("HSET", key("hash"), field(), "w%d" % rng.randrange(1000)),
            lambda: ("HGET", key("hash"), field()),
            lambda: ("HMGET", key("hash"), *some(field, 4)),
            lambda: ("HDEL", key("hash"), *some(field, 4)),
            lambda: ("HINCRBY", key("hash"), "n%d" % rng.randrange(3), rng.randint(-5, 5)),
            lambda: ("HGETALL", key("hash")),
            lambda: ("HLEN", key("hash")),
            lambda: ("ZADD", key("zset"), rng.randint(0, 50), field(), rng.randint(0, 50), field()),
            lambda: ("ZINCRBY", key("zset"), rng.randint(-5, 5), field()),
            lambda: ("ZRANGE", key("zset"), 0, -1, "WITHSCORES"),
            lambda: ("ZSCORE", key("zset"), field()),
            lambda: ("ZREM", key("zset"), *some(field, 4)),
            lambda: ("ZPOPMIN", key("zset")),
            lambda: ("SADD", key("set"), *[rng.randrange(50) for _ in range(3)]),
            lambda: ("SREM", key("set"), rng.randrange(50)),
            lambda: ("SISMEMBER", key("set"), rng.randrange(50)),
            lambda: ("SMEMBERS", key("set")),  # integers: kept sorted
            lambda: ("SCARD", key("set")),
            lambda: ("XADD", key("stream"), "%d-1" % rng.randrange(1, 1000000), "f", word()),
            lambda: ("XLEN", key("stream")),
            lambda: ("XRANGE", key("stream"), "-", "+", "COUNT", 3),
        ])()

    def general():
        return rng.choice([
            lambda: ("TYPE", any_key()),
            lambda: ("EXPIRE", any_key(), 1000),
            lambda: ("PERSIST", any_key()),
            lambda: ("PING",),
            lambda: ("PING", word()),
            lambda: ("ECHO", word()),
            lambda: ("EVAL", "return {KEYS[1], redis.call('exists', KEYS[1]), ARGV[1]}", 1, any_key(), word()),
        ])()

    def wrong():
        return rng.choice([
            lambda: ("GET",),
            lambda: ("GET", any_key(), any_key()),
            lambda: ("NOSUCHCOMMAND", any_key(), "w"),
            lambda: ("SET", any_key(), "v", "EX", "abc"),
            lambda: ("SET", any_key(), "v", "NX", "XX"),
            lambda: ("INCRBY", key("number"), "abc"),
            lambda: ("LINDEX", key("list"), "abc"),
            lambda: ("MSET", any_key()),
            lambda: ("EXPIRE", any_key(), "soon"),
            lambda: ("ZADD", key("zset"), "abc", "m"),
            lambda: ("HSET", key("hash"), "f"),
            lambda: ("DEL",),
            lambda: ("EVALSHA", "f" * 40, 1, any_key()),
            lambda: ("EVAL", "return redis.error_reply('OWN error')", 1, any_key()),
        ])()

    def locking():
        return rng.choice([
            lambda: ("SETNX", lock(), "1"),
            lambda: ("SET", lock(), "v%d" % rng.randrange(1000), "NX", "EX", 1000),
            lambda: ("SET", lock(), "v%d" % rng.randrange(1000), "PX", 100000, "NX"),
            lambda: ("GET", lock()),
            lambda: ("DEL", lock()),
            lambda: ("DEL", lock()),
            lambda: ("UNLINK", lock()),
            lambda: ("EXPIRE", lock(), 1000),
            lambda: ("PEXPIRE", lock(), 1000000),
            lambda: ("EXISTS", lock()),
            lambda: ("STRLEN", lock()),
            lambda: ("TYPE", lock()),
            lambda: ("SETEX", lock(), 1000, "v"),
            lambda: ("SET", lock(), "v%d" % rng.randrange(1000), "XX", "EX", 1000),
            lambda: ("GETDEL", lock()),
            lambda: ("DEL", lock(), any_key(), any_key()),
            lambda: ("MGET", lock(), any_key(), lock()),
            lambda: ("EXISTS", lock(), any_key()),
            lambda: ("SETNX", lock()),
            lambda: ("EXPIRE", lock(), "soon"),
        ])()

    kind = rng.random()
    if kind < 0.30:
        return string()
    if kind < 0.42:
        return several()
    if kind < 0.72:
        return collection()
    if kind < 0.80:
        return general()
    if kind < 0.85:
        return wrong()
    return locking()
