"""on-loss and PROXY NOTIFY: a holder hears that its lease is over, and a holder whose lease goes on hears nothing."""

import itertools
import os
import subprocess
import sys
import time

import pytest
from redis import __version__ as redis_py

import servers
from helpers import module_proxy, second_proxy
from resp import Closed, Error, Push, encode
from servers import until

CONFIG = [
    "threads 2",
    "lock lock:close:* owner connection on-loss close lease 600ms",
    "lock lock:error:* owner connection on-loss error lease 600ms",
    "lock lock:tell:* owner connection lease 600ms",
    "lock lock:shared:* owner client on-loss close",
    "lock lock:auto:* on-loss close",
    "lock lock:*",
]
SOON = 1.5  # s: a lease's end, and a second

serial = itertools.count(1)
proxy = module_proxy(*CONFIG)
second = second_proxy(*CONFIG)


@pytest.fixture
def key():
    return "k%d" % next(serial)


@pytest.fixture
def around(proxy):
    client = proxy.backend.direct()
    yield client
    client.close()


def named(connect, where, name, *before, **options):
    return connect(where, commands=[*before, ("CLIENT", "SETNAME", name)], **options)


def closed(client, within=SOON):
    """Reads until the proxy closes the connection, and how long that took. Fails if it does not."""
    client.sock.settimeout(within)
    began = time.monotonic()
    with pytest.raises(Closed):
        client.fill()
    return time.monotonic() - began


def goes_on(client, for_s=SOON):
    """The connection stays, and says nothing that was not asked for."""
    client.sock.settimeout(for_s)
    with pytest.raises(TimeoutError):
        client.fill()
    client.sock.settimeout(20)
    assert client("PING") == "PONG"


def lost(client):
    """Incidents `lost` of the proxy."""
    return len(client("PROXY", "INCIDENTS", "1000", "KIND", "lost"))


FORMS = {
    "SET NX PX": lambda c, k: c("SET", k, "1", "NX", "PX", "300") == "OK",
    "SET NX GET": lambda c, k: c("SET", k, "1", "NX", "GET", "PX", "300") is None,
    "SETNX, PEXPIRE": lambda c, k: (c("SETNX", k, "1"), c("PEXPIRE", k, "300")) == (1, 1),
    "SET PX": lambda c, k: c("SET", k, "1", "PX", "300") == "OK",
    "MULTI": lambda c, k: [c("MULTI"), c("SETNX", k, "1"), c("PEXPIRE", k, "300"), c("EXEC")][-1] == [1, 1],
    "EVAL": lambda c, k: c("EVAL", "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 300)", "1", k, "v") == "OK",
}
forms = pytest.mark.parametrize("form", list(FORMS))


@forms
@pytest.mark.parametrize("threads", range(2))
def test_close_at_the_end_of_the_time(proxy, connect, key, form, threads):
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    before = lost(b)
    assert FORMS[form](a, "lock:close:" + key)
    assert 0.1 < closed(a) < 1.3
    assert lost(b) == before + 1
    row, = b("PROXY", "LINES", "INCIDENTS", "1", "KIND", "lost", "KEY", "lock:close:" + key)
    assert "its connection is closed" in row and "lock:close:" + key in row
    assert not b("PROXY", "INCIDENTS", "10", "KIND", "overrun", "KEY", "lock:close:" + key)
    assert b("SET", "lock:close:" + key, "1", "NX", "PX", "5000") == "OK"
    assert b("DEL", "lock:close:" + key) == 1


@forms
def test_the_next_command_gets_the_error(proxy, connect, key, form):
    a = named(connect, proxy, "a")
    assert FORMS[form](a, "lock:error:" + key)
    until(lambda: lost_of(proxy, connect, key), 2, "the incident")
    reply = a("SET", "written:" + key, "late")
    assert reply == Error("LOST the lease on lock:error:%s is over" % key)
    assert a("GET", "written:" + key) is None
    assert a("SET", "written:" + key, "late") == "OK"


