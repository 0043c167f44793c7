"""Redis and the proxy side by side under random requests: all commands, all argument errors, RESP2 and RESP3, inline,
pipelines, transactions. Replies are the same bytes, except for the differences in differences.py, and so is the data in the
end.

The same requests every time, so that a change is judged by what it changes; LOCKKEEPER_SEED=N makes others, and
LOCKKEEPER_RANDOM_SECONDS=N makes each of these longer: rare differences are looked for by hand, with fresh seeds.
"""

import hashlib
import os
import random
import time

import pytest

import differences
import servers
from grammar import DOUBLES, NO_DOUBLES, NO_NUMBERS, SMALL, WORDS, Grammar, encoded
from resp import Closed, leaves_out_refused_auth

SECONDS = float(os.environ.get("LOCKKEEPER_RANDOM_SECONDS") or 5)
TAGS = ["t%d" % n for n in range(6)]
DATABASES = 4
# Spread over slots these are split by the proxy, where a node says CROSSSLOT.
SPLIT = {"del", "unlink", "exists", "touch", "mget", "mset"}


class Pair:
    """The same requests to Redis and to the proxy; each has data of its own."""

    def __init__(self, oracle, backend, proxy, rng):
        self.oracle, self.backend, self.proxy, self.rng = oracle, backend, proxy, rng
        self.clients, self.sent = None, []
        self.queued = []  # since the last MULTI
        self.count = 0

    def reopen(self, protocol):
        self.close()
        self.clients = [self.oracle.client(timeout=20), self.proxy.client(timeout=20)]
        if protocol == 3:
            for client in self.clients:
                assert client.raw("HELLO", "3")[:1] == b"%"

    def close(self):
        for client in self.clients or []:
            client.close()
        self.clients = None

    def ask(self, requests, inline=False):
        """The replies of both, with what they are to: [(words, Redis's, the proxy's)]."""
        data = b"".join(encoded(words, inline) for words in requests)
        self.sent = (self.sent + [requests])[-12:]
        self.count += len(requests)
        replies = []
        for client in self.clients:
            client.send(data)
        for client in self.clients:
            try:
                replies.append([client.read_raw() for _ in requests])
            except (Closed, TimeoutError) as error:
                self.fail("the %s has nothing to say: %r" % ("proxy" if replies else "server", error), requests)
        return list(zip(requests, *replies))

    def check(self, requests, inline=False):
        for words, expected, found in self.ask(requests, inline):
            self.compare(words, expected, found, requests)

    def compare(self, words, expected, found, requests):
        """EXEC's array is compared element by element, each as the reply to what was queued."""
        name = full_name(words)
        pairs = [(words, expected, found)]
        if name == "multi" and expected == b"+OK\r\n":
            self.queued = []
        elif expected == b"+QUEUED\r\n":
            self.queued.append(words)
        elif name == "exec" and expected != found:
            ours, theirs = differences.elements(expected), differences.elements(found)
            if ours and theirs and len(ours) == len(theirs) == len(self.queued):
                pairs = zip(self.queued, ours, theirs)
        for words, expected, found in pairs:
            if not differences.same(full_name(words), expected, found):
                self.fail("%r%s\nRedis: %r\nproxy: %r" % (words, " in EXEC" if name == "exec" else "", expected[:800],
                                                        found[:800]), requests)

    def fail(self, what, requests):
        raise AssertionError("%s\nin the batch %r\nafter %r" % (what, requests, self.sent[:-1]))

    def check_data(self):
        deadline = time.monotonic() + 3  # a key that SET made with an end in the past counts until Redis finds it
        while digest(self.oracle) != digest(self.backend):
            assert time.monotonic() < deadline, "the data differs after %r:\n%s" % (self.sent, self.differing())
            time.sleep(0.05)

    def differing(self):
        """The keys that differ, with their dumps; of database 0."""
        lines = []
        for key in sorted({*self.oracle.keys(), *self.backend.keys()}):
            found = [node.run("DEBUG", "DIGEST-VALUE", key) for node in (self.oracle, self.backend.node_of(key))]
            if found[0] != found[1]:
                lines.append("%r: Redis %r, the proxy's %r" % (
                    key, *(node.run("DUMP", key) for node in (self.oracle, self.backend.node_of(key)))))
        return "\n".join(lines) or "in their expiry, or in another database"


def full_name(words):
    name = words[0].lower() if words else ""
    return name + "|" + words[1].lower() if len(words) > 1 and name in CONTAINERS else name


CONTAINERS = {"acl", "client", "cluster", "command", "config", "function", "latency", "memory", "module", "object", "pubsub",
              "script", "slowlog", "xgroup", "xinfo"}


