"""A rule's `wait TIME`: attempts that a live lease refuses are held until the lock is theirs, or TIME is over."""

import itertools
import select
import signal
import threading
import time

import pytest

import servers
from resp import encode
from test_takeover import ended, orphans, take_over  # noqa: F401: a fixture

RULES = ["lock lock:long:hash:* kind hash wait 60s", "lock lock:short:hash:* kind hash wait 300ms", "lock lock:long:* wait 60s", "lock lock:short:* wait 300ms", "lock lock:release:* wait 60s on-disconnect release",
         "lock lock:place:* wait 1500ms", "lock lock:none:* wait 0", "lock lock:*"]


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def backend(request, farm):
    return farm.backend(request.param)


@pytest.fixture(scope="module", params=[1, 4], ids=["1thread", "4threads"])
def waits(request, backend):
    proxy = servers.Proxy(backend, "threads %d" % request.param, "loglevel verbose", *RULES)
    yield proxy
    proxy.stop()


def figure(client, field):
    """A number of PROXY INFO."""
    for line in client("PROXY", "INFO").splitlines():
        if line.startswith(field + ":"):
            return int(line.split(":")[1])
    raise AssertionError("PROXY INFO has no " + field)


@pytest.fixture
def worker(waits, connect):
    """worker(): a client with an identity of its own."""
    serial = itertools.count(1)
    return lambda: connect(waits, commands=[("CLIENT", "SETNAME", "worker-%d" % next(serial))])


@pytest.fixture
def watch(worker):
    return worker()


@pytest.fixture
def waiting(watch):
    """waiting(n): so many attempts wait, in the end."""

    def wait(count):
        servers.until(lambda: figure(watch, "waiting") == count, what="%d attempts that wait" % count)

    yield wait
    wait(0)


def silent(client, seconds=0.15):
    """Nothing comes for a while."""
    client.sock.settimeout(seconds)
    try:
        data = client.sock.recv(1)
        raise AssertionError("it was answered: %r" % data)
    except TimeoutError:
        pass
    finally:
        client.sock.settimeout(client.timeout)


FORMS = {
    "SETNX": (("SETNX", "{key}", "{v}"), 1, 0),
    "SET NX": (("SET", "{key}", "{v}", "NX"), "OK", None),
    "SET NX PX": (("SET", "{key}", "{v}", "NX", "PX", "60000"), "OK", None),
    "SET NX EX": (("SET", "{key}", "{v}", "EX", "60", "NX"), "OK", None),
    "SET NX GET": (("SET", "{key}", "{v}", "NX", "GET", "PX", "60000"), None, "first"),
    "MSETNX": (("MSETNX", "{key}", "{v}"), 1, 0),
}


def words(form, name, value):
    return [word.replace("{key}", name).replace("{v}", value) for word in FORMS[form][0]]


@pytest.mark.parametrize("form", FORMS)
def test_release_hands_over(worker, waiting, watch, key, form):
    """The attempt is answered when the lock is its session's, as if it had been free; and it is."""
    name = key("lock:long:hand")
    first, second = worker(), worker()
    assert first(*words(form, name, "first")) == FORMS[form][1]
    second.send(encode(*words(form, name, "second")))
    waiting(1)
    assert first("DEL", name) == 1
    assert second.read() == FORMS[form][1]
    assert watch("GET", name) == "second"
    assert first("DEL", name) == 0
    assert second("DEL", name) == 1


@pytest.mark.parametrize("form", FORMS)
def test_time_is_over(worker, waiting, watch, key, form):
    name = key("lock:short:over")
    first, second = worker(), worker()
    assert first(*words(form, name, "first")) == FORMS[form][1]
    begun = time.monotonic()
    assert second(*words(form, name, "second")) == FORMS[form][2]
    assert time.monotonic() - begun >= 0.29
    assert watch("GET", name) == "first"
    assert second("DEL", name) == 0
    assert first("DEL", name) == 1


@pytest.mark.parametrize("release", [("DEL",), ("HDEL", "owner"), ("UNLINK",)], ids=lambda r: r[0])
def test_a_hash_is_handed_over(worker, waiting, watch, key, release):
    """HSETNX waits, too, in its order, and gets the lock behind DEL and behind HDEL of the field."""
    name = key("lock:long:hash")
    first, second, third = worker(), worker(), worker()
    assert first("HSETNX", name, "owner", "first") == 1
    fence = first("PROXY", "TOKEN", name)
    for n, client in enumerate((second, third)):
        client.send(encode("HSETNX", name, "owner", ("second", "third")[n]))
        waiting(n + 1)
    assert first("HSETNX", name, "owner", "again") == 0, "its own lock"
    holder = first
    for client, value in ((second, "second"), (third, "third")):
        assert holder(release[0], name, *release[1:]) == 1
        assert client.read() == 1
        assert watch("HGETALL", name) == ["owner", value] and 0 < watch("TTL", name) <= 30
        assert client("PROXY", "TOKEN", name) > fence
        assert first("DEL", name) == 0
        holder = client
    assert third("HDEL", name, "owner") == 1


