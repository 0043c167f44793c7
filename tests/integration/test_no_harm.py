"""No harm: pools whose workers are never late and never crash lose nothing on the default rule, from a family's first command
on; and workers with connections of their own are never taken for a pool. tests/clients/contend/pools.py runs redis-py's and
hiredis's workers and judges them; `tests/clients/run.sh pools` has all clients. Their leases last a minute, so that a release
that is refused is an outage which nothing hides."""

import itertools
import os
import shutil
import sys

import pytest

import servers

sys.path.insert(0, os.path.join(servers.ROOT, "tests", "clients", "contend"))

import judge  # noqa: E402
import pools  # noqa: E402
import program  # noqa: E402
import run as contend  # noqa: E402
import standing  # noqa: E402

POOLS = ["redis-py, LIFO", "redis-py, FIFO", "redis-py, random", "hiredis, random"]
FAMILIES = 6  # of each
LOST_RELEASES = 1  # by chance, in all families of a sample
SAMPLES = 2
SHARE = 0.85  # 0.9 on a machine that does nothing else (pools.py): here a sanitized build shares two processors with its clients


def prepared(contenders):
    """What can be run here, and how: hiredis's workers need gcc."""
    shop = contend.Workshop(fetch=False)
    commands, absent = contend.prepare(contenders, shop)
    assert not absent or not shutil.which("gcc"), absent
    present = [c for c in contenders if c.name in commands]
    if not present:
        pytest.skip(str(absent))
    return present, commands, shop


@pytest.mark.parametrize("variant", ["", "restart", "two proxies"], ids=["start", "restart", "two_proxies"])
def test_pools_lose_nothing(backend_kind, variant, rng, record_property):
    """No holder's release is refused, no lock stands, and acquisitions are as many as without attribution. One family of a hundred
    may lose a release by chance, so that a second sample decides where the first has lost more than one."""
    present, commands, shop = prepared([c for c in pools.POOLS if c.name in POOLS])
    for _ in range(SAMPLES):
        families = pools.pool_families(present, FAMILIES, rng)
        incidents = pools.run(contend.Bench(commands, shop, seed=rng.randrange(1000)), families, backend_kind, seconds=2.5,
                              proxies=2 if variant == "two proxies" else 1, restart=variant == "restart", at_once=8)
        record_property("table", pools.table(families))
        whole = pools.Row(families)
        told = "\n%s\n%s\n%s" % (pools.table(families), pools.worst(families), dict(incidents))
        assert not [f.error for f in families if f.error], told
        assert not whole.doubles[pools.PROXY], told
        assert whole.lost_off == 0 and whole.acquired[pools.OFF] > 10 * len(families), "the workers are at fault" + told
        assert not whole.stood, told
        assert whole.share() >= SHARE, told
        if whole.lost <= LOST_RELEASES:
            return
    pytest.fail("more than %d lost releases in each of %d samples%s" % (LOST_RELEASES, SAMPLES, told))


def test_own_connections_are_no_pool(backend_kind, rng, record_property):
    """Losers that release, and holders that are late: no release frees another's live lock, and no late write passes the
    fence."""
    present, commands, shop = prepared(pools.OWN)
    families = pools.own_families(present, FAMILIES, rng)
    pools.run(contend.Bench(commands, shop, seed=rng.randrange(1000)), families, backend_kind, seconds=8, at_once=9)
    record_property("table", pools.table(families, own=True))
    whole = pools.Row(families)
    told = "\n%s\n%s" % (pools.table(families, own=True), pools.worst(families))
    assert not pools.disturbances(whole), told
    assert whole.doubles[pools.OFF] > 10, "without attribution nothing went wrong, so this shows nothing" + told
    assert not whole.doubles[pools.PROXY], told
    assert not whole.late_writes[pools.PROXY], told


# ---- how programs are run -------------------------------------------------------------------------

WAITS = "import sys, time; print('ready', flush=True); sys.stdin.readline(); print('{}' if len(sys.argv) > 2 else '', flush=True); "


def python(text, *words):
    return ["/usr/bin/python3", "-c", text, *words]


def why(*args, **options):
    with pytest.raises(program.Disturbed) as caught:
        program.run(*args, **options)
    return str(caught.value)


def test_a_program_that_does_not_end_is_killed_with_its_children(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "END", 0)
    note = tmp_path / "pid"
    text = ("import subprocess, time; child = subprocess.Popen(['setsid', 'sleep', '300']); open(%r, 'w').write(str(child.pid)); "
            "print('ready', flush=True); time.sleep(300)" % str(note))
    assert why(python(text), 1, program.Gate(1)).startswith("not done after 1 s (2 processes used ")
    child = int(note.read_text())
    servers.until(lambda: program.stat(child) is None or program.stat(child)[0] == "Z", 10, "the child's end")


def test_a_program_that_does_not_get_ready_holds_up_no_other(monkeypatch):
    monkeypatch.setattr(program, "START", 1)
    gate = program.Gate(2)
    assert why(python("import time; time.sleep(300)"), 1, gate).startswith("not ready after 1 s (1 processes used ")
    assert not gate.opened.is_set()
    assert program.run(python(WAITS, "any"), 1, gate) == {}
    assert gate.opened.is_set()


