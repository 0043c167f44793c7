/*
 * What the application's own scripts did to a lock: a lease that one acquired is its session's from here on, one that
 * it ended is spent, and a renewal moves its end.
 *
 * A script says nothing of what it was meant to do: one that finds the lock held by somebody else has not lost an
 * attempt to acquire, and one that finds it free has not come too late.
 */
#include "proxy/lock/outcome.h"

static void spend(struct outcome *f, struct claim *c) {
    f->sh->stats.released++;
    releaser_note(f->e, f->plan->rule, f->peer->client);
    apply_spend(f, c);
}

/* Ends a lease that a script of the client which acquired it has released, over whichever connection. What another
 * client has ended (it knew the value) leaves its owner with a release to come, which is expected as ever. */
static void script_released(struct outcome *f) {
    struct claim *c = entry_claims(f->entry);
    while (c && (c->fence != f->result->fence || c->peer->client != f->peer->client))
        c = c->next;
    if (c && !c->uses)
        spend(f, c);
}

/* Ends a lease of which Redis can't tell who ended it, since another command came between the script and the step
 * behind it: it is gone before its time, and who sends a script on a lock of its own is the first to be asked. */
static void overtaken(struct outcome *f, struct claim *c) {
    if (c->ended && c->cut_short && !c->uses && c->fence != f->result->fence)
        spend(f, c);
}

void apply_script(struct outcome *f) {
    bool known = f->result->outcome <= LOCK_FREE;
    if (f->claim) {
        f->claim->scripted = false;
        if (known)
            overtaken(f, f->claim);
    }
    switch (f->result->outcome) {
    case LOCK_GRANTED:
        apply_granted(f);
        break;
    case LOCK_HELD:
        apply_done(f);
        learn_named(f);
        break;
    case LOCK_RELEASED:
        if (f->result->fence)
            script_released(f);
        break;
    default: /* nothing was found, or nothing is known: what the script did is a foreign lock's story then */
        break;
    }
}
