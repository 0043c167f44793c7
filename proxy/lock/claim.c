/*
 * A claim by itself: for how long it is kept, which sessions may use it, and what may be said of its lease.
 *
 * A tenure is what fences remember: the newest lease that a session has acquired on a key and has not released itself.
 *
 *      acquired ──> tenure ──┬─ released by the session, or by a colleague of its pool ──> forgotten
 *                            └─ all else: its time, DEL by another connection, PROXY RELEASE ──> kept
 *
 * A release that is believed of another connection ends the claim. The session knows nothing of it, and writes late.
 * Its tenure outlasts its claim, until the session acquires the lock again, or closes. Only locks that a fence names
 * have tenures.
 */
#include "proxy/lock/evidence.h"

#include "proxy/base/memory.h"

enum {
    MEMORY_LEASES = 2, /* the default of claim-memory, in leases */
    MEMORY_LEAST_MS = 1000,
    MEMORY_MOST_MS = 60000,
    LONG_LEASES = 20, /* how long a dedicated session's claim is kept after its lease, in leases */
    LONG_LEAST_MS = 60000,
    LONG_MOST_MS = 60 * 60 * 1000,
    TENURES_A_PEER = 1024
};

/* ---- clients that release, and throttles ---------------------------------------------------------- */

static uint64_t releaser_hash(const struct lock_rule *rule, const struct lock_client *c) {
    return c->hash ^ rule->hash;
}

void releaser_note(struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c) {
    uint64_t hash = releaser_hash(rule, c);
    atomic_store_explicit(&e->releasers[hash % RELEASERS], hash, memory_order_relaxed);
}

bool releaser_known(const struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c) {
    uint64_t hash = releaser_hash(rule, c);
    return atomic_load_explicit(&e->releasers[hash % RELEASERS], memory_order_relaxed) == hash;
}

/* ---- sessions that may use a claim ----------------------------------------------------------------- */

static bool may_be_pooled(const struct claim *c) {
    return c->workload && !workload_dedicated(c->workload, c->peer);
}

bool claim_spent_elsewhere(const struct lock_engine *e, const struct claim *c) {
    if (claim_pooled(c))
        return true;
    return atomic_load(&e->elsewhere) && c->granted_ms > atomic_load(&e->may_forget_ms) &&
           c->rule->owner == LOCK_OWNER_AUTO && may_be_pooled(c);
}

static int64_t within(int64_t n, int64_t least, int64_t most) {
    return n < least ? least : n > most ? most : n;
}

int64_t claim_memory(const struct claim *c) {
    if (c->rule->claim_memory_ms >= 0)
        return c->rule->claim_memory_ms;
    return within(MEMORY_LEASES * claim_length(c), MEMORY_LEAST_MS, MEMORY_MOST_MS);
}

/* L5: a late release without its claim would be believed. A dedicated session's claim is therefore kept for long: it
 * uses up no other worker's release. A client that has never released under the rule (a throttle) is not expected to
 * release, and its claims are kept for a minute. */
int64_t claim_deadline(const struct shard *sh, const struct claim *c) {
    bool pooled = claim_pooled(c);
    if (c->peer->remote || (pooled && c->peer->closed))
        return c->end_ms;
    if (c->extra && c->extra->deadline_ms)
        return c->extra->deadline_ms;
    bool a_colleagues = c->self_lost && c->rule->owner != LOCK_OWNER_CONNECTION; /* the lease may be a colleague's */
    if (pooled || a_colleagues)
        return c->end_ms + claim_memory(c);
    int64_t memory = LONG_LEAST_MS;
    if (releaser_known(sh->engine, c->rule, c->peer->client))
        memory = within(LONG_LEASES * claim_length(c), LONG_LEAST_MS, LONG_MOST_MS);
    return c->end_ms + (memory > c->rule->claim_memory_ms ? memory : c->rule->claim_memory_ms);
}

bool claim_is_over(const struct shard *sh, const struct claim *c, int64_t now_ms) {
    bool ended = claim_ended(c) || (c->end_ms && now_ms >= c->end_ms);
    if (!ended || c->uses || claim_asked(c) || claim_is_delayed(c, now_ms)) /* PROXY LOCKS shows the delay */
        return false;
    /* `owner connection`: no other session may use a closed one's claim; `owner any`: a release needs none */
    bool left = c->peer->closed && (c->rule->owner == LOCK_OWNER_CONNECTION || c->rule->owner == LOCK_OWNER_ANY);
    return left || now_ms >= claim_deadline(sh, c);
}

inline bool claim_is_live(const struct claim *c, int64_t now_ms) {
    return !claim_ended(c) && c->fence == c->entry->live_fence && (!c->end_ms || now_ms < c->end_ms);
}

