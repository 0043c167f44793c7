/* How a lock call ends (lock_finish is in locks.h), and what the queue of waiting sessions is told of it. */
#pragma once

#include "proxy/session/locks/lock_call.h"

struct witness_lease;

/* Tells the engine how a call ended, and frees the call. s NULL: the session is closed. */
void lock_learnt(struct worker *w, struct session *s, struct lock_call *l, const struct lock_result *result);
/* The same for all calls of the command whose first call this is. */
void lock_learnt_all(struct worker *w, struct session *s, struct lock_call *first, const struct lock_result *result);
/* Records how long the call took, for metrics. */
void lock_note_time(struct worker *w, const struct lock_call *l);
/* Passes a reply or an error to `next`, or to the client if `next` is NULL. */
void lock_deliver(struct call *c, call_done_fn next, const struct call_end *end);

/* Tell the queue of a lock's name (proxy/lock/waiting.h) under a rule with `wait`: a release is about to be sent; a
 * call has ended, and the engine knows its result. */
void lock_handover_sent(struct session *s, struct lock_call *l);
void lock_handover_learnt(struct worker *w, const struct lock_call *l, const struct lock_result *r);
/* The same number for lanes whose requests reach the node in the order in which one thread sends them. */
uint64_t lock_handover_way(const struct upstream_lane *lane);

/* The lease of a lock, as witnesses know it. token "": another proxy gave it. Borrows all of it. */
struct witness_lease quorum_lease(const struct lock_key *key, const char *token, uint64_t fence);
/* How long witnesses are asked to remember a lease with so many ms left; the longest that they may be asked for. */
int64_t quorum_promise_ms(const struct worker *w, int64_t pttl_ms);
int64_t quorum_longest_ms(const struct worker *w);
/* Tells the witnesses that a lease under a rule with `quorum yes` was released. */
void quorum_released(struct worker *w, const struct lock_key *key, const char *token, uint64_t fence);
