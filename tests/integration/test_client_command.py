"""CLIENT: clients see the proxy's clients, never the node's connections."""

import select
import time

import pytest

from resp import Closed, Error, encode
from servers import until, valkey


def fields(line):
    return dict(f.split("=", 1) for f in line.split())


def clients(client, *words):
    """CLIENT LIST as {id: fields}."""
    found = [fields(line) for line in client("CLIENT", "LIST", *words).splitlines()]
    return {int(f["id"]): f for f in found}


def is_error(reply, text):
    return isinstance(reply, Error) and text in reply


@pytest.fixture(params=[1, 3], ids=["thread", "threads"])
def own(backend, start_proxy, request):
    """A proxy of the test's own, with one thread or several."""
    return start_proxy(backend, "threads %d" % request.param)


def crowd(own, connect, n=12):
    """Connections on all threads, each with its id."""
    made = [connect(own) for _ in range(n)]
    return {c("CLIENT", "ID"): c for c in made}


# ---- words ------------------------------------------------------------------------------------------------

WRONG = ("LIST TYPE nosuch|LIST TYPE|LIST ID|LIST ID x|LIST ID 1 x|LIST x|LIST TYPE normal x|KILL|KILL nobody|KILL ID 0|KILL ID x|KILL ID -1"
         "|KILL TYPE nosuch|KILL SKIPME maybe|KILL USER nobody|KILL NOSUCH x|KILL ID 99999 ADDR|KILL ID 999999|KILL ADDR 1.2.3.4:5"
         "|KILL LADDR 1.2.3.4:5|KILL TYPE master|KILL TYPE replica|KILL USER default ID 999999|KILL ID 999999 SKIPME no"
         "|PAUSE|PAUSE x|PAUSE -1|PAUSE 1 x|PAUSE 1 ALL x|PAUSE 99999999999999999999|UNPAUSE|UNPAUSE x|UNBLOCK|UNBLOCK x"
         "|UNBLOCK 1 x|UNBLOCK 999999|UNBLOCK 999999 ERROR|UNBLOCK 999999 TIMEOUT|UNBLOCK -1|UNBLOCK 1 ERROR x|REPLY|REPLY x|REPLY ON"
         "|REPLY ON x|NO-EVICT|NO-EVICT x|NO-EVICT ON|NO-EVICT off|HELP|HELP x|ID x|GETNAME|GETNAME x|SETNAME|SETNAME a b"
         "|SETNAME {a\nb}|SETNAME n|GETNAME|GETREDIR|GETREDIR x|TRACKINGINFO|NOSUCH|INFO x").split("|")


@pytest.mark.parametrize("protocol", [2, 3])
def test_words(client, connect, oracle, protocol):
    single = connect(oracle)
    for c in (client, single):
        c("HELLO", protocol)
    for words in WRONG:
        command = ["CLIENT", *words.split(" ")]
        assert client.raw(*command) == single.raw(*command), words


# Fields that came after 7.0.
LATER = {"capa", "lib-name", "lib-ver", "watch", "io-thread", "tot-net-in", "tot-net-out", "tot-cmds"}


def test_line_of_a_client(client, connect, oracle, proxy):
    """The fields of Redis 7.0 in Redis's order; those that a client can know of itself have Redis's values."""
    single = connect(oracle)
    lines = []
    for c in (client, single):
        c("CLIENT", "SETNAME", "me")
        for command in (["CLIENT", "LIST"], ["CLIENT", "INFO"]):
            line = [f for f in c(*command).splitlines() if " name=me " in f][0]
            lines.append(fields(line))
            assert lines[-1]["addr"] == "%s:%d" % c.sock.getsockname()
            assert lines[-1]["laddr"] == "%s:%d" % c.sock.getpeername()
            assert lines[-1]["id"] == str(c("CLIENT", "ID"))
    for ours, theirs in ((lines[0], lines[2]), (lines[1], lines[3])):
        assert [f for f in ours if not f.startswith("lib-")] == [f for f in theirs if f not in LATER]
        for name in ("name", "flags", "db", "sub", "psub", "ssub", "multi", "qbuf", "obl", "oll", "omem", "events", "cmd", "user",
                     "redir", "resp"):
            if valkey() and name == "qbuf":  # there with the very request that asks
                continue
            assert ours[name] == theirs[name], name


