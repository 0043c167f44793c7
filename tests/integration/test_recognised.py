"""Sessions that are recognised as a lock's owner by the value that they send or are shown (docs/locks.md, K), and sessions
that are not. The workers have no names: all are one client, and only the value distinguishes them.
"""

import itertools
import time

import pytest

import servers
from helpers import in_letters, show_that_losers_release
from resp import Error, encode
from servers import until

serial = itertools.count(1)
EXTEND_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"


@pytest.fixture(scope="module")
def doors(farm):
    started = {}

    def door(backend):
        if backend.kind not in started:
            started[backend.kind] = servers.Proxy(
                backend, "lock lock:hash:* kind hash", "lock lock:list:* kind list", "lock lock:*"
            )
        return started[backend.kind]

    yield door
    for proxy in started.values():
        proxy.stop()
        proxy.remove()


@pytest.fixture
def opened(doors, backend, connect):
    return lambda protocol=2: connect(doors(backend), commands=[("HELLO", 3)] if protocol == 3 else ())


@pytest.fixture
def key():
    """Of a family of its own: names that differ in digits alone are of one."""
    return "lock:rec:%s:{1}" % in_letters()


@pytest.fixture
def losers_release(opened, key):
    """The proxy knows that losers send a DEL: theirs are refused whenever they come, also behind a GET."""
    show_that_losers_release(opened(), [opened(), opened()], key.replace("{1}", "{2}"))


def value_of(worker):
    return "%s-%x" % (worker, time.time_ns())


def kinds_of(client, key):
    """Which incidents the proxy reports of the key."""
    rows = client("PROXY", "INCIDENTS", 100, "KEY", key)
    return {(row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])))["kind"] for row in rows}


def accused(client, key):
    """What the proxy reports to have refused on the key."""
    return kinds_of(client, key) - {"no_expiry", "abandoned", "overrun", "one_shot"}


def come_back(opened, key, value, protocol=2):
    """A worker whose connection is cut, and whose attempt over the next one is refused."""
    first = opened(protocol)
    assert first("SET", key, value, "NX", "EX", 60) == "OK"
    first.close()
    second = opened(protocol)
    assert second("SET", key, value, "NX", "EX", 60) is None
    return second


@pytest.mark.parametrize("protocol", [2, 3])
def test_by_get(opened, key, protocol):
    value = value_of("w")
    again = come_back(opened, key, value, protocol)
    assert again("GET", key) == value
    assert again("EXPIRE", key, 100) == 1
    assert again("SET", key, value, "XX", "EX", 90) == "OK"
    assert again("SET", key, value, "EX", 80) == "OK"
    assert 75 < again("TTL", key) <= 80
    assert accused(again, key) == set()
    assert again("DEL", key) == 1


def test_by_mget(opened, key):
    value = value_of("w")
    again = come_back(opened, key, value)
    assert again("MGET", key) == [value]
    assert again("EXPIRE", key, 100) == 1
    assert again("DEL", key) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_by_the_answer_to_set_nx_get(opened, key, protocol):
    value, first = value_of("w"), opened(protocol)
    assert first("SET", key, value, "NX", "EX", 60) == "OK"
    first.close()
    again = opened(protocol)
    assert again("SET", key, value, "NX", "GET", "EX", 60) == value
    assert again("EXPIRE", key, 100) == 1
    assert accused(again, key) == set()
    assert again("DEL", key) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_by_the_answer_to_getset(opened, key, protocol):
    value = value_of("w")
    again = come_back(opened, key, value, protocol)
    assert again("GETSET", key, value) == value
    assert again("EXPIRE", key, 100) == 1
    assert accused(again, key) == set()
    assert again("DEL", key) == 1


def test_by_a_script_that_names_it(opened, key):
    value = value_of("w")
    again = come_back(opened, key, value)
    assert again("EVAL", EXTEND_IF_MINE, 1, key, value, 60000) == 1
    assert again("EXPIRE", key, 100) == 1
    assert accused(again, key) == set()
    assert again("DEL", key) == 1


def test_not_by_a_script_that_names_another(opened, key, losers_release):
    again = come_back(opened, key, value_of("w"))
    assert again("EVAL", EXTEND_IF_MINE, 1, key, value_of("v"), 60000) == 0
    assert again("DEL", key) == 0


