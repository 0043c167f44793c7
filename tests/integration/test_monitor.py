"""The operator's HTTP server: metrics, health, the status page."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest

from resp import encode
from servers import HOST, free_port, until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TYPES = {"/": "text/html", "/status.json": "application/json", "/metrics": "text/plain", "/healthz": "text/plain",
         "/readyz": "text/plain"}


class Monitored:
    def __init__(self, start_proxy, upstream, *lines):
        self.port = free_port()
        self.proxy = start_proxy(upstream, "admin-port %d" % self.port, *lines)

    @classmethod
    def of(cls, proxy, port):
        """One that is there already."""
        self = cls.__new__(cls)
        self.proxy, self.port = proxy, port
        return self

    def get(self, path, method="GET", body=None):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=10)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer
        finally:
            connection.close()

    def metrics(self):
        """{name or name{labels}: value}"""
        status, text, _ = self.get("/metrics")
        assert status == 200
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in text.splitlines() if not line.startswith("#")}

    def status(self):
        return json.loads(self.get("/status.json")[1])


@pytest.fixture
def monitored(start_proxy, backend):
    return Monitored(start_proxy, backend, "lock lock:*")


def test_pages_can_be_read_and_nothing_else(monitored):
    for path, type_ in TYPES.items():
        status, text, answer = monitored.get(path)
        assert (status, answer.getheader("Content-Type").split(";")[0]) == (200, type_) and text
        status, text, head = monitored.get(path, "HEAD")
        assert (status, text) == (200, "")
        for method in ("POST", "PUT", "DELETE"):
            assert monitored.get(path, method, "x=1")[0] == 405
    assert monitored.get("/nothing")[0] == 404
    assert monitored.get("/metrics/../../etc/passwd")[0] == 404


def test_metrics_are_well_formed(monitored):
    name = r"(?:lockkeeper|process)_[a-z_]+"
    _, text, _ = monitored.get("/metrics")
    described, typed, last = set(), {}, None
    for line in text.splitlines():
        found = re.fullmatch(rf"# HELP ({name}) \S.*", line)
        if found:
            assert found[1] not in described
            described.add(found[1])
            continue
        found = re.fullmatch(rf"# TYPE ({name}) (counter|gauge|histogram)", line)
        if found:
            typed[found[1]] = found[2]
            last = found[1]
            assert (found[2] == "counter") == found[1].endswith("_total"), line
            continue
        found = re.fullmatch(rf'({name})(\{{[a-z]+="[^"\n]*"(,le="[^"\n]+")?\}})? (-?[0-9.e+-]+)', line)
        assert found and found[1].startswith(last), line
    assert described == set(typed) and len(typed) > 20


def rows_of(macro, form):
    """The rows of the header's table of these macro calls, each as a dict by the names of its arguments."""
    names, rows = form.split(), []
    row = re.compile(r"\b%s\(\s*%s," % (macro, r",\s*".join([r'"?(\w+)"?'] * len(names))))
    for folder, _, files in os.walk(os.path.join(ROOT, "proxy")):
        for name in files:
            if name.endswith(".h"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    rows += row.findall(f.read().replace("\\\n", " "))
    return [dict(zip(names, row)) for row in rows if row[0] not in names]


def sample_of(row):
    labels = "" if row["label"] == "NULL" else '{%s="%s"}' % (row["label"], row["value"])
    return "lockkeeper_" + row["family"] + labels


def test_every_counter_is_in_info_json_and_metrics(monitored, connect):
    c = connect(monitored.proxy)
    info = dict(line.split(":", 1) for line in c("PROXY", "INFO").splitlines() if ":" in line)
    metrics, status = monitored.metrics(), monitored.status()
    counters = [dict(row, info=row["name"]) for row in
                rows_of("COUNTER", "name type family label value")]
    stats = rows_of("STAT", "field info type family label value")
    assert len(counters) >= 29 and len(stats) >= 9
    for row in counters + stats:
        assert row["info"] in info and row["info"] in status["figures"] and sample_of(row) in metrics, row
    incidents = {name for name in info if name.startswith("incidents_")}
    assert incidents == {name for name in status["figures"] if name.startswith("incidents_")} and len(incidents) > 5
    for name in incidents:
        assert 'lockkeeper_incidents_total{kind="%s"}' % name[len("incidents_"):] in metrics
    node = dict(pair.split("=") for pair in info["node0"].split(","))
    in_json = {"pinned_refused": "pinned-refused", "replica_reads": "replica-reads", "in_flight": "in-flight", "unsent": "unsent-bytes"}
    with open(os.path.join(ROOT, "proxy", "worker", "worker_metrics.c"), encoding="utf-8") as f:
        figures = re.findall(r'\{"(\w+)", "\w+", "(\w+)", "node", NULL,', f.read())
    assert len(figures) == 10
    for name, family in figures:
        assert name in node and in_json.get(name, name) in status["nodes"][0], name
        assert 'lockkeeper_%s{node="%s"}' % (family, node["address"]) in metrics, family


def test_metrics_follow_what_happens(monitored, connect):
    a, b = connect(monitored.proxy), connect(monitored.proxy, commands=[("CLIENT", "SETNAME", "another")])
    before = monitored.metrics()
    assert a("SETNX", "lock:m", "1") == 1
    for _ in range(3):
        assert b("SETNX", "lock:m", "1") == 0
    assert b("DEL", "lock:m") == 0
    for _ in range(10):
        a("GET", "plain")
    after = monitored.metrics()

    def grown(name):
        return after["lockkeeper_" + name] - before["lockkeeper_" + name]

    assert after["lockkeeper_clients_connected"] == 2 and after["lockkeeper_leases"] == 1
    assert grown('acquisitions_total{result="granted"}') == 1
    assert grown('acquisitions_total{result="lost"}') == 3
    assert grown('releases_total{result="refused"}') == 1
    assert grown('incidents_total{kind="foreign_release"}') == 1
    assert grown('requests_total{kind="lock"}') == 5 and grown('requests_total{kind="forwarded"}') == 10
    assert grown("client_received_bytes_total") > 0

    def sent():
        return sum(value for name, value in monitored.metrics().items()
                   if name.startswith("lockkeeper_upstream_requests_total"))

    until(lambda: sent() >= 15, what="what all threads have told")


def test_metrics_of_all_threads_are_summed(start_proxy, backend, connect):
    monitored = Monitored(start_proxy, backend, "threads 3")
    clients = [connect(monitored.proxy) for _ in range(24)]
    for n, client in enumerate(clients):
        client("SET", "key:%d" % n, "v")

    def requests():
        return sum(value for name, value in monitored.metrics().items()
                   if name.startswith("lockkeeper_upstream_requests_total"))

    assert monitored.metrics()["lockkeeper_clients_connected"] == 24
    assert monitored.metrics()['lockkeeper_requests_total{kind="forwarded"}'] == 24
    until(lambda: requests() >= 24, 10, "the nodes' figures of all threads")


def slower(metrics, family, label=""):
    """How many samples of a histogram are above 0.25 s; checks that its buckets are well-formed."""
    name = "lockkeeper_%s_bucket{%s" % (family, label)
    buckets = [(key[len(name):].strip(',le="}'), value) for key, value in metrics.items() if key.startswith(name)]
    bounds, counts = zip(*buckets)
    assert list(counts) == sorted(counts) and bounds[-1] == "+Inf"
    assert [float(b) for b in bounds] == sorted(float(b) for b in bounds)
    labels = "{%s}" % label if label else ""
    assert metrics["lockkeeper_%s_count%s" % (family, labels)] == counts[-1]
    assert metrics["lockkeeper_%s_sum%s" % (family, labels)] >= 0.25 * (counts[-1] - dict(buckets)["0.25"])
    return counts[-1] - dict(buckets)["0.25"]


def test_what_takes_long_is_seen(start_proxy, start_redis, connect):
    redis = start_redis()
    monitored = Monitored(start_proxy, redis, "upstream-timeout 60s")
    client, other = connect(monitored.proxy), connect(monitored.proxy)
    assert client("GET", "plain") is None
    node = 'node="%s"' % redis.upstream_address()
    before = monitored.metrics()
    redis.process.send_signal(signal.SIGSTOP)
    try:
        client.send(encode("SETNX", "lock:slow", "1"))
        # At least one: each thread asks the node by itself whether it serves.
        until(lambda: monitored.metrics()["lockkeeper_upstream_requests_in_flight{%s}" % node] >= 1)
        time.sleep(0.3)
    finally:
        redis.process.send_signal(signal.SIGCONT)
    assert client.read() == 1
    for family, label in (("upstream_round_trip_seconds", node), ("lock_command_seconds", "")):  # other threads' come later
        until(lambda: slower(monitored.metrics(), family, label) >= slower(before, family, label) + 1, what=family)
    assert slower(monitored.metrics(), "acquisition_wait_seconds") == 0

    assert other("SETNX", "lock:slow", "1") == 0
    time.sleep(0.3)
    assert client("DEL", "lock:slow") == 1 and other("SETNX", "lock:slow", "1") == 1
    assert slower(monitored.metrics(), "acquisition_wait_seconds") == 1
    assert re.search(r"round_trip_us=[1-9]", client("PROXY", "INFO", "upstreams"))


def test_the_status_page_s_facts(monitored, connect):
    a, b = connect(monitored.proxy), connect(monitored.proxy)
    a("CLIENT", "SETNAME", 'wor"ker')
    assert a("SET", 'lock:"q"\\\xff<b>\n', "v", "NX", "PX", "60000") == "OK"
    for _ in range(5):
        b("SET", 'lock:"q"\\\xff<b>\n', "v", "NX", "PX", "60000")
    b("DEL", 'lock:"q"\\\xff<b>\n')
    status = monitored.status()
    assert status["ready"] is True and status["figures"]["leases"] == "1"
    (lock,) = status["locks"]
    shown = 'lock:"q"' + 2 * '\\' + r'xc3\xbf<b>\x0a'
    assert lock["key"] == shown and 'wor"ker' in lock["owner"]
    assert 50000 < lock["left-ms"] <= 60000 and lock["age-ms"] < 10000
    (fight,) = status["contention"]
    assert (fight["key"], fight["waiters"]) == (shown, 1)
    minutes = [int(n) for n in fight["lost-by-minute"].split()]
    assert len(minutes) == 5 and sum(minutes) == 5
    newest = status["incidents"][0]
    assert newest["kind"] == "foreign_release"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ tried to release .*; held by 127\.0\.0\.1 .*: refused: .*", newest["text"])
    assert all(node["up"] == 1 for node in status["nodes"]) and sum(node["slots"] for node in status["nodes"]) == 16384


def rules_of(client):
    """{pattern: {field: value}} of PROXY RULES."""
    rows = [[f.decode() if isinstance(f, bytes) else f for f in row] for row in client("PROXY", "RULES")]
    return {row[1].split()[0]: dict(zip(row[0::2], row[1::2])) for row in rows}


def test_clients_that_share_connections_are_named(start_proxy, backend, connect):
    monitored = Monitored(start_proxy, backend, "lock lock:own:* owner connection", "lock lock:s*", "lock lock:*")
    a, b = connect(monitored.proxy), connect(monitored.proxy)
    assert b("SETNX", "lock:s:0", "1") == 1 and b("DEL", "lock:s:0") == 1
    assert all(rule["shared"] == "" for rule in rules_of(a).values()) and monitored.status()["shared"] == []
    for n in (1, 2):
        assert a("SETNX", "lock:s:%d" % n, "1") == 1
        assert b("DEL", "lock:s:%d" % n) == 1
    client = "127.0.0.1 user=default"
    rules = {pattern: rule["shared"] for pattern, rule in rules_of(a).items()}
    assert rules == {"lock:own:*": "", "lock:s*": "lock:s:* by " + client, "lock:*": ""}
    status = monitored.status()
    assert status["shared"] == [{"pattern": "lock:s:*", "client": client}]
    told = [i["text"] for i in status["incidents"] if i["kind"] == "shared"]
    assert len(told) == 1 and told[0].startswith(client + " was found to share connections for lock:s:2: ")
    assert monitored.metrics()['lockkeeper_incidents_total{kind="shared"}'] == 1


def test_a_release_that_is_believed_is_told(monitored, connect):
    a, b = connect(monitored.proxy), connect(monitored.proxy)
    assert a("SETNX", "lock:b", "1") == 1 and b("DEL", "lock:b") == 1
    told = [i["text"] for i in monitored.status()["incidents"] if i["kind"] == "believed"]
    assert len(told) == 1 and " released lock:b for another connection; held by 127.0.0.1 user=default: " in told[0]
    assert monitored.metrics()['lockkeeper_incidents_total{kind="believed"}'] == 1


def test_a_late_release_is_told_with_its_delay(start_proxy, backend, connect):
    monitored = Monitored(start_proxy, backend, "lock lock:* owner connection")
    late, next_ = connect(monitored.proxy), connect(monitored.proxy)
    assert late("SET", "lock:late", "1", "NX", "PX", "50") == "OK"
    until(lambda: next_("SET", "lock:late", "1", "NX", "PX", "60000") == "OK", 10, "the lease's end")
    until(lambda: any(l["age-ms"] > 20 for l in monitored.status()["locks"]), 10, "the new lease to be 20 ms old")
    assert late("DEL", "lock:late") == 0
    told = [i["text"] for i in monitored.status()["incidents"] if i["kind"] == "late_release"]
    assert re.search(r"tried to release lock:late; held by .*: refused: its own lease had ended \d+ ms before", told[0])


def said_of_ready(monitored):
    """What the pages, the metrics and PROXY INFO say of whether a lock could be had: ('', all well) or the reason."""
    status, text, _ = monitored.get("/readyz")
    assert status == (200 if text == "ok\n" else 503)
    return "" if status == 200 else text.rstrip("\n")


def becomes_unready(monitored, address, error, role="master"):
    """Everything that tells an operator says so, and why."""
    until(lambda: error in said_of_ready(monitored), 10, "/readyz to say %s, not %r" % (error, said_of_ready(monitored)))
    node = "%s:%d" % address
    assert said_of_ready(monitored).startswith(node + " gives no locks: " + error)
    assert monitored.get("/readyz?all")[0] == 503 and monitored.status()["ready"] is False
    assert monitored.metrics()['lockkeeper_upstream_up{node="%s"}' % node] == 0
    info = monitored.status()["figures"]  # as in PROXY INFO, which needs a login that Redis takes
    assert info["locks_ready"] == "no" and info["locks_not_ready"].startswith("%s gives no locks: %s" % (node, error))
    assert info["node0"].startswith("address=%s,state=" % node) and ",role=%s," % role in info["node0"]


def becomes_ready(monitored):
    until(lambda: monitored.get("/readyz?all")[:2] == (200, "ok\n"), 10, "/readyz to recover")
    assert not said_of_ready(monitored) and monitored.status()["ready"] is True
    assert monitored.status()["figures"]["locks_ready"] == "yes"


def test_not_ready_with_a_wrong_password(start_proxy, start_redis):
    redis = start_redis("--requirepass", "right")
    monitored = Monitored(start_proxy, redis, "upstream-password wrong")
    becomes_unready(monitored, redis.address, "WRONGPASS ")


def test_ready_with_a_password_that_only_clients_know(start_proxy, start_redis, connect):
    """The proxy itself is refused, and its clients get their locks."""
    redis = start_redis("--requirepass", "right")
    monitored = Monitored(start_proxy, redis)
    client = connect(monitored.proxy)
    assert client("AUTH", "right") == "OK" and client("SETNX", "lock:a", "1") == 1

    def questions():
        with redis.client() as direct:
            return int(re.search(r"cmdstat_set:.*rejected_calls=(\d+)|$", direct("INFO", "commandstats")).group(1) or 0)

    until(lambda: questions() >= 2, 10, "two questions of the proxy's own")
    becomes_ready(monitored)


def test_not_ready_in_front_of_a_replica(start_proxy, start_redis):
    master, replica = start_redis(), start_redis()
    with replica.client() as direct:
        direct("REPLICAOF", *master.address)
    monitored = Monitored(start_proxy, replica)
    becomes_unready(monitored, replica.address, "READONLY ", "replica")
    until(lambda: "gives no locks now: READONLY" in monitored.proxy.log(), 10, "the log")
    assert "name its master" in monitored.proxy.log()
    with replica.client() as direct:
        direct("REPLICAOF", "NO", "ONE")
    becomes_ready(monitored)
    assert "gives locks again" in monitored.proxy.log()


@pytest.mark.parametrize("setting, bad, good, error", [("maxmemory", "1", "0", "OOM "),
                                                       ("min-replicas-to-write", "1", "0", "NOREPLICAS ")])
def test_not_ready_where_redis_refuses_writes(start_proxy, start_redis, setting, bad, good, error):
    redis = start_redis()
    monitored = Monitored(start_proxy, redis)
    becomes_ready(monitored)
    with redis.client() as direct:
        direct("CONFIG", "SET", setting, bad)
        becomes_unready(monitored, redis.address, error)
        direct("CONFIG", "SET", setting, good)
    becomes_ready(monitored)


def test_a_part_of_a_cluster_gives_no_locks(start_proxy, start_cluster):
    """/readyz is for balancers, and /readyz?all for alarms."""
    cluster = start_cluster()
    monitored = Monitored(start_proxy, cluster)
    becomes_ready(monitored)
    node = cluster.nodes[1]
    with node.client() as direct:
        direct("CONFIG", "SET", "maxmemory", "1")
        until(lambda: monitored.get("/readyz?all")[0] == 503, 10, "the alarm")
        assert monitored.get("/readyz?all")[1].startswith("%s:%d gives no locks: OOM " % node.address)
        assert not said_of_ready(monitored)
        direct("CONFIG", "SET", "maxmemory", "0")
    becomes_ready(monitored)


def test_questions_of_readiness_hold_up_no_client(start_proxy, start_redis, connect):
    """Redis holds writes back for longer than the upstream's timeout. Reads go on, and no connection is given up."""
    redis = start_redis()
    monitored = Monitored(start_proxy, redis, "upstream-timeout 500ms")
    becomes_ready(monitored)
    client = connect(monitored.proxy)
    assert client("SET", "k", "v") == "OK"
    with redis.client() as direct:
        direct("CLIENT", "PAUSE", 4000, "WRITE")
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            assert client("GET", "k") == "v"
            time.sleep(0.05)
        direct("CLIENT", "UNPAUSE")
        assert direct("DBSIZE") == 1, "the question writes nothing"
    becomes_ready(monitored)
    assert "was lost" not in monitored.proxy.log()


def test_ready_only_while_redis_can_be_reached(start_proxy, start_redis, connect):
    redis = start_redis()
    monitored = Monitored(start_proxy, redis)
    assert monitored.get("/readyz")[:2] == (200, "ok\n")
    redis.kill()
    client = connect(monitored.proxy)

    def unready():
        client("GET", "x")
        return monitored.get("/readyz")[0] == 503

    until(unready, 15, "/readyz to say that the node is gone")
    gone = "%s:%d gives no locks: " % redis.address
    assert monitored.get("/readyz")[1].startswith(gone)
    status, text, _ = monitored.get("/readyz?all")
    assert status == 503 and text.startswith(gone)
    assert monitored.get("/healthz")[0] == 200
    assert monitored.status()["ready"] is False
    redis.start()
    until(lambda: client("GET", "x") is None and monitored.get("/readyz")[0] == 200, 15,
          "/readyz to recover")


def test_a_port_that_is_taken_is_an_error_at_start(start_redis):
    from servers import Proxy
    redis = start_redis()
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        proxy = Proxy(redis, "admin-port %d" % port, wait=False)
        try:
            proxy.expected = False
            assert proxy.process.wait(10) == 1
            assert "admin-port %d: can't listen on admin-bind 127.0.0.1: Address already in use" % port in proxy.log()
        finally:
            proxy.kill()
            Proxy.started.remove(proxy)


def test_visitors_who_stall_harm_nobody(monitored, connect):
    """Many connections that send half a request, or never read: clients and other visitors are served."""
    stalled = [socket.create_connection((HOST, monitored.port)) for _ in range(40)]
    for s in stalled:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHo")
    assert connect(monitored.proxy)("PING") == "PONG"
    assert monitored.get("/healthz")[0] == 200
    for s in stalled:
        s.close()


def test_metrics_of_rules_configuration_and_process(start_proxy, start_redis, connect, certificates):
    port = free_port()
    proxy = start_proxy(start_redis(), "admin-port %d" % port, "lock lock:report:* lease 2m", "lock lock:*", "lock lock:* wait 1s",
                        *certificates.server_lines(free_port()))
    monitored = Monitored.of(proxy, port)
    client = connect(proxy)
    for _ in range(3):
        client("SETNX", "lock:report:1", "1")
    client("SETNX", "lock:2", "1")
    m = monitored.metrics()
    hits = {name: value for name, value in m.items() if name.startswith("lockkeeper_rule_hits_total")}
    assert hits == {'lockkeeper_rule_hits_total{rule="lock:report:*"}': 3, 'lockkeeper_rule_hits_total{rule="lock:*"}': 1}
    assert 0 <= m["process_open_fds"] - len(os.listdir("/proc/%d/fd" % proxy.pid)) <= 1  # with the connection that asked
    assert m["process_max_fds"] >= 1024 and m["process_resident_memory_bytes"] > 1e6 and m["process_cpu_seconds_total"] > 0
    assert abs(m["process_start_time_seconds"] - time.time()) < 60
    assert m["lockkeeper_config_last_reload_successful"] == 1
    assert abs(m["lockkeeper_config_last_load_timestamp_seconds"] - time.time()) < 60
    end = m['lockkeeper_certificate_end_timestamp_seconds{side="clients"}']
    text = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", certificates.path("server.crt")],
                          capture_output=True, text=True, check=True).stdout
    assert end == ssl.cert_time_to_seconds(text.strip().split("=", 1)[1])
    assert 'lockkeeper_certificate_end_timestamp_seconds{side="upstream"}' not in m
    good = open(proxy.config).read()
    for text, successful in ((good + "nonsense 1\n", 0), (good, 1)):
        with open(proxy.config, "w") as f:
            f.write(text)
        client("PROXY", "RELOAD")
        assert monitored.metrics()["lockkeeper_config_last_reload_successful"] == successful


