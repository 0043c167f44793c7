"""WATCH, MULTI, EXEC: each transaction has its own connection, and behaves for its client as in Redis."""

import re
import threading

import pytest

import servers
from resp import Client, Error, encode, leaves_out_refused_auth
from servers import slot_of, until

ABORTED = "EXECABORT Transaction discarded because of previous errors."


def info(client, field):
    """A number of PROXY INFO."""
    for line in client("PROXY", "INFO").splitlines():
        if line.startswith(field + ":"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO has no " + field)


def words(text, name):
    """A command; K and K2 stand for two keys of one slot."""
    return [{"K": name, "K2": name + "2"}.get(word, word) for word in text.split(" ")]


@pytest.fixture
def tagged(key):
    """tagged("a"): a key; the same key with anything after it is in the same slot."""
    return lambda name: "{%s}" % key(name)


# ---- as in Redis ------------------------------------------------------------------------------------------

SCRIPTS = {
    "plain": "MULTI|SET K 1|INCR K|GET K|EXEC|GET K",
    "empty": "MULTI|EXEC|PING",
    "no key": "MULTI|PING|ECHO x|EXEC",
    "key after others": "MULTI|PING|ECHO x|SET K 1|GET K|EXEC",
    "subcommand's arity first": "MULTI|CONFIG GET|SET K 1|EXEC|GET K",
    "subcommand's arity behind": "MULTI|SET K 1|CLIENT KILL|EXEC|GET K",
    "client's arity first": "MULTI|CLIENT KILL|PING|SET K 1|EXEC|GET K",
    "client's arity, no key": "MULTI|CLIENT UNPAUSE now|PING|EXEC|PING",
    "client's arity, others": "MULTI|CLIENT PAUSE|CLIENT TRACKING|CLIENT CACHING|CLIENT UNBLOCK|CLIENT ID x|EXEC",
    "unknown subcommand first": "MULTI|OBJECT NOSUCH K|SET K 1|EXEC|GET K",
    "unknown subcommand, no key": "MULTI|CLIENT NOSUCH|EXEC|PING",
    "unknown subcommand of CLUSTER": "MULTI|CLUSTER NOSUCH|SET K 1|EXEC|GET K",
    "arity of CLUSTER": "MULTI|CLUSTER KEYSLOT|CLUSTER INFO x|SET K 1|EXEC|GET K",
    "state before the key": "MULTI|SELECT 0|PING|SET K 1|EXEC|GET K",
    "scripts without keys": "MULTI|EVAL return{1} 0|SCRIPT EXISTS a|SET K 1|EXEC|GET K",
    "discard before the key": "MULTI|PING|DISCARD|MULTI|PING|GET K|DISCARD|GET K|EXEC",
    "discard": "SET K 1|MULTI|SET K 2|DISCARD|GET K|EXEC",
    "discard nothing": "MULTI|DISCARD|GET K",
    "nested": "MULTI|SET K 1|MULTI|EXEC|GET K",
    "watch inside": "MULTI|SET K 1|WATCH K|EXEC|GET K",
    "exec without": "EXEC|DISCARD|GET K",
    "wrong arity": "MULTI|SET K|SET K 1|EXEC|GET K",
    "wrong arity first": "MULTI|GET|SET K 1|EXEC|GET K",
    "wrong arity of exec": "MULTI|SET K 1|EXEC x|EXEC|GET K",
    "unknown": "MULTI|NOSUCH K|SET K 1|EXEC|GET K",
    "error at exec": "SET K x|MULTI|INCR K|SET K2 1|EXEC|GET K2",
    "unwatch inside": "WATCH K|SET K 1|MULTI|UNWATCH|EXEC",
    "watched and unchanged": "SET K 1|WATCH K K2|GET K|MULTI|SET K 2|EXEC|GET K",
    "watched and changed": "WATCH K|SET K 1|MULTI|SET K 2|EXEC|GET K",
    "watched, empty": "WATCH K|SET K 1|MULTI|EXEC",
    "unwatched": "WATCH K|SET K 1|UNWATCH|MULTI|SET K 2|EXEC|GET K",
    "watch ends with exec": "WATCH K|MULTI|EXEC|SET K 1|MULTI|GET K|EXEC",
    "watch ends with discard": "WATCH K|SET K 1|MULTI|DISCARD|MULTI|GET K|EXEC",
    "exec without keeps watching": "WATCH K|SET K 1|EXEC|MULTI|GET K|EXEC",
    "two watches": "WATCH K|WATCH K2|SET K2 1|MULTI|GET K|EXEC",
    "a write before watch": "SET K 1|WATCH K|MULTI|INCR K|EXEC",
    "nothing blocks": "MULTI|BLPOP K 0|XREAD BLOCK 0 STREAMS K $|EXEC",
    "wait": "MULTI|SET K 1|WAIT 0 0|EXEC",
    "several keys": "MULTI|MSET K 1 K2 2|MGET K K2|DEL K K2|EXISTS K|EXEC",
    "eval": "MULTI|EVAL return{1,{2,redis.call('GET',KEYS[1])}} 1 K|EXEC",
    "structures": "MULTI|RPUSH K a b|LRANGE K 0 -1|ZADD K2 1 a|ZRANGE K2 0 -1 WITHSCORES|EXEC",
    "two": "MULTI|SET K 1|EXEC|MULTI|GET K|EXEC",
    "reset": "MULTI|SET K 1|RESET|GET K|EXEC",
    "reset while watching": "WATCH K|RESET|SET K 1|MULTI|GET K|EXEC",
    "quit": "MULTI|SET K 1|QUIT",
    "unwatch alone": "UNWATCH|GET K",
    "wrong type": "SET K 1|MULTI|LPUSH K a|HGETALL K|EXEC",
    "random and scans": "MULTI|RANDOMKEY|EXEC",
    "an option of later versions": "ZADD K 1 a|MULTI|SET K2 1|ZRANK K a WITHSCORE|EXEC|GET K2|ZREVRANK K a WITHSCORE",
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", ["one packet", "one by one"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_trap_11_same_bytes(backend, proxy, connect, tagged, script, way, protocol):
    if servers.valkey() and script in ("nested", "watch inside"):
        pytest.skip("Valkey voids the transaction, the proxy goes on with it, as Redis does")
    name = tagged("t")
    commands = [words(text, name) for text in SCRIPTS[script].split("|")]

    def replies(client):
        if protocol == 3:
            client("HELLO", "3")
        if way == "one packet":
            return client.pipeline(commands)
        return [client.raw(*command) for command in commands]

    expected = replies(connect(backend.node_of(name)))
    backend.flush()
    assert replies(connect(proxy)) == expected


def test_large(client, tagged):
    """A reply that is streamed, queued commands beyond every buffer."""
    name = tagged("large")
    value = "x" * 300000
    commands = [["MULTI"]] + [["SET", "%s%d" % (name, i), value] for i in range(40)]
    commands += [["GET", "%s%d" % (name, i)] for i in range(40)] + [["EXEC"], ["GET", name + "7"]]
    replies = client.pipeline(commands)
    assert replies[:81] == [b"+OK\r\n"] + [b"+QUEUED\r\n"] * 80
    bulk = b"$300000\r\n" + value.encode() + b"\r\n"
    assert replies[81] == b"*80\r\n" + b"+OK\r\n" * 40 + bulk * 40
    assert replies[82] == bulk


def test_many_commands(client, tagged):
    """More than the slots that a session has."""
    name = tagged("many")
    replies = client.pipeline([["MULTI"]] + [["INCR", name]] * 5000 + [["EXEC"]])
    assert replies[-1] == b"*5000\r\n" + b"".join(b":%d\r\n" % i for i in range(1, 5001))


def test_somebody_else_changes_what_is_watched(client, direct, tagged):
    name = tagged("w")
    direct("SET", name, "1")
    assert client("WATCH", name) == "OK"
    assert client("GET", name) == "1"
    direct("SET", name, "2")
    assert [client("MULTI"), client("SET", name, "3"), client("EXEC")] == ["OK", "QUEUED", None]
    assert direct("GET", name) == "2"
    assert [client("MULTI"), client("SET", name, "3"), client("EXEC")] == ["OK", "QUEUED", ["OK"]]


def test_others_go_on_meanwhile(proxy, connect, tagged):
    one, two = connect(proxy), connect(proxy)
    name = tagged("m")
    assert one("MULTI") == "OK"
    assert one("SET", name, "1") == "QUEUED"
    assert two("GET", name) is None
    assert two("SET", name, "2") == "OK"
    assert one("EXEC") == ["OK"]
    assert two("GET", name) == "1"


def test_transactions_do_not_mix(proxy, connect, tagged):
    """Many clients at once, each with read-modify-write under WATCH: no increment is lost."""
    name = tagged("count")
    failures = []

    def work():
        c = connect(proxy)
        try:
            for _ in range(25):
                while True:
                    c("WATCH", name)
                    value = int(c("GET", name) or 0)
                    c.send(encode("MULTI") + encode("SET", name, value + 1) + encode("EXEC"))
                    assert [c.read(), c.read()] == ["OK", "QUEUED"]
                    if c.read() is not None:
                        break
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert connect(proxy)("GET", name) == "150"


# ---- trap 10: what the proxy rewrites ------------------------------------------------------------------------


def test_mode_words(farm, connect):
    backend, client = farm.backend("standalone"), connect(farm.proxy("standalone"))
    for word in ("READONLY", "READWRITE", "ASKING"):
        single = connect(backend.nodes[0])
        script = [["MULTI"], [word], ["EXEC"]]
        assert client.pipeline(script) == single.pipeline(script), word


def test_guards_stay_hidden(client, backend, tagged):
    name = "lock:" + tagged("hidden")
    assert client("SET", name, "1", "NX", "EX", 60) == "OK"
    assert backend.node_of(name).run("DBSIZE") >= 2
    client("MULTI")
    for command in (["TYPE", name], ["KEYS", "*"], ["RANDOMKEY"]):
        assert client(*command) == "QUEUED"
    kind, keys, some = client("EXEC")
    assert kind == "string"
    assert keys == [name]
    assert some in (name, None)


def test_scan_hides_guards(farm, connect):
    backend = farm.backend("standalone")
    backend.flush()
    client = connect(farm.proxy("standalone"))
    assert client("SET", "lock:scan", "1", "NX", "EX", 60) == "OK"
    assert client.pipeline([["MULTI"], ["SCAN", "0", "COUNT", "1000"], ["SCAN", "x"], ["EXEC"]])[-1] == (
        b"*2\r\n*2\r\n$1\r\n0\r\n*1\r\n$9\r\nlock:scan\r\n-ERR invalid cursor\r\n")


@pytest.mark.parametrize("command", ["SYNC", "PSYNC a 1"])
def test_refused_inside(client, direct, tagged, command):
    """What is refused inside MULTI makes EXEC fail."""
    name = tagged("refused")
    for order in ((0, 1), (1, 0)):
        commands = [["SET", name, "1"], command.split(" ")]
        assert client("MULTI") == "OK"
        replies = [client(*commands[i]) for i in order]
        refusal = replies[order.index(1)]
        assert isinstance(refusal, Error) and refusal.startswith("ERR"), refusal
        assert replies[order.index(0)] == "QUEUED"
        assert client("EXEC") == ABORTED
        assert direct("EXISTS", name) == 0
        assert client("PING") == "PONG"


STATES = ["SELECT 3|GET {t}k|SELECT 0", "SELECT 3", "SELECT 99|SET {t}k 1", "SELECT x", "SELECT", "AUTH wrong", "AUTH a b|PING",
          "AUTH reader secret|SET {t}k 1|GET {t}k", "AUTH reader secret|AUTH writer secret|SET {t}k 1", "AUTH a b c", "AUTH",
          "HELLO 3|HGETALL {t}none|GET {t}none", "HELLO 3|HELLO 2|GET {t}none", "HELLO 4|GET {t}k", "HELLO 3 AUTH reader secret|SET {t}k 2",
          "HELLO 3 AUTH reader wrong|SET {t}k 2", "HELLO 3 SETNAME me", "HELLO 2 NOSUCH", "HELLO|GET {t}none"]


@pytest.mark.parametrize("end", ["EXEC", "DISCARD"])
@pytest.mark.parametrize("script", STATES)
@pytest.mark.parametrize("before", ["MULTI", "WATCH {t}w|MULTI", "WATCH {t}w"])
def test_trap_10_states_change_in_their_turn(standalones, connect, script, before, end):
    """SELECT, AUTH and HELLO inside MULTI and between WATCH and EXEC: what EXEC answers, and what is so afterwards. A Redis
    that leaves out a refused AUTH's reply, so that EXEC's array never ends, keeps the proxy's client waiting for a while."""
    if end == "DISCARD" and before == "WATCH {t}w":
        before = "WATCH {t}w|UNWATCH"
    found = []
    for where in standalones:
        where.flush()
        c = connect(where.address)
        got = []
        steps = before.split("|") + script.split("|")
        if "MULTI" in before:
            steps += [end]
        else:
            steps += ["MULTI", "SET {t}k 5", "EXEC"]
        for step in steps + ["GET {t}k", "SET {t}k 9", "SELECT 0", "GET {t}k", "CLIENT GETNAME", "HGETALL {t}none", "ACL WHOAMI"]:
            try:
                reply = c.raw(*step.split(" "))
            except TimeoutError:
                assert where is standalones[0] and step == "EXEC", step
                break
            reply = re.sub(rb"(\$2\r\nid\r\n:)\d+", rb"\g<1>N", reply)
            got.append((step, reply))
        found.append(got)
    if len(found[0]) < len(found[1]):
        replies = dict(found[1])
        assert leaves_out_refused_auth(connect(standalones[0])) and "AUTH" in script
        assert replies["EXEC"].startswith(b"-UPSTREAM "), replies
        assert replies["CLIENT GETNAME"] == b"$-1\r\n", "the session goes on"
        return
    assert found[1] == found[0]


@pytest.fixture(scope="module")
def standalones(farm):
    """A Redis with users, and a proxy in front of another like it."""
    made = [servers.RedisServer(), servers.RedisServer()]
    for server in made:
        server.run("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection", "+@transaction", "+acl|whoami")
        server.run("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+@all")
    proxy = servers.Proxy(made[1])
    proxy.flush = made[1].flush
    yield made[0], proxy
    proxy.stop()
    proxy.remove()
    for server in made:
        server.stop()


def test_a_lock_command_behind_a_watch_and_a_select(client, tagged):
    name = "lock:" + tagged("select")
    assert client("WATCH", name) == "OK"
    assert client("SELECT", "0") == "OK"
    assert client.pipeline([["MULTI"], ["SETNX", name, "1"], ["EXEC"]])[-1] == b"*1\r\n:1\r\n"


def test_a_watch_outlives_a_change(client, direct, tagged):
    name = tagged("watching")
    for command in (["HELLO", "3"], ["HELLO", "2"], ["SELECT", "0"]):
        assert client("WATCH", name) == "OK"
        client(*command)
        direct("INCR", name)
        assert client.pipeline([["MULTI"], ["GET", name], ["EXEC"]])[-1] in (b"*-1\r\n", b"_\r\n")
        assert client("PING") == "PONG"


# ---- trap 11: clients that leave, connections that are lost ----------------------------------------------------


@pytest.mark.parametrize("after", ["WATCH", "MULTI", "SET"])
def test_trap_11_client_leaves_before_exec(proxy, backend, client, connect, tagged, after):
    name = tagged("leaves")
    before = info(client, "pinned_transactions")
    other = connect(proxy)
    for command in (["WATCH", name], ["MULTI"], ["SET", name, "1"]):
        other(*command)
        if command[0] == after:
            break
    assert info(client, "pinned_transactions") == before + 1
    other.close()
    until(lambda: info(client, "pinned_transactions") == before, what="the end of the pin")
    assert client("EXISTS", name) == 0
    assert client.pipeline([["MULTI"], ["GET", name], ["EXEC"]])[-1] == b"*1\r\n$-1\r\n"


def test_client_leaves_with_exec_on_its_way(proxy, connect, direct, tagged):
    name = tagged("gone")
    with connect(proxy) as other:
        other.send(encode("MULTI") + encode("SET", name, "1") + encode("EXEC"))
        other.shutdown()
        assert other.read_all() == b"+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n"
    assert direct("GET", name) == "1"


def kill_connections(backend, name):
    """The node of `name` drops every connection but the asking one."""
    backend.node_of(name).run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_trap_11_lost_between_watch_and_multi(backend, client, direct, tagged):
    name = tagged("lost")
    client("SET", name, "1")
    assert client("WATCH", name) == "OK"
    kill_connections(backend, name)
    until(lambda: info(client, "pinned_transactions") == 0, what="the loss to be noticed")
    direct.close()
    backend.node_of(name).run("SET", name, "2")
    assert client("MULTI") == "OK"
    refusal = client("SET", name, "3")
    assert isinstance(refusal, Error) and refusal.startswith("UPSTREAM"), refusal
    assert client("EXEC") == ABORTED
    assert backend.node_of(name).run("GET", name) == "2"
    assert client.pipeline([["MULTI"], ["GET", name], ["EXEC"]])[-1] == b"*1\r\n$1\r\n2\r\n"


def test_trap_11_lost_between_multi_and_exec(backend, client, tagged):
    name = tagged("lost")
    client("WATCH", name)
    client("MULTI")
    assert client("SET", name, "1") == "QUEUED"
    kill_connections(backend, name)
    until(lambda: "pinned_transactions:0" in admin(client), what="the loss to be noticed")
    reply = client("EXEC")
    assert isinstance(reply, Error) and reply.startswith("UPSTREAM") and "nothing" in reply, reply
    assert backend.node_of(name).run("EXISTS", name) == 0
    assert client("SET", name, "1") == "OK"


def admin(client):
    """PROXY INFO over another connection: the client's own is inside MULTI."""
    with Client(client.address) as other:
        return other("PROXY", "INFO", "upstreams")


@pytest.mark.parametrize("end", ["DISCARD", "UNWATCH", "RESET"])
def test_lost_and_left(backend, client, tagged, end):
    """A transaction that was lost can be left."""
    name = tagged("left")
    client("WATCH", name)
    if end == "DISCARD":
        client("MULTI")
    kill_connections(backend, name)
    until(lambda: "pinned_transactions:0" in admin(client), what="the loss to be noticed")
    assert client(end) == ("RESET" if end == "RESET" else "OK")
    assert client.pipeline([["MULTI"], ["SET", name, "1"], ["EXEC"]])[-1] == b"*1\r\n+OK\r\n"


def test_lost_with_exec_on_its_way(start_redis, start_proxy, connect):
    """The outcome is unknown, and the transaction is not run again."""
    redis = start_redis("--appendonly", "no")
    client = connect(start_proxy(redis))
    assert client.pipeline([["SET", "k", "1"], ["SETNX", "lock:k", "1"]]) == [b"+OK\r\n", b":1\r\n"]
    for commands in ([["SET", "k", "2"]], [["DEL", "lock:k"], ["SET", "k", "2"]]):
        assert client("MULTI") == "OK"
        for command in commands:
            assert client(*command) == "QUEUED"
        redis.pause()
        client.send(encode("EXEC") + encode("PING"))
        until(lambda: "in_flight=1" in admin(client), what="EXEC to be on its way")
        redis.kill()
        reply = client.read()
        assert isinstance(reply, Error) and reply.startswith("UPSTREAM") and "unknown" in reply, reply
        client.read()
        redis.start()
        until(lambda: client("PING") == "PONG", what="the node to be served again")
    assert client("GET", "k") is None  # it came back empty: nothing was sent twice


def test_aborted_at_a_node_that_stands_still(start_redis, start_proxy, connect):
    """EXEC has its answer from the proxy; the node hears DISCARD, and does not take it in time."""
    redis = start_redis()
    client = connect(start_proxy(redis, "upstream-timeout 300ms"))
    assert client("MULTI") == "OK" and client("SET", "k", "1") == "QUEUED"
    redis.pause()
    reply = client("EXEC", "what?")
    redis.resume()
    assert isinstance(reply, Error) and reply.startswith("EXECABORT"), reply
    until(lambda: client("PING") == "PONG", what="the node to be served again")
    assert client("EXISTS", "k") == 0


def test_node_down(start_redis, start_proxy, connect):
    redis = start_redis()
    client = connect(start_proxy(redis))
    assert client("PING") == "PONG"
    redis.kill()
    until(lambda: isinstance(client("MULTI"), Error), what="MULTI to be refused")
    assert client("EXEC") == "ERR EXEC without MULTI"
    assert str(client("WATCH", "k")).startswith("UPSTREAM")
    assert client("UNWATCH") == "OK"


# ---- trap 12: slots that are elsewhere ----------------------------------------------------------------------


def test_keys_on_two_nodes(farm, connect):
    backend = farm.backend("cluster")
    backend.flush()
    client = connect(farm.proxy("cluster"))
    names = {}
    for i in range(100):
        names.setdefault(backend.node_of("k%d" % i), "k%d" % i)
    one, two, _ = names.values()
    assert client.pipeline([["MULTI"], ["SET", one, "1"], ["SET", two, "1"], ["EXEC"]]) == [
        b"+OK\r\n", b"+QUEUED\r\n", b"-CROSSSLOT Keys in the transaction are on different nodes\r\n",
        b"-" + ABORTED.encode() + b"\r\n"]
    assert client.pipeline([["MULTI"], ["SET", one, "1"], ["MSET", one, "1", two, "2"], ["EXEC"]])[2:] == [
        b"-CROSSSLOT Keys in request don't hash to the same slot\r\n", b"-" + ABORTED.encode() + b"\r\n"]
    assert str(client("WATCH", one, two)).startswith("CROSSSLOT")
    assert client("WATCH", one) == "OK"
    assert str(client("WATCH", two)).startswith("CROSSSLOT")
    assert client("UNWATCH") == "OK"
    assert [backend.node_of(n).run("EXISTS", n) for n in (one, two)] == [0, 0]


def epoch(node):
    """The newest epoch that the node knows of."""
    return re.search(r"cluster_current_epoch:(\d+)", node.run("CLUSTER", "INFO")).group(1)


def move_slot(cluster, slot, source, target):
    """An empty slot moves to another node; all nodes accept that, since the target has the newest epoch: it knows of all
    others when it makes its own."""
    until(lambda: len({epoch(node) for node in cluster.nodes}) == 1, 60, "one epoch")
    target.run("CLUSTER", "BUMPEPOCH")
    target_id = target.run("CLUSTER", "MYID")
    for node in (target, source, *[n for n in cluster.nodes if n not in (source, target)]):
        node.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def test_trap_12_moved_while_queueing(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    client = connect(start_proxy(cluster))
    name = "{moving}k"
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    assert client("WATCH", name) == "OK"
    assert client("MULTI") == "OK"
    move_slot(cluster, slot_of(name), source, target)
    reply = client("SET", name, "1")
    assert isinstance(reply, Error) and reply.startswith("TRYAGAIN"), reply
    assert client("EXEC") == ABORTED
    assert target.run("EXISTS", name) == 0
    # The map has been told: the next attempt goes to the right node.
    script = [["WATCH", name], ["MULTI"], ["SET", name, "1"], ["EXEC"]]
    assert client.pipeline(script)[-1] == b"*1\r\n+OK\r\n"
    assert target.run("GET", name) == "1"


def test_trap_12_moved_between_queueing_and_exec(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    client = connect(start_proxy(cluster))
    name = "lock:{moving}k"
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    for command in (["SETNX", name, "1"], ["SET", "{moving}", "1"]):
        assert client("MULTI") == "OK"
        assert client(*command) == "QUEUED"
        move_slot(cluster, slot_of(name), source, target)
        reply = client("EXEC")
        assert isinstance(reply, Error) and reply.startswith("EXECABORT"), reply
        assert [n.run("EXISTS", command[1]) for n in (target,)] == [0]
        source, target = target, source
    assert client.pipeline([["MULTI"], ["SETNX", name, "1"], ["EXEC"]])[-1] == b"*1\r\n:1\r\n"
    assert client("DEL", name) == 1


def test_first_watch_follows_its_slot(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    client = connect(start_proxy(cluster))
    name = "{followed}k"
    assert client("GET", name) is None
    source = cluster.node_of(name)
    target = next(n for n in cluster.nodes if n is not source)
    move_slot(cluster, slot_of(name), source, target)
    assert client("WATCH", name) == "OK"
    assert client.pipeline([["MULTI"], ["SET", name, "1"], ["EXEC"]])[-1] == b"*1\r\n+OK\r\n"


# ---- connections ------------------------------------------------------------------------------------------


def test_connections_are_used_again(backend, proxy, connect, tagged):
    name = tagged("again")
    client = connect(proxy)
    client.pipeline([["MULTI"], ["INCR", name], ["EXEC"]])
    node = backend.node_of(name)
    before = node.run("INFO", "stats").split("total_connections_received:")[1].split()[0]
    for _ in range(100):
        client.pipeline([["WATCH", name], ["MULTI"], ["INCR", name], ["EXEC"]])
    after = node.run("INFO", "stats").split("total_connections_received:")[1].split()[0]
    assert client("GET", name) == "101"
    assert int(after) - int(before) <= 2  # one of them asked just now
    assert info(client, "pinned_transactions") == 0


def test_states_do_not_leak_to_the_next(proxy, connect, tagged):
    """A connection with a transaction left open is never handed on."""
    name = tagged("leak")
    for _ in range(10):
        other = connect(proxy)
        other.pipeline([["WATCH", name], ["MULTI"], ["SET", name, "leaked"]])
        other.close()
        client = connect(proxy)
        assert client.pipeline([["MULTI"], ["GET", name], ["EXEC"]])[-1] == b"*1\r\n$-1\r\n"


def test_databases(farm, connect):
    farm.backend("standalone").flush()
    client = connect(farm.proxy("standalone"))
    assert client("SELECT", "5") == "OK"
    assert client.pipeline([["MULTI"], ["SET", "k", "five"], ["SETNX", "lock:k", "1"], ["EXEC"]])[-1] == (
        b"*2\r\n+OK\r\n:1\r\n")
    assert client("GET", "k") == "five"
    assert client("DEL", "lock:k") == 1
    assert client("SELECT", "0") == "OK"
    assert client.pipeline([["MULTI"], ["GET", "k"], ["EXEC"]])[-1] == b"*1\r\n$-1\r\n"


def test_users(start_redis, start_proxy, connect):
    """A user without the right to MULTI gets the error, and nothing is executed outside of a transaction."""
    redis = start_redis()
    redis.run("ACL", "SETUSER", "bob", "on", ">secret", "~*", "+@all", "-multi")
    client = connect(start_proxy(redis))
    assert client("AUTH", "bob", "secret") == "OK"
    assert str(client("MULTI")).startswith("NOPERM")
    assert client("SET", "k", "1") == "OK"
    assert client("EXEC") == "ERR EXEC without MULTI"
    for _ in range(3):
        replies = client.pipeline([["MULTI"], ["SETNX", "lock:k", "1"], ["EXEC"], ["DEL", "lock:k"]])
        assert replies[0].startswith(b"-NOPERM")
        assert replies[1:] == [b":1\r\n", b"-ERR EXEC without MULTI\r\n", b":1\r\n"]


def test_users_on_a_cluster(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    for node in cluster.nodes:
        node.run("ACL", "SETUSER", "bob", "on", ">secret", "~*", "+@all", "-multi")
    client = connect(start_proxy(cluster))
    assert client("AUTH", "bob", "secret") == "OK"
    replies = client.pipeline([["MULTI"], ["SET", "k", "1"], ["EXEC"], ["EXISTS", "k"]])
    assert replies[0] == b"+OK\r\n"
    assert replies[1].startswith(b"-NOPERM")
    assert replies[2:] == [b"-" + ABORTED.encode() + b"\r\n", b":0\r\n"]


# ---- lock keys --------------------------------------------------------------------------------------------


@pytest.fixture
def lock(tagged):
    return "lock:" + tagged("x")


def transact(client, *commands):
    """EXEC's reply; all commands must have been queued."""
    replies = client.pipeline([["MULTI"], *commands])
    assert replies == [b"+OK\r\n"] + [b"+QUEUED\r\n"] * len(commands), replies
    return client("EXEC")


@pytest.mark.parametrize("protocol", [2, 3])
def test_lock_and_expiry(proxy, connect, direct, lock, protocol):
    """IDIOM 3: losers don't refresh the holder's expiry."""
    a, b = connect(proxy), connect(proxy)
    if protocol == 3:
        a("HELLO", "3"), b("HELLO", "3")
    assert transact(a, ["SETNX", lock, "1"], ["EXPIRE", lock, "5"], ["GET", lock]) == [1, 1, "1"]
    assert 4000 < direct("PTTL", lock) <= 5000
    replies = b.at_once(("MULTI",), ("SETNX", lock, "1"), ("EXPIRE", lock, "100"), ("EXEC",), ("MULTI",), ("DEL", lock), ("EXEC",))
    assert (replies[3], replies[6]) == ([0, 0], [0])
    assert direct("PTTL", lock) <= 5000
    assert transact(a, ["DEL", lock]) == [1]
    assert transact(b, ["SETNX", lock, "1"], ["EXPIRE", lock, "100"]) == [1, 1]
    assert direct("PTTL", lock) > 5000
    assert b("DEL", lock) == 1


def test_losers_keep_a_dead_lock_alive_directly(backend, connect, lock):
    """What IDIOM 3 does without the proxy."""
    a, b = connect(backend.node_of(lock)), connect(backend.node_of(lock))
    assert transact(a, ["SETNX", lock, "1"], ["EXPIRE", lock, "5"]) == [1, 1]
    assert transact(b, ["SETNX", lock, "1"], ["EXPIRE", lock, "100"]) == [0, 1]
    assert b("PTTL", lock) > 5000


def test_compare_and_delete(proxy, connect, backend, direct, lock):
    """IDIOM 11: WATCH, GET, MULTI, DEL, EXEC."""
    a, b = connect(proxy), connect(proxy)
    assert a("SET", lock, "a", "NX", "PX", 100) == "OK"
    assert a("WATCH", lock) == "OK"
    assert a("GET", lock) == "a"
    until(lambda: direct("EXISTS", lock) == 0, what="the end of the lease", pause=0.005)
    assert b("SET", lock, "b", "NX", "PX", 60000) == "OK"
    assert a.pipeline([["MULTI"], ["DEL", lock], ["EXEC"]])[-1] == b"*-1\r\n"
    assert b("GET", lock) == "b"
    for _ in range(2):
        assert b("WATCH", lock) == "OK"
        assert b("GET", lock) == "b"
        assert b.pipeline([["MULTI"], ["DEL", lock], ["EXEC"]])[-1] == b"*1\r\n:1\r\n"
        assert b("SET", lock, "b", "NX", "PX", 60000) == "OK"
    assert b("DEL", lock) == 1


@pytest.mark.parametrize("watched", [False, True])
def test_late_release(backend, proxy, connect, direct, lock, watched):
    """A's lease has ended, B holds the lock: A's DEL in a transaction frees it directly, and not through the proxy."""
    results = []
    for connect_one in (lambda: connect(backend.node_of(lock)), lambda: connect(proxy)):
        a, b = connect_one(), connect_one()
        assert a("SET", lock, "1", "NX", "PX", 100) == "OK"
        until(lambda: direct("EXISTS", lock) == 0, what="the end of the lease", pause=0.005)
        assert b("SET", lock, "1", "NX", "PX", 60000) == "OK"
        if watched:
            a("WATCH", lock)
        results.append((transact(a, ["DEL", lock]), direct("EXISTS", lock)))
        b("DEL", lock)
    assert results == [([1], 0), ([0], 1)]


def test_several_keys(proxy, connect, direct, tagged):
    """One DEL of plain and lock keys is one element, the sum."""
    a, b = (connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in ("one", "another"))
    tag = tagged("s")
    mine, other, foreign = ("lock:%s%d" % (tag, i) for i in range(3))
    assert a("MSET", tag + "p", "1", tag + "q", "2") == "OK"
    assert a("SETNX", mine, "1") == 1 and a("SETNX", other, "1") == 1 and b("SETNX", foreign, "1") == 1
    assert transact(a, ["SET", tag, "1"], ["DEL", tag + "p", mine, tag + "none", foreign, tag + "q", other],
                    ["GET", tag]) == ["OK", 4, "1"]
    assert [direct("EXISTS", k) for k in (mine, other, foreign, tag + "p", tag + "q")] == [0, 0, 1, 0, 0]
    assert transact(a, ["UNLINK", mine, other]) == [0]
    assert transact(b, ["UNLINK", foreign, tag]) == [2]


def test_overwriting(proxy, connect, direct, tagged):
    a, b = connect(proxy), connect(proxy)
    tag = tagged("o")
    lock = "lock:" + tag
    assert transact(a, ["SET", lock, "a", "EX", "60"]) == ["OK"]
    first, second, third, last = transact(b, ["SET", lock, "b"], ["MSET", tag, "1", lock, "b"],
                                          ["RENAME", tag + "none", lock], ["SET", tag, "2"])
    for reply in (first, second, third):
        assert isinstance(reply, Error) and reply.startswith("LOCKED"), reply
    assert last == "OK"
    assert direct("GET", lock) == "a"
    assert transact(a, ["MSET", tag, "1", lock, "new"], ["GET", lock]) == ["OK", "new"]
    assert transact(b, ["GETSET", lock, "b"], ["SET", lock, "b", "XX"], ["SET", lock, "b", "NX"]) == [
        "new", None, None] or direct("GET", lock) == "new"


def test_own_lease_in_one_transaction(client, direct, lock):
    """Each command uses the lease that the one before it has made."""
    assert transact(client, ["SETNX", lock, "1"], ["DEL", lock], ["SETNX", lock, "2"], ["SETNX", lock, "3"],
                    ["PEXPIRE", lock, "5000"], ["GET", lock]) == [1, 1, 1, 0, 1, "2"]
    assert client("DEL", lock) == 1
    assert transact(client, ["SET", lock, "1"], ["SET", lock, "2"], ["PEXPIRE", lock, "5000"], ["GET", lock],
                    ["GETDEL", lock], ["EXISTS", lock]) == ["OK", "OK", 1, "2", "2", 0]
    assert transact(client, ["INCR", lock], ["EXPIRE", lock, "50"], ["DECR", lock], ["INCR", lock]) == [1, 1, 0, 1]
    assert client("DEL", lock) == 1
    assert direct("EXISTS", lock) == 0


def test_holder_inside_transactions(client, direct, lock):
    assert client("SET", lock, "1", "NX", "EX", "5") == "OK"
    assert transact(client, ["PEXPIRE", lock, "60000"], ["SET", lock, "2", "KEEPTTL"], ["GET", lock]) == [1, "OK", "2"]
    assert direct("PTTL", lock) > 5000
    assert transact(client, ["DEL", lock], ["SET", lock, "3", "NX"], ["EXPIRE", lock, "70"]) == [1, "OK", 1]
    assert direct("TTL", lock) > 60
    assert client("DEL", lock) == 1


@pytest.mark.parametrize("end", ["DISCARD", "abort", "changed", "leaves"])
def test_not_executed(proxy, connect, direct, tagged, end):
    """Lock commands that were never executed leave everything as it was: also what the proxy remembers."""
    tag = tagged("n")
    lock = "lock:" + tag
    a, b = connect(proxy), connect(proxy)
    assert a("SET", lock, "1", "NX", "EX", "60") == "OK"
    if end == "changed":
        a("WATCH", tag)
        b("SET", tag, "1")
    assert a.pipeline([["MULTI"], ["DEL", lock], ["SET", lock + "2", "1", "NX"]]) == [
        b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
    if end == "DISCARD":
        assert a("DISCARD") == "OK"
    elif end == "abort":
        a("SET", lock)
        assert a("EXEC") == ABORTED
    elif end == "changed":
        assert a("EXEC") is None
    else:
        a.close()
        until(lambda: info(b, "pinned_transactions") == 0, what="the end of the pin")
        assert b("DEL", lock) == 0 or end == "leaves"
        return
    assert direct("GET", lock) == "1"
    assert direct("EXISTS", lock + "2") == 0
    assert b("SETNX", lock, "1") == 0
    assert a("EXPIRE", lock, "70") == 1
    assert a("DEL", lock) == 1
    assert b("DEL", lock + "2") == 0


def test_nothing_stays_behind(farm, start_proxy, backend, connect, tagged):
    """After many transactions the proxy remembers no lease, and its memory is where it was."""
    client = connect(start_proxy(backend))
    tag = tagged("b")
    for i in range(200):
        lock = "lock:%s%d" % (tag, i)
        assert transact(client, ["SETNX", lock, "1"], ["EXPIRE", lock, "5"], ["DEL", lock, tag]) == [1, 1, 1]
    assert info(client, "leases") == 0
    assert info(client, "claims") == 0


def test_script_flush_between(client, direct, backend, lock):
    """The scripts of a transaction don't depend on what the node remembers."""
    assert client("MULTI") == "OK"
    for command in (["SETNX", lock, "1"], ["SETNX", lock, "2"], ["EXPIRE", lock, "5"], ["DEL", lock], ["DEL", lock]):
        assert client(*command) == "QUEUED"
    backend.node_of(lock).run("SCRIPT", "FLUSH")
    assert client("EXEC") == [1, 0, 1, 1, 0]


def test_too_many_lock_commands(client, direct, lock):
    replies = client.pipeline([["MULTI"]] + [["SETNX", lock, "1"]] * 1001 + [["EXEC"]])
    assert replies[1:1001] == [b"+QUEUED\r\n"] * 1000
    assert replies[1001] == b"-ERR too many lock commands in one transaction\r\n"
    assert replies[1002] == b"-" + ABORTED.encode() + b"\r\n"
    assert direct("EXISTS", lock) == 0
    assert transact(client, ["DEL", "x" + lock, *[lock + str(i) for i in range(500)]]) == [0]


def test_many_keys_that_are_no_locks(client, direct, lock):
    """Commands that could remove or replace more locks than one script can ask for, where there are none."""
    keys = ["x%s%d" % (lock, i) for i in range(300)]
    assert transact(client, ["MSET", *[word for key in keys for word in (key, "1")]]) == ["OK"]
    assert direct("DEL", *keys) == 300
    assert client("BLPOP", *keys, "0.01") is None


@pytest.mark.parametrize("count", [1, 13, 14, 200, 1100])
def test_commands_of_many_words(proxy, connect, direct, lock, count):
    """Redis takes an option as often as it is said; a lock is checked all the same."""
    holder, other = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in ("holder", "other")]
    assert holder("SET", lock, "mine", "NX", "EX", 100) == "OK"
    queued = "QUEUED" if count < 1000 else "ERR syntax error"
    for options in (["XX"] * count, ["EX", "5"] + ["NX"] * count):
        assert other("MULTI") == "OK"
        assert other("SET", lock, "theirs", *options) == queued
        assert other("EXEC") == ([None] if count < 1000 else ABORTED)
        assert direct("GET", lock) == "mine"
    assert transact(holder, ["SET", lock, "new", *["XX"] * min(count, 900)], ["DEL", lock]) == ["OK", 1]


# ---- a client library ---------------------------------------------------------------------------------------


@pytest.fixture
def library(proxy):
    redis = pytest.importorskip("redis")
    client = redis.Redis(*proxy.address, socket_timeout=20, decode_responses=True)
    yield client
    client.close()
    client.connection_pool.disconnect()


def test_library_pipeline(library, tagged):
    name = tagged("p")
    with library.pipeline(transaction=True) as p:
        p.set(name, 1).incr(name).hset(name + "h", mapping={"a": "1", "b": "2"}).hgetall(name + "h")
        assert p.execute() == [True, 2, 2, {"a": "1", "b": "2"}]
    import redis

    with library.pipeline(transaction=True) as p:
        p.lpush(name, 1).get(name)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            p.execute()
    assert library.get(name) == "2"


def test_library_transaction(library, tagged):
    name = tagged("t")
    import redis

    library.set(name, 1)

    def double(pipe):
        value = int(pipe.get(name))
        pipe.multi()
        pipe.set(name, value * 2)

    assert library.transaction(double, name) == [True]
    with library.pipeline() as p:
        p.watch(name)
        library.set(name, 7)
        p.multi()
        p.set(name, 8)
        with pytest.raises(redis.WatchError):
            p.execute()
    assert library.get(name) == "7"


def test_library_lock_release(library, lock):
    """Some libraries release with WATCH, GET, MULTI, DEL, EXEC."""
    assert library.set(lock, "mine", nx=True, ex=30)

    def release(pipe):
        assert pipe.get(lock) == "mine"
        pipe.multi()
        pipe.delete(lock)

    assert library.transaction(release, lock) == [1]
    assert library.get(lock) is None


