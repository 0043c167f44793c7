/*
 * Which data is written under which lock.
 *
 *      lock acquired ──> the last few locks, by client ──┐
 *                                                        ├──> pairs of patterns ──> writes, by holders, late
 *      write of data ──> a sample of them ───────────────┘
 *
 * A pair begins when a client writes a key while it holds a lock whose name follows from the key (stock:17 under
 * lock:stock:17, or all accounts under one lock). From then on each sampled write that fits is counted, from any
 * client, with its sender's relation to the lock: the counts show which pairs are coincidences. All tables have a fixed
 * size: the pair that a holder wrote longest ago makes room.
 */
#include <stdlib.h>
#include <string.h>

#include "proxy/base/mutex.h"
#include "proxy/observe/private.h"
#include "proxy/base/memory.h"

enum {
    PAIRS = OBSERVED_PAIRS,
    LOCKS = 64,        /* the locks acquired last */
    NAME_MAX_LEN = 96, /* longest name of a lock that is remembered */
    LOOKED_MS = 10000  /* how long after the last acquisition writes are looked at */
};

struct taken {
    uint64_t client; /* 0: none */
    uint32_t db, len;
    char name[NAME_MAX_LEN];
};

struct written_data {
    struct written_pair pairs[PAIRS];
    struct taken taken[LOCKS];
    unsigned next; /* index in taken */
};

/* ---- patterns ---------------------------------------------------------------------------------- */

/* Writes the name of the lock for a key of the pair, as a fence would; 0: there is none, or it is too long. */
static size_t lock_of(const struct written_pair *pair, const char *key, size_t len, char out[NAME_MAX_LEN]) {
    size_t n = lock_fence_name(pair->pattern, strlen(pair->pattern), pair->lock, key, len, out, NAME_MAX_LEN);
    return n <= NAME_MAX_LEN ? n : 0;
}

static bool pair_is_of(const struct written_pair *pair, const char *key, size_t len, const char *lock,
                       size_t lock_len) {
    char name[NAME_MAX_LEN];
    return lock_of(pair, key, len, name) == lock_len && memcmp(name, lock, lock_len) == 0;
}

/* Writes the pattern of names with the same beginning and any end. False: there is no beginning, or it is too long. */
static bool widened(const char *name, size_t stem, char out[ADVISE_PATTERN_MAX]) {
    size_t len = stem ? advise_pattern(name, stem, out) : 0;
    if (len == 0 || len + 2 > ADVISE_PATTERN_MAX)
        return false;
    if (out[len - 1] != '*')
        out[len++] = '*';
    out[len] = '\0';
    return true;
}

/* Finds the patterns by which a lock could be the key's: by numbers and identifiers that both names contain, then by
 * whole last words. A lock without a part of the key's name is the lock of all keys of the same pattern. */
static bool pair_make(struct written_pair *pair, const char *key, size_t len, const char *lock, size_t lock_len) {
    advise_pattern(key, len, pair->pattern);
    advise_pattern(lock, lock_len, pair->lock);
    bool numbered = lock_fence_stars(pair->pattern, true) > 0, many = lock_fence_stars(pair->lock, false) > 0;
    if (pair->pattern[0] == '*')
        return false;
    if (numbered && many && pair_is_of(pair, key, len, lock, lock_len))
        return true;
    size_t stem = advise_stem(key, len), lock_stem = advise_stem(lock, lock_len), tail = len - stem;
    struct written_pair wide = *pair;
    if (tail > 0 && tail == lock_len - lock_stem && memcmp(key + stem, lock + lock_stem, tail) == 0 &&
        widened(key, stem, wide.pattern) && widened(lock, lock_stem, wide.lock) &&
        pair_is_of(&wide, key, len, lock, lock_len)) {
        *pair = wide;
        return true;
    }
    if (many)
        return false;
    if (!numbered && widened(key, stem, wide.pattern))
        memcpy(pair->pattern, wide.pattern, sizeof(wide.pattern));
    return pair_is_of(pair, key, len, lock, lock_len);
}

/* ---- acquired locks ------------------------------------------------------------------------------ */

