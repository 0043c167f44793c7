"""Semaphores: the proxy gives back what a session took and did not give back, once. On one Redis and on a cluster."""

import pytest

import servers
from resp import Client
from servers import until
from test_one_shot import cli, incidents
from test_takeover import ended, orphans, take_over  # noqa: F401: a fixture

RULES = ["lock sem:lease:* kind semaphore lease 1s", "lock sem:audit:* kind semaphore mode audit",
         "lock sem:client:* kind semaphore owner client", "lock sem:connection:* kind semaphore owner connection",
         "lock sem:* kind semaphore", "lock lock:*"]


@pytest.fixture(scope="module")
def proxies(farm):
    made = {}

    def start(backend):
        if backend.kind not in made:
            made[backend.kind] = servers.Proxy(backend, "upstream-timeout 1s", *RULES)
        return made[backend.kind]

    yield start
    for proxy in made.values():
        proxy.stop()
        proxy.remove()


@pytest.fixture
def proxy(proxies, backend):
    return proxies(backend)


@pytest.fixture
def worker(proxy):
    """worker(): a connection that has sent more than one command, and so is no one-shot client's."""
    made = []

    def connect(name=None):
        c = Client(proxy.address, commands=[("CLIENT", "SETNAME", name)] if name else [])
        assert c("PING") == "PONG"
        made.append(c)
        return c

    yield connect
    for c in made:
        c.close()


def info(client):
    return dict(line.split(":", 1) for line in client("PROXY", "INFO").splitlines() if ":" in line)


def returned(proxy, key, count=1):
    return until(lambda: len(incidents(proxy, key, "permit_returned")) == count, what="the incident")


def unread(port):
    """Whether the node on this port has bytes to read, which it does not read."""
    rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
    return any(row[1].endswith(":%04X" % port) and row[3] == "01" and not row[4].endswith(":00000000") for row in rows)


class Counter:
    """INCR takes, DECR gives back; `left` is how many permits are taken."""

    def __init__(self, direct, key):
        self.direct, self.key = direct, key

    def take(self, c):
        assert c("INCR", self.key) >= 1

    def give(self, c):
        c("DECR", self.key)

    def taken(self):
        return int(self.direct("GET", self.key) or 0)


class Tokens:
    def __init__(self, direct, key, take="LPOP"):
        self.direct, self.key, self.command, self.have = direct, key, take, {}
        direct("RPUSH", key, "a", "b", "c", "d", "e")

    def take(self, c):
        blocks = self.command.startswith("B")
        got = c(self.command, self.key, *([5] if blocks else []))
        self.have.setdefault(id(c), []).append(got[1] if blocks else got)

    def give(self, c, of=None):
        c("RPUSH", self.key, self.have[id(of or c)].pop())

    def taken(self):
        there = self.direct("LRANGE", self.key, 0, -1)
        assert len(set(there)) == len(there), "a token is there twice"
        return 5 - len(there)


class Popped(Tokens):
    def __init__(self, direct, key):
        super().__init__(direct, key, "BRPOP")


class Members:
    def __init__(self, direct, key):
        self.direct, self.key, self.have, self.next = direct, key, {}, 0

    def take(self, c):
        self.next += 1
        assert c("ZADD", self.key, "%d.5" % self.next, "m%d" % self.next) == 1
        self.have.setdefault(id(c), []).append("m%d" % self.next)

    def give(self, c, of=None):
        c("ZREM", self.key, self.have[id(of or c)].pop())

    def taken(self):
        return self.direct("ZCARD", self.key)


SHAPES = [Counter, Tokens, Popped, Members]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=[s.__name__.lower() for s in SHAPES])


@shapes
def test_a_dead_workers_permit_comes_back(proxy, direct, worker, names, shape):
    sem = shape(direct, "sem:dead:" + shape.__name__)
    a, b = worker(), worker()
    sem.take(a)
    sem.take(b)
    assert sem.taken() == 2
    a.crash()
    until(lambda: sem.taken() == 1, what="the permit")
    returned(proxy, sem.key)
    sem.give(b)
    b.close()
    c = worker()
    c.close()
    assert sem.taken() == 0
    assert len(incidents(proxy, sem.key, "permit_returned")) == 1


