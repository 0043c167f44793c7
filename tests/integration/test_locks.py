"""Commands on lock keys: free, held by the client, held by another. Then leases, fences, attribution, PROXY."""

import contextlib
import re
import time

import pytest

from resp import Error, encode
from servers import guard_record, is_watermark, slot_of, until


def is_locked(reply):
    return isinstance(reply, Error) and reply.startswith("LOCKED ")


def guards(backend):
    return [k for k in backend.keys() if k.startswith("lockkeeper:{") and not is_watermark(k)]


def guard_of(backend, name):
    """The guard record's name, or None."""
    found = [g for g in guards(backend) if g.endswith("}:" + name)]
    assert len(found) <= 1
    return found[0] if found else None


def text_of(reply):
    """A reply of any shape as one text."""
    if isinstance(reply, (list, tuple)):
        return "\n".join(text_of(r) for r in reply)
    if isinstance(reply, dict):
        return "\n".join("%s %s" % (k, text_of(v)) for k, v in reply.items())
    return str(reply)


def fields(reply):
    return reply if isinstance(reply, dict) else dict(zip(reply[0::2], reply[1::2]))


def gone(direct, name, timeout=10):
    until(lambda: direct("EXISTS", name) == 0, timeout, "the end of " + name)


class Pair:
    """A holds, B does not. Both have names, so they are two client identities."""

    def __init__(self, proxy, connect, direct, backend, key):
        self.proxy, self.connect, self.direct, self.backend, self.key = proxy, connect, direct, backend, key
        self.a = self.named("a")
        self.b = self.named("b")

    def named(self, name):
        return self.connect(self.proxy, commands=[("CLIENT", "SETNAME", self.key(name).replace(":", "-"))])

    def held(self, name="lock:held", value="value-a", px=60000):
        """A new lock that A holds."""
        name = self.key(name)
        assert self.a("SET", name, value, "NX", "PX", px) == "OK"
        return name

    def state(self, name):
        guard = guard_of(self.backend, name)
        return (self.direct("TYPE", name), self.direct("GET", name),
                guard and sorted(guard_record(self.direct, guard).items()))

    @contextlib.contextmanager
    def unchanged(self, name):
        """What happens inside changes neither the lock nor its guard record, nor prolongs or shortens them (S4)."""
        state, end = self.state(name), self.direct("PTTL", name)
        yield
        assert self.state(name) == state
        now = self.direct("PTTL", name)
        assert now == end == -1 or end - 5000 < now <= end, (end, now)

    def held_by_a(self, name):
        """A's lease is live: it has its fence, B can't release it, and A can."""
        assert self.a("PROXY", "TOKEN", name) is not None
        assert self.b("PROXY", "TOKEN", name) is None
        assert self.b("DEL", name) == 0
        assert self.direct("EXISTS", name) == 1
        assert self.a("DEL", name) == 1
        assert self.direct("EXISTS", name) == 0


@pytest.fixture
def pair(proxy, connect, direct, backend, key):
    return Pair(proxy, connect, direct, backend, key)


# ---- the table -----------------------------------------------------------------------------------

ACQUIRE = {
    "SETNX": (["SETNX", "K", "V"], 1, 0),
    "SET NX": (["SET", "K", "V", "NX"], "OK", None),
    "SET NX EX": (["SET", "K", "V", "NX", "EX", "50"], "OK", None),
    "SET PX NX": (["SET", "K", "V", "PX", "50000", "NX"], "OK", None),
    "set nx px": (["set", "K", "V", "nx", "px", "50000"], "OK", None),
    "SET NX EXAT": (["SET", "K", "V", "NX", "EXAT", "4000000000"], "OK", None),
    "SET NX PXAT": (["SET", "K", "V", "NX", "PXAT", "4000000000000"], "OK", None),
    "SET NX GET": (["SET", "K", "V", "NX", "GET"], None, "value-a"),
    "SET EX NX GET": (["SET", "K", "V", "EX", "50", "NX", "GET"], None, "value-a"),
    "MSETNX": (["MSETNX", "K", "V"], 1, 0),
}


def fill(command, name, value="value-x"):
    return [{"K": name, "V": value}.get(word, word) for word in command]


@pytest.mark.parametrize("form", ACQUIRE)
def test_acquire(pair, form):
    command, won, lost = ACQUIRE[form]
    name = pair.key("lock:acquire")
    assert pair.a(*fill(command, name, "value-a")) == won
    assert pair.direct("GET", name) == "value-a"
    with pair.unchanged(name):
        assert pair.b(*fill(command, name)) == lost
        assert pair.b(*fill(command, name)) == lost
    pair.held_by_a(name)
    assert pair.b(*fill(command, name, "value-b")) == won
    with pair.unchanged(name):
        assert pair.b(*fill(command, name, "value-b")) == (lost and "value-b"), "a lock is not reentrant"
    assert pair.b("DEL", name) == 1


REPLACE = {
    "SET EX": ["SET", "K", "V", "EX", "50"],
    "SETEX": ["SETEX", "K", "50", "V"],
    "PSETEX": ["PSETEX", "K", "50000", "V"],
}


@pytest.mark.parametrize("form", REPLACE)
def test_replace(pair, form):
    command = REPLACE[form]
    name = pair.key("lock:replace")
    assert pair.a(*fill(command, name, "first")) == "OK"
    fence = pair.a("PROXY", "TOKEN", name)
    assert fence is not None
    with pair.unchanged(name):
        assert is_locked(pair.b(*fill(command, name)))
    assert pair.a(*fill(command, name, "second")) == "OK"
    assert pair.direct("GET", name) == "second"
    assert pair.a("PROXY", "TOKEN", name) == fence, "the lease is the same one"
    assert 0 < pair.direct("PTTL", name) <= 50000
    with pair.unchanged(name):
        assert is_locked(pair.b(*fill(command, name)))
    pair.held_by_a(name)


@pytest.mark.parametrize("options", [["XX"], ["XX", "PX", "5000"], ["EX", "5", "XX"], ["XX", "KEEPTTL"]], ids=" ".join)
def test_set_xx(pair, options):
    free = pair.key("lock:xx")
    assert pair.a("SET", free, "v", *options) is None
    assert pair.direct("EXISTS", free) == 0
    name = pair.held("lock:xx")
    with pair.unchanged(name):
        assert pair.b("SET", name, "v", *options) is None
    assert pair.a("SET", name, "w", *options) == "OK"
    assert pair.direct("GET", name) == "w"
    pair.held_by_a(name)


def test_set_xx_as_a_release(pair):
    """Some libraries release by shortening the expiry."""
    name = pair.held("lock:shorten")
    assert pair.a("SET", name, "v", "XX", "PX", "50") == "OK"
    gone(pair.direct, name)
    assert pair.b("SET", name, "b", "NX", "PX", 60000) == "OK"
    with pair.unchanged(name):
        assert pair.a("SET", name, "v", "XX", "PX", "50") is None
    assert pair.b("DEL", name) == 1


@pytest.mark.parametrize("swap", [["GETSET", "K", "V"], ["SET", "K", "V", "GET"], ["SET", "K", "V", "EX", "50", "GET"]],
                         ids=" ".join)