def browse(page, profile, *options):
    """A page, or the one of a port, as a browser has it after its scripts have asked: as HTML unless the options say otherwise."""
    page = page if isinstance(page, str) else "http://%s:%d/" % (HOST, page)
    return subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                           "--hide-scrollbars", "--user-data-dir=%s" % profile, "--virtual-time-budget=5000",
                           *(options or ["--dump-dom"]), page],
                          capture_output=True, text=True, timeout=180).stdout


browser = pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")


@browser
def test_the_page_in_a_browser(monitored, connect, tmp_path):
    a, b = connect(monitored.proxy), connect(monitored.proxy)
    a("SET", "lock:<i>seen</i>", "1", "NX", "PX", "60000")
    assert b.at_once(("SET", "lock:<i>seen</i>", "1", "NX", "PX", "60000"), ("DEL", "lock:<i>seen</i>")) == [None, 0]
    dom = browse(monitored.port, tmp_path / "before")
    assert '<span id="state" class="state good">serving</span>' in dom
    for _ in range(12):
        assert b("SET", "mutex:<i>one</i>", "1", "NX", "PX", "60000") == "OK" and b("DEL", "mutex:<i>one</i>") == 1
    dom = browse(monitored.port, tmp_path / "then")
    assert '<span id="state" class="state warn">serving, but look here</span>' in dom
    assert '<div id="wrong"><div class="warn">1 key pattern looks like a lock and matches no rule: PROXY ADVISE<small>' in dom
    assert "1 without a rule to add: PROXY ADVISE" in dom  # of lock:*
    assert dom.count("lock:&lt;i&gt;seen&lt;/i&gt;") >= 4  # held, fought over, in an incident and their sum
    assert "tried to release lock:&lt;i&gt;seen&lt;/i&gt;; held by" in dom
    assert '<code class="line">lock mutex:&lt;i&gt;one&lt;/i&gt;' in dom
    assert "<i>" not in dom.split("</style>")[1].split("<script>")[0].replace("<i style", "")


