"""The commands of lock libraries: how each acquires, extends and releases a lock, what its losers send, and which connections
it usually has. The scripts are our own, with the libraries' commands.

A library's methods are code of crowd.py's workers. `acquire` returns what the caller needs later on to show that it is the
holder, or None; `extend` and `release` return whether the library would call that done.
"""

import hashlib
import pickle

from crowd import GIVE, TAKE, send
from resp import Error


class Script:
    """How it is sent: EVAL each time, or EVALSHA, and where the server does not know it EVAL, or SCRIPT LOAD and EVALSHA again."""

    def __init__(self, source, way="EVAL"):
        self.source, self.way = source, way
        self.sha = hashlib.sha1(source.encode()).hexdigest()

    def at(self, places, keys, *args):
        """The replies of several places, asked at the same time."""
        rest = (len(keys), *keys, *args)
        if self.way == "EVAL":
            return (yield from at(places, "EVAL", self.source, *rest))
        replies = yield from at(places, "EVALSHA", self.sha, *rest)
        for number, place in enumerate(places):
            if isinstance(replies[number], Error) and replies[number].startswith("NOSCRIPT "):
                if self.way == "SCRIPT LOAD":
                    assert (yield from send("SCRIPT", "LOAD", self.source, place=place)) == self.sha
                    replies[number] = yield from send("EVALSHA", self.sha, *rest, place=place)
                else:
                    replies[number] = yield from send("EVAL", self.source, *rest, place=place)
        return replies

    def run(self, keys, *args, place=0):
        return (yield from self.at((place,), keys, *args))[0]


def at(places, *command):
    replies = yield {place: [command] for place in places}
    return [replies[place][0] for place in places]


DELETE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
EXPIRE_IF_MINE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"


class Library:
    rule = None  # the one that fits its keys
    keys = None  # what they look like; %d is which
    connections = "own"
    handed_over = False
    options = ("",)  # of the rule that PROXY ADVISE may name
    step = 1  # ms: what its expiries are counted in
    extends = True
    careful = True  # nothing is released or extended but by comparison and in one step: pools and constants don't matter
    looks = False  # it compares, if not in one step
    endless = False  # acquired without an expiry
    kept = 0  # ms: how long the lock stays after its release
    local = False  # the threads of a process take turns among themselves first
    cluster = True  # its keys work on one
    redlock = False  # on several servers at once
    ends = True  # its lease may end while its worker is still at it
    names = ()  # of the connections to each place
    second_place = False  # there are connections to the same server for something else
    beside = ()  # keys of the same application that are no locks
    pool_loses = 2  # releases and extensions, before a pool is known for one
    cuts = 0  # extensions that are refused all the same
    late_is_taken = ()  # of a late extension and release over shared connections, what is taken for the holder's of now

    def key(self, number):
        return self.keys % number

    def shows(self, key):
        """The key that is there while the lock is held."""
        return key

    def is_free(self, node, key):
        """Asked over a connection to Redis itself."""
        return node("EXISTS", self.shows(key)) == 0

    def lost(self, me, key, value):
        """What a loser does."""
        return
        yield

    def extend(self, me, key, value, ms):
        raise NotImplementedError


class HandedOver(Library):
    """Released on purpose by another process than the one that acquired it; the second place is that of the releasing process,
    on another machine."""

    handed_over = second_place = True
    names = ("web", "worker")


# ---- PHP -----------------------------------------------------------------------------------------------------


class Laravel(Library):
    """Cache::lock(): SET EX NX, released by script."""

    keys, rule = "laravel_cache:lock:invoice:%d", "lock laravel_cache:lock:*"
    beside = ("laravel_cache:users:%d",)
    step, extends = 1000, False
    delete = Script(DELETE_IF_MINE)

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "EX", ms // 1000, "NX")) == "OK" else None

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


class LaravelForever(Laravel):
    """The same for no time in particular: SETNX."""

    keys, rule = "laravel_cache:forever:lock:%d", "lock laravel_cache:forever:* lease 3s"
    endless = True

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SETNX", key, value)) == 1 else None


