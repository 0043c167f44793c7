/* Translates a command's effect, as its reply shows it, to an event for the observer. */
#include "proxy/observe/observe.h"

/* The event of a command that answered a number, on a kind that counts as data. */
static enum seen_event passes(struct lock_event *e) {
    e->beside = true;
    e->value = NULL;
    e->pttl_ms = PTTL_NONE;
    if (!(e->advises & ADVISES_FIRST))
        return SEEN_NOTHING;
    return e->count == 1 ? SEEN_ACQUIRED : SEEN_LOST;
}

/* The event of a command that ran unchanged. */
static enum seen_event done(struct lock_event *e) {
    switch (e->verb) {
    case LOCK_ACQUIRE:
        return SEEN_ACQUIRED;
    case LOCK_COUNT_UP:
        e->value = NULL;
        return e->count > 0 && e->count <= e->by ? SEEN_ACQUIRED : SEEN_LOST;
    case LOCK_RELEASE:
        return e->queue == QUEUE_POP ? SEEN_TAKEN : SEEN_RELEASED;
    case LOCK_QUEUE_PUSH:
        return SEEN_PUSHED;
    case LOCK_QUEUE_READ:
        return e->queue == QUEUE_HEAD ? SEEN_HEAD : SEEN_NOTHING;
    case LOCK_QUEUE_REMOVE:
        return SEEN_TAKEN;
    case LOCK_QUEUE_SET:
        return e->queue == QUEUE_SET && e->count == 0 ? SEEN_RENAMED : SEEN_NOTHING;
    case LOCK_COUNT_DOWN:
        return e->count <= 0 ? SEEN_RELEASED : SEEN_LOWERED;
    case LOCK_EXTEND:
        return e->pttl_ms != PTTL_UNKNOWN ? SEEN_EXTENDED : SEEN_NOTHING;
    case LOCK_REWRITE:
        return e->pttl_ms != PTTL_UNKNOWN ? SEEN_REWRITTEN : SEEN_NOTHING;
    case LOCK_REPLACE:
        return SEEN_WRITTEN;
    case LOCK_SWAP:
        return e->old ? SEEN_SWAPPED : SEEN_ACQUIRED;
    case LOCK_CLOBBER:
        e->value = NULL;
        return e->advises & ADVISES_ALL ? SEEN_ACQUIRED : SEEN_NOTHING;
    case LOCK_PASS:
        return passes(e);
    case LOCK_READ:
    case LOCK_SCRIPT:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
    return SEEN_NOTHING;
}

enum seen_event seen_permit(const struct lock_event *e) {
    static const enum seen_event events[] = {
        [PERMIT_NONE] = SEEN_NOTHING, [PERMIT_POPS] = SEEN_POPPED, [PERMIT_PUSHES] = SEEN_GIVEN,
        [PERMIT_ADDS] = SEEN_ADDED,   [PERMIT_ASKS] = SEEN_ASKED,  [PERMIT_REMOVES] = SEEN_UNADDED};
    return e->rule || e->effect != EFFECT_DONE ? SEEN_NOTHING : events[e->permit];
}

enum seen_event seen_of(struct lock_event *e) {
    bool expires = e->verb == LOCK_EXTEND || e->verb == LOCK_REWRITE;
    switch (e->effect) {
    case EFFECT_DONE:
        return done(e);
    case EFFECT_REMOVED: /* by an expiry in the past */
        return expires ? SEEN_RELEASED : SEEN_NOTHING;
    case EFFECT_LOST:
        return SEEN_LOST;
    case EFFECT_ABSENT:
        return e->verb == LOCK_RELEASE && e->queue == QUEUE_NONE ? SEEN_IN_VAIN : SEEN_NOTHING;
    case EFFECT_SCRIPTED:
    case EFFECT_NOTHING:
    case EFFECT_NOT_SENT:
    case EFFECT_UNKNOWN:
        break;
    }
    return SEEN_NOTHING;
}
