"""The record of a soak run: counters, the times of the faults, and violations with their history.

It knows nothing of connections, locks or servers.
"""

import collections
import sys
import time

# What no failover excuses.
NEVER = {"another client's reply", "closed", "crash", "end", "fault", "hang", "not at rest", "out of place",
         "reply is no RESP", "stray reply"}
SHOWN = 12  # violations printed in full; the others are only counted


class Window:
    """A fault's time. `end` is None while it lasts."""

    def __init__(self, kind, name, text, begin):
        self.kind, self.name, self.text, self.begin, self.end = kind, name, text, begin, None


class Loss:
    """What a failover may lose: acknowledged writes to these slots from `begin` on. `end` is None while it lasts."""

    def __init__(self, begin, ranges):
        self.begin, self.ranges, self.end = begin, ranges, None

    def has(self, slot):
        return any(first <= slot <= last for first, last in self.ranges)


class Suspicion:
    """A violation that an unplanned failover may explain, which was not noticed yet. `slots`: of the keys concerned; None:
    any."""

    def __init__(self, at, kind, slots, lines):
        self.at, self.kind, self.slots, self.lines = at, kind, slots, lines


class Record:
    def __init__(self, verbose=False):
        self.start = time.monotonic()
        self.counts = collections.Counter()
        self.faults = collections.Counter()
        self.windows = []
        self.losses = []
        self.unasked = []  # Losses of unplanned failovers
        self.suspicions = None  # a list where there can be such failovers
        self.violations = collections.Counter()
        self.shown = []
        self.verbose = verbose
        self.void = ""  # why what was seen can't be judged
        self.over = False  # the load is being stopped: a close is no surprise any more

    def now(self):
        return time.monotonic()

    def stamp(self, t=None):
        return "%9.3f" % ((self.now() if t is None else t) - self.start)

    # ---- faults

    def begin(self, kind, text="", name=None):
        """`kind` says what it excuses, `name` under which it is counted."""
        window = Window(kind, name or kind, text, self.now())
        self.windows.append(window)
        self.faults[window.name] += 1
        if self.verbose:
            print("%s %s %s" % (self.stamp(), kind, text), file=sys.stderr)
        return window

    def end(self, window):
        window.end = self.now()

    def moment(self, kind, text=""):
        self.end(self.begin(kind, text))

    def disturbed(self, since, kinds, margin=0.0):
        """Whether a fault of these kinds was in progress at `since` or later, or had ended less than `margin` before."""
        for window in reversed(self.windows):
            if window.kind in kinds and (window.end is None or window.end + margin >= since):
                return True
        return False

    def ends(self, names, since):
        """When the faults of these names ended, from `since` on."""
        return [w.end for w in self.windows if w.name in names and w.end is not None and w.end >= since]

    def may_lose(self, begin, ranges):
        """A failover of these slots, whose replicas were in step at `begin`."""
        self.losses.append(Loss(begin, ranges))
        return self.losses[-1]

    def lost(self, loss, changed):
        """The failover is over, and the old master gets no writes any more. If the master did not change, nothing was
        lost."""
        loss.end = self.now()
        if not changed:
            self.losses.remove(loss)

    def endangered(self, slot, sent, replied):
        """Whether a failover may have lost a write to this slot that was acknowledged."""
        return any(loss.begin <= replied and (loss.end is None or sent <= loss.end) and loss.has(slot)
                   for loss in self.losses)

    # ---- unplanned failovers: a server was silent for too long

    def replaced(self, begin, ranges, moving):
        """One is over. Writes to these slots may be lost that were acknowledged from `begin` until now; what may have come
        from another shard in between, `moving`, altogether."""
        window = self.begin("failover", "unasked, since %s" % self.stamp(begin), "unasked")
        window.begin = begin
        self.end(window)
        self.counts["seconds of failovers unasked"] += round(window.end - begin)
        for loss in (self.may_lose(begin, ranges), self.may_lose(0, moving)):
            self.lost(loss, True)
            self.unasked.append(loss)

    def unjudged(self, slots, since, at):
        """Whether an unplanned failover may explain what was seen of these slots at a time, for data written since another
        time."""
        return any(loss.begin <= at and since <= loss.end and (slots is None or any(map(loss.has, slots)))
                   for loss in self.unasked)

    def resolve(self, now):
        """All that were over by then are known."""
        due = [s for s in self.suspicions if s.at < now]
        self.suspicions = [s for s in self.suspicions if s.at >= now]
        for s in due:
            if self.unjudged(s.slots, s.at, s.at):
                self.counts["explained by a failover"] += 1
            else:
                self.count(s.kind, s.lines)

    def judged(self):
        """The violations that count."""
        return {kind: n for kind, n in self.violations.items() if not self.void or kind in NEVER}

    # ---- violations

    def violation(self, kind, text, history=(), slots=None):
        """`slots`: the slots whose losses can explain it; empty: none can."""
        lines = ["%s VIOLATION %s: %s" % (self.stamp(), kind, text)]
        lines += ["    " + line for line in history]
        near = [w for w in self.windows if w.end is None or w.end > self.now() - 8][-12:]
        for w in near:
            lines.append("    fault %s..%s %s %s" % (self.stamp(w.begin), self.stamp(w.end) if w.end else "now",
                                                    w.kind, w.text))
        if self.suspicions is None or kind in NEVER or slots == ():
            self.count(kind, lines)
        else:
            self.suspicions.append(Suspicion(self.now(), kind, slots, lines))

    def count(self, kind, lines):
        self.violations[kind] += 1
        if self.violations[kind] > 4 or len(self.shown) >= SHOWN:
            return
        self.shown.append("\n".join(lines))
        print(self.shown[-1], file=sys.stderr, flush=True)
