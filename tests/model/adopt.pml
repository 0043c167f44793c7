/*
 * Adoption, for spin: locks that no script of ours has made. Two workers set and delete one lock by scripts of their own,
 * each behind a proxy; adopt.lua runs right behind such a script, and yet others come between the two, or it is lost with
 * its proxy. What it has adopted is renewed, expires, and is released by a plain DEL, on time or late, through the same
 * proxy or through another one that only knows the worker's name. Somebody goes around the proxies and overwrites
 * whatever is there.
 *
 * Checked over all interleavings: S1, S3, S5, and that what was adopted has an end (L1). A value is its worker's own,
 * the same every time.
 *
 *      spin -run -DNOCLAIM -m200000 adopt.pml
 */
#define WORKERS  2
#define ROUNDS   2 /* acquisitions a worker */
#define LEASE    1 /* ticks */
#define NEVER    2
#define OUTSIDE  (WORKERS + 1) /* the value of the one who goes around */
#define MINE(w)  ((w) + 1)
#define TOKEN(w, n) ((w) * ROUNDS * 3 + (n))
#define WHOSE(token) (((token) - 1) / (ROUNDS * 3))

/* ---- Redis: the lock and its guard record ---- */
byte value;            /* what the lock holds, 0 free */
byte left;             /* ticks until it ends */
byte token;            /* the guard record's, 0 none */
byte held;             /* the value that it was for */
byte identity;         /* whose, as a name */
byte proxy;            /* through which proxy */

byte writer;           /* who wrote the value in truth, for the checks; 0 nobody's worker */

#define LIVE (token != 0 && value != 0 && held == value)
#define ENDS (!LIVE || left != NEVER) /* L1 */

/* ---- the applications' scripts ---- */

/* SET NX, with an expiry or without. */
inline set_by_script(w, ticks) {
    atomic {
        if
        :: value == 0 -> value = MINE(w); writer = w + 1; left = ticks
        :: else -> skip
        fi
    }
}

inline delete_by_script(w) {
    atomic {
        if
        :: value == MINE(w) -> value = 0; writer = 0; left = 0
        :: else -> skip
        fi
    }
}

/* ---- our scripts ---- */

/* adopt.lua, behind a script of worker w's whose argument was its value. */
inline adopt(w, attempt, through, result) {
    atomic {
        result = 0;
        if
        :: LIVE ->
            result = (token == attempt); /* repeated */
            if
            :: left == NEVER -> left = LEASE
            :: else -> skip
            fi
        :: !LIVE && value == MINE(w) ->
            token = attempt; held = value; identity = w; proxy = through;
            if
            :: left == NEVER -> left = LEASE
            :: else -> skip
            fi;
            result = 1
        :: else -> token = 0 /* what it was for has ended */
        fi;
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
        :: left == 0 -> value = 0; writer = 0
        :: else -> skip
        fi
    }
    od
}

active proctype outside() {
end_outside:
    atomic { value = OUTSIDE; writer = 0; left = LEASE }
}

/* ---- a worker, and its proxy ---- */
byte holds[WORKERS]; /* the claim that its proxy has for it, 0 none */

proctype renewals(byte w) {
    byte claim;
end_renewals:
    atomic { holds[w] != 0 -> claim = holds[w] };
    renew(claim) /* now or much later */
}

/* Its proxy sends the step: it arrives, perhaps twice, or never. */
inline step(w, attempt) {
    if
    :: true -> adopt(w, attempt, through, granted)
    :: true -> adopt(w, attempt, through, granted); adopt(w, attempt, through, granted)
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
        if
        :: true -> set_by_script(w, LEASE)
        :: true -> set_by_script(w, NEVER)
        fi;
        step(w, TOKEN(w, n * 3 - 2));
        if
        :: true -> delete_by_script(w); step(w, TOKEN(w, n * 3 - 1))
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
