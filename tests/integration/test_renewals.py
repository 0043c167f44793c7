"""Leases that the proxy renews: many in one call, and by itself what is not usual."""

import pytest

from servers import until

LEASE_MS = 6000


@pytest.fixture(params=["hash", "short"])
def proxy(request, backend, start_proxy):
    return start_proxy(backend, "guard-records " + request.param, "lock lock:* kind any lease %dms" % LEASE_MS)


def renewals(client):
    return int(client("PROXY", "INFO").split("renewals:")[1].split("\r")[0])


def calls(backend):
    """How many scripts the servers have run."""
    total = 0
    for node in backend.nodes if backend.kind == "cluster" else [backend]:
        stats = node.run("INFO", "commandstats")
        for name in ("cmdstat_evalsha:calls=", "cmdstat_eval:calls="):
            total += int(stats.split(name)[1].split(",")[0]) if name in stats else 0
    return total


def test_many_leases_go_together(proxy, backend, connect, direct):
    """Over whole leases, each lock is renewed, by fewer calls than there are locks."""
    client = connect(proxy)
    names = ["lock:{%d}:%d" % (tag, n) for tag in range(5) for n in range(40)]
    assert client.at_once(*[("SETNX", name, "v") for name in names]) == [1] * len(names)
    until(lambda: renewals(client) >= len(names), 2 * LEASE_MS / 1000, "a first renewal")
    begun, called = renewals(client), calls(backend)
    until(lambda: renewals(client) >= begun + 3 * len(names), 2 * LEASE_MS / 1000, "three more renewals")
    assert calls(backend) - called < (renewals(client) - begun) / 4
    assert all(0 < direct("PTTL", name) <= LEASE_MS for name in names)
    assert client.at_once(*[("DEL", name) for name in names]) == [1] * len(names)


KINDS = {"counter": (("INCR",), ("DEL",)), "hash": (("HSETNX", "f", "me"), ("HDEL", "f")),
         "list": (("RPUSH", "me"), ("LREM", 1, "me")), "string": (("SETNX", "v"), ("DEL",))}
CHANGES = {"gone": ("DEL",), "another value": ("SET", "other", "PX", 60000), "a later end": ("PEXPIRE", 60000),
           "no end": ("PERSIST",)}


def test_what_is_not_usual(proxy, connect, direct):
    """Locks of every kind outlive their first lease. Of a lock that has changed past the proxy, the proxy finds out whether
    its lease is lost; a guard record in the short form does not follow an expiry that was changed."""
    holder, other = connect(proxy), connect(proxy, commands=[("CLIENT", "SETNAME", "other")])
    kinds = {kind: "lock:{unusual}:" + kind for kind in KINDS}
    changed = {change: "lock:{unusual}:" + change for change in CHANGES}
    assert holder("EXISTS", kinds["list"]) == 0
    for kind, ((command, *words), _) in KINDS.items():
        assert holder(command, kinds[kind], *words) == 1
    for change, (command, *words) in CHANGES.items():
        assert holder("SETNX", changed[change], "v") == 1
        direct(command, changed[change], *words)
    begun = renewals(holder)
    until(lambda: renewals(holder) >= begun + 5 * len(KINDS), 4 * LEASE_MS / 1000, "renewals")
    assert other("SETNX", kinds["string"], "w") == 0 and other("HSETNX", kinds["hash"], "f", "w") == 0
    for kind, (_, (command, *words)) in KINDS.items():
        assert holder(command, kinds[kind], *words) == 1, kind
    assert direct("PTTL", changed["a later end"]) > LEASE_MS, "a renewal makes no lease shorter (S3)"
    gone = set(CHANGES) if "guard_records:short" in holder("PROXY", "INFO") else {"gone", "another value"}
    for change, name in changed.items():
        lost = any("renewal_lost" in str(line) and name in str(line) for line in holder("PROXY", "INCIDENTS"))
        assert lost == (change in gone), change
        assert change in gone or holder("DEL", name) == 1
