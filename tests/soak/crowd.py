#!/usr/bin/env python3
"""crowd.py: thousands of idle connections and a thousand busy ones, for minutes: is the memory flat, and the latency?

    tests/soak/crowd.py --idle 10000 --busy 1000 --rate 2000 --seconds 600

All connections are opened at once. Each busy one sends a GET, a SET, or acquires and releases a lock, one request after
the other; together about RATE requests a second. A line a minute: the proxy's resident memory, p50 and p99 of the
replies; the latency is that of this program, too. Exit status 1 where a request fails, or where the last minute's memory
is more than 5% above the second's.
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


async def watch(proxy, times, seconds, minute):
    """The memory at the end of each minute."""
    memory, begin = [], time.monotonic()
    print("%8s %12s %10s %8s %8s" % ("minute", "memory, kB", "requests", "p50, ms", "p99, ms"))
    while time.monotonic() - begin < seconds - 1:
        await asyncio.sleep(minute)
        these = sorted(times)
        times.clear()
        memory.append(proxy.memory())
        print("%8d %12d %10d %8.2f %8.2f" % (len(memory), memory[-1] // 1024, len(these), these[len(these) // 2] * 1000,
                                             these[len(these) * 99 // 100] * 1000), flush=True)
    return memory


async def crowd(args, proxy):
    begin, before = time.monotonic(), proxy.memory()
    idle = await asyncio.gather(*[asyncio.open_connection(*proxy.address) for _ in range(args.idle)])
    print("%d connections opened at once in %.2f s; %d bytes of the proxy's memory for each" % (
        args.idle, time.monotonic() - begin, (proxy.memory() - before) / max(1, args.idle)))
    times, end = [], time.monotonic() + args.seconds
    busy = [Busy(n, args.busy / args.rate, times) for n in range(args.busy)]
    tasks = [asyncio.ensure_future(b.run(proxy.address, end)) for b in busy]
    memory = await watch(proxy, times, args.seconds, min(60, args.seconds / 3))
    await asyncio.gather(*tasks)
    failed = sum(b.failed for b in busy)
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
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = servers.RedisServer()
    proxy = servers.Proxy(server, "maxclients %d" % (args.idle + args.busy + 10), "threads %d" % args.threads)
    try:
        good = asyncio.run(crowd(args, proxy))
        proxy.stop()
    finally:
        proxy.kill()
        server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
