"""redis-py (python3-redis) through the proxy."""

import threading
import time

import redis

from features import (BYTES, CLUSTER, HOST, LOGIN_PASSWORD, LOGIN_PORT, PASSWORD, PORT, USER, expect, expect_error,
                      restart_proxy, run, say)

ResponseError = redis.exceptions.ResponseError


def new(**options):
    options.setdefault("port", PORT)
    options.setdefault("socket_timeout", 8)
    return redis.Redis(host=HOST, **options)


c = new()


def connect():
    named = new(client_name="worker-1", single_connection_client=True)
    expect(named.ping(), True)
    expect(named.echo("hello"), b"hello")
    expect(named.client_getname(), "worker-1")
    assert named.client_id() > 0
    assert named.info("server")["redis_version"]
    named.client_setname("worker-2")
    expect(named.client_getname(), "worker-2")
    if not CLUSTER:
        third = new(db=3)
        third.set("only", "in three")
        expect(third.get("only"), b"in three")
        expect(c.get("only"), None)
        named.select(3)
        expect(named.get("only"), b"in three")
        third.close()
    named.close()


def auth():
    expect(new(username=USER, password=PASSWORD).ping(), True)
    expect(new(port=LOGIN_PORT, password=LOGIN_PASSWORD).ping(), True)
    expect(new(port=LOGIN_PORT, username="default", password=LOGIN_PASSWORD).set("a", 1), True)
    error = redis.exceptions.AuthenticationError
    wrong = (error, ResponseError)  # which of them differs between redis-py's versions
    expect_error("WRONGPASS|invalid", wrong, new(username=USER, password="wrong").ping)
    expect_error("WRONGPASS|invalid", wrong, new(port=LOGIN_PORT, password="wrong").ping)
    expect_error("required", error, new(port=LOGIN_PORT).ping)


def strings():
    expect(c.set("s", "v"), True)
    expect(c.get("s"), b"v")
    expect(c.get("none"), None)
    expect(c.append("s", "w"), 2)
    expect(c.strlen("s"), 2)
    expect(c.getrange("s", 1, 1), b"w")
    expect(c.setnx("s", "x"), False)
    expect(c.getset("s", "y"), b"vw")
    expect(c.set("s", "z", get=True), b"y")
    expect(c.set("s", "z", nx=True), None)
    expect(c.incr("n"), 1)
    expect(c.incrby("n", 41), 42)
    expect(c.decr("n"), 41)
    expect(c.incrbyfloat("f", 1.5), 1.5)
    expect(c.setbit("b", 7, 1), 0)
    expect(c.bitcount("b"), 1)
    expect(c.getdel("s"), b"z")


def binary():
    expect(c.set(BYTES, BYTES), True)
    expect(c.get(BYTES), BYTES)
    expect(c.hset("bin", BYTES, BYTES), 1)
    expect(c.hgetall("bin"), {BYTES: BYTES})
    expect(c.set("", b""), True)
    expect(c.get(""), b"")
    expect(new(decode_responses=True).set("u", "žluťoučký \u2603"), True)
    expect(new(decode_responses=True).get("u"), "žluťoučký \u2603")


def large():
    value = BYTES * 4096
    assert len(value) > 1 << 20
    expect(c.set("large", value), True)
    assert c.get("large") == value
    expect(c.rpush("larges", value, value), 2)
    assert c.lrange("larges", 0, -1) == [value, value]


def hashes():
    expect(c.hset("h", mapping={"a": 1, "b": "two"}), 2)
    expect(c.hget("h", "a"), b"1")
    expect(c.hmget("h", "a", "none", "b"), [b"1", None, b"two"])
    expect(c.hgetall("h"), {b"a": b"1", b"b": b"two"})
    expect(c.hincrby("h", "a", 2), 3)
    expect(c.hexists("h", "a"), True)
    expect(c.hdel("h", "a", "none"), 1)
    expect((c.hlen("h"), c.hkeys("h"), c.hvals("h")), (1, [b"b"], [b"two"]))


def lists():
    expect(c.rpush("l", "a", "b", "c"), 3)
    expect(c.lpush("l", "z"), 4)
    expect(c.lrange("l", 0, -1), [b"z", b"a", b"b", b"c"])
    expect(c.lset("l", 0, "y"), True)
    expect(c.lindex("l", 0), b"y")
    expect(c.linsert("l", "before", "a", "x"), 5)
    expect(c.lrem("l", 1, "x"), 1)
    expect((c.lpop("l"), c.rpop("l"), c.llen("l")), (b"y", b"c", 2))
    expect(c.lpop("l", 2), [b"a", b"b"])
    c.rpush("{q}from", "m")
    expect(c.rpoplpush("{q}from", "{q}to"), b"m")
    expect(c.lmove("{q}to", "{q}from", "LEFT", "RIGHT"), b"m")


