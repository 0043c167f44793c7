"""Guard records that are lost, or that Redis was told nothing of: what the proxy has been told goes on counting."""

import time

import pytest

from servers import until

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


def test_a_lease_whose_fence_has_gone_back_is_renewed(pair, backend, direct, key):
    """A master that has not heard of the record, and whose clock is behind."""
    a, b = pair
    name = key("lock:short:fence")
    assert a("SETNX", name, "v") == 1
    guard = guard_of(direct, backend, name)
    assert a("DEL", name) == 1
    direct("HSET", guard, "fence", int(direct("HGET", guard, "fence")) + FUTURE_US)
    assert a("SETNX", name, "v") == 1
    high = a("PROXY", "TOKEN", name)
    direct("DEL", name)
    direct("DEL", guard)
    assert b("SETNX", name, "v") == 1
    assert b("PROXY", "TOKEN", name) < high - FUTURE_US // 2
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert a("SETNX", name, "v") == 0
    assert b("PROXY", "LOCKS", name) != []
    assert a("DEL", name) == 0 and b("DEL", name) == 1
