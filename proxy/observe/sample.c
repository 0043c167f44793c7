/*
 * Selects the events that PROXY ADVISE looks at. A rejected event must cost next to nothing.
 *
 * Keys with the same beginning form a group. The first FULL_EVENTS events of a group in a minute are looked at. After
 * that, and in the next minutes while as many come, only the events of one key in KEYS_SAMPLED are, another key each
 * minute. With each change the group gets a new epoch: older knowledge of its keys is ignored, since releases may have
 * been missed.
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
