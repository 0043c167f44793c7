"""What was learnt of clients survives a restart, and other proxies before the same Redis know it too."""

import itertools
import os

import pytest

from resp import Client, Error
from servers import until
from test_takeover import orphans, take_over  # noqa: F401

RECORD = "lockkeeper:{f2r}:lockkeeper-learnt"
LONG = 60000
serial = itertools.count(1)


def acquire(c, name):
    return c("SET", name, "1", "NX", "PX", LONG) == "OK"


class Pool:
    """Two connections of one client to a proxy, over which several workers speak."""

    def __init__(self, name):
        self.name = name

    def connect(self, connect, proxy, **options):
        return [connect(proxy, commands=[("CLIENT", "SETNAME", self.name)], **options) for _ in range(2)]

    def key(self):
        return "lock:pool:x:%d" % next(serial)

    def learn(self, a, b):
        """Two releases come over another connection than the acquisition."""
        for c, other in ((a, b), (b, a)):
            mine, its = self.key(), self.key()
            assert acquire(c, mine) and acquire(other, its)
            assert other("DEL", mine) == 1 and other("DEL", its) == 1


@pytest.fixture
def pool():
    return Pool("learnt-%d-%d" % (os.getpid(), next(serial)))


def rows(c, *words):
    return [row if isinstance(row, dict) else dict(zip(row[0::2], row[1::2])) for row in c("PROXY", *words)]


def is_pooled(c, pool):
    return any("name=" + pool.name in row.get("shared", "") for row in rows(c, "RULES"))


def reports(c):
    return [row for row in rows(c, "INCIDENTS", 1000, "KIND", "shared")]


def knows(c):
    """Of how many families something is known."""
    return int(c("PROXY", "INFO").split("learnt_families:")[1].split("\r")[0])


def holder_s_release_over_a_loser_s_connection(pool, a, b):
    """The first thing that a proxy sees of the pool: a colleague's attempt is lost over the connection over which the
    holder's release comes. Over connections of their own it would be the loser's."""
    name = pool.key()
    assert acquire(a, name)
    lost, released = b.at_once(("SET", name, "1", "NX", "PX", LONG), ("DEL", name))
    assert lost is None
    return released


def entries(direct):
    return [dict(zip(fields[0::2], fields[1::2])) for _, fields in direct("XRANGE", RECORD, "-", "+")]


def test_a_pool_is_unknown_at_first(backend, start_proxy, connect, pool):
    """The comparison: without the record the same release is refused."""
    a, b = pool.connect(connect, start_proxy(backend))
    assert holder_s_release_over_a_loser_s_connection(pool, a, b) == 0


@pytest.mark.parametrize("threads", [1, 4])
def test_a_restart(backend, start_proxy, connect, direct, pool, threads):
    lines = ["threads %d" % threads, "lock lock:*"]
    proxy = start_proxy(backend, *lines)
    a, b = pool.connect(connect, proxy)
    pool.learn(a, b)
    assert is_pooled(a, pool) and len(reports(a)) == 1
    proxy.stop()
    (entry,) = [e for e in entries(direct) if pool.name in e["client"]]
    assert entry["is"] == "pooled" and entry["rule"] == "lock:*" and entry["pattern"] == "lock:pool:x:*"
    assert 6 * 86400000 < direct("PTTL", RECORD) <= 7 * 86400000
    after = start_proxy(backend, *lines)
    a, b = pool.connect(connect, after)
    assert holder_s_release_over_a_loser_s_connection(pool, a, b) == 1, "known from the first command on"
    assert is_pooled(a, pool) and reports(a) == [], "nothing is new to an operator"
    stranger = connect(after, commands=[("CLIENT", "SETNAME", "other")])
    assert not is_pooled(stranger, Pool("other"))


