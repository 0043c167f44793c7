"""What users of other lock proxies, and of Redis alone, have reported, as tests: what works on Redis works through the proxy."""

import socket
import struct
import subprocess
import time

import pytest

import servers
from resp import Client
from servers import until
from test_takeover import ended, orphans, take_over  # noqa: F401: a fixture

# ---- 12: redis-cli SETNX, a job, redis-cli DEL --------------------------------------------------------------------------

LEASE = 1.0
RULES = ["lock lock:none:* lease 1s one-shot 0", "lock lock:time:* lease 1s one-shot 3s", "lock lock:held:* lease 1s max-hold 3s",
         "lock lock:connection:* lease 1s owner connection", "lock lock:client:* lease 1s owner client",
         "lock lock:audit:* lease 1s mode audit", "lock lock:* lease 1s handover 2s"]


@pytest.fixture(scope="module")
def shells(farm):
    """shells(backend): a proxy with leases that are short."""
    made = {}

    def start(backend):
        if backend.kind not in made:
            made[backend.kind] = servers.Proxy(backend, *RULES)
        return made[backend.kind]

    yield start
    for proxy in made.values():
        proxy.stop()
        proxy.remove()


def cli(proxy, *words, stdin=None):
    """What redis-cli prints, which is a connection of its own."""
    command = ["redis-cli", "-h", servers.HOST, "-p", str(proxy.port), *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


def raw(proxy, data, replies, then="close"):
    """A connection that sends `data`, reads so many lines, or what ends so, and is left in one of several ways."""
    s = socket.create_connection((servers.HOST, proxy.port), timeout=10)
    try:
        # An end that comes behind the reply is a close: with MSG_MORE the two leave in one packet.
        assert s.send(data, socket.MSG_MORE if then == "half-close" else 0) == len(data)
        if then == "half-close":
            s.shutdown(socket.SHUT_WR)
        got = b""
        while not got.endswith(replies) if isinstance(replies, bytes) else got.count(b"\r\n") < replies:
            more = s.recv(4096)
            assert more, got
            got += more
        if then == "late":
            time.sleep(0.3)  # what is tested is a time
        if then == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return got
    finally:
        s.close()


def inline(*commands):
    return "".join(c + "\r\n" for c in commands).encode()


def named(proxy, name):
    return Client(proxy.address, commands=[("CLIENT", "SETNAME", name)])


def incidents(proxy, name, kind):
    with named(proxy, "operator") as c:
        return [i for i in (dict(zip(i[0::2], i[1::2])) for i in c("PROXY", "INCIDENTS", 1000)) if i["key"] == name and i["kind"] == kind]


def is_kept(proxy, direct, name, seconds=3 * LEASE):
    """The lock stays held for so long."""
    end = time.monotonic() + seconds
    with named(proxy, "other") as other:
        while time.monotonic() < end:
            assert other("SETNX", name, "other") == 0
            time.sleep(0.05)
    assert 0 < direct("PTTL", name) <= 1000 * LEASE
    assert len(incidents(proxy, name, "one_shot")) == 1


def is_no_one_shot(proxy, direct, name):
    assert direct("EXISTS", name) == 1
    until(lambda: direct("EXISTS", name) == 0, 5, "the end of the lease")
    assert not incidents(proxy, name, "one_shot")


def test_report_12_one_shot_clients(shells, backend, direct, key):
    """redis-cli SETNX k 1, a job that takes longer than the lease, redis-cli DEL k; rivals of the same host and of others."""
    proxy, name = shells(backend), key("lock:backup")
    assert cli(proxy, "SETNX", name, "1") == "1"
    is_kept(proxy, direct, name)
    for _ in range(5):
        assert cli(proxy, "SETNX", name, "1") == "0"
    with named(proxy, "elsewhere") as c:
        assert c("DEL", name) == 0
        (row,) = [dict(zip(i[0::2], i[1::2])) for i in c("PROXY", "LOCKS", name)]
    assert row["owner"].endswith(" (one-shot client)") and 0 < row["one-shot-left-ms"] <= 24 * 3600 * 1000
    assert cli(proxy, "DEL", name) == "1"
    assert cli(proxy, "SETNX", name, "1") == "1"  # and again
    assert cli(proxy, "DEL", name) == "1" and direct("EXISTS", name) == 0
    for kind in ("late_release", "believed", "abandoned", "overrun", "renewal_lost"):
        assert not incidents(proxy, name, kind), kind


ONE_SHOTS = {
    "FIN": (["SETNX %s 1"], 1, "close"),
    "QUIT": (["SETNX %s 1", "QUIT"], 2, "close"),
    "logs in": (["CLIENT SETNAME me", "HELLO 2 SETNAME me", "SELECT 0", "SETNX %s 1"], b"+OK\r\n:1\r\n", "close"),
    "SET NX": (["SET %s 1 NX"], 1, "close"),
}


@pytest.mark.parametrize("way", ONE_SHOTS)
def test_one_shot_clients_are_known(way, shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:way")
    commands, replies, then = ONE_SHOTS[way]
    raw(proxy, inline(*(c % name if "%s" in c else c for c in commands)), replies, then)
    is_kept(proxy, direct, name)


def test_one_shot_from_a_pipe(shells, backend, direct, key):
    """redis-cli asks for COMMAND DOCS then."""
    proxy, name = shells(backend), key("lock:pipe")
    assert cli(proxy, stdin="SETNX %s 1\n" % name) == "1"
    is_kept(proxy, direct, name)
    assert cli(proxy, stdin="DEL %s\n" % name) == "1"


OTHERS = {
    "a reset": (["SETNX %s 1"], 1, "reset"),
    "another command before": (["PING", "SETNX %s 1"], 2, "close"),
    "another command behind": (["SETNX %s 1", "PING"], 2, "close"),
    "a late close": (["SETNX %s 1"], 1, "late"),
    "a half-close": (["SETNX %s 1"], 1, "half-close"),
    "a request that never ends": (["SETNX %s 1", "*2"], 1, "close"),
    "a protocol error": (["SETNX %s 1", "*x"], 2, "close"),
    "another key": (["SETNX %s 1", "SETNX other:{%s} 1"], 2, "close"),
}


@pytest.mark.parametrize("way", OTHERS)
def test_crashes_are_no_one_shot_clients(way, shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:crash")
    commands, replies, then = OTHERS[way]
    raw(proxy, inline(*(c % name if "%s" in c else c for c in commands)), replies, then)
    is_no_one_shot(proxy, direct, name)


@pytest.mark.parametrize("rule", ["lock:none:", "lock:connection:"])
def test_one_shot_clients_of_other_rules(rule, shells, backend, direct, key):
    proxy, name = shells(backend), key(rule + "job")
    assert cli(proxy, "SETNX", name, "1") == "1"
    is_no_one_shot(proxy, direct, name)


def test_one_shot_over_owner_client(shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:client:job")
    assert cli(proxy, "SETNX", name, "1") == "1"
    is_kept(proxy, direct, name)
    assert cli(proxy, "DEL", name) == "1"


def test_a_pipelined_release(shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:brief")
    assert raw(proxy, inline("SETNX %s 1" % name, "DEL %s" % name), 2) == b":1\r\n:1\r\n"
    assert direct("EXISTS", name) == 0 and not incidents(proxy, name, "one_shot")


@pytest.mark.parametrize("rule", ["lock:time:", "lock:held:"])
def test_one_shot_locks_end(rule, shells, backend, direct, key):
    """They end at the option's TIME, or at max-hold; then any client may acquire."""
    proxy, name = shells(backend), key(rule + "job")
    assert cli(proxy, "SETNX", name, "1") == "1"
    is_kept(proxy, direct, name, 2 * LEASE)
    until(lambda: direct("EXISTS", name) == 0, 5, "the end of TIME")
    assert cli(proxy, "SETNX", name, "1") == "1"
    assert cli(proxy, "DEL", name) == "1"


def test_one_shot_with_an_expiry_of_its_own(shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:own")
    assert cli(proxy, "SET", name, "1", "NX", "PX", "700") == "OK"
    is_no_one_shot(proxy, direct, name)
    assert cli(proxy, "SETNX", name, "1") == "1"
    assert cli(proxy, "PEXPIRE", name, "700") == "1"  # from its next connection
    until(lambda: direct("EXISTS", name) == 0, 5, "the expiry")


def test_one_shot_in_audit(shells, backend, direct, key):
    proxy, name = shells(backend), key("lock:audit:job")
    assert cli(proxy, "SETNX", name, "1") == "1"
    until(lambda: incidents(proxy, name, "one_shot"), 5, "the incident")
    assert direct("PTTL", name) == -1
    time.sleep(2 * LEASE)  # the lease that it would have had is over
    assert cli(proxy, "DEL", name) == "1"
    assert not incidents(proxy, name, "late_release")


def test_one_shot_locks_outlive_the_proxy(start_proxy, backend, direct, key):
    """It stops, and another is started; the lock has the rest of its time, and the job's DEL frees it."""
    one, name = start_proxy(backend, *RULES), key("lock:stop")
    assert cli(one, "SETNX", name, "1") == "1"
    until(lambda: incidents(one, name, "one_shot"), 5)
    one.stop()
    left = direct("PTTL", name)
    assert 24 * 3600 * 1000 - 30000 < left <= 24 * 3600 * 1000
    two = start_proxy(backend, *RULES)
    with named(two, "other") as other:
        assert other("SETNX", name, "1") == 0 and other("DEL", name) == 0
    assert cli(two, "DEL", name) == "1"


def test_one_shot_locks_outlive_a_takeover(start_proxy, backend, direct, key, orphans):  # noqa: F811
    proxy, name = start_proxy(backend, *RULES), key("lock:takeover")
    assert cli(proxy, "SETNX", name, "1") == "1"
    until(lambda: incidents(proxy, name, "one_shot"), 5)
    take_over(proxy, orphans)
    ended(proxy, 20)
    assert direct("PTTL", name) > 24 * 3600 * 1000 - 60000
    assert cli(proxy, "SETNX", name, "1") == "0"
    assert cli(proxy, "DEL", name) == "1"


def test_one_shot_locks_over_two_proxies(start_proxy, backend, direct, key):
    one, two = start_proxy(backend, *RULES), start_proxy(backend, *RULES)
    for n in range(5):
        name = key("lock:two:%d" % n)
        assert cli(one, "SETNX", name, "1") == "1"
        assert cli(two, "SETNX", name, "1") == "0"
        if n == 0:
            is_kept(one, direct, name)
        assert cli(two, "DEL", name) == "1"
        assert direct("EXISTS", name) == 0
    time.sleep(LEASE)  # a renewal finds out
    assert not incidents(one, name, "renewal_lost")
