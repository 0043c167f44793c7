"""One process takes over from another without effect on clients: connected clients are served, and new ones get in.

Three ways: two processes with reuse-port, one that starts the next itself (SIGUSR2), and systemd's sockets.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import redis

import servers
from resp import Client, Closed, encode
from servers import HOST, free_port, tail, until

LEASE = 2
RULES = ["lock lock:* lease %ds" % LEASE]
BUSY = 8
LONGER_THAN_A_STOP = 7  # seconds


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def orphans():
    """Successors outlive the processes that have started them: they become children of this process."""
    subreaper = 36  # PR_SET_CHILD_SUBREAPER
    ctypes.CDLL(None).prctl(subreaper, 1, 0, 0, 0)
    adopted = []
    yield adopted
    for proxy in adopted:
        proxy.end()
    ctypes.CDLL(None).prctl(subreaper, 0, 0, 0, 0)


class Successor:
    """A process that another one has started, with that process's log."""

    def __init__(self, before, number=1):
        self.log = before.log
        starts = until(lambda: (found := re.findall(r"is starting, pid (\d+)", before.log())) and len(found) > number and found,
                       30, "the start of another process")
        self.pid = int(starts[number])
        until(lambda: "Process %d has taken over" % self.pid in before.log(), 30, "the take-over")
        self.status = None

    def signal(self, number):
        os.kill(self.pid, number)

    def over(self):
        """Whether it has ended; its parent has to be gone by then."""
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def end(self):
        if not self.over():
            self.signal(signal.SIGTERM)
            until(self.over, 30, "the successor's end")
        assert self.status == 0, self.log()[-4000:]


class Heir(Successor):
    """The second process in the log, whose predecessor has ended."""

    def __init__(self, before):
        self.log, self.status = before.log, None
        self.pid = int(re.findall(r"is starting, pid (\d+)", before.log())[1])


def take_over(before, orphans, number=1):
    before.signal(signal.SIGUSR2)
    after = Successor(before, number)
    orphans.append(after)
    return after


def other_process(before):
    """Another process with the same configuration, and so on the same port."""
    proxy = servers.Proxy.__new__(servers.Proxy)
    servers.Process.__init__(proxy, "proxy")
    proxy.port, proxy.address, proxy.config = before.port, before.address, before.config
    proxy.launch()
    proxy.await_ready()
    return proxy


def ended(proxy, seconds=5):
    proxy.expected = False
    assert proxy.process.wait(seconds) == 0, tail(proxy.log_path)
    proxy.check_report()


# ---- clients --------------------------------------------------------------------------------------------------------


class Stayer(redis.Redis):
    """A client with one connection, which close() closes."""

    def __init__(self, **options):
        super().__init__(single_connection_client=True, socket_timeout=20, **options)

    def close(self):
        if self.connection:
            self.connection.disconnect()
        super().close()


