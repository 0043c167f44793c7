"""The record of one group of workers, from its own clocks, and its bounds.

A section is what a worker was inside for: (worker, sent, entered, left, answered, outcome). `sent` and `entered` are the
times, in microseconds, at which its attempt was sent and its success known, `left` when its work was done and `answered`
when its release was. They all come from one monotonic clock. Its lease ran for its full length from some moment between
`sent` and `entered`, so it was surely live until `sent` and the lease's length.

Nothing here knows how the workers were run, nor what they spoke through.
"""

ZERO, DELETED, NOT_MINE, FORGOTTEN = 0, 1, -1, -2  # outcomes: how a section's release was answered
SECOND = 1000000  # microseconds, as all times are
MARGIN = 5000  # microseconds: Redis counts a lease in whole milliseconds of another clock


class Counts:
    """What a group did. All are numbers of sections, but for `freed`: losers' releases that freed something."""

    FIELDS = ["acquired", "refused", "taken", "released", "lapsed", "late", "forgotten", "freed"]

    def __init__(self, **fields):
        for name in self.FIELDS:
            setattr(self, name, fields.get(name, 0))

    def plus(self, other):
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.FIELDS})


def count(sections, lease_ms, freed=0):
    """refused: a holder's release answered 0 while its lease was surely live. taken: GET showed it another value, or none,
    by then. Double entries, while another worker was inside: `released`, the other's lease was surely live, so a release had
    removed it; `lapsed`, the lease may have ended by itself. late: work that outlived its lease."""
    lease = lease_ms * 1000
    found = Counts(acquired=len(sections), freed=freed)
    inside = []  # sections that may last into the next one
    for section in sorted(sections, key=lambda s: s[2]):
        worker, sent, entered, left, answered, outcome = section
        found.late += left >= sent + lease
        found.forgotten += outcome == FORGOTTEN
        if answered + MARGIN < sent + lease:
            found.refused += outcome == ZERO
            found.taken += outcome == NOT_MINE
        inside = [s for s in inside if s[3] > entered]
        others = [s for s in inside if s[0] != worker]
        if any(entered + MARGIN < s[1] + lease for s in others):
            found.released += 1
        elif others:
            found.lapsed += 1
        inside.append(section)
    return found


# ---- what has to be -----------------------------------------------------------------------------------

POOL, MULTIPLEXED, OWN = "pool", "multiplexed", "own"  # which workers use a connection: any, all, one
NONE, FORGOTTEN_DELS, OVERRUNS, LOSERS = "none", "forgotten", "overruns", "losers"

SHARE = 0.9  # share of the acquisitions without attribution, for cells without faults
SHARE_FAULTS = 0.8  # share of the acquisitions on Redis itself, without those that a wrong release made possible
AMBIGUOUS = 1  # releases of a pool that may be refused: right behind a colleague's lost attempt, before it is known


def doubles_allowed(model, compare, fault, acquired):
    """Double entries through releases that cannot be told from right ones. Where a connection is one worker's there are
    none. On shared connections a late DEL may be a colleague's, though hardly where values are compared; and until it
    has shown that losers release, theirs look like holders'. One wrong release can bring a few more about: a run's
    number varies much, and is several times as high on Redis itself."""
    if model == OWN or fault in (NONE, FORGOTTEN_DELS):
        return 0
    if compare:
        return 2 if fault == OVERRUNS else 0
    return 5 + acquired * 0.15 if fault == OVERRUNS else 30 + acquired * 0.02


def failures(model, compare, fault, direct, off, proxy):
    """What a cell did wrong, as texts; `direct` on Redis itself, `off` without attribution (and, where losers release,
    without that). Second result: whether more time may mend it."""
    wrong, noisy = [], []
    if fault == NONE:
        for name, counts in [("directly", direct), ("mode off", off), ("the proxy", proxy)]:
            if counts.late:
                noisy.append("%s: %d sections outlived their lease" % (name, counts.late))
            elif counts.released or counts.lapsed or counts.taken:
                wrong.append("%s: %d double entries, %d locks taken" % (name, counts.released + counts.lapsed, counts.taken))
        if proxy.refused > (AMBIGUOUS if model == POOL else 0):
            (noisy if proxy.late else wrong).append("%d holders' DELs refused" % proxy.refused)
    if fault == LOSERS and not compare and not direct.released:
        wrong.append("losers' DELs did no harm on Redis itself: this shows nothing")
    allowed = doubles_allowed(model, compare, fault, proxy.acquired)
    if fault != NONE and proxy.released > allowed:
        stalled = fault == FORGOTTEN_DELS and proxy.late
        (noisy if allowed or stalled else wrong).append("%d double entries through releases" % proxy.released)
    if proxy.acquired < (SHARE if fault == NONE else SHARE_FAULTS) * reference(fault, direct, off):
        noisy.append("%d acquisitions, a share of %.2f" % (proxy.acquired, share(fault, direct, off, proxy)))
    return wrong + noisy, not wrong


def reference(fault, direct, off):
    """The acquisitions that the proxy's are held against."""
    return direct.acquired - direct.released if fault in (FORGOTTEN_DELS, OVERRUNS) else off.acquired


def share(fault, direct, off, proxy):
    """The proxy's acquisitions as a share of the reference."""
    return proxy.acquired / max(1, reference(fault, direct, off))
