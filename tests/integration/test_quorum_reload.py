"""A reload of `witness`: one name is added, taken away or replaced, while locks are held and proxies are reloaded one after the
other. Two clients never hold one lock, whatever Redis forgets meanwhile."""

import threading
import time

import pytest

from resp import Client, Error
from servers import until
from test_quorum import QUORUM, TIMEOUT, record, trust
from test_reload import in_force, reloaded, restart_needed
from test_takeover import orphans, take_over  # noqa: F401: a fixture

LONG = ("witness-timeout 1s", "lock lock:q:* quorum yes lease 60s", "lock lock:*")
SHORT = ("witness-timeout 500ms", "witness-quarantine 5s", "lock lock:q:* quorum yes lease 3s handover 3s", "lock lock:*")


def addresses(witnesses):
    return " ".join("%s:%d" % w.address for w in witnesses)


def states(client):
    lines = (line.split(",") for line in client("PROXY", "INFO", "witnesses").splitlines() if line.startswith("witness"))
    return {line[0].split("address=")[1]: line[1].split("=")[1] for line in lines}


def named(proxy, connect, name):
    client = connect(proxy)
    assert client("CLIENT", "SETNAME", name) == "OK"
    return client


class Pair:
    """Redis, witnesses, and two proxies that name the first `count` of them."""

    def __init__(self, start_redis, start_proxy, lines, witnesses, count, threads=1):
        self.redis = start_redis()
        self.witnesses = [start_redis() for _ in range(witnesses)]
        self.lines = ["witness " + addresses(self.witnesses[:count]), "threads %d" % threads, *lines]
        self.proxies = [start_proxy(self.redis, *self.lines) for _ in range(2)]
        trust(self.proxies[0], *self.witnesses[:count])

    def change(self, client, *numbers):
        return reloaded_proxy(self, client, addresses(self.witnesses[n] for n in numbers))

    def forget(self, key):
        for name in self.redis.run("KEYS", "*" + key):
            self.redis.run("DEL", name)


def reloaded_proxy(pair, client, text):
    port = client.sock.getpeername()[1]
    return reloaded(next(p for p in pair.proxies if p.address[1] == port), "witness " + text, client=client)


class Crowd:
    """Workers of both proxies that contend for one lock. A worker counts a double entry if it enters while another one is inside
    whose lease has not ended. What is forgotten during a release may be held until the end of the lease."""

    LEASE = 2.0

    def __init__(self, proxies, key, workers=3):
        self.key, self.ends, self.double, self.entries, self.errors = key, {}, 0, [0] * len(proxies), set()
        self.over, self.mutex = threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(p.address, n, "w%d-%d" % (n, i)))
                        for n, p in enumerate(proxies) for i in range(workers)]
        for t in self.threads:
            t.start()

    def work(self, address, proxy, name):
        with Client(address) as c:
            c("CLIENT", "SETNAME", name)
            while not self.over.is_set():
                ends = time.monotonic() + self.LEASE
                reply = c("SET", self.key, name, "NX", "PX", int(self.LEASE * 1000))
                if reply != "OK":
                    self.errors |= {reply} if reply and not reply.startswith("UPSTREAM the lock was not confirmed") else set()
                    continue
                with self.mutex:
                    self.double += any(end > time.monotonic() for end in self.ends.values())
                    self.ends[name] = ends
                    self.entries[proxy] += 1
                self.over.wait(0.002)
                with self.mutex:
                    del self.ends[name]
                c("DEL", self.key)

    def more(self):
        """Each proxy's workers have been inside again."""
        before = list(self.entries)
        until(lambda: all(a > b + 3 for a, b in zip(self.entries, before)), TIMEOUT, "entries through both proxies")

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(TIMEOUT)
        assert not self.double and not self.errors, (self.double, self.errors)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("before, behind", [((0, 1, 2), (0, 1, 2, 3)), ((0, 1, 2, 3), (0, 1, 3)), ((0, 1, 2), (3, 1, 2))],
                         ids=["add", "remove", "replace"])
