/*
 * Workloads: what the proxy learns of one application's workers on one kind of lock, from what they do. Decides nothing
 * about a command.
 *
 * Facts: what is known of workloads beyond one run and one proxy. The sink is told a fact when it is learnt. The fact
 * comes back from Redis by engine_learnt, to all proxies, also to proxies that start later.
 *
 * The thresholds were found by simulation, with two aims. A pool is recognised after two releases. Workers with
 * connections of their own never count as a pool, whatever their losers send.
 */
#include "proxy/lock/evidence.h"

#include <stdio.h>

#include "proxy/base/memory.h"
#include "proxy/lock/thresholds.h"

enum {
    KEY_ATTEMPTS = 8,  /* a key with so many attempts is judged by its own counts */
    FADE_ATTEMPTS = 64 /* counts are halved above so many attempts */
};

/* ---- facts: what Redis has --------------------------------------------------------------------- */

static uint64_t fact_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct fact, link)->key;
}

static struct fact *fact_find(const struct shard *sh, uint64_t key) {
    TABLE_CHAIN(it, &sh->facts, key, struct fact, link)
        if (it->key == key)
            return it;
    return NULL;
}

static void fact_remove(struct shard *sh, struct fact *known) {
    table_remove(&sh->facts, &known->link, known->key);
    list_cut(&known->order);
    memory_free(known);
}

static struct fact *fact_first(const struct shard *sh) {
    return LIST_FIRST(&sh->confirmed, struct fact, order);
}

/* Changes what is known of a workload: `facts` hold now, `over` do not. Returns all that is known now. */
static unsigned fact_note(struct shard *sh, uint64_t key, unsigned facts, unsigned over, int64_t confirmed_ms) {
    struct fact *known = fact_find(sh, key);
    facts = ((known ? known->facts : 0) & ~over) | facts;
    if (facts & FACT_POOLED)
        facts &= ~(unsigned)FACT_DEDICATED;
    if (facts == 0) {
        if (known)
            fact_remove(sh, known);
        return 0;
    }
    if (known) {
        list_cut(&known->order);
    } else {
        if (sh->facts.count >= FACTS_A_SHARD)
            fact_remove(sh, fact_first(sh));
        known = memory_zalloc(sizeof(*known));
        known->key = key;
        known->confirmed_ms = confirmed_ms;
        table_insert(&sh->facts, &known->link, key);
    }
    list_append(&sh->confirmed, &known->order);
    known->facts = facts;
    if (known->confirmed_ms < confirmed_ms)
        known->confirmed_ms = confirmed_ms;
    return facts;
}

unsigned workload_facts(const struct workload *f) {
    bool dedicated = f->row >= WORKLOAD_ROW && !(f->facts & FACT_POOLED) && !f->crossed;
    return f->facts | (dedicated ? FACT_DEDICATED : 0u);
}

/* Gives the workload what another proxy or an earlier run has learnt. What this proxy has seen itself wins. Returns
 * whether this call has made the workload pooled. */
static bool workload_take(struct workload *f, unsigned facts, unsigned over) {
    bool pools = facts & ~f->facts & FACT_POOLED;
    f->facts &= ~(over & (FACT_LOSERS_RELEASE | FACT_LOSERS_QUIET));
    f->facts |= facts & (FACT_POOLED | FACT_LOSERS_RELEASE);
    if (!(f->facts & FACT_LOSERS_RELEASE))
        f->facts |= facts & FACT_LOSERS_QUIET;
    if ((over & FACT_DEDICATED) && !f->crossed) {
        f->crossed = true;
        f->row = 0;
    }
    if ((facts & FACT_DEDICATED) && !(f->facts & FACT_POOLED) && !f->crossed && f->row < WORKLOAD_ROW)
        f->row = WORKLOAD_ROW;
    return pools;
}

/* Tells the sink all that is known of the workload; under audit, once the rule is enforced. */
static void tell(struct workload *f, int64_t now_ms) {
    if (f->audited)
        return;
    const struct lock_sink *sink = &f->shard->engine->sink;
    unsigned facts = workload_facts(f);
    struct lock_facts told = {.identity = f->names,
                              .identity_len = f->identity_len,
                              .rule = f->names + f->identity_len,
                              .rule_len = f->rule_len,
                              .pattern = f->pattern,
                              .pattern_len = strlen(f->pattern),
                              .facts = facts,
                              .over = f->told & ~facts};
    f->told = (uint8_t)facts;
    f->told_ms = now_ms;
    (void)fact_note(f->shard, f->key, facts, told.over, now_ms);
    if (sink->learnt)
        sink->learnt(sink->arg, &told);
}

