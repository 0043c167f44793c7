"""Ordinary applications on the default rule: real clients' workers contend for one lock, without a rule and without
names. tests/clients/contend runs and judges them, here those that are installed; `tests/clients/run.sh contend` has all.
The tables are printed at the end. Each cell's bounds are against what the same workers reach in the same seconds on Redis itself
and through `mode off`."""

import os
import sys

import pytest

import servers

sys.path.insert(0, os.path.join(servers.ROOT, "tests", "clients", "contend"))

import judge  # noqa: E402
import run as contend  # noqa: E402
import waits  # noqa: E402

IDIOMS = [idiom for idiom in contend.IDIOMS if idiom[0] in contend.QUICK_IDIOMS]


@pytest.fixture(scope="module")
def prepared():
    shop = contend.Workshop(fetch=False)
    contenders = [c for c in contend.CONTENDERS if c.quick]
    commands, _ = contend.prepare(contenders, shop)
    return contenders, commands, shop


def hold(prepared, record_property, *faults):
    """Runs the cells of these faults and prints their table; each cell has to keep its bounds."""
    contenders, commands, shop = prepared
    cells = contend.cells_of(contenders, commands, IDIOMS, faults)
    assert cells, "no client is installed"
    contend.Bench(commands, shop).run(cells)
    record_property("table", contend.text_table(cells))
    failed = [cell for cell in cells if cell.failures]
    assert not failed, "\n%s\n%s" % (contend.text_table(failed), contend.NOTES)


def test_nobody_late_nobody_crashed(prepared, record_property):
    """As many acquisitions as without attribution, no holder's DEL refused, no double entry."""
    hold(prepared, record_property, judge.NONE)


def test_losers_release(prepared, record_property):
    """Their DELs free no other worker's lock, and cost no acquisitions."""
    hold(prepared, record_property, judge.LOSERS)


def test_forgotten_and_late_releases(prepared, record_property):
    """A worker's forgotten or late release costs little more than on Redis, and lets no second worker in."""
    hold(prepared, record_property, judge.FORGOTTEN_DELS, judge.OVERRUNS)


def test_polling_clients_wait(prepared, record_property):
    """Under `wait` they are let in sooner than on Redis, in turn, and meet no time limit."""
    contenders, commands, shop = prepared
    polled = waits.run(contenders, commands, shop)
    assert polled, "no client is installed"
    record_property("table", waits.table(polled))
    failed = [p for p in polled if p.failures]
    assert not failed, "\n" + waits.table(failed)


# ---- how sections are counted ---------------------------------------------------------------------

MS = 1000


def section(worker, entered, left, outcome=judge.DELETED, answered=None):
    """Times in milliseconds; sent one before it was entered, answered one after it was left."""
    return [worker, (entered - 1) * MS, entered * MS, left * MS, ((answered or left) + 1) * MS, outcome]


def counted(*sections):
    found = judge.count(sections, 100)
    return {name: getattr(found, name) for name in found.FIELDS if getattr(found, name) and name != "acquired"}


def test_sections_one_after_the_other():
    assert counted(section(0, 10, 20), section(1, 22, 30), section(0, 32, 40)) == {}


def test_double_entry_through_a_release():
    assert counted(section(0, 10, 50), section(1, 30, 60)) == {"released": 1}
    assert counted(section(0, 10, 90), section(1, 30, 80), section(2, 40, 60)) == {"released": 2}


def test_double_entry_at_the_end_of_a_lease():
    assert counted(section(0, 10, 150), section(1, 112, 130)) == {"lapsed": 1, "late": 1}


def test_release_of_a_worker_that_was_late():
    """Worker 0's lease ends, worker 1 gets in, worker 0's release takes that lock away, worker 2 gets in."""
    assert counted(section(0, 10, 120), section(1, 112, 150), section(2, 130, 140)) == {
        "lapsed": 1, "released": 1, "late": 1}


def test_worker_that_was_late_inside_with_two_others():
    """Worker 2 can only get in by the loss of worker 1's live lease."""
    assert counted(section(0, 10, 180), section(1, 112, 150), section(2, 130, 140)) == {
        "lapsed": 1, "released": 1, "late": 1}


def test_refused_releases():
    assert counted(section(0, 10, 50, judge.ZERO)) == {"refused": 1}
    assert counted(section(0, 10, 50, judge.NOT_MINE)) == {"taken": 1}
    assert counted(section(0, 10, 50), section(1, 1100, 1110, judge.ZERO)) == {"refused": 1}
    assert counted(section(0, 10, 50, judge.ZERO), section(1, 1050, 1060, judge.ZERO)) == {"refused": 2}
    assert counted(section(0, 10, 50, judge.ZERO, answered=120)) == {}  # by then the lease may be over
    assert counted(section(0, 10, 50, judge.FORGOTTEN)) == {"forgotten": 1}