def sets():
    expect(c.sadd("{s}1", "a", "b", "c"), 3)
    expect(c.sadd("{s}2", "b", "c", "d"), 3)
    expect(c.smembers("{s}1"), {b"a", b"b", b"c"})
    expect(c.sinter("{s}1", "{s}2"), {b"b", b"c"})
    expect(c.sunionstore("{s}3", "{s}1", "{s}2"), 4)
    expect(c.sismember("{s}1", "a"), True)
    expect(c.smismember("{s}1", ["a", "d"]), [1, 0])
    expect(c.srem("{s}1", "a"), 1)
    assert c.spop("{s}3") in {b"a", b"b", b"c", b"d"}
    expect(c.scard("{s}3"), 3)


def zsets():
    expect(c.zadd("z", {"a": 1, "b": 2.5, "c": 3}), 3)
    expect(c.zscore("z", "b"), 2.5)
    expect(c.zrange("z", 0, -1, withscores=True), [(b"a", 1.0), (b"b", 2.5), (b"c", 3.0)])
    expect(c.zrangebyscore("z", "(1", "+inf"), [b"b", b"c"])
    expect(c.zincrby("z", 5, "a"), 6.0)
    expect(c.zrevrank("z", "a"), 0)
    expect(c.zrem("z", "a"), 1)
    expect(c.zpopmin("z"), [(b"b", 2.5)])
    expect(c.zcard("z"), 1)
    expect(c.geoadd("g", (13.361389, 38.115556, "Palermo")), 1)
    assert abs(c.geopos("g", "Palermo")[0][0] - 13.361389) < 1e-4


def streams():
    first = c.xadd("x", {"f": "v", "g": BYTES})
    c.xadd("x", {"f": "w"})
    expect(c.xlen("x"), 2)
    expect(c.xrange("x", count=1), [(first, {b"f": b"v", b"g": BYTES})])
    expect(c.xread({"x": first}), [[b"x", [(c.xrevrange("x", count=1)[0][0], {b"f": b"w"})]]])
    expect(c.xgroup_create("x", "group", 0), True)
    got = c.xreadgroup("group", "me", {"x": ">"}, count=10)
    expect(len(got[0][1]), 2)
    expect(c.xack("x", "group", first), 1)
    expect(c.xpending("x", "group")["pending"], 1)
    expect(c.xtrim("x", maxlen=0, approximate=False), 2)


def expiry():
    expect(c.setex("e", 100, "v"), True)
    assert 95 <= c.ttl("e") <= 100
    expect(c.persist("e"), True)
    expect(c.ttl("e"), -1)
    expect(c.ttl("none"), -2)
    expect(c.pexpire("e", 50000), True)
    assert 40000 < c.pttl("e") <= 50000
    expect(c.set("e", "v", px=30), True)
    until = time.monotonic() + 5
    while c.exists("e"):
        assert time.monotonic() < until, "never expired"


def multikey():
    names = ["mk:%d" % i for i in range(100)]
    expect(c.mset({name: name for name in names}), True)
    expect(c.mget(names + ["none"]), [name.encode() for name in names] + [None])
    expect(c.exists(*names, "none"), 100)
    expect(c.touch(*names[:7]), 7)
    expect(c.delete(*names[:50], "none"), 50)
    expect(c.unlink(*names), 50)
    expect(c.msetnx({"{m}1": 1, "{m}2": 2}), True)
    expect(c.rename("{m}1", "{m}3"), True)


def pipeline():
    with c.pipeline(transaction=False) as p:
        for i in range(200):
            p.set("p:%d" % i, i)
            p.incr("count")
            p.rpush("list", i)
            p.get("p:%d" % i)
            p.hset("hash", i, "v")
        replies = p.execute()
    expect(len(replies), 1000)
    for i in range(200):
        expect(replies[5 * i : 5 * i + 5], [True, i + 1, i + 1, b"%d" % i, 1])
    with c.pipeline(transaction=False) as p:
        replies = p.set("a", 1).lpush("a", 2).mget("a", "p:1", "p:2").get("a").execute(raise_on_error=False)
    assert "WRONGTYPE" in str(replies[1]) or isinstance(replies[1], ResponseError), replies
    expect([replies[0]] + replies[2:], [True, [b"1", b"1", b"2"], b"1"])


