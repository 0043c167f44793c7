#!/usr/bin/env python3
"""Attacks the proxy as an attacker, a broken client and a hostile node would, and measures the effect on other clients.

    attacks.py --lockkeeper PROGRAM [--short] [--once] [--write] [--only PART-OF-A-NAME] ...

For each attack it measures: the longest time that a neighbour waited for a reply, through the proxy and directly at Redis; the
proxy's peak memory, also for each byte that was sent to it or that it owes; descriptors and connections to Redis. If the first
run is not good enough, the best of three counts (with --once, the first), since the machine itself may pause. --write puts the
table into docs/security.md. --short is for CI: smaller loads, and bounds that a busy machine keeps. The last line is 'N passed,
N failed', counted in attacks; the exit status is 1 if one failed.
"""

import argparse
import fcntl
import os
import re
import resource
import socket
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True

from rig import MB, ROOT, Closed, Rig, encode, raise_limits, servers  # noqa: E402
from fake import FakeNode, slot_map  # noqa: E402
from helpers import polite  # noqa: E402

PROMISED_STALL = 50.0   # milliseconds
PROMISED_FACTOR = 4.0   # bytes of memory for a byte sent and owed
ALLOWED_STALL = 250.0   # what --short lets pass
FEW = 8 * MB            # growth that is no attack's success: buffers of connections, tables that grow once

ATTACKS = []


def attack(title, times=2):
    """`times`: how much longer than at Redis itself, under the same attack, a neighbour may wait in any case."""
    def keep(function):
        function.times = times
        ATTACKS.append((title, function))
        return function
    return keep


# ---- commands that are long --------------------------------------------------------------------------------


@attack("patterns that take for ever: `PROXY LOCKS *a*a*a...b` over names of 20,000 a's")
def globs(rig):
    rig.start()
    holder = rig.connect()
    for n in range(100):
        holder("SETNX", "lock:%d" % n + "a" * 20000, "1")
    rig.go()
    client = rig.connect()
    for pattern in ("*a" * 100 + "b", "*" + "a" * 200 + "b", "*" + "a" * 40000 + "b", "*" + "[a-z]" * 40 + "b"):
        client.send(encode("PROXY", "LOCKS", pattern) * 5)
        client.read(5)


def leases(rig, count, each=2000):
    """A connection with so many locks."""
    holder = rig.connect()
    for at in range(0, count, each):
        holder.send(b"".join(encode("SETNX", "lock:%d" % n, "1") for n in range(at, min(at + each, count))))
        holder.skim(min(each, count - at))
    return holder


@attack("`PROXY LOCKS nomatch*`, 50 at once, with 200,000 locks held")
def listing(rig):
    rig.start()
    leases(rig, rig.some(200000, 30000))
    rig.go()
    client = rig.connect()
    client.send(encode("PROXY", "LOCKS", "nomatch*") * 50)
    client.skim(50)


@attack("4,000 `PROXY RELOAD` at once")
def reloads(rig):
    rig.start()
    rig.go()
    count = rig.some(4000, 1000)
    client = rig.connect()
    client.send(encode("PROXY", "RELOAD") * count)
    client.skim(count)


@attack("`CLIENT LIST ID` with 300,000 numbers; 300 `CLIENT LIST` with 2,000 clients")
def client_lists(rig):
    rig.start()
    rig.connect_many(rig.some(2000, 500))
    rig.go()
    client = rig.connect()
    client.send(encode("CLIENT", "LIST", "ID", *range(1, 300001)))
    client.read()
    count = rig.some(300, 50)
    rig.owed += count * len(client("CLIENT", "LIST"))
    client.send(encode("CLIENT", "LIST") * count)
    client.read(count)


@attack("`PROXY INFO`, `INCIDENTS`, `ADVISE`, `RULES`, 1,000 times each at once")
def looking_in(rig):
    rig.start()
    holder = rig.connect()
    for n in range(500):
        holder("SETNX", "lock:%d" % (n % 50), "1")
    rig.go()
    count = rig.some(1000, 200)
    for words in (("INFO",), ("INCIDENTS",), ("ADVISE",), ("RULES",)):
        client = rig.connect()
        rig.owed += count * len(client.client.raw("PROXY", *words))
        client.send(encode("PROXY", *words) * count)
        client.read(count)


