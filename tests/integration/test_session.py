"""A session from its client's view: its user, its database, its name, and its end."""

import socket
import subprocess

import pytest

import oracle as bytes_oracle
from resp import Closed, Error, encode
from servers import RECORDS, guard_record, valkey


def is_error(reply, text=""):
    return isinstance(reply, Error) and text in reply


def test_ping_echo(client):
    assert client("PING") == "PONG"
    assert client("ping", "hello") == "hello"
    assert client("ECHO", b"\0\r\n\xff") == b"\0\r\n\xff".decode("utf-8", "surrogateescape")
    assert client("PING", "a", "b") == "ERR wrong number of arguments for 'ping' command"


def test_quit(client):
    client.send(encode("SET", "q", "1") + encode("QUIT") + encode("SET", "q", "2"))
    assert client.read() == "OK"
    assert client.read() == "OK"
    with pytest.raises(Closed):
        client.read()


def test_trap_26_quit_is_the_last_that_is_served(client, connect, proxy, direct):
    client.send(encode("SET", "q", "1") + encode("QUIT") + encode("SET", "q", "2"))
    client.read_all()
    assert direct("GET", "q") == "1"


@pytest.mark.parametrize("protocol", [2, 3])
def test_hello(client, connect, oracle, protocol):
    reply, theirs = client("HELLO", protocol), connect(oracle)("HELLO", protocol)
    if protocol == 2:
        reply, theirs = (dict(zip(r[0::2], r[1::2])) for r in (reply, theirs))
    assert list(reply) == list(theirs)
    assert reply["proto"] == protocol
    assert reply["server"] == ("valkey" if valkey() else "redis")
    assert isinstance(reply["id"], int)
    assert reply["role"] == "master"
    for name in ("version", "modules", "server"):
        assert reply[name] == theirs[name]
    assert client.raw("GET", "none") == (b"$-1\r\n" if protocol == 2 else b"_\r\n")
    assert client.raw("GETDEL", "lock:none") == (b"$-1\r\n" if protocol == 2 else b"_\r\n")


def test_hello_back_and_forth(client):
    for protocol in (3, 2, 3, 2):
        client("HELLO", protocol)
        assert client.raw("HGETALL", "none")[:1] == (b"*" if protocol == 2 else b"%")


def test_hello_errors(client, connect, oracle):
    single = connect(oracle)
    for command in (["4"], ["1"], ["abc"], ["3", "NOSUCH"], ["3", "AUTH", "a"], ["3", "SETNAME"],
                    ["3", "AUTH", "nobody", "wrong"], ["3", "SETNAME", "with space"]):
        assert client.raw("HELLO", *command) == single.raw("HELLO", *command), command
        assert client.raw("GET", "none") == single.raw("GET", "none"), command


def test_hello_with_name(client):
    client("HELLO", "3", "SETNAME", "worker")
    assert client("CLIENT", "GETNAME") == "worker"


def test_hello_without_version_changes_nothing(client):
    client("HELLO", "3")
    assert client("HELLO")["proto"] == 3
    assert client.raw("GET", "none") == b"_\r\n"


def test_protocol_of_lock_replies(client):
    """Replies of rewritten commands have the client's protocol too."""
    assert client.raw("SET", "lock:p", "1", "NX") == b"+OK\r\n"
    assert client.raw("SET", "lock:p", "1", "NX") == b"$-1\r\n"
    client("HELLO", "3")
    assert client.raw("SET", "lock:p", "1", "NX") == b"_\r\n"
    assert client.raw("SETNX", "lock:p", "1") == b":0\r\n"
    assert client.raw("DEL", "lock:p") == b":1\r\n"
    assert client.raw("GET", "lock:p") == b"_\r\n"


