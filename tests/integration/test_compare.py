"""Commands that compare the lock's value themselves: DELIFEQ, DELEX, and SET with IFEQ, IFNE, IFDEQ or IFDNE. newest.py says by
which server."""

import time

import pytest

import modules
import servers
from helpers import monitored
from newest import backends, pairs, proxies
from resp import Error, encode
from servers import until
from test_audit import kinds as kinds_of
from test_locks import Pair, fill, guard_of, is_locked, text_of

backend = backends("standalone", "cluster")
proxy = proxies("lock lock:*")
pair = pairs()


def more(pair):
    """Another connection of A's client."""
    return pair.connect(pair.proxy, commands=[("CLIENT", "SETNAME", pair.a("CLIENT", "GETNAME"))])


def held(pair, value="value-a", px=60000):
    return pair.held("lock:compare", value, px)


# ---- as on the server ------------------------------------------------------------------------------

FORMS = [
    "DELIFEQ K v", "DELIFEQ K other", "DELIFEQ K", "DELIFEQ K v v", "delifeq K v", "DELEX K", "DELEX K IFEQ v", "DELEX K ifeq other",
    "DELEX K IFNE v", "DELEX K IFNE other", "DELEX K IFDEQ D", "DELEX K IFDNE D", "DELEX K IFDEQ 0123456789abcdef",
    "DELEX K IFDEQ 0", "DELEX K IFEQ", "DELEX K WORD v", "DELEX K IFEQ v IFEQ v", "SET K w IFEQ v", "SET K w IFEQ other",
    "SET K w IFEQ v EX 50", "SET K w EX 50 IFEQ v", "SET K w IFEQ v KEEPTTL", "SET K w IFEQ v GET", "SET K w IFEQ other GET",
    "SET K w GET EX 50 IFEQ v", "SET K w IFNE v", "SET K w IFNE other", "SET K w IFNE other GET PX 5000", "SET K w IFDEQ D",
    "SET K w IFDNE D", "SET K w IFDEQ 0", "SET K w IFEQ v NX", "SET K w NX IFEQ v", "SET K w IFEQ", "SET K w IFEQ v EX 0",
    "SET K w IFEQ other EX 0", "SET K w IFEQ v EX abc", "SET K w IFEQ v EXAT 4000000000", "SET K w IFEQ v PXAT 1", "SET K v IFEQ v PX 40000",
]
BEFORE = {
    "free": [],
    "data": [["SET", "K", "v"]],
    "data that expires": [["SET", "K", "v", "EX", "100"]],
    "empty": [["SET", "K", ""]],
    "a list": [["RPUSH", "K", "v"]],
    "a hash": [["HSET", "K", "f", "v"]],
}


def words(form, name, digest):
    return [{"K": name, "D": digest}.get(word, word) for word in form.split()]


def result(client, direct, name, command):
    """The reply's bytes, and what is at the key then. A lock has the rule's lease where Redis alone has no expiry."""
    reply = client.raw(*command)
    return reply, direct("TYPE", name), direct("GET", name)


@pytest.mark.parametrize("state", BEFORE)
def test_as_on_the_server(proxy, backend, connect, direct, key, state):
    """On data, and on what the holder made, the reply is the server's to the byte, and the key the same."""
    name, client = key("lock:same"), connect(proxy)
    plain = backend.node_of(name).client()
    plain("SET", name, "v")
    digest = plain("DIGEST", name)
    for form in FORMS:
        command, found = words(form, name, digest), []
        for asked in (plain, client):
            plain("DEL", name)
            for before in BEFORE[state]:
                plain(*fill(before, name))
            found.append(result(asked, direct, name, command))
        assert found[0] == found[1], form
    plain("DEL", name)
    plain.close()


