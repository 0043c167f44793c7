"""The locks of docs/guides: which preset has which locks, and their commands on the wire. Most libraries are those of
library_locks.py under the names that a guide uses. The others are here, as our own scripts with the libraries' commands."""

import copy
import time

from crowd import send
from library_locks import DELETE_IF_MINE, EXPIRE_IF_MINE, LIBRARIES, HandedOver, Library, Script


class Bare(Library):
    """By hand: SET NX with an expiry and a constant, and a bare DEL."""

    extends, careful = False, False

    def acquire(self, me, key, ms):
        return "1" if (yield from send("SET", key, "1", "NX", "EX", 5)) == "OK" else None

    def release(self, me, key, value):
        return (yield from send("DEL", key)) == 1


class Old(Bare):
    """By hand, in two steps: SETNX, EXPIRE."""

    def acquire(self, me, key, ms):
        if (yield from send("SETNX", key, "1")) != 1:
            return None
        assert (yield from send("EXPIRE", key, 5)) == 1
        return "1"


class Careful(Library):
    """SET NX PX with a value of one's own, which a script compares before it deletes."""

    delete, longer = Script(DELETE_IF_MINE, "EVALSHA"), Script(EXPIRE_IF_MINE, "EVALSHA")

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "NX", "PX", ms)) == "OK" else None

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


class Redisson(Library):
    """RLock: a hash whose one field is the process and the thread, its value how often; by scripts."""

    take = Script("""
        if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
            redis.call('hincrby', KEYS[1], ARGV[2], 1)
            redis.call('pexpire', KEYS[1], ARGV[1])
            return nil
        end
        return redis.call('pttl', KEYS[1])""")
    give = Script("""
        if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
        if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
            redis.call('pexpire', KEYS[1], ARGV[2])
            return 0
        end
        redis.call('del', KEYS[1])
        redis.call('publish', KEYS[2], ARGV[1])
        return 1""")

    def acquire(self, me, key, ms):
        value = me.value() + ":1"
        return value if (yield from self.take.run([key], ms, value)) is None else None

    def release(self, me, key, value):
        return (yield from self.give.run([key, "redisson_lock__channel:{%s}" % key], 0, 30000, value)) == 1


class PythonRedisLock(Careful):
    """SET NX EX with a random value; by script its release, which wakes a waiting worker through a list, and its extension."""

    give = Script("""
        if redis.call('get', KEYS[1]) ~= ARGV[1] then return 1 end
        redis.call('del', KEYS[2])
        redis.call('lpush', KEYS[2], 1)
        redis.call('pexpire', KEYS[2], ARGV[2])
        redis.call('del', KEYS[1])
        return 0""", "EVALSHA")

    def release(self, me, key, value):
        signal = key.replace("lock:", "lock-signal:", 1)
        return (yield from self.give.run([key, signal], value, 1000)) == 0


class Compared(Careful):
    """SET NX PX, and SET IFEQ to have it for longer; released by DELIFEQ."""

    def extend(self, me, key, value, ms):
        return (yield from send("SET", key, value, "IFEQ", value, "PX", ms)) == "OK"

    def release(self, me, key, value):
        return (yield from send("DELIFEQ", key, value)) == 1


class ComparedByRedis(Compared):
    """The same at Redis, by DELEX."""

    def release(self, me, key, value):
        return (yield from send("DELEX", key, "IFEQ", value)) == 1


class Deadline(Bare):
    """SETNX of a time, and DEL; a loser looks whether the time is over."""

    def acquire(self, me, key, ms):
        deadline = "%d.25" % (time.time() + 11)
        return deadline if (yield from send("SETNX", key, deadline)) == 1 else None


class Queued(HandedOver):
    """SET NX by the process that queues a job, DEL by the process that has done it."""

    extends, careful = False, False

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "NX", "EX", 60)) == "OK" else None

    def release(self, me, key, value):
        return (yield from send("DEL", key, place=1)) == 1


def named(title, keys):
    """One of library_locks.py, with other keys; or with one alone."""
    library = copy.copy(LIBRARIES[title])
    library.keys = keys
    if "%d" not in keys:
        library.key = lambda number: keys
    return library


def of(kind, keys):
    library = kind()
    library.keys = keys
    return library


