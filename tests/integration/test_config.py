"""Start, configuration, reload, stop."""

import os
import signal
import socket
import subprocess

import pytest

from resp import Client, Closed, Error, encode
from servers import HOST, REPORT, RedisServer, binary, free_port, proxy_environment, until


def run(*args, timeout=30):
    return subprocess.run([binary(), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=timeout, env=proxy_environment(), text=True)


def test_version():
    done = run("--version")
    assert done.returncode == 0
    assert "lockkeeper" in done.stdout.lower() and any(c.isdigit() for c in done.stdout)
    assert len(done.stdout.strip().splitlines()) == 1


def test_help():
    done = run("--help")
    assert done.returncode == 0
    for word in ("--version", "--test-conf", "upstream", "lock"):
        assert word in done.stdout


# A configuration, and what the one line about it must name.
BAD = {
    "quorum without witnesses": ("lock a quorum yes", ["lock", "quorum", "witness"]),
    "quorum of lists": ("lock a quorum yes kind list\nwitness a:1", ["lock", "quorum", "kind string"]),
    "six witnesses": ("witness a:1 b:1 c:1 d:1 e:1 f:1", ["witness", "1 to 5"]),
    "port out of range": ("port 70000", ["port", "70000", "65535"]),
    "port no number": ("port abc", ["port", "abc"]),
    "port negative": ("port -1", ["port", "-1"]),
    "unknown directive": ("nosuchdirective 1", ["nosuchdirective"]),
    "no value": ("port", ["port"]),
    "too many values": ("port 1 2", ["port"]),
    "upstream kind": ("upstream nosuch 127.0.0.1:6379", ["upstream", "nosuch", "cluster"]),
    "upstream without address": ("upstream standalone", ["upstream", "standalone"]),
    "upstream without port": ("upstream standalone localhost", ["upstream", "localhost"]),
    "upstream bad port": ("upstream cluster 127.0.0.1:7000 127.0.0.1:99999", ["upstream", "99999"]),
    "threads none": ("threads 0", ["threads", "0"]),
    "threads many": ("threads 1000", ["threads", "1000"]),
    "time": ("upstream-timeout soon", ["upstream-timeout", "soon"]),
    "time negative": ("upstream-timeout -5s", ["upstream-timeout", "-5s"]),
    "size": ("proto-max-bulk-len huge", ["proto-max-bulk-len", "huge"]),
    "loglevel": ("loglevel chatty", ["loglevel", "chatty", "notice"]),
    "lock without pattern": ("lock", ["lock"]),
    "lock option": ("lock a:* nosuch 1", ["lock", "nosuch"]),
    "lock mode": ("lock a:* mode maybe", ["lock", "mode", "maybe", "enforce"]),
    "lock owner": ("lock a:* owner me", ["lock", "owner", "me", "auto"]),
    "lock lease": ("lock a:* lease long", ["lock", "lease", "long"]),
    "lock semaphore": ("lock a:* kind semaphore wait 1s", ["lock", "semaphore", "wait", "lease"]),
    "lock option without value": ("lock a:* lease", ["lock", "lease"]),
    "lock renew": ("lock a:* renew sometimes", ["lock", "renew", "sometimes", "always"]),
    "lock lock-delay": ("lock a:* lock-delay 1m", ["lock", "lock-delay", "10s"]),
    "lock on-loss": ("lock a:* on-loss hang", ["lock", "on-loss", "hang", "close"]),
    "lock on-disconnect": ("lock a:* on-disconnect explode", ["lock", "on-disconnect", "explode", "release"]),
    "lock one-shot": ("lock a:* one-shot often", ["lock", "one-shot", "often", "24h"]),
    "client identity": ("client-identity address shoe-size", ["client-identity", "shoe-size"]),
    "quotes": ('logfile "abc', ["logfile"]),
    "output limit": ("client-output-buffer-limit normal lots 0 0", ["client-output-buffer-limit", "lots"]),
    "include": ("include /nonexistent/lockkeeper.conf", ["include", "/nonexistent/lockkeeper.conf"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configuration(tmp_path, name):
    """One line that names directive, value and what was expected; exit status 1."""
    text, words = BAD[name]
    path = tmp_path / "bad.conf"
    path.write_text("# a comment\n\n%s\n" % text)
    for args in ([str(path)], ["--test-conf", str(path)]):
        done = run(*args)
        assert done.returncode == 1, done.stdout
        lines = done.stdout.strip().splitlines()
        assert len(lines) == 1, done.stdout
        for word in words:
            assert word in lines[0], (word, lines[0])
        assert "bad.conf" in lines[0] and "3" in lines[0], "the file and the line: " + lines[0]
        assert not REPORT.search(done.stdout)


@pytest.mark.parametrize("args, words", [
    (["--port", "abc"], ["port", "abc"]),
    (["--nosuch", "1"], ["nosuch"]),
    (["--lock", "a:*", "lease", "long"], ["lock", "lease", "long"]),
    (["--upstream"], ["upstream"]),
    (["/nonexistent/lockkeeper.conf"], ["/nonexistent/lockkeeper.conf"]),
    (["--port", "6380", "stray\x01", "words"], ["port"]),
], ids=lambda value: " ".join(value).replace("\x01", "?") if isinstance(value, list) else None)
def test_bad_command_line(args, words):
    done = run(*args)
    assert done.returncode == 1, done.stdout
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, done.stdout
    for word in words:
        assert word in lines[0]


def test_test_conf(tmp_path):
    path = tmp_path / "good.conf"
    path.write_text("port 7777\nupstream standalone 127.0.0.1:6379\nlock lock:* owner connection lease 10s\n"
                    "upstream-timeout 500ms\nproto-max-bulk-len 64mb\nloglevel notice\n")
    for words in (["--test-conf", str(path)], [str(path), "--test-conf"], [str(path), "--port", "7778", "--test-conf"]):
        done = run(*words)
        assert (done.returncode, done.stdout) == (0, "Configuration OK\n")


def test_test_conf_warns(tmp_path):
    path = tmp_path / "doubtful.conf"
    path.write_text("upstream cluster 127.0.0.1:1 no-such-host.invalid:6379\nlock lock:* wait 10s\n")
    done = run("--test-conf", str(path))
    assert done.returncode == 0, done.stdout
    assert "Warning: lock lock:*: clients may give up before wait is over" in done.stdout
    assert "Warning: upstream no-such-host.invalid:6379: the name does not resolve" in done.stdout
    assert done.stdout.count("Warning") == 2


def refusal(*args):
    """What --test-conf says about it, line by line; a start says the same."""
    tried, started = run("--test-conf", *args), run(*args)
    assert tried.returncode == started.returncode == 1, tried.stdout
    assert tried.stdout == started.stdout
    assert not REPORT.search(tried.stdout)
    return tried.stdout.strip().splitlines()


START_REFUSES = {
    "nobody can connect": ("port 0", "port 0: expected a tls-port or a unixsocket too, or no client can connect"),
    "no address": ("bind 1.2.3.4.5", "bind '1.2.3.4.5': expected an address of this machine"),
    "address of another": ("bind 203.0.113.5", "port 6380: can't listen on 203.0.113.5: Cannot assign requested address"),
    "no address at all": ('bind ""', "bind '': expected at least one address"),
    "only addresses that are missing": ("bind -203.0.113.5", "bind: expected at least one address of this machine"),
    "user without password": ("upstream-user bob", "upstream-user: expected upstream-password too"),
    "Sentinels' user without password": ("sentinel-user bob", "sentinel-user: expected sentinel-password too"),
    "folder of the log": ("logfile /nonexistent/log", "logfile '/nonexistent/log': expected a file that can be written"),
    "a folder as log": ("logfile /tmp", "logfile '/tmp': expected a file that can be written: Is a directory"),
    "pid file": ("pidfile /nonexistent/pid", "pidfile '/nonexistent/pid': expected a file that can be written"),
    "unix socket": ("unixsocket /nonexistent/s", "unixsocket '/nonexistent/s': can't listen: No such file or directory"),
    "a file where the socket would be": ("unixsocket /etc/passwd", "unixsocket '/etc/passwd': can't listen: File exists"),
    "certificate": ("upstream-tls yes\nupstream-tls-ca-cert-file /nonexistent",
                    "upstream-tls-ca-cert-file '/nonexistent': expected certificates in a PEM file that can be read"),
    "the same port twice": ("port 6380\nbind 127.0.0.1\nadmin-port 6380",
                            "admin-port 6380: can't listen on admin-bind 127.0.0.1: port has it already"),
    "the same address twice": ("port 6380\nbind 127.0.0.1 127.0.0.1",
                               "port 6380: can't listen on 127.0.0.1: another address of bind has it already"),
    "admin's address": ("admin-port 6381\nadmin-bind 1.2.3.4.5", "can't listen on admin-bind 1.2.3.4.5: expected an address"),
}


@pytest.mark.parametrize("name", START_REFUSES)
def test_test_conf_refuses_what_start_refuses(tmp_path, name):
    text, words = START_REFUSES[name]
    path = tmp_path / "bad.conf"
    path.write_text(text + "\n")
    lines = refusal(str(path), "--upstream", "standalone", "127.0.0.1:1")
    assert len(lines) == 1 and words in lines[0], lines
    assert str(path) + ":" in lines[0], "the file and the line: " + lines[0]
    assert os.path.exists("/etc/passwd")


def test_all_errors_are_named(tmp_path):
    path = tmp_path / "bad.conf"
    path.write_text("port abc\nlock a:* lease long\nlogfile /nonexistent/log\nupstream-tls yes\nnosuch s3cret\n"
                    "upstream-tls-ca-cert-file /nonexistent.pem\nupstream-tls-cert-file /nonexistent.pem\n"
                    "upstream-tls-key-file /nonexistent.pem\nbind 1.2.3.4.5 127.0.0.1 5.6.7.8.9\nrequirepass a s3cret\n"
                    "tls-port 1234\n")
    lines = refusal(str(path))
    found = {int(line.split("bad.conf:")[1].split(":")[0]) for line in lines if "bad.conf:" in line}
    assert found == {1, 2, 3, 5, 6, 7, 8, 9, 10}
    assert sum("bind '" in line for line in lines) == 2, lines
    assert sum("tls-cert-file: expected a certificate, as tls-port is used" in line for line in lines) == 1
    assert lines[-1].endswith("not started: %d errors in the configuration" % (len(lines) - 1))
    assert "s3cret" not in str(lines)


def test_test_conf_leaves_nothing_behind(server, start_proxy, connect, tmp_path):
    """It may run beside the proxy of the same configuration, and touches neither its ports nor its files."""
    log, pid, path = tmp_path / "log", tmp_path / "pid", str(tmp_path / "sock")
    admin = free_port()
    proxy = start_proxy(server, "unixsocket " + path, "admin-port %d" % admin)
    done = run("--test-conf", proxy.config, "--logfile", str(log), "--pidfile", str(pid))
    assert done.returncode == 0, done.stdout
    assert not log.exists() and not pid.exists()
    assert connect(path)("PING") == connect(proxy)("PING") == "PONG"


def test_port_taken():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--bind", HOST, "--port", str(port), "--upstream", "standalone", "127.0.0.1:1")
        assert done.returncode == 1, done.stdout
        assert str(port) in done.stdout and "in use" in done.stdout.lower(), done.stdout
        assert "Ready to accept" not in done.stdout


@pytest.fixture(scope="module")
def server():
    server = RedisServer()
    yield server
    server.stop()


def test_command_line_is_as_redis_has_it(server, tmp_path):
    """--DIRECTIVE VALUE ... behind a file overrides it."""
    path = tmp_path / "lockkeeper.conf"
    port = free_port()
    path.write_text("port 1\nbind %s\nupstream standalone 127.0.0.1:1\n" % HOST)
    process = subprocess.Popen([binary(), str(path), "--port", str(port), "--upstream", "standalone", "%s:%d" % server.address,
                                "--lock", "mine:*", "lease", "5s", "--lock", "other:*"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=proxy_environment(), text=True)
    try:
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        with Client((HOST, port)) as c:
            assert c("SETNX", "mine:1", "x") == 1
            assert 0 < c("PTTL", "mine:1") <= 5000
            assert c("SETNX", "other:1", "x") == 1
            assert 5000 < c("PTTL", "other:1") <= 30000
            assert c("SETNX", "lock:1", "x") == 1
            assert c("PTTL", "lock:1") == -1, "the default rule is replaced by the given ones"
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_default_rule(server, start_proxy, connect):
    client = connect(start_proxy(server))
    assert client("SETNX", "lock:default", "x") == 1
    assert 25000 < client("PTTL", "lock:default") <= 30000
    assert client("SETNX", "elsewhere:default", "x") == 1
    assert client("PTTL", "elsewhere:default") == -1


def test_include_quotes_comments_units(server, start_proxy, connect, tmp_path):
    (tmp_path / "more.conf").write_text("# rules\nlock \"with space:*\" lease 1m\n\n  lock 'b:*'   lease   1500ms  \n")
    client = connect(start_proxy(server, "include %s" % (tmp_path / "more.conf")))
    assert client("SETNX", "with space:1", "x") == 1
    assert 30000 < client("PTTL", "with space:1") <= 60000
    assert client("SETNX", "b:1", "x") == 1
    assert 0 < client("PTTL", "b:1") <= 1500


def test_unix_socket(server, start_proxy, connect, tmp_path):
    path = str(tmp_path / "proxy.sock")
    proxy = start_proxy(server, "unixsocket " + path, "unixsocketperm 700")
    client = connect(path)
    assert client("SET", "k", "v") == "OK"
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert connect(proxy)("GET", "k") == "v"
    assert client("SETNX", "lock:unix", "1") == 1
    assert connect(path, commands=[("CLIENT", "SETNAME", "another")])("DEL", "lock:unix") == 0
    assert connect(proxy)("DEL", "lock:unix") == 0, "of another address"
    assert client("DEL", "lock:unix") == 1


def test_upstream_over_a_unix_socket(start_redis, start_proxy, connect, tmp_path):
    path = str(tmp_path / "redis.sock")
    start_redis("--unixsocket", path)
    client = connect(start_proxy("standalone unix:" + path))
    assert client("SET", "k", "v") == "OK"
    assert client("GET", "k") == "v"


def test_embedded(start_proxy, connect):
    """Its own private redis-server, and the log says that nothing is kept."""
    proxy = start_proxy("embedded")
    client = connect(proxy)
    assert client("SETNX", "lock:a", "1") == 1
    assert client("DEL", "lock:a") == 1
    child = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == proxy.pid]
    assert len(child) == 1
    assert "kept" in proxy.log() or "embedded" in proxy.log()
    proxy.stop()
    until(lambda: not os.path.exists("/proc/%d" % child[0]), 10, "the end of its redis-server")


def parent(pid):
    try:
        with open("/proc/%s/stat" % pid) as f:
            return int(f.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def test_embedded_is_the_default(tmp_path):
    port = free_port()
    process = subprocess.Popen([binary(), "--port", str(port), "--bind", HOST], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=proxy_environment(), text=True)
    try:
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        with Client((HOST, port)) as c:
            assert c("SET", "k", "v") == "OK"
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_pidfile_and_logfile(server, start_proxy, tmp_path):
    pid, log = tmp_path / "proxy.pid", tmp_path / "proxy.log"
    proxy = start_proxy(server, "pidfile %s" % pid, "logfile %s" % log, wait=False)
    until(lambda: log.exists() and "Ready to accept connections" in log.read_text(), 20, "the log file")
    until(pid.exists, 15, "the pid file")
    assert int(pid.read_text()) == proxy.pid
    line = next(line for line in log.read_text().splitlines() if "Ready" in line)
    assert line.startswith("%d:" % proxy.pid), "Redis's style: " + line
    proxy.stop()
    assert not pid.exists()


def test_passwords_are_not_logged(start_redis, start_proxy, connect):
    server = start_redis("--requirepass", "upstream-s3cret")
    proxy = start_proxy(server, "upstream-password upstream-s3cret", "requirepass proxy-s3cret", "loglevel debug")
    client = connect(proxy)
    assert client("GET", "k").startswith("NOAUTH")
    assert isinstance(client("AUTH", "client-wr0ng"), Error)
    assert client("AUTH", "proxy-s3cret") == "OK"
    assert client("SETNX", "lock:k", "1") == 1
    proxy.stop()
    for secret in ("upstream-s3cret", "proxy-s3cret", "client-wr0ng"):
        assert secret not in proxy.log()


def test_upstream_user(start_redis, start_proxy, connect):
    server = start_redis()
    server.run("ACL", "SETUSER", "proxyuser", "on", ">pw", "~*", "+@all")
    server.run("ACL", "SETUSER", "default", "off")
    proxy = start_proxy("standalone %s:%d" % server.address, "upstream-user proxyuser", "upstream-password pw")
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    assert client("SETNX", "lock:k", "1") == 1


def test_wrong_upstream_password(start_redis, start_proxy, connect):
    """The node refuses the proxy: its words reach the client, and the log."""
    server = start_redis("--requirepass", "right")
    proxy = start_proxy("standalone %s:%d" % server.address, "upstream-password wrong", wait=False)
    until(lambda: "Ready to accept" in proxy.log() or not proxy.running(), 20, "the proxy")
    if proxy.running():
        reply = connect(proxy)("GET", "k")
        assert isinstance(reply, Error) and ("WRONGPASS" in reply or "NOAUTH" in reply), reply


# ---- stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clean_stop(server, start_proxy, connect, number):
    proxy = start_proxy(server)
    idle, client = connect(proxy), connect(proxy)
    assert idle("PING") == client("PING") == "PONG"
    proxy.expected = False
    proxy.signal(number)
    assert proxy.process.wait(20) == 0
    with pytest.raises(Closed):
        client.read()


def test_stop_finishes_what_is_in_flight(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server)
    client = connect(proxy)
    assert client("SET", "k", "v") == "OK"
    server.pause()
    client.send(encode("GET", "k") + encode("SETNX", "lock:k", "1"))
    until(lambda: waiting(server) > 0, 10, "the requests' way to the node")
    proxy.expected = False
    proxy.signal(signal.SIGTERM)
    until(lambda: refused(proxy.address), 10, "the end of its listening")
    assert proxy.running()
    server.resume()
    assert client.read() == "v"
    assert client.read() == 1
    assert proxy.process.wait(20) == 0


def waiting(server):
    """Bytes that the stopped server has not read yet."""
    total = 0
    with open("/proc/net/tcp") as f:
        for line in f.readlines()[1:]:
            parts = line.split()
            if int(parts[1].split(":")[1], 16) == server.port and parts[3] == "01":
                total += int(parts[4].split(":")[1], 16)
    return total


def refused(address):
    try:
        socket.create_connection(address, timeout=1).close()
        return False
    except OSError:
        return True


def test_second_signal_exits_at_once(start_redis, start_proxy, connect):
    server = start_redis()
    proxy = start_proxy(server, "shutdown-timeout 60", "upstream-timeout 60s")
    client = connect(proxy)
    assert client("PING") == "PONG"
    server.pause()
    client.send(encode("GET", "k"))
    until(lambda: waiting(server) > 0, 10, "the request's way to the node")
    proxy.expected = False
    proxy.signal(signal.SIGTERM)
    until(lambda: refused(proxy.address), 10, "the end of its listening")
    proxy.signal(signal.SIGTERM)
    proxy.process.wait(30)


# ---- reload --------------------------------------------------------------------------------------------


def test_a_long_pattern_is_shown(server, start_proxy, connect):
    """PROXY RULES cuts a rule's text that is longer than its room, and reads no further."""
    client = connect(start_proxy(server, "lock %s:* lease 10s" % ("p" * 600)))
    row = client("PROXY", "RULES")[0]
    assert row[0] == "rule" and row[1] == "p" * 511
    assert client("PING") == "PONG"


@pytest.mark.parametrize("how", ["SIGHUP", "PROXY RELOAD"])
def test_reload(server, start_proxy, connect, how):
    """Lock rules and log level change at once; clients and their leases stay."""
    proxy = start_proxy(server, "lock old:* lease 10s")
    client, other = connect(proxy), connect(proxy, commands=[("CLIENT", "SETNAME", "another")])
    assert client("SETNX", "old:%s" % how, "1") == 1
    config = open(proxy.config).read()

    def reload(text):
        with open(proxy.config, "w") as f:
            f.write(text)
        if how == "SIGHUP":
            proxy.signal(signal.SIGHUP)
            return None
        return client("PROXY", "RELOAD")

    def rules():
        return "\n".join(str(r) for r in client("PROXY", "RULES"))

    reply = reload(config.replace("lock old:* lease 10s", "lock new:* lease 20s\nlock old:* lease 10s"))
    if how != "SIGHUP" and isinstance(reply, Error) and "unknown" in reply.lower():
        pytest.skip("PROXY RELOAD is not built yet")
    until(lambda: "new:*" in rules(), 10, "the new rules")
    assert client("SETNX", "new:%s" % how, "1") == 1
    assert 10000 < client("PTTL", "new:%s" % how) <= 20000
    assert other("DEL", "old:%s" % how) == 0
    assert client("DEL", "old:%s" % how) == 1

    before, size = rules(), len(proxy.log())
    reply = reload(config.replace("lock old:* lease 10s", "lock broken:* lease long"))
    until(lambda: "long" in proxy.log()[size:], 10, "the complaint")
    assert reply is None or isinstance(reply, Error)
    assert "broken:*" not in rules() and "new:*" in before
    assert client("PING") == "PONG"
