/* Translates a command's effect, as its reply shows it, to an event for the advisor. */
#include "proxy/advise/advise.h"

/* The event of a command that answered a number, on a kind that counts as data. */
static enum advise_event passes(struct lock_event *e) {
    e->beside = true;
    e->value = NULL;
    e->pttl_ms = PTTL_NONE;
    if (!(e->advises & ADVISES_FIRST))
        return ADVISE_NOTHING;
    return e->count == 1 ? ADVISE_ACQUIRED : ADVISE_LOST;
}

/* The event of a command that ran unchanged. */
static enum advise_event done(struct lock_event *e) {
    switch (e->verb) {
    case LOCK_ACQUIRE:
        return ADVISE_ACQUIRED;
    case LOCK_COUNT_UP:
        e->value = NULL;
        return e->count > 0 && e->count <= e->by ? ADVISE_ACQUIRED : ADVISE_LOST;
    case LOCK_RELEASE:
        return e->queue == QUEUE_POP ? ADVISE_TAKEN : ADVISE_RELEASED;
    case LOCK_QUEUE_PUSH:
        return ADVISE_PUSHED;
    case LOCK_QUEUE_READ:
        return e->queue == QUEUE_HEAD ? ADVISE_HEAD : ADVISE_NOTHING;
    case LOCK_QUEUE_REMOVE:
        return ADVISE_TAKEN;
    case LOCK_QUEUE_SET:
        return e->queue == QUEUE_SET && e->count == 0 ? ADVISE_RENAMED : ADVISE_NOTHING;
    case LOCK_COUNT_DOWN:
        return e->count <= 0 ? ADVISE_RELEASED : ADVISE_NOTHING;
    case LOCK_EXTEND:
        return e->pttl_ms != PTTL_UNKNOWN ? ADVISE_EXTENDED : ADVISE_NOTHING;
    case LOCK_REWRITE:
        return e->pttl_ms != PTTL_UNKNOWN ? ADVISE_REWRITTEN : ADVISE_NOTHING;
    case LOCK_REPLACE:
        return ADVISE_WRITTEN;
    case LOCK_SWAP:
        return e->old ? ADVISE_SWAPPED : ADVISE_ACQUIRED;
    case LOCK_CLOBBER:
        e->value = NULL;
        return e->advises & ADVISES_ALL ? ADVISE_ACQUIRED : ADVISE_NOTHING;
    case LOCK_PASS:
        return passes(e);
    case LOCK_READ:
    case LOCK_SCRIPT:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
    return ADVISE_NOTHING;
}

enum advise_event advise_event_of(struct lock_event *e) {
    bool expires = e->verb == LOCK_EXTEND || e->verb == LOCK_REWRITE;
    switch (e->effect) {
    case EFFECT_DONE:
        return done(e);
    case EFFECT_REMOVED: /* by an expiry in the past */
        return expires ? ADVISE_RELEASED : ADVISE_NOTHING;
    case EFFECT_LOST:
        return ADVISE_LOST;
    case EFFECT_ABSENT:
        return e->verb == LOCK_RELEASE && e->queue == QUEUE_NONE ? ADVISE_IN_VAIN : ADVISE_NOTHING;
    case EFFECT_SCRIPTED:
    case EFFECT_NOTHING:
    case EFFECT_NOT_SENT:
    case EFFECT_UNKNOWN:
        break;
    }
    return ADVISE_NOTHING;
}
