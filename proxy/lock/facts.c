/*
 * Facts: what is known of workloads beyond the memory of one run and one proxy. The sink is told a fact when it is
 * learnt. The fact comes back from Redis by engine_learnt, to this proxy, to other proxies, and to proxies that start
 * later. This file decides nothing: workload.c says what follows from a fact.
 */
#include "proxy/base/memory.h"
#include "proxy/lock/evidence.h"

/* ---- the table ------------------------------------------------------------------------------------- */

static uint64_t fact_hash(const struct table_link *link) {
    return LIST_ENTRY(link, struct fact, link)->key;
}

void facts_init(struct shard *sh) {
    list_init(&sh->confirmed);
    table_init(&sh->facts, fact_hash);
}

static struct fact *fact_find(const struct shard *sh, uint64_t key) {
    struct table_link *it = table_chain(&sh->facts, key);
    while (it && LIST_ENTRY(it, struct fact, link)->key != key)
        it = it->next;
    return it ? LIST_ENTRY(it, struct fact, link) : NULL;
}

static void fact_remove(struct shard *sh, struct fact *known) {
    table_remove(&sh->facts, &known->link, known->key);
    list_cut(&known->order);
    memory_free(known);
}

static struct fact *fact_first(const struct shard *sh) {
    struct list_node *n = list_first(&sh->confirmed);
    return n ? LIST_ENTRY(n, struct fact, order) : NULL;
}

void facts_clear(struct shard *sh) {
    for (struct fact *known; (known = fact_first(sh));)
        fact_remove(sh, known);
    table_clear(&sh->facts);
}

/* Changes what is known of a workload: `facts` hold now, `over` do not hold any more. Returns all that is known now,
 * as bits of enum workload_fact. */
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

/* ---- workloads -------------------------------------------------------------------------------------- */

void facts_recall(struct workload *f, int64_t now_ms) {
    struct fact *known = fact_find(f->shard, f->key);
    if (!known)
        return;
    if (now_ms - known->confirmed_ms > FACT_MS) {
        fact_remove(f->shard, known);
        return;
    }
    (void)workload_take(f, known->facts, 0);
    f->told = (uint8_t)known->facts;
    f->told_ms = known->confirmed_ms;
}

/* Tells the sink all that is known of the workload. Audit changes nothing in Redis: the sink is told once the rule is
 * enforced. */
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

void facts_refresh(struct workload *f, int64_t now_ms) {
    bool confirms = f->told && now_ms - f->told_ms >= FACT_REFRESH_MS && f->used_ms > f->told_ms;
    if (confirms || workload_facts(f) != f->told)
        tell(f, now_ms);
}

/* ---- what comes back from Redis -------------------------------------------------------------------- */

static void report_pooled(struct shard *sh, const struct workload *f, int64_t now_ms) {
    struct occasion on = {.now_ms = now_ms,
                          .key = {.name = f->pattern, .len = strlen(f->pattern)},
                          .client = f->client,
                          .rule = f->rule,
                          .identity = f->client};
    incident_report(sh, INCIDENT_SHARED, &on,
                    "another proxy has learnt that releases come over other connections than acquisitions: keys like "
                    "%s are the client's from now on, whichever connection speaks",
                    f->pattern);
}

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
            report_pooled(sh, f, now_ms);
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