@attack("20 `DEL` of 10,000 lock keys at once")
def lock_keys(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    count = rig.some(20, 5)
    client.send(encode("DEL", *["lock:%d" % n for n in range(10000)]) * count)
    client.read(count)


# ---- clients that leave ---------------------------------------------------------------------------------------


@attack("a client leaves with 200,000 locks")
def leaving(rig):
    rig.start()
    holder = leases(rig, rig.some(200000, 50000))
    rig.go()
    holder.close()
    time.sleep(rig.some(3, 1))


@attack("1,000 clients come and go behind 100,000 locks whose owners have left")
def gone_before(rig):
    rig.start()
    count, owners = rig.some(100000, 20000), 100
    for owner in range(owners):
        holder = rig.connect()
        each = count // owners
        holder("CLIENT", "SETNAME", "owner-%d" % owner)
        holder.send(b"".join(encode("SETNX", "lock:%d:%d" % (owner, n), "1") for n in range(each)))
        holder.skim(each)
        holder.close()
    time.sleep(1)
    rig.go()
    for n in range(rig.some(1000, 300)):
        client = rig.connect()
        client("SETNX", "lock:mine:%d" % n, "1")
        client.close()


@attack("5,000 connections that end in a RST, half of them with requests under way")
def resets(rig):
    rig.start()
    rig.go()
    for n in range(rig.some(5000, 1000)):
        client = rig.connect()
        if n % 2:
            client.send(encode("SETNX", "lock:%d" % n, "1") * 20)
        client.reset()
        rig.senders.remove(client)


# ---- connections to Redis --------------------------------------------------------------------------------------


@attack("400 `BLPOP` at a Redis that takes 300 connections")
def blockers(rig):
    few_connections(rig, [encode("BLPOP", "list", "0")] * 400)


@attack("the same with 400 `MULTI` in databases of their own that never end")
def open_transactions(rig):
    few_connections(rig, [encode("SELECT", n % 16) + encode("MULTI") + encode("SET", "k", "1") for n in range(400)])


@attack("the same with 400 halves of a `SET` of 5 MB")
def open_halves(rig):
    few_connections(rig, [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000000\r\n" + b"x" * 100] * 400)


@attack("the same with 400 `SUBSCRIBE` after `HELLO 3` and `CLIENT TRACKING`")
def open_trackers(rig):
    few_connections(rig, [encode("HELLO", "3") + encode("CLIENT", "TRACKING", "ON") + encode("SUBSCRIBE", "a:%d" % n)
                          for n in range(400)])


def few_connections(rig, requests):
    """An attacker that sends each request over a separate connection, to a Redis that accepts few."""
    rig.start_redis()
    rig.redis.run("CONFIG", "SET", "maxclients", "300")
    rig.start()
    rig.go()
    for request, client in zip(requests, rig.connect_many(len(requests))):
        client.send(request)
    time.sleep(0.5)
    works_for_others(rig)


@attack("2,000 `SUBSCRIBE`")
def subscribers(rig):
    rig.start()
    rig.go()
    for n, client in enumerate(rig.connect_many(rig.some(2000, 500))):
        client.send(encode("SUBSCRIBE", "channel:%d" % n))
    time.sleep(0.5)
    works_for_others(rig)


def works_for_others(rig):
    """The transaction, script and database of a client with another address are served."""
    other = rig.connect(source="127.0.0.2")
    other.send(encode("CLIENT", "SETNAME", "other") + encode("MULTI") + encode("SET", "a", "1") + encode("EXEC"))
    other.read(3)
    replies = [other.read(), other("EVAL", "return 1", "0"), other("SELECT", "1"), other("SET", "b", "1")]
    if replies != [["OK"], 1, "OK", "OK"]:
        print("attacks.py: MULTI, EVAL, SELECT and SET of another client: %r" % replies, file=sys.stderr)
        rig.wrong.append("another client's MULTI, EVAL or SELECT failed")


# ---- memory ------------------------------------------------------------------------------------------------------


@attack("1,000 `GET` of 1 MB in a pipeline whose client does not read")
def unread(rig):
    rig.start()
    with rig.redis.client() as c:
        c("SET", "big", "x" * MB)
    rig.go()
    client = rig.connect()
    count = rig.some(1000, 200)
    client.send(encode("GET", "big") * count)
    rig.owed += count * MB
    time.sleep(rig.some(3, 1))


@attack("the same, from 20 connections", times=4)
def unread_many(rig):
    """All requests sent before the first reply shows that replies are long use the connection that all sessions share."""
    rig.start()
    with rig.redis.client() as c:
        c("SET", "big", "x" * MB)
    rig.go()
    count = rig.some(100, 20)
    for client in rig.connect_many(20):
        client.send(encode("GET", "big") * count)
        rig.owed += count * MB
    time.sleep(rig.some(3, 1))


@attack("200,000 `PING` whose client does not read")
def unread_small(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    rig.owed += 7 * client.offer(encode("PING") * 200000, rig.some(3, 1)) // len(encode("PING"))


@attack("a subscriber that does not read 100 MB of messages")
def unread_messages(rig):
    rig.start()
    listener = rig.connect()
    listener("SUBSCRIBE", "news")
    rig.go()
    client = rig.connect()
    count = rig.some(100, 30)
    for _ in range(count):
        client("PUBLISH", "news", "x" * MB)
    rig.owed += count * MB


@attack("a `MONITOR` whose client does not read, beside 50 MB of requests")
def unread_monitor(rig):
    rig.start()
    listener = rig.connect()
    listener("MONITOR")
    rig.go()
    client = rig.connect()
    count = rig.some(50, 20)
    for n in range(count):
        client.send(encode("SET", "k", "x" * 1000) * 1000)
        client.skim(1000)
    rig.owed += count * MB


@attack("100 writers of 10 MB each to a Redis that stands still")
def stuck_redis(rig):
    rig.kind = "own"
    rig.start("upstream-timeout 60s")
    rig.connect()("GET", "k")
    rig.go()
    rig.redis.pause()
    data = encode("SET", "k", "x" * 10000) * rig.some(1000, 200)
    threads = [threading.Thread(target=client.offer, args=(data, 2)) for client in rig.connect_many(rig.some(100, 30))]
    rig.direct = None
    del rig.watches[1:]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.redis.resume()


@attack("2,000 halves of requests: `*2`, a length of 500 MB, and 100 bytes of it")
def halves(rig):
    rig.start()
    rig.go()
    for client in rig.connect_many(rig.some(2000, 500)):
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$500000000\r\n" + b"x" * 100)
    time.sleep(0.3)


@attack("1,000 requests of a million arguments, of which few come")
def counts(rig):
    rig.start()
    rig.go()
    for client in rig.connect_many(rig.some(1000, 300)):
        client.send(b"*1048576\r\n$3\r\nDEL\r\n" + b"$1\r\nk\r\n" * 10)
    time.sleep(0.3)


@attack("a `DEL` of a million keys, ten times")
def many_keys(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    data = b"*%d\r\n$3\r\nDEL\r\n" % (rig.some(1000000, 200000) + 1) + b"$1\r\nk\r\n" * rig.some(1000000, 200000)
    for _ in range(rig.some(10, 3)):
        client.send(data)
        client.read()


@attack("a line of 60 MB without an end, and a lock key of 100 MB")
def long_ones(rig):
    rig.start()
    rig.go()
    rig.connect().offer(b"x" * (60 * MB), 2)
    size = rig.some(100, 30) * MB
    client = rig.connect()
    client.offer(b"*3\r\n$5\r\nSETNX\r\n$%d\r\n" % size + b"lock:" + b"x" * (size - 5) + b"\r\n$1\r\n1\r\n", rig.some(5, 2))
    time.sleep(0.3)


@attack("50,000 names (`CLIENT SETNAME`), each of which tries for a lock of its own")
def names(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    count = rig.some(50000, 10000)
    for at in range(0, count, 1000):
        client.send(b"".join(encode("CLIENT", "SETNAME", "name-%d" % n) + encode("SETNX", "lock:%d" % n, "1")
                             + encode("SETNX", "lock:%d" % n, "1") + encode("DEL", "lock:%d" % n) for n in range(at, at + 1000)))
        client.skim(4000)


@attack("a transaction of 1,000 lock commands, 100 times")
def lock_transactions(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    for turn in range(rig.some(100, 10)):
        client.send(encode("MULTI") + b"".join(encode("SETNX", "lock:%d" % n, "1") for n in range(990)) + encode("EXEC"))
        client.read(992)


# ---- scripts, incidents, the log -----------------------------------------------------------------------------------


@attack("`DEL` of 10,000 lock keys at a Redis that has just forgotten all scripts, 20 times")
def noscript(rig):
    rig.start()
    rig.go()
    client = rig.connect()
    for _ in range(rig.some(20, 4)):
        with rig.redis.client() as c:
            c("SCRIPT", "FLUSH")
        client("DEL", *["lock:%d" % n for n in range(10000)])


@attack("100,000 `DEL` of another client's lock")
def refused(rig):
    rig.start()
    rig.connect()("SETNX", "lock:theirs", "1")
    client = rig.connect()
    client("CLIENT", "SETNAME", "attacker")
    size = os.path.getsize(rig.proxy.log_path)
    rig.go()
    count = rig.some(100000, 20000)
    for at in range(0, count, 5000):
        client.send(encode("DEL", "lock:theirs") * 5000)
        client.skim(5000)
    rig.note = "%.1f MB of log" % ((os.path.getsize(rig.proxy.log_path) - size) / 1e6)


@attack("the same while the log, a full pipe, has no reader")
def full_pipe(rig):
    rig.start_redis()
    folder = tempfile.TemporaryDirectory(prefix="lockkeeper-attack-")
    fifo = os.path.join(folder.name, "log")
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    rig.stops += [folder.cleanup, lambda: os.close(reader)]
    proxy = rig.start("logfile " + fifo, wait=False)

    def listens():
        with socket.socket() as s:
            return s.connect_ex(proxy.address) == 0

    servers.until(listens, 20, "the proxy")
    fcntl.fcntl(reader, 1031, 4096)  # F_SETPIPE_SZ: full at once
    with rig.redis.client() as c:
        c("SET", "neighbour", "v")
    rig.connect()("SETNX", "lock:theirs", "1")
    client = rig.connect()
    client("CLIENT", "SETNAME", "attacker")
    rig.go()
    count = rig.some(100000, 20000)
    for at in range(0, count, 5000):
        client.send(encode("DEL", "lock:theirs") * 5000)
        client.skim(5000)


# ---- logins ---------------------------------------------------------------------------------------------------------


def opened(rig):
    """Connections that Redis has had so far."""
    return int(re.search(r"total_connections_received:(\d+)", rig.redis.run("INFO", "stats")).group(1))


@attack("20,000 wrong passwords over 20 connections")
def wrong_passwords(rig):
    rig.start()
    rig.go()
    before = opened(rig)
    clients = rig.connect_many(20)
    each = rig.some(1000, 200)
    for client in clients:
        client.send(encode("AUTH", "nobody", "wrong") * each)
    for client in clients:
        client.skim(each)
    rig.note = "%d new connections to Redis" % (opened(rig) - before - 1)


@attack("a new connection for each of 3,000 wrong passwords")
def wrong_anew(rig):
    rig.start()
    rig.go()
    before = opened(rig)
    for _ in range(rig.some(3000, 600)):
        client = rig.connect()
        client("AUTH", "nobody", "wrong")
        client.close()
        rig.senders.remove(client)
    rig.note = "%d new connections to Redis" % (opened(rig) - before - 1)


@attack("2,000 `AUTH` and a `GET` each while Redis is down")
def no_redis(rig):
    rig.kind = "own"
    rig.start()
    rig.redis.kill()
    time.sleep(0.3)
    rig.go()
    for client in rig.connect_many(rig.some(2000, 500)):
        client.send(encode("AUTH", "nobody", "wrong") + encode("GET", "k"))
    time.sleep(1)


# ---- nodes ----------------------------------------------------------------------------------------------------------


@attack("a node that announces arrays of two thousand million, and nests them 10,000 deep")
def hostile_node(rig):
    rig.kind = "own"
    state = {"asked": 0, "hostile": False}
    replies = [b"*2147483646\r\n", b"*1\r\n*2147483646\r\n", b"*1\r\n" * 10000, b"$-99\r\n", b"*1\r\n*3\r\n:0\r\n:1\r\n*2147483646\r\n"]

    def handler(words, connection):
        if words[0].upper() == b"CLUSTER":
            state["asked"] += 1
            if state["hostile"]:
                return replies[state["asked"] % len(replies)]
            return slot_map((0, 8191, servers.HOST, node.port))
        if words[0].upper() == b"GET":
            return replies[0] if state["hostile"] else b"+v\r\n"
        return polite(words) or b"+OK\r\n"

    node = FakeNode(handler)
    rig.stops.append(node.stop)
    rig.start(upstream="cluster %s:%d" % node.address)
    rig.go()
    state["hostile"] = True
    for n in range(rig.some(50, 20)):
        client = rig.connect()
        client.send(encode("GET", "key:%d" % n))
        time.sleep(0.05)
    rig.owed += 50000 * state["asked"]


@attack("a node that answers a script with 256 MB")
def long_answer(rig):
    rig.kind = "own"
    sent = [0]

    def handler(words, connection):
        if words[0].upper() in (b"EVAL", b"EVALSHA"):
            connection.send(b"$%d\r\n" % (256 * MB))
            for _ in range(256):
                connection.send(b"x" * MB)
                sent[0] += MB
            return b"\r\n"
        return polite(words) or b"+OK\r\n"

    node = FakeNode(handler)
    rig.stops.append(node.stop)
    rig.start("proto-max-bulk-len 1mb", upstream="standalone %s:%d" % node.address)
    rig.go()
    rig.connect()("SETNX", "lock:a", "1")
    rig.owed += sent[0]


# ---- HTTP, TLS, junk ------------------------------------------------------------------------------------------------


@attack("500 HTTP connections that send a byte now and then: the wait is `/healthz`'s")
def trickles(rig):
    port = servers.free_port()
    rig.start("admin-port %d" % port)
    rig.go()
    socks = []
    for _ in range(rig.some(500, 200)):
        s = socket.socket()
        s.settimeout(2)
        try:
            s.connect((servers.HOST, port))
            s.send(b"GET / HT")
            socks.append(s)
        except OSError:
            s.close()
    rig.sent += 8 * len(socks)
    longest = 0.0
    for n in range(rig.some(20, 5)):
        for s in socks:
            try:
                s.send(b"T")
            except OSError:
                pass
        begun = time.monotonic()
        health = ""
        while not health and time.monotonic() - begun < 20:
            health = ask_health(port)
        longest = max(longest, time.monotonic() - begun)
        if not health:
            rig.wrong.append("/healthz did not answer for 20 s")
            break
    for s in socks:
        s.close()
    rig.stall = 1000 * longest


def ask_health(port):
    """The answer, or "" if no connection is accepted."""
    try:
        with socket.create_connection((servers.HOST, port), timeout=5) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            reply = b""
            while True:
                more = s.recv(4096)
                if not more:
                    break
                reply += more
            return reply.split(b"\r\n")[0].decode() if b" 200 " in reply else ""
    except OSError:
        return ""


@attack("2,000 TLS connections: a third say nothing, a third junk, a third half a ClientHello")
def tls_junk(rig):
    port = with_tls(rig)
    rig.go()
    hello = bytes.fromhex("16030102000100020003030000") + b"x" * 200
    socks = []
    for n in range(rig.some(2000, 500)):
        s = socket.create_connection((servers.HOST, port), timeout=20)
        data = (b"", os.urandom(300), hello)[n % 3]
        rig.sent += len(data)
        try:
            s.sendall(data)
        except OSError:
            pass
        socks.append(s)
    rig.stops += [s.close for s in socks]
    time.sleep(0.5)


@attack("1,000 full TLS handshakes, each of which leaves at once")
def tls_handshakes(rig):
    port = with_tls(rig)
    rig.go()
    context = rig.certificates.context()
    for _ in range(rig.some(1000, 200)):
        with socket.create_connection((servers.HOST, port), timeout=20) as raw:
            with context.wrap_socket(raw, server_hostname=servers.HOST) as s:
                s.sendall(encode("PING"))
        rig.sent += 2000


def with_tls(rig):
    from certificates import Certificates
    folder = tempfile.TemporaryDirectory(prefix="lockkeeper-attack-")
    rig.stops.append(folder.cleanup)
    rig.certificates = Certificates(folder.name)
    port = servers.free_port()
    rig.start(*rig.certificates.server_lines(port))
    rig.each = 60000
    return port


@attack("5,000 connections at once that send junk")
def junk(rig):
    rig.start()
    rig.go()
    clients = rig.connect_many(rig.some(5000, 1000))
    for n, client in enumerate(clients):
        try:
            client.send([b"*-5\r\n", b"\x00" * 100, b"*1\r\n!3\r\nabc\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                         os.urandom(500)][n % 5])
        except OSError:
            pass
    time.sleep(0.3)


# ---- the run ----------------------------------------------------------------------------------------------------------


def one(function, short):
    rig = Rig(short)
    try:
        function(rig)
        result = rig.end()
    except (OSError, Closed):  # the attacker may be disconnected for it
        if not rig.running:
            raise
        rig.note = "; ".join([*([rig.note] if rig.note else []), "the attacker is closed"])
        result = rig.end()
    finally:
        rig.stop()
    return dict(result, times=function.times)


def factor(result):
    """Bytes of memory for a byte; None where there is nothing to speak of."""
    if result["grown"] <= FEW:
        return None
    return max(result["grown"] - result["fds"] * result["each"], 0) / max(result["bytes"], 1)


def offences(result, stall):
    found = list(result["wrong"])
    if result["stall"] is not None and result["stall"] > max(stall, result["times"] * (result["direct"] or 0)):
        found.append("a neighbour waited %.0f ms" % result["stall"])
    many = factor(result)
    if many is not None and many > PROMISED_FACTOR:
        found.append("%.1f bytes of memory for a byte" % many)
    return found


def best_of(function, short, stall, tries):
    best = None
    for _ in range(tries):
        result = one(function, short)
        rank = (len(offences(result, stall)), result["stall"] or 0)
        if best is None or rank < best[0]:
            best = rank, result
        if not offences(result, stall):
            break
    return best[1]


def figure(value, form="%.0f"):
    return "-" if value is None else form % value


def row(title, result, bound):
    stall, many = result["stall"], factor(result)
    return "| %s | %s | %s | %s | %s | %s | %s | %s |" % (
        title, figure(stall), figure(result["direct"]), "%.1f" % (result["bytes"] / 1e6),
        "%.1f" % (result["grown"] / 1e6), figure(many, "%.1f"), "%d / %d" % (result["fds"], result["links"]),
        "; ".join([*([result["note"]] if result["note"] else []), *offences(result, bound)]) or "-")


HEAD = ["| attack | neighbour's wait, ms | at Redis itself | MB sent and owed | MB taken | bytes for a byte | files / connections to Redis | a note, or the promise that did not hold |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]


def write(rows):
    path = os.path.join(ROOT, "docs", "security.md")
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    start = lines.index(HEAD[0]) + 2
    end = start
    while lines[end].startswith("|"):
        end += 1
    lines[start:end] = rows
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description="Attacks on the proxy, and what they cost others.")
    parser.add_argument("--lockkeeper", metavar="PROGRAM", help="a Release build")
    parser.add_argument("--short", action="store_true", help="small loads, wide bounds")
    parser.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    parser.add_argument("--once", action="store_true", help="no second and third try")
    parser.add_argument("--only", action="append", metavar="PART", help="attacks whose name has it")
    options = parser.parse_args()
    if options.lockkeeper:
        os.environ["LOCKKEEPER"] = options.lockkeeper
    raise_limits()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stall = ALLOWED_STALL if options.short else PROMISED_STALL
    rows, bad, good = [], 0, 0
    print("\n".join(HEAD))
    for title, function in ATTACKS:
        if options.only and not any(part in function.__name__ for part in options.only):
            continue
        result = best_of(function, options.short, stall, 1 if options.once else 3)
        rows.append(row(title, result, stall))
        print(rows[-1], flush=True)
        found = offences(result, stall)
        if found:
            bad += 1
            print("attacks.py: %s: %s" % (function.__name__, "; ".join(found)), file=sys.stderr, flush=True)
        else:
            good += 1
    if options.write and not options.only:
        write(rows)
    print("%d passed, %d failed" % (good, bad))
    return 1 if bad or not good else 0


if __name__ == "__main__":
    sys.exit(main())
