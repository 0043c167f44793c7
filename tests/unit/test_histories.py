#!/usr/bin/env python3
"""The checker of tests/history finds each kind of wrong history: some are written by hand, the others are right ones with one change."""

import copy
import os
import random
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "history"))

import checker  # noqa: E402

MS = 1000
LOCK, DATA = "lock:a", "data:a"
WRONG = ("double holders", "lost updates", "foreign releases", "refused releases", "refused but done")


class History:
    """Made call by call; times in ms."""

    def __init__(self):
        self.events = []

    def event(self, time, worker, *rest):
        self.events.append([int(time * MS), worker, *rest])

    def call(self, worker, sent, answered, result, kind, *words):
        self.event(sent, worker, "call", kind, *words)
        if answered is not None:
            self.event(answered, worker, "answer", result)

    def acquire(self, worker, sent, answered, result="yes", lease=400):
        self.call(worker, sent, answered, result, "acquire", LOCK, lease)

    def release(self, worker, sent, answered, result="yes"):
        self.call(worker, sent, answered, result, "release", LOCK)

    def update(self, worker, sent, old, new, result="yes"):
        self.call(worker, sent, sent + 1, old, "read", DATA)
        self.call(worker, sent + 5, sent + 6, result, "write", DATA, new)


def found(history):
    judged = checker.judge(history.events)
    return {name: judged[name] for name in WRONG if judged[name]}


def turn(history, worker, at, old, new):
    """One acquisition from its attempt to its release, 20 ms."""
    history.acquire(worker, at, at + 1)
    history.update(worker, at + 2, old, new)
    history.release(worker, at + 10, at + 11)


def right(turns=40, seed=1):
    """A right history: workers take turns, and others are refused meanwhile."""
    history, dice, value = History(), random.Random(seed), "0"
    for n in range(turns):
        worker, other = dice.sample("abcd", 2)
        turn(history, worker, n * 20, value, "%d" % (n + 1))
        history.acquire(other, n * 20 + 3, n * 20 + 4, "no")
        value = "%d" % (n + 1)
    return history


# ---- by hand: what the checker must say ---------------------------------------------------------


def two_holders(h):
    h.acquire("a", 0, 1)
    h.acquire("b", 100, 101)
    return {"double holders": 1}


def a_holder_whose_lease_is_over(h):
    h.acquire("a", 0, 1)
    h.acquire("b", 410, 411)
    return {}


def a_holder_that_was_killed(h):
    h.acquire("a", 0, 1, lease=None)
    h.event(50, "a", "dead")
    h.acquire("b", 100, 101, lease=None)
    return {}


def a_holder_without_a_lease_goes_on(h):
    h.acquire("a", 0, 1, lease=None)
    h.acquire("b", 5000, 5001, lease=None)
    return {"double holders": 1}


def an_extended_lease(h):
    h.acquire("a", 0, 1)
    h.call("a", 300, 301, "yes", "extend", LOCK, 400)
    h.acquire("b", 600, 601)
    return {"double holders": 1}


def a_refused_extension_says_that_the_lease_is_over(h):
    h.acquire("a", 0, 1)
    h.call("a", 200, 201, "no", "extend", LOCK, 400)
    h.acquire("b", 250, 251)
    return {}


def an_attempt_without_an_answer_is_no_holder(h):
    h.acquire("a", 0, None)
    h.acquire("b", 100, 101)
    return {}


def a_late_release_frees_another_worker_s_lock(h):
    h.acquire("a", 0, 1)
    h.acquire("b", 410, 411)
    h.release("a", 500, 501)
    return {"foreign releases": 1}


def a_repeated_release_frees_another_worker_s_lock(h):
    h.acquire("a", 0, 1)
    h.release("a", 50, 51, "unknown")
    h.acquire("b", 60, 61)
    h.release("a", 70, 71)
    return {"foreign releases": 1}


def a_repeated_release(h):
    h.acquire("a", 0, 1)
    h.release("a", 50, 51, "unknown")
    h.release("a", 60, 61)
    return {}


def a_loser_releases(h):
    h.acquire("a", 0, 1)
    h.acquire("b", 10, 11, "no")
    h.release("b", 20, 21)
    return {"foreign releases": 1}


def a_holder_is_refused(h):
    h.acquire("a", 0, 1)
    h.release("a", 100, 101, "no")
    return {"refused releases": 1}


def a_late_holder_is_refused(h):
    h.acquire("a", 0, 1)
    h.release("a", 500, 501, "no")
    return {}


def a_value_comes_back(h):
    """A client sends a write again, and the first answer was lost."""
    h.acquire("a", 0, 1)
    h.call("a", 2, 3, "0", "read", DATA)
    h.event(5, "a", "call", "write", DATA, "a1")
    turn(h, "b", 410, "a1", "b1")
    h.event(430, "a", "answer", "yes")
    turn(h, "c", 440, "a1", "c1")
    return {"lost updates": 1}


def two_writes_replace_one_value(h):
    h.acquire("a", 0, 1)
    h.call("a", 2, 3, "0", "read", DATA)
    turn(h, "b", 410, "0", "b1")
    h.call("a", 450, 451, "yes", "write", DATA, "a1")
    return {"lost updates": 1}


def a_write_without_an_answer_was_read(h):
    h.acquire("a", 0, 1)
    h.call("a", 2, 3, "0", "read", DATA)
    turn(h, "b", 410, "0", "b1")
    h.call("a", 450, None, "", "write", DATA, "a1")
    turn(h, "c", 500, "a1", "c1")
    return {"lost updates": 1}


