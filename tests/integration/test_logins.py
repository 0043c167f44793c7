"""Authentication: passwords that were revoked, a Redis that was not asked yet, wrong passwords by the thousand, and the rights
to PROXY.
"""

import os
import re
import socket
import time

import pytest

from helpers import is_upstream, keys_of
from resp import Client, Closed, Error, encode, leaves_out_refused_auth
from servers import HOST, RedisSentinels, RedisServer, free_port, until

WRONG = "WRONGPASS invalid username-password pair or user is disabled."


def refused(answer, words):
    return isinstance(answer, Error) and str(answer).startswith(words)


@pytest.fixture
def users(start_redis):
    server = start_redis()
    server.run("ACL", "SETUSER", "app", "on", ">p", "~*", "+@all", "-config")
    server.run("ACL", "SETUSER", "viewer", "on", ">p", "~*", "+@all", "-config", "+config|get")
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "+@all")
    return server


# ---- revoked credentials ------------------------------------------------------------------------


REVOKED = {
    "another password": ["ACL", "SETUSER", "alice", "<old", ">new"],
    "off": ["ACL", "SETUSER", "alice", "off"],
}


@pytest.mark.parametrize("way", REVOKED)
@pytest.mark.parametrize("words", [("AUTH", "alice", "old"), ("HELLO", "3", "AUTH", "alice", "old")], ids=["AUTH", "HELLO"])
def test_a_revoked_password_lets_nobody_in(start_redis, start_proxy, connect, way, words):
    """A client that logged in before is still connected, and stays logged in, as on Redis itself."""
    server = start_redis()
    server.run("ACL", "SETUSER", "alice", "on", ">old", "~*", "+@all")
    proxy = start_proxy(server)
    old, late = connect(proxy), connect(proxy)
    assert not isinstance(old(*words), Error) and old("SET", "k", "v") == "OK"
    server.run(*REVOKED[way])
    assert refused(late(*words), WRONG) and late("ACL", "WHOAMI") == "default"
    assert old("ACL", "WHOAMI") == "alice"
    if way == "another password":
        assert late("AUTH", "alice", "new") == "OK" and late("ACL", "WHOAMI") == "alice"


@pytest.mark.parametrize("way", REVOKED)
@pytest.mark.parametrize("kind", ["threads 2", "cluster"])
def test_a_revoked_password_lets_nobody_in_anywhere(start_redis, start_cluster, start_proxy, connect, kind, way):
    """Over any thread, and with connections to each of three masters that are logged in."""
    backend = start_cluster() if kind == "cluster" else start_redis()
    for node in backend.nodes:
        node.run("ACL", "SETUSER", "alice", "on", ">old", "~*", "+@all")
    proxy = start_proxy(backend, "threads 2")
    olds = [connect(proxy, commands=[("AUTH", "alice", "old")]) for _ in range(12)]
    assert all(old("SET", key, "v") == "OK" for old in olds for key in keys_of(backend))
    for node in backend.nodes:
        node.run(*REVOKED[way])
    for _ in range(12):
        late = connect(proxy)
        assert refused(late("AUTH", "alice", "old"), WRONG) and refused(late("HELLO", "3", "AUTH", "alice", "old"), WRONG)
        assert late("ACL", "WHOAMI") == "default"
    assert all(old("GET", key) == "v" for old in olds for key in keys_of(backend))


@pytest.fixture(scope="module")
def sentinels():
    found = RedisSentinels()
    yield found
    found.stop()


def test_after_a_failover_the_new_master_says_who_gets_in(sentinels, start_proxy, connect):
    """A client that was logged in, or served without login, is not served because of what the old master had said."""
    old_master = sentinels.master
    for node in sentinels.nodes:
        node.run("ACL", "SETUSER", "alice", "on", ">old", "~*", "+@all")
        node.run("ACL", "SETUSER", "root", "on", ">p", "~*", "&*", "+@all")
    proxy = start_proxy(sentinels)
    alice, stranger = connect(proxy, commands=[("AUTH", "alice", "old")]), connect(proxy)
    assert alice("SET", "k", "v") == "OK" and stranger("GET", "k") == "v" and isinstance(stranger("CLIENT", "ID"), int)
    replica = next(node for node in sentinels.nodes if node is not old_master)
    replica.run("ACL", "SETUSER", "alice", "<old", ">new")
    sentinels.failover(old_master)
    admin = replica.client(commands=[("AUTH", "root", "p")])
    until(lambda: admin("ROLE")[0] == "master", timeout=30, what="the promotion")
    until(lambda: refused(alice("GET", "k"), WRONG), timeout=30, what="the new master's word on alice")
    late = connect(proxy)
    assert refused(late("AUTH", "alice", "old"), WRONG) and late("AUTH", "alice", "new") == "OK"
    assert admin("ACL", "SETUSER", "default", "off") == "OK" and admin("CLIENT", "KILL", "TYPE", "normal") >= 1
    until(lambda: refused(stranger("GET", "k"), "NOAUTH"), timeout=10, what="the new master's word on strangers")
    until(lambda: refused(stranger("CLIENT", "ID"), "NOAUTH"), timeout=3, what="the proxy's")
    assert refused(connect(proxy)("GET", "k"), "NOAUTH")