def test_trap_21_select_is_a_sessions_own(farm, connect):
    backend = farm.backend("standalone")
    backend.flush()
    proxy = farm.proxy("standalone")
    one, two = connect(proxy), connect(proxy)
    assert one("SELECT", "3") == "OK"
    for c, value in ((one, "in three"), (two, "in zero")):
        assert c("SET", "k", value) == "OK"
        assert c("SET", "lock:k", value, "NX") == "OK"
    for _ in range(3):
        one.send(encode("GET", "k") + encode("GET", "lock:k"))
        two.send(encode("GET", "k") + encode("GET", "lock:k"))
        assert [one.read(), one.read()] == ["in three"] * 2
        assert [two.read(), two.read()] == ["in zero"] * 2
    assert two("DEL", "lock:k") == 1
    assert one("GET", "lock:k") == "in three"
    assert one("DEL", "lock:k") == 1
    assert connect(proxy)("GET", "k") == "in zero"
    one.send(encode("SELECT", "0") + encode("GET", "k") + encode("SELECT", "3") + encode("GET", "k"))
    assert [one.read() for _ in range(4)] == ["OK", "in zero", "OK", "in three"]


@pytest.mark.parametrize("argument", ["16", "-1", "abc", "99999999999999999999", "0x1", "", "1"])
def test_select_errors(client, connect, oracle, backend, argument):
    single = connect(oracle if backend.kind == "standalone" else backend.nodes[0])
    assert client.raw("SELECT", argument) == single.raw("SELECT", argument)
    assert client("GET", "none") is None


def test_client_name_and_id(proxy, connect):
    one = connect(proxy)
    assert one("PING") == "PONG"  # it has been accepted before the other one comes
    two = connect(proxy)
    assert one("CLIENT", "GETNAME") is None
    assert one("CLIENT", "SETNAME", "first") == "OK"
    assert one("CLIENT", "GETNAME") == "first"
    assert two("CLIENT", "GETNAME") is None
    assert is_error(one("CLIENT", "SETNAME", "with space"), "cannot contain spaces")
    assert one("CLIENT", "GETNAME") == "first"
    assert one("CLIENT", "SETNAME", "") == "OK"
    assert one("CLIENT", "GETNAME") is None
    assert isinstance(one("CLIENT", "ID"), int)
    assert one("CLIENT", "ID") == one("CLIENT", "ID") != two("CLIENT", "ID")
    assert two("CLIENT", "ID") > one("CLIENT", "ID")


def test_client_info(client):
    client("CLIENT", "SETNAME", "worker")
    info = dict(field.split("=", 1) for field in client("CLIENT", "INFO").split())
    assert info["id"] == str(client("CLIENT", "ID"))
    assert info["name"] == "worker"
    assert info["addr"] == "%s:%d" % client.sock.getsockname()
    assert info["db"] == "0"


def test_client_setinfo(client, connect, oracle):
    """Redis 7.2's CLIENT SETINFO, which today's client libraries send first: accepted, or refused as an unknown
    subcommand is, which they ignore. Never a closed connection."""
    for name, value in (("LIB-NAME", "redis-py"), ("lib-ver", "5.0.1")):
        reply = client("CLIENT", "SETINFO", name, value)
        assert reply == "OK" or is_error(reply, "nknown subcommand"), reply
    assert is_error(client("CLIENT", "SETINFO", "NOSUCH", "x"))
    assert is_error(client("CLIENT", "SETINFO", "LIB-name", "two words"), "ERR LIB-name cannot contain spaces")
    assert client("PING") == "PONG"


@pytest.mark.parametrize("command", [
    ["CLIENT"], ["CLIENT", "NOSUCH"], ["CLIENT", "SETNAME"], ["CLIENT", "GETNAME", "x"], ["CLIENT", "ID", "x"],
    ["AUTH"], ["AUTH", "a", "b", "c"], ["SELECT"], ["SELECT", "1", "2"], ["ECHO"], ["HELLO", "9"],
    ["AUTH", "password"], ["AUTH", "nobody", "password"],
    ["COMMAND", "COUNT"], ["COMMAND", "INFO", "get", "nosuch"], ["COMMAND", "GETKEYS", "GET", "k"],
    ["COMMAND", "GETKEYS", "EVAL", "x", "2", "a", "b"], ["COMMAND", "NOSUCH"],
    ["nosuch"], ["NoSuch", "a", "b c", "d" * 200], ["GET"], ["PROXYX"],
], ids=" ".join)
def test_replies_like_redis(client, connect, oracle, command):
    single = connect(oracle)
    assert client.raw(*command) == single.raw(*command)