class TestSwap:
    def test_free_and_holder(self, pair, swap):
        name = pair.key("lock:swap")
        assert pair.a(*fill(swap, name, "one")) is None
        assert pair.a(*fill(swap, name, "two")) == "one"
        assert pair.direct("GET", name) == "two"
        pair.held_by_a(name)

    def test_other_that_never_read(self, pair, swap):
        name = pair.held("lock:swap")
        with pair.unchanged(name):
            assert pair.b(*fill(swap, name)) == "value-a"
        pair.held_by_a(name)

    def test_takeover_of_what_was_read(self, pair, swap):
        name = pair.held("lock:swap")
        before = int(pair.a("PROXY", "TOKEN", name))
        assert pair.b("GET", name) == "value-a"
        assert pair.b(*fill(swap, name, "value-b")) == "value-a"
        assert pair.direct("GET", name) == "value-b"
        assert int(pair.b("PROXY", "TOKEN", name)) > before
        with pair.unchanged(name):
            assert pair.a("DEL", name) == 0
        assert pair.b("DEL", name) == 1

    def test_only_one_takes_over(self, pair, swap):
        """Two losers read the same old value: the second one's GETSET changes nothing."""
        name = pair.held("lock:swap")
        c = pair.named("c")
        assert pair.b("GET", name) == c("GET", name) == "value-a"
        assert pair.b(*fill(swap, name, "value-b")) == "value-a"
        with pair.unchanged(name):
            assert c(*fill(swap, name, "value-c")) == "value-b"
        assert pair.b("DEL", name) == 1

    def test_read_before_the_holder_changed_it(self, pair, swap):
        """The lease is the same, but the value shows a loser that it has lost: then it has."""
        name = pair.held("lock:swap", "old")
        assert pair.b("GET", name) == "old"
        assert pair.a("GETSET", name, "new") == "old"
        with pair.unchanged(name):
            assert pair.b(*fill(swap, name)) == "new"
        assert pair.a("DEL", name) == 1

    def test_read_another_lease(self, pair, swap):
        name = pair.held("lock:swap", "old")
        assert pair.b("GET", name) == "old"
        assert pair.a("DEL", name) == 1
        assert pair.a("SET", name, "new", "NX", "PX", 60000) == "OK"
        with pair.unchanged(name):
            assert pair.b(*fill(swap, name)) == "new"
        pair.held_by_a(name)

    def test_read_another_lease_with_the_same_value(self, pair, swap):
        """The present value would look like success."""
        name = pair.held("lock:swap", "same")
        assert pair.b("GET", name) == "same"
        assert pair.a("DEL", name) == 1
        assert pair.a("SET", name, "same", "NX", "PX", 60000) == "OK"
        with pair.unchanged(name):
            assert is_locked(pair.b(*fill(swap, name)))
        pair.held_by_a(name)


@pytest.mark.parametrize("command", ["DEL", "UNLINK", "del"])
def test_release(pair, command):
    assert pair.a(command, pair.key("lock:free")) == 0
    name = pair.held("lock:release")
    with pair.unchanged(name):
        assert pair.b(command, name) == 0
        assert pair.b(command, name) == 0
    assert pair.a(command, name) == 1
    assert pair.direct("EXISTS", name) == 0
    assert pair.a(command, name) == 0
    assert pair.b("SET", name, "b", "NX") == "OK"
    assert pair.a(command, name) == 0
    assert pair.b(command, name) == 1


def test_getdel(pair):
    assert pair.a("GETDEL", pair.key("lock:free")) is None
    name = pair.held("lock:getdel")
    with pair.unchanged(name):
        assert pair.b("GETDEL", name) is None
    assert pair.a("GETDEL", name) == "value-a"
    assert pair.direct("EXISTS", name) == 0


EXTEND = {
    "EXPIRE": ["EXPIRE", "K", "100"],
    "PEXPIRE": ["PEXPIRE", "K", "100000"],
    "EXPIRE XX": ["EXPIRE", "K", "100", "XX"],
    "EXPIRE GT": ["EXPIRE", "K", "100", "GT"],
    "PEXPIRE LT": ["PEXPIRE", "K", "50000", "LT"],
    "EXPIREAT": ["EXPIREAT", "K", "4000000000"],
    "PEXPIREAT": ["PEXPIREAT", "K", "4000000000000"],
    "PERSIST": ["PERSIST", "K"],
}


@pytest.mark.parametrize("form", EXTEND)
def test_extend(pair, form):
    command = EXTEND[form]
    assert pair.a(*fill(command, pair.key("lock:free"))) == 0
    name = pair.held("lock:extend")
    with pair.unchanged(name):
        assert pair.b(*fill(command, name)) == 0
    before = pair.direct("PTTL", name)
    assert pair.a(*fill(command, name)) == 1
    after = pair.direct("PTTL", name)
    assert 0 < after, "every lock ends"
    assert abs(after - before) > 5000
    guard = guard_of(pair.backend, name)
    assert after < pair.direct("PTTL", guard) <= after + 10100, "the guard record outlives the lock"
    pair.held_by_a(name)


@pytest.mark.parametrize("condition, reply", [(["NX"], 0), (["XX"], 1), (["GT"], 0), (["LT"], 1)])
def test_extend_conditions_on_an_expiry(pair, condition, reply):
    """On the holder's own lock the conditions mean what they mean in Redis."""
    name = pair.held("lock:condition")
    assert pair.a("EXPIRE", name, 10, *condition) == reply
    assert (pair.direct("PTTL", name) <= 10000) == bool(reply)
    pair.held_by_a(name)


@pytest.mark.parametrize("condition, reply", [(["NX"], 1), (["XX"], 0), (["GT"], 0), (["LT"], 1)])
def test_extend_conditions_on_a_lease(pair, condition, reply):
    """An expiry that the proxy gave is none to the application."""
    name = pair.key("lock:condition")
    assert pair.a("SETNX", name, "v") == 1
    assert pair.a("EXPIRE", name, 1000, *condition) == reply
    assert (pair.direct("PTTL", name) > 30000) == bool(reply)
    pair.held_by_a(name)


def test_expiry_in_the_past(pair):
    for command in (["EXPIRE", "K", "-1"], ["PEXPIREAT", "K", "1000"], ["EXPIRE", "K", "0"]):
        name = pair.held("lock:past")
        with pair.unchanged(name):
            assert pair.b(*fill(command, name)) == 0
        assert pair.a(*fill(command, name)) == 1
        assert pair.direct("EXISTS", name) == 0
        assert pair.b("SETNX", name, "b") == 1
        assert pair.a("DEL", name) == 0
        assert pair.b("DEL", name) == 1


def test_persist_gives_the_rules_lease(pair):
    name = pair.held("lock:short:persist")
    assert pair.b("PERSIST", name) == 0
    assert pair.a("PERSIST", name) == 1
    assert 0 < pair.direct("PTTL", name) <= 2000
    renewed(pair, name, 2)
    pair.a.close()
    gone(pair.direct, name)


@pytest.mark.parametrize("options", [["EX", "1000"], ["PX", "1000000"], ["EXAT", "4000000000"], ["PERSIST"]], ids=" ".join)
def test_getex(pair, options):
    assert pair.a("GETEX", pair.key("lock:free"), *options) is None
    name = pair.held("lock:getex")
    with pair.unchanged(name):
        assert pair.b("GETEX", name, *options) == "value-a"
    before = pair.direct("PTTL", name)
    assert pair.a("GETEX", name, *options) == "value-a"
    after = pair.direct("PTTL", name)
    assert after > 0 and abs(after - before) > 5000
    pair.held_by_a(name)


def test_getex_without_options_is_a_read(pair):
    name = pair.held("lock:getex")
    with pair.unchanged(name):
        assert pair.a("GETEX", name) == "value-a"
        assert pair.b("GETEX", name) == "value-a"
    pair.held_by_a(name)


COUNT = {
    "INCR": (["INCR", "K"], 1, 2),
    "INCRBY": (["INCRBY", "K", "3"], 3, 6),
    "DECRBY": (["DECRBY", "K", "-2"], 2, 4),
}