def test_by_a_field_written_anew(opened):
    """The fields of a hash lock are known to differ: losers have tried with others."""
    key = "lock:hash:%d:{%d}" % (next(serial), time.time_ns())
    field, first, loser = value_of("w"), opened(), opened()
    assert first("HSETNX", key, field, 1) == 1
    assert loser("HSETNX", key, value_of("v"), 1) == 0
    first.close()
    again = opened()
    assert again("HSET", key, field, 2) == 0
    assert again("EXPIRE", key, 100) == 1
    assert isinstance(loser("HSET", key, value_of("v"), 2), Error)
    assert again("DEL", key) == 1


def test_a_lost_reply(opened, key):
    """The first attempt's connection closes before its reply is read."""
    value, first, watcher = value_of("w"), opened(), opened()
    first.send(encode("SET", key, value, "NX", "EX", 60))
    first.close()
    until(lambda: watcher("EXISTS", key) == 1, what="the first attempt")
    again = opened()
    assert again("SET", key, value, "NX", "EX", 60) is None
    assert again("GET", key) == value
    assert again("EXPIRE", key, 100) == 1
    assert again("DEL", key) == 1
    assert accused(watcher, key) == set()


def test_a_lost_reply_on_a_connection_that_stays(opened, key, losers_release):
    """The connection is cut where the proxy does not see it. That values differ is known by another worker's."""
    value, first, loser, again = value_of("w"), opened(), opened(), opened()
    assert first("SET", key, value, "NX", "EX", 60) == "OK"
    assert loser("SET", key, value_of("v"), "NX", "EX", 60) is None
    assert again("SET", key, value, "NX", "EX", 60) is None
    assert again("GET", key) == value
    assert again("EXPIRE", key, 100) == 1
    assert loser("GET", key) == value
    assert loser("DEL", key) == 0
    assert again("DEL", key) == 1


def test_renewed_for_who_came_back(opened, key):
    """A lock without an expiry is renewed for the session that is recognised, although it was refused."""
    value, first = value_of("w"), opened()
    assert first("SETNX", key, value) == 1
    first.close()
    again = opened()
    assert again("SETNX", key, value) == 0
    assert again("GET", key) == value
    assert again("PROXY", "LOCKS", key), "the proxy knows the lease"
    assert b"(disconnected)" not in again.raw("PROXY", "LOCKS", key), "and its owner is there"
    assert again("DEL", key) == 1


def test_says_it_again_over_any_connection(opened, key):
    """SET EX, SETEX and PSETEX of the lease's own value, which the session has read. The owner releases."""
    value, owner, heartbeat, loser = value_of("w"), opened(), opened(), opened()
    assert owner("SET", key, value, "NX", "EX", 60) == "OK"
    assert heartbeat("GET", key) == value
    assert heartbeat("SETEX", key, 90, value) == "OK"
    assert heartbeat("PSETEX", key, 95000, value) == "OK"
    assert heartbeat("SET", key, value, "XX", "EX", 100) == "OK"
    assert isinstance(loser("SET", key, value_of("v"), "EX", 5), Error)
    assert 95 < owner("TTL", key) <= 100
    assert owner("DEL", key) == 1


@pytest.mark.parametrize("ms", [1, 50000])
def test_a_late_set_xx_is_known_by_its_value(opened, key, ms):
    """K4: one connection carries several workers' commands. A worker whose lease is over releases or extends by SET XX."""
    c, late, mine = opened(), value_of("late"), value_of("mine")
    assert c("CLIENT", "SETINFO", "lib-name", "ioredis") == "OK"
    assert c("SET", key, late, "NX", "PX", 50) == "OK"
    until(lambda: c("SET", key, mine, "NX", "EX", 60) == "OK", 10)
    assert c("SET", key, late, "XX", "PX", ms) is None
    assert c("GET", key) == mine and c("TTL", key) > 50
    assert c("SET", key, mine, "XX", "EX", 90) == "OK"
    assert c("SET", key, mine + "-next", "XX", "EX", 100) == "OK", "the holder changes its value"
    assert c("TTL", key) > 90 and c("GET", key) == mine + "-next"
    assert c("DEL", key) == 1


