/*
 * Successors: a client whose connection was cut comes back over another connection, with the same identity. The proxy
 * renews for it what the old one held. Knows no commands.
 *
 *      session closes ──> its orphan: the leases that the proxy renewed ──> waits, for as long as they last
 *                                                                             │
 *      session comes to the identity, after that or up to a second before ────┴──> its successor: they are renewed
 *
 * An orphan is what a closed session has left. Its successor is the session that goes on with it.
 *
 * A crashed worker's lock has to be free within its lease. But a worker that was started in its place looks the same as
 * a worker that has come back. Therefore:
 *
 * - An orphan has one successor, the first session that came, and a session is the successor of one orphan.
 * - A session that was connected long before is no successor.
 * - A session that is refused any lock is no successor, and the orphan goes to the session that came next: workers that
 * were started anew would each keep the lock that the next one asks for.
 * - A session that has acquired several other locks of the workload and has let go of them, and has not shown that it
 * knows the orphan's lock, does a new worker's work.
 * - A successor that leaves before a lease was renewed for it may have been any worker. After a few of them, the orphan
 * gets no successor any more.
 *
 * If a client's connections count as pooled, the leases of all of them are left when the last connection closes, and
 * the next session of the client is there for all. A refusal says little there, since a colleague may hold the lock: a
 * lease that was asked for in vain since then is renewed for a few leases more.
 *
 * A client may come back at another proxy. The sink is told of each lease that waits. The other proxy takes the lease
 * over, under a token of its own, for the first session that came there, as if a session of its own had left it.
 *
 * Two kinds of locks have no successors. Under `owner connection` another session's commands would not count for the
 * lease. The nodes of a list lock live and end with their owner's connection.
 */
#include "proxy/lock/lease.h"
#include "proxy/base/mutex.h"

#include <stdio.h>

enum {
    LOOK_MIN_MS = 50,
    LOOK_MAX_MS = 1000, /* a lease that waits for a successor looks for one at these intervals */
    ASKED_LEASES = 10,
    OTHERS = 3 /* locks of the workload that a worker takes and lets go of, before it counts as started anew */
};

void successor_may_come(struct shard *sh, struct claim *c) {
    bool common = claim_pooled(c);
    if (common)
        successor_over(sh, c);
    if (common || c->succession != SUCCESSION_COUNTS)
        claim_succession_enter(c, common ? SUCCESSION_COMMON : SUCCESSION_WAITS);
}

bool successor_left(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    struct peer *p = c->peer;
    if (!c->renewing || !claim_is_live(c, now_ms) || c->rule->owner == LOCK_OWNER_CONNECTION || c->queue)
        return false;
    successor_may_come(sh, c);
    pthread_mutex_lock(&e->clients.mutex);
    if (c->succession == SUCCESSION_COMMON) {
        p->client->brief = 0;
    } else {
        if (!p->orphan) /* the session closed before the answer came */
            p->orphan = orphan_new(p->client, now_ms);
        orphan_count(c);
    }
    pthread_mutex_unlock(&e->clients.mutex);
    if (!successor_attends(c))
        successor_tell(sh, c, c->end_ms, now_ms);
    return true;
}

void successor_proved(struct shard *sh, struct claim *c, const struct peer *p, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    if (!c->peer->closed || p->closed || !p->session || c->queue)
        return;
    if (!claim_heritable(c) && c->leased &&
        c->rule->renew != LOCK_RENEW_NEVER) { /* the lease has become the proxy's own since the session left */
        c->renewing = true;
        c->renewing = successor_left(sh, c, now_ms);
    }
    if (c->succession != SUCCESSION_COUNTS)
        return;
    MUTEX_GUARD(&e->clients.mutex);
    struct orphan *st = c->peer->orphan;
    if (!p->session->orphan && st->successor != p->session)
        orphan_attend(st, p->session);
}

bool successor_attends(const struct claim *c) {
    if (!claim_heritable(c))
        return false;
    return c->succession == SUCCESSION_COMMON ? atomic_load(&c->peer->client->back)
                                              : atomic_load(&c->peer->orphan->attended);
}

int64_t successor_look_ms(const struct claim *c) {
    int64_t wait = c->period_ms / 20;
    return wait < LOOK_MIN_MS ? LOOK_MIN_MS : wait > LOOK_MAX_MS ? LOOK_MAX_MS : wait;
}

