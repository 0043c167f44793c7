/*
 * Data: what stands at a key under a lock rule without a live lease. As in Redis, every session may write, expire and
 * delete it. Exceptions: the session tried for the key in vain, or its command may be a late release.
 *
 * Only Redis knows which keys are data: the scripts look. This file decides which sessions may touch a key that the
 * script finds to be data.
 */
#include "proxy/lock/outcome.h"

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

/* The session writes data over the key, so it works under no lease there any more: forgets what it had and lost on
 * the key. */
static void begin_anew(struct outcome *f) {
    struct contender *w = f->entry ? contender_find(f->entry, f->peer) : NULL;
    if (w)
        w->lost = false;
    if (workload_shares(workload_find(f->sh, f->peer, f->plan->rule, f->plan->pattern), f->peer, f->plan->rule))
        return; /* the ended claim may be a colleague's */
    for (struct claim *c = entry_claims(f->entry), *next; c; c = next) {
        next = c->next;
        if (c->peer == f->peer && claim_ended(c) && !c->uses && !claim_releasing(c))
            apply_spend(f, c);
    }
}

void apply_pass(struct outcome *f) {
    switch (f->result->outcome) {
    case LOCK_DONE:
        if (!f->result->value) { /* the value was changed in place, and is not known now */
            struct claim *c = apply_touched(f);
            if (c)
                c->valued = false;
        }
        apply_done(f);
        break;
    case LOCK_RELEASED:
        apply_freed(f);
        break;
    case LOCK_HELD:
    case LOCK_FOREIGN:
        apply_refusal(f, INCIDENT_OVERWRITE,
                      f->audit ? "somebody else holds the lock" : "somebody else holds the lock; nothing was written");
        learn_loss(f);
        break;
    case LOCK_FREE:
    case LOCK_OPEN:
        begin_anew(f);
        break;
    default:
        break;
    }
}