/* L7: what was learnt by one harm is not learnt by another one, after a restart or at another proxy. */
void facts_tell(struct workload *f) {
    if (workload_facts(f) != f->told)
        tell(f, f->used_ms);
}

bool workload_learn(struct workload *f, enum workload_fact fact) {
    if ((f->facts & fact) || (fact == FACT_LOSERS_QUIET && (f->facts & FACT_LOSERS_RELEASE)))
        return false;
    f->facts |= fact;
    if (fact == FACT_LOSERS_RELEASE)
        f->facts &= ~(unsigned)FACT_LOSERS_QUIET;
    facts_tell(f);
    return true;
}

/* ---- the table --------------------------------------------------------------------------------- */

static uint64_t workload_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct workload, link)->key;
}

void workload_init(struct shard *sh) {
    list_init(&sh->idle_workloads);
    table_init(&sh->workloads, workload_hash);
    list_init(&sh->confirmed);
    table_init(&sh->facts, fact_hash);
}

struct workload *workload_of_key(const struct shard *sh, uint64_t key) {
    TABLE_CHAIN(it, &sh->workloads, key, struct workload, link)
        if (it->key == key)
            return it;
    return NULL;
}

static void workload_remove(struct shard *sh, struct workload *f) {
    lock_times_add(&sh->others, &f->times);
    table_remove(&sh->workloads, &f->link, f->key);
    list_cut(&f->idle);
    memory_free(f);
}

static struct workload *workload_new(struct shard *sh, uint64_t key, const struct peer *p, const struct lock_rule *rule,
                                     const struct lock_key *name, int64_t now_ms) {
    char pattern[ADVISE_PATTERN_MAX];
    if (sh->workloads.count >= WORKLOADS_A_SHARD)
        /* the workload goes that no session has joined for the longest time */
        LIST_EACH(idle, &sh->idle_workloads, struct workload, idle) {
            if (idle->refs > 0)
                continue;
            workload_remove(sh, idle);
            break;
        }
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
    struct fact *known = fact_find(sh, key);
    if (known && now_ms - known->confirmed_ms > FACT_MS) {
        fact_remove(sh, known);
    } else if (known) {
        (void)workload_take(f, known->facts, 0);
        f->told = (uint8_t)known->facts;
        f->told_ms = known->confirmed_ms;
    }
    return f;
}

void workload_trim(struct shard *sh, int64_t now_ms) {
    struct workload *f = LIST_FIRST(&sh->idle_workloads, struct workload, idle);
    if (!f)
        return;
    bool confirms = f->told && now_ms - f->told_ms >= FACT_REFRESH_MS && f->used_ms > f->told_ms;
    if (confirms || workload_facts(f) != f->told)
        tell(f, now_ms);
    if (f->refs == 0 && now_ms - f->used_ms > WORKLOAD_IDLE_MS) {
        workload_remove(sh, f);
    } else { /* the next call looks at the next workload */
        list_cut(&f->idle);
        list_append(&sh->idle_workloads, &f->idle);
    }
}

