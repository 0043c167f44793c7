"""Lock libraries, as their commands (library_locks.py), under the rule for their keys, over the connections that they usually
have: on one Redis, on a cluster, and, for Redlock, on three independent Redis, each behind its own proxy.

A test is a part of a library's run on a backend (contention.py); all selected runs of a backend are made side by side before
the first test checks its own. Workers release in time, and so a holder's release frees its lock: a pool whose releases are bare
may lose two before it is known as one.
"""

import concurrent.futures
import random
import re
import shlex

import pytest

import servers
from contention import LEASE, SIDE_BY_SIDE, Runs, contend, part, workers_of
from crowd import Crowd, send
from library_locks import LIBRARIES

GOAL = {"standalone": 300, "cluster": 150, "redlock": 90}  # acquisitions
GOAL_ADVISED = 30
WAIT = " wait 1s"  # what PROXY ADVISE says of locks that pollers sleep beside
RULES = sorted((library.rule for library in LIBRARIES.values()), key=lambda rule: -len(rule.split()[1]))


@pytest.fixture(scope="module")
def runs(farm):
    runs = Runs(farm, LIBRARIES, RULES, GOAL)
    yield runs
    runs.stop()


CASES = [(kind, title) for kind in ("standalone", "cluster", "redlock") for title, library in LIBRARIES.items()
         if library.redlock == (kind == "redlock") and (library.cluster or kind != "cluster")]


@pytest.fixture(params=CASES, ids=lambda case: "%s-%s" % case)
def case(request, runs):
    """(library, what its run gave, kind of backend)."""
    return runs.wanted(request)


def test_contention(case):
    """No worker is late: no two are inside, every release frees the lock, and every extension succeeds."""
    library, result, kind = case
    figures = part(result, "figures")
    lost = library.pool_loses if library.connections == "pool" and not library.careful else 0
    assert figures.double == 0 and figures.refused + max(figures.cut - library.cuts, 0) <= lost, vars(figures)
    assert figures.acquired >= GOAL[kind], vars(figures)


def test_step_by_step(case):
    """The loser loses, the holder's extension counts, its release frees the lock at once; all replies are as on Redis."""
    library, result, _ = case
    outcome, replies = part(result, "steps")
    losers = [None] if library.local else [None, None]
    extended = [True, True] if library.extends else []
    assert outcome == [True, *losers, *extended, True, True, True, None, True, True]
    assert (outcome, replies) == part(result, "direct")


def test_late_holder(case):
    """A late holder's extension fails, and its release takes nothing from the present holder; on Redis it does, if the library
    is careless."""
    library, result, kind = case
    if library.handed_over and not library.careful:
        pytest.skip("whoever asks may release, on purpose")
    taken = "extension" in library.late_is_taken  # a known limit: a change that removes it shows here
    extended = [taken, taken] if library.extends else []
    third = [] if library.local else [None]
    safe = [*extended, False, False, *third, True, True]
    if "release" in library.late_is_taken:
        assert part(result, "late")[:3] == [*extended, True]
        return
    assert part(result, "late") == safe
    if kind == "standalone" and not library.endless:
        assert (part(result, "direct_late") == safe) == (library.careful or library.looks)


def test_crash(case):
    """The lock of a holder that is gone is free within its lease, and not before."""
    assert part(case[1], "crash") == (True, True, True, True)


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_a_release_s_message(runs, connect, kind):
    """Spring's registry in its other mode: the release wakes the waiting worker."""
    library = LIBRARIES["Spring Integration, messages"]
    ((_, proxy),) = runs.sides(kind)
    key, crowd = library.key(900), Crowd()
    try:
        holder, waiter = [crowd.process("multiplexed", proxy.address).worker() for _ in range(2)]
        ear = connect(proxy)
        assert ear("PSUBSCRIBE", "order-locks-channel:*") == ["psubscribe", "order-locks-channel:*", 1]
        held = crowd.do(holder, library.acquire(holder, key, LEASE))
        assert held and crowd.do(waiter, library.acquire(waiter, key, LEASE)) is None
        assert crowd.do(holder, library.release(holder, key, held))
        assert ear.read() == ["pmessage", "order-locks-channel:*", "order-locks-channel:" + key, key]
        held = crowd.do(waiter, library.acquire(waiter, key, LEASE))
        assert held and crowd.do(waiter, library.release(waiter, key, held))
        assert ear.read()[-1] == key
    finally:
        crowd.close()


# ---- PROXY ADVISE ----------------------------------------------------------------------------------------------


def matches(pattern, key):
    """Whether a Redis glob matches."""
    words = re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern, re.S)
    regex = [{"*": ".*", "?": "."}.get(word, word if word[0] == "[" and len(word) > 1 else re.escape(word[-1])) for word in words]
    return re.fullmatch("".join(regex), key, re.S) is not None


def stem(text):
    """Its first letters."""
    return "".join(filter(str.isalpha, text))[:6]


def rule_words(text):
    return shlex.split(text) if '"' in text else text.split()


@pytest.fixture(scope="module")
def advice(farm):
    """What a proxy without any rule advises after all of the libraries' traffic."""
    backend = farm.backend("standalone")
    backend.flush()
    backend.run("SCRIPT", "FLUSH")  # a script with unknown source gives no evidence
    proxy = servers.Proxy(backend, "lock lock:nothing")

    def traffic(title):
        library, crowd = LIBRARIES[title], Crowd()
        try:
            addresses = [proxy.address] * (2 if library.second_place else 1)
            _, workers = workers_of(library, crowd, addresses)
            keys = [library.key(number) for number in range(5001, 5005)]
            first = workers[0]  # alone at first: a script is known by the time others name it
            value = crowd.do(first, library.acquire(first, keys[0], LEASE))
            crowd.do(first, library.release(first, keys[0], value))
            contend(library, crowd, workers, keys, GOAL_ADVISED, random.Random(title))
            for number in range(20):
                for name in library.beside:
                    crowd.do(workers[0], send("SETEX", name % number, 60, "data"))
                    crowd.do(workers[0], send("GET", name % number))
        finally:
            crowd.close()

    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(traffic, LIBRARIES))
    with proxy.client() as client:
        lines = client("PROXY", "ADVISE")
    yield lines
    proxy.stop()
    proxy.remove()


@pytest.mark.parametrize("title", LIBRARIES)
def test_advice(advice, title):
    """Without any rule: the line names a pattern that has all of the library's locks and nothing else, and a rule that fits."""
    library = LIBRARIES[title]
    rules = [(rule_words(line.split(" events: ", 1)[1]), line) for line in advice if " events: lock " in line]
    locks = [library.shows(library.key(number)) for number in (5001, 5002, 77)]
    found = [(words, line) for words, line in rules if all(matches(words[1], lock) for lock in locks)]
    assert len(found) == 1, "\n".join(line for line in advice if stem(locks[0]) == stem(line))
    words, line = found[0]
    assert not [name for name in library.beside if matches(words[1], name % 7)], line
    options = "".join(" " + word for word in words[2:])
    if options.endswith(WAIT):  # a polling worker slept through releases: how often depends on the machine's speed
        assert " releases slept through " in line, line
        options = options[: -len(WAIT)]
    fits = options in library.options
    if not fits and re.search(r", late [1-9]", line):  # the machine stalled: a late worker with a bare DEL removes
        fits = options.replace(" owner client", "") in library.options  # another's lock, as a colleague in a pool does
    assert fits, line


# ---- the figures -----------------------------------------------------------------------------------------------


def test_table(runs, capsys):
    """The contention's results, printed with the tests' output."""
    with capsys.disabled():
        print("\n" + runs.table())
