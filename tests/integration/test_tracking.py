"""CLIENT TRACKING: a client with a cache hears of every key that it read, and nobody else hears of it."""

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
    """No connection of the node's still tracks for somebody who left."""
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


def hearer(where, connect, protocol, subscribed=True):
    """Somebody for others' messages, and its number."""
    client = connect(where)
    client("HELLO", protocol)
    number = client("CLIENT", "ID")
    if subscribed:
        client("SUBSCRIBE", "__redis__:invalidate")
    return client, number


def redirector(where, connect, protocol, number, *options):
    client = connect(where)
    client("HELLO", protocol)
    assert client("CLIENT", "TRACKING", "ON", "REDIRECT", number, *options) == "OK"
    return client


def told(client):
    """The keys of the next message, in either protocol."""
    message = client.read()
    assert message[:-1] in (["invalidate"], ["message", "__redis__:invalidate"]), message
    return message[-1]


def messages(where, connect, reader, listener, subscribed):
    """What somebody's reading and others' writing make the listener hear, byte by byte."""
    other = connect(where)
    b, number = hearer(where, connect, listener, subscribed)
    a = redirector(where, connect, reader, number)
    k = "track:redirect:k"
    got = []
    for value in range(3):
        assert a("GET", k) == (None if value == 0 else str(value - 1))
        other("SET", k, value)
        if subscribed or listener == 3:
            got.append(b.read_raw())
    got.append(b.raw("PING"))
    got.append(a.raw("GET", k))
    return got


@pytest.mark.parametrize("reader", [2, 3])
@pytest.mark.parametrize("listener", [2, 3])
@pytest.mark.parametrize("subscribed", [False, True])
def test_redirect_messages(proxy, oracle, connect, client, reader, listener, subscribed):
    found = [messages(where, connect, reader, listener, subscribed) for where in (oracle, proxy)]
    assert found[1] == found[0]


REDIRECT_SCRIPTS = [
    "ON REDIRECT 99999999|ON REDIRECT x|ON REDIRECT -1|ON REDIRECT|ON REDIRECT B REDIRECT B|ON REDIRECT B NOSUCH|ON NOSUCH REDIRECT 9",
    "ON REDIRECT B|ON REDIRECT B OPTIN|ON REDIRECT C OPTIN|ON|OFF|OFF",
    "ON PREFIX a REDIRECT B|ON REDIRECT B PREFIX a BCAST PREFIX b NOLOOP|ON BCAST REDIRECT B PREFIX c|ON REDIRECT B PREFIX ab BCAST|ON REDIRECT C",
    "ON OPTIN OPTOUT REDIRECT B|ON OPTOUT REDIRECT B|ON REDIRECT B BCAST|OFF|ON BCAST REDIRECT A",
]


