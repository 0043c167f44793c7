"""What is a lock under a rule, and what is data: on the default rule everything except SETNX and similar commands behaves byte
for byte as on Redis, including the time to live; and no command overwrites another client's lease.

`Beside` sends the same commands to the proxy and to a Redis without one, and compares every reply and what is left.
"""

import os
import random

import pytest

from resp import Error, parse
from servers import until

ROUNDS = int(os.environ.get("LOCKKEEPER_KINDS_ROUNDS", 160))


def is_locked(reply):
    return isinstance(reply, Error) and reply.startswith("LOCKED ")


def alike(command, reply):
    """A reply with what differs between two runs taken out: what is left of a time to live."""
    name = str(command[0]).upper()
    if name in ("TTL", "PTTL") and isinstance(reply, int) and reply > 0:
        return "some time"
    if name in ("SMEMBERS", "HKEYS", "HVALS", "SUNION") and isinstance(reply, list):
        return sorted(reply)
    if name == "HGETALL" and isinstance(reply, list):
        return dict(zip(reply[::2], reply[1::2]))
    return reply


class Beside:
    """Two clients of the proxy, and two of the oracle, which do the same."""

    def __init__(self, proxy, oracle, connect):
        self.pairs = [(connect(proxy), connect(oracle)) for _ in range(2)]
        self.said = []

    def compare(self, who, commands, ours, theirs):
        for command, a, b in zip(commands, ours, theirs):
            self.said.append("%s %s: %r" % ("ab"[who], " ".join(str(w) for w in command), b))
            assert alike(command, a) == alike(command, b), "%r, not %r, behind\n%s" % (a, b, "\n".join(self.said[-40:]))

    def __call__(self, *command, who=0):
        ours, theirs = (client(*command) for client in self.pairs[who])
        self.compare(who, [command], [ours], [theirs])
        return theirs

    def pipeline(self, commands, who=0):
        ours, theirs = (replies(client, commands) for client in self.pairs[who])
        self.compare(who, commands, ours, theirs)

    def transaction(self, commands, who=0):
        wrapped = [("MULTI",), *commands, ("EXEC",)]
        ours, theirs = (replies(client, wrapped) for client in self.pairs[who])
        assert ours[:-1] == theirs[:-1], self.said[-20:]
        if isinstance(theirs[-1], Error) or isinstance(ours[-1], Error):
            assert ours[-1] == theirs[-1]
            return
        assert len(ours[-1]) == len(theirs[-1])
        self.compare(who, commands, ours[-1], theirs[-1])

    def left(self, names, direct, oracle):
        """The keys as they are in both."""
        for name in names:
            kind = oracle("TYPE", name)
            content = {"set": ("SMEMBERS", name), "hash": ("HGETALL", name)}.get(kind, ("DUMP", name))  # those have no order
            for command in (("TYPE", name), ("TTL", name), content):
                ours, theirs = (alike(command, client(*command)) if command == content else client(*command) for client in (direct, oracle))
                if command[0] == "TTL":
                    same = ours == theirs or (ours > 0 and theirs > 0 and abs(ours - theirs) <= 60)
                else:
                    same = ours == theirs
                assert same, "%s: %r, not %r, behind\n%s" % (command, ours, theirs, "\n".join(self.said[-40:]))


@pytest.fixture
def beside(proxy, oracle, connect):
    return Beside(proxy, oracle, connect)


def replies(client, commands):
    """Sent at once: the replies, read as values."""
    return [parse(raw)[0] for raw in client.pipeline(commands)]


@pytest.fixture
def key(key):
    """The same name for the same word within a test."""
    made = {}

    def same(name):
        if name not in made:
            made[name] = key(name)
        return made[name]

    return same


@pytest.fixture
def bare(oracle, connect):
    return connect(oracle)


# ---- what is data ----------------------------------------------------------------------------------------------

