"""PROXY as an operator uses it by hand: which incidents, the worst first, as they happen, and what redis-cli makes of it."""

import shutil
import subprocess

import pytest

from resp import Error, encode
from servers import until


def rows_of(reply):
    return [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for row in reply]


def incidents(client, *words):
    reply = client("PROXY", "INCIDENTS", *words)
    assert not isinstance(reply, Error), reply
    return [(row["kind"], row["key"]) for row in rows_of(reply)]


def slices_of(client):
    return int(client("PROXY", "INFO", "clients").split("slices:")[1].split()[0])


# ---- PROXY INCIDENTS, filtered -----------------------------------------------------------------------------

A, B, C = "lock:{x}a", "lock:{x}b", "lock:{x}c"


@pytest.fixture
def troubled(start_proxy, backend, connect):
    """A proxy with an operator, and five incidents of three kinds on three keys."""
    proxy = start_proxy(backend, "lock lock:* owner connection")
    holder, other, operator = connect(proxy), connect(proxy), connect(proxy)
    other("CLIENT", "SETNAME", "worker")
    assert holder("SET", A, "1", "NX", "PX", "600000") == "OK"
    assert holder("SET", B, "1", "NX", "PX", "600000") == "OK"
    assert holder("SETNX", C, "1") == 1
    assert other("DEL", A) == 0 and other("DEL", B) == 0
    assert other("PEXPIRE", A, "5") == 0 and other("PEXPIRE", B, "5") == 0
    return proxy, operator


RELEASED, EXTENDED, ENDLESS = "foreign_release", "foreign_extend", "no_expiry"
ALL = [(EXTENDED, B), (EXTENDED, A), (RELEASED, B), (RELEASED, A), (ENDLESS, C)]


@pytest.mark.parametrize("words,found", [
    ("", ALL), ("2", ALL[:2]), ("0", []), ("99999999999999999999", ALL),
    ("KIND foreign_release", ALL[2:4]), ("kind Foreign_Release", ALL[2:4]), ("KIND late_release", []),
    ("KEY lock:*a", [ALL[1], ALL[3]]), ("key *[bc]", [ALL[0], ALL[2], ALL[4]]), ("KEY nothing", []),
    ("SINCE 1h", ALL), ("since 600", ALL), ("SINCE 9223372036854775807ms", ALL),
    ("KIND foreign_extend KEY *a SINCE 10m 5", ALL[1:2]), ("5 SINCE 10m KEY *a KIND foreign_extend", ALL[1:2]),
    ("KEY * 1", ALL[:1]), ("KEY kind KIND no_expiry", []),
])
def test_incidents_are_filtered(troubled, words, found):
    _, operator = troubled
    assert incidents(operator, *words.split()) == found
    operator("HELLO", "3")
    assert incidents(operator, *words.split()) == found
    until(lambda: incidents(operator, "SINCE", "1ms") == [], what="a millisecond")


@pytest.mark.parametrize("words,error", [
    ("abc", "syntax error at 'abc': expected a count, SUMMARY, KIND kind, KEY pattern or SINCE time"),
    ("-1", "syntax error at '-1'"), ("5 6", "the count was given twice"), ("KIND", "nothing behind KIND"),
    ("5 key", "nothing behind key"), ("SINCE", "nothing behind SINCE"),
    ("KIND foreign", "no incidents of the kind 'foreign'; the kinds are: late_release, foreign_release, "),
    ("SINCE yesterday", "SINCE 'yesterday': expected a time like 30s, 10m, 2h or 1d"), ("SINCE -5m", "SINCE '-5m'"),
    ("SINCE 99999999999999999999d", "expected a time"), ("KIND no_expiry KIND no_expiry", "KIND was given twice"),
    ("KEY a KEY b", "KEY was given twice"), ("SINCE 1s SINCE 1s", "SINCE was given twice"),
    ("SUMMARY summary", "SUMMARY was given twice"), ("SUMMARY KEY *", "not by key"), ("KEY " + "x" * 257, "longer than 256"),
    ("10 " * 20, "number of arguments"),
])
def test_wrong_words_are_named(start_redis, start_proxy, connect, words, error):
    client = connect(start_proxy(start_redis()))
    reply = client("PROXY", "INCIDENTS", *words.split())
    assert isinstance(reply, Error) and reply.startswith("ERR ") and error in reply, reply
    reply = client("PROXY", "INCIDENTS", "\r\n+evil\0")
    assert isinstance(reply, Error) and r"'\x0d\x0a+evil\x00'" in reply
    assert client("PING") == "PONG"


