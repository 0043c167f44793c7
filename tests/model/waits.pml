/*
 * Attempts that wait at two proxies for one lock (docs/locks.md, "Waiting"), for spin. A session asks, waits in its proxy's
 * queue, holds and releases. Redis grants: the script finds the lock free. A proxy sends the attempt of its first session
 * when that session comes, each LOOK ticks, behind a release that it sees, and when a message says that it is its turn. The
 * guard record says for each proxy since when its longest wait lasts (`mark`). A proxy that knows of a longer wait elsewhere
 * sends nothing behind a release for PAUSE ticks.
 *
 * Any message, attempt, answer or answer to a release may be lost; an attempt without an answer is repeated. A lease may end by
 * the clock, also before its holder has heard of it. A client may leave at any moment: what was granted to it is given back. One
 * proxy may stop at any moment: its sessions release nothing, and its mark stays until its time is over. A trip to Redis
 * takes less than a tick, and a message that takes longer is lost. The pause always has its first length.
 *
 * Checked over all interleavings:
 *   - never two holders;
 *   - a lock that is free while a session waits at a proxy that runs is taken within LOOK ticks, whatever is lost;
 *   - a session that has waited longer is passed only by a newcomer, by an attempt whose look or pause is over, by a proxy that
 *     was told that it is its turn, and by a proxy that has not heard of the longer wait yet.
 */
#define PROXIES 2
#define SESSIONS 3                 /* session s is at proxy s % PROXIES */
#define LOOK 2                     /* ticks */
#define PAUSE 1
#define MARK 3                     /* ticks for which a mark is believed */
#define NEVER 9
#define YIELDS(p) (elsewhere[p] != 0 && elsewhere[p] < came[first])

mtype = { NO, NEWCOMER, DUE, TOLD, BEHIND };                /* why an attempt was sent */
mtype:state = { AWAY, WAITS, HOLDS, DONE };
mtype:way = { NONE, SENT, GRANTED, HELD };              /* an attempt on its way, and what its answer says */

/* ---- Redis ---- */
byte lock;                         /* session + 1; 0 free */
byte mark[PROXIES], until[PROXIES];/* when its longest wait began, 0 none; ticks for which that is believed */
bool message[PROXIES];             /* on its way to the proxy */

/* ---- proxies ---- */
bool stopped[PROXIES], gone[PROXIES];
mtype called[PROXIES];             /* it has seen a release (BEHIND), or was told of one (TOLD) */
byte elsewhere[PROXIES];           /* since when a session waits elsewhere, as the proxy knows; 0 none */
byte said[PROXIES];                /* the same in the answer on its way */
byte look[PROXIES];
byte trying[PROXIES];
mtype why[PROXIES];
mtype:way way[PROXIES];
mtype:state is[SESSIONS];
byte came[SESSIONS + 1];           /* in which order the sessions came */
byte arrivals;

/* ---- what really is, for the checks ---- */
byte holder;                       /* session + 1, until its own release or the end of its lease */
bool turn[PROXIES];                /* it was the proxy's turn when the message was sent */
byte free[PROXIES];                /* for how many ticks a session of the proxy has waited for a lock that is free */

hidden byte first, next, i, oldest;

#define NOBODY SESSIONS

/* The first session of a proxy's queue, and the one behind it. */
inline queue(p) {
    first = NOBODY; next = NOBODY; i = p;
    do
    :: i < SESSIONS ->
        if
        :: is[i] == WAITS && (first == NOBODY || came[i] < came[first]) -> next = first; first = i
        :: is[i] == WAITS && first != NOBODY && came[i] > came[first] && (next == NOBODY || came[i] < came[next]) -> next = i
        :: else -> skip
        fi;
        i = i + PROXIES
    :: else -> break
    od
}

/* waits.lua: notes the wait of session s (NOBODY: none waits), and finds the longest one elsewhere. */
inline note(p, s) {
    oldest = 0; i = 0;
    do
    :: i < PROXIES ->
        if
        :: i != p && until[i] == 0 -> mark[i] = 0
        :: i != p && mark[i] != 0 && (oldest == 0 || mark[i] < oldest) -> oldest = mark[i]
        :: else -> skip
        fi;
        i++
    :: else -> break
    od;
    mark[p] = came[s];
    until[p] = (s == NOBODY -> 0 : MARK)
}

inline send(p, s, reason) {
    trying[p] = s; why[p] = reason; way[p] = SENT
}

/* release.lua and tell.lua, by the token of session s, and the answer. */
inline release(p, s) {
    if
    :: lock == s + 1 ->
        lock = 0;
        holder = (holder == s + 1 -> 0 : holder);
        queue(p);
        if
        :: first != NOBODY && YIELDS(p) -> note(p, first)
        :: else -> skip
        fi;
        oldest = NOBODY; i = 0;
        do
        :: i < PROXIES ->
            if
            :: mark[i] != 0 && (oldest == NOBODY || mark[i] < mark[oldest]) -> oldest = i
            :: else -> skip
            fi;
            i++
        :: else -> break
        od;
        if
        :: oldest != NOBODY && oldest != p && !stopped[oldest] -> message[oldest] = true; turn[oldest] = true
        :: skip /* it is lost, or there is none */
        fi;
        if
        :: called[p] = (called[p] == NO && first != NOBODY -> BEHIND : called[p])
        :: skip /* its answer is lost */
        fi
    :: else -> skip
    fi
}

