"""Fences (S7): a session that has lost the lock of its data is recorded (audit), or kept from writing (enforce)."""

import collections
import hashlib
import itertools
import os
import random
import re
import subprocess
import threading
import time
import urllib.request

import pytest

import servers
from helpers import module_proxy
from resp import Client, Error, encode
from servers import until
from test_audit import incidents
from test_reload import reloaded

NUMBERS = itertools.count(1)

LOCKS = ["lock lock:*"]
AUDIT = [
    *LOCKS,
    "fence audit:off:* by lock:audit:* mode off",
    "fence audit:all:* by lock:audit:all mode audit",
    "fence audit:* by lock:audit:* mode audit",
    "fence sole:* by lock:sole:* unlocked refuse",
    "fence stock:* by lock:stock:*",
    "fence far:{*}* by lock:far:*",
    "fence alone:{*}* by lock:alone:* unlocked refuse",
]

fenced = module_proxy(*AUDIT)


@pytest.fixture(params=[2, 3])
def protocol(request):
    return request.param


@pytest.fixture
def worker(fenced, connect, protocol):
    """worker(name): a connection of a client of that name."""

    def worker(name, **options):
        return connect(fenced, commands=[("HELLO", str(protocol)), ("CLIENT", "SETNAME", name)], **options)

    return worker


def fresh():
    """A part of a name, in one slot on a cluster."""
    return "{%d}" % next(NUMBERS)


# Fences with data and lock in one slot of a cluster, and in two; and with `unlocked refuse`.
places = pytest.mark.parametrize("kind", ["stock", "far"])
sole_places = pytest.mark.parametrize("kind", ["sole", "alone"])


def named(kind, n):
    """The names of data and its lock; n is fresh()."""
    return "%s:%s" % (kind, n), "lock:%s:%s" % (kind, n.strip("{}") if kind in ("far", "alone") else n)


def lose(loser, lock, winner):
    """`loser` acquires the lock, and its lease ends; then `winner` has it."""
    assert loser("SET", lock, "l", "NX", "PX", "60") == "OK"
    until(lambda: winner("SET", lock, "w", "NX", "PX", "60000") == "OK", 10, "the lease's end")


def rows(client):
    """The fences of PROXY RULES, by their patterns."""
    all_rows = [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for row in client("PROXY", "RULES")]
    return {row["fence"].split()[0]: row for row in all_rows if "fence" in row}


def late_writes(client, key):
    return [row for row in incidents(client, key) if row["kind"] == "late_write"]


# ---- audit ------------------------------------------------------------------------------------------------