def test_command_docs_and_list(client, connect, oracle):
    """redis-cli asks for these commands."""
    single = connect(oracle)
    theirs = single("COMMAND", "DOCS", "get")
    assert client("COMMAND", "DOCS", "get") == theirs
    assert {"get", "set", "del"} <= set(client("COMMAND", "LIST"))
    assert len(client("COMMAND")) >= 200


def test_time_and_info(client):
    seconds, micros = client("TIME")
    assert int(seconds) > 1600000000 and 0 <= int(micros) < 1000000
    info = client("INFO")
    assert "redis_version:" in info and "# Server" in info
    assert "# Memory" in client("INFO", "memory")


def test_proxy_info_is_its_own(client):
    info = client("PROXY", "INFO")
    for section in ("# Proxy", "# Clients", "# Upstreams", "# Locks", "# Commands"):
        assert section in info
    assert "# Locks" not in client("PROXY", "INFO", "clients")
    assert "# Clients" in client("PROXY", "INFO", "clients")


def test_swapdb_and_move(farm, connect, oracle):
    found = []
    backend = farm.backend("standalone")
    backend.flush()
    for where in (oracle, farm.proxy("standalone")):
        one, two = connect(where), connect(where)
        one("SELECT", "7")
        two("SELECT", "8")
        got = [c.raw(*command) for c, command in (
            (one, ["SET", "k", "seven"]), (two, ["SET", "k", "eight"]), (one, ["SWAPDB", "7", "8"]), (one, ["GET", "k"]), (two, ["GET", "k"]),
            (one, ["MOVE", "k", "8"]), (one, ["DEL", "k"]), (two, ["MOVE", "k", "7"]), (one, ["GET", "k"]), (two, ["EXISTS", "k"]),
            (one, ["MOVE", "k", "7"]), (one, ["MOVE", "k", "99"]), (one, ["SWAPDB", "0", "99"]), (one, ["SWAPDB", "x", "1"]),
            (one, ["SWAPDB", "7", "7"]), (one, ["SWAPDB", "7"]), (one, ["COPY", "k", "k", "DB", "8"]), (two, ["GET", "k"]))]
        found.append(got)
    assert found[1] == found[0]


# ---- AUTH --------------------------------------------------------------------------------------


@pytest.fixture
def users(start_redis, start_proxy):
    """A Redis with ACL users, and a proxy in front of it."""
    server = start_redis()
    server.run("ACL", "SETUSER", "reader", "on", ">readpass", "~*", "+@read", "+@connection", "+ping")
    server.run("ACL", "SETUSER", "writer", "on", ">writepass", "~*", "+@all")
    return start_proxy(server)


def test_trap_21_auth_is_a_sessions_own(users, connect):
    reader, writer, nobody = connect(users), connect(users), connect(users)
    assert reader("AUTH", "reader", "readpass") == "OK"
    assert writer("AUTH", "writer", "writepass") == "OK"
    for _ in range(2):
        assert writer("SET", "k", "v") == "OK"
        assert is_error(reader("SET", "k", "w"), "NOPERM")
        assert reader("GET", "k") == "v"
        assert nobody("SET", "k", "v") == "OK"


def test_trap_22_failed_auth_keeps_the_user(users, connect):
    client = connect(users)
    assert client("AUTH", "reader", "readpass") == "OK"
    assert is_error(client("AUTH", "reader", "wrong"), "WRONGPASS invalid username-password pair or user is disabled.")
    assert is_error(client("AUTH", "writer", "wrong"), "WRONGPASS")
    assert client("GET", "k") is None
    assert is_error(client("SET", "k", "v"), "NOPERM")
    assert client("AUTH", "writer", "writepass") == "OK"
    assert client("SET", "k", "v") == "OK"
    assert is_error(client("AUTH", "reader", "wrong"), "WRONGPASS")
    assert client("SET", "k", "v") == "OK"


def test_auth_in_a_pipeline(users, connect):
    client = connect(users)
    client.send(encode("SET", "p", "1") + encode("AUTH", "reader", "readpass") + encode("SET", "p", "2") + encode("GET", "p")
                + encode("AUTH", "writer", "writepass") + encode("SET", "p", "3") + encode("GET", "p"))
    replies = [client.read() for _ in range(7)]
    assert replies[:2] == ["OK", "OK"] and is_error(replies[2], "NOPERM")
    assert replies[3:] == ["1", "OK", "OK", "3"]