void workload_clear(struct shard *sh) {
    for (struct workload *f; (f = LIST_FIRST(&sh->idle_workloads, struct workload, idle));)
        workload_remove(sh, f);
    table_clear(&sh->workloads);
    for (struct fact *known; (known = fact_first(sh));)
        fact_remove(sh, known);
    table_clear(&sh->facts);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

/* The session's statistics in the workload with this number; NULL: it has none. */
static struct session_stats *session_stats_of(const struct peer *p, uint64_t key) {
    LIST_EACH(h, &p->session_stats, struct session_stats, of_peer)
        if (h->workload->key == key)
            return h;
    return NULL;
}

struct session_stats *session_stats_find(const struct peer *p, const struct workload *f) {
    return f ? session_stats_of(p, f->key) : NULL;
}

inline struct workload *workload_of(struct shard *sh, const struct peer *p, uint64_t number) {
    struct session_stats *h = session_stats_of(p, number);
    return h ? h->workload : workload_of_key(sh, number);
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
    return rule_pools(rule, p->overlapped || (f && (f->facts & FACT_POOLED) && !workload_dedicated(f, p)));
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

/* `whence`: another proxy has learnt it, or nothing. */
static void report_pooled(struct shard *sh, const struct workload *f, const struct lock_key *key, const char *whence,
                          int64_t now_ms) {
    struct lock_incident on = {
        .time_ms = now_ms, .key = *key, .client = f->client, .rule = f->rule, .identity = f->client};
    incident_report(sh, INCIDENT_SHARED, &on,
                    "%sreleases come over other connections than acquisitions: keys like %s are the client's from now "
                    "on, whichever connection speaks",
                    whence, f->pattern);
}

void workload_pool(struct shard *sh, struct workload *f, const struct lock_key *key, int64_t now_ms) {
    if (workload_learn(f, FACT_POOLED))
        report_pooled(sh, f, key, "", now_ms);
}

void workload_vote(struct shard *sh, struct workload *f, struct peer *a, struct peer *b, const struct lock_key *key,
                   int64_t now_ms) {
    workload_crossed(f, a, b);
    if (f->votes < CROSSINGS)
        f->votes++;
    if (f->votes >= CROSSINGS)
        workload_pool(sh, f, key, now_ms);
}

void engine_each_workload(struct lock_engine *e, void (*fn)(void *arg, const struct lock_workload *f), void *arg) {
    SHARDS_FOREACH(sh, e, ALL_SHARDS)
        LIST_EACH(f, &sh->idle_workloads, const struct workload, idle) {
            struct lock_workload view = {.client = f->client,
                                         .rule = f->rule,
                                         .pattern = f->pattern,
                                         .pooled = f->facts & FACT_POOLED,
                                         .times = &f->times};
            fn(arg, &view);
        }
}

/* ---- what losers send ---------------------------------------------------------------------------- */

static void tally_add(struct tally *t, enum tally_what what) {
    t->of[what] += 1;
    bool fades = t->of[TALLY_LOST] + t->of[TALLY_ACQUIRED] > FADE_ATTEMPTS;
    for (int i = 0; fades && i < TALLIES; i++)
        t->of[i] /= 2;
}

void workload_count(struct workload *f, struct key_stats *c, enum tally_what what) {
    tally_add(&f->n, what);
    if (c)
        tally_add(&c->n, what);
}

void workload_uncount(struct workload *f, struct key_stats *c) {
    f->n.of[TALLY_RELEASED] -= f->n.of[TALLY_RELEASED] >= 1;
    if (c)
        c->n.of[TALLY_RELEASED] -= c->n.of[TALLY_RELEASED] >= 1;
}

bool workload_surplus(const struct workload *f, const struct key_stats *c) {
    bool key = c && c->n.of[TALLY_LOST] + c->n.of[TALLY_ACQUIRED] >= KEY_ATTEMPTS;
    const float *of = key ? c->n.of : f->n.of;
    return surplus_is_losers(of[TALLY_RELEASED], of[TALLY_ACQUIRED], of[TALLY_LOST]);
}

/* ---- a contended key ------------------------------------------------------------------------------ */

struct key_stats *key_stats_find(const struct entry *en, const struct workload *f) {
    struct key_stats *c = en && f ? entry_key_stats(en) : NULL;
    while (c && c->workload != f)
        c = c->next;
    return c;
}

/* ---- what comes back from Redis -------------------------------------------------------------------- */

void engine_learnt(struct lock_engine *e, const struct lock_facts *facts, int64_t now_ms) {
    uint64_t pattern = advise_pattern_text_hash(facts->pattern, facts->pattern_len);
    uint64_t client = hash_bytes(&e->clients.seed, facts->identity, facts->identity_len);
    uint64_t key = workload_number_of(client, lock_rule_hash(facts->rule, facts->rule_len), pattern);
    int64_t confirmed_ms = now_ms - facts->age_ms;
    if (facts->age_ms > FACT_MS)
        return;
    struct shard *sh = ledger_shard(e, pattern);
    shard_lock(sh);
    unsigned known = fact_note(sh, key, facts->facts, facts->over, confirmed_ms);
    struct workload *f = workload_of_key(sh, key);
    if (f) {
        f->told = (uint8_t)known;
        f->told_ms = confirmed_ms > f->told_ms ? confirmed_ms : f->told_ms;
        if (workload_take(f, known, facts->over))
            report_pooled(sh, f, &(struct lock_key){.name = f->pattern, .len = strlen(f->pattern)},
                          "another proxy has learnt that ", now_ms);
    }
    shard_unlock(sh);
}

bool engine_elsewhere(const struct lock_engine *e) {
    return atomic_load_explicit(&e->elsewhere, memory_order_relaxed);
}

void engine_may_forget(struct lock_engine *e, int64_t now_ms) {
    atomic_store_explicit(&e->may_forget_ms, now_ms, memory_order_relaxed);
}

uint64_t engine_begun(struct lock_engine *e) {
    return atomic_load_explicit(&e->attempts, memory_order_relaxed);
}
