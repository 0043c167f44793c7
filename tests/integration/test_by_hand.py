"""PROXY as an operator uses it by hand: selecting incidents, the worst first, live incidents, and what redis-cli shows."""

import re
import shlex
import shutil
import socket
import subprocess

import pytest

from resp import Closed, Error, Push, encode
from servers import until
from test_monitor import Monitored


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
        assert said.startswith("incidents since the start: 6, of them foreign_release: 5; the last ")
        assert said.endswith(" ago on " + keys[7])
        operator("HELLO", "3")
    assert [len(rows) for rows in top(operator, 1).values()] == [1, 1, 1]
    assert [len(rows) for rows in top(operator, 100).values()] == [7, 8, 2]
    assert [len(rows) for rows in top(operator, "9" * 30).values()] == [7, 8, 2]
    assert operator("PROXY", "TOP", 0) == []
    assert holder("DEL", *keys) == 8
    assert top(operator)["held"] == []


def test_top_shows_what_is_odd(start_redis, start_proxy, connect):
    """Bytes that would break a line, another database, a lock without an end, and clients that wait at the proxy."""
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


# ---- PROXY WATCH -----------------------------------------------------------------------------------------------


def held_and_refused(connect, proxy, key="lock:held"):
    """A client whose releases of the key are refused: an incident each."""
    holder, other = connect(proxy), connect(proxy)
    assert holder("SET", key, "1", "NX", "PX", "600000") == "OK"
    return other


def in_lines(client, count):
    return [client.read() for _ in range(count)]


LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+): (.+)")


def test_incidents_are_shown_as_they_happen(start_proxy, backend, connect):
    proxy = start_proxy(backend, "lock lock:* owner connection")
    watcher, three, some, none = (connect(proxy) for _ in range(4))
    three("HELLO", "3")
    other = held_and_refused(connect, proxy, "lock:{w}a")
    assert watcher("PROXY", "WATCH") == "OK" and three("proxy", "watch") == "OK"
    assert some("PROXY", "WATCH", "KEY", "*b", "KIND", "no_expiry") == "OK"
    assert none("PROXY", "WATCH", "KIND", "late_release") == "OK"
    assert other("DEL", "lock:{w}a") == 0
    assert other("SETNX", "lock:{w}b", "1") == 1
    assert other("SETNX", "lock:{w}c", "1") == 1
    lines = in_lines(watcher, 3)
    parts = [LINE.fullmatch(line).groups() for line in lines]
    assert [kind for _, kind, _ in parts] == ["foreign_release", "no_expiry", "no_expiry"]
    assert "tried to release lock:{w}a; held by 127.0.0.1" in parts[0][2] and parts[0][0] <= parts[2][0]
    assert [(type(push), push) for push in in_lines(three, 3)] == [(Push, ["incident", line]) for line in lines]
    assert some.read() == lines[1]
    assert none("PING") == "PONG" and some("PING") == "PONG", "and nothing else was told"
    for client in (watcher, some, none):
        assert client("RESET") == "RESET"
    assert three("QUIT") == "OK"
    assert other("DEL", "lock:{w}a") == 0
    for client in (watcher, some, none):
        assert client("PING") == "PONG"
    with pytest.raises(Closed):
        three.read()


@pytest.mark.parametrize("words,error", [
    ("5", "syntax error at '5': expected KIND kind or KEY pattern"), ("SUMMARY", "syntax error at 'SUMMARY'"),
    ("SINCE 10m", "syntax error at 'SINCE'"), ("KIND x", "no incidents of the kind 'x'"), ("KEY", "nothing behind KEY"),
    ("KEY " + "x" * 257, "longer than 256"), ("KEY " * 20, "number of arguments"),
])
def test_wrong_words_of_watch(start_redis, start_proxy, connect, words, error):
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    client, other = connect(proxy), held_and_refused(connect, proxy)
    reply = client("PROXY", "WATCH", *words.split())
    assert isinstance(reply, Error) and reply.startswith("ERR ") and error in reply, reply
    assert other("DEL", "lock:held") == 0
    assert client("PING") == "PONG"
    assert client("MULTI") == "OK" and isinstance(client("PROXY", "WATCH"), Error) and client("EXEC").startswith("EXECABORT")