def lost_of(proxy, connect, key):
    """Whether the proxy has told a holder of the key. Another connection asks, since an error waits on the holder's."""
    with connect(proxy) as other:
        return other("PROXY", "INCIDENTS", "1", "KIND", "lost", "KEY", "*" + key)


def struck(proxy, connect, key, *options):
    a = named(connect, proxy, "a", *options)
    assert a("SET", "lock:error:" + key, "1", "NX", "PX", "150") == "OK"
    return a


def test_the_error_in_a_transaction(proxy, connect, key):
    """A command that was to be queued is not, and EXEC fails. EXEC itself answers the error, and the transaction is over."""
    a = struck(proxy, connect, key)
    assert a("MULTI") == "OK"
    until(lambda: lost_of(proxy, connect, key), 2, "the incident")
    assert a("SET", "written:" + key, "1").startswith("LOST ")
    assert a("EXEC").startswith("EXECABORT")
    assert a("GET", "written:" + key) is None
    b = struck(proxy, connect, key)
    assert [b("MULTI"), b("SET", "written:" + key, "1")] == ["OK", "QUEUED"]
    until(lambda: len(lost_all(proxy, connect, key)) == 2, 2, "the second incident")
    assert b("EXEC").startswith("LOST ")
    assert b("EXEC") == "ERR EXEC without MULTI"
    assert b("GET", "written:" + key) is None


def lost_all(proxy, connect, key):
    with connect(proxy) as other:
        return other("PROXY", "INCIDENTS", "9", "KIND", "lost", "KEY", "*" + key)


@pytest.mark.parametrize("command", [("GET", "x"), ("DEL", "lock:error:"), ("PING",), ("SUBSCRIBE", "c"), ("HELLO", "3"),
                                     ("NOSUCH", "x"), ("BLPOP", "x", "1"), ("SET", "x", "y" * 3000000)])
def test_each_way_of_a_command_gets_the_error_once(proxy, connect, key, command):
    a = struck(proxy, connect, key)
    until(lambda: lost_of(proxy, connect, key), 2, "the incident")
    assert a(*command).startswith("LOST ")
    assert a("ECHO", "on") == "on"


def test_commands_that_wait_behind_are_not_carried_out(proxy, connect, key):
    """The connection closes behind the replies that it owes. What came later is not carried out."""
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "200") == "OK"
    a.send(encode("BLPOP", "queue:" + key, "2") + encode("SET", "written:" + key, "late"))
    until(lambda: lost_of(proxy, connect, key), 5, "the incident")
    assert b("RPUSH", "queue:" + key, "job") == 1
    assert a.read() == ["queue:" + key, "job"]
    closed(a)
    assert b("GET", "written:" + key) is None


# ---- pushes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["tell", "shared", "auto", "plain"])
def test_the_push(proxy, connect, key, rule):
    """Each connection that has asked hears it, also where connections are shared; these are not closed."""
    name = ("lock:" if rule == "plain" else "lock:%s:" % rule) + key
    a = named(connect, proxy, "a", ("HELLO", "3"))
    assert a("PROXY", "NOTIFY", "ON") == "OK"
    assert a("SET", name, "1", "NX", "PX", "200") == "OK"
    fence = a("PROXY", "TOKEN", name)
    a.sock.settimeout(SOON)
    raw = a.read_raw()
    assert raw == b">4\r\n$10\r\nlockkeeper\r\n$4\r\nlost\r\n$%d\r\n%s\r\n:%d\r\n" % (len(name), name.encode(), int(fence))
    goes_on(a, 0.5)
    assert a("PROXY", "NOTIFY", "OFF") == "OK"
    assert a("SET", name, "1", "NX", "PX", "200") == "OK"
    goes_on(a, 1)


