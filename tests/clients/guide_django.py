"""django-redis (python3-django-redis) for docs/guides/django-celery.md: cache.lock(), and the lock of Celery's documentation, by
cache.add() and cache.delete()."""

import os
import sys

try:
    from django.conf import settings

    settings.configure()
    from django_redis.cache import RedisCache
    import redis
except ImportError as error:
    sys.exit(print("missing", error))

URL = "redis://%s:%s/0?client_name=" % (os.environ["LK_HOST"], os.environ["LK_PORT"])
caches = [RedisCache(URL + name, {}) for name in ("web", "worker")]

one, two = [cache.lock("lock-report", timeout=10, blocking_timeout=0) for cache in caches]
assert one.acquire() and not two.acquire()
two.local.token = b"another's"
try:
    two.release()
    sys.exit("the second could release")
except redis.exceptions.LockNotOwnedError:
    pass
one.release()
assert two.acquire()
two.release()
print("held :1:lock-report")

NAME = "feed.import_feed-lock-5ac1"
assert caches[0].add(NAME, "app", 60) and not caches[1].add(NAME, "app", 60)
assert not caches[1].delete(NAME), "another's lock was released"
assert caches[0].delete(NAME)
assert caches[1].add(NAME, "app", 60) and caches[1].delete(NAME)
print("held :1:" + NAME)
print("done")