def test_a_change_while_locks_are_held(start_redis, start_proxy, connect, before, behind, threads):
    pair = Pair(start_redis, start_proxy, LONG, 4, len(before), threads)
    a, b = (named(proxy, connect, name) for proxy, name in zip(pair.proxies, "ab"))
    key = "lock:q:held"
    assert a("SETNX", key, "1") == 1
    crowd = Crowd(pair.proxies, "lock:q:crowd")
    try:
        for client in (a, b):
            crowd.more()
            assert pair.change(client, *behind) == "OK"
            assert in_force(client, "witness")["witness"] == addresses(pair.witnesses[n] for n in behind)
            assert restart_needed(client) == 0
            pair.forget(key)
            pair.forget("lock:q:crowd")
            assert b("SETNX", key, "2") == 0, "the witnesses remember it"
            crowd.more()
    finally:
        crowd.end()
    for client in (a, b):
        new = addresses([pair.witnesses[3]])
        until(lambda: set(states(client)) == set(addresses(pair.witnesses[n] for n in behind).split()) and
              states(client).get(new, "") in (("up",) if 3 in before else ("quarantined",)), TIMEOUT, "what is shown")
        if 3 not in before:
            reply = client("PROXY", "WITNESS", "TRUST", new)
            assert isinstance(reply, Error) and "has come with a reload" in reply, reply
    assert a("DEL", key) == 1
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the lock")
    kept = [pair.witnesses[n] for n in behind if n in before]
    until(lambda: all(record(w, key).get("token") for w in kept), TIMEOUT, "the records of the new lease")
    assert b("EXPIRE", key, "100") == 1 and b("DEL", key) == 1


def test_a_newcomer_does_not_vote_while_older_leases_live(start_redis, start_proxy, connect):
    """A lease that the first and the third witness know. The second and a newcomer that is out of quarantine are a majority of the
    new line: they must not give the lock away before the lease is over."""
    pair = Pair(start_redis, start_proxy, LONG, 4, 3)
    elsewhere = start_proxy(start_redis(), "witness " + addresses(pair.witnesses[3:]), *LONG)
    trust(elsewhere, pair.witnesses[3])
    a, b = (named(proxy, connect, name) for proxy, name in zip(pair.proxies, "ab"))
    key = "lock:q:older"
    assert a("SET", key, "1", "NX", "PX", "60000") == "OK"
    until(lambda: all(record(w, key).get("token") for w in pair.witnesses[:3]), TIMEOUT, "the records")
    pair.witnesses[1].run("DEL", "lockkeeper-witness::0:" + key)  # as if the message to it had been lost
    assert pair.change(b, 0, 1, 3) == "OK"
    pair.forget(key)
    reply = b("SETNX", key, "2")
    assert reply == 0 or str(reply).startswith("UPSTREAM the lock was not confirmed"), reply
    assert states(b)[addresses(pair.witnesses[3:])] == "quarantined"
    assert a("DEL", key) == 1
    until(lambda: b("SETNX", key, "2") == 1, TIMEOUT, "the lock")