@pytest.mark.parametrize("form", FORMS)
def test_as_on_the_server_for_the_holder(pair, backend, form):
    name = pair.key("lock:same:held")
    plain = backend.node_of(name).client()
    plain("SET", name, "v", "PX", 60000)
    command = words(form, name, plain("DIGEST", name))
    alone = result(plain, pair.direct, name, command)
    plain("DEL", name)
    assert pair.a("SET", name, "v", "NX", "PX", 60000) == "OK"
    assert result(pair.a, pair.direct, name, command) == alone
    if pair.direct("GET", name) is not None:
        assert 0 < pair.direct("PTTL", name), "every lock ends"
        pair.held_by_a(name)
    plain.close()


def test_a_server_without_them(farm, connect, key):
    """The server's own error, to the byte, and nothing changed: for the holder, for others, on a free lock."""
    backend = farm.backend("standalone")
    proxy, direct, plain = servers.Proxy(backend, "lock lock:*"), backend.direct(), backend.client()
    pair = Pair(proxy, connect, direct, backend, key)
    commands = [["DELIFEQ", "K", "value-a"], ["delex", "K"], ["DelEx", "K", "IFEQ", "value-a"], ["DELIFEQ", "K", "x" * 300],
                ["DELIFEQ", "K", "a\r\nb\x00c"], ["SET", "K", "new", "IFEQ", "value-a", "EX", "5"], ["SET", "K", "new", "IFDEQ", "0"]]
    name, free = pair.held("lock:lacks"), key("lock:lacks:free")
    for command in commands:
        error = plain.raw(*fill(command, free))
        if not error.startswith(b"-"):
            continue  # this server has the command
        expected = plain.raw(*fill(command, name))
        for client in (pair.a, pair.b):
            with pair.unchanged(name):
                assert client.raw(*fill(command, name)) == expected
            assert client.raw(*fill(command, free)) == error
    pair.held_by_a(name)
    plain.close()
    direct.close()
    proxy.stop()
    proxy.remove()


# ---- releases --------------------------------------------------------------------------------------

RELEASES = {
    "DELIFEQ": ["DELIFEQ", "K", "V"],
    "DELEX": ["DELEX", "K"],
    "DELEX IFEQ": ["DELEX", "K", "IFEQ", "V"],
    "DELEX IFNE": ["DELEX", "K", "IFNE", "another"],
    "DELEX IFDEQ": ["DELEX", "K", "IFDEQ", "D"],
}
NAMES_IT = [form for form in RELEASES if form != "DELEX IFDEQ" and form[-1] == "Q"]


def release(pair, form, name, value="value-a"):
    digest = pair.direct("DIGEST", name) if "D" in RELEASES[form] else None
    return [digest if word == "D" else word for word in fill(RELEASES[form], name, value)]


@pytest.mark.parametrize("form", RELEASES)
def test_release(pair, form):
    name = held(pair)
    with pair.unchanged(name):
        assert pair.b(*release(pair, form, name)) == 0
    assert pair.a(*release(pair, form, name)) == 1
    assert pair.direct("EXISTS", name) == 0
    assert pair.a(*release(pair, form, name)) == 0 and pair.a("PROXY", "TOKEN", name) is None
    assert pair.b("SET", name, "value-b", "NX", "PX", 60000) == "OK"
    assert pair.a("DEL", name) == 0, "the claim is spent"
    assert pair.b("DEL", name) == 1


@pytest.mark.parametrize("form", NAMES_IT)
def test_another_value_is_no_release(pair, form):
    name = held(pair)
    for client in (pair.a, pair.b):
        with pair.unchanged(name):
            assert client(*release(pair, form, name, "another")) == 0
    pair.held_by_a(name)


@pytest.mark.parametrize("form", NAMES_IT)
def test_a_late_release_of_a_constant(pair, form):
    """A's lease is over, B holds with the same value: A's release frees nothing, and B's does (idiom 4)."""
    name = held(pair, "1", 200)
    until(lambda: pair.direct("EXISTS", name) == 0, what="the end of the lease")
    assert pair.b("SET", name, "1", "NX", "PX", 60000) == "OK"
    with pair.unchanged(name):
        assert pair.a(*release(pair, form, name, "1")) == 0
    assert pair.named("c")("SET", name, "1", "NX", "PX", 60000) is None
    assert pair.b(*release(pair, form, name, "1")) == 1