def test_the_push_and_the_close(proxy, connect, key):
    a = named(connect, proxy, "a", ("HELLO", "3"))
    assert a("PROXY", "NOTIFY", "ON") == "OK"
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "200") == "OK"
    a.sock.settimeout(SOON)
    assert a.read()[:2] == ["lockkeeper", "lost"]
    closed(a, 0.5)


def test_notify_is_for_resp3(proxy, connect, key):
    a = connect(proxy)
    assert a("PROXY", "NOTIFY", "ON") == "ERR PROXY NOTIFY ON is for RESP3, which has pushes: send HELLO 3 first"
    assert a("PROXY", "NOTIFY", "OFF") == "OK"
    assert a("PROXY", "NOTIFY", "x") == "ERR PROXY NOTIFY: expected ON or OFF"
    assert a("HELLO", "3")
    assert a("PROXY", "NOTIFY", "ON") == "OK"
    assert a("RESET") == "RESET"
    assert a("HELLO", "3")
    assert a("SET", "lock:" + key, "1", "NX", "PX", "100") == "OK"
    goes_on(a, 1)


# ---- other ends ------------------------------------------------------------------------------------------------


def test_released_by_an_operator(proxy, connect, key):
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "60000") == "OK"
    assert b("PROXY", "RELEASE", "lock:close:" + key) == 1
    assert closed(a) < 1


def test_killed_around_the_proxy(proxy, connect, key, around):
    """The next renewal, a third of the lease later, finds that out."""
    a = named(connect, proxy, "a")
    assert a("SETNX", "lock:close:" + key, "1") == 1
    assert around("DEL", "lock:close:" + key) == 1
    closed(a, 3)


def test_killed_around_the_proxy_and_taken(proxy, connect, key, around):
    """Another client's acquisition shows it at once."""
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "60000") == "OK"
    assert around("DEL", "lock:close:" + key) == 1
    assert b("SET", "lock:close:" + key, "1", "NX", "PX", "60000") == "OK"
    assert closed(a) < 1
    assert b("DEL", "lock:close:" + key) == 1


def test_tell_is_an_incident(proxy, connect, key, around):
    """Of an end that no other incident says."""
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    name = "lock:tell:" + key
    for _ in range(2):  # the client is known to release
        assert a("SET", name, "1", "NX", "PX", "60000") == "OK"
        assert a("DEL", name) == 1
    assert a("SET", name, "1", "NX", "PX", "60000") == "OK"
    assert around("DEL", name) == 1
    assert b("SET", name, "1", "NX", "PX", "60000") == "OK"
    until(lambda: b("PROXY", "INCIDENTS", "9", "KIND", "lost", "KEY", name), 2, "the incident")
    goes_on(a, 0.3)
    assert len(b("PROXY", "INCIDENTS", "9", "KEY", name)) == 1
    assert b("DEL", name) == 1


def test_taken_through_another_proxy(proxy, second, connect, key, around):
    a, b = named(connect, proxy, "a"), named(connect, second, "b")
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "300") == "OK"
    until(lambda: b("SET", "lock:close:" + key, "1", "NX", "PX", "60000") == "OK", 2, "the lock")
    assert closed(a) < 1.3
    assert b("DEL", "lock:close:" + key) == 1


# ---- no false alarm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["close", "error"])
@pytest.mark.parametrize("end", ["DEL", "UNLINK", "GETDEL", "EVAL", "MULTI", "SET XX", "PEXPIRE 0"])
def test_a_release_is_no_loss(proxy, connect, key, rule, end):
    a = named(connect, proxy, "a", ("HELLO", "3"))
    name = "lock:%s:%s" % (rule, key)
    assert a("PROXY", "NOTIFY", "ON") == "OK"
    assert a("SET", name, "1", "NX", "PX", "400") == "OK"
    if end == "EVAL":
        script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
        assert a("EVAL", script, "1", name, "1") == 1
    elif end == "MULTI":
        assert [a("MULTI"), a("DEL", name), a("EXEC")] == ["OK", "QUEUED", [1]]
    elif end == "SET XX":
        assert a("SET", name, "1", "XX", "PX", "1") == "OK"
        time.sleep(0.01)
        a("DEL", name)
    elif end == "PEXPIRE 0":
        assert a("PEXPIRE", name, "0") == 1
        a("DEL", name)
    else:
        assert a(end, name) in (1, "1")
    goes_on(a, 1)