def test_holders_that_change_their_values_are_not_late(opened, key):
    c = opened()
    assert c("CLIENT", "SETINFO", "lib-name", "ioredis") == "OK"
    assert c("SET", key, "begins", "NX", "PX", 5000) == "OK"
    assert c("SET", key, "works", "XX", "PX", 50) == "OK"
    until(lambda: c("SET", key, "begins", "NX", "EX", 60) == "OK", 10)
    assert c("SET", key, "works", "XX", "EX", 60) == "OK"
    assert c("SET", key, "begins", "XX", "EX", 60) == "OK"
    assert c("SET", key, "works", "XX", "EX", 60) == "OK"
    assert c("DEL", key) == 1


# ---- a hash lock: the holder's field and its value -----------------------------------------------------

# What the client sends to see which worker holds the lock, and what shows it to be the worker's own.
READS = {
    "hget": lambda c, key, field, value: c("HGET", key, field) == value,
    "hmget": lambda c, key, field, value: c("HMGET", key, "other", field) == [None, value],
    "hgetall": lambda c, key, field, value: pairs(c("HGETALL", key)) == {field: value},
    "hscan": lambda c, key, field, value: c("HSCAN", key, 0) == ["0", [field, value]],
    "hexists": lambda c, key, field, value: c("HEXISTS", key, field) == 1,
    "hkeys": lambda c, key, field, value: c("HKEYS", key) == [field],
}
SHOW_VALUES = [read for read in READS if read not in ("hexists", "hkeys")]


def pairs(reply):
    return reply if isinstance(reply, dict) else dict(zip(reply[0::2], reply[1::2]))


@pytest.fixture
def hash_key():
    """Of a family of its own."""
    return "lock:hash:%s:{1}" % str(next(serial)).translate(str.maketrans("0123456789", "klmnopqrst"))


def field_come_back(opened, key, field, value, protocol=2):
    first = opened(protocol)
    assert first("HSETNX", key, field, value) == 1
    first.close()
    second = opened(protocol)
    assert second("HSETNX", key, field, value) == 0
    return second


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("read", SHOW_VALUES)
def test_by_the_value_of_a_field(opened, hash_key, read, protocol):
    """The worker writes its name into a field that all workers name alike."""
    value = value_of("w")
    again = field_come_back(opened, hash_key, "owner", value, protocol)
    assert READS[read](again, hash_key, "owner", value)
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HSETNX", hash_key, "owner", value) == 0
    assert again("HINCRBY", hash_key, "count", 1) == 1
    assert again("EXPIRE", hash_key, 90) == 1
    assert accused(again, hash_key) == set()
    assert again("HDEL", hash_key, "owner", "count") == 2
    assert opened()("HSETNX", hash_key, "owner", value_of("v")) == 1, "the lock was released"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("read", list(READS))
def test_by_the_name_of_a_field(opened, hash_key, read, protocol):
    """The field has the worker's name. That names differ is known by another worker's attempt."""
    field, loser, first = value_of("w"), opened(), opened(protocol)
    assert first("HSETNX", hash_key, field, 1) == 1
    assert loser("HSETNX", hash_key, value_of("v"), 1) == 0
    first.close()
    again = opened(protocol)
    assert again("HSETNX", hash_key, field, 1) == 0
    assert READS[read](again, hash_key, field, "1")
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HSETNX", hash_key, field, 1) == 0
    assert again("HINCRBY", hash_key, field, 1) == 2
    assert again("HDEL", hash_key, field) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_by_a_field_on_a_connection_that_stays(opened, hash_key, protocol):
    value, first, loser, again = value_of("w"), opened(), opened(protocol), opened(protocol)
    assert first("HSETNX", hash_key, "owner", value) == 1
    assert loser("HSETNX", hash_key, "owner", value_of("v")) == 0
    assert again("HSETNX", hash_key, "owner", value) == 0
    assert again("HGET", hash_key, "owner") == value
    assert again("EXPIRE", hash_key, 100) == 1
    assert loser("HGET", hash_key, "owner") == value
    assert isinstance(loser("HINCRBY", hash_key, "count", 1), Error)
    assert again("DEL", hash_key) == 1