def test_a_changed_requirepass_is_the_one_that_counts(start_redis, start_proxy, connect):
    server = start_redis("--requirepass", "old")
    proxy = start_proxy(server)
    old, late = connect(proxy), connect(proxy)
    assert old("AUTH", "old") == "OK" and old("CONFIG", "SET", "requirepass", "new") == "OK"
    assert refused(late("AUTH", "old"), WRONG) and refused(late("GET", "k"), "NOAUTH")
    assert late("AUTH", "new") == "OK" and late("GET", "k") is None
    assert old("GET", "k") is None


@pytest.mark.parametrize("words", [["ACL", "SETUSER", "default", "off"], ["CONFIG", "SET", "requirepass", "new"]],
                         ids=["default off", "requirepass"])
def test_who_comes_after_a_password_was_set_needs_it(start_redis, start_proxy, connect, words):
    """A client that was there before stays served, as on Redis itself; after RESET it counts as new."""
    server = start_redis()
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "+@all")
    proxy = start_proxy(server)
    old = connect(proxy)
    assert old("SET", "k", "v") == "OK"
    time.sleep(1.2)  # the time in which the proxy asks for new clients
    assert old("GET", "k") == "v"
    server.run(*words)
    time.sleep(1.2)

    def shut():
        with proxy.client() as late:
            return refused(late("GET", "k"), "NOAUTH")

    until(shut, timeout=3, what="a refusal")
    for _ in range(10):
        assert shut()
    assert old("GET", "k") == "v"
    assert old("RESET") == "RESET" and refused(old("GET", "k"), "NOAUTH")
    assert old("AUTH", "root", "p") == "OK" and old("GET", "k") == "v"


def test_a_login_leaves_nothing_of_the_proxy_s_own_in_acl_log(start_redis, start_proxy, connect):
    """A user with the right to GET only, with any form of login, in any database and mode."""
    server = start_redis()
    server.run("ACL", "SETUSER", "little", "on", ">p", "~*", "-@all", "+get", "+select", "+client|tracking")
    server.run("ACL", "SETUSER", "root", "on", ">p", "+@all")
    admin = server.client(commands=[("AUTH", "root", "p")])
    admin("ACL", "SETUSER", "default", "-@all", "+get", "+select", "+config|get", "+info", "+xrange")
    proxy = start_proxy(server)
    for words in (("AUTH", "little", "p"), ("HELLO", "3", "AUTH", "little", "p"), ("HELLO", "2", "AUTH", "little", "p", "SETNAME", "me")):
        client = connect(proxy)
        assert not isinstance(client(*words), Error) and client("GET", "k") is None
        assert client("SELECT", "2") == "OK" and client("GET", "k") is None
        assert client("AUTH", "little", "p") == "OK" and client("GET", "k") is None
    tracker = connect(proxy, commands=[("HELLO", "3", "AUTH", "little", "p"), ("CLIENT", "TRACKING", "ON")])
    assert tracker("AUTH", "little", "p") == "OK" and tracker("GET", "k") is None
    assert admin("ACL", "LOG") == []


