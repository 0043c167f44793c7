/*
 * Selects the events that PROXY ADVISE looks at, and translates a command's effect, as its reply shows it, to an event.
 * A rejected event must cost next to nothing.
 *
 * Keys with the same beginning form a group. After FULL_EVENTS events of a group in a minute, and while as many come,
 * only those of one key in KEYS_SAMPLED are looked at, another key each minute. With each change the group gets a new
 * epoch: older knowledge of its keys is ignored, since releases may have been missed.
 */
#include <string.h>

#include "proxy/base/bytes.h"
#include "proxy/observe/private.h"

enum { FULL_EVENTS = 1000, KEYS_SAMPLED = 64, MINUTE_SHIFT = 16, GROUP_BYTES = 4, FILTER_MS = 300000 };

/* A key's bit in the filter, from a few of its bytes: it only has to be cheap, and to distinguish most keys. */
static inline unsigned filter_bit(const char *key, size_t len) {
    struct bytes_ends e = bytes_ends(key, len);
    uint64_t x = (e.head ^ (e.tail * 0x9e3779b97f4a7c15u) ^ len) * 0xff51afd7ed558ccdu;
    return (unsigned)(x >> 48);
}

inline size_t advise_group(const char *key, size_t len) {
    uint32_t head = 0;
    if (len >= GROUP_BYTES)
        memcpy(&head, key, GROUP_BYTES);
    else
        memcpy(&head, key, len);
    return (head * 0x9e3779b1u) >> 26;
}

static __attribute__((noinline)) void group_turn(struct key_group *g, int64_t minute) {
    unsigned events = atomic_exchange_explicit(&g->events, 0, memory_order_relaxed);
    int64_t last = atomic_exchange_explicit(&g->minute, minute, memory_order_relaxed);
    bool was = atomic_load_explicit(&g->busy, memory_order_relaxed);
    bool busy = was && last == minute - 1 && events > FULL_EVENTS;
    atomic_store_explicit(&g->busy, busy, memory_order_relaxed);
    if (was)
        atomic_fetch_add_explicit(&g->epoch, 1, memory_order_relaxed);
}

inline bool observer_samples(struct observer *a, const char *key, size_t len, int64_t now_ms) {
    struct key_group *g = &a->groups[advise_group(key, len)];
    int64_t minute = now_ms >> MINUTE_SHIFT;
    if (atomic_load_explicit(&g->minute, memory_order_relaxed) != minute)
        group_turn(g, minute);
    unsigned events = atomic_load_explicit(&g->events, memory_order_relaxed) +
                      1; /* approximate: threads may overwrite each other's counts */
    atomic_store_explicit(&g->events, events, memory_order_relaxed);
    bool busy = atomic_load_explicit(&g->busy, memory_order_relaxed);
    if (!busy && events <= FULL_EVENTS)
        return true;
    if (!busy && !atomic_exchange_explicit(&g->busy, true, memory_order_relaxed))
        atomic_fetch_add_explicit(&g->epoch, 1, memory_order_relaxed);
    return (filter_bit(key, len) - (uint64_t)minute) % KEYS_SAMPLED == 0;
}

bool observer_knows(const struct observer *a, const char *key, size_t len) {
    unsigned bit = filter_bit(key, len);
    uint64_t both = atomic_load_explicit(&a->filter[0][bit / 64], memory_order_relaxed) |
                    atomic_load_explicit(&a->filter[1][bit / 64], memory_order_relaxed);
    return both >> bit % 64 & 1;
}

void observer_arm(struct observer *a, const char *key, size_t len, int64_t now_ms) {
    int64_t begun = atomic_load_explicit(&a->filter_ms, memory_order_relaxed);
    unsigned present = atomic_load_explicit(&a->present, memory_order_relaxed);
    if (now_ms - begun > FILTER_MS && atomic_compare_exchange_strong(&a->filter_ms, &begun, now_ms)) {
        present = !present;
        for (size_t i = 0; i < FILTER_BITS / 64; i++)
            atomic_store_explicit(&a->filter[present][i], 0, memory_order_relaxed);
        atomic_store_explicit(&a->present, present, memory_order_relaxed);
    }
    unsigned bit = filter_bit(key, len);
    atomic_fetch_or_explicit(&a->filter[present][bit / 64], (uint64_t)1 << bit % 64, memory_order_relaxed);
}

/* ---- what an effect means ---------------------------------------------------------------------- */

enum seen_event seen_permit(const struct lock_event *e) {
    static const enum seen_event events[] = {
        [PERMIT_NONE] = SEEN_NOTHING, [PERMIT_POPS] = SEEN_POPPED, [PERMIT_PUSHES] = SEEN_GIVEN,
        [PERMIT_ADDS] = SEEN_ADDED,   [PERMIT_ASKS] = SEEN_ASKED,  [PERMIT_REMOVES] = SEEN_UNADDED};
    return e->rule || e->effect != EFFECT_DONE ? SEEN_NOTHING : events[e->permit];
}

enum seen_event seen_of(struct lock_event *e) {
    if (e->effect == EFFECT_LOST)
        return SEEN_LOST;
    if (e->effect == EFFECT_REMOVED && (e->verb == LOCK_EXTEND || e->verb == LOCK_REWRITE))
        return SEEN_RELEASED; /* by an expiry in the past */
    if (e->effect == EFFECT_ABSENT && e->verb == LOCK_RELEASE && e->queue == QUEUE_NONE)
        return SEEN_IN_VAIN;
    if (e->effect != EFFECT_DONE)
        return SEEN_NOTHING;
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
    case LOCK_PASS: /* the command answered a number, on a kind that counts as data */
        e->beside = true;
        e->value = NULL;
        e->pttl_ms = PTTL_NONE;
        return !(e->advises & ADVISES_FIRST) ? SEEN_NOTHING : e->count == 1 ? SEEN_ACQUIRED : SEEN_LOST;
    default:
        return SEEN_NOTHING;
    }
}