class Crowd:
    """Clients of redis-py that stay: most are busy, one holds a lock and works, one is silent. And visitors, which connect,
    send a request, and leave. No client may ever see an error."""

    def __init__(self, where, name, tls=None):
        self.where, self.tls, self.name = where, tls, name
        self.leave, self.over = threading.Event(), threading.Event()
        self.problems, self.counts, self.visits = [], [0] * BUSY, 0
        self.silent = self.new()
        assert self.silent.ping()
        self.holder = self.new(client_name="holder")
        assert self.holder.setnx("lock:" + name, "mine")
        self.stayers = [threading.Thread(target=self.guarded, args=(self.stay, n)) for n in range(BUSY)]
        self.visitors = [threading.Thread(target=self.guarded, args=(self.visit, n)) for n in range(3)]
        for thread in self.stayers + self.visitors:
            thread.start()

    def new(self, **more):
        if isinstance(self.where, str):
            more.update(unix_socket_path=self.where)
        else:
            more.update(host=self.where[0], port=self.where[1])
        if self.tls:
            more.update(ssl=True, ssl_ca_certs=self.tls.path("ca.crt"), ssl_certfile=self.tls.path("client.crt"),
                        ssl_keyfile=self.tls.path("client.key"))
        return Stayer(**more)

    def guarded(self, run, number):
        try:
            run(number)
        except BaseException as error:  # noqa: B902: handed to the test's own thread
            self.problems.append("%s %d: %r" % (run.__name__, number, error))

    def stay(self, number):
        c = self.new()
        before = c.client_id()
        while not self.leave.is_set():
            self.counts[number] += 1
            assert c.incr("%s:%d" % (self.name, number)) == self.counts[number]
        assert c.client_id() == before, "it came again"
        c.close()

    def visit(self, number):
        while not self.over.is_set():
            with contextlib.closing(self.new()) as c:
                assert c.ping()
            self.visits += 1

    def goes_on(self, seconds):
        """For so long all clients are served, the lock is renewed, and no other client gets it."""
        until_then = time.monotonic() + seconds
        with contextlib.closing(self.new(client_name="rival")) as rival:
            while time.monotonic() < until_then:
                assert not self.problems, self.problems
                assert not rival.setnx("lock:" + self.name, "rival")
                assert self.holder.get("lock:" + self.name) == b"mine"
                time.sleep(0.05)
        counts, visits = list(self.counts), self.visits
        until(lambda: self.problems or (self.visits > visits and all(a > b for a, b in zip(self.counts, counts))), 20,
              "everybody's next reply")
        assert not self.problems, self.problems

    def go(self):
        """The staying clients leave. The holder has released its lock: it held it all the time."""
        assert self.silent.ping()
        assert self.holder.delete("lock:" + self.name) == 1
        self.silent.close()
        self.holder.close()
        self.leave.set()
        for thread in self.stayers:
            thread.join(30)

    def stop(self):
        self.leave.set()
        self.over.set()
        for thread in self.stayers + self.visitors:
            thread.join(30)
        self.silent.close()
        self.holder.close()
        assert not self.problems, self.problems


@pytest.fixture
def crowd(key):
    made = []

    def gather(where, **options):
        made.append(Crowd(where, key("crowd"), **options))
        return made[-1]

    yield gather
    for one in made:
        one.stop()


def fetch(port, path):
    with urllib.request.urlopen("http://%s:%d%s" % (HOST, port, path), timeout=10) as reply:
        return reply.read()


# ---- two processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, threads, unix", [("standalone", 1, False), ("cluster", 3, False), ("standalone", 2, True)])
def test_another_process_on_the_port(farm, start_proxy, crowd, tmp_path, kind, threads, unix):
    path = str(tmp_path / "socket")
    before = start_proxy(farm.backend(kind), "reuse-port yes", "threads %d" % threads, "unixsocket " + path, *RULES)
    people = crowd(path if unix else before.address)
    people.goes_on(0.5)
    after = other_process(before)
    try:
        before.expected = False
        before.signal(signal.SIGTERM)
        until(lambda: "another process has the port" in before.log(), 10, "the signal's work")
        people.goes_on(LONGER_THAN_A_STOP)
        assert before.running()
        people.go()
        ended(before)
        people.stop()
    finally:
        after.stop()
        after.remove()


def test_a_unix_socket_with_a_long_path(farm, start_proxy, connect, tmp_path):
    """There is no room for another name beside it, from which it could be renamed."""
    path = str(tmp_path / "socket")
    path += "x" * (107 - len(path))
    first = start_proxy(farm.backend("standalone"), "reuse-port yes", "unixsocket " + path)
    with connect(path) as c:
        assert c("PING") == "PONG"
    second = other_process(first)
    first.stop()
    with connect(path) as c:
        assert c("PING") == "PONG"
    second.stop()
    second.remove()
    assert not os.path.exists(path)


def test_a_stop_without_another_process_is_short(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), "reuse-port yes", "threads 2")
    idle = connect(proxy)
    assert idle("PING") == "PONG"
    proxy.signal(signal.SIGTERM)
    ended(proxy, 5)
    assert "another process" not in proxy.log()