def test_all_threads_hear_of_all_threads(start_proxy, backend, connect):
    proxy = start_proxy(backend, "threads 4", "lock lock:* owner connection")
    watchers = [connect(proxy) for _ in range(16)]
    assert all(watcher("PROXY", "WATCH", "KIND", "foreign_release") == "OK" for watcher in watchers)
    holder, others = connect(proxy), [connect(proxy) for _ in range(16)]
    names = ["lock:{%d}" % n for n in range(len(others))]
    for name in names:
        assert holder("SET", name, "1", "NX", "PX", "600000") == "OK"
    for _ in range(10):
        for other, name in zip(others, names):
            other.send(encode("DEL", name))
        assert [other.read() for other in others] == [0] * len(others)
    said = [in_lines(watcher, 160) for watcher in watchers]
    assert all(lines == said[0] for lines in said), "all of them, in one order"
    assert sorted(line.split(" lock:")[1].split(";")[0] for line in said[0]) == sorted("{%d}" % n for n in range(16) for _ in range(10))
    for watcher in watchers[::2]:
        watcher.close()
    assert others[0]("DEL", names[0]) == 0
    for watcher in watchers[1::2]:
        assert "lock:{0}" in watcher.read()


def test_other_commands_beside_watch(start_redis, start_proxy, connect):
    """Lines come between replies, never within one. A repeated WATCH is not answered; other arguments replace the old ones."""
    proxy = start_proxy(start_redis(), "timeout 1", "lock lock:* owner connection")
    watcher, other = connect(proxy), held_and_refused(connect, proxy)
    value = "x" * 3000000
    assert other("SET", "long", value) == "OK"
    assert watcher("PROXY", "WATCH", "KEY", "lock:*") == "OK"
    watcher.send(encode("PROXY", "WATCH", "KEY", "lock:*") + encode("GET", "long") * 20)
    replies, lines = 0, 0
    while replies < 20 or lines < 20:
        if lines < 20:
            assert other("DEL", "lock:held") == 0
            lines += 1
        got = watcher.read()
        if got == value:
            replies += 1
        else:
            assert LINE.fullmatch(got), got[:100]
    watcher.send(encode("PROXY", "WATCH", "KIND", "no_expiry"))
    until(lambda: watcher.read() == "OK", what="the answer to other words")
    assert other("DEL", "lock:held") == 0 and other("SETNX", "lock:b", "1") == 1
    assert " no_expiry: " in watcher.read()
    start = other("TIME")
    until(lambda: int(other("TIME")[0]) >= int(start[0]) + 4, what="more than the idle timeout")
    assert other("SETNX", "lock:c", "1") == 1
    assert "lock:c" in watcher.read()


@pytest.mark.parametrize("threads", [1, 3])
def test_who_does_not_read_costs_nothing(start_redis, start_proxy, connect, threads):
    """A slow client is told how many incidents it has missed; shown and missed ones together are all."""
    proxy = start_proxy(start_redis(), "threads %d" % threads, "lock lock:* owner connection", measured=True)
    name = b"lock:held" + b"\xff" * 110  # of which each byte is four
    slow, quick, other = connect(proxy), connect(proxy), held_and_refused(connect, proxy, name)
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    assert slow("PROXY", "WATCH", "KIND", "foreign_release") == "OK" == quick("PROXY", "WATCH", "KIND", "foreign_release")
    before, total, batch, missed, shown = proxy.memory(), 20000, 500, {slow: 0, quick: 0}, {slow: 0, quick: 0}

    def take(client, count):
        while shown[client] + missed[client] < count:
            line = client.read()
            found = re.fullmatch(r"\(incidents before what follows that came faster than they could be shown: (\d+)\)", line)
            missed[client] += int(found[1]) if found else 0
            shown[client] += 0 if found else 1
            assert found or "lock:held" in line

    for done in range(0, total, batch):
        assert set(other.pipeline([["DEL", name]] * batch)) == {b":0\r\n"}
        take(quick, done + batch)
    assert proxy.memory() < before + 20 * 1024 * 1024
    take(slow, total)
    assert shown[slow] + missed[slow] == total == shown[quick] + missed[quick] and missed[slow] > 0
    assert other("DEL", name) == 0
    take(slow, total + 1)
    take(quick, total + 1)


