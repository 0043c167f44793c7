"""A worker with redis-py that reads, works, and writes under a lock: redis_py.py NAME=VALUE ... (run.py says what they
mean)."""

import json
import sys
import threading
import time

import redis

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def main(words):
    o = dict(word.split("=", 1) for word in words)
    locks = redis.Redis(o["host"], int(o["lock_port"]), single_connection_client=True)
    data = locks if o["data_port"] == o["lock_port"] else redis.Redis(o["host"], int(o["data_port"]),
                                                                      single_connection_client=True)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    entered = written = fenced = 0
    while not done.is_set():
        mine = "%s:%d" % (o["name"], entered)
        try:
            if not locks.set(o["lock"], mine, nx=True, px=int(o["lease"])):
                time.sleep(0.001)
                continue
            entered += 1
            read = int(data.get(o["data"]) or 0)
            time.sleep(float(o["work"]) / 1000)
            try:
                written += data.set(o["data"], read + 1)
            except redis.ResponseError as error:
                if not str(error).startswith("FENCED "):
                    raise
                fenced += 1
            locks.eval(RELEASE, 1, o["lock"], mine)
        except redis.ConnectionError:  # on-loss close
            fenced += 1
        except redis.ResponseError as error:  # on-loss error
            if not str(error).startswith("LOST "):
                raise
            fenced += 1
    print(json.dumps({"version": redis.__version__, "entered": entered, "written": written, "fenced": fenced}))


main(sys.argv[1:])