def test_the_bound_of_a_leave(farm, start_proxy, connect):
    proxy = start_proxy(farm.backend("standalone"), "shutdown-timeout 2")
    idle = connect(proxy)
    assert idle("PING") == "PONG"
    proxy.expected = False
    told = time.monotonic()
    proxy.signal(signal.SIGQUIT)
    until(lambda: "no new clients" in proxy.log(), 10, "the signal's work")
    assert idle("PING") == "PONG"
    with pytest.raises(Closed):
        idle.read()
    assert time.monotonic() - told >= 2, "clients are served for the whole of shutdown-timeout"
    ended(proxy, 10)
    assert "still connected after shutdown-timeout: 1." in proxy.log()


def test_signals_upon_a_leave(farm, start_proxy, connect):
    """It becomes a stop; upon which a further one ends it at once."""
    proxy = start_proxy(farm.backend("standalone"))
    idle = connect(proxy)
    assert idle("PING") == "PONG"
    proxy.expected = False
    proxy.signal(signal.SIGQUIT)
    until(lambda: "no new clients" in proxy.log(), 10, "the signal's work")
    proxy.signal(signal.SIGQUIT)
    assert idle("SETNX", "lock:leaving", "1") == 1
    proxy.signal(signal.SIGTERM)
    ended(proxy)
    assert "Leases that got a last expiry, for the proxy that their owners connect to next: 1" in proxy.log()


def test_the_second_of_two_signals_to_stop(farm, start_proxy, connect):
    before = start_proxy(farm.backend("standalone"), "reuse-port yes")
    idle = connect(before)
    assert idle("PING") == "PONG"
    after = other_process(before)
    try:
        before.expected = False
        before.signal(signal.SIGTERM)
        until(lambda: "Clients are served until they leave" in before.log(), 10, "the signal's work")
        assert idle("PING") == "PONG"
        before.signal(signal.SIGTERM)
        ended(before)
        assert "at once by a second signal" in before.log()
    finally:
        after.stop()
        after.remove()


# ---- one starts the next ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_it_starts_the_next_itself(farm, start_proxy, crowd, orphans, tmp_path, threads):
    admin = free_port()
    before = start_proxy(farm.backend("standalone"), "threads %d" % threads, "admin-port %d" % admin, "pidfile %s/pid" % tmp_path,
                         *RULES)
    people = crowd(before.address)
    after = take_over(before, orphans)
    people.goes_on(LONGER_THAN_A_STOP)
    assert b"lockkeeper" in fetch(admin, "/metrics") and fetch(admin, "/readyz")
    assert (tmp_path / "pid").read_text() == "%d\n" % after.pid
    people.go()
    ended(before)
    people.stop()
    third = take_over(after, orphans, 2)
    until(after.over, 10, "the end of who has no clients")
    with Client(before.address) as c:
        assert "process_id:%d\r" % third.pid in c("PROXY", "INFO", "proxy")
    assert fetch(admin, "/readyz")


@pytest.mark.parametrize("way", ["unix", "tls"])
def test_other_sockets_go_along(farm, start_proxy, certificates, crowd, orphans, connect, tmp_path, way):
    path, tls_port = str(tmp_path / "socket"), free_port()
    lines = certificates.server_lines(tls_port) if way == "tls" else ["unixsocket " + path]
    before = start_proxy(farm.backend("standalone"), *lines, *RULES)
    people = crowd((HOST, tls_port), tls=certificates) if way == "tls" else crowd(path)
    after = take_over(before, orphans)
    people.goes_on(3)
    people.go()
    ended(before)
    people.stop()
    if way == "unix":
        assert connect(path)("PING") == "PONG", "who has left has not removed the file"
        after.end()
        assert not os.path.exists(path)


@pytest.mark.parametrize("threads", [(1, 3), (3, 1)])
def test_the_next_has_another_number_of_threads(farm, start_proxy, crowd, orphans, threads):
    before = start_proxy(farm.backend("standalone"), "threads %d" % threads[0], *RULES)
    people = crowd(before.address)
    change(before, "threads %d" % threads[0], "threads %d" % threads[1])
    take_over(before, orphans)
    people.goes_on(2)
    with Client(before.address) as c:
        assert "threads:%d\r" % threads[1] in c("PROXY", "INFO", "proxy")
    people.go()
    ended(before)


