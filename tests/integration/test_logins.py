"""Who gets in: passwords that were revoked, a Redis that nobody has asked yet, wrong passwords by the thousand, and who
may look into the proxy.
"""

import time

import pytest

from resp import Error
from servers import RedisServer, free_port, until

WRONG = "WRONGPASS invalid username-password pair or user is disabled."


def refused(answer, words):
    return isinstance(answer, Error) and str(answer).startswith(words)


# ---- revoked credentials ------------------------------------------------------------------------


REVOKED = {
    "another password": ["ACL", "SETUSER", "alice", "<old", ">new"],
    "off": ["ACL", "SETUSER", "alice", "off"],
}


@pytest.mark.parametrize("way", REVOKED)
@pytest.mark.parametrize("words", [("AUTH", "alice", "old"), ("HELLO", "3", "AUTH", "alice", "old")], ids=["AUTH", "HELLO"])
def test_a_revoked_password_lets_nobody_in(start_redis, start_proxy, connect, way, words):
    """While who has logged in with it before is still there, and stays, as at a Redis itself."""
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
    """Who was there before stays, as at a Redis itself; RESET makes him one who comes."""
    server = start_redis()
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "+@all")
    proxy = start_proxy(server)
    old = connect(proxy)
    assert old("SET", "k", "v") == "OK"
    time.sleep(1.2)  # as long as the proxy takes to ask for those who have come
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
    """Whoever may do as little as GET, whatever he logs in with, and in whichever database and mode."""
    server = start_redis()
    server.run("ACL", "SETUSER", "little", "on", ">p", "~*", "-@all", "+get", "+select", "+client|tracking")
    server.run("ACL", "SETUSER", "root", "on", ">p", "+@all")
    admin = server.client(commands=[("AUTH", "root", "p")])
    admin("ACL", "SETUSER", "default", "-@all", "+get", "+select", "+config|get")
    proxy = start_proxy(server)
    for words in (("AUTH", "little", "p"), ("HELLO", "3", "AUTH", "little", "p"), ("HELLO", "2", "AUTH", "little", "p", "SETNAME", "me")):
        client = connect(proxy)
        assert not isinstance(client(*words), Error) and client("GET", "k") is None
        assert client("SELECT", "2") == "OK" and client("GET", "k") is None
        assert client("AUTH", "little", "p") == "OK" and client("GET", "k") is None
    tracker = connect(proxy, commands=[("HELLO", "3", "AUTH", "little", "p"), ("CLIENT", "TRACKING", "ON")])
    assert tracker("AUTH", "little", "p") == "OK" and tracker("GET", "k") is None
    assert admin("ACL", "LOG") == []


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
    """Who needs no login notices nothing of it, whatever he begins with."""
    proxy = start_proxy(absent)
    clients = [connect(proxy) for _ in range(5)]
    assert refused(clients[0]("GET", "k"), "UPSTREAM ")
    arriving()
    until(lambda: clients[0]("PING") == "PONG", what="the node")
    assert clients[1]("MSET", *"abcdefghijklmnop") == "OK"
    assert clients[2]("PROXY", "INFO") and clients[3]("CLIENT", "SETNAME", "me") == "OK"
    assert not isinstance(clients[4]("HELLO", "3"), Error)


# ---- who may look into the proxy ------------------------------------------------------------------------


LOOKS = [("INFO",), ("LOCKS",), ("INCIDENTS",), ("RULES",), ("ADVISE",), ("EXPLAIN", "GET", "k")]


@pytest.fixture
def users(start_redis):
    server = start_redis()
    server.run("ACL", "SETUSER", "app", "on", ">p", "~*", "+@all", "-config")
    server.run("ACL", "SETUSER", "viewer", "on", ">p", "~*", "+@all", "-config", "+config|get")
    server.run("ACL", "SETUSER", "root", "on", ">p", "~*", "+@all")
    return server


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
    for client in (app, root):
        assert client("MULTI") == "OK"
        assert refused(client("PROXY", "INFO"), "ERR proxy inside MULTI is not supported")
        assert refused(client("EXEC"), "EXECABORT")


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


# ---- wrong passwords ----------------------------------------------------------------------------------


def test_wrong_passwords_cost_redis_one_connection(users, start_proxy, connect):
    """And the log one line; who tries many is refused for a moment, and whose neighbour he is not."""
    proxy = start_proxy(users, "loglevel verbose")
    before = int(users.client()("INFO", "stats").split("total_connections_received:")[1].split()[0])
    guesser, friend, other = connect(proxy), connect(proxy), connect(proxy)
    assert friend("AUTH", "root", "p") == "OK"
    answers = [guesser("AUTH", "app", "guess%d" % n) for n in range(300)]
    answers += [guesser("HELLO", "3", "AUTH", "app", "guess%d" % n) for n in range(300)]
    late = [answer for answer in answers if refused(answer, "ERR too many wrong passwords from this address")]
    assert all(refused(answer, WRONG) for answer in answers if answer not in late)
    assert 300 < len(late) < 501
    assert other("AUTH", "root", "p") == "OK"
    assert int(users.client()("INFO", "stats").split("total_connections_received:")[1].split()[0]) - before < 8
    assert proxy.log().lower().count("wrong password") <= 2 and proxy.log().count("WRONGPASS") == 0
    assert "logins_refused:%d" % (600 - len(late)) in friend("PROXY", "INFO", "clients")
    until(lambda: guesser("AUTH", "app", "p") == "OK", what="another try")


def test_a_login_that_was_revoked_is_not_tried_for_each_request(users, start_proxy, connect):
    client = connect(start_proxy(users), commands=[("AUTH", "app", "p")])
    assert client("SET", "k", "v") == "OK"
    users.run("ACL", "SETUSER", "app", "off")
    watcher = users.client()
    assert watcher("CLIENT", "KILL", "USER", "app") >= 1
    before = int(watcher("INFO", "stats").split("total_connections_received:")[1].split()[0])
    until(lambda: refused(client("GET", "k"), WRONG), what="the end of the connection")
    for _ in range(200):
        assert refused(client("GET", "k"), WRONG)
    assert int(watcher("INFO", "stats").split("total_connections_received:")[1].split()[0]) - before < 6
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
