"""CLIENT TRACKING: a client with a cache gets messages for every key that it has read, and no other client does."""

import pytest

from resp import Error, Push, encode
from servers import until


@pytest.fixture
def name(key):
    return lambda text: key("track:" + text)


def tracker(proxy, connect, *options):
    client = connect(proxy)
    client("HELLO", "3")
    assert client("CLIENT", "TRACKING", "ON", *options) == "OK"
    return client


def silent(client):
    """Nothing has come, and nothing does before the answer to a question."""
    return client("PING") == "PONG"


def stale(client):
    """The keys of the next invalidation, which has to come without being asked for."""
    message = client.read()
    assert isinstance(message, Push) and message[0] == "invalidate", message
    return message[1]


SCRIPTS = [
    "TRACKING ON|TRACKINGINFO|GETREDIR|TRACKING OFF|TRACKINGINFO|GETREDIR|TRACKING OFF",
    "TRACKING ON OPTIN|TRACKINGINFO|CACHING NO|CACHING YES|CACHING x|CACHING|TRACKING OFF|CACHING YES",
    "TRACKING ON OPTOUT|CACHING YES|CACHING NO|TRACKINGINFO|TRACKING ON OPTIN|TRACKINGINFO",
    "TRACKING ON OPTIN OPTOUT|TRACKINGINFO|TRACKING ON BCAST OPTIN|TRACKING ON PREFIX a|TRACKING ON NOSUCH|TRACKING x|TRACKING",
    "TRACKING ON BCAST|TRACKINGINFO|TRACKING ON|TRACKING ON BCAST PREFIX a|TRACKINGINFO|TRACKING OFF|TRACKING ON",
    "TRACKING ON BCAST PREFIX a PREFIX b NOLOOP|TRACKINGINFO|TRACKING ON BCAST PREFIX ab|TRACKING ON BCAST PREFIX c|TRACKINGINFO",
    "TRACKING ON BCAST PREFIX a PREFIX ab|TRACKINGINFO|GETREDIR|NO-TOUCH ON|NO-TOUCH OFF|NO-TOUCH x|NO-TOUCH|TRACKING ON|NO-TOUCH ON",
    "TRACKING ON NOLOOP|INFO|TRACKING OFF|INFO|TRACKING ON BCAST|INFO",
]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_words(proxy, oracle, connect, script, protocol):
    found = []
    for where in (oracle, proxy):
        client = connect(where)
        client("HELLO", protocol)
        got = []
        for words in script.split("|"):
            reply = client.raw("CLIENT", *words.split(" "))
            if words == "INFO":
                reply = [f for f in reply.split() if f.startswith((b"flags=", b"redir="))]
            elif words == "TRACKINGINFO" and b"prefixes" in reply:
                head, tail = reply.split(b"prefixes\r\n")
                reply = (head, sorted(tail.split(b"\r\n")))
            got.append((words, reply))
        assert client("RESET") == "RESET"
        assert client("CLIENT", "GETREDIR") == -1
        found.append(got)
    assert found[1] == found[0]


OFFS = ["REDIRECT {me}", "REDIRECT {other}", "REDIRECT 0", "REDIRECT -1", "REDIRECT 99999999", "REDIRECT x", "REDIRECT",
        "REDIRECT {me} REDIRECT {me}", "REDIRECT {me} BCAST PREFIX a OPTIN OPTOUT NOLOOP", "BCAST x", "x", "PREFIX",
        "PREFIX REDIRECT 5", "REDIRECT 99999999 x", "x REDIRECT 99999999", "redirect {me} noloop", "BCAST PREFIX a"]


@pytest.mark.parametrize("tracks", [False, True])
def test_words_behind_off(proxy, oracle, connect, tracks):
    """They mean nothing, and are looked at: a client that is redirected to has to be there."""
    found = []
    for where in (oracle, proxy):
        client, other = connect(where), connect(where)
        client("HELLO", "3")
        got = []
        numbers = {"me": client("CLIENT", "ID"), "other": other("CLIENT", "ID")}
        for words in OFFS:
            if tracks:
                assert client("CLIENT", "TRACKING", "ON") == "OK"
            got.append((words, client.raw("CLIENT", "TRACKING", "OFF", *words.format(**numbers).split()), client.raw("CLIENT", "GETREDIR")))
        found.append(got)
    assert found[1] == found[0]


