"""The rig of the attacks: a Redis, the proxy before it, neighbours that measure, and the attacker's connections.

An attack is a function with a Rig as its argument. It may prepare (rig.start), then calls rig.go(), which starts the
measurement, attacks through connections of rig.connect(), and returns; rig.patience seconds later the measurement ends. Its
connections count the bytes sent; it sets rig.owed to the bytes that it does not read.
"""

import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))

import servers  # noqa: E402
from resp import Client, Closed, encode  # noqa: E402,F401

MB = 1 << 20


class Watch:
    """A neighbour's process (neighbour.py)."""

    def __init__(self, address, kind):
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "neighbour.py"), address[0], str(address[1]), kind],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=first)
        assert self.process.stdout.readline() == "ready\n", "a neighbour could not connect"

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def begin(self):
        self.say("begin")
        assert self.process.stdout.readline() == "begun\n"

    def end(self):
        """The longest wait in ms, the number of requests, what went wrong."""
        self.say("end")
        longest, count, wrong = self.process.stdout.readline().rstrip("\n").split(" ", 2)
        return float(longest), int(count), wrong

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def first():
    """A neighbour's time is the proxy's, not the machine's: it comes before the attackers, where the system lets it."""
    try:
        os.nice(-10)
    except OSError:
        pass


class Sender:
    """One of the attacker's connections, which counts what it sends."""

    def __init__(self, rig, address, tls=None, source=None):
        self.rig = rig
        self.client = Client(address, timeout=60, tls=tls, source=source)
        self.sock = self.client.sock

    def send(self, data):
        self.rig.sent += len(data)
        self.sock.sendall(data)

    def offer(self, data, seconds):
        """Sends as much of it as the proxy takes within so many seconds; how much that was."""
        view, at, until = memoryview(data), 0, time.monotonic() + seconds
        self.sock.settimeout(0.05)
        while at < len(view) and time.monotonic() < until:
            try:
                at += self.sock.send(view[at : at + MB])
            except (TimeoutError, socket.timeout):
                pass
            except OSError:
                break
        self.rig.sent += at
        self.sock.settimeout(60)
        return at

    def __call__(self, *words):
        self.send(encode(*words))
        return self.client.read()

    def read(self, count=1):
        for _ in range(count):
            reply = self.client.read()
        return reply

    def skim(self, count):
        """Reads so many replies of one line each, or up to the end, without looking at them."""
        left = count
        try:
            while left > 0:
                data = self.sock.recv(MB)
                if not data:
                    return
                left -= data.count(b"\n")
        except OSError:
            pass

    def close(self):
        self.client.close()

    def reset(self):
        """Leaves with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()


class Rig:
    def __init__(self, short):
        self.short = short
        self.senders, self.stops, self.watches = [], [], []
        self.sent = self.owed = 0
        self.patience = 0.3 if short else 1.0
        self.kind = "lock"
        self.redis = self.proxy = None
        self.direct = None
        self.each = 20000  # bytes that a connection may cost beside what comes over it
        self.stall = None  # milliseconds; set by an attack that measures its own neighbour
        self.note = ""
        self.wrong = []
        self.running = False
        self.before = self.peak_fds = self.peak_links = self.fds = self.links = 0

    def some(self, full, short):
        """How much of it: in full, or in CI's short run."""
        return short if self.short else full

    # ---- servers

    def start_redis(self, *options):
        self.redis = servers.RedisServer(*options)
        self.stops.append(self.redis.stop)
        return self.redis

    def start(self, *lines, upstream=None, **options):
        """The proxy, before a Redis if nothing else is said."""
        if upstream is None:
            upstream = self.redis or self.start_redis()
        if not any(line.startswith("lock ") for line in lines):
            lines = ("lock lock:*", *lines)
        self.proxy = servers.Proxy(upstream, *lines, measured=True, **options)
        return self.proxy

    def connect(self, **options):
        sender = Sender(self, self.proxy.address, **options)
        self.senders.append(sender)
        return sender

    def connect_many(self, count):
        return [self.connect() for _ in range(count)]

    # ---- measuring

    def status(self, name):
        with open("/proc/%d/status" % self.proxy.pid) as f:
            return int(re.search(r"^%s:\s+(\d+)" % name, f.read(), re.M).group(1)) * 1024

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.proxy.pid))

    def links_now(self):
        """Connections that Redis has, but for the rig's own and the neighbour's."""
        if not self.direct:
            return 0
        try:
            fields = dict(line.split(":", 1) for line in self.direct("INFO", "clients").split("\r\n") if ":" in line)
            return int(fields["connected_clients"]) - 1 - sum(watch.redis for watch in self.watches)
        except (OSError, Closed, AttributeError):
            self.direct = None
            return 0

    def sample(self):
        while self.running:
            try:
                self.peak_fds = max(self.peak_fds, self.descriptors())
                self.peak_links = max(self.peak_links, self.links_now())
            except OSError:
                return
            time.sleep(0.03)

    def go(self, neighbour=True):
        """From here on it counts."""
        if neighbour:
            self.watch(self.proxy.address, self.kind)
            if self.redis and self.redis.running() and not self.redis.password:
                self.watch(self.redis.address, "get", redis=1)
        if self.redis and self.redis.running() and not self.redis.password:
            self.direct = self.redis.client()
        time.sleep(0.1)
        with open("/proc/%d/clear_refs" % self.proxy.pid, "w") as f:
            f.write("5")  # the peak begins anew
        self.sent = self.owed = 0
        self.before = self.status("VmRSS")
        self.fds, self.links = self.descriptors(), self.links_now()
        self.peak_fds, self.peak_links = self.fds, self.links
        self.running = True
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()
        for watch in self.watches:
            watch.begin()

    def watch(self, address, kind, redis=0):
        watch = Watch(address, kind)
        watch.redis = redis
        self.watches.append(watch)

    def end(self):
        """What it was."""
        time.sleep(self.patience)
        waits = []
        for watch in self.watches:
            longest, count, wrong = watch.end()
            waits.append(longest)
            if wrong and not watch.redis:
                self.wrong.append(wrong)
            if count == 0:
                self.wrong.append("a neighbour was not served at all")
        self.running = False
        self.sampler.join()
        if not self.proxy.running():
            self.wrong.append("the proxy ended with %s" % self.proxy.process.returncode)
            return {"stall": float("inf"), "direct": None, "grown": 0, "bytes": 1, "each": self.each, "fds": 0, "links": 0, "note": self.note,
                    "wrong": self.wrong}
        stall = self.stall if self.stall is not None else waits[0] if waits else None
        report = servers.REPORT.search(self.proxy.log())
        if report:
            self.wrong.append(report.group(0))
        return {"stall": stall, "direct": waits[1] if len(waits) > 1 else None,
                "grown": max(self.status("VmHWM") - self.before, 0), "bytes": self.sent + self.owed,
                "each": self.each, "fds": self.peak_fds - self.fds, "links": self.peak_links - self.links, "note": self.note, "wrong": self.wrong}

    def stop(self):
        self.running = False
        for watch in self.watches:
            watch.stop()
        for sender in self.senders:
            sender.close()
        if self.direct:
            self.direct.close()
        if self.proxy:
            if self.proxy in servers.Proxy.started:
                servers.Proxy.started.remove(self.proxy)
            self.proxy.expected = False
            self.proxy.kill()
            self.proxy.remove()
        for stop in reversed(self.stops):
            stop()


def raise_limits():
    """The attackers' own descriptors, and the proxy's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 20000 if hard == resource.RLIM_INFINITY else min(hard, 20000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