@shapes
def test_what_was_given_back_stays_so(proxy, direct, worker, shape):
    sem = shape(direct, "sem:given:" + shape.__name__)
    a, b = worker(), worker()
    sem.take(b)
    for _ in range(3):
        sem.take(a)
        sem.give(a)
    sem.take(a)
    a.close()
    until(lambda: sem.taken() == 1)
    sem.give(b)
    assert sem.taken() == 0
    returned(proxy, sem.key)


@shapes
def test_given_back_over_another_connection(proxy, direct, worker, shape):
    """A pool: what one connection took, another one gave back. The first one closes, and nothing is given twice."""
    sem = shape(direct, "sem:pool:" + shape.__name__)
    a, b, c = worker("pool"), worker("pool"), worker("other")
    sem.take(c)
    sem.take(a)
    if shape is Counter:
        sem.give(b)
    else:
        sem.give(b, of=a)
    assert sem.taken() == 1
    sem.take(a)  # the client is known to share its connections: b may be about to give this back
    a.close()
    until(lambda: worker("pool")("PING") == "PONG")
    assert sem.taken() == 2
    assert not incidents(proxy, sem.key, "permit_returned")


def test_the_last_connection_of_a_client(proxy, direct, worker):
    sem = Counter(direct, "sem:client:last")
    a, b = worker("last"), worker("last")
    sem.take(a)
    a.crash()
    assert b("PING") == "PONG" and sem.taken() == 1 and not incidents(proxy, sem.key, "permit_returned")
    b.crash()
    until(lambda: sem.taken() == 0)
    returned(proxy, sem.key)


@shapes
@pytest.mark.parametrize("protocol", ["2", "3"])
def test_what_operators_see(proxy, direct, worker, shape, protocol):
    sem = shape(direct, "sem:shown:%s:%s" % (protocol, shape.__name__))
    a, b, operator = worker("first"), worker("second"), worker()
    operator("HELLO", protocol)

    def shown():
        reply = operator("PROXY", "LOCK", sem.key)
        pairs = reply if protocol == "3" else dict(zip(reply[::2], reply[1::2]))
        assert list(pairs) == ["key", "kind", "permits", "holders"] and pairs["kind"] == "semaphore" and pairs["key"] == sem.key
        return pairs["permits"], [h for h in pairs["holders"].split("; ") if h]

    assert shown() == (0, [])
    sem.take(a)
    sem.take(b)
    count, holders = shown()
    assert count == 2
    for c, name, text in zip((a, b), ("first", "second"), holders):
        has = "1" if shape is Counter else sem.have[id(c)][0]
        address = "%s:%d" % c.sock.getsockname()[:2]
        words = text.split()
        assert words[0] == address and words[1] == name and "id=%d" % c("CLIENT", "ID") in words, text
        assert words[-5:-2] == ["has", has, "since"] and 0 <= int(words[-2]) < 60000 and words[-1] == "ms", text
    sem.give(a)
    assert shown()[0] == 1 and shown()[1][0].split()[0] == holders[1].split()[0]
    assert "no lock rule" in operator("PROXY", "RELEASE", sem.key) and sem.taken() == 1
    sem.give(b)
    assert shown() == (0, [])


def test_many_are_not_shown_all(proxy, worker):
    a = worker()
    for n in range(40):
        assert a("ZADD", "sem:shown:many", n, "m\n%d" % n) == 1
    reply = a("PROXY", "LOCK", "sem:shown:many")
    assert reply[5] == 40 and reply[7].count("; ") == 32 and reply[7].endswith("; and 8 more") and "has m.3 since" in reply[7]
    assert a("DEL", "sem:shown:many") == 1