STAYS = """SELECT 3|SET k three|AUTH homely p|GET k|SELECT 4|GET k|SELECT 0|SELECT 3|SET k v|GET k|MULTI|GET k|EXEC|MULTI
|SELECT 4|GET k|EXEC|GET k|WATCH k|SET k w|MULTI|GET k|EXEC|GET k|RPUSH l a|BLPOP l 1|BLPOP l 0.01|AUTH homely p
|GET k|EVAL return{redis.call('get',KEYS[1])} 1 k|ACL WHOAMI|ACL LOG|AUTH free p|GET k|ACL LOG RESET|SELECT 4|GET k
|AUTH homely p|GET k|SET k four|SETNX lock:k v|DEL lock:k|AUTH homely wrong|GET k|RESET|AUTH free p|GET k"""


@pytest.mark.parametrize("known", [False, True], ids=["any stranger selects", "the proxy selects"])
def test_a_user_who_may_not_select_stays_where_he_is(start_redis, start_proxy, connect, known):
    """A database that was selected before the login is the session's afterwards, on all its connections."""
    servers = [start_redis(), start_redis()]
    for server in servers:
        server.run("ACL", "SETUSER", "homely", "on", ">p", "~*", "+@all", "-select")
        server.run("ACL", "SETUSER", "free", "on", ">p", "~*", "+@all")
    lines = ["upstream-user free", "upstream-password p"] if known else []
    redis, client = connect(servers[0]), connect(start_proxy(servers[1], *lines))
    if known:
        servers[1].run("ACL", "SETUSER", "default", "-select")
    for words in (command.split() for command in STAYS.replace("\n", "").split("|")):
        expected, found = redis.raw(*words), client.raw(*words)
        if words == ["ACL", "LOG"]:  # which client was refused, and what; not the time and the address
            expected, found = ([line for line in reply.split(b"\r\n") if line in (b"select", b"homely", b"multi", b"toplevel")]
                               for reply in (expected, found))
            assert expected
        assert found == expected, (words, expected, found)


def test_hello_with_auth(users, connect):
    client = connect(users)
    assert not is_error(client("HELLO", "3", "AUTH", "reader", "readpass", "SETNAME", "r"))
    assert is_error(client("SET", "k", "v"), "NOPERM")
    assert client("CLIENT", "GETNAME") == "r"
    assert client.raw("GET", "none") == b"_\r\n"
    assert is_error(client("HELLO", "2", "AUTH", "writer", "wrong"), "WRONGPASS")
    assert client.raw("GET", "none") == b"_\r\n"
    assert is_error(client("SET", "k", "v"), "NOPERM")


def test_lock_commands_need_the_users_rights(users, connect):
    """A rewritten command is no way around an ACL."""
    reader, writer = connect(users), connect(users)
    assert reader("AUTH", "reader", "readpass") == "OK"
    assert writer("AUTH", "writer", "writepass") == "OK"
    assert is_error(reader("SETNX", "lock:acl", "1"), "NOPERM")
    assert writer("SETNX", "lock:acl", "1") == 1
    assert is_error(reader("DEL", "lock:acl"), "NOPERM")
    assert writer("DEL", "lock:acl") == 1


def test_what_a_user_needs_for_locks(start_redis, start_proxy, connect):
    """Each error says what is to be granted; with all of it granted, the commands work."""
    server = start_redis()
    server.run("ACL", "SETUSER", "worker", "on", ">p", "~lock:*", "+setnx", "+ping")
    proxy = start_proxy(server)
    client = connect(proxy)
    assert client("AUTH", "worker", "p") == "OK"
    assert is_error(client("SETNX", "lock:acl", "1"), "grant +eval +evalsha")
    server.run("ACL", "SETUSER", "worker", "+eval", "+evalsha")
    assert is_error(client("SETNX", "lock:acl", "1"), "grant ~lockkeeper:{*}:*")
    server.run("ACL", "SETUSER", "worker", "~lockkeeper:{*}:*")
    assert is_error(client("SETNX", "lock:acl", "1"), "+time +exists")
    server.run("ACL", "SETUSER", "worker", "+time", "+exists", "+type", "+get", "+set", "+del", "+hget", "+hmget", "+hset", "+pttl",
               "+pexpire", "+persist")
    assert client("SETNX", "lock:granted", "1") == 1
    assert client("SETNX", "lock:granted", "1") == 0
    assert client("DEL", "lock:granted") == 1
    assert is_error(client("EVAL", "return 1", "1", "other"), "NOPERM")


