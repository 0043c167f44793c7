"""The lock idioms that applications have, each on each connection model (stage.py): first directly on Redis, where the
known thing must go wrong, then the very same code through the proxy, where it must not.

A test is a row of the table on one model, owner and backend. The rows mostly wait for leases to end, so all selected rows
of a backend run side by side before the first test checks its own. Colleagues are workers of one process, rivals of
several; on D they are the same. If workers share connections and the bytes do not show which worker sends, a row has
colleagues only if the documentation promises something for them.
"""

import collections
import concurrent.futures
import pickle
import traceback

import pytest

import servers
from resp import Error
from stage import LONG, Stage, T, is_locked, watch
from servers import until

SIDE_BY_SIDE = 32
CONFIGS = ["D-auto", "D-connection", "P-auto", "P-client", "M-auto", "M-client"]
RULES = [rule for owner in ("auto", "connection", "client", "any")
         for rule in ("lock lock:%s:count:* owner %s lease 2s max-hold 5s kind string,counter" % (owner, owner),
                      "lock lock:%s:* owner %s lease 2s max-hold 5s" % (owner, owner),
                      "lock :1:lock-%s-* owner %s" % (owner, owner))]
COUNTER = "lock:%s:count:idiom"

Row = collections.namedtuple("Row", "scenario models owner prefix redis proxy")
ROWS = {}


def row(title, redis, proxy, models="DPM", owner=None, prefix="lock:%s:idiom"):
    """A scenario(stage): what it gives directly on Redis, and through the proxy; a dict is by model."""

    def add(scenario):
        ROWS[title] = Row(scenario, models, owner, prefix, redis, proxy)
        return scenario

    return add


# ---- 1: SETNX ... DEL ----


@row("1 crash after SETNX", redis=0, proxy=1)
def crash_after_setnx(s):
    """Locked for ever; through the proxy the lease ends."""
    a, b = s.rivals(2)
    assert a("SETNX", s.name, "1") == 1
    assert b("SETNX", s.name, "1") == 0
    ends = s.ttl() != -1
    s.crash(a)
    if ends:
        s.ended()
    return b("SETNX", s.name, "1")


@row("1 renewed while connected", redis=(1, 1), proxy=(1, 1))
def renewed_while_connected(s):
    """A holder that works longer than the lease keeps its lock, though its colleagues keep trying."""

    def lost():
        assert b("SETNX", s.name, "1") == c("SETNX", s.name, "1") == 0

    a, b = s.workers(2)
    (c,) = s.rivals(1)
    assert a("SETNX", s.name, "1") == 1
    watch(3.4, lost)
    return a("DEL", s.name), c("SETNX", s.name, "1")


@row("1 a worker dies, its process lives", redis=(False, 0), proxy=(True, 1), models="PM")
def worker_dies(s):
    """This can't be seen on the wire: the lease is renewed until max-hold."""
    a, b = s.workers(2)
    assert a("SETNX", s.name, "1") == 1
    ends = s.ttl() != -1
    if ends:
        s.ended()
    return ends, b("SETNX", s.name, "1")


# ---- 2: SETNX, EXPIRE ... DEL ----


@row("2 crash between SETNX and EXPIRE", redis=True, proxy=False)
def crash_before_expire(s):
    a, b = s.rivals(2)
    assert a("SETNX", s.name, "1") == 1
    s.crash(a)
    assert b("SETNX", s.name, "1") == 0
    return s.ttl() == -1


