"""lockkeeper --advise and --advise-from: PROXY ADVISE's report for servers without a proxy."""

import re
import signal
import subprocess
import threading
import time

import pytest
import redis

import servers
from servers import until

SECONDS = 60  # more than a test takes: each ends it by SIGINT


class Listener:
    """`lockkeeper --advise` at work."""

    def __init__(self, upstream, *words, seconds=SECONDS, file=()):
        self.process = subprocess.Popen(
            [servers.binary(), "--advise", "%ds" % seconds, *file, "--upstream", *upstream.split(), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))

    def listens(self, nodes=1):
        until(lambda: sum(" listening to " in line for line in self.said) == nodes or self.process.poll() is not None)
        assert self.process.poll() is None, self.said
        return self

    def end(self):
        """Standard output's lines, the status, standard error's lines."""
        out = self.process.stdout.read()
        status = self.process.wait(30)
        self.reader.join(30)
        return out.splitlines(), status, self.said

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.end()


def line_of(lines, start):
    (line,) = [line for line in lines if line.startswith(start)]
    return line


def unsafe_workers(connect, prefix, rounds=16):
    """SETNX, EXPIRE, and DEL in `finally`, by losers too; SET NX whose DEL comes after its lock has ended and another holds it;
    and redis-py's Lock."""
    first, second = connect("shop"), connect("shop")
    for i in range(rounds):
        key = prefix + "%d:plain" % (i % 2)
        assert first.setnx(key, "1")
        first.expire(key, 30)
        assert not second.setnx(key, "1")
        second.delete(key)
        first.delete(key)
        late = prefix + "%d:late" % i
        assert first.set(late, "1", nx=True, px=20)
        until(lambda: second.set(late, "1", nx=True, px=30000))
        first.delete(late)
        second.delete(late)
        with first.lock(prefix + "%d:lock" % i, timeout=20):
            pass


def advised(lines, prefix):
    plain = line_of(lines, prefix + "*:plain by 127.0.0.1 name=shop: ")
    assert "losers delete: " in plain and ", without expiry " in plain
    assert plain.endswith(" events: lock %s*:plain owner connection" % prefix) or plain.endswith("lock %s*:plain" % prefix)
    lock = line_of(lines, prefix + "*:lock by 127.0.0.1 name=shop: ")
    assert "values distinct" in lock and lock.endswith("lock %s*:lock" % prefix)
    assert [line for line in lines if line.startswith(prefix + "*:late by ") and (", late " in line)]
    assert [line for line in lines if line.endswith(" like locks and match no rule")]
    assert line_of(lines, "# MONITOR shows no replies: ") and line_of(lines, "# MONITOR does not show which ")


def test_one_redis():
    server = servers.RedisServer()
    try:
        listener = Listener(server.upstream()).listens()
        assert "MONITOR makes Redis send every command here for 1m: " in listener.said[0]
        unsafe_workers(lambda name: redis.Redis(port=server.port, client_name=name), "app:")
        lines, status, said = listener.interrupt()
        assert status == 0 and said[-1] == "lockkeeper: ended early: interrupted"
        advised(lines, "app:")
        assert "1" not in [line.split()[-1] for line in lines]  # no value is shown
    finally:
        server.stop()


def test_a_cluster():
    cluster = servers.RedisCluster()
    try:
        listener = Listener(cluster.upstream()).listens(3)
        port = cluster.nodes[0].port
        unsafe_workers(lambda name: redis.RedisCluster(host="127.0.0.1", port=port, client_name=name), "app:", 40)
        lines, status, _ = listener.interrupt()
        assert status == 0
        advised(lines, "app:")
    finally:
        cluster.stop()