def test_by_a_field_that_is_counted(opened, hash_key):
    """The field is the worker's name, and the value a count: Redisson's form, without scripts."""
    field, loser = value_of("w"), opened()
    first = opened()
    assert first("HSETNX", hash_key, field, 1) == 1
    assert loser("HSETNX", hash_key, value_of("v"), 1) == 0
    assert first("HINCRBY", hash_key, field, 1) == 2
    first.close()
    again = opened()
    assert again("HSETNX", hash_key, field, 1) == 0
    assert again("HGET", hash_key, field) == "2"
    assert again("HINCRBY", hash_key, field, -1) == 1
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HDEL", hash_key, field) == 1


def test_a_lost_reply_of_a_field(opened, hash_key):
    value, first, watcher = value_of("w"), opened(), opened()
    first.send(encode("HSETNX", hash_key, "owner", value))
    first.close()
    until(lambda: watcher("EXISTS", hash_key) == 1, what="the first attempt")
    again = opened()
    assert again("HSETNX", hash_key, "owner", value) == 0
    assert again("HGET", hash_key, "owner") == value
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HDEL", hash_key, "owner") == 1
    assert accused(watcher, hash_key) == set()


def test_by_a_script_that_names_the_field(opened, hash_key):
    """Values are known to differ by their fields."""
    field, loser, first = value_of("w"), opened(), opened()
    script = "if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then return redis.call('pexpire', KEYS[1], 60000) end return 0"
    assert first("HSETNX", hash_key, field, "x") == 1
    assert loser("HSETNX", hash_key, value_of("v"), "x") == 0
    first.close()
    again = opened()
    assert again("HSETNX", hash_key, field, "x") == 0
    assert again("EVAL", script, 1, hash_key, field) == 1
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HDEL", hash_key, field) == 1


@pytest.mark.parametrize("read", list(READS))
def test_one_field_with_one_constant_tells_nothing(opened, hash_key, read):
    holder, loser = opened(), opened()
    assert holder("HSETNX", hash_key, "lock", "1") == 1
    assert loser("HSETNX", hash_key, "lock", "1") == 0
    assert READS[read](loser, hash_key, "lock", "1")
    assert isinstance(loser("HINCRBY", hash_key, "count", 1), Error)
    assert holder("HDEL", hash_key, "lock") == 1


@pytest.mark.parametrize("read", list(READS))
def test_a_field_that_has_another_value(opened, hash_key, read):
    """A loser that reads the name of the holder is a loser still, whatever it reads by."""
    value, holder, loser = value_of("w"), opened(), opened()
    assert holder("HSETNX", hash_key, "owner", value) == 1
    assert loser("HSETNX", hash_key, "owner", value_of("v")) == 0
    holder.close()
    assert READS[read](loser, hash_key, "owner", value)
    assert isinstance(loser("HINCRBY", hash_key, "count", 1), Error)


def test_one_value_of_several_workers_in_one_field(opened, hash_key):
    holder, loser, third = opened(), opened(), opened()
    assert holder("HSETNX", hash_key, "owner", "locked") == 1
    assert third("HSETNX", hash_key, "owner", "locked") == 0
    holder.close()
    assert loser("HSETNX", hash_key, "owner", "locked") == 0
    assert loser("HGET", hash_key, "owner") == "locked"
    assert isinstance(loser("HINCRBY", hash_key, "count", 1), Error)


def test_no_field_between_clients(opened, hash_key):
    value, holder, other = value_of("w"), opened(), opened()
    other("CLIENT", "SETNAME", "other")
    assert holder("HSETNX", hash_key, "owner", value) == 1
    holder.close()
    assert other("HSETNX", hash_key, "owner", value) == 0
    assert other("HGET", hash_key, "owner") == value
    assert other("EXPIRE", hash_key, 100) == 0
    assert other("HDEL", hash_key, "owner") == 0


