"""Ordinary commands through the proxy: the same bytes come back as from a single Redis.

The oracle is a separate Redis that gets the same requests. If Redis defines no order for a reply (a set's members), the
elements are compared sorted.
"""

import threading
import time

import pytest

import workload
from migration import Migration
from resp import Client, Error, encode, parse
from servers import slot_of, until

# Commands that give the same reply on any empty Redis, in this order. "~" before a command: the order of the
# reply's elements is not defined.
EVERYDAY = """
SET s:1 hello
GET s:1
GET s:none
SET s:1 world GET
SET s:1 x XX KEEPTTL
SET s:1 y NX
SET s:2 v EX 100
TTL s:2
EXPIRE s:2 200 GT
PERSIST s:2
TTL s:2
TTL s:none
SETNX s:3 one
SETNX s:3 two
SETEX s:4 100 v
PSETEX s:5 100000 v
SETEX s:4 0 v
GETSET s:3 three
GETDEL s:3
GETEX s:4 PERSIST
APPEND s:1 abc
STRLEN s:1
SETRANGE s:1 2 ZZ
GETRANGE s:1 0 -1
SUBSTR s:1 0 1
INCR n:1
INCRBY n:1 41
DECR n:1
DECRBY n:1 100
INCRBYFLOAT n:1 0.5
INCR s:1
MSET m:1 a m:2 b m:3 c
MGET m:1 m:2 m:3 m:4
EXISTS m:1 m:1 m:2 m:4
TOUCH m:1 m:4
DEL m:1 m:4
UNLINK m:2 m:3 m:4
MSETNX {t}1 a {t}2 b
MSETNX {t}1 a {t}3 b
TYPE s:1
TYPE none
RENAME {t}1 {t}9
RENAMENX {t}2 {t}9
COPY {t}9 {t}8
OBJECT ENCODING n:1
SETBIT b:1 7 1
GETBIT b:1 7
BITCOUNT b:1
BITPOS b:1 1
BITFIELD b:1 SET u8 0 255 GET u4 0
BITOP AND {b}d {b}1 {b}2
LPUSH l:1 a b c
RPUSH l:1 d
LPUSHX l:none a
LRANGE l:1 0 -1
LLEN l:1
LINDEX l:1 0
LINDEX l:1 99
LSET l:1 0 z
LSET l:1 99 z
LINSERT l:1 BEFORE a q
LREM l:1 0 a
LPOS l:1 d
LTRIM l:1 0 2
LPOP l:1
RPOP l:1 2
LPOP l:none 2
LMOVE {l}1 {l}2 LEFT RIGHT
RPOPLPUSH {l}1 {l}2
GET l:1
HSET h:1 f 1 g 2
HSET h:1 f 2
HSETNX h:1 f 3
HGET h:1 f
HGET h:1 none
HMGET h:1 f g none
HGETALL h:1
HKEYS h:1
HVALS h:1
HLEN h:1
HEXISTS h:1 f
HINCRBY h:1 f 5
HINCRBYFLOAT h:1 f 0.5
HSTRLEN h:1 f
HDEL h:1 f none
HSCAN h:1 0
SADD i:1 1 2 3
SMEMBERS i:1
SISMEMBER i:1 2
SMISMEMBER i:1 2 9
SCARD i:1
SREM i:1 1 9
SADD {s}1 1 2 3
SADD {s}2 2 3 4
SINTER {s}1 {s}2
SUNION {s}1 {s}2
SDIFF {s}1 {s}2
SINTERSTORE {s}3 {s}1 {s}2
SINTERCARD 2 {s}1 {s}2
SMOVE {s}1 {s}2 1
~SADD w:1 alpha beta gamma
~SMEMBERS w:1
SSCAN i:1 0
ZADD z:1 1 a 2 b 3.5 c
ZADD z:1 XX CH 9 a
ZADD z:1 INCR 1 a
ZRANGE z:1 0 -1
ZRANGE z:1 0 -1 WITHSCORES
ZRANGE z:1 (2 +inf BYSCORE LIMIT 0 1
ZREVRANGE z:1 0 -1 WITHSCORES
ZRANGEBYSCORE z:1 -inf +inf WITHSCORES
ZRANGEBYLEX z:1 - +
ZSCORE z:1 a
ZSCORE z:1 none
ZMSCORE z:1 a none
ZINCRBY z:1 2 b
ZRANK z:1 b
ZRANK z:1 b WITHSCORE
ZREVRANK z:1 b WITHSCORE
ZRANK z:1 b a c
ZRANK z:1
ZREVRANK z:1 none
ZCARD z:1
ZCOUNT z:1 2 5
ZLEXCOUNT z:1 - +
ZPOPMIN z:1
ZPOPMAX z:1 2
ZADD {z}1 1 a 2 b
ZADD {z}2 1 b 2 c
ZUNION 2 {z}1 {z}2 WITHSCORES
ZINTERSTORE {z}3 2 {z}1 {z}2 WEIGHTS 2 3
ZRANDMEMBER z:none
ZREM z:1 a
PFADD p:1 a b c
PFCOUNT p:1
GEOADD g:1 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
GEODIST g:1 Palermo Catania km
GEOPOS g:1 Palermo none
GEOHASH g:1 Palermo
GEOSEARCH g:1 FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHCOORD WITHDIST
XADD x:1 1-1 f v
XADD x:1 1-2 f v g w
XADD x:1 1-1 f v
XLEN x:1
XRANGE x:1 - +
XREAD COUNT 1 STREAMS x:1 0
XGROUP CREATE x:1 grp 0
XREADGROUP GROUP grp me COUNT 1 STREAMS x:1 >
XACK x:1 grp 1-1
XPENDING x:1 grp
XINFO GROUPS x:1
XDEL x:1 1-1
XTRIM x:1 MAXLEN 0
SORT l:1 ALPHA DESC
SORT i:1 LIMIT 0 2
EVAL return\\s{KEYS[1],ARGV[1],1.5,false,{ok='fine'}} 1 e:1 arg
EVAL return\\sredis.call('set',KEYS[1],ARGV[1]) 1 e:1 arg
EVAL return\\sredis.error_reply('MY\\sown') 0
EVAL return\\sredis.call('get') 1 e:1
EVAL syntax( 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
DUMP none
RESTORE r:1 0 nonsense
OBJECT REFCOUNT none
ECHO hello
PING
PING text
KEYS nothing:*
"""

