/*
 * Data: what stands at a key under a lock rule without a live lease. As in Redis, every session may write, expire and
 * delete it. Exceptions: the session tried for the key in vain, or its command may be a late release.
 *
 * Only Redis knows which keys are data: the scripts look. This file decides which sessions may touch a key that the
 * script finds to be data.
 */
#include "proxy/lock/choose.h"

/* Whether a live lease of the key was acquired under audit. Redis has no guard record of it, and would take the lock
 * for data. */
static bool observed_lease(const struct entry *en, int64_t now_ms) {
    for (const struct claim *c = entry_claims(en); c; c = c->next)
        if (c->observed && claim_is_live(c, now_ms))
            return true;
    return false;
}

/* Whether any session's last attempt on the key was in vain. What a swap finds may be the lock that the session lost.
 * */
static bool tried_for(const struct entry *en) {
    for (const struct contender *w = en ? entry_contender_list(en) : NULL; w; w = w->next)
        if (w->lost)
            return true;
    return false;
}

void data_attribute(const struct entry *en, const struct peer *self, int64_t now_ms, struct lock_plan *plan) {
    if (observed_lease(en, now_ms))
        return;
    const struct contender *own = en ? contender_find(en, self) : NULL;
    if (lock_verb_is(plan->verb, VERB_WRITES))
        plan->data_free = true;
    else if (plan->verb == LOCK_SWAP)
        plan->data_free = !plan->claim && !tried_for(en);
    else
        plan->data_free = !plan->claim && !(own && own->lost);
}

/* If data stands at the key, the earlier SETNX has lost, and the session may not touch the data. Exception: a command
 * that writes over data may do so. */
void data_follow(struct lock_plan *plan, const struct lock_plan *earlier) {
    if (earlier->verb == LOCK_ACQUIRE && !lock_verb_is(plan->verb, VERB_WRITES))
        plan->data_free = false;
}