def test_what_others_do(own, connect, backend):
    """State, command and flags of other clients, as Redis shows them."""
    script = [("multi", [["MULTI"], ["PING"]]), ("sub", [["SUBSCRIBE", "a"], ["PSUBSCRIBE", "b*"]]),
              ("named", [["CLIENT", "SETNAME", "x"], ["GET", "k"]]), ("config", [["CONFIG", "GET", "port"]]),
              ("evict", [["CLIENT", "NO-EVICT", "ON"]]), ("resp3", [["HELLO", "3"]]), ("watch", [["WATCH", "k"]]),
              ("unknown", [["NOSUCH"]])]
    shown = []
    for where in (own, backend.nodes[0] if backend.kind == "cluster" else backend):
        asker = connect(where)
        made = {}
        for name, commands in script:
            c = connect(where)
            made[name] = c("CLIENT", "ID")
            for command in commands:
                c(*command)
        listed = clients(asker)
        shown.append({name: {f: listed[i][f] for f in ("name", "flags", "db", "sub", "psub", "ssub", "multi", "cmd", "user", "redir",
                                                       "resp", "qbuf")} for name, i in made.items()})
    if valkey():  # a session that watches has a transaction there, an empty one
        shown[1]["watch"]["multi"] = "-1"
    assert shown[0] == shown[1]


def test_list(own, connect):
    mine = crowd(own, connect)
    asker = connect(own)
    listed = clients(asker)
    assert set(mine) | {asker("CLIENT", "ID")} == set(listed)
    assert list(listed) == sorted(listed)
    some = list(mine)[:3]
    assert list(clients(asker, "ID", *reversed(some))) == list(reversed(some))
    assert asker("CLIENT", "LIST", "ID", "999999") == ""
    mine[some[0]]("SUBSCRIBE", "c")
    assert set(clients(asker, "TYPE", "pubsub")) == {some[0]}
    assert some[0] not in clients(asker, "TYPE", "normal")
    assert asker("CLIENT", "LIST", "TYPE", "replica") == ""
    asker("HELLO", "3")
    assert asker.raw("CLIENT", "LIST", "ID", some[1]).startswith(b"=")


def closed(client):
    """Whether the connection ends, with nothing before."""
    try:
        return client.sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_kill(own, connect):
    mine = crowd(own, connect)
    asker = connect(own)
    ids = list(mine)
    assert asker("CLIENT", "KILL", "ID", ids[0]) == 1
    assert asker("CLIENT", "KILL", "%s:%d" % mine[ids[1]].sock.getsockname()) == "OK"
    assert is_error(asker("CLIENT", "KILL", "%s:%d" % mine[ids[1]].sock.getsockname()), "No such client")
    assert asker("CLIENT", "KILL", "ADDR", "%s:%d" % mine[ids[2]].sock.getsockname(), "SKIPME", "no") == 1
    mine[ids[3]]("SUBSCRIBE", "c")
    assert asker("CLIENT", "KILL", "TYPE", "pubsub") == 1
    assert asker("CLIENT", "KILL", "ID", ids[4], "ADDR", "1.2.3.4:5") == 0
    for i in ids[:4]:
        assert closed(mine[i])
    for i in ids[4:]:
        assert mine[i]("PING") == "PONG"
    assert asker("CLIENT", "KILL", "USER", "default", "ID", ids[5]) == 1
    assert asker("CLIENT", "KILL", "LADDR", "%s:%d" % asker.sock.getpeername()) == len(ids) - 5
    assert all(closed(mine[i]) for i in ids)
    assert asker("PING") == "PONG"
    assert set(clients(asker)) == {asker("CLIENT", "ID")}