ERRORS = """
GET
GET a b
SET a
SET a b c
SET a b EX
SET a b EX abc
SET a b EX -1
SET a b NX XX
EXPIRE a abc
INCRBY a abc
LPUSH a
MGET
MSET a
MSET a b c
DEL
EXISTS
ZADD z abc m
ZADD z 1
HSET h f
nosuchcommand
nosuchcommand with some arguments
NOSUCH a\\r\\nb
OBJECT nosuch a
OBJECT
SETRANGE a -1 x
SETBIT a 0 2
GETRANGE a 0
LINSERT l MIDDLE a b
XADD x 0-0 a b
EVAL
EVAL return\\s1 abc
EVAL return\\s1 -1
EVAL return\\s1 2 a
EXPIRETIME a b
CLUSTER
ECHO
PING a b
"""


def commands(text):
    """The lines as (command, ordered)."""
    for line in text.strip().splitlines():
        ordered = not line.startswith("~")
        words = [w.replace("\\s", " ").replace("\\r", "\r").replace("\\n", "\n")
                 for w in line.lstrip("~").split(" ")]
        yield words, ordered


def same(ours, theirs, ordered, command):
    if not ordered:
        a, b = parse(ours)[0], parse(theirs)[0]
        if isinstance(a, list):
            assert ours[:1] == theirs[:1] and sorted(a) == sorted(b), command
            return
    assert ours == theirs, command


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("text", [EVERYDAY, ERRORS], ids=["everyday", "errors"])
def test_one_by_one(client, connect, oracle, protocol, text):
    single = connect(oracle)
    if protocol == 3:
        for c in (client, single):
            assert not isinstance(c("HELLO", "3"), Error)
    for command, ordered in commands(text):
        same(client.raw(*command), single.raw(*command), ordered, command)


@pytest.mark.parametrize("protocol", [2, 3])
def test_in_one_pipeline(client, connect, oracle, protocol):
    single = connect(oracle)
    if protocol == 3:
        for c in (client, single):
            assert not isinstance(c("HELLO", "3"), Error)
    every = list(commands(EVERYDAY + ERRORS.lstrip()))
    ours = client.pipeline([c for c, _ in every])
    theirs = single.pipeline([c for c, _ in every])
    for (command, ordered), a, b in zip(every, ours, theirs):
        same(a, b, ordered, command)


