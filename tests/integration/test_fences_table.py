"""Every command that may write, as the running server lists them (COMMAND), in every form, by sessions that have lost the
lock of its data in every way: FENCED or a clear error, and nothing is written.

A command without a template fails test_every_write_command_has_a_template: docs/limits.md names what passes."""

import pytest

import servers
from helpers import acquire, fenced_names, in_letters, module_proxy
from resp import Error, encode
from test_fences import WRITES
from test_takeover import orphans, take_over  # noqa: F401

CONFIG = ["lock lock:*", "fence data:* by lock:data:*", "fence sole:* by lock:sole:* unlocked refuse", "fence far:{*}* by lock:far:*",
          "shutdown-timeout 60"]

HASH = [["HSET", "K", "f", "1"]]
LIST = [["RPUSH", "K", "a", "b"]]
ZSET = [["ZADD", "K", "1", "a"]]
STREAM = [["XADD", "K", "1-1", "f", "v"], ["XGROUP", "CREATE", "K", "g", "0"]]
FIELD = ["FIELDS", "1", "f"]

# What has to be there, and the words of one command for each name; K is fenced, O and P are not.
TEMPLATES = {command[0].lower(): (before, command) for before, command in reversed(WRITES)}
TEMPLATES.update({
    "bitfield": ([], ["BITFIELD", "K", "SET", "u8", "0", "1"]),
    "blmove": (LIST, ["BLMOVE", "K", "O", "LEFT", "RIGHT", "1"]),
    "blmpop": (LIST, ["BLMPOP", "1", "1", "K", "LEFT"]),
    "blpop": (LIST, ["BLPOP", "K", "1"]),
    "brpop": (LIST, ["BRPOP", "K", "1"]),
    "brpoplpush": (LIST, ["BRPOPLPUSH", "K", "O", "1"]),
    "bzmpop": (ZSET, ["BZMPOP", "1", "1", "K", "MIN"]),
    "bzpopmax": (ZSET, ["BZPOPMAX", "K", "1"]),
    "bzpopmin": (ZSET, ["BZPOPMIN", "K", "1"]),
    "migrate": ([["SET", "K", "v"]], ["MIGRATE", "127.0.0.1", "1", "K", "0", "10"]),
    "move": ([["SET", "K", "v"]], ["MOVE", "K", "7"]),
    "pfdebug": ([["PFADD", "K", "a"]], ["PFDEBUG", "TODENSE", "K"]),
    "restore": ([], ["RESTORE", "K", "0", "dump"]),
    "restore-asking": ([], ["RESTORE-ASKING", "K", "0", "dump"]),
    "xreadgroup": (STREAM, ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "K", ">"]),
    "xgroup|create": ([["XADD", "K", "1-1", "f", "v"]], ["XGROUP", "CREATE", "K", "h", "0"]),
    "xgroup|setid": (STREAM, ["XGROUP", "SETID", "K", "g", "1-1"]),
    "xgroup|destroy": (STREAM, ["XGROUP", "DESTROY", "K", "g"]),
    "xgroup|createconsumer": (STREAM, ["XGROUP", "CREATECONSUMER", "K", "g", "c"]),
    "xgroup|delconsumer": (STREAM + [["XGROUP", "CREATECONSUMER", "K", "g", "c"]], ["XGROUP", "DELCONSUMER", "K", "g", "c"]),
    # Newer than Redis 7.0.
    "hexpire": (HASH, ["HEXPIRE", "K", "100", *FIELD]),
    "hpexpire": (HASH, ["HPEXPIRE", "K", "100000", *FIELD]),
    "hexpireat": (HASH, ["HEXPIREAT", "K", "9999999999", *FIELD]),
    "hpexpireat": (HASH, ["HPEXPIREAT", "K", "9999999999000", *FIELD]),
    "hpersist": (HASH, ["HPERSIST", "K", *FIELD]),
    "hgetex": (HASH, ["HGETEX", "K", "EX", "100", *FIELD]),
    "hsetex": (HASH, ["HSETEX", "K", "FIELDS", "1", "f", "2"]),
    "hgetdel": (HASH, ["HGETDEL", "K", *FIELD]),
    "delex": ([["SET", "K", "v"]], ["DELEX", "K", "IFEQ", "v"]),
    "delifeq": ([["SET", "K", "v"]], ["DELIFEQ", "K", "v"]),
    "msetex": ([], ["MSETEX", "1", "K", "v", "EX", "100"]),
    "xdelex": (STREAM, ["XDELEX", "K", "IDS", "1", "1-1"]),
    "xackdel": (STREAM, ["XACKDEL", "K", "g", "IDS", "1", "1-1"]),
})
# Without keys. Two empty databases (docs/limits.md), SWAPDB is in test_fences_lost.py, the others write no data.
KEYLESS = {"flushall", "flushdb", "swapdb", "function|delete", "function|flush", "function|load", "function|restore"}


