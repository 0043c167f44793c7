"""Redis's own test suite, unit by unit: straight at a redis-server and through the proxy, compared test by test.

    suite.py --suite FOLDER [--default-rules] [--cluster] [--fast] [--show] [--output FOLDER] [UNIT ...]

Every unit gets its own server (and proxy), so that a broken unit does not make another fail, and the same flags both
times. The suite's external mode leaves out tests that need to start servers. A test is known by its unit, its name and
how often that name was seen in the unit before it. expected.txt beside this file lists what cannot pass through a proxy,
with the reason. --default-rules runs the proxy with its default lock rule instead of none; --cluster runs the suite's
cluster mode, directly at a cluster of one node and through the proxy before that cluster; --fast leaves the tests tagged
slow out; --show prints what the failing tests said.
"""

import argparse
import collections
import os
import re
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

import servers  # noqa: E402

EXPECTED = os.path.join(HERE, "expected.txt")
UNIT_SECONDS = 400
NOT_RUN = "not run: "  # this reason means: the test would harm later tests
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"^(?:Waiting for background [^[]*)?\[(ok|err|skip|ignore|exception|TIMEOUT)\]: (.*)$")


def tidy(name):
    """A test's name without what differs from run to run."""
    name = re.sub(r" \(\d+ ms\)$", "", name.strip())
    name = re.sub(r" in tests/\S+\.tcl$", "", name)
    return re.sub(r"\d{5,}", "N", name)


class Run:
    """What one run of one unit said."""

    def __init__(self, output):
        self.passed, self.failed, self.words, self.trouble = set(), set(), {}, None
        seen = collections.Counter()
        current = None
        for line in COLOUR.sub("", output).splitlines():
            found = LINE.match(line)
            if not found:
                if line.startswith("[") or not line.strip():
                    current = None
                elif current:
                    self.words[current].append(line)
                continue
            kind, rest = found.groups()
            current = None
            if kind in ("ok", "err"):
                name = tidy(rest)
                seen[name] += 1
                current = name if seen[name] == 1 else "%s #%d" % (name, seen[name])
                (self.passed if kind == "ok" else self.failed).add(current)
                self.words[current] = []
            elif kind in ("exception", "TIMEOUT"):
                self.trouble = self.trouble or rest
        if "The End" not in output:
            self.trouble = self.trouble or "it did not come to its end"


def server_options():
    return ["--enable-debug-command", "yes", "--enable-protected-configs", "yes", "--enable-module-command", "yes"]


def start_server(cluster):
    server = servers.RedisServer(*server_options(), cluster=cluster)
    if cluster:
        server.run("CLUSTER", "ADDSLOTSRANGE", 0, servers.SLOTS - 1)
        servers.until(lambda: "cluster_state:ok" in server.run("CLUSTER", "INFO"), 30, "the cluster of one node")
    return server