def test_the_summary_is_filtered(troubled):
    _, operator = troubled

    def sums(*words):
        return [(row["kind"], row["count"]) for row in rows_of(operator("PROXY", "INCIDENTS", *words))]

    everything = sums("SUMMARY")
    assert sorted(everything) == [(EXTENDED, 2), (RELEASED, 2), (ENDLESS, 1)] and everything[2] == (ENDLESS, 1)
    assert sums("KIND", "foreign_release", "SUMMARY") == [(RELEASED, 2)]
    assert sums("SUMMARY", 1) == everything[:1] == sums(1, "SUMMARY")
    assert sums("SUMMARY", "SINCE", "1h") == everything
    until(lambda: sums("SUMMARY", "SINCE", "1ms") == [], what="a millisecond")


def test_a_pattern_that_takes_long_is_refused(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    client = connect(proxy)
    for n in range(256):
        client("CLIENT", "SETNAME", "n%d" % (n // 64))  # of what one client does, 64 rows are kept
        assert client("SETNX", "lock:" + "a" * 200 + str(n), "1") == 1
    reply = client("PROXY", "INCIDENTS", "KEY", "*" + "[a]" * 80 + "b")
    assert isinstance(reply, Error) and "takes too long" in reply, reply
    assert len(incidents(client, 1000, "KEY", "lock:a*")) == 256


def test_filters_are_gone_through_a_request_a_turn(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    client, other = connect(proxy), connect(proxy)

    before = slices_of(other)
    client.send(encode("PROXY", "INCIDENTS", "KEY", "*") * 200)
    assert [client.read() for _ in range(200)] == [[]] * 200
    assert slices_of(other) - before == 200
    client.send(encode("PROXY", "INCIDENTS", "KEY", "*") * 100)
    client.close()
    assert other("PROXY", "INCIDENTS", "KEY", "*") == []


# ---- PROXY TOP -------------------------------------------------------------------------------------------------


def top(client, *words):
    """{sort: [(what, the rest of the line), ...]}"""
    lines = client("PROXY", "TOP", *words)
    assert isinstance(lines, list), lines
    found = {"contended": [], "held": [], "client": []}
    for line in lines:
        sort, rest = line.split(" ", 1)
        found[sort].append(tuple(rest.split(": ", 1)))
    return found


def test_top_has_the_worst_first(start_proxy, backend, connect):
    proxy = start_proxy(backend, "lock lock:* owner connection", "threads 2")
    holder, bad, worse, operator = (connect(proxy) for _ in range(4))
    assert operator("PROXY", "TOP") == []
    for client, name in ((holder, "holder"), (bad, "bad"), (worse, "worse")):
        client("CLIENT", "SETNAME", name)
    keys = ["lock:{t}%d" % n for n in range(8)]
    for n, key in enumerate(keys):
        assert holder("SET", key, "1", "NX", "PX", "600000") == "OK"
        for _ in range(n):
            assert bad("SETNX", key, "1") == 0
    for n in range(5):
        assert worse("DEL", keys[n]) == 0
    assert worse("PEXPIRE", keys[7], "5") == 0
    assert bad("DEL", keys[0]) == 0 and bad("DEL", keys[1]) == 0
    for _ in range(2):
        found = top(operator)
        assert [key for key, _ in found["contended"]] == keys[:2:-1]
        assert found["contended"][0][1].startswith("7 attempts lost in the last 5 minutes, ")
        assert [key for key, _ in found["held"]] == keys[:5], "the oldest first"
        assert "by 127.0.0.1 user=default name=holder id=" in found["held"][0][1] and "9 min left" in found["held"][0][1]
        (first, said), (second, _) = found["client"]
        assert first == "127.0.0.1 user=default name=worse" and second == "127.0.0.1 user=default name=bad"
        assert said.startswith("6 incidents since the start, 5 of them foreign_release; the last ")
        assert said.endswith(" ago on " + keys[7])
        operator("HELLO", "3")
    assert [len(rows) for rows in top(operator, 1).values()] == [1, 1, 1]
    assert [len(rows) for rows in top(operator, 100).values()] == [7, 8, 2]
    assert [len(rows) for rows in top(operator, "9" * 30).values()] == [7, 8, 2]
    assert operator("PROXY", "TOP", 0) == []
    assert holder("DEL", *keys) == 8
    assert top(operator)["held"] == []


def test_top_shows_what_is_odd(start_redis, start_proxy, connect):
    """Bytes that would break a line, another database, a lock without an end, and who waits at the proxy."""
    proxy = start_proxy(start_redis(), "lock lock:nolease:* lease 0", "lock lock:* wait 60s")
    holder, loser, operator = connect(proxy), connect(proxy), connect(proxy)
    holder("SELECT", 3)
    loser("SELECT", 3)
    assert holder("SETNX", b"lock:\r\n\xff" + b"x" * 300, "1") == 1
    assert holder("SETNX", "lock:nolease:1", "1") == 1
    loser.send(encode("SETNX", b"lock:\r\n\xff" + b"x" * 300, "1"))
    until(lambda: any("waiting at the proxy: 1" in line for line in operator("PROXY", "TOP")), what="the one that waits")
    odd, endless = [line for line in operator("PROXY", "TOP") if line.startswith("held ")]
    assert odd.startswith(r"held lock:\x0d\x0a\xffxxx") and "... (db 3): for " in odd and len(odd) < 500
    assert endless.startswith("held lock:nolease:1 (db 3): for ") and "ends by a release alone" in endless
    assert holder("DEL", b"lock:\r\n\xff" + b"x" * 300) == 1
    assert loser.read() == 1


@pytest.mark.parametrize("words", ["abc", "-1", "1x", "''", "1 2"])
def test_top_of_what_is_no_number(start_redis, start_proxy, connect, words):
    client = connect(start_proxy(start_redis()))
    assert isinstance(client("PROXY", "TOP", *words.replace("''", "").split(" ")), Error)
    assert client("PING") == "PONG"


def test_top_goes_through_the_locks_in_slices(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    client, other = connect(proxy), connect(proxy)
    for n in range(20):
        assert client("SETNX", "lock:%d" % n, "1") == 1
    before = slices_of(other)
    client.send(encode("PROXY", "TOP") * 100)
    replies = [client.read() for _ in range(100)]
    assert all(len(reply) == 6 for reply in replies), replies[0]
    assert slices_of(other) - before >= 100 * 10
    client.send(encode("PROXY", "TOP") * 100)
    client.close()
    assert len(top(other, 20)["held"]) == 20


# ---- redis-cli without a terminal --------------------------------------------------------------------------


def redis_cli(proxy, *words):
    done = subprocess.run(["redis-cli", "-p", str(proxy.address[1]), *words], capture_output=True, text=True, timeout=30,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.splitlines()


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="there is no redis-cli")
@pytest.mark.parametrize("protocol", [[], ["-3"]], ids=["RESP2", "RESP3"])
def test_redis_cli_prints_a_line_each(start_redis, start_proxy, connect, protocol):
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    holder, other = connect(proxy), connect(proxy)
    assert holder("SETNX", "lock:a", "1") == 1 and other("SETNX", "lock:a", "1") == 0 and other("DEL", "lock:a") == 0
    assert [line.split()[0] for line in redis_cli(proxy, *protocol, "PROXY", "TOP")] == ["contended", "held", "client"]