class LaravelAdd(Library):
    """Cache::add() and forget(), the scheduler's mutex: a script that looks and sets, and a bare DEL."""

    rule = "lock laravel_cache:framework/schedule-*"
    step, extends, careful = 1000, False, False
    add = Script("if redis.call('exists', KEYS[1]) == 1 then return false end return redis.call('setex', KEYS[1], ARGV[2], ARGV[1])")

    def key(self, number):
        return "laravel_cache:framework/schedule-" + hashlib.sha1(b"job %d" % number).hexdigest()

    def acquire(self, me, key, ms):
        return "b:1;" if (yield from self.add.run([key], "b:1;", ms // 1000)) == "OK" else None

    def release(self, me, key, value):
        return (yield from send("DEL", key)) == 1


class LaravelUnique(HandedOver, Laravel):
    """Unique jobs: acquired by the process that queues the job, and released by the process that does it."""

    keys = "laravel_cache:laravel_unique_job:App\\Jobs\\Import:%d"
    rule = "lock laravel_cache:laravel_unique_job:* owner any"
    careful, options = False, (" owner any",)

    def release(self, me, key, value):
        return (yield from send("DEL", key, place=1)) == 1


class Symfony(Library):
    """Symfony's Lock: a sorted set of owners with their ends, by scripts."""

    keys, rule = "invoice-generation-%d", "lock invoice-generation-*"
    save = Script("""
        if redis.call('type', KEYS[1]).ok == 'string' then return false end
        local time = redis.call('time')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        redis.call('zremrangebyscore', KEYS[1], '-inf', now)
        if redis.call('zscore', KEYS[1], ARGV[2]) then
            if not redis.call('zscore', KEYS[1], '__write__') and redis.call('zcount', KEYS[1], '-inf', '+inf') > 1 then return false end
        elseif redis.call('zcount', KEYS[1], '-inf', '+inf') > 0 then return false end
        redis.call('zadd', KEYS[1], now + ARGV[3], ARGV[2])
        redis.call('zadd', KEYS[1], now + ARGV[3], '__write__')
        redis.call('pexpireat', KEYS[1], redis.call('zrevrange', KEYS[1], 0, 0, 'withscores')[2])
        return true""", "SCRIPT LOAD")
    put_off = Script("""
        if redis.call('type', KEYS[1]).ok == 'string' then return false end
        local time = redis.call('time')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        if not redis.call('zscore', KEYS[1], ARGV[2]) then return false end
        redis.call('zadd', KEYS[1], now + ARGV[3], ARGV[2])
        if redis.call('zscore', KEYS[1], '__write__') then redis.call('zadd', KEYS[1], now + ARGV[3], '__write__') end
        redis.call('pexpireat', KEYS[1], redis.call('zrevrange', KEYS[1], 0, 0, 'withscores')[2])
        return true""", "SCRIPT LOAD")
    delete = Script("""
        if redis.call('type', KEYS[1]).ok == 'string' then return false end
        if not redis.call('zscore', KEYS[1], ARGV[1]) then return false end
        redis.call('zrem', KEYS[1], ARGV[1])
        redis.call('zrem', KEYS[1], '__write__')
        local last = redis.call('zrevrange', KEYS[1], 0, 0, 'withscores')[2]
        if last then redis.call('pexpireat', KEYS[1], last) end
        return true""", "SCRIPT LOAD")

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from self.save.run([key], "1700000000.5", value, ms)) == 1 else None

    def extend(self, me, key, value, ms):
        return (yield from self.put_off.run([key], "1700000000.5", value, ms)) == 1

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


class SymfonyString(Symfony):
    """The same before version 5.2: a string."""

    keys, rule = "report.generation.%d", "lock report.generation.*"
    save = Script("""
        if redis.call('get', KEYS[1]) == ARGV[2] then return redis.call('pexpire', KEYS[1], ARGV[3])
        elseif redis.call('set', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then return 1 end
        return 0""")
    put_off = Script("if redis.call('get', KEYS[1]) == ARGV[2] then return redis.call('pexpire', KEYS[1], ARGV[3]) end return 0")
    delete = Script(DELETE_IF_MINE)


class Drupal(Library):
    """The redis module's lock backend: SET NX PX; once more, to have it for longer, and the release, in WATCH, GET, MULTI, EXEC.
    Losers look whether it may be available."""

    keys, rule = "drupal.redis.site:lock:cron_%d", "lock drupal.redis.*:lock:*"
    beside = ("drupal.redis.site:cache_page:%d",)

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "NX", "PX", ms)) == "OK" else None

    def lost(self, me, key, value):
        yield from send("GET", key)

    def watched(self, key, value, *command):
        """EXEC's reply; None too where the value is another one."""
        yield TAKE
        yield from send("WATCH", key)
        done = None
        if (yield from send("GET", key)) == value:
            yield from send("MULTI")
            yield from send(*command)
            done = yield from send("EXEC")
        else:
            yield from send("UNWATCH")
        yield GIVE
        return done

    def extend(self, me, key, value, ms):
        return (yield from self.watched(key, value, "SET", key, value, "PX", ms)) == ["OK"]

    def release(self, me, key, value):
        return (yield from self.watched(key, value, "DEL", key)) == [1]


