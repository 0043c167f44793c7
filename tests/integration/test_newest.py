"""The newest ways to acquire: MSETEX with NX, HSETEX with FNX, and what goes with them: HGETEX, HGETDEL. newest.py says by which
server."""

import pytest

import servers
from newest import backends, pairs, proxies
from resp import Error, encode
from servers import until
from test_compare import more, scripts_sent
from test_locks import Pair, fill, is_locked

backend = backends("standalone", "cluster")
proxy = proxies("lock lock:* kind any", "lock plain:*")
pair = pairs()


def field_expiries(backend):
    """Whether the server's fields may expire. Those of the stand-in do not."""
    with backend.nodes[0].client() as c:
        return c("COMMAND", "INFO", "hpttl")[0] is not None


def test_hsetex_does_not_wait(backend, start_proxy, connect, direct, key):
    """Not even behind a session that waits: nothing but the server's own command may carry it out."""
    proxy = start_proxy(backend, "lock lock:* kind hash wait 60s")
    holder, waiter, other = (connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in ("holder", "waiter", "other"))
    name = key("lock:waits")
    assert holder("HSETEX", name, "FNX", "FIELDS", "1", "owner", "v") == 1
    waiter.send(encode("HSETNX", name, "owner", "w"))
    until(lambda: "waiting:1" in holder("PROXY", "INFO"), 10, "the session that waits")
    assert other("HSETEX", name, "FNX", "FIELDS", "1", "owner", "x") == 0
    assert direct("HGET", name, "owner") == "v"
    assert holder("DEL", name) == 1 and waiter.read() == 1
    assert waiter("DEL", name) == 1


# ---- MSETEX ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["NX"], ["NX", "EX", "60"], ["PX", "60000", "NX"], ["nx"]])
@pytest.mark.parametrize("count", [1, 2])
def test_msetex_acquires(pair, options, count):
    tag = pair.key("tag")
    names = ["plain:{%s}:%d" % (tag, i) for i in range(count)]
    both = [word for name in names for word in (name, "A")]
    assert pair.a("MSETEX", count, *both, *options) == 1
    for name in names:
        with pair.unchanged(name):
            assert pair.b("MSETEX", count, *both, *options) == 0
            assert pair.b("MSETEX", 1, name, "B", "NX") == 0 and is_locked(pair.b("MSETEX", 1, name, "B"))
            assert is_locked(pair.b("SET", name, "B", "EX", 5)) and pair.b("DEL", name) == 0
        assert 0 < pair.direct("PTTL", name), "every lock ends"
    fences = {pair.a("PROXY", "TOKEN", name) for name in names}
    assert len(fences) == 1 and None not in fences, "one fence for all"
    for name in names:
        pair.held_by_a(name)


@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_msetex_is_a_lost_attempt(pair, count):
    """As SETNX: no incident, and PROXY TOP counts it."""
    tag = pair.key("tag")
    names = ["plain:{%s}:%d" % (tag, i) for i in range(count)]
    both, colleague = [word for name in names for word in (name, "1")], more(pair)
    before = pair.a("PROXY", "INCIDENTS", "1000", "KIND", "overwrite")
    assert pair.a("MSETEX", count, *both, "NX", "EX", "60") == 1
    for _ in range(30):
        assert colleague("MSETEX", count, *both, "NX", "EX", "60") == 0
    assert pair.a("PROXY", "INCIDENTS", "1000", "KIND", "overwrite") == before
    assert any(line.startswith("contended %s: 30 attempts lost " % names[0]) for line in pair.a("PROXY", "TOP", "100"))
    for name in names:
        assert pair.a("DEL", name) == 1


def test_msetex_acquires_all_or_none(pair):
    tag = pair.key("tag")
    one, two = "plain:{%s}:1" % tag, "plain:{%s}:2" % tag
    assert pair.b("SET", two, "B", "NX", "EX", 60) == "OK"
    assert pair.a("MSETEX", 2, one, "A", two, "A", "NX", "EX", 60) == 0
    assert pair.direct("EXISTS", one) == 0
    assert pair.b("DEL", two) == 1
    assert pair.a("MULTI") == "OK"
    assert pair.a("MSETEX", 2, one, "A", two, "A", "NX", "EX", 60) == pair.a("DEL", one) == "QUEUED"
    assert pair.a("EXEC") == [1, 1]
    pair.held_by_a(two)


def test_msetex_without_nx_is_a_write(pair):
    """As MSET: data, and of the holder's lock the lease is over."""
    name = "plain:%s" % pair.key("write")
    assert pair.a("MSETEX", 1, name, "v", "EX", 60) == 1
    assert pair.a("PROXY", "TOKEN", name) is None and pair.named("c")("DEL", name) == 1
    bad = [["MSETEX", "2", name, "v"], ["MSETEX", "0", name, "v"], ["MSETEX", "1", name, "v", "NX", "EX", "0"]]
    for command in bad:
        reply = pair.a(*command)
        assert isinstance(reply, Error) and pair.direct("EXISTS", name) == 0, (command, reply)