def test_a_count_beyond_the_limit(proxy, direct, worker):
    sem = Counter(direct, "sem:beyond")
    a, b = worker(), worker()
    sem.take(a)
    assert b("INCR", sem.key) == 2 and b("DECR", sem.key) == 1
    b.crash()
    a.crash()
    until(lambda: sem.taken() == 0)
    returned(proxy, sem.key)


def test_several_at_once(proxy, direct, worker):
    a, b = worker(), worker()
    assert a("INCRBY", "sem:many", 5) == 5 and a("DECRBY", "sem:many", 2) == 3 and b("INCR", "sem:many") == 4
    tokens = Tokens(direct, "sem:many:tokens")
    assert a("LPOP", tokens.key, 3) == ["a", "b", "c"] and a("RPUSH", tokens.key, "b") == 3
    assert a("ZADD", "sem:many:members", 1, "x", 2, "y") == 2
    a.crash()
    until(lambda: direct("GET", "sem:many") == "1" and tokens.taken() == 0 and direct("ZCARD", "sem:many:members") == 0)


@shapes
def test_in_multi(proxy, direct, worker, shape):
    """The permit is taken by EXEC, and its element tells of it."""
    sem = shape(direct, "sem:multi:" + shape.__name__)
    a, b = worker(), worker()
    words = {Counter: ["INCR", sem.key], Tokens: ["LPOP", sem.key], Popped: ["BRPOP", sem.key, 0],
             Members: ["ZADD", sem.key, "7", "m"]}[shape]
    for c in (a, b):
        assert c("MULTI") == "OK" and c(*words) == "QUEUED"
    b.crash()  # queued, not taken
    assert len(a("EXEC")) == 1 and sem.taken() == 1
    a.crash()
    until(lambda: sem.taken() == 0)
    returned(proxy, sem.key)


def test_many_in_one_multi(proxy, direct, worker):
    """More than the proxy keeps: what came behind is not tracked, and nothing is given back twice."""
    a = worker()
    assert a("INCRBY", "sem:huge", 1) == 1
    a("MULTI")
    for _ in range(1100):
        a("INCR", "sem:huge")
        a("DECR", "sem:huge")
    assert a("EXEC")[-1] == 1
    probe = Counter(direct, "sem:probe")
    probe.take(a)
    a.crash()
    until(lambda: probe.taken() == 0)
    assert direct("GET", "sem:huge") == "1"


def test_a_python_semaphore(proxy, direct, worker):
    """ZREMRANGEBYSCORE, ZADD and ZRANK in one MULTI, as libraries have it; a rank that is too high is given back."""
    key = "sem:python"

    def acquire(c, member, now, limit=1, timeout=10):
        for words in (["MULTI"], ["ZREMRANGEBYSCORE", key, "-inf", now - timeout], ["ZADD", key, now, member], ["ZRANK", key, member]):
            c(*words)
        got = c("EXEC")[-1] < limit
        if not got:
            assert c("ZREM", key, member) == 1
        return got

    a, b, c = worker(), worker(), worker()
    assert acquire(a, "a", 100) and not acquire(b, "b", 101)
    a.crash()
    until(lambda: direct("ZCARD", key) == 0)
    assert acquire(b, "b", 102)
    assert acquire(c, "c", 113), "b has taken too long"
    assert acquire(b, "b2", 114, limit=2)
    assert c("ZADD", key, 120, "c") == 0, "refreshed"
    b.crash()
    until(lambda: direct("ZRANGE", key, 0, -1) == ["c"])
    c.crash()
    until(lambda: direct("ZCARD", key) == 0)


def test_another_clients_member_stays(proxy, direct, worker):
    """The member was removed and added anew with another score, around the proxy: it is no permit of the dead worker."""
    a = worker()
    a("ZADD", "sem:anew", 1, "m")
    direct("ZADD", "sem:anew", 2, "m")
    before = int(info(worker())["permits_returned"])
    a.crash()
    b = worker()
    b("ZADD", "sem:anew", 3, "n")
    b.crash()
    until(lambda: int(info(worker())["permits_returned"]) == before + 1)
    assert direct("ZRANGE", "sem:anew", 0, -1) == ["m"]


