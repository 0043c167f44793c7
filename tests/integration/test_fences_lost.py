"""Fences (S7): a session that has lost its lease is late until it acquires again, whatever was learnt of its client.

A held the lock, B holds it now. Both are connections of one host without names, so that the proxy believes releases of one
session for another. A's write answers FENCED and changes nothing."""

import subprocess

import pytest

import servers
from helpers import acquire, fenced_names, module_proxy
from resp import Error
from servers import until
from test_fences import rows
from test_reload import reloaded

CONFIG = [
    "lock lock:conn:* owner connection",
    "lock lock:client:* owner client",
    "lock lock:*",
    "fence near:* by lock:near:*",
    "fence far:{*}* by lock:far:*",
    "fence conn:* by lock:conn:* unlocked refuse",
    "fence client:* by lock:client:*",
    "fence sole:* by lock:sole:* unlocked refuse",
]

proxy = module_proxy(*CONFIG)
places = pytest.mark.parametrize("kind", ["near", "far"])
forms = pytest.mark.parametrize("form", ["plain", "multi", "eval"])


@pytest.fixture(params=[2, 3])
def session(proxy, connect, request):
    """session(name): a connection; without a name it is of the host's client."""

    def session(name=None):
        name = [("CLIENT", "SETNAME", name)] if name else []
        return connect(proxy, commands=[("HELLO", str(request.param)), *name])

    return session


def write(session, key, form, *before):
    """Writes LATE; the reply to the write itself. `before`: commands of the same transaction, which come first."""
    if form == "plain":
        return session("SET", key, "LATE")
    if form == "eval":
        return session("EVAL", "return redis.call('SET', KEYS[1], 'LATE')", "1", key)
    assert session("MULTI") == "OK"
    for words in (*before, ("SET", key, "LATE")):
        assert session(*words) == "QUEUED"
    reply = session("EXEC")
    return reply if isinstance(reply, Error) else reply[-1]


def refused(reply):
    return isinstance(reply, Error) and reply.startswith("FENCED ")


def late(client):
    """How many late writes the fences have counted."""
    return sum(int(row["late"]) for pattern, row in rows(client).items())


def nothing_written(a, b, key, form):
    """A has lost the lock and writes nothing; B holds it and writes."""
    before = late(b)
    reply = write(a, key, form)
    assert refused(reply), reply
    assert b("GET", key) is None
    assert late(b) == before + 1
    assert b("SET", key, "b") == "OK"
    assert refused(write(a, key, form))
    assert b("GET", key) == "b"


# ---- 1: behind an attempt of the same transaction ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["near", "conn", "sole"])
def test_behind_a_lost_attempt_of_the_transaction(session, kind):
    a, b = session(), session()
    key, lock = fenced_names(kind)
    acquire(a, lock, "60")
    acquire(b, lock)
    for attempt in (("SETNX", lock, "1"), ("SET", lock, "1", "NX", "PX", "60000"),
                    ("EVAL", "return redis.call('SETNX', KEYS[1], '1')", "1", lock)):
        before = late(b)
        reply = write(a, key, "multi", attempt)
        assert refused(reply), (attempt, reply)
        assert late(b) == before + 1
    assert b("GET", key) is None
    assert write(b, key, "multi", ("SETNX", lock, "1")) == "OK"


@pytest.mark.parametrize("kind", ["near", "conn", "sole"])
def test_behind_a_lost_attempt_of_a_session_that_never_held(session, kind):
    """Another session of the same client holds the lock."""
    a, b = session(), session()
    key, lock = fenced_names(kind)
    acquire(b, lock)
    assert refused(write(a, key, "multi", ("SETNX", lock, "1")))
    assert b("GET", key) is None


@pytest.mark.parametrize("kind", ["near", "conn", "sole"])
def test_behind_an_attempt_of_the_transaction_that_acquires(session, kind):
    a = session()
    key, lock = fenced_names(kind)
    acquire(a, lock, "60")
    acquire(session("other"), lock, "60")
    until(lambda: a("EXISTS", lock) == 0, 10, "the lease's end")
    for attempt in (("SETNX", lock, "1"), ("SET", lock, "1", "NX", "PX", "60000"),
                    ("EVAL", "return redis.call('SET', KEYS[1], '1', 'NX')", "1", lock)):
        assert write(a, key, "multi", attempt) == "OK"
        assert a("GETDEL", key) == "LATE"
        # The first of many attempts acquires.
        assert a("DEL", lock) == 1
        assert write(a, key, "multi", *[("SETNX", lock, "1")] * 40) == "OK"
        assert write(a, key, "multi", ("DEL", lock), *[("SETNX", lock, "1")] * 40) == "OK"
        assert a("DEL", lock) == 1