def test_a_dead_lock():
    """Its owner is gone, as CLIENT LIST shows a few seconds later; later attempts are lost."""
    server = servers.RedisServer()
    try:
        listener = Listener(server.upstream()).listens()
        other = redis.Redis(port=server.port)
        owner = redis.Redis(port=server.port, client_name="cron")
        assert owner.setnx("app:report", "1")
        owner.connection_pool.disconnect()
        lists = lambda: other.info("commandstats").get("cmdstat_client|list", {}).get("calls", 0)
        before = lists()
        until(lambda: lists() >= before + 2, timeout=30)
        for _ in range(20):  # the answer to that may come a moment later
            assert not other.setnx("app:report", "1")
            time.sleep(0.02)
        lines, status, _ = listener.interrupt()
        assert status == 0
        dead = line_of(lines, "dead lock: app:report by 127.0.0.1 name=cron: no expiry, its owner is gone, ")
        assert dead.endswith("DEL it, and let it end by itself from now on: lock app:report")
    finally:
        server.stop()


def test_tls(certificates, tmp_path):
    server = servers.RedisServer(tls=certificates)
    try:
        conf = tmp_path / "lockkeeper.conf"
        conf.write_text("\n".join(certificates.upstream_lines()) + "\n")
        listener = Listener(server.upstream(), file=[str(conf)]).listens()
        with server.direct() as client:
            for _ in range(12):
                assert client("SET", "app:1:lock", "1", "NX", "EX", "50") == "OK"
                assert client("DEL", "app:1:lock") == 1
        lines, status, _ = listener.interrupt()
        assert status == 0 and "acquired 12, lost 0, released 12" in line_of(lines, "app:*:lock by ")
    finally:
        server.stop()


def test_sentinels():
    found = servers.RedisSentinels(replicas=0, sentinels=1)
    try:
        listener = Listener(found.upstream()).listens()
        unsafe_workers(lambda name: redis.Redis(port=found.master.port, client_name=name), "app:")
        lines, status, _ = listener.interrupt()
        assert status == 0
        advised(lines, "app:")
    finally:
        found.stop()