def test_kill_oneself(client):
    """The reply comes first, and nothing that was sent behind it is served."""
    me = client("CLIENT", "ID")
    assert client("CLIENT", "KILL", "ID", me) == 0
    client.send(encode("CLIENT", "KILL", "ID", me, "SKIPME", "no") + encode("PING"))
    assert client.read_all() == b":1\r\n"


def test_kill_oneself_by_address(client):
    client.send(encode("CLIENT", "KILL", "%s:%d" % client.sock.getsockname()) + encode("PING"))
    assert client.read_all() == b"+OK\r\n"


def test_kill_in_every_state(own, backend, connect, key):
    """The state of a killed client is released: its transaction is not run, no element is popped for it, its messages end."""
    asker = connect(own)
    states = {"multi": [["MULTI"], ["SET", key("multi"), "1"]], "watch": [["WATCH", key("w")]], "subscribed": [["SUBSCRIBE", "c"]],
              "monitor": [["MONITOR"]], "lock": [["SETNX", key("lock:killed"), "1"]]}
    for commands in states.values():
        c = connect(own)
        me = c("CLIENT", "ID")
        for command in commands:
            c(*command)
        assert asker("CLIENT", "KILL", "ID", me) == 1
        assert closed(c)
    c = connect(own)
    me = c("CLIENT", "ID")
    name = key("list")
    c.send(encode("BLPOP", name, "0"))
    until(lambda: "b" in clients(asker)[me]["flags"], what="the client to block")
    node = backend.node_of(name)
    until(lambda: "blocked_clients:1" in node.run("INFO", "clients"), what="the client to block at the node")
    assert asker("CLIENT", "KILL", "ID", me) == 1
    assert closed(c)
    # The node hears of it by a connection's end, which it may see in one turn with what comes next.
    until(lambda: "blocked_clients:0" in node.run("INFO", "clients"), what="the node to block nobody")
    assert asker("RPUSH", name, "x") == 1
    until(lambda: asker("LLEN", name) == 1, what="the element to stay")
    assert asker("EXISTS", states["multi"][1][1]) == 0


# ---- REPLY ------------------------------------------------------------------------------------------------

REPLIES = [
    [["CLIENT", "REPLY", "OFF"], ["PING"], ["SET", "{t}k", "1"], ["CLIENT", "REPLY", "ON"], ["GET", "{t}k"]],
    [["CLIENT", "REPLY", "SKIP"], ["PING", "a"], ["PING", "b"], ["CLIENT", "REPLY", "SKIP"], ["SET", "{t}k", "2"], ["GET", "{t}k"]],
    [["CLIENT", "REPLY", "OFF"], ["CLIENT", "REPLY", "SKIP"], ["PING"], ["PING"], ["CLIENT", "REPLY", "ON"], ["PING"]],
    [["CLIENT", "REPLY", "SKIP"], ["CLIENT", "REPLY", "SKIP"], ["PING", "a"], ["PING", "b"]],
    [["CLIENT", "REPLY", "SKIP"], ["NOSUCH"], ["GET"], ["CLIENT", "REPLY", "x"]],
    [["CLIENT", "REPLY", "OFF"], ["MULTI"], ["SET", "{t}k", "3"], ["EXEC"], ["CLIENT", "REPLY", "ON"], ["GET", "{t}k"]],
    [["MULTI"], ["SET", "{t}k", "4"], ["EXEC"], ["CLIENT", "REPLY", "SKIP"], ["MULTI"], ["GET", "{t}k"], ["EXEC"]],
    [["CLIENT", "REPLY", "OFF"], ["RPUSH", "{t}l", "a"], ["LPOP", "{t}l"], ["SELECT", "0"], ["CLIENT", "REPLY", "ON"], ["PING"]],
    [["CLIENT", "REPLY", "OFF"], ["RESET"], ["PING"]],
    [["CLIENT", "REPLY", "OFF"], ["CLIENT", "ID"], ["CLIENT", "LIST"], ["INFO"], ["CLIENT", "REPLY", "ON"], ["ECHO", "end"]],
    [["CLIENT", "REPLY", "OFF"], ["QUIT"], ["PING"]],
    [["CLIENT", "REPLY", "SKIP"], ["SETNX", "lock:{t}reply", "1"], ["DEL", "lock:{t}reply"], ["CLIENT", "REPLY", "OFF"], ["SETNX", "lock:{t}reply", "1"],
     ["CLIENT", "REPLY", "ON"], ["DEL", "lock:{t}reply"]],
]