def change(proxy, old, new):
    with open(proxy.config) as f:
        text = f.read()
    assert old in text
    with open(proxy.config, "w") as f:
        f.write(text.replace(old, new))


def test_a_next_one_that_cannot_start_changes_nothing(farm, start_proxy, connect, orphans):
    proxy = start_proxy(farm.backend("standalone"), "threads 1", *RULES)
    client = connect(proxy)
    clients = [client]
    change(proxy, "threads 1", "threads many")
    for n in range(2):
        proxy.signal(signal.SIGUSR2)
        until(lambda: proxy.log().count("No take-over: the new process did not start") > n, 20, "the attempt's end")
        clients.append(connect(proxy))
        assert client("PING") == clients[-1]("PING") == "PONG"
    assert "threads 'many'" in proxy.log()
    change(proxy, "threads many", "threads 2")
    take_over(proxy, orphans)  # those that have failed did not get as far as to the log
    assert client("PING") == connect(proxy)("PING") == "PONG"
    for one in clients:
        one.close()
    ended(proxy)


def test_addresses_change_on_the_way(farm, start_proxy, connect, orphans, tmp_path):
    """What the new configuration does not have any more is closed; a unix socket's file goes, too."""
    old, new, port = str(tmp_path / "old"), str(tmp_path / "new"), free_port()
    proxy = start_proxy(farm.backend("standalone"), "unixsocket " + old)
    client = connect(old)
    assert client("PING") == "PONG"
    change(proxy, "port %d" % proxy.port, "port %d" % port)
    change(proxy, "unixsocket " + old, "unixsocket " + new)
    take_over(proxy, orphans)
    assert connect(new)("PING") == connect((HOST, port))("PING") == client("PING") == "PONG"
    client.close()
    ended(proxy)
    assert not os.path.exists(old)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, 5)


def refused_take_over(proxy, why, times=1):
    """Asks for a take-over, which the new process or this one refuses, and awaits the end of the attempt."""
    proxy.signal(signal.SIGUSR2)
    until(lambda: len(re.findall("No take-over: .*, and this (?:one|process) goes on", proxy.log())) == times, 30, "the attempt's end")
    assert why in proxy.log(), proxy.log()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_next_one_with_another_redis_is_refused(farm, start_proxy, start_redis, connect, backend, key, threads):
    """Two processes would give out one lock: at one Redis each."""
    proxy = start_proxy(backend, "threads %d" % threads, *RULES)
    client, other, name = connect(proxy), start_redis(), key("lock:split")
    assert client("SET", name, "1", "NX", "PX", "60000") == "OK"
    change(proxy, "upstream " + backend.upstream(), "upstream " + other.upstream())
    refused_take_over(proxy, "No take-over: the upstream is another Redis")
    late = connect(proxy)
    assert late("SET", name, "2", "NX", "PX", "60000") is None and client("DEL", name) == 1
    with other.client() as direct:
        assert direct("DBSIZE") == 0, "the refused process served no client"


@pytest.mark.parametrize("threads", [1, 3])
def test_a_next_one_switches_to_another_redis(farm, start_proxy, start_redis, connect, orphans, key, threads):
    """Told to, the process lets its clients go, and the next one gives out a lock once the longest lease is over."""
    old, other, name = start_redis(), start_redis(), key("lock:split")
    proxy = start_proxy(old, "threads %d" % threads, *RULES)
    holder = connect(proxy)
    assert holder("SET", name, "1", "NX", "PX", "9000") == "OK"
    change(proxy, "upstream " + old.upstream(), "take-over switch\nupstream " + other.upstream())
    proxy.signal(signal.SIGUSR2)
    until(lambda: "takes over at another Redis" in proxy.log(), 30, "the take-over")
    with pytest.raises((Closed, OSError)):
        holder.read()
    ended(proxy, 20)
    orphans.append(Heir(proxy))
    late, rival = connect(proxy, timeout=30), connect(proxy, timeout=30)
    assert late("GET", "k") is None, "reads are served"
    late.send(encode("SET", name, "2", "NX", "PX", "60000"))
    rival.send(encode("DEL", name + "other"))
    assert late.read() == "OK" and rival.read() == 0
    assert old.run("EXISTS", name) == 0, "the lease was over before the next one"
    assert other.run("GET", name) == "2"


