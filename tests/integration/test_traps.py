"""Traps that other proxies fell into, as far as no other file has them: a test of
a trap is called test_trap_NUMBER_..., wherever it is. `pytest -k trap_21` runs those of one."""

import itertools

import pytest

from resp import Push, encode
from servers import until

# Each changes what its own session is, and nothing else. (commands, a question, what the others are answered)
STATES = {
    "SELECT": [["SELECT", "5"]],
    "AUTH": [["AUTH", "reader", "secret"]],
    "HELLO": [["HELLO", "3"]],
    "HELLO AUTH SETNAME": [["HELLO", "3", "AUTH", "reader", "secret", "SETNAME", "me"]],
    "READONLY": [["READONLY"]],
    "NO-EVICT": [["CLIENT", "NO-EVICT", "ON"]],
    "NO-TOUCH": [["CLIENT", "NO-TOUCH", "ON"]],
    "TRACKING": [["HELLO", "3"], ["CLIENT", "TRACKING", "ON"]],
    "BCAST": [["HELLO", "3"], ["CLIENT", "TRACKING", "ON", "BCAST"]],
    "REPLY": [["CLIENT", "REPLY", "ON"]],
    "SETNAME": [["CLIENT", "SETNAME", "x"]],
    "WATCH": [["WATCH", "k"]],
    "MULTI": [["MULTI"]],
    "MULTI in another database": [["SELECT", "5"], ["MULTI"]],
    "transaction that changes it": [["MULTI"], ["SELECT", "5"], ["HELLO", "3"], ["AUTH", "reader", "secret"], ["EXEC"]],
    "WATCH and a change": [["WATCH", "k"], ["SELECT", "5"], ["HELLO", "3"], ["AUTH", "reader", "secret"]],
    "SUBSCRIBE": [["SUBSCRIBE", "c"]],
    "MONITOR": [["MONITOR"]],
}
QUESTIONS = [["GET", "k"], ["HGETALL", "h"], ["ZRANGE", "z", "0", "-1", "WITHSCORES"], ["CLIENT", "GETNAME"], ["ACL", "WHOAMI"],
             ["SET", "k", "in 0"], ["CLIENT", "TRACKINGINFO"], ["CLIENT", "GETREDIR"], ["EXEC"], ["BLPOP", "none", "0.01"],
             ["MULTI"], ["GET", "k"], ["CLIENT", "GETNAME"], ["EXEC"], ["WATCH", "k"], ["MULTI"], ["GET", "k"], ["EXEC"], ["PING"]]


@pytest.fixture(scope="module")
def own_proxy(farm):
    import servers
    server = servers.RedisServer()
    server.run("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-set")
    proxy = servers.Proxy(server)
    yield server, proxy
    proxy.stop()
    proxy.remove()
    server.stop()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("end", ["stays", "leaves", "resets", "is killed", "loses its node"])
def test_trap_21_a_state_never_shows_on_another(own_proxy, connect, state, end):
    server, proxy = own_proxy
    server.flush()
    for command in (["SET", "k", "in 0"], ["HSET", "h", "f", "v"], ["ZADD", "z", "1", "m"]):
        server.run(*command)
    with server.client() as direct:
        direct("SELECT", "5")
        direct("SET", "k", "in 5")
    before = connect(proxy)
    expected = [before.raw(*q) for q in QUESTIONS]
    one = connect(proxy)
    me = one("CLIENT", "ID")
    for command in STATES[state]:
        one(*command)
    if state not in ("MONITOR", "SUBSCRIBE"):
        one("GET", "k")
    if end == "leaves":
        one.close()
    elif end == "resets":
        one.send(encode("RESET"))
        until(lambda: one.read() == "RESET", what="RESET")
    elif end == "is killed":
        assert before("CLIENT", "KILL", "ID", me) == 1
    elif end == "loses its node":
        server.run("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: before("PING") == "PONG", what="the node to be there again")
    for other in (before, connect(proxy), connect(proxy)):
        assert [other.raw(*q) for q in QUESTIONS] == expected
    if end == "resets":
        assert [one.raw(*q) for q in QUESTIONS] == expected


def test_trap_27_protocols_side_by_side(own_proxy, connect, oracle):
    """Replies that differ in structure between the protocols, to clients of both at once."""
    server, proxy = own_proxy
    server.flush()
    data = [["ZADD", "z", "1", "a", "2.5", "b"], ["HSET", "h", "f", "v"], ["SADD", "s", "m"], ["RPUSH", "l", "x"], ["GEOADD", "g", "1", "2", "p"],
            ["XADD", "x", "1-1", "f", "v"]]
    asked = [["ZRANGE", "z", "0", "-1", "WITHSCORES"], ["ZSCORE", "z", "b"], ["HGETALL", "h"], ["SMEMBERS", "s"], ["CONFIG", "GET", "maxmemory"],
             ["ZPOPMIN", "none"], ["ZMSCORE", "z", "a", "none"], ["GET", "none"], ["LPOP", "l", "0"], ["GEOPOS", "g", "p", "none"],
             ["XREAD", "STREAMS", "x", "0"], ["ZRANDMEMBER", "z", "2", "WITHSCORES"], ["HRANDFIELD", "h", "1", "WITHVALUES"],
             ["EVAL", "redis.setresp(3) return redis.call('HGETALL', 'h')", "0"], ["EVAL", "return {double=2.5}", "0"], ["MEMORY", "DOCTOR"],
             ["ZADD", "z", "INCR", "1", "a"], ["ZINTER", "1", "z", "WITHSCORES"], ["EXISTS", "z"], ["LCS", "none", "none", "IDX"]]
    found = []
    for where in (oracle, proxy):
        clients = [connect(where) for _ in range(4)]
        for command in data:
            clients[0](*command)
        for c in clients[1::2]:
            c("HELLO", "3")
        got = []
        for command, c in itertools.product(asked, clients):
            reply = c.raw(*command)
            got.append(sorted(reply.split(b"\r\n")) if command[0] in ("ZRANDMEMBER", "MEMORY") else reply)
        found.append(got)
    assert found[1] == found[0]


def test_trap_25_pushes_and_pauses_leave_others_alone(own_proxy, connect):
    """Somebody's MONITOR, subscription, tracking and blocked command beside a pause of writes: readers go on."""
    server, proxy = own_proxy
    server.flush()
    reader, monitor, subscriber, tracker, blocked, operator = (connect(proxy) for _ in range(6))
    monitor("MONITOR")
    subscriber("SUBSCRIBE", "c")
    tracker("HELLO", "3")
    tracker("CLIENT", "TRACKING", "ON", "BCAST")
    blocked.send(encode("BLPOP", "q", "0"))
    operator("CLIENT", "PAUSE", "60000", "WRITE")
    for i in range(200):
        assert reader("GET", "k%d" % i) is None
    operator("CLIENT", "UNPAUSE")
    assert reader("RPUSH", "q", "x") == 1
    assert blocked.read() == ["q", "x"]
    assert isinstance(tracker.read(), Push)
