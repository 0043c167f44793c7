"""A rule's `quorum yes`: Redis and a majority of three witnesses, real servers, confirm a lock. What Redis forgets, the witnesses
remember; what a witness forgets, it does not vote about."""

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

import servers
from resp import Client, Error, encode
from servers import until

TIMEOUT = 30
QUORUM = "lock lock:q:* quorum yes"


ACQUIRE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
ACQUIRE_ALL = "for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) end return 'OK'"
EXTEND = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end"


def trust(proxy, *witnesses):
    with Client(proxy.address) as c:
        for w in witnesses:
            assert c("PROXY", "WITNESS", "TRUST", "%s:%d" % w.address) == "OK"


class Setting:
    """Redis, three witnesses that are trusted, and a proxy."""

    def __init__(self, backend, start_redis, start_proxy, *lines, rule=QUORUM, count=3):
        self.backend = backend
        self.witnesses = [start_redis() for _ in range(count)]
        self.lines = ["witness " + " ".join("%s:%d" % w.address for w in self.witnesses), *lines, rule, "lock lock:*"]
        self.proxy = start_proxy(backend, *self.lines)
        trust(self.proxy, *self.witnesses)

    def forget(self, key):
        """Redis forgets the lock and its guard record, as a failover to a replica without them makes it forget."""
        for node in [self.backend] if self.backend.kind == "standalone" else self.backend.nodes:
            for name in node.run("KEYS", "*"):
                if name.endswith(key):
                    node.run("DEL", name)

    def client(self, connect, name):
        """A client of its own: it has another identity than the others."""
        client = connect(self.proxy)
        assert client("CLIENT", "SETNAME", name) == "OK"
        return client


@pytest.fixture
def setting(backend, start_redis, start_proxy):
    return Setting(backend, start_redis, start_proxy, "witness-timeout 1s")


def record(witness, key):
    flat = witness.run("HGETALL", "lockkeeper-witness::0:" + key)
    return dict(zip(flat[0::2], flat[1::2]))


def incidents(client, kind):
    found = [dict(zip(i[0::2], i[1::2])) for i in client("PROXY", "INCIDENTS", 1000)]
    return [i["key"] for i in found if i["kind"] == kind]


def free_again(client, key):
    assert client("EXISTS", key) == 0, "it was released before its client heard of the refusal"