def show_own_connections(pool, a, b, prefix):
    """Contended releases, each over the session that acquired: the workers have connections of their own."""
    for _ in range(17):
        name = prefix + "x:%d" % next(serial)
        assert acquire(a, name) and not acquire(b, name)
        assert a("DEL", name) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_audit_writes_nothing_to_redis(backend, start_proxy, connect, direct, pool, protocol):
    """What is learnt under `mode audit` stays in the proxy. An enforced rule of the same proxy writes."""
    direct("DEL", RECORD)
    proxy = start_proxy(backend, "lock lock:audited:* mode audit", "lock lock:enforced:*")
    options = {"commands": [("CLIENT", "SETNAME", pool.name)] + ([("HELLO", 3)] if protocol == 3 else [])}
    a, b = connect(proxy, **options), connect(proxy, **options)
    show_own_connections(pool, a, b, "lock:audited:")
    assert direct("EXISTS", RECORD) == 0
    show_own_connections(pool, a, b, "lock:enforced:")
    until(lambda: direct("EXISTS", RECORD) == 1, 10, "what the enforced rule has learnt")
    assert {e["rule"] for e in entries(direct)} == {"lock:enforced:*"}, "the proxy writes in the order in which it learns"


def test_what_audit_has_learnt_is_told_once_the_rule_is_enforced(backend, start_proxy, connect, direct, pool):
    direct("DEL", RECORD)
    proxy = start_proxy(backend, "lock lock:audited:* mode audit")
    a, b = pool.connect(connect, proxy)
    show_own_connections(pool, a, b, "lock:audited:")
    assert direct("EXISTS", RECORD) == 0
    proxy.write_config(["upstream " + backend.upstream(), "lock lock:audited:*"])
    assert a("PROXY", "RELOAD") == "OK"
    assert acquire(a, "lock:audited:x:%d" % next(serial))
    until(lambda: any(e["is"] == "dedicated" for e in entries(direct)), 30, "what was learnt under audit")


def test_an_other_proxy_learns_meanwhile(backend, start_proxy, connect, pool):
    one, two = start_proxy(backend), start_proxy(backend)
    here, there = pool.connect(connect, one), pool.connect(connect, two)
    for c in there:  # the family is there already
        name = pool.key()
        assert acquire(c, name) and c("DEL", name) == 1
    pool.learn(*here)
    until(lambda: is_pooled(there[0], pool), 10, "what the other proxy has learnt")
    (report,) = reports(there[0])
    assert "another proxy has learnt" in report["action"] and pool.name in report["client"]
    assert holder_s_release_over_a_loser_s_connection(pool, *there) == 1
    assert len(reports(here[0])) == 1, "once"


def test_a_proxy_without_clients_learns_too(backend, start_proxy, connect, pool):
    one, two = start_proxy(backend), start_proxy(backend)
    with two.client() as watcher:
        known = knows(watcher)
    pool.learn(*pool.connect(connect, one))
    with two.client() as watcher:
        until(lambda: knows(watcher) > known, 30, "what the other proxy has learnt")
    assert holder_s_release_over_a_loser_s_connection(pool, *pool.connect(connect, two)) == 1


def test_a_take_over(backend, start_proxy, orphans, connect, pool):  # noqa: F811
    proxy = start_proxy(backend, "lock lock:*")
    before = pool.connect(connect, proxy)
    pool.learn(*before)
    after = take_over(proxy, orphans)
    a, b = pool.connect(connect, proxy)
    assert "process_id:%d" % after.pid in a("PROXY", "INFO") or "pid:%d" % after.pid in a("PROXY", "INFO")
    assert holder_s_release_over_a_loser_s_connection(pool, a, b) == 1
    for c in (a, b, *before):
        c.close()
    until(lambda: not proxy.running(), 30, "the predecessor's end")
    proxy.expected = False


def test_a_user_without_rights(start_redis, start_proxy, connect, pool):
    """Each proxy learns for itself, as if there were no record, and the log says so once."""
    redis = start_redis()
    redis.run("ACL", "SETUSER", "proxy", "on", ">p", "~lock:*", "~lockkeeper:{*}:lock:*", "&*", "+@all")
    lines = ["upstream-user proxy", "upstream-password p", "share-upstream-user yes"]
    for _ in range(2):
        proxy = start_proxy(redis, *lines)
        a, b = pool.connect(connect, proxy)
        assert holder_s_release_over_a_loser_s_connection(pool, a, b) == 0
        pool.learn(*pool.connect(connect, proxy))
        assert is_pooled(a, pool)
        until(lambda: "learnt of clients" in proxy.log(), 10, "the line in the log")
        proxy.stop()
        assert proxy.log().count("learnt of clients") == 1
    with redis.client() as direct:
        assert direct("EXISTS", RECORD) == 0