def digest(server):
    """DEBUG DIGEST of all data; that of a cluster is put together from its nodes'."""
    found = [int(node.run("DEBUG", "DIGEST"), 16) for node in server.nodes]
    if server.kind == "standalone" and not server.cluster:
        return found[0]
    empty = int(hashlib.sha1(hashlib.sha1(bytes(4)).digest()).hexdigest(), 16)  # what database 0 itself counts for
    result = 0
    for value in found:
        result ^= value ^ (empty if value else 0)
    return result


@pytest.fixture
def rng():
    seed = int(os.environ.get("LOCKKEEPER_SEED") or 1)
    print("LOCKKEEPER_SEED=%d" % seed)
    return random.Random(seed)


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def side_by_side(request):
    """(an oracle, a backend, a proxy in front of the backend). A cluster's oracle has all slots on one node."""
    options = ["--enable-debug-command", "yes"]
    oracle = servers.RedisServer(*options, cluster=request.param == "cluster")
    if oracle.cluster:
        oracle.run("CLUSTER", "ADDSLOTSRANGE", 0, servers.SLOTS - 1)
        servers.until(lambda: "cluster_state:ok" in oracle.run("CLUSTER", "INFO"), 30, "the cluster of one node")
        backend = servers.RedisCluster(*options)
    else:
        backend = servers.RedisServer(*options)
    proxy = servers.Proxy(backend, "lock * mode off")
    yield oracle, backend, proxy
    proxy.stop()
    proxy.remove()
    oracle.stop()
    backend.stop()


@pytest.fixture
def pair(side_by_side, rng):
    pair = Pair(*side_by_side, rng)
    yield pair
    pair.close()


@pytest.fixture
def grammar(pair, rng):
    clustered = pair.oracle.cluster
    with pair.oracle.client() as client:
        grammar = Grammar(client, rng, TAGS if clustered else ())
        if leaves_out_refused_auth(client):
            grammar.names = [name for name in grammar.names if name not in ("auth", "hello")]
    start_over(pair, grammar)
    return grammar


def start_over(pair, grammar):
    for server in (pair.oracle, pair.backend):
        server.flush()
    pair.reopen(2)
    for words in grammar.populate():
        pair.check([words])
        if words[:2] == ["SCRIPT", "LOAD"]:
            grammar.shas.append(hashlib.sha1(words[2].encode()).hexdigest())


def request_of(pair, grammar, but=()):
    """A request that may be sent. On a cluster, what the proxy splits has its keys in one slot, and so has a part of a
    transaction: where a node says CROSSSLOT, the proxy may do it, or say so earlier."""
    while True:
        name = pair.rng.choice(grammar.names)
        if name in differences.LEFT_OUT or name in but or name.split("|")[0] in but:
            continue
        words, well_formed = grammar.request(name)
        if grammar.tags and (grammar.mixed or not well_formed) and (name in SPLIT or but is NOT_QUEUED_ON_CLUSTER):
            continue
        if full_name(words) in differences.LEFT_OUT or differences.by_chance(words):  # the first: a spoilt one
            continue
        return words


# Transactions have their keys in one slot there, below. A script that EVAL sent is known to its node alone; all those
# that SCRIPT LOAD sent are known to all, until they are flushed.
ASK_A_NODE = {"slowlog", "latency", "acl|log"}  # refused on a cluster
NOT_ON_CLUSTER = {"multi", "watch", "script|flush"} | ASK_A_NODE


@pytest.mark.parametrize("words", [["BLPOP", "absent", None], ["BZPOPMAX", "absent", None], ["BLMOVE", "absent", "b", "LEFT", "LEFT", None],
                                   ["BLMPOP", None, "1", "absent", "LEFT"], ["XREAD", "BLOCK", None, "STREAMS", "absent", "1-1"]],
                         ids=lambda words: words[0])
def test_nothing_blocks_for_long(start_redis, words):
    """Whatever stands in a timeout's place: Redis reads 0x10 as 16 seconds."""
    requests = set()
    for timeout in SMALL + NO_NUMBERS + DOUBLES + NO_DOUBLES + WORDS:
        request = [timeout if word is None else word for word in words]
        Grammar.settle(None, request)
        requests.add(tuple(request))
    with start_redis().client(timeout=5) as client:
        for request in requests:
            client(*request)


def test_random_commands(pair, grammar):
    but = NOT_ON_CLUSTER if grammar.tags else differences.NOT_QUEUED | NESTED  # MULTI may be among them
    rng, until = pair.rng, time.monotonic() + SECONDS
    while time.monotonic() < until:
        pair.reopen(rng.choice((2, 3)))
        if rng.random() < 0.1:
            start_over(pair, grammar)
        for _ in range(60):
            if rng.random() < 0.1:
                pair.check([request_of(pair, grammar, but)], inline=True)
            else:
                pair.check([request_of(pair, grammar, but) for _ in range(rng.choice((1, 1, 2, 8)))])
        pair.check_data()
    print("%d requests" % pair.count)


