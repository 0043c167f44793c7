"""Reloads: what they change, what they leave for a restart and report, and PROXY CONFIG, which shows what is in force."""

import json
import os
import re
import signal
import socket

import pytest

from resp import Client, Closed, Error, encode
from servers import RedisServer, free_port, until


@pytest.fixture(scope="module")
def server():
    server = RedisServer()
    yield server
    server.stop()


def reloaded(proxy, *lines, client):
    """Replaces the lines that begin with the same directives, or adds them, and reloads; returns the reply."""
    names = {line.split()[0] for line in lines}
    with open(proxy.config) as f:
        kept = [line for line in f.read().splitlines() if line.split()[:1] and line.split()[0] not in names]
    with open(proxy.config, "w") as f:
        f.writelines(line + "\n" for line in kept + list(lines))
    return client("PROXY", "RELOAD")


def in_force(client, pattern="*"):
    reply = client("PROXY", "CONFIG", pattern)
    return dict(zip(reply[::2], reply[1::2]))


def restart_needed(client):
    return int(re.search(r"^restart_needed:(\d+)", client("PROXY", "INFO", "proxy"), re.M)[1])


# ---- what needs none --------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_limits_change_at_once(server, start_proxy, connect, threads):
    proxy = start_proxy(server, "threads %d" % threads)
    client = connect(proxy)
    big = b"*2\r\n$3\r\nGET\r\n$2000000\r\n"
    assert reloaded(proxy, "proto-max-bulk-len 1mb", "maxclients 3", "timeout 1", client=client) == "OK"
    with Client(proxy.address) as c:
        c.send(big)
        assert "invalid bulk length" in c.read()
    many = [socket.create_connection(proxy.address) for _ in range(6)]
    try:
        full = [s for s in many if s.recv(100).startswith(b"-ERR max number of clients")]  # the others are idle, and closed
        assert full
    finally:
        for s in many:
            s.close()
    client = connect(proxy)
    assert reloaded(proxy, "maxclients 100", "timeout 0", "proto-max-bulk-len 8mb", client=client) == "OK"
    clients = [connect(proxy) for _ in range(5)]
    assert [c("PING") for c in clients] == ["PONG"] * 5
    assert in_force(client, "maxclients") == {"maxclients": "100"} and restart_needed(client) == 0


def test_idle_clients_leave(server, start_proxy, connect):
    proxy = start_proxy(server)
    client, idle = connect(proxy), connect(proxy)
    assert idle("PING") == "PONG"
    assert reloaded(proxy, "timeout 1", client=client) == "OK"
    with pytest.raises(Closed):
        idle.read()


def test_the_nodes_time_changes(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server, "upstream-timeout 60s")
    client = connect(proxy)
    assert client("PING") == "PONG" and client("GET", "k") is None
    assert reloaded(proxy, "upstream-timeout 300ms", client=client) == "OK"
    server.pause()
    try:
        assert "did not answer" in client("GET", "k")
    finally:
        server.resume()
    assert in_force(client, "upstream-timeout") == {"upstream-timeout": "300ms"}


def test_unread_output_is_limited_anew(server, start_proxy, connect):
    proxy = start_proxy(server)
    client, greedy = connect(proxy), connect(proxy)
    assert client("SET", "big", "x" * 1000000) == "OK"
    assert reloaded(proxy, "client-output-buffer-limit normal 2mb 0 0", client=client) == "OK"
    greedy.send(encode("GET", "big") * 60)
    until(lambda: "client-output-buffer-limit" in proxy.log(), what="the end of who does not read")
    assert client("PING") == "PONG"


def test_a_password_is_replaced(server, start_proxy, connect):
    proxy = start_proxy(server, "requirepass first-s3cret", "threads 2")
    client = connect(proxy)
    assert client("AUTH", "first-s3cret") == "OK"
    assert reloaded(proxy, "requirepass second-s3cret", client=client) == "OK"
    assert client("GET", "k") is None, "who is in stays in, as in Redis"
    assert isinstance(connect(proxy)("AUTH", "first-s3cret"), Error)
    assert connect(proxy)("AUTH", "second-s3cret") == "OK"
    assert reloaded(proxy, 'requirepass ""', client=client) == "OK, and these need a restart: requirepass"
    assert "NOAUTH" in connect(proxy)("GET", "k")
    assert in_force(client, "requirepass") == {"requirepass": "(set)"}
    assert "s3cret" not in proxy.log()


