"""redis-py's RedisCluster, pointed at the proxy: it has to find one node with all slots, and to stay with it."""

import redis
from redis.cluster import RedisCluster

from features import HOST, PORT, expect, expect_error, run, say

c = RedisCluster(host=HOST, port=PORT, socket_timeout=8)
names = ["k:%d" % i for i in range(100)]


def alone():
    expect([(n.host, n.port, n.server_type) for n in c.get_nodes()], [(HOST, PORT, "primary")])
    expect(c.keyslot("{a}b"), c.cluster_keyslot("{a}b"))
    expect(c.cluster_info()["cluster_state"], "ok")
    expect(len(c.cluster_nodes()), 1)
    assert c.cluster_shards() and c.cluster_myid(c.get_default_node())


def commands():
    for name in names:
        expect(c.set(name, name), True)
        expect(c.get(name), name.encode())
    expect(c.setnx("lock:c", 1), True)
    expect(c.delete("lock:c"), 1)
    expect(c.rpush("l", 1, 2), 2)
    expect(c.blpop("l", 1), (b"l", b"1"))
    assert c.info()["cluster_enabled"] == 1
    expect_error("WRONGTYPE", redis.ResponseError, lambda: c.lpush("k:1", 1))


def multikey():
    expect(c.mset_nonatomic({n: n for n in names}) and True, True)
    expect(c.mget_nonatomic(names), [n.encode() for n in names])
    expect(c.exists(*names), 100)
    expect(c.delete(*names[:50]), 50)
    expect_error("slot", Exception, lambda: c.rename("k:60", "k:61"))  # redis-py sees that itself


def pipeline():
    p = c.pipeline()
    for i in range(200):
        p.set("p:%d" % i, i).get("p:%d" % i)
    replies = p.execute()
    expect(replies, [x for i in range(200) for x in (True, str(i).encode())])


def scripts():
    sha = c.script_load("return redis.call('get', KEYS[1])")
    for i in range(20):
        expect(c.evalsha(sha, 1, "p:%d" % i), str(i).encode())
    expect(c.eval("return KEYS[1]", 1, "a"), b"a")
    expect(c.script_exists(sha), [True])


def scan():
    expect(sorted(c.scan_iter("p:*", count=20)), sorted(("p:%d" % i).encode() for i in range(200)))
    expect(sorted(c.keys("p:1?")), sorted(("p:1%d" % i).encode() for i in range(10)))
    assert c.dbsize() >= 200
    c.flushdb()
    expect(c.dbsize(), 0)


def pubsub():
    sub = c.pubsub()
    sub.subscribe("news")
    expect(sub.get_message(timeout=5)["type"], "subscribe")
    c.get_redis_connection(c.get_default_node()).publish("news", "extra")  # (counts the receivers of one master)
    expect(sub.get_message(timeout=5)["data"], b"extra")
    sub.close()


say("version", redis.__version__)
run([("alone", alone), ("commands", commands), ("multikey", multikey), ("pipeline", pipeline), ("scripts", scripts),
     ("scan", scan), ("pubsub", pubsub)])
