/*
 * What fences remember of leases: a tenure is the newest lease that a session has acquired on a key and has not
 * released itself.
 *
 *      acquired ──> tenure ──┬─ released by the session, or by a colleague of its pool ──> forgotten
 *                            └─ all else: its time, DEL by another connection, PROXY RELEASE ──> kept
 *
 * A claim answers another question: whose release may still come. A release that is believed of another connection ends
 * the claim. The session itself knows nothing of that release, and writes late. Its tenure therefore outlasts its
 * claim, until the session acquires the lock again, or closes.
 *
 * Only locks that a fence names have tenures.
 */
#include "proxy/lock/evidence.h"

#include "proxy/base/memory.h"

enum { TENURES_A_PEER = 1024 };

/* Finds a tenure as contender_find finds a contender: it walks both lists at once, and the shorter one ends the search.
 */
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
    TABLE_FOREACH(it, &sh->peers) {
        const struct peer *p = LIST_ENTRY(it, struct peer, link);
        LIST_FOREACH(of_peer, &p->claims) {
            const struct claim *c = LIST_ENTRY(of_peer, struct claim, of_peer);
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

bool writes_for_others(const struct lock_rule *rule, const struct workload *f, const struct peer *p) {
    bool pool = rule->owner == LOCK_OWNER_CLIENT || (f && f->pooled);
    return workload_pooled(f, p, rule) && (pool || !p->overlapped);
}

bool engine_has_tenure(struct lock_engine *e, const struct lock_session *s, uint32_t db) {
    bool has = false;
    SHARDS_FOREACH(sh, e, s->shards) {
        const struct peer *p = peer_find(sh, s->id);
        if (!p)
            continue;
        LIST_FOREACH(it, &p->tenures) {
            const struct tenure *t = LIST_ENTRY(it, struct tenure, of_peer);
            has = has || (t->entry->db == db && t->rule->fence_enforced);
        }
    }
    return has;
}