inline bool claim_is_delayed(const struct claim *c, int64_t now_ms) {
    return c->delays && claim_ended(c) && now_ms < c->end_ms + c->rule->lock_delay_ms;
}

struct claim *claim_live(const struct entry *en, const struct lock_client *client, int64_t now_ms) {
    for (struct claim *c = entry_claims(en); c; c = c->next)
        if (c->peer->client == client && c->fence && claim_is_live(c, now_ms))
            return c;
    return NULL;
}

bool claim_suspect(struct claim *c, uint32_t suspects) {
    if (suspects > SUSPECTS_MAX)
        suspects = SUSPECTS_MAX;
    if (suspects <= c->suspects)
        return false;
    c->suspects = suspects & SUSPECTS_MAX;
    c->vouched = false;
    return true;
}

void claim_expect_until(struct claim *c, int64_t deadline_ms) {
    struct claim_extra *extra = claim_extra(c);
    if (!extra->deadline_ms || deadline_ms < extra->deadline_ms)
        extra->deadline_ms = deadline_ms;
}

bool claim_made_way(const struct claim *c, int64_t now_ms) {
    enum { SLACK_MS = 50 };
    if (c->peer->remote || !may_be_pooled(c))
        return false;
    if (claim_ended(c))
        return c->lease != LEASE_ENDED;
    return claim_is_live(c, now_ms) && (!c->end_ms || c->end_ms > now_ms + SLACK_MS);
}

bool recognised_no_more(const struct entry *en, const struct contender *w) {
    if (!w->recognised)
        return false;
    for (const struct claim *c = entry_claims(en); c; c = c->next)
        if (recognised_for(w, c))
            return false;
    return true;
}

/* ---- tenures ---------------------------------------------------------------------------------------- */

/* As contender_find: walks both lists at once, and the shorter one ends the search. */
struct tenure *tenure_find(const struct entry *en, const struct peer *p) {
    struct tenure *of_entry = entry_tenures(en);
    const struct list_node *n = p->tenures.prev;
    for (; of_entry && n != &p->tenures; n = n->prev, of_entry = of_entry->next) {
        struct tenure *t = LIST_ENTRY(n, struct tenure, of_peer);
        if (t->entry == en)
            return t;
        if (of_entry->peer == p)
            return of_entry;
    }
    return NULL;
}

void tenure_begin(struct shard *sh, const struct claim *c, const struct lock_rule *rule) {
    struct entry *en = c->entry;
    struct peer *p = c->peer;
    if (!rule->fenced || !c->fence || p->closed || p->remote)
        return;
    struct tenure *t = tenure_find(en, p);
    if (t && c->fence < t->fence) /* a later lease's answer came first */
        return;
    if (t)
        tenure_remove(t);
    if (p->tenure_count >= TENURES_A_PEER) {
        struct tenure *old = LIST_ENTRY(list_first(&p->tenures), struct tenure, of_peer);
        struct entry *left = old->entry;
        tenure_remove(old);
        if (left != en)
            entry_settle(sh, left);
    }
    struct tenure **first = &entry_contenders(en)->tenures;
    t = memory_zalloc(sizeof(*t));
    t->entry = en;
    t->peer = p;
    t->at = first;
    t->next = *first;
    if (t->next)
        t->next->at = &t->next;
    *first = t;
    list_append(&p->tenures, &t->of_peer);
    p->tenure_count++;
    t->fence = c->fence;
    t->rule = rule;
    lock_rules_ref(t->rule->set);
    t->workload = workload_ref(c->workload);
}

/* The loop walks peers, and not entries: a tenure that makes room for another one may free its entry. */
void engine_fences_came(struct lock_engine *e, const struct lock_rules *rules) {
    SHARDS_FOREACH(sh, e, lock_rules_fence_count(rules) > 0 ? ALL_SHARDS : 0)
        TABLE_EACH(p, &sh->peers, const struct peer, link) {
            LIST_EACH(c, &p->claims, const struct claim, of_peer) {
                const struct lock_rule *rule = lock_rules_rule_of(rules, c->entry->name, c->entry->len);
                if (rule && rule->mode != LOCK_MODE_OFF)
                    tenure_begin(sh, c, rule);
            }
        }
}

void tenure_renumber(const struct claim *c, uint64_t fence) {
    struct tenure *t = tenure_find(c->entry, c->peer);
    if (t && t->fence == c->fence)
        t->fence = fence;
}

bool engine_has_tenure(struct lock_engine *e, const struct lock_session *s, uint32_t db) {
    bool has = false;
    SHARDS_FOREACH(sh, e, s->shards) {
        const struct peer *p = peer_find(sh, s->id);
        if (!p)
            continue;
        LIST_EACH(t, &p->tenures, const struct tenure, of_peer)
            has = has || (t->entry->db == db && t->rule->fence_enforced);
    }
    return has;
}