@shapes
def test_lease(proxy, direct, worker, shape):
    """With a lease the permit comes back from a worker that is connected, once."""
    sem = shape(direct, "sem:lease:" + shape.__name__)
    a, b = worker(), worker()
    sem.take(a)
    until(lambda: sem.taken() == 0)
    returned(proxy, sem.key)
    sem.take(b)
    a.crash()
    sem.give(b)
    assert sem.taken() == 0 and len(incidents(proxy, sem.key, "permit_returned")) == 1


@shapes
def test_audit(proxy, direct, worker, shape):
    sem = shape(direct, "sem:audit:" + shape.__name__)
    a = worker()
    sem.take(a)
    a.crash()
    returned(proxy, sem.key)
    assert sem.taken() == 1


def test_a_reset_semaphore(proxy, direct, worker):
    a, b = worker(), worker()
    for reset in (["DEL", "sem:reset"], ["SET", "sem:reset", 0], ["UNLINK", "sem:reset"], ["FLUSHALL"]):
        a("INCR", "sem:reset")
        b(*reset)
        assert b("INCR", "sem:reset") == 1
        a.crash()
        a = worker()
        probe = Counter(direct, "sem:probe")
        probe.take(a)
        a.crash()
        until(lambda: probe.taken() == 0)
        assert direct("GET", "sem:reset") == "1", reset
        a = worker()
        b("DEL", "sem:reset")


def test_an_expired_counter(proxy, direct, worker):
    """The counter has expired, and counts anew: the permits of before are over."""
    a, b = worker(), worker()
    a("INCR", "sem:expired")
    direct("PEXPIRE", "sem:expired", 1)
    until(lambda: direct("EXISTS", "sem:expired") == 0)
    assert b("INCR", "sem:expired") == 1
    a.crash()
    probe = Counter(direct, "sem:probe")
    c = worker()
    probe.take(c)
    c.crash()
    until(lambda: probe.taken() == 0)
    assert direct("GET", "sem:expired") == "1"
    b.crash()
    until(lambda: direct("GET", "sem:expired") == "0")


def test_equal_tokens(proxy, direct, worker):
    direct("RPUSH", "sem:equal", *["1"] * 3)
    a, b = worker(), worker()
    assert a("LPOP", "sem:equal") == b("LPOP", "sem:equal") == "1"
    a.crash()
    until(lambda: direct("LLEN", "sem:equal") == 2)
    b.crash()
    until(lambda: direct("LLEN", "sem:equal") == 3)


def test_blocked_when_the_client_dies(proxy, direct, worker):
    """A worker that waits in BLPOP dies: no token is taken for it."""
    for end in ("crash", "close"):
        a, b = worker(), worker()
        a.send(b"*3\r\n$5\r\nBLPOP\r\n$9\r\nsem:block\r\n$1\r\n0\r\n")
        until(lambda: "blpop" in b("CLIENT", "LIST"))
        getattr(a, end)()
        until(lambda: "blpop" not in b("CLIENT", "LIST"))
        direct("RPUSH", "sem:block", "t")
        assert b("BLPOP", "sem:block", 5) == ["sem:block", "t"]
        b("RPUSH", "sem:block", "t")
        assert direct("LRANGE", "sem:block", 0, -1) == ["t"]
        direct("DEL", "sem:block")
        b.close()


def test_a_blocked_worker_gets_the_dead_ones_token(proxy, direct, worker):
    direct("RPUSH", "sem:hand", "t")
    a, b = worker(), worker()
    assert a("LPOP", "sem:hand") == "t"
    b.send(b"*3\r\n$5\r\nBLPOP\r\n$8\r\nsem:hand\r\n$2\r\n20\r\n")
    a.crash()
    assert b.read() == ["sem:hand", "t"]


