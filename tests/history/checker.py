"""Judges histories of workers that write data under locks. It reads what the workers wrote down, and nothing else.

A history is a list of events, in the order of one monotonic clock, in microseconds:

    [time, worker, "call", "acquire", lock, lease]   the worker sends an attempt; lease in ms, or null: the lock has no end
    [time, worker, "call", "acquire", lock, lease, "stays"]   after the lease others may take the lock over; it does not go by itself
    [time, worker, "call", "extend", lock, lease]    it sets the lease's end anew
    [time, worker, "call", "release", lock]
    [time, worker, "call", "read", data]
    [time, worker, "call", "write", data, value]     no two writes have one value
    [time, worker, "answer", result]                 of the worker's last call: "yes", "no", "unknown"; of a read its value
    [time, worker, "answer", "yes", lease]           of an acquire: a lease in ms that the answer named
    [time, worker, "stopped" | "dead"]               it gets no processor from now on; it was killed
    [time, "", "fault", kind, what]

A worker has one call at a time. A call without an answer is unknown. What a worker may conclude from its answers: it holds the
lock from the answer "yes" until it calls release, until its lease may have ended (its attempt's call and the lease's length), or
until it is dead. Everything below follows from that. MARGIN allows for Redis, which counts in whole milliseconds.
"""

import collections

NEVER = float("inf")
MARGIN = 5000  # microseconds
TURN = 100000  # microseconds by which an attempt must be earlier than another one to count as first in a queue


class Operation:
    def __init__(self, time, worker, kind, name, detail=None, stays=""):
        self.sent, self.worker, self.kind, self.name, self.detail, self.stays = time, worker, kind, name, detail, stays
        self.answered, self.result, self.based, self.holding = NEVER, "unknown", None, None
        self.stopped, self.dead = False, NEVER
        self.again = False  # a release whose answer was unknown, and which is sent once more


class Holding:
    """One acquisition that was answered yes."""

    def __init__(self, op, lease):
        self.worker, self.lock, self.sent, self.entered = op.worker, op.name, op.sent, op.answered
        self.sure = op.sent + lease  # the lease is live until then
        self.latest = NEVER if op.stays else op.answered + lease  # and over by then
        self.left = self.over = NEVER  # the worker has begun to let go; it has let go

    def extend(self, op):
        lease = op.detail * 1000
        if op.result == "no":
            self.sure = min(self.sure, op.sent)
        elif op.result == "yes":
            self.sure = op.sent + lease if self.sure == NEVER else max(self.sure, op.sent + lease)
            self.latest = op.answered + lease if self.latest == NEVER else max(self.latest, op.answered + lease)
        else:
            self.sure, self.latest = min(self.sure, op.sent + lease), max(self.latest, op.answered + lease)

    def end(self):
        """Until when the worker may conclude that it holds the lock."""
        return min(self.sure, self.left)

    def free(self):
        """From when on no worker has the lock by this acquisition."""
        return min(self.latest, self.over)


def read(events):
    """The operations and the holdings of a history."""
    operations, holdings, last, inside, based = [], [], {}, {}, {}
    for time, worker, what, *rest in sorted(events, key=lambda event: event[0]):
        op, holding = last.get(worker), inside.get(worker)
        if what == "call":
            op = last[worker] = Operation(time, worker, *rest)
            op.holding, op.based = holding, based.get((worker, op.name))
            operations.append(op)
            if op.kind == "release" and holding:
                op.again = holding.left < time
                holding.left = min(holding.left, time)
            elif op.kind == "acquire":
                inside[worker] = None
        elif what == "answer":
            op.answered, op.result = time, rest[0]
            if op.kind == "acquire" and op.result == "yes":
                lease = rest[1] if len(rest) > 1 else op.detail
                op.holding = inside[worker] = Holding(op, NEVER if lease is None else lease * 1000)
                holdings.append(op.holding)
            elif op.kind == "extend" and holding:
                holding.extend(op)
            elif op.kind == "release" and holding:
                holding.over = time
            elif op.kind == "read":
                based[worker, op.name] = op.result
        elif what == "dead":
            if op:
                op.dead = time
            if holding:
                holding.left, holding.over = min(holding.left, time), min(holding.over, time)
        elif what == "stopped" and op and op.answered == NEVER:
            op.stopped = True
    return operations, holdings


def by_name(things, name):
    found = collections.defaultdict(list)
    for thing in things:
        found[getattr(thing, name)].append(thing)
    return found


def double_holders(holdings):
    """Acquisitions while another worker may conclude that it holds the lock."""
    found = []
    for some in by_name(holdings, "lock").values():
        inside = []
        for holding in sorted(some, key=lambda h: h.entered):
            inside = [h for h in inside if h.end() > holding.entered + MARGIN]
            found += [(holding, h) for h in inside if h.worker != holding.worker and holding.end() > holding.entered][:1]
            inside.append(holding)
    return found


