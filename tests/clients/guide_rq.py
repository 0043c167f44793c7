"""RQ (python3-rq) for docs/guides/python.md: the locks of its scheduler and of its maintenance, and a job that a worker does."""

import os
import sys
import time

try:
    import redis
    from rq import Queue, SimpleWorker
    from rq.scheduler import RQScheduler
except ImportError as error:
    sys.exit(print("missing", error))

clients = [redis.Redis(os.environ["LK_HOST"], int(os.environ["LK_PORT"])) for _ in range(2)]
one, two = [RQScheduler(["mail"], connection=client) for client in clients]
for _ in range(20):
    assert one.acquire_locks() == {"mail"}
    begun = time.monotonic()
    assert two.acquire_locks() == set()
    two.release_locks()  # a bare DEL, whether or not it is the holder's; nothing but its haste shows that it is a loser's
    took = time.monotonic() - begun
    if clients[0].exists("rq:scheduler-lock:mail"):
        break
    assert took > 0.005, "another scheduler's lock was released"  # otherwise the machine has held it up
one.heartbeat()
one.release_locks()
assert two.acquire_locks() == {"mail"}
two.release_locks()
print("held rq:scheduler-lock:mail")

queue = Queue("mail", connection=clients[0])
assert queue.acquire_cleaning_lock() and not Queue("mail", connection=clients[1]).acquire_cleaning_lock()
assert clients[0].delete("rq:clean_registries:mail") == 1
print("held rq:clean_registries:mail")
print("done")
