"""redis-cli through the proxy: typed commands, and commands from scripts."""

import os
import pty
import subprocess
import tempfile

from features import (BYTES, CLUSTER, HOST, LOGIN_PASSWORD, LOGIN_PORT, NotInLibrary, PASSWORD, PORT, USER, expect,
                      restart_proxy, run, say)


def cli(*args, options=(), port=PORT, data=b""):
    """What redis-cli prints, without the last end of line."""
    done = subprocess.run(["redis-cli", "-h", HOST, "-p", str(port), *options, *args], input=data,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=9)
    return (done.stdout + done.stderr)[:-1] if done.stdout.endswith(b"\n") else done.stdout + done.stderr


def typed(*lines, **options):
    """The answers to lines on standard input, one text a line of output."""
    return cli(data="\n".join(lines).encode() + b"\n", **options).decode("utf-8", "replace").split("\n")


def refused(text):
    if b"not supported by lockkeeper" in text:
        raise AssertionError(text.decode())
    return text


def connect():
    expect(cli("PING"), b"PONG")
    expect(cli("PING", options=["-3"]), b"PONG")
    expect(typed("CLIENT SETNAME worker-1", "CLIENT GETNAME"), ["OK", "worker-1"])
    expect(typed("HELLO 3", "PING")[-1], "PONG")
    if not CLUSTER:
        expect(cli("SET", "only", "three", options=["-n", "3"]), b"OK")
        expect(typed("GET only", "SELECT 3", "GET only"), ["", "OK", "three"])


def auth():
    warning = ["--no-auth-warning"]
    expect(cli("PING", port=LOGIN_PORT, options=["-a", LOGIN_PASSWORD, *warning]), b"PONG")
    expect(cli("PING", options=["--user", USER, "--pass", PASSWORD, *warning]), b"PONG")
    assert b"NOAUTH" in cli("PING", port=LOGIN_PORT)
    assert b"WRONGPASS" in cli("PING", port=LOGIN_PORT, options=["-a", "wrong", *warning])
    assert b"WRONGPASS" in cli("AUTH", USER, "wrong")


def strings():
    expect(typed("SET s v", "GET s", "GET none", "APPEND s w", "SETNX s x", "GETSET s y", "INCRBY n 42", "GETDEL s"),
           ["OK", "v", "", "2", "0", "vw", "42", "y"])


def binary():
    expect(cli("SET", "bin", options=["-x"], data=BYTES), b"OK")
    expect(cli("GET", "bin"), BYTES)
    expect(typed(r'SET "a\x00\r\nb" "\xff\x00\r\n"', r'STRLEN "a\x00\r\nb"'), ["OK", "4"])


def large():
    value = BYTES * 4096
    expect(cli("SET", "large", options=["-x"], data=value), b"OK")
    assert cli("GET", "large") == value


def hashes():
    expect(typed("HSET h a 1 b two", "HGETALL h", "HMGET h b none"), ["2", "a", "1", "b", "two", "two", ""])
    expect(cli("HGETALL", "h", options=["-3", "--no-raw"]), b'1# "a" => "1"\n2# "b" => "two"')


def lists():
    expect(typed("RPUSH l a b c", "LRANGE l 0 -1", "LREM l 1 b", "LPOP l"), ["3", "a", "b", "c", "1", "a"])


def sets():
    expect(typed("SADD {s}1 a b", "SADD {s}2 b c", "SINTER {s}1 {s}2", "SCARD {s}1"), ["2", "2", "b", "2"])


def zsets():
    expect(typed("ZADD z 1 a 2.5 b", "ZRANGE z 0 -1 WITHSCORES", "ZSCORE z b"), ["2", "a", "1", "b", "2.5", "2.5"])


def streams():
    expect(typed("XADD x 5-1 f v", "XLEN x", "XRANGE x - +"), ["5-1", "1", "5-1", "f", "v"])


def expiry():
    ttl = int(typed("SETEX e 100 v", "TTL e")[1])
    assert 95 < ttl <= 100
    expect(typed("PERSIST e", "TTL e"), ["1", "-1"])


def multikey():
    expect(typed("MSET a 1 b 2 c 3", "MGET a b none c", "EXISTS a b c", "DEL a b c none"),
           ["OK", "1", "2", "", "3", "3", "3"])


def pipeline():
    lines = [line for i in range(200) for line in ("SET p:%d %d" % (i, i), "INCR count", "LPUSH p:%d x" % i,
                                                   "GET p:%d" % i, "MGET p:%d p:0" % i)]
    with tempfile.TemporaryFile() as protocol:
        for line in lines:
            words = line.encode().split()
            protocol.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        protocol.seek(0)
        done = subprocess.run(["redis-cli", "-h", HOST, "-p", str(PORT), "--pipe", "--pipe-timeout", "5"],
                              stdin=protocol, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=9)
    assert b"errors: 200, replies: 1000" in done.stdout, done.stdout[-300:]
    expect(cli("GET", "count"), b"200")


