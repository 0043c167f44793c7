/* Private to proxy/lock/: what a command may use, chosen before its script runs. Layers: ledger.h. */
#pragma once

#include "proxy/lock/lease.h"

/* ---- attribute.c ------------------------------------------------------------------------------ */

/* Fills in the plan's claim, token, right and what the session has seen. */
void attribute(struct shard *sh, struct entry *en, struct peer *self, int64_t now_ms, struct lock_plan *plan);
/* Makes the plan use this claim in place of the claim that was chosen, if any. */
void attribute_to(struct shard *sh, struct entry *en, struct lock_plan *plan, struct claim *c, int64_t now_ms);
/* B2: finds the entry's live lease that makes way for the session's next attempt, because a refused release of it was
 * the holder's; NULL: there is none. `suspects`: how many refused releases a script's answer has counted. */
struct claim *attribute_makes_way(const struct entry *en, const struct peer *self, uint32_t suspects, int64_t now_ms);
/* Whether the session, or a pooled session whose reads count for it, was shown this value last. */
bool attribute_was_shown(const struct entry *en, const struct peer *self, const struct workload *f,
                         const struct lock_rule *rule, const char *value, size_t len);

/* ---- recognise.c ------------------------------------------------------------------------------ */

/* Whether two values of a hash lock name the same field. Other values: compares their high halves. */
static inline bool value_same_field(uint64_t a, uint64_t b) {
    return (a ^ b) >> 32 == 0;
}

/* K1: the session was shown this value of the lease with this fence (0: not known), or named it. If the session
 * tried to write the same value, and values tell workers apart, the session is recognised. Returns whether it is. */
bool recognise(struct shard *sh, struct contender *w, const struct lock_rule *rule, const struct workload *f,
               uint64_t fence, const char *value, size_t len, int64_t now_ms);

/* ---- list_party.c ---------------------------------------------------------------------------------- */

/* Whether the session speaks for its client in the queue. */
bool queue_by_client(const struct peer *p, const struct lock_rule *rule);
/* Sets the plan's right and party for the scripts of list locks. */
void queue_attribute(struct shard *sh, const struct peer *self, struct lock_plan *plan);
/* Declares the nodes that a closed session has pushed dead, unless its client's other sessions may own them. Returns
 * whether the contender must stay because of its nodes. */
bool queue_leave(struct shard *sh, struct contender *w);
