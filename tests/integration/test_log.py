"""The log: opened anew after a rotation, and how a flood of incidents looks in it and in PROXY INCIDENTS."""

import json
import os
import re
import signal

import pytest

from servers import until


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def logging(start_proxy, start_redis, tmp_path):
    def start(*lines):
        log = tmp_path / "proxy.log"
        proxy = start_proxy(start_redis(), "logfile %s" % log, *lines, wait=False)
        until(lambda: any("Ready" in line for line in lines_of(log)), 20, "the log file")
        return proxy, log

    return start


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_a_log_that_was_rotated_is_opened_anew(logging, connect, number):
    proxy, log = logging("threads 2")
    client = connect(proxy)
    old = log.with_suffix(".1")
    for n in range(3):
        log.rename(old)
        assert client("SETNX", "lock:%d" % n, "v") == 1
        proxy.signal(number)
        until(log.exists, 15, "the new file")
        assert client("DEL", "lock:%d" % n) == 1
    assert client("PING") == "PONG"
    descriptors = os.listdir("/proc/%d/fd" % proxy.pid)
    names = [os.readlink("/proc/%d/fd/%s" % (proxy.pid, fd)) for fd in descriptors]
    assert [n for n in names if str(log) in n or str(old) in n] == [str(log)]


def test_a_log_that_cannot_be_opened_anew_goes_on(logging, connect):
    proxy, log = logging()
    old = log.with_suffix(".1")
    log.rename(old)
    log.mkdir()
    proxy.signal(signal.SIGUSR1)
    until(lambda: any("could not be opened anew" in line and "Is a directory" in line for line in lines_of(old)), 15,
          "the reason, in the old file")
    log.rmdir()
    os.mkfifo(log)
    proxy.signal(signal.SIGHUP)
    until(lambda: any("No such device" in line for line in lines_of(old)), 15, "the reason, in the old file")
    assert connect(proxy)("PING") == "PONG"
    log.unlink()


def test_signals_to_rotate_harm_nobody(logging, connect):
    proxy, log = logging("threads 2")
    client = connect(proxy)
    for _ in range(200):
        proxy.signal(signal.SIGUSR1)
        assert client("PING") == "PONG"
