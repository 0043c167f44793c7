"""Processes that the tests need: Redis servers, a Redis Cluster, and the proxy itself.

Each lives in its own temporary folder on ports of its own, and is stopped by the id of the process that was
started here. Nothing waits for a time: `until` waits for a condition, with a deadline.
"""

import binascii
import collections
import fcntl
import functools
import itertools
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from resp import Client, Closed, Error

HOST = "127.0.0.1"
# What the proxy stands before: redis-server, valkey-server, or the path of one.
REDIS_SERVER = os.environ.get("REDIS_SERVER") or "redis-server"
SLOTS = 16384
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REPORT = re.compile(r"(AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehaviorSanitizer|runtime error:"
                    r"|Assertion .* failed"
                    r"|(?m:^==\d+== (Invalid |Conditional jump |Use of uninit|Syscall param |Source and dest|.* definitely lost)))")


@functools.lru_cache(None)
def valkey():
    """Whether the server is Valkey, which differs from Redis in little that tests look at."""
    return subprocess.run([REDIS_SERVER, "--version"], capture_output=True, text=True).stdout.startswith("Valkey")


def until(condition, timeout=15.0, what="the condition", pause=0.01):
    """Polls until `condition()` is true and returns what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s did not come true within %.1f s" % (what, timeout))
        time.sleep(pause)


class Ports:
    """TCP ports below the range of ephemeral ports. Each is reserved for a while against other tests that use this function:
    until its server starts, or for as long as a test needs a port without a listener."""

    KEPT = 200

    def __init__(self):
        self.random = random.Random(os.getpid() ^ time.time_ns())
        self.locks = os.open(os.path.join(tempfile.gettempdir(), "lockkeeper-ports-%d" % os.getuid()), os.O_RDWR | os.O_CREAT, 0o600)
        self.kept = collections.deque()

    def take(self):
        while True:
            port = self.random.randrange(15000, 31000)
            if port in self.kept:
                continue
            try:
                fcntl.lockf(self.locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)  # byte by byte; gone with the process
            except OSError:
                continue
            self.kept.append(port)
            if len(self.kept) > self.KEPT:
                fcntl.lockf(self.locks, fcntl.LOCK_UN, 1, self.kept.popleft())
            with socket.socket() as probe:
                try:
                    probe.bind((HOST, port))
                    return port
                except OSError:
                    continue


_ports = Ports()


def free_port():
    """A TCP port without a listener."""
    return _ports.take()


def slot_of(key):
    if isinstance(key, str):
        key = key.encode("utf-8", "surrogateescape")
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


def address_text(address):
    return "unix:" + address if isinstance(address, str) else "%s:%d" % address


def tail(path, lines=25):
    try:
        with open(path, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - 65536))
            return "\n".join(f.read().decode("utf-8", "replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)


class Process:
    """A child process with a folder and a log."""

    def __init__(self, name):
        self.name = name
        self.folder = tempfile.mkdtemp(prefix="lockkeeper-%s-" % name)
        self.log_path = os.path.join(self.folder, "log")
        self.process = None

    def spawn(self, command, env=None):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            cwd=self.folder)

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def log(self):
        with open(self.log_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def kill(self):
        if self.running():
            self.process.kill()
        if self.process is not None:
            self.process.wait(20)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- Redis ------------------------------------------------------------------------------------


class RedisServer(Process):
    """One redis-server. As a backend it is 'standalone'."""

    kind = "standalone"
    host = HOST
    before = ()  # words in front of its command line

    def __init__(self, *options, cluster=False, port=None, tls=None):
        super().__init__("redis")
        self.tls = tls  # Certificates: it has a TLS port too, which is the one for proxies
        self.options = list(options)
        self.cluster = cluster
        self.password = options[options.index("--requirepass") + 1] if "--requirepass" in options else None
        for attempt in itertools.count():
            self.port = port or free_port()
            self.bus = free_port()
            self.tls_port = free_port() if tls else None
            try:
                self.start()
                break
            except AssertionError:  # another process took the port in between
                self.kill()
                if attempt == 3:
                    raise
        self.address = (self.host, self.port)

    def start(self):
        command = [*self.before, REDIS_SERVER, "--port", str(self.port), "--bind", self.host, "--save", "", "--appendonly", "no",
                   "--dir", self.folder, "--daemonize", "no", "--maxclients", "4000", "--tcp-backlog", "2000"]
        if self.cluster:
            command += ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port",
                        str(self.bus)]
        if self.tls:
            command += self.tls.redis_options(self.tls_port)
        self.spawn(command + self.options)
        until(self.answers, 20, "redis-server on port %d" % self.port)

    def start_slowly(self):
        """Starts it with a load of its dump that takes about a second for 3000 keys, in a thread that ends with the
        load; until then it answers with LOADING."""
        self.options += ["--key-load-delay", "200", "--loading-process-events-interval-bytes", "1024"]
        starting = threading.Thread(target=self.start)
        starting.start()
        return starting

    def answers(self):
        assert self.running(), "redis-server ended:\n" + tail(self.log_path)
        try:
            with Client((self.host, self.port), timeout=5) as c:
                reply = c("PING")
                return reply == "PONG" or str(reply).startswith("NOAUTH")
        except (OSError, Closed):  # Closed: another process has the port, and this server will fail.
            return False

    def client(self, **options):
        c = Client(self.address, **options)
        if self.password:
            assert c("AUTH", self.password) == "OK"
        return c

    def run(self, *args):
        """One command on a connection of its own; an error is the test's failure."""
        with self.client() as c:
            reply = c(*args)
            assert not isinstance(reply, Error), (args, reply)
            return reply

    def owner(self, slot):
        """The port of the master of a slot, as this node sees it."""
        return next((e[2][1] for e in self.run("CLUSTER", "SLOTS") if e[0] <= slot <= e[1]), None)

    def is_replica(self):
        """Whether it is one now. A server that is being made one drops its clients."""
        try:
            return self.run("ROLE")[0] == "slave"
        except (Closed, OSError):
            return False

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def restart(self):
        """Starts it again, on the same port."""
        self.kill()
        self.start()

    def stop(self):
        if self.running():
            self.signal(signal.SIGCONT)
        self.kill()
        self.remove()

    # ---- as a backend

    @property
    def nodes(self):
        return [self]

    def upstream_address(self):
        return address_text((self.host, self.tls_port or self.port))

    def upstream(self):
        return "standalone " + self.upstream_address()

    def node_of(self, key):
        return self

    def direct(self, **options):
        return self.client(**options)

    def flush(self):
        self.run("FLUSHALL")

    def keys(self):
        return sorted(self.run("KEYS", "*"))


