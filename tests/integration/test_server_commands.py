"""Commands about the whole server: through the proxy a cluster answers as one, and a standalone as itself."""

import re

import pytest

import servers
from fake import FakeNode, slot_map
from resp import Error

SLOTS = servers.SLOTS


@pytest.fixture(scope="module")
def cluster_proxy(farm):
    backend = farm.backend("cluster")
    backend.flush()
    return farm.proxy("cluster")


@pytest.fixture(scope="module")
def one_node():
    """A Redis Cluster of one master, which is what the proxy pretends to be."""
    node = servers.RedisServer("--cluster-announce-ip", servers.HOST, cluster=True)
    node.run("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    servers.until(lambda: "cluster_state:ok" in node.run("CLUSTER", "INFO"), what="cluster_state:ok")
    yield node
    node.stop()


# ---- CLUSTER ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("words", [
    ["SLOTS"], ["SHARDS"], ["NODES"], ["INFO"], ["MYID"], ["LINKS"], ["KEYSLOT", "key"], ["KEYSLOT", "{a}b"],
    ["KEYSLOT", ""], ["COUNTKEYSINSLOT", "5"], ["COUNTKEYSINSLOT", "16384"], ["COUNTKEYSINSLOT", "-1"],
    ["COUNTKEYSINSLOT", "x"], ["GETKEYSINSLOT", "5", "10"], ["GETKEYSINSLOT", "5", "-1"], ["REPLICAS", "SELF"],
    ["SLAVES", "SELF"], ["COUNT-FAILURE-REPORTS", "SELF"], ["REPLICAS", "nobody"], ["COUNT-FAILURE-REPORTS", "x"],
    ["SLOTS", "x"], ["KEYSLOT"], ["GETKEYSINSLOT", "1"], ["COUNTKEYSINSLOT"], ["nonsense"], ["Nonsense", "x"], ["HELP"],
    [], ["slots"], ["shARDS"],
], ids=" ".join)
def test_cluster_as_a_cluster_of_one(cluster_proxy, one_node, connect, protocol, words):
    """Byte for byte what a cluster of one master says, apart from its id and ports."""
    replies = []
    for where in (cluster_proxy, one_node):
        client = connect(where)
        client("HELLO", protocol)
        own = client("CLUSTER", "MYID")
        assert re.fullmatch("[0-9a-f]{40}", own)
        raw = client.raw("CLUSTER", *[own if w == "SELF" else w for w in words])
        raw = raw.replace(own.encode(), b"ID").replace(b":%d@" % where.port, b":PORT@").replace(
            b":%d\r\n" % where.port, b":PORT\r\n")
        if b"@" in raw:
            raw = re.sub(rb"^([$=])\d+", rb"\1", re.sub(rb"@\d+", b"@BUS", raw))
        replies.append(raw)
    assert replies[0] == replies[1]


def test_cluster_shows_the_address_that_the_client_used(farm, start_proxy, connect):
    backend = farm.backend("cluster")
    folder = servers.Process("socket")
    path = folder.folder + "/sock"
    proxy = start_proxy(backend, "bind 127.0.0.1 -::1", "unixsocket " + path)

    def shown(where):
        client = connect(where)
        return client("CLUSTER", "SLOTS")[0][2][:2]

    assert shown(("127.0.0.1", proxy.port)) == ["127.0.0.1", proxy.port]
    assert shown(path) == ["127.0.0.1", proxy.port]
    try:
        six = connect(("::1", proxy.port))
    except OSError:
        six = None  # a machine without IPv6
    if six:
        assert six("CLUSTER", "SLOTS")[0][2][:2] == ["::1", proxy.port]
        assert " ::1:%d@" % proxy.port in six("CLUSTER", "NODES")
    folder.remove()


def test_cluster_announces_what_it_is_told(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("cluster"), "cluster-announce-ip locks.example.com", "cluster-announce-port 7777")
    client = connect(proxy)
    assert client("CLUSTER", "SLOTS")[0][2][:2] == ["locks.example.com", 7777]
    assert "locks.example.com:7777@17777 myself,master" in client("CLUSTER", "NODES")
    assert client("CLUSTER", "SHARDS")[0][3][0][5] == "locks.example.com"


@pytest.mark.parametrize("words", [["ADDSLOTS", 1], ["DELSLOTS", 1], ["FAILOVER"], ["FORGET", "x"], ["MEET", "h", 1],
                                   ["REPLICATE", "x"], ["RESET"], ["SETSLOT", 1, "NODE", "x"], ["FLUSHSLOTS"],
                                   ["BUMPEPOCH"], ["SAVECONFIG"], ["SET-CONFIG-EPOCH", 9], ["DELSLOTSRANGE", 0, 9]])
