/*
 * Sessions that wait for locks: a queue for each lock, over all threads, first come, first served.
 *
 *      attempt, refused ── waiting_join ──> queue ──┬─ waiting_freed, _handover: a release ──> mailbox of the
 *      newcomer ── waiting_join_behind ──> queue ───┘                                          first one's thread
 *                                                                                                  │
 *      granted: waiting_leave <── the first one's attempt <── waiting_next <───────────────────────┘
 *      refused: waiting_refused, it keeps its place
 *
 * The queue decides which session asks Redis, and when; Redis decides which session gets the lock. A waiter whose time
 * is over leaves its place behind for a while, and its session takes it again if it comes back.
 *
 * Knows no clock, no sockets and no sessions: times come in, and threads are told through a callback. Every function
 * may be called from any thread, for its own waiters.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/base/text.h"
#include "proxy/lock/engine.h"

struct waiting;
struct waiting_queue; /* private */

/* An attempt that waits. Embedded in a struct of the caller's. Before it joins, the caller zeroes it and sets its first
 * fields. */
struct waiter {
    uint64_t session; /* that waits; its place is kept for it */
    uint64_t place;   /* in the order of arrival; a place that is kept for the session replaces it */
    uint64_t way;     /* equal for waiters whose requests reach Redis in the order in which they are sent */
    unsigned thread;
    uint8_t yields_ms; /* waiting_next: a waiter at another proxy has waited longer, and tries first: this waiter waits
                        * so long for it; 0: it need not */
    bool called, mailed, last; /* private */
    int64_t since_ms;
    const char *who; /* the client's address and name, for PROXY LOCK; borrowed while it waits */
    uint64_t fence;  /* of the lease that it has got, set before it leaves with WAIT_GRANTED; 0: not known */
    int64_t look_ms; /* waiting_next: when it is to try if nothing happens before (waiting_look); 0: not set */
    /* Private, except that `queue` is NULL while the attempt does not wait. */
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

/* Makes a newcomer wait behind earlier waiters without asking Redis. False: there is no earlier waiter, and the
 * newcomer is to ask. `hash` is the key's, equal for equal keys. */
bool waiting_join_behind(struct waiting *t, const struct lock_key *key, uint64_t hash, struct waiter *w,
                         int64_t now_ms);
/* Adds a waiter whose attempt was refused by the lease with this fence. */
enum waiting_joined {
    JOINED_BEHIND, /* another waiter is before it */
    JOINED_FIRST,  /* it is the first one, and is to try from time to time */
    JOINED_FREED   /* it is the first one, and the lease has been released since: it is to try now */
};
enum waiting_joined waiting_join(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence,
                                 struct waiter *w, int64_t now_ms);
/* Whether the waiter may try: it is the first one, and none of its queue is trying. It counts as trying from now on. */
bool waiting_try(struct waiting *t, struct waiter *w);
/* Lets a waiter try once more, whatever its place is. It leaves with the answer, and is not called any more. The waiter
 * behind it counts as the first one. */
void waiting_try_last(struct waiting *t, struct waiter *w);
/* The waiter of a session, or NULL; the lock of a waiter, borrowed while it waits. */
struct waiter *waiting_find(struct waiting *t, uint64_t session);
const struct lock_key *waiting_key(const struct waiter *w);
/* For how many ms the next waiter behind this waiter has waited; -1: there is none. */
int64_t waiting_behind(struct waiting *t, const struct waiter *w, int64_t now_ms);
/* Notes since when a session waits for the lock at another proxy, as an attempt's answer tells. WAITING_NOBODY: none is
 * known. */
#define WAITING_NOBODY INT64_MAX
void waiting_elsewhere(struct waiting *t, struct waiter *w, int64_t since_ms);
/* Another proxy has released the lock, and says that it is this proxy's turn. The first waiter tries, if it belongs to
 * this thread. */
void waiting_told(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread);
/* A waiter's attempt was refused by the lease with this fence. Returns whether it tries once more, because a release
 * was seen meanwhile. */
bool waiting_refused(struct waiting *t, struct waiter *w, uint64_t fence);
/* Notes when the first waiter is to try if nothing happens before. A waiter that becomes the first one until then tries
 * at that time, so that a lock is asked for as often as ever when the first waiters' times end one after the other. */
void waiting_look(struct waiting *t, struct waiter *w, int64_t look_ms);
/* Whether other attempts have found the lock held since this waiter came, so that it may be refused without asking
 * Redis. *fence: of the lease that was met last; 0: not known. */
bool waiting_proves(struct waiting *t, const struct waiter *w, uint64_t *fence);

enum waiting_end {
    WAIT_GRANTED, /* it has the lock */
    WAIT_OVER,    /* its time is over: its place is kept for keep_ms */
    WAIT_GONE,    /* its client has left, or got another answer: the next waiter tries */
};
/* Takes a waiter out of its queue, and tells the waiter behind it. */
void waiting_leave(struct waiting *t, struct waiter *w, enum waiting_end end, int64_t keep_ms, int64_t now_ms);

/* ---- releases ------------------------------------------------------------------------------------------ */

/* This thread is sending a release of the lock this way. If the first waiter has the same thread and way, it is called
 * to try right behind the release. Returns whether it is called. If it leaves the lock to a session that has waited
 * longer at another proxy, *left_ms is set to how long the first waiter has waited. left_ms may be NULL. */
bool waiting_handover(struct waiting *t, const struct lock_key *key, uint64_t hash, unsigned thread, uint64_t way,
                      int64_t now_ms, int64_t *left_ms);
/* The lock was found free: the lease with this fence (0: not known) and all earlier ones are over. The first waiter is
 * called. `handed`: waiting_handover was called for this release, so that a waiter that is trying asks behind it. */
void waiting_freed(struct waiting *t, const struct lock_key *key, uint64_t hash, uint64_t fence, bool handed);
/* The next waiter of the thread that was called, or NULL. *tries: it is trying from now on. Otherwise it has become the
 * first one, and tries by itself from time to time, soon if yields_ms is set. */
struct waiter *waiting_next(struct waiting *t, unsigned thread, bool *tries);

/* ---- circles ------------------------------------------------------------------------------------------- */

/* Whether this session, which has joined, is in a circle of sessions that wait for each other's locks. The engine tells
 * which session holds each lock. Appends the circle: "WHO waits for KEY since N ms, held by WHO, ...". */
bool waiting_circle(struct waiting *t, struct lock_engine *e, uint64_t session, int64_t now_ms, struct text *out);

/* ---- looking in ---------------------------------------------------------------------------------------- */

struct waiting_view {
    size_t count;     /* waiters now */
    int64_t since_ms; /* when the one that has waited longest began */
};
/* The number of waiters for all locks. */
size_t waiting_count(const struct waiting *t);
/* The waiters for one lock; count 0: none. Appends the first `max` of them, in their order, to `who` (NULL: not
 * wanted): "WHO since N ms; ...". */
struct waiting_view waiting_of(struct waiting *t, const struct lock_key *key, uint64_t hash, size_t max, int64_t now_ms,
                               struct text *who);
/* When the session that has waited longest for any lock began; 0: no session waits. */
int64_t waiting_since(struct waiting *t);