proxy = module_proxy(*CONFIG)


def write_commands(direct):
    """The names of commands with the flag `write`; those of modules are not looked at (docs/limits.md)."""
    for row in direct("COMMAND"):
        subcommands = row[9] if len(row) > 9 else []
        for name, flags in [(row[0], row[2]), *((sub[0], sub[2]) for sub in subcommands)]:
            flags = {str(flag).lstrip("+") for flag in flags}
            if "write" in flags and "module" not in flags and "." not in name:
                yield name.lower()


def node(backend, key=""):
    """A connection to the server that has the key."""
    return backend.direct() if isinstance(backend, servers.RedisServer) else backend.node_of(key).direct()


def test_every_write_command_has_a_template(proxy):
    direct = node(proxy.backend)
    names = set(write_commands(direct))
    assert len(names) > 100
    assert names - set(TEMPLATES) - KEYLESS == set()
    direct.close()


class Data:
    def __init__(self, kind, db=0):
        n = in_letters()
        key, self.lock = fenced_names(kind, n)
        self.names = {"K": key, "O": "other:{%s}" % n, "P": "third:{%s}" % n}
        self.db = db

    def words(self, words):
        return [self.names.get(word, word) for word in words]

    def keys(self):
        return list(self.names.values())


def by_time(a, b, c, lock):
    acquire(a, lock, "30")


def by_its_own_release(a, b, c, lock):
    acquire(a, lock)
    assert a("DEL", lock) == 1


def by_another_connection(a, b, c, lock):
    acquire(a, lock)
    assert c("DEL", lock) == 1


def by_a_script(a, b, c, lock):
    acquire(a, lock)
    assert c("EVAL", "return redis.call('DEL', KEYS[1])", "1", lock) == 1


def by_an_operator(a, b, c, lock):
    acquire(a, lock)
    assert c("PROXY", "RELEASE", lock) == 1


def by_its_own_expiry(a, b, c, lock):
    acquire(a, lock)
    assert a("PEXPIRE", lock, "30") == 1


def by_getset(a, b, c, lock):
    acquire(a, lock)
    assert b("GET", lock) == "1"
    assert b("GETSET", lock, "2") == "1"
    assert b("PEXPIRE", lock, "600000") == 1


def by_a_refused_release(a, b, c, lock):
    acquire(a, lock, "30")
    acquire(b, lock)
    assert a("DEL", lock) == 0


WAYS = [by_time, by_its_own_release, by_another_connection, by_a_script, by_an_operator, by_its_own_expiry, by_getset,
        by_a_refused_release]


def plain(a, words, data):
    return a(*words)


def lower(a, words, data):
    return a(words[0].lower(), *words[1:])


def pipelined(a, words, data):
    a.send(encode("PING") + encode(*words) + encode("PING"))
    replies = [a.read() for _ in range(3)]
    assert replies[0] == replies[2] == "PONG"
    return replies[1]


def multi(a, words, data):
    assert a("MULTI") == "OK"
    queued = a(*words)
    reply = a("EXEC")
    return queued if queued != "QUEUED" else reply if isinstance(reply, Error) else reply[0]


def script(a, words, data):
    keys = [key for key in data.keys() if key in words]
    return a("EVAL", "return redis.call(unpack(ARGV))", str(len(keys)), *keys, *words)


FORMS = [plain, lower, pipelined, multi, script]


def lost(proxy, connect, kind, way, protocol, db=0):
    """A session that has lost the lock in this way, and data. No session has a name, except one that releases the lock itself.
    The lock's family is new: names that differ only in digits would be of one family."""
    commands = [("HELLO", str(protocol)), *([("SELECT", str(db))] if db else [])]
    own = [("CLIENT", "SETNAME", "a")] if way is by_its_own_release else []
    a, b, c = (connect(proxy, commands=commands + name) for name in (own, [], []))
    data = Data(kind, db)
    way(a, b, c, data.lock)
    if b("EXISTS", data.lock) == 0 or way not in (by_getset, by_a_refused_release):
        acquire(b, data.lock)
    return a, b, c, data