@pytest.mark.parametrize("form", NAMES_IT)
def test_a_late_release_within_one_client(pair, form):
    """As above, over two connections of one client: the late release spends the claim whose value it names."""
    other, name = more(pair), held(pair, "1", 200)
    until(lambda: pair.direct("EXISTS", name) == 0, what="the end of the lease")
    assert other("SET", name, "1", "NX", "PX", 60000) == "OK"
    with pair.unchanged(name):
        assert pair.a(*release(pair, form, name, "1")) == 0
    assert other(*release(pair, form, name, "1")) == 1


@pytest.mark.parametrize("form", NAMES_IT)
def test_a_session_that_has_only_the_value(pair, form):
    """Another connection of the holder's client, which has never tried, or has lost with another value a moment ago."""
    name = held(pair)
    assert more(pair)(*release(pair, form, name)) == 1
    name = held(pair)
    assert more(pair).at_once(["SET", name, "mine", "NX", "PX", 60000], release(pair, form, name)) == [None, 1]
    assert pair.direct("EXISTS", name) == 0


@pytest.mark.parametrize("form", NAMES_IT)
def test_losers_release_nothing(pair, form):
    """A loser that releases by its own value, as in `finally`: the server itself says no, and the proxy does not wait to learn
    more. With one constant value, it is a loser's release (C4)."""
    name, loser = held(pair), more(pair)
    began = time.monotonic()
    for i in range(8):
        mine = "mine-%d" % i
        assert loser.at_once(["SET", name, mine, "NX", "PX", 60000], release(pair, form, name, mine)) == [None, 0]
    assert time.monotonic() - began < 1.9, "8 losses are not held back for 0.25 s each"
    assert more(pair)(*release(pair, form, name)) == 1
    name, losers = pair.held("lock:constant", "1"), [more(pair), more(pair)]
    for client in losers:
        client.send(encode("SET", name, "1", "NX", "PX", 60000) + encode(*release(pair, form, name, "1")))
    assert [(client.read(), client.read()) for client in losers] == [(None, 0)] * 2
    assert pair.a(*release(pair, form, name, "1")) == 1


def test_over_a_pool(pair, proxy, connect):
    """Connections change hands at random. Each release names its own lease, and frees it."""
    pool, name = [more(pair) for _ in range(3)], pair.key("lock:pool")
    for i in range(60):
        value = "worker-%d" % i
        assert pool[i % 3]("SET", name, value, "NX", "PX", 60000) == "OK"
        for j in range(2):
            lost = "lost-%d-%d" % (i, j)
            assert pool[(i + j) % 3].at_once(["SET", name, lost, "NX", "PX", 60000], ["DELIFEQ", name, lost]) == [None, 0]
        assert pool[(i * 7 + 1) % 3]("DELIFEQ", name, value) == 1, i
    assert pair.direct("EXISTS", name) == 0


def test_a_lock_made_around_the_proxy(pair):
    """Its value is known to the caller, as after GET."""
    name = pair.key("lock:around")
    pair.direct("SET", name, "v", "PX", 60000)
    assert pair.a("SET", name, "mine", "NX", "PX", 60000) is None
    assert pair.a("DEL", name) == 0 and pair.a("DELIFEQ", name, "mine") == 0
    assert pair.a("DELIFEQ", name, "v") == 1


@pytest.mark.parametrize("form", RELEASES)
def test_in_a_transaction(pair, form):
    name = held(pair)
    for client, reply in ((pair.b, 0), (pair.a, 1)):
        assert client("MULTI") == "OK"
        assert client(*release(pair, form, name)) == "QUEUED"
        assert client("EXEC") == [reply]
    assert pair.direct("EXISTS", name) == 0
    assert pair.a("MULTI") == "OK"
    assert pair.a("SET", name, "v1", "NX", "PX", 60000) == pair.a("SET", name, "v2", "IFEQ", "v1") == "QUEUED"
    assert pair.a("DELIFEQ", name, "v2") == "QUEUED"
    assert pair.a("EXEC") == ["OK", "OK", 1]


