"""Functions shared by several test modules: of faults, redirects and topology, of fences, of what is learnt."""

import itertools
import re

import pytest

import servers
from resp import Error, encode
from servers import until, valkey

_serial = itertools.count(1)


# What a server says that does not know a script.
NOSCRIPT = "NOSCRIPT No matching script." + ("" if valkey() else " Please use EVAL.")


def is_upstream(reply):
    return isinstance(reply, Error) and reply.startswith("UPSTREAM ")


def says_unknown(reply):
    return is_upstream(reply) and "unknown" in reply


def works_again(client, command=("SET", "again", "1"), reply="OK", timeout=20):
    until(lambda: client(*command) == reply, timeout, "the proxy's recovery")


def show_that_losers_release(holder, losers, name):
    """Two losers send a DEL each for one lease, right behind their losses: the proxy holds the first one back and refuses both.
    From then on it knows that the family's losers release, and refuses their releases whenever they come."""
    assert holder("SET", name, "shows", "NX", "PX", 60000) == "OK"
    for loser in losers:
        loser.send(encode("SET", name, "loses", "NX", "PX", 60000) + encode("DEL", name))
    assert [(loser.read(), loser.read()) for loser in losers] == [(None, 0)] * 2
    assert holder("DEL", name) == 1


def in_letters():
    """A word that no other test has. Names that differ in digits alone would be of one family."""
    return "n" + str(next(_serial)).translate(str.maketrans("0123456789", "abcdefghij"))


def module_proxy(*lines):
    """A fixture: a module's own proxy with these lines, before one Redis and before a cluster, which is its `backend`."""

    @pytest.fixture(scope="module", params=["standalone", "cluster"])
    def proxy(farm, request):
        proxy = servers.Proxy(farm.backend(request.param), *lines)
        proxy.backend = farm.backend(request.param)
        yield proxy
        proxy.stop()
        proxy.remove()

    return proxy


def second_proxy(*lines):
    """A fixture: another proxy with these lines before the Redis of the module's `proxy`."""

    @pytest.fixture(scope="module")
    def second(proxy):
        other = servers.Proxy(proxy.backend, *lines)
        yield other
        other.stop()
        other.remove()

    return second


def fenced_names(kind, word=None):
    """Data and its lock: in one slot of a cluster, or in two (`far`). Nothing is known of the lock's family."""
    word = word or in_letters()
    return "%s:{%s}" % (kind, word), "lock:%s:%s" % (kind, word if kind == "far" else "{%s}" % word)


def monitored(node, run):
    """The commands that the node executes while `run` runs, as MONITOR shows them: (words, whether a script called it)."""
    found, end = [], "the end of %s" % run
    with node.client() as watch:
        assert watch("MONITOR") == "OK"
        run()
        node.run("ECHO", end)
        while True:
            line = watch.read()
            words = [bytes(word, "latin1").decode("unicode_escape") for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
            if words == ["ECHO", end]:
                return found
            if words:
                found.append((words, " lua]" in line))


def acquire(client, lock, ms="600000"):
    until(lambda: client("SET", lock, "1", "NX", "PX", ms) == "OK", 10, "the lock")


def keys_of(cluster):
    """One plain key for each node."""
    found = {}
    n = 0
    while len(found) < len(cluster.nodes):
        node = cluster.node_of("key:%d" % n)
        found.setdefault(node, "key:%d" % n)
        n += 1
    return [found[node] for node in cluster.nodes]


def polite(words):
    """What a real node says to a proxy's housekeeping, or None for everything else."""
    name = words[0].upper()
    if name == b"PING":
        return b"+PONG\r\n"
    if name in (b"SELECT", b"AUTH", b"CLIENT", b"READONLY", b"ASKING"):
        return b"+OK\r\n"
    if name == b"HELLO":
        return b"%1\r\n$5\r\nproto\r\n:3\r\n"
    return None
