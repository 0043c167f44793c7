"""Real client libraries and lock libraries through the proxy, on one Redis and on a cluster: tables of the features that
work.

    run.py [--quick] [--direct] [--threads N] [NAME ...]

It knows servers and tables; each client is a program of its own (clients.py lists them and describes their output). Each
client has a proxy of its own, so that one client's restart or crash is not another's failure. The two kinds of backend
run side by side. --direct leaves the proxy out: all that a client does must work on one Redis alone, or its program is at
fault. Exit status 1 if anything failed.
"""

import argparse
import os
import queue
import re
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

import servers  # noqa: E402
from clients import (CLIENTS, CLUSTER_CHECKS, CLUSTERS, DIRECTLY, FEATURES, LOCK_CHECKS, LOCKS, Missing,  # noqa: E402
                     Workshop)

CLIENT_SECONDS = 30
REFUSED = re.compile(r"ERR [A-Z0-9| ]+ is not supported by lockkeeper")  # what follows says why, in as many words
USER, PASSWORD = "app", "app-secret"
PROXY_PASSWORD = "proxy-secret"

# Leases are short, so that the end of a killed owner's lock need not be waited for long.
RULES = [
    "lock lock:pool:* owner client lease 2s",
    "lock lock:* lease 2s",
    "lock lock.* lease 2s",
    "lock mutex:* lease 2s",
    "lock *:lock lease 2s",
    "lock @simple-redis-mutex:lock-* lease 2s",
]


class Cell:
    def __init__(self, state, why=""):
        self.state = state  # ok, wrong (as expected), kept, refused, none, FAILED
        self.why = why

    def text(self):
        return {"ok": "ok", "wrong": "wrong", "kept": "kept", "refused": "n/s", "none": "-", "FAILED": "FAIL"}[self.state]


class Result:
    """What one client did on one backend."""

    def __init__(self):
        self.version = ""
        self.cells = {}
        self.problem = None  # what went wrong outside any feature
        self.seconds = 0.0


def cell_of(state, why):
    if state == "ok":
        return Cell("ok")
    if state in ("none", "kept"):
        return Cell(state, why)
    refusal = REFUSED.search(why)
    if refusal:
        return Cell("refused", refusal.group())
    return Cell("FAILED", why or "no reason given")


