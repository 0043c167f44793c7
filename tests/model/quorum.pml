/*
 * A lock under `quorum yes` (docs/quorum.md): Redis grants, and three witnesses confirm. Each worker makes one attempt, with a
 * token of its own, and works if Redis and a majority of the witnesses have granted it.
 *
 * Redis promises nothing here. A failover brings back what a replica had, as often as FAILOVERS says, and a lock may lapse
 * at any moment, since an extension was forgotten. Any message to a witness, and any answer, may be lost. A witness gives a
 * record up by its own time only when the lease is over, unless more than a majority has it: an extension needs no more. The
 * last witness may lose all that it knows, once.
 *
 * Another proxy may go on with the first worker's lease, under another token (MOVED): Redis moves the lock to that token if it is
 * still the lease's, and a witness that has the token before it takes the other one. If a majority does not, the lease is not
 * renewed, and the work ends.
 *
 * The time of an attempt is limited: if a promise ends before the attempt is over, the attempt is late, and comes to nothing.
 *
 * CHANGE: a reload puts the newcomer in the place of the last witness, at one proxy and later at the other one; the first proxy
 * serves the first worker. A question ends with the witnesses that it began with. The newcomer may note a lease, but does not
 * vote until both proxies have changed and all leases from before are over. To take a witness away, or to add one, is less.
 *
 * Redis gives the lock away at any moment, so a failover adds little then: check.sh leaves both out: it, and the witness that forgets.
 *
 * S8: never two workers at work.
 */
#define WORKERS 2
#define MOVED (WORKERS + 1)
#define LEASE(token) (token == MOVED -> 1 : token)
#define WITNESSES 3
#define NEWCOMER 3 /* the one behind them */
#define MAJORITY 2
#define FAILOVERS 1
#define AMNESIAS 1
#define QUARANTINE true
#define CHANGE false
#define SETTLED (changed[0] && changed[1] && at_work == 0)
#define LAPSE skip            /* what Redis notes of a lock that lapses: nothing */
#define FORGETS 2             /* this witness */
#define PROXY(token) (token == 1 -> 0 : 1)
#define IT (new && at == FORGETS -> NEWCOMER : at) /* the witness at this place, as the proxy names them */

byte lock, noted;               /* at Redis: the live token; the token of the last release, in the guard record */
byte old_lock, old_noted;       /* the same at a replica, which follows late */
byte record[WITNESSES + 1];     /* at a witness: the token that it keeps others out for; 0 none */
bool resting;                   /* the witness that forgets is in quarantine */
bool changed[2], votes_now;     /* proxies that were reloaded; the newcomer votes */
bool under[MOVED + 1];          /* the lease was last confirmed by the witnesses behind the change */
bool works[MOVED + 1], asks[MOVED + 1], late[MOVED + 1];
byte failovers, forgotten, at_work;

inline count(token, n) { /* the votes that the lease rests on */
    n = (LEASE(record[0]) == token) + (LEASE(record[1]) == token) +
        (under[token] -> votes_now && LEASE(record[NEWCOMER]) == token : LEASE(record[FORGETS]) == token)
}

proctype Worker(byte token) {
    byte me = token, at, votes, over, named;
    bool again, new;

    atomic { /* the attempt at Redis */
        if
        :: lock == 0 -> lock = token; asks[token] = true
        :: else -> goto over_and_out
        fi
    }
ask:
    new = changed[PROXY(me)];
    do
    :: at < WITNESSES ->
        atomic {
            if
            :: IT == FORGETS && resting -> skip
            :: (IT != FORGETS || !resting) && (record[IT] == 0 || record[IT] == me || (over != 0 && record[IT] == over)) ->
                record[IT] = me;
                if
                :: IT != NEWCOMER || votes_now -> votes++
                :: skip /* its answer is lost */
                fi
            :: (IT != FORGETS || !resting) && record[IT] != 0 && record[IT] != me -> named = record[IT]
            :: skip /* the question is lost */
            fi;
            at++
        }
    :: else -> break
    od;
    atomic {
        if
        :: votes >= MAJORITY && !late[me] ->
            asks[me] = false;
            under[token] = new;
            new = false;
            if
            :: me == token -> works[token] = true; at_work++
            :: else -> skip /* it goes on */
            fi;
            assert(at_work <= 1); /* S8 */
            at = 0;
            votes = 0;
            over = 0;
            named = 0;
            again = false
        :: votes < MAJORITY && me == token && !again && named != 0 && named == noted -> /* Redis notes that this one was released */
            over = named;
            named = 0;
            again = true;
            at = 0;
            votes = 0;
            goto ask
        :: else ->
            asks[me] = false;
            late[me] = false;
            new = false;
            at = 0;
            votes = 0;
            over = 0;
            named = 0;
            again = false;
            if
            :: me == token -> goto give_back
            :: else -> works[token] = false; under[token] = false; at_work--; goto over_and_out
            fi
        fi
    };
    atomic { /* another proxy goes on with it */
        if
        :: token == 1 && me == token && lock == token -> lock = MOVED; me = MOVED; asks[me] = true; over = token; goto ask
        :: true -> skip
        fi
    };
    atomic { /* the end of the work: a release, or the end of the lease */
        works[token] = false;
        under[token] = false;
        at_work--;
        if
        :: true -> skip
        :: true -> goto over_and_out
        fi
    };
give_back:
    atomic {
        new = changed[PROXY(me)];
        if
        :: lock == me -> lock = 0; noted = me
        :: else -> skip /* forgotten: the witnesses hear of the release all the same */
        fi
    };
    do
    :: at < WITNESSES ->
        atomic {
            if
            :: record[IT] == me -> record[IT] = 0
            :: skip /* the message is lost, or there is nothing to give back */
            fi;
            at++
        }
    :: else -> break
    od;
    at = 0;
    new = false;
over_and_out:
    skip
}

active proctype World() {
    byte at, n;
end:
    do
    :: atomic { failovers < FAILOVERS && (old_lock != lock || old_noted != noted) -> old_lock = lock; old_noted = noted }
    :: atomic { failovers < FAILOVERS -> failovers++; lock = old_lock; noted = old_noted }
    :: atomic { lock != 0 -> LAPSE; lock = 0 }
    :: atomic { /* a witness's promise ends */
        if
        :: at = 0
        :: at = 1
        :: at = 2
        :: CHANGE -> at = NEWCOMER
        fi;
        count(LEASE(record[at]), n); /* a promise is never made shorter: another token leaves its end */
        if
        :: record[at] != 0 && (!works[LEASE(record[at])] || n > MAJORITY || at == (under[LEASE(record[at])] -> FORGETS : NEWCOMER)) ->
            late[record[at]] = asks[record[at]];
            record[at] = 0
        :: else -> skip
        fi;
        at = 0;
        n = 0
       }
    :: atomic { forgotten < AMNESIAS -> forgotten++; record[FORGETS] = 0; resting = QUARANTINE }
    :: atomic { /* all that was promised before is over */
        resting && at_work == 0 ->
        at = 1;
        do
        :: at <= MOVED -> late[at] = asks[at]; at++
        :: else -> break
        od;
        at = 0;
        resting = false
       }
    :: atomic { CHANGE && !changed[0] -> changed[0] = true }
    :: atomic { CHANGE && !changed[1] -> changed[1] = true }
    :: atomic { /* all that was promised before the change is over */
        CHANGE && !votes_now && SETTLED ->
        at = 1;
        do
        :: at <= MOVED -> late[at] = asks[at]; at++
        :: else -> break
        od;
        at = 0;
        votes_now = true
       }
    od
}

init {
    atomic { run Worker(1); run Worker(2) }
}
