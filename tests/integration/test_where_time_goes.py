"""Where the time goes: how long locks were held and waited for, which requests were slow, and the latency of commands."""

import json
import urllib.request

import pytest

from resp import Error, encode
from servers import free_port, until
from test_by_hand import rows_of

LOCK = "lock:{orders}:1"
PATTERN = "lock:{orders}:*"


def named(connect, proxy, name):
    client = connect(proxy)
    client("CLIENT", "SETNAME", name)
    return client


def times(client, *words):
    """{(pattern, client's name): row}"""
    reply = client("PROXY", "CONTENTION", *words)
    assert not isinstance(reply, Error), reply
    return {(row["pattern"], row["client"].rpartition("name=")[2]): row for row in rows_of(reply)}


def hold(client, ms):
    """Keeps the lock for so long by Redis's clock, or a little longer."""
    assert client("SET", "{orders}elapses", "1", "PX", ms) == "OK"
    until(lambda: client("EXISTS", "{orders}elapses") == 0, what="%d ms" % ms)


# ---- PROXY CONTENTION ------------------------------------------------------------------------------------------


def test_contention_by_pattern_and_client(start_proxy, backend, connect):
    """A holder, a client that polls until it gets the lock, and a client that polls in vain."""
    proxy = start_proxy(backend, "lock lock:* owner connection")
    holder, polls, in_vain, operator = (named(connect, proxy, name) for name in ("holder", "polls", "vain", "operator"))
    assert times(operator) == {}
    assert holder("SET", LOCK, "1", "NX", "PX", 600000) == "OK"
    assert polls("SETNX", LOCK, "2") == in_vain("SETNX", LOCK, "3") == 0
    hold(holder, 200)
    assert in_vain("SETNX", LOCK, "3") == 0
    assert holder("DEL", LOCK) == 1
    assert polls("SET", LOCK, "2", "NX", "PX", 600000) == "OK"
    assert polls("DEL", LOCK) == 1
    for words in ((), (PATTERN.replace("*", r"\*"),), ("lock:*",)):
        found = times(operator, *words)
        assert sorted(name for _, name in found) == ["holder", "polls", "vain"] and {p for p, _ in found} == {PATTERN}
        held, waited, vain = (found[PATTERN, name] for name in ("holder", "polls", "vain"))
        assert held["holds"] == 1 and held["waits"] == held["waited-ms"] == held["longest-wait-ms"] == 0
        assert 180 <= held["held-ms"] == held["longest-hold-ms"] < 100000
        assert waited["holds"] == waited["waits"] == 1 and 180 <= waited["waited-ms"] == waited["longest-wait-ms"] < 100000
        assert vain["holds"] == 0 and vain["waits"] == 1 and 180 <= vain["waited-ms"] <= waited["waited-ms"]
    assert times(operator, "other:*") == {}
    lines = operator("PROXY", "LINES", "CONTENTION")
    assert len(lines) == 3 and lines[0].startswith('pattern=%s client="127.0.0.1 ' % PATTERN), "the most waited for first"
    folded = dict(line.rsplit(" ", 1) for line in operator("PROXY", "CONTENTION", "FOLDED", "waited"))
    assert {stack.rpartition("name=")[2]: int(us) for stack, us in folded.items()} == {
        "polls": waited["waited-ms"] * 1000, "vain": vain["waited-ms"] * 1000}
    assert all(stack.startswith(PATTERN + ";127.0.0.1 user=default name=") for stack in folded)
    assert len(operator("PROXY", "CONTENTION", "folded", "HELD")) in (1, 2), "polls may have held it for less than 1 ms"
    assert isinstance(operator("PROXY", "CONTENTION", "FOLDED", "other"), Error)