class Drupal7(Drupal):
    """Where to acquire is to have seen nothing there until EXEC."""

    keys, rule, step = "drupal7:lock:menu_rebuild_%d", "lock drupal7:lock:*", 1000
    beside = ()

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from self.watched(key, None, "SETEX", key, ms // 1000, value)) == ["OK"] else None

    def extend(self, me, key, value, ms):
        return (yield from self.watched(key, value, "SETEX", key, ms // 1000, value)) == ["OK"]


# ---- Java ----------------------------------------------------------------------------------------------------


class Spring(Library):
    """Spring Integration's RedisLockRegistry, whose value is the process's, over Lettuce."""

    keys, rule = "payment-locks:%d", "lock payment-locks:*"
    connections, options, local = "multiplexed", ("", " owner client"), True
    obtain = Script("""
        local who = redis.call('get', KEYS[1])
        if who == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2]) return true
        elseif not who then redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) return true end
        return false""", "EVALSHA")
    renew = Script("""
        if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('pexpire', KEYS[1], ARGV[2]) return true end
        return false""", "EVALSHA")
    unlink = Script("""
        if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('unlink', KEYS[1]) return true end
        return false""", "EVALSHA")

    def acquire(self, me, key, ms):
        value = "5f0c1c6e-9d52-4d1f-8a37-%012d" % me.process.number
        return value if (yield from self.obtain.run([key], value, ms)) == 1 else None

    def extend(self, me, key, value, ms):
        return (yield from self.renew.run([key], value, ms)) == 1

    def release(self, me, key, value):
        return (yield from self.unlink.run([key], value)) == 1


class SpringMessages(Spring):
    """The same with a message to the waiting workers."""

    keys, rule = "order-locks:%d", "lock order-locks:*"
    unlink = Script("""
        if redis.call('get', KEYS[1]) == ARGV[1] and redis.call('unlink', KEYS[1]) == 1 then
            redis.call('publish', ARGV[2], KEYS[1])
            return true
        end
        return false""", "EVALSHA")

    def release(self, me, key, value):
        return (yield from self.unlink.run([key], value, "order-locks-channel:" + key)) == 1


class SpringUnlink(Spring):
    """The same of old: it looks, and then it sends a bare UNLINK."""

    keys, rule = "stock-locks:%d", "lock stock-locks:*"
    careful, looks = False, True

    def release(self, me, key, value):
        return (yield from send("GET", key)) == value and (yield from send("UNLINK", key)) == 1


class ShedLock(Library):
    """ShedLock over Jedis, without safeUpdate: extended by SET XX, released by a bare DEL where the job took long enough. An
    extension may be lost beside its lease's release. The value says whose a late one is."""

    keys, rule = "job-lock:default:import_%d", "lock job-lock:*"
    connections, options, careful = "pool", ("", " owner client"), False
    pool_loses = 4

    def acquire(self, me, key, ms):
        value = "ADDED:2024-05-06T07:08:09.123Z@host:" + me.value()
        return value if (yield from send("SET", key, value, "NX", "PX", ms)) == "OK" else None

    def extend(self, me, key, value, ms):
        return (yield from send("SET", key, value, "XX", "PX", ms)) == "OK"

    def release(self, me, key, value):
        return (yield from send("DEL", key)) == 1


class ShedLockKept(ShedLock):
    """The same where the job was done too soon: the lock is left for a while, by SET XX, in older versions with a new value."""

    keys, rule, kept = "job-lock:prod:mail_%d", "lock job-lock:prod:*", 5
    late_is_taken = ("release",)

    def release(self, me, key, value):
        return (yield from send("SET", key, "ADDED:2024-05-06T07:08:10.456Z@host:" + me.value(), "XX", "PX", self.kept)) == "OK"


class ShedLockOwn(ShedLock):
    """A connection a worker: a late SET XX is none of the holder's."""

    keys, rule = "job-lock:own:import_%d", "lock job-lock:own:*"
    connections = "own"


class ShedLockKeptOwn(ShedLockKept):
    keys, rule = "job-lock:alone:mail_%d", "lock job-lock:alone:*"
    connections, late_is_taken = "own", ()


class ShedLockSafe(ShedLock):
    """ShedLock with safeUpdate, over Lettuce: by scripts."""

    keys, rule = "job-lock:safe:report_%d", "lock job-lock:safe:*"
    connections, careful = "multiplexed", True
    update, delete = Script(EXPIRE_IF_MINE), Script(DELETE_IF_MINE)

    def extend(self, me, key, value, ms):
        return (yield from self.update.run([key], value, ms)) == 1

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


# ---- Python --------------------------------------------------------------------------------------------------


class DjangoLock(Library):
    """django-redis's cache.lock(), which is redis-py's Lock."""

    keys, rule = ":1:lock-report-%d", "lock :1:lock-*"
    connections, options = "pool", ("", " owner client")
    beside = (":1:session-%d",)
    longer = Script("""
        local value = redis.call('get', KEYS[1])
        if not value or value ~= ARGV[1] then return 0 end
        local left = redis.call('pttl', KEYS[1])
        if left < 0 then return 0 end
        redis.call('pexpire', KEYS[1], ARGV[2])
        return 1""", "SCRIPT LOAD")
    delete = Script("""
        local value = redis.call('get', KEYS[1])
        if not value or value ~= ARGV[1] then return 0 end
        redis.call('del', KEYS[1])
        return 1""", "SCRIPT LOAD")

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "PX", ms, "NX")) == "OK" else None

    def extend(self, me, key, value, ms):
        return (yield from self.longer.run([key], value, ms)) == 1

    def release(self, me, key, value):
        return (yield from self.delete.run([key], value)) == 1


class DjangoLockForever(DjangoLock):
    """The same without a timeout."""

    keys, rule, beside = ":1:mutex-report-%d", "lock :1:mutex-* lease 3s", ()
    endless, extends = True, False

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "NX")) == "OK" else None