@pytest.mark.skipif(RECORDS == "short", reason="the user may have set the lock before the script is refused")
def test_a_refused_acquisition_leaves_no_lock(start_redis, start_proxy, connect):
    """Whichever right is missing: what answers an error has not acquired."""
    server = start_redis()
    commands = (("SETNX", "1"), ("SET", "1", "NX"), ("SET", "1", "NX", "PX", "30000"), ("SET", "1", "NX", "GET"),
                ("SET", "1", "NX", "PXAT", "99999999999999"), ("SET", "1", "EX", "30"), ("SETEX", "30", "1"), ("GETSET", "1"),
                ("SET", "1", "GET"), ("INCR",), ("HSETNX", "f", "1"), ("HSET", "f", "1"), ("RPUSH", "n"),
                ("MSETNX", "1"), ("MSETNX", "1", "plain", "1"))
    rights = ["+time", "+exists", "+type", "+get", "+set", "+del", "+hget", "+hmget", "+hset", "+pttl", "+pexpire",
              "+persist", "+hincrby", "+hdel", "+hexists", "+lindex"]
    rights += sorted({"+" + words[0].lower() for words in commands} - set(rights))
    server.run("ACL", "SETUSER", "worker", "on", ">p", "~*", "+ping", "+eval", "+evalsha", *rights)
    client = connect(start_proxy(server, "lock lock:* kind any"))
    assert client("AUTH", "worker", "p") == "OK"
    refused = 0
    for right in rights:
        server.run("ACL", "SETUSER", "worker", "-" + right[1:])
        for number, (name, *words) in enumerate(commands):
            lock = "lock:%s:%d" % (right[1:], number)
            answer = client(name, lock, *words)
            if is_error(answer, ""):
                assert server.run("EXISTS", lock) == 0, (right, name, words)
                refused += 1
            else:
                (guard,) = server.run("KEYS", "lockkeeper:*:" + lock)
                record = guard_record(server.run, guard)
                assert record.get("n:n" if name == "RPUSH" else "token"), (right, name, words, answer)
            server.run("DEL", "plain")
        server.run("ACL", "SETUSER", "worker", right)
    assert refused > len(commands) * 3


def test_a_refused_change_leaves_the_holder_its_lock(start_redis, start_proxy, connect):
    """A user without a right can't take a counter or a queue from users with the right."""
    server = start_redis()
    rights = ["+time", "+exists", "+type", "+get", "+set", "+del", "+hget", "+hmget", "+hset", "+pttl", "+pexpire",
              "+persist", "+hincrby", "+hdel", "+hexists", "+lindex", "+incr", "+append", "+rpush"]
    server.run("ACL", "SETUSER", "worker", "on", ">p", "~*", "+ping", "+eval", "+evalsha", *rights)
    proxy = start_proxy(server, "lock lock:* kind any")
    holder, client = connect(proxy), connect(proxy)
    assert client("AUTH", "worker", "p") == "OK"
    refused = 0
    for right in rights:
        server.run("ACL", "SETUSER", "worker", "-" + right[1:])
        counter, text, queue = ("lock:%s:%s" % (kind, right[1:]) for kind in ("counter", "text", "queue"))
        assert holder("INCR", counter) == 1 and holder("SET", text, "1", "NX", "PX", 60000) == "OK"
        assert holder("EXISTS", queue) == 0 and holder("RPUSH", queue, "a") == 1
        for words in (["INCR", counter], ["APPEND", text, "x"], ["RPUSH", queue, "b"]):
            refused += is_error(client(*words), "")
        assert server.run("LRANGE", queue, 0, -1) in (["a"], ["a", "b"])
        assert holder("DEL", counter) == 1 and holder("DEL", text) == 1 and holder("LREM", queue, 1, "a") == 1
        server.run("ACL", "SETUSER", "worker", right)
    assert refused > len(rights)


