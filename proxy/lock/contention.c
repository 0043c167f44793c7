/*
 * Which locks are contended, for operators: lost attempts by key and minute, and by workload the times for which locks
 * were held and waited for. Decides nothing.
 *
 * For the keys each shard has a small table of sets of four. A key that finds its set full replaces the least contended
 * one, so that contended keys stay. A workload's times are a part of it; those of a forgotten workload go to the
 * shard's `others`.
 */
#include "proxy/lock/evidence.h"

#include "proxy/base/memory.h"

/* Moves the counts on, so that lost[0] counts the present minute, and adds them up. */
static void age(struct contention *c, int64_t now_ms) {
    int64_t minute = now_ms / 60000, passed = minute - c->minute;
    uint64_t all = 0;
    for (size_t i = CONTENTION_MINUTES; i-- > 0;) {
        if (passed > 0)
            c->of.lost[i] = (int64_t)i >= passed ? c->of.lost[i - (size_t)passed] : 0;
        all += c->of.lost[i];
    }
    c->minute = passed > 0 ? minute : c->minute;
    c->of.all = all < UINT32_MAX ? (uint32_t)all : UINT32_MAX;
}

void contention_note(struct shard *sh, const struct lock_key *key, uint64_t hash, int64_t now_ms) {
    if (!sh->contention)
        sh->contention = memory_zalloc(CONTENTION_SETS * CONTENTION_WAYS * sizeof(*sh->contention));
    struct contention *set = &sh->contention[(hash >> 8) % CONTENTION_SETS * CONTENTION_WAYS], *place = NULL;
    for (size_t i = 0; i < CONTENTION_WAYS; i++) {
        age(&set[i], now_ms);
        if (set[i].used && set[i].hash == hash) {
            set[i].of.lost[0]++;
            return;
        }
        if (!place || set[i].of.all < place->of.all)
            place = &set[i];
    }
    bool cut = key->len > CONTENTION_NAME_MAX;
    *place = (struct contention){
        .hash = hash,
        .minute = place->minute,
        .used = true,
        .of = {.db = key->db, .lost = {1}, .cut = cut, .name_len = cut ? CONTENTION_NAME_MAX : key->len}};
    memcpy(place->of.name, key->name, place->of.name_len);
}

void engine_each_contention(struct lock_engine *e, int64_t now_ms,
                            void (*fn)(void *arg, const struct lock_contention *c), void *arg) {
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
        for (size_t n = 0; sh->contention && n < CONTENTION_SETS * CONTENTION_WAYS; n++) {
            struct lock_contention *of = &sh->contention[n].of;
            const struct lock_key key = {of->db, of->name, of->name_len};
            age(&sh->contention[n], now_ms);
            of->waiters = 0;
            const struct entry *en = of->cut || of->all == 0 ? NULL : entry_find(sh, &key, sh->contention[n].hash);
            for (const struct contender *w = en && en->live_fence ? entry_contender_list(en) : NULL; w; w = w->next)
                of->waiters += w->lost && w->lost_fence == en->live_fence;
            if (of->all > 0)
                fn(arg, of);
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
    struct lock_contention *out;
    size_t count, max;
};

/* Puts a lock into the list of the locks with most lost attempts. */
static void rank(void *arg, const struct lock_contention *c) {
    struct ranking *r = arg;
    size_t at = r->count;
    while (at > 0 && r->out[at - 1].all < c->all)
        at--;
    if (at == r->max)
        return;
    size_t kept_count = r->count < r->max ? r->count : r->max - 1;
    memmove(&r->out[at + 1], &r->out[at], (kept_count - at) * sizeof(*c));
    r->out[at] = *c;
    r->count = kept_count + 1;
}

size_t engine_most_contended(struct lock_engine *e, int64_t now_ms, struct lock_contention *out, size_t max) {
    struct ranking ranking = {.out = out, .max = max};
    engine_each_contention(e, now_ms, rank, &ranking);
    return ranking.count;
}
