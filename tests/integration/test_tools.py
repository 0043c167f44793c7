"""Redis's own tools through the proxy."""

import subprocess

from resp import encode


def tool(*args, data=None, timeout=140):
    done = subprocess.run([str(a) for a in args], input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=timeout)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def test_redis_benchmark(proxy):
    """Its default list, without an error."""
    host, port = proxy.address
    status, text = tool("redis-benchmark", "-h", host, "-p", port, "-n", 2000, "-c", 30, "-q")
    lines = [line for line in text.replace("\r", "\n").splitlines() if "requests per second" in line]
    assert status == 0, text
    assert "rror" not in text.replace("WARNING: Could not fetch server CONFIG", ""), text
    for name in ("PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "LPUSH", "RPUSH", "LPOP", "RPOP", "SADD", "HSET", "SPOP",
                 "ZADD", "ZPOPMIN", "LRANGE_600", "MSET"):
        assert any(line.startswith(name) for line in lines), (name, text)


def test_redis_benchmark_pipelined(proxy):
    host, port = proxy.address
    status, text = tool("redis-benchmark", "-h", host, "-p", port, "-n", 20000, "-c", 20, "-P", 16, "-r", 100000, "-d", 500,
                        "-t", "set,get,incr,lpush,mset", "-q")
    assert status == 0 and "rror" not in text, text


def test_redis_cli_pipe(proxy, direct):
    """Mass insertion of 100,000 commands."""
    host, port = proxy.address
    data = b"".join(encode("SET", "pipe:%d" % i, "value %d" % i) if i % 4 else encode("INCR", "pipe:count")
                    for i in range(100000))
    status, text = tool("redis-cli", "-h", host, "-p", port, "--pipe", data=data)
    assert status == 0, text
    assert "errors: 0, replies: 100000" in text, text
    assert direct("GET", "pipe:count") == "25000"
    assert direct("GET", "pipe:99999") == "value 99999"


def test_redis_cli(proxy):
    host, port = proxy.address
    cli = ("redis-cli", "-h", host, "-p", port)
    assert tool(*cli, "SETNX", "lock:cli", "1") == (0, "1\n")
    assert tool(*cli, "-3", "HSET", "h", "f", "v")[1] == "1\n"
    assert tool(*cli, "-3", "--no-raw", "HGETALL", "h")[1] == '1# "f" => "v"\n'
    status, text = tool(*cli, "PROXY", "INFO")
    assert status == 0 and "# Proxy" in text
    status, text = tool(*cli, data=b"SET a 1\nGET a\nNOSUCH\nPING\n")
    assert text.splitlines()[:2] == ["OK", "1"] and "unknown command" in text and text.rstrip().endswith("PONG")
    status, text = tool(*cli, "--scan", "--pattern", "lock:c*")
    assert text == "lock:cli\n"
    status, text = tool(*cli, "-r", "5", "PING")
    assert text == "PONG\n" * 5


def test_redis_cli_on_a_database(farm):
    farm.backend("standalone").flush()
    host, port = farm.proxy("standalone").address
    assert tool("redis-cli", "-h", host, "-p", port, "-n", "5", "SET", "five", "v") == (0, "OK\n")
    assert tool("redis-cli", "-h", host, "-p", port, "GET", "five") == (0, "\n")
    assert tool("redis-cli", "-h", host, "-p", port, "-n", "5", "GET", "five") == (0, "v\n")