def test_by_a_field_at_another_proxy(backend, start_proxy, connect, hash_key):
    """The worker comes back over another proxy, which has not seen the acquisition."""
    one, two = (start_proxy(backend, "lock lock:hash:* kind hash") for _ in range(2))
    value, first = value_of("w"), connect(one)
    assert first("HSETNX", hash_key, "owner", value) == 1
    again = connect(two)
    assert again("HSETNX", hash_key, "owner", value) == 0
    assert again("HGET", hash_key, "owner") == value
    assert again("EXPIRE", hash_key, 100) == 1
    assert again("HINCRBY", hash_key, "count", 1) == 1
    assert again("HDEL", hash_key, "owner") == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_reads_of_a_loser_are_passed_on(opened, hash_key, protocol):
    """The proxy looks at the replies, errors, nil and long ones too. A session that has not tried gets the same bytes."""
    loser, holder = opened(protocol), opened()
    assert holder("HSETNX", hash_key, "owner", value_of("w")) == 1
    assert loser("HSETNX", hash_key, "owner", value_of("v")) == 0
    for i in range(300):
        holder("HSET", hash_key, "f%d" % i, "x" * 500)
    other = opened(protocol)
    for words in [
        ("HGET", hash_key, "nothing"),
        ("HGET", hash_key),
        ("HMGET", hash_key, "owner", "nothing"),
        ("HGETALL", hash_key),
        ("HKEYS", hash_key),
        ("HEXISTS", hash_key, "no"),
        ("HSCAN", hash_key, "x"),
        ("HSCAN", hash_key, 0, "COUNT", 1000),
    ]:
        assert loser.raw(*words) == other.raw(*words)


# ---- a list lock: the worker's own node is the head ----------------------------------------------------

LOOKS = {"lrange": ("LRANGE", 0, 0), "lindex": ("LINDEX", 0), "lpos": ("LPOS", "NODE")}
ENDS = {"lrem": ("LREM", 1, "NODE"), "lpop": ("LPOP",), "del": ("DEL",), "rpop": ("RPOP",)}


def on(key, words, node):
    return [words[0], key] + [node if w == "NODE" else w for w in words[1:]]


@pytest.fixture
def list_key():
    """Of a family of its own."""
    return "lock:list:%s:{1}" % str(next(serial)).translate(str.maketrans("0123456789", "klmnopqrst"))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("push", ["RPUSH", "LPUSH"])
@pytest.mark.parametrize("look", list(LOOKS))
@pytest.mark.parametrize("end", list(ENDS))
def test_by_a_node_whose_connection_is_gone(opened, list_key, push, look, end, protocol):
    """The reply to the push is lost. The worker looks, and finds its node at the head."""
    node, first, watcher = value_of("w"), opened(protocol), opened()
    first.send(encode(push, list_key, node))
    first.close()
    until(lambda: watcher("EXISTS", list_key) == 1, what="the push")
    again = opened(protocol)
    assert again(*on(list_key, LOOKS[look], node)) in (node, [node], 0)
    assert again("EXPIRE", list_key, 100) == 1
    assert 95 < again("TTL", list_key) <= 100
    assert again(*on(list_key, ENDS[end], node)) in (1, node)
    assert again("EXISTS", list_key) == 0
    assert accused(watcher, list_key) == set()


def holder_and_other(opened, key, node, protocol=2):
    """A worker's connection that holds the lock, and another worker that waits: nodes are known to differ."""
    first, other = opened(protocol), opened(protocol)
    assert first("EXISTS", key) == 0
    assert first("RPUSH", key, node) == 1
    assert other("RPUSH", key, value_of("v")) == 2
    return first, other


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("look", list(LOOKS))
@pytest.mark.parametrize("end", ["lrem", "lpop", "del"])
def test_by_a_node_on_a_connection_that_stays(opened, list_key, look, end, protocol):
    """The connection is cut where the proxy does not see it. The worker pushes its node again, which is refused, and
    finds it at the head."""
    node = value_of("w")
    _, other = holder_and_other(opened, list_key, node, protocol)
    again = opened(protocol)
    assert isinstance(again("RPUSH", list_key, node), Error)
    assert again("LLEN", list_key) == 2, "the node keeps its place"
    for expiry in (100, 110):  # and looks once more, while it works
        assert again(*on(list_key, LOOKS[look], node)) in (node, [node], 0)
        assert again("EXPIRE", list_key, expiry) == 1
    assert other("EXPIRE", list_key, 200) == 0
    assert other("LPOP", list_key) is None
    assert again(*on(list_key, ENDS[end], node)) in (1, node)
    assert other("LLEN", list_key) == 1, "the worker that waits is the head"


