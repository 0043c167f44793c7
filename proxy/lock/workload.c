/*
 * Workloads: what the proxy learns of one application's workers on one kind of lock, from what they do. This file
 * decides nothing about a command. attribute.c asks it, and learn.c and apply.c tell it.
 *
 * The thresholds were found by simulation, with two aims. A pool is recognised after two releases. Workers with
 * connections of their own never count as a pool, whatever their losers send.
 */
#include "proxy/lock/evidence.h"

#include <stdio.h>

#include "proxy/base/memory.h"
#include "proxy/lock/thresholds.h"

enum {
    FIRST_BUCKETS = 16,
    KEY_ATTEMPTS = 8,   /* a key with so many attempts is judged by its own counts */
    FADE_ATTEMPTS = 64, /* counts are halved above so many attempts */
    FOLLOWED_MAX = 16,
    FOLLOWED_LEAST = 4
};

/* ---- the table --------------------------------------------------------------------------------- */

/* L6: what one application does never changes what another application's commands mean. */
uint64_t workload_number_of(uint64_t client, uint64_t rule, uint64_t pattern) {
    return hash_number(client ^ hash_number(rule ^ pattern));
}

uint64_t workload_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern) {
    return workload_number_of(p->client->hash, rule->hash, pattern);
}

static uint64_t workload_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct workload, link)->key;
}

void workload_init(struct shard *sh) {
    list_init(&sh->idle_workloads);
    table_init(&sh->workloads, workload_hash);
    facts_init(sh);
}

struct workload *workload_of_key(const struct shard *sh, uint64_t key) {
    struct table_link *it = table_chain(&sh->workloads, key);
    while (it && LIST_ENTRY(it, struct workload, link)->key != key)
        it = it->next;
    return it ? LIST_ENTRY(it, struct workload, link) : NULL;
}

static void workload_remove(struct shard *sh, struct workload *f) {
    lock_times_add(&sh->others, &f->times);
    table_remove(&sh->workloads, &f->link, f->key);
    list_cut(&f->idle);
    memory_free(f);
}

/* Frees the workload that no session has joined for the longest time, if nothing refers to it. Otherwise the next
 * such workload. */
static void make_room(struct shard *sh) {
    LIST_FOREACH(it, &sh->idle_workloads) {
        struct workload *f = LIST_ENTRY(it, struct workload, idle);
        if (f->refs == 0) {
            workload_remove(sh, f);
            return;
        }
    }
}

static struct workload *workload_new(struct shard *sh, uint64_t key, const struct peer *p, const struct lock_rule *rule,
                                     const struct lock_key *name, int64_t now_ms) {
    char pattern[ADVISE_PATTERN_MAX];
    if (sh->workloads.count >= WORKLOADS_A_SHARD)
        make_room(sh);
    struct workload *f = memory_zalloc(sizeof(*f) + p->client->len + rule->pattern_len);
    f->key = key;
    f->shard = sh;
    f->identity_len = p->client->len;
    f->rule_len = rule->pattern_len;
    memcpy(f->names, p->client->name, f->identity_len);
    memcpy(f->names + f->identity_len, rule->pattern, f->rule_len);
    advise_pattern(name->name, name->len, pattern);
    snprintf(f->pattern, sizeof(f->pattern), "%s", pattern);
    snprintf(f->client, sizeof(f->client), "%s", p->client->name);
    snprintf(f->rule, sizeof(f->rule), "%s", rule->pattern);
    table_insert(&sh->workloads, &f->link, key);
    list_append(&sh->idle_workloads, &f->idle);
    facts_recall(f, now_ms);
    return f;
}

void workload_trim(struct shard *sh, int64_t now_ms) {
    struct list_node *n = list_first(&sh->idle_workloads);
    struct workload *f = n ? LIST_ENTRY(n, struct workload, idle) : NULL;
    if (!f)
        return;
    facts_refresh(f, now_ms);
    if (f->refs == 0 && now_ms - f->used_ms > WORKLOAD_IDLE_MS) {
        workload_remove(sh, f);
    } else { /* the next call looks at the next workload */
        list_cut(&f->idle);
        list_append(&sh->idle_workloads, &f->idle);
    }
}

void workload_clear(struct shard *sh) {
    for (struct list_node *n; (n = list_first(&sh->idle_workloads));)
        workload_remove(sh, LIST_ENTRY(n, struct workload, idle));
    table_clear(&sh->workloads);
    facts_clear(sh);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

/* The session's statistics in the workload with this number; NULL: it has none. */
static struct session_stats *session_stats_of(const struct peer *p, uint64_t key) {
    LIST_FOREACH(it, &p->session_stats) {
        struct session_stats *h = LIST_ENTRY(it, struct session_stats, of_peer);
        if (h->workload->key == key)
            return h;
    }
    return NULL;
}

struct session_stats *session_stats_find(const struct peer *p, const struct workload *f) {
    return f ? session_stats_of(p, f->key) : NULL;
}

inline struct workload *workload_of(struct shard *sh, const struct peer *p, uint64_t number) {
    struct session_stats *h = session_stats_of(p, number);
    return h ? h->workload : workload_of_key(sh, number);
}

struct workload *workload_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t pattern) {
    return rule ? workload_of(sh, p, workload_number(p, rule, pattern)) : NULL;
}

