"""The embedded Redis may die at any moment: it is started again, and incidents report that the leases held there are
lost."""

import os
import re
import signal
import threading
import time

import pytest

from resp import Error
from servers import tail, until


def children(proxy):
    with open("/proc/%d/task/%d/children" % (proxy.pid, proxy.pid)) as f:
        return [int(pid) for pid in f.read().split()]


def kill(proxy):
    """Kills the Redis, and waits for the next one."""
    (before,) = until(lambda: children(proxy), 10, "the embedded Redis")
    os.kill(before, signal.SIGKILL)
    until(lambda: (now := children(proxy)) and now != [before], 15, "the next embedded Redis")


def served(client):
    return until(lambda: client("PING") == "PONG" and not isinstance(client("SET", "served", "1"), Error), 15, "service")


def info(client, name):
    return int(re.search(r"\b%s:(\d+)" % name, client("PROXY", "INFO")).group(1))


class Clients:
    """Clients that stay. Each command is answered, by an error of the upstream's at worst."""

    def __init__(self, proxy, connect, number):
        self.over = threading.Event()
        self.problems, self.done, self.failed = [], [0] * number, 0
        self.threads = [threading.Thread(target=self.guarded, args=(n, connect(proxy))) for n in range(number)]
        for thread in self.threads:
            thread.start()

    def guarded(self, number, c):
        try:
            while not self.over.is_set():
                self.turn(number, c)
        except BaseException as error:  # noqa: B902: handed to the test's own thread
            self.problems.append("client %d: %r" % (number, error))

    def turn(self, number, c):
        for command in (("SETNX", "lock:%d" % number, "1"), ("GET", "lock:%d" % number), ("DEL", "lock:%d" % number),
                        ("INCR", "counter")):
            reply = c(*command)
            if not isinstance(reply, Error):
                self.done[number] += 1
                continue
            self.failed += 1
            assert reply.startswith("UPSTREAM "), reply
            time.sleep(0.01)

    def all_are_served(self):
        before = list(self.done)
        until(lambda: self.problems or all(now > then for now, then in zip(self.done, before)), 20, "service for all")
        assert not self.problems, self.problems

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.problems, self.problems


@pytest.mark.parametrize("threads", [1, 3])
def test_it_dies_under_clients(start_proxy, connect, threads):
    proxy = start_proxy("embedded", "threads %d" % threads)
    people = Clients(proxy, connect, 6)
    try:
        for n in range(4):
            people.all_are_served()
            kill(proxy)
            until(lambda: proxy.log().count("all that it held is gone") == n + 1, 10, "the log's word")
        people.all_are_served()
    finally:
        people.stop()
    client = connect(proxy)
    assert info(client, "embedded_restarts") == 4
    assert len(children(proxy)) == 1
    assert proxy.log().count("it was killed by signal 9") == proxy.log().count("is started again, pid") == 4
    proxy.stop()


def test_who_held_a_lock_holds_it_no_more(start_proxy, connect):
    """Those that the proxy renews, and those with an expiry of their own. What their holders still send is refused."""
    proxy = start_proxy("embedded", "lock lock:* owner connection")
    holder, other = connect(proxy), connect(proxy)
    assert holder("SETNX", "lock:renewed", "a") == 1
    assert holder("SET", "lock:own", "a", "NX", "EX", 100) == "OK"
    kill(proxy)
    served(other)
    assert "(it was killed by signal 9): all that it held is gone, 2 leases too" in proxy.log()
    assert info(other, "leases") == 0 and info(other, "embedded_leases_lost") == 2
    lost = [i for i in other("PROXY", "INCIDENTS") if "renewal_lost" in str(i)]
    assert len(lost) == 2 and all("has ended, and kept nothing" in str(i) for i in lost)
    assert other("SETNX", "lock:renewed", "b") == 1
    assert holder("DEL", "lock:renewed") == 0
    assert other("GET", "lock:renewed") == "b" and other("DEL", "lock:renewed") == 1
    assert holder("SETNX", "lock:own", "again") == 1 and holder("DEL", "lock:own") == 1


def test_many_leases_are_few_lines(start_proxy, connect):
    proxy = start_proxy("embedded", "lock lock:*")
    client = connect(proxy)
    for n in range(500):
        assert client("SET", "lock:%d" % n, "1", "NX", "EX", 100) == "OK"
    lines = proxy.log().count("\n")
    kill(proxy)
    served(client)
    assert ", 500 leases too" in proxy.log()
    assert proxy.log().count("\n") - lines < 150


def test_one_that_dies_again_and_again(start_proxy, connect):
    """It is tried at longer and longer intervals, so that the log stays short; and the proxy can be stopped meanwhile."""
    proxy = start_proxy("embedded")
    client = connect(proxy)
    began, deaths = time.monotonic(), 0
    while time.monotonic() - began < 3:
        for pid in children(proxy):
            os.kill(pid, signal.SIGKILL)
            deaths += 1
        time.sleep(0.005)
        assert isinstance(client("GET", "k"), (Error, type(None)))
    assert 3 <= proxy.log().count("all that it held is gone") <= 7, tail(proxy.log_path)
    proxy.stop()