def a_late_write_is_refused(h):
    h.acquire("a", 0, 1)
    h.call("a", 2, 3, "0", "read", DATA)
    turn(h, "b", 410, "0", "b1")
    h.call("a", 450, 451, "no", "write", DATA, "a1")
    turn(h, "c", 500, "b1", "c1")
    return {}


def a_refused_write_was_done(h):
    turn(h, "a", 0, "0", "a1")
    h.acquire("b", 20, 21)
    h.update("b", 22, "a1", "b1", "no")
    h.release("b", 30, 31)
    turn(h, "c", 40, "b1", "c1")
    return {"refused but done": 1}


BY_HAND = [two_holders, a_holder_whose_lease_is_over, a_holder_that_was_killed, a_holder_without_a_lease_goes_on, an_extended_lease,
           a_refused_extension_says_that_the_lease_is_over, an_attempt_without_an_answer_is_no_holder,
           a_late_release_frees_another_worker_s_lock, a_repeated_release,
           a_repeated_release_frees_another_worker_s_lock, a_loser_releases, a_holder_is_refused, a_late_holder_is_refused,
           a_value_comes_back, two_writes_replace_one_value, a_write_without_an_answer_was_read, a_late_write_is_refused, a_refused_write_was_done]


def test_by_hand():
    for make in BY_HAND:
        history = History()
        expected = make(history)
        assert found(history) == expected, (make.__name__, found(history))


def test_whether_a_lost_update_was_under_a_live_lease():
    history = History()
    two_writes_replace_one_value(history)
    inside, overrun = checker.lost_updates(checker.read(history.events)[0])
    assert (len(inside), len(overrun)) == (0, 1)
    history = History()
    a_value_comes_back(history)
    inside, overrun = checker.lost_updates(checker.read(history.events)[0])
    assert (len(inside), len(overrun)) == (0, 1)
    history = History()
    turn(history, "a", 0, "0", "a1")
    turn(history, "b", 20, "0", "b1")
    inside, overrun = checker.lost_updates(checker.read(history.events)[0])
    assert (len(inside), len(overrun)) == (1, 0)


# ---- a right history with one change -------------------------------------------------------------


def change(history, kind, result, new):
    """The right history with the answer of one call changed, for each call of this kind that was answered so."""
    open_call = {}
    for n, event in enumerate(history.events):
        if event[2] == "call":
            open_call[event[1]] = event[3]
        elif open_call.get(event[1]) == kind and event[3] == result:
            other = copy.deepcopy(history)
            other.events[n][3] = new
            yield other


def test_a_right_history():
    for seed in range(20):
        assert found(right(seed=seed)) == {}


def test_each_changed_answer_is_found():
    history = right()
    for name, kind, result, new in [("double holders", "acquire", "no", "yes"), ("refused releases", "release", "yes", "no"),
                                    ("refused but done", "write", "yes", "no")]:
        for other in list(change(history, kind, result, new))[:-1]:  # the last value is never read
            assert name in found(other), (kind, new, found(other))


def test_each_old_value_that_is_read_again_is_found():
    history = right()
    reads = [n for n, event in enumerate(history.events) if event[2] == "answer" and event[3].isdigit()]
    for before, n in zip(reads, reads[1:]):
        other = copy.deepcopy(history)
        other.events[n][3] = other.events[before][3]
        assert "lost updates" in found(other)


def test_each_release_by_another_worker_is_found():
    """While a worker holds the lock, the worker that was refused releases it."""
    history = right()
    for n in range(40):
        other = copy.deepcopy(history)
        loser = next(e[1] for e in other.events if e[0] == (n * 20 + 3) * MS and e[2] == "call" and e[3] == "acquire")
        other.release(loser, n * 20 + 6, n * 20 + 7)
        assert "foreign releases" in found(other)


# ---- times ---------------------------------------------------------------------------------------


def test_how_long_a_free_lock_stood():
    history = History()
    history.acquire("a", 0, 1, lease=None)
    history.acquire("b", 20, 21, "no", None)
    history.release("a", 50, 51)
    for at in (100, 300, 700):
        history.acquire("b", at, at + 1, "no", None)
    history.acquire("b", 900, 901, lease=None)
    assert checker.judge(history.events)["stood free"] == (700 - 51) * MS
    history.event(950, "b", "dead")
    history.acquire("a", 2000, 2001, "no", None)
    assert checker.judge(history.events)["stood free"] == (2000 - 950) * MS


def test_an_attempt_without_an_answer_may_have_the_lock():
    history = History()
    turn(history, "a", 0, "0", "a1")
    history.acquire("b", 1000, 1100, "unknown")
    history.acquire("a", 1050, 1051, "no")
    history.acquire("a", 1300, 1301, "no")
    assert checker.judge(history.events)["stood free"] == 200 * MS


def test_a_lock_that_is_held_does_not_stand_free():
    assert checker.judge(right().events)["stood free"] == 0


def test_order_and_bound_of_waits():
    history = History()
    history.acquire("a", 0, 1)
    history.acquire("b", 10, 400)
    history.acquire("c", 200, 300)
    history.acquire("d", 0, 700, "no")
    late, overtaken = checker.waits(checker.read(history.events)[0], 500)
    assert ([op.worker for op in late], [(a.worker, b.worker) for a, b in overtaken]) == (["d"], [("b", "c")])
    for event in history.events:
        if event[1] == "d" and event[2] == "answer":
            event[0] = 550 * MS
    late, _ = checker.waits(checker.read(history.events)[0], 500)
    assert late == []


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
