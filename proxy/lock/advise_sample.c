/*
 * Which events PROXY ADVISE looks at. It has to cost next to nothing where it does not.
 *
 * Keys that begin alike are a group. Of a group's events in a minute the first FULL_EVENTS are looked at; beyond them,
 * and in the minutes that follow while as many come, those of one key in KEYS_SAMPLED, another one each minute. Where
 * that changes, the group's epoch does: what was known of its keys is left aside, since releases may not have been
 * seen.
 */
#include <string.h>
#include <strings.h>

#include "proxy/base/bytes.h"
#include "proxy/lock/advise_private.h"

enum { FULL_EVENTS = 1000, KEYS_SAMPLED = 64, MINUTE_SHIFT = 16, GROUP_BYTES = 4, FILTER_MS = 300000 };

/* A few bytes of the key: it only has to be cheap, and to tell most keys apart. */
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

static __attribute__((noinline)) void group_turn(struct advise_group *g, int64_t minute) {
    unsigned events = atomic_exchange_explicit(&g->events, 0, memory_order_relaxed);
    int64_t last = atomic_exchange_explicit(&g->minute, minute, memory_order_relaxed);
    bool was = atomic_load_explicit(&g->busy, memory_order_relaxed);
    bool busy = was && last == minute - 1 && events > FULL_EVENTS;
    atomic_store_explicit(&g->busy, busy, memory_order_relaxed);
    if (was)
        atomic_fetch_add_explicit(&g->epoch, 1, memory_order_relaxed);
}

inline bool advisor_samples(struct advisor *a, const char *key, size_t len, int64_t now_ms) {
    struct advise_group *g = &a->groups[advise_group(key, len)];
    int64_t minute = now_ms >> MINUTE_SHIFT;
    if (atomic_load_explicit(&g->minute, memory_order_relaxed) != minute)
        group_turn(g, minute);
    unsigned events = atomic_load_explicit(&g->events, memory_order_relaxed) + 1; /* about: threads may overwrite */
    atomic_store_explicit(&g->events, events, memory_order_relaxed);
    bool busy = atomic_load_explicit(&g->busy, memory_order_relaxed);
    if (!busy && events <= FULL_EVENTS)
        return true;
    if (!busy && !atomic_exchange_explicit(&g->busy, true, memory_order_relaxed))
        atomic_fetch_add_explicit(&g->epoch, 1, memory_order_relaxed);
    return (filter_bit(key, len) - (uint64_t)minute) % KEYS_SAMPLED == 0;
}

bool advisor_knows(const struct advisor *a, const char *key, size_t len) {
    unsigned bit = filter_bit(key, len);
    uint64_t both = atomic_load_explicit(&a->filter[0][bit / 64], memory_order_relaxed) |
                    atomic_load_explicit(&a->filter[1][bit / 64], memory_order_relaxed);
    return both >> bit % 64 & 1;
}

void advisor_arm(struct advisor *a, const char *key, size_t len, int64_t now_ms) {
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

/* ---- scripts that are locks ------------------------------------------------------------------ */

/* The words by which a script calls commands, each between two quotes, and their bits. */
static const char *const WORDS[] = {"set", "setnx", "nx", "get", "del", "unlink", "hincrby", "pexpire"};
enum { SET = 1, SETNX = 2, NX = 4, GET = 8, DEL = 16, UNLINK = 32, HINCRBY = 64, PEXPIRE = 128, WORD_MAX = 8 };

static unsigned words_of(const char *source, size_t len) {
    unsigned words = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] != '\'' && source[i] != '"')
            continue;
        size_t room = len - i - 1 < WORD_MAX ? len - i - 1 : WORD_MAX;
        const char *word = source + i + 1, *end = memchr(word, source[i], room);
        for (size_t k = 0; end && k < sizeof(WORDS) / sizeof(WORDS[0]); k++)
            if (strlen(WORDS[k]) == (size_t)(end - word) && strncasecmp(word, WORDS[k], (size_t)(end - word)) == 0)
                words |= 1u << k;
        i += end ? (size_t)(end - word) + 1 : 0;
    }
    return words;
}

enum advise_script advise_script_kind(const char *source, size_t len) {
    unsigned words = words_of(source, len);
    bool deletes = words & (DEL | UNLINK);
    bool acquires = (words & SETNX) || ((words & SET) && (words & NX));
    if (words & HINCRBY)
        return deletes ? ADVISE_SCRIPT_LEAVES : words & PEXPIRE ? ADVISE_SCRIPT_ENTERS : ADVISE_SCRIPT_OTHER;
    if (acquires == deletes)
        return ADVISE_SCRIPT_OTHER;
    if (acquires)
        return ADVISE_SCRIPT_ACQUIRES;
    return words & GET ? ADVISE_SCRIPT_RELEASES : ADVISE_SCRIPT_OTHER;
}

enum { KIND_BITS = 3 };

static _Atomic uint64_t *script_place(struct advisor *a, uint64_t sha1) {
    return &a->scripts[sha1 % ADVISE_SCRIPTS];
}

void advisor_script_note(struct advisor *a, uint64_t sha1, enum advise_script kind) {
    atomic_store_explicit(script_place(a, sha1), (sha1 << KIND_BITS) | kind, memory_order_relaxed);
}

enum advise_script advisor_script(struct advisor *a, uint64_t sha1) {
    uint64_t there = atomic_load_explicit(script_place(a, sha1), memory_order_relaxed);
    bool known = there >> KIND_BITS == (sha1 << KIND_BITS) >> KIND_BITS;
    return known ? (enum advise_script)(there & ((1 << KIND_BITS) - 1)) : ADVISE_SCRIPT_OTHER;
}