@pytest.mark.parametrize("form", COUNT)
def test_count(pair, form):
    command, first, second = COUNT[form]
    name = pair.key("lock:kinds:count")
    assert pair.a(*fill(command, name)) == first
    assert 0 < pair.direct("PTTL", name) <= 30000, "a counter lock has a lease too"
    fence = pair.a("PROXY", "TOKEN", name)
    assert fence is not None
    assert pair.b(*fill(command, name)) == second, "as Redis"
    assert pair.a("PROXY", "TOKEN", name) == fence, "the owner stays"
    assert pair.b("PROXY", "TOKEN", name) is None
    pair.held_by_a(name)


def test_count_down(pair):
    name = pair.key("lock:kinds:count")
    assert pair.a("INCR", name) == 1
    with pair.unchanged(name):
        assert pair.b("DECR", name) == 0, "what a release expects, and nothing is done"
    assert pair.a("DECR", name) == 0
    assert pair.direct("GET", name) == "0"
    assert pair.b("INCR", name) == 1, "zero is free"
    assert pair.b("PROXY", "TOKEN", name) is not None
    with pair.unchanged(name):
        assert pair.a("DECR", name) == 0
        assert pair.a("DEL", name) == 0
    assert pair.b("DEL", name) == 1


@pytest.mark.parametrize("form", ["DECR K", "DECRBY K 1", "INCRBY K -3", "INCR K"])
def test_a_refused_count_touches_nothing(pair, form):
    """A client that watches the lock is not disturbed by another client's command without effect."""
    name, watcher = pair.key("lock:kinds:count"), pair.named("watcher")
    assert pair.a("INCR", name) == 1
    if form == "INCR K":  # above zero, the 1 would say that it has acquired
        assert pair.a("SET", name, 0, "XX", "EX", 100) == "OK"
    assert watcher("WATCH", name) == "OK"
    with pair.unchanged(name):
        refused = pair.b(*fill(form.split(), name))
    assert refused == 0 or is_locked(refused)
    assert [watcher("MULTI"), watcher("STRLEN", name), watcher("EXEC")] == ["OK", "QUEUED", [1]]


def test_count_keeps_the_expiry(pair):
    name = pair.key("lock:kinds:count")
    assert pair.a("INCR", name) == 1
    assert pair.a("EXPIRE", name, 100) == 1
    assert pair.b("EXPIRE", name, 1000) == 0
    assert pair.b("INCR", name) == 2
    assert 50000 < pair.direct("PTTL", name) <= 100000
    pair.held_by_a(name)


def test_reads_are_redis_own(pair):
    name = pair.held("lock:read")
    asked = [("GET", name), ("MGET", name, "none"), ("STRLEN", name), ("EXISTS", name, name), ("TYPE", name),
             ("OBJECT", "ENCODING", name), ("GETRANGE", name, 0, 2), ("TOUCH", name), ("DUMP", name), ("GETBIT", name, 1),
             ("BITCOUNT", name)]
    with pair.unchanged(name):
        for command in asked:
            if command[0] == "MGET":
                assert pair.a(*command) == pair.b(*command) == ["value-a", None]
                continue
            assert pair.a(*command) == pair.b(*command) == pair.direct(*command) or command[0] == "OBJECT", command
    for c in (pair.a, pair.b):
        assert 50 < c("TTL", name) <= 60
        assert 50000 < c("PTTL", name) <= 60000
    pair.held_by_a(name)


CLOBBER = {
    "RENAME away": (["RENAME", "K", "{t}o"], "OK"),
    "RENAMENX away": (["RENAMENX", "K", "{t}new"], 1),
    "RENAME onto": (["RENAME", "{t}o", "K"], "OK"),
    "COPY onto": (["COPY", "{t}o", "K", "REPLACE"], 1),
    "MSET": (["MSET", "{t}o", "1", "K", "V"], "OK"),
    "SUNIONSTORE": (["SUNIONSTORE", "K", "{t}set"], 2),
    "ZUNIONSTORE": (["ZUNIONSTORE", "K", "1", "{t}zset"], 1),
    "ZRANGESTORE": (["ZRANGESTORE", "K", "{t}zset", "0", "-1"], 1),
    "BITOP": (["BITOP", "NOT", "K", "{t}o"], 1),
    "SORT STORE": (["SORT", "{t}set", "STORE", "K"], 2),
    "RESTORE": (["RESTORE", "K", "0", "DUMPED", "REPLACE"], "OK"),
}


def prepare_others(pair):
    pair.direct("SET", "{t}o", "5")
    pair.direct("SADD", "{t}set", 1, 2)
    pair.direct("ZADD", "{t}zset", 1, "m")


def dump(pair, name):
    """DUMP's payload: binary, so as raw bytes."""
    client = pair.direct if pair.backend.kind == "standalone" else pair.direct.node(pair.backend.node_of(name))
    raw = client.raw("DUMP", name)
    return raw[raw.index(b"\r\n") + 2 : -2]


@pytest.mark.parametrize("form", CLOBBER)
def test_clobber(pair, form):
    command, expected = CLOBBER[form]
    prepare_others(pair)
    payload = dump(pair, "{t}o")
    command = [payload if word == "DUMPED" else word for word in command]
    name = pair.held("lock:{t}clobber")
    with pair.unchanged(name):
        assert is_locked(pair.b(*fill(command, name))), form
    assert pair.a(*fill(command, name)) == expected, "the holder may"
    assert pair.a("PROXY", "TOKEN", name) is None, "the claim is spent"
    if form.endswith("away"):
        assert pair.direct("EXISTS", name) == 0
        assert pair.b("SETNX", name, "b") == 1
        assert pair.a("DEL", name) == 0
        assert pair.b("DEL", name) == 1
        return
    free = pair.key("lock:{t}free")
    prepare_others(pair)
    assert pair.b(*fill(command, free)) == expected, "a lock that is free is as in Redis"
    assert pair.direct("EXISTS", free) == 1


@pytest.mark.parametrize("form", ["MSETNX", "MSETNX of several", "RENAMENX", "COPY", "RESTORE"])
def test_what_says_no_by_itself(pair, form):
    """Commands that change nothing where the key exists answer a held lock as they answer any key."""
    prepare_others(pair)
    name = pair.held("lock:{t}nx")
    command = {"MSETNX": ["MSETNX", name, "x"], "MSETNX of several": ["MSETNX", "{t}fresh", "1", name, "x"],
               "RENAMENX": ["RENAMENX", "{t}o", name], "COPY": ["COPY", "{t}o", name],
               "RESTORE": ["RESTORE", name, "0", dump(pair, "{t}o"), "ABSTTL"]}[form]
    expected = "BUSYKEY Target key name already exists." if form == "RESTORE" else 0
    for c in (pair.b, pair.a):
        with pair.unchanged(name):
            assert c(*command) == expected
    with pair.unchanged(name):
        assert [pair.b(*words) for words in (["MULTI"], command, ["EXEC"])] == ["OK", "QUEUED", [expected]]
    assert pair.direct("EXISTS", "{t}fresh") == 0 and pair.direct("GET", "{t}o") == "5"
    with pair.unchanged(name):
        assert is_locked(pair.b("RENAMENX", name, "{t}fresh")), "this one would take the lock away"
    pair.held_by_a(name)


@pytest.mark.parametrize("queued", [False, True], ids=["alone", "in MULTI"])
def test_msetnx_of_several_acquires_all_or_none(pair, queued):
    first, second, plain = pair.key("lock:{several}1"), pair.key("lock:{several}2"), pair.key("{several}plain")
    words = ["MSETNX", first, "1", plain, "p", second, "2"]

    def run(c):
        if not queued:
            return c(*words)
        return [c("MULTI"), c(*words), c("EXPIRE", second, 50), c("EXEC")][-1]
    assert pair.b("SET", second, "b", "NX", "PX", 60000) == "OK"
    with pair.unchanged(second):
        assert run(pair.a) == ([0, 0] if queued else 0)
    assert pair.direct("EXISTS", first) == 0 and pair.direct("EXISTS", plain) == 0
    assert pair.b("DEL", second) == 1
    assert run(pair.a) == ([1, 1] if queued else 1)
    assert [pair.direct("GET", n) for n in (first, plain, second)] == ["1", "p", "2"]
    assert 0 < pair.direct("PTTL", first) <= 30000 and 0 < pair.direct("PTTL", second) <= 50000
    assert pair.a("DEL", plain) == 1
    with pair.unchanged(first):
        assert run(pair.b) == ([0, 0] if queued else 0)
    assert pair.direct("EXISTS", plain) == 0
    assert pair.a("PROXY", "TOKEN", first) == pair.a("PROXY", "TOKEN", second)
    for name in (first, second):
        pair.held_by_a(name)