# ---- 2: a release that is believed ------------------------------------------------------------------------------


RELEASE = "return redis.call('DEL', KEYS[1])"
COMPARE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
RELEASES = {
    "DEL": lambda c, lock: c("DEL", lock),
    "UNLINK": lambda c, lock: c("UNLINK", lock),
    "GETDEL": lambda c, lock: c("GETDEL", lock),
    "EVAL": lambda c, lock: c("EVAL", RELEASE, "1", lock),
    "COMPARE": lambda c, lock: c("EVAL", COMPARE, "1", lock, "1"),
    "PROXY": lambda c, lock: c("PROXY", "RELEASE", lock),
    "MULTI": lambda c, lock: [c("MULTI"), c("DEL", lock), c("EXEC")],
}


@pytest.mark.parametrize("release", RELEASES)
@forms
@places
def test_a_believed_release(session, kind, form, release):
    a, b, c = session(), session(), session()
    key, lock = fenced_names(kind)
    acquire(a, lock)
    RELEASES[release](c, lock)
    acquire(b, lock)
    nothing_written(a, b, key, form)
    assert b("DEL", lock) == 1
    acquire(a, lock)
    assert write(a, key, form) == "OK"


@pytest.mark.parametrize("release", ["EVAL", "PROXY"])
@forms
def test_a_believed_release_under_owner_connection(session, form, release):
    a, b, c = session(), session(), session()
    key, lock = fenced_names("conn")
    acquire(a, lock)
    RELEASES[release](c, lock)
    acquire(b, lock)
    nothing_written(a, b, key, form)


@forms
def test_an_operator_s_release_under_owner_client(session, form):
    """A and B are two clients: within one, all sessions write with what it holds."""
    a, b, c = session("a"), session("b"), session("c")
    key, lock = fenced_names("client")
    acquire(a, lock)
    assert c("PROXY", "RELEASE", lock) == 1
    acquire(b, lock)
    nothing_written(a, b, key, form)


@places
def test_a_release_by_one_that_has_tried(session, kind):
    """The releasing session has lost an attempt before: its release is believed as a crossing of a pool."""
    a, b, c = session(), session(), session()
    key, lock = fenced_names(kind)
    acquire(c, lock)
    assert c("DEL", lock) == 1
    acquire(a, lock)
    assert c("DEL", lock) == 1
    acquire(b, lock)
    nothing_written(a, b, key, "plain")


# ---- 3: a refused release of a loser --------------------------------------------------------------------------------


@forms
@places
def test_a_loser_s_refused_release(session, kind, form):
    a, b = session(), session()
    key, lock = fenced_names(kind)
    assert a("SET", lock, "1", "NX", "PX", "300") == "OK"
    # In one packet: a release that does not come at once behind the loss would be believed.
    lost, released = b.pipeline([("SET", lock, "1", "NX", "PX", "60000"), ("DEL", lock)])
    assert lost in (b"$-1\r\n", b"_\r\n") and released == b":0\r\n"
    acquire(b, lock)
    nothing_written(a, b, key, form)


# ---- 5: until it acquires again --------------------------------------------------------------------------------------


@places
def test_its_own_release_ends_it(session, kind):
    """A session that has released its lease is one that holds nothing (`unlocked pass`)."""
    a, b = session("a"), session("b")
    key, lock = fenced_names(kind)
    acquire(a, lock)
    assert a("DEL", lock) == 1
    acquire(b, lock)
    assert write(a, key, "plain") == "OK"
    # Its lease ends by itself; it releases before another session acquires.
    key, lock = fenced_names(kind)
    acquire(a, lock, "50")
    until(lambda: b("EXISTS", lock) == 0, 10, "the lease's end")
    assert a("DEL", lock) == 0
    acquire(b, lock)
    assert write(a, key, "plain") == "OK"


@places
def test_its_refused_release_does_not(session, kind):
    a, b = session("a"), session("b")
    key, lock = fenced_names(kind)
    acquire(a, lock, "50")
    acquire(b, lock)
    assert a("DEL", lock) == 0
    nothing_written(a, b, key, "plain")
    assert b("DEL", lock) == 1
    assert a("DEL", lock) == 0
    assert refused(write(a, key, "plain"))


# ---- a fence that comes later -----------------------------------------------------------------------------------------


ENDS = {
    "believed": (lambda c, lock: None, lambda c, lock: c("DEL", lock)),
    "operator": (lambda c, lock: None, lambda c, lock: c("PROXY", "RELEASE", lock)),
    "time before": (lambda c, lock: c("PEXPIRE", lock, "1") and until(lambda: c("EXISTS", lock) == 0, 10, "its end"),
                    lambda c, lock: None),
    "time after": (lambda c, lock: None,
                   lambda c, lock: c("PEXPIRE", lock, "1") and until(lambda: c("EXISTS", lock) == 0, 10, "its end")),
}