def test_contention_of_clients_that_wait_at_the_proxy(start_proxy, backend, connect):
    proxy = start_proxy(backend, "lock lock:* owner connection wait 1s")
    holder, waits, refused, operator = (named(connect, proxy, name) for name in ("holder", "waits", "refused", "operator"))
    assert holder("SET", LOCK, "1", "NX", "PX", 600000) == "OK"
    assert refused("SETNX", LOCK, "3") == 0
    waits.send(encode("SETNX", LOCK, "2"))
    until(lambda: "\nwaiting:1\r\n" in operator("PROXY", "INFO", "locks"), what="the client that waits")
    hold(holder, 100)
    assert holder("DEL", LOCK) == 1
    if waits.read() == 0:  # on a very busy machine
        pytest.skip("the wait was over before the release")
    found = times(operator)
    assert found[PATTERN, "waits"]["waits"] == found[PATTERN, "refused"]["waits"] == 1
    assert 80 <= found[PATTERN, "waits"]["waited-ms"] == found[PATTERN, "waits"]["longest-wait-ms"] <= 1500
    assert 900 <= found[PATTERN, "refused"]["waited-ms"] == found[PATTERN, "refused"]["longest-wait-ms"]
    assert found[PATTERN, "holder"]["longest-hold-ms"] >= 1000


def test_contention_counts_leases_that_end_by_themselves(start_proxy, backend, connect):
    proxy = start_proxy(backend, "lock lock:* owner connection")
    holder, operator = named(connect, proxy, "holder"), connect(proxy)
    assert holder("SET", LOCK, "1", "NX", "PX", 150) == "OK"
    until(lambda: times(operator), what="the end of the lease")
    row = times(operator)[PATTERN, "holder"]
    assert row["holds"] == 1 and 100 <= row["held-ms"] <= 160
    assert holder("SET", LOCK, "1", "NX", "PX", 600000) == "OK"
    assert holder("DEL", LOCK) == 1
    row = times(operator)[PATTERN, "holder"]
    assert row["holds"] == 2 and row["longest-hold-ms"] <= row["held-ms"]


def test_what_is_forgotten_is_in_one_row(start_proxy, backend, connect):
    """Workloads beyond the table's bound: none of their holds is lost."""
    clients, each = 8, 3000
    proxy = start_proxy(backend, "lock lock:* owner connection")
    operator = connect(proxy)
    for number in range(clients):
        client = named(connect, proxy, "client%d" % number)
        for first in range(0, each, 100):
            letters = ["".join(chr(97 + int(c)) for c in "%05d" % n) for n in range(first, first + 100)]
            assert client.at_once(*[("SET", "lock:" + word, "1", "NX", "PX", 600000) for word in letters]) == ["OK"] * 100
            assert client.at_once(*[("DEL", "lock:" + word) for word in letters]) == [1] * 100
        client.close()
    found = times(operator)
    assert len(found) == 1001 and ("(others)", "(others)") in found
    assert sum(row["holds"] for row in found.values()) == clients * each


def test_the_page_has_the_times(start_proxy, backend, connect):
    port = free_port()
    proxy = start_proxy(backend, "lock lock:*", "admin-port %d" % port)
    client = connect(proxy)
    assert client("SET", LOCK, "1", "NX", "PX", 600000) == "OK" and client("DEL", LOCK) == 1
    with urllib.request.urlopen("http://127.0.0.1:%d/status.json" % port) as answer:
        page = json.load(answer)
    assert [(row["pattern"], row["holds"]) for row in page["times"]] == [(PATTERN, 1)]


# ---- PROXY SLOWLOG ---------------------------------------------------------------------------------------------


def slow(client, *words):
    reply = client("PROXY", "SLOWLOG", "GET", *words)
    assert not isinstance(reply, Error), reply
    return rows_of(reply)


def slowly(backend, operator, client, *command):
    """Sends a command to a real node that answers no client for a moment, as a long script has it. Returns the entry. It is sent
    again if a busy machine has let the moment pass."""
    def sent():
        node = backend.node_of("{orders}k").client()
        assert node("CLIENT", "PAUSE", 200, "ALL") == "OK"
        client(*command)
        entry = slow(operator, 1)
        return entry and entry[0]["command"].startswith("%s %s" % command[:2]) and entry[0]

    return until(sent, what="a slow " + command[0])