# What an application does with a key of its own, in turn from one connection and another.
USES = {
    "setting": [
        ("SET", "K", "v"), ("TTL", "K"), ("GET", "K"), ("SET", "K", "w"), ("SET", "K", "x", "KEEPTTL"), ("SET", "K", "y", "XX"),
        ("EXPIRE", "K", "1000"), ("TTL", "K"), ("SET", "K", "z", "XX", "KEEPTTL"), ("TTL", "K"), ("PERSIST", "K"), ("TTL", "K"),
        ("SETEX", "K", "1000", "s"), ("TTL", "K"), ("SET", "K", "plain"), ("TTL", "K"), ("GETSET", "K", "q"), ("TTL", "K"),
        ("SET", "K", "r", "GET"), ("GETEX", "K", "EX", "1000"), ("TTL", "K"), ("GETEX", "K", "PERSIST"), ("TTL", "K"),
        ("STRLEN", "K"), ("APPEND", "K", "more"), ("GETRANGE", "K", "0", "-1"), ("TYPE", "K"), ("EXISTS", "K"), ("GETDEL", "K"),
        ("GET", "K"), ("DEL", "K"), ("SET", "K", "again"), ("UNLINK", "K"), ("EXISTS", "K")],
    "pieces": [
        ("APPEND", "K", "ab"), ("TTL", "K"), ("APPEND", "K", "cd"), ("SETRANGE", "K", "1", "XY"), ("GET", "K"), ("SETBIT", "K", "7", "1"),
        ("SETBIT", "K", "7", "0"), ("GETBIT", "K", "3"), ("BITCOUNT", "K"), ("TTL", "K"), ("EXPIRE", "K", "1000"), ("APPEND", "K", "e"),
        ("TTL", "K"), ("DEL", "K"), ("SETRANGE", "K", "0", ""), ("EXISTS", "K"), ("SETRANGE", "K", "2", "z"), ("TTL", "K"),
        ("BITFIELD", "K", "SET", "u8", "0", "200"), ("GET", "K"), ("DEL", "K"), ("SETBIT", "K", "3", "1"), ("TTL", "K"), ("DEL", "K")],
    "record": [
        ("HSET", "K", "f", "v"), ("TTL", "K"), ("HSET", "K", "f", "w", "g", "1"), ("HSETNX", "K", "f", "x"), ("HSETNX", "K", "h", "y"),
        ("HMSET", "K", "i", "1", "j", "2"), ("HGETALL", "K"), ("HINCRBY", "K", "g", "41"), ("HINCRBYFLOAT", "K", "g", "0.5"), ("HGET", "K", "g"),
        ("HINCRBY", "K", "f", "1"), ("HDEL", "K", "i", "j", "nothing"), ("HLEN", "K"), ("TYPE", "K"), ("GET", "K"), ("INCR", "K"), ("EXPIRE", "K", "1000"),
        ("HSET", "K", "k", "l"), ("TTL", "K"), ("PERSIST", "K"), ("TTL", "K"), ("HSET", "K", "one"), ("HDEL", "K", "f", "g", "h", "k"),
        ("EXISTS", "K"), ("HDEL", "K", "f"), ("HSET", "K", "f", "v"), ("GETDEL", "K"), ("DEL", "K"), ("HGETALL", "K")],
    "queue": [
        ("RPUSH", "K", "a", "b"), ("TTL", "K"), ("LPUSH", "K", "c"), ("LRANGE", "K", "0", "-1"), ("EXISTS", "K"), ("LLEN", "K"), ("LINDEX", "K", "0"),
        ("LPOS", "K", "b"), ("LSET", "K", "0", "d"), ("LSET", "K", "9", "d"), ("LINSERT", "K", "BEFORE", "a", "e"), ("LTRIM", "K", "0", "5"), ("LREM", "K", "1", "e"),
        ("RPUSHX", "K", "f"), ("LPUSHX", "K", "g"), ("LMOVE", "K", "K", "LEFT", "RIGHT"), ("RPOPLPUSH", "K", "K"), ("LPOP", "K"), ("RPOP", "K", "2"),
        ("LPOP", "K", "0"), ("SET", "K", "over"), ("RPUSH", "K", "a"), ("DEL", "K"), ("RPUSH", "K", "a"), ("EXPIRE", "K", "1000"), ("TTL", "K"),
        ("RPUSH", "K", "b"), ("TTL", "K"), ("BLPOP", "K", "1"), ("LRANGE", "K", "0", "0"), ("DEL", "K"), ("LPOP", "K"), ("LRANGE", "K", "0", "-1"), ("RPUSHX", "K", "a")],
    "counter": [
        ("INCR", "K"), ("TTL", "K"), ("EXPIRE", "K", "1000"), ("INCR", "K"), ("TTL", "K"), ("DECR", "K"), ("DECR", "K"), ("DECR", "K"), ("INCRBY", "K", "10"),
        ("DECRBY", "K", "3"), ("INCRBY", "K", "-4"), ("GET", "K"), ("INCRBYFLOAT", "K", "0.25"), ("TTL", "K"), ("INCR", "K"), ("DEL", "K"),
        ("DECR", "K"), ("TTL", "K"), ("INCR", "K"), ("INCR", "K"), ("TTL", "K"), ("SET", "K", "9223372036854775800"), ("INCRBY", "K", "7"),
        ("INCR", "K"), ("DECRBY", "K", "1"), ("INCR", "K"), ("INCRBY", "K", "zz"), ("INCRBYFLOAT", "K", "zz"), ("DEL", "K"),
        ("INCRBYFLOAT", "K", "1.5"), ("TTL", "K"), ("DEL", "K")],
    "set": [("SADD", "K", "a", "b"), ("TTL", "K"), ("SADD", "K", "b", "c"), ("SREM", "K", "a"), ("SCARD", "K"), ("SISMEMBER", "K", "b"), ("EXPIRE", "K", "1000"),
            ("SADD", "K", "d"), ("TTL", "K"), ("TYPE", "K"), ("SETNX", "OTHER", "1"), ("PERSIST", "K"), ("TTL", "K"), ("DEL", "K")],
    "ranking": [("ZADD", "K", "1", "a", "2", "b"), ("TTL", "K"), ("ZINCRBY", "K", "3", "a"), ("ZRANGE", "K", "0", "-1", "WITHSCORES"), ("ZREM", "K", "b"), ("TYPE", "K"),
                ("EXPIRE", "K", "1000"), ("TTL", "K"), ("SET", "K", "v"), ("TTL", "K"), ("ZADD", "K", "1", "a"), ("DEL", "K")],
    "many": [("MSET", "K", "v", "L", "w"), ("TTL", "K"), ("TTL", "L"), ("MGET", "K", "L"), ("RENAME", "K", "M"), ("TTL", "M"), ("COPY", "M", "K"), ("COPY", "L", "K"),
             ("COPY", "L", "K", "REPLACE"), ("TTL", "K"), ("GET", "K"), ("RENAMENX", "L", "M"), ("RENAMENX", "L", "N"), ("TTL", "N"), ("SADD", "P", "1", "2"),
             ("SUNIONSTORE", "K", "P"), ("TTL", "K"), ("SCARD", "K"), ("SORT", "P", "STORE", "M"), ("LRANGE", "M", "0", "-1"), ("TTL", "M"), ("BITOP", "NOT", "K", "N"),
             ("TTL", "K"), ("EXPIRE", "K", "1000"), ("MSET", "K", "1", "M", "2"), ("TTL", "K"), ("LMOVE", "M", "K", "LEFT", "LEFT"), ("DEL", "K", "L", "M", "N", "P"),
             ("MGET", "K", "L", "M", "N"), ("EXISTS", "P")],
}