def test_who_was_let_in_is_nobody_once_the_node_says_so(start_redis, start_proxy, connect):
    """The node's NOAUTH on a new connection counts for what the proxy does itself, too."""
    server = start_redis()
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "&*", "+@all")
    client = connect(start_proxy(server))
    assert client("GET", "k") is None and client("PROXY", "INFO") and isinstance(client("CLIENT", "ID"), int)
    time.sleep(1.2)  # the time in which the proxy asks for new clients
    admin = server.client(commands=[("AUTH", "root", "p")])
    admin("ACL", "SETUSER", "default", "off")
    until(lambda: isinstance(client("CLIENT", "ID"), int), what="the old connections' service")
    admin("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: refused(client("GET", "k"), "NOAUTH"), what="a connection that nobody is let in over")
    until(lambda: refused(client("CLIENT", "ID"), "NOAUTH"), timeout=3, what="the proxy's refusal")
    assert refused(client("PROXY", "INFO"), "NOAUTH") and refused(client("CLIENT", "PAUSE", "10000"), "NOAUTH")
    admin("ACL", "SETUSER", "default", "on")
    until(lambda: client("GET", "k") is None, timeout=5, what="the node's other word")


@pytest.mark.parametrize("kind", ["threads 2", "cluster"])
def test_unauthenticated_need_the_password_everywhere(start_redis, start_cluster, start_proxy, connect, kind):
    backend = start_cluster() if kind == "cluster" else start_redis()
    proxy = start_proxy(backend, "threads 2")
    olds = [connect(proxy) for _ in range(12)]
    time.sleep(1.2)
    assert all(old("SET", key, "v") == "OK" for old in olds for key in keys_of(backend))
    for node in backend.nodes:
        node.run("CONFIG", "SET", "requirepass", "new")
    time.sleep(2.4)
    for _ in range(12):
        late = connect(proxy)
        until(lambda: refused(late("GET", "k"), "NOAUTH"), timeout=3, what="a refusal")
        assert refused(late("HELLO", "3"), "NOAUTH") and refused(late("CLIENT", "LIST"), "NOAUTH")
    late = connect(proxy, commands=[("AUTH", "new")])
    assert all(late("GET", key) == "v" for key in keys_of(backend))


def test_a_node_without_reset_is_asked_anew_all_the_same(start_redis, start_proxy, connect):
    server = start_redis("--rename-command", "RESET", "")
    proxy = start_proxy(server)
    for _ in range(3):
        assert connect(proxy)("GET", "k") is None
        time.sleep(1.1)
    server.run("CONFIG", "SET", "requirepass", "new")
    time.sleep(1.2)
    until(lambda: refused(connect(proxy)("GET", "k"), "NOAUTH"), timeout=4, what="a refusal")
    assert "can't be reached" not in proxy.log() and "does not answer" not in proxy.log()


def test_what_is_refused_does_not_reach_the_node(start_redis, start_proxy, connect):
    server = start_redis("--requirepass", "secret")
    client = connect(start_proxy(server, "threads 1"))
    until(lambda: refused(client("GET", "k"), "NOAUTH"), what="the node's word")
    calls = lambda: sum(int(n) for n in re.findall("cmdstat_(?:reset|hello|ping|get):calls=([0-9]+)", admin("INFO", "commandstats")))
    admin = server.client()
    before = calls()
    begin = time.monotonic()
    for _ in range(3000):
        assert refused(client("GET", "k"), "NOAUTH")
    assert calls() - before <= 2 * (3 + (time.monotonic() - begin) / 0.05)


# ---- before a node has said anything ----------------------------------------------------------------


class Absent:
    """Where a Redis will be."""

    def __init__(self):
        self.port = free_port()

    def upstream(self):
        return "standalone 127.0.0.1:%d" % self.port


POWERS = [("CLIENT", "LIST"), ("CLIENT", "PAUSE", "100000", "ALL"), ("CLIENT", "KILL", "SKIPME", "no"), ("CLIENT", "ID"),
          ("PROXY", "INFO"), ("PROXY", "RELOAD"), ("PROXY", "LOCKS"), ("CLIENT", "SETNAME", "me"), ("MULTI",), ("SUBSCRIBE", "c"),
          ("COMMAND", "COUNT"), ("GET", "k"), ("NOSUCH",), ("HELLO", "3")]


@pytest.fixture
def absent():
    return Absent()


@pytest.fixture
def arriving(absent):
    started = []

    def start(*options):
        started.append(RedisServer(*options, port=absent.port))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_nobody_is_trusted_before_a_node_has_spoken(absent, arriving, start_proxy, connect):
    proxy = start_proxy(absent)
    clients = [connect(proxy) for _ in POWERS]
    for client, words in zip(clients, POWERS):
        answer = client(*words)
        assert refused(answer, "UPSTREAM ") and str(answer).endswith("; the request was not sent"), (words, answer)
    assert clients[0]("RESET") == "RESET" and refused(clients[0]("AUTH", "x"), "UPSTREAM ")
    server = arriving("--requirepass", "secret")
    until(lambda: refused(clients[0]("GET", "k"), "NOAUTH"), what="the node's word")
    for client, words in zip(clients, POWERS):
        assert refused(client(*words), "ERR unknown command" if words == ("NOSUCH",) else "NOAUTH"), words
    assert clients[0]("AUTH", "secret") == "OK" and clients[0]("SET", "k", "v") == "OK"
    assert server.client(commands=[("AUTH", "secret")])("GET", "k") == "v"


def test_the_first_request_waits_for_the_node_s_word(absent, arriving, start_proxy, connect):
    """A client that needs no login notices nothing, whatever its first request is."""
    proxy = start_proxy(absent)
    clients = [connect(proxy) for _ in range(5)]
    assert refused(clients[0]("GET", "k"), "UPSTREAM ")
    arriving()
    until(lambda: clients[0]("PING") == "PONG", what="the node")
    assert clients[1]("MSET", *"abcdefghijklmnop") == "OK"
    assert clients[2]("PROXY", "INFO") and clients[3]("CLIENT", "SETNAME", "me") == "OK"
    assert not isinstance(clients[4]("HELLO", "3"), Error)


def test_long_requests_of_nobody_are_not_read(absent, start_proxy, connect):
    """In one argument or in many: no bytes are buffered before a node has said whether it serves clients without login."""
    proxy = start_proxy(absent)
    for head in (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$400000000\r\n", b"*1000000\r\n" + b"$4\r\nMSET\r\n" + b"$1\r\na\r\n" * 300000):
        client = connect(proxy, timeout=10)
        client.send(head)
        assert is_upstream(client.read())
        assert client.read_all() == b""


def test_a_pause_does_not_outlast_a_node_that_is_away(users, start_proxy, connect):
    """No node can be asked for the right then; clients to which the node granted it before may see and end connections."""
    proxy = start_proxy(users)
    operator, root, other = connect(proxy), connect(proxy, commands=[("AUTH", "root", "p")]), connect(proxy)
    it = other("CLIENT", "ID")
    assert operator("GET", "k") is None and root("GET", "k") is None and operator("PROXY", "INFO")
    users.stop()
    until(lambda: is_upstream(operator("GET", "k")), what="the node to be missed")
    for client in (operator, root):
        assert is_upstream(client("CLIENT", "PAUSE", "100000", "ALL"))
    assert is_upstream(root("CLIENT", "UNPAUSE"))
    assert "id=%d " % it in operator("CLIENT", "LIST") and is_upstream(root("CLIENT", "LIST"))
    assert operator("CLIENT", "KILL", "ID", it) == 1


def test_unauthenticated_with_few_rights_have_no_more_while_the_node_is_away(users, start_proxy, connect):
    users.run("ACL", "SETUSER", "default", "-@all", "+get", "+client|id", "~*")
    client = connect(start_proxy(users))
    assert client("GET", "k") is None and refused(client("PROXY", "INFO"), "NOPERM") and refused(client("CLIENT", "LIST"), "NOPERM")
    users.stop()
    until(lambda: is_upstream(client("GET", "k")), what="the node to be missed")
    assert is_upstream(client("CLIENT", "LIST")) and is_upstream(client("CLIENT", "KILL", "SKIPME", "no"))
    assert refused(client("PROXY", "INFO"), "NOPERM")


# ---- the rights to PROXY --------------------------------------------------------------------------------


LOOKS = [("INFO",), ("LOCKS",), ("INCIDENTS",), ("RULES",), ("ADVISE",), ("EXPLAIN", "GET", "k")]


def test_the_proxy_is_looked_into_by_who_may_config(users, start_proxy, connect):
    proxy = start_proxy(users)
    app, viewer, root = (connect(proxy, commands=[("AUTH", user, "p")]) for user in ("app", "viewer", "root"))
    for words in LOOKS:
        assert refused(app("PROXY", *words), "NOPERM PROXY %s" % words[0]), words
        assert not isinstance(viewer("PROXY", *words), Error) and not isinstance(root("PROXY", *words), Error), words
    assert refused(app("PROXY", "RELOAD"), "NOPERM") and refused(viewer("PROXY", "RELOAD"), "NOPERM")
    assert root("PROXY", "RELOAD") == "OK"
    assert not isinstance(app("PROXY", "HELP"), Error)
    assert app("SET", "lock:a", "1", "NX") == "OK" and app("PROXY", "TOKEN", "lock:a") is not None
    users.run("ACL", "SETUSER", "viewer", "-config|get")
    assert refused(viewer("PROXY", "INFO"), "NOPERM")
    assert refused(app("PROXY", "NOSUCH"), "NOPERM") and refused(root("PROXY", "NOSUCH"), "ERR")
    for client in (app, root):
        assert client("MULTI") == "OK"
        assert refused(client("PROXY", "INFO"), "ERR proxy inside MULTI is not supported")
        assert refused(client("EXEC"), "EXECABORT")


@pytest.mark.parametrize("words", [("DELUSER", "root"), ("SETUSER", "root", "off"), ("SETUSER", "root", "<p")], ids=["gone", "off", "password"])
def test_who_is_no_user_any_more_does_not_look_in(users, start_proxy, connect, words):
    """A login that the node refuses is not a node that is away."""
    proxy = start_proxy(users)
    root = connect(proxy, commands=[("AUTH", "root", "p")])
    assert root("PROXY", "INFO") and root("PROXY", "RELOAD") == "OK" and root("GET", "k") is None
    admin = users.client()
    admin("ACL", *words)
    admin("CLIENT", "KILL", "USER", "root")
    until(lambda: refused(root("GET", "k"), WRONG), what="the end of the connection")
    for _ in range(20):
        for command in (("PROXY", "INFO"), ("PROXY", "LOCKS"), ("PROXY", "RELOAD"), ("CLIENT", "LIST"), ("CLIENT", "PAUSE", "10000")):
            assert isinstance(root(*command), Error), command
    assert refused(connect(proxy)("AUTH", "root", "p"), WRONG)


def test_admins_and_the_unix_socket_need_no_right(users, start_proxy, connect, tmp_path):
    path = str(tmp_path / "proxy.sock")
    proxy = start_proxy(users, "admin-user app other", "unixsocket " + path)
    app, viewer, local = connect(proxy), connect(proxy), connect(path)
    assert app("AUTH", "app", "p") == "OK" and viewer("AUTH", "viewer", "p") == "OK" and local("AUTH", "app", "p") == "OK"
    for client in (app, local):
        assert client("PROXY", "RELOAD") == "OK" and client("PROXY", "INFO")
    assert refused(viewer("PROXY", "RELOAD"), "NOPERM")


def test_where_redis_has_no_config_only_admins_look_in(start_redis, start_proxy, connect):
    server = start_redis("--rename-command", "CONFIG", "")
    assert refused(connect(start_proxy(server))("PROXY", "INFO"), "NOPERM")
    assert connect(start_proxy(server, "admin-user default"))("PROXY", "INFO")


def test_who_could_look_in_can_while_redis_is_away(users, start_proxy, connect):
    proxy = start_proxy(users)
    root, viewer, nobody = connect(proxy), connect(proxy), connect(proxy)
    assert root("AUTH", "root", "p") == "OK" and root("PROXY", "INFO") and viewer("AUTH", "viewer", "p") == "OK"
    assert nobody("GET", "k") is None
    users.stop()
    assert not isinstance(root("PROXY", "INFO"), Error) and not isinstance(nobody("PROXY", "INFO"), Error)
    assert refused(viewer("PROXY", "INFO"), "UPSTREAM ")


def test_reload_shows_nobody_what_is_in_a_file(start_redis, start_proxy, connect, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("root:x:$6$hash\n")
    proxy = start_proxy(start_redis())
    with open(proxy.config, "a") as f:
        f.write("include %s\n" % secret)
    answer = connect(proxy)("PROXY", "RELOAD")
    assert refused(answer, "ERR the configuration is wrong") and "root" not in str(answer) and "secret" not in str(answer)
    assert "root:x" in proxy.log()


# ---- what applications need ------------------------------------------------------------------------------

MANUAL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "operations.md")

# What is taken with it, and then given back, on one key.
USES = [
    ([("SET", "1", "NX", "EX", "30")], [("DEL",)]),
    ([("SETNX", "1"), ("EXPIRE", "30")], [("GET",), ("DEL",)]),
    ([("SET", "1", "NX", "PX", "30000"), ("PEXPIRE", "60000"), ("PTTL",)], [("UNLINK",)]),
    ([("INCR",)], [("DECR",), ("DEL",)]),
    ([("HSETNX", "f", "1")], [("HDEL", "f")]),
    ([("RPUSH", "me"), ("LRANGE", "0", "0")], [("LREM", "1", "me")]),
]


def granted_in_manual():
    """(what the scripts need, what list locks need beside that): the words in the manual's table."""
    with open(MANUAL) as f:
        row = next(line for line in f if line.startswith("| lock commands of applications |"))
    own, scripts, lists, *_ = re.findall("`([^`]*)`", row)  # then what newer commands need, and other forms
    return (own + " " + scripts).split(), lists.split()


def granted_in_errors(client, grant):
    """Does what errors name, one after another, until there is none."""
    named = []
    for _ in range(6):
        answer = client("SET", "lock:named", "1", "NX")
        if not isinstance(answer, Error):
            return named
        words = re.findall(r"[+~][^ ,;]+", answer)
        assert refused(answer, "NOPERM") and not set(words) <= set(named), answer
        named += words
        grant(*words)
    raise AssertionError(named)


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_a_user_with_the_manual_s_grants_takes_and_releases_locks(start_redis, start_cluster, start_proxy, connect, kind):
    backend = start_cluster() if kind == "cluster" else start_redis()
    own, lists = granted_in_manual()
    assert {"+eval", "+evalsha", "~lockkeeper:{*}:*"} <= set(own)
    for node in backend.nodes:
        node.run("ACL", "SETUSER", "worker", "on", ">p", "~lock:*", "-@all", *own, *lists,
                 *sorted({"+" + words[0].lower() for use in USES for words in use[0] + use[1]}))
    client = connect(start_proxy(backend, "lock lock:* kind any"), commands=[("AUTH", "worker", "p")])
    for number, (take, release) in enumerate(USES):
        for name in ("lock:{%d}%d" % (n, number) for n in range(8)):
            for command, *words in take:
                assert not isinstance(client(command, name, *words), Error), (command, name)
            assert not isinstance(client("PROXY", "TOKEN", name), Error) and not isinstance(client("PROXY", "LOCK", name), Error)
            for command, *words in release:
                assert not isinstance(client(command, name, *words), Error), (command, name)
    assert refused(client("EVAL", "return 1", "1", "other"), "NOPERM") and refused(client("CONFIG", "GET", "*"), "NOPERM")


def test_the_manual_s_examples_do_what_they_say(start_redis, start_proxy, connect):
    server = start_redis()
    with open(MANUAL) as f:
        examples = [line.split() for line in f if line.startswith("ACL SETUSER ")]
    for words in examples:
        server.run(*words)
    proxy = start_proxy(server)
    app, operator = (connect(proxy, commands=[("AUTH", words[2], "PASSWORD")]) for words in examples)
    for take, release in USES[:3]:
        for command, *words in take + release:
            assert not isinstance(app(command, "lock:a", *words), Error), command
    assert app("SET", "app:a", "1") == "OK" and refused(app("PROXY", "INFO"), "NOPERM")
    assert refused(app("CLIENT", "LIST"), "NOPERM") and refused(app("CLIENT", "PAUSE", "10"), "NOPERM")
    assert operator("PROXY", "INFO") and operator("CLIENT", "LIST") and refused(operator("GET", "app:a"), "NOPERM")
    assert refused(operator("PROXY", "RELOAD"), "NOPERM") and refused(operator("CLIENT", "PAUSE", "10"), "NOPERM")


def test_errors_name_what_the_manual_does(start_redis, start_proxy, connect):
    server = start_redis()
    server.run("ACL", "SETUSER", "worker", "on", ">p", "~lock:*", "-@all", "+set")
    client = connect(start_proxy(server), commands=[("AUTH", "worker", "p")])
    named = granted_in_errors(client, lambda *words: server.run("ACL", "SETUSER", "worker", *words))
    own, lists = granted_in_manual()
    assert set(own) | set(lists) == set(named)


# ---- wrong passwords ----------------------------------------------------------------------------------


def waiting_ports(port):
    """How many connections to or from a port are in TIME_WAIT."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return sum(1 for row in rows if row[3] == "06" and "%04X" % port in (row[1][-4:], row[2][-4:]))


def from_address(proxy, source):
    client = Client(proxy.address)
    client.sock.close()
    client.sock = socket.create_connection(proxy.address, timeout=client.timeout, source_address=(source, 0))
    return client


TOO_MANY = "ERR too many wrong passwords or new logins from this address"


def guess(client, *commands, words=("AUTH", "app"), count=250):
    """Guesses until the guesser is refused. Returns the replies to `commands`, which come in the same write: every 50 ms another
    try is free."""
    replies = client.at_once(*[(*words, "guess%d" % n) for n in range(count)], *commands)
    assert refused(replies[count - 1], TOO_MANY)
    return replies[count:]


def test_who_guesses_learns_nothing_of_who_is_logged_in_elsewhere(users, start_proxy, connect):
    """Over the limit a login is tried that was right from the same address before, and no other."""
    proxy = start_proxy(users, "threads 1")
    app, guesser, neighbour = from_address(proxy, "127.0.0.2"), connect(proxy), connect(proxy)
    assert app("AUTH", "app", "p") == "OK" and neighbour("AUTH", "viewer", "p") == "OK"
    replies = guess(guesser, ("AUTH", "app", "p"), ("HELLO", "3", "AUTH", "app", "p"))
    assert all(refused(reply, TOO_MANY) for reply in replies)
    guess(guesser)
    late, same = connect(proxy), from_address(proxy, "127.0.0.2")
    assert late("AUTH", "viewer", "p") == "OK" and same("AUTH", "root", "p") == "OK"
    users.run("ACL", "SETUSER", "viewer", "<p")
    assert refused(late("AUTH", "viewer", "p"), WRONG)
    assert refused(guess(late, ("AUTH", "viewer", "p"))[0], TOO_MANY)
    for client in (app, same):
        client.close()


def test_guesses_inside_multi_and_watch_count(users, start_proxy, connect):
    proxy = start_proxy(users, "threads 1")
    watcher, queuer = connect(proxy), connect(proxy)
    assert watcher("WATCH", "k") == "OK"
    guess(watcher)
    until(lambda: refused(watcher("AUTH", "app", "wrong"), WRONG), what="another try")
    assert queuer("MULTI") == "OK"
    until(lambda: not refused(queuer("AUTH", "app", "wrong"), "QUEUED") and refused(queuer("AUTH", "app", "wrong"), TOO_MANY), what="the end of the tries")
    assert refused(queuer("EXEC"), "EXECABORT")
    time.sleep(1.5)
    tries = ["p"] if leaves_out_refused_auth(users.client()) else ["wrong", "p"]
    assert queuer("MULTI") == "OK" and all(queuer("AUTH", "app", word) == "QUEUED" for word in tries)
    assert [refused(e, WRONG) or e for e in queuer("EXEC")] == [True, "OK"][-len(tries):] and queuer("ACL", "WHOAMI") == "app"


def test_guesses_of_the_proxy_s_own_password_count(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "requirepass door", "threads 1")
    guesser = connect(proxy)
    replies = guess(guesser, ("AUTH", "door"), ("HELLO", "3", "AUTH", "default", "door"), words=("AUTH",))
    assert all(refused(reply, TOO_MANY) for reply in replies)
    other = from_address(proxy, "127.0.0.2")
    assert other("AUTH", "door") == "OK"
    until(lambda: guesser("AUTH", "door") == "OK", what="another try")
    guess(guesser, words=("AUTH",))
    assert connect(proxy)("AUTH", "door") == "OK"
    other.close()


def test_wrong_passwords_cost_redis_one_connection(users, start_proxy, connect):
    """And the log one line; a client that tries many is refused for a moment, a client of another address is not."""
    proxy = start_proxy(users, "loglevel verbose")
    before = int(users.client()("INFO", "stats").split("total_connections_received:")[1].split()[0])
    waiting = waiting_ports(users.port)
    guesser, friend, other = connect(proxy), connect(proxy), connect(proxy)
    assert friend("AUTH", "root", "p") == "OK"
    answers = [guesser("AUTH", "app", "guess%d" % n) for n in range(300)]
    answers += [guesser("HELLO", "3", "AUTH", "app", "guess%d" % n) for n in range(300)]
    late = [answer for answer in answers if refused(answer, TOO_MANY)]
    assert all(refused(answer, WRONG) for answer in answers if answer not in late)
    assert 300 < len(late) < 501
    assert other("AUTH", "root", "p") == "OK"
    assert int(users.client()("INFO", "stats").split("total_connections_received:")[1].split()[0]) - before < 8
    assert waiting_ports(users.port) - waiting <= 3
    assert proxy.log().lower().count("wrong password") <= 2 and proxy.log().count("WRONGPASS") == 0
    assert "logins_refused:%d" % (600 - len(late)) in friend("PROXY", "INFO", "clients")
    until(lambda: guesser("AUTH", "app", "p") == "OK", what="another try")


def connections(server):
    """(how many there are, how many there have ever been)"""
    text = server.run("INFO")
    return tuple(int(text.split(name + ":")[1].split()[0]) for name in ("connected_clients", "total_connections_received"))


def test_clients_that_come_and_go_share_a_connection(users, start_proxy, connect):
    """Although no client is logged in between two of them, and the password is not kept."""
    proxy = start_proxy(users, "threads 1")
    before = connections(users)
    for _ in range(300):
        with proxy.client(commands=[("AUTH", "app", "p")]) as client:
            assert client("GET", "k") is None
    after = connections(users)
    assert after[0] - before[0] <= 4 and after[1] - before[1] <= 6
    users.run("ACL", "SETUSER", "app", "<p", ">new")
    assert refused(connect(proxy)("AUTH", "app", "p"), WRONG)
    assert connect(proxy, commands=[("AUTH", "app", "new")])("ACL", "WHOAMI") == "app"


def test_invented_passwords_that_are_right_cost_no_connections(users, start_proxy, connect):
    """A user without a password (nopass) accepts any password."""
    client = connect(start_proxy(users, "threads 1"))
    before = connections(users)
    late, began = 0, time.monotonic()
    for n in range(3000):
        answer = client("AUTH", "default", "invented%d" % n)
        late += refused(answer, TOO_MANY)
        assert (answer == "OK" or refused(answer, TOO_MANY)) and client("GET", "k") is None
    some = 500 + 20 * (time.monotonic() - began) + 100  # 500 new ones, and 20 a second
    assert late > 3000 - some
    assert connections(users)[1] - before[1] < some
    until(lambda: connections(users)[0] - before[0] < 80, timeout=30, what="the end of the connections that nobody has")
    until(lambda: client("AUTH", "default", "another") == "OK", what="a new login")


def test_a_login_that_was_revoked_is_not_tried_for_each_request(users, start_proxy, connect):
    proxy = start_proxy(users)
    client = connect(proxy, commands=[("AUTH", "app", "p")])
    assert client("SET", "k", "v") == "OK"
    users.run("ACL", "SETUSER", "app", "off")
    watcher = users.client()
    assert watcher("CLIENT", "KILL", "USER", "app") >= 1
    before = int(watcher("INFO", "stats").split("total_connections_received:")[1].split()[0])
    until(lambda: refused(client("GET", "k"), WRONG), what="the end of the connection")
    for _ in range(200):
        assert refused(client("GET", "k"), WRONG)
    assert int(watcher("INFO", "stats").split("total_connections_received:")[1].split()[0]) - before < 6
    end = time.monotonic() + 3  # a connection a second is tried
    while time.monotonic() < end:
        assert refused(client("GET", "k"), WRONG)
    assert proxy.log().count("WRONGPASS") == 1
    users.run("ACL", "SETUSER", "app", "on")
    until(lambda: client("GET", "k") == "v", what="the login to be right again")


# ---- the proxy's own login ------------------------------------------------------------------------------


@pytest.fixture
def guarded(start_redis):
    server = start_redis()
    server.run("ACL", "SETUSER", "proxy", "on", ">secret", "~*", "&*", "+@all")
    server.run("ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all")
    return server


LOGIN = ["upstream-user proxy", "upstream-password secret"]


@pytest.mark.parametrize("lines", [["share-upstream-user no"], ["bind 0.0.0.0"]], ids=["no", "any address"])
def test_clients_log_in_for_themselves(guarded, start_proxy, connect, lines):
    proxy = start_proxy(guarded, *LOGIN, *lines)
    client, other = connect(proxy), connect(proxy)
    assert client("ACL", "WHOAMI") == "default"
    guarded.run("ACL", "SETUSER", "default", "off")
    time.sleep(1.2)
    stranger = connect(proxy)
    until(lambda: refused(stranger("ACL", "WHOAMI"), "NOAUTH Authentication required."), what="a refusal")
    assert "share-upstream-user yes" in stranger("GET", "k")
    assert other("AUTH", "app", "p") == "OK" and other("ACL", "WHOAMI") == "app"
    assert other("SELECT", "3") == "OK" and other("SET", "lock:a", "1", "NX") == "OK" and other("DEL", "lock:a") == 1
    assert other("RESET") == "RESET" and refused(other("ACL", "WHOAMI"), "NOAUTH")
    assert refused(other("CLIENT", "LIST"), "NOAUTH") and refused(other("PROXY", "INFO"), "NOAUTH")


@pytest.mark.parametrize("lines", [[], ["bind 0.0.0.0", "share-upstream-user yes"]], ids=["loopback", "yes"])
def test_clients_may_be_the_proxy_s_user(guarded, start_proxy, connect, lines):
    client = connect(start_proxy(guarded, *LOGIN, *lines))
    assert client("ACL", "WHOAMI") == "proxy"
    assert client("AUTH", "app", "p") == "OK" and client("ACL", "WHOAMI") == "app"
    assert client("RESET") == "RESET" and client("ACL", "WHOAMI") == "proxy"


def test_with_requirepass_clients_are_the_proxy_s_user(guarded, start_proxy, connect):
    proxy = start_proxy(guarded, *LOGIN, "bind 0.0.0.0", "requirepass door")
    client = connect(proxy)
    assert refused(client("ACL", "WHOAMI"), "NOAUTH")
    assert client("AUTH", "door") == "OK" and client("ACL", "WHOAMI") == "proxy"
    refusing = start_proxy(guarded, *LOGIN, "share-upstream-user no", "requirepass door", wait=False)
    refusing.expected = False
    until(lambda: not refusing.running(), what="the end")
    assert "share-upstream-user no: expected no requirepass" in refusing.log()


# ---- protected mode ------------------------------------------------------------------------------


def own_address():
    """An address of this machine that is not loopback. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other address than loopback")
        return s.getsockname()[0]


def assert_closed(client):
    with pytest.raises(Closed):
        client.read()


@pytest.mark.parametrize("why", ["protected", "redis says no", "proxy says no", "requirepass", "redis has a password"])
def test_protected_mode_counts_at_the_proxy_too(start_redis, start_proxy, connect, why):
    """A Redis that its protected mode keeps to its own machine is not open to the net through the proxy."""
    options = {"redis says no": ["--protected-mode", "no"], "redis has a password": ["--requirepass", "pw"]}
    lines = {"proxy says no": ["protected-mode no"], "requirepass": ["requirepass pw"]}
    address = own_address()
    proxy = start_proxy(start_redis(*options.get(why, [])), "bind %s 127.0.0.1" % address, *lines.get(why, []))
    near = connect(proxy)
    if "pass" in why:
        assert near("AUTH", "pw") == "OK"
    assert near("SETNX", "lock:near", "1") == 1
    far = connect((address, proxy.port))
    if why == "protected":
        assert far.read().startswith("DENIED ")
        assert_closed(far)
        assert "is refused: Redis is in protected mode" in proxy.log()
        assert near("PING") == "PONG"
    elif "pass" in why:
        assert far("PING").startswith("NOAUTH") and far("AUTH", "pw") == "OK" and far("SETNX", "lock:far", "1") == 1
    else:
        assert far("SETNX", "lock:far", "1") == 1


def test_protected_mode_of_a_redis_that_comes_later(start_redis, start_proxy, connect):
    """Clients of other machines that came before Redis could be asked are turned out."""
    address, redis = own_address(), start_redis()
    redis.kill()
    proxy = start_proxy(redis, "bind %s 127.0.0.1" % address)
    far, near = connect((address, proxy.port)), connect(proxy)
    redis.start()
    until(lambda: near("PING") == "PONG", 10, "the node's start")
    assert_closed(far)
    assert connect((address, proxy.port)).read().startswith("DENIED ")
