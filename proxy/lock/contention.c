/*
 * Which locks are contended, for operators: lost attempts by key and minute, and by workload the times for which locks
 * were held and waited for. Decides nothing.
 *
 * For the keys each shard has a small table of sets of four. A key that finds its set full replaces the least contended
 * one. What a forgotten workload's times were goes to the shard's `others`.
 */
#include "proxy/lock/evidence.h"

#include "proxy/base/memory.h"

_Static_assert((int)LOCK_FIGHT_NAME_MAX == (int)CONTENTION_KEY_MAX, "what is kept of a name is shown");

/* How many bytes of the key's name are kept. */
static size_t kept(const struct contention *c) {
    return c->len < CONTENTION_KEY_MAX ? c->len : CONTENTION_KEY_MAX;
}

static uint64_t total(const uint32_t lost[CONTENTION_MINUTES]) {
    uint64_t sum = 0;
    for (size_t i = 0; i < CONTENTION_MINUTES; i++)
        sum += lost[i];
    return sum;
}

/* Moves the counts on, so that lost[0] counts the present minute. */
static void age(struct contention *c, int64_t now_ms) {
    int64_t minute = now_ms / 60000, passed = minute - c->minute;
    if (passed <= 0)
        return;
    for (size_t i = CONTENTION_MINUTES; i-- > 0;)
        c->lost[i] = (int64_t)i >= passed ? c->lost[i - (size_t)passed] : 0;
    c->minute = minute;
}

void contention_note(struct shard *sh, const struct lock_key *key, uint64_t hash, int64_t now_ms) {
    if (!sh->contention)
        sh->contention = memory_zalloc(CONTENTION_SETS * CONTENTION_WAYS * sizeof(*sh->contention));
    struct contention *set = &sh->contention[(hash >> 8) % CONTENTION_SETS * CONTENTION_WAYS], *place = NULL;
    for (size_t i = 0; i < CONTENTION_WAYS; i++) {
        age(&set[i], now_ms);
        if (set[i].used && set[i].hash == hash) {
            set[i].lost[0]++;
            return;
        }
        if (!place || total(set[i].lost) < total(place->lost))
            place = &set[i];
    }
    *place = (struct contention){
        .hash = hash, .minute = place->minute, .lost = {1}, .db = key->db, .len = (uint32_t)key->len, .used = true};
    memcpy(place->name, key->name, kept(place));
}

void engine_each_contention(struct lock_engine *e, int64_t now_ms,
                            void (*fn)(void *arg, const struct lock_contention *c), void *arg) {
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
    for (size_t n = 0; sh->contention && n < CONTENTION_SETS * CONTENTION_WAYS; n++) {
        struct contention *c = &sh->contention[n];
        age(c, now_ms);
        if (total(c->lost) == 0)
            continue;
        struct lock_contention view = {.key = {.db = c->db, .name = c->name, .len = kept(c)}, .cut = kept(c) < c->len};
        const struct entry *en = view.cut ? NULL : entry_find(sh, &view.key, c->hash);
        for (const struct contender *w = en && en->live_fence ? entry_contender_list(en) : NULL; w; w = w->next)
            view.waiters += w->lost && w->lost_fence == en->live_fence;
        memcpy(view.lost, c->lost, sizeof(view.lost));
        fn(arg, &view);
    }
}

/* ---- times ------------------------------------------------------------------------------------- */

void lock_times_add(struct lock_times *to, const struct lock_times *from) {
    to->held_ms += from->held_ms;
    to->holds += from->holds;
    to->waited_ms += from->waited_ms;
    to->waits += from->waits;
    if (from->longest_hold_ms > to->longest_hold_ms)
        to->longest_hold_ms = from->longest_hold_ms;
    if (from->longest_wait_ms > to->longest_wait_ms)
        to->longest_wait_ms = from->longest_wait_ms;
}

static struct lock_times *times_of(struct shard *sh, const struct claim *c) {
    return c->workload ? &c->workload->times : &sh->others;
}

void claim_held(struct shard *sh, const struct claim *c, int64_t now_ms) {
    bool counts = !claim_ended(c) && c->fence && !c->peer->remote;
    int64_t end_ms = c->end_ms && c->end_ms < now_ms ? c->end_ms : now_ms;
    if (counts)
        lock_times_held(times_of(sh, c), end_ms > c->granted_ms ? end_ms - c->granted_ms : 0);
}

void claim_held_on(struct shard *sh, const struct claim *c) {
    struct lock_times *t = times_of(sh, c);
    if (c->peer->remote || c->end_ms < c->granted_ms)
        return;
    t->held_ms -= c->end_ms - c->granted_ms;
    t->holds--;
}

static void waited(struct lock_times *t, int64_t ms, int64_t in_all_ms) {
    t->waited_ms += ms;
    if (in_all_ms > t->longest_wait_ms)
        t->longest_wait_ms = in_all_ms;
}

void contention_waited(struct shard *sh, struct contender *w, const struct lock_plan *plan, int64_t now_ms) {
    if (!w->lost)
        w->lost_ms = w->counted_ms = now_ms;
    if (plan->rule) {
        struct workload *f = workload_get(sh, w->peer, plan->rule, plan->workload, &plan->key, now_ms);
        waited(&f->times, now_ms - w->counted_ms, now_ms - w->lost_ms);
        f->times.waits += !w->lost;
    }
    w->counted_ms = now_ms;
}

void engine_waited(struct lock_engine *e, const struct lock_plan *plan, int64_t ms, bool granted, int64_t now_ms) {
    struct shard *sh = ledger_shard(e, plan->hash);
    shard_lock(sh);
    const struct entry *en = entry_find(sh, &plan->key, plan->hash);
    const struct contender *w = en ? contender_find(en, plan->peer) : NULL;
    if (!w || !w->lost) { /* otherwise the wait is a part of the row of attempts, which counts as one */
        struct workload *f = workload_get(sh, plan->peer, plan->rule, plan->workload, &plan->key, now_ms);
        waited(&f->times, ms, ms);
        f->times.waits += granted; /* a refusal counts as a lost attempt */
    }
    shard_unlock(sh);
}

struct lock_times engine_other_times(struct lock_engine *e) {
    struct lock_times sum = {0};
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
    lock_times_add(&sum, &sh->others);
    return sum;
}

/* ---- lost attempts ----------------------------------------------------------------------------- */

struct ranking {
    struct lock_fight *out;
    size_t count, max;
};

/* Puts a lock into the list of the locks with most lost attempts. */
static void rank(void *arg, const struct lock_contention *c) {
    struct ranking *r = arg;
    struct lock_fight *out = r->out;
    uint64_t lost = total(c->lost);
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