def test_no_switch_while_a_lease_has_no_end(start_proxy, start_redis, connect, key):
    old, other, name = start_redis(), start_redis(), key("lock:endless")
    proxy = start_proxy(old, "lock lock:* lease 0")
    holder = connect(proxy)
    assert holder("SETNX", name, "1") == 1
    change(proxy, "upstream " + old.upstream(), "take-over switch\nupstream " + other.upstream())
    refused_take_over(proxy, "a lease here has no end")
    assert holder("DEL", name) == 1


def test_no_switch_while_an_earlier_process_is_there(start_proxy, start_redis, connect, orphans, key):
    """Its clients still hold locks of the old Redis."""
    old, other, name = start_redis(), start_redis(), key("lock:early")
    proxy = start_proxy(old, *RULES)
    holder = connect(proxy)
    assert holder("SETNX", name, "1") == 1
    after = take_over(proxy, orphans)
    change(proxy, "upstream " + old.upstream(), "take-over switch\nupstream " + other.upstream())
    after.signal(signal.SIGUSR2)
    until(lambda: "an earlier process has not ended yet, and this process goes on" in proxy.log(), 30, "the refusal")
    assert holder("DEL", name) == 1
    holder.close()
    ended(proxy)


def test_a_next_one_with_the_same_redis_by_another_name(farm, start_proxy, connect, orphans):
    redis = farm.backend("standalone")
    proxy = start_proxy(redis, *RULES)
    change(proxy, "upstream " + redis.upstream(), "upstream standalone localhost:%d" % redis.port)
    take_over(proxy, orphans)
    with Client(proxy.address) as client:
        assert client("PING") == "PONG"
    ended(proxy)


def test_no_take_over_where_redis_cannot_be_asked(start_proxy, start_redis, connect, orphans):
    redis = start_redis()
    proxy = start_proxy(redis, "upstream-timeout 1s", *RULES)
    client = connect(proxy)
    with redis.client() as direct:
        direct("CONFIG", "SET", "min-replicas-to-write", "1")
        refused_take_over(proxy, "Redis does not take the mark by which the new process knows it")
        assert "NOREPLICAS" in proxy.log()
        direct("CONFIG", "SET", "min-replicas-to-write", "0")
    redis.kill()
    refused_take_over(proxy, "UPSTREAM", 2)
    redis.start()
    with redis.client() as direct:
        direct("CONFIG", "SET", "min-replicas-to-write", "1")
        for refused in range(3, 60):
            refused_take_over(proxy, "Redis does not take the mark by which the new process knows it", refused)
            if proxy.log().count("NOREPLICAS") == 2:  # the first thread has a connection again
                break
        direct("CONFIG", "SET", "min-replicas-to-write", "0")
        # the new process's user has no right to read the mark
        direct("ACL", "SETUSER", "poor", "on", ">pw", "+@all", "~lock:*")
    change(proxy, "lock lock:*", "upstream-user poor\nupstream-password pw\nlock lock:*")
    refused_take_over(proxy, "whether the upstream is the same Redis can't be asked: NOPERM", refused + 1)
    change(proxy, "upstream-user poor\nupstream-password pw\n", "")
    client.close()


def test_a_take_over_without_a_right_to_mark(start_proxy, start_redis, orphans):
    """The processes cannot be compared, and the log says so."""
    redis = start_redis()
    with redis.client() as direct:
        direct("ACL", "SETUSER", "poor", "on", ">pw", "+@all", "~lock:*")
    proxy = start_proxy(redis, "upstream-user poor", "upstream-password pw", *RULES)
    take_over(proxy, orphans)
    assert "whether the new process serves the same Redis is not known" in proxy.log()
    ended(proxy)


def test_an_embedded_redis_is_not_taken_over(start_proxy, connect):
    proxy = start_proxy("embedded")
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    proxy.signal(signal.SIGUSR2)
    until(lambda: "No take-over: the embedded servers end" in proxy.log(), 10, "the refusal")
    assert client("GET", "k") == "v"


