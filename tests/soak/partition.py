"""Redis servers in separate network namespaces, so that a server can be cut off silently: no reset, no refusal, no packets.
Needs root and the right to make namespaces (missing() returns what is missing).

        proxy, clients ── bridge ──┬── veth ── namespace of node 0
                                   ├── veth ── namespace of node 1
                                   └── ...
"""

import atexit
import itertools
import os
import subprocess

import servers

_serial = itertools.count()


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError("ip %s: %s" % (" ".join(words), done.stderr.strip()))


def in_namespace(name, *words):
    ip("netns", "exec", name, "ip", *words)


class Bridge:
    """Where all namespaces of this process meet."""

    made = None

    def __init__(self):
        self.name = "lkb%d" % os.getpid()
        self.net = "10.%d.%d" % (200 + os.getpid() % 50, os.getpid() // 50 % 250)
        ip("link", "add", self.name, "type", "bridge")
        atexit.register(subprocess.run, ["ip", "link", "del", self.name], capture_output=True)
        ip("addr", "add", self.net + ".254/24", "dev", self.name)
        ip("link", "set", self.name, "up")

    @classmethod
    def get(cls):
        if cls.made is None:
            cls.made = cls()
        return cls.made


class RemoteRedis(servers.RedisServer):
    """A redis-server that is reached over a line that can be cut."""

    def __init__(self, *options, **named):
        bridge = Bridge.get()
        number = next(_serial) % 250 + 1
        self.namespace = "lk%d-%d" % (os.getpid(), number)
        self.line = "lk%dn%d" % (os.getpid(), number)
        self.host = "%s.%d" % (bridge.net, number)
        self.peer = bridge.net + ".254"
        self.before = ("ip", "netns", "exec", self.namespace)
        ip("netns", "add", self.namespace)
        atexit.register(self.forget)
        ip("link", "add", self.line, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("link", "set", self.line, "master", bridge.name, "up")
        in_namespace(self.namespace, "addr", "add", self.host + "/24", "dev", "eth0")
        in_namespace(self.namespace, "link", "set", "eth0", "up")
        in_namespace(self.namespace, "link", "set", "lo", "up")
        super().__init__("--protected-mode", "no", *options, **named)

    def forget(self):
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", self.line], capture_output=True)

    def cut(self):
        """Nothing comes or goes any more, also between it and the other nodes."""
        in_namespace(self.namespace, "link", "set", "eth0", "down")

    def mute(self):
        """It hears the proxies and does what they say. What it answers does not arrive."""
        in_namespace(self.namespace, "route", "add", "blackhole", self.peer + "/32")

    def divide(self, others):
        """The other nodes and it hear no more of each other. The proxies hear it, and it hears them."""
        for other in others:
            in_namespace(self.namespace, "route", "add", "blackhole", other.host + "/32")
            in_namespace(other.namespace, "route", "add", "blackhole", self.host + "/32")

    def unite(self, others):
        for other in others:
            in_namespace(self.namespace, "route", "del", "blackhole", other.host + "/32")
            in_namespace(other.namespace, "route", "del", "blackhole", self.host + "/32")

    def mend(self):
        in_namespace(self.namespace, "link", "set", "eth0", "up")
        ip("neigh", "flush", "to", self.host)  # that it was unreachable is remembered here for a second or two
        try:
            in_namespace(self.namespace, "route", "del", "blackhole", self.peer + "/32")
        except OSError:
            pass  # it was not mute

    def stop(self):
        super().stop()
        self.forget()


def missing():
    """Why there can be no partitions here; None if there can."""
    try:
        Bridge.get()
        ip("netns", "add", "lk%d-try" % os.getpid())
        ip("netns", "del", "lk%d-try" % os.getpid())
    except OSError as error:
        return str(error)
    return None
