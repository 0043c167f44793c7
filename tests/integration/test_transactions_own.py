"""Inside MULTI: what the proxy answers itself, in its turn within EXEC's array, byte for byte as Redis does it."""

import re

import pytest

from resp import Client, encode
from servers import until

END = b"this is the end"

# Fields of a client's line that don't depend on the server.
SHOWN = re.compile(rb"\b(?<!-)(?:flags|db|sub|psub|multi|cmd|user|resp|name)=\S*")


def answers(client, commands, protocol):
    """Every byte that comes for these commands, sent at once."""
    client("HELLO", protocol)
    client.send(b"".join(encode(*c) for c in [*commands, ["PING", END]]))
    while END + b"\r\n" not in client.buffer:
        client.fill()
    got = bytes(client.buffer[client.at:])
    client.buffer.clear()
    client.at = 0
    got = re.sub(rb"(?:\$|=)\d+\r\n(?:txt:)?(id=[^\r]*)\r\n", lambda m: b"<%s>" % b" ".join(SHOWN.findall(m.group(1))), got)
    got = re.sub(rb"(\$2\r\nid\r\n):\d+", rb"\1:N", got)
    return re.sub(rb"\$\d+\r\n(standalone|cluster)", b"mode", got)


SCRIPTS = {
    "info": "MULTI|SET {k} 1|CLIENT INFO|INCR {k}|EXEC",
    "info alone": "MULTI|CLIENT INFO|EXEC",
    "list": "CLIENT SETNAME me|MULTI|CLIENT LIST ID 0|GET {k}|CLIENT LIST ID 0|EXEC|CLIENT SETNAME you",
    "list of a type": "MULTI|CLIENT LIST TYPE replica|SET {k} 1|EXEC|GET {k}",
    "wrong words": "MULTI|CLIENT LIST NOSUCH|SET {k} 1|CLIENT LIST ID x|CLIENT KILL nobody|CLIENT KILL ID x|CLIENT PAUSE x|CLIENT PAUSE -1"
                   "|CLIENT UNBLOCK x|CLIENT UNBLOCK 999999|CLIENT REPLY x|CLIENT TRACKING x|CLIENT CACHING YES|GET {k}|EXEC",
    "kill nobody": "MULTI|CLIENT KILL ID 999999|SET {k} 2|CLIENT KILL 1.2.3.4:5|CLIENT KILL TYPE replica SKIPME no|EXEC|GET {k}",
    "pause and unpause": "MULTI|CLIENT PAUSE 60000|SET {k} 1|CLIENT PAUSE 60000 WRITE|CLIENT UNPAUSE|GET {k}|EXEC|SET {k} 2",
    "names in their turn": "MULTI|CLIENT SETNAME a|CLIENT GETNAME|HELLO {p} SETNAME b|CLIENT GETNAME|CLIENT SETNAME c|EXEC|CLIENT GETNAME",
    "reply off": "MULTI|GET {k}|CLIENT REPLY OFF|SET {k} 1|EXEC|SET {k} 2|CLIENT REPLY ON|GET {k}",
    "reply off and on": "MULTI|GET {k}|CLIENT REPLY OFF|SET {k} 1|CLIENT GETNAME|CLIENT REPLY ON|GET {k}|EXEC|SET {k} 2",
    "reply skip": "MULTI|GET {k}|CLIENT REPLY SKIP|SET {k} 1|CLIENT GETNAME|EXEC|SET {k} 2|GET {k}|PING",
    "reply skip last": "MULTI|CLIENT REPLY SKIP|EXEC|PING a|PING b",
    "reply skip of exec": "MULTI|CLIENT GETNAME|CLIENT REPLY OFF|DISCARD|CLIENT REPLY ON|PING",
    "tracking": "MULTI|CLIENT TRACKING ON|CLIENT TRACKINGINFO|EXEC|CLIENT TRACKINGINFO|CLIENT TRACKING OFF",
    "tracking off": "CLIENT TRACKING ON|MULTI|CLIENT TRACKING OFF|EXEC|CLIENT TRACKINGINFO",
    "caching": "CLIENT TRACKING ON OPTIN|MULTI|CLIENT CACHING YES|GET {k}|CLIENT CACHING NO|EXEC|CLIENT TRACKING OFF",
    "no-touch": "MULTI|SET {k} 1|CLIENT NO-TOUCH ON|EXEC",
    "subscribe": "MULTI|SET {k} 1|SUBSCRIBE {k}|GET {k}|EXEC|PING|UNSUBSCRIBE|GET {k}",
    "subscribe to several": "MULTI|SUBSCRIBE {k}a {k}b|PSUBSCRIBE {k}*|GET {k}|UNSUBSCRIBE {k}a|EXEC|PING x|RESET",
    "unsubscribe": "MULTI|UNSUBSCRIBE|PUNSUBSCRIBE {k}|SET {k} 1|EXEC|GET {k}",
    "subscribe and publish": "MULTI|SUBSCRIBE {k}|PUBLISH {k}x 1|EXEC|UNSUBSCRIBE",
    "subscribe and reset": "MULTI|SUBSCRIBE {k}|EXEC|RESET|GET {k}",
    "discarded": "MULTI|SUBSCRIBE {k}|CLIENT REPLY OFF|CLIENT TRACKING ON|DISCARD|GET {k}|CLIENT TRACKINGINFO",
    "aborted": "MULTI|SUBSCRIBE {k}|CLIENT REPLY OFF|SET {k}|EXEC|GET {k}",
    "watched": "WATCH {k}|SET {k} 1|MULTI|CLIENT REPLY OFF|SUBSCRIBE {k}|EXEC|GET {k}",
    "monitor": "MULTI|MONITOR|SET {k} 1|EXEC|GET {k}",
    "shard channels": "MULTI|SET {k} 1|SSUBSCRIBE {k}|SUNSUBSCRIBE|EXEC",
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_trap_10_in_its_turn(proxy, backend, oracle, connect, key, script, protocol):
    name = key("turn")
    commands = [c.format(k=name, p=protocol).split(" ") for c in script.split("|")]
    found = []
    for where in (oracle, proxy):
        found.append(answers(connect(where), commands, protocol))
    assert found[1] == found[0]


def test_on_all_threads(backend, start_proxy, connect, key):
    """LIST and KILL from inside a transaction see and hit the clients of every thread."""
    own = start_proxy(backend, "threads 3")
    others = [connect(own) for _ in range(9)]
    ids = [c("CLIENT", "ID") for c in others]
    client = connect(own)
    assert client("MULTI") == "OK"
    for command in (["SET", key("all"), "1"], ["CLIENT", "LIST"], ["CLIENT", "KILL", "ID", ids[0]], ["CLIENT", "KILL", "ID", ids[5]],
                    ["CLIENT", "LIST"], ["CLIENT", "ID"]):
        assert client(*command) == "QUEUED"
    done, before, one, two, after, me = client("EXEC")
    assert (done, one, two) == ("OK", 1, 1)
    listed = [{int(i) for i in re.findall(r"^id=(\d+)", text, re.M)} for text in (before, after)]
    assert listed[0] == {me, *ids}
    assert listed[1] == {me, *ids} - {ids[0], ids[5]}


def test_a_client_that_kills_itself(proxy, oracle, connect, key):
    """What is in front of the KILL has its reply, and what is behind it is executed without one."""
    name, found = key("suicide"), []
    for where in (oracle, proxy):
        client = connect(where)
        me = client("CLIENT", "ID")
        client.send(b"".join(encode(*c) for c in (["MULTI"], ["SET", name, "1"], ["CLIENT", "KILL", "ID", me, "SKIPME", "no"],
                                                  ["INCR", name], ["CLIENT", "GETNAME"], ["EXEC"], ["PING"])))
        found.append((client.read_all(), connect(where)("GET", name)))
    assert found[1] == found[0]


def test_half_closed(proxy, oracle, connect, key):
    """A client that has said all it will say gets the whole array (printf ... | nc)."""
    name, found = key("half"), []
    for where in (oracle, proxy):
        client = connect(where)
        client.send(b"".join(encode(*c) for c in (["MULTI"], ["SET", name, "1"], ["CLIENT", "LIST", "ID", "0"], ["GET", name],
                                                  ["CLIENT", "GETNAME"], ["EXEC"])))
        client.shutdown()
        found.append(client.read_all())
    assert found[1] == found[0]


def test_a_client_that_leaves_meanwhile(client, connect, proxy, key):
    name = key("lock:leaves")
    for _ in range(20):
        other = Client(proxy.address)
        other.send(b"".join(encode(*c) for c in (["MULTI"], ["CLIENT", "LIST"], ["SET", name, "1", "NX", "EX", "1"],
                                                 ["CLIENT", "LIST"], ["DEL", name], ["EXEC"])))
        other.close()
    assert until(lambda: client("EXISTS", name) == 0)


def test_messages_come_behind_the_array(client, connect, proxy, key):
    """A message for a subscription that began inside EXEC is no element of its array."""
    name = key("behind")
    other = connect(proxy)
    for _ in range(10):
        commands = [["MULTI"], ["SUBSCRIBE", name], *[["CLIENT", "LIST", "ID", "0"]] * 5, ["EXEC"]]
        client.send(b"".join(encode(*c) for c in commands))
        other.send(encode("PUBLISH", name, "x") * 5)
        for _ in range(7):
            client.read()
        array = client.read()
        assert array[0] == ["subscribe", name, 1] and array[1:] == [""] * 5
        for _ in range(5):
            other.read()
        client.send(encode("RESET"))
        while client.read() != "RESET":
            continue


def test_the_proxys_own_commands(client, key):
    name = key("lock:proxy")
    commands = [["MULTI"], ["SETNX", name, "1"], ["PROXY", "TOKEN", name], ["PROXY", "RELEASE", name], ["EXISTS", name], ["EXEC"]]
    got = [client(*c) for c in commands][-1]
    assert got[0] == 1 and got[1] > 0 and got[2] == 1 and got[3] == 1  # the node's part is first
    assert client("EXISTS", name) == 0


def test_keys_of_all_nodes(client, key):
    """SCAN's cursor is the proxy's on a cluster, inside MULTI too."""
    names = {key("everywhere") for _ in range(30)}
    for name in names:
        client("SET", name, "1")
    found, cursor = set(), "0"
    while True:
        got = [client(*c) for c in (["MULTI"], ["GET", "x"], ["SCAN", cursor, "COUNT", "1000"], ["EXEC"])][-1]
        cursor = got[1][0]
        found |= set(got[1][1])
        if cursor == "0":
            break
    assert names <= found


def test_an_unblock_inside(proxy, backend, client, connect, key):
    other = connect(proxy)
    me = other("CLIENT", "ID")
    other.send(encode("BLPOP", key("list"), "0"))
    assert until(lambda: " flags=b " in client("CLIENT", "LIST", "ID", me))
    assert until(lambda: [client("MULTI"), client("CLIENT", "UNBLOCK", me, "ERROR"), client("EXEC")][-1] == [1])
    assert other.read().startswith("UNBLOCKED")


def test_tracking_from_inside(proxy, client, connect, key):
    """What is read behind CLIENT TRACKING in the same transaction must not grow stale unnoticed."""
    name = key("tracked")
    one = connect(proxy)
    one("HELLO", "3")
    one.send(b"".join(encode(*c) for c in (["MULTI"], ["CLIENT", "TRACKING", "ON"], ["GET", name], ["EXEC"])))
    assert [one.read() for _ in range(4)][-1] == ["OK", None]
    assert one.read() == ["invalidate", None]
    assert one("GET", name) is None
    client("SET", name, "1")
    assert one.read() == ["invalidate", [name]]


def test_caching_inside(backend, start_proxy, connect, key):
    """CLIENT CACHING YES inside counts for what is behind it there, and for nothing else."""
    a, b, c = key("a"), key("b"), key("c")
    own = start_proxy(backend)
    one, client = connect(own), connect(own)
    one("HELLO", "3")
    one("CLIENT", "TRACKING", "ON", "OPTIN")
    got = [one(*command) for command in (["MULTI"], ["CLIENT", "CACHING", "YES"], ["GET", a], ["EXEC"], ["GET", c])]
    assert got == ["OK", "QUEUED", "QUEUED", ["OK", None], None]
    client("SET", b, "1")
    client("SET", c, "1")
    client("SET", a, "1")
    assert one.read() == ["invalidate", [a]]


# ---- lock commands behind what changes the session ---------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_locks_behind_a_select(farm, oracle, connect, key, protocol):
    """They are locks of that database, then and later."""
    farm.backend("standalone").flush()
    proxy, name, found = farm.proxy("standalone"), key("lock:select"), []
    for where in (oracle, proxy):
        one, two = connect(where), connect(where)
        for c in (one, two):
            c("HELLO", protocol)
        got = one.pipeline([["MULTI"], ["SETNX", name, "0"], ["SELECT", "2"], ["SETNX", name, "2"], ["EXPIRE", name, "50"],
                            ["SELECT", "1"], ["SET", name, "1", "NX", "EX", "40"], ["EXEC"]])
        got += [one.raw("GET", name), one.raw("TTL", name)]
        two("SELECT", "2")
        got += [two.raw("GET", name), two.raw("SETNX", name, "x")]
        found.append(got)
    assert found[1] == found[0]
    assert two("DEL", name) == 0 and two("GET", name) == "2"  # somebody else's, there too
    assert one("DEL", name) == 1
    assert one("SELECT", "2") == "OK" and one("DEL", name) == 1
    assert one("SELECT", "0") == "OK" and one("DEL", name) == 1


def test_locks_behind_a_select_that_fails(farm, connect, key):
    """The lock is in the database that the session stayed in; its reply says so, and it ends with its lease."""
    farm.backend("standalone").flush()
    one, name = connect(farm.proxy("standalone")), key("lock:short:none")
    got = one.pipeline([["MULTI"], ["SELECT", "99"], ["SETNX", name, "1"], ["EXEC"], ["GET", name]])
    assert got[-2:] == [b"*2\r\n-ERR DB index is out of range\r\n:1\r\n", b"$1\r\n1\r\n"]
    assert until(lambda: one("EXISTS", name) == 0)
    assert one("SETNX", name, "2") == 1 and one("DEL", name) == 1


def test_locks_behind_a_hello(proxy, client, connect, key):
    name = key("lock:hello")
    got = client.pipeline([["MULTI"], ["SETNX", name, "1"], ["HELLO", "3"], ["SET", name, "2", "NX"], ["DEL", name], ["GET", name],
                           ["EXEC"]])[-1]
    assert got.startswith(b"*5\r\n:1\r\n%") and got.endswith(b"_\r\n:1\r\n_\r\n")
    assert client("EXISTS", name) == 0