@pytest.mark.parametrize("commands", REPLIES, ids=lambda c: " ".join(c[1]))
@pytest.mark.parametrize("way", ["one packet", "one by one"])
def test_trap_23_client_reply(backend, oracle, proxy, connect, commands, way):
    found = []
    for where in (oracle, proxy):
        c = connect(where)
        if way == "one packet":
            c.send(b"".join(encode(*command) for command in commands))
        else:
            for command in commands:
                c.send(encode(*command))
                time.sleep(0.02)
        try:
            c.shutdown()
        except OSError:
            pass  # QUIT: closed already
        found.append(c.read_all())
    assert found[1] == found[0]


def test_messages_come_while_replies_are_off(client, proxy, connect, oracle, key):
    found = []
    for where in (oracle, proxy):
        c, other = connect(where), connect(where)
        c("HELLO", "3")
        c.send(encode("CLIENT", "REPLY", "OFF") + encode("SUBSCRIBE", "off") + encode("PING"))
        got = [c.read_raw()]
        other("PUBLISH", "off", "hello")
        found.append(got + [c.read_raw()])
        assert c.raw("CLIENT", "REPLY", "ON") == b"+OK\r\n"
    assert found[1] == found[0]


# ---- PAUSE ------------------------------------------------------------------------------------------------


def answered(client):
    """Whether a reply is there by now."""
    client.sock.settimeout(0.15)
    try:
        client.fill()
        return True
    except TimeoutError:
        return False
    finally:
        client.sock.settimeout(client.timeout)


def test_trap_25_pause_of_writes(own, connect, key):
    operator, writer, reader, transaction = (connect(own) for _ in range(4))
    name, lock = key("k"), key("lock:k")
    transaction("MULTI")
    transaction("SET", name, "in multi")
    assert operator("CLIENT", "PAUSE", "60000", "WRITE") == "OK"
    assert reader("GET", name) is None
    writer.send(encode("SET", name, "1") + encode("GET", name) + encode("SETNX", lock, "1"))
    transaction.send(encode("EXEC"))
    assert not answered(writer) and not answered(transaction)
    assert reader("GET", name) is None and reader("PING") == "PONG" and reader("EXISTS", lock) == 0
    held = [f for f in clients(operator).values() if "b" in f["flags"]]
    assert len(held) == 2
    assert "# Clients" in operator("PROXY", "INFO")
    assert operator("CLIENT", "UNPAUSE") == "OK"
    assert writer.read() == "OK"
    assert writer.read() in ("1", "in multi")
    assert writer.read() == 1
    assert transaction.read() == ["OK"]


READ_ONLY = [["EVAL_RO", "return 1", 0], ["EVAL_RO", "#!lua flags=no-writes\nreturn 1", 0]]
MAY_WRITE = [["EVAL", "return 1", 0], ["EVAL", "#!lua\nreturn 1", 0], ["EVAL", "#!lua flags=allow-stale\nreturn 1", 0],
             ["EVAL", "#!lua flags=no-writes\nreturn 1", 0]]


