"""Traps that other proxies fell into, as far as no other file has them. A test of a trap is called test_trap_NUMBER_... in any
file; `pytest -k trap_21` runs the tests of one trap."""

import itertools
import os
import random
import threading

import pytest

import servers
from resp import Client, Push, encode
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
             ["MULTI"], ["GET", "k"], ["ACL", "WHOAMI"], ["EXEC"], ["WATCH", "k"], ["MULTI"], ["GET", "k"], ["EXEC"], ["PING"]]


@pytest.fixture(scope="module")
def own_proxy(farm):
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


def test_trap_27_protocols_side_by_side(own_proxy, connect):
    """Replies that differ in structure between the protocols, to clients of both at once."""
    server, proxy = own_proxy
    data = [["ZADD", "z", "1", "a", "2.5", "b"], ["HSET", "h", "f", "v"], ["SADD", "s", "m"], ["RPUSH", "l", "x"], ["GEOADD", "g", "1", "2", "p"],
            ["XADD", "x", "1-1", "f", "v"]]
    asked = [["ZRANGE", "z", "0", "-1", "WITHSCORES"], ["ZSCORE", "z", "b"], ["HGETALL", "h"], ["SMEMBERS", "s"], ["CONFIG", "GET", "maxmemory"],
             ["ZPOPMIN", "none"], ["ZMSCORE", "z", "a", "none"], ["GET", "none"], ["LPOP", "l", "0"], ["GEOPOS", "g", "p", "none"],
             ["XREAD", "STREAMS", "x", "0"], ["ZRANDMEMBER", "z", "2", "WITHSCORES"], ["HRANDFIELD", "h", "1", "WITHVALUES"],
             ["EVAL", "redis.setresp(3) return redis.call('HGETALL', 'h')", "0"], ["EVAL", "return {double=2.5}", "0"], ["MEMORY", "DOCTOR"],
             ["ZADD", "z", "INCR", "1", "a"], ["ZINTER", "1", "z", "WITHSCORES"], ["EXISTS", "z"], ["LCS", "none", "none", "IDX"]]
    found = []
    for where in (server, proxy):  # one instance: what its doctor says is its own
        server.flush()
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
    """Another client's MONITOR, subscription, tracking and blocked command during a pause of writes: readers go on."""
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


# ---- order ------------------------------------------------------------------------------------------------


def test_trap_08_also_around_long_values(backend, start_proxy, rng):
    """Several connections to each node, and long values that take one for themselves: a session's requests still
    reach a node in the order in which they were sent."""
    proxy = start_proxy(backend, "upstream-connections 4")
    long = b"x" * (5 << 20)
    problems = []

    def run(number, seed):
        rng = random.Random(seed)
        name, big = "own:%d" % number, "big:%d" % number
        try:
            with Client(proxy.address, timeout=60) as client:
                count = 0
                for _ in range(12):
                    commands, expected = [], []
                    for _ in range(40):
                        kind = rng.randrange(40)
                        if kind == 0:
                            commands += [("SET", big, long), ("STRLEN", big)]
                            expected += [b"+OK\r\n", b":%d\r\n" % len(long)]
                        elif kind == 1:
                            commands += [("SET", big, long), ("GET", big), ("SET", big, "s"), ("GET", big)]
                            expected += [b"+OK\r\n", b"$%d\r\n%s\r\n" % (len(long), long), b"+OK\r\n", b"$1\r\ns\r\n"]
                        else:
                            count += 1
                            commands += [("SET", name, count), ("APPEND", name, "."), ("GET", name)]
                            value = b"%d." % count
                            expected += [b"+OK\r\n", b":%d\r\n" % len(value), b"$%d\r\n%s\r\n" % (len(value), value)]
                    replies = client.pipeline(commands)
                    for command, reply, right in zip(commands, replies, expected):
                        assert reply == right, (command[:2], reply[:80], right[:80])
        except Exception as error:  # handed to the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=run, args=(n, rng.random())) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not problems, problems[0]


# ---- memory -----------------------------------------------------------------------------------------------


