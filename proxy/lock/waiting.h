/*
 * Who waits for which lock: a queue for each name, over all threads, first come, first served.
 *
 *      attempt, refused ── waiting_join ──> queue ──┬─ waiting_freed, _handover: a release ──> mailbox of the
 *      newcomer ── waiting_join_behind ──> queue ───┘                                          first one's thread
 *                                                                                                  │
 *      granted: waiting_leave <── the first one's attempt <── waiting_next <───────────────────────┘
 *      refused: waiting_refused, it keeps its place
 *
 * It decides who asks, and when; who gets the lock is Redis's word. A waiter whose time is over leaves its place behind
 * for a while, and takes it again if it comes back: nobody waits for a place without a waiter.
 *
 * Knows no clock, no sockets and no sessions: times come in, and threads are told through a callback. Every function
 * may be called from any thread, for its own waiters.
 */
#ifndef LOCKKEEPER_LOCK_WAITING_H
#define LOCKKEEPER_LOCK_WAITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/base/text.h"
#include "proxy/lock/engine.h"

struct waiting;
struct waiting_queue; /* private */

/* An attempt that waits. Embedded in what the caller has for it; zeroed, then its first part set, before it joins. */
struct waiter {
    uint64_t session; /* who waits; its place is kept for it */
    uint64_t place;   /* in the order of arrival; a kept one is taken instead */
    uint64_t way;     /* equal for those whose requests go to Redis in the order in which they are sent */
    unsigned thread;
    uint8_t yields_ms;         /* waiting_next: somebody at another proxy has waited longer, and tries first: so long it
                                  waits for that; 0: there is nobody */
    bool called, mailed, last; /* private */
    int64_t since_ms;
    const char *who; /* for people; borrowed while it waits */
    uint64_t fence;  /* of the lease that it has got, before it leaves with WAIT_GRANTED; 0 not known */
    int64_t look_ms; /* waiting_next: when it is to try if nothing happens before, as waiting_look has said; 0: nobody
                        has */
    /* Private, but for `queue`: NULL while it does not wait. */
    struct waiting_queue *queue;
    struct list_node link, mail;
    struct table_link by_session;
    uint64_t joined, attempt;
};

/* Makes the queues for so many threads. `wake` is called, from any thread and with the queues locked, when there is
 * mail for a thread: it must only take a note. */
struct waiting *waiting_new(unsigned threads, void (*wake)(void *arg, unsigned thread), void *arg);
void waiting_free(struct waiting *t);

/* ---- waiters ------------------------------------------------------------------------------------------- */

/* Has a newcomer wait behind others, without having asked Redis. False: nobody waits who came before it, and it is to
 * ask. `hash` is the key's, equal for equal keys. */
bool waiting_join_behind(struct waiting *t, const struct lock_key *key, uint64_t hash, struct waiter *w,
                         int64_t now_ms);
/* Has a waiter join whose attempt a lease with this fence has refused. */
enum waiting_joined {
    JOINED_BEHIND, /* somebody is before it */
    JOINED_FIRST,  /* it is to try from time to time */
    JOINED_FREED   /* likewise, and it is known that the lease has been released since: it tries now */
};
enum waiting_joined waiting_join(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence,
                                 struct waiter *w, int64_t now_ms);
/* Whether the waiter may try by itself, since it is the first one and none of its queue does. If so, it is trying. */
bool waiting_try(struct waiting *t, struct waiter *w);
/* Lets a waiter try whatever its place is, as the last thing it does: it leaves with the answer. It is not called any
 * more, and its place is the next one's. */
void waiting_try_last(struct waiting *t, struct waiter *w);
/* The waiter of a session, NULL: it does not wait; and for which lock, borrowed while it does. */
struct waiter *waiting_find(struct waiting *t, uint64_t session);
const struct lock_key *waiting_key(const struct waiter *w);
/* For how long the next one behind a waiter has waited; -1: there is none. */
int64_t waiting_behind(struct waiting *t, const struct waiter *w, int64_t now_ms);
/* An attempt's answer tells since when somebody waits for the lock at another proxy; WAITING_NOBODY: nobody does, as
 * far as is known. */
