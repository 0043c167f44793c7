"""A worker in redis-py that takes a permit of a semaphore, holds it, and gives it back, until it is killed: semaphore.py PORT SHAPE
KEY. It prints a line when it has its first permit. Each line on standard input forks one more worker (killed with -9, as all are)."""
import os
import random
import sys
import time

import redis


def work(port, shape, key):
    c = redis.Redis("127.0.0.1", port, socket_timeout=20)
    c.ping()
    told = False
    n = 0
    while True:
        n += 1
        have = "%d:%d" % (os.getpid(), n)
        if shape == "count":
            while c.incr(key) > 4:
                c.decr(key)
                time.sleep(0.002)
        elif shape == "token":
            have = None
            while not have:
                have = (c.blpop(key, 5) or [None, None])[1]
        else:
            with c.pipeline(transaction=True) as p:
                p.zremrangebyscore(key, "-inf", 0)
                p.zadd(key, {have: time.time()})
                p.zrank(key, have)
                p.execute()
        if not told:
            os.write(1, b"%d\n" % os.getpid())
        told = True
        time.sleep(random.uniform(0.005, 0.05))
        if shape == "count":
            c.decr(key)
        elif shape == "token":
            c.rpush(key, have)
        else:
            c.zrem(key, have)


def main():
    port, shape, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    for _ in sys.stdin:
        if os.fork() == 0:
            random.seed(os.getpid())
            work(port, shape, key)


main()