def test_the_logs_form_changes(server, start_proxy, connect):
    proxy = start_proxy(server)
    client = connect(proxy)
    assert reloaded(proxy, "log-format json", "loglevel debug", client=client) == "OK"
    connect(proxy)("PING")
    until(lambda: any(line.startswith("{") and "connected from" in json.loads(line)["message"] for line in proxy.log().splitlines()),
          what="a line of the new form")


# ---- what needs one -----------------------------------------------------------------------------------------


def test_what_needs_a_restart_is_named(server, start_proxy, connect):
    """By name in the reply and in the log, not by value; until the file says again what is in force."""
    proxy = start_proxy(server)
    client, before = connect(proxy), open(proxy.config).read()
    now, other = in_force(client), str(free_port())
    reply = reloaded(proxy, "port " + other, "threads 7", "upstream-user s3cret", "upstream-password s3cret", "timeout 77", client=client)
    assert reply == "OK, and these need a restart: port threads upstream-user upstream-password"
    assert "These directives have changed and need a restart: port threads upstream-user upstream-password" in proxy.log()
    assert restart_needed(client) == 4
    values = in_force(client)
    assert (values["port"], values["threads"], values["timeout"], values["upstream-password"]) == (now["port"], now["threads"], "77", "")
    assert "s3cret" not in proxy.log()
    with open(proxy.config, "w") as f:
        f.write(before)
    proxy.signal(signal.SIGHUP)
    until(lambda: restart_needed(client) == 0, what="the reload")
    assert in_force(client)["timeout"] == "0"


def test_a_wrong_file_changes_nothing(server, start_proxy, connect):
    proxy = start_proxy(server, "timeout 100")
    client = connect(proxy)
    before = client("PROXY", "CONFIG")
    reply = reloaded(proxy, "timeout 5", "lock secret-name:* lease long", "maxclients 0", "loglevel debug", client=client)
    assert isinstance(reply, Error) and "nothing was changed" in reply and "secret-name" not in reply
    assert client("PROXY", "CONFIG") == before
    log = proxy.log()
    assert "nothing was changed: %s:" % proxy.config in log
    assert "option lease 'long'" in log and "maxclients '0'" in log, "both are named"


# ---- PROXY CONFIG ---------------------------------------------------------------------------------------------


def test_what_is_in_force(server, start_proxy, connect):
    proxy = start_proxy(server, "lock a:* lease 5s", "lock b:* mode audit", "requirepass s3cret", "upstream-timeout 2500ms",
                        "client-output-buffer-limit normal 64mb 16mb 60")
    client = connect(proxy)
    assert "NOAUTH" in client("PROXY", "CONFIG")
    assert client("AUTH", "s3cret") == "OK"
    values = in_force(client)
    assert values["port"] == str(proxy.port) and values["bind"] == "127.0.0.1"
    assert values["requirepass"] == "(set)" and values["upstream-password"] == ""
    assert values["upstream-timeout"] == "2500ms" and values["proto-max-bulk-len"] == str(512 << 20)
    limits = (64 << 20, 16 << 20, 32 << 20, 8 << 20)
    assert values["client-output-buffer-limit"] == "normal %d %d 60 pubsub %d %d 60" % limits
    assert [line.split()[0] for line in values["lock"].split("\n")] == ["a:*", "b:*"]
    assert "include" not in values and "s3cret" not in str(values)
    assert list(in_force(client, "TLS-session-cache-*")) == ["tls-session-cache-size", "tls-session-cache-timeout"]
    assert client("PROXY", "CONFIG", "nosuch") == [] == client("PROXY", "CONFIG", "x" * 5000)
    assert isinstance(client("PROXY", "CONFIG", "a", "b"), Error)
    assert "s3cret" not in str(client("PROXY", "CONFIG", "requirepass"))
    client("HELLO", "3")
    assert client("PROXY", "CONFIG", "port") == {"port": str(proxy.port)}
    with open("/proc/%d/cmdline" % proxy.pid) as f:
        named = set(re.findall(r"^  ([a-z-]+) ", os.popen("%s --help" % f.read().split("\0")[0]).read(), re.M))
    client("HELLO", "2")
    assert named - {"include"} == set(in_force(client))


def test_who_may_look(start_redis, start_proxy, connect):
    """Other ways to get the rights to PROXY."""
    server = start_redis()
    server.run("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config")
    server.run("ACL", "SETUSER", "eye", "on", ">pw", "~*", "+config|get")
    proxy = start_proxy(server)
    app, eye = connect(proxy), connect(proxy)
    assert app("AUTH", "app", "pw") == eye("AUTH", "eye", "pw") == "OK"
    assert app("PROXY", "CONFIG").startswith("NOPERM")
    assert eye("PROXY", "CONFIG", "threads")[0] == "threads"