class RedisCluster:
    """Three masters, each with a third of the slots. Only the first may have a replica."""

    kind = "cluster"

    def __init__(self, *options, timeout_ms=3000, make=RedisServer, replica=False):
        self.nodes = []
        self.replica = None
        options = ("--cluster-node-timeout", str(timeout_ms), "--cluster-require-full-coverage", "no",
                   "--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0", *options)
        try:
            for _ in range(3):
                self.nodes.append(make(*options, cluster=True))
            if replica:
                self.replica = make(*options, cluster=True)
            self.ranges = [(0, 5460), (5461, 10922), (10923, SLOTS - 1)]
            for epoch, (node, (first, last)) in enumerate(zip(self.nodes, self.ranges), 1):
                node.run("CLUSTER", "SET-CONFIG-EPOCH", epoch)
                node.run("CLUSTER", "ADDSLOTSRANGE", first, last)
            for a, b in itertools.combinations(self.nodes, 2):
                a.run("CLUSTER", "MEET", b.host, b.tls_port or b.port, b.bus)
            if replica:
                self.nodes[0].run("CLUSTER", "MEET", self.replica.host, self.replica.port, self.replica.bus)
            until(self.agreed, 40, "the cluster's agreement on its nodes and slots", 0.05)
            if replica:
                self.follow(self.replica, self.nodes[0])
        except BaseException:
            self.stop()
            raise

    def follow(self, replica, master):
        """Makes one the other's replica, and waits until it could be promoted."""
        until(lambda: master.run("CLUSTER", "MYID") in replica.run("CLUSTER", "NODES"), 20, "the replica's knowledge")
        if "role:slave" not in replica.run("INFO", "replication"):
            replica.run("CLUSTER", "REPLICATE", master.run("CLUSTER", "MYID"))
        until(lambda: "master_link_status:up" in replica.run("INFO", "replication"), 20, "the replica's link", 0.05)
        until(lambda: all("slave " + master.run("CLUSTER", "MYID") in n.run("CLUSTER", "NODES") for n in self.nodes), 20,
              "the others' knowledge of the replica", 0.05)

    def agreed(self):
        """Every node serves, knows every other one, and has the same owner for every slot."""
        views = set()
        for node in self.nodes:
            info = node.run("CLUSTER", "INFO")
            if "cluster_state:ok" not in info or "cluster_slots_ok:16384" not in info:
                return False
            if "handshake" in node.run("CLUSTER", "NODES"):
                return False
            slots = node.run("CLUSTER", "SLOTS")
            views.add(tuple(sorted((s[0], s[1], s[2][1]) for s in slots)))
        return len(views) == 1 and len(next(iter(views))) >= len(self.nodes)

    def upstream(self):
        return "cluster " + " ".join(n.upstream_address() for n in self.nodes)

    def owner_of(self, slot):
        for entry in self.nodes[0].run("CLUSTER", "SLOTS"):
            if entry[0] <= slot <= entry[1]:
                return next(n for n in self.nodes if n.port == entry[2][1])
        raise AssertionError("slot %d has no owner" % slot)

    def node_of(self, key):
        slot = slot_of(key)
        return next(n for n, (first, last) in zip(self.nodes, self.ranges) if first <= slot <= last)

    def direct(self, **options):
        return DirectCluster(self, **options)

    def flush(self):
        for node in self.nodes:
            node.run("FLUSHALL")

    def keys(self):
        return sorted(key for node in self.nodes for key in node.run("KEYS", "*"))

    def stop(self):
        for node in [*self.nodes, *([self.replica] if self.replica else [])]:
            node.stop()