@pytest.mark.parametrize("mode", ["any", "client", "connection"])
def test_owners(backend, connect, direct, key, start_proxy, mode):
    pair = Pair(start_proxy(backend, "lock lock:* owner " + mode), connect, direct, backend, key)
    name = held(pair)
    assert pair.b("DELIFEQ", name, "value-a") == (1 if mode == "any" else 0)
    if mode != "any":
        assert more(pair)("DELIFEQ", name, "value-a") == (1 if mode == "client" else 0)
    if mode == "connection":
        assert pair.a("DELIFEQ", name, "value-a") == 1


def test_a_reader_of_a_hash(pair):
    """DELEX without a condition deletes any type, as DEL does."""
    name = pair.key("lock:a:hash")
    pair.direct("HSET", name, "f", "v")
    assert pair.a("DELEX", name, "IFEQ", "v").startswith("ERR Key should be of string type")
    assert pair.a("DELEX", name) == 1


def test_those_that_wait_are_told(backend, start_proxy, connect, key):
    """At this proxy and at another one: a waiting attempt has the lock long before it would ask again."""
    one, two = (start_proxy(backend, "lock lock:* wait 30s") for _ in range(2))
    holder = connect(one, commands=[("CLIENT", "SETNAME", "holder")])
    for at in (one, two):
        name = key("lock:wait")
        waiter = connect(at, commands=[("CLIENT", "SETNAME", "waiter")])
        watch, took = connect(at), []
        for i in range(5):
            assert holder("SET", name, "v%d" % i, "NX", "PX", 60000) == "OK"
            waiter.send(encode("SET", name, "w", "NX", "PX", 60000))
            until(lambda: "waiting:1" in watch("PROXY", "INFO"), what="the attempt to wait")
            began = time.monotonic()
            assert holder("DELIFEQ", name, "v%d" % i) == 1
            assert waiter.read() == "OK"
            took.append(time.monotonic() - began)
            assert waiter("DELEX", name, "IFEQ", "w") == 1
        assert sorted(took)[2] < 0.06, "it would ask again after 0.1 s: %r" % took


# ---- SET ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["EX", "30"], ["PX", "30000"], ["EXAT", "4000000000"], ["KEEPTTL"], []])
def test_the_guard_record_follows(pair, options):
    name = held(pair, "v1", 20000)
    with pair.unchanged(name):
        assert pair.b("SET", name, "mine", "IFEQ", "v1", *options) is None
        assert is_locked(pair.b("SET", name, "mine", "IFEQ", "v1", "GET", *options)), "the value would look like success"
        assert pair.b("SET", name, "mine", "IFEQ", "other", "GET", *options) == "v1"
    assert pair.a("SET", name, "v2", "IFEQ", "v1", *options) == "OK"
    assert pair.direct("GET", name) == "v2"
    assert 0 < pair.direct("PTTL", name), "every lock ends"
    with pair.unchanged(name):
        assert is_locked(pair.b("SET", name, "mine", "EX", 5)) and pair.b("DEL", name) == 0
        assert pair.b("DELIFEQ", name, "v2") == 0 and pair.named("c")("DEL", name) == 0
    assert pair.a("SET", name, "v3", "GET", "IFEQ", "v2", *options) == "v2"
    pair.held_by_a(name)