def test_others_come_between_a_flood_of_lines(start_redis, start_proxy, connect):
    """Watchers, each with a pattern that takes long, and a flood of incidents: PROXY LOCKS and PING get their turns."""
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    name = "lock:" + "a" * 200
    other, operator = held_and_refused(connect, proxy, name), connect(proxy)
    watchers = [connect(proxy) for _ in range(40)]
    for n, watcher in enumerate(watchers):
        assert watcher("PROXY", "WATCH", "KEY", "*" + "[a]" * 40 + "*" + "[a]" * n + "b") == "OK"
    for _ in range(5):
        other.send(encode("DEL", name) * 1000)
        assert len(operator("PROXY", "LOCKS")) == 1
        assert operator("PING") == "PONG"
        assert in_lines(other, 1000) == [0] * 1000
    for watcher in watchers:
        watcher.send(encode("PING"))
        told = 0
        while watcher.read() != "PONG":  # of incidents that it has missed
            told += 1
        assert told < 100


def test_what_is_odd_stays_within_its_line(start_redis, start_proxy, connect):
    server = start_redis()
    with server.client() as admin:
        assert admin("ACL", "SETUSER", b"x+\xff", "on", ">p", "allkeys", "allchannels", "+@all") == "OK"
    proxy = start_proxy(server, "lock lock:* owner connection")
    watcher, other = connect(proxy), connect(proxy)
    assert watcher("PROXY", "WATCH") == "OK"
    assert other("AUTH", b"x+\xff", "p") == "OK"
    assert other("SETNX", b"lock:\r\n+evil\xff", "1") == 1
    line = watcher.read()
    assert LINE.fullmatch(line) and r"lock:\x0d\x0a+evil\xff" in line
    assert watcher("PING") == "PONG"


def test_who_may_not_look_in_may_not_watch(start_redis, start_proxy, connect):
    server = start_redis()
    with server.client() as admin:
        assert admin("ACL", "SETUSER", "app", "on", ">p", "allkeys", "allchannels", "+@all", "-config") == "OK"
    client = connect(start_proxy(server))
    assert client("AUTH", "app", "p") == "OK"
    for words in ("WATCH", "WATCH KIND no_expiry", "TOP", "INCIDENTS KEY *"):
        reply = client("PROXY", *words.split())
        assert isinstance(reply, Error) and reply.startswith("NOPERM PROXY " + words.split()[0]), reply


# ---- locks that no rule covers -------------------------------------------------------------------------------

UNRULED = "2 key patterns look like locks and match no rule"


def test_locks_that_no_rule_covers_are_said(start_proxy, backend, connect):
    monitor = Monitored(start_proxy, backend, "lock lock:*", "lock off:* mode off", "threads 2")
    proxy = monitor.proxy
    app, operator = connect(proxy), connect(proxy)

    def unruled():
        return int(re.search(r"unruled_lock_patterns:(\d+)", operator("PROXY", "INFO", "locks"))[1])

    def rounds(*keys):
        for n in range(12):
            for key in keys:
                assert app("SET", key % n, str(n), "NX", "EX", "50") == "OK"
                assert app("DEL", key % n) == 1

    rounds("lock:a%d", "off:%d", "{job}:%d:lock", "data:%d")
    for n in range(100):
        assert app("SET", "else:%d" % n, "1") == "OK"
    assert unruled() == 2
    lines = operator("PROXY", "ADVISE")
    assert lines[0] == UNRULED and sum("outside of the rules" in line for line in lines) == 3, "one is off"
    assert monitor.status()["figures"]["unruled_lock_patterns"] == "2"
    assert monitor.metrics()["lockkeeper_unruled_lock_patterns"] == 2
    assert "unruled_lock_patterns" in monitor.get("/")[1] and "match no rule: PROXY ADVISE" in monitor.get("/")[1]
    until(lambda: UNRULED + ": PROXY ADVISE" in proxy.log(), 40, "the line in the log")
    rounds("{job}:%d:lock", "third:%d:lock")
    assert unruled() == 3
    said = int(operator("PROXY", "INFO").split("uptime_in_seconds:")[1].split()[0])
    until(lambda: int(operator("PROXY", "INFO").split("uptime_in_seconds:")[1].split()[0]) > said + 12, 40, "some time")
    assert proxy.log().count("match no rule") == 1, "once an hour"
    with open(proxy.config, "a", encoding="utf-8") as config:
        config.write("\nlock *:lock\nlock data:*\n")
    assert operator("PROXY", "RELOAD") == "OK"
    until(lambda: unruled() == 0, what="the rules")
    assert "match no rule" not in operator("PROXY", "ADVISE")[0]


