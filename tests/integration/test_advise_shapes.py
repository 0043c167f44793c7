"""PROXY ADVISE and --advise-from report risky patterns of use, and do not mention sound ones."""

import re
import subprocess

import pytest

import servers
from servers import until

ROUNDS = 15


@pytest.fixture(scope="module")
def advising(farm):
    proxy = servers.Proxy(farm.backend("standalone"), "lock enforced:* lease 30s")
    yield proxy
    proxy.stop()
    proxy.remove()


PREFIXES = ["enforced:", "app:"]


def risks(client, prefix, key, name):
    """What is said of a client's locks; a rule's are one pattern. None: of the client without a name. A line names its client only
    if other clients of the pattern differ."""
    pattern = prefix + ("*" if prefix == "enforced:" else key)
    said = [line for line in client("PROXY", "ADVISE") if line.startswith("UNSAFE " + pattern)]
    heads = [line.split(": ")[0] for line in said]
    return [line for line, head in zip(said, heads) if " by " not in head or
            (head.endswith(" name=" + name) if name else " name=" not in head)]


def workers_of(proxy, connect, name, count=3):
    return [connect(proxy, commands=[("CLIENT", "SETNAME", name)]) for _ in range(count)]


def capture(commands):
    """The report on commands (seconds, port, words...)."""
    lines = ["%.6f [0 127.0.0.1:%d] %s" % (1700000000 + at, port, " ".join('"%s"' % w for w in words))
             for at, port, *words in commands]
    done = subprocess.run([servers.binary(), "--advise-from", "-"], input="\n".join(lines) + "\n",
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lock:*" in done.stdout or "acquired" in done.stdout, done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("UNSAFE ")]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_losers_that_delete(advising, connect, prefix):
    workers = workers_of(advising, connect, "losers")
    for i in range(ROUNDS):
        holder, loser = workers[i % 3], workers[(i + 1) % 3]
        key = "%sfin-%d" % (prefix, i)
        assert holder("SET", key, "1", "NX", "EX", "50") == "OK"
        assert loser.at_once(("SET", key, "1", "NX", "EX", "50"), ("DEL", key)) == [None, int(prefix == "app:")]
        holder("DEL", key)
    said = risks(workers[0], prefix, "fin", "losers")
    if prefix == "enforced:":  # the rule has refused each
        assert said == []
        assert [line for line in workers[0]("PROXY", "ADVISE") if line.startswith(prefix) and "losers delete: 15 times" in line]
    else:
        (line,) = said
        assert line.startswith("UNSAFE app:fin-*: 15 times a loser deleted another worker's lock. Rule that cures it: lock app:fin-*")
        assert workers[0]("PROXY", "ADVISE")[0].startswith("UNSAFE ")


def test_losers_that_delete_in_a_capture():
    commands = []
    for i in range(ROUNDS):
        for step, (port, *words) in enumerate([(1, "SET", "lock:a", "1", "NX", "EX", "50"),
                                               (2, "SET", "lock:a", "1", "NX", "EX", "50"),
                                               (2, "DEL", "lock:a"), (1, "DEL", "lock:a")]):
            commands.append((i * 10 + step, port, *words))
    (line,) = capture(commands)
    assert line.startswith("UNSAFE lock:a: 15 times a loser deleted another worker's lock. Rule that cures it: lock lock:a")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_workers_that_outlive_their_lease(advising, connect, prefix):
    (worker, other) = workers_of(advising, connect, "late", 2)
    for i in range(ROUNDS):
        key = "%slate-%d" % (prefix, i)
        assert worker("SET", key, "1", "NX", "PX", "20") == "OK"
        until(lambda: other("EXISTS", key) == 0)
        worker("DEL", key)
    (line,) = risks(worker, prefix, "late", "late")
    # Redis's clock ends some a little before the proxy's does.
    assert re.search(r"1\d of 15 locks were released after their expiry, by ", line) and "longer expiry" in line
    assert "no names" not in line


def test_unnamed_workers_that_outlive_their_lease_in_a_capture():
    commands = []
    for i in range(ROUNDS):
        commands += [(i * 50, i % 3 + 1, "SET", "lock:late", "1", "NX", "EX", "30"),
                     (i * 50 + 40, i % 3 + 1, "DEL", "lock:late")]
    (line,) = capture(commands)
    assert "15 of 15 locks were released after their expiry, by 10000 ms on average" in line
    assert "no names" in line and "CLIENT SETNAME" in line


@pytest.mark.parametrize("prefix", PREFIXES)
def test_one_shot_clients(advising, connect, prefix):
    other = connect(advising)
    key = prefix + "backup"
    for _ in range(3):
        client = connect(advising)
        assert client("SETNX", key, "1") == 1
        client.close()
        assert connect(advising)("DEL", key) in (0, 1)
    until(lambda: risks(other, prefix, "backup", None))
    (line,) = risks(other, prefix, "backup", None)
    assert "a lock without an expiry was acquired over a connection that closed at once" in line
    assert "docs/guides/shell.md" in line


def sound():
    """Shapes that nothing is said about, as (seconds, connection, words...)."""
    pool, heartbeat, getset, watch = [], [], [], []
    for i in range(30):
        at, value = i * 100, "v%d" % i
        pool += [(at, i % 3, "SET", "k", "1", "NX", "EX", "50"), (at + 1, (i + 1) % 3, "SET", "k", "1", "NX", "EX", "50"),
                 (at + 2, i * 7 % 3, "DEL", "k")]
        heartbeat += [(at, 0, "SET", "k", value, "NX", "EX", "50"), (at + 40, 1, "EXPIRE", "k", "50"),
                      (at + 80, 1, "SET", "k", value, "EX", "50"), (at + 95, 0, "DEL", "k")]
        getset += [(at, 0, "SET", "k", value, "NX", "EX", "50"), (at + 40, 1, "GETSET", "k", value + "b"),
                   (at + 41, 1, "EXPIRE", "k", "50"), (at + 80, 0, "GET", "k"), (at + 81, 1, "DEL", "k")]
        watch += [(at, 0, "SET", "k", value, "NX", "EX", "50"), (at + 40, 1, "WATCH", "k"), (at + 41, 1, "MULTI"),
                  (at + 42, 1, "SET", "k", value + "b", "EX", "50"), (at + 43, 1, "EXEC"), (at + 80, 1, "DEL", "k")]
    reconnect = [(i * 100 + d, i * 2 + s + 10, *words) for i in range(30)
                 for d, s, words in ((0, 0, ("SET", "k", "v%d" % i, "NX", "EX", "50")), (40, 1, ("DEL", "k")))]
    return {"pool": pool, "heartbeat": heartbeat, "getset": getset, "watch": watch, "reconnect": reconnect}


@pytest.mark.parametrize("shape", sorted(sound()))
def test_nothing_is_said_of_sound_shapes_in_a_capture(shape):
    commands = [(at, port + 1, *("lock:s" if w == "k" else w for w in words)) for at, port, *words in sound()[shape]]
    assert capture(commands) == []


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("shape", sorted(sound()))
def test_nothing_is_said_of_sound_shapes(advising, connect, shape, prefix):
    connections, key = {}, prefix + "sound-" + shape
    for _, number, *words in sound()[shape]:
        if number not in connections:
            (connections[number],) = workers_of(advising, connect, "sound-" + shape, 1)
        connections[number](*(key if w == "k" else w for w in words))
    assert risks(connections[number], prefix, "sound-" + shape, "sound-" + shape) == []
    lines = connections[number]("PROXY", "ADVISE")
    assert [line for line in lines if line.startswith(prefix + ("*" if prefix == "enforced:" else "sound-" + shape) + " by ")]