def test_msetnx_that_names_a_lock_twice(pair):
    name, plain = pair.key("lock:{twice}"), pair.key("{twice}")
    assert pair.a("MSETNX", name, "1", plain, "p", name, "2") == 1
    assert pair.direct("GET", name) == "2"
    pair.held_by_a(name)
    assert pair.b("SETNX", name, "b") == 1
    pair.b, pair.a = pair.a, pair.b
    pair.held_by_a(name)


def test_move(pair):
    if pair.backend.kind == "cluster":
        assert isinstance(pair.a("MOVE", "k", 1), Error)
        return
    name = pair.held("lock:move")
    with pair.unchanged(name):
        assert is_locked(pair.b("MOVE", name, 5))
    assert pair.a("MOVE", name, 5) == 1
    assert pair.direct("EXISTS", name) == 0


def test_delete_of_several(pair):
    """The lock keys are handled as locks, the others as ever; the reply is the sum."""
    mine, others, free = pair.held("lock:mine"), pair.key("lock:other"), pair.key("lock:free")
    assert pair.b("SET", others, "b", "NX") == "OK"
    for command in ("DEL", "UNLINK"):
        pair.direct("SET", "plain:1", "x")
        pair.direct("SET", "plain:2", "x")
        with pair.unchanged(others):
            assert pair.a(command, "plain:1", mine, "plain:2", others, free, "none") == 3
        assert pair.direct("EXISTS", mine) == 0
        assert pair.direct("EXISTS", "plain:1") == 0
        assert pair.a("SET", mine, "again", "NX") == "OK"
    assert pair.b("DEL", mine, others, others) == 1
    assert pair.a("DEL", mine) == 1


def test_mset_of_several(pair):
    """A part that may not be overwritten: LOCKED."""
    name = pair.held("lock:several")
    with pair.unchanged(name):
        assert is_locked(pair.b("MSET", "p:1", "x", name, "b", "p:2", "y"))
    pair.held_by_a(name)


def test_flushall_ends_locks(pair):
    """FLUSHALL is an operator's command: it ends every lock, and the next lease has a greater fence."""
    name = pair.held("lock:flush")
    fence = int(pair.a("PROXY", "TOKEN", name))
    assert pair.a("FLUSHALL") == "OK"
    assert pair.b("SETNX", name, "b") == 1
    assert int(pair.b("PROXY", "TOKEN", name)) > fence
    assert pair.a("DEL", name) == 0
    assert pair.b("DEL", name) == 1


# ---- foreign locks ------------------------------------------------------------------------------


def test_foreign_lock_is_nobodys(pair):
    """Made by a script or around the proxy: the 'other' column for every session that has tried for it in vain."""
    name = pair.key("lock:foreign")
    pair.direct("SET", name, "outside", "PX", 60000)
    with pair.unchanged(name):
        assert pair.a("SETNX", name, "x") == 0
        assert pair.a("DEL", name) == 0
        assert pair.a("EXPIRE", name, 5) == 0
        assert pair.a("PERSIST", name) == 0
        assert pair.a("GETDEL", name) is None
        assert is_locked(pair.a("SET", name, "x", "EX", 5))
        assert pair.a("SET", name, "x", "XX") is None
        assert pair.a("GETSET", name, "x") == "outside"
        assert pair.a("PROXY", "TOKEN", name) is None
    assert fields(pair.a("PROXY", "LOCK", name))["state"] == "foreign"


@pytest.mark.parametrize("act", [["DEL", "K"], ["EXPIRE", "K", "1000"], ["UNLINK", "K"]], ids=" ".join)
def test_foreign_lock_that_was_read(pair, act):
    """A session that has tried for it in vain, and has read its value, may act on that very value."""
    name = pair.key("lock:foreign")
    pair.direct("SET", name, "one", "PX", 60000)
    assert pair.a("SETNX", name, "a") == pair.b("SETNX", name, "b") == 0
    assert pair.a("GET", name) == "one"
    with pair.unchanged(name):
        assert pair.b(*fill(act, name)) == 0
    pair.direct("SET", name, "two", "PX", 60000)
    with pair.unchanged(name):
        assert pair.a(*fill(act, name)) == 0, "it has changed since"
    assert pair.b("GET", name) == "two"
    assert pair.b(*fill(act, name)) == 1


def test_lock_overwritten_around_the_proxy(pair):
    """A script or a direct client changed the value: the guard does not match, and the lock has no holder."""
    name = pair.held("lock:changed")
    pair.direct("SET", name, "outside")
    assert pair.a("PROXY", "TOKEN", name) is None
    with pair.unchanged(name):
        assert pair.a("DEL", name) == 0


# ---- leases ----------------------------------------------------------------------------------------


def renewed(pair, name, seconds):
    """Watches a lease for so many seconds or longer: it never ends, and goes up again and again."""
    ups, last = 0, None
    begin = time.monotonic()
    while ups < 3 or time.monotonic() - begin < seconds:
        assert time.monotonic() - begin < 10 * seconds, "%d renewals" % ups
        left = pair.direct("PTTL", name)
        assert left > 0, "the lease ended (%d) after %d renewals" % (left, ups)
        if last is not None and left > last:
            ups += 1
        last = left
        time.sleep(0.01)


@pytest.mark.parametrize("acquire", [["SETNX", "K", "V"], ["SET", "K", "V", "NX"], ["GETSET", "K", "V"],
                                     ["INCR", "K"]], ids=" ".join)
def test_lease(pair, acquire):
    """A lock without an expiry gets the rule's lease, renewed while its owner is connected, and then ends."""
    name = pair.key("lock:short:kinds:lease")
    pair.a(*fill(acquire, name))
    assert 0 < pair.direct("PTTL", name) <= 2000
    renewed(pair, name, 2)
    pair.held_by_a(name)
    pair.a(*fill(acquire, name))
    pair.a.close()
    gone(pair.direct, name)
    assert pair.b("SETNX", name, "b") == 1


def test_lease_is_the_rules(pair):
    name = pair.key("lock:default")
    assert pair.a("SETNX", name, "1") == 1
    assert 25000 < pair.direct("PTTL", name) <= 30000


def test_own_expiry_is_never_renewed(pair):
    """A throttle: it expires when the application said, although its owner is connected; and there is no incident for it."""
    name = pair.key("lock:short:throttle")
    assert pair.a("SET", name, "1", "NX", "PX", 1000) == "OK"
    assert 0 < pair.direct("PTTL", name) <= 1000
    gone(pair.direct, name)
    assert name not in text_of(pair.a("PROXY", "INCIDENTS", 1000))


def test_expire_ends_the_renewal(pair):
    name = pair.key("lock:short:expire")
    assert pair.a("SETNX", name, "1") == 1
    assert pair.a("PEXPIRE", name, 4000) == 1
    assert 2000 < pair.direct("PTTL", name) <= 4000
    gone(pair.direct, name)


def test_renew_never(pair):
    name = pair.key("lock:never:x")
    assert pair.a("SETNX", name, "1") == 1
    assert 0 < pair.direct("PTTL", name) <= 2000
    gone(pair.direct, name)


