"""redis-benchmark through the proxy: not for its figures, but because many people try this client first."""

import subprocess

from features import (HOST, LOGIN_PASSWORD, LOGIN_PORT, NotInLibrary, PASSWORD, PORT, USER, run, say)

ABSENT = "it has no such test"


def bench(*options, port=PORT, tests=1):
    """Runs it with little work; every test's line has to be there, and no error."""
    done = subprocess.run(["redis-benchmark", "-h", HOST, "-p", str(port), "-n", "1000", "-c", "8", "-q", *options],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=9)
    text = done.stdout.decode("utf-8", "replace").replace("\r", "\n")
    lines = [line for line in text.split("\n") if "requests per second" in line]
    if done.returncode or len(lines) != tests or "rror" in text.replace("error_", ""):
        raise AssertionError("status %d, %d lines: %s" % (done.returncode, len(lines), text[-400:]))


def named(tests, *options, count=None):
    return lambda: bench("-t", tests, *options, tests=count or len(tests.split(",")))


def auth():
    bench("-t", "ping_mbulk", "-a", LOGIN_PASSWORD, port=LOGIN_PORT)
    bench("-t", "get", "--user", USER, "-a", PASSWORD)
    try:
        bench("-t", "get", "-a", "wrong", port=LOGIN_PORT)
    except AssertionError:
        return
    raise AssertionError("a wrong password went well")


def none():
    raise NotInLibrary(ABSENT)


words = subprocess.run(["redis-benchmark", "--version"], stdout=subprocess.PIPE).stdout.decode().split()
say("version", words[1])
run([("connect", lambda: (bench("-t", "ping_inline,ping_mbulk", tests=2), bench("-k", "0", "-t", "ping_mbulk"))),
     ("auth", auth),
     ("strings", named("set,get,incr", "-r", "1000")),
     ("binary", none),
     ("large", named("set,get", "-d", "1048576", "-n", "20", "-c", "2")),
     ("hashes", named("hset", "-r", "1000")),
     ("lists", named("lpush,rpush,lpop,rpop")),
     ("sets", named("sadd,spop", "-r", "1000")),
     ("zsets", named("zadd,zpopmin", "-r", "1000")),
     ("streams", lambda: bench("XADD", "x", "*", "f", "v")),
     ("expiry", lambda: bench("-r", "1000", "SETEX", "e:__rand_int__", "100", "v")),
     ("multikey", named("mset", "-r", "100000")),
     ("pipeline", named("set,get,incr,lpush", "-P", "100", "-n", "20000")),
     ("scripts", lambda: bench("EVAL", "return redis.call('INCR', KEYS[1])", "1", "sc")),
     ("scan", lambda: bench("SCAN", "0")),
     ("errors", none),
     ("pool", lambda: bench("-t", "set,get", "-c", "100", "--threads", "2", "-r", "1000", tests=2)),
     ("multi", none), ("watch", none), ("blocking", none), ("pubsub", none), ("reconnect", none)])