@pytest.mark.parametrize("protocol", [2, 3])
def test_by_a_node_that_is_asked_for(opened, list_key, protocol):
    """LPOS names the node, and says that it is the head. The worker need not push it again."""
    node = value_of("w")
    _, other = holder_and_other(opened, list_key, node, protocol)
    again = opened(protocol)
    assert again("LPOS", list_key, node) == 0
    assert again("EXPIRE", list_key, 100) == 1
    assert again("LPOP", list_key) == node
    assert accused(other, list_key) == set()


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_by_a_node_and_then_the_connection_goes(opened, list_key, looks, late):
    """What is recognised first for the open connection's lease goes on when that one closes."""
    node, before = value_of("w"), opened()
    assert [before(*words) for words in (("EXISTS", list_key), ("RPUSH", list_key, node), ("LPOP", list_key))] == [0, 1, node]
    # This client releases, so the proxy reports an owner that leaves without a release.
    first, other = holder_and_other(opened, list_key, node)
    again = opened()
    again("RPUSH", list_key, node)
    assert again("LRANGE", list_key, 0, 0) == [node]
    assert again("EXPIRE", list_key, 100) == 1
    if late:  # list.lua's QUEUE_EARLY_MS is over
        time.sleep(2.1)
    first.close()
    until(lambda: "abandoned" in kinds_of(other, list_key), what="that the proxy has seen the connection close")
    assert again("EXPIRE", list_key, 80) == 1
    if looks:
        assert again("LRANGE", list_key, 0, 0) == [node]
        assert again("EXPIRE", list_key, 70) == 1
    assert again("LPOP", list_key) == node
    assert other("LRANGE", list_key, 0, 0) == [other("LINDEX", list_key, 0)]


def test_a_node_that_was_only_looked_at(opened, list_key):
    """Every session is shown the head: a session that has not pushed that node is not its owner while the owner is there."""
    node = value_of("w")
    first, _ = holder_and_other(opened, list_key, node)
    loser = opened()
    assert loser("LRANGE", list_key, 0, 0) == [node]
    assert loser("EXPIRE", list_key, 100) == 0
    assert loser("LPOP", list_key) is None
    assert first("LREM", list_key, 1, node) == 1


def assert_not_recognised(second, holder, list_key, node):
    """Pushing the holder's node again and seeing it at the head gives no right to it."""
    assert isinstance(second("RPUSH", list_key, node), Error)
    assert second("LRANGE", list_key, 0, 0) == [node]
    assert second("EXPIRE", list_key, 100) == 0
    assert second("LPOP", list_key) is None
    assert holder("LPOP", list_key) == node


def test_one_node_of_several_workers(opened, list_key):
    """Where nothing but one constant was pushed no worker is known by it."""
    holder, second = opened(), opened()
    assert holder("EXISTS", list_key) == 0
    assert holder("RPUSH", list_key, "waiting") == 1
    assert_not_recognised(second, holder, list_key, "waiting")


def test_a_node_that_is_a_number(opened, list_key):
    holder, other = holder_and_other(opened, list_key, "17")
    second = opened()
    assert_not_recognised(second, holder, list_key, "17")


def test_no_node_between_clients(opened, list_key):
    node = value_of("w")
    first, _ = holder_and_other(opened, list_key, node)
    stranger = opened()
    stranger("CLIENT", "SETNAME", "other")
    assert isinstance(stranger("RPUSH", list_key, node), Error)
    assert stranger("LRANGE", list_key, 0, 0) == [node]
    assert stranger("EXPIRE", list_key, 100) == 0
    assert stranger("LPOP", list_key) is None
    assert first("LREM", list_key, 1, node) == 1


# ---- and those that are not --------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_one_constant_tells_nothing(opened, key, losers_release, closed):
    """A loser that reads the constant that all workers write is still a loser."""
    holder, loser = opened(), opened()
    assert holder("SET", key, "1", "NX", "EX", 60) == "OK"
    if closed:
        holder.close()
    assert loser("SET", key, "1", "NX", "EX", 60) is None
    assert loser("GET", key) == "1"
    assert loser("EXPIRE", key, 1) == 0
    assert loser("DEL", key) == 0
    assert loser("TTL", key) > 50


def test_one_word_of_several_workers_tells_nothing(opened, key, losers_release):
    holder, loser, third = opened(), opened(), opened()
    assert holder("SET", key, "locked", "NX", "EX", 60) == "OK"
    assert third("SET", key, "locked", "NX", "EX", 60) is None
    holder.close()
    assert loser("SET", key, "locked", "NX", "EX", 60) is None
    assert loser("GET", key) == "locked"
    assert loser("DEL", key) == 0


