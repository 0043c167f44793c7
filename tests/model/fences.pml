/*
 * The fences of one lock, and the watermark beside data in another slot, for spin (docs/locks.md, "The short form", and
 * docs/fences.md, "On a cluster"). An attempt acquires by a script, whose fence is of the node's clock, or in the short form,
 * whose fence is of its proxy's clock. The proxies' clocks show any time; the node's goes on. acquire.lua finishes an attempt in
 * the short form that came to nothing, at once, late or, if its proxy stops, never. An answer may be lost: then the attempt is
 * repeated. A lease may end at any moment. A guard record may end, or be deleted, at any moment, also while its lease lives.
 * Another script may rewrite its short form as a hash. The slot's watermark stays, and there are no failovers. No proxy's clock
 * is as far behind the node's as a hash outlives its lease (10 s): `behind`.
 *
 * Each session that has acquired writes data in another slot, at any moment, also long after its lease.
 *
 * Checked over all interleavings: S2, and that no write of an earlier lease comes after a write of a later lease.
 */
#define ATTEMPTS 3
#define CLOCK 2                     /* the last time of each clock */

mtype = { NONE, HASH, SHORT, REWRITTEN };     /* a hash that was in the short form before */

/* ---- Redis ---- */
byte now = 1;
byte lock;                          /* the attempt that holds it, 0 free */
mtype record = NONE;                /* the form of the guard record */
byte token, fence;                  /* what it says */
byte watermark;                     /* the greatest fence of the slot that was given in the short form, 0 none */
byte mark;                          /* beside the data: the greatest fence that has written */

/* ---- what really is ---- */
byte mine[ATTEMPTS + 1];            /* the fence of the attempt's lease, 0 none */
byte behind;                        /* a proxy's clock is not so far behind: the node's, when a hash was made that is gone */
byte newest, wrote;                 /* the greatest fence of a lease, and of one that has written */

hidden byte next;                   /* the fence that is to be given */

inline above(other) {
    next = (next > other -> (next) : other + 1)
}

inline keep(form, its) {
    record = form; token = (form == NONE -> 0 : its); fence = (form == NONE -> 0 : next)
}

inline grant(a) {
    lock = a;
    assert(fence > newest); /* S2 */
    newest = fence; now++; mine[a] = fence
}

/* acquire_usual.lua, which knows the node's clock and a hash alone; where that does not do, acquire.lua. */
inline acquire(a) {
    next = now;
    if
    :: lock == 0 && record == HASH && now > fence -> keep(HASH, a); grant(a)
    :: lock == 0 && !(record == HASH && now > fence) ->
        above(fence);
        above(watermark);
        keep(HASH, a);
        watermark = (next > now -> (next) : watermark);
        grant(a)
    :: else -> record = (record == SHORT -> REWRITTEN : record)
    fi
}

/* acquire.lua behind an attempt in the short form. */
inline finish(a) {
    if
    :: record == SHORT && token == a && (unset || lock != a) -> keep(NONE, 0)
    :: record == SHORT && token != a && placed && lock == a -> keep(NONE, 0)
    :: (record == HASH || record == REWRITTEN) && ((token != a && placed && lock == a) || (token == a && unset && fence == clock)) -> token = 0
    :: else -> skip
    fi;
    next = now;
    above(fence);
    above(watermark);
    if
    :: unset -> above(clock)
    :: else -> skip
    fi;
    if
    :: lock == 0 || (lock == a && (placed || (record != NONE && token == a))) ->
        watermark = next; keep(SHORT, a); grant(a)
    :: else -> record = (record == SHORT -> REWRITTEN : record)
    fi
}

proctype Attempt(byte a) {
    byte clock;
    bool lost, raised, vacant, placed, unset;

    if
    :: atomic { true -> acquire(a) }; goto over
    :: a < ATTEMPTS -> clock = 1 /* the last attempt is by a script, which is enough here */
    :: a < ATTEMPTS -> clock = CLOCK
    fi;
end_again:
    atomic { /* PEXPIREAT GT, SET NX GET, SET NX */
        clock > behind ->
        raised = (watermark != 0 && clock > watermark);
        watermark = (raised -> clock : watermark);
        vacant = (record == NONE);
        if
        :: vacant -> next = clock; keep(SHORT, a)
        :: else -> skip
        fi;
        placed = (lock == 0);
        unset = (!placed && !lost);
        if
        :: raised && vacant && placed -> grant(a)
        :: else -> lock = (placed -> a : lock)
        fi
    };
    if
    :: !lost -> lost = true; goto end_again
    :: atomic { !(raised && vacant && placed) && (lost || vacant || placed || record != SHORT) -> finish(a) }
    :: skip /* it has acquired, it is refused, or its proxy stops */
    fi;
over:
    atomic { clock = 0; lost = false; raised = false; vacant = false; placed = false; unset = false }
}

active proctype World() {
    byte a;
end:
    do
    :: atomic { now < CLOCK -> now++ }
    :: atomic { lock != 0 -> record = (record == SHORT && token == lock -> NONE : record); lock = 0 } /* the lease ends */
    :: atomic { record != NONE && record != SHORT && token != 0 && token == lock -> lock = 0; token = 0 } /* it is released */
    :: atomic { record != NONE -> behind = (record != SHORT && fence <= now && fence > behind -> fence : behind); keep(NONE, 0) }
    :: atomic { record == SHORT -> record = REWRITTEN }
    :: atomic { /* fence.lua */
        if
        :: a = 1
        :: a = 2
        :: a = 3
        fi;
        if
        :: mine[a] != 0 && mark <= mine[a] ->
            mark = mine[a];
            assert(mine[a] >= wrote);
            wrote = mine[a]
        :: else -> skip
        fi;
        a = 0
       }
    od
}

init {
    atomic { run Attempt(1); run Attempt(2); run Attempt(3) }
}