def test_pause_and_scripts(own, connect):
    """Those that are called read-only go on, also inside MULTI; the others wait, whatever they declare."""
    operator, reader = connect(own), connect(own)
    held = [connect(own) for _ in MAY_WRITE] + [connect(own)]
    for words in (["MULTI"], ["GET", "k"], MAY_WRITE[1]):
        held[-1](*words)
    assert operator("CLIENT", "PAUSE", "60000", "WRITE") == "OK"
    for script in READ_ONLY:
        assert reader(*script) == 1
        assert reader("MULTI") == "OK" and reader("GET", "k") == "QUEUED" and reader(*script) == "QUEUED"
        assert reader("EXEC") == [None, 1]
    for c, script in zip(held, MAY_WRITE):
        c.send(encode(*script))
    held[-1].send(encode("EXEC"))
    assert reader("SET", "k") == "ERR wrong number of arguments for 'set' command"
    until(lambda: len([f for f in clients(operator).values() if "b" in f["flags"]]) == len(held), what="held scripts")
    assert operator("CLIENT", "UNPAUSE") == "OK"
    assert [c.read() for c in held] == [1] * len(MAY_WRITE) + [[None, 1]]


SOURCES = {"plain": "return 1", "writes": "#!lua\nreturn 1", "reads": "#!lua flags=no-writes\nreturn 1",
           "stale": "#!lua flags=allow-stale\nreturn 1", "both": "#!lua flags=allow-stale,no-writes\nreturn 1"}
ODD = ["#!lua flags=no-writes return 1", "#!lua flags=nosuch\nreturn 1", "#!lua flags=nosuch,no-writes\nreturn 1",
       "#!py flags=no-writes\nreturn 1", "#!lua nosuch\nreturn 1", "#!lua flags=allow-oom flags=no-writes\nreturn 1"]
LIBRARY = """#!lua name=pauselib
redis.register_function{function_name='reads', callback=function() return 1 end, flags={'no-writes'}}
redis.register_function{function_name='writes', callback=function() return 1 end, description='flags'}
redis.register_function{function_name='stale', callback=function() return 1 end, flags={'allow-stale'}}
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_wait(start_redis, start_proxy, connect, protocol):
    """The proxy holds every script and function that is not called read-only. Redis also lets a script pass that declares
    that it does not write, and holds a read-only call of a script that may write. In the end each has the same reply."""
    found = []
    for through in (False, True):
        where = start_redis()
        where = start_proxy(where) if through else where
        operator = connect(where)
        assert operator("FUNCTION", "LOAD", LIBRARY) == "pauselib"
        shas = {n: operator("SCRIPT", "LOAD", source) for n, source in SOURCES.items()}
        words = [[c, s, 0] for c in ("EVAL", "EVAL_RO") for s in [*SOURCES.values(), *ODD]]
        words += [[c, sha, 0] for c in ("EVALSHA", "EVALSHA_RO") for sha in [*shas.values(), shas["reads"].upper(), "f" * 40, "x"]]
        words += [[c, f, 0] for c in ("FCALL", "FCALL_RO") for f in ("reads", "READS", "writes", "stale", "nosuch")]
        words += [["EVALSHA", shas["reads"], "x"], ["FCALL", "reads", "x"]]
        if valkey():  # looks at the flags before it looks for the engine, and answers at once that there is none
            words.remove(["EVAL", "#!py flags=no-writes\nreturn 1", 0])
        crowd = [connect(where) for _ in words]
        assert all(c.raw("HELLO", protocol) for c in crowd)
        assert operator("CLIENT", "PAUSE", 60000, "WRITE") == "OK"
        for c, w in zip(crowd, words):
            c.send(encode(*w))
        went = [answered(c) for c in crowd]
        assert operator("CLIENT", "UNPAUSE") == "OK"
        found.append((went, [c.read() for c in crowd]))
    assert found[1][0] == [w[0].endswith("_RO") for w in words]
    unlike = [w for w, there, here in zip(words, found[0][0], found[1][0]) if there != here and not w[0].endswith("_RO")]
    declared = [shas["reads"], shas["reads"].upper(), shas["both"], SOURCES["reads"], SOURCES["both"], ODD[-1], "reads", "READS"]
    assert all(w[1] in declared for w in unlike)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize("protocol", [2, 3])
def test_pause_and_info(own, connect, protocol):
    """Clients that wait for a CLIENT PAUSE count in INFO's blocked clients, besides those that block at a node."""
    operator, blocked, writers = connect(own), connect(own), [connect(own) for _ in range(3)]
    operator("HELLO", protocol)

    def blocked_clients(*sections):
        page = operator("INFO", *sections)
        return int(page.split("blocked_clients:")[1].split("\r\n")[0])

    assert blocked_clients() == 0
    plain = operator("INFO", "commandstats")
    leaver = writers[2]("CLIENT", "ID")
    assert operator("CLIENT", "PAUSE", "60000", "WRITE") == "OK"
    assert blocked_clients() == 0
    for n, c in enumerate(writers):
        c.send(encode("SET", n, 1))
    until(lambda: blocked_clients() == 3, what="three held clients")
    assert blocked_clients("clients") == 3
    assert "blocked_clients" not in operator("INFO", "server")
    assert type(operator("INFO", "commandstats")) is type(plain)
    assert operator("CLIENT", "KILL", "ID", leaver) == 1
    assert blocked_clients() == 2
    assert operator("CLIENT", "UNPAUSE") == "OK"
    assert [c.read() for c in writers[:2]] == ["OK", "OK"]
    blocked.send(encode("BLPOP", "nothing", 0))
    until(lambda: blocked_clients() == 1, what="a blocked client")