@browser
def test_the_page_names_what_is_wrong(start_redis, start_proxy, connect, tmp_path):
    """Amber, and the reason: a lease that ended while its worker was at work, waiting clients, rules and their hits, the oldest
    lock first."""
    port = free_port()
    proxy = start_proxy(start_redis(), "admin-port %d" % port, "lock lock:* wait 60s", "fence stock:* by lock:stock:*")
    holder, waiter = connect(proxy), connect(proxy)
    assert holder("CLIENT", "SETNAME", "nightly") == "OK"
    assert holder("SETNX", "lock:released", "1") == holder("DEL", "lock:released") == 1  # so a release is expected of it
    assert holder("SET", "lock:overrun", "1", "NX", "PX", "50") == "OK"
    until(lambda: "overrun" in str(holder("PROXY", "INCIDENTS")), 15, "the end of the lease")
    for name in ("lock:older", "lock:newer"):
        assert holder("SETNX", name, "1") == 1
        until(lambda: holder("PTTL", name) < 29990, 15, "some milliseconds")
    waiter.send(encode("SETNX", "lock:newer", "2"))
    until(lambda: "waiting:1\r" in holder("PROXY", "INFO", "locks"), 15, "the one who waits")
    dom = browse(port, tmp_path)
    assert '<span id="state" class="state warn">serving, but look here</span>' in dom
    assert "overrun: last at" in dom and "lock:overrun by " in dom
    body = dom.split("</style>")[1].split("<script>")[0]
    assert "<code>fence stock:* by lock:stock:* mode enforce" in body and "undefined" not in body
    assert '<div class="bad">overrun: last at' in body and '<span class="kind bad">overrun</span>' in body
    assert '<span class="kind soft">no expiry</span>' in body, "by severity"
    held = dom[dom.index('id="locks"'):]
    assert held.index(">lock:older<") < held.index(">lock:newer<")
    assert "1 waits, the longest for " in dom and "%s:%d" % waiter.sock.getsockname()[:2] in dom
    assert re.search(r'<code>lock:\* [^<]*wait 1m[^<]*</code></td><td class="number" data-name="hits">[1-9]', dom)


