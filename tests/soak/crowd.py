#!/usr/bin/env python3
"""crowd.py: thousands of idle connections and a thousand busy ones, for minutes: is the memory flat, and the latency?

    tests/soak/crowd.py --idle 10000 --busy 1000 --rate 2000 --seconds 600 --control 50

All connections are opened at once. Each busy one sends a GET, a SET, or acquires and releases a lock, one request after
the other; together about RATE requests a second. CONTROL more do the same straight at Redis, each as often as a busy one: the
latency is this program's and the machine's too, and those show how much of it. A line a minute: the proxy's resident
memory and processor time, p50 and p99 of the replies through the proxy and straight from Redis, and the one p50 by the other.
Exit status 1 where a request fails, or where the last minute's memory is more than 5% above the second's.
"""

import argparse
import asyncio
import os
import random
import resource
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

import servers
from resp import encode


class Busy:
    """One connection, one request at a time."""

    def __init__(self, number, pause, times):
        self.number, self.pause, self.times, self.failed = number, pause, times, 0

    def requests(self):
        key, lock = "busy:%d" % self.number, "lock:busy:%d" % self.number
        while True:
            yield ("SET", key, self.number), b"+OK\r\n"
            yield ("GET", key), b"$%d\r\n%d\r\n" % (len(str(self.number)), self.number)
            yield ("SET", lock, "1", "NX", "PX", 30000), b"+OK\r\n"
            yield ("DEL", lock), b":1\r\n"

    async def run(self, address, end):
        reader, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(random.uniform(0, self.pause))
        for command, expected in self.requests():
            if time.monotonic() > end:
                break
            begin = time.monotonic()
            writer.write(encode(*command))
            reply = await reader.readexactly(len(expected))
            self.times.append(time.monotonic() - begin)
            self.failed += reply != expected
            await asyncio.sleep(random.expovariate(1 / self.pause))
        writer.close()


def quantiles(times):
    """p50 and p99 in ms of the times so far, which are forgotten."""
    these = sorted(times) or [0]
    times.clear()
    return these[len(these) // 2] * 1000, these[len(these) * 99 // 100] * 1000


def processor_time(pid):
    """Seconds."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def watch(proxy, times, control, seconds, minute):
    """The memory at the end of each minute."""
    memory, begin, used = [], time.monotonic(), processor_time(proxy.pid)
    print("%6s %11s %9s %11s %17s %17s %6s" % ("minute", "memory, kB", "requests", "CPU, us/req", "p50/p99, ms", "direct", "ratio"))
    while time.monotonic() - begin < seconds - 1:
        await asyncio.sleep(minute)
        count, before, used = len(times), used, processor_time(proxy.pid)
        through, direct = quantiles(times), quantiles(control)
        memory.append(proxy.memory())
        print("%6d %11d %9d %11.1f %8.2f/%8.2f %8.2f/%8.2f %6.2f" % (
            (len(memory), memory[-1] // 1024, count, (used - before) * 1e6 / max(1, count)) + through + direct +
            (through[0] / direct[0] if direct[0] else 0,)), flush=True)
    return memory


async def crowd(args, proxy, server):
    begin, before = time.monotonic(), proxy.memory()
    idle = await asyncio.gather(*[asyncio.open_connection(*proxy.address) for _ in range(args.idle)])
    print("%d connections opened at once in %.2f s; %d bytes of the proxy's memory for each" % (
        args.idle, time.monotonic() - begin, (proxy.memory() - before) / max(1, args.idle)))
    times, straight, end = [], [], time.monotonic() + args.seconds
    busy = [Busy(n, args.busy / args.rate, times) for n in range(args.busy)]
    control = [Busy(args.busy + n, args.busy / args.rate, straight) for n in range(args.control)]
    tasks = [asyncio.ensure_future(b.run(proxy.address, end)) for b in busy]
    tasks += [asyncio.ensure_future(b.run(server.address, end)) for b in control]
    memory = await watch(proxy, times, straight, args.seconds, min(60, args.seconds / 3))
    await asyncio.gather(*tasks)
    failed = sum(b.failed for b in busy + control)
    for _, writer in idle:
        writer.close()
    print("%d wrong replies" % failed)
    return failed == 0 and memory[-1] <= memory[1] * 1.05


def main():
    parser = argparse.ArgumentParser(description="Flat memory and latency with a crowd of connections.")
    parser.add_argument("--idle", type=int, default=10000)
    parser.add_argument("--busy", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--control", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = servers.RedisServer()
    proxy = servers.Proxy(server, "maxclients %d" % (args.idle + args.busy + 10), "threads %d" % args.threads)
    try:
        good = asyncio.run(crowd(args, proxy, server))
        proxy.stop()
    finally:
        proxy.kill()
        server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
