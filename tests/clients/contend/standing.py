"""The losses of a group of workers, from its own clocks: refused releases of holders, and the time in which the lock stood
without a worker at work. Sections are judge.py's; times are microseconds of one monotonic clock.

Nothing here knows how the workers were run, nor what they spoke through.
"""

import judge

RECONNECT = 200000  # microseconds: after a restart, clients find the proxy again


def overlap(gap, outages):
    """How much of a gap the outages explain, each with the time that clients take to come back."""
    start, end = gap
    return sum(max(0, min(end, up + RECONNECT) - max(start, down)) for down, up in outages)


def longest(sections, began, ended, poll, outages=()):
    """The longest time without a worker at work, from a holder's release (or `began`) to the next acquisition (or `ended`),
    minus `poll`, the pause between two attempts, and minus the outages."""
    most, last = 0, began
    for section in sorted(sections, key=lambda s: s[2]):
        most = max(most, section[2] - last - poll - overlap((last, section[2]), outages))
        last = max(last, section[4])
    return max(most, ended - last - poll - overlap((last, ended), outages))


def lost(sections, lease_ms):
    """The times at which a holder's release was answered 0, or its lock found gone, while its lease was live."""
    found = []
    for section in sections:
        if judge.count([section], lease_ms).refused or judge.count([section], lease_ms).taken:
            found.append(section[4])
    return sorted(found)


def late_writes(sections, writes, lease_ms):
    """The writes that were done although the writer's lease was over and another worker had acquired the lock since. A write is
    (worker, when its section was entered, sent, answered, whether it was done)."""
    lease = lease_ms * 1000
    found = 0
    for worker, entered, sent, _, done in writes:
        if done and sent > entered + lease + judge.MARGIN:
            found += any(other[0] != worker and entered < other[2] < sent for other in sections)
    return found