def test_random_transactions(pair, grammar):
    rng, until = pair.rng, time.monotonic() + SECONDS
    while time.monotonic() < until:
        pair.reopen(rng.choice((2, 3)))
        if rng.random() < 0.1:
            start_over(pair, grammar)
        for _ in range(20):
            transaction(pair, grammar)
        pair.check_data()
    print("%d requests" % pair.count)


# Valkey voids a transaction with one of these commands; the proxy refuses the command, and goes on with the transaction, as Redis does.
NESTED = {"multi", "watch"} if servers.valkey() else set()
NOT_QUEUED = {"exec", "discard"} | NESTED | differences.NOT_QUEUED  # it would end there
# On a cluster a transaction is one node's: these have another meaning in it, or are refused.
NOT_QUEUED_ON_CLUSTER = NOT_QUEUED | ASK_A_NODE | {"flushall", "flushdb", "keys", "scan", "dbsize", "randomkey", "script", "function", "spublish",
                                         "cluster", "asking", "readonly", "readwrite"}


def transaction(pair, grammar):
    rng = pair.rng
    queued = []
    tag = rng.choice(TAGS)
    while len(queued) < rng.randint(0, 6):
        words = request_of(pair, grammar, NOT_QUEUED_ON_CLUSTER if grammar.tags else NOT_QUEUED)
        if grammar.tags:
            words = [_retag(word, tag) for word in words]
        queued.append(words)
    watched = [["WATCH", grammar.key("string") if not grammar.tags else "{%s}s1" % tag]] if rng.random() < 0.3 else []
    watched.append(["MULTI"])
    batch = [*watched, *queued, ["EXEC" if rng.random() < 0.85 else "DISCARD"]]
    if rng.random() < 0.5:
        pair.check(batch)
    else:
        for words in batch:
            pair.check([words])


def _retag(word, tag):
    return "{%s}%s" % (tag, word.split("}", 1)[1]) if word.startswith("{t") and "}" in word else word


# The numbers are large: what ends after a millisecond would do so on one side first.
PLAIN = ["x", "1000001", "y", "2000002", "z", "3000003", "x", "4000004"]
HARMFUL = {"shutdown", "sync", "psync", "monitor", "quit", "save", "bgsave", "bgrewriteaof", "failover", "replconf", "debug",
           "replicaof", "slaveof", "reset", "pfselftest", "migrate", "multi", "exec", "discard"}


def test_every_number_of_arguments(pair, grammar):
    """Every command and subcommand, from no argument to more than it takes; also under unknown names."""
    requests = []
    for name in grammar.names:
        words = name.split("|")
        with_more = [words + PLAIN[:n] for n in range(6)]
        if words[0] in HARMFUL:
            continue
        if name in differences.LEFT_OUT or full_name(words) in differences.LEFT_OUT:
            continue
        if pair.oracle.cluster:  # in one slot
            with_more = [[word if word not in PLAIN else "{t}" + word for word in more] for more in with_more]
        if pair.oracle.cluster and {words[0], name} & ASK_A_NODE:
            continue
        requests += [more for more in with_more if full_name(more) not in differences.LEFT_OUT]
    containers = sorted({name.split("|")[0] for name in grammar.names if "|" in name} - (ASK_A_NODE if pair.oracle.cluster else set()))
    requests += [[name, *more] for name in containers for more in ([], ["nosuch"], ["NoSuch", "a"], ["help", "me"], [""])]
    # No name with a NUL behind a command's: Redis takes it for that command where its random seed has them side by side.
    requests += [["nosuch"], ["NoSuch", "a", "b"], [""], ["\r\n", "a"], ["x" * 200, "y" * 200], ["GET "]]
    for words in requests:
        grammar.settle(words)
    wrong = []
    for protocol, queued in ((2, False), (3, False), (2, True)):
        pair.reopen(protocol)
        asked = [words for words in requests if not queued or not (
            full_name(words) in NOT_QUEUED or pair.oracle.cluster and words[0] in NOT_QUEUED_ON_CLUSTER)]
        for at in range(0, len(asked), 20):
            batch = asked[at : at + 20]
            if queued:
                batch = [command for words in batch for command in (["MULTI"], words, ["DISCARD"])]
            for words, expected, found in pair.ask(batch):
                if not differences.same(full_name(words), expected, found):
                    wrong.append("%r%s\n  Redis: %r\n  proxy: %r" % (
                        words, " in MULTI" if queued else "", expected[:200], found[:200]))
    assert not wrong, "%d differ:\n%s" % (len(wrong), "\n".join(wrong[:100]))