struct workload *workload_get(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t number,
                              const struct lock_key *key, int64_t now_ms) {
    struct workload *f = workload_of(sh, p, number);
    if (!f)
        f = workload_new(sh, number, p, rule, key, now_ms);
    f->used_ms = now_ms;
    f->audited = rule->mode == LOCK_MODE_AUDIT;
    return f;
}

struct workload *workload_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                               const struct lock_key *key, int64_t now_ms) {
    struct session_stats *h = session_stats_of(p, number);
    if (!h) {
        if (p->session_stats_count >= SESSION_STATS_A_PEER)
            session_stats_free(p, LIST_ENTRY(p->session_stats.prev, struct session_stats, of_peer));
        h = memory_zalloc(sizeof(*h));
        h->workload = workload_ref(workload_get(sh, p, rule, number, key, now_ms));
        list_cut(&h->workload->idle);
        list_append(&sh->idle_workloads, &h->workload->idle);
        p->session_stats_count++;
        list_prepend(&p->session_stats, &h->of_peer);
    } else if (p->session_stats.next != &h->of_peer) {
        list_cut(&h->of_peer);
        list_prepend(&p->session_stats, &h->of_peer);
    }
    h->attempts++;
    h->workload->used_ms = now_ms;
    h->workload->audited = rule->mode == LOCK_MODE_AUDIT;
    return h->workload;
}

/* ---- pooled and dedicated sessions ----------------------------------------------------------------- */

bool workload_dedicated(const struct workload *f, const struct peer *p) {
    const struct session_stats *h = f->row >= WORKLOAD_ROW ? NULL : session_stats_find(p, f);
    return rows_dedicated(f->row, h ? h->row : 0, WORKLOAD_ROW);
}

inline bool rule_pools(const struct lock_rule *rule, bool overlapped) {
    enum lock_owner owner = rule ? rule->owner : LOCK_OWNER_AUTO;
    return owner == LOCK_OWNER_CLIENT || (owner == LOCK_OWNER_AUTO && overlapped);
}

bool workload_pooled(const struct workload *f, const struct peer *p, const struct lock_rule *rule) {
    return rule_pools(rule, p->overlapped || (f && f->pooled && !workload_dedicated(f, p)));
}

void workload_crossed(struct workload *f, struct peer *a, struct peer *b) {
    struct session_stats *ha = a ? session_stats_find(a, f) : NULL, *hb = b ? session_stats_find(b, f) : NULL;
    f->row = 0;
    if (!f->crossed) {
        f->crossed = true;
        facts_tell(f);
    }
    if (ha)
        ha->row = 0;
    if (hb)
        hb->row = 0;
}

void workload_pool(struct shard *sh, struct workload *f, const struct lock_key *key, int64_t now_ms) {
    if (f->pooled)
        return;
    f->pooled = true;
    facts_tell(f);
    struct occasion on = {.now_ms = now_ms, .key = *key, .client = f->client, .rule = f->rule, .identity = f->client};
    incident_report(
        sh, INCIDENT_SHARED, &on,
        "releases come over other connections than acquisitions: keys like %s are the client's from now on, "
        "whichever connection speaks",
        f->pattern);
}

void workload_vote(struct shard *sh, struct workload *f, struct peer *a, struct peer *b, const struct lock_key *key,
                   int64_t now_ms) {
    workload_crossed(f, a, b);
    if (f->votes < CROSSINGS)
        f->votes++;
    if (f->votes >= CROSSINGS)
        workload_pool(sh, f, key, now_ms);
}

void workload_uncrossed(struct workload *f, struct peer *p) {
    struct session_stats *h = session_stats_find(p, f);
    if (f->row < UINT8_MAX && ++f->row == WORKLOAD_ROW)
        facts_tell(f);
    if (h && h->row < UINT8_MAX)
        h->row++;
}

void engine_each_workload(struct lock_engine *e, void (*fn)(void *arg, const struct lock_workload *f), void *arg) {
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
    LIST_FOREACH(it, &sh->idle_workloads) {
        const struct workload *f = LIST_ENTRY(it, struct workload, idle);
        struct lock_workload view = {
            .client = f->client, .rule = f->rule, .pattern = f->pattern, .pooled = f->pooled, .times = &f->times};
        fn(arg, &view);
    }
}

/* ---- facts: what other runs and proxies know, too -------------------------------------------------- */

void workload_releases_lost(struct workload *f) {
    if (f->losers_release)
        return;
    f->losers_release = true;
    f->losers_quiet = false;
    facts_tell(f);
}

void workload_quiet(struct workload *f) {
    if (f->losers_quiet || f->losers_release)
        return;
    f->losers_quiet = true;
    facts_tell(f);
}