# ---- fields ------------------------------------------------------------------------------------------


def acquired(pair, *options):
    name = pair.key("lock:fields")
    assert pair.a("HSETEX", name, "FNX", *options, "FIELDS", 1, "owner", "A") == 1
    return name


@pytest.mark.parametrize("options", [[], ["EX", "60"], ["PX", "60000"]])
def test_hsetex_acquires(pair, backend, options):
    name = acquired(pair, *options)
    for form in (["HSETEX", name, "FNX", *options, "FIELDS", 1, "owner", "B"], ["HSETEX", name, "FXX", "FIELDS", 1, "owner", "B"],
                 ["HSETEX", name, *options, "FNX", "FIELDS", 2, "other", "B", "fxx", "EX"], ["HSETNX", name, "owner", "B"]):
        assert pair.b(*form) == 0
    assert is_locked(pair.b("HSETEX", name, *options, "FIELDS", 1, "owner", "B"))
    assert is_locked(pair.b("HSET", name, "owner", "B")) and pair.b("DEL", name) == 0
    assert pair.b("HGETEX", name, "EX", 5, "FIELDS", 2, "owner", "none") == ["A", None]
    assert pair.b("HGETEX", name, "FIELDS", 1, "owner") == ["A"]
    assert pair.b("HGETDEL", name, "FIELDS", 2, "owner", "none") == [None, None]
    assert pair.direct("HGETALL", name) == ["owner", "A"]
    if options and field_expiries(backend):
        assert 50000 < pair.direct("HPTTL", name, "FIELDS", 1, "owner")[0] <= 60000 and pair.direct("PTTL", name) == -1
    else:
        assert 0 < pair.direct("PTTL", name), "every lock ends"
    assert pair.a("PROXY", "TOKEN", name) is not None and pair.b("PROXY", "TOKEN", name) is None
    assert pair.a("HSETEX", name, "FXX", *options, "FIELDS", 1, "owner", "A2") == 1
    assert pair.a("HGETEX", name, "PX", 90000, "FIELDS", 1, "owner") == ["A2"]
    assert pair.a("HGETDEL", name, "FIELDS", 1, "owner") == ["A2"]
    assert pair.direct("EXISTS", name) == 0 and pair.a("PROXY", "TOKEN", name) is None
    assert pair.b("HSETEX", name, "FNX", "FIELDS", 1, "owner", "B") == 1
    assert pair.a("DEL", name) == 0 and pair.b("DEL", name) == 1


def test_a_lock_ends_with_its_field(pair, backend):
    if not field_expiries(backend):
        pytest.skip("fields of this server do not expire")
    name = acquired(pair, "PX", 300)
    assert pair.b("HSETEX", name, "FNX", "FIELDS", 1, "owner", "B") == 0
    until(lambda: pair.b("HSETEX", name, "FNX", "EX", 60, "FIELDS", 1, "owner", "B") == 1, 2, "the field's end")
    assert pair.a("DEL", name) == 0 and pair.a("HGETDEL", name, "FIELDS", 1, "owner") == [None]
    assert pair.b("HGETDEL", name, "FIELDS", 1, "owner") == ["B"]
    name = acquired(pair, "PX", 300)
    assert pair.a("HGETEX", name, "PX", 90000, "FIELDS", 1, "owner") == ["A"]
    assert 80000 < pair.direct("HPTTL", name, "FIELDS", 1, "owner")[0] <= 90000
    other = acquired(pair, "PX", 300)
    until(lambda: pair.b("HSETNX", other, "owner", "B") == 1, 2, "the field's end")
    assert pair.a("HDEL", other, "owner") == 0 and pair.b("HDEL", other, "owner") == 1
    assert pair.a("PROXY", "TOKEN", name) is not None
    pair.held_by_a(name)


LEAVE_THE_FIELD = ["HSETNX K more v", "HSET K more v", "HINCRBYFLOAT K more 1", "EXPIRE K 600", "PERSIST K", "HPEXPIRE K 3000 FIELDS 1 owner",
                   "HSETEX K FIELDS 1 more v", "EVAL redis.call('EXPIRE',KEYS[1],600) 1 K"]