def test_cluster_is_not_changed(cluster_proxy, connect, farm, words):
    client = connect(cluster_proxy)
    before = farm.backend("cluster").nodes[0].run("CLUSTER", "SLOTS")
    assert re.match("ERR CLUSTER [a-z-]+ changes the cluster", client("CLUSTER", *words))
    assert farm.backend("cluster").nodes[0].run("CLUSTER", "SLOTS") == before


def test_cluster_of_a_standalone_is_its_own(farm, connect):
    proxy, client = farm.proxy("standalone"), None
    client, direct = connect(proxy), connect(farm.backend("standalone"))
    for words in (["SLOTS"], ["KEYSLOT", "a"], ["SETSLOT", "1", "NODE", "x"], ["nonsense"], ["INFO"]):
        assert client.raw("CLUSTER", *words) == direct.raw("CLUSTER", *words)
    for name in ("READONLY", "READWRITE", "ASKING"):
        assert client.raw(name) == direct.raw(name)


def test_keys_of_a_slot(cluster_proxy, connect):
    client = connect(cluster_proxy)
    for name in ("{lock:s}a", "{lock:s}b", "lock:s"):
        assert client("SET", name, 1, "NX") == "OK"
    slot = servers.slot_of("lock:s")
    keys = client("CLUSTER", "GETKEYSINSLOT", slot, 100)
    assert sorted(k for k in keys if not k.startswith("{lock:s}")) == ["lock:s"]
    assert not any(k.startswith("lockkeeper:") for k in keys)  # guard records are not shown
    assert client("CLUSTER", "COUNTKEYSINSLOT", slot) >= 3
    for name in ("READONLY", "READWRITE", "ASKING"):
        assert client(name) == "OK"


# ---- all masters -----------------------------------------------------------------------------------


def test_scripts_on_all_masters(cluster_proxy, farm, connect):
    client, nodes = connect(cluster_proxy), farm.backend("cluster").nodes
    sha = client("SCRIPT", "LOAD", "return 'server commands'")
    assert [n.run("SCRIPT", "EXISTS", sha) for n in nodes] == [[1]] * 3
    nodes[1].run("SCRIPT", "FLUSH")
    assert client("SCRIPT", "EXISTS", sha, "0" * 40) == [0, 0]  # one master lacks it
    client("SCRIPT", "LOAD", "return 'server commands'")
    assert client("SCRIPT", "EXISTS", sha, "0" * 40, sha) == [1, 0, 1]
    assert client("EVALSHA", sha, 0) == "server commands"
    assert client("SCRIPT", "FLUSH") == "OK"
    assert [n.run("SCRIPT", "EXISTS", sha) for n in nodes] == [[0]] * 3
    assert client("EVALSHA", sha, 0).startswith("NOSCRIPT")
    assert client("SCRIPT", "KILL").startswith("NOTBUSY")
    assert client("SCRIPT", "DEBUG", "YES") == "ERR SCRIPT DEBUG is not supported by lockkeeper"
    assert client("EVAL", "return 7", 0) == 7


def test_functions_on_all_masters(cluster_proxy, farm, connect):
    client, nodes = connect(cluster_proxy), farm.backend("cluster").nodes
    code = "#!lua name=lib\nredis.register_function{function_name='f', callback=function(k, a) return a[1] end, " \
           "flags={'no-writes'}}"
    assert client("FUNCTION", "LOAD", code) == "lib"
    assert client("FUNCTION", "LOAD", code) == "ERR Library 'lib' already exists"
    for i in range(10):
        assert client("FCALL", "f", 1, "k%d" % i, "x") == client("FCALL_RO", "f", 1, "k%d" % i, "x") == "x"
    assert client("FCALL", "f", 0, "x") == "x"
    assert client("FUNCTION", "LIST")[0][1] == "lib"
    dump = client.raw("FUNCTION", "DUMP")
    dump = dump[dump.index(b"\r\n") + 2 : -2]
    assert client("FUNCTION", "STATS")[1] is None
    assert client("FUNCTION", "KILL").startswith("NOTBUSY")
    assert client("FUNCTION", "DELETE", "lib") == "OK"
    assert [n.run("FUNCTION", "LIST") for n in nodes] == [[]] * 3
    assert client("FUNCTION", "RESTORE", dump) == "OK"
    assert all(n.run("FUNCTION", "LIST") for n in nodes)
    assert client("FUNCTION", "FLUSH") == "OK"
    assert [n.run("FUNCTION", "LIST") for n in nodes] == [[]] * 3


