"""Commands that make a client a replica are refused: replicas and similar tools must connect to the server itself."""

import subprocess

import pytest

from resp import Error

COMMANDS = [["SYNC"], ["PSYNC", "?", "-1"], ["PSYNC", "?", "-1", "FAILOVER"], ["REPLCONF"], ["REPLCONF", "capa", "eof"],
            ["REPLCONF", "ack", "0"]]


@pytest.mark.parametrize("name", ["standalone", "cluster"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_replication_is_refused(farm, connect, name, command):
    client = connect(farm.proxy(name))
    assert client(*command) == Error("ERR %s is not supported by lockkeeper: replicas and similar tools must "
                                     "connect to the server itself" % command[0])
    assert client("PING") == "PONG"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_replication_inside_a_transaction(farm, connect, command):
    client = connect(farm.proxy("standalone"))
    assert client("MULTI") == "OK"
    assert client(*command).startswith("ERR %s inside MULTI is not supported" % command[0].lower())
    assert client("EXEC").startswith("EXECABORT")
    assert client("PING") == "PONG"


def test_replication_with_wrong_arguments(farm, connect):
    """The node has the words for it, as for every command."""
    client, direct = connect(farm.proxy("standalone")), connect(farm.backend("standalone"))
    for words in (["SYNC", "x"], ["PSYNC", "x"]):
        assert client.raw(*words) == direct.raw(*words)


def test_redis_cli_rdb_is_told(farm, tmp_path):
    port = str(farm.proxy("standalone").port)
    run = subprocess.run(["redis-cli", "-p", port, "--rdb", str(tmp_path / "copy.rdb")], capture_output=True, timeout=60)
    assert run.returncode != 0 and b"not supported by lockkeeper" in run.stdout + run.stderr, run
