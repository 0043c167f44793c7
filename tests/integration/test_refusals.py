"""Nodes that are there and refuse: they have become replicas, are full, are still loading, or the proxy has no descriptor
left to reach them. What was refused was not done, whoever holds a lock still holds it, and all works again by itself.
"""

import os
import resource

import pytest

from resp import Error
from servers import HOST, free_port, until

TIMEOUT = 30


def works(client, *command, reply="OK"):
    until(lambda: client(*command) == reply, TIMEOUT, "service")


def refused(reply, *words):
    return isinstance(reply, Error) and "unknown" not in reply and any(word in reply for word in words)


def descriptors(proxy):
    return {int(name) for name in os.listdir("/proc/%d/fd" % proxy.pid)}


def test_a_redis_that_has_become_a_replica(start_redis, start_proxy, connect):
    """READONLY, as Redis says it. The holder's refused release is not spent."""
    server = start_redis()
    client = connect(start_proxy(server))
    assert client("SET", "k", "v") == "OK"
    assert client("SETNX", "lock:held", "1") == 1
    assert server.run("REPLICAOF", HOST, free_port()) == "OK"  # nobody's port: it keeps what it has
    assert client("GET", "k") == "v"
    for command in (("SET", "k", "w"), ("SETNX", "lock:new", "1"), ("DEL", "lock:held"), ("EXPIRE", "lock:held", 100),
                    ("DEL", "k", "lock:held"), ("SET", "lock:new", "1", "NX", "PX", 9000)):
        assert refused(client(*command), "READONLY"), command
    assert b"-READONLY " in client.pipeline([("MULTI",), ("SETNX", "lock:new", "1"), ("EXEC",)])[-1]
    assert server.run("REPLICAOF", "NO", "ONE") == "OK"
    assert client("EXISTS", "lock:new") == 0
    assert client("DEL", "lock:held") == 1
    assert client("SETNX", "lock:new", "1") == 1


MADE = {
    "none": [],
    "string": [("SETNX", "K", "5")],
    "list": [("RPUSH", "K", "a"), ("LRANGE", "K", 0, 0)],
    "hash": [("HSET", "K", "f", "v")],
}
WRITES = ["SETNX K v", "SET K v", "SET K v XX", "SET K v NX", "SET K v NX PX 9000", "SET K v NX EXAT 99999999999",
          "GETSET K v", "SETEX K 9 v", "INCR K", "DECR K", "APPEND K v", "DEL K", "UNLINK K", "GETDEL K", "EXPIRE K 50",
          "PERSIST K", "GETEX K", "GETEX K EX 5", "RPUSH K n", "LPUSH K n", "LREM K 1 a", "LSET K 0 b", "LPOP K",
          "LTRIM K 0 0", "HSETNX K g v", "HSET K f w", "HINCRBY K n 1", "HDEL K f", "MSET K v", "MSETNX K v", "RENAME K K2"]
READS = ["GET K", "EXISTS K", "TYPE K", "TTL K", "STRLEN K", "LRANGE K 0 0", "LRANGE K 0 -1", "LINDEX K 0", "LLEN K",
         "LPOS K a", "HGET K f"]