@pytest.mark.parametrize("rubbish", [
    ["SET", RECORD, "text"],
    ["ZADD", RECORD, "1", "x"],
    ["XADD", RECORD, "*", "client", "x"],
    ["XADD", RECORD, "18446744073709551615-1", "is", "pooled", "client", "x", "rule", "lock:*", "pattern", "lock:*"],
    ["XADD", RECORD, "1-1", "is", "pooled", "client", "x", "rule", "lock:*", "pattern", "lock:*"],
    ["XADD", RECORD, "*", "is", "pooled of  something later", "client", "x" * 5000, "rule", "\0", "pattern", ""],
], ids=["string", "sorted-set", "fields", "future", "past", "words"])
def test_rubbish_in_the_record(start_redis, start_proxy, connect, pool, rubbish):
    redis = start_redis()
    with redis.client() as direct:
        assert not isinstance(direct(*rubbish), Error)
        proxy = start_proxy(redis)
        a, b = pool.connect(connect, proxy)
        assert knows(a) == (rubbish[2].startswith("1844"))
        pool.learn(a, b)
        assert is_pooled(a, pool)
        stream = rubbish[0] == "XADD"
        if stream:
            until(lambda: any(pool.name in e.get("client", "") for e in entries(direct)), 10, "an entry")
        else:
            until(lambda: "learnt of clients" in proxy.log(), 10, "the line in the log")
            assert direct("TYPE", RECORD) == {"SET": "string", "ZADD": "zset"}[rubbish[0]]
        proxy.stop()
        assert proxy.log().count("learnt of clients") == int(not stream)


def test_the_record_is_lost(start_redis, start_proxy, connect, pool):
    """A proxy that runs goes on with what it knows, and reads what comes into the new record."""
    redis, later = start_redis(), Pool(pool.name + "-later")
    one, two = start_proxy(redis), start_proxy(redis)
    a, b = pool.connect(connect, one)
    pool.learn(a, b)
    with redis.client() as direct, two.client() as watcher:
        until(lambda: knows(watcher) == 1, 30, "the first entry")
        direct("FLUSHALL")
        assert is_pooled(a, pool)
        pool.learn(a, b)
        later.learn(*later.connect(connect, one))
        until(lambda: knows(watcher) == 2, 30, "the entry in the new record")
    assert holder_s_release_over_a_loser_s_connection(later, *later.connect(connect, two)) == 1


def test_clients_see_nothing_of_it(backend, start_proxy, connect, direct, pool):
    a, b = pool.connect(connect, start_proxy(backend))
    pool.learn(a, b)
    until(lambda: direct("EXISTS", RECORD) == 1, 10, "the record")
    assert RECORD not in a("KEYS", "*")
    assert isinstance(a("DEL", RECORD), Error) and direct("EXISTS", RECORD) == 1


def test_workers_with_connections_of_their_own(start_redis, start_proxy, connect, pool):
    """What is known of them is dropped in Redis when one of their releases crosses."""
    redis = start_redis()
    proxy = start_proxy(redis)
    a, b = pool.connect(connect, proxy)
    with redis.client() as direct:
        for holder, loser in [(a, b), (b, a)] * 10:
            name = pool.key()
            assert acquire(holder, name) and not acquire(loser, name)
            assert holder("DEL", name) == 1
        until(lambda: [e["is"] for e in entries(direct)] == ["dedicated"], 10, "the fact")
        mine, its = pool.key(), pool.key()
        assert acquire(a, mine) and acquire(b, its)
        assert b("DEL", mine) == 1
        until(lambda: entries(direct)[-1]["not"] == "dedicated", 10, "its end")
        assert knows(a) == 0