#define WAITING_NOBODY INT64_MAX
void waiting_elsewhere(struct waiting *t, struct waiter *w, int64_t since_ms);
/* Another proxy tells that the lock has been released, and that it is this one's turn: the first waiter tries, if it is
 * this thread's. */
void waiting_told(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread);
/* A waiter's attempt was refused by the lease with this fence. Returns whether it tries once more, since a release has
 * been seen meanwhile. */
bool waiting_refused(struct waiting *t, struct waiter *w, uint64_t fence);
/* Notes when the first waiter is to try if nothing happens before. Whoever takes its place until then keeps to it, so
 * that a lock is looked at as often where the first ones' times end one after the other. */
void waiting_look(struct waiting *t, struct waiter *w, int64_t look_ms);
/* Whether the lock was held at a moment since the waiter came, by what others' attempts have found: so it may be
 * refused without having asked. *fence: of the lease that was met last, 0 not known. */
bool waiting_proves(struct waiting *t, const struct waiter *w, uint64_t *fence);

enum waiting_end {
    WAIT_GRANTED, /* it has the lock */
    WAIT_OVER,    /* its time is over: its place is kept for keep_ms */
    WAIT_GONE,    /* its client has left, or has been answered otherwise: the next one tries */
};
/* Takes a waiter out of its queue. The one behind it is told. */
void waiting_leave(struct waiting *t, struct waiter *w, enum waiting_end end, int64_t keep_ms, int64_t now_ms);

/* ---- releases ------------------------------------------------------------------------------------------ */

/* A release of the lock is being sent this way by this thread: the first waiter is called to try right behind it, if
 * it is the same thread's and goes the same way. Returns whether it is. If it leaves the lock to somebody who has
 * waited longer at another proxy, *left_ms says for how long it has waited itself; else it is as it was. May be NULL.
 */
bool waiting_handover(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread, uint64_t way,
                      int64_t now_ms, int64_t *left_ms);
/* The lock was found free: the lease with this fence (0: not known) and those before it are over. The first waiter is
 * called. `handed`: this was seen coming (waiting_handover), and whoever tries now does so behind the release. */
void waiting_freed(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence, bool handed);
/* The next waiter of the thread that is called, or NULL. *tries: it is trying from now on, else it has become the
 * first one and looks after itself; it does so soon if it yields. */
struct waiter *waiting_next(struct waiting *t, unsigned thread, bool *tries);

/* ---- circles ------------------------------------------------------------------------------------------- */

/* Sessions that wait for each other's locks in a circle wait for ever. Finds the circle that a session is in which has
 * joined: who holds what each waits for is asked of the engine. Writes it as text, "WHO waits for KEY since N ms, held
 * by WHO, ...". Returns whether there is one. */
bool waiting_circle(struct waiting *t, struct lock_engine *e, uint64_t session, int64_t now_ms, struct text *out);

/* ---- looking in ---------------------------------------------------------------------------------------- */

struct waiting_view {
    struct lock_key key;
    size_t count;     /* who waits for it now */
    int64_t since_ms; /* the one who has waited longest */
};
/* How many wait, of all locks. */
size_t waiting_count(const struct waiting *t);
/* Who waits for one lock; count 0: nobody. */
struct waiting_view waiting_of(struct waiting *t, const struct lock_key *key, uint64_t hash);
/* Writes who waits for one lock, in their order, "WHO since N ms; ...", so many at most. */
void waiting_who(struct waiting *t, const struct lock_key *key, uint64_t hash, size_t max, int64_t now_ms,
                 struct text *out);
/* Calls fn for each lock that somebody waits for, in no order; fn must not call these functions. */
void waiting_each(struct waiting *t, void (*fn)(void *arg, const struct waiting_view *v), void *arg);

#endif