def test_trap_25_pause_of_all(own, connect):
    operator, others = connect(own), [connect(own) for _ in range(6)]
    for c in others:
        assert c("PING") == "PONG"
    start = time.monotonic()
    assert operator("CLIENT", "PAUSE", "400") == "OK"
    for c in others + [operator]:
        c.send(encode("PING"))
    for c in others + [operator]:
        assert c.read() == "PONG"
        assert time.monotonic() - start > 0.3
    assert operator("PING") == "PONG"


def test_pause_is_the_longer_and_the_stricter(own, connect):
    operator, other = connect(own), connect(own)
    operator.send(encode("CLIENT", "PAUSE", "300", "WRITE") + encode("CLIENT", "PAUSE", "10", "ALL") + encode("PING"))
    start = time.monotonic()
    assert [operator.read() for _ in range(3)] == ["OK", "OK", "PONG"]
    assert time.monotonic() - start > 0.2
    assert other("PING") == "PONG"


def test_leaving_during_a_pause(own, connect, key):
    operator, name = connect(own), key("k")
    operator("CLIENT", "PAUSE", "60000", "WRITE")
    gone = connect(own)
    gone.send(encode("SET", name, "1"))
    assert not answered(gone)
    gone.close()
    stays = connect(own)
    stays.send(encode("SET", name, "2"))
    stays.shutdown()
    assert operator("CLIENT", "UNPAUSE") == "OK"
    assert stays.read_all() == b"+OK\r\n"


# ---- UNBLOCK ----------------------------------------------------------------------------------------------

UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"

BLOCKED = [["BLPOP", "{u}a", "{u}b", "0"], ["BRPOPLPUSH", "{u}a", "{u}b", "0"], ["BLMOVE", "{u}a", "{u}b", "LEFT", "LEFT", "0"],
           ["BZPOPMIN", "{u}a", "0"], ["XREAD", "BLOCK", "0", "STREAMS", "{u}s", "$"], ["BLMPOP", "0", "1", "{u}a", "LEFT"]]


@pytest.mark.parametrize("reason", [[], ["TIMEOUT"], ["ERROR"]], ids=str)
def test_unblock(own, backend, connect, reason):
    node = backend.node_of("{u}")
    for protocol in (2, 3):
        for command in BLOCKED:
            found = []
            for where in (node, own):
                blocked, operator = connect(where), connect(where)
                blocked("HELLO", protocol)
                me = blocked("CLIENT", "ID")
                assert operator("CLIENT", "UNBLOCK", me) == 0
                blocked.send(encode(*command))
                until(lambda: operator("CLIENT", "UNBLOCK", me, *reason) == 1, what="the client to be unblocked")
                found.append(blocked.read_raw())
                assert blocked("PING") == "PONG"
                assert operator("CLIENT", "UNBLOCK", me) == 0
            assert found[0] == found[1], command


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_unblock_of_a_wait(client, connect, proxy, backend, how):
    """On a cluster it waits at every master, and ends at all of them."""
    waiter = connect(proxy)
    me = waiter("CLIENT", "ID")
    waiter.send(encode("WAIT", "9", "0"))
    until(lambda: all("blocked_clients:1" in node.run("INFO", "clients") for node in backend.nodes), what="the WAIT")
    assert client("CLIENT", "UNBLOCK", "0", how) == 0
    assert client("CLIENT", "UNBLOCK", me, how) == 1
    assert waiter.read() == (0 if how == "TIMEOUT" else UNBLOCKED)
    assert client("CLIENT", "UNBLOCK", me, how) == 0


