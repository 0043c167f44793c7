/*
 * What the application's own scripts did to a lock. A lease that a script acquired is its session's from here on. A
 * lease that a script ended is spent. A renewal moves the lease's end.
 *
 * A script does not say what it was meant to do. If it finds the lock held by another session, it has not lost an
 * attempt to acquire. If it finds the lock free, it has not come too late.
 */
#include "proxy/lock/outcome.h"

static void spend(struct outcome *f, struct claim *c) {
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    outcome_spend(f, c);
}

void apply_script(struct outcome *f) {
    bool known = f->result->outcome <= LOCK_FREE;
    struct claim *c = f->claim;
    if (c)
        c->scripted = false;
    /* The lease made way before its time. Another command came between the script and the step behind it, so Redis
     * cannot tell what ended the lease. Most probably the session's own script did. */
    if (c && known && claim_ended(c) && c->lease != LEASE_ENDED && !c->uses && c->fence != f->result->fence)
        spend(f, c);
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        apply_granted(f);
        break;
    case LOCK_HELD:
        apply_done(f);
        learn_named(f);
        break;
    case LOCK_RELEASED:
        /* Over any of the client's connections. If another client has ended the lease (it knew the value), the owner's
         * release is still expected. */
        c = f->result->fence ? claim_of_fence(f->entry, f->result->fence, f->peer->client) : NULL;
        if (c && !c->uses)
            spend(f, c);
        break;
    default: /* no lock was found, or nothing is known: what the script did is a foreign lock */
        break;
    }
}

/* The session writes data over the key, so it works under no lease there any more: forgets what it had and lost on
 * the key. */
static void begin_anew(struct outcome *f) {
    struct contender *w = contender_find(f->entry, f->peer);
    if (w)
        w->lost = false;
    if (workload_pooled(outcome_workload(f), f->peer, f->plan->rule))
        return; /* the ended claim may be a colleague's */
    for (struct claim *c = entry_claims(f->entry), *next; c; c = next) {
        next = c->next;
        if (c->peer == f->peer && claim_ended(c) && !c->uses && !claim_releasing(c))
            outcome_spend(f, c);
    }
}

void apply_pass(struct outcome *f) {
    switch (f->result->outcome) {
    case LOCK_DONE:
        if (!f->result->value) { /* the value was changed in place, and is not known now */
            struct claim *c = outcome_touched(f);
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
        outcome_refusal(f, INCIDENT_OVERWRITE,
                        f->audit ? "another owner holds the lock"
                                 : "another owner holds the lock; nothing was written");
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
