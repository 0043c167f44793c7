/* What the engine shows to operators: counters, and the leases that are believed live. Changes nothing. */
#include "proxy/lock/lease.h"

#include <stdio.h>
#include <stdlib.h>

#include "proxy/base/memory.h"

enum {
    WALK_STEP = 2000,       /* keys: far less than a millisecond */
    WALK_BYTES = 512 * 1024 /* of the names of keys and clients that are kept */
};

static const struct metric_row stat_rows[] = {
#define STAT_ROW(field, name, type, workload, label, value, help)                                                      \
    {name, type, workload, label, value, help, offsetof(struct lock_stats, field)},
    LOCK_STATS(STAT_ROW)
#undef STAT_ROW
};

const struct metric_table lock_counters = {stat_rows, ARRAY_SIZE(stat_rows)};

void engine_stats(struct lock_engine *e, struct lock_stats *stats) {
    *stats = (struct lock_stats){0};
    SHARDS_FOREACH(sh, e, ALL_SHARDS) {
#define STAT_ADD(field, ...) stats->field += sh->stats.field;
        LOCK_STATS(STAT_ADD)
#undef STAT_ADD
        stats->leases += sh->live;
        stats->claims += sh->claims;
        stats->keys += sh->entries.count;
        stats->facts += sh->facts.count;
        histogram_add(&stats->waits, &sh->stats.waits);
        for (size_t k = 0; k < INCIDENT_KINDS; k++)
            stats->incidents[k] += sh->stats.incidents[k];
    }
}

int64_t engine_longest_ms(struct lock_engine *e, int64_t now_ms) {
    int64_t longest_ms = 0;
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
        CLAIMS_FOREACH(c, sh) {
            int64_t left_ms = c->end_ms == 0 ? INT64_MAX : c->end_ms - now_ms;
            if (c->fence && claim_is_live(c, now_ms) && left_ms > longest_ms)
                longest_ms = left_ms;
        }
    return longest_ms;
}

struct copied_view {
    struct lock_view view;
    char *text; /* the view's */
};

struct lock_walk {
    struct copied_view *views;                        /* the leases that are wanted most so far, and some more */
    size_t count, max, bytes;                         /* bytes: of the views' texts */
    int (*order)(const void *one, const void *other); /* the lease that is wanted more first */
    bool cut;                                         /* views[max - 1] is a bound: a lease behind it is not wanted */
    bool only_live;
    int64_t now_ms;
    size_t shard; /* that is looked at now */
    struct table_walk at;
};

static int newest_first(const void *one, const void *other) {
    const struct lock_view *a = &((const struct copied_view *)one)->view,
                           *b = &((const struct copied_view *)other)->view;
    if (a->since_ms != b->since_ms)
        return a->since_ms < b->since_ms ? 1 : -1;
    return (a->fence < b->fence) - (a->fence > b->fence);
}

static int oldest_first(const void *one, const void *other) {
    return newest_first(other, one);
}

/* Sorts the leases, and drops those that are wanted least: beyond `max`, or beyond WALK_BYTES of texts. */
static void walk_cut(struct lock_walk *walk) {
    if (walk->count > 1)
        qsort(walk->views, walk->count, sizeof(*walk->views), walk->order);
    while (walk->count > walk->max || (walk->bytes > WALK_BYTES && walk->count > 1)) {
        struct copied_view *last = &walk->views[--walk->count];
        walk->bytes -= last->view.key.len + last->view.client_len;
        memory_free(last->text);
    }
    walk->cut = walk->count == walk->max;
}

/* Whether the lease was counted already: several sessions may be the holder of a list lock, with a claim each. */
static bool counted(const struct entry *en, const struct claim *c, int64_t now_ms) {
    for (const struct claim *o = en->claims; c->shown && o != c; o = o->next)
        if (o->fence == c->fence && claim_is_live(o, now_ms))
            return true;
    return false;
}

