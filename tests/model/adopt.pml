/*
 * Adoption, for spin: locks that no script of ours has made. Two workers set and delete one lock by scripts of their own,
 * each behind a proxy; adopt.lua runs before and behind such a script, in one transaction with it. EXEC's answer may be
 * lost: then adopt.lua comes once more, alone, now or much later, or never. What it has adopted is renewed, expires, and
 * is released by a plain DEL, on time or late, through the same proxy or through another one that only knows the worker's
 * name. Somebody goes around the proxies: sets the lock if it is free, with the very same value, or overwrites or
 * deletes whatever is there.
 *
 * Checked over all interleavings: S1, S3, S5, and that what was adopted has an end (L1). The value is the same for all
 * workers, and no argument of their scripts.
 *
 *      spin -run -DNOCLAIM -m200000 adopt.pml
 */
#define WORKERS  2
#define ROUNDS   2 /* acquisitions a worker */
#define LEASE    1 /* ticks */
#define NEVER    2
#define VALUE    1 /* what the scripts write */
#define OUTSIDE  2 /* what the one who goes around overwrites with */
#define TOGETHER atomic /* the transaction */
#define TOKEN(w, n) ((w) * ROUNDS * 3 + (n))
#define WHOSE(token) (((token) - 1) / (ROUNDS * 3))

/* ---- Redis: the lock and its guard record ---- */
byte value;            /* what the lock holds, 0 free */
byte left;             /* ticks until it ends */
byte token;            /* the guard record's, 0 none */
byte held;             /* the value that it was for */
byte identity;         /* whose, as a name */
byte proxy;            /* through which proxy */
byte vacant;           /* the attempt that found no lock before its script, 0 none */

byte writer;           /* who wrote the value in truth, for the checks; 0 nobody's worker */

#define LIVE (token != 0 && value != 0 && held == value)
#define ENDS (!LIVE || left != NEVER) /* L1 */

/* ---- the applications' scripts ---- */

/* SET NX, with an expiry or without. */
inline set_by_script(w, ticks) {
    atomic {
        if
        :: value == 0 -> value = VALUE; writer = w + 1; left = ticks
        :: else -> skip
        fi
    }
}

inline delete_by_script(w) {
    atomic {
        if
        :: value == VALUE -> value = 0; writer = 0; left = 0
        :: else -> skip
        fi
    }
}

/* ---- our scripts ---- */

/* adopt.lua before a script. */
inline before(attempt) {
    atomic {
        if
        :: value == 0 -> vacant = attempt
        :: else -> skip
        fi
    }
}

/* adopt.lua behind a script of worker w's, in the same transaction or alone. */
inline adopt(w, attempt, through, together, result) {
    atomic {
        result = 0;
        if
        :: LIVE && (!together || vacant != attempt || token == attempt) ->
            result = (token == attempt); /* repeated */
            if
            :: left == NEVER -> left = LEASE
            :: else -> skip
            fi
        :: together && vacant == attempt && value != 0 && token != attempt ->
            token = attempt; held = value; identity = w; proxy = through;
            if
            :: left == NEVER -> left = LEASE
            :: else -> skip
            fi;
            result = 1
        :: else -> token = 0 /* what it was for has ended */
        fi;
        vacant = (together -> 0 : vacant);
        assert(!result || writer == w + 1); /* S5 */
        assert(ENDS)
    }
}

/* release.lua: the live lease is the claim's; or, where there is no claim, of the same name through another proxy. */
inline release(w, claim, through) {
    atomic {
        if
        :: LIVE && (token == claim || (claim == 0 && identity == w && proxy != through)) ->
            assert(writer == w + 1); /* S1 */
            value = 0; writer = 0; left = 0; token = 0
        :: else -> skip
        fi
    }
}

/* renew.lua. */
inline renew(claim) {
    atomic {
        if
        :: LIVE && token == claim ->
            assert(writer == WHOSE(claim) + 1); /* S3 */
            left = LEASE
        :: else -> skip
        fi
    }
}

/* ---- the clock, and the one who goes around ---- */

active proctype clock() {
end_clock:
    do
    :: atomic {
        value != 0 && left > 0 && left != NEVER -> left--;
        if
        :: left == 0 -> value = 0; writer = 0; token = 0 /* a record that outlives its lease says nothing */
        :: else -> skip
        fi
    }
    od
}

active proctype outside() {
end_outside:
    if
    :: atomic { value == 0 -> value = VALUE; writer = 0; left = LEASE }
    :: atomic { value = OUTSIDE; writer = 0; left = LEASE }
    :: atomic { value = 0; writer = 0; left = 0 }
    fi
}

/* ---- a worker, and its proxy ---- */
byte holds[WORKERS]; /* the claim that its proxy has for it, 0 none */

proctype renewals(byte w) {
    byte claim;
end_renewals:
    atomic { holds[w] != 0 -> claim = holds[w] };
    renew(claim) /* now or much later */
}

/* EXEC's answer arrives, or is lost, and the step is repeated alone, or not. */
inline answered(w, attempt) {
    if
    :: true -> skip
    :: true -> adopt(w, attempt, through, false, granted)
    :: granted = 0
    fi;
    if
    :: granted -> holds[w] = attempt; granted = 0
    :: else -> skip
    fi
}

proctype worker(byte w) {
    byte n, granted, through = w, claim;
    do
    :: n < ROUNDS ->
        n++;
        TOGETHER {
            before(TOKEN(w, n * 3 - 2));
            if
            :: true -> set_by_script(w, LEASE)
            :: true -> set_by_script(w, NEVER)
            fi;
            adopt(w, TOKEN(w, n * 3 - 2), through, true, granted)
        };
        answered(w, TOKEN(w, n * 3 - 2));
        if
        :: true ->
            TOGETHER {
                before(TOKEN(w, n * 3 - 1));
                delete_by_script(w);
                adopt(w, TOKEN(w, n * 3 - 1), through, true, granted)
            };
            answered(w, TOKEN(w, n * 3 - 1))
        :: true -> atomic { claim = holds[w]; holds[w] = 0 }; release(w, claim, through); claim = 0
        :: true -> through = through + WORKERS; holds[w] = 0; /* another proxy, which knows nothing */
            release(w, 0, through)
        :: skip /* it forgets, or loses interest */
        fi
    :: break
    od
}

init {
    atomic {
        byte w = 0;
        do
        :: w < WORKERS -> run worker(w); run renewals(w); w++
        :: else -> break
        od
    }
}
