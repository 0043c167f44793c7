"""Starts, watches and stops the servers of a benchmark: Redis, a cluster of three, and the proxies before them.

Everything listens on the loopback interface, keeps its files in one temporary folder, and is stopped by its process
id. Knows nothing of what is measured.
"""
import binascii
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import threading
import time

READY_TIMEOUT = 30  # s; under valgrind a start takes seconds
KEYS = 10000  # what redis-benchmark -r KEYS asks for: key:000000000000 ...
VALUE = b"x" * 64


class Failed(Exception):
    """A peer or a measurement did not work; the text says which and why."""


given_ports = set()
given_ports_mutex = threading.Lock()


def free_port():
    """A port below the ones that the kernel gives to outgoing connections, with room for a cluster's bus above. No
    port is given twice."""
    with given_ports_mutex:
        for _ in range(1000):
            port = random.randrange(12000, 22000)
            if port in given_ports:
                continue
            try:
                for candidate in (port, port + 10000):
                    with socket.socket() as s:
                        s.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            given_ports.add(port)
            return port
    raise Failed("no free port found")


def encode(*words):
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


class Connection:
    """One blocking connection; call() returns a simple or bulk reply's text, and raises Failed for an error."""

    def __init__(self, port, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def call(self, *words):
        self.socket.sendall(encode(*words))
        return self.reply()

    def reply(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise Failed("the connection was lost")
        if line[:1] == b"-":
            raise Failed(line[1:-2].decode(errors="replace"))
        if line[:1] == b"$" and line[1:2] != b"-":
            return self.stream.read(int(line[1:]) + 2)[:-2].decode(errors="replace")
        return line[1:-2].decode(errors="replace")

    def close(self):
        self.stream.close()
        self.socket.close()


class Server:
    """One process. wrapper is a tool's command line before the server's own; with strace the server is a child."""

    def __init__(self, fleet, name, port, command, stop_signal=signal.SIGTERM, wrapper=()):
        self.name, self.port, self.stop_signal = name, port, stop_signal
        self.log = fleet.path("%s-%d.log" % (name.replace(" ", "-"), port))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*wrapper, *command], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, cwd=fleet.folder, start_new_session=True)
        self.wrapped = bool(wrapper) and os.path.basename(wrapper[0]) == "strace"
        fleet.running.append(self)
        self.fleet = fleet
        try:
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def await_ready(self):
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            try:
                probe = Connection(self.port)
                probe.call("GET", "key:000000000000")
                probe.close()
                return
            except (OSError, Failed) as error:
                # A cluster's node answers with an error before it has its slots: it is up.
                if isinstance(error, Failed) and str(error).startswith(("CLUSTERDOWN", "MOVED")):
                    return
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise Failed("%s did not start: %s; %s" % (self.name, error, self.last_line())) from error
                time.sleep(0.02)

    def last_line(self):
        with open(self.log, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    @property
    def pid(self):
        if not self.wrapped:
            return self.process.pid
        try:
            with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as f:
                return int(f.read().split()[0])
        except (OSError, IndexError):
            return self.process.pid

    def stop(self):
        if self in self.fleet.running:
            self.fleet.running.remove(self)
        for number in (self.stop_signal, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass

    def cpu_seconds(self):
        """User and system time of all threads. schedstat has the sum in nanoseconds, stat in ticks of 10 ms."""
        try:
            return sum(thread_seconds(self.pid).values())
        except FileNotFoundError:
            with open("/proc/%d/stat" % self.pid) as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self):
        """What the process alone uses of the machine's memory (PSS), or its resident set where that is not told."""
        for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
            try:
                with open("/proc/%d/%s" % (self.pid, name)) as f:
                    for line in f:
                        if line.startswith(field):
                            return int(line.split()[1]) * 1024
            except OSError:
                pass
        raise Failed("the memory of %s can't be read" % self.name)


def settled_memory(server):
    """The process's memory once two readings agree."""
    deadline = time.monotonic() + 10
    last = server.memory_bytes()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = server.memory_bytes()
        if now == last:
            return now
        last = now
    return last


class Fleet:
    """All servers of a run."""

    def __init__(self, folder, lockkeeper, bare=None):
        self.folder, self.lockkeeper, self.bare = folder, lockkeeper, bare
        self.running = []
        self.redis = None
        self.cluster = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def stop(self):
        for server in list(reversed(self.running)):
            server.stop()

    # Upstreams

    def start_redis(self, wrapper=(), name="redis", extra=()):
        port = free_port()
        folder = self.path("%s-%d" % (name, port))
        os.mkdir(folder)
        return Server(self, name, port, [
            need("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", folder, *extra], wrapper=wrapper)

    def start_upstreams(self):
        self.redis = self.start_redis()
        fill([self.redis], lambda key: self.redis)
        self.cluster = [self.start_redis(name="cluster", extra=["--cluster-enabled", "yes"]) for _ in range(3)]
        bounds = [0, 5461, 10923, 16384]
        connections = [Connection(server.port) for server in self.cluster]
        for i, connection in enumerate(connections):
            connection.call("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
            if i > 0:
                connection.call("CLUSTER", "MEET", "127.0.0.1", self.cluster[0].port)
        deadline = time.monotonic() + READY_TIMEOUT
        while any("cluster_state:ok" not in c.call("CLUSTER", "INFO") or
                  "cluster_slots_assigned:16384" not in c.call("CLUSTER", "INFO") for c in connections):
            if time.monotonic() > deadline:
                raise Failed("the cluster did not form")
            time.sleep(0.05)
        for connection in connections:
            connection.close()

        def owner(key):
            slot = binascii.crc_hqx(key, 0) % 16384
            return self.cluster[next(i for i in range(3) if slot < bounds[i + 1])]
        fill(self.cluster, owner)

    # Proxies: each returns a Server. upstream: another Redis than the fleet's, where it is measured too.

    def start_lockkeeper(self, wrapper=(), upstream=None, extra=()):
        upstream = upstream or self.redis
        return self._lockkeeper("lockkeeper", ["standalone", "127.0.0.1:%d" % upstream.port, *extra], wrapper)

    def start_lockkeeper_cluster(self, wrapper=()):
        return self._lockkeeper("lockkeeper cluster",
                                ["cluster", *("127.0.0.1:%d" % server.port for server in self.cluster)], wrapper)

    def _lockkeeper(self, name, upstream, wrapper):
        if not self.lockkeeper:
            raise Failed("lockkeeper was not built")
        port = free_port()
        return Server(self, name, port, [self.lockkeeper, "--port", str(port), "--bind", "127.0.0.1", "--upstream",
                                         *upstream], wrapper=wrapper)

    def start_nutcracker(self, wrapper=()):
        port = free_port()
        config = self.path("nutcracker-%d.yml" % port)
        with open(config, "w") as f:
            f.write("bench:\n  listen: 127.0.0.1:%d\n  redis: true\n  preconnect: true\n  hash: fnv1a_64\n"
                    "  distribution: ketama\n  auto_eject_hosts: false\n  servers:\n   - 127.0.0.1:%d:1\n"
                    % (port, self.redis.port))
        # At its default level, 5, it formats a log line for each request: twice the instructions.
        return Server(self, "nutcracker", port, [
            need("nutcracker"), "-c", config, "-a", "127.0.0.1", "-s", str(free_port()), "-v", "4",
            "-o", self.path("nutcracker-%d.out" % port)], stop_signal=signal.SIGINT, wrapper=wrapper)

    def start_haproxy(self, wrapper=()):
        port = free_port()
        config = self.path("haproxy-%d.cfg" % port)
        with open(config, "w") as f:
            f.write("global\n  nbthread 1\n  maxconn 9000\ndefaults\n  mode tcp\n  maxconn 9000\n"
                    "  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\nlisten bench\n"
                    "  bind 127.0.0.1:%d\n  server redis 127.0.0.1:%d\n" % (port, self.redis.port))
        return Server(self, "haproxy", port, [need("haproxy"), "-db", "-f", config], wrapper=wrapper)

    def start_bare(self, wrapper=()):
        if not self.bare:
            raise Failed("bare was not built")
        port = free_port()
        return Server(self, "bare", port, [self.bare, str(port), str(self.redis.port)], wrapper=wrapper)


def need(program):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if not found:
        raise Failed("%s is not installed" % program)
    return found


def median(values):
    return statistics.median(list(values))


def thread_seconds(pid):
    """CPU seconds of each thread."""
    tasks = "/proc/%d/task" % pid
    seconds = {}
    for task in os.listdir(tasks):
        with open("%s/%s/schedstat" % (tasks, task)) as f:
            seconds[task] = int(f.read().split()[0]) / 1e9
    return seconds


def redis_benchmark(port, test, depth, connections, requests):
    """Runs it, and returns what it says."""
    run = subprocess.run([need("redis-benchmark"), "-h", "127.0.0.1", "-p", str(port), "-t", test, "-d", "64",
                          "-r", str(KEYS), "-P", str(depth), "-c", str(connections), "-n", str(requests),
                          "--csv"], capture_output=True, text=True, timeout=120)
    lines = [line for line in run.stdout.splitlines() if line.startswith('"')]
    if run.returncode != 0 or len(lines) < 2:
        raise Failed("redis-benchmark: %s" % (run.stderr.strip() or run.stdout.strip() or "no output")[-200:])
    row = dict(zip(lines[0].replace('"', "").split(","), lines[-1].replace('"', "").split(",")))
    return {"rps": float(row["rps"]), "p50_ms": float(row["p50_latency_ms"]),
            "p99_ms": float(row["p99_latency_ms"]), "requests": requests}


def fill(servers, owner):
    """Sets the keys that redis-benchmark -r KEYS will read, each on the node that owns it."""
    batches = {server: [] for server in servers}
    for number in range(KEYS):
        key = b"key:%012d" % number
        batches[owner(key)].append(encode("SET", key, VALUE))
    for server, batch in batches.items():
        connection = Connection(server.port)
        for start in range(0, len(batch), 500):
            part = batch[start:start + 500]
            connection.socket.sendall(b"".join(part))
            for _ in part:
                connection.reply()
        connection.close()