@pytest.mark.parametrize("who", ["its owner", "another"])
@pytest.mark.parametrize("name, on, off", [
    ("READONLY", ("REPLICAOF", HOST, "PORT"), ("REPLICAOF", "NO", "ONE")),
    ("NOREPLICAS", ("CONFIG", "SET", "min-replicas-to-write", 3), ("CONFIG", "SET", "min-replicas-to-write", 0)),
    ("OOM", ("CONFIG", "SET", "maxmemory", 1), ("CONFIG", "SET", "maxmemory", 0)),
], ids=["READONLY", "NOREPLICAS", "OOM"])
def test_what_a_redis_that_takes_no_writes_says(start_redis, start_proxy, connect, name, on, off, who):
    """Commands on lock keys are scripts there, and are answered as in Redis. For others a refusal comes first where Redis
    would do the command."""
    servers = start_redis(), start_redis()
    proxy = start_proxy(servers[0], "lock lock:* lease 0")
    owners = connect(proxy), connect(servers[1])
    asked = []
    for kind, makes in MADE.items():
        for command in WRITES + READS:
            key = "lock:%d" % len(asked)
            fill = {"K": key, "K2": "{%s}:2" % key}
            asked.append(tuple(fill.get(word, word) for word in command.split()))
            for client in owners:
                for make in makes:
                    client(*[fill.get(word, word) for word in make])
    askers = owners if who == "its owner" else (connect(proxy), owners[1])
    port = free_port()
    for server in servers:
        assert server.run(*[port if word == "PORT" else word for word in on]) == "OK"
    for command in asked:
        ours, theirs = [client.pipeline([command])[0] for client in askers]
        refused_first = ours[:1] != b"-" or ours.startswith(b"-LOCKED")
        assert ours == theirs or (name == "OOM" and refused_first), command
        if who == "its owner" and theirs[:1] != b"-":
            assert ours == theirs or ours.startswith(b"-LOCKED"), command
    for server in servers:
        assert server.run(*off) == "OK"


def test_locks_of_a_redis_that_is_full(start_redis, start_proxy, connect):
    """maxclients, and the proxy's connection has gone: it gets no other one."""
    server = start_redis()
    client = connect(start_proxy(server), timeout=TIMEOUT)
    assert client("SETNX", "lock:held", "1") == 1
    with server.client() as control:
        control("CONFIG", "SET", "maxclients", 1)
        control("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for command in (("SET", "k", "v"), ("SETNX", "lock:new", "1"), ("DEL", "lock:held"), ("MULTI",)):
            assert refused(client(*command), "max number of clients reached", "can't be reached"), command
        assert control("EXISTS", "k", "lock:new", "lock:held") == 1
        control("CONFIG", "SET", "maxclients", 100)
        works(client, "SETNX", "lock:new", "1", reply=1)
    assert client("DEL", "lock:held") == 1
    assert client("DEL", "lock:new") == 1


def test_locks_of_a_redis_that_is_loading(start_redis, start_proxy, connect):
    """They wait for a while, and hear so if that was too short."""
    server = start_redis("--save", "")
    client = connect(start_proxy(server), timeout=TIMEOUT)
    with server.client() as c:
        c.pipeline([("SET", "k%d" % n, "v" * 100) for n in range(3000)])
    assert client("SET", "lock:held", "1", "NX", "PX", 100000) == "OK"
    server.run("SAVE")
    server.kill()
    starting = server.start_slowly()
    replies = []
    while starting.is_alive():
        replies.append(client("SETNX", "lock:held", "2"))
    starting.join()
    assert all(r == 0 or refused(r, "LOADING ", "can't be reached") or r.startswith("UPSTREAM ") for r in replies), replies
    assert "errorstat_LOADING" in server.run("INFO", "errorstats")
    works(client, "GET", "lock:held", reply="1")
    assert client("DEL", "lock:held") == 1, "the lease has lived through the restart, and is its holder's"


def test_no_descriptor_for_the_node(start_redis, start_proxy, connect):
    """The node's connection is lost while all descriptors are in use."""
    server = start_redis()
    proxy = start_proxy(server, "threads 1")
    client, other = connect(proxy, timeout=TIMEOUT), connect(proxy)
    assert other("PING") == "PONG"
    assert client("SETNX", "lock:held", "1") == 1
    used = descriptors(proxy)
    server.kill()
    until(lambda: len(descriptors(proxy)) < len(used), TIMEOUT, "the loss of the connection")
    free = min(set(range(len(used) + 1)) - descriptors(proxy))
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (free, 1000))
    server.start()
    for command in (("SET", "k", "v"), ("SETNX", "lock:new", "1"), ("DEL", "lock:held")):
        assert refused(client(*command), "can't be reached"), command
    assert server.run("DBSIZE") == 0
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (free + 10, 1000))
    works(client, "SET", "k", "v")
    assert client("SETNX", "lock:new", "1") == 1
    assert client("DEL", "lock:new") == 1