class Run:
    """One client's program on one backend, with a proxy of its own."""

    def __init__(self, backend, login, lines, direct, command, shop, features, only=None):
        self.backend = backend
        self.lines = lines  # of the proxy's configuration
        self.login = login  # asks for PROXY_PASSWORD
        self.direct = direct
        self.command = command
        self.shop = shop
        self.features = features
        self.only = only  # one feature
        self.result = Result()

    def environment(self, proxy):
        only = {"LK_ONLY": self.only} if self.only else {}
        return dict(os.environ, **only, LK_HOST=servers.HOST, LK_PORT=str(proxy.port), LK_BACKEND=self.backend.kind,
                    LK_LOGIN_PORT=str(self.login.port), LK_LOGIN_PASSWORD=PROXY_PASSWORD, LK_USER=USER,
                    LK_PASSWORD=PASSWORD, NODE_PATH=os.path.join(self.shop.folder, "npm", "node_modules"),
                    PYTHONUNBUFFERED="1")

    def restart(self, proxy):
        if isinstance(proxy, Direct):
            proxy.restart()
            return
        ready = proxy.log().count("Ready to accept connections")
        proxy.stop()
        proxy.launch()
        servers.until(lambda: proxy.log().count("Ready to accept connections") > ready, 20, "the proxy's restart")

    def line(self, text, proxy, child):
        fields = text.rstrip("\n").split("\t", 2)
        if fields[0] == "restart" and len(fields) == 1:
            self.restart(proxy)
            child.stdin.write("restarted\n")
            child.stdin.flush()
        elif fields[0] == "version" and len(fields) == 2:
            self.result.version = fields[1]
        elif fields[0] in self.features and len(fields) > 1:
            self.result.cells[fields[0]] = cell_of(fields[1], fields[2] if len(fields) > 2 else "")
        elif text.strip():
            self.noise.append(text.strip())

    def converse(self, proxy):
        """Reads the program's lines until it ends, or is ended."""
        child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=self.environment(proxy), cwd=self.shop.folder, text=True, errors="replace")
        lines = queue.Queue()

        def read():
            for text in child.stdout:
                lines.put(text)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        deadline = time.monotonic() + CLIENT_SECONDS
        try:
            while True:
                text = lines.get(timeout=max(deadline - time.monotonic(), 0.01))
                if text is None:
                    break
                self.line(text, proxy, child)
            return "" if child.wait(5) == 0 else "ended with status %d" % child.returncode
        except queue.Empty:
            return "not done after %d s" % CLIENT_SECONDS
        except (BrokenPipeError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            child.kill()
            child.wait()
            child.stdin.close()

    def go(self):
        self.noise = []
        started = time.monotonic()
        proxy = None
        try:
            self.backend.flush()
            proxy = Direct(self.backend) if self.direct else servers.Proxy(self.backend, *self.lines)
            end = self.converse(proxy)
            for feature in self.features:
                if feature not in self.result.cells:
                    self.result.cells[feature] = Cell("FAILED", end or "not run")
            if end:
                self.result.problem = " | ".join([end, *self.noise[-6:]])
            proxy.stop()
        except AssertionError as error:  # the proxy crashed, or a sanitizer has something to say
            self.result.problem = str(error)
        finally:
            if proxy is not None and proxy in servers.Proxy.started:
                proxy.kill()
                servers.Proxy.started.remove(proxy)
            if proxy is not None:
                proxy.remove()
        self.result.seconds = time.monotonic() - started
        return self.result


class Direct:
    """In place of a proxy: Redis itself; a restart closes all of its connections."""

    def __init__(self, server):
        self.server = server
        self.port = server.port

    def restart(self):
        self.server.run("CLIENT", "KILL", "TYPE", "normal")
        self.server.run("CLIENT", "KILL", "TYPE", "pubsub")

    def stop(self):
        pass

    remove = stop


class Lane(threading.Thread):
    """All clients on one kind of backend, one after the other."""

    def __init__(self, kind, jobs, shop, threads, direct):
        super().__init__()
        self.lines = ["threads %d" % threads, *RULES]
        self.kind = kind
        self.direct = direct
        self.jobs = jobs  # (client, command, features)
        self.shop = shop
        self.results = {}
        self.error = None

    def run(self):
        backend = login = None
        try:
            backend = servers.RedisServer() if self.kind == "standalone" else servers.RedisCluster()
            for node in backend.nodes:
                node.run("ACL", "SETUSER", USER, "on", ">" + PASSWORD, "~*", "&*", "+@all")
            if self.direct:
                login = servers.RedisServer("--requirepass", PROXY_PASSWORD)
            else:
                login = servers.Proxy(backend, "requirepass " + PROXY_PASSWORD)
            for client, command, features in self.jobs:
                if self.kind in client.backends:
                    result = Run(backend, login, self.lines, self.direct, command, self.shop, features).go()
                    if client in LOCKS and self.kind == "standalone" and not self.direct:
                        result.cells[DIRECTLY] = self.late_directly(backend, login, client, command)
                    self.results[client.name] = result
                    if sys.stderr.isatty():
                        print("%-30s %-10s %5.1f s" % (client.name, self.kind, result.seconds), file=sys.stderr)
            login.stop()
        except Exception as error:  # shown by the main thread
            self.error = "%s: %s" % (self.kind, error)
        finally:
            if login is not None:
                login.kill()
                login.remove()
            if backend is not None:
                backend.stop()


    def late_directly(self, backend, login, client, command):
        """Without the proxy, a lock that is unsafe by itself must show it."""
        run = Run(backend, login, self.lines, True, command, self.shop, ["late"], "late").go()
        cell = run.cells["late"]
        if not client.unsafe:
            return cell
        return Cell("wrong") if cell.state == "FAILED" else Cell("FAILED", "a late release did no harm on Redis alone")


# ---- tables -----------------------------------------------------------------------------------

KINDS = ["standalone", "cluster"]


def merged(results, feature):
    """One text for both backends where they agree."""
    texts = []
    for result in results:
        if result is not None and feature in result.cells:
            texts.append(result.cells[feature].text())
    return texts[0] if len(set(texts)) == 1 else "/".join(texts) or "-"


def table(title, clients, columns, lanes):
    rows = []
    for client in clients:
        results = [lane.results.get(client.name) for lane in lanes]
        version = next((r.version for r in results if r and r.version), "")
        if any(results):
            rows.append([client.name + (" " + version if version else "")] + [merged(results, c) for c in columns])
    if not rows:
        return
    head = [title] + columns
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print()
    for row in [head, *rows]:
        print(" ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def reasons(clients, lanes, state):
    """{why: [client feature, ...]} for every cell of this state."""
    found = {}
    for client in clients:
        for lane in lanes:
            result = lane.results.get(client.name)
            for feature, cell in (result.cells if result else {}).items():
                if cell.state == state:
                    places = found.setdefault(cell.why.strip(), [])
                    if (client.name, feature, lane.kind) not in places:
                        places.append((client.name, feature, lane.kind))
    return found


def places_text(places):
    grouped = {}
    for client, feature, kind in places:
        grouped.setdefault((client, feature), []).append(kind)
    return ", ".join("%s %s%s" % (client, feature, "" if len(kinds) == 2 else " (%s)" % kinds[0])
                     for (client, feature), kinds in grouped.items())


def report(clients, lanes, absent, seconds):
    """Prints everything; returns how many cells or runs failed."""
    table("client", [c for c in clients if c in CLIENTS], FEATURES, lanes)
    table("cluster client", [c for c in clients if c in CLUSTERS], CLUSTER_CHECKS, lanes)
    table("lock", [c for c in clients if c in LOCKS], [*LOCK_CHECKS, DIRECTLY], lanes)
    print("\nok: on one Redis and on a cluster; a/b where the two differ; -: the library hasn't got it; n/s: refused "
          "by the proxy\nwith a clear error; kept: safe, but the lock stayed held until its lease ended; FAIL: wrong. "
          "The last column of\nthe locks is the check of late releases on Redis alone: wrong, where the lock is unsafe "
          "by itself")
    for state, title in [("refused", "not supported"), ("none", "not in the library"), ("kept", "kept"),
                         ("FAILED", "FAILED")]:
        found = reasons(clients, lanes, state)
        if found:
            print("\n%s:" % title)
            for why, places in sorted(found.items(), key=lambda item: item[1]):
                print("  %s: %s" % (places_text(places), why[:600]))
    for client in clients:
        if client.why and client.name not in absent:
            print("\n%s runs on %s alone: %s" % (client.name, client.backends[0], client.why))
    if absent:
        print("\nnot run:")
        for name, why in absent.items():
            print("  %s: %s" % (name, why))
    problems = [(name, lane.kind, r.problem) for lane in lanes for name, r in lane.results.items() if r.problem]
    for name, kind, problem in problems:
        print("\n%s on %s: %s" % (name, kind, problem))
    for lane in lanes:
        if lane.error:
            print("\n%s" % lane.error)
    counts = {"ok": 0, "wrong": 0, "kept": 0, "refused": 0, "none": 0, "FAILED": 0}
    for lane in lanes:
        for result in lane.results.values():
            for cell in result.cells.values():
                counts[cell.state] += 1
    failed = counts["FAILED"] + len(problems) + sum(1 for lane in lanes if lane.error)
    print("\n%d ok, %d kept, %d not supported, %d not in the library, %d FAILED; %d clients not run; %.0f s" % (
        counts["ok"], counts["kept"], counts["refused"], counts["none"], failed, len(absent), seconds))
    if counts["ok"] == 0:
        print("nothing was tested")
        return failed + 1
    return failed


def main(words):
    parser = argparse.ArgumentParser(description="Runs client libraries through the proxy.")
    parser.add_argument("--quick", action="store_true", help="only what needs neither npm nor other languages")
    parser.add_argument("--direct", action="store_true", help="without the proxy")
    parser.add_argument("--threads", type=int, default=1, help="of the proxy")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these rows")
    options = parser.parse_args(words)
    names, direct = options.names, options.direct
    known = {client.name for client in CLIENTS + CLUSTERS + LOCKS}
    for name in names:
        if name not in known:
            raise SystemExit("run.py: '%s': expected %s" % (name, ", ".join(sorted(known))))
    clients = [c for c in CLIENTS + CLUSTERS + LOCKS if (c.quick or not options.quick) and (not names or c.name in names)]
    if not direct:
        servers.binary()
    started = time.monotonic()
    shop = Workshop()
    jobs, absent = [], {}
    for client in clients:
        try:
            checks = FEATURES if client in CLIENTS else CLUSTER_CHECKS if client in CLUSTERS else LOCK_CHECKS
            jobs.append((client, client.prepare(shop), [c for c in checks if c not in client.without]))
        except Missing as missing:
            absent[client.name] = str(missing)
    lanes = [Lane(kind, jobs, shop, options.threads, direct) for kind in (KINDS[:1] if direct else KINDS)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return 1 if report(clients, lanes, absent, time.monotonic() - started) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
