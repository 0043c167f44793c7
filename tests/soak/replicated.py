"""Backends of a soak run whose masters have replicas: a cluster of three masters with a replica each, and a master with two
replicas that three Sentinels watch.

`nodes` are all servers; the masters among them change. `shards` are the nodes that can take each other's place, with the
slots that they had at first.
"""

import servers
from resp import Closed, Error
from servers import SLOTS, until

ALL = [(0, SLOTS - 1)]
PATIENCE_MS = 4000  # before a silent master is replaced: a busy machine is no reason


def role(node):
    """ROLE, or nothing from a node that is away or is being made a replica."""
    if not node.running():
        return []
    try:
        with node.client(timeout=2) as c:
            reply = c("ROLE")
            return [] if isinstance(reply, Error) else reply
    except (OSError, Closed):
        return []


class Cluster(servers.RedisCluster):
    """Three masters, and a replica for each."""

    replicated = 1  # replicas of each master

    def __init__(self, make=servers.RedisServer):
        super().__init__(timeout_ms=PATIENCE_MS, make=make)
        masters = list(self.nodes)
        try:
            self.options = ("--cluster-node-timeout", str(PATIENCE_MS), "--cluster-require-full-coverage", "no",
                            "--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0",
                            "--repl-ping-replica-period", "1")
            for master in masters:
                replica = make(*self.options, cluster=True)
                self.nodes.append(replica)
                master.run("CLUSTER", "MEET", replica.host, replica.port, replica.bus)
            until(self.acquainted, 40, "everybody's knowledge of everybody", 0.05)
            for master, replica in zip(masters, self.nodes[3:]):
                replica.run("CLUSTER", "REPLICATE", master.run("CLUSTER", "MYID"))
            until(self.settled, 40, "the replicas", 0.1)
        except BaseException:
            self.stop()
            raise

    def acquainted(self):
        """Every node serves, knows every other one, and has the same owner for every slot."""
        views = set()
        for node in self.nodes:
            nodes = node.run("CLUSTER", "NODES")
            if "cluster_state:ok" not in node.run("CLUSTER", "INFO") or "handshake" in nodes or nodes.count("\n") < 6:
                return False
            views.add(tuple(sorted((s[0], s[1], s[2][1]) for s in node.run("CLUSTER", "SLOTS"))))
        return len(views) == 1

    def shards(self):
        return [(pair, [slots]) for *pair, slots in zip(self.nodes, self.nodes[3:], self.ranges)]

    def replaced(self, master):
        """Whether all others know that its replica has its place."""
        n = self.nodes.index(master)
        other, (slot, _) = self.nodes[(n + 3) % 6], self.ranges[n % 3]
        try:
            return all(n.owner(slot) == other.port for n in self.nodes if n is not master)
        except (OSError, Closed):
            return False

    def masters(self):
        found = {n.port for n in self.nodes if role(n)[:1] == ["master"]}
        owners = {entry[2][1] for entry in self.slots()}
        return [n for n in self.nodes if n.port in found & owners]

    def slots(self):
        """CLUSTER SLOTS of some node that answers."""
        for node in self.nodes:
            if role(node):
                return node.run("CLUSTER", "SLOTS")
        raise AssertionError("no node answers")

    def owner_of(self, slot):
        port = next(e[2][1] for e in self.slots() if e[0] <= slot <= e[1])
        return next(n for n in self.nodes if n.port == port)

    def ranges_of(self, master):
        return [(e[0], e[1]) for e in self.slots() if e[2][1] == master.port]

    def replicas_of(self, master):
        return [n for n in self.nodes if role(n)[:1] == ["slave"] and role(n)[2] == master.port]

    def settled(self):
        """All nodes agree, and every master has its replica, which has its data."""
        roles = [role(n) for n in self.nodes]
        if not all(roles) or sorted(r[0] for r in roles) != ["master"] * 3 + ["slave"] * 3:
            return False
        if any(r[3] != "connected" for r in roles if r[0] == "slave"):
            return False
        if sorted(r[2] for r in roles if r[0] == "slave") != sorted(n.port for n, r in zip(self.nodes, roles)
                                                                     if r[0] == "master"):
            return False
        if any("fail" in n.run("CLUSTER", "NODES").replace("nofailover", "") for n in self.nodes):
            return False
        return self.acquainted()


class Sentinels(servers.RedisSentinels):
    """A master, two replicas, three Sentinels."""

    replicated = 2

    def __init__(self, make=servers.RedisServer):
        super().__init__(replicas=2, make=make, patience_ms=PATIENCE_MS)

    def shards(self):
        return [(self.nodes, ALL)]

    def masters(self):
        return [self.master]

    @property
    def master(self):
        """The node that the Sentinels name."""
        named = self.sentinels[0].run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return next(n for n in self.nodes if (n.host, n.port) == (named[0], int(named[1])))

    def replaced(self, master):
        """Whether all Sentinels name another one."""
        try:
            return self.address_of(master) not in self.named()
        except (OSError, Closed):
            return False

    def named(self):
        return {tuple(s.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)) for s in self.sentinels}

    def address_of(self, node):
        return node.host, str(node.port)

    def ranges_of(self, master):
        return ALL

    def replicas_of(self, master):
        return [n for n in self.nodes if role(n)[:1] == ["slave"] and (role(n)[1], role(n)[2]) == (master.host, master.port)]

    def settled(self):
        """The Sentinels agree on one master, and the others follow it."""
        named = self.named()
        if len(named) != 1 or any(s.master(self.name)["flags"] != "master" for s in self.sentinels):
            return False
        host, port = named.pop()
        for node in self.nodes:
            now = role(node)
            is_master = self.address_of(node) == (host, port)
            if now[:1] != (["master"] if is_master else ["slave"]):
                return False
            if not is_master and (now[1], str(now[2]), now[3]) != (host, port, "connected"):
                return False
        return True