def test_trap_27_protocol_of_one_client_is_not_anothers(proxy, connect, oracle):
    """RESP3's ZRANGE WITHSCORES, HGETALL and nulls have another structure: each client gets its own."""
    two, three, single = connect(proxy), connect(proxy), connect(oracle)
    three("HELLO", "3")
    for c in (two, single):
        c("ZADD", "z", 1, "a", 2, "b")
        c("HSET", "h", "f", "v")
    asked = [("ZRANGE", "z", 0, -1, "WITHSCORES"), ("HGETALL", "h"), ("GET", "none"), ("ZSCORE", "z", "a")]
    old = [single.raw(*c) for c in asked]
    single("HELLO", "3")
    new = [single.raw(*c) for c in asked]
    assert old != new
    for _ in range(3):
        for i, command in enumerate(asked):
            two.send(encode(*command))
            three.send(encode(*command))
            assert two.read_raw() == old[i]
            assert three.read_raw() == new[i]


def test_inline(client, connect, oracle):
    single = connect(oracle)
    lines = [b"SET in:1 value\r\n", b"get in:1\r\n", b"GET in:1\n", b'SET in:2 "two words\\x41\\n"\r\n', b"GET in:2\r\n",
             b"SET in:3 'it\\'s'\r\n", b"GET in:3\r\n", b"  GET   in:3  \r\n", b"\r\n\r\nPING\r\n", b"NOSUCH a b\r\n",
             b"GET\r\n", b'SET in:4 ""\r\n', b"GET in:4\r\n", b"\tGET\tin:1\t\r\n"]
    for line in lines:
        single.send(line)
        client.send(line)
        assert client.read_raw() == single.read_raw(), line
    client.send(b"".join(lines))
    single.send(b"".join(lines))
    for line in lines:
        assert client.read_raw() == single.read_raw(), line


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 1 << 20, 8 << 20])
def test_values_of_all_sizes(client, size):
    value = bytes(i * 7 & 255 for i in range(min(size, 4096)))
    value = (value * (size // max(len(value), 1) + 1))[:size]
    for name in ("value", "lock:value"):
        assert client("SET", name, value) == "OK"
        assert client.raw("GET", name) == b"$%d\r\n%s\r\n" % (size, value)
        assert client("STRLEN", name) == size
        assert client("DEL", name) == 1


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 65535, 65536, 65537, 200000])
def test_trap_19_keys_of_all_sizes(client, size):
    name = "k" * size
    assert client("SET", name, "v") == "OK"
    assert client("GET", name) == "v"
    assert client("MSET", name, "w", "other", "x") == "OK"
    assert client("MGET", "other", name) == ["x", "w"]
    assert client("SET", name, "") == "OK"
    assert client("APPEND", name, "") == 0
    assert client.raw("GET", name) == b"$0\r\n\r\n"
    assert client("DEL", name, "other") == 2


def test_many_arguments(client, oracle, connect):
    single = connect(oracle)
    names = ["many:%d" % (i % 5000) for i in range(200000)]
    for c in (client, single):
        c("SET", "many:7", "v")
    assert client.raw("EXISTS", *names) == single.raw("EXISTS", *names) == b":40\r\n"
    some = names[:20000]
    assert client.raw("MGET", *some) == single.raw("MGET", *some)
    pairs = [x for name in some for x in (name, "v" + name)]
    assert client.raw("MSET", *pairs) == single.raw("MSET", *pairs)
    assert client.raw("MGET", *some) == single.raw("MGET", *some)
    assert client.raw("DEL", *names) == single.raw("DEL", *names) == b":5000\r\n"


def test_whole_keyspace(client, backend):
    """Commands without a key speak for all masters."""

    def scan(*options):
        cursor, seen = "0", []
        for _ in range(2000):
            cursor, page = client("SCAN", cursor, *options)
            seen += page
            if cursor == "0":
                return sorted(set(seen))
        raise AssertionError("SCAN does not end")

    names = sorted("key:%d" % i for i in range(300))
    assert client("MSET", *[x for name in names for x in (name, "v")]) == "OK"
    assert client("DBSIZE") == 300
    assert sorted(client("KEYS", "*")) == names
    assert sorted(client("KEYS", "key:1?")) == ["key:%d" % i for i in range(10, 20)]
    assert client("RANDOMKEY") in names
    for options in ([], ["COUNT", "7"], ["COUNT", "1000"], ["TYPE", "string"], ["MATCH", "key:*"]):
        assert scan(*options) == names, options
    assert scan("TYPE", "list") == []
    assert client("FLUSHALL") == "OK"
    assert backend.keys() == []
    assert client("DBSIZE") == 0
    assert client("RANDOMKEY") is None
    assert scan() == []