def scripts():
    expect(cli("EVAL", "return redis.call('INCRBY', KEYS[1], ARGV[1])", "1", "sc", "42"), b"42")
    sha = cli("SCRIPT", "LOAD", "return {KEYS[1], ARGV[1], 3}").decode()
    expect(cli("EVALSHA", sha, "1", "sc", "arg"), b"sc\narg\n3")
    with tempfile.NamedTemporaryFile(suffix=".lua") as script:
        script.write(b"return redis.call('GET', KEYS[1])")
        script.flush()
        expect(cli(options=["--eval", script.name, "sc"]), b"42")
    assert b"NOSCRIPT" in cli("EVALSHA", "0" * 40, "0")


def scan():
    names = {b"scan:%d" % i for i in range(500)}
    cli("MSET", *[word for name in names for word in (name, b"1")])
    expect(set(cli(options=["--scan", "--pattern", "scan:*"]).split(b"\n")), names)
    assert b"Biggest string found" in cli(options=["--bigkeys"])


def errors():
    cli("SET", "err", "text")
    assert cli("LPUSH", "err", "1").startswith(b"WRONGTYPE")
    assert cli("NOSUCHCOMMAND", "a").startswith(b"ERR unknown command")
    assert cli("GET").startswith(b"ERR wrong number of arguments")
    expect(cli("GET", "err"), b"text")


def pool():
    raise NotInLibrary("one connection a process")


def multi():
    found = refused(cli(data=b"MULTI\nSET {t}a 1\nINCR {t}a\nEXEC\n"))
    expect(found, b"OK\nQUEUED\nQUEUED\nOK\n2")


def watch():
    cli("SET", "w", "1")
    expect(refused(cli(data=b"WATCH w\nMULTI\nINCR w\nEXEC\n")), b"OK\nOK\nQUEUED\n2")
    expect(refused(cli(data=b"WATCH w\nSET w 5\nMULTI\nINCR w\nEXEC\n")), b"OK\nOK\nOK\nQUEUED\n")


def blocking():
    expect(refused(cli("BLPOP", "bl", "1")), b"")
    waiting = subprocess.Popen(["redis-cli", "-h", HOST, "-p", str(PORT), "BRPOP", "bl", "5"], stdout=subprocess.PIPE)
    cli("RPUSH", "bl", "later")
    expect(waiting.communicate(timeout=8)[0], b"bl\nlater\n")


def pubsub():
    first = refused(subprocess.run(["timeout", "1", "redis-cli", "-h", HOST, "-p", str(PORT), "SUBSCRIBE", "news"],
                                   stdout=subprocess.PIPE).stdout)
    expect(first, b"subscribe\nnews\n1\n")
    listener = subprocess.Popen(["redis-cli", "-h", HOST, "-p", str(PORT), "PSUBSCRIBE", "new*"],
                                stdout=subprocess.PIPE)
    try:
        expect([listener.stdout.readline() for _ in range(3)], [b"psubscribe\n", b"new*\n", b"1\n"])
        receivers = cli("PUBLISH", "news", "hello")
        assert CLUSTER or receivers == b"1", receivers  # on a cluster PUBLISH counts the receivers of one node
        expect([listener.stdout.readline() for _ in range(4)], [b"pmessage\n", b"new*\n", b"news\n", b"hello\n"])
    finally:
        listener.kill()
        listener.communicate()


def reconnect():
    """At a terminal redis-cli connects again by itself; fed by a pipe it gives up."""
    mine, its = pty.openpty()
    shell = subprocess.Popen(["redis-cli", "-h", HOST, "-p", str(PORT)], stdin=its, stdout=its, stderr=its,
                             env=dict(os.environ, TERM="dumb"))
    seen = b""

    def type_until(line, *answers):
        nonlocal seen
        os.write(mine, line + b"\n")
        seen = b""
        while not any(answer in seen for answer in answers):
            seen += os.read(mine, 4096)

    try:
        type_until(b"SET before 1", b"OK\r\n")
        restart_proxy()
        type_until(b"GET before", b'"1"', b"not connected>")
        if b"not connected>" in seen:  # it says so once, and connects for the next command
            type_until(b"GET before", b'"1"')
    except TimeoutError:
        raise AssertionError("the terminal shows %r" % seen) from None
    finally:
        shell.kill()
        shell.wait()
        os.close(mine)
        os.close(its)


say("version", subprocess.run(["redis-cli", "--version"], stdout=subprocess.PIPE).stdout.decode().split()[1])
run([(f.__name__, f) for f in (connect, auth, strings, binary, large, hashes, lists, sets, zsets, streams, expiry,
                               multikey, pipeline, scripts, scan, errors, pool, multi, watch, blocking, pubsub,
                               reconnect)])