def test_acl(client, backend, connect, key):
    """On all masters where that is meant."""
    user = key("user")
    assert client("ACL", "WHOAMI") == "default"
    assert client("ACL", "SETUSER", user, "on", ">p", "~*", "+@all") == "OK"
    for node in backend.nodes if backend.kind == "cluster" else [backend]:
        assert user in node.run("ACL", "USERS")
    assert any(user in line for line in client("ACL", "LIST"))
    assert "on" in client("ACL", "GETUSER", user)[1]
    assert client("AUTH", user, "p") == "OK"
    assert client("ACL", "WHOAMI") == user
    assert client("AUTH", user, "wrong").startswith("WRONGPASS")
    assert client("ACL", "WHOAMI") == user
    if backend.kind == "cluster":
        assert client("ACL", "LOG").startswith("ERR ACL LOG is not supported by lockkeeper on a cluster")
    else:
        assert any(user in str(entry) for entry in client("ACL", "LOG"))
        assert client("ACL", "LOG", "RESET") == "OK"
        assert client("ACL", "LOG") == []
    assert client("RESET") == "RESET"
    assert client("ACL", "WHOAMI") == "default"
    assert client("ACL", "DELUSER", user) == 1
    assert client("ACL", "NOSUCH").startswith("ERR unknown subcommand")


# ---- the end of a connection ----------------------------------------------------------------------


def test_trap_33_half_close(proxy, connect, direct):
    """printf ... | nc: every reply is written, then the connection closes."""
    client = connect(proxy)
    client.send(b"".join(encode("SET", "half:%d" % i, "x" * 100) + encode("GET", "half:%d" % i) for i in range(500)))
    client.shutdown()
    assert client.read_all() == (b"+OK\r\n$100\r\n" + b"x" * 100 + b"\r\n") * 500


def test_half_close_with_lock_commands(proxy, connect):
    client = connect(proxy)
    client.send(encode("SETNX", "lock:half", "1") + encode("GET", "lock:half") + encode("DEL", "lock:half") + b"PING\r\n")
    client.shutdown()
    assert client.read_all() == b":1\r\n$1\r\n1\r\n:1\r\n+PONG\r\n"


def test_trap_33_netcat(proxy):
    done = subprocess.run(["nc", "-N", proxy.address[0], str(proxy.address[1])], input=b"SET nc 1\r\nGET nc\r\nNOSUCH\r\nPING\r\n",
                          stdout=subprocess.PIPE, timeout=20, check=True)
    assert done.stdout == b"+OK\r\n$1\r\n1\r\n-ERR unknown command 'NOSUCH', with args beginning with: \r\n+PONG\r\n"


def test_half_close_in_the_middle_of_a_request(proxy, oracle):
    bytes_oracle.compare(oracle, proxy.address, encode("SET", "k", "v") + b"*2\r\n$3\r\nGET\r\n$10\r\nabc")


def test_silent_connections_are_no_trouble(proxy, client):
    silent = [socket.create_connection(proxy.address) for _ in range(50)]
    assert client("PING") == "PONG"
    for s in silent:
        s.close()
    assert client("PING") == "PONG"


# ---- what is not there ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["SYNC"], ["PSYNC", "?", "-1"], ["REPLCONF", "listening-port", "1"],
                                     ["MONITOR"], ["SUBSCRIBE", "c"], ["BLPOP", "none", "0.01"], ["MULTI"], ["RESET"],
                                     ["XREAD", "BLOCK", "10", "STREAMS", "none", "$"], ["CLIENT", "REPLY", "ON"],
                                     ["WATCH", "k"], ["EXEC"], ["DISCARD"], ["DEBUG", "SLEEP", "0"]], ids=" ".join)
def test_never_silence(client, command):
    """Whatever is asked, there is an answer, and the connection lives on (a MONITOR's or SUBSCRIBE's own way)."""
    client.send(encode(*command))
    client.read()
    if command[0] in ("MONITOR", "SUBSCRIBE"):
        return
    client.send(encode("PING"))
    client.read()