@browser
def test_the_page_fits_a_telephone(monitored, connect, tmp_path):
    """Nothing is wider than the window, whose width is what a browser says it is. The page is a copy that knows its answer,
    since it has to say how wide it is."""
    holder, loser, name = connect(monitored.proxy), connect(monitored.proxy), "lock:" + "long-name" * 20
    assert holder("SET", name, "1", "NX", "PX", "60000") == "OK"
    assert loser.at_once(("SET", name, "1", "NX", "PX", "60000"), ("DEL", name)) == [None, 0]
    page, status = monitored.get("/")[1], monitored.status()
    assert status["locks"] and status["summary"] and status["rules"]
    page = page.replace('await fetch("status.json", {cache: "no-store"})', "{ok: true, json: () => (%s)}" % json.dumps(status))
    said = "document.body.dataset.widths = [document.documentElement.scrollWidth, innerWidth].join()"
    copy = tmp_path / "page.html"
    copy.write_text(page.replace("    before = now;", "    before = now; %s;" % said))
    dom = browse("file://%s" % copy, tmp_path / "profile", "--window-size=400,2000", "--dump-dom")
    wide, window = map(int, re.search(r'data-widths="(\d+),(\d+)"', dom).groups())
    assert wide <= window <= 600 and name in dom


def test_info_has_the_nodes_of_all_threads(start_redis, start_proxy, connect):
    proxy = start_proxy(start_redis(), "threads 3")
    clients = [connect(proxy) for _ in range(24)]
    for client in clients:
        assert client("GET", "k") is None

    def of_the_node(field):
        (line,) = [l for l in clients[0]("PROXY", "INFO", "upstreams").splitlines() if l.startswith("node")]
        return int(dict(part.split("=") for part in line.split(":", 1)[1].split(","))[field])
    until(lambda: of_the_node("requests") >= len(clients) and of_the_node("connections") >= 2)