@pytest.mark.parametrize("value", ["get", "KEEPTTL", "nx", "ifeq", "ex", "", "a\r\n\x00b"])
def test_values_that_look_like_options(pair, value):
    name = held(pair, value)
    with pair.unchanged(name):
        assert pair.b("SET", name, "mine", "IFEQ", value) is None and pair.b("DELIFEQ", name, value) == 0
        assert pair.b("DELEX", name, "IFEQ", value) == 0
    assert pair.a("SET", name, value, "IFEQ", value, "EX", 30) == "OK"
    assert pair.a("SET", name, "v2", "IFEQ", value, "EX", 30) == "OK"
    assert pair.a("SET", name, value, "IFEQ", "v2", "GET") == "v2"
    assert pair.a("DELIFEQ", name, value) == 1


def test_an_expiry_that_is_taken_away_is_bounded(pair):
    name = held(pair, "v1", 200000)
    assert pair.a("SET", name, "v2", "IFEQ", "v1") == "OK"
    assert 0 < pair.direct("PTTL", name) <= 30000
    assert dict(zip(*[iter(pair.direct("HGETALL", guard_of(pair.backend, name)))] * 2))["leased"], "it is renewed"
    assert pair.a("DELIFEQ", name, "v2") == 1
    assert pair.a("SETNX", name, "v1") == 1
    assert pair.a("SET", name, "v2", "IFEQ", "v1", "KEEPTTL") == "OK"
    assert dict(zip(*[iter(pair.direct("HGETALL", guard_of(pair.backend, name)))] * 2))["leased"], "it is still the proxy's own"
    pair.held_by_a(name)


def test_a_heartbeat_over_another_connection(pair):
    """The value tells the worker (K2), also where its connection has lost an attempt since."""
    name, other = held(pair, "worker-1"), more(pair)
    assert other("SET", name, "worker-2", "NX", "PX", 60000) is None
    assert other("SET", name, "worker-1", "IFEQ", "worker-1", "PX", 90000) == "OK"
    assert 60000 < pair.direct("PTTL", name) <= 90000
    assert more(pair)("SET", name, "worker-1b", "IFEQ", "worker-1", "PX", 80000) == "OK"
    assert pair.a("DELIFEQ", name, "worker-1b") == 1


def test_a_takeover(pair):
    """A rival that was shown the lease compares with its value and writes its own: as GETSET (line 4). The late DEL frees
    nothing."""
    name = held(pair, "1000")
    assert pair.b("SET", name, "2000", "NX") is None
    with pair.unchanged(name):
        assert pair.b("SET", name, "2000", "IFEQ", "1000", "PX", 50000) is None, "it has not read the lease"
    assert pair.b("GET", name) == "1000"
    assert pair.b("SET", name, "2000", "IFEQ", "1000", "PX", 50000) == "OK"
    with pair.unchanged(name):
        assert pair.a("DEL", name) == 0 and pair.a("DELIFEQ", name, "1000") == 0
        assert pair.a("SET", name, "3000", "IFEQ", "1000") is None
    assert pair.b("PROXY", "TOKEN", name) is not None
    assert pair.b("DELIFEQ", name, "2000") == 1
    name = held(pair, "1000")  # within one client
    rival = more(pair)
    assert rival("SET", name, "2000", "NX") is None and rival("GET", name) == "1000"
    assert rival("SET", name, "2000", "IFEQ", "1000", "PX", 50000) == "OK"
    assert pair.a("DEL", name) == 0
    assert rival("DEL", name) == 1


def test_ifne(pair):
    """With an expiry it acquires a free lock; without one it writes data, as SET does."""
    name = pair.key("lock:ifne")
    assert pair.a("SET", name, "value-a", "IFNE", "none", "PX", 60000) == "OK"
    with pair.unchanged(name):
        assert pair.b("SET", name, "value-b", "IFNE", "none", "PX", 60000) is None
        assert pair.b("SET", name, "value-b", "IFNE", "none") is None
        assert pair.a("SET", name, "value-c", "IFNE", "value-a", "PX", 60000) is None
    pair.held_by_a(name)
    assert pair.a("SET", name, "value-a", "IFNE", "none") == "OK"
    assert pair.direct("PTTL", name) == -1 and pair.a("PROXY", "TOKEN", name) is None
    assert pair.named("c")("DEL", name) == 1