class DjangoAdd(Library):
    """cache.add() and cache.delete(): a pickled constant, and a bare DEL."""

    keys, rule = ":1:running-import-%d", "lock :1:running-*"
    connections, options = "pool", ("", " owner client")
    extends, careful = False, False

    def acquire(self, me, key, ms):
        return "held" if (yield from send("SET", key, pickle.dumps("held"), "PX", ms, "NX")) == "OK" else None

    def release(self, me, key, value):
        return (yield from send("DEL", key)) == 1


class CeleryOnce(HandedOver):
    """Acquired where the task is queued, with redis-py's Lock; the worker sends a DEL. Losers ask how long it will take."""

    keys, rule = "qo_tasks.report_user-%d", "lock qo_* owner any"
    connections, options = "pool", (" owner any",)
    extends, careful = False, False

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "NX", "PX", ms)) == "OK" else None

    def lost(self, me, key, value):
        yield from send("PTTL", key)

    def release(self, me, key, value):
        return (yield from send("DEL", key, place=1)) == 1


# ---- Ruby ----------------------------------------------------------------------------------------------------


class ResqueLock(HandedOver):
    """SETNX where the job is queued, for ever; DEL where it is done."""

    keys, rule = "resque:lock:UpdateGraph-[%d]", "lock resque:lock:* owner any lease 3s"
    options = (" owner any",)
    extends, endless, careful = False, True, False

    def acquire(self, me, key, ms):
        return "true" if (yield from send("SETNX", key, "true")) == 1 else None

    def release(self, me, key, value):
        return (yield from send("DEL", key, place=1)) == 1


