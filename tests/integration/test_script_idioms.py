"""Applications' locks made by scripts, on each connection model: a connection for each worker (D), a pool (P), one
connection for all workers of a process (M). If something fails on Redis alone, that run comes first."""

import threading

import pytest

from resp import Client
from servers import until
from test_scripts import ACQUIRE, HASH_LOCK, HASH_RENEW, HASH_UNLOCK, RELEASE, RENEW


class Process:
    """An application's process with its connections, `size` of them; D has one a worker."""

    def __init__(self, connect, model, name, workers):
        size = {"D": workers, "P": max(2, workers // 2), "M": 1}[model]
        self.model = model
        self.connections = [(connect(), threading.Lock()) for _ in range(size)]
        for client, _ in self.connections:
            client("CLIENT", "SETNAME", name)
        self.turn = 0

    def __call__(self, worker, *command):
        if self.model == "P":
            self.turn += 1
            worker = self.turn
        client, lock = self.connections[worker % len(self.connections)]
        with lock:
            return client(*command)

    def close(self):
        for client, _ in self.connections:
            client.close()


@pytest.fixture(params=["D", "P", "M"])
def processes(request, proxy, backend):
    made = []

    def make(name, workers=1, direct=False):
        connect = backend.direct if direct else lambda: Client(proxy.address)
        made.append(Process(connect, request.param, name, workers))
        return made[-1]

    yield make
    for process in made:
        process.close()


def test_7_a_renewal_thread_outlives_its_lease(processes, direct, key):
    """Its bare PEXPIRE keeps the next holder's lock alive; that holder has crashed."""
    answers = []
    for around in (True, False):
        name = key("lock:client:renewed")
        a, b = (processes(n, direct=around) for n in ("first", "second"))
        assert a(0, "EVAL", ACQUIRE, 1, name, "a", 40) == 1
        until(lambda: direct("EXISTS", name) == 0, 15, "the end of the lease", 0.005)
        assert b(0, "EVAL", ACQUIRE, 1, name, "b", 5000) == 1
        kept = [a(0, "PEXPIRE", name, 60000), direct("PTTL", name) > 5000]
        assert a(0, "EVAL", RENEW, 1, name, "a", 60000) == 0
        assert a(0, "EVAL", RELEASE, 1, name, "a") == 0
        assert b(0, "EVAL", RELEASE, 1, name, "b") == 1
        answers.append(kept)
    assert answers == [[1, True], [0, False]]


def test_12_redisson(processes, proxy, key):
    """Workers of two processes, reentrant, renewed by script, woken by the unlock's message."""
    tag = "{%s}" % key("t")
    name, channel = "lock:client:" + tag, "redisson_lock__channel:" + tag
    inside, most, done, problems = [], [], [], []

    def worker(process, number, uuid):
        owner = "%s:%d" % (uuid, number)
        wake = Client(proxy.address)
        try:
            wake("SUBSCRIBE", channel)
            for _ in range(4):
                while process(number, "EVAL", HASH_LOCK, 1, name, 20000, owner) is not None:
                    wake.read()  # the message is the only signal: the worker does not poll
                assert process(number, "EVAL", HASH_LOCK, 1, name, 20000, owner) is None
                inside.append(owner)
                most.append(len(inside))
                assert process(number, "EVAL", HASH_RENEW, 1, name, 30000, owner) == 1
                inside.remove(owner)
                assert process(number, "EVAL", HASH_UNLOCK, 2, name, channel, 0, 30000, owner) == 0
                assert process(number, "EVAL", HASH_UNLOCK, 2, name, channel, 0, 30000, owner) == 1
            done.append(owner)
        except Exception as error:  # noqa: BLE001: told by the test
            problems.append(error)
        finally:
            wake.close()

    threads = [threading.Thread(target=worker, args=(process, i, uuid))
               for process, uuid in ((processes("p1", 3), "uuid-1"), (processes("p2", 3), "uuid-2")) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems and len(done) == 6 and max(most) == 1


def test_20_redlock_on_independent_nodes(farm, connect, key, start_redis, start_proxy):
    """The same key by script on three nodes, each with its own proxy: they stay independent."""
    nodes = [start_redis() for _ in range(3)]
    proxies = [start_proxy(node, "lock lock:*") for node in nodes]
    a, b = [[connect(p, commands=[("CLIENT", "SETNAME", n)]) for p in proxies] for n in ("a", "b")]
    name = key("lock:redlock")

    def acquire(clients, value):
        return sum(c("EVAL", ACQUIRE, 1, name, value, 20000) for c in clients)

    assert acquire(a, "value-a") == 3 and acquire(b, "value-b") == 0
    assert [c("DEL", name) for c in b] == [0, 0, 0]
    assert sum(c("EVAL", RELEASE, 1, name, "value-b") for c in b) == 0
    proxies[0].stop()
    restarted = start_proxy(nodes[0], "lock lock:*")
    a[0], b[0] = (connect(restarted, commands=[("CLIENT", "SETNAME", n)]) for n in ("a", "b"))
    assert acquire(b, "value-b") == 0
    assert sum(c("EVAL", RELEASE, 1, name, "value-a") for c in a) == 3
    assert acquire(b, "value-b") == 3
