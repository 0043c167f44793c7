"""A client library as Debian ships it (python3-redis)."""

import threading

import pytest

redis = pytest.importorskip("redis")


@pytest.fixture(params=[False, True], ids=["one connection", "pool"])
def library(request, proxy):
    client = redis.Redis(*proxy.address, socket_timeout=20, single_connection_client=not request.param)
    yield client
    client.close()
    client.connection_pool.disconnect()


def test_basics(library):
    assert library.ping()
    assert library.set("k", "v")
    assert library.get("k") == b"v"
    assert library.mset({"a": 1, "b": 2, "c": 3})
    assert library.mget("a", "b", "c", "d") == [b"1", b"2", b"3", None]
    assert library.delete("a", "b", "c", "d") == 3
    assert library.hset("h", mapping={"f": "v", "g": "w"}) == 2
    assert library.hgetall("h") == {b"f": b"v", b"g": b"w"}
    assert library.zadd("z", {"a": 1, "b": 2}) == 2
    assert library.zrange("z", 0, -1, withscores=True) == [(b"a", 1.0), (b"b", 2.0)]
    assert library.rpush("l", *range(5)) == 5
    assert library.lrange("l", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
    assert sorted(library.scan_iter("*")) == [b"h", b"k", b"l", b"z"]
    assert library.dbsize() == 4
    assert library.info("server")["redis_version"]
    assert library.client_setname("me") and library.client_getname() in ("me", None)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE|wrong kind"):
        library.incr("h")
    with pytest.raises(redis.ResponseError):
        library.execute_command("NOSUCH")
    assert library.get("k") == b"v"


def test_pipeline_without_transaction(library):
    with library.pipeline(transaction=False) as p:
        for i in range(500):
            p.set("p:%d" % i, i)
        for i in range(500):
            p.get("p:%d" % i)
        p.incr("lock-free-counter")
        replies = p.execute()
    assert replies == [True] * 500 + [b"%d" % i for i in range(500)] + [1]


def test_script(library):
    double = library.register_script("return redis.call('GET', KEYS[1]) * 2")
    library.set("n", 21)
    assert double(keys=["n"]) == 42


def test_set_nx_and_delete(library):
    """The commonest lock there is."""
    assert library.set("lock:commonest", "1", nx=True, ex=5)
    assert library.set("lock:commonest", "1", nx=True, ex=5) is None
    assert library.delete("lock:commonest") == 1
    assert library.setnx("lock:commonest", "1")
    assert 0 < library.ttl("lock:commonest") <= 30
    assert library.delete("lock:commonest") == 1


def test_library_lock(library):
    """redis.lock.Lock: SET NX PX, and scripts for release, extend and reacquire."""
    lock = library.lock("lock:library", timeout=30)
    other = library.lock("lock:library", timeout=30, blocking=False)
    assert lock.acquire()
    assert not other.acquire()
    assert lock.locked() and lock.owned()
    assert lock.extend(10)
    assert 30 < library.ttl("lock:library") <= 40
    assert lock.reacquire()
    assert library.ttl("lock:library") <= 30
    lock.release()
    assert not lock.locked()
    with pytest.raises(redis.exceptions.LockError):
        lock.release()
    assert other.acquire()
    other.release()


def test_library_lock_that_expired(library, direct):
    from servers import until

    lock = library.lock("lock:expired", timeout=0.1)
    assert lock.acquire()
    until(lambda: direct("EXISTS", "lock:expired") == 0, 15, "the end of the lock")
    second = library.lock("lock:expired", timeout=30)
    assert second.acquire()
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()
    assert second.owned()
    second.release()


def test_library_lock_under_contention(proxy):
    """Threads that each add to a counter under the lock: none gets lost."""
    client = redis.Redis(*proxy.address, socket_timeout=30)
    client.set("total", 0)
    failures = []

    def work():
        try:
            for _ in range(8):
                with client.lock("lock:contended", timeout=30, sleep=0.005):
                    value = int(client.get("total"))
                    client.set("total", value + 1)
        except Exception as error:  # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failures, failures[0]
    assert client.get("total") == b"48"
    client.connection_pool.disconnect()


@pytest.mark.parametrize("threads", [1, 4])
def test_bare_lock_under_contention(backend, proxy, start_proxy, threads):
    """The same with SETNX and DEL, one connection a thread; and with several threads in the proxy."""
    if threads > 1:
        proxy = start_proxy(backend, "threads %d" % threads)
    failures = []

    def work():
        try:
            mine = redis.Redis(*proxy.address, socket_timeout=30, single_connection_client=True)
            for _ in range(8):
                while not mine.setnx("lock:bare", "1"):
                    pass
                try:
                    mine.set("bare", int(mine.get("bare") or 0) + 1)
                finally:
                    assert mine.delete("lock:bare") == 1
            mine.close()
        except Exception as error:  # handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failures, failures[0]
    reader = redis.Redis(*proxy.address)
    assert reader.get("bare") == b"48"
    reader.connection_pool.disconnect()
