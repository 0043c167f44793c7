/*
 * Successors: a client whose connection was cut comes back over another connection, with the same identity. The proxy
 * renews for the new connection what the old one held. Knows no commands.
 *
 *      session closes ──> its orphan: the leases that the proxy renewed ──> waits, for as long as they last
 *                                                                             │
 *      session comes to the identity, after that or up to a second before ────┴──> its successor: they are renewed
 *
 * An orphan is what a closed session has left. Its successor is the session that goes on with it: the successor of the
 * closed session.
 *
 * A crashed worker's lock has to be free within its lease. But a worker that was started in its place looks the same as
 * a worker that has come back. Therefore:
 *
 * - An orphan has one successor, the first session that came, and a session is the successor of one orphan.
 * - A session that was connected long before is no successor.
 * - A session that is refused any lock is no successor, and the orphan goes to the session that came next. Workers that
 * were started anew are refused: each of them would keep the lock that the next worker asks for.
 * - A successor that leaves before a lease was renewed for it may have been any worker. After a few successors of this
 * kind, the orphan gets no successor any more.
 *
 * If a client's connections count as pooled, no connection is one worker's. The leases of all of them are left when the
 * last connection closes, and the next session of the client is there for all of them. A refusal says little there,
 * since a colleague may hold the lock. But a lease whose lock was asked for in vain since then is renewed for a few
 * leases more, and not for ever.
 *
 * A client may come back at another proxy. The sink is told of each lease that waits. The other proxy takes the lease
 * over, under a token of its own, for the first session that came there. From then on it treats the lease as if a
 * session of its own had left it.
 *
 * Two kinds of locks have no successors. Under `owner connection` another session's commands would not count for the
 * lease. The nodes of a list lock live and end with their owner's connection.
 */
#include "proxy/lock/state.h"

#include <stdio.h>

#include "proxy/base/memory.h"

enum {
    EARLY_MS = 1000, /* the new connection may come before the proxy notices the old one's end */
    BRIEF_MAX = 3,   /* an orphan gets no successor after more successors that left before a renewal */
    LOOK_MIN_MS = 50,
    LOOK_MAX_MS = 1000, /* a lease that waits for a successor looks for one at these intervals */
    ASKED_LEASES = 10
};

/* What a closed session has left. All fields but the atomics are under the clients' mutex. */
struct orphan {
    struct list_node of_client; /* of its client's orphans that wait for a successor */
    struct lock_client *client;
    struct lock_session *successor; /* NULL: it waits for a successor, or gets none any more */
    size_t refs;                    /* the peers of the closed sessions that left it, and a session that closes */
    uint64_t tried;                 /* `came` of its last successor */
    int64_t left_ms;
    uint64_t group;  /* of an orphan that was left at another proxy; otherwise 0 */
    unsigned leases; /* live leases, of sessions that do not count as pooled */
    unsigned brief;
    atomic_bool attended; /* it has a successor */
    atomic_bool kept;     /* a lease was renewed for the successor */
};

/* ---- successors, with the clients' mutex held --------------------------------------------------------- */

static void attend(struct orphan *st, struct lock_session *s) {
    list_remove(&st->of_client);
    st->successor = s;
    st->tried = s->came;
    atomic_store(&st->kept, false);
    atomic_store(&st->attended, true);
    s->orphan = st;
    atomic_store(&s->attends, true);
}

static void unattend(struct orphan *st) {
    if (!st->successor)
        return;
    st->successor->orphan = NULL;
    atomic_store(&st->successor->attends, false);
    st->successor = NULL;
    atomic_store(&st->attended, false);
}

/* The first orphan that waits for a successor and has a live lease. */
static struct orphan *first_waiting(const struct lock_client *client) {
    LIST_FOREACH(it, &client->orphans) {
        struct orphan *st = LIST_ENTRY(it, struct orphan, of_client);
        if (st->leases > 0)
            return st;
    }
    return NULL;
}

/* Gives an orphan to the first session that came in time and after the orphan's last successor. If there is none, the
 * orphan waits. */
static void offer(struct orphan *st) {
    struct lock_session *first = NULL;
    struct list_node *all = &st->client->sessions;
    for (struct list_node *n = all->prev; n != all && st->leases > 0; n = n->prev) {
        struct lock_session *s = LIST_ENTRY(n, struct lock_session, of_client);
        if (s->came_ms < st->left_ms - EARLY_MS || s->came <= st->tried)
            break;
        if (!s->orphan)
            first = s;
    }
    list_remove(&st->of_client);
    if (first)
        attend(st, first);
    else
        list_append(&st->client->orphans, &st->of_client);
}

