"""python-redis-lock for docs/guides/python-redis-lock.md: acquired, refused, extended, not released by others, released, and a waiting
worker woken."""

import os
import sys
import threading

try:
    import redis
    import redis_lock
except ImportError as error:
    sys.exit(print("missing", error))

clients = [redis.Redis(os.environ["LK_HOST"], int(os.environ["LK_PORT"]), socket_timeout=10) for _ in range(3)]
for expire in (10, None):
    one, two = [redis_lock.Lock(client, "{report}", expire=expire) for client in clients[:2]]
    assert one.acquire(blocking=False) and not two.acquire(blocking=False)
    try:
        two.release()
        sys.exit("the second could release")
    except redis_lock.NotAcquired:
        pass
    if expire:
        one.extend(8)
        assert 7 < clients[0].ttl("lock:{report}") <= 8
        try:
            two.extend(60)
            sys.exit("the second could extend")
        except redis_lock.NotAcquired:
            pass
    assert one.locked() and 0 < clients[0].ttl("lock:{report}") <= 30
    got = []
    waiter = threading.Thread(target=lambda: got.append(two.acquire(timeout=8)))  # a lock of no expiry waits, too
    waiter.start()
    one.release()
    waiter.join(20)
    assert got == [True], got
    two.release()
    try:
        one.release()
        sys.exit("it was released twice")
    except redis_lock.NotAcquired:
        pass
    print("held lock:{report}")
print("done")