def test_trap_21_tracking_is_a_sessions_own(proxy, client, connect, name):
    one, two, other = tracker(proxy, connect), tracker(proxy, connect), connect(proxy)
    other("HELLO", "3")
    a, b, c = name("a"), name("b"), name("c")
    for k in (a, b, c):
        client("SET", k, "1")
    assert one("GET", a) == two("GET", b) == other("GET", c) == "1"
    for k in (a, b, c):
        client("SET", k, "2")
    assert stale(one) == [a]
    assert stale(two) == [b]
    assert silent(other) and silent(one) and silent(two)
    client("SET", a, "3")
    assert silent(one)


def test_keys_on_all_nodes(proxy, client, connect, name):
    one = tracker(proxy, connect)
    names = [name("k%d" % i) for i in range(30)]
    assert one("MGET", *names) == [None] * 30
    for k in names:
        client("SET", k, "1")
    heard = set()
    while len(heard) < 30:
        heard.update(stale(one))
    assert heard == set(names)


def test_lock_keys_and_transactions(proxy, client, connect, name):
    one = tracker(proxy, connect)
    lock, k = "lock:" + name("l"), name("k")
    everything = tracker(proxy, connect, "BCAST")
    assert one("SETNX", lock, "1") == 1
    assert stale(everything) == [lock]  # and no word of the guard record
    one.send(encode("GET", lock))
    until(lambda: one.read() == "1", what="the lock's value, behind what the script's reading brought")
    assert one.pipeline([["MULTI"], ["GET", k], ["EXEC"]])[-1] == b"*1\r\n_\r\n"
    client("SET", k, "1")
    assert stale(one) == [k]
    one.send(encode("DEL", lock))
    until(lambda: one.read() == 1, what="the release")
    while stale(everything) != [lock]:
        pass


def test_bcast(proxy, client, connect, name):
    prefix = name("bcast")
    one, all_keys = tracker(proxy, connect, "BCAST", "PREFIX", prefix), tracker(proxy, connect, "BCAST")
    for i in range(20):
        client("SET", "%s:%d" % (prefix, i), "1")
    for c in (one, all_keys):
        heard = set()
        while len(heard) < 20:
            heard.update(stale(c))
    other = name("other")
    client("SET", other, "1")
    assert stale(all_keys) == [other]
    assert silent(one)


def test_noloop(proxy, client, connect, name):
    one, k = tracker(proxy, connect, "NOLOOP"), name("k")
    one("SET", k, "1")
    assert one("GET", k) == "1"
    assert one("SET", k, "2") == "OK"
    assert silent(one) and one("GET", k) == "2"
    client("SET", k, "3")
    assert stale(one) == [k]


# What a client does to locks of its own: K a string or a counter, H a hash, Q a queue; the rest are other keys of one slot.
OWN = [
    ("SETNX", "K", "1"), ("EXPIRE", "K", 50), ("SET", "K", "1", "XX", "EX", 40), ("GETSET", "K", "1"), ("APPEND", "K", "2"), ("PERSIST", "K"), ("DEL", "K"),
    ("SET", "K", "v", "NX", "PX", 50000), ("GETDEL", "K"), ("SETEX", "K", 50, "w"), ("GETEX", "K", "EX", 30), ("UNLINK", "K"), ("INCR", "K"), ("INCR", "K"),
    ("DECR", "K"), ("DEL", "K"), ("DECR", "K"), ("DEL", "K"), ("HSETNX", "H", "f", "1"), ("HSET", "H", "g", "1"), ("HDEL", "H", "f", "g"), ("HINCRBY", "H", "n", 1),
    ("HINCRBY", "H", "n", -1), ("DEL", "H"), ("RPUSH", "Q", "n"), ("LRANGE", "Q", 0, 0), ("LSET", "Q", 0, "m"), ("RPUSH", "Q", "o"), ("LREM", "Q", 1, "m"), ("LPOP", "Q"),
    ("MSETNX", "K", "1"), ("RENAME", "K", "L"), ("DEL", "K", "L"), ("SET", "K", "data"), ("SET", "K", "more"), ("DEL", "K"),
]