void observer_lock_taken(struct observer *a, const struct lock_key *lock, uint64_t client) {
    if (lock->len > NAME_MAX_LEN)
        return;
    MUTEX_GUARD(&a->fences_mutex);
    if (!a->fences)
        a->fences = memory_zalloc(sizeof(*a->fences));
    struct taken *t = &a->fences->taken[a->fences->next++ % LOCKS];
    t->client = client;
    t->db = lock->db;
    t->len = (uint32_t)lock->len;
    memcpy(t->name, lock->name, lock->len);
}

void observer_lock_seen(struct observer *a, int64_t now_ms) {
    atomic_store_explicit(&a->lock_ms, now_ms, memory_order_relaxed);
}

bool observer_looks(const struct observer *a, int64_t now_ms) {
    int64_t lock_ms = atomic_load_explicit(&a->lock_ms, memory_order_relaxed);
    return lock_ms && now_ms - lock_ms < LOOKED_MS;
}

/* ---- writes -------------------------------------------------------------------------------------- */

/* Counts the write for each pair that the key matches. Returns whether the writer has, or had, one of their locks. */
static bool pairs_count(struct written_data *f, const struct observed_write *w, int64_t now_ms) {
    bool known = false;
    for (size_t i = 0; i < PAIRS; i++) {
        struct written_pair *pair = &f->pairs[i];
        char name[NAME_MAX_LEN];
        size_t len = pair->pattern[0] == w->key.name[0] || pair->pattern[0] == '\\'
                         ? lock_of(pair, w->key.name, w->key.len, name)
                         : 0;
        if (len == 0 || pair->db != w->key.db)
            continue;
        enum lock_writer writer = w->writer(w->arg, &(struct lock_key){w->key.db, name, len});
        pair->writes++;
        pair->held += writer == WRITER_HOLDS;
        pair->late += writer == WRITER_LATE;
        pair->last_ms = writer != WRITER_NONE ? now_ms : pair->last_ms;
        known |= writer != WRITER_NONE;
    }
    return known;
}

/* The place for a new pair, the oldest one's if there is no free one; NULL: the pair is known. */
static struct written_pair *pair_place(struct written_data *f, const struct written_pair *new) {
    struct written_pair *oldest = f->pairs;
    for (struct written_pair *p = f->pairs; p < f->pairs + PAIRS; p++) {
        if (p->db == new->db && strcmp(p->pattern, new->pattern) == 0 && strcmp(p->lock, new->lock) == 0)
            return NULL;
        if (oldest->pattern[0] && (!p->pattern[0] || p->last_ms < oldest->last_ms))
            oldest = p;
    }
    return oldest;
}

/* Checks whether the key's name fits that of a lock which the writer holds: the last acquired lock first. */
static void pair_find(struct written_data *f, const struct observed_write *w, int64_t now_ms) {
    for (unsigned i = 1; i <= LOCKS; i++) {
        const struct taken *t = &f->taken[(f->next - i) % LOCKS];
        struct written_pair pair = {.db = w->key.db, .writes = 1, .held = 1, .last_ms = now_ms};
        if (t->client != w->client || t->db != w->key.db || !pair_make(&pair, w->key.name, w->key.len, t->name, t->len))
            continue;
        struct written_pair *place = pair_place(f, &pair);
        if (place && w->writer(w->arg, &(struct lock_key){t->db, t->name, t->len}) == WRITER_HOLDS) {
            *place = pair;
            return;
        }
    }
}

void observer_note_write(struct observer *a, const struct observed_write *w, int64_t now_ms) {
    if (w->key.len == 0)
        return;
    MUTEX_GUARD(&a->fences_mutex);
    if (a->fences && !pairs_count(a->fences, w, now_ms))
        pair_find(a->fences, w, now_ms);
}

/* ---- looking in ---------------------------------------------------------------------------------- */

size_t observer_pairs(struct observer *a, struct written_pair out[OBSERVED_PAIRS]) {
    size_t count = 0;
    MUTEX_GUARD(&a->fences_mutex);
    for (size_t i = 0; a->fences && i < PAIRS; i++)
        if (a->fences->pairs[i].pattern[0])
            out[count++] = a->fences->pairs[i];
    return count;
}
