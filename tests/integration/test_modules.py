"""Commands that the proxy's table lacks: those of a module (module.c, built here), loaded before the proxy's start and
after."""

import threading

import pytest

import modules
import servers
from resp import Error


with_module = modules.backends("module.c", "standalone", "cluster")


@pytest.fixture
def module(tmp_path_factory):
    return modules.built(tmp_path_factory, "module.c")


NAMES = ["m:%d" % i for i in range(12)]


def test_keys_where_the_module_says(with_module, start_proxy, connect):
    proxy = start_proxy(with_module, "threads 2")
    for client in (connect(proxy), connect(proxy)):
        client("HELLO", 3)
        for name in NAMES:
            assert client("lk.put", name, name) == "OK"
            assert with_module.node_of(name).run("GET", name) == name
            assert client("LK.GET", "not:a:key", name) == name  # the second argument
            assert client("lk.late", 3, "a", "b", "c", name) == name  # only the module knows
            assert client("lk.many", 2, "{%s}x" % name, name, "word") == len(name)
            assert client("lk.box", "put", name, "boxed") == "OK"
            assert client("lk.BOX", "PUT", name, "boxed again") == "OK"
            assert with_module.node_of(name).run("GET", name) == "boxed again"
    client = connect(proxy)
    assert client("lk.masters") == len(with_module.nodes)
    several = client("lk.many", 3, "a", "b", "c", "word")
    if with_module.kind == "cluster":
        assert several.startswith("CROSSSLOT")
    else:
        assert several == 0


def test_explain_asks_the_node(with_module, start_proxy, connect):
    client = connect(start_proxy(with_module), commands=[("HELLO", 3)])
    answer = client("PROXY", "EXPLAIN", "lk.get", "not:a:key", "lock:of:a:module")
    assert answer["command"] == "lk.get" and answer["key"] == "lock:of:a:module" and "lock:*" in answer["rule"]
    assert answer["node"].endswith(":%d" % with_module.node_of("lock:of:a:module").port)


def test_pipelines_keep_their_order(with_module, start_proxy, connect):
    """Also when the first request for a name makes the others wait."""
    client = connect(start_proxy(with_module))
    commands, expected = [], []
    for i, name in enumerate(NAMES * 3):
        commands += [("SET", name, i), ("lk.get", "w", name), ("lk.late", "1", "w", name), ("lk.put", name, "p%d" % i),
                     ("GET", name), ("no.such", name)]
        expected += [b"+OK\r\n", b"$%d\r\n%d\r\n" % (len(str(i)), i), b"$%d\r\n%d\r\n" % (len(str(i)), i), b"+OK\r\n",
                     b"$%d\r\np%d\r\n" % (len(str(i)) + 1, i),
                     b"-ERR unknown command 'no.such', with args beginning with: '%s' \r\n" % name.encode()]
    assert client.pipeline(commands) == expected


def test_half_close_behind_a_name_that_is_asked_for(with_module, start_proxy, connect):
    proxy = start_proxy(with_module)
    for payload, end in ((b"lk.put half 1\r\nlk.get w half\r\n", b"+OK\r\n$1\r\n1\r\n"), (b"lk.late 0 half\r\n", b"$1\r\n1\r\n")):
        client = connect(proxy)
        client.send(payload)
        client.shutdown()
        assert client.read_all() == end


def test_a_blocking_command_holds_nobody_up(with_module, start_proxy, connect):
    proxy = start_proxy(with_module)
    one, two = connect(proxy), connect(proxy)
    me = one("CLIENT", "ID")
    one.send(b"*3\r\n$7\r\nlk.wait\r\n$1\r\na\r\n$6\r\n600000\r\n")
    servers.until(lambda: "pinned_blocking:1" in two("PROXY", "INFO"), what="a pinned connection")
    assert two("SET", "a", 1) == "OK"
    servers.until(lambda: two("CLIENT", "UNBLOCK", me) == 1, what="the command's end")
    assert one.read() == "WAITED"


def test_in_a_transaction(with_module, start_proxy, connect):
    client = connect(start_proxy(with_module))
    assert client("MULTI") == "OK"
    assert [client("lk.put", "{t}a", 1), client("lk.get", "w", "{t}a"), client("lk.many", 1, "{t}a", "w")] == [
        "QUEUED"] * 3
    assert client("EXEC") == ["OK", "1", 1]
    client("MULTI")
    assert isinstance(client("no.such", "{t}a"), Error)
    assert client("EXEC").startswith("EXECABORT")


def test_guard_records_are_not_for_modules(with_module, start_proxy, connect):
    client = connect(start_proxy(with_module))
    assert client("SET", "lock:m", 1, "NX") == "OK"
    guard = next(k for node in with_module.nodes for k in node.run("KEYS", "lockkeeper:*"))
    assert client("lk.put", guard, 1).startswith("ERR the key is a guard record")
    assert client("lk.box", "put", guard, 1).startswith("ERR the key is a guard record")
    assert client("DEL", "lock:m") == 1


def test_a_module_that_comes_later(module, start_cluster, start_proxy, connect):
    """What was unknown is asked for again."""
    cluster = start_cluster("--enable-module-command", "yes")
    client = connect(start_proxy(cluster))
    assert client("lk.put", "a", 1) == "ERR unknown command 'lk.put', with args beginning with: 'a' '1' "
    assert client("MODULE", "LOAD", module) == "OK"
    servers.until(lambda: client("lk.late", 0, "a") != 0 and client("lk.get", "w", "a") is None, what="the new row")
    loaded = [[row[1] for row in n.run("MODULE", "LIST") if row[1] != "vectorset"] for n in cluster.nodes]  # 8.0's own
    assert loaded == [["lk"]] * 3
    for name in NAMES:
        assert client("lk.put", name, name) == "OK"
        assert client("lk.get", "w", name) == name


def test_names_that_nobody_knows(with_module, start_proxy, connect):
    """More names than the proxy remembers: each is answered by the node, and those that exist are found among them."""
    proxy = start_proxy(with_module)
    clients = [connect(proxy) for _ in range(4)]
    replies = []

    def send(client, number):
        replies.extend(client.pipeline([("no.%d.%d" % (number, i), "x") for i in range(500)]))

    threads = [threading.Thread(target=send, args=(c, i)) for i, c in enumerate(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(replies) == 2000 and all(r.startswith(b"-ERR unknown command") for r in replies)
    assert clients[0]("lk.put", "a", 1) == "OK"
    assert clients[0].raw("x" * 200, "a").startswith(b"-ERR unknown command 'xxx")