def foreign_releases(operations, holdings):
    """Releases that were answered yes, while another worker held the lock from the call to the answer."""
    found, locks = [], by_name(holdings, "lock")
    for op in operations:
        if op.kind != "release" or op.result != "yes" or op.holding and op.holding.sure > op.answered and not op.again:
            continue
        others = [h for h in locks[op.name] if h.worker != op.worker and h.entered < op.sent and h.left > op.answered
                  and h.sure > op.answered + MARGIN]
        if others:
            found.append((op, others))
    return found


def refused_releases(operations):
    """Releases that were answered no, though the worker held the lock until the answer."""
    return [op for op in operations if op.kind == "release" and op.result == "no" and op.holding and not op.again
            and op.holding.sure > op.answered + MARGIN]


def late(op):
    """Whether a write may have been done when its worker's lease was over."""
    return not op.holding or op.answered > op.holding.sure - MARGIN


def lost_updates(operations):
    """Pairs of writes that were done and replaced the same value: the second has overwritten the first. A write whose answer is
    unknown was done if its value was read. A client that sends a write again may also bring back a value that was replaced: then the
    write of that value is the late one. Result: pairs of writes under live leases, and pairs with a lease that was overrun."""
    seen = {(op.name, op.result) for op in operations if op.kind == "read"}
    writes = {(op.name, op.detail): op for op in operations if op.kind == "write"}
    first, inside, overrun = {}, [], []
    for op in operations:
        if op.kind != "write" or op.result != "yes" and (op.name, op.detail) not in seen:
            continue
        other = first.setdefault((op.name, op.based), op)
        if other is not op:
            origin = writes.get((op.name, op.based))
            again = origin and origin.answered > min(op.sent, other.sent)  # its command was still under way
            (overrun if late(op) or late(other) or again and late(origin) else inside).append((op, other))
    return inside, overrun


def refused_but_done(operations):
    """Writes that were refused, and whose value was read."""
    seen = {(op.name, op.result) for op in operations if op.kind == "read"}
    return [op for op in operations if op.kind == "write" and op.result == "no" and (op.name, op.detail) in seen]


def stood_free(operations, holdings):
    """The longest time from the moment at which no worker had a lock any more to a refused attempt at it, in microseconds, and
    that attempt. A worker that hears no answer may have the lock until it knows that it hears none."""
    most, worst, locks = 0, None, by_name(holdings, "lock")
    for name, attempts in by_name((op for op in operations if op.kind == "acquire"), "name").items():
        users = [(h.sent, h.free()) for h in locks[name]]
        users += [(op.sent, min(op.answered, op.dead)) for op in attempts if op.result == "unknown"]
        users.sort()
        free, alive = min(op.sent for op in attempts), []
        for op in sorted((op for op in attempts if op.result == "no"), key=lambda op: op.answered):
            while users and users[0][0] < op.answered:
                alive.append(users.pop(0)[1])
            free = max([free, *(end for end in alive if end <= op.sent)])
            alive = [end for end in alive if end > op.sent]
            if not alive and op.sent - free > most:
                most, worst = op.sent - free, op
    return most, worst


def waits(operations, bound):
    """Attempts that were refused later than the bound, in ms, of a rule with `wait`; grants that overtook an attempt which was
    sent clearly earlier and granted later."""
    late = [op for op in operations if op.kind == "acquire" and op.result == "no" and not op.stopped
            and op.answered - op.sent > bound * 1000 + TURN]
    overtaken = []
    granted = [op for op in operations if op.kind == "acquire" and op.result == "yes" and not op.stopped]
    for some in by_name(granted, "name").values():
        some.sort(key=lambda op: op.sent)
        for n, op in enumerate(some):
            after = [o for o in some[n + 1:n + 33] if o.sent > op.sent + TURN and o.answered < op.answered - MARGIN]
            overtaken += [(op, o) for o in after[:1]]
    return late, overtaken


def judge(events):
    """All numbers of one history; every one but the first and the last is of something that must not be."""
    operations, holdings = read(events)
    inside, overrun = lost_updates(operations)
    stood, _ = stood_free(operations, holdings)
    return {"acquisitions": len(holdings), "double holders": len(double_holders(holdings)), "lost updates": len(inside) + len(overrun),
            "in a live lease": len(inside), "foreign releases": len(foreign_releases(operations, holdings)),
            "refused releases": len(refused_releases(operations)), "refused but done": len(refused_but_done(operations)),
            "stood free": stood}