def test_a_slow_request_is_in_the_slowlog(start_proxy, backend, connect):
    proxy = start_proxy(backend, "lock lock:* owner connection", "slowlog-log-slower-than 50000", "slowlog-max-len 3")
    client, operator = named(connect, proxy, "slow-one"), connect(proxy)
    assert client("SET", "{orders}k", "v") == "OK"
    node = backend.node_of("{orders}k")
    entry = slowly(backend, operator, client, "GET", "{orders}k")
    assert entry["command"] == "GET {orders}k" and entry["name"] == "slow-one" and entry["client"].startswith("127.0.0.1:")
    assert entry["node"] == "127.0.0.1:%d" % node.port
    assert entry["us"] >= 50000 and entry["us"] == entry["before-us"] + entry["node-us"] + entry["after-us"]
    assert 0 <= entry["way-us"] < entry["node-us"] > entry["before-us"] + entry["after-us"]
    assert abs(entry["time"] - int(node.client()("TIME")[0])) < 60
    entry = slowly(backend, operator, client, "SET", LOCK, "a value", "NX", "PX", 600000)
    assert entry["command"] == "SET %s ..." % LOCK, "the value says whose the lock is"
    entry = slowly(backend, operator, client, "MSET", "{orders}a", "two words", "{orders}b", "x" * 200)
    assert entry["command"] == 'MSET {orders}a "two words" {orders}b "%s... (72 more bytes)"' % ("x" * 128)
    entry = slowly(backend, operator, client, "DEL", *["{orders}%d" % n for n in range(40)])
    assert entry["command"].endswith(" {orders}29 ... (10 more arguments)")
    found = slow(operator)
    assert [row["id"] for row in found] == [found[0]["id"] - n for n in range(3)], "slowlog-max-len"
    assert operator("PROXY", "SLOWLOG", "LEN") == 3 and len(slow(operator, 2)) == 2 and slow(operator, -1) == found
    assert operator("PROXY", "LINES", "SLOWLOG", "GET", 1)[0].startswith("id=%d time=" % found[0]["id"])
    assert operator("PROXY", "SLOWLOG", "RESET") == "OK" and operator("PROXY", "SLOWLOG", "LEN") == 0
    assert isinstance(operator("PROXY", "SLOWLOG", "GET", "x"), Error) and isinstance(operator("PROXY", "SLOWLOG"), Error)


def test_passwords_are_not_in_the_slowlog(start_proxy, backend, connect):
    proxy = start_proxy(backend, "slowlog-log-slower-than 0")
    client, operator = connect(proxy), connect(proxy)
    client("AUTH", "nobody", "secret")
    client("ACL", "SETUSER", "nobody", ">secret")
    client("CONFIG", "SET", "masterauth", "secret")
    client("CONFIG", "SET", "masterauth", "")
    client("MIGRATE", "127.0.0.1", "1", "{orders}none", "0", "10", "AUTH", "secret")
    client("ACL", "DELUSER", "nobody")
    commands = [row["command"] for row in slow(operator, -1)]
    assert "acl ..." in commands and "config ..." in commands and not any("secret" in command for command in commands)


def test_what_waits_is_not_slow(start_proxy, backend, connect):
    """Blocking commands, a rule's `wait`, pauses, and a transaction whose client thinks."""
    proxy = start_proxy(backend, "lock lock:* owner connection wait 10s", "slowlog-log-slower-than 1000000")
    client, other, operator = connect(proxy), connect(proxy), connect(proxy)
    assert operator("PROXY", "SLOWLOG", "RESET") == "OK"
    client.send(encode("BLPOP", "{orders}list", 2))
    assert client.read() is None
    assert other("SETNX", LOCK, "1") == 1
    client.send(encode("SETNX", LOCK, "2"))
    until(lambda: "\nwaiting:1\r\n" in operator("PROXY", "INFO", "locks"), what="the client that waits")
    hold(other, 1200)
    assert other("DEL", LOCK) == 1 and client.read() == 1
    assert client("MULTI") == "OK" and client("SET", "{orders}k", "1") == "QUEUED"
    hold(other, 1200)
    assert client("EXEC") == ["OK"]
    assert operator("CLIENT", "PAUSE", 1300, "ALL") == "OK"
    assert client("GET", "{orders}k") == "1"
    assert client("DEL", LOCK) == 1
    assert [row["command"] for row in slow(operator, -1) if "elapses" not in row["command"]] == []


def test_the_time_before_a_request_was_sent(start_redis, start_proxy, connect):
    """A node that does not accept connections for a while: the request waits in the proxy."""
    redis = start_redis()
    proxy = start_proxy(redis, "slowlog-log-slower-than 50000", "upstream-timeout 20s")
    client, operator = connect(proxy), connect(proxy)
    assert client("SET", "k", "v") == "OK"
    redis.pause()
    client.send(encode("GET", "k"))
    hold(connect(start_proxy(start_redis())), 150)
    redis.resume()
    assert client.read() == "v"
    entry = slow(operator, 1)[0]
    assert entry["command"] == "GET k" and entry["us"] >= 100000 and entry["node"].endswith(":%d" % redis.port)