def test_a_program_that_fails_says_why():
    assert why(python("import sys; sys.exit('no such key')"), 1) == "status 1: no such key"
    assert why(python("print('nothing to tell')"), 1) == "it said: nothing to tell\n"
    assert why(python("import sys; sys.exit('no such key')"), 1, program.Gate(1)) == "status 1: no such key"


def test_families_that_are_not_begun_in_time_fail(rng):
    """The limit of the whole run: the table has what was run, and the rest counts as a failure."""
    present, commands, shop = prepared([c for c in pools.POOLS if c.name == "redis-py, LIFO"])
    families, told = pools.pool_families(present, 2, rng), []
    pools.run(contend.Bench(commands, shop), families, seconds=0.5, at_once=1, minutes=1e-6, tell=told.append)
    assert [f.error for f in families] == ["", pools.NOT_BEGUN] and len(told) == 1, (told, [f.error for f in families])
    assert "1 families were not begun in time" in pools.failures(pools.by_client(families), pools.Row(families))


class Untold:
    """A bench on which no program runs: each family's losers free a lock so many microseconds behind their loss, by turns."""

    seed = 1

    def __init__(self, *after):
        self.after = itertools.cycle(after)
        self.keys = []

    def program(self, contender, target, words, seconds, gate=None):
        freed = [[0, next(self.after)]] if target == pools.PROXY else []
        self.keys += [word for word in words if word.startswith("key=lock:")]
        return {"sections": [], "began": 0, "version": "", "freed": len(freed), "losers_freed": freed}


LATE, IN_TIME = pools.HELD + pools.AT_ONCE_BEHIND + 1, pools.HELD + pools.AT_ONCE_BEHIND


@pytest.mark.parametrize("after, runs, disturbed", [([IN_TIME], 3, 0), ([LATE, IN_TIME, IN_TIME], 3, 1), ([LATE] * 3 + [IN_TIME] * 3, 6, 0),
                                                    ([LATE], 9, 3)])
def test_disturbed_families_are_run_again(rng, after, runs, disturbed):
    """Only where they are too many, and at most twice."""
    families = pools.own_families(pools.OWN[:1], 3, rng)
    bench = Untold(*after)
    pools.run(bench, families, seconds=0.01, at_once=1)
    whole = pools.Row(families)
    assert (len(bench.keys), len(set(bench.keys)), whole.disturbed) == (runs, runs, disturbed)
    assert len(whole.done) == 3 - disturbed
    assert bool(pools.disturbances(whole)) == (disturbed == 3)


def test_only_the_first_release_that_frees_may_be_late():
    """What it leads to is of the same cause. A lock that is freed without waiting is the proxy's fault."""
    assert not pools.came_late([])
    assert pools.came_late([[900, 900 + LATE], [0, LATE]])
    assert not pools.came_late([[0, IN_TIME], [900, 900 + LATE]])


# ---- how time and writes are counted --------------------------------------------------------------

MS = 1000


def section(entered, left, outcome=judge.DELETED, worker=0):
    """Times in milliseconds; the attempt is sent one before it is entered, the release answered one after it is left."""
    return [worker, (entered - 1) * MS, entered * MS, left * MS, (left + 1) * MS, outcome]


def stood(sections, ended, poll=20, outages=()):
    return standing.longest(sections, 0, ended * MS, poll * MS, [(down * MS, up * MS) for down, up in outages]) / MS


def test_time_in_which_nobody_works():
    assert stood([section(10, 20), section(30, 40)], 50) == 0
    assert stood([section(10, 20), section(1021, 1030)], 1050) == 980
    assert stood([section(1000, 1010), section(1020, 1030)], 1050) == 980
    assert stood([section(10, 20, judge.ZERO)], 3021) == 2980
    assert stood([], 3000) == 2980


def test_time_in_which_another_worker_is_inside():
    assert stood([section(10, 900), section(20, 30, worker=1), section(905, 910)], 920) == 0


def test_time_that_a_restart_explains():
    assert stood([section(10, 20), section(1021, 1030)], 1050, outages=[(100, 500)]) == 380
    assert stood([section(10, 20), section(1021, 1030)], 1050, outages=[(2000, 2500)]) == 980


def test_lost_releases():
    assert standing.lost([section(10, 20), section(30, 40, judge.ZERO), section(50, 60, judge.NOT_MINE)], 1000) == [41 * MS, 61 * MS]
    assert standing.lost([section(10, 2000, judge.ZERO)], 1000) == []


def test_late_writes():
    sections = [section(10, 400, worker=0), section(120, 200, worker=1)]
    write = [0, 10 * MS, 390 * MS, 391 * MS, 1]
    assert standing.late_writes(sections, [write], 100) == 1
    assert standing.late_writes(sections, [write[:4] + [0]], 100) == 0, "it was refused"
    assert standing.late_writes(sections, [write], 1000) == 0, "its lease was live"
    assert standing.late_writes(sections[:1], [write], 100) == 0, "nobody came since"