def test_a_process_that_starts_after_a_change_hears_of_it(start_redis, start_proxy, connect):
    """From the newcomer, which does not vote there either."""
    pair = Pair(start_redis, start_proxy, LONG, 4, 3)
    a, b = (named(proxy, connect, name) for proxy, name in zip(pair.proxies, "ab"))
    key, new = "lock:q:older", addresses(pair.witnesses[3:])
    until(lambda: a("SET", key, "1", "NX", "PX", "60000") == "OK", TIMEOUT, "the lock")
    until(lambda: all(record(w, key).get("token") for w in pair.witnesses[:3]), TIMEOUT, "the records")
    pair.witnesses[1].run("DEL", "lockkeeper-witness::0:" + key)  # as if the message to it had been lost
    assert pair.change(b, 0, 1, 3) == "OK"
    until(lambda: pair.witnesses[3].run("HGET", "lockkeeper-witness", "joins:"), TIMEOUT, "what the newcomer remembers")
    pair.witnesses[3].run("HSET", "lockkeeper-witness", "since", "0")  # it is out of its own quarantine
    pair.lines[0] = "witness " + addresses(pair.witnesses[n] for n in (0, 1, 3))
    c = named(start_proxy(pair.redis, *pair.lines), connect, "c")
    until(lambda: states(c)[new] == "quarantined", TIMEOUT, "its quarantine")
    reply = c("PROXY", "WITNESS", "TRUST", new)
    assert isinstance(reply, Error) and "has come with a reload" in reply, reply
    pair.forget(key)
    reply = c("SETNX", key, "2")
    assert reply == 0 or str(reply).startswith("UPSTREAM the lock was not confirmed"), reply
    assert a("DEL", key) == 1
    until(lambda: c("SETNX", key, "2") == 1, TIMEOUT, "the lock")


def test_a_witness_that_comes_back_votes_where_it_has_stayed(start_redis, start_proxy, connect):
    pair = Pair(start_redis, start_proxy, LONG, 4, 3)
    a, b = (named(proxy, connect, name) for proxy, name in zip(pair.proxies, "ab"))
    back = addresses(pair.witnesses[2:3])
    until(lambda: set(states(a).values()) == {"up"}, TIMEOUT, "all votes")
    assert pair.change(b, 0, 1, 3) == "OK" and pair.change(b, 0, 1, 2) == "OK"
    until(lambda: pair.witnesses[2].run("HGET", "lockkeeper-witness", "joins:"), TIMEOUT, "what it remembers")
    until(lambda: states(b)[back] == "quarantined", TIMEOUT, "its quarantine there")
    pair.witnesses[1].stop()
    until(lambda: a("SETNX", "lock:q:k", "1") == 1, TIMEOUT, "a majority with it")
    assert states(a)[back] == "up"


def test_a_newcomer_votes_when_older_leases_are_over(start_redis, start_proxy, connect):
    pair = Pair(start_redis, start_proxy, SHORT, 4, 3)
    b, new = connect(pair.proxies[1]), addresses(pair.witnesses[3:])
    assert pair.change(b, 0, 1, 3) == "OK"
    until(lambda: states(b)[new] == "quarantined", TIMEOUT, "its quarantine")
    until(lambda: states(b)[new] == "up", TIMEOUT, "its vote")
    pair.witnesses[0].stop()
    until(lambda: b("SETNX", "lock:q:later", "2") == 1, TIMEOUT, "a majority with it")
    assert record(pair.witnesses[3], "lock:q:later")["token"]


def test_what_is_refused(start_redis, start_proxy, connect):
    pair = Pair(start_redis, start_proxy, SHORT, 5, 3)
    proxy, a = pair.proxies[0], connect(pair.proxies[0])
    other = connect(pair.proxies[1])
    held = addresses(pair.witnesses[:3])
    for text in (addresses(pair.witnesses), addresses(pair.witnesses[:1]), addresses(pair.witnesses[n] for n in (0, 3, 4))):
        assert isinstance(reloaded_proxy(pair, a, text), Error)
        until(lambda: "expected one address added, taken away or replaced at a time" in proxy.log(), TIMEOUT, "why")
        assert in_force(a, "witness")["witness"] == held and len(states(a)) == 3
    assert pair.change(a, 2, 1, 0) == "OK", "the order does not matter"
    assert pair.change(a, 0, 1, 3) == "OK"
    assert isinstance(pair.change(a, 0, 1, 3, 4), Error)
    until(lambda: "expected the next change in " in proxy.log(), TIMEOUT, "why")
    assert in_force(a, "witness")["witness"] == addresses(pair.witnesses[n] for n in (0, 1, 3))
    assert pair.change(a, 0, 1, 2) == "OK", "back to the line from before"
    assert isinstance(pair.change(a, 0, 1, 4), Error)
    assert pair.change(a, 0, 1, 3) == "OK"
    until(lambda: pair.change(a, 0, 1, 3, 4) == "OK", TIMEOUT, "the next change, in time")
    assert len(states(a)) == 4
    reply = reloaded(pair.proxies[1], "witness " + held, "witness-namespace x", client=other)
    assert reply == "OK, and these need a restart: witness-namespace"
    until(lambda: a("SETNX", "lock:q:n", "1") == 1, TIMEOUT, "the lock")


