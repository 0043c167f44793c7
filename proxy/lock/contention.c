/*
 * Which locks are contended: lost attempts by key and minute, for operators. Each shard has a small table of sets of
 * four. If a key finds its set full, it replaces the least contended key of the set, so that contended keys stay.
 * Decides nothing.
 */
#include "proxy/lock/evidence.h"

#include "proxy/base/memory.h"

_Static_assert((int)LOCK_FIGHT_NAME_MAX == (int)CONTENTION_KEY_MAX, "what is kept of a name is shown");

static int64_t minute_of(int64_t now_ms) {
    return now_ms / 60000;
}

/* How many bytes of the key's name are kept. */
static size_t kept(const struct contention *c) {
    return c->len < CONTENTION_KEY_MAX ? c->len : CONTENTION_KEY_MAX;
}

static uint64_t total(const struct contention *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < CONTENTION_MINUTES; i++)
        sum += c->lost[i];
    return sum;
}

/* Moves the counts on, so that lost[0] counts the present minute. */
static void age(struct contention *c, int64_t minute) {
    int64_t passed = minute - c->minute;
    if (passed <= 0)
        return;
    for (size_t i = CONTENTION_MINUTES; i-- > 0;)
        c->lost[i] = (int64_t)i >= passed ? c->lost[i - (size_t)passed] : 0;
    c->minute = minute;
}

void contention_note(struct shard *sh, const struct lock_key *key, uint64_t hash, int64_t now_ms) {
    int64_t minute = minute_of(now_ms);
    if (!sh->contention)
        sh->contention = memory_zalloc(CONTENTION_SETS * CONTENTION_WAYS * sizeof(*sh->contention));
    struct contention *set = &sh->contention[(hash >> 8) % CONTENTION_SETS * CONTENTION_WAYS], *place = NULL;
    for (size_t i = 0; i < CONTENTION_WAYS; i++) {
        age(&set[i], minute);
        if (set[i].used && set[i].hash == hash) {
            set[i].lost[0]++;
            return;
        }
        if (!place || total(&set[i]) < total(place))
            place = &set[i];
    }
    *place = (struct contention){
        .hash = hash, .minute = minute, .lost = {1}, .db = key->db, .len = (uint32_t)key->len, .used = true};
    memcpy(place->name, key->name, kept(place));
}

/* Counts the sessions whose last attempt to acquire was lost against the live lease. */
static uint32_t waiters(struct shard *sh, const struct contention *c) {
    struct lock_key key = {.db = c->db, .name = c->name, .len = c->len};
    const struct entry *en = kept(c) == c->len ? entry_find(sh, &key, c->hash) : NULL;
    uint32_t count = 0;
    for (const struct contender *w = en && en->live_fence ? entry_contender_list(en) : NULL; w; w = w->next)
        count += w->lost && w->lost_fence == en->live_fence;
    return count;
}

void engine_each_contention(struct lock_engine *e, int64_t now_ms,
                            void (*fn)(void *arg, const struct lock_contention *c), void *arg) {
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        for (size_t n = 0; sh->contention && n < CONTENTION_SETS * CONTENTION_WAYS; n++) {
            struct contention *c = &sh->contention[n];
            age(c, minute_of(now_ms));
            if (total(c) == 0)
                continue;
            struct lock_contention view = {.key = {.db = c->db, .name = c->name, .len = kept(c)},
                                           .cut = kept(c) < c->len,
                                           .waiters = waiters(sh, c)};
            memcpy(view.lost, c->lost, sizeof(view.lost));
            fn(arg, &view);
        }
        shard_unlock(sh);
    }
}

struct ranking {
    struct lock_fight *out;
    size_t count, max;
};

/* Puts a lock into the list of the locks with most lost attempts. */
static void rank(void *arg, const struct lock_contention *c) {
    struct ranking *r = arg;
    struct lock_fight *out = r->out;
    uint64_t lost = 0;
    for (size_t i = 0; i < CONTENTION_MINUTES; i++)
        lost += c->lost[i];
    size_t at = r->count;
    while (at > 0 && out[at - 1].lost < lost)
        at--;
    if (at == r->max)
        return;
    size_t kept_count = r->count < r->max ? r->count : r->max - 1;
    memmove(&out[at + 1], &out[at], (kept_count - at) * sizeof(*out));
    out[at] = (struct lock_fight){.db = c->key.db,
                                  .lost = lost < UINT32_MAX ? (uint32_t)lost : UINT32_MAX,
                                  .lost_now = c->lost[0],
                                  .name_len = c->key.len,
                                  .cut = c->cut};
    memcpy(out[at].name, c->key.name, c->key.len);
    r->count = kept_count + 1;
}

size_t engine_most_contended(struct lock_engine *e, int64_t now_ms, struct lock_fight *out, size_t max) {
    struct ranking ranking = {.out = out, .max = max};
    engine_each_contention(e, now_ms, rank, &ranking);
    return ranking.count;
}