@shapes
def test_crash_between_command_and_reply(start_proxy, start_redis, shape):
    """The worker is gone when the reply comes: the permit is taken, and given back."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES)
    direct = redis.direct()
    sem = shape(direct, "sem:between")
    a, b = Client(proxy.address), Client(proxy.address)
    assert a("PING") == b("PING") == "PONG"
    redis.pause()
    words = {Counter: "INCR sem:between", Tokens: "LPOP sem:between", Popped: "BRPOP sem:between 0",
             Members: "ZADD sem:between 7 m"}[shape]
    a.send(words.encode() + b"\r\n")
    until(lambda: unread(redis.port), what="the command at the node")
    a.crash()
    redis.resume()
    returned(proxy, "sem:between")
    assert sem.taken() == 0
    b.close()


@shapes
def test_reload(start_proxy, start_redis, shape):
    redis = start_redis()
    proxy = start_proxy(redis, "lock sem:* kind semaphore")
    sem = shape(redis.direct(), "sem:reload")
    a, b = Client(proxy.address), Client(proxy.address)
    assert b("PING") == "PONG"
    sem.take(a)
    assert b("PROXY", "RELOAD") == "OK"
    sem.take(a)
    sem.give(a)
    a.crash()
    until(lambda: sem.taken() == 0)
    returned(proxy, sem.key)
    b.close()


def test_nothing_is_given_twice_when_the_node_is_lost(start_proxy, start_redis):
    """The node is stopped while the call is on its way, and its connections are cut: the call is not made again."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES, "upstream-timeout 500ms")
    direct = redis.direct()
    a, b, first = (Client(proxy.address) for _ in range(3))
    assert first("INCR", "sem:first") == 1 and first("PING") == "PONG"
    first.crash()
    until(lambda: direct("GET", "sem:first") == "0", what="the script, which the node knows from now on")
    assert b("INCRBY", "sem:lost", 5) == 5 and a("INCR", "sem:lost") == 6 and a("PING") == "PONG"
    redis.pause()
    a.crash()
    until(lambda: incidents(proxy, "sem:lost", "permit_lost"), what="the incident")
    redis.resume()
    until(lambda: direct("GET", "sem:lost") == "5", what="the call that was on its way")
    assert b("INCR", "sem:lost") in (6, 7)
    b.crash()
    until(lambda: direct("GET", "sem:lost") == "0")


def test_the_node_is_out_of_reach(start_proxy, start_redis):
    """A call that could not be sent is made again when the node is back."""
    redis = start_redis("--appendonly", "yes", "--appendfsync", "always")
    proxy = start_proxy(redis, *RULES)
    a = Client(proxy.address)
    assert a("INCR", "sem:away") == 1 and a("PING") == "PONG"
    redis.kill()
    a.crash()
    with Client(proxy.address) as b:
        until(lambda: "is tried again" in proxy.log(), what="the log")
        redis.start()
        until(lambda: redis.run("GET", "sem:away") == "0", 20)
    returned(proxy, "sem:away")


def test_take_over(start_proxy, start_redis, orphans):  # noqa: F811
    """The old process keeps the ledger for its clients, and gives their permits back; the new one has its own."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES, "reuse-port yes")
    old = [Client(proxy.address) for _ in range(2)]
    for c in old:
        assert c("INCR", "sem:old") >= 1 and c("PING") == "PONG"
    take_over(proxy, orphans)
    new = Client(proxy.address)
    assert new("INCR", "sem:new") == 1 and new("PING") == "PONG"
    for c in (old[0], new):
        c.crash()
    until(lambda: redis.run("GET", "sem:old") == "1" and redis.run("GET", "sem:new") == "0", what="the permits")
    assert old[1]("DECR", "sem:old") == 0
    old[1].close()
    ended(proxy)
    assert redis.run("GET", "sem:old") == "0"


def test_a_client_that_moves_to_the_next_process(start_proxy, start_redis, orphans):  # noqa: F811
    """It has taken a permit over the old process, closes its last connection there, and gives back over the new one: the old one
    does not give back a second time."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES, "reuse-port yes")
    stays = Client(proxy.address, commands=[("CLIENT", "SETNAME", "other")])
    moves = Client(proxy.address, commands=[("CLIENT", "SETNAME", "moves")])
    assert stays("INCR", "sem:client:a") == 1 and moves("INCR", "sem:client:a") == 2 and moves("PING") == "PONG"
    take_over(proxy, orphans)
    new = Client(proxy.address, commands=[("CLIENT", "SETNAME", "moves")])
    assert new("PING") == "PONG"
    before = int(info(stays)["clients_connected"])
    moves.close()
    until(lambda: int(info(stays)["clients_connected"]) == before - 1, what="the old process to see it leave")
    assert new("DECR", "sem:client:a") == 1
    stays.crash()
    ended(proxy)
    assert redis.run("GET", "sem:client:a") == "1", "the old process knows no other connections of the client"
    assert new("SET", "sem:client:a", 0) == "OK"
    new.close()