unsigned workload_facts(const struct workload *f) {
    bool dedicated = f->row >= WORKLOAD_ROW && !f->pooled && !f->crossed;
    return (f->pooled ? FACT_POOLED : 0u) | (f->losers_release ? FACT_LOSERS_RELEASE : 0u) |
           (dedicated ? FACT_DEDICATED : 0u) | (f->losers_quiet ? FACT_LOSERS_QUIET : 0u);
}

bool workload_take(struct workload *f, unsigned facts, unsigned over) {
    bool pools = (facts & FACT_POOLED) && !f->pooled;
    f->pooled |= pools;
    if (over & FACT_LOSERS_RELEASE)
        f->losers_release = false;
    f->losers_release |= (facts & FACT_LOSERS_RELEASE) != 0;
    if (over & FACT_LOSERS_QUIET)
        f->losers_quiet = false;
    f->losers_quiet |= (facts & FACT_LOSERS_QUIET) && !f->losers_release;
    if ((over & FACT_DEDICATED) && !f->crossed) {
        f->crossed = true;
        f->row = 0;
    }
    if ((facts & FACT_DEDICATED) && !f->pooled && !f->crossed && f->row < WORKLOAD_ROW)
        f->row = WORKLOAD_ROW;
    return pools;
}

/* ---- what losers send ---------------------------------------------------------------------------- */

void workload_followed(struct workload *f, bool followed) {
    f->followed = (uint16_t)(f->followed << 1 | (followed ? 1u : 0u));
    if (f->follow_count < FOLLOWED_MAX)
        f->follow_count++;
}

bool workload_losers_expire(const struct workload *f) {
    unsigned bits = f->followed & ((1u << f->follow_count) - 1);
    /* F2: three quarters of at least four losses were followed by an EXPIRE. */
    return f->follow_count >= FOLLOWED_LEAST && 4 * (unsigned)__builtin_popcount(bits) >= 3u * f->follow_count;
}

static void tally_add(struct tally *t, enum tally_what what) {
    *(what == TALLY_RELEASED ? &t->releases : what == TALLY_ACQUIRED ? &t->acquired : &t->lost) += 1;
    if (t->lost + t->acquired > FADE_ATTEMPTS) {
        t->releases /= 2;
        t->acquired /= 2;
        t->lost /= 2;
    }
}

void workload_count(struct workload *f, struct key_stats *c, enum tally_what what) {
    tally_add(&f->n, what);
    if (c)
        tally_add(&c->n, what);
}

void workload_uncount(struct workload *f, struct key_stats *c) {
    f->n.releases -= f->n.releases >= 1 ? 1 : 0;
    if (c)
        c->n.releases -= c->n.releases >= 1 ? 1 : 0;
}

bool workload_surplus(const struct workload *f, const struct key_stats *c) {
    const struct tally *n = c && c->n.lost + c->n.acquired >= KEY_ATTEMPTS ? &c->n : &f->n;
    return surplus_is_losers(n->releases, n->acquired, n->lost); /* each lost attempt may have sent one */
}

/* ---- a contended key ------------------------------------------------------------------------------ */

struct key_stats *key_stats_find(const struct entry *en, const struct workload *f) {
    struct key_stats *c = en && f ? entry_key_stats(en) : NULL;
    while (c && c->workload != f)
        c = c->next;
    return c;
}

struct key_stats *key_stats_get(struct entry *en, struct workload *f) {
    struct key_stats *c = key_stats_find(en, f);
    if (c)
        return c;
    c = memory_zalloc(sizeof(*c));
    c->workload = workload_ref(f);
    struct contenders *contenders = entry_contenders(en);
    c->next = contenders->key_stats;
    contenders->key_stats = c;
    for (const struct claim *held = en->claims; held; held = held->next)
        if (held->workload == f) {
            if (held->valued)
                key_stats_value(c, held->value);
            if (!claim_ended(held))
                workload_count(f, c, TALLY_ACQUIRED);
        }
    return c;
}

void key_stats_value(struct key_stats *c, uint64_t value) {
    c->values[c->value_next] = value;
    c->value_next = (uint8_t)((c->value_next + 1) % KEY_STATS_VALUES);
    if (c->value_count < KEY_STATS_VALUES)
        c->value_count++;
}

bool key_stats_varies(const struct key_stats *c, uint64_t value) {
    for (unsigned i = 0; i < c->value_count; i++)
        if (c->values[i] != value)
            return true;
    return false;
}

struct loss losses_take(struct losses *l) {
    struct loss oldest = l->at[0];
    memmove(l->at, l->at + 1, --l->count * sizeof(l->at[0]));
    return oldest;
}

bool losses_over(const struct losses *l, int64_t before_ms) {
    return l->count == KEY_STATS_DEBTS || (l->count > 0 && l->at[0].time_ms < before_ms);
}

void losses_add(struct losses *l, int64_t now_ms, uint64_t session_id) {
    l->at[l->count++] = (struct loss){.time_ms = now_ms, .session_id = session_id};
}