@pytest.mark.parametrize("script", REDIRECT_SCRIPTS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_redirect_words(proxy, oracle, connect, script, protocol):
    """What is said to it, and how it is shown; numbers of clients by their letters."""
    found = []
    for where in (oracle, proxy):
        clients = {letter: connect(where) for letter in "ABC"}
        numbers = {letter: str(c("CLIENT", "ID")) for letter, c in clients.items()}
        a, got = clients["A"], []
        a("HELLO", protocol)
        for words in script.split("|"):
            got.append(a.raw("CLIENT", "TRACKING", *[numbers.get(w, w) for w in words.split()]))
            info = a("CLIENT", "TRACKINGINFO")
            info = dict(zip(info[::2], info[1::2])) if isinstance(info, list) else dict(info)
            shown = [f for f in a("CLIENT", "INFO").split() if f.startswith(("flags=", "redir="))]
            values = [a("CLIENT", "GETREDIR"), info["redirect"], shown[1][len("redir="):]]
            letters = {number: letter for letter, number in numbers.items()}
            got += [sorted(info["flags"]), sorted(info["prefixes"]), shown[0]]
            got += [letters.get(str(v), str(v)) for v in values]
        found.append(got)
    assert found[1] == found[0]


@pytest.mark.parametrize("options", [[], ["BCAST", "PREFIX", "P"], ["OPTIN"], ["NOLOOP"]], ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("protocol", [2, 3])
def test_redirect_hears_of_all_nodes(proxy, connect, client, name, options, protocol):
    prefix = name("all")
    b, number = hearer(proxy, connect, protocol)
    a = redirector(proxy, connect, 2, number, *[prefix if o == "P" else o for o in options])
    names = ["%s:%d" % (prefix, i) for i in range(30)]
    if "OPTIN" in options:
        assert a("CLIENT", "CACHING", "YES") == "OK"
    assert a("MGET", *names) == [None] * 30
    if "NOLOOP" in options:
        assert a("SET", names[0], "1") == "OK"
        names = names[1:]
    for k in names:
        client("SET", k, "1")
    heard = []
    while len(heard) < len(names):
        heard += told(b)
    assert sorted(heard) == sorted(names)
    assert a("CLIENT", "TRACKING", "OFF") == "OK"


def change(where, connect, protocol):
    """Options and the listener change: what was read before is told too, to the listener of the moment."""
    other = connect(where)
    (b, first), (c, second) = hearer(where, connect, 2), hearer(where, connect, 3)
    a = redirector(where, connect, protocol, first)
    keys = ["track:change:{t}%d" % i for i in range(4)]
    assert a("GET", keys[0]) is None
    seen = [a("CLIENT", "TRACKING", "ON", "REDIRECT", first, "OPTIN"), a("GET", keys[1])]
    seen += [a("CLIENT", "CACHING", "YES"), a("GET", keys[2])]
    other("MSET", keys[0], "1", keys[1], "1")
    seen.append(told(b))
    seen += [a("CLIENT", "TRACKING", "ON", "REDIRECT", second), a("GET", keys[3])]
    other("SET", keys[2], "1")
    other("SET", keys[3], "1")
    seen += [sorted([told(c), told(c)]), b.raw("PING")]  # the proxy hears the two over two connections
    return seen


@pytest.mark.parametrize("protocol", [2, 3])
def test_redirect_changes(proxy, oracle, connect, protocol):
    assert change(proxy, connect, protocol) == change(oracle, connect, protocol)


def broken(where, connect, protocol):
    other = connect(where)
    b, number = hearer(where, connect, 2)
    a = redirector(where, connect, protocol, number)
    k = "track:redirect:broken"
    assert a("GET", k) is None
    b.close()
    until(lambda: "id=%s " % number not in other("CLIENT", "LIST"), what="the other to be gone")
    other("SET", k, "1")
    if protocol == 3:
        message = a.read()
        assert message == ["tracking-redir-broken", number] and isinstance(message, Push)
    until(lambda: "broken_redirect" in str(a("CLIENT", "TRACKINGINFO")), what="that to be noticed")
    seen = [a.raw("CLIENT", "TRACKINGINFO").replace(b":%d" % number, b":B"), a("CLIENT", "GETREDIR") == number]
    seen += [f for f in a("CLIENT", "INFO").split() if f.startswith("flags=")]
    b, number = hearer(where, connect, 2)
    seen.append(a("CLIENT", "TRACKING", "ON", "REDIRECT", number))
    seen.append(a.raw("CLIENT", "TRACKINGINFO").replace(b":%d" % number, b":B"))
    assert a("GET", k) == "1"
    other("SET", k, "2")
    seen.append(told(b))
    return seen


@pytest.mark.parametrize("protocol", [2, 3])
def test_redirect_to_somebody_who_left(proxy, oracle, connect, client, protocol):
    assert broken(proxy, connect, protocol) == broken(oracle, connect, protocol)


def test_redirect_over_lost_connections(proxy, backend, connect, client, name):
    """All may be stale then, and what is read from then on is tracked again; also where only the second one is lost."""
    b, number = hearer(proxy, connect, 3, subscribed=False)
    a = redirector(proxy, connect, 2, number)
    k = name("k")
    for _ in range(2):
        assert a("GET", k) is None
        with backend.node_of(k).client() as direct:
            redirects = [c for c in direct("CLIENT", "LIST").splitlines() if " redir=-1 " not in c and " redir=0 " not in c]
            assert len(redirects) == 1
            ear = redirects[0].split(" redir=")[1].split()[0]
            assert direct("CLIENT", "KILL", "ID", ear) == 1
        assert told(b) is None
        assert a("GET", k) is None
        client("SET", k, "1")
        assert told(b) == [k]
        client("DEL", k)
    assert a("GET", k) is None
    backend.node_of(k).run("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: told(b) is None, what="the news that all may be stale")
    until(lambda: a("GET", k) is None, what="the node to be there again")
    client("SET", k, "1")
    until(lambda: told(b) == [k], what="the key")


def test_redirect_leaves_nothing_behind(proxy, backend, connect, client, name):
    """Neither connections that track nor those that hear for them."""
    node = backend.node_of(name("k"))

    def connections():
        with node.client() as direct:
            return [c for c in direct("CLIENT", "LIST").splitlines() if " redir=-1 " not in c]

    _, number = hearer(proxy, connect, 3, subscribed=False)
    made = [redirector(proxy, connect, 2, number, *o) for o in ([], ["BCAST"], [])]
    for c in made:
        c("GET", name("k"))
    assert len(connections()) == 3
    with node.client() as direct:
        numbers = [c.split(" redir=")[1].split()[0] for c in connections()]
        assert len(direct("CLIENT", "LIST", "ID", *numbers).splitlines()) == 3
        made[0]("CLIENT", "TRACKING", "OFF")
        made[1]("RESET")
        made[2].close()
        until(lambda: not connections(), what="nobody to track")
        until(lambda: not direct("CLIENT", "LIST", "ID", *numbers), what="nobody to hear")


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_redirect_between_threads(farm, start_proxy, connect, name, kind):
    """Many redirect to one, whatever threads they are on; each key is heard of once."""
    backend = farm.backend(kind)
    backend.flush()
    proxy = start_proxy(backend, "threads 3")
    writer = connect(proxy)
    for protocol in (2, 3):
        b, number = hearer(proxy, connect, protocol)
        readers = [redirector(proxy, connect, 2 + i % 2, number) for i in range(9)]
        names = [name("%d:%d" % (protocol, i)) for i in range(9)]
        for reader, k in zip(readers, names):
            assert reader("GET", k) is None
        for k in names:
            writer("SET", k, "1")
        heard = []
        while len(heard) < 9:
            heard += told(b)
        assert sorted(heard) == sorted(names)
        b.close()
        until(lambda: "id=%s " % number not in writer("CLIENT", "LIST"), what="the other to be gone")
        for reader, k in zip(readers, names):
            reader("GET", k)
        for k in names:
            writer("DEL", k)
        for reader in readers:
            until(lambda: "broken_redirect" in str(reader("CLIENT", "TRACKINGINFO")), what="every reader to know")
        for reader in readers:
            reader.close()
