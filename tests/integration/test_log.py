"""The log: reopened after a rotation; a flood of incidents in the log and in PROXY INCIDENTS."""

import json
import os
import re
import signal

import pytest

from resp import Error, encode
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
    until(lambda: any("could not be opened again" in line and "Is a directory" in line for line in lines_of(old)), 15,
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


# ---- incidents ------------------------------------------------------------------------------------------


def rows_of(reply):
    def text(value):
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    return [dict(zip([text(v) for v in row[0::2]], [text(v) for v in row[1::2]])) for row in reply]


def refused(client, name, times, batch=500):
    """Pipelined releases of another client's lock."""
    for done in range(0, times, batch):
        count = min(batch, times - done)
        client.send(encode("DEL", name) * count)
        assert [client.read() for _ in range(count)] == [0] * count


@pytest.mark.parametrize("threads,json_lines", [(1, False), (3, True)], ids=["text", "json"])
def test_a_flood_of_refusals_is_a_line_in_ten_seconds(logging, connect, threads, json_lines):
    proxy, log = logging("threads %d" % threads, "lock lock:* owner connection", "log-format %s" % ("json" if json_lines else "text"))
    holder, quiet, operator = connect(proxy), connect(proxy), connect(proxy)
    quiet("CLIENT", "SETNAME", "quiet")
    assert holder("SETNX", "lock:no-expiry", "s3cret-value") == 1  # incidents of other kinds and clients, which have to stay
    assert holder("SET", "lock:held", "s3cret-value", "NX", "PX", "600000") == "OK"
    assert quiet("DEL", "lock:held") == 0
    flooding = [connect(proxy) for _ in range(4)]  # several connections of one client
    sent = 0
    until_told = lambda: [line for line in lines_of(log) if " in 1" in line and " x " in line and "foreign_release" in line]
    while not until_told() and sent < 1000000:
        for client in flooding:
            refused(client, "lock:held", 100)
            sent += 100
    kinds = {row["kind"] for row in rows_of(operator("PROXY", "INCIDENTS", 1000))}
    assert {"no_expiry", "foreign_release"} <= kinds
    rows = rows_of(operator("PROXY", "INCIDENTS", 1000))
    assert any("quiet" in row["client"] for row in rows if row["kind"] == "foreign_release")
    assert all(row["rule"] == "lock:*" for row in rows)
    assert sum(row["count"] for row in rows if row["kind"] == "foreign_release") == sent + 1
    sums = {(row["kind"], row["client"]): row for row in rows_of(operator("PROXY", "INCIDENTS", "SUMMARY"))}
    flood = sums["foreign_release", "127.0.0.1 user=default"]
    assert (flood["count"], flood["rule"], flood["last-key"]) == (sent, "lock:*", "lock:held")
    assert flood["first"] < flood["last"] and re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}$", flood["last"])
    assert next(row["count"] for key, row in sums.items() if "quiet" in key[1]) == 1
    told = [line for line in lines_of(log) if "incident foreign_release" in line]
    assert len(told) <= 4 and len([line for line in told if "quiet" in line]) == 1, told
    text = log.read_text()
    assert "s3cret" not in text
    if json_lines:
        line = json.loads(until_told()[0])
        assert (line["kind"], line["rule"], line["key"], line["command"]) == ("foreign_release", "lock:*", "lock:held", "DEL")
        assert line["identity"] == "127.0.0.1 user=default" and line["client"].startswith("127.0.0.1:")
        assert line["holder"].startswith("127.0.0.1 ") and line["action"].startswith("refused")
        assert 100 < line["count"] <= sent and 10 <= line["seconds"] <= 13
        first = next(json.loads(line) for line in told)
        assert first["count"] == 1 and "seconds" not in first
    else:
        assert re.search(r"incident foreign_release x [\d,]+ in 1\d s: last DEL on lock:held by 127\.0\.0\.1:\d+.*, held by .*: refused", text)


def test_what_is_untold_is_told_at_the_end(logging, connect):
    proxy, log = logging("lock lock:* owner connection")
    holder, other = connect(proxy), connect(proxy)
    assert holder("SET", "lock:held", "v", "NX", "PX", "600000") == "OK"
    refused(other, "lock:held", 4941)
    proxy.stop()
    told = [line for line in lines_of(log) if "incident foreign_release" in line]
    sums = [re.search(r" x ([\d,]+) in ", line) for line in told]  # the first is one release; a sum is of ten seconds
    assert sums[0] is None and None not in sums[1:]
    assert sum(int(found.group(1).replace(",", "")) for found in sums[1:]) == 4940


def test_names_without_end_take_no_memory_without_end(start_proxy, start_redis, connect):
    """A client that calls itself something else each time: what is counted stays bounded, and nothing is lost of the sum."""
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    holder, other = connect(proxy), connect(proxy)
    assert holder("SET", "lock:held", "v", "NX", "PX", "600000") == "OK"
    for start in range(0, 3000, 250):
        other.send(b"".join(encode("CLIENT", "SETNAME", "n%d" % n) + encode("DEL", "lock:held") for n in range(start, start + 250)))
        assert [other.read() for _ in range(500)] == ["OK", 0] * 250
    sums = rows_of(other("PROXY", "INCIDENTS", "summary"))
    assert sums[0]["client"] == "(others)" and len(sums) == 1000
    assert proxy.log().count("incident foreign_release") <= 300
    assert 1900 < sums[0]["count"] <= 3000 - 1024
    assert "incidents_foreign_release:3000\r\n" in other("PROXY", "INFO", "locks")
    assert len(rows_of(other("PROXY", "INCIDENTS", 1000))) == 256


def test_the_summary_in_resp3(start_proxy, start_redis, connect):
    proxy = start_proxy(start_redis(), "lock lock:* owner connection")
    client = connect(proxy)
    assert client("PROXY", "INCIDENTS", "SUMMARY") == []
    assert client("SETNX", "lock:a", "v") == 1
    client("HELLO", "3")
    (row,) = client("PROXY", "INCIDENTS", "SUMMARY")
    assert isinstance(row, dict)
    assert isinstance(client("PROXY", "INCIDENTS", "summaries"), Error)