def test_renew_always_up_to_max_hold(pair):
    """Also the application's own expiry; and max-hold ends it."""
    name = pair.key("lock:always:x")
    assert pair.a("SET", name, "1", "NX", "PX", 1500) == "OK"
    renewed(pair, name, 2)
    gone(pair.direct, name)


def test_max_hold(pair):
    name = pair.key("lock:hold:x")
    assert pair.a("SETNX", name, "1") == 1
    renewed(pair, name, 2)
    gone(pair.direct, name)
    assert pair.a("DEL", name) == 0


def test_lease_zero(pair):
    name = pair.key("lock:nolease:x")
    assert pair.a("SETNX", name, "1") == 1
    assert pair.direct("PTTL", name) == -1
    assert pair.b("DEL", name) == 0
    pair.held_by_a(name)


def test_on_disconnect_release(pair):
    name = pair.held("lock:release:x")
    pair.a.close()
    gone(pair.direct, name)
    assert pair.b("SETNX", name, "b") == 1


def test_on_disconnect_keep(pair):
    name = pair.held("lock:keep")
    pair.a.close()
    until(lambda: pair.b("PROXY", "INFO", "clients"), 5)
    with pair.unchanged(name):
        assert pair.b("DEL", name) == 0
    assert pair.direct("EXISTS", name) == 1


# ---- fences ---------------------------------------------------------------------------------------


def test_fence_grows(pair):
    name = pair.key("lock:fence")
    last = 0
    for n in range(20):
        who, other = (pair.a, pair.b) if n % 2 else (pair.b, pair.a)
        assert who("SETNX", name, "same") == 1
        fence = int(who("PROXY", "TOKEN", name))
        assert other("PROXY", "TOKEN", name) is None
        assert fence > last
        last = fence
        if n == 10:
            pair.direct("DEL", guard_of(pair.backend, name))  # as if lost in a failover
            pair.direct("DEL", name)
            assert who("DEL", name) == 0
            continue
        assert who("DEL", name) == 1
        assert who("PROXY", "TOKEN", name) is None


# ---- guard records are out of sight ------------------------------------------------------------------


def test_guard_records_are_hidden(pair):
    held = sorted(pair.held("lock:hidden") for _ in range(20))
    assert len(guards(pair.backend)) == 20, "they are there"
    for guard in guards(pair.backend):
        assert slot_of(guard) == slot_of(guard.split("}:", 1)[1]), "in their lock's slot"
    assert sorted(pair.b("KEYS", "*")) == held
    assert pair.b("KEYS", "lockkeeper:*") == []
    for options in ([], ["COUNT", "3"], ["MATCH", "*"], ["TYPE", "hash"]):
        cursor, seen = "0", []
        for _ in range(500):
            cursor, page = pair.b("SCAN", cursor, *options)
            seen += page
            if cursor == "0":
                break
        assert cursor == "0"
        assert sorted(set(seen)) == ([] if "TYPE" in options else held)
    for _ in range(60):
        assert pair.b("RANDOMKEY") in held
    for name in held:
        assert pair.a("DEL", name) == 1
    assert pair.backend.keys(), "guard records that outlive their locks, or watermarks"
    assert pair.b("RANDOMKEY") is None
    assert pair.b("KEYS", "*") == []


@pytest.mark.parametrize("name", ["lock:", "lock:{a}b", "lock:{}", "lock:{", "lock:}{", "lock:a{b}c{d}", "lock: with space",
                                  b"lock:\x00\xff\r\n", "lock:" + "x" * 20000, "lock:*", "lock:\u00e4\u20ac"])
def test_any_name(pair, name):
    assert pair.a("SETNX", name, "1") == 1
    with_guard = guards(pair.backend)
    assert len(with_guard) == 1
    assert slot_of(with_guard[0]) == slot_of(name)
    assert pair.b("DEL", name) == 0
    assert pair.b("EXPIRE", name, 1) == 0
    assert pair.a("DEL", name) == 1


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x80\x04\x95\r\n", b"x" * 100000, "1.50", "-0", "\u20ac"])
def test_any_value(pair, value):
    """The key holds the value the application wrote, byte for byte."""
    name = pair.key("lock:value")
    assert pair.a("SET", name, value, "NX", "PX", 60000) == "OK"
    expected = value if isinstance(value, bytes) else value.encode()
    assert pair.b.raw("GET", name) == b"$%d\r\n%s\r\n" % (len(expected), expected)
    assert pair.b("DEL", name) == 0
    pair.held_by_a(name)


# ---- scripts ------------------------------------------------------------------------------------------


def test_script_flush_goes_unnoticed(pair):
    name = pair.key("lock:noscript")
    steps = [(("SETNX", "1"), 1), (("GET",), "1"), (("EXPIRE", "100"), 1), (("SET", "2"), "OK"), (("GETSET", "3"), "2"),
             (("DEL",), 1)]
    for command, reply in steps:
        for node in pair.backend.nodes:
            node.run("SCRIPT", "FLUSH")
        assert pair.a(command[0], name, *command[1:]) == reply
    for node in pair.backend.nodes:
        node.run("SCRIPT", "FLUSH")
    names = [pair.key("lock:noscript") for _ in range(30)]
    replies = pair.a.pipeline([("SETNX", n, "1") for n in names] + [("DEL", n) for n in names])
    assert replies == [b":1\r\n"] * 60, "also in a pipeline"


def test_pipeline_on_one_lock(pair):
    """Each command sees what those before it did."""
    name = pair.key("lock:pipeline")
    commands = [("SETNX", name, "1"), ("EXPIRE", name, 100), ("GET", name), ("DEL", name), ("DEL", name), ("EXISTS", name),
                ("SETNX", name, "2"), ("SET", name, "3"), ("GETSET", name, "4"), ("DEL", name), ("GET", name)]
    expected = b":1\r\n:1\r\n$1\r\n1\r\n:1\r\n:0\r\n:0\r\n:1\r\n+OK\r\n$1\r\n3\r\n:1\r\n$-1\r\n"
    for _ in range(20):
        assert b"".join(pair.a.pipeline(commands)) == expected


# ---- attribution: owner auto, connection, client, any ---------------------------------------------------


def unnamed(proxy, connect, count=2):
    return [connect(proxy) for _ in range(count)]


@pytest.mark.parametrize("rule", ["lock:auto", "lock:connection:x"])
def test_two_connections_are_two_owners(proxy, connect, key, rule):
    """Two redis-cli on one machine."""
    one, two = unnamed(proxy, connect)
    name, alike = key(rule), key(rule)
    assert one("SETNX", name, "1") == 1
    two.send(encode("SETNX", name, "1") + encode("DEL", name))  # in one packet: right behind the loss on any machine
    assert (two.read(), two.read()) == (0, 0)
    # Within one client an expiry may replace the lease that the proxy gave, and not shorten one of the application's.
    assert two("EXPIRE", name, 500) == (rule == "lock:auto")
    assert two("EXPIRE", name, 5) == 0
    assert is_locked(two("SET", name, "1"))
    assert one("DEL", name) == 1
    assert two("SETNX", name, "1") == 1
    if rule != "lock:auto":  # there a second one in a row is refused only if it comes at once (test_attribution.c)
        assert one("DEL", name) == 0, "its second one in a row: no more a holder's than a loser's"
    assert two("DEL", name) == 1
    # Nothing speaks against it: it has neither lost nor released this lock, and may be a pool's.
    assert two("SETNX", alike, "1") == 1
    assert one("DEL", alike) == (rule == "lock:auto")
    assert two("DEL", alike) == (rule != "lock:auto")


