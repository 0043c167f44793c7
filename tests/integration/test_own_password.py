"""The proxy's own password at Redis changes while clients are served: from the directive, a file or a command's output."""

import pathlib
import re
import threading

import pytest

from servers import until
from test_reload import reloaded

USER = ("on", "~*", "&*", "+@all")


def auths(server):
    """How many AUTHs the server has got."""
    found = re.search(r"cmdstat_auth:calls=(\d+)", server.run("INFO", "commandstats"))
    return int(found[1]) if found else 0


def connections(server, user="app"):
    return {line.split()[0] for line in server.run("CLIENT", "LIST").splitlines() if " user=%s " % user in line}


def drop_connections(server):
    server.run("CLIENT", "KILL", "USER", "app")


class Secret:
    """A password, and the directive that names it."""

    def __init__(self, way, path):
        self.way, self.path = way, pathlib.Path(str(path))

    def line(self, word, servers="upstream"):
        self.path.write_text(word + "\n")
        return {"directive": "%s-password %s" % (servers, word), "file": "%s-password-file %s" % (servers, self.path),
                "command": '%s-password-command "cat %s"' % (servers, self.path)}[self.way]


def reload(proxy, client, line):
    with open(proxy.config) as f:
        kept = [old for old in f.read().splitlines() if not re.match("upstream-password(-file|-command)? ", old)]
    with open(proxy.config, "w") as f:
        f.write("\n".join(kept + [line]) + "\n")
    assert client("PROXY", "RELOAD") == "OK"


@pytest.mark.parametrize("way", ["directive", "file", "command"])
def test_in_place_and_no_request_is_lost(start_redis, start_proxy, connect, tmp_path, way):
    server = start_redis()
    server.run("ACL", "SETUSER", "app", *USER, ">first-s3cret")
    secret = Secret(way, tmp_path / "password")
    proxy = start_proxy(server, "upstream-user app", secret.line("first-s3cret"), "loglevel debug")
    client, busy, holder, queues = (connect(proxy) for _ in range(4))
    assert holder("SETNX", "lock:k", "1") == 1 and queues("MULTI") == "OK" and queues("SET", "k", "v") == "QUEUED"
    wrong, over = [], threading.Event()

    def load():
        while not over.is_set():
            reply = busy("GET", "k")
            if reply not in (None, "v"):
                wrong.append(reply)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: connections(server), what="connections of the proxy's user")
        before, asked = connections(server), auths(server)
        server.run("ACL", "SETUSER", "app", ">second-s3cret")
        reload(proxy, client, secret.line("second-s3cret"))
        until(lambda: auths(server) > asked, what="the new login")
        server.run("ACL", "SETUSER", "app", "<first-s3cret")
        assert before <= connections(server), "no connection was closed for it"
        assert queues("EXEC") == ["OK"], "a transaction keeps its connection"
        assert connect(proxy)("GET", "k") == "v"
    finally:
        over.set()
        thread.join()
    assert not wrong
    drop_connections(server)
    until(lambda: client("GET", "k") == "v", what="new connections, with the new password")
    assert holder("DEL", "lock:k") == 1
    assert "s3cret" not in proxy.log() and "s3cret" not in repr(client("PROXY", "CONFIG", "*"))


def test_a_change_is_found_without_a_reload(start_redis, start_proxy, connect, tmp_path):
    """At the interval, and when Redis refuses the password that the proxy has."""
    server = start_redis()
    server.run("ACL", "SETUSER", "app", *USER, ">first")
    by_time, by_refusal = Secret("command", tmp_path / "a"), Secret("file", tmp_path / "b")
    timed = start_proxy(server, "upstream-user app", by_time.line("first"), "upstream-password-refresh 100ms")
    refused = start_proxy(server, "upstream-user app", by_refusal.line("first"), "upstream-password-refresh 1d")
    clients = connect(timed), connect(refused)
    assert [c("GET", "k") for c in clients] == [None, None]
    asked = auths(server)
    server.run("ACL", "SETUSER", "app", ">second")
    by_time.line("second")
    until(lambda: auths(server) > asked, what="the login with what the command says now")
    by_refusal.line("second")
    server.run("ACL", "SETUSER", "app", "<first")
    drop_connections(server)
    for client in clients:
        until(lambda: client("GET", "k") is None, what="a login with the new password")


