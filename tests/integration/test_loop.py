"""No request of one client delays the others: long work is done in steps, or refused. The tests count turns of the loop with
a part of the work, since times differ between machines.
"""

import re
import select

import pytest

from resp import Error, encode
from servers import until


def slices_of(connect, proxy, request, times):
    """The replies to so many requests that are sent at once, and in how many turns they were worked on."""
    client, other = connect(proxy), connect(proxy)

    def slices():
        return int(re.search(r"slices:(\d+)", other("PROXY", "INFO", "clients")).group(1))

    before = slices()
    client.send(encode(*request) * times)
    replies = [client.read() for _ in range(times)]
    return replies, slices() - before


def test_locks_are_shown_in_slices(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    holder = connect(proxy)
    for n in range(20):
        assert holder("SETNX", "lock:%d" % n, "1") == 1
    replies, slices = slices_of(connect, proxy, ("PROXY", "LOCKS", "lock:1*"), 200)
    assert all(len(reply) == 11 for reply in replies), replies[0]
    assert slices >= 200 * 10


def test_reloads_take_turns(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    replies, slices = slices_of(connect, proxy, ("PROXY", "RELOAD"), 300)
    assert replies == ["OK"] * 300
    assert slices == 300


def test_long_work_ends_with_its_client(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "lock lock:*")
    for request in (("PROXY", "LOCKS"), ("PROXY", "RELOAD"), ("CLIENT", "LIST")):
        client = connect(proxy)
        client.send(encode(*request) * 100)
        client.close()
    assert connect(proxy)("PROXY", "LOCKS") == []


@pytest.mark.parametrize("pattern", ["*" + "a" * 40000 + "b", "*" + "a" * 200 + "b", "*" + "[a]" * 80 + "b"],
                         ids=["long", "letters", "classes"])
def test_patterns_that_take_long(start_redis, start_proxy, connect, pattern):
    proxy = start_proxy(start_redis(), "lock lock:*")
    client = connect(proxy)
    for n in range(100):
        assert client("SETNX", "lock:" + "a" * 2000 + str(n), "1") == 1
    reply = client("PROXY", "LOCKS", pattern)
    assert isinstance(reply, Error) and "pattern" in reply, reply
    assert len(client("PROXY", "LOCKS", "lock:a*")) == 100
    assert len(client("PROXY", "LOCKS", "lock:*a99")) == 1


def test_client_list_of_many_numbers(start_redis, start_proxy, connect):
    client = connect(start_proxy(start_redis()))
    reply = client("CLIENT", "LIST", "ID", *range(1, 300001))
    assert isinstance(reply, Error) and "too many client IDs" in reply, str(reply)[:100]
    mine = client("CLIENT", "ID")
    lines = client("CLIENT", "LIST", "ID", mine + 1, mine, 0, *range(mine + 2, mine + 5000), mine).splitlines()
    assert [line.split()[0] for line in lines] == ["id=%d" % mine] * 2, "as often as it was asked for"


def test_many_clients_are_listed_and_killed_in_slices(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis())
    client = connect(proxy)
    others = [connect(proxy) for _ in range(700)]
    numbers = sorted(other("CLIENT", "ID") for other in others)
    lines = client("CLIENT", "LIST").splitlines()
    assert [int(line.split()[0][3:]) for line in lines] == [client("CLIENT", "ID"), *numbers]
    replies, slices = slices_of(connect, proxy, ("CLIENT", "LIST"), 40)
    assert all(len(reply.splitlines()) == 703 for reply in replies)
    assert slices == 40 * 4
    assert client("CLIENT", "KILL", "TYPE", "normal") >= 700
    assert len(client("CLIENT", "LIST").splitlines()) == 1


def test_a_script_is_sent_once_for_many_requests(start_redis, start_proxy, connect):
    """10,000 requests are under way when the first answer says that the node does not know the script."""
    server = start_redis()
    proxy = start_proxy(server, "lock lock:*")
    client, direct = connect(proxy), connect(server)
    names = ["lock:%d" % n for n in range(10000)]
    for flush in range(2):
        direct("SCRIPT", "FLUSH")
        before = input_bytes(direct)
        assert client("DEL", *names) == 0
        each = (input_bytes(direct) - before) / len(names)
        assert each < 1500, "bytes that Redis was sent for a key: %d" % each
    direct("SCRIPT", "FLUSH")
    for n in range(10):
        assert client("SETNX", "lock:again", "1") == 1
        assert client("DEL", "lock:again") == 1


@pytest.fixture
def many_locks(start_redis, start_proxy, connect):
    """A server, a proxy, and a client that holds 5,000 locks, with their names."""
    server = start_redis()
    proxy = start_proxy(server, "lock lock:*")
    client = connect(proxy)
    names = ["lock:%d" % n for n in range(5000)]
    assert client.pipeline([["SETNX", name, "1"] for name in names]) == [b":1\r\n"] * 5000
    return server, proxy, client, names


def test_others_come_between_the_scripts_of_one_command(many_locks, connect):
    server, proxy, client, names = many_locks
    other = connect(proxy)
    client.send(encode("DEL", *names, "plain") + encode("EXISTS", *names[-100:]) + encode("SETNX", names[-1], "2"))
    for n in range(5):
        assert other("SETNX", "lock:other:%d" % n, "1") == 1
        assert other("DEL", "lock:other:%d" % n) == 1
    assert not select.select([client.sock], [], [], 0)[0], "the long command is still under way"
    assert [client.read() for _ in range(3)] == [5000, 0, 1], "in its client's order all the same"
    assert connect(server)("KEYS", "lock:*") == [names[-1]]


def test_who_leaves_behind_a_long_command_has_sent_it(many_locks, connect):
    server, _, client, names = many_locks
    client.send(encode("UNLINK", *names))
    client.close()
    direct = connect(server)
    until(lambda: direct("EXISTS", *names) == 0, what="the locks' release")


def test_a_reload_in_a_long_command(many_locks, connect):
    """What was a lock when the command came is none any more when its turn comes."""
    server, proxy, client, names = many_locks
    other = connect(proxy)
    proxy.write_config(["upstream " + server.upstream(), "lock none:*"])
    client.send(encode("DEL", *names))
    assert other("PROXY", "RELOAD") == "OK"
    assert client.read() == 5000
    assert connect(server)("EXISTS", *names) == 0


def input_bytes(client):
    return int(re.search(r"total_net_input_bytes:(\d+)", client("INFO", "stats")).group(1))


def test_names_of_locks_have_a_length(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server, "lock audit:* mode audit", "lock lock:*")
    client = connect(proxy)
    fits, long = "lock:" + "x" * (32768 - 5), "lock:" + "x" * (32768 - 4)
    assert client("SETNX", fits, "1") == 1
    assert client("PROXY", "LOCK", fits)
    for words in (("SETNX", long, "1"), ("SET", long, "1"), ("DEL", "a", long), ("MSET", "a", "1", long, "1"), ("GET", long),
                  ("EVAL", "return 1", 1, long), ("RENAME", "a", long), ("PROXY", "LOCK", long), ("RPUSH", long, "a"),
                  ("BLPOP", long, 0), ("WATCH", long)):
        reply = client(*words)
        assert isinstance(reply, Error) and "longer than 32768" in reply, (words[0], reply)
    assert connect(server)("KEYS", "[^l]*") == [] and connect(server)("KEYS", "lock:*") == [fits]
    assert client("MULTI") == "OK"
    assert "longer than 32768" in client("SETNX", long, "1")
    assert client("EXEC").startswith("EXECABORT")
    assert client("SET", "x" * 100000, "1") == "OK", "data may be called as it likes"
    assert client("SETNX", "audit:" + "x" * 100000, "1") == 1, "nothing is refused under audit"