static void offer_entry(void *arg, struct table_link *link) {
    struct lock_walk *walk = arg;
    struct entry *en = LIST_ENTRY(link, struct entry, link);
    for (struct claim *c = en->claims; c; c = c->next) {
        const struct lock_client *client = c->peer->client;
        bool delayed = !walk->only_live && claim_is_delayed(c, walk->now_ms);
        bool live = claim_is_live(c, walk->now_ms) && !counted(en, c, walk->now_ms);
        if (!c->fence || c->peer->remote || !(live || delayed))
            continue;
        struct copied_view v = {.view = {
                                    .key = entry_key(en),
                                    .client_len = client->len,
                                    .session_id = c->peer->id,
                                    .one_shot_ms = claim_one_shot(c),
                                    .connected = !c->peer->closed || successor_attends(c),
                                    .fence = c->fence,
                                    .since_ms = c->granted_ms,
                                    .end_ms = c->end_ms,
                                    .delayed_ms = live ? 0 : c->end_ms + c->rule->lock_delay_ms,
                                    .renewals = c->renewals,
                                }};
        if (walk->cut && walk->order(&v, &walk->views[walk->max - 1]) > 0)
            continue;
        v.text = memory_alloc(en->len + client->len + 1);
        v.view.key.name = memcpy(v.text, en->name, en->len);
        v.view.client = memcpy(v.text + en->len, client->name, client->len);
        v.text[en->len + client->len] = '\0';
        *ARRAY_ADD(walk->views, walk->count) = v;
        walk->bytes += en->len + client->len;
        /* twice as many as wanted are sorted at once, so that a lease costs little */
        if (walk->count >= 2 * walk->max || walk->bytes > 2 * WALK_BYTES)
            walk_cut(walk);
    }
}

struct lock_walk *engine_walk_new(size_t max, bool oldest) {
    struct lock_walk *walk = memory_zalloc(sizeof(*walk));
    walk->max = max;
    walk->order = oldest ? oldest_first : newest_first;
    walk->only_live = oldest;
    return walk;
}

void engine_walk_free(struct lock_walk *walk) {
    for (size_t i = 0; i < walk->count; i++)
        memory_free(walk->views[i].text);
    MEMORY_FREE_ALL(walk->views, walk);
}

bool engine_walk_step(struct lock_engine *e, struct lock_walk *walk, int64_t now_ms) {
    if (walk->shard == SHARDS || walk->max == 0)
        return false;
    struct shard *sh = &e->shards[walk->shard];
    walk->now_ms = now_ms;
    shard_lock(sh);
    bool more = table_walk_step(&sh->entries, &walk->at, WALK_STEP, offer_entry, walk);
    shard_unlock(sh);
    if (more)
        return true;
    walk->at = (struct table_walk){0};
    if (++walk->shard < SHARDS)
        return true;
    walk_cut(walk);
    return false;
}

void engine_walk_each(const struct lock_walk *walk, void (*fn)(void *arg, const struct lock_view *v), void *arg) {
    for (size_t i = 0; i < walk->count; i++)
        fn(arg, &walk->views[i].view);
}

void engine_standing(struct lock_engine *e, const struct lock_session *s, const struct lock_key *key, int64_t now_ms,
                     struct lock_standing *out) {
    struct entry *en;
    struct shard *sh = ledger_lock(e, key, ledger_hash(e, key, NULL), &en);
    *out = (struct lock_standing){.since_ms = 0};
    const struct claim *c = entry_claims(en);
    while (c && (!c->fence || !claim_is_live(c, now_ms)))
        c = c->next;
    const struct contender *loser = contender_of(sh, en, s);
    out->lost = loser && loser->lost;
    if (c) {
        out->since_ms = c->granted_ms;
        out->own = c->peer->id == s->id && !c->peer->remote;
        out->pooled = claim_pooled(c);
        snprintf(out->client, sizeof(out->client), "%.*s", (int)c->peer->client->len, c->peer->client->name);
    }
    shard_unlock(sh);
}