@pytest.mark.parametrize("options", [(), ("BCAST",), ("BCAST", "PREFIX", "lock:")], ids=lambda o: "-".join(o) or "keys")
@pytest.mark.parametrize("pipelined", [False, True])
def test_noloop_on_locks(proxy, client, connect, key, options, pipelined):
    """No message about a client's own lock commands, as from Redis, although they are scripts there; others hear of each key."""
    one, other = tracker(proxy, connect, "NOLOOP", *options), tracker(proxy, connect, *options)
    tag = key("noloop")
    names = {w: "lock:kinds:{%s}%s" % (tag, w) for w in "KHQL"}
    commands = [[names.get(w, w) for w in c] for c in OWN]
    for some in [commands] if pipelined else [[c] for c in commands]:
        for c in some:
            for name in names.values():
                other.send(encode("TYPE", name))
        one.send(b"".join(encode(*c) for c in some))
        for c in some:
            reply = one.read()
            assert not isinstance(reply, (Push, Error)), (c, reply)
        assert silent(one), some
    other.send(encode("ECHO", "behind"))
    heard = set()
    for message in iter(other.read, "behind"):
        heard.update(message[1] if isinstance(message, Push) else [])
    assert heard == set(names.values()) or not options
    assert one("TYPE", names["K"]) == "none" and client("SETNX", names["K"], 1) == 1
    assert stale(one) == [names["K"]], "what another client does is told"


@pytest.mark.parametrize("options", [("NOLOOP",), ("NOLOOP", "BCAST"), ("NOLOOP", "BCAST", "PREFIX", "lock:")], ids="-".join)
@pytest.mark.parametrize("watch", [False, True])
def test_noloop_in_multi(proxy, oracle, connect, key, options, watch):
    """A client hears what Redis tells it: of its own transaction nothing under NOLOOP, and afterwards of others' writes."""
    tag, found = key("noloop"), []
    names = {w: "lock:kinds:{%s}%s" % (tag, w) for w in "KHQL"}
    data = "data:{%s}" % tag
    commands = [[names.get(w, w) for w in c] for c in OWN] + [["SET", data, "1"], ["GET", data]]
    for where in (oracle, proxy):
        one, other = tracker(where, connect, *options), connect(where)
        got = []
        for some in [[c] for c in commands] + [[["SETNX", names["K"], 1], ["EXPIRE", names["K"], 50], ["SET", data, "1"], ["DEL", names["K"]]]]:
            reads = [["TYPE", k] for k in names.values()] + [["GET", data]]
            whole = [["WATCH", data]] * watch + reads + [["MULTI"], *some, *reads, ["EXEC"], ["PING"]]
            one.send(b"".join(encode(*c) for c in whole))
            messages, replies = set(), []
            while len(replies) < len(whole):
                reply = one.read()
                if isinstance(reply, Push):
                    messages.update(reply[1])
                else:
                    replies.append(reply)
            assert not isinstance(replies[-2], Error), (some, replies)
            got.append((some, messages))
        assert other("SETNX", names["K"], 1) == 1 and other("SET", data, "2") == "OK"
        heard = set()
        while len(heard) < (1 if "PREFIX" in options else 2):
            heard.update(stale(one))
        got.append(heard)
        assert other("DEL", names["K"]) == 1
        one.close()
        found.append(got)
    for redis, through in zip(*found):
        assert through == redis


def test_noloop_tells_of_others_behind_own_commands(proxy, client, connect, key):
    one, k = tracker(proxy, connect, "NOLOOP", "BCAST"), "lock:" + key("noloop")
    for n in range(20):
        assert one("SETNX", k, n) == 1 and one("DEL", k) == 1
        assert client("SETNX", k, n) == 1
        assert stale(one) == [k]
        assert client("DEL", k) == 1
        assert stale(one) == [k]
        assert silent(one)


def test_optin_and_optout(proxy, client, connect, name):
    optin, optout = tracker(proxy, connect, "OPTIN"), tracker(proxy, connect, "OPTOUT")
    names = [name("k%d" % i) for i in range(6)]
    for c, word, heard in ((optin, "YES", names[:3]), (optout, "NO", names[3:])):
        c.send(encode("CLIENT", "CACHING", word) + encode("MGET", *names[:3]) + encode("MGET", *names[3:]))
        assert [c.read() for _ in range(3)] == ["OK", [None] * 3, [None] * 3]
        for k in names:
            client("SET", k, "1")
        got = set()
        while len(got) < 3:
            got.update(stale(c))
        assert got == set(heard)
        assert silent(c)
        for k in names:
            client("DEL", k)


@pytest.mark.parametrize("first", [[], [["PING"]], [["WATCH", "K"]]], ids=["keys", "a ping", "a watch"])
def test_caching_in_front_of_multi(proxy, client, connect, name, first):
    """It counts for the whole transaction, on a cluster too, where the node is not known before the first key."""
    one, tag = tracker(proxy, connect, "OPTIN"), "{%s}" % name("multi")
    a, b, c = tag + "a", tag + "b", tag + "c"
    watch = [["WATCH", a] for w in first if w[0] == "WATCH"]
    inside = [w for w in first if w[0] != "WATCH"]
    commands = [*watch, ["CLIENT", "CACHING", "YES"], ["MULTI"], *inside, ["GET", a], ["GET", b], ["EXEC"], ["GET", c]]
    for command in commands:
        one.send(encode(*command))
    got = [one.read() for _ in commands]
    assert got[-2:] == [[*["PONG" for _ in inside], None, None], None]
    for k in (c, b, a):
        client("SET", k, "1")
    assert {one.read()[1][0], one.read()[1][0]} == {a, b}
    assert silent(one)


