"""Replicas of the server behind the proxy, attached through the proxy, and what else speaks as they do."""

import os
import subprocess

import pytest

import oracle as bytes_oracle
from resp import Closed, Error, encode
from servers import until


def info(client, field):
    """A number of PROXY INFO."""
    return next(int(line.split(":")[1]) for line in client("PROXY", "INFO").splitlines() if line.startswith(field + ":"))


@pytest.fixture
def pair(start_redis, start_proxy):
    """A server that sends data to a replica at once, and a proxy before it."""
    server = start_redis("--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes")
    return server, start_proxy(server)


def test_a_replica_through_the_proxy(pair, start_redis, connect):
    """It gets the data, long values too, then what is written, and does not mind the locks."""
    server, proxy = pair
    client = connect(proxy)
    big = os.urandom(24 << 20)
    assert client("SET", "big", big) == "OK" and client("SET", "small", "1") == "OK"
    replica = start_redis("--enable-debug-command", "yes")
    replica.run("REPLICAOF", proxy.address[0], proxy.port)
    until(lambda: "master_link_status:up" in replica.run("INFO", "replication"), what="the replica's data")
    assert client("SETNX", "lock:a", "1") == 1 and client("INCR", "small") == 2
    assert client("WAIT", 1, 20000) == 1, "it acknowledges"
    assert replica.run("DEBUG", "DIGEST") == server.run("DEBUG", "DIGEST")
    assert replica.run("GET", "lock:a") == "1"
    assert "flags=S" in client("CLIENT", "LIST", "TYPE", "replica")
    assert info(client, "pinned_replicas") == 1
    assert client("DEL", "lock:a") == 1
    # A link that is lost is made anew.
    replica_id = client("CLIENT", "LIST", "TYPE", "replica").split("id=")[1].split()[0]
    assert client("CLIENT", "KILL", "ID", replica_id) == 1
    assert client("SET", "small", "3") == "OK"
    until(lambda: "master_link_status:up" in replica.run("INFO", "replication") and replica.run("GET", "small") == "3",
          what="the link made anew")
    replica.stop()
    until(lambda: info(client, "pinned_replicas") == 0, what="the end of the pin")


def test_a_reader_that_is_slow_holds_its_node_up(pair, connect):
    server, proxy = pair
    with server.client() as c:
        for number in range(32):
            c("SET", "k%d" % number, os.urandom(1 << 20))
    client, reader = connect(proxy), connect(proxy, timeout=60)
    before = info(client, "used_memory_rss")
    reader.send(encode("SYNC"))
    until(lambda: info(client, "pinned_replicas") == 1 and "state=" in server.run("INFO", "replication"), what="the stream")
    assert reader.sock.recv(1)
    for _ in range(50):
        assert client("PING") == "PONG"
    assert info(client, "used_memory_rss") - before < 16 << 20
    total = 1
    while total < 32 << 20:
        total += len(reader.sock.recv(1 << 20))


def test_redis_cli_rdb(pair, connect, tmp_path):
    server, proxy = pair
    assert connect(proxy)("SET", "k", "v") == "OK"
    path = tmp_path / "copy.rdb"
    run = subprocess.run(["redis-cli", "-p", str(proxy.port), "--rdb", str(path)], capture_output=True, timeout=60)
    assert run.returncode == 0, run
    data = path.read_bytes()
    assert data.startswith(b"REDIS") and b"\x01k\x01v" in data


REFUSED = {
    "replconf": [["REPLCONF"], ["REPLCONF", "a"], ["REPLCONF", "nosuch", "b"], ["REPLCONF", "capa", "eof", "capa", "psync2"],
                 ["REPLCONF", "listening-port", "x"], ["REPLCONF", "rdb-only", "2"], ["PING"], ["GET", "k"]],
    "no answer": [["REPLCONF", "ack", "0"], ["REPLCONF", "GETACK", "*"], ["GET", "k"], ["REPLCONF", "ack", "1"], ["PING"]],
    "arity": [["SYNC", "x"], ["PSYNC", "x"], ["GET", "k"]],
    "psync without a number": [["PSYNC", "?", "x"], ["GET", "k"], ["SET", "k", "1"], ["GET", "k"]],
    "inside MULTI": [["MULTI"], ["SYNC"], ["SET", "k", "1"], ["EXEC"], ["GET", "k"]],
    "psync inside MULTI": [["MULTI"], ["PSYNC", "?", "-1"], ["EXEC"], ["GET", "k"]],
    "replconf inside MULTI": [["MULTI"], ["REPLCONF", "capa", "eof"], ["GET", "k"], ["EXEC"], ["GET", "k"]],
    "failover": [["PSYNC", "?", "-1", "FAILOVER"], ["GET", "k"], ["SET", "k", "1"], ["GET", "k"]],
    "user": [["AUTH", "reader", "p"], ["REPLCONF", "capa", "eof"], ["SYNC"], ["GET", "k"], ["PSYNC", "?", "-1"], ["GET", "k"]],
    "another user": [["REPLCONF", "capa", "eof"], ["AUTH", "reader", "p"], ["SYNC"], ["PING"]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_nobody_a_replica(pair, start_redis, name):
    """The same bytes, and the connection serves on."""
    server, proxy = pair
    oracle = start_redis()
    for node in (server, oracle):
        node.run("ACL", "SETUSER", "reader", "on", ">p", "~*", "+@all", "-sync", "-psync")
    data = [encode(*words) for words in REFUSED[name]]
    bytes_oracle.compare(oracle, proxy.address, b"".join(data))
    bytes_oracle.compare(oracle, proxy.address, data)


def test_a_replica_has_nothing_else_to_say(pair, connect):
    """A stream is no way round the locks."""
    server, proxy = pair
    holder, replica = connect(proxy), connect(proxy)
    assert holder("SETNX", "lock:a", "1") == 1
    replica.send(encode("SYNC") + encode("DEL", "lock:a"))
    with pytest.raises((Closed, ConnectionResetError)):
        while replica.sock.recv(65536):
            pass
        raise Closed
    assert holder("GET", "lock:a") == "1" and server.run("EXISTS", "lock:a") == 1


@pytest.mark.parametrize("command", [["SYNC"], ["PSYNC", "?", "-1"], ["REPLCONF", "capa", "eof"]])
def test_a_cluster_has_replicas_of_its_own(farm, connect, command):
    farm.backend("cluster")
    client = connect(farm.proxy("cluster"))
    reply = client(*command)
    assert isinstance(reply, Error) and "not supported by lockkeeper on a cluster" in reply
    assert client("PING") == "PONG"