class DirectCluster:
    """What a simple cluster client does: the connection of the node that has the command's first key."""

    def __init__(self, cluster, **options):
        self.cluster = cluster
        self.options = options
        self.clients = {}

    def node(self, node):
        if node not in self.clients:
            self.clients[node] = node.client(**self.options)
        return self.clients[node]

    def __call__(self, *args):
        at = 3 if str(args[0]).upper() in ("EVAL", "EVALSHA", "FCALL") else 1
        node = self.cluster.node_of(args[at]) if len(args) > at else self.cluster.nodes[0]
        return self.node(node)(*args)

    def close(self):
        for client in self.clients.values():
            client.close()


class RedisSentinels:
    """A master, a replica, and Sentinels that watch them, quicker than they would by themselves."""

    kind = "sentinel"
    name = "mymaster"

    def __init__(self, *options, replicas=1, sentinels=3, sentinel_lines=(), ports=(), make=RedisServer, patience_ms=1000):
        self.sentinels = []
        self.nodes = []
        try:
            self.nodes = [make(*options, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
                          for _ in range(1 + replicas)]
            master = self.nodes[0]
            for replica in self.nodes[1:]:
                replica.run("REPLICAOF", master.host, master.port)
            lines = ["sentinel monitor %s %s %d %d" % (self.name, master.host, master.port, sentinels // 2 + 1),
                     "sentinel announce-ip " + HOST,
                     "sentinel down-after-milliseconds %s %d" % (self.name, patience_ms),
                     "sentinel failover-timeout %s 2000" % self.name, *sentinel_lines]
            if master.password:
                lines.append("sentinel auth-pass %s %s" % (self.name, master.password))
            self.sentinels = [Sentinel(*lines, port=port) for port in ports or [None] * sentinels]
            until(self.agreed, 30, "the Sentinels' agreement", 0.05)
        except BaseException:
            self.stop()
            raise

    def agreed(self):
        """Each Sentinel knows the others and the replicas, which have the master's data."""
        for sentinel in self.sentinels:
            state = sentinel.master(self.name)
            if (state["flags"], state["num-other-sentinels"], state["num-slaves"]) != (
                    "master", str(len(self.sentinels) - 1), str(len(self.nodes) - 1)):
                return False
        try:
            roles = [node.run("ROLE") for node in self.nodes]
        except (OSError, Closed):  # a Sentinel that changes a node's role closes all its connections
            return False
        return len([r for r in roles if r[0] == "master"]) == 1 and all(r[3] == "connected" for r in roles
                                                                      if r[0] == "slave")

    def upstream(self):
        return "sentinel %s %s" % (self.name, " ".join(address_text(s.address) for s in self.sentinels))

    @property
    def master(self):
        """The node that the Sentinels name."""
        port = int(self.sentinels[0].run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1])
        return next(n for n in self.nodes if n.port == port)

    def failover(self, old):
        """Asks for one, again where a Sentinel has given it up."""
        return self.await_switch(old, ask=True)

    def await_switch(self, old, ask=False):
        """The node that all running Sentinels name, once it is another one than `old` and knows it."""
        def switched():
            if ask:
                with self.sentinels[0].client() as c:
                    if int(c("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1]) == old.port:
                        c("SENTINEL", "FAILOVER", self.name)
            named = {int(s.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1])
                     for s in self.sentinels if s.running()}
            if len(named) != 1 or old.port in named:
                return None
            node = next(n for n in self.nodes if n.port in named)
            try:
                return node if node.run("ROLE")[0] == "master" else None
            except (OSError, Closed):
                return None

        return until(switched, 120, "the failover", 0.05)

    def stop(self):
        for server in [*self.sentinels, *self.nodes]:
            server.stop()


class Sentinel(RedisServer):
    def __init__(self, *lines, port=None):
        self.lines = lines
        super().__init__(port=port)
        self.password = next((line.split()[1] for line in lines if line.startswith("requirepass")), None)
        self.run("SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PING-PERIOD", "100", "ASK-PERIOD", "100",
                 "PUBLISH-PERIOD", "200", "ELECTION-TIMEOUT", "2000")

    def start(self):
        path = os.path.join(self.folder, "sentinel.conf")
        if not os.path.exists(path):  # it writes there what it learns
            with open(path, "w") as f:
                f.writelines(line + "\n" for line in ["port %d" % self.port, "bind " + HOST, "dir " + self.folder,
                                                       *self.lines])
        self.spawn([REDIS_SERVER, path, "--sentinel"])
        until(self.answers, 20, "Sentinel on port %d" % self.port)

    def master(self, name):
        fields = self.run("SENTINEL", "MASTER", name)
        return dict(zip(fields[0::2], fields[1::2]))


# ---- the proxy --------------------------------------------------------------------------------


def binary():
    path = os.environ.get("LOCKKEEPER") or os.path.join(ROOT, "build", "lockkeeper")
    assert os.access(path, os.X_OK), "no proxy at %s: build it, or say where it is with LOCKKEEPER" % path
    return os.path.abspath(path)


def under():
    """The words of a tool that the proxy is to run under: LOCKKEEPER_UNDER, "valgrind -q ..."."""
    return shlex.split(os.environ.get("LOCKKEEPER_UNDER", ""))


def memory_is_a_tool_s():
    """Whether the proxy's memory says nothing of the proxy."""
    with open(binary(), "rb") as f:
        return bool(under()) or b"libtsan.so" in f.read()


def proxy_environment(measured=False):
    """`measured`: memory is looked at, so what was freed is not kept for AddressSanitizer to look at."""
    env = dict(os.environ)
    env["ASAN_OPTIONS"] = "detect_leaks=1:exitcode=99:allocator_may_return_null=1"
    if measured:
        env["ASAN_OPTIONS"] += ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0:allocator_release_to_os_interval_ms=0"
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:exitcode=98"
    env["TSAN_OPTIONS"] = "exitcode=97:report_thread_leaks=0"  # a second signal ends it at once, with its threads
    env["TSAN_OPTIONS"] += ":suppressions=" + os.path.join(os.path.dirname(os.path.abspath(__file__)), "tsan.supp")
    return env


RECORDS = os.environ.get("LOCKKEEPER_RECORDS")  # the form of guard records where a test does not say which


def is_watermark(key):
    """Whether a key is the watermark of a slot (scripts/lua/text.lua), which is named as if it were a guard record."""
    return re.fullmatch(r"lockkeeper:({[^}]*}):\1", key) is not None


def guard_record(direct, key):
    """The fields of a guard record, in whichever form it is."""
    if direct("TYPE", key) != "string":
        return dict(zip(*[iter(direct("HGETALL", key))] * 2))
    version, token, rest = direct("GET", key).split("\n", 2)
    value, fence, leased, owner = rest.rsplit("\n", 3)
    assert version == "1"
    return {"token": token, "value": value, "fence": fence, "leased": fence if leased else "", "owner": owner,
            "kind": "string", "proxy": token[:36], "since": fence[:-3]}


class Proxy(Process):
    """The program under test, in front of a backend (or of any upstream line). LOCKKEEPER says which program it is,
    LOCKKEEPER_UNDER what it runs under, LOCKKEEPER_THREADS how many threads it has and LOCKKEEPER_RECORDS the form of
    guard records where a test does not."""

    started = []  # all that were started and not removed yet
    measured = False
    told = 0  # characters of the log whose report has failed a test
    before = ()  # words in front of its command line

    def __init__(self, upstream, *lines, args=(), wait=True, measured=False, before=()):
        super().__init__("proxy")
        self.before = before
        self.measured = measured
        if not isinstance(upstream, str):
            upstream = upstream.upstream()
        self.expected = True  # to be running
        for attempt in itertools.count():
            self.port = free_port()
            self.address = (HOST, self.port)
            self.write_config(["upstream " + upstream, *lines])
            self.launch(args)
            if not wait:
                return
            try:
                self.await_ready()
                return
            except AssertionError:
                if attempt == 2 or "in use" not in self.log():
                    raise

    def write_config(self, lines):
        self.config = os.path.join(self.folder, "lockkeeper.conf")
        threads = os.environ.get("LOCKKEEPER_THREADS")
        if threads and not any(line.split()[:1] == ["threads"] for line in lines):
            lines = [*lines, "threads " + threads]
        if RECORDS and not any(line.split()[:1] == ["guard-records"] for line in lines):
            lines = [*lines, "guard-records " + RECORDS]
        with open(self.config, "w") as f:
            f.write("bind %s\nport %d\n" % (HOST, self.port))
            f.writelines(line + "\n" for line in lines)

    def launch(self, args=()):
        self.spawn([*self.before, *under(), binary(), self.config, *args], proxy_environment(self.measured))
        self.expected = True
        if self not in Proxy.started:
            Proxy.started.append(self)

    def await_ready(self, timeout=30):
        timeout *= 5 if under() else 1

        def ready():
            assert self.running(), "the proxy ended with %s:\n%s" % (self.process.returncode, tail(self.log_path))
            return "Ready to accept connections" in self.log()

        until(ready, timeout, "the proxy's 'Ready to accept connections'")

    def client(self, **options):
        return Client(self.address, **options)

    def await_alone(self):
        """Waits until no clients of earlier tests are connected. Several threads see them leave in any order. As long as one
        connection of a client identity exists, what was learnt of the identity stays."""
        with self.client() as c:
            c("CLIENT", "SETNAME", "await-alone")  # another identity
            try:
                until(lambda: "clients_connected:1\r" in c("PROXY", "INFO", "clients"), 2)
            except AssertionError:  # a test's own, of its module
                pass

    def check(self):
        """Fails if it crashed, or if a sanitizer has something to say; once for each report, so that a proxy which tests
        share fails the one that has caused it."""
        gone = self.expected and not self.running()
        if gone and self in Proxy.started:
            Proxy.started.remove(self)
        self.check_report()
        assert not gone, "the proxy ended with %s:\n%s" % (self.process.returncode, tail(self.log_path))

    def check_report(self):
        text = self.log()
        report = REPORT.search(text, self.told)
        assert not report, "the proxy's log has a report:\n" + self.report_text()
        self.told = len(text)

    def report_text(self):
        """The first report that has not failed a test yet, or the end of the log; it counts as told from now on."""
        text = self.log()
        found = REPORT.search(text, self.told)
        self.told = len(text)
        start = text.rfind("\n", 0, found.start()) + 1 if found else max(0, len(text) - 6000)
        return text[start : start + 6000]

    def memory(self):
        """Resident bytes."""
        with open("/proc/%d/statm" % self.pid) as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        """A clean stop: SIGTERM, exit status 0, no leak."""
        try:
            self.expected = False
            if self.process.poll() is None:
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            try:
                status = self.process.wait(30)
            except subprocess.TimeoutExpired:
                raise AssertionError("the proxy did not stop within 30 s of SIGTERM:\n" + tail(self.log_path)) from None
            self.check_report()
            assert status == 0, "the proxy ended with %s:\n%s" % (status, tail(self.log_path))
        finally:
            self.kill()
            if self in Proxy.started:
                Proxy.started.remove(self)