class SidekiqUnique(HandedOver):
    """sidekiq-unique-jobs: a digest, two queues, and a hash with the lock's holder, by scripts; done in another process."""

    rule = "lock uniquejobs:*:LOCKED"
    connections, options = "pool", ("", " owner any")
    extends, cluster = False, False
    queue = Script("""
        local queued, held = redis.call('llen', KEYS[2]), redis.call('hlen', KEYS[4])
        if redis.call('hexists', KEYS[4], ARGV[1]) == 1 then return ARGV[1] end
        local before = redis.call('get', KEYS[1])
        if before == ARGV[1] then return ARGV[1] end
        if before and (held >= 1 or queued >= 1) then return before end
        redis.call('set', KEYS[1], ARGV[1])
        redis.call('lpush', KEYS[2], ARGV[1])
        return ARGV[1]""", "SCRIPT LOAD")
    lock = Script("""
        if redis.call('hexists', KEYS[4], ARGV[1]) == 1 then
            redis.call('lrem', KEYS[2], -1, ARGV[1])
            redis.call('lrem', KEYS[3], 1, ARGV[1])
            return ARGV[1]
        end
        if redis.call('hlen', KEYS[4]) >= 1 then return nil end
        redis.call('zadd', KEYS[6], 1700000000, KEYS[1])
        redis.call('hset', KEYS[4], ARGV[1], 1700000000)
        redis.call('lrem', KEYS[3], 1, ARGV[1])
        redis.call('lrem', KEYS[2], -1, ARGV[1])
        redis.call('pexpire', KEYS[1], ARGV[2])
        redis.call('pexpire', KEYS[4], ARGV[2])
        redis.call('pexpire', KEYS[5], ARGV[2])
        redis.call('unlink', KEYS[2], KEYS[3])
        return ARGV[1]""", "SCRIPT LOAD")
    unlock = Script("""
        if redis.call('hexists', KEYS[4], ARGV[1]) == 0 then
            redis.call('lrem', KEYS[2], -1, ARGV[1])
            redis.call('lrem', KEYS[3], -1, ARGV[1])
            if redis.call('llen', KEYS[2]) > 0 or redis.call('llen', KEYS[3]) > 0 or redis.call('hlen', KEYS[4]) > 0 then return nil end
        end
        redis.call('hdel', KEYS[4], ARGV[1])
        redis.call('unlink', KEYS[1], KEYS[5], KEYS[4], KEYS[3])
        redis.call('zrem', KEYS[6], KEYS[1])
        redis.call('lpush', KEYS[2], '1')
        redis.call('pexpire', KEYS[2], 5000)
        return ARGV[1]""", "SCRIPT LOAD")

    def key(self, number):
        return "uniquejobs:" + hashlib.md5(b"job %d" % number).hexdigest()

    def shows(self, key):
        return key + ":LOCKED"

    def all(self, key):
        return [key, key + ":QUEUED", key + ":PRIMED", key + ":LOCKED", key + ":INFO", "uniquejobs:digests"]

    def acquire(self, me, key, ms):
        job = me.value()
        if (yield from self.queue.run(self.all(key), job, ms)) != job:
            return None
        if (yield from send("RPOPLPUSH", key + ":QUEUED", key + ":PRIMED")) is None:
            return None
        if (yield from self.lock.run(self.all(key), job, ms)) != job:
            return None
        yield from send("SET", key + ":INFO", '{"lock":"until_executed"}', "PX", ms)
        return job

    def release(self, me, key, value):
        return (yield from self.unlock.run(self.all(key), value, place=1)) == value