class One:
    """A unit, run one way."""

    def __init__(self, options, unit, through_proxy):
        self.options, self.unit, self.through_proxy = options, unit, through_proxy

    def run(self):
        server = start_server(self.options.cluster)
        proxy = None
        try:
            where = server
            if self.through_proxy:
                upstream = ("cluster " if self.options.cluster else "standalone ") + servers.address_text(server.address)
                rules = [] if self.options.default_rules else ["lock * mode off"]
                # On a slow machine PFSELFTEST keeps its node silent for longer than the default timeout.
                proxy = where = servers.Proxy(upstream, "upstream-timeout 60s", *rules)
            run = Run(self.runtest(where.port))
            if proxy and (not proxy.running() or servers.REPORT.search(proxy.log())):
                run.trouble = "the proxy: " + proxy.report_text()
            return run
        finally:
            if proxy:
                proxy.kill()
                proxy.remove()
                if proxy in servers.Proxy.started:
                    servers.Proxy.started.remove(proxy)
            server.stop()

    def runtest(self, port):
        command = ["./runtest", "--host", servers.HOST, "--port", str(port), "--single", self.unit, "--durable",
                   "--verbose", "--baseport", str(servers.free_port()), "--portcount", "40", "--timeout", "300"]
        if self.options.cluster:
            command.append("--cluster-mode")
        if self.through_proxy:
            for unit, test, reason in self.options.expected:
                if unit == self.unit and reason.startswith(NOT_RUN):
                    command += ["--skiptest", test]
        if self.options.fast:
            command += ["--tags", "-slow"]
        process = subprocess.Popen(command, cwd=self.options.suite, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=UNIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        output = output.decode("utf-8", "replace")
        if self.options.output:
            name = "%s.%s" % (self.unit.replace("/", "-"), "through" if self.through_proxy else "direct")
            with open(os.path.join(self.options.output, name), "w") as f:
                f.write(output)
        return output


def read_expected(cluster):
    """{(unit, test): reason}. A line: unit | test | reason; a test that ends with * stands for all that begin so."""
    expected = []
    with open(EXPECTED) as f:
        for line in f:
            line = line.strip()
            if line and not line.startswith("#"):
                unit, test, reason = (word.strip() for word in line.split(" | "))
                if unit.startswith("cluster:"):
                    if not cluster:
                        continue
                    unit = unit[len("cluster:"):]
                expected.append((unit, test, reason))
    return expected


def reason_for(expected, unit, test):
    for u, t, reason in expected:
        if u == unit and (t == test or (t.endswith("*") and test.startswith(t[:-1]))):
            return reason
    return None


def units_of(options):
    if options.units:
        return options.units
    listed = subprocess.run(["./runtest", "--list-tests"], cwd=options.suite, capture_output=True, text=True)
    return listed.stdout.split()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--suite", required=True)
    parser.add_argument("--default-rules", action="store_true")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--output", metavar="FOLDER")
    parser.add_argument("units", nargs="*")
    options = parser.parse_args()
    options.suite = os.path.abspath(options.suite)
    expected = options.expected = read_expected(options.cluster)
    row = "%-34s %8s %8s %8s %9s %9s %7s"
    print(row % ("unit", "direct", "through", "missing", "expected", "NEW", "s"))
    total = [0] * 5
    bad, gained = [], []
    for unit in units_of(options):
        start = time.monotonic()
        runs = {}

        def one(way):
            runs[way] = One(options, unit, way == "through").run()

        threads = [threading.Thread(target=one, args=(way,)) for way in ("direct", "through")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        direct, through = runs["direct"], runs["through"]
        missing = sorted(direct.passed - through.passed)
        new = [name for name in missing if not reason_for(expected, unit, name)]
        gained += [(unit, name) for name in sorted(through.passed)
                   if name not in missing and reason_for(expected, unit, name)]
        if not direct.passed and not direct.failed and not through.trouble:
            continue
        figures = [len(direct.passed), len(through.passed), len(missing), len(missing) - len(new), len(new)]
        total = [a + b for a, b in zip(total, figures)]
        print(row % (unit, *figures, round(time.monotonic() - start)), flush=True)
        for name in sorted(direct.failed):
            print("    fails directly too: " + name if name in through.failed else "    fails directly: " + name)
        if direct.trouble:
            print("    direct: " + direct.trouble)
        if through.trouble:
            print("    through the proxy: " + through.trouble)
            if "the proxy:" in through.trouble:
                bad.append((unit, through.trouble))
        for name in new:
            print("    NEW: " + name + ("" if name in through.failed else " (it did not run)"))
            bad.append((unit, name))
        if options.show:
            for name in sorted(through.failed):
                print("\n".join("      | " + line for line in [name, *through.words[name][:12]]))
    print(row % ("all", *total, ""))
    for unit, name in gained:
        print("passes, though expected.txt says it cannot: %s | %s" % (unit, name))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