def test_pushes_come_between_replies(proxy, client, connect, name):
    """A large reply is never cut by a message."""
    one, k, big = tracker(proxy, connect), name("k"), name("big")
    client("SET", big, "x" * 3000000)
    for i in range(10):
        client("SET", k, i)
        assert one("GET", k) == str(i)
        one.send(encode("GET", big))
        client("SET", k, "again")
        got = [one.read(), one.read()]
        assert sorted(map(len, got)) == [2, 3000000]


def test_state_is_gone_with_the_session(proxy, backend, connect, client, name):
    """No connection of the node still tracks for a client that has left."""
    def tracking_clients():
        nodes = backend.nodes if backend.kind == "cluster" else [backend]
        count = 0
        for node in nodes:
            with node.client() as direct:
                count += int([l for l in direct("INFO", "clients").splitlines() if l.startswith("tracking_clients")][0].split(":")[1])
        return count

    made = [tracker(proxy, connect, *o) for o in ([], ["BCAST"], ["OPTIN"], [])]
    for c in made:
        c("GET", name("k"))
    assert tracking_clients() >= 4
    made[0]("CLIENT", "TRACKING", "OFF")
    made[1]("RESET")
    made[2].close()
    client("CLIENT", "KILL", "ID", made[3]("CLIENT", "ID"))
    until(lambda: tracking_clients() == 0, what="the nodes to track for nobody")
    assert made[0].raw("GET", name("k")) == b"_\r\n"
    assert made[1].raw("GET", name("k")) == b"$-1\r\n"


def test_a_lost_connection_makes_all_stale(proxy, backend, connect, client, name):
    one, many = tracker(proxy, connect), tracker(proxy, connect, "BCAST")
    k = name("k")
    assert one("GET", k) is None
    node = backend.node_of(k)
    node.run("CLIENT", "KILL", "TYPE", "normal")
    assert stale(one) is None
    assert stale(many) is None
    assert one("GET", k) is None
    client("SET", k, "1")
    assert stale(one) == [k]

    def heard():
        client("SET", k, "2")
        many.send(encode("PING"))
        reply = many.read()
        while isinstance(reply, Push):
            if reply[1] == [k]:
                assert many.read() == "PONG"
                return True
            reply = many.read()
        return False

    until(heard, what="the node to be told of BCAST again")


def test_other_states_go_along(farm, connect, name):
    """SELECT and HELLO keep what is tracked."""
    backend = farm.backend("standalone")
    backend.flush()
    proxy = farm.proxy("standalone")
    one, other, k = tracker(proxy, connect), connect(proxy), name("k")
    assert one("GET", k) is None
    assert one("SELECT", "3") == "OK"
    assert one("GET", k + "3") is None
    other("SET", k, "1")
    assert stale(one) == [k]
    other("SELECT", "3")
    other("SET", k + "3", "1")
    assert stale(one) == [k + "3"]
    one("GET", k + "3")
    one("HELLO", "2")
    other("SET", k + "3", "2")
    assert one("PING") == "PONG"
    one("HELLO", "3")
    one("GET", k)
    other("SET", k, "1")
    assert stale(one) == [k]


# ---- REDIRECT -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("words", ["ON REDIRECT 1", "ON REDIRECT", "ON BCAST PREFIX a REDIRECT 1", "ON NOLOOP redirect x OPTIN"])
def test_redirect_is_refused(proxy, connect, client, words, protocol):
    """The client is told what to do instead, and is as it was; a prefix of that name is a prefix."""
    client("HELLO", protocol)
    assert client("CLIENT", "TRACKING", *words.split()) == Error(
        "ERR CLIENT TRACKING with REDIRECT is not supported by lockkeeper: after HELLO 3 the messages come over the "
        "client's own connection")
    assert client("CLIENT", "GETREDIR") == -1 and " redir=-1 " in client("CLIENT", "INFO")
    assert client("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "redirect") == "OK"
    assert client("CLIENT", "GETREDIR") == 0 and " redir=0 " in client("CLIENT", "INFO")
