"""In MULTI: commands that the proxy answers itself are refused, and commands that change the session also change the identity
of its locks."""

import pytest

from resp import Error
from servers import until

REFUSED = {
    "client": ["CLIENT ID", "CLIENT GETNAME", "CLIENT SETNAME x", "CLIENT SETINFO lib-name x", "CLIENT INFO", "CLIENT LIST",
               "CLIENT KILL ID 1", "CLIENT PAUSE 60000", "CLIENT UNPAUSE", "CLIENT UNBLOCK 1", "CLIENT REPLY OFF",
               "CLIENT NO-EVICT ON", "CLIENT NO-TOUCH ON", "CLIENT TRACKING ON", "CLIENT TRACKINGINFO", "CLIENT GETREDIR"],
    "subscribe": ["SUBSCRIBE c"], "psubscribe": ["PSUBSCRIBE c*"], "unsubscribe": ["UNSUBSCRIBE"], "punsubscribe": ["PUNSUBSCRIBE"],
    "sunsubscribe": ["SUNSUBSCRIBE"], "proxy": ["PROXY RULES", "PROXY TOKEN lock:x", "PROXY RELEASE lock:x"],
}


@pytest.mark.parametrize("command", sum(REFUSED.values(), []))
def test_refused_in_a_transaction(client, key, command):
    """The client is told what to do instead, and nothing of the transaction is executed."""
    name = key("refused")
    assert [client("MULTI"), client("SET", name, "1")] == ["OK", "QUEUED"]
    assert client(*command.split(" ")) == Error("ERR %s inside MULTI is not supported by lockkeeper: send it before MULTI"
                                                % command.split(" ")[0].lower())
    assert client("EXEC").startswith("EXECABORT") and client("EXISTS", name) == 0
    assert client("CLIENT", "GETNAME") is None and " redir=-1 " in client("CLIENT", "INFO")


@pytest.mark.parametrize("command", ["SCAN 0", "CLUSTER SLOTS", "READONLY", "READWRITE", "ASKING"])
def test_refused_on_a_cluster(farm, connect, key, command):
    farm.backend("cluster")
    client = connect(farm.proxy("cluster"))
    assert [client("MULTI"), client("SET", key("r"), "1")] == ["OK", "QUEUED"]
    assert "inside MULTI is not supported by lockkeeper: send it before MULTI" in client(*command.split(" "))
    assert client("EXEC").startswith("EXECABORT")


def test_a_password_of_the_proxys_own(start_proxy, farm, connect):
    client = connect(start_proxy(farm.backend("standalone"), "requirepass secret"), commands=[("AUTH", "secret")])
    assert client("MULTI") == "OK" and client("AUTH", "secret").startswith("ERR auth inside MULTI is not supported")
    assert client("EXEC").startswith("EXECABORT") and client("PING") == "PONG"


@pytest.mark.parametrize("command", ["MONITOR", "SSUBSCRIBE c"])
def test_what_redis_refuses_itself(client, command):
    assert [client("MULTI"), client(*command.split(" "))] == ["OK", "QUEUED"]
    assert isinstance(client("EXEC")[0], Error)


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
    assert two.at_once(("SETNX", name, "x"), ("DEL", name), ("GET", name)) == [0, 0, "2"]  # another client's, also there
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