def test_a_proxy_that_stops_gives_nothing_back(start_proxy, start_redis):
    """Its workers go on, and give back over the next proxy."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES)
    with Client(proxy.address) as c:
        assert c("INCR", "sem:stop") == 1 and c("PING") == "PONG"
        proxy.stop()
    assert redis.run("GET", "sem:stop") == "1"


def test_redis_cli(start_proxy, start_redis):
    """A connection that carries one command, and closes: its job runs now, and the permit ends with the lease."""
    redis = start_redis()
    proxy = start_proxy(redis, *RULES)
    assert cli(proxy, "INCR", "sem:shell") == "1" and cli(proxy, "INCR", "sem:lease:shell") == "1"
    until(lambda: redis.run("GET", "sem:lease:shell") == "0", what="the lease")
    assert redis.run("GET", "sem:shell") == "1"
    assert cli(proxy, "DECR", "sem:shell") == "0"


@pytest.mark.parametrize("rights", [["+eval", "+evalsha", "+get", "+decrby"], []], ids=["granted", "none"])
def test_the_workers_rights(start_proxy, start_redis, rights):
    """The worker's own login gives back; if it has no right to, the proxy's own login does after some tries."""
    redis = start_redis()
    redis.run("ACL", "SETUSER", "app", "on", ">secret", "~sem:*", "+incr", "+ping", *rights)
    proxy = start_proxy(redis, *RULES)
    a = Client(proxy.address, commands=[("AUTH", "app", "secret")])
    assert a("INCR", "sem:rights") == 1 and a("PING") == "PONG"
    a.crash()
    until(lambda: redis.run("GET", "sem:rights") == "0", 20, "the permit")
    assert ("is tried again" in proxy.log()) == (not rights)


def test_threads(start_proxy, start_redis):
    redis = start_redis()
    proxy = start_proxy(redis, *RULES, "threads 2")
    direct = redis.direct()
    workers = [Client(proxy.address) for _ in range(8)]
    for i, c in enumerate(workers):
        assert c("PING") == "PONG" and c("INCR", "sem:threads") == i + 1
    for c in workers[:4]:
        c.crash()
    until(lambda: direct("GET", "sem:threads") == "4")
    for c in workers[4:]:
        c("DECR", "sem:threads")
        c.close()
    probe = Client(proxy.address)
    probe("INCR", "sem:probe")
    probe("PING")
    probe.crash()
    until(lambda: direct("GET", "sem:probe") == "0")
    assert direct("GET", "sem:threads") == "0"


def test_metrics(proxy, direct, worker):
    a, b = worker(), worker()
    before = info(b)
    a("INCRBY", "sem:counted", 2)
    assert a("DECR", "sem:counted") == 1 and int(info(b)["permits_held"]) == int(before["permits_held"]) + 1
    a.crash()
    until(lambda: direct("GET", "sem:counted") == "0")
    after = until(lambda: (lambda i: i if int(i["permits_returned"]) > int(before["permits_returned"]) else None)(info(b)))
    assert int(after["permits_taken"]) - int(before["permits_taken"]) == 2
    assert int(after["permits_given"]) - int(before["permits_given"]) == 1
    assert b("PROXY", "LOCKS") == [] and not direct("EXISTS", "lockkeeper:{0}:sem:counted")
