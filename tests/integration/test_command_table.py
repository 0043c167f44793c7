"""Compares the command table with a running redis-server: every row with COMMAND, and the found keys with COMMAND GETKEYS, for
chosen requests and for random ones. The table is Redis 7.0's; with another version, the commands that both know are
compared."""

import os
import random
import re
import subprocess

import pytest

import servers
from resp import Error, encode

# Rows that Redis 7.0 does not have: of later versions, of Valkey, and the proxy's own.
NEWER = {
    "hexpire", "hpexpire", "hexpireat", "hpexpireat", "hpersist", "httl", "hpttl", "hexpiretime", "hpexpiretime",
    "hgetex", "hsetex", "hgetdel", "xdelex", "xackdel", "delex", "delifeq", "digest", "msetex", "waitaof",
}
OWN = {"proxy", "post", "host:"}
# Since 7.2 they have an option; the row is as that says, and an older node judges.
LONGER = {"zrank": -3, "zrevrank": -3}

FLAGS = {"write", "readonly", "admin", "no_auth"}

# Redis calls these movable for their BY and GET patterns, which are no keys.
NOT_MOVABLE = {"sort_ro"}
# Keys of subcommands: Redis describes them in rows of their own.
CONTAINERS_WITH_KEYS = {"object", "memory", "xgroup", "xinfo"}
# Redis does not say where its keys are at all.
UNDESCRIBED = {"debug"}
# They are routed by their channels as others are by keys; Redis says where these are, but that they are no keys.
SHARD_CHANNELS = {"spublish", "ssubscribe", "sunsubscribe"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """tests/unit/dump_commands.c, built here, so that no other build has to have it."""
    path = str(tmp_path_factory.mktemp("dump") / "dump_commands")
    parser = os.path.join(servers.ROOT, "parser")
    sources = sorted(os.path.join(parser, name) for name in os.listdir(parser) if name.endswith(".c"))
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-I", servers.ROOT, "-o", path,
                    os.path.join(servers.ROOT, "tests", "unit", "dump_commands.c"), *sources], check=True)
    return path