def test_configuration_of_all_masters(cluster_proxy, farm, connect):
    client, nodes = connect(cluster_proxy), farm.backend("cluster").nodes
    before = client("CONFIG", "GET", "slowlog-log-slower-than")[1]
    assert client("CONFIG", "SET", "slowlog-log-slower-than", "0") == "OK"
    try:
        assert [n.run("CONFIG", "GET", "slowlog-log-slower-than")[1] for n in nodes] == ["0"] * 3
    finally:
        client("CONFIG", "SET", "slowlog-log-slower-than", before)
    assert client("CONFIG", "SET", "nonsense", 1).startswith("ERR Unknown option")
    assert client("CONFIG", "RESETSTAT") == "OK"
    assert client("MEMORY", "PURGE") == "OK"
    assert client("SWAPDB", 0, 1) == nodes[0].client()("SWAPDB", 0, 1)
    assert client("LASTSAVE") == min(n.run("LASTSAVE") for n in nodes)
    assert str(client("SHUTDOWN", "NOSAVE")).startswith("ERR SHUTDOWN of a cluster's node")


@pytest.mark.parametrize("command", ["SLOWLOG GET", "SLOWLOG LEN", "SLOWLOG RESET", "LATENCY LATEST", "LATENCY DOCTOR", "ACL LOG",
                                     "ACL LOG RESET"])
def test_what_each_node_logs_is_asked_of_a_node(cluster_proxy, connect, command):
    client, name = connect(cluster_proxy), "ACL LOG" if command.startswith("ACL") else command.split(" ")[0]
    refusal = Error("ERR %s is not supported by lockkeeper on a cluster: ask a node" % name)
    assert client(*command.split(" ")) == refusal
    assert [client("MULTI"), client(*command.split(" "))] == ["OK", refusal] and client("EXEC").startswith("EXECABORT")


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_of_all_masters(cluster_proxy, farm, connect, protocol):
    client, nodes = connect(cluster_proxy), farm.backend("cluster").nodes
    client("HELLO", protocol)
    for i in range(30):
        client("SET", "info:%d" % i, 1, *(["EX", 100] if i % 3 == 0 else []))
    page = client("INFO", "everything")
    fields = dict(line.split(":", 1) for line in page.split("\r\n") if ":" in line)
    pages = [dict(line.split(":", 1) for line in n.run("INFO", "everything").split("\r\n") if ":" in line)
             for n in nodes]
    assert fields["redis_version"] == pages[0]["redis_version"]
    assert (fields["cluster_enabled"], fields["loading"], fields["role"]) == ("1", "0", "master")
    assert int(fields["used_memory"]) > max(int(p["used_memory"]) for p in pages)
    assert re.fullmatch(r"\d+\.\d\d[MG]", fields["used_memory_human"])
    assert int(fields["connected_clients"]) >= 3
    keys, expires = [int(x) for x in re.match(r"keys=(\d+),expires=(\d+),avg_ttl=\d+", fields["db0"]).groups()]
    count = lambda name: sum(int(re.search(name + r"=(\d+)", p.get("db0", name + "=0")).group(1)) for p in pages)
    assert (keys, expires) == (count("keys"), count("expires"))
    assert page.count("# Keyspace") == 1 and page.count("\ndb0:") == 1
    assert client("INFO", "keyspace").startswith("# Keyspace\r\ndb0:keys=")
    assert client("INFO", "nonsense") == ""


def test_info_while_a_master_is_down(start_cluster, start_proxy, connect):
    cluster = start_cluster()
    proxy = start_proxy(cluster)
    client = connect(proxy)
    client("SET", "a", 1)
    cluster.nodes[0].kill()
    assert "redis_version" in client("INFO")
    reply = client("CONFIG", "SET", "maxmemory-samples", 6)
    assert reply.startswith("UPSTREAM node %s:%d" % cluster.nodes[0].address)