def test_owner_client(proxy, connect, key):
    """One identity's connections release for each other; another identity's do not."""
    me = key("client").replace(":", "-")
    mine = [connect(proxy, commands=[("CLIENT", "SETNAME", me)]) for _ in range(3)]
    stranger = connect(proxy, commands=[("CLIENT", "SETNAME", "stranger")])
    name = key("lock:client:x")
    assert mine[0]("SETNX", name, "1") == 1
    assert stranger("DEL", name) == 0
    assert mine[1]("EXPIRE", name, 100) == 1
    assert mine[2]("DEL", name) == 1


def test_owner_client_late_release(proxy, connect, direct, key):
    """Each acquisition is released at most once: the late DEL is spent on the lease that ended."""
    me = key("client").replace(":", "-")
    mine = [connect(proxy, commands=[("CLIENT", "SETNAME", me)]) for _ in range(2)]
    name = key("lock:client:x")
    assert mine[0]("SET", name, "1", "NX", "PX", 100) == "OK"
    gone(direct, name)
    assert mine[1]("SET", name, "1", "NX", "PX", 60000) == "OK"
    assert mine[0]("DEL", name) == 0, "late"
    assert direct("EXISTS", name) == 1
    assert mine[1]("DEL", name) == 1


def test_owner_client_read_compare_delete(proxy, connect, direct, key):
    """Distinct values: the release that follows a read belongs to the session that saw its own value."""
    me = key("client").replace(":", "-")
    mine = [connect(proxy, commands=[("CLIENT", "SETNAME", me)]) for _ in range(2)]
    name = key("lock:client:x")
    assert mine[0]("SET", name, "old", "NX", "PX", 100) == "OK"
    gone(direct, name)
    assert mine[1]("SET", name, "new", "NX", "PX", 60000) == "OK"
    assert mine[1]("GET", name) == "new"
    assert mine[1]("DEL", name) == 1, "the sighted claim, though an older one is outstanding"


def test_owner_any(pair):
    name = pair.held("lock:any:x")
    assert pair.b("EXPIRE", name, 100) == 1
    assert pair.b("DEL", name) == 1
    assert pair.direct("EXISTS", name) == 0


def test_owner_connection_forgets_older_claims(proxy, connect, direct, key):
    """One worker does one thing after another: a new acquisition drops its older claims on the key."""
    one = connect(proxy)
    name = key("lock:connection:x")
    assert one("SET", name, "1", "NX", "PX", 100) == "OK"
    gone(direct, name)
    assert one("SET", name, "1", "NX", "PX", 60000) == "OK"
    assert one("DEL", name) == 1


def test_reconnect(pair):
    """Under auto, a client that reconnected may release what it acquired before; under connection it may not."""
    for rule, reply in (("lock:reconnect", 1), ("lock:connection:reconnect", 0)):
        me = pair.key("me").replace(":", "-")
        before = pair.connect(pair.proxy, commands=[("CLIENT", "SETNAME", me)])
        name = pair.key(rule)
        assert before("SET", name, "1", "NX", "PX", 60000) == "OK"
        number = before("CLIENT", "ID")
        before.close()
        # The proxy may hear of the end a little later than of the new connection.
        until(lambda: "id=%d " % number not in str(pair.a("CLIENT", "LIST"))) if listed(pair.a) else None
        after = pair.connect(pair.proxy, commands=[("CLIENT", "SETNAME", me)])
        assert pair.b("DEL", name) == 0
        assert after("DEL", name) == reply


@pytest.mark.parametrize("form", REPLACE)
def test_nobody_writes_over_what_a_closed_connection_left(pair, form):
    """Each of a client's later connections would be told that the lock is its own."""
    me = pair.key("me").replace(":", "-")
    before = pair.connect(pair.proxy, commands=[("CLIENT", "SETNAME", me)])
    name = pair.key("lock:left")
    assert before("SET", name, "1", "NX", "PX", 60000) == "OK"
    before.close()

    def later():
        return pair.connect(pair.proxy, commands=[("CLIENT", "SETNAME", me)])

    # The proxy knows of the end when a new session gets the lock.
    until(lambda: later()("SET", name, "1", "XX", "KEEPTTL") == "OK")
    for one in (later(), later()):
        with pair.unchanged(name):
            assert is_locked(one(*fill(REPLACE[form], name)))
    two = later()
    with pair.unchanged(name):
        assert two("GETSET", name, "mine") == "1"


def listed(client):
    return not isinstance(client("CLIENT", "LIST"), Error)


def test_pool(proxy, connect, key):
    """A release over another connection is believed, unless that connection has lost its last attempt. Two crossing releases
    show a pool, and then the lock is the client's. A holder whose lease such a release has ended still owes its own."""
    me = key("pool").replace(":", "-")
    one, two = [connect(proxy, commands=[("CLIENT", "SETNAME", me)]) for _ in range(2)]
    name, alike, another = key("lock:shared"), key("lock:shared"), key("lock:shared")

    def loser_releases():
        assert one("SETNX", name, "1") == 1
        released = two.pipeline([("SETNX", name, "1"), ("DEL", name)])[1]
        assert released == b":1\r\n" or one("DEL", name) == 1
        return released

    assert loser_releases() == b":0\r\n", "it has lost"
    assert two("SETNX", name, "1") == two("DEL", name) == 1
    assert one("SETNX", alike, "1") == two("DEL", alike) == 1
    assert two("SETNX", alike, "1") == one("DEL", alike) == 1
    assert loser_releases() == b":0\r\n", "the second one may be that of the first lease's holder"
    assert one("SETNX", another, "1") == two("DEL", another) == 1
    assert loser_releases() == b":1\r\n", "a pool"


def test_an_attempt_behind_a_refused_release(proxy, connect, key):
    """A session whose release was refused over another connection asks again over the lease's connection. After three lost
    attempts the lease makes way for the fourth. From then on a loser's release is believed."""
    me = key("pool").replace(":", "-")
    one, two = [connect(proxy, commands=[("CLIENT", "SETNAME", me)]) for _ in range(2)]
    name = key("lock:again")
    assert one("SET", name, "a", "NX", "PX", 60000) == "OK"
    # In one packet: a release that does not come at once behind the loss would be believed.
    assert two.pipeline([("SET", name, "b", "NX", "PX", 60000), ("DEL", name)]) == [b"$-1\r\n", b":0\r\n"]
    asked = [one("SET", name, "c", "NX", "PX", 60000) for _ in range(4)]
    assert asked == [None, None, None, "OK"]
    assert two("GET", name) == "c"
    assert two("SETNX", name, "d") == 0
    assert two("DEL", name) == 1, "the client's losers are quiet"


def test_multiplexing_library(proxy, connect, key):
    """CLIENT SETINFO lib-name of a library that sends the commands of several workers over one connection."""
    me = key("ioredis").replace(":", "-")
    setup = [("CLIENT", "SETNAME", me)]
    one, two = [connect(proxy, commands=setup) for _ in range(2)]
    for c in (one, two):
        c("CLIENT", "SETINFO", "lib-name", "ioredis")
    name = key("lock:multiplexed")
    assert one("SETNX", name, "1") == 1
    assert two("SETNX", name, "1") == 0
    assert two("DEL", name) == 1


# ---- two proxies on one Redis ---------------------------------------------------------------------------