# (preset, what the guide calls it, the pattern of the rule, the locks)
GUIDES = [
    ("laravel", "Cache::lock", "*cache[-:_]lock:*", LIBRARIES["Laravel lock"]),
    ("laravel", "Cache::lock, with more of a prefix", "*cache[-:_]:lock:*",
     named("Laravel lock", "laravel_database_laravel_cache_:lock:invoice:%d")),
    ("laravel", "the scheduler", "*framework/schedule-*", LIBRARIES["Laravel add"]),
    ("laravel", "isolatable commands", "*framework/command-*",
     named("Laravel lock", "laravel_cache_framework/command-import-%d")),
    ("laravel", "WithoutOverlapping", "*laravel-queue-overlap:*",
     named("Laravel lock", "laravel_cache_:laravel-queue-overlap:App\\Jobs\\Import:%d")),
    ("laravel", "ShouldBeUnique", "*laravel_unique_job:*", LIBRARIES["Laravel unique jobs"]),
    ("symfony", "LockFactory", "lock[-.:]*", named("Symfony Lock", "lock.invoice.%d")),
    ("symfony", "LockFactory before 5.2", "lock[-.:]*", named("Symfony Lock, of old", "lock-report-%d")),
    ("drupal", "redis module, Drupal 8 and later", "drupal*:lock:*", LIBRARIES["Drupal"]),
    ("drupal", "redis module, Drupal 7", "drupal*:lock:*", LIBRARIES["Drupal 7"]),
    ("wordpress", "wp_cache_add", "*:locks:*", of(Bare, "wp:locks:import-%d")),
    ("spring", "RedisLockRegistry", "*-locks:*", LIBRARIES["Spring Integration"]),
    ("spring", "ShedLock", "job-lock:*", LIBRARIES["ShedLock"]),
    ("spring", "ShedLock, safeUpdate", "job-lock:*", LIBRARIES["ShedLock, safe"]),
    ("redisson", "RLock", "*Lock", of(Redisson, "invoice%dLock")),
    ("java", "Jedis by hand", "*_lock", of(Bare, "invoice_%d_lock")),
    ("java", "Lettuce by hand, by script", "*:lock", of(Careful, "invoice:%d:lock")),
    ("ruby", "sidekiq-unique-jobs", "uniquejobs:*:LOCKED", LIBRARIES["Sidekiq unique jobs"]),
    ("ruby", "resque-lock", "resque:lock:*", LIBRARIES["resque-lock"]),
    ("ruby", "redlock-rb", "lock:*", named("redlock for Ruby", "lock:invoice:%d")),
    ("python", "redis-py Lock", "lock:*", named("django-redis lock", "lock:report:%d")),
    ("python", "RQ's scheduler", "rq:scheduler-lock:*", of(Bare, "rq:scheduler-lock:queue%d")),
    ("python", "RQ's maintenance", "rq:clean_registries:*", of(Bare, "rq:clean_registries:queue%d")),
    ("django", "cache.lock", "*:[0-9]*:lock*", LIBRARIES["django-redis lock"]),
    ("django", "cache.add", "*:[0-9]*:lock*", named("django-redis add", ":1:lock-import-%d")),
    ("django", "Celery's cookbook", "*:[0-9]*:*-lock-*", named("django-redis add", ":1:feed.import_feed-lock-5ac%d")),
    ("django", "celery-once", "qo_*", LIBRARIES["Celery once"]),
    ("django", "celery-singleton", "SINGLETONLOCK_*", of(Queued, "SINGLETONLOCK_5f0c1c6e9d52%d")),
    ("django", "RedBeat", "redbeat::lock", named("django-redis lock", "redbeat::lock")),
    ("node", "redlock", "locks:*", LIBRARIES["redlock for node"]),
    ("node", "redis-semaphore", "mutex:*", of(Careful, "mutex:invoice%d")),
    ("node", "redis-lock", "lock.*", of(Careful, "lock.invoice%d")),
    ("node", "warlock", "*:lock", of(Careful, "invoice%d:lock")),
    ("node", "simple-redis-mutex", "@simple-redis-mutex:lock-*", of(Careful, "@simple-redis-mutex:lock-invoice%d")),
    ("node", "SET NX by hand", "lock:*", of(Bare, "lock:invoice:%d")),
    ("python_redis_lock", "redis_lock.Lock", "lock:*", of(PythonRedisLock, "lock:{report-%d}")),
    ("semaphores", "redis-semaphore of npm, Mutex", "mutex:*", of(Careful, "mutex:invoice%d")),
    ("semaphores", "redis-semaphore of Ruby, stale tokens", "SEMAPHORE:*:release_locks",
     of(Deadline, "SEMAPHORE:{mail%d}:release_locks")),
    ("php", "phpredis by hand", "lock:*", of(Careful, "lock:invoice:%d")),
    ("php", "phpredis, by a bare DEL", "lock:*", of(Bare, "lock:report:%d")),
    ("php", "phpredis, sessions", "PHPREDIS_SESSION:*_LOCK", of(Careful, "PHPREDIS_SESSION:5ac%d_LOCK")),
    ("go", "redsync", "mutex:*", LIBRARIES["redsync"]),
    ("go", "bsm/redislock", "lock:*", of(Careful, "lock:invoice:%d")),
    ("go", "SetNX by hand", "*-mutex", of(Old, "invoice-%d-mutex")),
    ("dotnet", "LockTake", "*-lock-*", LIBRARIES["StackExchange.Redis"]),
    ("dotnet", "RedLock.net", "redlock:*", named("redlock for Python", "redlock:invoice:%d")),
    ("hiredis", "SETNX, EXPIRE", "lock:*", of(Old, "lock:invoice:%d")),
    ("hiredis", "SET NX EX", "*:lock", of(Bare, "invoice:%d:lock")),
    ("shell", "redis-cli", "lock:*", of(Bare, "lock:backup%d")),
    ("shell", "redis-cli in a crontab", "cron:*", of(Old, "cron:nightly%d")),
]

# The same for servers that compare: test_guides_compare.py.
COMPARED = [
    ("compare", "by hand, at Valkey", "lock:*", of(Compared, "lock:invoice:%d")),
    ("compare", "by hand, at Redis", "lock:*", of(ComparedByRedis, "lock:invoice:%d")),
    ("compare", "redlock's way", "locks:*", of(Compared, "locks:invoice:%d")),
    ("compare", "Spring Integration's way", "*-locks:*", of(Compared, "payment-locks:%d")),
]