def test_whole_server_of_a_standalone(farm, connect):
    """A standalone's answers are passed on as they are."""
    client, direct = connect(farm.proxy("standalone")), connect(farm.backend("standalone"))
    for words in (["SCRIPT", "EXISTS", "a"], ["SCRIPT", "KILL"], ["SCRIPT", "nonsense"], ["SCRIPT", "KILL", "x"],
                  ["FUNCTION", "STATS"], ["FUNCTION", "KILL"], ["CONFIG", "GET", "maxmemory*"], ["SLOWLOG", "LEN"],
                  ["LATENCY", "LATEST"], ["MEMORY", "PURGE"], ["LASTSAVE"], ["ACL", "WHOAMI"], ["MODULE", "LIST"],
                  ["DEBUG", "nonsense"], ["FUNCTION", "LIST"], ["COMMAND", "COUNT"],
                  ["COMMAND", "GETKEYS", "MSET", "a", "1", "b", "2"], ["SWAPDB", "0", "99"], ["DBSIZE", "x"]):
        assert client.raw(*words) == direct.raw(*words), words
    assert client("MEMORY", "DOCTOR")  # what it finds may be another thing a moment later
    assert client("SCRIPT", "DEBUG", "YES").startswith("ERR SCRIPT DEBUG is not supported")


# ---- SCAN over masters that change -------------------------------------------------------------------


def scan(client, first="0", after=None):
    cursor, seen, calls = first, [], 0
    while True:
        cursor, page = client("SCAN", cursor, "COUNT", 20)
        seen += page
        calls += 1
        if after:
            after(calls, cursor)
        if cursor == "0":
            return seen
        assert calls < 3000, "SCAN does not end"


def test_scan_goes_on_with_another_proxys_cursor(farm, start_proxy, connect, backend_kind):
    backend = farm.backend(backend_kind)
    backend.flush()
    clients = [connect(farm.proxy(backend_kind)), connect(start_proxy(backend, "threads 3"))]
    names = ["scan:%d" % i for i in range(500)]
    clients[0]("MSET", *[x for name in names for x in (name, 1)])
    cursor, seen, calls = "0", [], 0
    while calls == 0 or cursor != "0":
        cursor, page = clients[calls % 2]("SCAN", cursor)
        assert 0 <= int(cursor) < 1 << 53  # some clients keep it in a double
        seen += page
        calls += 1
    assert sorted(seen) == sorted(names)  # none missing, and none twice


def test_scan_misses_nothing_when_masters_change(start_proxy, connect):
    """A slot map that changes between two calls: a key that went from the last master to the first is still shown."""
    keys = [[b"a", b"b"], [b"c", b"moved"], [b"d"]]

    def handler(number):
        def answer(words, connection):
            name = words[0].upper()
            if name == b"CLUSTER":
                split = [5000, 10000] if b"moved" in keys[1] else [6000, 10000]
                ports = sorted((n.port for n in nodes), key=str)
                return slot_map((0, split[0], servers.HOST, ports[0]), (split[0] + 1, split[1], servers.HOST, ports[1]),
                                (split[1] + 1, SLOTS - 1, servers.HOST, ports[2]))
            me = sorted((n.port for n in nodes), key=str).index(nodes[number].port)
            if name == b"SCAN":
                at = int(words[1])
                mine = keys[me]
                page = mine[at : at + 1]
                after = at + 1 if at + 1 < len(mine) else 0
                body = b"".join(b"$%d\r\n%s\r\n" % (len(k), k) for k in page)
                return b"*2\r\n$%d\r\n%d\r\n*%d\r\n%s" % (len(str(after)), after, len(page), body)
            if name == b"GET":
                return b"-MOVED 5500 %s:%d\r\n" % (servers.HOST.encode(), sorted((n.port for n in nodes), key=str)[0]) \
                    if me == 1 and b"moved" in keys[0] else b"$1\r\nv\r\n"
            return b"+PONG\r\n"

        return answer

    nodes = []
    nodes += [FakeNode(handler(i)) for i in range(3)]
    proxy = start_proxy("cluster %s:%d" % nodes[0].address)
    client = connect(proxy)
    moved = next("m%d" % i for i in range(100000) if servers.slot_of("m%d" % i) == 5500)

    def move(calls, cursor):
        if calls == 2:  # the first master is done
            keys[1].remove(b"moved")
            keys[0].append(b"moved")
            assert client("GET", moved) == "v"  # so that the proxy hears of it

    assert set(scan(client, after=move)) == {"a", "b", "c", "d", "moved"}
    assert sorted(scan(client)) == ["a", "b", "c", "d", "moved"]
    for cursor in ("1", "12345", str((1 << 63) - 1), "99999999999999"):  # no proxy has made this cursor: the scan begins again
        assert set(scan(client, cursor)) == {"a", "b", "c", "d", "moved"}
    for node in nodes:
        node.stop()