def test_a_lock_has_records_at_the_witnesses_while_it_is_held(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    for n, command in enumerate((("SETNX", "1"), ("SET", "1", "NX", "PX", "20000"), ("SET", "1", "EX", "20"))):
        key = "lock:q:a%d" % n
        assert a(command[0], key, *command[1:]) in (1, "OK")
        fence = str(a("PROXY", "TOKEN", key))
        records = [record(w, key) for w in setting.witnesses]
        assert sum(r.get("fence") == fence for r in records) >= 2, records
        until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the third")
        assert b("SETNX", key, "2") == 0
        ends = setting.witnesses[0].run("PTTL", "lockkeeper-witness::0:" + key)
        assert ends > a("PTTL", key) + 10000, "the witnesses keep it longer than Redis"
        assert a("PEXPIRE", key, "60000") == 1
        until(lambda: setting.witnesses[0].run("PTTL", "lockkeeper-witness::0:" + key) > 70000, TIMEOUT, "the extension")
        assert b("DEL", key) == 0
        assert a("DEL", key) == 1
        until(lambda: not any(record(w, key)["token"] for w in setting.witnesses), TIMEOUT, "the release")
        assert b("SETNX", key, "2") == 1, "it is free at once"
        assert b("DEL", key) == 1


def test_what_redis_forgets_the_witnesses_remember(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    assert a("SETNX", "lock:plain", "1") == 1
    setting.forget("lock:plain")
    assert b("SETNX", "lock:plain", "2") == 1, "two hold it: that is what quorum is for"
    assert a("SETNX", "lock:q:f", "1") == 1
    before = a("PROXY", "TOKEN", "lock:q:f")
    setting.forget("lock:q:f")
    for node in [setting.backend] if setting.backend.kind == "standalone" else setting.backend.nodes:
        node.run("SCRIPT", "FLUSH")
    assert b("SETNX", "lock:q:f", "2") == 0
    free_again(b, "lock:q:f")
    assert b("SET", "lock:q:f", "2", "NX", "EX", "30") is None
    free_again(b, "lock:q:f")
    reply = b("SET", "lock:q:f", "2", "EX", "30")
    assert isinstance(reply, Error) and reply.startswith("LOCKED"), reply
    assert incidents(b, "remembered") == ["lock:q:f"] * 3
    free_again(b, "lock:q:f")
    assert a("DEL", "lock:q:f") == 1, "the holder releases what Redis does not know any more"
    until(lambda: b("SETNX", "lock:q:f", "2") == 1, TIMEOUT, "the lock")
    assert b("PROXY", "TOKEN", "lock:q:f") > before


def test_the_holder_releases_while_others_try(setting, connect):
    """Redis has forgotten the lock, and shows another client's attempt while its witnesses are asked. That is no evidence
    that the lease is over: its holder's release answers 1, and reaches the witnesses."""
    a, b, c = (setting.client(connect, name) for name in "abc")
    assert a("SETNX", "lock:q:h", "1") == 1
    setting.forget("lock:q:h")
    for w in setting.witnesses[:2]:
        w.pause()
    b.send(encode("SETNX", "lock:q:h", "2"))
    until(lambda: c("EXISTS", "lock:q:h") == 1, TIMEOUT, "the attempt", 0.01)
    assert c("SETNX", "lock:q:h", "3") == 0
    assert a("DEL", "lock:q:h") == 1
    for w in setting.witnesses[:2]:
        w.resume()
    b.read()
    until(lambda: c("SETNX", "lock:q:h", "3") == 1, TIMEOUT, "the lock")
    assert a("DEL", "lock:q:h") == 0


def test_fences_grow_across_what_was_forgotten(setting, connect):
    a = connect(setting.proxy)
    assert a("SETNX", "lock:q:g", "1") == 1
    ahead = a("PROXY", "TOKEN", "lock:q:g") + 3600 * 1000 * 1000
    assert a("DEL", "lock:q:g") == 1
    for w in setting.witnesses:  # a lease of a master whose clock was an hour ahead
        w.run("HSET", "lockkeeper-witness::0:lock:q:g", "token", "", "fence", ahead)
    assert a("SETNX", "lock:q:g", "1") == 1
    assert a("PROXY", "TOKEN", "lock:q:g") == ahead + 1
    assert a("PEXPIRE", "lock:q:g", "20000") == 1
    assert a("DEL", "lock:q:g") == 1
    assert a("SETNX", "lock:q:g", "1") == 1 and a("PROXY", "TOKEN", "lock:q:g") == ahead + 2


def test_one_witness_may_be_down(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    setting.witnesses[0].stop()
    for n in range(20):
        assert a("SETNX", "lock:q:d%d" % n, "1") == 1
        assert a("EXPIRE", "lock:q:d%d" % n, "20") == 1
        assert b("SETNX", "lock:q:d%d" % n, "1") == 0
        assert a("DEL", "lock:q:d%d" % n) == 1
    until(lambda: "does not answer" in setting.proxy.log(), TIMEOUT, "the log")


def test_without_a_majority_no_lock(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    assert a("SETNX", "lock:q:held", "1") == 1
    for w in setting.witnesses[:2]:
        w.pause()
    reply = b("SETNX", "lock:q:m", "1")
    assert isinstance(reply, Error) and reply.startswith(
        "UPSTREAM the lock was not confirmed by its witnesses (1 of 3 answered); it is released again"), reply
    free_again(b, "lock:q:m")
    reply = a("PEXPIRE", "lock:q:held", "50000")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM the extension was not confirmed"), reply
    assert b("SETNX", "lock:q:held", "2") == 0, "what is held is lost by no witness's silence"
    assert incidents(b, "unconfirmed") == ["lock:q:m"]
    until(lambda: "locks_not_ready:locks under quorum can't be acquired: 1 of 3 witnesses vote" in a("PROXY", "INFO"), TIMEOUT, "the truth")
    for w in setting.witnesses[:2]:
        w.resume()
    until(lambda: b("SETNX", "lock:q:m", "1") == 1, TIMEOUT, "the lock")
    until(lambda: "locks_ready:yes" in a("PROXY", "INFO"), TIMEOUT, "the truth")
    assert a("DEL", "lock:q:held") == 1


def test_a_lost_message_of_a_release(setting, connect):
    """A witness that has not heard of a release gives its record up: the guard record says that the lease was released."""
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    assert a("SETNX", "lock:q:o", "1") == 1
    until(lambda: all(record(w, "lock:q:o").get("token") for w in setting.witnesses), TIMEOUT, "the records")
    records = [record(w, "lock:q:o") for w in setting.witnesses]
    assert a("DEL", "lock:q:o") == 1
    until(lambda: not any(record(w, "lock:q:o")["token"] for w in setting.witnesses), TIMEOUT, "the release")
    for w, r in zip(setting.witnesses, records):
        w.run("HSET", "lockkeeper-witness::0:lock:q:o", "token", r["token"])
    assert b("SETNX", "lock:q:o", "2") == 1
    assert b("DEL", "lock:q:o") == 1


def test_what_redis_notes_of_another_attempt_is_no_release(setting, connect):
    """A lease that was acquired together with the release of an earlier one has noted its own token, and is live."""
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    assert a("SETNX", "lock:q:t", "1") == 1
    token = next(r["token"] for r in (record(w, "lock:q:t") for w in setting.witnesses) if r)
    setting.forget("lock:q:t")
    assert b("SETNX", "lock:q:t", "2") == 0
    free_again(b, "lock:q:t")
    for node in [setting.backend] if setting.backend.kind == "standalone" else setting.backend.nodes:
        for name in node.run("KEYS", "lockkeeper:*lock:q:t"):
            node.run("HSET", name, "attempt", token)
    assert b("SETNX", "lock:q:t", "2") == 0
    assert a("DEL", "lock:q:t") == 1


def test_a_witness_that_was_started_again_does_not_vote(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    one, two, three = setting.witnesses
    assert a("SETNX", "lock:q:e", "1") == 1
    for w in (two, three):  # empty, as they keep no file
        w.kill()
        w.start()
    setting.forget("lock:q:e")
    until(lambda: "in quarantine" in str(b("SETNX", "lock:q:x", "2")) + setting.proxy.log(), TIMEOUT, "the quarantine")
    reply = b("SETNX", "lock:q:e", "2")
    assert reply == 0 or str(reply).startswith("UPSTREAM"), "one remembers, two may have forgotten"
    assert a("DEL", "lock:q:e") == 1
    reply = b("SETNX", "lock:q:e", "2")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed"), reply
    trust(setting.proxy, two)
    until(lambda: b("SETNX", "lock:q:e", "2") == 1, TIMEOUT, "the lock")
    assert isinstance(b("PROXY", "WITNESS", "TRUST", "127.0.0.1:1"), Error)


def test_the_quarantine_ends(backend, start_redis, start_proxy, connect):
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 100ms", "witness-quarantine 4s",
                rule="lock lock:q:* quorum yes lease 2s handover 2s", count=1)
    a = connect(s.proxy)
    assert a("SETNX", "lock:q:a", "1") == 1
    s.witnesses[0].kill()
    s.witnesses[0].start()
    until(lambda: "in quarantine" in str(a("SETNX", "lock:q:b", "1")) + s.proxy.log(), TIMEOUT, "the quarantine")
    replies = set()
    until(lambda: replies.add(str(a("SETNX", "lock:q:b", "1"))) or "1" in replies, TIMEOUT, "its end")
    assert any(reply.startswith("UPSTREAM") for reply in replies), replies
    assert all(reply in ("0", "1") or reply.startswith("UPSTREAM") for reply in replies), replies
    assert a("DEL", "lock:q:b") == 1


def test_leases_are_renewed_at_the_witnesses(backend, start_redis, start_proxy, connect):
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 1s", rule="lock lock:q:* quorum yes lease 4s")
    a, b = s.client(connect, "a"), s.client(connect, "b")
    until(lambda: a("SETNX", "lock:q:r", "1") == 1, TIMEOUT, "the lock")
    until(lambda: int(dict(line.split(":", 1) for line in a("PROXY", "INFO").splitlines() if ":" in line)["renewals"]) >= 4,
          TIMEOUT, "four renewals")
    until(lambda: all(record(w, "lock:q:r").get("token") for w in s.witnesses), TIMEOUT, "the records")
    assert s.witnesses[0].run("PTTL", "lockkeeper-witness::0:lock:q:r") > 10000
    s.forget("lock:q:r")
    assert b("SETNX", "lock:q:r", "2") == 0


def test_what_is_not_supported_is_refused(setting, connect):
    a = connect(setting.proxy)
    for command in (("EXPIRE", "lock:q:n", "3600"), ("SET", "lock:q:n", "1", "NX", "EX", "3600"), ("SETEX", "lock:q:n", "3600", "1"),
                    ("SET", "lock:q:n", "1", "NX", "EX", "1000000000000000"), ("SET", "lock:q:n", "1", "NX", "PX", "1000000000000000"),
                    ("EXPIRE", "lock:q:n", "1000000000000000")):
        reply = a(*command)
        assert isinstance(reply, Error) and "under quorum lasts" in reply and "nothing was changed" in reply, (command, reply)
    reply = a("SET", "lock:q:n", "1", "NX", "EX", str(-(1 << 63)))  # Redis answers
    assert isinstance(reply, Error) and "invalid expire" in reply, reply
    for other in ("data:{lock:q:n}", "lock:plain:{lock:q:n}"):  # data can't be given back, and other locks are not confirmed
        reply = a("MSETNX", "lock:q:n", "1", other, "1")
        assert isinstance(reply, Error) and "under quorum" in reply and a("EXISTS", other) == 0, reply
    assert a("MULTI") == "OK"
    reply = a("SET", "lock:q:n", "1", "NX", "EX", "3600")
    assert isinstance(reply, Error) and "under quorum lasts" in reply, reply
    assert isinstance(a("EXEC"), Error)
    assert a("EXISTS", "lock:q:n") == 0
    assert a("SETNX", "lock:q:n", "1") == 1
    assert a.pipeline([("MULTI",), ("DEL", "lock:q:n"), ("EXEC",)])[-1] == b"*1\r\n:1\r\n"
    assert a("SETNX", "lock:q:n", "1") == 1


def test_the_first_release_comes_before_a_later_attempt(setting, connect):
    """New witnesses do not know the script of releases. The first release reaches them before an attempt that follows it, also
    if they get both at once, and Redis does not know of the release."""
    a, b, key = setting.client(connect, "a"), setting.client(connect, "b"), "lock:q:first"
    until(lambda: a("SETNX", key, "a") == 1, TIMEOUT, "the lock")
    until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the records")
    setting.forget(key)
    for w in setting.witnesses:
        w.pause()
    assert a("DEL", key) == 1, "a release waits for no witness"
    b.send(encode("SETNX", key, "b"))
    time.sleep(0.2)  # both are on their way to the witnesses
    for w in setting.witnesses:
        w.resume()
    assert b.read() == 1
    assert incidents(b, "remembered") == []


def pair_of(n):
    return "lock:q:{m}a%d" % n, "lock:q:{m}b%d" % n


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "MULTI"])
def test_several_locks_or_none(setting, connect, inside):
    """MSETNX of several keys: the witnesses confirm all of them, or all are released again."""
    a, b = setting.client(connect, "a"), setting.client(connect, "b")

    def msetnx(client, keys):
        words = ["MSETNX"] + [word for key in keys for word in (key, client("CLIENT", "GETNAME"))]
        if not inside:
            return client(*words)
        assert client("MULTI") == "OK" and client(*words) == "QUEUED"
        return client("EXEC")[0]

    keys = pair_of(0)
    until(lambda: msetnx(a, keys) == 1, TIMEOUT, "both locks")
    for key in keys:
        until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the records")
        assert b("SETNX", key, "b") == 0
    assert msetnx(b, keys) == 0
    for key in keys:
        setting.forget(key)
    assert a("DEL", keys[0]) == 1, "its holder releases what Redis has forgotten"
    assert msetnx(b, keys) == 0
    assert [b("EXISTS", key) for key in keys] == [0, 0], "nothing is left of the attempt"
    assert incidents(b, "remembered") == [keys[1]]
    assert a("DEL", keys[1]) == 1
    until(lambda: msetnx(b, keys) == 1, TIMEOUT, "both locks")
    assert [b("DEL", key) for key in keys] == [1, 1]
    for w in setting.witnesses[1:]:
        w.pause()
    keys = pair_of(1)
    reply = msetnx(a, keys)
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed"), reply
    assert [a("EXISTS", key) for key in keys] == [0, 0]
    for w in setting.witnesses[1:]:
        w.resume()


def test_scripts_inside_multi(setting, connect):
    """What a script has acquired or extended is confirmed behind EXEC. Where it is not, the script's element is an error."""
    a, b, key = setting.client(connect, "a"), setting.client(connect, "b"), "lock:q:{s}"

    def multi(client, *commands):
        assert client("MULTI") == "OK"
        assert [client(*c) for c in commands] == ["QUEUED"] * len(commands)
        return client("EXEC")

    acquire = ("EVAL", ACQUIRE, "1", key, "me", "20000")
    until(lambda: multi(a, acquire, ("GET", key)) == ["OK", "me"], TIMEOUT, "the lock")
    until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the records")
    assert multi(b, acquire, ("GET", key)) == [None, "me"]
    assert multi(a, ("EVAL", EXTEND, "1", key, "me", "60000")) == [1]
    one = setting.witnesses[0]
    until(lambda: one.run("PTTL", "lockkeeper-witness::0:" + key) > 70000, TIMEOUT, "the extension")
    setting.forget(key)
    replies = multi(b, acquire, ("ECHO", "b"))
    assert isinstance(replies[0], Error) and replies[0].startswith("LOCKED") and replies[1] == "b", replies
    free_again(b, key)
    assert incidents(b, "remembered") == [key]
    assert a("DEL", key) == 1
    until(lambda: multi(b, acquire, ("PEXPIRE", key, "50000")) == ["OK", 1], TIMEOUT, "the lock")
    assert multi(b, ("EVAL", RELEASE, "1", key, "me")) == [1]
    until(lambda: not any(record(w, key)["token"] for w in setting.witnesses), TIMEOUT, "the release")


def transaction(client, *commands):
    """The elements of EXEC's array, as bytes."""
    reply = client.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
    head = b"*%d\r\n" % len(commands)
    assert reply.startswith(head), reply
    return reply[len(head):]


def test_transactions(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    one, key = setting.witnesses[0], "lock:q:tx"
    take = (("SETNX", key, "1"), ("EXPIRE", key, "60"), ("GET", key))
    assert transaction(a, *take) == b":1\r\n:1\r\n$1\r\n1\r\n"
    until(lambda: one.run("PTTL", "lockkeeper-witness::0:" + key) > 70000, TIMEOUT, "the end that EXPIRE has set")
    assert record(one, key)["fence"] == str(a("PROXY", "TOKEN", key))
    assert transaction(b, *take) == b":0\r\n:0\r\n$1\r\n1\r\n"
    assert transaction(a, ("PEXPIRE", key, "90000"), ("SET", "k{%s}" % key, "v")) == b":1\r\n+OK\r\n"
    until(lambda: one.run("PTTL", "lockkeeper-witness::0:" + key) > 100000, TIMEOUT, "the extension")
    assert transaction(a, ("DEL", key), ("SETNX", key, "1")) == b":1\r\n:1\r\n", "the lease makes way for the next one"
    until(lambda: record(one, key)["fence"] == str(a("PROXY", "TOKEN", key)), TIMEOUT, "the next one")
    assert transaction(a, ("DEL", key)) == b":1\r\n"
    assert transaction(a, ("SET", key, "1", "NX"), ("DEL", key)) == b"+OK\r\n:1\r\n"
    assert b("SETNX", key, "1") == 1 and b("DEL", key) == 1


def test_what_redis_forgets_in_transactions(setting, connect):
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    key = "lock:q:tf"
    assert transaction(a, ("SET", key, "1", "NX", "PX", "60000")) == b"+OK\r\n"
    setting.forget(key)
    assert transaction(b, ("SETNX", key, "2"), ("EXPIRE", key, "60"), ("SET", key, "3", "XX")).startswith(b":0\r\n:0\r\n-LOCKED ")
    free_again(b, key)
    assert transaction(b, ("SET", key, "2", "NX", "EX", "60"), ("GET", key), ("DEL", key)) == b"$-1\r\n$1\r\n2\r\n:0\r\n"
    free_again(b, key)
    assert incidents(b, "remembered") == [key] * 2
    assert transaction(a, ("DEL", key)) == b":1\r\n", "the holder releases what Redis does not know any more"
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the lock")
    for w in setting.witnesses[1:]:
        w.pause()
    found = transaction(b, ("PEXPIRE", key, "50000"), ("SETNX", "lock:q:{%s}" % key, "1"))
    assert found.count(b"-UPSTREAM the ") == 2 and b"lock was not confirmed by its witnesses (1 of 3" in found, found
    free_again(b, "lock:q:{%s}" % key)
    for w in setting.witnesses[1:]:
        w.resume()
    assert b("DEL", key) == 1


@pytest.mark.parametrize("acquire, again, release", (
    (("HSETNX", "{}", "f", "1"), ("HINCRBY", "{}", "f", "1"), ("HDEL", "{}", "f")),
    (("HINCRBY", "{}", "f", "1"), ("HINCRBY", "{}", "f", "1"), ("HINCRBY", "{}", "f", "-1")),
    (("INCR", "{}"), ("INCR", "{}"), ("DECR", "{}")),
))
def test_hashes_and_counters(backend, start_redis, start_proxy, connect, acquire, again, release):
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 1s", rule="lock lock:q:* kind string,hash,counter quorum yes lease 60s")
    a, b = s.client(connect, "a"), s.client(connect, "b")
    key = "lock:q:kinds"
    acquire, again, release = (tuple(word.format(key) for word in command) for command in (acquire, again, release))
    for holder, other in ((a, b), (b, a)):
        assert holder(*acquire) == 1
        until(lambda: all(record(w, key).get("token") for w in s.witnesses), TIMEOUT, "the records")
        records = [record(w, key) for w in s.witnesses]
        assert records[0]["fence"] == str(holder("PROXY", "TOKEN", key))
        if acquire[0] == "HSETNX":
            assert other(*acquire) == 0
        assert holder("EXPIRE", key, "90") == 1
        until(lambda: s.witnesses[0].run("PTTL", "lockkeeper-witness::0:" + key) > 100000, TIMEOUT, "the extension")
        assert holder(*release) in (0, 1)
        until(lambda: not any(record(w, key)["token"] for w in s.witnesses), TIMEOUT, "the release")
        for w, r in zip(s.witnesses, records):  # the message of the release is lost
            w.run("HSET", "lockkeeper-witness::0:" + key, "token", r["token"])
    ahead = int(records[0]["fence"]) + 3600 * 1000 * 1000
    for w in s.witnesses:  # a lease of a master whose clock was ahead
        w.run("HSET", "lockkeeper-witness::0:" + key, "token", "", "fence", ahead)
    assert a(*acquire) == 1 and a("PROXY", "TOKEN", key) == ahead + 1
    assert a(*again) == 2 and a("EXISTS", key) == 1
    s.forget(key)
    reply = b(*again)
    assert isinstance(reply, Error) and reply.startswith("LOCKED the lock is held, as its witnesses remember"), reply
    free_again(b, key)
    if acquire[0] == "HSETNX":
        assert b(*acquire) == 0
        free_again(b, key)
    assert a("DEL", key) == 1
    until(lambda: b(*acquire) == 1, TIMEOUT, "the lock")
    assert transaction(b, release, acquire)[-4:] == b":1\r\n"


def test_another_proxy_goes_on(backend, start_redis, start_proxy, connect):
    """A holder that comes back at another proxy keeps its lease there, and the witnesses hear of its new token."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 2s", rule="lock lock:q:* quorum yes lease 5s one-shot 0")
    other = start_proxy(backend, *s.lines)
    a, b, key = s.client(connect, "a"), s.client(connect, "b"), "lock:q:next"
    watch = connect(other)
    until(lambda: "locks_evictable:no" in watch("PROXY", "INFO", "upstreams"), TIMEOUT, "the other proxy's first look around")
    assert a("SETNX", key, "1") == 1
    until(lambda: all(record(w, key).get("token") for w in s.witnesses), TIMEOUT, "the records")
    first = record(s.witnesses[0], key)
    a.close()
    a = connect(other)
    assert a("CLIENT", "SETNAME", "a") == "OK"
    until(lambda: all(record(w, key).get("token", "") != first["token"] for w in s.witnesses), TIMEOUT, "the other proxy's token")
    until(lambda: int(a("PROXY", "INFO").split("\nrenewals:")[1].split()[0]) >= 2, TIMEOUT, "renewals there")
    assert b("SETNX", key, "2") == 0
    now = record(s.witnesses[0], key)
    assert now["fence"] == first["fence"] == str(a("PROXY", "TOKEN", key))
    s.forget(key)
    assert b("SETNX", key, "2") == 0, "the witnesses remember it"
    free_again(b, key)
    assert a("DEL", key) == 1
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the lock")


def test_a_release_through_another_proxy(setting, start_proxy, connect):
    other = start_proxy(setting.backend, *setting.lines)
    a, b, key = setting.client(connect, "a"), setting.client(connect, "b"), "lock:q:elsewhere"
    there = connect(other)
    assert there("CLIENT", "SETNAME", "a") == "OK"
    assert a("SETNX", key, "1") == 1
    until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the records")
    records = [record(w, key) for w in setting.witnesses]
    assert there("DEL", key) == 1
    until(lambda: not any(record(w, key)["token"] for w in setting.witnesses), TIMEOUT, "the release")
    for w, r in zip(setting.witnesses, records):  # its message is lost
        w.run("HSET", "lockkeeper-witness::0:" + key, "token", r["token"])
    assert b("SETNX", key, "2") == 1


ATTEMPTS = {"SETNX": (("SETNX", "K", "2"), 1, 0), "SET NX": (("SET", "K", "2", "NX", "PX", "60000"), "OK", None),
            "SET NX PXAT": (("SET", "K", "2", "NX", "PXAT", "SOON"), "OK", None),
            "MSETNX": (("MSETNX", "K", "2"), 1, 0)}


@pytest.mark.parametrize("form", ATTEMPTS)
def test_a_session_waits_on_where_the_witnesses_refuse(backend, start_redis, start_proxy, connect, form):
    """Redis has forgotten the lock and grants it, and its witnesses name the holder: the session waits for the holder's release, or
    gets the refusal when its time is over."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 5s", "lock lock:q:short:* quorum yes wait 1s",
                rule="lock lock:q:* quorum yes wait 1m")
    a, b, c = (s.client(connect, name) for name in "abc")
    words, granted, refused = ATTEMPTS[form]

    def attempt(key):
        soon = "%d" % (1000 * time.time() + 120000)
        return encode(*(key if w == "K" else soon if w == "SOON" else w for w in words))

    key, short = "lock:q:waits", "lock:q:short:k"
    assert [a("SET", k, "1", "NX", "PX", "60000") for k in (key, short)] == ["OK", "OK"]
    for k in (key, short):
        s.forget(k)
    b.send(attempt(short))
    assert b.read() == refused
    assert a("EXISTS", short) == 0
    b.send(attempt(key))
    until(lambda: key in incidents(a, "remembered"), TIMEOUT, "the refusal by the witnesses")
    c.send(attempt(key))
    until(lambda: waiting(a) == 2, TIMEOUT, "both wait")
    assert incidents(a, "remembered").count(key) <= 2 and short in incidents(a, "remembered"), "one for each wait"
    assert a("DEL", key) == 1
    first = select.select([b.sock, c.sock], [], [], TIMEOUT)[0][0]
    for x in [b, c] if first is b.sock else [c, b]:  # the second may ask while the first one's witnesses are asked
        assert x.read() == granted
        assert x("DEL", key) == 1


def waiting(client):
    return int(re.search(r"^waiting:(\d+)", client("PROXY", "INFO", "locks"), re.M)[1])


def test_a_wait_ends_with_the_record_of_a_lease_that_is_lost(backend, start_redis, start_proxy, connect):
    """The holder has gone, and Redis has forgotten it. Others get the lock when the witnesses' record is over."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 2s", rule="lock lock:q:* quorum yes wait 1m")
    a, b, key = s.client(connect, "a"), s.client(connect, "b"), "lock:q:lost"
    until(lambda: a("SET", key, "1", "NX", "PX", "4000") == "OK", TIMEOUT, "the lock")
    a.crash()
    b.sock.settimeout(TIMEOUT)
    s.forget(key)
    assert b("SETNX", key, "2") == 1
    assert b("DEL", key) == 1


def test_an_operator_ends_a_lock_delay(backend, start_redis, start_proxy, connect):
    """At Redis and at the witnesses: another client acquires at once."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 1s", rule="lock lock:q:* quorum yes lock-delay 10s")
    a, b, key = s.client(connect, "a"), s.client(connect, "b"), "lock:q:delay"
    assert a("SET", key, "1", "NX", "PX", "300") == "OK"
    until(lambda: a("EXISTS", key) == 0, TIMEOUT, "the lease's end")
    assert b("SETNX", key, "2") == 0
    assert b("PROXY", "RELEASE", key) == 1
    s.forget(key)
    until(lambda: b("SETNX", key, "2") == 1, 8, "the lock, before the delay would be over")


def test_with_lock_delay(backend, start_redis, start_proxy, connect):
    """The witnesses keep others out for as long as Redis does, and a late release ends both."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 1s", rule="lock lock:q:* quorum yes lock-delay 10s")
    a, b, key = s.client(connect, "a"), s.client(connect, "b"), "lock:q:delay"
    assert a("SET", key, "1", "NX", "PX", "2000") == "OK"
    until(lambda: all(record(w, key).get("token") for w in s.witnesses), TIMEOUT, "the records")
    assert s.witnesses[0].run("PTTL", "lockkeeper-witness::0:" + key) > 15000, "lease, delay, and 10 s for the fence"
    until(lambda: a("EXISTS", key) == 0, TIMEOUT, "the lease's end")
    assert b("SETNX", key, "2") == 0
    s.forget(key)
    assert b("SETNX", key, "2") == 0, "Redis has forgotten the delay"
    free_again(b, key)
    assert a("DEL", key) == 0, "too late, but its holder has finished"
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the lock")


def test_fenced_data(backend, start_redis, start_proxy, connect):
    """The data's check goes by the fence that the witnesses have confirmed, also if the proxy had to raise it."""
    s = Setting(backend, start_redis, start_proxy, "witness-timeout 1s", "fence stock:* by lock:q:*")
    a, b, key = s.client(connect, "a"), s.client(connect, "b"), "lock:q:7"
    for w in s.witnesses:
        w.run("HSET", "lockkeeper-witness::0:" + key, "token", "", "fence", 3 * 10**15)
    assert a("SET", key, "1", "NX", "PX", "2000") == "OK" and a("PROXY", "TOKEN", key) == 3 * 10**15 + 1
    assert a("SET", "stock:7", "a") == "OK"
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the end of the lease, for the witnesses too")
    reply = a("SET", "stock:7", "late")
    assert isinstance(reply, Error) and reply.startswith("FENCED"), reply
    assert b("SET", "stock:7", "b") == "OK" and a("GET", "stock:7") == "b"


def test_with_replicas(start_redis, start_proxy, connect):
    """Replicas confirm first, then the witnesses; each may refuse."""
    found = servers.RedisSentinels(sentinels=1)
    try:
        s = Setting(found, start_redis, start_proxy, "witness-timeout 1s",
                    rule="lock lock:q:* quorum yes replicas 1 500ms\nlock lock:two:* quorum yes replicas 2 100ms")
        a, b, replica = s.client(connect, "a"), s.client(connect, "b"), found.nodes[1]
        until(lambda: a("SETNX", "lock:q:r", "1") == 1, TIMEOUT, "a replica")
        assert replica.run("GET", "lock:q:r") == "1" and a("WAIT", 1, 5000) == 1
        assert sum(bool(record(w, "lock:q:r").get("token")) for w in s.witnesses) >= 2
        assert transaction(a, ("SETNX", "lock:q:m", "1"), ("SETNX", "lock:two:m", "1")) == b":1\r\n:0\r\n"
        assert replica.run("GET", "lock:q:m") == "1" and record(s.witnesses[0], "lock:q:m")["token"]
        assert a("SETNX", "lock:two:s", "1") == 0
        for w in s.witnesses[1:]:
            w.pause()
        reply = b("SETNX", "lock:q:u", "1")
        assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed by its witnesses"), reply
        free_again(b, "lock:q:u")
        for w in s.witnesses[1:]:
            w.resume()
    finally:
        found.stop()


def lose_the_link(master, replica):
    """From here on the replica gets nothing from its master."""
    replica.run("CONFIG", "SET", "masteruser", "nobody")
    replica.run("CONFIG", "SET", "masterauth", "nothing")
    with master.client() as c:
        c("CLIENT", "KILL", "TYPE", "replica")


def test_a_failover_that_forgets(start_redis, start_proxy, connect):
    """The promoted replica has not got the locks. Without `quorum` two clients hold one; with it, one."""
    found = servers.RedisSentinels(sentinels=1)
    try:
        s = Setting(found, start_redis, start_proxy, "witness-timeout 1s", rule="lock lock:q:* quorum yes lease 60s")
        a, b = s.client(connect, "a"), s.client(connect, "b")
        assert a("SETNX", "lock:before", "1") == 1 and a("WAIT", 1, 5000) == 1
        master, replica = found.nodes
        lose_the_link(master, replica)
        assert a("SETNX", "lock:plain", "1") == 1
        assert a("SETNX", "lock:q:lost", "1") == 1
        fence = a("PROXY", "TOKEN", "lock:q:lost")
        new = found.failover(master)
        until(lambda: b("SET", "k", "v") == "OK" and new.run("GET", "k") == "v", TIMEOUT, "the new master")
        assert new.run("EXISTS", "lock:q:lost") == 0 and new.run("EXISTS", "lock:before") == 1
        assert b("SETNX", "lock:plain", "2") == 1, "two hold it"
        for _ in range(5):
            assert b("SETNX", "lock:q:lost", "2") == 0, "one holds it"
            free_again(b, "lock:q:lost")
        assert a("DEL", "lock:q:lost") == 1
        until(lambda: b("SETNX", "lock:q:lost", "2") == 1, TIMEOUT, "the lock")
        assert b("PROXY", "TOKEN", "lock:q:lost") > fence
        assert a("DEL", "lock:q:lost") == 0
    finally:
        found.stop()


@pytest.mark.parametrize("kind", ["single", "cluster"])
def test_real_failovers(kind):
    """Rounds of tests/soak/two_holders.py: workers of two proxies count how often two of them were inside."""
    run = subprocess.run([sys.executable, os.path.join(servers.ROOT, "tests/soak/two_holders.py"), "--backend", kind, "--rounds",
                          "2"], env={**os.environ, "LOCKKEEPER": servers.binary()}, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    plain, quorum = re.search(r"without quorum (\d+) double entries of \d+, with quorum (\d+) of", run.stdout).groups()
    assert int(plain) > 0 and quorum == "0", run.stdout


def test_embedded_witnesses(start_proxy, connect):
    """They are trusted at the start, and end with the proxy. One that ends by itself is started again, in quarantine."""
    proxy = start_proxy("embedded", "witness embedded", QUORUM)
    a = connect(proxy)
    assert a("SETNX", "lock:q:a", "1") == 1
    assert a("DEL", "lock:q:a") == 1
    assert a("PROXY", "RELOAD") == "OK"
    pids = [int(pid) for pid in re.findall(r"An embedded witness: .* pid (\d+)", proxy.log())]
    assert len(pids) == 3
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: "state=quarantined" in a("PROXY", "INFO"), TIMEOUT, "the witness, again")
    assert a("SETNX", "lock:q:a", "1") == 1
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: a("PROXY", "INFO").count("state=quarantined") == 2, TIMEOUT, "two in quarantine")
    assert a("SETNX", "lock:q:b", "1").startswith("UPSTREAM the lock was not confirmed")
    proxy.signal(signal.SIGTERM)
    until(lambda: not os.path.exists("/proc/%d" % pids[2]), TIMEOUT, "the end of the witnesses")


