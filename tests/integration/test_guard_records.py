"""Guard records that are lost, or that a Redis has never seen: what the proxy knows still counts."""

import time

import pytest

from helpers import monitored
from servers import RECORDS, is_watermark, until

hashes = pytest.mark.skipif(RECORDS == "short", reason="about guard records that are hashes")

FUTURE_US = 10 ** 12  # eleven days


def lock_facts(client, name):
    words = client("PROXY", "LOCK", name)
    return dict(zip(words[0::2], words[1::2]))


def guard_of(direct, backend, name):
    with backend.node_of(name).client() as node:
        return next(k for k in node("KEYS", "lockkeeper:*") if k.endswith("}:" + name))


@pytest.fixture
def pair(proxy, connect):
    """Two processes, as their names say."""
    return [connect(proxy, commands=[("CLIENT", "SETNAME", "process-%d" % i)]) for i in (1, 2)]


@hashes
def test_a_lease_whose_fence_has_gone_back_is_renewed(pair, backend, direct, key):
    """A master that has not heard of the record and the watermark, and whose clock is behind."""
    a, b = pair
    name = key("lock:short:fence")
    assert a("SETNX", name, "v") == 1
    guard = guard_of(direct, backend, name)
    assert a("DEL", name) == 1
    direct("HSET", guard, "fence", int(direct("HGET", guard, "fence")) + FUTURE_US)
    assert a("SETNX", name, "v") == 1
    high = a("PROXY", "TOKEN", name)
    for gone in (name, guard, *filter(is_watermark, backend.keys())):
        direct("DEL", gone)
    assert b("SETNX", name, "v") == 1
    assert b("PROXY", "TOKEN", name) < high - FUTURE_US // 2
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert a("SETNX", name, "v") == 0
    assert b("PROXY", "LOCKS", name) != []
    assert a("DEL", name) == 0 and b("DEL", name) == 1


@hashes
def test_a_lock_made_past_the_proxy_with_the_same_value(pair, backend, direct, key):
    """The record outlives its lease, and says nothing of what stands there after that: a late DEL frees nothing."""
    a, _ = pair
    name = key("lock:past")
    assert a("SET", name, 1, "NX", "PX", 100) == "OK"
    until(lambda: direct("EXISTS", name) == 0, 5, "the lease's end")
    assert direct("SET", name, 1, "PX", 60000) == "OK"
    assert direct("EXISTS", guard_of(direct, backend, name)) == 1
    assert a("DEL", name) == 0
    assert direct("EXISTS", name) == 1


@pytest.mark.parametrize("ms", [2000, 3000])
@hashes
def test_an_expiry_set_past_the_proxy(pair, backend, direct, key, ms):
    """A watchdog that goes to Redis directly: the lease goes on, and its holder's DEL frees it."""
    a, b = pair
    name = key("lock:watched")
    assert a("SET", name, 1, "NX", "PX", 60000) == "OK" and a("DEL", name) == 1  # it is known to release
    assert a("SET", name, 1, "NX", "PX", ms) == "OK"
    guard = guard_of(direct, backend, name)
    deadline = time.monotonic() + 2 * ms / 1000
    while time.monotonic() < deadline:
        assert direct("PEXPIRE", name, ms) == 1
        time.sleep(ms / 20000)
    assert direct("PTTL", guard) > 10000
    direct("PEXPIRE", name, 60000)
    until(lambda: direct("PTTL", guard) > 60000, 15, "the record that follows its lock")
    assert lock_facts(b, name)["state"] == "held"
    assert b("DEL", name) == 0 and a("DEL", name) == 1


@hashes
def test_a_renewal_sees_an_expiry_set_past_the_proxy(pair, backend, direct, key):
    a, b = pair
    name = key("lock:short:watched")
    assert a("SETNX", name, 1) == 1
    guard = guard_of(direct, backend, name)
    direct("PEXPIRE", name, 60000)
    until(lambda: direct("PTTL", guard) > 60000, 15, "the record that follows its lock")
    assert b("DEL", name) == 0 and a("DEL", name) == 1


@hashes
def test_a_record_without_an_end_gets_none_that_could_pass(pair, backend, direct, key):
    """A lock without an expiry has a guard record without one. Redis deletes a key whose new expiry passes before it is set, so
    that no script tries its rights with an expiry of a moment."""
    a, _ = pair
    name = key("lock:nolease:for:ever")
    assert a("SETNX", name, "v") == 1
    guard = guard_of(direct, backend, name)
    assert direct("PTTL", guard) == -1

    def change():
        assert a("GETSET", name, "w") == "v"
        assert a("SET", name, "v") == "OK"
        assert a("APPEND", name, "w") == 2
        assert a("EXPIRE", name, 60) == 1
        assert a("PERSIST", name) == 1

    expiries = [words for words, _ in monitored(backend.node_of(name), change) if words[:2] == ["PEXPIRE", guard]]
    assert expiries and not [words for words in expiries if int(words[2]) < 1000]
    assert direct("PTTL", guard) == -1