def test_the_next_process_says_what_the_other_one_has(farm, start_proxy, connect, orphans, key):
    """Two clients with three leases stay at the process that leaves. Each page of the next process says so until they leave."""
    admin = free_port()
    proxy = start_proxy(farm.backend("standalone"), "threads 2", "admin-port %d" % admin, *RULES)
    stay = [connect(proxy, commands=[("CLIENT", "SETNAME", "stay%d" % n)]) for n in range(2)]
    locks = [key("lock:%d" % n) for n in range(3)]
    for n, lock in enumerate(locks):
        assert stay[n % 2]("SETNX", lock, "1") == 1
    after = take_over(proxy, orphans)
    with Client(proxy.address) as client:
        def has(clients, leases):
            page = client("PROXY", "INFO")
            return "predecessor_clients:%d\r" % clients in page and "predecessor_leases:%d\r" % leases in page

        assert "process_id:%d\r" % after.pid in client("PROXY", "INFO", "proxy")
        until(lambda: has(2, 3), 20, "the numbers")
        assert "predecessor_pid:%d\r" % proxy.process.pid in client("PROXY", "INFO")
        mine, told = client("CLIENT", "LIST").splitlines()
        assert told == "id=0 addr=process-%d:0 name=clients-of-the-process-that-leaves clients=2 leases=3" % proxy.process.pid
        assert client("CLIENT", "LIST", "TYPE", "normal").splitlines()[1:] == []
        row, = client("PROXY", "LOCKS")
        facts = dict(zip(row[::2], row[1::2]))
        assert facts["key"] == "" and "has 3 more leases and 2 clients" in facts["owner"]
        assert b"lockkeeper_predecessor_leases 3" in fetch(admin, "/metrics")
        assert json.loads(fetch(admin, "/status.json"))["figures"]["predecessor_clients"] == "2"
        stay[0].close()
        until(lambda: has(1, 1), 20, "the numbers without a client and its leases")
        assert client("SETNX", key("lock:new"), "1") == 1 and len(client("PROXY", "LOCKS")) == 2
        assert stay[1]("DEL", locks[1]) == 1
        until(lambda: has(1, 0), 20, "the numbers without a lease")
        stay[1].close()
        ended(proxy, 20)
        until(lambda: has(0, 0), 20, "no numbers")
        assert client("CLIENT", "LIST").count("\n") == 1 and len(client("PROXY", "LOCKS")) == 1


def test_who_comes_back_at_the_next_process(farm, start_proxy, connect, orphans, key):
    """A connection that is cut while its process leaves: its lock is kept and renewed for it by the next one."""
    backend, name = farm.backend("standalone"), key("lock:back")
    proxy = start_proxy(backend, *RULES)
    stays = connect(proxy)
    holder = connect(proxy, commands=[("CLIENT", "SETNAME", "holder")])
    assert holder("SETNX", name, "mine") == 1
    take_over(proxy, orphans)
    rival = connect(proxy, commands=[("CLIENT", "SETNAME", "rival")])
    until(lambda: "locks_evictable:no" in rival("PROXY", "INFO", "upstreams"), 20, "the next one's first look around")
    holder.close()
    holder = connect(proxy, commands=[("CLIENT", "SETNAME", "holder")])
    until_then = time.monotonic() + 4 * LEASE
    while time.monotonic() < until_then:
        assert rival("SETNX", name, "rival") == 0
        time.sleep(0.05)
    assert holder("DEL", name) == 1
    assert stays("PING") == "PONG"
    stays.close()
    ended(proxy)


# ---- systemd ----------------------------------------------------------------------------------------------------------

# What systemd does between fork and exec.
ACTIVATE = """import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[1], sys.argv[1:])"""


