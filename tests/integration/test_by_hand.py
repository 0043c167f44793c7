"""PROXY as an operator uses it by hand: which incidents, the worst first, as they happen, and what redis-cli makes of it."""

import pytest

from resp import Error, encode
from servers import until


def rows_of(reply):
    return [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for row in reply]


def incidents(client, *words):
    reply = client("PROXY", "INCIDENTS", *words)
    assert not isinstance(reply, Error), reply
    return [(row["kind"], row["key"]) for row in rows_of(reply)]


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

    def slices():
        info = other("PROXY", "INFO", "clients")
        return int(info.split("slices:")[1].split()[0])

    before = slices()
    client.send(encode("PROXY", "INCIDENTS", "KEY", "*") * 200)
    assert [client.read() for _ in range(200)] == [[]] * 200
    assert slices() - before == 200
    client.send(encode("PROXY", "INCIDENTS", "KEY", "*") * 100)
    client.close()
    assert other("PROXY", "INCIDENTS", "KEY", "*") == []
