"""Nodes that are there and refuse: they have become replicas, are full, are still loading, or the proxy has no descriptor
left to reach them. A refused command was not executed, each lock keeps its holder, and all works again by itself.
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
    assert server.run("REPLICAOF", HOST, free_port()) == "OK"  # a port of no other server: it keeps its data
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


def saves(server, status):
    assert server.run("BGSAVE") == "Background saving started"
    until(lambda: "rdb_bgsave_in_progress:0" in server.run("INFO", "persistence"), TIMEOUT, "the end of the save")
    assert "rdb_last_bgsave_status:" + status in server.run("INFO", "persistence")


def cannot_save(server):
    """A folder is where the dump is to be. From now on writes are refused with MISCONF."""
    assert server.run("CONFIG", "SET", "save", "100000 100000") == "OK"
    os.mkdir(os.path.join(server.folder, "dump.rdb"))
    saves(server, "err")


def can_save_again(server):
    os.rmdir(os.path.join(server.folder, "dump.rdb"))
    saves(server, "ok")


def runs(*command):
    def run(server):
        assert server.run(*[free_port() if word == "PORT" else word for word in command]) == "OK"
    return run


REFUSALS = {
    "READONLY": (runs("REPLICAOF", HOST, "PORT"), runs("REPLICAOF", "NO", "ONE")),
    "NOREPLICAS": (runs("CONFIG", "SET", "min-replicas-to-write", 3), runs("CONFIG", "SET", "min-replicas-to-write", 0)),
    "OOM": (runs("CONFIG", "SET", "maxmemory", 1), runs("CONFIG", "SET", "maxmemory", 0)),
    "MISCONF": (cannot_save, can_save_again),
}


@pytest.mark.parametrize("who", ["its owner", "another"])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_redis_that_takes_no_writes_says(start_redis, start_proxy, connect, name, who):
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
    refuse, accept = REFUSALS[name]
    for server in servers:
        refuse(server)
    for command in asked:
        ours, theirs = [client.pipeline([command])[0] for client in askers]
        refused_first = ours[:1] != b"-" or ours.startswith(b"-LOCKED")
        assert ours == theirs or (name == "OOM" and refused_first), command
        if who == "its owner" and theirs[:1] != b"-":
            assert ours == theirs or ours.startswith(b"-LOCKED"), command
    for server in servers:
        accept(server)


def kinds(client, key):
    rows = [dict(zip(row[::2], row[1::2])) for row in client("PROXY", "INCIDENTS", 1000)]
    return [row["kind"] for row in reversed(rows) if row["key"] == key]


def test_a_transaction_that_a_redis_refuses_since_it_cannot_save(start_redis, start_proxy, connect):
    """Nothing of it is done, and every client hears of an error, if not at the same place: Redis refuses the command, the
    proxy's script is queued and refused by EXEC."""
    servers = start_redis(), start_redis()
    through, direct = connect(start_proxy(servers[0], "lock lock:* lease 0")), connect(servers[1])
    for client in (through, direct):
        assert client("SETNX", "lock:held", "1") == 1
    for server in servers:
        cannot_save(server)
    for body in ([("SETNX", "lock:new", "1"), ("EXPIRE", "lock:new", 50)], [("DEL", "lock:held")], [("SET", "k", "v")],
                 [("SET", "k", "v"), ("SETNX", "lock:new", "1")], [("GET", "lock:held"), ("DEL", "lock:held")]):
        ours, theirs = [client.pipeline([("MULTI",), *body, ("EXEC",)]) for client in (through, direct)]
        assert any(reply.startswith(b"-MISCONF ") for reply in theirs) and theirs[-1].startswith(b"-EXECABORT "), body
        assert ours[-1] == theirs[-1] or b"\r\n-MISCONF " in ours[-1], (body, ours)
        assert b"script" not in b"".join(ours), ours
    for client in (through, direct):
        assert client.pipeline([("MULTI",), ("GET", "lock:held"), ("EXEC",)])[-1] == b"*1\r\n$1\r\n1\r\n"
        assert client("EXISTS", "lock:new", "k") == 0
    for server in servers:
        can_save_again(server)
    for client in (through, direct):
        assert client.pipeline([("MULTI",), ("DEL", "lock:held"), ("EXEC",)])[-1] == b"*1\r\n:1\r\n"


def test_leases_of_a_redis_that_cannot_save(start_redis, start_proxy, connect):
    """Renewals are refused like all writes, and repeated: a holder that is still there when Redis can save again stays the
    holder. A lease that has ended by then is over, and its owner's late release is recognised as late."""
    server = start_redis()
    proxy = start_proxy(server, "lock lock:long* lease 12s", "lock lock:short* lease 1s", "threads 1")
    client, other = connect(proxy, timeout=TIMEOUT), connect(proxy)
    until(lambda: client("SETNX", "lock:long", "1") == 1 and client("SETNX", "lock:short", "1") == 1, TIMEOUT, "both")
    cannot_save(server)
    refused_writes = (("SETNX", "lock:new", "1"), ("DEL", "lock:long"), ("SET", "lock:new", "1", "NX", "PX", 9000),
                      ("EXPIRE", "lock:long", 100), ("SET", "k", "v"))
    for command in refused_writes:
        assert refused(client(*command), "MISCONF "), command
        assert refused(other(*command), "MISCONF "), command
    until(lambda: server.run("EXISTS", "lock:short") == 0, TIMEOUT, "the end of the lease")
    # The proxy's clock or a last renewal, whichever was first.
    until(lambda: {"overrun", "renewal_lost"} & set(kinds(other, "lock:short")), TIMEOUT, "the incident")
    assert "a lease could not be renewed: MISCONF" in proxy.log()
    until(lambda: server.run("PTTL", "lock:long") < 7900, TIMEOUT, "a third of the other lease without a renewal")
    can_save_again(server)
    until(lambda: server.run("PTTL", "lock:long") > 9000, TIMEOUT, "its renewal")
    assert other("SETNX", "lock:short", "2") == 1
    assert client("DEL", "lock:short") == 0
    assert "late_release" in kinds(other, "lock:short")
    assert other("DEL", "lock:short") == 1
    assert client("DEL", "lock:long") == 1


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
    lost = until(lambda: used - descriptors(proxy), TIMEOUT, "the loss of the connection")
    free = min(lost | set(range(len(used) + 1)) - used)  # also if an attempt to connect has it for a moment
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (free, 1000))
    server.start()
    for command in (("SET", "k", "v"), ("SETNX", "lock:new", "1"), ("DEL", "lock:held")):
        assert refused(client(*command), "can't be reached"), command
    assert server.run("DBSIZE") == 0
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (free + 10, 1000))
    works(client, "SET", "k", "v")
    assert client("SETNX", "lock:new", "1") == 1
    assert client("DEL", "lock:new") == 1