def test_one_deadline_in_the_same_second(opened, key, losers_release):
    """Idiom 8: two that write the same deadline are two, and the second takes over by GETSET when it is past."""
    first, second, third = opened(), opened(), opened()
    now = int(time.time())
    assert first("SETNX", key, now - 1) == 1
    assert third("SETNX", key, now + 7) == 0  # values differ
    assert second("SETNX", key, now - 1) == 0
    assert second("GET", key) == "%d" % (now - 1)
    assert second("DEL", key) == 0
    assert second("GETSET", key, now + 60) == "%d" % (now - 1)
    assert first("DEL", key) == 0
    assert second("DEL", key) == 1


def test_the_same_deadline_at_a_takeover(opened, key, losers_release):
    hung, first, second = opened(), opened(), opened()
    now = int(time.time())
    assert hung("SETNX", key, now - 1) == 1
    for worker in (first, second):
        assert worker("SETNX", key, now + 60) == 0
        assert worker("GET", key) == "%d" % (now - 1)
    assert first("GETSET", key, now + 60) == "%d" % (now - 1)
    assert second("GETSET", key, now + 60) == "%d" % (now + 60)
    assert second("DEL", key) == 0
    assert first("DEL", key) == 1


def test_two_that_saw_nothing(opened, key):
    """Idiom 16 with one constant."""
    first, second = opened(), opened()
    assert first("GET", key) is None and second("GET", key) is None
    assert first("SET", key, "1", "EX", 5) == "OK"
    reply = second("SET", key, "1", "EX", 5)
    assert isinstance(reply, Error) and str(reply).startswith("LOCKED")


def test_a_late_worker_is_none(opened, key):
    """Its lease is over, and its value differs from the present one."""
    late, present = opened(), opened()
    assert late("SET", key, value_of("w"), "NX", "PX", 50) == "OK"
    value = value_of("v")
    until(lambda: present("SET", key, value, "NX", "EX", 60) == "OK", what="the lease's end")
    assert late("GET", key) == value
    assert late("DEL", key) == 0
    assert present("DEL", key) == 1


def test_nothing_between_clients(opened, key):
    value, holder, other = value_of("w"), opened(), opened()
    other("CLIENT", "SETNAME", "other")
    assert holder("SET", key, value, "NX", "EX", 60) == "OK"
    holder.close()
    assert other("SET", key, value, "NX", "EX", 60) is None
    assert other("GET", key) == value
    assert other("EXPIRE", key, 100) == 0
    assert isinstance(other("SET", key, value, "EX", 100), Error)
    assert other("DEL", key) == 0


# ---- compare and set ---------------------------------------------------------------------------------


def watch(client, key, *command, between=None):
    assert client("WATCH", key) == "OK"
    client("GET", key)
    if between:
        between()
    assert client("MULTI") == "OK"
    assert client(*command) == "QUEUED"
    return client("EXEC")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("options", [(), ("EX", 50)])
def test_compare_and_set(opened, key, options, protocol):
    hung, following = opened(), opened(protocol)
    following("CLIENT", "SETNAME", "next")
    assert hung("SETNX", key, "old") == 1
    assert watch(following, key, "SET", key, "new", *options) == ["OK"]
    assert 0 < following("TTL", key) <= 50
    assert hung("DEL", key) == 0
    assert hung("EXPIRE", key, 1) == 0
    assert following("DEL", key) == 1


def test_compare_and_set_wants_watch(opened, key):
    hung, following = opened(), opened()
    following("CLIENT", "SETNAME", "next")
    assert hung("SETNX", key, "old") == 1
    assert following("GET", key) == "old"
    assert following("MULTI") == "OK"
    assert following("SET", key, "new") == "QUEUED"
    (reply,) = following("EXEC")
    assert isinstance(reply, Error) and str(reply).startswith("LOCKED")
    assert hung("GET", key) == "old"
    assert hung("DEL", key) == 1


def test_compare_and_set_after_a_change(opened, key):
    hung, following = opened(), opened()
    following("CLIENT", "SETNAME", "next")
    assert hung("SETNX", key, "old") == 1
    changed = watch(following, key, "SET", key, "new", between=lambda: hung("SET", key, "newer", "XX", "EX", 50))
    assert changed is None
    assert hung("GET", key) == "newer"
    assert hung("DEL", key) == 1