@pytest.fixture(scope="module")
def table(program):
    rows = {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        name, arity, flags, first, last, step, _, _ = line.split(" ")
        rows[name] = (int(arity), set(flags.rstrip("-").split(",")) - {""}, int(first), int(last), int(step))
    return rows


@pytest.fixture(scope="module")
def redis():
    server = servers.RedisServer()
    client = server.client()
    yield client
    client.close()
    server.stop()


@pytest.fixture(scope="module")
def is_7_0(redis):
    return "redis_version:7.0." in text(redis("INFO", "server"))


def text(value):
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture(scope="module")
def facts(redis):
    """name: (arity, flags, first, last, step, the flags of its subcommands except HELP)"""
    rows = {}
    for row in redis("COMMAND"):
        subcommands = [{text(flag) for flag in sub[2]} for sub in row[9] if not text(sub[0]).endswith("|help")]
        rows[text(row[0])] = (row[1], {text(flag) for flag in row[2]}, row[3], row[4], row[5], subcommands)
    return rows


def test_every_command_has_a_row_and_no_other(table, facts, is_7_0):
    if not is_7_0:
        pytest.skip("the rows are those of Redis 7.0")
    assert set(table) == set(facts) | NEWER | OWN
    assert not set(facts) & (NEWER | OWN)


def test_the_rows_say_what_redis_says(table, facts, is_7_0):
    for name in sorted(set(facts) & set(table)):
        arity, flags, first, last, step, subcommands = facts[name]
        if subcommands and name != "command":
            flags = set.intersection(*subcommands)
        row = table[name]
        assert (name, row[0], row[2:]) == (name, LONGER.get(name, arity), (first, last, step))
        if not is_7_0:
            continue
        assert (name, row[1] - {"movable"}) == (name, flags & FLAGS)
        movable = ("movablekeys" in facts[name][1] and name not in NOT_MOVABLE
                   or name in CONTAINERS_WITH_KEYS | UNDESCRIBED)
        assert (name, "movable" in row[1]) == (name, movable)


def our_keys(program, requests):
    program = program if isinstance(program, list) else [program, "keys"]
    out = subprocess.run(program, input=b"".join(encode(*r) for r in requests), check=True,
                         capture_output=True).stdout.decode().splitlines()
    assert len(out) == len(requests)
    return out


def redis_keys(redis, requests):
    redis.send(b"".join(encode("COMMAND", "GETKEYS", *r) for r in requests))
    return [redis.read() for _ in requests]


def compare(program, redis, requests):
    """Returns how many of the requests have keys. Words of a request are distinct, so that a key names its place."""
    # (COMMAND GETKEYS does not take a bare name)
    requests = [r for r in requests if len(r) > 1 and r[0] not in SHARD_CHANNELS]
    with_keys = 0
    for request, ours, theirs in zip(requests, our_keys(program, requests), redis_keys(redis, requests)):
        if isinstance(theirs, Error) and "number of arguments" in theirs:
            longer = request[0] in LONGER and len(request) > -LONGER[request[0]]
            assert ours == "arity" or longer and ours == "keys 1", (request, ours, theirs)
            continue
        if ours == "ask":
            continue
        if isinstance(theirs, Error):
            # Redis does not tell the two apart everywhere, nor looks at the arity of a command without keys.
            assert "no key arguments" in theirs or "Invalid arguments" in theirs, (request, theirs)
            # By the server's description a destination is a key also where the number of the others is 0.
            assert ours in ("keys", "malformed", "arity") or isinstance(program, list), (request, ours, theirs)
            continue
        if not theirs:  # scripts with a wrong number of keys, or with none
            assert ours in ("keys", "malformed"), (request, ours)
            continue
        if ours == "malformed":
            # For COMMAND GETKEYS half of an odd number of keys and ids is good enough; XREAD itself refuses it.
            assert request[0] in ("xread", "xreadgroup"), (request, theirs)
            continue
        if ours == "ask":
            continue
        words = ours.split(" ")
        assert words[0] == "keys", (request, ours, theirs)
        assert [request[int(i)] for i in words[1:]] == [text(k) for k in theirs], (request, ours)
        with_keys += bool(theirs)
    return with_keys


CHOSEN = """
get k; set k v; set k v nx get ex 5; mget a b c; mset a 1 b 2; msetnx a 1 b 2; del a b c; bitop and d a b; copy a b
eval s 0; eval s 2 a b c; eval s 3 a b; eval s -1 a; eval s x a; evalsha s 1 a; eval_ro s 1 a b; fcall f 2 a b
evalsha_ro s 1 a; fcall_ro f 1 a; zunion 2 a b; zunion 2 a b weights 1 3 aggregate sum; zunion 3 a b; zinter 1 a
zdiff 2 a b withscores; zintercard 2 a b limit 1; sintercard 2 a b limit 5; lmpop 2 a b left; zmpop 1 a min
zunionstore d 2 a b; zinterstore d 1 a weights 5; zdiffstore d 2 a b; zdiffstore d 3 a b; blmpop 0 2 a b left
bzmpop 0 2 a b max count 7; xread streams a 0; xread count 1 block 9 streams a b 0 5; xread streams a b 0
xreadgroup group g c streams a >; xreadgroup group g c count 1 noack streams a b > 0; sort a; sort a store d
sort a by p limit 0 1 get x get y desc alpha store d; sort a by store store d; sort a get store limit store x
sort_ro a by p; georadius a 1 2 3 m; georadius a 1 2 3 m store d; georadius a 1 2 3 m withdist storedist d
georadiusbymember a m 3 km; georadiusbymember a m 3 km store d; georadiusbymember_ro a m 3 km
geosearchstore d a fromlonlat 1 2 byradius 3 m; migrate h 1 k 0 9; migrate h 1 k 0 9 copy replace
object encoding k; object freq k; object help; xgroup create k g $; xgroup destroy k g; xgroup help
xinfo stream k; xinfo stream k full; xinfo groups k; xinfo help; memory usage k; memory usage k samples 0
memory doctor; memory help; pfdebug encoding k; blpop a b 0; bzpopmin a b 0; blmove a b left right 0; lcs a b
watch a b; ssubscribe a b; spublish c m; publish c m; restore k 0 v; lmove a b left right
zrangestore d a 0 1; smove a b m; xautoclaim k g c 0 1; sunsubscribe a b; ping x; pfcount a b; pfmerge d a b; rename a b
client kill x; config get x; script load x; function list; cluster keyslot k; move k 1; brpoplpush a b 0
"""


CHOSEN_REQUESTS = [entry.split() for line in CHOSEN.splitlines() for entry in line.split(";") if entry.strip()]


def test_keys_of_chosen_requests(program, redis):
    requests = CHOSEN_REQUESTS + [["migrate", "h", "1", "", "0", "9", "keys", "a", "b"],
                                  ["migrate", "h", "1", "", "0", "9", "copy", "auth", "keys", "keys", "a"],
                                  ["migrate", "h", "1", "", "0", "9", "auth2", "keys", "x", "keys", "a", "b"]]
    assert compare(program, redis, requests) > 70


WORDS = ["1", "2", "3", "0", "streams", "store", "keys", "by", "get", "limit", "count", "block", "noack", "group"]
STORE_WORDS = ["store", "withdist"]


def random_requests(table, facts, rng):
    """Every command, from one argument too few to seven too many, with words that mean something to the finders."""
    requests = []
    for name, (arity, *_) in sorted(facts.items()):
        if name in CONTAINERS_WITH_KEYS | {"migrate", "mset", "msetnx", "xread", "xreadgroup"} or facts[name][5] or name not in table:
            continue  # chosen requests have them: what is malformed there is judged otherwise
        for extra in range(-1, 8):
            argc = abs(arity) - 1 + extra
            request = [name] + ["%s%d" % (rng.choice(["a", "b"]), i) for i in range(max(argc, 0))]
            for _ in range(rng.randrange(3)):
                if argc > 0:
                    # (GEORADIUS with both STORE and STOREDIST writes to the last of them; GETKEYS names both)
                    words = STORE_WORDS if name.startswith("georadius") else WORDS
                    request[rng.randrange(1, argc + 1)] = rng.choice(words)
            if name == "pfmerge" and argc == 1:
                continue  # GETKEYS takes it for malformed, PFMERGE does not
            if len(set(request)) == len(request):
                requests.append(request)
    return requests


def test_keys_of_random_requests(program, redis, table, facts, rng):
    assert compare(program, redis, random_requests(table, facts, rng)) > 700


# ---- rows that the server tells -------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(program, redis, tmp_path_factory):
    """The same program, which has only the server's own reply to COMMAND."""
    path = tmp_path_factory.mktemp("told") / "command"
    path.write_bytes(redis.raw("COMMAND"))
    return [program, "told", str(path)]


def test_keys_by_what_the_server_tells(told, redis, table, facts, rng, is_7_0):
    """What is done for commands that the table lacks, done for all that the server has."""
    requests = [r for r in CHOSEN_REQUESTS + random_requests(table, facts, rng) if r[0] in facts]
    with_keys = compare(told, redis, requests)
    if is_7_0:
        assert with_keys > 700
        asked = {r[0] for r, ours in zip(requests, our_keys(told, requests)) if ours == "ask"}
        assert asked <= {"sort", "sort_ro", "georadius", "georadiusbymember", "migrate"}


def test_replies_to_command_that_make_no_sense(program, redis, tmp_path):
    """Cut off or changed at any place, it is no reply, or another one: never a crash."""
    reply = redis.raw("COMMAND", "INFO", "xread", "memory", "georadius", "get", "zunion")
    path = tmp_path / "told"
    for at in range(0, len(reply), 7):
        for broken in (reply[:at], reply[:at] + b"*" + reply[at + 1 :], reply[:at] + b"9" + reply[at + 1 :],
                       reply[:at] + b"-1" + reply[at + 1 :]):
            path.write_bytes(broken)
            done = subprocess.run([program, "told", str(path)], input=encode("xread", "streams", "a", "0"),
                                  capture_output=True)
            assert done.returncode in (0, 1), (at, done)


# ---- what may write ----------------------------------------------------------------------------------------

# Commands that leave a key of a lock's type (string, hash, list) as it is, with an example. K stands for the key.
OF_ANOTHER_TYPE = {
    "bzmpop": "1 1 K MIN", "bzpopmax": "K 1", "bzpopmin": "K 1", "geoadd": "K 1 1 m", "pfadd": "K m", "pfcount": "K", "pfdebug": "GETREG K",
    "sadd": "K m", "smove": "K K m", "spop": "K", "srem": "K m", "vadd": "K VALUES 1 1 m", "vrem": "K m", "vsetattr": "K m {}",
    "xack": "K g 1-1", "xackdel": "K g KEEPREF IDS 1 1-1", "xadd": "K * f v", "xautoclaim": "K g c 0 0", "xclaim": "K g c 0 1-1", "xdel": "K 1-1",
    "xcfgset": "K IDMP-DURATION 100", "xdelex": "K KEEPREF IDS 1 1-1", "xgroup|create": "K g $", "xgroup|createconsumer": "K g c", "xgroup|delconsumer": "K g c",
    "xgroup|destroy": "K g", "xgroup|setid": "K g $", "xidmprecord": "K p 1 1-1", "xreadgroup": "GROUP g c STREAMS K >", "xsetid": "K 1-1", "xtrim": "K MAXLEN 0",
    "zadd": "K 1 m", "zincrby": "K 1 m", "zmpop": "1 K MIN", "zpopmax": "K", "zpopmin": "K", "zrem": "K m", "zremrangebylex": "K - +",
    "zremrangebyrank": "K 0 -1", "zremrangebyscore": "K -inf +inf",
}
# Commands that name no key of their own: of whole databases, slots and libraries (docs/limits.md), and messages.
OF_NO_KEY = {"flushall", "flushdb", "swapdb", "sflush", "trimslots", "cluster|flushslot", "cluster|setslot", "function|delete", "function|flush", "function|load",
             "function|restore", "publish", "spublish"}
# Commands that run in one transaction with the proxy's steps.
SCRIPTS = {"eval", "evalsha", "fcall"}
# Commands of newer servers that compare for themselves, and run as they are (docs/locks.md).
COMPARE = {"delex", "delifeq"}


def may_write(facts_of_flags):
    return "write" in facts_of_flags or "may_replicate" in facts_of_flags


@pytest.fixture(scope="module")
def newer():
    """name: (flag, first, last, step, servers), of commands_that_write.txt"""
    rows = {}
    with open(os.path.join(os.path.dirname(__file__), "commands_that_write.txt")) as file:
        for line in file:
            if not line.startswith("#"):
                name, flag, first, last, step, servers_of = line.split()
                rows[name] = (flag, int(first), int(last), int(step), set(servers_of.split(",")))
    return rows


@pytest.fixture(scope="module")
def writers(redis):
    """The same of the running server: name: (flag, first, last, step)"""
    rows = {}
    for row in redis("COMMAND"):
        for each in [row, *row[9]]:
            flags = {text(flag) for flag in each[2]}
            if may_write(flags) and not (each is row and row[9]):
                rows[text(each[0]).lower()] = ("write" if "write" in flags else "may", *each[3:6])
    return rows


@pytest.fixture(scope="module")
def lock_rows():
    """The commands that have a row in the proxy's table of commands on locks."""
    with open(os.path.join(servers.ROOT, "proxy", "session", "locks", "lock_command.c")) as file:
        names = set(re.findall(r"^    ROW\((\w+),", file.read(), re.M))
    assert {"SETNX", "DEL", "RENAME"} <= names
    return {name.lower().replace("_", "-") if name == "RESTORE_ASKING" else name.lower() for name in names}


def unclassified(names, lock_rows):
    known = lock_rows | set(OF_ANOTHER_TYPE) | OF_NO_KEY | SCRIPTS | COMPARE
    return {name for name in names if name not in known}


def test_every_command_that_may_write_is_classified(newer, writers, lock_rows):
    """A new command of a server makes this test fail until it has a row in lock_command.c, or a reason here."""
    assert len(newer) > 120 and len(writers) > 100
    assert unclassified(set(newer) | set(writers), lock_rows) == set()
    assert unclassified({"set", "setornot"}, lock_rows) == {"setornot"}
    assert not lock_rows & (set(OF_ANOTHER_TYPE) | OF_NO_KEY | SCRIPTS)


def test_the_facts_of_newer_servers(newer, writers, table):
    for name, row in newer.items():
        ours = table.get(name)
        if ours:
            assert (name, "write" in ours[1], *ours[2:]) == (name, row[0] == "write", *row[1:4])
        if name in writers:
            assert (name, *writers[name]) == (name, *row[:4])
    gone = {"restore-asking"} if "restore-asking" not in newer else set()
    assert set(writers) - set(newer) <= gone, "a server has a command that its successors lack"


@pytest.mark.parametrize("name", sorted(OF_ANOTHER_TYPE))
def test_commands_of_another_type_leave_locks_alone(redis, writers, name):
    if name not in writers:
        pytest.skip("this server has no such command")
    for make in (["SET", "K", "v"], ["HSET", "K", "f", "v"], ["RPUSH", "K", "v"]):
        redis("DEL", "K")
        assert not isinstance(redis(*make), Error)
        before = redis("DUMP", "K")
        reply = redis(*name.split("|"), *OF_ANOTHER_TYPE[name].split())
        assert redis("DUMP", "K") == before and redis("PTTL", "K") == -1, (make, reply)
        assert isinstance(reply, Error) and ("WRONGTYPE" in reply or "HyperLogLog" in reply), (make, reply)
    redis("DEL", "K")