def test_first_witnesses_need_a_restart(start_redis, start_proxy, connect):
    witness = start_redis()
    none, embedded = start_proxy(start_redis(), "lock lock:*"), start_proxy("embedded", "witness embedded", QUORUM)
    for proxy in (none, embedded):
        client = connect(proxy)
        before = in_force(client, "witness")
        assert reloaded(proxy, "witness " + addresses([witness]), client=client) == "OK, and these need a restart: witness"
        assert in_force(client, "witness") == before


def test_a_take_over_after_a_reload(start_redis, start_proxy, connect, orphans):  # noqa: F811
    pair = Pair(start_redis, start_proxy, LONG, 4, 3)
    proxy = pair.proxies[0]
    a, b = named(proxy, connect, "a"), named(pair.proxies[1], connect, "b")
    key = "lock:q:over"
    assert a("SETNX", key, "1") == 1
    for client in (a, b):
        assert pair.change(client, 0, 1, 3) == "OK"
    after = take_over(proxy, orphans)
    until(lambda: "process_id:%d" % after.pid in named(proxy, connect, "c")("PROXY", "INFO"), TIMEOUT, "the next process")
    c = named(proxy, connect, "c")
    assert set(states(c)) == set(addresses(pair.witnesses[n] for n in (0, 1, 3)).split())
    pair.forget(key)
    assert c("SETNX", key, "2") == 0 and b("SETNX", key, "2") == 0
    assert a("DEL", key) == 1
    until(lambda: c("SETNX", key, "2") == 1, TIMEOUT, "the lock")
    for client in (a, c):
        client.close()
    until(lambda: not proxy.running(), TIMEOUT, "the predecessor's end")
    proxy.expected = False


def test_witnesses_over_tls(start_redis, start_proxy, connect, certificates):
    """Redis is plain, the witnesses are not. A reload adds one, which is reached over TLS too."""
    witnesses, plain = [start_redis(tls=certificates) for _ in range(4)], [start_redis() for _ in range(3)]
    names = ["127.0.0.1:%d" % w.tls_port for w in witnesses]
    files = certificates.upstream_lines()[1:]
    proxy = start_proxy(start_redis(), "witness " + " ".join(names[:3]), "witness-tls yes", *files, *LONG)
    a = connect(proxy)
    for name in names[:3]:
        assert a("PROXY", "WITNESS", "TRUST", name) == "OK"
    assert a("SETNX", "lock:q:tls", "1") == 1
    until(lambda: all(record(w, "lock:q:tls").get("token") for w in witnesses[:3]), TIMEOUT, "the records")
    assert reloaded(proxy, "witness " + " ".join(names), client=a) == "OK"
    until(lambda: states(a).get(names[3]) == "quarantined", TIMEOUT, "the newcomer's answer")
    assert a("EXPIRE", "lock:q:tls", "50") == 1 and a("DEL", "lock:q:tls") == 1
    for lines, where in ((files, addresses(plain)),  # they do not speak it
                         (["upstream-tls-ca-cert-file " + certificates.path("other-ca.crt")], " ".join(names[:3]))):
        c = connect(start_proxy(start_redis(), "witness " + where, "witness-tls yes", *lines, *LONG))
        reply = c("SETNX", "lock:q:tls", "1")
        assert isinstance(reply, Error) and "(0 of 3 answered)" in reply, reply
