/*
 * The lease protocol, for spin: two workers, each behind a proxy of its own, and one lock in Redis. A worker acquires
 * and releases (or is late, or dies); its proxy renews while it lives; the lease ends by the clock; a release may be
 * sent by somebody who holds nothing. Requests and replies get lost, and a proxy then sends the same script again with
 * the same token. Every step of Redis is a script, so it is atomic; everything between is not.
 *
 * Which step a command on a lock key is. check.sh compares this list with the table of locks/lock_command.c.
 *
 *   acquire   SETNX MSETNX MSETEX(NX) SET(NX, or IFNE and IFDNE with an expiry) SETEX PSETEX GETSET INCR INCRBY HSETNX
 *             HSET HMSET HINCRBY HINCRBYFLOAT HSETEX RPUSH RPUSHX LPUSH LPUSHX LINSERT
 *   release   DEL UNLINK GETDEL DELIFEQ DELEX DECR DECRBY HDEL HGETDEL LREM LPOP RPOP LMOVE RPOPLPUSH LMPOP BLPOP BRPOP
 *             BLMOVE BRPOPLPUSH BLMPOP LTRIM, and what removes or replaces whole keys: RENAME RENAMENX COPY BITOP MOVE
 *             RESTORE RESTORE_ASKING BITFIELD SUNIONSTORE SINTERSTORE SDIFFSTORE ZUNIONSTORE ZINTERSTORE ZDIFFSTORE
 *             ZRANGESTORE GEOSEARCHSTORE PFMERGE MSET SORT GEORADIUS GEORADIUSBYMEMBER MIGRATE
 *   extend    EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST GETEX HGETEX HEXPIRE HPEXPIRE HEXPIREAT HPEXPIREAT HPERSIST
 *             LSET, and SET with XX, IFEQ or IFDEQ
 *   none      GET EXISTS LRANGE LINDEX LLEN LPOS, and what writes inside a lease: APPEND SETRANGE SETBIT INCRBYFLOAT
 *
 * Commands that the table does not have (INCREX, GCRA) are no step: they pass as they came.
 *
 * Checked over all interleavings: S1, S2, S4, S5, and L1 as a bound on ticks.
 *
 *      spin -run -DNOCLAIM -m200000 lease.pml
 */
#define WORKERS  2
#define ROUNDS   2 /* acquisitions a worker */
#define LEASE    2 /* ticks */
#define TOKENS   (WORKERS * ROUNDS + 1) /* 0: none */
#define TOKEN(w, n) ((w) * ROUNDS + (n))

/* ---- Redis: the lock and its guard record ---- */
byte live;             /* token of the live lease, 0 free */
byte left;             /* ticks until it ends */
byte fence;            /* of the guard record, which outlives the lease */
byte released_by;      /* the attempt that released last, for its repeat */

/* ---- what really happened, for the checks ---- */
bool granted[TOKENS];  /* it was the live lease at some time */
bool ended[TOKENS];    /* it has ended; only a repeat of the attempt itself can make it live again */
byte newest;           /* the greatest fence that any lease has had */
bool dead[WORKERS];
byte renewing[WORKERS];/* the token of a renewal on its way, 0 none */
byte overdue;          /* ticks that a lease has lived without anybody who could renew it */

inline end_lease() {
    ended[live] = true;
    live = 0;
    left = 0
}

/* acquire.lua. A repeat finds itself done, unless its lease has ended meanwhile: then it is an attempt like others. */
inline acquire(token, result) {
    atomic {
        if
        :: live == 0 ->
            assert(!granted[token] || ended[token]);
            live = token; left = LEASE; fence++;
            granted[token] = true; ended[token] = false;
            assert(fence > newest); newest = fence; /* S2 */
            result = 1
        :: live == token -> result = 1
        :: else -> result = 0
        fi
    }
}

/* release.lua: the claim's token has to be the live lease's. `attempt` identifies this very release. */
inline release(claim, attempt, result) {
    atomic {
        if
        :: live != 0 && live == claim ->
            end_lease(); released_by = attempt; result = 1
        :: live != claim && released_by == attempt -> result = 1
        :: else -> result = 0 /* S4: nothing changes */
        fi
    }
}

/* renew.lua, and EXPIRE by the holder. */
inline extend(claim) {
    atomic {
        if
        :: live != 0 && live == claim -> left = LEASE; overdue = 0
        :: else -> skip
        fi
    }
}

/* ---- the clock ---- */
#define NOBODY_RENEWS(w) (dead[w] && renewing[w] == 0)

active proctype clock() {
end_clock:
    do
    :: atomic {
        live != 0 && left > 0 -> left--;
        if
        :: NOBODY_RENEWS((live - 1) / ROUNDS) -> overdue++
        :: else -> overdue = 0
        fi;
        assert(overdue <= LEASE); /* L1: the lease of an owner that is gone ends within its time */
        if
        :: left == 0 -> end_lease(); overdue = 0
        :: else -> skip
        fi
    }
    od
}

/* ---- a proxy renews for its worker ---- */
byte holds[WORKERS]; /* the claim that proxy w has for its worker, 0 none */

proctype renewals(byte w) {
    do
    :: atomic { holds[w] != 0 && !dead[w] -> renewing[w] = holds[w] };
        if
        :: true -> extend(renewing[w]) /* the request arrives, now or much later */
        :: skip                /* or is lost */
        fi;
        renewing[w] = 0
    :: dead[w] -> break
    od
}

/* ---- a worker and its proxy ---- */
proctype worker(byte w) {
    byte n, token, result, before;
    bool told;
    do
    :: n < ROUNDS ->
        n++;
        token = TOKEN(w, n);
        told = false;
        /* SETNX. The request or its reply may be lost once each; the script is repeated with its token. */
        if
        :: true -> acquire(token, result) ; told = true
        :: true -> acquire(token, result) ; acquire(token, result) ; told = true /* reply lost */
        :: true -> acquire(token, result) ; result = 0                           /* lost for good: unknown, not told */
        :: result = 0                                                    /* never arrived */
        fi;
        if
        :: told && result ->
            assert(granted[token]); /* S5 */
            holds[w] = token
        :: else -> skip
        fi;
        /* DEL: by the holder, late, or by one that holds nothing; the proxy speaks for its claim, or for none. */
        if
        :: skip /* the worker forgets it, or will die with it */
        /* DELIFEQ, DELEX: the comparison fails. The server says no, and the claim of a lease that is over is spent. */
        :: atomic { holds[w] != 0 && live != holds[w] -> holds[w] = 0 }
        :: atomic { before = live; token = holds[w]; holds[w] = 0 };
            release(token, TOKEN(w, n), result);
            /* S1: whoever else held the lock still does, as far as this command is concerned. */
            assert(result == 0 || token != 0);
            if
            :: true -> release(token, TOKEN(w, n), result) /* reply lost: repeated */
            :: skip
            fi
        fi
    :: atomic { !dead[w] -> dead[w] = true; holds[w] = 0 }; break /* dies, or has nothing to do any more */
    od
}

/* Only the clock and a release call end_lease: that is S1, as long as releases speak for their own claims. */
init {
    atomic {
        byte w = 0;
        do
        :: w < WORKERS -> run worker(w); run renewals(w); w++
        :: else -> break
        od
    }
}