def test_nothing_is_said_of_locks_that_rules_cover(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    app = connect(proxy)
    for n in range(30):
        assert app("SET", "lock:%d" % n, "1", "NX", "EX", "50") == "OK" and app("DEL", "lock:%d" % n) == 1
        assert app("SET", "throttle:%d" % n, "1", "NX", "EX", "50") == "OK"
    assert "unruled_lock_patterns:0\r\n" in app("PROXY", "INFO")
    assert not any("match no rule" in line for line in app("PROXY", "ADVISE"))


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
    assert holder("SETNX", "lock:b c", "1") == 1
    locks = redis_cli(proxy, *protocol, "PROXY", "LINES", "LOCKS")
    assert [line.split(" db=0 ")[0] for line in locks] == ['key="lock:b c"', "key=lock:a"]
    assert shlex.split(locks[1])[2].startswith("owner=127.0.0.1 user=default id=") and " left-ms=" in locks[1]
    assert redis_cli(proxy, *protocol, "proxy", "lines", "locks", "*a")[0].startswith("key=lock:a db=0 ")
    (incident,) = redis_cli(proxy, *protocol, "PROXY", "LINES", "INCIDENTS", "KIND", "foreign_release")
    assert " kind=foreign_release key=lock:a client=127.0.0.1:" in incident and incident.endswith(' rule=lock:* count=1')
    assert len(redis_cli(proxy, *protocol, "PROXY", "LINES", "INCIDENTS", "SUMMARY")) == 2
    (rule,) = redis_cli(proxy, *protocol, "PROXY", "LINES", "RULES")
    assert rule.startswith('rule="lock:* mode enforce owner connection ') and ' shared=""' in rule


def test_lines_of_what_is_odd(start_redis, start_proxy, connect):
    """A line is a line whatever a key has, and shlex reads it; each in its slices, as without LINES."""
    proxy = start_proxy(start_redis(), "lock lock:*")
    client, other = connect(proxy), connect(proxy)
    assert client("SETNX", b'lock:\r\n"\xff', "1") == 1
    line, = client("PROXY", "LINES", "LOCKS")
    assert shlex.split(line)[0] == r'key=lock:\x0d\x0a"\xff'
    before = slices_of(other)
    client.send(encode("PROXY", "LINES", "LOCKS") * 50)
    assert all(len(client.read()) == 1 for _ in range(50)) and slices_of(other) - before >= 500
    for words in ("LINES", "LINES TOP", "LINES LOCK lock:a", "LINES LINES LOCKS", "LINES LOCKS a b", "LINES RULES x", "LINES INFO"):
        assert isinstance(client("PROXY", *words.split()), Error), words
    reply = client("PROXY", "LINES", "INCIDENTS", "KIND", "x")
    assert isinstance(reply, Error) and "no incidents of the kind 'x'" in reply
    assert client("PROXY", "LINES", "LOCKS", "nothing") == []


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="there is no redis-cli")
def test_redis_cli_watches(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    other, operator = held_and_refused(connect, proxy), connect(proxy)
    cli = subprocess.Popen(["redis-cli", "-p", str(proxy.address[1]), "-r", "-1", "PROXY", "WATCH"], text=True,
                           stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert cli.stdout.readline() == "OK\n"
        for n in range(20):
            assert other("SETNX", "lock:%d" % n, "1") == 1
            assert "acquired lock:%d without an expiry" % n in cli.stdout.readline()
        assert operator("PING") == "PONG"
    finally:
        cli.kill()
        cli.communicate()