@pytest.mark.parametrize("end", ENDS)
@forms
@places
def test_a_lease_from_before_the_fence(proxy, start_proxy, connect, kind, form, end):
    """A reload adds the fence while A holds the lock, or has lost it and no other client has acquired it since."""
    late_fence = start_proxy(proxy.backend, "lock lock:*")
    a, b, c = (connect(late_fence) for _ in range(3))
    key, lock = fenced_names(kind)
    before, after = ENDS[end]
    assert a("SETNX", lock, "1") == 1
    before(c, lock)
    assert reloaded(late_fence, "fence near:* by lock:near:*", "fence far:{*}* by lock:far:*", client=c) == "OK"
    assert end == "time before" or write(a, key, form) == "OK" and c("DEL", key) == 1
    after(c, lock)
    acquire(b, lock)
    nothing_written(a, b, key, form)
    assert b("DEL", lock) == 1
    acquire(a, lock)
    assert write(a, key, form) == "OK"


# ---- 4: other databases ------------------------------------------------------------------------------------------------


def other_database(a, form, *words):
    if form == "plain":
        return a(*words)
    assert a("MULTI") == "OK"
    reply = a(*words)
    return a("EXEC") if reply == "QUEUED" else (reply, a("EXEC"))[0]


@pytest.mark.parametrize("name", [None, "a"])
@pytest.mark.parametrize("form", ["plain", "multi"])
def test_other_databases(session, proxy, form, name):
    """A has lost the lock in database 0. It prepares data in database 1, where it has lost nothing."""
    if isinstance(proxy.backend, servers.RedisCluster):
        pytest.skip("a cluster has one database")
    a, b = session(name), session()
    key, lock = fenced_names("near")
    other = "other:" + key.split(":")[1]
    acquire(a, lock, "50")
    acquire(b, lock)
    assert a("SELECT", "1") == "OK"
    assert a("SET", key, "LATE") == "OK"
    for words in (("MOVE", key, "0"), ("move", key, "0"), ("COPY", key, key, "DB", "0"), ("SWAPDB", "0", "1"),
                  ("SWAPDB", "1", "0"), ("swapdb", "2", "0")):
        reply = other_database(a, form, *words)
        assert isinstance(reply, Error) and "nothing was written" in reply, (words, reply)
        assert b("GET", key) is None, words
    assert other_database(a, form, "SWAPDB", "1", "1") in ("OK", ["OK"])
    assert other_database(a, form, "COPY", key, other, "DB", "0") in (1, [1])  # no data of a fence
    # Out of the database, too.
    assert b("SET", key, "b") == "OK" and a("SELECT", "0") == "OK"
    for words in (("MOVE", key, "2"), ("RESTORE", key, "0", b("DUMP", other), "REPLACE")):
        reply = other_database(a, form, *words)
        reply = reply[0] if isinstance(reply, list) else reply
        assert isinstance(reply, Error) and "nothing was written" in reply, (words, reply)
    assert b("GET", key) == "b"
    assert b("DEL", lock) == 1
    acquire(a, lock)
    assert a("DEL", lock) == 1
    assert other_database(a, form, "SWAPDB", "5", "0") in ("OK", ["OK"])
    assert other_database(a, form, "SWAPDB", "5", "0") in ("OK", ["OK"])


# ---- what a fence cannot tell apart --------------------------------------------------------------------------------------


BLUR = "fence near:*: the rule lock:* of its lock has owner auto. Clients without a name"


def test_a_fence_says_what_it_cannot_tell_apart(proxy, start_proxy, connect):
    one = start_proxy(proxy.backend, *CONFIG)
    assert one.log().count(BLUR) == 1
    for silent in ("fence conn:*", "fence client:*"):
        assert silent not in one.log()
    said = lambda client: [line for line in client("PROXY", "ADVISE") if BLUR in line]  # noqa: E731
    a = connect(one, commands=[("CLIENT", "SETNAME", "a")])
    key, lock = fenced_names("near")
    acquire(a, lock)
    assert a("SET", key, "1") == "OK"
    assert said(a) == []
    b = connect(one)
    key, lock = fenced_names("near")
    acquire(b, lock)
    assert b("SET", key, "1") == "OK"
    assert len(said(a)) == 1


def test_a_test_of_the_configuration_says_so(tmp_path):
    config = tmp_path / "lockkeeper.conf"
    config.write_text("\n".join([*CONFIG, ""]))
    run = subprocess.run([servers.binary(), "--test-conf", str(config)], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("Warning: " + BLUR)]
    assert lines[-1] == "Configuration OK" and len(lines) == 4  # near, far and sole