def test_audit_records_who_has_lost_the_lock(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    key, lock = "audit:" + n, "lock:audit:" + n
    before = int(rows(watch)["audit:*"]["late"])
    assert b("SET", key, "outside") == "OK"
    assert a("SET", lock, "a", "NX", "PX", "60000") == "OK"
    assert a("SET", key, "a") == "OK"
    assert a("DEL", lock) == 1
    assert a("SET", key, "after") == "OK"
    assert late_writes(watch, key) == []
    lose(a, lock, b)
    assert b("SET", key, "b") == "OK"
    assert a("GET", key) == "b"
    assert late_writes(watch, key) == []
    assert a("SET", key, "late") == "OK"
    assert b("GET", key) == "late"
    [late] = late_writes(watch, key)
    assert late["command"] == "SET" and late["client"].endswith(" a") and "name=b" in late["holder"]
    assert late["action"].startswith("passed on under audit: its lease on %s (fence " % lock)
    assert int(rows(watch)["audit:*"]["late"]) == before + 1


def test_audit_of_a_lease_that_nobody_has_taken(worker, connect, fenced):
    """Its end alone is no harm."""
    a, watch = worker("a"), connect(fenced)
    n = fresh()
    assert a("SET", "lock:audit:" + n, "a", "NX", "PX", "30") == "OK"
    until(lambda: watch("EXISTS", "lock:audit:" + n) == 0, 10, "the lease's end")
    assert a("SET", "audit:" + n, "late") == "OK"
    assert late_writes(watch, "audit:" + n) == []


def test_audit_sees_every_way(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    key, other, lock = "audit:" + n, "plain:" + n, "lock:audit:" + n
    lose(a, lock, b)
    written = 0
    for command, counts in [
        (("GET", key), 0),
        (("EXISTS", key), 0),
        (("GETEX", key), 0),
        (("SORT", key), 0),
        (("SET", key, "1"), 1),
        (("GETEX", key, "PERSIST"), 1),
        (("MSET", key, "1", other, "2"), 1),
        (("COPY", key, other), 0),
        (("COPY", other, key, "REPLACE"), 1),
        (("RENAME", key, other), 1),
        (("DEL", other, key), 1),
        (("DEL", key), 1),
        (("SADD", key, "1"), 1),
        (("SUNIONSTORE", other, key), 0),
        (("SUNIONSTORE", key, other), 1),
        (("SORT", other, "STORE", key), 1),
        (("BLPOP", key, "0.01"), 1),
        (("EVAL", "return redis.call('DEL', KEYS[1])", "1", key), 1),
        (("EXPIRE", key, "100"), 1),
    ]:
        reply = a(*command)
        assert not isinstance(reply, Error) or command[0] == "SORT" or command[0] == "BLPOP", (command, reply)
        written += counts
        assert len(late_writes(watch, key)) == written, command
    assert a("MULTI") == "OK"
    assert a("HSET", key, "f", "1") == "QUEUED"
    assert a("EXEC") == [1]
    assert len(late_writes(watch, key)) == written + 1


def test_audit_one_lock_for_all(worker, connect, fenced):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    n = fresh()
    lose(a, "lock:audit:all", b)
    assert a("INCR", "audit:all:" + n) == 1
    assert a("INCR", "audit:off:" + n) == 1
    assert len(late_writes(watch, "audit:all:" + n)) == 1
    assert len(late_writes(watch, "audit:off:" + n)) == 0
    assert b("DEL", "lock:audit:all") == 1


def test_multiplexed_connections_of_one_client(fenced, connect):
    """All of a process speaks over one: what another one has acquired is another process's, though it looks like the same
    client. One that has acquired nothing writes with what any of its client's holds."""
    name = [("CLIENT", "SETNAME", "app"), ("CLIENT", "SETINFO", "LIB-NAME", "ioredis")]
    a, b, data = (connect(fenced, commands=name) for _ in range(3))
    watch = connect(fenced)
    n = fresh()
    key, lock = "audit:" + n, "lock:audit:" + n
    lose(a, lock, b)
    assert data("SET", key, "1") == b("SET", key, "1") == "OK"
    assert late_writes(watch, key) == []
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(watch, key)) == 1
    other = connect(fenced, commands=[("CLIENT", "SETNAME", "other")])
    assert b("PEXPIRE", lock, "30") == 1
    until(lambda: other("SET", lock, "o", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    assert data("SET", key, "1") == b("SET", key, "1") == "OK"
    assert len(late_writes(watch, key)) == 3


# ---- enforced ---------------------------------------------------------------------------------------------


def fence_of(client, lock):
    return client("PROXY", "TOKEN", lock)


def lost(loser, winner, kind="stock"):
    """Names of data and its lock, which `loser` has lost to `winner`; and the fences of both."""
    key, lock = named(kind, fresh())
    granted, old = loser.at_once(("SET", lock, "l", "NX", "PX", "60"), ("PROXY", "TOKEN", lock))
    assert granted == "OK"
    until(lambda: winner("SET", lock, "w", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    return key, lock, old, fence_of(winner, lock)


@places
def test_who_has_lost_the_lock_does_not_write(worker, connect, fenced, kind):
    a, b, c, watch = worker("a"), worker("b"), worker("c"), connect(fenced)
    before = rows(watch)["stock:*" if kind == "stock" else "far:{*}*"]
    key, lock, old, new = lost(a, b, kind)
    assert b("SET", key, "b") == "OK"
    reply = a("SET", key, "a")
    assert isinstance(reply, Error)
    assert reply == "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    assert a("GET", key) == "b"
    assert a("APPEND", key, "x").startswith("FENCED ")
    assert a("DEL", key).startswith("FENCED ")
    assert b("APPEND", key, "b") == 2
    assert c("APPEND", key, "c") == 3  # has never held it
    assert b("DEL", lock) == 1
    assert a("SET", key, "a").startswith("FENCED ")  # it has no holder now, but had one
    assert a("SET", lock, "a", "NX", "PX", "60000") == "OK"
    assert a("SET", key, "again") == "OK"
    assert a("DEL", lock) == 1
    assert a("SET", key, "free") == "OK"  # holds nothing, and has lost nothing
    late = late_writes(watch, key)
    assert [row["command"] for row in late] == ["SET", "APPEND", "DEL", "SET"]
    assert late[0]["action"].startswith("refused: the lease on " + lock) and "name=b" in late[0]["holder"]
    after = rows(watch)["stock:*" if kind == "stock" else "far:{*}*"]
    assert int(after["refused"]) == int(before["refused"]) + 4 == int(before["late"]) + 4


@places
def test_who_comes_back_over_another_connection(worker, connect, fenced, kind):
    """A worker that was away for long finds its connection closed, and sends its write over a new one."""
    a, b = worker("away"), worker("b")
    key, lock, old, new = lost(a, b, kind)
    a.close()
    colleague = worker("away")
    error = "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    until(lambda: colleague("SET", key, "late") == error, 10, "the proxy's knowledge that the connection is closed")
    assert worker("else")("SET", key, "1") == "OK"
    assert colleague("SET", lock, "1", "NX") is None
    assert colleague("SET", key, "1") == "OK"  # a worker that has just tried for the lock is a different worker


@places
def test_a_lease_that_nobody_has_taken_still_writes(worker, connect, fenced, kind):
    a, watch = worker("a"), connect(fenced)
    key, lock = named(kind, fresh())
    assert a("SET", lock, "a", "NX", "PX", "30") == "OK"
    until(lambda: watch("EXISTS", lock) == 0, 10, "the lease's end")
    assert a("SET", key, "late") == "OK"
    assert watch("GET", key) == "late"


@places
def test_a_record_that_is_gone_says_nothing(worker, fenced, kind):
    """Another worker may have had the lock since: a session that has lost it is not believed."""
    a = worker("a")
    key, lock = named(kind, fresh())
    assert a("SET", lock, "a", "NX", "PX", "30") == "OK"
    fence = fence_of(a, lock)
    direct = fenced.backend.direct()
    guards = [name for name in fenced.backend.keys() if name.endswith(":" + lock) and name.startswith("lockkeeper:")]
    assert len(guards) == 1
    assert direct("DEL", guards[0]) == 1
    reply = a("SET", key, "late")
    direct.close()
    assert reply == "FENCED the lease on %s is over (fence %d, its record is gone); nothing was written" % (lock, fence)


@sole_places
def test_unlocked_refuse(worker, connect, fenced, kind):
    a, b, watch = worker("a"), worker("b"), connect(fenced)
    key, lock = named(kind, fresh())
    error = "FENCED %s is not held by this client; nothing was written" % lock
    assert b("SET", key, "b") == error
    assert b("GET", key) is None
    assert a("SET", lock, "a", "NX", "PX", "60000") == "OK"
    assert b("SET", key, "b") == error
    assert a("SET", key, "a") == "OK"
    colleague = worker("a")
    assert colleague("APPEND", key, "a") == 2
    assert a("DEL", lock) == 1
    assert a("SET", key, "after") == error
    assert watch("GET", key) == "aa"
    assert late_writes(watch, key) == []


def test_of_several_keys_all_must_pass(worker, connect, fenced):
    a, b = worker("a"), worker("b")
    n = next(NUMBERS)
    locks = ["lock:stock:{%d}:%d" % (n, i) for i in range(3)]
    keys = ["stock:{%d}:%d" % (n, i) for i in range(3)]
    for lock in locks:
        assert a("SET", lock, "a", "NX", "PX", "60000" if lock != locks[1] else "60") == "OK"
    until(lambda: b("SET", locks[1], "b", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    both = [word for key in keys for word in (key, "1")]
    reply = a("MSET", *both)
    assert reply.startswith("FENCED the lease on %s is over" % locks[1])
    assert a("MGET", *keys) == [None] * 3
    assert a("MSET", keys[0], "1", keys[2], "2", "{%d}" % n, "3") == "OK"
    assert b("MSET", keys[1], "1", "{%d}" % n, "3") == "OK"
    assert a("DEL", *keys).startswith("FENCED ")
    assert a("MGET", *keys) == ["1", "1", "2"]
    assert a("RENAME", keys[0], keys[1]).startswith("FENCED ")
    assert a("RENAME", keys[1], "{%d}" % n).startswith("FENCED ")
    assert a("COPY", keys[1], "{%d}" % n, "REPLACE") == 1  # only reads it
    assert a("RENAME", keys[0], keys[2]) == "OK"
    assert a("DEL", keys[0], keys[2], "{%d}" % n) == 2


@pytest.mark.parametrize("command", ["DEL", "UNLINK"])
@places
def test_data_and_its_lock_in_one_command(worker, connect, fenced, kind, command):
    """The data first, together with the question; then the release."""
    a, b, c, watch = worker("a"), worker("b"), worker("c"), connect(fenced)
    key, lock, old, new = lost(a, b, kind)
    other = "other:" + lock.split(":")[-1]
    assert b("MSET", key, "1", other, "1") == "OK" if kind == "stock" else b("SET", key, "1") == "OK"
    both = [lock, key, other] if kind == "stock" else [lock, key]
    assert a(command, *both) == "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    assert watch("EXISTS", key) == 1 and b("PROXY", "TOKEN", lock) == new
    assert [row["command"] for row in late_writes(watch, key)] == [command]
    b.send(encode("GET", key) + encode(command, *both) + encode("GET", key) + encode("GET", lock))
    assert [b.read() for _ in range(4)] == ["1", len(both), None, None]
    assert a("SET", lock, "1", "NX", "PX", "60000") == "OK"
    assert a("SET", key, "x") == "OK"
    # The data is gone; the lock of another client stays, and the number says so.
    assert c(command, *both) == 1
    assert watch("EXISTS", key) == 0 and a("PROXY", "TOKEN", lock) > new
    # Several locks, of which one is held by another client.
    n = fresh()
    locks = ["lock:stock:%s:%d" % (n, i) for i in range(3)]
    assert a("SET", locks[0], "1", "NX", "PX", "60000") == "OK" and b("SET", locks[1], "1", "NX", "PX", "60000") == "OK"
    assert a("SET", "stock:%s:0" % n, "1") == "OK"
    assert a(command, "stock:%s:0" % n, *locks) == 2
    assert watch("EXISTS", *locks) == 1


@places
def test_who_leaves_behind_data_and_its_lock(worker, connect, fenced, kind):
    """The data and the release that it has sent take effect, although the client no longer reads the replies."""
    watch = connect(fenced)
    for _ in range(20):
        with Client(fenced.address, commands=[("CLIENT", "SETNAME", "leaves")]) as client:
            key, lock = named(kind, fresh())
            assert client("SET", lock, "1", "NX", "PX", "60000") == "OK" and client("SET", key, "1") == "OK"
            client.send(encode("DEL", key, lock))
        until(lambda: watch("EXISTS", lock) == 0, 10, "the release")  # noqa: B023


# The commands of the table that write, and what has to be there for them, on key K and others in its slot.
WRITES = [
    ([], ["SET", "K", "v"]),
    ([["SET", "K", "old"]], ["SET", "K", "v", "GET", "EX", "100"]),
    ([], ["SET", "K", "v", "XX"]),
    ([], ["SET", "K", "v", "NX"]),
    ([["SET", "K", "old"]], ["SETNX", "K", "v"]),
    ([], ["SETEX", "K", "100", "v"]),
    ([], ["SETEX", "K", "-1", "v"]),
    ([], ["PSETEX", "K", "100000", "v"]),
    ([["SET", "K", "old"]], ["GETSET", "K", "v"]),
    ([["SET", "K", "old"]], ["GETDEL", "K"]),
    ([], ["GETDEL", "K"]),
    ([["SET", "K", "old"]], ["GETEX", "K", "EX", "100"]),
    ([["SET", "K", "old"]], ["APPEND", "K", "v"]),
    ([["SET", "K", "old"]], ["SETRANGE", "K", "1", "v"]),
    ([["SET", "K", "old"]], ["SETBIT", "K", "1", "0"]),
    ([["SET", "K", "41"]], ["INCR", "K"]),
    ([["SET", "K", "9223372036854775800"]], ["INCR", "K"]),
    ([["SET", "K", "9007199254740992"]], ["INCRBY", "K", "1"]),
    ([["SET", "K", "-9223372036854775806"]], ["DECR", "K"]),
    ([["SET", "K", "1"]], ["DECRBY", "K", "9223372036854775807"]),
    ([["SET", "K", "9223372036854775807"]], ["INCR", "K"]),
    ([["SET", "K", "old"]], ["INCR", "K"]),
    ([["SET", "K", "1.5"]], ["INCRBYFLOAT", "K", "0.1"]),
    ([], ["MSET", "K", "1", "O", "2"]),
    ([], ["MSETNX", "K", "1", "O", "2"]),
    ([["SET", "O", "x"]], ["BITOP", "NOT", "K", "O"]),
    ([["SET", "O", "x"]], ["COPY", "O", "K"]),
    ([["SET", "O", "x"], ["SET", "K", "y"]], ["COPY", "O", "K", "REPLACE"]),
    ([["SET", "K", "x"]], ["DEL", "K", "O"]),
    ([["SET", "K", "x"]], ["UNLINK", "K"]),
    ([["SET", "K", "x"]], ["EXPIRE", "K", "100"]),
    ([["SET", "K", "x"]], ["PEXPIRE", "K", "100000", "NX"]),
    ([["SET", "K", "x"]], ["EXPIREAT", "K", "9999999999"]),
    ([["SET", "K", "x"]], ["PEXPIREAT", "K", "9999999999000"]),
    ([["SET", "K", "x", "EX", "100"]], ["PERSIST", "K"]),
    ([["SET", "K", "x"]], ["RENAME", "K", "O"]),
    ([], ["RENAME", "K", "O"]),
    ([["SET", "O", "x"]], ["RENAMENX", "O", "K"]),
    ([["SADD", "O", "3", "1", "2"]], ["SORT", "O", "STORE", "K"]),
    ([["RPUSH", "K", "a", "b"]], ["LINSERT", "K", "BEFORE", "b", "x"]),
    ([["RPUSH", "K", "a", "b"]], ["LMOVE", "K", "O", "LEFT", "RIGHT"]),
    ([], ["LMOVE", "K", "O", "LEFT", "RIGHT"]),
    ([["RPUSH", "K", "a", "b"]], ["LMPOP", "1", "K", "LEFT", "COUNT", "2"]),
    ([], ["LMPOP", "1", "K", "LEFT"]),
    ([["RPUSH", "K", "a", "b"]], ["LPOP", "K"]),
    ([], ["LPOP", "K"]),
    ([["RPUSH", "K", "a", "b"]], ["LPOP", "K", "2"]),
    ([], ["LPOP", "K", "2"]),
    ([], ["LPUSH", "K", "a", "b"]),
    ([], ["LPUSHX", "K", "a"]),
    ([["RPUSH", "K", "a", "b"]], ["LREM", "K", "1", "a"]),
    ([["RPUSH", "K", "a", "b"]], ["LSET", "K", "1", "x"]),
    ([], ["LSET", "K", "1", "x"]),
    ([["RPUSH", "K", "a", "b"]], ["LTRIM", "K", "1", "1"]),
    ([["RPUSH", "K", "a", "b"]], ["RPOP", "K", "1"]),
    ([], ["RPOP", "K", "1"]),
    ([["RPUSH", "K", "a", "b"]], ["RPOPLPUSH", "K", "O"]),
    ([], ["RPUSH", "K", "a", "b"]),
    ([], ["RPUSHX", "K", "a"]),
    ([], ["SADD", "K", "a", "a"]),
    ([["SADD", "O", "a"]], ["SDIFFSTORE", "K", "O", "P"]),
    ([["SADD", "O", "a"]], ["SINTERSTORE", "K", "O", "O"]),
    ([["SADD", "O", "a"]], ["SUNIONSTORE", "K", "O", "P"]),
    ([["SADD", "O", "a"]], ["SMOVE", "O", "K", "a"]),
    ([["SADD", "K", "a"]], ["SPOP", "K"]),
    ([], ["SPOP", "K"]),
    ([["SADD", "K", "a"]], ["SPOP", "K", "3"]),
    ([], ["SPOP", "K", "3"]),
    ([["SADD", "K", "a"]], ["SREM", "K", "a", "b"]),
    ([], ["ZADD", "K", "1.5", "a", "2", "b"]),
    ([], ["ZADD", "K", "INCR", "1.5", "a"]),
    ([], ["ZADD", "K", "XX", "INCR", "1.5", "a"]),
    ([["ZADD", "K", "0.1", "a"]], ["ZINCRBY", "K", "0.2", "a"]),
    ([["ZADD", "O", "1", "a"]], ["ZDIFFSTORE", "K", "1", "O"]),
    ([["ZADD", "O", "1", "a"]], ["ZINTERSTORE", "K", "1", "O", "WEIGHTS", "2"]),
    ([["ZADD", "O", "1", "a"]], ["ZUNIONSTORE", "K", "1", "O"]),
    ([["ZADD", "K", "0.1", "a", "2", "b"]], ["ZMPOP", "1", "K", "MIN", "COUNT", "2"]),
    ([], ["ZMPOP", "1", "K", "MIN"]),
    ([["ZADD", "K", "0.1", "a", "2", "b"]], ["ZPOPMAX", "K"]),
    ([["ZADD", "K", "0.1", "a", "2", "b"]], ["ZPOPMIN", "K", "2"]),
    ([], ["ZPOPMIN", "K"]),
    ([["ZADD", "O", "1", "a"]], ["ZRANGESTORE", "K", "O", "0", "-1"]),
    ([["ZADD", "K", "0.1", "a"]], ["ZREM", "K", "a"]),
    ([["ZADD", "K", "0", "a"]], ["ZREMRANGEBYLEX", "K", "-", "+"]),
    ([["ZADD", "K", "0.1", "a"]], ["ZREMRANGEBYRANK", "K", "0", "0"]),
    ([["ZADD", "K", "0.1", "a"]], ["ZREMRANGEBYSCORE", "K", "0", "1"]),
    ([["HSET", "K", "f", "1"]], ["HDEL", "K", "f", "g"]),
    ([["HSET", "K", "f", "1"]], ["HINCRBY", "K", "f", "2"]),
    ([["HSET", "K", "f", "9007199254740999"]], ["HINCRBY", "K", "f", "2"]),
    ([["HSET", "K", "f", "1"]], ["HINCRBYFLOAT", "K", "f", "0.1"]),
    ([], ["HMSET", "K", "f", "1"]),
    ([], ["HSET", "K", "f", "1", "g", "2"]),
    ([["HSET", "K", "f", "1"]], ["HSETNX", "K", "f", "1"]),
    ([], ["GEOADD", "K", "13.36", "38.11", "P"]),
    ([["GEOADD", "O", "13.36", "38.11", "P"]], ["GEORADIUS", "O", "15", "37", "200", "km", "STORE", "K"]),
    ([["GEOADD", "O", "13.36", "38.11", "P"]], ["GEORADIUSBYMEMBER", "O", "P", "200", "km", "STORE", "K"]),
    ([["GEOADD", "O", "13.36", "38.11", "P"]],
     ["GEOSEARCHSTORE", "K", "O", "FROMMEMBER", "P", "BYRADIUS", "9", "km"]),
    ([], ["PFADD", "K", "a"]),
    ([["PFADD", "O", "a"]], ["PFMERGE", "K", "O"]),
    ([], ["XADD", "K", "1-1", "f", "v"]),
    ([["XADD", "K", "1-1", "f", "v"]], ["XADD", "K", "1-1", "f", "v"]),
    ([["XADD", "K", "1-1", "f", "v"]], ["XGROUP", "CREATE", "K", "g", "0"]),
    ([["XADD", "K", "1-1", "f", "v"], ["XGROUP", "CREATE", "K", "g", "0"], ["XCLAIM", "K", "g", "c", "0", "1-1", "FORCE"]],
     ["XACK", "K", "g", "1-1"]),
    ([["XADD", "K", "1-1", "f", "v"], ["XGROUP", "CREATE", "K", "g", "0"], ["XCLAIM", "K", "g", "c", "0", "1-1", "FORCE"]],
     ["XCLAIM", "K", "g", "d", "0", "1-1"]),
    ([["XADD", "K", "1-1", "f", "v"], ["XGROUP", "CREATE", "K", "g", "0"], ["XCLAIM", "K", "g", "c", "0", "1-1", "FORCE"]],
     ["XAUTOCLAIM", "K", "g", "d", "0", "0"]),
    ([["XADD", "K", "1-1", "f", "v"]], ["XDEL", "K", "1-1"]),
    ([["XADD", "K", "1-1", "f", "v"]], ["XSETID", "K", "5-5"]),
    ([["XADD", "K", "1-1", "f", "v"]], ["XTRIM", "K", "MAXLEN", "0"]),
    ([["RPUSH", "K", "x"]], ["SET", "K", "v", "GET"]),
    ([["RPUSH", "K", "x"]], ["HSET", "K", "f", "v"]),
    ([["RPUSH", "K", "x"]], ["APPEND", "K", "v"]),
    ([], ["SET", "K", "v", "SILLY"]),
]


def on(words, n, kind):
    """The words with names for K, O and P."""
    return [{"K": named(kind, n)[0], "O": "other:" + n, "P": "third:" + n}.get(word, word) for word in words]


def raw(client, words):
    client.send(encode(*words))
    return client.read_raw()


@places
def test_every_write_command(worker, connect, oracle, fenced, protocol, kind):
    """For the holder it answers as Redis does, byte by byte; for a session that has lost the lock it changes nothing."""
    a, b, other = worker("writes"), worker("b"), worker("other")
    direct, plain = fenced.backend.direct(), connect(oracle, commands=[("HELLO", str(protocol))])
    n = fresh()
    lock = named(kind, n)[1]
    assert a("SET", lock, "l", "NX", "PX", "60") == "OK"
    until(lambda: b("SET", lock, "w", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    for before, command in WRITES:
        for words in before:
            assert not isinstance(plain(*on(words, n, kind)), Error), words
            assert not isinstance(other(*on(words, n, kind)), Error), words
        dump = [direct("DUMP", name) for name in on(["K", "O", "P"], n, kind)]
        reply = a(*on(command, n, kind))
        assert isinstance(reply, Error) and reply.startswith("FENCED "), (command, reply)
        same = [direct("DUMP", name) for name in on(["K", "O", "P"], n, kind)] == dump
        assert same, command
        assert raw(b, on(command, n, kind)) == raw(plain, on(command, n, kind)), (before, command)
        for name in on(["K", "O", "P"], n, kind):
            same = command[0][0] == "X" or direct("DUMP", name) == plain("DUMP", name)  # streams have times in them
            assert same, (command, name)
        b("DEL", *on(["K", "O", "P"], n, kind))
        plain("DEL", *on(["K", "O", "P"], n, kind))
    direct.close()


def test_every_write_command_is_named():
    """Those of Redis 7.0; the rest is refused, or is newer."""
    path = os.path.join(servers.ROOT, "parser", "command_table.h")
    with open(path) as f:
        table = re.findall(r'^COMMAND\(\w+, "([a-z-]+)", [^,]+, ([A-Z_| ]+),.*, (NEED_\w+)\)', f.read(), re.M)
    named = {command[0].lower() for _, command in WRITES}
    refused = {"bitfield", "migrate", "move", "pfdebug", "restore-asking", "restore"}
    newer = {"hexpire", "hpexpire", "hexpireat", "hpexpireat", "hpersist", "hgetex", "hsetex", "hgetdel", "xdelex", "xackdel",
             "delex", "delifeq", "msetex"}
    writes = {name for name, flags, need in table if "COMMAND_WRITE" in flags and need == "NEED_KEY"}
    assert len(writes) > 90 and writes - refused - newer == named


def test_restore(worker, fenced):
    a, b = worker("a"), worker("b")
    key, _, _, _ = lost(a, b)
    assert b("SET", key, "1") == "OK"
    assert a("RESTORE", key, "0", "x", "REPLACE").startswith("FENCED ")
    assert b("RESTORE", key, "0", "x", "REPLACE") == "ERR DUMP payload version or checksum are wrong"
    assert b("RESTORE", key, "0", "x") == "BUSYKEY Target key name already exists."
    assert b("GET", key) == "1"


def test_what_can_not_be_checked_is_refused(worker):
    a, b, c = worker("a"), worker("b"), worker("c")
    key, lock, _, _ = lost(a, b)
    not_this = "ERR the write of fenced data can't be checked with this command; nothing was written"
    for command in [("MOVE", key, "1"), ("COPY", key, key, "DB", "0")]:
        assert a(*command) == not_this, command
        assert b(*command) == not_this, command
    assert b("GET", key) is None
    code = ("EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", key)
    assert b("MULTI") == "OK"
    assert b(*code) == not_this
    assert b("EXEC").startswith("EXECABORT ")
    mixed = "ERR locks and fenced data in one command; nothing was written: send several"
    assert b("MSET", key, "1", lock, "1") == mixed
    assert b("MULTI") == "OK"
    assert b("DEL", key, lock) == mixed
    assert b("EXEC").startswith("EXECABORT ")
    # A session that has never held the lock is not checked.
    assert c("MULTI") == "OK"
    assert c("SET", key, "x") == "QUEUED"
    assert c("EXEC") == ["OK"]
    assert c(*code) == "OK"
    assert c("DEL", key) == 1


SET = "redis.call('SET', KEYS[1], ARGV[1]) return {ARGV[1], false, 1}"


@places
def test_what_no_script_can_carry(worker, connect, fenced, protocol, kind):
    """The application's own scripts, numbers beyond what a script can say, and very long commands: by WATCH."""
    a, b, watch = worker("codes"), worker("b"), connect(fenced)
    key, lock, old, new = lost(a, b, kind)
    error = "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    many = list(map(str, range(9000)))
    commands = [
        (("EVAL", SET, "1", key, "v"), ["v", None, 1]),
        (("EVALSHA", hashlib.sha1(SET.encode()).hexdigest(), "1", key, "w"), ["w", None, 1]),
        (("EVAL", "return redis.call('INCR', KEYS[1])", "1", key), None),
        (("EVAL", "return {err='MINE x'}", "1", key), "MINE x"),
        (("EVAL", "return", "1", key), None),
        (("DEL", key), 1),
        (("BITFIELD", key, "SET", "i64", "0", "9223372036854775807", "GET", "i64", "0", "OVERFLOW", "FAIL", "INCRBY", "i64",
          "0", "1"), [0, 9223372036854775807, None]),
        (("DEL", key), 1),
        (("SADD", key, *many), 9000),
        (("SREM", key, *many), 9000),
        (("XADD", key, "1-1", "f", "v"), "1-1"),
        (("XGROUP", "CREATE", key, "g", "0"), "OK"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"),
         {key: [["1-1", ["f", "v"]]]} if protocol == 3 else [[key, [["1-1", ["f", "v"]]]]]),
        (("DEL", key), 1),
    ]
    for command, reply in commands:
        assert a(*command) == error, command
        said = b(*command)
        assert said == reply or (reply is None and isinstance(said, (Error, int))), (command, said)
    assert watch("EXISTS", key) == 0
    assert b("EVAL", "return redis.call('INCRBY', KEYS[1], 'x')", "1", key).startswith("ERR value is not an integer")
    assert b("EVAL", "this is no lua", "1", key).startswith("ERR Error compiling script")
    assert [row["command"] for row in late_writes(watch, key)][:2] == ["EVAL", "EVALSHA"]
    # Behind what was sent before, and before what comes next.
    pipeline = [("SET", key, "1"), ("EVAL", "return redis.call('INCR', KEYS[1])", "1", key), ("INCR", key), ("GET", key)]
    b.send(b"".join(encode(*words) for words in pipeline))
    assert [b.read() for _ in pipeline] == ["OK", 2, 3, "3"]


def test_renewed_while_it_is_watched(farm, start_proxy, connect):
    """What is done to the guard record meanwhile has the write begin anew."""
    proxy = start_proxy(farm.backend("standalone"), "lock lock:* lease 1s", "fence stock:* by lock:stock:*")
    b, other = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "bo"]
    n = fresh()
    key, lock = "stock:" + n, "lock:stock:" + n
    assert b("SETNX", lock, "1") == 1
    guard = [name for name in farm.backend("standalone").keys() if name.endswith(lock) and name != lock]
    busy = farm.backend("standalone").direct()
    for _ in range(300):
        busy.send(encode("HSET", guard[0], "extra", "") * 20)
        b.send(encode("EVAL", "return redis.call('INCR', KEYS[1])", "1", key))
        reply = b.read()
        assert isinstance(reply, int) or reply.startswith("ERR the locks of fenced data change too often"), reply
        for _ in range(20):
            busy.read()
    assert isinstance(b("EVAL", "return redis.call('INCR', KEYS[1])", "1", key), int)
    busy.close()


@places
def test_a_client_that_leaves(worker, connect, fenced, kind):
    a, b, watch = worker("a"), worker("leaves"), connect(fenced)
    key, _, _, _ = lost(a, b, kind)
    for _ in range(20):
        with Client(fenced.address, commands=[("CLIENT", "SETNAME", "leaves")]) as c:
            c.send(encode("EVAL", "return redis.call('INCR', KEYS[1])", "1", key) * 3)
    with Client(fenced.address, commands=[("CLIENT", "SETNAME", "leaves")]) as c:
        c.send(encode("EVAL", "for i = 1, 5000000 do end return redis.call('INCR', KEYS[1])", "1", key))
    until(lambda: watch("PING") == "PONG" and re.search(r"^pinned_transactions:0", watch("PROXY", "INFO"), re.M), 10,
          "all connections given back")


def test_in_a_transaction(worker, connect, fenced, protocol):
    """It is asked for within EXEC; what is refused has the error in its place, and nothing else is kept from running."""
    a, b, watch = worker("queues"), worker("b"), connect(fenced)  # many incidents of one client are kept as one
    key, lock, old, new = lost(a, b)
    other = "other:" + key.split(":")[1]
    error = "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    for words in (("MULTI",), ("SET", key, "a"), ("SET", other, "a"), ("INCR", key), ("GET", other)):
        assert a(*words) in ("OK", "QUEUED")
    assert a("EXEC") == [error, "OK", error, "a"]
    assert watch("GET", key) is None
    assert [row["command"] for row in late_writes(watch, key)] == ["SET", "INCR"]
    for words in (("MULTI",), ("SET", key, "9223372036854775806"), ("INCR", key), ("INCRBY", key, "x"), ("DEL", key),
                  ("ZADD", key, "INCR", "1.5", "m"), ("ZADD", key, "NX", "INCR", "1.5", "m"), ("LPOP", key, "1"),
                  ("DEL", key), ("LPOP", key, "1")):
        assert b(*words) in ("OK", "QUEUED")
    replies = b("EXEC")
    assert replies[:4] == ["OK", 9223372036854775807, "ERR value is not an integer or out of range", 1]
    assert replies[4] == (1.5 if protocol == 3 else "1.5") and replies[5] is None
    assert replies[6].startswith("WRONGTYPE ") and replies[7:] == [1, None]
    # Lost while it is queued.
    n = fresh()
    key, lock = "stock:" + n, "lock:stock:" + n
    assert a("SET", lock, "a", "NX", "PX", "100") == "OK"
    for words in (("MULTI",), ("SET", key, "a"), ("GET", key)):
        assert a(*words) in ("OK", "QUEUED")
    until(lambda: b("SET", lock, "w", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    refused, value = a("EXEC")
    assert refused.startswith("FENCED the lease on " + lock) and value is None
    # What is not run is not asked for.
    for last, reply in (("DISCARD", "OK"), ("EXEC", None)):
        assert b("WATCH", key) == "OK"
        assert watch("SET", key, "1") == "OK"
        assert b("MULTI") == "OK"
        assert b("SET", key, "2") == "QUEUED"
        assert b(last) == reply
        assert watch("GET", key) == "1"


def test_acquired_in_the_transaction(worker, connect, fenced):
    a, b = worker("a"), worker("b")
    n = fresh()
    key, lock = "sole:" + n, "lock:sole:" + n
    transaction = [("MULTI",), ("SET", lock, "1", "NX", "PX", "60000"), ("INCR", key), ("DEL", lock), ("EXEC",)]
    assert [a(*words) for words in transaction][-1] == ["OK", 1, 1]
    assert b("SET", lock, "1", "NX", "PX", "60000") == "OK"
    assert [a(*words) for words in transaction][-1] == [
        None, "FENCED %s is not held by this client; nothing was written" % lock, 0]
    assert b("GET", key) == "1"


def test_acquired_again_in_the_transaction(worker, connect, fenced):
    """A session that has lost the lock acquires it in the transaction that writes."""
    a, b = worker("a"), worker("b")
    key, lock, old, new = lost(a, b)
    transaction = [("MULTI",), ("SET", lock, "1", "NX", "PX", "60000"), ("INCR", key), ("EXEC",)]
    assert [a(*words) for words in transaction][-1] == [
        None, "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)]
    assert b("DEL", lock) == 1
    assert [a(*words) for words in transaction][-1] == ["OK", 1]
    assert [a(*words) for words in transaction][-1] == [None, 2]
    assert a("INCR", key) == 3
    release = [("MULTI",), ("DEL", lock), ("INCR", key), ("EXEC",)]
    assert [a(*words) for words in release][-1] == [1, 4]


def test_reads_are_untouched(worker):
    a, b = worker("a"), worker("b")
    key, _, _, _ = lost(a, b)
    assert b("SET", key, "v") == "OK"
    for command, reply in [(("GET", key), "v"), (("EXISTS", key), 1), (("STRLEN", key), 1), (("GETEX", key), "v"),
                           (("MGET", key, key), ["v", "v"]), (("TTL", key), -1),
                           (("EVAL_RO", "return redis.call('GET', KEYS[1])", "1", key), "v")]:
        assert a(*command) == reply, command


@sole_places
def test_in_one_pipeline(worker, kind):
    """A write waits until it is known what the attempt before it has come to, and later commands for the write."""
    a, b = worker("a"), worker("b")
    key, lock = named(kind, fresh())
    pipeline = [("SET", lock, "1", "NX", "PX", "60000"), ("SET", key, "1"), ("GET", key), ("INCR", key), ("GET", key),
                ("DEL", lock), ("GET", key)]
    for client, replies in ((a, ["OK", "OK", "1", 2, "2", 1, "2"]), (b, ["OK", "OK", "1", 2, "2", 1, "2"])):
        client.send(b"".join(encode(*words) for words in pipeline))
        assert [client.read() for _ in pipeline] == replies
    assert a("SET", lock, "1", "NX", "PX", "60000") == "OK"
    b.send(b"".join(encode(*words) for words in pipeline))
    replies = [b.read() for _ in pipeline]
    assert replies[0] is None and replies[1].startswith("FENCED ") and replies[2] == "2"


@places
def test_a_script_that_redis_has_forgotten(worker, fenced, kind):
    a, b = worker("a"), worker("b")
    key, _, _, _ = lost(a, b, kind)
    nodes = fenced.backend.nodes if fenced.backend.kind == "cluster" else [fenced.backend]
    for node in nodes:
        node.run("SCRIPT", "FLUSH")
    b.send(encode("SET", key, "1") + encode("INCR", key) + encode("GET", key))
    assert [b.read() for _ in range(3)] == ["OK", 2, "2"]
    for node in nodes:
        node.run("SCRIPT", "FLUSH")
    assert a("SET", key, "x").startswith("FENCED ")
    assert b("GET", key) == "2"


@places
def test_a_long_value(worker, kind):
    a, b = worker("a"), worker("b")
    key, _, _, _ = lost(a, b, kind)
    value = "v" * (3 << 20)
    assert b("SET", key, value) == "OK"
    assert a("SET", key, value + "x").startswith("FENCED ")
    assert b("STRLEN", key) == len(value)


@places
def test_another_proxy(worker, connect, farm, fenced, kind):
    """The guard record shows a lock that is held through another proxy."""
    other = servers.Proxy(fenced.backend, *AUDIT)
    a = worker("a")
    with Client(other.address, commands=[("CLIENT", "SETNAME", "b")]) as b:
        key, lock, old, new = lost(a, b, kind)
        assert b("SET", key, "b") == "OK"
        assert a("SET", key, "a") == "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
        assert b("GET", key) == "b"
    other.stop()
    other.remove()


def test_data_of_several_slots(farm, start_proxy, connect):
    """One command can't be atomic in several slots: the holder gets an error at once."""
    proxy = start_proxy(farm.backend("cluster"), *AUDIT)
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]
    assert a("SET", "lock:stock:{x2}", "1", "NX", "PX", "60000") == "OK"
    assert b("MSET", "stock:{x2}", "1", "stock:{x3}", "1") == "OK"
    assert a("MSET", "stock:{x2}", "2", "stock:{x3}", "2").startswith("ERR fenced data of several slots")
    assert a("MGET", "stock:{x2}", "stock:{x3}") == ["1", "1"]


@pytest.fixture
def far(farm, start_proxy, connect):
    """A proxy before a cluster; far(name): a connection of a client of that name."""
    proxy = start_proxy(farm.backend("cluster"), *AUDIT)
    make = lambda name: connect(proxy, commands=[("CLIENT", "SETNAME", name)])  # noqa: E731
    make.backend = farm.backend("cluster")
    return make


def marks(backend, lock):
    """The watermarks of a lock, and its guard record."""
    own = [name for name in backend.keys() if name.startswith("lockkeeper:{") and name.endswith(":" + lock)]
    of = [name for name in own if "}:{" in name]
    return of, [name for name in own if name not in of][0]


def test_the_watermark(far):
    """It stays with the data what the greatest fence was, also where the lock's slot has forgotten that."""
    a, b, c = far("a"), far("b"), far("c")
    key, lock, old, new = lost(a, b, "far")
    direct = far.backend.direct()
    assert marks(far.backend, lock)[0] == []
    assert c("SET", key, "c") == "OK"
    assert b("SET", key, "b") == "OK" and b("APPEND", key, "b") == 2
    [mark], guard = marks(far.backend, lock)
    assert direct("GET", mark) == str(new) and 3500000 < direct("PTTL", mark) <= 3600000
    # Hidden, and not writable for any client.
    assert mark not in c("KEYS", "*") and c("SET", mark, "1").startswith("ERR the key is a guard record")
    # A look at the lock before its next acquisition, and the write behind the next holder's: as if the look said so.
    assert direct("HSET", guard, "fence", str(old)) == 0
    assert a("SET", key, "a") == "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    assert a("EVAL", "return redis.call('SET', KEYS[1], 'a')", "1", key).startswith("FENCED ")
    assert b("GET", key) == "bb"
    # It is renewed where it has less than half of its time.
    assert direct("PEXPIRE", mark, "1700000") == 1
    assert direct("HSET", guard, "fence", str(new)) == 0
    assert b("DEL", key) == 1
    assert direct("PTTL", mark) > 3500000
    direct.close()


def transaction(client, *commands):
    """The reply to EXEC."""
    assert client("MULTI") == "OK"
    for words in commands:
        assert client(*words) == "QUEUED"
    return client("EXEC")


def test_in_a_transaction_elsewhere(far):
    """Looked at before EXEC: where the lock is lost, nothing of the transaction is done."""
    a, b, c = far("a"), far("b"), far("c")
    key, lock, old, new = lost(a, b, "far")
    other = "other:" + key[4:]
    error = "FENCED the lease on %s is over (fence %d, now %d); nothing was written" % (lock, old, new)
    assert transaction(a, ("SET", key, "a"), ("SET", other, "a")) == error
    assert c("MGET", key, other) == [None, None]
    assert transaction(b, ("SET", key, "1"), ("INCR", key), ("SET", other, "b"), ("INCR", other))[:3] == ["OK", 2, "OK"]
    assert transaction(c, ("INCR", key)) == [3]
    # By the watermark, inside of EXEC.
    direct = far.backend.direct()
    _, guard = marks(far.backend, lock)
    assert direct("HSET", guard, "fence", str(old)) == 0
    assert transaction(a, ("SET", key, "a"), ("SET", other, "a")) == [error, "OK"]
    direct.close()
    assert b("GET", key) == "3"
    # WATCH, DISCARD, and a transaction behind one that was given up.
    assert b("WATCH", key) == "OK" and c("SET", key, "c") == "OK"
    assert transaction(b, ("SET", key, "b")) is None
    assert b("MULTI") == "OK" and b("SET", key, "b") == "QUEUED" and b("DISCARD") == "OK"
    assert b("GET", key) == "c"
    # With `unlocked refuse` a session that may only write as the holder has no second case to compare.
    assert c("MULTI") == "OK"
    assert c("SET", "alone:{t1}", "c") == (
        "ERR the lock of fenced data is in another slot than its key, and not held; nothing was written")
    assert c("EXEC").startswith("EXECABORT ")


def test_several_locks_elsewhere(far):
    a, b = far("a"), far("b")
    n = fresh()
    keys = ["far:%s:%d" % (n, i) for i in range(3)]
    locks = ["lock:far:" + n.strip("{}"), "lock:stock:%s" % n]
    keys.append("stock:" + n)
    for lock in locks:
        assert a("SET", lock, "1", "NX", "PX", "60000" if lock == locks[1] else "60") == "OK"
    words = [word for key in keys for word in (key, "1")]
    assert a("MSET", *words) == "OK"
    until(lambda: b("SET", locks[0], "b", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    assert a("MSET", *words).startswith("FENCED the lease on " + locks[0])
    assert a("SET", keys[3], "2") == "OK" and b("SET", keys[0], "2") == "OK"
    assert a("DEL", keys[3], "other:" + n) == 1
    assert a("SET", keys[1], "2").startswith("FENCED ")


def test_a_client_that_leaves_amid_the_look(far):
    a, b, watch = far("a"), far("b"), far("watch")
    key, lock, old, new = lost(a, b, "far")
    for words in ((), (("MULTI",),)):
        for _ in range(20):
            c = far("b")
            c.send(b"".join(encode(*w) for w in [*words, ("INCR", key), *([("EXEC",)] if words else [])]))
            c.close()
    until(lambda: re.search(r"^pinned_transactions:0", watch("PROXY", "INFO"), re.M), 10, "all connections given back")
    assert b("SET", key, "b") == "OK"


def test_explain(worker, fenced):
    a, b = worker("a"), worker("b")
    key, lock, _, _ = lost(a, b)

    def check(client, *words):
        said = client("PROXY", "EXPLAIN", *words)
        return (said if isinstance(said, dict) else dict(zip(said[::2], said[1::2])))["fence-check"]

    assert check(worker("c"), "SET", key, "1") == "passes as it came"
    assert check(a, "GET", key) == "passes as it came"
    assert check(a, "SET", key, "1") == "asks in one step with the write whether the lock has had another holder"
    assert check(a, "EVAL", "return 1", "1", key).startswith("asks in one step")
    far, lock, _, _ = lost(a, b, "far")
    assert check(a, "SET", far, "1").startswith("asks" if fenced.backend.kind != "cluster" else "looks at the lock, and asks")
    assert check(a, "MOVE", key, "1").startswith("ERR the write of fenced data can't be checked")


PUSH = "return redis.call('RPUSH', KEYS[1], ARGV[1])"


def write_fence(client, key, fence, way):
    """Appends the fence, one way or another; returns the reply to the write itself."""
    if way == 0:
        return client("RPUSH", key, fence)
    if way == 1:
        return client("EVAL", PUSH, "1", key, fence)
    client("MULTI")
    client("RPUSH", key, fence)
    reply = client("EXEC")
    return reply if isinstance(reply, Error) else reply[0]


@places
def test_torture(fenced, connect, kind):
    """Workers with leases that are mostly too short write their fence: no fence is followed by an earlier one."""
    key, lock = named(kind, fresh())
    until_when, problems, counts = time.monotonic() + 4, [], collections.Counter()

    def work(i):
        rand = random.Random(i)
        with Client(fenced.address, commands=[("CLIENT", "SETNAME", "torture-%d" % i)]) as client:
            while time.monotonic() < until_when:
                if client("SET", lock, str(i), "NX", "PX", str(rand.randrange(5, 30))) != "OK":
                    time.sleep(0.002)
                    continue
                fence = client("PROXY", "TOKEN", lock)
                for _ in range(4 if fence else 0):
                    reply = write_fence(client, key, str(fence), rand.randrange(3))
                    if isinstance(reply, Error) and not reply.startswith("FENCED "):
                        problems.append(reply)
                    counts["refused" if isinstance(reply, Error) else "written"] += 1
                    time.sleep(rand.random() * 0.012)
                client("DEL", lock)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fences = list(map(int, connect(fenced)("LRANGE", key, "0", "-1")))
    assert problems == []
    assert len(fences) == counts["written"] and counts["refused"] > 5, counts
    assert fences == sorted(fences)
    assert len(set(fences)) > 20


# ---- the directive ------------------------------------------------------------------------------------------


def test_rules_config_and_explain(farm, start_proxy, connect):
    line = "fence \"a b:*:*\" by lock:*:of:* mode audit unlocked refuse"
    client = connect(start_proxy(farm.backend("standalone"), *LOCKS, line))
    assert client("PROXY", "CONFIG", "fence") == ["fence", line[len("fence "):]]
    assert client("SET", "a b:1:2", "x") == "OK"
    assert rows(client) == {'"a': {"fence": line[len("fence "):], "hits": 1, "late": 0, "refused": 0}}
    assert client("SET", "a b:1:3", "x") == "OK"
    assert rows(client)['"a']["hits"] == 2
    said = client("PROXY", "EXPLAIN", "SET", "a b:1:2", "x")
    said = dict(zip(said[::2], said[1::2]))
    assert said["fence"] == line[len("fence "):] and said["fence-lock"] == "lock:1:of:2"


def test_metrics(farm, start_proxy, connect):
    port = servers.free_port()
    proxy = start_proxy(farm.backend("standalone"), *LOCKS, "fence counted:* by lock:counted:*", "admin-port %d" % port)
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]
    key, _, _, _ = lost(a, b, "counted")
    assert b("SET", key, "1") == "OK" and a("SET", key, "1").startswith("FENCED ")
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    assert 'lockkeeper_fence_hits_total{fence="counted:*"} 2' in lines
    assert 'lockkeeper_fence_late_writes_total{fence="counted:*"} 1' in lines
    assert 'lockkeeper_fence_refused_writes_total{fence="counted:*"} 1' in lines
    assert 'lockkeeper_incidents_total{kind="late_write"} 1' in lines


def test_reload(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), *LOCKS)
    a, b = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]
    n = fresh()
    key, lock = "stock:" + n, "lock:stock:" + n
    lose(a, lock, b)
    assert a("SET", key, "1") == "OK"
    assert late_writes(a, key) == [] and rows(a) == {}
    assert reloaded(proxy, "fence stock:* by lock:stock:* mode audit", client=a) == "OK"
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 1
    assert reloaded(proxy, "fence stock:* by stock mode audit", client=a).startswith("ERR ")
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 2
    assert reloaded(proxy, "fence stock:* by lock:stock:* mode off", client=a) == "OK"
    assert a("SET", key, "1") == "OK"
    assert len(late_writes(a, key)) == 2


def test_what_can_not_be_done_is_refused(farm, tmp_path):
    """Never passed silently."""
    for line, why in [
        ("fence stock:* by stock mode audit", "no lock rule matches 'stock': expected the name of a lock"),
        ("fence lock:* by lock:* mode audit", "its keys are locks of the rule 'lock:*'"),
    ]:
        path = tmp_path / "lockkeeper.conf"
        path.write_text("port 0\nunixsocket /tmp/none.sock\n%s\n" % line)
        done = subprocess.run([servers.binary(), "--test-conf", str(path)], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and why in done.stdout + done.stderr, done