def test_a_hash_for_which_the_time_is_over(worker, waiting, watch, key):
    name = key("lock:short:hash")
    first, second = worker(), worker()
    assert first("HSETNX", name, "owner", "first") == 1
    begun = time.monotonic()
    assert second("HSETNX", name, "owner", "second") == 0
    assert time.monotonic() - begun >= 0.29
    assert second("HDEL", name, "owner") == 0
    assert watch("HGETALL", name) == ["owner", "first"]
    assert first("HDEL", name, "owner") == 1


def test_a_hash_and_a_request_that_ends_the_wait(worker, waiting, key):
    name = key("lock:long:hash")
    first, second = worker(), worker()
    assert first("HSETNX", name, "owner", "first") == 1
    second.send(encode("HSETNX", name, "owner", "second"))
    waiting(1)
    second.send(encode("HGET", name, "owner"))
    assert [second.read(), second.read()] == [0, "first"]
    assert first("HDEL", name, "owner") == 1


def test_a_hash_for_which_a_client_waited_that_left(worker, waiting, watch, key):
    name = key("lock:long:hash")
    first, second = worker(), worker()
    assert first("HSETNX", name, "owner", "first") == 1
    second.send(encode("HSETNX", name, "owner", "second"))
    waiting(1)
    second.close()
    waiting(0)
    assert first("HDEL", name, "owner") == 1
    assert watch("HSETNX", name, "owner", "watch") == 1 and watch("DEL", name) == 1


def test_no_wait_by_default(worker, key):
    name = key("lock:plain")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    begun = figure(first, "waits_refused")
    assert second("SETNX", name, 1) == 0
    assert figure(first, "waits_refused") == begun
    first("DEL", name)


@pytest.mark.parametrize("more", [("PING",), ("DEL", "{key}"), ("SETNX", "{key}", "again")])
def test_further_request_ends_the_wait(worker, waiting, key, more):
    """The refusal comes first, then the request's own answer."""
    name = key("lock:long:more")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    waiting(1)
    second.send(encode(*[word.replace("{key}", name) for word in more]))
    assert second.read() == 0
    assert second.read() == ("PONG" if more == ("PING",) else 0)
    assert first("DEL", name) == 1


def test_half_a_request_ends_the_wait(worker, waiting, key):
    name = key("lock:long:half")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    waiting(1)
    second.send(b"*1\r\n$4\r\nPI")
    assert second.read() == 0
    second.send(b"NG\r\n")
    assert second.read() == "PONG"
    assert first("DEL", name) == 1


def test_who_has_said_more_waits_again(worker, waiting, key):
    """A request that came while another one waited is no evidence about which worker uses the session."""
    name = key("lock:long:again")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    for _ in range(2):
        second.send(encode("SETNX", name, 2))
        waiting(1)
        second.send(encode("PING"))
        assert second.read() == 0
        assert second.read() == "PONG"
    second.send(encode("SET", name, 3, "NX", "PX", 60000))
    waiting(1)
    assert first("DEL", name) == 1
    assert second.read() == "OK"
    assert first("GET", name) == "3"
    assert second("DEL", name) == 1


def test_pipeline_does_not_wait(worker, waiting, key):
    name = key("lock:long:pipeline")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2) + encode("PING"))
    assert second.read() == 0
    assert second.read() == "PONG"
    assert first("DEL", name) == 1


def test_transaction_does_not_wait(worker, waiting, key):
    name = key("lock:long:multi")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    assert second("MULTI") == "OK"
    assert second("SETNX", name, 2) == "QUEUED"
    assert second("EXEC") == [0]
    assert first("DEL", name) == 1


def test_own_lease(worker, waiting, key):
    """The lock's own holder is refused at once."""
    name = key("lock:long:own")
    first, second = worker(), worker()
    assert first("SETNX", name, 1) == 1
    assert first("SETNX", name, 2) == 0
    second.send(encode("SETNX", name, 3))
    waiting(1)
    assert first("SETNX", name, 2) == 0  # also where others wait
    assert first("DEL", name) == 1
    assert second.read() == 1
    assert second("DEL", name) == 1


