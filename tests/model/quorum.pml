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
 * S8: never two workers at work.
 */
#define WORKERS 2
#define MOVED (WORKERS + 1)
#define LEASE(token) (token == MOVED -> 1 : token)
#define WITNESSES 3
#define MAJORITY 2
#define FAILOVERS 1
#define QUARANTINE true
#define LAPSE skip            /* what Redis notes of a lock that lapses: nothing */
#define FORGETS (WITNESSES - 1) /* this witness */

byte lock, noted;               /* at Redis: the live token; the token of the last release, in the guard record */
byte old_lock, old_noted;       /* the same at a replica, which follows late */
byte record[WITNESSES];         /* at a witness: the token that it keeps others out for; 0 none */
bool resting;                   /* the witness that forgets is in quarantine */
bool works[MOVED + 1], asks[MOVED + 1], late[MOVED + 1];
byte failovers, forgotten, at_work;

inline count(token, n) {
    n = (LEASE(record[0]) == token) + (LEASE(record[1]) == token) + (LEASE(record[2]) == token)
}

proctype Worker(byte token) {
    byte me = token, at, votes, over, named;
    bool again;

    atomic { /* the attempt at Redis */
        if
        :: lock == 0 -> lock = token; asks[token] = true
        :: else -> goto over_and_out
        fi
    }
ask:
    do
    :: at < WITNESSES ->
        atomic {
            if
            :: at == FORGETS && resting -> skip
            :: (at != FORGETS || !resting) && (record[at] == 0 || record[at] == me || (over != 0 && record[at] == over)) ->
                record[at] = me;
                if
                :: votes++
                :: skip /* its answer is lost */
                fi
            :: (at != FORGETS || !resting) && record[at] != 0 && record[at] != me -> named = record[at]
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
            at = 0;
            votes = 0;
            over = 0;
            named = 0;
            again = false;
            if
            :: me == token -> goto give_back
            :: else -> works[token] = false; at_work--; goto over_and_out
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
        at_work--;
        if
        :: true -> skip
        :: true -> goto over_and_out
        fi
    };
give_back:
    atomic {
        if
        :: lock == me -> lock = 0; noted = me
        :: else -> skip /* forgotten: the witnesses hear of the release all the same */
        fi
    };
    do
    :: at < WITNESSES ->
        atomic {
            if
            :: record[at] == me -> record[at] = 0
            :: skip /* the message is lost, or there is nothing to give back */
            fi;
            at++
        }
    :: else -> break
    od;
    at = 0;
over_and_out:
    skip
}

active proctype World() {
    byte at, n;
end:
    do
    :: atomic { old_lock != lock || old_noted != noted -> old_lock = lock; old_noted = noted }
    :: atomic { failovers < FAILOVERS -> failovers++; lock = old_lock; noted = old_noted }
    :: atomic { lock != 0 -> LAPSE; lock = 0 }
    :: atomic { /* a witness's promise ends */
        if
        :: at = 0
        :: at = 1
        :: at = 2
        fi;
        count(LEASE(record[at]), n); /* a promise is never made shorter: another token leaves its end */
        if
        :: record[at] != 0 && (!works[LEASE(record[at])] || n > MAJORITY) ->
            late[record[at]] = asks[record[at]];
            record[at] = 0
        :: else -> skip
        fi;
        at = 0;
        n = 0
       }
    :: atomic { forgotten == 0 -> forgotten++; record[FORGETS] = 0; resting = QUARANTINE }
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
    od
}

init {
    atomic { run Worker(1); run Worker(2) }
}