def test_a_late_release_is_no_loss(proxy, connect, key):
    """A release in the same moment: the worker is done with the lock, and its connection stays."""
    for n in range(20):
        a = named(connect, proxy, "a")
        name = "lock:close:%s:%d" % (key, n)
        assert a("SET", name, "1", "NX", "PX", "20") == "OK"
        time.sleep(0.019 + n * 0.0002)
        try:
            a("DEL", name)
        except Closed:
            continue
        goes_on(a, 0.03)


def test_renewed_and_extended(proxy, connect, key):
    a = named(connect, proxy, "a")
    assert a("SETNX", "lock:close:" + key, "1") == 1  # a lease of 600 ms, renewed
    assert a("SET", "lock:close:2:" + key, "1", "NX", "PX", "1500") == "OK"
    for _ in range(6):
        time.sleep(0.4)
        assert a("PEXPIRE", "lock:close:2:" + key, "1500") == 1
    assert a("DEL", "lock:close:" + key) == 1
    assert a("DEL", "lock:close:2:" + key) == 1


def test_extended_around_the_proxy(proxy, connect, key, around):
    """The guard record may end before its lock then, and the release is refused. The connection stays."""
    a = named(connect, proxy, "a")
    name = "lock:close:" + key
    assert a("SET", name, "1", "NX", "PX", "1000") == "OK"
    for _ in range(8):
        time.sleep(0.35)
        assert around("PEXPIRE", name, "1000") == 1
    assert a("DEL", name) in (0, 1)
    around("DEL", name)
    assert a("SET", name, "1", "NX", "PX", "1000") == "OK"
    assert around("PEXPIRE", name, "3000") == 1
    goes_on(a, 2)
    closed(a, 4)


def test_extended_through_another_proxy(proxy, second, connect, key):
    """A watchdog with a connection of its own through another proxy makes the lease longer."""
    a, dog = named(connect, proxy, "a"), named(connect, second, "a")
    assert a("SET", "lock:auto:" + key, "1", "NX", "PX", "500") == "OK"
    assert a("SET", "lock:close:" + key, "1", "NX", "PX", "500") == "OK"
    assert dog("PEXPIRE", "lock:close:" + key, "1500") in (0, 1)
    extended = dog("EVAL", "return redis.call('PEXPIRE', KEYS[1], 1500)", "1", "lock:close:" + key)
    assert extended == 1
    goes_on(a, 1)
    assert a("DEL", "lock:close:" + key) == 1


def test_acquired_again(proxy, connect, key):
    """A worker that asks for the lock again has let its lease go."""
    a, b = named(connect, proxy, "a"), named(connect, proxy, "b")
    name = "lock:close:" + key
    assert a("SET", name, "1", "NX", "PX", "60000") == "OK"
    assert b("PROXY", "RELEASE", name) == 1 and a.sock is not None
    closed(a)
    c = named(connect, proxy, "c")
    for _ in range(3):
        assert c("SET", name, "1", "NX", "PX", "60000") == "OK"
        c.send(encode("DEL", name) + encode("SET", name, "2", "NX", "PX", "60000") + encode("DEL", name))
        assert [c.read() for _ in range(3)] == [1, "OK", 1]
    goes_on(c, 0.3)


def test_shared_connections_only_hear(proxy, connect, key):
    a = named(connect, proxy, "a")
    for rule in ("shared", "auto"):
        assert a("SET", "lock:%s:%s" % (rule, key), "1", "NX", "PX", "200") == "OK"
    goes_on(a, 1)