def test_a_capture_that_is_interrupted():
    reader = subprocess.Popen([servers.binary(), "--advise-from", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for i in range(4000):
        reader.stdin.write('17000%05d.000000 [0 127.0.0.1:4000] "%s" "app:lock" "1"\n' % (i, "DEL" if i % 2 else "SETNX"))
    reader.stdin.flush()
    until(lambda: " S " in open("/proc/%d/stat" % reader.pid).read())  # it has read all, and waits for more
    reader.send_signal(signal.SIGINT)
    lines = reader.stdout.read().splitlines()
    assert reader.wait(30) == 0
    assert lines[0].startswith("# ") and line_of(lines, "app:lock by 127.0.0.1: ")
    reader.stdin.close()


def test_it_ends_by_itself():
    server = servers.RedisServer()
    try:
        lines, status, _ = Listener(server.upstream(), seconds=1).end()
        assert status == 0 and lines[-1] == "nothing was seen that looks like a lock"
    finally:
        server.stop()


def test_redis_is_asked_for_locks_from_before():
    """The attempts have an expiry, so only a PTTL can show that the lock has none."""
    server = servers.RedisServer()
    try:
        client = redis.Redis(port=server.port)
        assert client.setnx("app:dead", "1")
        listener = Listener(server.upstream()).listens()
        attempt = lambda: client.set("app:dead", "1", nx=True, px=20)
        until(lambda: not attempt() and client.info("commandstats").get("cmdstat_pttl"))
        for _ in range(30):
            time.sleep(0.03)  # longer than the expiry
            assert not attempt()
        lines, status, _ = listener.interrupt()
        assert status == 0
        line = line_of(lines, "app:dead by 127.0.0.1: ")
        acquired, lost = map(int, re.search(r" acquired (\d+), lost (\d+)", line).groups())
        assert acquired <= 3 and lost >= 28, line  # an attempt may come before the answer to PTTL
    finally:
        server.stop()


def test_a_capture(tmp_path):
    server = servers.RedisServer()
    path = tmp_path / "capture"
    try:
        with open(path, "wb") as out:
            monitor = subprocess.Popen(["redis-cli", "-p", str(server.port), "MONITOR"], stdout=out)
            until(lambda: path.stat().st_size > 0)
            unsafe_workers(lambda name: redis.Redis(port=server.port, client_name=name), "app:")
            redis.Redis(port=server.port).set("\x00\n\"\\end\xff", "1")
            until(lambda: b"end" in path.read_bytes())
            monitor.terminate()
            monitor.wait()
    finally:
        server.stop()
    with open(path, "ab") as out:
        out.write(b"\nthis is no line\n" + b"x" * (2 << 20) + b"\n" + b"1700000000.123456 [0 a:1] \"GET")
    for words, given in [([str(path)], None), (["-"], path.read_bytes())]:
        done = subprocess.run([servers.binary(), "--advise-from", *words], input=given, capture_output=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.decode().splitlines()
        advised(lines, "app:")
        assert "; 3 lines that are not MONITOR's; 1 longer than 1 MB were left out" in lines[0]


def test_redis_hangs_up():
    server = servers.RedisServer()
    try:
        listener = Listener(server.upstream()).listens()
        unsafe_workers(lambda name: redis.Redis(port=server.port, client_name=name), "app:")
        server.kill()
        lines, status, said = listener.end()
        assert status == 0 and ": MONITOR has ended: " in said[-1]
        advised(lines, "app:")
    finally:
        server.stop()


def test_a_password():
    server = servers.RedisServer("--requirepass", "secret")
    try:
        lines, status, said = Listener(server.upstream(), "--upstream-password", "wrong").end()
        assert (lines, status) == ([], 1) and "WRONGPASS" in said[-1], said
        lines, status, said = Listener(server.upstream()).end()
        assert (lines, status) == ([], 1) and "NOAUTH" in said[-1], said
        lines, status, said = Listener(server.upstream(), "--upstream-password", "secret", seconds=1).end()
        assert status == 0 and "secret" not in "".join(lines + said)
    finally:
        server.stop()


def test_rights():
    """MONITOR may be refused; CLIENT, ECHO and PTTL may be, without which less is known."""
    server = servers.RedisServer()
    try:
        client = redis.Redis(port=server.port)
        client.execute_command("ACL", "SETUSER", "few", "on", ">few", "~*", "+@all", "-monitor")
        client.execute_command("ACL", "SETUSER", "most", "on", ">most", "-@all", "+monitor", "+hello")
        lines, status, said = Listener(server.upstream(), "--upstream-user", "few", "--upstream-password", "few").end()
        assert (lines, status) == ([], 1) and "NOPERM" in said[-1], said
        most = ("--upstream-user", "most", "--upstream-password", "most")
        listener = Listener(server.upstream(), *most).listens()
        unsafe_workers(lambda name: redis.Redis(port=server.port, client_name=name), "app:")
        lines, status, _ = listener.interrupt()
        assert status == 0
        advised(lines, "app:")
    finally:
        server.stop()


def test_nobody_there():
    lines, status, said = Listener("standalone 127.0.0.1:%d" % servers.free_port()).end()
    assert (lines, status) == ([], 1) and "refused" in said[-1], said


@pytest.mark.parametrize("words, error", [
    (["--advise"], "--advise '': expected a time"),
    (["--advise", "soon", "--upstream", "standalone", "127.0.0.1:1"], "--advise 'soon': expected a time"),
    (["--advise", "10m"], "--advise: name the Redis to listen to"),
    (["--advise", "10m", "--upstram", "standalone"], "did you mean"),
    (["--advise-from", "/nowhere/at/all"], "--advise-from '/nowhere/at/all': No such file"),
])
def test_wrong_words(words, error):
    done = subprocess.run([servers.binary(), *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and error in done.stderr and done.stdout == ""
