/* Translates a command's effect, as its reply shows it, to an event for the advisor. */
#include "proxy/advise/advise.h"

bool advise_passes(unsigned advises, int64_t number, struct advise_sight *to) {
    to->event = number == 1 ? ADVISE_ACQUIRED : ADVISE_LOST;
    to->beside = true;
    to->value = NULL;
    to->pttl_ms = PTTL_NONE;
    return advises & ADVISES_FIRST;
}

/* Translates the effect of a command that ran unchanged. False: as far as is known, it did nothing to a lock. */
static bool sight_done(const struct lock_sight *from, unsigned advises, struct advise_sight *to) {
    bool first = from->count > 0 && from->count <= from->by;
    switch (from->verb) {
    case LOCK_ACQUIRE:
        to->event = ADVISE_ACQUIRED;
        return true;
    case LOCK_COUNT_UP:
        to->event = first ? ADVISE_ACQUIRED : ADVISE_LOST;
        to->value = NULL;
        return true;
    case LOCK_RELEASE:
        to->queue = from->queue == QUEUE_POP;
        to->event = to->queue ? ADVISE_TAKEN : ADVISE_RELEASED;
        return true;
    case LOCK_QUEUE_PUSH:
        to->queue = true;
        to->event = ADVISE_PUSHED;
        return true;
    case LOCK_QUEUE_READ:
        to->queue = true;
        to->event = ADVISE_HEAD;
        return from->queue == QUEUE_HEAD;
    case LOCK_QUEUE_REMOVE:
        to->queue = true;
        to->event = ADVISE_TAKEN;
        return true;
    case LOCK_QUEUE_SET:
        to->queue = true;
        to->event = ADVISE_RENAMED;
        return from->queue == QUEUE_SET && from->count == 0;
    case LOCK_COUNT_DOWN:
        to->event = ADVISE_RELEASED;
        return from->count <= 0;
    case LOCK_EXTEND:
        to->event = ADVISE_EXTENDED;
        return from->pttl_ms != PTTL_UNKNOWN;
    case LOCK_REWRITE:
        to->event = ADVISE_REWRITTEN;
        return from->pttl_ms != PTTL_UNKNOWN;
    case LOCK_REPLACE:
        to->event = ADVISE_WRITTEN;
        return true;
    case LOCK_SWAP:
        to->event = from->old ? ADVISE_SWAPPED : ADVISE_ACQUIRED;
        return true;
    case LOCK_CLOBBER:
        to->event = ADVISE_ACQUIRED;
        to->value = NULL;
        return advises & ADVISES_ALL;
    case LOCK_PASS:
        return advise_passes(advises, from->count, to);
    case LOCK_READ:
    case LOCK_SCRIPT:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
    return false;
}

bool advise_says(const struct lock_sight *from, unsigned advises, struct advise_sight *to) {
    switch (from->effect) {
    case EFFECT_DONE:
        return sight_done(from, advises, to);
    case EFFECT_REMOVED: /* by an expiry in the past */
        to->event = ADVISE_RELEASED;
        return from->verb == LOCK_EXTEND || from->verb == LOCK_REWRITE;
    case EFFECT_LOST:
        to->event = ADVISE_LOST;
        return true;
    case EFFECT_ABSENT:
        to->event = ADVISE_IN_VAIN;
        return from->verb == LOCK_RELEASE && from->queue == QUEUE_NONE;
    case EFFECT_SCRIPTED:
    case EFFECT_NOTHING:
    case EFFECT_NOT_SENT:
    case EFFECT_UNKNOWN:
        break;
    }
    return false;
}