def test_what_is_shown(setting, connect):
    a = setting.client(connect, "a")
    assert a("SETNX", "lock:q:s", "1") == 1
    until(lambda: sum(line.startswith("witness") and ",state=up," in line for line in a("PROXY", "INFO").splitlines()) == 3,
          TIMEOUT, "the states")
    lines = dict(line.split(":", 1) for line in a("PROXY", "INFO").splitlines() if ":" in line)
    assert lines["quorum_granted"] == "1" and lines["quorum_unconfirmed"] == "0"
    for n, w in enumerate(setting.witnesses):
        assert lines["witness%d" % n].startswith("address=%s:%d,state=up," % w.address), lines
    assert "quorum yes" in str(a("PROXY", "EXPLAIN", "SETNX", "lock:q:s", "1"))
    setting.witnesses[1].kill()
    until(lambda: "state=down" in a("PROXY", "INFO"), TIMEOUT, "the state, without a lock")
    setting.witnesses[1].start()
    until(lambda: "state=quarantined" in a("PROXY", "INFO"), TIMEOUT, "the state, without a lock")
    trust(setting.proxy, setting.witnesses[1])
    until(lambda: "quarantined" not in a("PROXY", "INFO"), TIMEOUT, "its end")


def test_scripts_of_the_application(setting, connect):
    """What libraries send: SET NX and two scripts, or three scripts."""
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    one = setting.witnesses[0]
    for n, acquire in enumerate((("SET", "{}", "me", "NX", "PX", "20000"), ("EVAL", ACQUIRE, "1", "{}", "me", "20000"))):
        key = "lock:q:s%d" % n
        assert a(*[key if word == "{}" else word for word in acquire]) == "OK"
        until(lambda: all(record(w, key).get("token") for w in setting.witnesses), TIMEOUT, "the records")
        assert b("SET", key, "you", "NX", "PX", "20000") is None
        assert b("EVAL", ACQUIRE, "1", key, "you", "20000") is None
        assert a("EVAL", EXTEND, "1", key, "me", "60000") == 1
        until(lambda: one.run("PTTL", "lockkeeper-witness::0:" + key) > 70000, TIMEOUT, "the extension")
        assert b("EVAL", RELEASE, "1", key, "you") == 0
        assert a("EVAL", RELEASE, "1", key, "me") == 1
        until(lambda: not any(record(w, key)["token"] for w in setting.witnesses), TIMEOUT, "the release")
        assert b("EVAL", ACQUIRE, "1", key, "you", "20000") == "OK"
        setting.forget(key)
        reply = a("EVAL", ACQUIRE, "1", key, "me", "20000")
        assert isinstance(reply, Error) and reply.startswith("LOCKED"), reply
        free_again(a, key)
        assert a("SET", key, "me", "NX", "PX", "20000") is None
        free_again(a, key)
    assert incidents(a, "remembered") == ["lock:q:s1", "lock:q:s1", "lock:q:s0", "lock:q:s0"]
    for w in setting.witnesses[1:]:
        w.pause()
    reply = a("EVAL", ACQUIRE, "1", "lock:q:m", "me", "20000")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed by its witnesses (1 of 3"), reply
    free_again(a, "lock:q:m")
    client = Client(setting.proxy.address)
    client.send(encode("EVAL", ACQUIRE, "1", "lock:q:gone", "me", "20000"))
    until(lambda: a("EXISTS", "lock:q:gone") == 1 or "lock:q:gone" in incidents(a, "unconfirmed"), TIMEOUT, "the attempt", 0.01)
    client.close()
    until(lambda: a("EXISTS", "lock:q:gone") == 0, TIMEOUT, "the undoing", 0.01)
    for w in setting.witnesses[1:]:
        w.resume()


def test_scripts_on_several_locks(setting, connect):
    """One script acquires several locks, and names one of them twice: each lock has one vote."""
    a, b = setting.client(connect, "a"), setting.client(connect, "b")
    x, y, z = ("lock:q:{several}:" + name for name in "xyz")

    def acquire(*keys):
        return ("EVAL", ACQUIRE_ALL, len(keys), *keys, "me", "20000")

    assert a(*acquire(x, y, x)) == "OK"
    for key in x, y:
        fence = str(a("PROXY", "TOKEN", key))
        until(lambda: sum(record(w, key).get("fence") == fence for w in setting.witnesses) >= 2, TIMEOUT, "the records")
        assert b("SETNX", key, "2") == 0 and a("DEL", key) == 1
        until(lambda: not any(record(w, key)["token"] for w in setting.witnesses), TIMEOUT, "the release")
    for key in y, z:
        assert b("SETNX", key, "2") == 1
        setting.forget(key)
    for refused in ([y], [y, z]):  # one lock is refused, then two: the first one's error is the reply
        reply = a(*acquire(x, *refused, x, *refused))
        assert isinstance(reply, Error) and reply.startswith("LOCKED"), reply
        for key in refused:
            free_again(a, key)
        assert a("PROXY", "TOKEN", x) and a("DEL", x) == 1, "the others are confirmed"
    assert a.pipeline([("MULTI",), acquire(x, x), ("EXEC",), ("DEL", x)])[2:] == [b"*1\r\n$2\r\nOK\r\n", b":1\r\n"]
    assert incidents(a, "remembered") == [z, y, y], "one for each lock, in the order of the keys"
    until(lambda: not any(record(w, x)["token"] for w in setting.witnesses), TIMEOUT, "the release")
    for w in setting.witnesses[1:]:
        w.pause()
    reply = a(*acquire(x, "lock:q:{several}:new", x))
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM the lock was not confirmed by its witnesses"), reply
    free_again(a, x)
    free_again(a, "lock:q:{several}:new")
    with Client(setting.proxy.address) as client:
        client.send(encode(*acquire(x, "lock:q:{several}:gone", x)))
        until(lambda: a("EXISTS", x) == 1, TIMEOUT, "the attempt", 0.01)
    until(lambda: a("EXISTS", x, "lock:q:{several}:gone") == 0, TIMEOUT, "the undoing", 0.01)
    for w in setting.witnesses[1:]:
        w.resume()
    until(lambda: a(*acquire(x)) == "OK", TIMEOUT, "the lock")