class Manager:
    """systemd, as a service with sockets sees it: keeps the sockets, passes them to each started process, and reads what its
    main process reports."""

    def __init__(self, folder):
        self.sockets, self.processes, self.heard = [], [], []
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(folder / "notify"))
        self.notify.setblocking(False)
        self.folder = folder

    def listen(self):
        s = socket.create_server((HOST, 0), backlog=512)
        self.sockets.append(s)
        return s.getsockname()

    def start(self, backend, *lines):
        """Starts the service; its configuration names another port, which must not be opened."""
        config = self.folder / "lockkeeper.conf"
        config.write_text("\n".join(["port 1", "upstream " + backend.upstream(), "supervised systemd", *lines]) + "\n")
        env = dict(servers.proxy_environment(), LISTEN_FDS=str(len(self.sockets)), NOTIFY_SOCKET=self.notify.getsockname())
        process = subprocess.Popen([sys.executable, "-c", ACTIVATE, servers.binary(), str(config)], env=env,
                                   stdin=subprocess.DEVNULL, stdout=open(self.folder / "log", "ab"), stderr=subprocess.STDOUT,
                                   pass_fds=range(3, 3 + len(self.sockets)), preexec_fn=self.place)
        self.processes.append(process)
        return process

    def place(self):
        copies = [os.dup2(s.fileno(), 100 + n) for n, s in enumerate(self.sockets)]
        for n, copy in enumerate(copies):
            os.dup2(copy, 3 + n)

    def log(self):
        return (self.folder / "log").read_text()

    def said(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(self.notify.recv(4096).decode())
        return self.heard

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            assert process.wait(30) == 0, self.log()[-4000:]
        for s in self.sockets:
            s.close()
        self.notify.close()
        assert not servers.REPORT.search(self.log()), self.log()[-6000:]


@pytest.fixture
def manager(tmp_path, orphans):
    manager = Manager(tmp_path)
    yield manager
    for proxy in orphans:
        proxy.end()
    orphans.clear()
    manager.stop()


@pytest.mark.parametrize("threads", [1, 2])
def test_systemds_sockets_and_a_take_over(farm, manager, crowd, orphans, threads):
    address = manager.listen()
    before = manager.start(farm.backend("standalone"), "threads %d" % threads, *RULES)
    people = crowd(address)  # it waits in the socket until a process accepts
    until(lambda: "READY=1" in manager.said(), 10, "its readiness")
    people.goes_on(0.5)
    before.send_signal(signal.SIGUSR2)
    after = Successor(manager)
    orphans.append(after)
    until(lambda: "MAINPID=%d\nREADY=1" % after.pid in manager.said(), 10, "the new main process")
    assert [s.split("\n")[0] for s in manager.said()[:2]] == ["READY=1", "RELOADING=1"]
    people.goes_on(LONGER_THAN_A_STOP)
    people.go()
    assert before.wait(5) == 0
    people.stop()
    assert not [s for s in manager.said() if "STOPPING" in s], "its service goes on"


def test_systemds_sockets_and_a_restart(farm, manager, connect):
    """A client that connects in between waits, and is served by the next process."""
    address = manager.listen()
    second = manager.listen()
    before = manager.start(farm.backend("standalone"))
    until(lambda: "READY=1" in manager.said(), 10, "its readiness")
    before.send_signal(signal.SIGHUP)
    until(lambda: [s.split("\n")[0] for s in manager.said()] == ["READY=1", "RELOADING=1", "READY=1"], 10, "the reload")
    assert connect(address)("PING") == connect(second)("PING") == "PONG"
    before.terminate()
    assert before.wait(10) == 0 and "STOPPING=1\nEXTEND_TIMEOUT_USEC=15000000" in manager.said()
    waiting = connect(address)
    after = manager.start(farm.backend("standalone"))
    assert waiting("PING") == "PONG"
    assert "127.0.0.1:%d, 127.0.0.1:%d" % (address[1], second[1]) in manager.log()
    after.terminate()
    assert after.wait(10) == 0
    assert manager.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def test_two_processes_with_systemds_sockets(farm, manager, crowd):
    address = manager.listen()
    before = manager.start(farm.backend("standalone"), *RULES)
    people = crowd(address)
    after = manager.start(farm.backend("standalone"), *RULES)
    until(lambda: manager.log().count("Ready to accept") == 2, 30, "the second's readiness")
    before.send_signal(signal.SIGQUIT)
    people.goes_on(3)
    people.go()
    people.stop()
    assert before.wait(5) == 0 and after.poll() is None