class SidekiqUniqueString(HandedOver):
    """The same of old: a string; with a namespace, as was usual then."""

    rule = "lock app:uniquejobs:*"
    connections, options = "pool", ("", " owner any")
    step, extends = 1000, False
    acquires = Script("""
        local job = redis.pcall('get', KEYS[1])
        if job then return job == ARGV[1] and 1 or 0 end
        return redis.pcall('set', KEYS[1], ARGV[1], 'nx', 'ex', ARGV[2]) and 1 or 0""", "SCRIPT LOAD")
    releases = Script("""
        local job = redis.pcall('get', KEYS[1])
        if not job then return -1 end
        return job == ARGV[1] and redis.pcall('del', KEYS[1]) or 0""", "SCRIPT LOAD")

    def key(self, number):
        return "app:uniquejobs:" + hashlib.md5(b"job %d" % number).hexdigest()

    def acquire(self, me, key, ms):
        job = me.value()
        return job if (yield from self.acquires.run([key], job, ms // 1000)) == 1 else None

    def release(self, me, key, value):
        return (yield from self.releases.run([key], value, place=1)) == 1


# ---- .NET ----------------------------------------------------------------------------------------------------


class StackExchange(Library):
    """LockTake, LockExtend, LockRelease: SET NX PX, and WATCH, GET, MULTI, EXEC over the one connection, with nothing of
    others in between. One extension was refused in 3 of 15 runs of 300 acquisitions."""

    keys, rule = "order-lock-%d", "lock order-lock-*"
    connections, options, cuts = "multiplexed", ("", " owner client"), 2

    def acquire(self, me, key, ms):
        value = me.value()
        return value if (yield from send("SET", key, value, "PX", ms, "NX")) == "OK" else None

    def lost(self, me, key, value):
        yield from send("GET", key)

    def watched(self, key, value, *command):
        yield TAKE
        now = (yield {0: [("WATCH", key), ("GET", key)]})[0][1]
        if now == value:
            done = (yield {0: [("MULTI",), command, ("EXEC",)]})[0][2]
        else:
            done = None
            yield from send("UNWATCH")
        yield GIVE
        return done == [1]

    def extend(self, me, key, value, ms):
        return (yield from self.watched(key, value, "PEXPIRE", key, ms))

    def release(self, me, key, value):
        return (yield from self.watched(key, value, "DEL", key))


# ---- Redlock: the same on several servers that know nothing of each other ---------------------------------------


class Redlock(Library):
    redlock = True
    release_script = Script(DELETE_IF_MINE)
    extend_script = Script(EXPIRE_IF_MINE)
    options = ("", " owner client")
    side_by_side = False  # all servers are asked at the same time

    def each(self, me, ask):
        """The replies of all servers to ask(places)."""
        places = range(len(me.process.places))
        if self.side_by_side:
            return (yield from ask(tuple(places)))
        replies = []
        for place in places:
            replies += yield from ask((place,))
        return replies

    def most(self, me, replies, good):
        return sum(reply == good for reply in replies) > len(me.process.places) // 2

    def acquire(self, me, key, ms):
        value = me.value()
        replies = yield from self.each(me, lambda places: at(places, "SET", key, value, "NX", "PX", ms))
        if self.most(me, replies, "OK"):
            return value
        yield from self.release(me, key, value)
        return None

    def extend(self, me, key, value, ms):
        return self.most(me, (yield from self.each(me, lambda places: self.extend_script.at(places, [key], value, ms))), 1)

    def release(self, me, key, value):
        return self.most(me, (yield from self.each(me, lambda places: self.release_script.at(places, [key], value))), 1)


class Redsync(Redlock):
    """Go: over go-redis's pool."""

    keys, rule, connections, side_by_side = "mutex:account:%d", "lock mutex:*", "pool", True
    release_script, extend_script = Script(DELETE_IF_MINE, "EVALSHA"), Script(EXPIRE_IF_MINE, "EVALSHA")


class RedlockNode(Redlock):
    """Node.js: scripts alone, over ioredis."""

    keys, rule, connections, side_by_side = "locks:account:%d", "lock locks:*", "multiplexed", True
    acquire_script = Script("""
        for n = 1, #KEYS do if redis.call('exists', KEYS[n]) ~= 0 then return 0 end end
        for n = 1, #KEYS do redis.call('set', KEYS[n], ARGV[1], 'PX', ARGV[2]) end
        return #KEYS""", "EVALSHA")
    extend_script = Script("""
        for n = 1, #KEYS do if redis.call('get', KEYS[n]) ~= ARGV[1] then return 0 end end
        for n = 1, #KEYS do redis.call('set', KEYS[n], ARGV[1], 'PX', ARGV[2]) end
        return #KEYS""", "EVALSHA")
    release_script = Script("""
        local done = 0
        for n = 1, #KEYS do if redis.call('get', KEYS[n]) == ARGV[1] then done = done + redis.pcall('del', KEYS[n]) end end
        return done""", "EVALSHA")

    def acquire(self, me, key, ms):
        value = me.value()
        replies = yield from self.each(me, lambda places: self.acquire_script.at(places, [key], value, ms))
        if self.most(me, replies, 1):
            return value
        yield from self.release(me, key, value)
        return None


class RedlockRuby(Redlock):
    """Ruby: by the same script to acquire and to extend."""

    keys, rule = "resource_key_%d", "lock resource_key_*"
    lock_script = Script("""
        local free = redis.call('exists', KEYS[1]) == 0
        if not (free and ARGV[3] == 'yes') and redis.call('get', KEYS[1]) ~= ARGV[1] then return nil end
        return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])""", "SCRIPT LOAD")
    release_script = Script(DELETE_IF_MINE, "SCRIPT LOAD")

    def locked(self, me, key, value, ms, anew):
        replies = yield from self.each(me, lambda places: self.lock_script.at(places, [key], value, ms, anew))
        if self.most(me, replies, "OK"):
            return value
        yield from self.release(me, key, value)
        return None

    def acquire(self, me, key, ms):
        return (yield from self.locked(me, key, me.value(), ms, "yes"))

    def extend(self, me, key, value, ms):
        return (yield from self.locked(me, key, value, ms, "no")) is not None


class RedlockPython(Redlock):
    """redlock-py: over redis-py's pool; it cannot extend."""

    keys, rule, connections, extends = "my_resource_%d", "lock my_resource_*", "pool", False


class Pottery(Redlock):
    """Python too; it checks by script whether it still holds the lock."""

    keys, rule, connections, side_by_side = "redlock:printer-%d", "lock redlock:*", "pool", True
    release_script, extend_script = Script(DELETE_IF_MINE, "SCRIPT LOAD"), Script(EXPIRE_IF_MINE, "SCRIPT LOAD")
    acquired_script = Script("""
        if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
        local left = redis.call('pttl', KEYS[1])
        return left > 0 and left or 0""", "SCRIPT LOAD")

    def extend(self, me, key, value, ms):
        yield from self.each(me, lambda places: self.acquired_script.at(places, [key], value))
        return (yield from super().extend(me, key, value, ms))


LIBRARIES = {
    "Laravel lock": Laravel(),
    "Laravel lock, no time": LaravelForever(),
    "Laravel add": LaravelAdd(),
    "Laravel unique jobs": LaravelUnique(),
    "Symfony Lock": Symfony(),
    "Symfony Lock, of old": SymfonyString(),
    "Drupal": Drupal(),
    "Drupal 7": Drupal7(),
    "Spring Integration": Spring(),
    "Spring Integration, messages": SpringMessages(),
    "Spring Integration, of old": SpringUnlink(),
    "ShedLock": ShedLock(),
    "ShedLock, kept": ShedLockKept(),
    "ShedLock, own": ShedLockOwn(),
    "ShedLock, kept, own": ShedLockKeptOwn(),
    "ShedLock, safe": ShedLockSafe(),
    "django-redis lock": DjangoLock(),
    "django-redis lock, no time": DjangoLockForever(),
    "django-redis add": DjangoAdd(),
    "Celery once": CeleryOnce(),
    "resque-lock": ResqueLock(),
    "Sidekiq unique jobs": SidekiqUnique(),
    "Sidekiq unique jobs, of old": SidekiqUniqueString(),
    "StackExchange.Redis": StackExchange(),
    "redsync": Redsync(),
    "redlock for node": RedlockNode(),
    "redlock for Ruby": RedlockRuby(),
    "redlock for Python": RedlockPython(),
    "pottery": Pottery(),
}