proctype Proxy(byte p) {
    byte s;
end:
    do
    :: stopped[p] -> break
    :: atomic { !stopped[0] && !stopped[1] -> stopped[p] = true; trying[p] = NOBODY; way[p] = NONE; why[p] = NO; called[p] = NO; message[p] = false;
        elsewhere[p] = 0; said[p] = 0; look[p] = NEVER; gone[p] = false; turn[p] = false; free[p] = 0 }
    :: atomic { /* a session comes */
        !stopped[p] ->
        s = p;
        do
        :: s < SESSIONS && is[s] != AWAY -> s = s + PROXIES
        :: else -> break
        od;
        if
        :: s < SESSIONS ->
            queue(p);
            arrivals++; came[s] = arrivals; is[s] = WAITS;
            if
            :: first == NOBODY && trying[p] == NOBODY -> send(p, s, NEWCOMER); free[p] = 0
            :: else -> skip
            fi
        :: else -> skip
        fi;
        s = 0
       }
    :: atomic { /* its look is due */
        !stopped[p] && trying[p] == NOBODY && look[p] == 0 ->
        queue(p);
        look[p] = NEVER;
        if
        :: first != NOBODY -> send(p, first, DUE)
        :: else -> skip
        fi
       }
    :: atomic { /* a release was seen, or told */
        !stopped[p] && trying[p] == NOBODY && called[p] != NO ->
        queue(p);
        if
        :: first != NOBODY && YIELDS(p) -> look[p] = (look[p] > PAUSE -> PAUSE : look[p])
        :: first != NOBODY && !YIELDS(p) -> send(p, first, called[p])
        :: else -> skip
        fi;
        called[p] = NO
       }
    :: atomic { /* a message */
        !stopped[p] && message[p] ->
        message[p] = false;
        queue(p);
        if
        :: first != NOBODY -> elsewhere[p] = 0; called[p] = TOLD
        :: else -> turn[p] = false
        fi
       }
    :: atomic { /* the attempt arrives */
        !stopped[p] && way[p] == SENT ->
        s = trying[p];
        queue(p);
        if
        :: lock == 0 || lock == s + 1 ->
            next = (gone[p] -> first : next); /* the session that leaves is in the queue no more */
            note(p, next);
            if
            :: lock == 0 ->
                assert(holder == 0);
                assert(!(oldest != 0 && oldest < came[s]) || why[p] == NEWCOMER || why[p] == DUE ||
                       (why[p] == TOLD && turn[p]) || (why[p] == BEHIND && oldest != elsewhere[p]));
                holder = s + 1;
                lock = s + 1;
                free[0] = 0; free[1] = 0
            :: else -> skip /* it is repeated */
            fi;
            way[p] = GRANTED
        :: else -> note(p, first); way[p] = HELD
        fi;
        said[p] = oldest;
        s = 0
       }
    :: atomic { !stopped[p] && (way[p] == GRANTED || way[p] == HELD) -> way[p] = SENT; said[p] = 0 } /* its answer is lost */
    :: atomic { /* its answer arrives */
        !stopped[p] && (way[p] == GRANTED || way[p] == HELD) ->
        s = trying[p];
        if
        :: way[p] == GRANTED && gone[p] -> release(p, s)
        :: way[p] == GRANTED && !gone[p] -> is[s] = HOLDS
        :: else -> skip
        fi;
        queue(p);
        look[p] = (first == NOBODY -> NEVER : LOOK);
        elsewhere[p] = (first == NOBODY -> 0 : said[p]);
        trying[p] = NOBODY; way[p] = NONE; why[p] = NO; gone[p] = false; said[p] = 0;
        turn[p] = (turn[p] && (message[p] || called[p] == TOLD));
        s = 0
       }
    :: atomic { /* a session releases, or its client leaves */
        !stopped[p] ->
        s = p;
        do
        :: s < SESSIONS && (is[s] == HOLDS || is[s] == WAITS) -> break
        :: s < SESSIONS -> s = s + PROXIES
        :: s >= SESSIONS -> break
        od;
        if
        :: s < SESSIONS && is[s] == HOLDS -> is[s] = DONE; came[s] = 0; release(p, s)
        :: s < SESSIONS && is[s] == WAITS ->
            is[s] = DONE;
            came[s] = 0;
            gone[p] = (gone[p] || trying[p] == s);
            queue(p);
            free[p] = (first == NOBODY -> 0 : free[p]);
            elsewhere[p] = (first == NOBODY -> 0 : elsewhere[p]);
            look[p] = (first == NOBODY -> NEVER : look[p]) /* of the queue, not of the session that leaves */
        :: else -> skip
        fi;
        s = 0
       }
    od
}

#define QUIET(p) (stopped[p] || (trying[p] == NOBODY && called[p] == NO && look[p] != 0 && !message[p]))

active proctype Clock() {
    byte p;
end:
    do
    :: atomic {
        QUIET(0) && QUIET(1) ->
        p = 0;
        do
        :: p < PROXIES ->
            queue(p);
            if
            :: first != NOBODY && !stopped[p] ->
                look[p] = (look[p] == NEVER -> NEVER : look[p] - 1);
                free[p] = (lock == 0 -> free[p] + 1 : 0);
                assert(free[p] <= LOOK)
            :: else -> free[p] = 0
            fi;
            until[p] = (until[p] > 0 -> until[p] - 1 : 0);
            p++
        :: else -> break
        od;
        p = 0
       }
    :: atomic { lock != 0 -> lock = 0; holder = 0 } /* the end of a lease */
    od
}

init {
    atomic {
        byte p;
        do
        :: p < PROXIES -> trying[p] = NOBODY; way[p] = NONE; why[p] = NO; called[p] = NO; look[p] = NEVER; p++
        :: else -> break
        od;
        p = 0;
        do
        :: p < SESSIONS -> is[p] = AWAY; p++
        :: else -> break
        od;
        p = 0;
        run Proxy(0); run Proxy(1)
    }
}