def test_client_that_leaves(worker, waiting, key):
    """It is forgotten, and the lock goes to the one behind it."""
    name = key("lock:long:leaves")
    first, second, third = worker(), worker(), worker()
    assert first("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    waiting(1)
    third.send(encode("SETNX", name, 3))
    waiting(2)
    second.close()
    waiting(1)
    assert first("DEL", name) == 1
    assert third.read() == 1
    assert third("DEL", name) == 1


def test_order(worker, waiting, key):
    """First come, first served, also over threads; new attempts go behind the waiting ones."""
    name = key("lock:long:order")
    holder, crowd = worker(), [worker() for _ in range(8)]
    assert holder("SETNX", name, 1) == 1
    for i, client in enumerate(crowd):
        client.send(encode("SETNX", name, i))
        waiting(i + 1)
    assert holder("DEL", name) == 1
    holder.send(encode("SETNX", name, "again"))
    for i, client in enumerate(crowd):
        assert client.read() == 1
        for other in [*crowd[i + 1:], holder]:
            silent(other, 0.001)
        assert client("DEL", name) == 1
    assert holder.read() == 1
    assert holder("DEL", name) == 1


# ---- every way in which a lock becomes free -------------------------------------------------------------

DELETE_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def exec_del(holder, name):
    holder("MULTI")
    holder("DEL", name)
    assert holder("EXEC") == [1]


RELEASES = {
    "DEL": lambda holder, name, watch: holder("DEL", name),
    "GETDEL": lambda holder, name, watch: holder("GETDEL", name),
    "several": lambda holder, name, watch: holder("DEL", name, "elsewhere"),
    "script": lambda holder, name, watch: holder("EVAL", DELETE_MINE, 1, name, "mine"),
    "EXEC": lambda holder, name, watch: exec_del(holder, name),
    "PROXY RELEASE": lambda holder, name, watch: watch("PROXY", "RELEASE", name),
    "leaving": lambda holder, name, watch: holder.close(),
    "no time left": lambda holder, name, watch: holder("PEXPIRE", name, 0),
}


@pytest.mark.parametrize("release", RELEASES)
def test_handover_is_prompt(worker, waiting, watch, key, release):
    """The attempt goes out with the release or its answer, not with the next look, which comes after 100 ms."""
    took = []
    for _ in range(3):
        name = key("lock:release:prompt")
        holder, second = worker(), worker()
        assert holder("SETNX", name, "mine") == 1
        second.send(encode("SETNX", name, 2))
        waiting(1)
        begun = time.monotonic()
        RELEASES[release](holder, name, watch)
        assert second.read() == 1
        took.append(time.monotonic() - begun)
        assert second("DEL", name) == 1
    assert min(took) < 0.06, took


def test_end_of_a_lease(worker, waiting, key):
    """The next one tries when the lease ends, as its node says."""
    late = []
    for _ in range(3):
        name = key("lock:long:end")
        holder, second = worker(), worker()
        begun = time.monotonic()
        assert holder("SET", name, 1, "NX", "PX", 430) == "OK"
        second.send(encode("SETNX", name, 2))
        assert second.read() == 1
        late.append(time.monotonic() - begun - 0.430)
        assert second("DEL", name) == 1
    assert -0.002 < min(late) < 0.04, late


def test_release_past_the_proxy(worker, waiting, backend, key):
    """However the lock is released, the waiting attempts learn of it soon."""
    name = key("lock:long:past")
    holder, second = worker(), worker()
    assert holder("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    waiting(1)
    direct = backend.direct()
    direct("DEL", name)
    direct.close()
    assert second.read() == 1
    assert second("DEL", name) == 1


# ---- places ---------------------------------------------------------------------------------------------


def test_place_is_kept(worker, waiting, key):
    """A client that comes again within TIME has the same place."""
    name = key("lock:place:kept")
    holder, early, late = worker(), worker(), worker()
    assert holder("SETNX", name, 1) == 1
    early.send(encode("SETNX", name, 2))
    waiting(1)
    time.sleep(0.5)  # the second comes so much later that the first one's time is over before
    late.send(encode("SETNX", name, 3))
    waiting(2)
    assert early.read() == 0
    early.send(encode("SETNX", name, 2))
    waiting(2)
    assert holder("DEL", name) == 1
    assert early.read() == 1
    silent(late, 0.01)
    assert early("DEL", name) == 1
    assert late.read() == 1
    assert late("DEL", name) == 1


def test_nobody_waits_for_an_empty_place(worker, waiting, key):
    name = key("lock:place:empty")
    holder, early, late = worker(), worker(), worker()
    assert holder("SETNX", name, 1) == 1
    early.send(encode("SETNX", name, 2))
    waiting(1)
    time.sleep(0.5)
    late.send(encode("SETNX", name, 3))
    waiting(2)
    assert early.read() == 0
    waiting(1)
    begun = time.monotonic()
    assert holder("DEL", name) == 1
    assert late.read() == 1
    assert time.monotonic() - begun < 0.5  # and not when the other's place is given up
    assert late("DEL", name) == 1


# ---- what ends a wait -----------------------------------------------------------------------------------


@pytest.fixture
def own(backend, start_proxy, connect):
    """own(rule, ...): a proxy with these rules, and clients of it."""

    def start(*rules):
        proxy = start_proxy(backend, *rules)
        serial = itertools.count(1)
        return proxy, lambda: connect(proxy, commands=[("CLIENT", "SETNAME", "own-%d" % next(serial))])

    return start


def await_waiting(client, count):
    servers.until(lambda: figure(client, "waiting") == count, what="%d attempts that wait" % count)


def test_reload_takes_waiting_away(own, key):
    name = key("lock:reload")
    proxy, worker = own("lock lock:* wait 100s")
    holder, second, third = worker(), worker(), worker()
    assert holder("SETNX", name, 1) == 1
    for client in (second, third):
        client.send(encode("SETNX", name, 2))
    await_waiting(holder, 2)
    proxy.write_config(["upstream " + proxy_upstream(proxy), "lock lock:*"])
    proxy.signal(signal.SIGHUP)
    assert second.read() == 0
    assert third.read() == 0
    assert holder("DEL", name) == 1


def test_who_waits_is_not_idle(own, key):
    """Its next request may take longer than clients may be idle."""
    name = key("lock:idle")
    _, worker = own("lock lock:* wait 100s", "timeout 1")
    holder, second, bystander = worker(), worker(), worker()
    assert holder("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    await_waiting(holder, 1)
    assert bystander("PING") == "PONG"
    servers.until(lambda: holder("CLIENT", "LIST").count("name=own-") == 2, what="the bystander's end")
    assert figure(holder, "waiting") == 1
    assert holder("DEL", name) == 1
    assert second.read() == 1


def proxy_upstream(proxy):
    with open(proxy.config) as f:
        return next(line.split(None, 1)[1].strip() for line in f if line.startswith("upstream "))


def test_stop_answers_those_who_wait(own, key):
    name = key("lock:stop")
    proxy, worker = own("lock lock:* wait 100s")
    holder, second = worker(), worker()
    assert holder("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    await_waiting(holder, 1)
    proxy.stop()
    assert second.read() == 0


def test_leaving_answers_those_who_wait(own, key):
    """SIGQUIT and a take-over: connected clients are served, and no attempt waits any more."""
    name = key("lock:leaving")
    proxy, worker = own("lock lock:* wait 100s", "shutdown-timeout 100")
    holder, second = worker(), worker()
    assert holder("SETNX", name, 1) == 1
    second.send(encode("SETNX", name, 2))
    await_waiting(holder, 1)
    proxy.expected = False
    proxy.signal(signal.SIGQUIT)
    assert second.read() == 0
    assert second("SETNX", name, 2) == 0  # at once
    assert holder("DEL", name) == 1
    assert second("SETNX", name, 2) == 1
    holder.close()
    second.close()
    assert proxy.process.wait(10) == 0


def test_a_take_over_answers_those_who_wait(own, connect, key, orphans):  # noqa: F811
    """SIGUSR2: the old process serves the clients that are there, and none of them waits any more. Clients of the next
    process wait for the same lock."""
    name = key("lock:over")
    proxy, worker = own("lock lock:* wait 100s", "shutdown-timeout 100")
    holder, *waiters = (worker() for _ in range(3))
    assert holder("SETNX", name, 1) == 1
    for form, client in zip(("SETNX", "SET NX PX"), waiters):
        client.send(encode(*words(form, name, "2")))
    await_waiting(holder, 2)
    take_over(proxy, orphans)
    assert [client.read() for client in waiters] == [0, None]
    assert waiters[0]("SETNX", name, 2) == 0  # at once
    comer = connect(proxy, commands=[("CLIENT", "SETNAME", "comer")])
    comer.send(encode("SETNX", name, 3))
    await_waiting(connect(proxy), 1)
    assert holder("DEL", name) == 1
    assert comer.read() == 1
    for client in (holder, *waiters):
        client.close()
    ended(proxy, 10)


def test_lost_node(start_redis, start_proxy, connect):
    """A waiting client gets the same error as the others."""
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* wait 100s", "upstream-timeout 2s")
    holder, *crowd = [connect(proxy) for _ in range(4)]
    assert holder("SETNX", "lock:lost", 1) == 1
    for i, client in enumerate(crowd):
        client("CLIENT", "SETNAME", "crowd-%d" % i)
        client.send(encode("SETNX", "lock:lost", i))
    await_waiting(holder, 3)
    redis.stop()
    for client in crowd:
        reply = client.read()
        assert reply == 0 or reply.startswith("UPSTREAM "), reply


@pytest.mark.parametrize("words", [("SETNX", "lock:left", 2), ("MSETNX", "lock:left:a", 2, "lock:left", 2)],
                         ids=["one", "several"])
def test_grant_for_who_has_left(start_redis, start_proxy, connect, words):
    """It was on its way when the client left: it is given back at once, and of several locks each."""
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* wait 100s")
    holder, second, watch = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "abc"]
    assert holder("SETNX", "lock:left", 1) == 1
    second.send(encode(*words))
    await_waiting(watch, 1)
    redis.pause()
    holder.send(encode("DEL", "lock:left"))
    servers.until(lambda: figure(watch, "wait_tries") > 0)
    second.close()
    for _ in range(10):
        watch("PROXY", "INFO")  # turns of the loop, which sees it
    redis.resume()
    assert holder.read() == 1
    direct = redis.direct()
    servers.until(lambda: direct("EXISTS", *words[1::2]) == 0, 5)
    assert figure(watch, "waiting") == 0


def test_replicas_confirm_before_the_answer(start_redis, start_proxy, connect):
    """A grant that no replica has does not count, also for an attempt that has waited."""
    redis = start_redis()
    proxy = start_proxy(redis, "lock lock:* wait 100s")
    holder, second = [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for name in "ab"]
    assert holder("SETNX", "lock:replicas", 1) == 1
    proxy.write_config(["upstream " + redis.upstream(), "lock lock:* wait 100s replicas 1 50ms"])
    holder("PROXY", "RELOAD")
    second.send(encode("SETNX", "lock:replicas", 2))
    await_waiting(holder, 1)
    assert holder("DEL", "lock:replicas") == 1
    assert second.read() == 0
    assert figure(holder, "incidents_unconfirmed") == 1


# ---- two proxies before the same Redis ------------------------------------------------------------------


@pytest.fixture
def two(backend, start_proxy, connect):
    """two(): makers of clients of two proxies that know nothing of each other."""
    serial = itertools.count(1)

    def maker(proxy):
        return lambda: connect(proxy, commands=[("CLIENT", "SETNAME", "two-%d" % next(serial))])

    def start(*rules):
        return [maker(start_proxy(backend, *rules)) for _ in range(2)]

    return start


def test_handover_to_another_proxy(two, key):
    """A release notifies waiting attempts at other proxies: they do not need their next check, after 100 ms."""
    here, there = two("lock lock:* wait 60s")
    took = []
    for _ in range(5):
        name = key("lock:two")
        holder, second = here(), there()
        assert holder("SETNX", name, 1) == 1
        second.send(encode("SETNX", name, 2))
        await_waiting(there(), 1)
        servers.until(lambda: figure(there(), "pinned_subscribed") >= 1)  # on a cluster to each node that has had one
        begun = time.monotonic()
        assert holder("DEL", name) == 1
        assert second.read() == 1
        took.append(time.monotonic() - begun)
        assert second("DEL", name) == 1
    assert sorted(took)[1] < 0.06, took


def test_disconnect_is_told_to_another_proxy(start_redis, start_proxy, connect):
    """A release by the proxy, behind an owner that has gone, is told like any other."""
    redis = start_redis()
    here, there = [start_proxy(redis, "lock lock:* wait 60s on-disconnect release") for _ in range(2)]
    holder, second, watch = connect(here), connect(there), connect(there)
    ear = redis.direct()
    assert ear("SUBSCRIBE", "lockkeeper-freed")[0] == "subscribe"
    assert holder("SETNX", "lock:gone", 1) == 1
    second.send(encode("SETNX", "lock:gone", 2))
    await_waiting(watch, 1)
    holder.close()
    assert second.read() == 1
    kind, _, said = ear.read()
    assert kind == "message" and said.endswith(" 0 lock:gone")
    assert second("DEL", "lock:gone") == 1


def test_longest_waiter_first_across_proxies(two, key):
    """A proxy's own waiting attempts don't pass attempts that have waited longer at another proxy, unless that one lets them
    wait: a busy machine may have it stand still in a round, but not in three."""
    here, there = two("lock lock:* wait 60s")
    holder, old, *young = here(), there(), here(), here()

    def passed(name):
        assert holder("SETNX", name, 1) == 1
        old.send(encode("SETNX", name, "old"))
        await_waiting(there(), 1)
        time.sleep(0.02)  # clocks of two processes, in ms
        for client in young:
            client.send(encode("SETNX", name, "young"))
        await_waiting(holder, 2)
        servers.until(lambda: figure(there(), "pinned_subscribed") == 1)
        assert holder("DEL", name) == 1
        waiting, order = {client.sock: client for client in (old, *young)}, []
        while waiting:
            (winner,) = select.select(list(waiting), [], [], 20)[0]
            order.append(waiting.pop(winner))
            assert order[-1].read() == 1 and not select.select(list(waiting), [], [], 0.01)[0]
            assert order[-1]("DEL", name) == 1
        return order[0] is not old

    assert not all(passed(key("lock:two:first")) for _ in range(3))


def test_a_free_lock_is_left_to_another_proxy_once(backend, start_proxy, connect, key):
    """The attempt that has waited longest is at a proxy that does not come. Commands that find the lock free do not restart
    the pause in which it might come."""
    here, there = [start_proxy(backend, "lock lock:* wait 20s") for _ in range(2)]
    holder, second, other = [connect(here, commands=[("CLIENT", "SETNAME", "one-%d" % n)]) for n in range(3)]
    took = []
    for _ in range(3):
        old, name = connect(there), key("lock:left")
        assert holder("SETNX", name, 1) == 1
        old.send(encode("SETNX", name, "old"))
        await_waiting(connect(there), 1)
        time.sleep(0.02)  # clocks of two processes, in ms
        second.send(encode("SETNX", name, 2))
        await_waiting(holder, 1)
        silent(second, 0.15)  # it has looked, and knows of the other one
        there.signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert holder("DEL", name) == 1
            while not select.select([second.sock], [], [], 0)[0]:
                assert other("DEL", name) == 0
            took.append(time.monotonic() - begun)
            assert second.read() == 1
        finally:
            there.signal(signal.SIGCONT)
        assert second("DEL", name) == 1
        assert old.read() == 1
    assert min(took) < 0.1, took


def test_turns_are_even(two, key):
    """Workers that contend without a pause: as many turns for each, at one proxy as at the other. A busy machine may spoil
    a round, by having a proxy stand still; not three."""
    here, there = two("lock lock:* wait 10s")
    name = key("lock:two:even")
    crowd = [here(), there(), here(), there()]

    def a_round():
        turns = [0] * len(crowd)
        stop = time.monotonic() + 2

        def work(i):
            while time.monotonic() < stop:
                if crowd[i]("SET", name, i, "NX", "PX", 10000) == "OK":
                    turns[i] += 1
                    time.sleep(0.005)
                    assert crowd[i]("DEL", name) == 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(crowd))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return turns

    rounds = []
    while len(rounds) < 3:
        rounds.append(a_round())
        if min(rounds[-1]) * 2 >= max(rounds[-1]) > 2:
            return
    raise AssertionError(rounds)


def test_longest_wait_across_proxies(two, key):
    """No attempt waits longer than twice the turns of all: the longest waiting one comes first, at any proxy, and no proxy
    needs its next check, after 100 ms. A busy machine may spoil one round, but not three."""
    here, there = two("lock lock:* wait 10s")
    name = key("lock:two:longest")
    crowd = [here(), there(), here(), there()]
    work, tries = 0.01, lambda: figure(crowd[0], "wait_tries") + figure(crowd[1], "wait_tries")

    def a_round():
        waits, turn, asked = [[] for _ in crowd], [], tries()
        stop = time.monotonic() + 1.5

        def turns(i):
            while time.monotonic() < stop:
                begun = time.monotonic()
                assert crowd[i]("SET", name, i, "NX", "PX", 10000) == "OK"
                acquired = time.monotonic()
                waits[i].append(acquired - begun)
                time.sleep(work)
                assert crowd[i]("DEL", name) == 1
                turn.append(time.monotonic() - acquired)

        threads = [threading.Thread(target=turns, args=(i,)) for i in range(len(crowd))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return max(map(max, waits)), sum(turn) / len(turn), (tries() - asked) / len(turn)

    rounds = []
    while len(rounds) < 3:
        rounds.append(a_round())
        longest, each, asked = rounds[-1]
        if longest <= 2 * len(crowd) * each and asked < 1.5:
            return
    raise AssertionError(rounds)


def test_scripts_an_acquisition(own, backend, key):
    """However many wait, Redis runs few scripts for an acquisition."""
    name = key("lock:scripts")
    proxy, worker = own("lock lock:* wait 60s")
    holder, crowd = worker(), [worker() for _ in range(20)]
    assert holder("SETNX", name, 1) == 1
    for i, client in enumerate(crowd):
        client.send(encode("SETNX", name, i))
    await_waiting(holder, len(crowd))
    before = figure(holder, "wait_tries")
    assert holder("DEL", name) == 1
    while crowd:
        winner = select.select([client.sock for client in crowd], [], [], 20)[0]
        client = next(client for client in crowd if client.sock is winner[0])
        crowd.remove(client)
        assert client.read() == 1
        assert client("DEL", name) == 1
    assert figure(holder, "wait_tries") - before < 30


# ---- circles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5])
def test_deadlock(own, key, size):
    """The attempt that closes a circle is refused at once, and the incident names all of it."""
    proxy, worker = own("lock lock:* wait 60s", "threads 2")
    crowd, names = [worker() for _ in range(size)], [key("lock:circle") for _ in range(size)]
    watch = worker()
    for i in range(size):
        assert crowd[i]("SETNX", names[i], i) == 1
    for i in range(size - 1):
        crowd[i].send(encode("SETNX", names[i + 1], i))
        await_waiting(watch, i + 1)
    assert crowd[-1]("SETNX", names[0], "last") == 0
    assert figure(watch, "waiting") == size - 1
    assert figure(watch, "incidents_deadlock") == 1
    line = next(line for line in proxy.log().splitlines() if "incident deadlock" in line)
    for name, client in zip(names, crowd):
        assert line.count(name) > 0 and ":%d own-" % client.sock.getsockname()[1] in line
    assert crowd[-1]("DEL", names[-1]) == 1  # which lets them all go on, one after the other
    for i in range(size - 2, -1, -1):
        assert crowd[i].read() == 1
        assert crowd[i]("DEL", names[i]) == 1
        assert crowd[i]("DEL", names[i + 1]) == 1


def test_a_lease_lost_at_another_proxy_is_no_circle(two, key):
    """Its proxy still believes that the session holds the lock, although another client holds it by now."""
    here, there = two("lock lock:* wait 60s")
    name = key("lock:circle:lost")
    former, thief = here(), there()
    assert former("SET", name, "former", "NX", "PX", 60000) == "OK"
    assert thief("PROXY", "RELEASE", name) == 1
    assert thief("SET", name, "thief", "NX", "PX", 60000) == "OK"
    watch = here()
    former.send(encode("SET", name, "again", "NX", "PX", 60000))
    await_waiting(watch, 1)
    assert thief("DEL", name) == 1
    assert former.read() == "OK"
    assert figure(watch, "incidents_deadlock") == 0
    assert former("DEL", name) == 1


def test_no_circle_is_invented(own, key):
    """Chains of waiters without an end in a circle wait."""
    proxy, worker = own("lock lock:* wait 60s")
    a, b, c, watch = worker(), worker(), worker(), worker()
    first, second = key("lock:chain"), key("lock:chain")
    assert a("SETNX", first, "a") == 1
    assert b("SETNX", second, "b") == 1
    b.send(encode("SETNX", first, "b"))
    await_waiting(watch, 1)
    c.send(encode("SETNX", second, "c"))
    await_waiting(watch, 2)
    assert a("DEL", first) == 1
    assert b.read() == 1
    assert b("DEL", second) == 1
    assert c.read() == 1
    assert figure(watch, "incidents_deadlock") == 0
    assert b("DEL", first) == 1
    assert c("DEL", second) == 1


# ---- looking in -----------------------------------------------------------------------------------------


def named(reply):
    """Names and values, in either protocol."""
    return reply if isinstance(reply, dict) else dict(zip(reply[0::2], reply[1::2]))


def address_of(client):
    return "%s:%d" % client.sock.getsockname()[:2]


def in_order(text):
    """The addresses of the waiting clients, from PROXY LOCK and LOCKS: 'ADDRESS NAME since 12 ms; ...'."""
    return [one.split()[0] for one in text.split("; ")]


def test_what_operators_see(own, key):
    name = key("lock:shown")
    proxy, worker = own("lock lock:* wait 60s")
    holder, second, third = worker(), worker(), worker()
    assert holder("SETNX", name, 1) == 1
    for client in (second, third):
        client.send(encode("SETNX", name, 2))
    await_waiting(holder, 2)
    time.sleep(0.05)
    row = holder("PROXY", "LOCKS")[0]
    shown = named(holder("PROXY", "LOCKS")[0])
    assert shown["key"] == name
    assert shown["waiting"] == 2
    assert 50 <= shown["longest-wait-ms"] < 20000
    assert 50 <= figure(holder, "longest_wait_ms") < 20000
    waiters = [address_of(client) for client in (second, third)]
    assert in_order(shown["waiters"]) == waiters
    lock = named(holder("PROXY", "LOCK", name))
    assert (lock["connection"], lock["waiting"]) == (holder("CLIENT", "ID"), 2)
    assert in_order(lock["waiters"]) == waiters
    assert holder("DEL", name) == 1
    for client in (second, third):
        assert client.read() == 1
        assert client("DEL", name) == 1
    assert figure(holder, "waits_granted") == 2
    assert figure(holder, "longest_wait_ms") == 0


# ---- MSETNX of several keys ---------------------------------------------------------------------------


@pytest.fixture
def pair_of(key):
    """pair_of(prefix): two names of one slot."""

    def make(prefix):
        tag = key("{pair}")
        return "%s:%s:a" % (prefix, tag), "%s:%s:b" % (prefix, tag)

    return make


@pytest.mark.parametrize("release", ["DEL", "UNLINK", "DEL of both"])
def test_several_are_handed_over(worker, waiting, watch, pair_of, release):
    a, b = pair_of("lock:long:several")
    first, second = worker(), worker()
    assert first("MSETNX", a, "1", b, "1") == 1
    second.send(encode("MSETNX", b, "2", a, "2"))
    waiting(1)
    silent(second)
    if release == "DEL of both":
        assert first("DEL", a, b) == 2
    else:
        assert first(release, b) == 1
        silent(second)
        assert watch("EXISTS", b) == 0, "a part of the locks is held"
        assert watch("GET", a) == "1"
        assert first(release, a) == 1
    assert second.read() == 1
    assert watch("MGET", a, b) == ["2", "2"] and 0 < watch("TTL", a) <= 30 and 0 < watch("TTL", b) <= 30
    assert second("PROXY", "TOKEN", a) == second("PROXY", "TOKEN", b) > 0
    assert first("DEL", a, b) == 0
    assert second("DEL", a, b) == 2


def test_several_of_two_holders(worker, waiting, watch, pair_of):
    """It waits for one lock after the other, in the queue of each, and lets the next one try."""
    a, b = pair_of("lock:long:several")
    first, other, several, single = worker(), worker(), worker(), worker()
    assert first("SETNX", a, "1") == 1 and other("SETNX", b, "1") == 1
    several.send(encode("MSETNX", a, "2", b, "2", a, "3"))
    waiting(1)
    single.send(encode("SETNX", a, "4"))
    waiting(2)
    assert first("DEL", a) == 1
    assert single.read() == 1, "the next one in the queue that the first one has left"
    silent(several)
    assert other("DEL", b) == 1
    silent(several)
    assert watch("EXISTS", b) == 0
    assert single("DEL", a) == 1
    assert several.read() == 1
    assert watch("MGET", a, b) == ["3", "2"]
    assert several("DEL", a, b) == 2


def test_several_for_which_the_time_is_over(worker, waiting, watch, pair_of):
    a, b = pair_of("lock:short:several")
    first, second = worker(), worker()
    assert first("SETNX", b, "first") == 1
    begun = time.monotonic()
    assert second("MSETNX", a, "x", b, "x") == 0
    assert 0.29 <= time.monotonic() - begun < 5
    assert watch("MGET", a, b) == [None, "first"]
    assert second("DEL", b) == 0 and first("DEL", b) == 1


def test_several_and_a_request_that_ends_the_wait(worker, waiting, pair_of):
    a, b = pair_of("lock:long:several")
    first, second = worker(), worker()
    assert first("SETNX", b, "1") == 1
    second.send(encode("MSETNX", a, "2", b, "2"))
    waiting(1)
    second.send(encode("MGET", a, b))
    assert [second.read(), second.read()] == [0, [None, "1"]]
    assert first("DEL", b) == 1


def test_several_for_which_a_client_waited_that_left(worker, waiting, watch, pair_of):
    a, b = pair_of("lock:long:several")
    first, second = worker(), worker()
    assert first("SETNX", b, "1") == 1
    second.send(encode("MSETNX", a, "2", b, "2"))
    waiting(1)
    second.close()
    waiting(0)
    assert first("DEL", b) == 1
    assert watch("MSETNX", a, "w", b, "w") == 1 and watch("DEL", a, b) == 2


def test_several_that_are_not_all_locks_of_one_rule(worker, key):
    """They are answered at once."""
    tag = key("{mixed}")
    a, short, plain = "lock:long:" + tag, "lock:short:" + tag, "plain:" + tag
    first, second = worker(), worker()
    assert first("SETNX", a, "1") == 1
    begun = time.monotonic()
    for other in (short, plain):
        assert second("MSETNX", other, "2", a, "2") == 0
    assert second("MSETNX", a, "2", "lock:none:" + tag, "2") == 0
    assert time.monotonic() - begun < 0.25
    assert first("DEL", a) == 1


def test_several_of_which_one_is_ones_own(worker, waiting, pair_of):
    """A lock is not reentrant: the answer comes at once, if the own lock is what refuses."""
    a, b = pair_of("lock:long:several")
    first = worker()
    assert first("SETNX", b, "1") == 1
    assert first("MSETNX", a, "2", b, "2") == 0
    other = worker()
    assert other("SETNX", a, "1") == 1
    first.send(encode("MSETNX", a, "2", b, "2"))
    waiting(1)
    assert other("DEL", a) == 1
    assert first.read() == 0, "only its own lock is in the way now"
    assert not any("deadlock" in str(row) for row in first("PROXY", "INCIDENTS", "100")), "a circle of one"
    assert first("DEL", b) == 1 and other("EXISTS", a) == 0


def test_several_in_a_pool(waits, connect, waiting, pair_of):
    """Workers of one client wait for each other's locks, too, also when the proxy knows that they share connections."""
    a, b = pair_of("lock:long:pool")
    one, two = [connect(waits, commands=[("CLIENT", "SETNAME", "pool")]) for _ in range(2)]
    for n in range(3):
        assert one("MSETNX", a, n, b, n) == 1 and two("DEL", a, b) == 2
    for n in range(3):
        assert one("MSETNX", a, n, b, n) == 1
        two.send(encode("MSETNX", b, "w", a, "w"))
        waiting(1)
        silent(two, 0.05)
        assert one("DEL", a, b) == 2 and two.read() == 1
        assert two("DEL", a, b) == 2


def test_several_at_two_proxies(two, pair_of):
    """A release at another proxy is learnt, and no wait ends with a part of the locks."""
    here, there = two("lock lock:* wait 60s")
    a, b = pair_of("lock:two")
    holder, second, watch = here(), there(), there()
    assert holder("MSETNX", a, 1, b, 1) == 1
    second.send(encode("MSETNX", a, 2, b, 2))
    await_waiting(watch, 1)
    assert holder("DEL", a) == 1
    silent(second)
    assert watch("EXISTS", a) == 0
    assert holder("DEL", b) == 1
    assert second.read() == 1
    assert watch("MGET", a, b) == ["2", "2"]
    assert second("DEL", a, b) == 2


def test_several_in_turn(two, pair_of):
    """Workers at two proxies, each for both locks in its own order: each gets both, one after the other."""
    here, there = two("lock lock:* wait 60s")
    a, b = pair_of("lock:turn")
    inside, failures = [], []

    def work(client, names):
        for n in range(10):
            if client("MSETNX", names[0], n, names[1], n) != 1:
                failures.append("refused")
            inside.append(1)
            if len(inside) > 1:
                failures.append("two are inside")
            inside.pop()
            if client("DEL", *names) != 2:
                failures.append("not released")

    jobs = [threading.Thread(target=work, args=(make(), names)) for make in (here, there) for names in ((a, b), (b, a))]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert not any(job.is_alive() for job in jobs) and not failures, failures


def test_several_in_a_circle(own, pair_of):
    """A session that holds one lock and waits for others may close a circle: it is refused."""
    _, client = own("lock lock:* wait 60s")
    a, b = pair_of("lock:circle")
    first, second = client(), client()
    assert first("SETNX", a, 1) == 1 and second("SETNX", b, 1) == 1
    first.send(encode("SETNX", b, 2))
    await_waiting(client(), 1)
    assert second("MSETNX", a, 3, "%s:c" % a, 3) == 0
    assert second("DEL", b) == 1
    assert first.read() == 1
    assert first("DEL", a, b) == 2