def some_reply(clients):
    """The next reply of any of the clients, which is removed from the list."""
    ready = select.select([c.sock for c in clients], [], [], 20)[0]
    assert ready, "nobody is answered"
    c = next(c for c in clients if c.sock in ready)
    clients.remove(c)
    return c.read()


def test_unblock_overtakes_a_wait(start_cluster, start_proxy, connect):
    """A master that has not even read the WAIT ends it too, over a new connection and over one that was there before."""
    cluster = start_cluster(timeout_ms=60000)
    stopped = cluster.nodes[2]
    own = start_proxy(cluster)
    for how in ("TIMEOUT", "ERROR"):
        for used_before in (False, True):
            waiter, *operators = (connect(own) for _ in range(4))
            me = waiter("CLIENT", "ID")
            if used_before:
                assert waiter("WAIT", "1", "1") == 0
            stopped.pause()
            try:
                waiter.send(encode("WAIT", "9", "0") + encode("ECHO", "next"))
                until(lambda: all("blocked_clients:1" in node.run("INFO", "clients") for node in cluster.nodes[:2]), what="the WAIT")
                for operator in operators:  # a node is asked for the right: not all clients ask the silent one
                    operator.send(encode("CLIENT", "UNBLOCK", me, how))
                while some_reply(operators) != 1:
                    pass
                if how == "ERROR":
                    assert waiter.read() == UNBLOCKED
            finally:
                stopped.resume()
            if how == "TIMEOUT":
                assert waiter.read() == 0
            assert waiter.read() == "next"
            assert [c.read() for c in operators] == [0] * len(operators)


def test_a_wait_ends_with_the_first_master_that_is_lost(farm, start_proxy, connect):
    nodes = farm.backend("cluster").nodes
    waiter = connect(start_proxy(farm.backend("cluster")))
    waiter.send(encode("WAIT", "9", "0") + encode("ECHO", "next"))
    until(lambda: all("blocked_clients:1" in node.run("INFO", "clients") for node in nodes), what="the WAIT")
    nodes[1].run("CLIENT", "KILL", "TYPE", "normal")
    assert is_error(waiter.read(), "UPSTREAM")
    assert waiter.read() == "next"
    until(lambda: not any("blocked_clients:1" in node.run("INFO", "clients") for node in nodes), what="its end")


# ---- users ------------------------------------------------------------------------------------------------


def test_users_need_the_right(start_redis, start_proxy, connect):
    server = start_redis()
    server.run("ACL", "SETUSER", "plain", "on", ">p", "~*", "+@all", "-client")
    server.run("ACL", "SETUSER", "plain", "+client|id")
    own = start_proxy(server)
    plain, other = connect(own), connect(own)
    assert plain("AUTH", "plain", "p") == "OK"
    me, it = plain("CLIENT", "ID"), other("CLIENT", "ID")
    for command in (["LIST"], ["KILL", "ID", it], ["KILL", "%s:%d" % other.sock.getsockname()], ["PAUSE", "10000"], ["UNPAUSE"], ["UNBLOCK", it]):
        assert is_error(plain("CLIENT", *command), "NOPERM"), command
    assert other("PING") == "PONG"
    assert clients(other)[me]["user"] == "plain"
    assert other("CLIENT", "KILL", "USER", "plain") == 1
    assert closed(plain)
    with pytest.raises(Closed):
        plain("PING")