def test_two_proxies(farm, backend, proxy, start_proxy, connect, direct, key):
    second = start_proxy(backend)
    a = connect(proxy, commands=[("CLIENT", "SETNAME", "proxies-a")])
    b = connect(second, commands=[("CLIENT", "SETNAME", "proxies-b")])
    name = key("lock:two")
    assert a("SET", name, "1", "NX", "PX", 60000) == "OK"
    for command, reply in ((("SETNX", name, "1"), 0), (("DEL", name), 0), (("EXPIRE", name, 1), 0), (("GETDEL", name), None),
                           (("SET", name, "1", "XX"), None)):
        assert b(*command) == reply, command
    assert is_locked(b("SET", name, "1"))
    assert direct("GET", name) == "1"
    fence = int(a("PROXY", "TOKEN", name))
    seen = fields(b("PROXY", "LOCK", name))
    assert int(seen["fence"]) == fence and seen["state"] == "held" and "proxies-a" in str(seen["owner"])
    assert b("PROXY", "TOKEN", name) is None
    assert a("DEL", name) == 1
    assert b("SETNX", name, "1") == 1
    assert int(b("PROXY", "TOKEN", name)) > fence
    assert a("DEL", name) == 0
    assert b("DEL", name) == 1


def test_two_proxies_one_client(backend, proxy, start_proxy, connect, key):
    """A client that goes on at another proxy: its own identity's lease counts as one of a closed session."""
    second = start_proxy(backend)
    me = key("roaming").replace(":", "-")
    a = connect(proxy, commands=[("CLIENT", "SETNAME", me)])
    name = key("lock:roam")
    assert a("SET", name, "1", "NX", "PX", 60000) == "OK"
    a.close()
    stranger = connect(second, commands=[("CLIENT", "SETNAME", "stranger")])
    assert stranger("DEL", name) == 0
    again = connect(second, commands=[("CLIENT", "SETNAME", me)])
    assert again("EXPIRE", name, 100) == 1
    assert again("DEL", name) == 1


def test_two_proxies_one_client_swap(backend, proxy, start_proxy, connect, direct, key):
    """A session that has read its own client's lease at another proxy competes for it: if the value was set since, it has
    lost."""
    second = start_proxy(backend, "lock lock:client:* owner client")
    me = [("CLIENT", "SETNAME", key("roaming").replace(":", "-"))]
    holder, colleague = connect(proxy, commands=me), connect(second, commands=me)
    name = key("lock:client:roam")
    assert holder("SET", name, "old", "NX", "PX", 60000) == "OK"
    assert colleague("GET", name) == "old"
    assert holder("GETSET", name, "new") == "old"
    assert colleague("GETSET", name, "mine") == "new"
    assert direct("GET", name) == "new"
    assert holder("DEL", name) == 1


def test_restarted_proxy(backend, start_proxy, connect, direct, key):
    """If a proxy dies, no lock becomes unsafe, and its leases end."""
    first = start_proxy(backend, "lock lock:* lease 2s")
    a = connect(first, commands=[("CLIENT", "SETNAME", "restart-a")])
    held, leased = key("lock:restart"), key("lock:restart")
    assert a("SET", held, "1", "NX", "PX", 60000) == "OK"
    assert a("SETNX", leased, "1") == 1
    first.expected = False
    first.kill()
    second = start_proxy(backend)
    b = connect(second, commands=[("CLIENT", "SETNAME", "restart-b")])
    assert b("DEL", held) == 0
    gone(direct, leased)
    again = connect(second, commands=[("CLIENT", "SETNAME", "restart-a")])
    assert again("DEL", held) == 1


# ---- modes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["lock:audit:x", "lock:off:x", "unmatched"])
def test_modes_that_change_nothing(pair, rule):
    """audit and off pass every byte on as it came."""
    name = pair.key(rule)
    assert pair.a("SETNX", name, "1") == 1
    assert pair.direct("PTTL", name) == -1
    assert guards(pair.backend) == []
    assert pair.b("SET", name, "2") == "OK"
    assert pair.b("EXPIRE", name, 100) == 1
    assert pair.b("DEL", name) == 1


# ---- incidents -----------------------------------------------------------------------------------------------


def incidents(client, name, kind=None):
    """The incidents of one lock, newest first, each as text."""
    found = [text_of(i) for i in client("PROXY", "INCIDENTS", 10000)]
    return [i for i in found if name in i and (kind is None or kind in i)]


def test_incident_late_release(pair):
    name = pair.held("lock:late", px=100)
    gone(pair.direct, name)
    assert pair.b("SET", name, "b", "NX", "PX", 60000) == "OK"
    assert pair.a("DEL", name) == 0
    found = incidents(pair.b, name, "late_release")
    assert len(found) == 1 and "DEL" in found[0].upper()


def test_incident_foreign_release_extend_overwrite(pair):
    name = pair.held("lock:incident")
    pair.b("DEL", name)
    pair.b("EXPIRE", name, 5)
    pair.b("SET", name, "x")
    for kind in ("foreign_release", "foreign_extend", "overwrite"):
        assert len(incidents(pair.a, name, kind)) == 1, kind


def test_incident_no_expiry_and_abandoned(pair):
    name = pair.key("lock:short:incident")
    assert pair.a("SETNX", name, "1") == 1
    assert len(incidents(pair.b, name, "no_expiry")) == 1
    pair.a.crash()
    until(lambda: incidents(pair.b, name, "abandoned"), 15, "the incident")


def test_incident_renewal_lost(pair):
    """A client outside of the proxy removed the key while the proxy renewed it."""
    name = pair.key("lock:short:incident")
    assert pair.a("SETNX", name, "1") == 1
    pair.direct("SET", name, "outside")
    until(lambda: incidents(pair.b, name, "renewal_lost"), 15, "the incident")


def test_no_secrets_in_incidents_or_log(pair):
    """Values and tokens are never logged."""
    name = pair.held("lock:secret", "s3cr3t-value")
    pair.b("SET", name, "an0ther-secret")
    pair.b("DEL", name)
    guard = guard_of(pair.backend, name)
    token = pair.direct("HGET", guard, "token")
    everything = text_of(pair.b("PROXY", "INCIDENTS", 100)) + pair.proxy.log()
    assert name in everything
    for secret in ("s3cr3t-value", "an0ther-secret", token):
        assert secret not in everything


# ---- PROXY ----------------------------------------------------------------------------------------------------


def test_proxy_help(client):
    lines = client("PROXY", "HELP")
    text = text_of(lines).upper()
    for word in ("INFO", "LOCKS", "LOCK", "TOKEN", "INCIDENTS", "RULES", "EXPLAIN", "RELEASE"):
        assert re.search(r"\b%s\b" % word, text), word


@pytest.mark.parametrize("command", [["PROXY"], ["PROXY", "NOSUCH"], ["PROXY", "LOCK"], ["PROXY", "TOKEN"],
                                     ["PROXY", "RELEASE"], ["PROXY", "EXPLAIN"], ["PROXY", "LOCK", "a", "b"],
                                     ["PROXY", "INCIDENTS", "abc"]], ids=" ".join)
def test_proxy_errors(client, command):
    assert isinstance(client(*command), Error)
    assert client("PING") == "PONG"


def test_proxy_locks(pair):
    names = [pair.held("lock:listed") for _ in range(5)]
    text = text_of(pair.b("PROXY", "LOCKS"))
    assert all(name in text for name in names)
    assert [text.index(n) for n in names] == sorted((text.index(n) for n in names), reverse=True), "newest first"
    some = text_of(pair.b("PROXY", "LOCKS", names[0]))
    assert names[0] in some and names[1] not in some
    me = pair.a("CLIENT", "GETNAME")
    assert me in some
    pair.a("DEL", names[0])
    assert names[0] not in text_of(pair.b("PROXY", "LOCKS"))


def test_proxy_lock(pair):
    name = pair.held("lock:one")
    for client in (pair.a, pair.b):
        seen = fields(client("PROXY", "LOCK", name))
        assert seen["key"] == name
        assert seen["state"] == "held"
        assert int(seen["fence"]) == int(pair.a("PROXY", "TOKEN", name))
        assert pair.a("CLIENT", "GETNAME") in str(seen["owner"])
        assert 0 < int(seen["pttl"]) <= 60000
    free = fields(pair.b("PROXY", "LOCK", pair.key("lock:free")))
    assert free["state"] == "free"