def losers_expire(s, expire):
    """Every contender sends its EXPIRE whether its SETNX won or not."""
    a, b = s.rivals(2)
    assert a("SETNX", s.name, "1") == 1
    assert a("PEXPIRE", s.name, 5000) == 1
    s.crash(a)
    lost, extended = b.at_once(("SETNX", s.name, "1"), (expire, s.name, LONG if expire == "PEXPIRE" else LONG // 1000))
    assert lost == 0
    return extended, s.ttl() > 5000


row("2 losers' EXPIRE", redis=(1, True), proxy=(0, False))(lambda s: losers_expire(s, "EXPIRE"))
row("2 losers' PEXPIRE", redis=(1, True), proxy=(0, False))(lambda s: losers_expire(s, "PEXPIRE"))
GOOD_2 = [1, 0, 1, True, 1, 1, 1, 1, True]


@row("2 works", redis=GOOD_2, proxy=GOOD_2)
def setnx_expire_del(s):
    a, b = s.workers(2)
    return [a("SETNX", s.name, "1"), b("SETNX", s.name, "1"), a("EXPIRE", s.name, 5), 3000 < s.ttl() <= 5000,
            a("DEL", s.name), b("SETNX", s.name, "1"), b("EXPIRE", s.name, 5), b("DEL", s.name), s.free()]


# ---- 3: MULTI, SETNX, EXPIRE, EXEC ----


@row("3 losers' EXPIRE inside MULTI", redis=([b"*2\r\n:1\r\n:1\r\n", b"*2\r\n:0\r\n:1\r\n"], True, 1),
     proxy=([b"*2\r\n:1\r\n:1\r\n", b"*2\r\n:0\r\n:0\r\n"], False, 1))
def transaction(s):
    a, b = s.rivals(2)

    def acquire(worker, ms):
        return worker.transaction(("SETNX", s.name, "1"), ("PEXPIRE", s.name, ms))

    replies = [acquire(a, 5000), acquire(b, LONG)]
    return replies, s.ttl() > 5000, a("DEL", s.name)


@row("3 late DEL", redis=(1, b"*2\r\n:1\r\n:1\r\n"), proxy=(0, b"*2\r\n:0\r\n:0\r\n"))
def transaction_late(s):
    a, b = s.workers(2)
    (c,) = s.rivals(1)

    def acquire(worker, ms):
        return worker.transaction(("SETNX", s.name, "1"), ("PEXPIRE", s.name, ms))

    assert acquire(a, T) == b"*2\r\n:1\r\n:1\r\n"
    s.ended()
    assert acquire(b, LONG) == b"*2\r\n:1\r\n:1\r\n"
    return a("DEL", s.name), acquire(c, LONG)


# ---- 4, 5, 17: a late DEL ----

FORMS = {
    "4": ["SET", "K", "true", "NX", "PX", "T"],
    "4 SETNX, PEXPIRE": ["SETNX", "K", "1"],
    "5": ["SET", "K", "W", "NX", "PX", "T"],
    "17": ["SET", "K", "PICKLE", "PX", "T", "NX"],
}


def acquire(s, worker, form, number, expiry):
    words = {"K": s.name, "W": "7d2b-%d" % number, "PICKLE": pickle.dumps(True), "T": expiry}
    won = worker(*[words.get(word, word) for word in form]) in ("OK", 1)
    if won and form[0] == "SETNX":
        assert worker("PEXPIRE", s.name, expiry) == 1
    return won


def late_delete(s, form, b, c, a):
    """A acquires, its lease ends, B acquires, A's DEL frees B's lock, C enters: two in the critical section."""
    assert acquire(s, a, form, 1, T)
    s.ended()
    assert acquire(s, b, form, 2, LONG)
    late = a("DEL", s.name)
    two_inside = acquire(s, c, form, 3, LONG)
    return late, two_inside, b("DEL", s.name), s.free()


def holder_first(s, form):
    """The holder's DEL comes before the late one. If the two workers share connections and nothing was read, the bytes do
    not show which lease it means. The lock then stays held until the late DEL or the end of the lease, and there is an
    incident; or the machine was so slow that A's claim was given up, and B's DEL was its own."""
    a, b = s.workers(2)
    (c,) = s.rivals(1)
    assert acquire(s, a, form, 1, T)
    s.ended()
    assert acquire(s, b, form, 2, LONG)
    released = b("DEL", s.name)
    two_inside = acquire(s, c, form, 3, LONG) and released == 0
    return released, two_inside, a("DEL", s.name), "ambiguous" in s.incidents()


for _title, _form in FORMS.items():
    _prefix = ":1:lock-%s-report" if _title == "17" else "lock:%s:late"
    row(_title + ", late DEL of a colleague", redis=(1, True, 1, True), proxy=(0, False, 1, True), prefix=_prefix)(
        lambda s, form=_form: late_delete(s, form, *s.workers(3)))
    row(_title + ", late DEL of a rival", redis=(1, True, 1, True), proxy=(0, False, 1, True), prefix=_prefix)(
        lambda s, form=_form: late_delete(s, form, *s.rivals(3)))
    row(_title + ", late DEL behind the holder's", redis=(1, False, 1, False), prefix=_prefix,
        proxy={"D": (1, False, 0, False), "PM": {(0, False, 1, True), (1, False, 0, False)}})(
            lambda s, form=_form: holder_first(s, form))

PICKLED = pickle.dumps({"a": [1, 2.5, b"\0\r\n"], "b": None})
GOOD_17 = ("OK", None, PICKLED, 1, True)


@row("17 the value comes back", redis=GOOD_17, proxy=GOOD_17, prefix=":1:lock-%s-report")
def value_comes_back(s):
    a, b = s.workers(2)
    return (a("SET", s.name, PICKLED, "NX", "PX", LONG), b("SET", s.name, PICKLED, "PX", LONG, "NX"),
            b("GET", s.name).encode("utf-8", "surrogateescape"), a("DEL", s.name), s.free())


# ---- 6: read, compare, delete ----


def read_before_the_end(s, a, b, c):
    """A's GET still shows A's value; then the lease ends, B acquires, and A's DEL frees B's lock."""
    assert a("SET", s.name, "uuid-a", "NX", "PX", 2 * T) == "OK"
    assert a("GET", s.name) == "uuid-a"  # mine: I may delete it
    s.ended()
    assert b("SET", s.name, "uuid-b", "NX", "PX", LONG) == "OK"
    late = a("DEL", s.name)
    two_inside = c("SET", s.name, "uuid-c", "NX", "PX", LONG) == "OK"
    if not two_inside:
        assert b("GET", s.name) == "uuid-b"
    return late, two_inside, b("DEL", s.name)


row("6 late DEL of a colleague", redis=(1, True, 1), proxy=(0, False, 1))(lambda s: read_before_the_end(s, *s.workers(3)))
row("6 late DEL of a rival", redis=(1, True, 1), proxy=(0, False, 1))(lambda s: read_before_the_end(s, *s.rivals(3)))


@row("6 a colleague's lease ended unread", redis=(1, True), proxy=(1, True))
def sighted_goes_first(s):
    """B has seen its own value, A nothing: B's DEL is B's, on every model."""
    a, b = s.workers(2)
    assert a("SET", s.name, "uuid-a", "NX", "PX", T) == "OK"
    s.ended()
    assert b("SET", s.name, "uuid-b", "NX", "PX", LONG) == "OK"
    assert b("GET", s.name) == "uuid-b"
    released = b("DEL", s.name), s.free()
    assert a("GET", s.name) is None  # and A, late, sees that there is nothing of its own
    return released


@row("6 both have seen their own", redis=(1, False, 1), proxy=(1, False, 0))
def both_sighted(s):
    """A saw its value, lost its lease, and has not released yet. The worker that has just read releases: that is B."""
    a, b = s.workers(2)
    (c,) = s.rivals(1)
    assert a("SET", s.name, "uuid-a", "NX", "PX", 2 * T) == "OK"
    assert a("GET", s.name) == "uuid-a"
    s.ended()
    assert b("SET", s.name, "uuid-b", "NX", "PX", LONG) == "OK"
    assert b("GET", s.name) == "uuid-b"
    released = b("DEL", s.name)
    two_inside = c("SET", s.name, "uuid-c", "NX", "PX", LONG) == "OK" and released == 0
    return released, two_inside, a("DEL", s.name)


GOOD_6 = ["OK", True, 1] * 3


@row("6 works", redis=GOOD_6, proxy=GOOD_6)
def read_compare_delete(s):
    a, b = s.workers(2)
    replies = []
    for worker, value in ((a, "uuid-a"), (b, "uuid-b"), (a, "uuid-a2")):
        replies.append(worker("SET", s.name, value, "NX", "PX", LONG))
        replies.append(worker("GET", s.name) == value)
        replies.append(worker("DEL", s.name))
    return replies


# ---- 8: a deadline as the value, taken over with GETSET ----


def takeover(s, b, c, swap):
    """A is gone and its deadline is past. B and C both see that; B's GETSET wins, and C's, which loses, overwrites B's
    deadline all the same."""
    (a,) = s.rivals(1)
    assert a("SETNX", s.name, "100") == 1
    assert a("PEXPIRE", s.name, LONG) == 1
    s.crash(a)
    assert b("SETNX", s.name, "900") == c("SETNX", s.name, "901") == 0
    assert b("GET", s.name) == c("GET", s.name) == "100"
    won = [worker for worker, deadline in ((b, "900"), (c, "901"))
           if worker(*[{"K": s.name, "V": deadline}.get(word, word) for word in swap]) == "100"]
    return won == [b], s.value(), b("DEL", s.name), s.free()


GETSET, SET_GET = ["GETSET", "K", "V"], ["SET", "K", "V", "PX", str(LONG), "GET"]
row("8 the loser is a rival", redis=(True, "901", 1, True), proxy=(True, "900", 1, True))(
    lambda s: takeover(s, *s.rivals(2), GETSET))
row("8 the loser is a colleague", redis=(True, "901", 1, True), proxy=(True, "900", 1, True))(
    lambda s: takeover(s, *s.workers(2), GETSET))
row("8 with SET GET", redis=(True, "901", 1, True), proxy=(True, "900", 1, True))(
    lambda s: takeover(s, *s.workers(2), SET_GET))


def taken_over(s, a, b):
    """A's lock is taken over, and A's late DEL frees the new holder's."""
    (c,) = s.rivals(1)
    assert a("SETNX", s.name, "100") == 1
    assert b("GET", s.name) == "100"
    assert b("GETSET", s.name, "900") == "100"
    late = a("DEL", s.name)
    return late, c("SETNX", s.name, "901"), b("DEL", s.name)


row("8 late DEL of a rival", redis=(1, 1, 1), proxy=(0, 0, 1))(lambda s: taken_over(s, *s.rivals(2)))


# ---- 11: WATCH, GET, MULTI, DEL, EXEC ----


def watched_release(s, worker, value, between=None):
    """The connection is the worker's for as long as it takes. Returns EXEC's reply, or "" if the value was another."""
    link = worker.own()
    assert link("WATCH", s.name) == "OK"
    if link("GET", s.name) != value:
        assert link("UNWATCH") == "OK"
        return ""
    if between:
        between()
    assert link("MULTI") == "OK"
    assert link("DEL", s.name) == "QUEUED"
    return link("EXEC")


@row("11 works", redis=[[1], True, "", [1]], proxy=[[1], True, "", [1]])
def watch_get_del(s):
    a, b = s.workers(2)
    assert a("SET", s.name, "uuid-a", "NX", "PX", LONG) == "OK"
    replies = [watched_release(s, a, "uuid-a"), s.free()]
    assert b("SET", s.name, "uuid-b", "NX", "PX", LONG) == "OK"
    return replies + [watched_release(s, a, "uuid-a"), watched_release(s, b, "uuid-b")]


def watched_late(s, a, b):
    """Right by itself: the lease ends between GET and EXEC, and EXEC does nothing."""

    def between():
        s.ended()
        assert b("SET", s.name, "uuid-b", "NX", "PX", LONG) == "OK"

    assert a("SET", s.name, "uuid-a", "NX", "PX", 2 * T) == "OK"
    return watched_release(s, a, "uuid-a", between), s.value(), watched_release(s, b, "uuid-b")


row("11 late", redis=(None, "uuid-b", [1]), proxy=(None, "uuid-b", [1]))(lambda s: watched_late(s, *s.rivals(2)))


# ---- 13: INCR, 1 means acquired ----


@row("13 crash after INCR", redis=False, proxy=True, prefix=COUNTER)
def counter_crash(s):
    a, b = s.rivals(2)
    assert a("INCR", s.name) == 1
    assert b("INCR", s.name) == 2
    ends = s.ttl() != -1
    s.crash(a)
    if ends:
        s.ended()
    return b("INCR", s.name) == 1


@row("13 losers' EXPIRE", redis=(1, True), proxy=(0, False), prefix=COUNTER)
def counter_losers_expire(s):
    a, b = s.rivals(2)
    assert a("INCR", s.name) == 1
    assert a("PEXPIRE", s.name, 5000) == 1
    s.crash(a)
    lost, extended = b.at_once(("INCR", s.name), ("EXPIRE", s.name, LONG // 1000))
    assert lost == 2
    return extended, s.ttl() > 5000


def counter_late(s, release, a, b, c):
    """Also by DECR: a late one makes the counter zero under its holder, and the next INCR wins."""
    for worker, ms in ((a, T), (b, LONG)):
        assert worker("INCR", s.name) == 1
        assert worker("PEXPIRE", s.name, ms) == 1
        if worker is a:
            s.ended()
    late = a(release, s.name)
    return late, c("INCR", s.name) == 1


for _release, _late in (("DEL", 1), ("DECR", 0)):
    row("13 late %s of a colleague" % _release, redis=(_late, True), proxy=(0, False), prefix=COUNTER)(
        lambda s, release=_release: counter_late(s, release, *s.workers(3)))
    row("13 late %s of a rival" % _release, redis=(_late, True), proxy=(0, False), prefix=COUNTER)(
        lambda s, release=_release: counter_late(s, release, *s.rivals(3)))

GOOD_13 = [1, 1, 2, 1, 0, 1, 1, 1, True]


@row("13 works", redis=GOOD_13, proxy=GOOD_13, prefix=COUNTER)
def counter(s):
    a, b = s.workers(2)
    return [a("INCR", s.name), a("EXPIRE", s.name, 50), b("INCR", s.name), b("DECR", s.name), a("DECR", s.name),
            b("INCR", s.name), b("EXPIRE", s.name, 50), b("DEL", s.name), s.free()]


# ---- 14: DEL in `finally` ----


def loser_deletes(s, release):
    """The loser deletes too."""
    a, b, c = s.rivals(3)
    assert a("SET", s.name, "1", "NX", "PX", LONG) == "OK"
    lost, answer = b.at_once(("SET", s.name, "1", "NX", "PX", LONG), (release, s.name))
    assert lost is None
    two_inside = c("SET", s.name, "1", "NX", "PX", LONG) == "OK"
    return answer, two_inside


for _release, _done, _refused in (("DEL", 1, 0), ("UNLINK", 1, 0), ("GETDEL", "1", None)):
    row("14 %s in finally" % _release, redis=(_done, True), proxy=(_refused, False))(
        lambda s, release=_release: loser_deletes(s, release))


# ---- 15: SET XX as a release or an extension ----


@row("15 late, as a release", redis=("OK", True), proxy=(None, False))
def xx_release(s):
    """A's late SET XX overwrites B's value and shortens B's expiry."""
    a, b, c = s.rivals(3)
    assert a("SET", s.name, "a", "NX", "PX", T) == "OK"
    s.ended()
    assert b("SET", s.name, "b", "NX", "PX", LONG) == "OK"
    late = a("SET", s.name, "a", "XX", "PX", 1)
    if late:
        s.ended()
    return late, c("SET", s.name, "c", "NX", "PX", LONG) == "OK"


@row("15 late, as an extension", redis=("OK", "a", True), proxy=(None, "b", False))
def xx_extension(s):
    a, b = s.rivals(2)
    assert a("SET", s.name, "a", "NX", "PX", T) == "OK"
    s.ended()
    assert b("SET", s.name, "b", "NX", "PX", LONG) == "OK"
    return a("SET", s.name, "a", "XX", "PX", 10 * LONG), s.value(), s.ttl() > LONG


GOOD_15 = ["OK", "OK", True, None, "OK", "OK"]


@row("15 works", redis=GOOD_15, proxy=GOOD_15)
def xx(s):
    a, b = s.workers(2)
    first = [a("SET", s.name, "a", "NX", "PX", 5000), a("SET", s.name, "a2", "XX", "PX", LONG), LONG - 10000 < s.ttl(),
             b("SET", s.name, "b", "NX"), a("SET", s.name, "a3", "XX", "PX", 1)]
    s.ended()
    return first + [b("SET", s.name, "b", "NX", "PX", 1000)]


# ---- 16: SET without NX ----


def both_set(s, form):
    """Both see nothing, both set, both work."""
    a, b = s.rivals(2)
    assert a("GET", s.name) is b("GET", s.name) is None
    inside = []
    for worker, value in ((a, "a"), (b, "b")):
        reply = worker(*[{"K": s.name, "W": value}.get(word, word) for word in form])
        assert reply == "OK" or is_locked(reply), reply
        if reply == "OK":
            inside.append(value)
    return inside, s.value(), a("DEL", s.name)


for _form in (["SET", "K", "W", "EX", "5"], ["SETEX", "K", "5", "W"]):
    row("16 " + " ".join(_form), redis=(["a", "b"], "b", 1), proxy=(["a"], "a", 1))(
        lambda s, form=_form: both_set(s, form))


# ---- 18: a throttle ----


THROTTLED = ("OK", None, True, "OK")


# The pool of P-auto has released locks of this kind before, so a lock that is not released is reported.
@row("18 a throttle", redis=(*THROTTLED, []), proxy={"P-auto": (*THROTTLED, ["overrun"]), "DPM": (*THROTTLED, [])})
def throttle(s):
    """Nothing is wrong with it, and nothing changes: it expires exactly when the application said."""
    a, b = s.workers(2)
    first, second = a("SET", s.name, "1", "NX", "PX", 3000), b("SET", s.name, "1", "NX", "PX", 3000)
    exact = 0 < s.ttl() <= 3000
    if s.model == "D":
        s.crash(a)
    s.ended()
    return first, second, exact, b("SET", s.name, "1", "NX", "PX", LONG), s.incidents()


# ---- 19: released by another worker on purpose ----

QUEUED = (["OK", None, 1, True, "OK", 1], [])
KEPT = (["OK", None, 0, False, None, 0], ["foreign_release", "foreign_release"])


def queued_job(s):
    """Acquired when a job is queued, released by the process that runs it."""
    a, b, c = s.rivals(3)

    def queue(worker):
        return worker("SET", s.name, "job", "NX", "PX", LONG)

    return [queue(a), queue(c), b("DEL", s.name), s.free(), queue(c), b("DEL", s.name)], s.incidents()


row("19 owner any", redis=QUEUED, proxy=QUEUED, owner="any")(queued_job)
BELIEVED = (QUEUED[0], ["believed", "believed"])  # on one machine, by a session that never tried for the lock
row("19 what the other owners do", redis=QUEUED, proxy={"D-auto": BELIEVED, "DPM": KEPT})(queued_job)


# ---- the runs ------------------------------------------------------------------------------------


class Runs:
    """Every row that is wanted of a backend: on Redis once a model, through the proxy once a configuration."""

    def __init__(self, farm):
        self.farm = farm
        self.proxies, self.results = {}, {}

    def proxy(self, backend):
        if backend.kind not in self.proxies:
            self.proxies[backend.kind] = servers.Proxy(backend, *RULES)
        return self.proxies[backend.kind]

    def start(self, kind, wanted):
        backend = self.farm.backend(kind)
        proxy = self.proxy(backend)
        jobs = {(title, how) for title, config in wanted for how in (config, config[0])}
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            futures = {job: pool.submit(self.one, backend, proxy, *job) for job in sorted(jobs)}
            self.results[kind] = {job: future.result() for job, future in futures.items()}

    def one(self, backend, proxy, title, how):
        """The scenario's result, or its error as text. `how`: a configuration, or a model on Redis."""
        wanted = ROWS[title]
        model, _, owner = how.partition("-")
        name = "%s:%s:%s" % (wanted.prefix % (wanted.owner or owner or "direct"), how, title.replace(" ", "-"))
        node = backend.node_of(name).address
        stage = Stage(proxy.address if owner else node, node, model, owner, name, bool(owner))
        try:
            return wanted.scenario(stage)
        except Exception:  # shown by the test
            return Error(traceback.format_exc())
        finally:
            stage.close()

    def stop(self):
        for proxy in self.proxies.values():
            try:
                proxy.stop()
            finally:
                proxy.remove()


@pytest.fixture(scope="module")
def runs(farm):
    runs = Runs(farm)
    yield runs
    runs.stop()


def by_model(expected, config):
    """`expected` is by configuration, or by the letters of models; a set has each result that is right."""
    if not isinstance(expected, dict):
        return expected
    return next(value for which, value in expected.items() if config == which or ("-" not in which and config[0] in which))


def cases():
    return [(title, config) for title, wanted in ROWS.items() for config in CONFIGS if config[0] in wanted.models]


@pytest.mark.parametrize("title, config", cases(), ids=lambda value: value)
def test_idiom(request, runs, backend_kind, title, config):
    if backend_kind not in runs.results:
        params = [item.callspec.params for item in request.session.items
                  if item.module is request.module and item.originalname == "test_idiom"]
        runs.start(backend_kind, {(p["title"], p["config"]) for p in params if p["backend_kind"] == backend_kind})
    results, wanted = runs.results[backend_kind], ROWS[title]
    for how, expected in ((config[0], wanted.redis), (config, wanted.proxy)):
        result = results[title, how]
        assert not isinstance(result, Error), "%s: %s" % (how, result)
        right = by_model(expected, config)
        assert result in right if isinstance(right, set) else result == right, how


# ---- all at once ----


@pytest.mark.parametrize("owner", ["auto", "connection"])
def test_many_workers_are_never_two(runs, backend, key, rng, owner):
    """Workers with idiom 4 under contention, some of them slower than their lease: directly, two are inside at the
    same time; through the proxy, every late DEL answers 0 and the lock is only ever released by its holder."""

    def scenario(s):
        workers = s.workers(6)
        stolen = 0
        holder = None
        overdue = []
        for _ in range(40):
            worker = rng.choice(workers)
            if worker in overdue:
                before = s.value()
                if worker("DEL", s.name) == 1 and holder is not None and before is not None:
                    stolen += 1
                    holder = None
                overdue.remove(worker)
            elif worker is holder:
                if worker("DEL", s.name) == 1:
                    holder = None
            elif holder is None:
                slow = rng.random() < 0.5
                if worker("SET", s.name, "true", "NX", "PX", 20 if slow else LONG) == "OK":
                    if slow:
                        until(s.free, 10, "the end of a lease", 0.005)
                        overdue.append(worker)
                    else:
                        holder = worker
        return stolen

    def both():
        found = []
        for proxied in (False, True):
            name = key("lock:%s:many" % owner)
            node = backend.node_of(name).address
            stage = Stage(runs.proxy(backend).address if proxied else node, node, "D", owner, name, proxied)
            try:
                found.append(scenario(stage))
            finally:
                stage.close()
        return found

    on_redis, through_the_proxy = both()
    while on_redis == 0:  # the dice have to show it first
        on_redis, through_the_proxy = both()
    assert on_redis > 0 and through_the_proxy == 0