static bool lost_to(const struct contender *w, const struct claim *c) {
    return w && w->lost && w->lost_fence == c->fence;
}

/* Whether the successor does the work of a worker that was started anew: it has let go of other locks of the lease's
 * workload. The locks that it still has may be a part of the work under the lease. */
static bool works_elsewhere(struct shard *sh, const struct peer *p, const struct claim *c) {
    uint64_t pattern;
    struct lock_key key = entry_key(c->entry);
    (void)ledger_hash(sh->engine, &key, &pattern);
    const struct session_stats *h = session_stats_find(p, workload_find(sh, p, c->rule, pattern));
    const struct contender *w = contender_find(c->entry, p);
    return h && h->attempts >= p->claim_count + OTHERS && !(w && recognised_for(w, c));
}

/* Returns the id of the orphan's successor; 0: it has none. If it is `refused`, the next one takes its place. */
static uint64_t successor_of(struct lock_engine *e, struct orphan *st, uint64_t refused) {
    MUTEX_GUARD(&e->clients.mutex);
    if (st->successor && st->successor->id == refused)
        orphan_offer(st);
    return st->successor ? st->successor->id : 0;
}

bool successor_keeps(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    if (c->succession == SUCCESSION_COMMON) {
        struct lock_client *client = c->peer->client;
        pthread_mutex_lock(&e->clients.mutex);
        int64_t since_ms = client->back_ms;
        pthread_mutex_unlock(&e->clients.mutex);
        bool long_ago = now_ms - since_ms > ASKED_LEASES * c->period_ms;
        const struct contender *w = long_ago ? entry_contender_list(c->entry) : NULL;
        while (w && !(w->peer->client == client && lost_to(w, c)))
            w = w->next;
        if (w) { /* a session has asked in vain */
            claim_succession_enter(c, SUCCESSION_NONE);
            c->renewing = false;
            return false;
        }
        atomic_store(&client->kept, true);
        return true;
    }
    struct orphan *st = c->peer->orphan;
    uint64_t id = successor_of(e, st, 0);
    while (id) {
        const struct peer *p = peer_find(sh, id);
        if (!p || !(lost_to(contender_find(c->entry, p), c) || works_elsewhere(sh, p, c)))
            break;
        id = successor_of(e, st, id);
    }
    if (id)
        atomic_store(&st->kept, true);
    return id != 0;
}

void successor_tell(struct shard *sh, const struct claim *c, int64_t until_ms, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    const struct lock_client *client = c->peer->client;
    if (!e->sink.left || c->queue || c->rule->owner == LOCK_OWNER_CONNECTION)
        return;
    struct lock_left left = {
        .key = entry_key(c->entry),
        .login = c->login,
        .identity = client->name,
        .identity_len = client->len,
        .left_ms = now_ms,
        .until_ms = until_ms,
    };
    pthread_mutex_lock(&e->clients.mutex);
    if (c->peer->leaving && c->peer->orphan) /* its many leases are handled for seconds */
        left.left_ms = c->peer->orphan->left_ms;
    pthread_mutex_unlock(&e->clients.mutex);
    token_write(e, c->token, left.token);
    snprintf(left.group, sizeof(left.group), "%.*s:%llu", PROCESS_ID_LEN, e->process, (unsigned long long)c->peer->id);
    e->sink.left(e->sink.arg, &left);
}

/* ---- leases that were left at another proxy ------------------------------------------------------ */

static uint64_t group_number(const struct lock_left *left) {
    return hash_bytes(&(struct hash_seed){0, 0}, left->group, strlen(left->group)) | PEER_ELSEWHERE;
}

/* Returns the first session that has come since the lease was left, and may be its owner (`any`: also if it is another
 * orphan's successor); NULL: there is none. The clients' mutex is held. */
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
    MUTEX_GUARD(&e->clients.mutex);
    const struct lock_session *s = come_back(p->client, left, group, false);
    if (s && s->orphan) {
        p->orphan = s->orphan;
        p->orphan->refs++;
    } else {
        p->orphan = orphan_new(p->client, left->left_ms);
        p->orphan->group = group;
    }
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
    lease_settle(sh, c, now_ms);
    shard_unlock(sh);
}