def test_a_dedicated_connection_of_owner_auto(proxy, connect, key):
    """Eight contended releases over the connections that acquired show that each is a worker's own."""
    a, b = named(connect, proxy, "a"), named(connect, proxy, "a")
    name = "lock:auto:" + key
    for n in range(18):
        holder, loser = (a, b) if n % 2 else (b, a)
        assert holder("SET", name, str(n), "NX", "PX", "60000") == "OK"
        assert loser("SET", name, "x", "NX", "PX", "60000") is None
        time.sleep(0.02)
        assert holder("DEL", name) == 1
    assert a("SET", name, "1", "NX", "PX", "200") == "OK"
    closed(a)
    goes_on(b, 0.2)


def test_handed_on_with_owner_any(start_proxy, farm, connect, key):
    """Another session releases on purpose: nothing is lost."""
    proxy = start_proxy(farm.backend("standalone"), "lock lock:* owner any on-loss close")
    a, b = named(connect, proxy, "a", ("HELLO", "3")), named(connect, proxy, "b")
    assert a("PROXY", "NOTIFY", "ON") == "OK"
    assert a("SET", "lock:" + key, "1", "NX", "PX", "60000") == "OK"
    assert b("DEL", "lock:" + key) == 1
    goes_on(a, 0.5)


def test_while_redis_stands_still(start_redis, start_proxy, connect, key):
    """The holder hears nothing before Redis has said that its lease is over."""
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* owner connection on-loss close", "upstream-timeout 10s")
    a = named(connect, proxy, "a")
    assert a("SET", "lock:" + key, "1", "NX", "PX", "1000") == "OK"
    redis.pause()
    try:
        a.sock.settimeout(2)
        with pytest.raises(TimeoutError):
            a.fill()
    finally:
        redis.resume()
    closed(a, 3)


# ioredis, and redis-py from 6.0 on, send a command again over a new connection: they do not hear that theirs was closed.
HEAR_A_CLOSE = ["hiredis"] + (["redis-py"] if int(redis_py.split(".")[0]) < 6 else [])


@pytest.mark.parametrize("way,clients", [("error", ["redis-py", "ioredis", "hiredis"]), ("close", HEAR_A_CLOSE)])
def test_workers_that_stand_still(way, clients):
    """Real workers are stopped (SIGSTOP) past their lease, and hear of it before they write. On Redis they do not."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients", "paused", "run.py")
    ran = subprocess.run([sys.executable, program, "--pauses", "5", "--place", "one Redis", "--on-loss", way,
                          *itertools.chain(*(("--client", client) for client in clients))],
                         capture_output=True, text=True, timeout=200)
    if "not run:" in ran.stdout:
        pytest.skip(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# ---- what operators see --------------------------------------------------------------------------------------


def test_explain_and_metrics(proxy, connect, key):
    a = connect(proxy)

    def said(name):
        words = a("PROXY", "EXPLAIN", "SETNX", name, "1")
        return dict(zip(words[::2], words[1::2])).get("on-loss")

    assert said("lock:close:x") == "the holder's connection is closed"
    assert said("lock:error:x") == "the holder's next command is refused with LOST"
    assert said("lock:shared:x").startswith("as tell")
    assert "known to be its own" in said("lock:auto:x")
    assert said("lock:x") is None
    assert any(line.startswith("NOTIFY ") for line in a("PROXY", "HELP"))

    def told():
        rows = dict(line.split(":", 1) for line in a("PROXY", "INFO").split("\r\n") if line.startswith("losses_"))
        return {name: int(n) for name, n in rows.items()}

    before = told()
    assert set(before) == {"losses_pushed", "losses_closed", "losses_refused"}
    for name in ("lock:close:", "lock:error:", "lock:tell:"):
        b = named(connect, proxy, "b", ("HELLO", "3"))
        assert name != "lock:tell:" or b("PROXY", "NOTIFY", "ON") == "OK"
        assert b("SET", name + key, "1", "NX", "PX", "100") == "OK"
    until(lambda: told() == {name: n + 1 for name, n in before.items()}, 3, "the counts")
