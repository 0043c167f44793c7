/*
 * Leases under a rule with `quorum yes`, and the witnesses that remember them: what the proxy tells them besides a
 * client's call (quorum_lease.c). quorum.c asks them about a client's call.
 */
#pragma once

#include "proxy/session/locks/lock_call.h"
#include "proxy/witness/witness.h"

/* Make and free a worker's witnesses, if its configuration has any. */
void quorum_open(struct worker *w);
void quorum_close(struct worker *w);
/* Takes the witnesses of the worker's configuration, which a reload may have changed. */
void quorum_change(struct worker *w);

/* The lease of a lock, as witnesses know it. token "": another proxy gave it. Borrows all of it. */
struct witness_lease quorum_lease(const struct lock_key *key, const char *token, uint64_t fence);
/* How long witnesses are asked to remember a lease that has so many ms left. */
int64_t quorum_promise_ms(const struct worker *w, int64_t pttl_ms);
/* The longest lease that witnesses may be asked to remember. */
int64_t quorum_longest_ms(const struct worker *w);

/* Tells the witnesses that a lease under such a rule was released. */
void quorum_released(struct worker *w, const struct lock_key *key, const char *token, uint64_t fence);
/* Tells the engine what became of a renewal, as engine_renewed does. If Redis has renewed a lease under such a rule,
 * the witnesses are asked first. */
void quorum_renewed(struct worker *w, const struct lock_lease *lease, const struct lock_result *result);
