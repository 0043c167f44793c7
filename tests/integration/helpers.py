"""Functions shared by the tests of faults, redirects and topology."""

from resp import Error, encode
from servers import until, valkey


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
