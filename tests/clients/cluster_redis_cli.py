"""redis-cli -c and redis-cli --cluster through the proxy."""

import subprocess

from features import HOST, PORT, expect, run, say

names = ["k:%d" % i for i in range(100)]


def cli(*lines, options=("-c",)):
    done = subprocess.run(["redis-cli", "-h", HOST, "-p", str(PORT), *options], input="\n".join(lines) + "\n",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=9, text=True)
    return done.stdout.rstrip("\n").split("\n")


def alone():
    nodes = cli("CLUSTER NODES")
    assert "%s:%d@" % (HOST, PORT) in nodes[0] and "0-16383" in nodes[0] and nodes[1:] in ([], [""]), nodes
    checked = cli(options=("--cluster", "check", "%s:%d" % (HOST, PORT)))
    assert any("All 16384 slots covered" in line for line in checked), checked


def commands():
    out = cli(*[line for n in names for line in ("SET %s %s" % (n, n), "GET %s" % n)])
    expect(out, [x for n in names for x in ("OK", n)])  # no line says "Redirected"


def multikey():
    expect(cli("MGET " + " ".join(names), "DEL " + " ".join(names)), names + ["100"])


def scripts():
    sha = cli("SCRIPT LOAD \"return redis.call('get', KEYS[1])\"")[0]
    expect(cli("SET s v", "EVALSHA %s 1 s" % sha), ["OK", "v"])


def scan():
    cli(*["SET %s 1" % n for n in names])
    found = cli(options=("-c", "--scan", "--pattern", "k:*"))
    expect(sorted(found), sorted(names))


def multi():
    expect(cli("MULTI", "SET {t}a 1", "INCR {t}a", "EXEC"), ["OK", "QUEUED", "QUEUED", "OK", "2"])


say("version", subprocess.run(["redis-cli", "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[1])
run([("alone", alone), ("commands", commands), ("multikey", multikey), ("scripts", scripts), ("scan", scan),
     ("multi", multi)])
