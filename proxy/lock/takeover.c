/*
 * Leases that the owner has left at another proxy: this proxy takes them over for a client that has come back here.
 */
#include "proxy/lock/lease.h"

/* The bit in the ids of peers that stand for a session at another proxy. Sessions' ids are counted, and are lower. */
#define ELSEWHERE ((uint64_t)1 << 63)

static uint64_t group_number(const struct lock_left *left) {
    return hash_bytes(&(struct hash_seed){0, 0}, left->group, strlen(left->group)) | ELSEWHERE;
}

/* Returns the first session that has come since the lease was left, and may be its owner. `any`: it may be the
 * successor of another orphan. NULL: there is none. The clients' mutex is held. */
static struct lock_session *come_back(const struct lock_client *client, const struct lock_left *left, uint64_t group,
                                      bool any) {
    struct lock_session *first = NULL;
    for (const struct list_node *n = client->sessions.prev; n != &client->sessions; n = n->prev) {
        struct lock_session *s = LIST_ENTRY(n, struct lock_session, of_client);
        if (s->came_ms < left->left_ms - EARLY_MS)
            break;
        if (s->orphan && s->orphan->group == group)
            return s;
        if (any || !s->orphan)
            first = s;
    }
    return first;
}

bool engine_awaits(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t *login) {
    if (strncmp(left->token, e->process, PROCESS_ID_LEN) == 0)
        return false;
    struct lock_client *client = client_get(&e->clients, left->identity, left->identity_len, false);
    bool any = !rule || rule_pools(rule, false);
    pthread_mutex_lock(&e->clients.mutex);
    const struct lock_session *s = come_back(client, left, group_number(left), any);
    if (s)
        *login = s->came_login;
    pthread_mutex_unlock(&e->clients.mutex);
    client_put(&e->clients, client);
    return s != NULL;
}

uint64_t engine_token(struct lock_engine *e, char out[LOCK_TOKEN_MAX]) {
    uint64_t number = ledger_number(e);
    token_write(e, number, out);
    return number;
}

/* The peer that stands for the session at the other proxy. All shards share one orphan of the group's leases, which
 * waits or has a successor. */
static struct peer *peer_elsewhere(struct shard *sh, const struct lock_left *left) {
    struct lock_engine *e = sh->engine;
    uint64_t group = group_number(left);
    struct peer *p = peer_find(sh, group);
    if (p)
        return p;
    struct lock_client *client = client_get(&e->clients, left->identity, left->identity_len, false);
    p = peer_add(sh, group, client);
    client_put(&e->clients, client);
    p->closed = true;
    p->closed_at = 0; /* before all sessions of this proxy came */
    pthread_mutex_lock(&e->clients.mutex);
    const struct lock_session *s = come_back(p->client, left, group, false);
    if (s && s->orphan) {
        p->orphan = s->orphan;
        p->orphan->refs++;
    } else {
        p->orphan = orphan_new(p->client, left->left_ms);
        p->orphan->group = group;
    }
    pthread_mutex_unlock(&e->clients.mutex);
    return p;
}

void engine_inherited(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t login,
                      uint64_t token, const struct lock_result *r, int64_t now_ms) {
    uint64_t pattern, hash = ledger_hash(e, &left->key, &pattern);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    struct entry *en = entry_get(sh, &left->key, hash);
    struct peer *p = peer_elsewhere(sh, left);
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (c->fence == r->fence && c->peer->remote) /* it stood for the lease, which becomes this proxy's own */
            claim_drop(sh, c);
    }
    struct claim *c = claim_add(sh, en, p, rule, token, r->fence);
    c->workload = workload_ref(workload_find(sh, p, rule, pattern));
    c->login = login;
    c->granted_ms = now_ms;
    c->told = atomic_load(&e->attempts);
    c->reported = true;
    successor_may_come(sh, c);
    successor_counts(sh, c);
    lease_set(sh, c, r->pttl_ms, true, now_ms, now_ms);
    if (r->fence >= en->live_fence && r->fence > en->gone_fence) {
        en->live_fence = r->fence;
        en->live_since = c->told;
    } else {
        lease_end(sh, c, LEASE_TAKEN, now_ms);
    }
    if (!lease_schedule(sh, c, now_ms))
        entry_settle(sh, en);
    shard_unlock(sh);
}