def test_a_node_that_knows_only_the_password_before(start_cluster, start_proxy, connect):
    """Users are changed node by node: until the last one has heard of the new password, the proxy knows both."""
    cluster = start_cluster()
    for node in cluster.nodes:
        node.run("ACL", "SETUSER", "app", *USER, ">first")
    proxy = start_proxy(cluster, "upstream-user app", "upstream-password first")
    client = connect(proxy)
    keys = {cluster.node_of("k%d" % i): "k%d" % i for i in range(50)}
    assert len(keys) == 3 and all(client("SET", key, "v") == "OK" for key in keys.values())
    for node in cluster.nodes[1:]:
        node.run("ACL", "SETUSER", "app", "resetpass", ">second")
    reload(proxy, client, "upstream-password second")
    for node in cluster.nodes:
        until(lambda: auths(node) > 1, what="the new login at each node")
        drop_connections(node)
    for key in keys.values():
        until(lambda: client("GET", key) == "v", what="each node")
    assert client("SETNX", "lock:k", "1") == 1 and client("DEL", "lock:k") == 1


def test_the_user_changes(start_redis, start_proxy, connect):
    """Open connections log in as the new user, and the old one may go."""
    server = start_redis()
    server.run("ACL", "SETUSER", "app", *USER, ">first")
    proxy = start_proxy(server, "upstream-user app", "upstream-password first")
    client, holder = connect(proxy), connect(proxy)
    assert holder("SETNX", "lock:k", "1") == 1 and client("GET", "k") is None
    before = connections(server)
    server.run("ACL", "SETUSER", "next", *USER, ">second")
    assert reloaded(proxy, "upstream-user next", "upstream-password second", client=client) == "OK"
    until(lambda: before <= connections(server, "next"), what="the new login over the same connections")
    server.run("ACL", "DELUSER", "app")
    assert client("SET", "k", "v") == "OK" and holder("DEL", "lock:k") == 1
    assert client("ACL", "WHOAMI") == "next" == connect(proxy)("ACL", "WHOAMI")


@pytest.mark.parametrize("way", ["directive", "file", "command"])
def test_at_witnesses(start_redis, start_proxy, connect, tmp_path, way):
    """The password changes, and then the user: locks under quorum go on meanwhile."""
    server, witnesses = start_redis(), [start_redis() for _ in range(3)]
    for w in witnesses:
        w.run("ACL", "SETUSER", "app", *USER, ">first-s3cret")
    secret = Secret(way, tmp_path / "password")
    proxy = start_proxy(server, "witness " + " ".join("%s:%d" % w.address for w in witnesses), "witness-user app",
                        secret.line("first-s3cret", "witness"), "witness-timeout 5s", "lock lock:* quorum yes")
    client = connect(proxy)
    for w in witnesses:
        assert client("PROXY", "WITNESS", "TRUST", "%s:%d" % w.address) == "OK"

    def goes_on():
        return [client("SETNX", "lock:k", "1"), client("DEL", "lock:k")] == [1, 1]

    assert goes_on()
    before = [(w, connections(w), auths(w)) for w in witnesses]
    for w in witnesses:
        w.run("ACL", "SETUSER", "app", ">second-s3cret")
    assert reloaded(proxy, secret.line("second-s3cret", "witness"), client=client) == "OK"
    until(lambda: all(auths(w) > asked for w, _, asked in before), what="the new login")
    for w, known, _ in before:
        w.run("ACL", "SETUSER", "app", "<first-s3cret")
        assert known <= connections(w), "no connection was closed for it"
    assert goes_on()
    for w in witnesses:
        drop_connections(w)
        w.run("ACL", "SETUSER", "next", *USER, ">second-s3cret")
    until(goes_on, what="new connections, with the new password")
    assert reloaded(proxy, "witness-user next", client=client) == "OK"
    until(lambda: all(connections(w, "next") for w in witnesses), what="the new user")
    for w in witnesses:
        w.run("ACL", "DELUSER", "app")
    assert goes_on()
    assert "s3cret" not in proxy.log() and "s3cret" not in repr(client("PROXY", "CONFIG", "*"))


def test_what_can_not_be_read(start_redis, start_proxy, connect, tmp_path):
    """A start says so and fails; later the password in use stays."""
    server = start_redis("--requirepass", "right")
    path = tmp_path / "password"
    line = 'upstream-password-command "cat %s"' % path
    for wrong, said in ((line, "upstream-password-command: it exited with status 1"),
                        ("upstream-password-file %s" % path, "No such file or directory"),
                        ('upstream-password-command "echo a; echo b"', "expected a password of one line")):
        proxy = start_proxy("standalone %s:%d" % server.address, wrong, wait=False)
        until(lambda: not proxy.running(), what="the end of the start")
        assert said in proxy.log() and proxy.process.returncode == 1
        proxy.expected = False
    path.write_text("right")
    proxy = start_proxy("standalone %s:%d" % server.address, line, "upstream-password-refresh 100ms")
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    path.unlink()
    until(lambda: "password for Redis stays as it is: " in proxy.log(), what="a word in the log")
    assert client("GET", "k") == "v"
