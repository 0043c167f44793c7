"""Fixtures of the integration tests.

Servers and the shared proxies live as long as the session; between tests the servers are flushed and every test
uses keys of its own. A test that harms a server or a proxy starts its own (start_redis, start_cluster,
start_proxy). After every test, every proxy must be alive and without a sanitizer's report.
"""

import itertools
import os
import random
import signal
import subprocess
import threading
import time

import pytest

import servers
from certificates import Certificates
from fake import FakeNode
from names import Names
from resp import Client

TEST_SECONDS = 150 + int(os.environ.get("LOCKKEEPER_KILLS") or 0)  # test_semaphore_kills kills some in a second

# What the shared proxies know of locks. The first match wins; everything else on lock:* has the defaults.
RULES = [
    "lock lock:short:kinds:* lease 2s claim-memory 30s kind any",
    "lock lock:short:* lease 2s claim-memory 30s",
    "lock lock:kinds:* kind any",
    "lock lock:connection:* owner connection",
    "lock lock:client:* owner client",
    "lock lock:any:* owner any",
    "lock lock:audit:* mode audit",
    "lock lock:off:* mode off",
    "lock lock:nolease:* lease 0",
    "lock lock:release:* on-disconnect release",
    "lock lock:never:* lease 2s renew never",
    "lock lock:always:* renew always max-hold 5s",
    "lock lock:hold:* lease 2s max-hold 5s",
    "lock :1:lock*",
    "lock lock:*",
]


if servers.memory_is_a_tool_s():
    def no_memory(self):
        pytest.skip("the proxy's memory is mostly a tool's")

    servers.Proxy.memory = no_memory


class Farm:
    """The servers that tests share, started when first asked for."""

    def __init__(self):
        self.backends = {}
        self.proxies = {}
        self.oracle_server = None

    def backend(self, kind):
        if kind not in self.backends:
            self.backends[kind] = servers.RedisServer() if kind == "standalone" else servers.RedisCluster()
        return self.backends[kind]

    def proxy(self, kind):
        proxy = self.proxies.get(kind)
        if proxy is None or not proxy.running() or servers.REPORT.search(proxy.log()):
            if proxy is not None:
                proxy.kill()
                if proxy in servers.Proxy.started:
                    servers.Proxy.started.remove(proxy)
            proxy = self.proxies[kind] = servers.Proxy(self.backend(kind), "loglevel verbose", *RULES)
        return proxy

    def oracle(self):
        if self.oracle_server is None:
            self.oracle_server = servers.RedisServer()
        return self.oracle_server

    def stop(self):
        problems = []
        for proxy in self.proxies.values():
            if proxy in servers.Proxy.started:
                try:
                    proxy.stop()
                except AssertionError as error:
                    problems.append(str(error))
        for server in [*self.backends.values(), *([self.oracle_server] if self.oracle_server else [])]:
            server.stop()
        for proxy in self.proxies.values():
            proxy.remove()
        assert not problems, "\n".join(problems)


@pytest.fixture(scope="session")
def farm():
    farm = Farm()
    yield farm
    farm.stop()


@pytest.fixture(scope="session", params=["standalone", "cluster"])
def backend_kind(request):
    return request.param


@pytest.fixture
def backend(farm, backend_kind):
    """The Redis behind the shared proxy, empty."""
    backend = farm.backend(backend_kind)
    backend.flush()
    return backend


@pytest.fixture
def oracle(farm):
    """A Redis without a proxy, empty: what it says is right."""
    oracle = farm.oracle()
    oracle.flush()
    return oracle


@pytest.fixture
def proxy(farm, backend):
    """The shared proxy in front of `backend`."""
    proxy = farm.proxy(backend.kind)
    if os.environ.get("LOCKKEEPER_THREADS"):
        proxy.await_alone()
    return proxy


@pytest.fixture
def connect(request):
    """connect(somewhere, ...): a Client, closed at the end. `somewhere` has an address or is one."""
    clients = []

    def connect(where, **options):
        client = Client(getattr(where, "address", where), **options)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(proxy, connect):
    """A connection to the shared proxy."""
    return connect(proxy)


@pytest.fixture
def direct(backend):
    """A connection to the backend itself, around the proxy."""
    client = backend.direct()
    yield client
    client.close()


@pytest.fixture
def names():
    """A name server of the test's own."""
    found = Names()
    tried = subprocess.run([*found.before, "true"], capture_output=True, text=True, timeout=20)
    if tried.returncode:  # in a chroot, or without the rights
        found.close()
        pytest.skip("no program can be given another resolv.conf here: " + tried.stderr.strip())
    yield found
    found.close()


@pytest.fixture
def start_redis():
    yield from _starter(servers.RedisServer)


@pytest.fixture
def start_cluster():
    yield from _starter(servers.RedisCluster)


def _starter(make):
    made = []

    def start(*args, **options):
        server = make(*args, **options)
        made.append(server)
        return server

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def start_proxy(start_redis, start_cluster):
    """start_proxy(upstream, *config lines): a proxy of the test's own; its clean stop is part of the test."""
    made = []

    def start(upstream, *lines, **options):
        proxy = servers.Proxy(upstream, *lines, **options)
        made.append(proxy)
        return proxy

    yield start
    problems = []
    for proxy in made:
        if proxy in servers.Proxy.started:
            try:
                if proxy.expected:
                    proxy.stop()
                else:
                    servers.Proxy.started.remove(proxy)
                    proxy.kill()
                    proxy.check()
            except AssertionError as error:
                problems.append(str(error))
        proxy.remove()
    assert not problems, "\n".join(problems)


@pytest.fixture
def fake():
    """fake(handler): a FakeNode, stopped at the end."""
    made = []

    def start(handler):
        made.append(FakeNode(handler))
        return made[-1]

    yield start
    for node in made:
        node.stop()


_serial = itertools.count(1)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def key():
    """key("lock:a"): the name with a number behind it that no other test has."""
    return lambda name: "%s:%d" % (name, next(_serial))


@pytest.fixture
def rng():
    """A random generator; LOCKKEEPER_SEED repeats a run. The seed is printed where a test fails."""
    seed = int(os.environ.get("LOCKKEEPER_SEED") or time.time_ns() % 1000000007)
    print("LOCKKEEPER_SEED=%d" % seed)
    return random.Random(seed)


# ---- around every test -----------------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """No test waits for ever, but where a worker of xdist runs it beside its main thread, which happens by chance."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(number, frame):
        raise TimeoutError("the test took more than %d s" % TEST_SECONDS)

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TEST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture(autouse=True)
def healthy():
    yield
    for proxy in list(servers.Proxy.started):
        proxy.check()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for proxy in servers.Proxy.started:
            report.sections.append(("log of the proxy on port %d" % proxy.port, servers.tail(proxy.log_path)))


def pytest_terminal_summary(terminalreporter):
    """The tables that tests have recorded, wherever the tests ran."""
    for report in [r for state in ("passed", "failed") for r in terminalreporter.getreports(state)]:
        for name, text in getattr(report, "user_properties", []):
            if name == "table":
                terminalreporter.section(report.nodeid.split("::")[-1])
                terminalreporter.write_line(text)