@pytest.mark.parametrize("command", LEAVE_THE_FIELD)
@pytest.mark.parametrize("before", ["the field's own end", "HPEXPIRE"])
def test_the_lease_ends_with_the_field(pair, backend, command, before):
    """Whatever the holder's command does to the key: the proxy does not believe in the lease for longer, and does not renew it."""
    if not field_expiries(backend):
        pytest.skip("fields of this server do not expire")
    name, words = acquired(pair, *([] if before == "HPEXPIRE" else ["PX", "3000"])), command.split(" ", 1)
    if before == "HPEXPIRE":
        assert pair.a("HPEXPIRE", name, 3000, "FIELDS", 1, "owner") == [1]
    words = command.split() if words[0] != "EVAL" else ["EVAL", *words[1].rsplit(" ", 2)]
    assert not isinstance(pair.a(*fill(words, name)), Error)
    assert 0 < pair.direct("HPTTL", name, "FIELDS", 1, "owner")[0] <= 3000
    lease = dict(zip(*[iter(pair.a("PROXY", "LOCKS", name)[0])] * 2))
    assert 0 < lease["left-ms"] <= 3000
    pttl = dict(zip(*[iter(pair.a("PROXY", "LOCK", name))] * 2))["pttl"]
    assert 0 < pttl <= 3000
    pair.direct("HPEXPIRE", name, 1, "FIELDS", 1, "owner")
    until(lambda: not pair.direct("HEXISTS", name, "owner"), 2, "the field's end")
    assert pair.a("PROXY", "TOKEN", name) is None and pair.a("HDEL", name, "owner") == 0


def test_under_a_rule_without_the_kind(pair, backend, start_proxy, connect):
    """They still change no lock of another client's."""
    name, other = acquired(pair), connect(start_proxy(backend, "lock lock:*"), commands=[("CLIENT", "SETNAME", "other")])
    for command in ("HSETEX K FIELDS 1 owner B", "HGETEX K EX 5 FIELDS 1 owner", "HGETDEL K FIELDS 1 owner"):
        assert is_locked(other(*fill(command.split(), name)))
    assert pair.a("HGETDEL", name, "FIELDS", 1, "owner") == ["A"]


def test_another_connection_of_the_client(pair):
    name = acquired(pair)
    assert more(pair)("HGETDEL", name, "FIELDS", 1, "owner") == ["A"]
    assert pair.direct("EXISTS", name) == 0


@pytest.mark.parametrize("command", [
    "HSETEX K FNX FIELDS 1 f v", "HSETEX K FNX FIELDS 2 f v g w", "HSETEX K FIELDS 1 f v", "HSETEX K FXX FIELDS 1 f v",
    "HGETEX K FIELDS 1 f", "HGETEX K PERSIST FIELDS 2 f g", "HGETDEL K FIELDS 1 f", "HGETDEL K FIELDS 2 g h", "HSETEX K FIELDS 2 f v",
    "HSETEX K WORD FIELDS 1 f v", "HGETDEL K FIELDS 1", "HGETEX K FIELDS 0 f",
])
@pytest.mark.parametrize("before", [[], ["HSET", "K", "f", "old"], ["SET", "K", "string"]])
def test_as_on_the_server(pair, backend, command, before):
    """The replies where no lease is live. What is there before has no field that the proxy gave a lease for."""
    name = pair.key("plain:same")
    plain, found = backend.node_of(name).client(), []
    for client in (plain, pair.a):
        plain("DEL", name)
        if before:
            plain(*fill(before, name))
        reply = client.raw(*fill(command.split(), name))
        found.append((reply, plain("TYPE", name), plain("GET", name) if before[:1] == ["SET"] else plain("HGETALL", name)))
    assert found[0] == found[1]
    plain.close()


def test_a_server_without_them(farm, connect, key):
    backend = farm.backend("standalone")
    proxy, direct, plain = servers.Proxy(backend, "lock lock:* kind any"), backend.direct(), backend.client()
    pair, name = Pair(proxy, connect, direct, backend, key), key("lock:lacks")
    assert pair.a("HSETNX", name, "f", "v") == 1
    for command in (["HGETDEL", name, "FIELDS", "1", "f"], ["HGETEX", name, "FIELDS", "1", "f"], ["hsetex", name, "FNX", "FIELDS", "1", "f", "w"],
                    ["MSETEX", "1", name, "v", "NX"]):
        expected = plain.raw(*command)
        if not expected.startswith(b"-ERR unknown"):
            continue  # this server has the command
        for client in (pair.a, pair.b):
            with pair.unchanged(name):
                assert client.raw(*command) == expected
    assert pair.a("HDEL", name, "f") == 1
    plain.close()
    direct.close()
    proxy.stop()
    proxy.remove()


@pytest.mark.parametrize("command", ["HSETEX K FNX FIELDS 1 f v", "HSETEX K FIELDS 1 f w", "HGETDEL K FIELDS 2 f none"])
@pytest.mark.parametrize("before", ["held", "free"])
def test_sent_twice(pair, backend, command, before):
    """After a lost connection the proxy sends a script again: the answer is the same, and nothing more is changed."""
    name, replies = pair.key("lock:twice"), []
    if before == "held":
        assert pair.a("HSETNX", name, "f", "v") == 1
    sent = scripts_sent(backend, name, lambda: replies.append(pair.a(*fill(command.split(), name))))
    assert len(sent) == 1
    state = pair.direct("HGETALL", name)
    answer = backend.node_of(name).run(*sent[0])
    assert answer[0] == replies[0] and pair.direct("HGETALL", name) == state
    pair.direct("DEL", name)