def test_a_lease_has_nothing_of_the_one_before(pair):
    """The guard record outlives a lock. A new lease has its own expiry and its own count."""
    name = pair.key("lock:kinds:anew")

    def expiry():
        return fields(pair.b("PROXY", "LOCK", name))["expiry"]

    assert pair.a("SETNX", name, "1") == 1
    assert expiry() == "lease"
    assert pair.a("DEL", name) == 1
    assert pair.a("SET", name, "1", "NX", "PX", "60000") == "OK"
    assert expiry() == "application"
    assert pair.b("SETNX", name, "2") == 0
    assert pair.a("PERSIST", name) == 1
    assert expiry() == "lease"
    assert pair.a("EXPIRE", name, "60") == 1
    assert expiry() == "application"
    assert pair.b("INCR", name) == 2
    assert pair.a("DEL", name) == 1
    assert pair.a("SET", name, "2", "NX") == "OK"
    assert expiry() == "lease"
    assert pair.a("DECRBY", name, "1") == 1, "nothing of it is B's: it is held on"
    assert fields(pair.b("PROXY", "LOCK", name))["state"] == "held"
    assert pair.a("DECR", name) == 0
    assert pair.b("INCR", name) == 1, "free"


def test_proxy_token_speaks_both_protocols(pair):
    name = pair.held("lock:token")
    two = pair.a.raw("PROXY", "TOKEN", name)
    assert pair.b.raw("PROXY", "TOKEN", name) == b"$-1\r\n"
    assert int(pair.a("PROXY", "TOKEN", name)) > 1600000000000000
    assert two[:1] in b":$"
    pair.b("HELLO", "3")
    assert pair.b.raw("PROXY", "TOKEN", name) == b"_\r\n"


def test_proxy_rules(pair):
    def hits():
        text = text_of(pair.a("PROXY", "RULES"))
        line = next(part for part in text.splitlines() if "lock:short:*" in part)
        return line, text

    line, text = hits()
    for pattern in ("lock:connection:*", "lock:*", ":1:lock*"):
        assert pattern in text
    pair.a("SETNX", pair.key("lock:short:rules"), "1")
    assert hits()[1] != text, "the hits count"


def test_proxy_explain(pair):
    name = pair.key("lock:explain")
    reply = text_of(pair.a("PROXY", "EXPLAIN", "SETNX", name, "1"))
    assert "lock:*" in reply and "acquire" in reply.lower()
    node = pair.backend.node_of(name)
    assert str(node.port) in reply
    assert pair.direct("EXISTS", name) == 0, "it runs nothing"
    plain = text_of(pair.a("PROXY", "EXPLAIN", "GET", "plain"))
    assert str(pair.backend.node_of("plain").port) in plain
    assert "release" in text_of(pair.a("PROXY", "EXPLAIN", "DEL", name)).lower()
    assert "no lease is known to this proxy" in reply
    assert pair.a("SETNX", name, "1") == 1 and pair.b("SETNX", name, "2") == 0
    assert "held by this connection for 0" in text_of(pair.a("PROXY", "EXPLAIN", "DEL", name))
    for command in (["DEL", name], ["SETNX", name, "1"]):
        said = text_of(pair.b("PROXY", "EXPLAIN", *command))
        assert "would be refused: held for 0" in said and "and this connection has lost its last attempt" in said
    for command in (["NOSUCH"], ["GET"]):
        pair.a("PROXY", "EXPLAIN", *command)
        assert pair.a("PING") == "PONG"


def test_what_has_names_is_a_map_in_resp3(pair):
    name, other = pair.held("lock:{map}"), pair.key("{map}")
    assert pair.b("DEL", name) == 0
    three = pair.connect(pair.proxy, commands=[("HELLO", 3)])
    (lease,) = three("PROXY", "LOCKS", name)
    assert lease["key"] == name and lease["fence"] == pair.a("PROXY", "TOKEN", name)
    lock = three("PROXY", "LOCK", name)
    assert lock["state"] == "held" and lock["value"] == "value-a" and lock["fence"] == lease["fence"]
    assert lock == fields(pair.b("PROXY", "LOCK", name)) | {"pttl": lock["pttl"]}
    assert [row for row in three("PROXY", "INCIDENTS", 5) if row["key"] == name][0]["kind"] == "foreign_release"
    assert all(isinstance(row, dict) and "rule" in row and "hits" in row for row in three("PROXY", "RULES"))
    assert three("PROXY", "EXPLAIN", "DEL", name)["lock-command"] == "release"
    assert three("PROXY", "EXPLAIN", "PING")["command"] == "ping"
    first, second = three("PROXY", "EXPLAIN", "DEL", name, other)
    assert first["rule"].startswith("lock:* mode") and second["rule"].startswith("none") and second["command"] == "del"


def test_proxy_explain_of_what_the_proxy_does_not_know(pair):
    answer = fields(pair.a("PROXY", "EXPLAIN", "NO.SUCH", "a"))
    assert "unknown to the node, too" in answer["command"]


def test_proxy_explain_under_audit_says_what_enforcing_would_see(pair):
    seen = fields(pair.a("PROXY", "EXPLAIN", "SETNX", pair.key("lock:audit:explain"), "1"))
    assert seen["lock-command"] == "acquire" and seen["script"].startswith("none under audit")
    assert "script-sha1" not in seen
    off = fields(pair.a("PROXY", "EXPLAIN", "SETNX", pair.key("lock:off:explain"), "1"))
    assert off["lock-command"].startswith("none") and "script" not in off


def test_proxy_explain_says_where_a_command_without_keys_goes(pair):
    """On a cluster to all masters or to one of them; a standalone has but the one node."""
    def node(*command):
        return fields(pair.a("PROXY", "EXPLAIN", *command)).get("node")

    cluster = pair.backend.kind == "cluster"
    for command, place in ((["TIME"], "one master"), (["EVAL", "return 1", "0"], "one master"),
                           (["CONFIG", "GET", "x"], "one master"), (["CONFIG", "SET", "x", "1"], "all masters"),
                           (["DBSIZE"], "all masters"), (["SCAN", "0"], "all masters")):
        assert node(*command) == (place if cluster else "127.0.0.1:%d" % pair.backend.port), command
    assert node("MULTI") is None


def test_proxy_release(pair):
    name = pair.held("lock:operator")
    assert pair.b("PROXY", "RELEASE", pair.key("lock:free")) == 0
    assert pair.b("PROXY", "RELEASE", name) == 1
    assert pair.direct("EXISTS", name) == 0
    assert incidents(pair.b, name)
    assert pair.b("SETNX", name, "b") == 1
    assert pair.a("DEL", name) == 0
    assert pair.b("DEL", name) == 1


def test_proxy_info_counts(pair):
    def number(field):
        text = pair.a("PROXY", "INFO")
        found = re.search(r"^%s:(\d+)" % field, text, re.M)
        return int(found.group(1)) if found else None

    before = pair.a("PROXY", "INFO", "locks")
    pair.held("lock:counted")
    pair.b("DEL", pair.key("lock:none"))
    assert pair.a("PROXY", "INFO", "locks") != before
    assert pair.a.raw("PROXY", "INFO")[:1] == b"$"


def test_thousands_of_locks(pair):
    names = [pair.key("lock:many") for _ in range(2000)]
    assert pair.a.pipeline([("SET", n, "1", "NX", "PX", 60000) for n in names]) == [b"+OK\r\n"] * 2000
    assert pair.b.pipeline([("DEL", n) for n in names]) == [b":0\r\n"] * 2000
    assert isinstance(pair.b("PROXY", "LOCKS"), list)
    assert pair.a.pipeline([("DEL", n) for n in names]) == [b":1\r\n"] * 2000
    assert pair.b("EXISTS", *names) == 0