def dumps(direct, data):
    return [direct("DUMP", key) for key in data.keys()]


def check(direct, a, data, name, forms=FORMS, where=()):
    before, command = TEMPLATES[name]
    direct("DEL", *data.keys())
    for words in before:
        assert not isinstance(direct(*data.words(words)), Error), words
    there = dumps(direct, data)
    for form in forms:
        reply = form(a, data.words(command), data)
        refused = isinstance(reply, Error) and (reply.startswith("FENCED ") or "nothing was written" in reply)
        assert refused, (*where, form.__name__, command, reply)
        assert dumps(direct, data) == there, (*where, form.__name__, command)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written(proxy, connect, protocol, way):
    """In one slot of a cluster. A session that has released its lease itself writes as one that never held the lock."""
    kind = "sole" if way is by_its_own_release else "data"
    a, _, _, data = lost(proxy, connect, kind, way, protocol)
    direct = node(proxy.backend, data.names["K"])
    names = sorted(set(write_commands(direct)) - KEYLESS)
    for name in names:
        check(direct, a, data, name, where=(way.__name__, protocol))
    assert len(names) > 100
    direct.close()


@pytest.mark.parametrize("way", [by_time, by_another_connection])
def test_nothing_is_written_elsewhere(proxy, connect, way):
    """The lock is in another slot of a cluster."""
    a, _, _, data = lost(proxy, connect, "far", way, 2)
    direct = node(proxy.backend, data.names["K"])
    for name in sorted(set(write_commands(direct)) - KEYLESS):
        check(direct, a, data, name, where=(way.__name__,))
    direct.close()


def test_nothing_is_written_in_another_database(proxy, connect):
    if isinstance(proxy.backend, servers.RedisCluster):
        pytest.skip("a cluster has one database")
    a, _, _, data = lost(proxy, connect, "data", by_another_connection, 2, db=3)
    direct = proxy.backend.direct()
    direct("SELECT", "3")
    for name in sorted(set(write_commands(direct)) - KEYLESS):
        check(direct, a, data, name)
    direct.close()


FEW = ["set", "del", "rpush", "blpop", "rename", "bitfield", "xadd"]


def test_across_a_reload(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), *CONFIG)
    a, b, _, data = lost(proxy, connect, "data", by_another_connection, 2)
    with open(proxy.config, "a") as f:
        f.write("lock other:lock:* lease 5s\n")
    assert b("PROXY", "RELOAD") == "OK"
    direct = farm.backend("standalone").direct()
    for name in FEW:
        check(direct, a, data, name)
    direct.close()


def test_across_a_take_over(farm, start_proxy, connect, orphans):  # noqa: F811
    """A's connection stays at the process that leaves; B acquires through the next one."""
    proxy = start_proxy(farm.backend("standalone"), *CONFIG)
    a = connect(proxy)
    data = Data("data")
    acquire(a, data.lock, "50")
    take_over(proxy, orphans)
    b = connect(proxy)
    acquire(b, data.lock)
    direct = farm.backend("standalone").direct()
    for name in FEW:
        check(direct, a, data, name)
    direct.close()
    a.close()


def test_across_a_restart_of_the_proxy(farm, start_proxy, connect):
    """The session is another one. `unlocked refuse` refuses what never held the lock here."""
    data = Data("sole")
    first = start_proxy(farm.backend("standalone"), *CONFIG)
    acquire(connect(first, commands=[("CLIENT", "SETNAME", "a")]), data.lock, "50")
    first.stop()
    second = start_proxy(farm.backend("standalone"), *CONFIG)
    a, b = (connect(second, commands=[("CLIENT", "SETNAME", name)]) for name in "ab")
    acquire(b, data.lock)
    direct = farm.backend("standalone").direct()
    for name in FEW:
        check(direct, a, data, name)
    direct.close()


def test_across_a_restart_of_redis(start_redis, start_proxy, connect):
    """Redis has lost the lock and its record: A's lease is over, and it is not known which clients had the lock since."""
    redis = start_redis()
    proxy = start_proxy(redis, *CONFIG)
    a, b = connect(proxy), connect(proxy)
    data = Data("data")
    acquire(a, data.lock)
    direct = redis.direct()
    direct("FLUSHALL")
    acquire(b, data.lock)
    for name in FEW:
        check(direct, a, data, name)
    direct.close()