def test_scripts_reach_every_master(client):
    """SCRIPT LOAD through the proxy, EVALSHA on any slot."""
    sha = client("SCRIPT", "LOAD", "return redis.call('get', KEYS[1])")
    assert len(sha) == 40
    for i in range(20):
        client("SET", "script:%d" % i, i)
        assert client("EVALSHA", sha, 1, "script:%d" % i) == str(i)
    assert client("SCRIPT", "EXISTS", sha, "f" * 40) == [1, 0]


RANDOM_RULE = "lock %s* owner connection" % workload.LOCK


def test_random_pipeline(client, connect, oracle, rng):
    """10,000 mixed commands at once: every reply identical to a single Redis's, in order."""
    single = connect(oracle)
    script = workload.mixed(rng, 10000)
    compare(script, client.pipeline(script), single.pipeline(script))
    script = workload.of_one_worker(workload.mixed(rng, 10000))
    compare(script, client.pipeline(script), single.pipeline(script))


def test_random_pipelines_of_many_clients(proxy, connect, oracle, rng):
    """Clients with keys of their own on shared upstream connections don't get each other's replies."""
    failures = []

    def run(number, seed_rng):
        try:
            script = workload.mixed(seed_rng, 2500, prefix="c%d:" % number)
            with Client(proxy.address, timeout=60) as ours, Client(oracle.address, timeout=60) as theirs:
                for at in range(0, len(script), 500):
                    part = script[at : at + 500]
                    compare(part, ours.pipeline(part), theirs.pipeline(part))
        except Exception as error:  # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n, type(rng)(rng.random()))) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    if failures:
        raise failures[0]


def compare(script, ours, theirs):
    for number, (command, a, b) in enumerate(zip(script, ours, theirs)):
        assert a == b, "command %d of %d: %r\nthrough the proxy: %r\nfrom Redis:        %r" % (
            number, len(script), command, a[:300], b[:300])


def redirects(cluster):
    """How many MOVED and ASK the nodes have answered."""
    counts = {"MOVED": 0, "ASK": 0}
    for node in cluster.nodes:
        for line in node.run("INFO", "errorstats").splitlines():
            for kind in counts:
                if line.startswith("errorstat_%s:count=" % kind):
                    counts[kind] += int(line.split("=")[1])
    return counts


def test_random_pipeline_during_migration(start_cluster, start_proxy, connect, oracle, rng):
    """The same while slots move with their keys, to and fro: MOVED and ASK are followed in order."""
    cluster = start_cluster()
    proxy = start_proxy(cluster, RANDOM_RULE)
    names = workload.names("")
    rng.shuffle(names)
    locks = [name for name in names if name.startswith(workload.LOCK)]  # with their guard records
    migration = Migration(cluster, sorted({slot_of(name) for name in names[:40] + locks[:10]}))
    client, single = connect(proxy, timeout=60), connect(oracle, timeout=60)
    client("SET", "warm", "up")
    migration.start()
    try:
        deadline = time.monotonic() + 100
        rounds = 0
        while rounds < 3 or min(redirects(cluster).values()) < 20:
            assert time.monotonic() < deadline, "no redirects happened: %r" % redirects(cluster)
            script = workload.mixed(rng, 4000, many_keys=True)
            compare(script, client.pipeline(script), single.pipeline(script))
            rounds += 1
    finally:
        migration.finish()
    print("%d rounds, %d moves, %r" % (rounds, migration.moves, redirects(cluster)))
    until(cluster.agreed, 30, "the cluster's agreement after the migration")
    script = workload.mixed(rng, 2000)
    compare(script, client.pipeline(script), single.pipeline(script))


def test_several_threads(backend, start_proxy, oracle, rng):
    """Each thread has its own listener and upstream connections; clients can't tell."""
    proxy = start_proxy(backend, "threads 4", RANDOM_RULE)
    test_random_pipelines_of_many_clients(proxy, None, oracle, rng)