def scripts():
    c.set("sc", 20)
    expect(c.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", 1, "sc", 22), 42)
    sha = c.script_load("return {KEYS[1], ARGV[1], 3, false, {ok = 'fine'}}")
    expect(c.script_exists(sha, "0" * 40), [True, False])
    expect(c.evalsha(sha, 1, "sc", "arg"), [b"sc", b"arg", 3, None, b"fine"])
    script = c.register_script("return redis.call('GET', KEYS[1])")
    expect(script(keys=["sc"]), b"42")
    c.script_flush()
    expect(script(keys=["sc"]), b"42")  # NOSCRIPT, and loaded again
    expect_error("No matching script", redis.exceptions.NoScriptError, lambda: c.evalsha("0" * 40, 0))
    expect_error("oops", ResponseError, lambda: c.eval("return redis.error_reply('ERR oops')", 0))


def scan():
    names = {"scan:%d" % i for i in range(500)}
    c.mset({name: 1 for name in names})
    found = [name.decode() for name in c.scan_iter("scan:*", count=20)]
    expect(set(found), names)
    expect(len(c.keys("scan:*")), 500)
    c.hset("sh", mapping={i: i for i in range(300)})
    expect(len(dict(c.hscan_iter("sh"))), 300)
    c.sadd("ss", *range(300))
    expect(len(set(c.sscan_iter("ss"))), 300)
    assert c.dbsize() >= 502
    assert c.randomkey()


def errors():
    c.set("err", "text")
    expect_error("wrong kind|WRONGTYPE", ResponseError, lambda: c.lpush("err", 1))
    expect_error("not an integer", ResponseError, lambda: c.incr("err"))
    expect_error("unknown command", ResponseError, lambda: c.execute_command("NOSUCHCOMMAND", "a"))
    expect_error("wrong number of arguments", ResponseError, lambda: c.execute_command("GET"))
    expect_error("syntax error", ResponseError, lambda: c.execute_command("SET", "a", "b", "NOSUCHOPTION"))
    expect(c.get("err"), b"text")


def pool():
    shared = redis.Redis(connection_pool=redis.BlockingConnectionPool(8, host=HOST, port=PORT, socket_timeout=8))
    failures = []

    def work(name):
        try:
            for i in range(100):
                shared.incr("pool")
                shared.set("pool:%d" % name, i)
                expect(shared.get("pool:%d" % name), b"%d" % i)
        except Exception as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    expect(shared.get("pool"), b"1600")


def multi():
    with c.pipeline(transaction=True) as p:
        replies = p.set("{t}a", 1).incr("{t}a").hset("{t}h", "f", "v").get("{t}none").execute()
    expect(replies, [True, 2, 1, None])
    raw = new(single_connection_client=True)
    raw.execute_command("MULTI")
    raw.execute_command("SET", "{t}a", "never")
    raw.execute_command("DISCARD")
    expect(raw.get("{t}a"), b"2")
    raw.close()


def watch():
    c.set("w", 1)
    with c.pipeline() as p:
        p.watch("w")
        value = int(p.get("w"))
        c.set("w", 10)
        p.multi()
        p.set("w", value + 1)
        expect_error("", redis.exceptions.WatchError, p.execute)
    expect(c.get("w"), b"10")

    def add(p):
        value = int(p.get("w"))
        p.multi()
        p.set("w", value + 1)

    expect(c.transaction(add, "w"), [True])
    expect(c.get("w"), b"11")


def blocking():
    expect(c.blpop("bl", timeout=1), None)
    c.rpush("bl", "there")
    expect(c.blpop("bl", timeout=1), (b"bl", b"there"))
    later = threading.Timer(0.2, lambda: new().rpush("bl", "later"))
    later.start()
    expect(c.brpop("bl", timeout=5), (b"bl", b"later"))
    later.join()
    later = threading.Timer(0.2, lambda: new().xadd("bx", {"f": "v"}))
    later.start()
    expect(len(c.xread({"bx": "$"}, block=5000)), 1)
    later.join()


def pubsub():
    p = c.pubsub()
    p.subscribe("news", "more")
    p.psubscribe("new*")
    expect([p.get_message(timeout=3)["type"] for _ in range(3)], ["subscribe", "subscribe", "psubscribe"])
    receivers = new().publish("news", BYTES)
    assert CLUSTER or receivers == 2, receivers  # on a cluster PUBLISH counts the receivers of one node
    got = [p.get_message(timeout=3) for _ in range(2)]
    expect(sorted((m["type"], m["data"]) for m in got), [("message", BYTES), ("pmessage", BYTES)])
    p.unsubscribe()
    p.punsubscribe()
    expect([p.get_message(timeout=3)["type"] for _ in range(3)], ["unsubscribe", "unsubscribe", "punsubscribe"])
    p.close()


def reconnect():
    c.set("before", 1)
    restart_proxy()
    until = time.monotonic() + 5
    while True:
        try:
            expect(c.get("before"), b"1")
            break
        except redis.exceptions.ConnectionError:  # redis-py says so once for each connection of the pool
            assert time.monotonic() < until, "never connected again"


say("version", redis.__version__)
run([(f.__name__, f) for f in (connect, auth, strings, binary, large, hashes, lists, sets, zsets, streams, expiry,
                               multikey, pipeline, scripts, scan, errors, pool, multi, watch, blocking, pubsub,
                               reconnect)])