def peak_of(proxy):
    """The most memory that the proxy had since `forget_peak`, in bytes."""
    with open("/proc/%d/status" % proxy.pid) as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def small_room():
    """How much memory a request that is not kept may take; ThreadSanitizer also stores for each byte which thread has used
    it."""
    return (64 if built_with(b"tsan") else 16) << 20


def forget_peak(proxy):
    with open("/proc/%d/clear_refs" % proxy.pid, "w") as clear:
        clear.write("5")


def test_trap_20_a_bulk_of_512_mb(backend, start_proxy, connect):
    """Both ways in less than 16 MB. LOCKKEEPER_LONG=1 makes it 512 MB, otherwise it is a quarter of that."""
    size = (512 if os.environ.get("LOCKKEEPER_LONG") else 128) << 20
    proxy = start_proxy(backend, measured=True)
    client = connect(proxy, timeout=60)
    assert client("PING") == "PONG"
    forget_peak(proxy)
    before = peak_of(proxy)
    piece = bytes(range(256)) * 4096
    client.send(b"*3\r\n$3\r\nSET\r\n$4\r\nhuge\r\n$%d\r\n" % size)
    for _ in range(size // len(piece)):
        client.send(piece)
    client.send(b"\r\n")
    assert client.read() == "OK"
    assert client("STRLEN", "huge") == size
    client.send(encode("GET", "huge"))
    reply = client.sock.makefile("rb", buffering=len(piece))
    assert reply.readline() == b"$%d\r\n" % size
    for _ in range(size // len(piece)):
        assert reply.read(len(piece)) == piece
    assert reply.read(2) == b"\r\n"
    assert peak_of(proxy) - before < small_room()
    assert client("DEL", "huge") == 1


def test_trap_20_a_million_arguments(backend, start_proxy, connect):
    """Those of a command with one key are not kept; those of others are, in proportion."""
    proxy = start_proxy(backend, "upstream-timeout 60s", measured=True)
    client = connect(proxy, timeout=60)
    assert client("PING") == "PONG"
    forget_peak(proxy)
    before = peak_of(proxy)
    assert client("RPUSH", "many", *range(1000000)) == 1000000
    assert peak_of(proxy) - before < small_room()
    assert client("LINDEX", "many", 999999) == "999999"
    client.send(encode("LRANGE", "many", 0, -1))
    data = bytearray()
    while not data.endswith(b"$6\r\n999999\r\n"):
        data += client.sock.recv(1 << 20)
    assert data == b"*1000000\r\n" + b"".join(encode(n)[4:] for n in range(1000000))
    assert peak_of(proxy) - before < small_room()
    names = ["many"] * 500000 + ["none"] * 500000
    assert client("EXISTS", *names) == 500000
    assert peak_of(proxy) - before < 512 << 20
    assert client("DEL", *names) == 1


def built_with(sanitizer):
    with open(servers.binary(), "rb") as program:
        return b"__%s_init" % sanitizer in program.read()


def keeps_what_was_freed():
    """AddressSanitizer gives nothing back to the system."""
    return built_with(b"asan")


def test_trap_35_memory_comes_back_down(backend, start_proxy, connect):
    """After a burst of connections that were all busy at once with values of all sizes."""
    proxy = start_proxy(backend, measured=True)
    watcher = connect(proxy)
    for size in (10, 1000, 100000, 900000):
        assert watcher("SET", "v%d" % size, "x" * size) == "OK"
    before = proxy.memory()
    clients = [Client(proxy.address) for _ in range(400)]
    for number, client in enumerate(clients):
        client.send(encode("GET", "v10") * 100 + encode("SET", "k%d" % number, "y" * 20000) + encode("GET", "v1000") * 100)
        client.send(encode("GET", "v%d" % (100000 if number % 20 else 900000)) * 3)
    until(lambda: proxy.memory() > before + (20 << 20), 20, "the burst")
    for client in clients:
        client.close()
    if not keeps_what_was_freed():
        until(lambda: proxy.memory() < before + (6 << 20), 15, "the memory's return", 0.1)
    assert watcher("PING") == "PONG"
