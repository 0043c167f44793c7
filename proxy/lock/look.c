/*
 * What the engine shows to operators: counters, and the leases that are believed live. Changes nothing.
 */
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

const struct metric_table lock_counters = {stat_rows, sizeof(stat_rows) / sizeof(stat_rows[0])};

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

struct longest {
    int64_t now_ms, ms;
};

static void measure_entry(void *arg, struct table_link *link) {
    struct longest *l = arg;
    const struct entry *en = LIST_ENTRY(link, struct entry, link);
    for (const struct claim *c = en->claims; c; c = c->next) {
        int64_t left_ms = c->end_ms == 0 ? INT64_MAX : c->end_ms - l->now_ms;
        if (c->fence && claim_is_live(c, l->now_ms) && left_ms > l->ms)
            l->ms = left_ms;
    }
}

int64_t engine_longest_ms(struct lock_engine *e, int64_t now_ms) {
    struct longest l = {.now_ms = now_ms};
    SHARDS_FOREACH(sh, e, ALL_SHARDS) {
        struct table_walk at = {0};
        while (table_walk_step(&sh->entries, &at, WALK_STEP, measure_entry, &l))
            ;
    }
    return l.ms;
}

/* A view and its own copy of the texts. */
struct copied_view {
    struct lock_view view;
    char *text;
};

/* The leases that are wanted most, so far: a heap with the least wanted lease on top. */
struct chosen {
    struct copied_view *views;
    size_t count, max, bytes;
    bool (*less)(const struct copied_view *a, const struct copied_view *b); /* whether a is wanted less */
};

static bool older(const struct copied_view *a, const struct copied_view *b) {
    return a->view.since_ms != b->view.since_ms ? a->view.since_ms < b->view.since_ms : a->view.fence < b->view.fence;
}

static bool newer(const struct copied_view *a, const struct copied_view *b) {
    return older(b, a);
}

static void exchange(struct copied_view *a, struct copied_view *b) {
    struct copied_view t = *a;
    *a = *b;
    *b = t;
}

static void sink_down(struct chosen *n, size_t i) {
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n->count)
            return;
        if (child + 1 < n->count && n->less(&n->views[child + 1], &n->views[child]))
            child++;
        if (!n->less(&n->views[child], &n->views[i]))
            return;
        exchange(&n->views[child], &n->views[i]);
        i = child;
    }
}

static void keep_texts(struct copied_view *v) {
    size_t key_len = v->view.key.len;
    v->text = memory_alloc(key_len + v->view.client_len + 1);
    memcpy(v->text, v->view.key.name, key_len);
    memcpy(v->text + key_len, v->view.client, v->view.client_len);
    v->text[key_len + v->view.client_len] = '\0';
    v->view.key.name = v->text;
    v->view.client = v->text + key_len;
}

static size_t text_size(const struct copied_view *v) {
    return v->view.key.len + v->view.client_len;
}

/* The caller has made room for one more than `max`. */
static void offer(struct chosen *n, const struct lock_view *view) {
    struct copied_view v = {.view = *view};
    bool full = n->count == n->max || (n->count > 0 && n->bytes + text_size(&v) > WALK_BYTES);
    if (full && !n->less(&n->views[0], &v))
        return;
    keep_texts(&v);
    n->bytes += text_size(&v);
    size_t i = n->count++;
    n->views[i] = v;
    for (; i > 0 && n->less(&n->views[i], &n->views[(i - 1) / 2]); i = (i - 1) / 2)
        exchange(&n->views[i], &n->views[(i - 1) / 2]);
    while (n->count > n->max || (n->bytes > WALK_BYTES && n->count > 1)) {
        n->bytes -= text_size(&n->views[0]);
        memory_free(n->views[0].text);
        n->views[0] = n->views[--n->count];
        sink_down(n, 0);
    }
}

/* Whether a claim's lease was counted already. Several sessions may be the holder of a list lock, with a claim each
 * for the one lease. */
static bool counted(const struct entry *en, const struct claim *c, int64_t now_ms) {
    for (const struct claim *o = en->claims; c->shown && o != c; o = o->next)
        if (o->fence == c->fence && claim_is_live(o, now_ms))
            return true;
    return false;
}

