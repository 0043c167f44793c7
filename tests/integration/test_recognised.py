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
            started[backend.kind] = servers.Proxy(backend, "lock lock:hash:* kind hash", "lock lock:*")
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


def accused(client, key):
    """What the proxy reports to have refused on the key."""
    rows = client("PROXY", "INCIDENTS", 100, "KEY", key)
    kinds = [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2])) for row in rows]
    return {row["kind"] for row in kinds} - {"no_expiry", "abandoned", "overrun"}


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