def test_an_expiry_in_the_past_releases(pair):
    name = held(pair, "v1")
    assert pair.a("SET", name, "v2", "IFEQ", "v1", "PXAT", "1") == "OK"
    assert pair.direct("EXISTS", name) == 0 and pair.a("PROXY", "TOKEN", name) is None


# ---- audit ---------------------------------------------------------------------------------------------


def test_audit_changes_nothing_and_tells(backend, start_proxy, connect, key, direct):
    """A release by comparison is one for the audit, and a no of the server's is none."""
    proxy = start_proxy(backend, "lock lock:* mode audit")
    pair, name = Pair(proxy, connect, direct, backend, key), key("lock:audit")
    kinds = lambda: [k for k in kinds_of(pair.a, name) if k != "no_expiry"]  # noqa: E731
    assert pair.a("SET", name, "v1", "NX", "PX", 60000) == "OK"
    assert pair.b("SET", name, "w1", "NX", "PX", 60000) is None
    assert pair.b("DELIFEQ", name, "w1") == 0 and pair.b("SET", name, "w2", "IFEQ", "w1") is None
    assert pair.a("SET", name, "v2", "IFEQ", "v1", "PX", 60000) == "OK"
    assert pair.a("DELIFEQ", name, "v2") == 1 and kinds() == []
    assert pair.a("SET", name, "1", "NX", "PX", 60000) == "OK"
    assert pair.b("DELIFEQ", name, "1") == 1
    assert kinds() == ["foreign_release"]


# ---- sent twice ----------------------------------------------------------------------------------------


def scripts_sent(backend, name, run):
    """The lock scripts that the proxy sends for the key while `run` runs, as arguments (EVALSHA ...)."""
    return [sent for sent, in_script in monitored(backend.node_of(name), run)
            if sent[0].upper() == "EVALSHA" and name in sent and not in_script]


@pytest.mark.parametrize("command", [["DELIFEQ", "K", "v1"], ["DELEX", "K"], ["SET", "K", "v2", "IFEQ", "v1", "EX", "20"],
                                     ["SET", "K", "v2", "IFEQ", "v1", "GET"], ["SET", "K", "v2", "GET", "IFNE", "w", "EX", "20"]])
@pytest.mark.parametrize("before", ["held", "data", "free"])
def test_sent_twice(pair, backend, command, before):
    """After a lost connection the proxy sends a script again: the answer is the same, and nothing more is changed."""
    name = pair.key("lock:twice")
    if before == "held":
        assert pair.a("SET", name, "v1", "NX", "PX", 60000) == "OK"
    elif before == "data":
        pair.direct("SET", name, "v1")
    replies = []
    sent = scripts_sent(backend, name, lambda: replies.append(pair.a(*fill(command, name))))
    assert len(sent) == 1
    state = pair.state(name)
    answer = backend.node_of(name).run(*sent[0])
    assert answer[0] == replies[0], (answer, replies)
    assert pair.state(name)[:2] == state[:2] and text_of(pair.state(name)) == text_of(state)
    pair.direct("DEL", name)


def test_errors_are_the_server_s_when_it_takes_no_writes(start_redis, tmp_path_factory, start_proxy, connect, key):
    backend = start_redis("--loadmodule", modules.built(tmp_path_factory, "newest.c"))
    pair = Pair(start_proxy(backend, "lock lock:*"), connect, backend.direct(), backend, key)
    name = held(pair)
    pair.direct("CONFIG", "SET", "min-replicas-to-write", "1")
    for client in (pair.a, pair.b):
        for command in (["DELIFEQ", name, "value-a"], ["SET", name, "v2", "IFEQ", "value-a"]):
            reply = client(*command)
            assert isinstance(reply, Error) and reply.startswith("NOREPLICAS"), reply
    pair.direct("CONFIG", "SET", "min-replicas-to-write", "0")
    pair.held_by_a(name)