def test_a_reload_changes_what_is_slow(start_redis, start_proxy, connect):
    redis = start_redis()
    proxy = start_proxy(redis, "slowlog-log-slower-than -1")
    client, operator = connect(proxy), connect(proxy)
    assert client("SET", "k", "v") == "OK" and operator("PROXY", "SLOWLOG", "LEN") == 0
    proxy.write_config(["upstream " + redis.upstream(), "slowlog-log-slower-than 0", "slowlog-max-len 1"])
    assert operator("PROXY", "RELOAD") == "OK"
    assert client("GET", "k") == "v" and client("GET", "k") == "v"
    assert operator("PROXY", "SLOWLOG", "LEN") == 1 and slow(operator)[0]["command"] == "GET k"


# ---- PROXY LATENCY ---------------------------------------------------------------------------------------------


def latencies(client, *words):
    """{name: (calls, [(bound, count up to it), ...])}"""
    reply = client("PROXY", "LATENCY", *words)
    assert not isinstance(reply, Error), reply
    found = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))
    rows = {name: row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for name, row in found.items()}
    assert all(set(row) == {"calls", "histogram_usec"} for row in rows.values()), "as LATENCY HISTOGRAM has it"
    return {name: (row["calls"], sorted(row["histogram_usec"].items()) if isinstance(row["histogram_usec"], dict)
                   else list(zip(row["histogram_usec"][::2], row["histogram_usec"][1::2]))) for name, row in rows.items()}


def test_latency_by_command_and_client(start_proxy, backend, connect):
    port = free_port()
    proxy = start_proxy(backend, "lock lock:* owner connection", "latency-tracking yes", "threads 2", "admin-port %d" % port)
    clients, operator = [named(connect, proxy, name) for name in ("a", "b", "a")], connect(proxy)
    assert operator("PROXY", "LATENCY", "RESET") == "OK"
    for client in clients:
        for n in range(10):
            assert client("SET", "{orders}k", n) == "OK" and client("GET", "{orders}k") == str(n)
    assert clients[0]("SET", LOCK, "1", "NX", "PX", 600000) == "OK" and clients[0]("DEL", LOCK) == 1
    for _ in range(2):
        found = latencies(operator)
        assert found["get"][0] == 30 and found["set"][0] == 31 and found["del"][0] == 1
        for calls, histogram in found.values():
            bounds, counts = zip(*histogram)
            assert list(bounds) == sorted(set(bounds)) and list(counts) == sorted(set(counts)) and counts[-1] == calls
        assert set(latencies(operator, "GET")) == {"get"} and latencies(operator, "none") == {}
        by_client = latencies(operator, "CLIENTS")
        assert by_client["a"][0] == 42 and by_client["b"][0] == 20 and set(latencies(operator, "CLIENTS", "b")) == {"b"}
        operator("HELLO", 3)
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port) as answer:
        page = answer.read().decode()
    assert 'lockkeeper_command_seconds_count{command="get"} 30\n' in page
    assert 'lockkeeper_client_seconds_count{client="b"} 20\n' in page
    assert operator("PROXY", "LATENCY", "RESET") == "OK" and latencies(operator, "CLIENTS", "b") == {}


def test_latency_of_many_clients(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "latency-tracking yes")
    client, operator = connect(proxy), connect(proxy)
    assert operator("PROXY", "LATENCY", "RESET") == "OK"
    for n in range(100):
        assert client.at_once(("CLIENT", "SETNAME", "client%d" % n), ("GET", "k")) == ["OK", None]
    found = latencies(operator, "CLIENTS")
    assert len(found) <= 65 and found["client0"][0] == 1 and found["(others)"][0] >= 30
    assert sum(calls for name, (calls, _) in found.items() if name != "(no name)") == 100


def test_latency_is_off_by_default(start_redis, start_proxy, connect):
    client = connect(start_proxy(start_redis()))
    assert client("SET", "k", "v") == "OK" and latencies(client) == {}
