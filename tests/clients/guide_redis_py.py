"""redis-py's Lock (python3-redis) for docs/guides/python.md: acquired, refused, not released by others, released."""

import os
import sys

try:
    import redis
except ImportError as error:
    sys.exit(print("missing", error))

clients = [redis.Redis(os.environ["LK_HOST"], int(os.environ["LK_PORT"]), socket_timeout=10) for _ in range(2)]
for timeout in (10, None):
    one, two = [client.lock("lock:report", timeout=timeout, blocking=False) for client in clients]
    assert one.acquire() and not two.acquire()
    two.local.token = b"another's"
    try:
        two.release()
        sys.exit("the second could release")
    except redis.exceptions.LockNotOwnedError:
        pass
    assert one.owned()
    one.release()
    assert two.acquire()
    two.release()
    print("held lock:report")
print("done")