static struct orphan *orphan_new(struct lock_client *client, int64_t now_ms) {
    struct orphan *st = memory_zalloc(sizeof(*st));
    list_init(&st->of_client);
    st->client = client;
    st->left_ms = now_ms;
    st->refs = 1;
    return st;
}

/* ---- sessions come and go ------------------------------------------------------------------------ */

void successor_come(struct lock_engine *e, struct lock_session *s, int64_t now_ms) {
    struct lock_client *client = s->client;
    pthread_mutex_lock(&e->clients.mutex);
    list_append(&client->sessions, &s->of_client);
    s->came = ++client->comings;
    s->came_ms = now_ms;
    s->came_login = s->login;
    struct orphan *waiting = first_waiting(client);
    if (waiting)
        attend(waiting, s);
    if (!atomic_load(&client->back) && client->brief <= BRIEF_MAX) {
        client->back_ms = now_ms;
        atomic_store(&client->kept, false);
        atomic_store(&client->back, true);
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void successor_refused(struct lock_engine *e, const struct peer *p) {
    if (p->closed || !p->session || !atomic_load(&p->session->attends))
        return;
    pthread_mutex_lock(&e->clients.mutex);
    struct orphan *st = p->session->orphan;
    if (st) {
        unattend(st);
        offer(st);
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void successor_go(struct lock_engine *e, struct lock_session *s, bool closes, int64_t now_ms) {
    struct lock_client *client = s->client;
    pthread_mutex_lock(&e->clients.mutex);
    list_remove(&s->of_client);
    struct orphan *st = s->orphan;
    if (atomic_load(&e->leaving)) { /* a session that this process disconnects counts as connected */
        if (st)
            st->successor = NULL;
        s->orphan = NULL;
        pthread_mutex_unlock(&e->clients.mutex);
        return;
    }
    if (st) {
        unattend(st);
        st->left_ms = now_ms;
        st->brief += !atomic_load(&st->kept);
        if (st->brief <= BRIEF_MAX)
            offer(st);
    }
    if (client->open == 0 && atomic_load(&client->back)) {
        client->brief += !atomic_load(&client->kept);
        atomic_store(&client->back, false);
    }
    if (closes && st && st->brief <= BRIEF_MAX) {
        s->left = st;
        st->refs++;
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void successor_peer_closed(struct lock_engine *e, struct lock_session *s, struct peer *p, int64_t now_ms) {
    if (list_empty(&p->claims))
        return;
    pthread_mutex_lock(&e->clients.mutex);
    if (!s->left)
        s->left = orphan_new(p->client, now_ms);
    p->orphan = s->left;
    p->orphan->refs++;
    pthread_mutex_unlock(&e->clients.mutex);
}

static void let_go(struct lock_engine *e, struct orphan **at) {
    struct orphan *st = *at;
    if (!st)
        return;
    *at = NULL;
    pthread_mutex_lock(&e->clients.mutex);
    if (--st->refs == 0) {
        unattend(st);
        list_remove(&st->of_client);
        memory_free(st);
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void successor_gone(struct lock_engine *e, struct lock_session *s) {
    let_go(e, &s->left);
}

void successor_peer_freed(struct lock_engine *e, struct peer *p) {
    let_go(e, &p->orphan);
}

void successor_peer_cleared(struct peer *p) {
    if (p->orphan && --p->orphan->refs == 0)
        memory_free(p->orphan);
    p->orphan = NULL;
}

/* ---- leases -------------------------------------------------------------------------------------- */

/* Counts a live lease of its peer's orphan. With its first live lease, the orphan looks for a successor. */
static void count_lease(struct claim *c) {
    struct orphan *st = c->peer->orphan;
    if (c->succession == SUCCESSION_COUNTS)
        return;
    claim_succession_enter(c, SUCCESSION_COUNTS);
    if (++st->leases == 1 && !st->successor && st->brief <= BRIEF_MAX)
        offer(st);
}

void successor_counts(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_WAITS || !c->peer->orphan)
        return;
    pthread_mutex_lock(&sh->engine->clients.mutex);
    count_lease(c);
    pthread_mutex_unlock(&sh->engine->clients.mutex);
}

void successor_over(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_COUNTS)
        return;
    struct orphan *st = c->peer->orphan, *next;
    claim_succession_enter(c, SUCCESSION_WAITS);
    pthread_mutex_lock(&sh->engine->clients.mutex);
    if (--st->leases == 0 && st->successor) {
        unattend(st);
        list_append(&st->client->orphans, &st->of_client);
        next = first_waiting(st->client);
        if (next)
            offer(next);
    }
    pthread_mutex_unlock(&sh->engine->clients.mutex);
}

/* The lease may have a successor from now on. If it counts for its orphan, it goes on counting, unless its client's
 * sessions have come to be pooled. */
static void heritable(struct shard *sh, struct claim *c) {
    bool common = claim_shared(c);
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
    heritable(sh, c);
    pthread_mutex_lock(&e->clients.mutex);
    if (c->succession == SUCCESSION_COMMON) {
        p->client->brief = 0;
    } else {
        if (!p->orphan) /* the session closed before the answer came */
            p->orphan = orphan_new(p->client, now_ms);
        count_lease(c);
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
    pthread_mutex_lock(&e->clients.mutex);
    struct orphan *st = c->peer->orphan;
    if (!p->session->orphan && st->successor != p->session) {
        unattend(st);
        attend(st, p->session);
    }
    pthread_mutex_unlock(&e->clients.mutex);
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

/* Whether a session of the client has lost an attempt against this lease. */
static bool asked_for(const struct claim *c) {
    for (const struct contender *w = entry_contender_list(c->entry); w; w = w->next)
        if (w->peer->client == c->peer->client && lost_to(w, c))
            return true;
    return false;
}

static bool keeps_common(struct lock_engine *e, struct claim *c, int64_t now_ms) {
    struct lock_client *client = c->peer->client;
    pthread_mutex_lock(&e->clients.mutex);
    int64_t since_ms = client->back_ms;
    pthread_mutex_unlock(&e->clients.mutex);
    if (now_ms - since_ms > ASKED_LEASES * c->period_ms && asked_for(c)) {
        claim_succession_enter(c, SUCCESSION_NONE);
        c->renewing = false;
        return false;
    }
    atomic_store(&client->kept, true);
    return true;
}

/* Returns the id of the orphan's successor; 0: it has none. If the successor is `refused`, a session that this lease
 * has refused, it does not hold the lock, and the next successor takes its place. */
static uint64_t successor_of(struct lock_engine *e, struct orphan *st, uint64_t refused) {
    pthread_mutex_lock(&e->clients.mutex);
    if (st->successor && st->successor->id == refused) {
        unattend(st);
        offer(st);
    }
    uint64_t id = st->successor ? st->successor->id : 0;
    pthread_mutex_unlock(&e->clients.mutex);
    return id;
}

bool successor_keeps(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (c->succession == SUCCESSION_COMMON)
        return keeps_common(sh->engine, c, now_ms);
    struct orphan *st = c->peer->orphan;
    uint64_t id = successor_of(sh->engine, st, 0);
    while (id) {
        const struct peer *p = peer_find(sh, id);
        if (!p || !lost_to(contender_find(c->entry, p), c))
            break;
        id = successor_of(sh->engine, st, id);
    }
    if (id)
        atomic_store(&st->kept, true);
    return id != 0;
}

/* ---- at another proxy ------------------------------------------------------------------------------ */

/* The bit in the ids of peers that stand for a session at another proxy. Sessions' ids are counted, and are lower. */
#define ELSEWHERE ((uint64_t)1 << 63)

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
    bool any = !rule || client_shares(rule, false);
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

/* Gives the peer the orphan of the group's leases. All shards share one orphan, which waits or has a successor. */
static void apply_orphan(struct lock_engine *e, struct peer *p, const struct lock_left *left, uint64_t group) {
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
}

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
    apply_orphan(e, p, left, group);
    return p;
}

/* Removes the claim that stood for another proxy's lease: the lease becomes this proxy's own. */
static void forget_elsewhere(struct shard *sh, struct entry *en, uint64_t fence) {
    for (struct claim *c = en->claims, *next; c; c = next) {
        next = c->next;
        if (c->fence != fence || !c->peer->remote)
            continue;
        struct peer *p = c->peer;
        claim_remove(sh, c);
        peer_settle(sh, p);
    }
}

void engine_inherited(struct lock_engine *e, const struct lock_left *left, const struct lock_rule *rule, uint32_t login,
                      uint64_t token, const struct lock_result *r, int64_t now_ms) {
    uint64_t pattern, hash = ledger_hash(e, &left->key, &pattern);
    struct shard *sh = ledger_shard(e, hash);
    shard_lock(sh);
    struct entry *en = entry_get(sh, &left->key, hash);
    struct peer *p = peer_elsewhere(sh, left);
    forget_elsewhere(sh, en, r->fence);
    struct claim *c = claim_add(sh, en, p, rule, token, r->fence);
    c->workload = workload_find(sh, p, rule, pattern);
    if (c->workload)
        workload_ref(c->workload);
    c->login = login;
    c->granted_ms = now_ms;
    c->told = atomic_load(&e->attempts);
    c->reported = true;
    heritable(sh, c);
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