def named(command, key, suffix=""):
    """K, L, M, N and P are keys of one slot."""
    return [key("lock:{data%s}:%s" % (suffix, w)) if w in ("K", "L", "M", "N", "P") else "other" if w == "OTHER" else w for w in command]


@pytest.mark.parametrize("use", sorted(USES))
@pytest.mark.parametrize("way", ["one", "two", "pipeline", "transaction", "pieces"])
def test_data_is_as_on_redis(beside, key, direct, bare, use, way):
    commands = [named(c, key) for c in USES[use] if c != ("SETNX", "OTHER", "1")]
    if way == "transaction":
        commands = [c for c in commands if c[0] != "BLPOP"]  # of which the time is another there
        beside.transaction(commands[:len(commands) // 2])
        beside.transaction(commands[len(commands) // 2:], who=1)
    elif way == "pipeline":
        beside.pipeline(commands)
    elif way == "pieces":
        for i in range(0, len(commands), 5):
            [beside.pipeline, beside.transaction][i // 5 % 2]([c for c in commands[i:i + 5] if c[0] != "BLPOP"], who=i // 5 % 2)
    else:
        for i, command in enumerate(commands):
            beside(*command, who=i % 2 if way == "two" else 0)
    beside.left(sorted({w for c in commands for w in c if str(w).startswith("lock:") or ":lock:" in str(w)}), direct, bare)


@pytest.mark.parametrize("use", sorted(USES))
def test_data_after_each_step_is_as_on_redis(beside, key, direct, bare, use):
    """What is written by one connection is removed by another, whatever it is at that point."""
    steps = [c for c in USES[use] if c[0] not in ("DEL", "UNLINK", "GETDEL", "BLPOP") and c != ("SETNX", "OTHER", "1")]
    for n in range(1, len(steps), 3):
        for command in steps[:n]:
            beside(*named(command, key, use + str(n)))
        end = [("DEL", "K"), ("UNLINK", "K"), ("EXPIRE", "K", "1000"), ("PERSIST", "K"), ("SET", "K", "end"), ("EXPIRE", "K", "-1"), ("GETDEL", "K")][n % 7]
        beside(*named(end, key, use + str(n)), who=1)
        beside(*named(("TTL", "K"), key, use + str(n)), who=1)
        beside.left([named(("K",), key, use + str(n))[0]], direct, bare)


def some_command(rng, keys, oracle):
    """A command on data. One that would acquire on a free key is drawn only where something stands, as the oracle says."""
    k, l = rng.choice(keys), rng.choice(keys)
    value, field, n = rng.choice(["v", "1", "17", "", "x" * 70]), rng.choice("fgh"), str(rng.randint(-3, 5))
    stands = [("SETEX", k, "1000", value), ("PSETEX", k, "1000000", value), ("SET", k, value, "EX", "1000"), ("GETSET", k, value),
              ("SET", k, value, "GET")]
    commands = [
        ("SET", k, value), ("SET", k, value), ("SET", k, value, "KEEPTTL"), ("SET", k, value, "XX"), ("SET", k, value, "XX", "EX", "1000"),
        ("APPEND", k, value), ("SETRANGE", k, "2", value), ("SETBIT", k, "5", "1"), ("INCRBYFLOAT", k, "1.5"), ("INCR", k), ("DECR", k), ("INCRBY", k, n),
        ("DECRBY", k, n), ("GET", k), ("GETDEL", k), ("GETEX", k), ("GETEX", k, "EX", "1000"), ("STRLEN", k), ("EXISTS", k), ("TTL", k), ("TYPE", k),
        ("EXPIRE", k, "1000"), ("EXPIRE", k, "1000", "NX"), ("PEXPIRE", k, "1000000", "XX"), ("EXPIRE", k, "-1"), ("PERSIST", k), ("DEL", k), ("UNLINK", k),
        ("DEL", k, l), ("HSET", k, field, value), ("HSETNX", k, field, value), ("HDEL", k, field), ("HINCRBY", k, field, n), ("HGETALL", k),
        ("HMSET", k, field, value, "z", "1"), ("HINCRBYFLOAT", k, "z", "1"), ("RPUSH", k, value), ("LPUSH", k, value, "y"), ("LPOP", k), ("RPOP", k, "1"),
        ("LRANGE", k, "0", "-1"), ("LREM", k, "0", value), ("LSET", k, "0", "s"), ("LLEN", k), ("LTRIM", k, "0", "3"), ("LMOVE", k, l, "LEFT", "RIGHT"),
        ("SADD", k, value), ("SREM", k, value), ("SMEMBERS", k), ("ZADD", k, n, value), ("ZRANGE", k, "0", "-1"), ("MSET", k, value, l, "m"), ("MGET", k, l),
        ("RENAME", k, l), ("RENAMENX", k, l), ("COPY", k, l), ("COPY", k, l, "REPLACE"), ("SUNIONSTORE", k, l), ("BITOP", "NOT", k, l),
        ("BITFIELD", k, "INCRBY", "u8", "0", "7"), ("PFADD", k, value), ("ZINCRBY", k, n, value)]
    if rng.random() < 0.12 and oracle("EXISTS", k):
        return rng.choice(stands)
    return rng.choice(commands)


@pytest.mark.parametrize("seed", [*range(1, 7), int(os.environ.get("LOCKKEEPER_SEED") or 7)])
def test_random_data_is_as_on_redis(beside, key, direct, bare, seed):
    """Random commands on a few keys from two connections, one by one, in pipelines and transactions; none of them acquires."""
    rng = random.Random(seed)
    keys = [key("lock:{r}:%d" % i) for i in range(4)]
    try:
        for _ in range(ROUNDS):
            who, way = rng.randrange(2), rng.random()
            commands = [some_command(rng, keys, bare) for _ in range(1 if way < 0.5 else rng.randint(2, 6))]
            if len(commands) > 1:  # what stands where one of them comes is not known
                commands = [c for c in commands if not (c[0] in ("SETEX", "PSETEX", "GETSET") or "GET" in c or (c[0] == "SET" and "EX" in c and "XX" not in c))]
            if way < 0.5:
                beside(*commands[0], who=who) if commands else None
            elif way < 0.75:
                beside.pipeline(commands, who=who)
            else:
                beside.transaction(commands, who=who)
        beside.left(keys, direct, bare)
    except AssertionError as error:
        raise AssertionError("seed %d: %s" % (seed, error)) from error


def test_many_fields_at_once(beside, key):
    record = key("lock:record")
    fields = [w for i in range(9000) for w in ("f%d" % i, str(i))]
    beside("HSET", record, *fields)
    beside("HMSET", record, *fields)
    beside("HSET", record, *fields[:-1])
    beside("HLEN", record, who=1)
    beside("HDEL", record, *fields[0:17000:2], "nothing", who=1)
    beside("HLEN", record)
    beside("TTL", record)
    beside("DEL", record, who=1)


def test_numbers_beyond_53_bits(beside, key):
    number, record = key("lock:{n}:number"), key("lock:{n}:numbers")
    for n in (2 ** 53 - 1, 1, 1, 2 ** 62, 1, -(2 ** 62) - 2 ** 53 - 5, -(2 ** 53) - 9):
        beside("INCRBY", number, n)
        beside("HINCRBY", record, "f", n)
    beside.transaction([("INCRBY", number, 2 ** 60 + 1), ("HINCRBY", record, "f", 2 ** 60 + 1)])


def test_setnx_on_data_says_no_and_changes_nothing(beside, key, direct, bare):
    name = key("lock:data")
    for write in (("SET", name, "v"), ("HSET", name, "f", "v"), ("RPUSH", name, "a"), ("INCR", name), ("SADD", name, "a")):
        beside(*write)
        beside("SETNX", name, "1", who=1)
        beside("SET", name, "1", "NX", "PX", "1000", who=1)
        beside("TTL", name)
        beside.left([name], direct, bare)
        beside("DEL", name)


def test_who_tried_in_vain_may_not_delete_data(proxy, connect, key):
    """The one thing that speaks against a session: its last attempt was lost. Others may, and so may it once it has
    written the key itself."""
    writer, loser, other = (connect(proxy) for _ in range(3))
    name = key("lock:data")
    assert writer("SET", name, "v") == "OK"
    assert loser("SETNX", name, "1") == 0
    assert loser("DEL", name) == 0
    assert loser("EXPIRE", name, 5) == 0
    assert other("EXPIRE", name, 1000) == 1
    assert loser("SET", name, "w") == "OK"
    assert loser("DEL", name) == 1


def test_a_late_release_leaves_data_alone(proxy, connect, direct, key):
    late, writer = connect(proxy), connect(proxy)
    name = key("lock:late")
    assert late("SET", name, "1", "NX", "PX", 60) == "OK"
    until(lambda: direct("EXISTS", name) == 0, 10, "the end of the lease")
    assert writer("SET", name, "v") == "OK"
    assert late("DEL", name) == 0
    assert writer("GET", name) == "v"
    assert writer("DEL", name) == 1


def test_data_over_ones_own_ended_lease(proxy, connect, direct, key):
    """A session that writes data over the key gives up the lease that it had there."""
    client = connect(proxy)
    name = key("lock:again")
    assert client("SET", name, "1", "NX", "PX", 60) == "OK"
    until(lambda: direct("EXISTS", name) == 0, 10, "the end of the lease")
    assert client("SET", name, "v") == "OK"
    assert client("DEL", name) == 1


def test_after_a_refused_write_the_next_one_is_its_own(proxy, connect, key):
    holder, writer = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "writer"))
    name = key("lock:turns")
    assert holder("SETNX", name, "1") == 1
    assert is_locked(writer("SET", name, "v"))
    assert holder("DEL", name) == 1
    assert writer("SET", name, "v") == "OK"
    assert writer("TTL", name) == -1
    assert writer("DEL", name) == 1


def test_getset_of_a_lock_that_was_tried_for(proxy, connect, direct, key):
    """A deadline that was written around the proxy: a session that has lost against it takes it over only with the value that
    it has read."""
    first, second = connect(proxy), connect(proxy)
    name = key("lock:deadline")
    direct("SET", name, "17")
    assert first("SETNX", name, "20") == 0
    assert second("SETNX", name, "21") == 0
    assert first("GET", name) == second("GET", name) == "17"
    assert first("GETSET", name, "20") == "17"
    assert second("GETSET", name, "21") == "20"
    assert direct("GET", name) == "20"
    assert first("DEL", name) == 1


def test_data_makes_no_incidents(proxy, connect, key, client):
    name = key("lock:quiet")
    a, b = connect(proxy), connect(proxy)
    for use in (("SET", name, "v"), ("HSET", name, "f", "v"), ("RPUSH", name, "a"), ("INCR", name)):
        a(*use)
        b("EXPIRE", name, 1000)
        b("DEL", name)
    a("SET", name, "v")
    b("SET", name, "w")
    b("GETSET", name, "x")
    b("GETDEL", name)
    assert name not in str(client("PROXY", "INCIDENTS", 200))


# ---- what is not ------------------------------------------------------------------------------------------------

WRITES = [
    ("SET", "K", "x"), ("SET", "K", "x", "KEEPTTL"), ("SET", "K", "x", "XX"), ("SET", "K", "x", "EX", "5"), ("SETEX", "K", "5", "x"),
    ("PSETEX", "K", "5000", "x"), ("SETNX", "K", "x"), ("GETSET", "K", "x"), ("SET", "K", "x", "GET"), ("GETDEL", "K"), ("GETEX", "K", "EX", "5"),
    ("APPEND", "K", "x"), ("SETRANGE", "K", "0", "x"), ("SETBIT", "K", "1", "1"), ("INCR", "K"), ("DECR", "K"), ("INCRBY", "K", "5"),
    ("DECRBY", "K", "5"), ("INCRBYFLOAT", "K", "1.5"), ("BITFIELD", "K", "SET", "u8", "0", "1"), ("DEL", "K"), ("UNLINK", "K"), ("EXPIRE", "K", "5"),
    ("PEXPIRE", "K", "5"), ("PERSIST", "K"), ("EXPIRE", "K", "-1"), ("HSET", "K", "f", "v"), ("HSETNX", "K", "f", "v"), ("HDEL", "K", "f"), ("HMSET", "K", "f", "v"),
    ("HINCRBY", "K", "f", "1"), ("HINCRBYFLOAT", "K", "f", "1"), ("RPUSH", "K", "x"), ("LPUSH", "K", "x"), ("LPOP", "K"), ("RPOP", "K"), ("LREM", "K", "0", "x"),
    ("LSET", "K", "0", "x"), ("LTRIM", "K", "0", "1"), ("LINSERT", "K", "BEFORE", "x", "y"), ("BLPOP", "K", "1"), ("SADD", "K", "x"), ("ZADD", "K", "1", "x"),
    ("MSET", "K", "x", "L", "y"), ("MSETNX", "K", "x", "L", "y"), ("RENAME", "M", "K"), ("RENAMENX", "M", "K"), ("RENAME", "K", "L"), ("COPY", "M", "K"),
    ("COPY", "M", "K", "REPLACE"), ("SUNIONSTORE", "K", "N"), ("SORT", "N", "STORE", "K"), ("BITOP", "NOT", "K", "M"), ("PFMERGE", "K", "P"), ("PFADD", "K", "x"),
    ("LMOVE", "P", "K", "LEFT", "LEFT"), ("RPOPLPUSH", "P", "K"), ("ZUNIONSTORE", "K", "1", "N"), ("SINTERSTORE", "K", "N"), ("XADD", "K", "*", "f", "v")]


@pytest.mark.parametrize("value", ["1", "token"])
@pytest.mark.parametrize("transaction", [False, True], ids=["alone", "in MULTI"])
def test_nothing_writes_over_somebody_elses_lease(proxy, connect, direct, key, value, transaction):
    holder, other = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    for n, write in enumerate(WRITES):
        command = [key("lock:{w}:%d" % n) if w == "K" else key("free:{w}:%d:%s" % (n, w)) if w in ("L", "M", "N", "P") else w for w in write]
        lock = key("lock:{w}:%d" % n)
        direct("SET", key("free:{w}:%d:M" % n), "m")
        direct("SADD", key("free:{w}:%d:N" % n), "1")
        assert holder("SET", lock, value, "NX", "PX", 600000) == "OK"
        reply = replies(other, [("MULTI",), command, ("EXEC",)])[-1] if transaction else other(*command)
        assert direct("GET", lock) == value, (command, reply)
        assert 500000 < direct("PTTL", lock) <= 600000, (command, reply)
        assert reply != "OK", command
        assert holder("DEL", lock) == 1, (command, reply)


def test_a_script_made_hash_lock(proxy, connect, direct, key):
    """Known without `kind hash`: its fields are its holder's."""
    holder, other = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    lock = key("lock:redisson")
    enter = "redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil"
    holder("EVAL", enter, 1, lock, 60000, "me")
    assert other("HSETNX", lock, "me", "1") == 0
    assert other("HDEL", lock, "me") == 0
    for write in (("HSET", lock, "f", "v"), ("HMSET", lock, "f", "v"), ("HINCRBY", lock, "me", 1), ("HINCRBYFLOAT", lock, "me", 1), ("SET", lock, "x")):
        assert is_locked(other(*write)), write
    assert isinstance(other("APPEND", lock, "x"), Error)
    assert direct("HGETALL", lock) == ["me", "1"]
    assert holder("HSET", lock, "note", "n") == 1
    assert holder("HINCRBY", lock, "me", 1) == 2
    assert other("DEL", lock) == 0
    assert holder("HDEL", lock, "me") == 1
    assert other("HSET", lock, "f", "v") == 1  # no client's lock any more
    assert other("DEL", lock) == 1


def test_the_holder_writes_its_own_lock(proxy, connect, direct, key):
    holder, other = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    lock = key("lock:own")
    steps = [(("APPEND", lock, "5"), 2, "15"), (("INCR", lock), 16, "16"), (("INCRBYFLOAT", lock, "1.5"), "17.5", "17.5"),
             (("SETRANGE", lock, "0", "2"), 4, "27.5"), (("SETBIT", lock, "7", "1"), 0, "37.5"), (("SET", lock, "9", "KEEPTTL"), "OK", "9"),
             (("DECRBY", lock, "20"), -11, "-11")]
    assert holder("SET", lock, "1", "NX", "PX", 600000) == "OK"
    for command, reply, value in steps:
        assert holder(*command) == reply
        assert direct("GET", lock) == value
        assert other("SETNX", lock, "x") == 0
        assert is_locked(other("APPEND", lock, "x"))
        assert 500000 < direct("PTTL", lock) <= 600000
    assert holder("SET", lock, "new") == "OK"
    assert 0 < direct("PTTL", lock) <= 30000  # the rule's lease: Redis leaves it without an expiry
    assert is_locked(other("SET", lock, "x"))
    assert holder("DEL", lock) == 1


def test_a_transaction_that_acquires_and_writes(proxy, connect, direct, key):
    holder, other = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    lock = key("lock:both")
    assert replies(holder, [("MULTI",), ("SETNX", lock, "1"), ("SET", lock, "2"), ("APPEND", lock, "3"), ("EXEC",)])[-1] == [1, "OK", 2]
    assert 0 < direct("PTTL", lock) <= 30000
    answers = replies(other, [("MULTI",), ("SETNX", lock, "1"), ("SET", lock, "2"), ("INCR", lock), ("EXEC",)])[-1]
    assert answers[0] == 0 and is_locked(answers[1]) and is_locked(answers[2])
    assert holder("DEL", lock) == 1


# ---- COPY into another database ----------------------------------------------------------------------------------

@pytest.fixture
def one_redis(farm):
    """The shared proxy in front of one Redis: a cluster has one database."""
    backend = farm.backend("standalone")
    backend.flush()
    return farm.proxy("standalone"), backend


@pytest.mark.parametrize("transaction", [False, True], ids=["alone", "in MULTI"])
def test_copy_over_a_lock_in_another_database(one_redis, connect, key, transaction):
    proxy, backend = one_redis
    holder, other = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    lock, plain = key("lock:there"), key("plain")

    def sends(*command):
        return replies(other, [("MULTI",), command, ("GET", plain), ("EXEC",)])[-1][0] if transaction else other(*command)

    holder("SELECT", 3)
    assert holder("SET", lock, "mine", "NX", "PX", 600000) == "OK"
    other("SET", plain, "stolen")
    assert is_locked(sends("COPY", plain, lock, "DB", 3, "REPLACE"))
    assert sends("COPY", plain, lock, "DB", 3) == 0
    assert sends("COPY", plain, lock) == 1  # in its own database there is none
    assert other("GET", lock) == "stolen"
    assert other("TTL", lock) == -1
    other("SELECT", 5)
    other("SET", plain, "stolen")
    assert is_locked(sends("COPY", plain, lock, "REPLACE", "DB", 3))
    assert other("GET", plain) == "stolen"  # the script's SELECT was for the script alone
    assert holder("GET", lock) == "mine"
    assert holder("COPY", plain, lock, "DB", 3) is not None
    assert holder("DEL", lock) == 1
    assert sends("COPY", plain, lock, "DB", 3, "REPLACE") == 1
    assert holder("GET", lock) == "stolen"
    assert holder("TTL", lock) == -1
    assert holder("DEL", lock) == 1


def test_the_holder_copies_over_its_own_lock(one_redis, connect, key):
    proxy, _ = one_redis
    holder, next_one = (connect(proxy, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "next"))
    lock, plain = key("lock:there"), key("plain")
    holder("SET", plain, "p")
    holder("SELECT", 4)
    assert holder("SET", lock, "mine", "NX", "PX", 600000) == "OK"
    holder("SELECT", 0)
    assert holder("COPY", plain, lock, "DB", 4, "REPLACE") == 1  # its lease is over by that, and this is data
    next_one("SELECT", 4)
    assert next_one("GET", lock) == "p"
    assert next_one("DEL", lock) == 1


def test_copy_with_a_database_that_is_none(one_redis, connect, key, oracle):
    beside = Beside(one_redis[0], oracle, connect)
    plain, lock = key("plain"), key("lock:none")
    beside("SET", plain, "p")
    for options in (("DB", "x"), ("DB", "99999"), ("DB", "-1"), ("DB",), ("DB", "REPLACE"), ("REPLACE", "DB", "2", "DB", "0"), ("DB", "2", "REPLACE")):
        beside("COPY", plain, lock, *options)


# ---- other kinds --------------------------------------------------------------------------------------------------

@pytest.fixture
def kinds(start_proxy, backend):
    return start_proxy(backend, "lock lock:list:* kind list", "lock lock:hash:* kind hash lease 40s", "lock lock:counter:* kind counter",
                       "lock lock:both:* kind string,hash", "lock lock:any:* kind any", "lock lock:audit:* mode audit", "lock lock:*")


def test_each_kind_by_itself(kinds, connect, direct, key):
    a, b = (connect(kinds, commands=[("CLIENT", "SETNAME", n)]) for n in ("a", "b"))
    acquires = {"list": ("RPUSH", "n1"), "hash": ("HSETNX", "f", "1"), "counter": ("INCR",), "string": ("SETNX", "1")}
    for rule, its in (("list", ["list"]), ("hash", ["hash"]), ("counter", ["counter"]), ("both", ["string", "hash"]), ("any", list(acquires)),
                      ("other", ["string"])):
        for kind, (name, *words) in acquires.items():
            lock = "lock:%s:%s" % (rule, key(kind))
            assert a(name, lock, *words) == 1
            if kind == "list":
                a("LRANGE", lock, 0, 0)
            if kind in its:
                assert direct("PTTL", lock) > 0 or kind == "list", lock
                assert b("DEL", lock) == 0
                assert is_locked(b("SET", lock, "x")) or kind == "list", lock
                assert a("DEL", lock) == 1
            else:
                assert direct("PTTL", lock) == -1, lock
                assert b("DEL", lock) == 1, lock


def test_strings_are_data_where_the_kind_is_another(kinds, connect, oracle, key):
    beside = Beside(kinds, oracle, connect)
    for n, (use, steps) in enumerate(sorted(USES.items())):
        if use in ("setting", "pieces", "set", "ranking"):
            for command in [*steps, ("SETNX", "K", "1"), ("SETEX", "K", "1000", "2"), ("GETSET", "K", "3"), ("MSETNX", "L", "3"), ("SET", "M", "1", "NX", "GET"),
                            ("SET", "N", "1", "EX", "1000"), ("GETSET", "P", "3"), ("TTL", "K"), ("TTL", "P"), ("DEL", "K")]:
                words = ["lock:list:{%s}%s" % (key(str(n)), w) if w in ("K", "L", "M", "N", "P") else w for w in command]
                beside(*["other" if w == "OTHER" else w for w in words])


def test_appending_is_no_acquisition_under_any_kind(kinds, connect, direct, key):
    holder, other = (connect(kinds, commands=[("CLIENT", "SETNAME", n)]) for n in ("holder", "other"))
    for rule in ("any", "counter"):
        for write in (("APPEND", "1"), ("SETRANGE", 0, "1"), ("SETBIT", 1, 1), ("INCRBYFLOAT", "1.5")):
            name = "lock:%s:%s" % (rule, key(write[0]))
            assert not isinstance(holder(write[0], name, *write[1:]), Error)
            assert direct("PTTL", name) == -1
            assert other("DEL", name) == 1
            assert holder("INCR", name) == 1
            assert is_locked(other(write[0], name, *write[1:]))
            assert direct("GET", name) == "1"
            assert holder("DEL", name) == 1


def test_audit_reports_no_data(kinds, connect, key):
    a, b = (connect(kinds, commands=[("CLIENT", "SETNAME", n)]) for n in ("a", "b"))
    name = "lock:audit:" + key("quiet")
    for use in (("SET", name, "v"), ("HSET", name, "f", "v"), ("RPUSH", name, "a"), ("INCR", name), ("APPEND", name, "x"), ("SADD", name, "a")):
        a(*use)
        b("EXPIRE", name, 1000)
        a("TTL", name)
        b("EXISTS", name)
        b("DEL", name)
    b("SET", name, "w")
    a("APPEND", name, "x")
    a("MSET", name, "w")
    assert "quiet" not in str(a("PROXY", "INCIDENTS", 100))
    held = "lock:audit:" + key("held")
    for write in (("SET", held, "x"), ("APPEND", held, "x"), ("INCR", held)):
        assert a("SET", held, "1", "NX", "PX", 60000) == "OK"
        b(*write)
        a("DEL", held)
    found = str(a("PROXY", "INCIDENTS", 100))
    for name in ("SET", "APPEND", "INCR"):
        assert "'command', '%s', 'action', 'would be refused: LOCKED" % name in found, found


def test_explain_says_what_becomes_of_it(kinds, connect):
    client = connect(kinds)

    def becomes(*command):
        reply = client("PROXY", "EXPLAIN", *command)
        return dict(zip(reply[::2], reply[1::2]))

    for command, script in ((("SET", "lock:x", "v"), "pass"), (("SET", "lock:x", "v", "EX", "5"), "replace"), (("SETNX", "lock:x", "v"), "acquire"),
                            (("INCR", "lock:x"), "pass"), (("INCR", "lock:counter:x"), "count"), (("HSET", "lock:x", "f", "v"), "pass"),
                            (("HSET", "lock:both:x", "f", "v"), "hash"), (("RPUSH", "lock:any:x", "v"), "list_push"), (("SETEX", "lock:list:x", "5", "v"), "pass"),
                            (("APPEND", "lock:any:x", "v"), "pass"), (("LPOP", "lock:hash:x"), "pass"), (("DEL", "lock:list:x"), "release")):
        assert becomes(*command)["script"] == script, command
    for command in (("RPUSH", "lock:x", "v"), ("EXISTS", "lock:x"), ("SETNX", "lock:list:x", "v"), ("LLEN", "lock:hash:x"), ("SADD", "lock:any:x", "v")):
        assert becomes(*command)["lock-command"] == "none: forwarded as it is", command
    assert "kind string,hash " in becomes("GET", "lock:both:x")["rule"]
    rules = str(client("PROXY", "RULES"))
    for text in ("kind list ", "kind hash ", "kind counter ", "kind string,hash ", "kind any ", "kind string "):
        assert text in rules