struct lock_walk {
    struct chosen chosen;
    size_t shard, cap; /* the shard that is looked at now; how many views there is room for */
    bool only_live;
    struct table_walk at;
};

struct offering {
    struct lock_walk *walk;
    int64_t now_ms;
};

/* Makes room for one view more. */
static void walk_room(struct lock_walk *walk) {
    size_t most = walk->chosen.max + 1; /* offer needs one more */
    if (walk->chosen.count < walk->cap)
        return;
    walk->cap = 2 * walk->cap + 16 < most ? 2 * walk->cap + 16 : most;
    walk->chosen.views = memory_realloc(walk->chosen.views, walk->cap * sizeof(*walk->chosen.views));
}

static void offer_entry(void *arg, struct table_link *link) {
    struct offering *o = arg;
    struct entry *en = LIST_ENTRY(link, struct entry, link);
    for (struct claim *c = en->claims; c; c = c->next) {
        bool delayed = !o->walk->only_live && claim_is_delayed(c, o->now_ms);
        bool live = claim_is_live(c, o->now_ms) && !counted(en, c, o->now_ms);
        if (!c->fence || c->peer->remote || !(live || delayed))
            continue;
        struct lock_view v = {
            .key = entry_key(en),
            .client = c->peer->client->name,
            .client_len = c->peer->client->len,
            .session_id = c->peer->id,
            .one_shot_ms = claim_one_shot(c),
            .connected = !c->peer->closed || successor_attends(c),
            .fence = c->fence,
            .since_ms = c->granted_ms,
            .end_ms = c->end_ms,
            .delayed_ms = live ? 0 : c->end_ms + c->rule->lock_delay_ms,
            .renewals = c->renewals,
        };
        walk_room(o->walk);
        offer(&o->walk->chosen, &v);
    }
}

static int newest_first(const void *a, const void *b) {
    return older(a, b) ? 1 : older(b, a) ? -1 : 0;
}

static int oldest_first(const void *a, const void *b) {
    return newest_first(b, a);
}

struct lock_walk *engine_walk_new(size_t max) {
    struct lock_walk *walk = memory_zalloc(sizeof(*walk));
    walk->chosen.max = max;
    walk->chosen.less = older;
    return walk;
}

struct lock_walk *engine_walk_new_oldest(size_t max) {
    struct lock_walk *walk = engine_walk_new(max);
    walk->chosen.less = newer;
    walk->only_live = true;
    return walk;
}

void engine_walk_free(struct lock_walk *walk) {
    for (size_t i = 0; i < walk->chosen.count; i++)
        memory_free(walk->chosen.views[i].text);
    memory_free(walk->chosen.views);
    memory_free(walk);
}

bool engine_walk_step(struct lock_engine *e, struct lock_walk *walk, int64_t now_ms) {
    if (walk->shard == SHARDS || walk->chosen.max == 0)
        return false;
    struct shard *sh = &e->shards[walk->shard];
    struct offering offering = {.walk = walk, .now_ms = now_ms};
    shard_lock(sh);
    bool more = table_walk_step(&sh->entries, &walk->at, WALK_STEP, offer_entry, &offering);
    shard_unlock(sh);
    if (more)
        return true;
    walk->at = (struct table_walk){0};
    if (++walk->shard < SHARDS)
        return true;
    if (walk->chosen.count > 1)
        qsort(walk->chosen.views, walk->chosen.count, sizeof(*walk->chosen.views),
              walk->chosen.less == older ? newest_first : oldest_first);
    return false;
}

void engine_walk_each(const struct lock_walk *walk, void (*fn)(void *arg, const struct lock_view *v), void *arg) {
    for (size_t i = 0; i < walk->chosen.count; i++)
        fn(arg, &walk->chosen.views[i].view);
}

void engine_each_lease(struct lock_engine *e, int64_t now_ms, size_t max,
                       void (*fn)(void *arg, const struct lock_view *v), void *arg) {
    struct lock_walk *walk = engine_walk_new(max);
    while (engine_walk_step(e, walk, now_ms))
        ;
    engine_walk_each(walk, fn, arg);
    engine_walk_free(walk);
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
