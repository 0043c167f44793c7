/*
 * Who goes on for whom: a client whose connection was cut comes back over another one, under the same identity, and
 * what it held is renewed for it as before. Knows no commands.
 *
 *      session closes ──> its estate: the leases that the proxy renewed ──> waits, for as long as they last
 *                                                                             │
 *      session comes to the identity, after that or up to a second before ────┴──> its heir: they are renewed
 *
 * A crashed worker's lock has to be free within its lease, and a worker that was started in its place looks the same as
 * one that has come back. So an estate has one heir, the first who came, and an heir one estate. A colleague who came
 * long before is none, and who asks for the lock and is refused does not hold it: then it is the next one's who came.
 * An heir that leaves before anything was renewed for it may have been anybody: after a few of those nobody goes on.
 *
 * Where the connections of a client count as shared, none is any worker's own: all that it had is left when its last
 * one closes, and whoever comes next is there for all of it. A refusal says little there, since a colleague may hold
 * the lock; but a lock that is asked for since is renewed for a few leases more, and not for ever.
 *
 * Under `owner connection` there are no heirs: what they send would not count for the lease. Nor are there of list
 * locks, whose nodes live and die with their owner's connection.
 */
#include "proxy/lock/state.h"

#include "proxy/base/memory.h"

enum {
    EARLY_MS = 1000, /* the new connection may be there before the old one's end is noticed */
    BRIEF_MAX = 3,   /* heirs that left before anything was renewed for them */
    LOOK_MIN_MS = 50,
    LOOK_MAX_MS = 1000, /* how often a lease that waits for an heir looks for one */
    ASKED_LEASES = 10
};

/* What a session has left. All but the atomics is under the clients' mutex. */
struct estate {
    struct list_node of_client; /* among those that wait for an heir */
    struct lock_client *client;
    struct lock_session *heir; /* NULL: it waits, or nobody goes on */
    size_t refs;               /* the peers of those who left it, and a session that closes */
    uint64_t tried;            /* the coming of its last heir */
    int64_t left_ms;
    unsigned brief;
    bool offered;
    atomic_bool attended; /* it has an heir */
    atomic_bool kept;     /* for whom something was renewed */
};

/* ---- heirs, with the clients' mutex held --------------------------------------------------------- */

static void attend(struct estate *st, struct lock_session *s) {
    list_remove(&st->of_client);
    st->heir = s;
    st->tried = s->came;
    atomic_store(&st->kept, false);
    atomic_store(&st->attended, true);
    s->estate = st;
}

static void unattend(struct estate *st) {
    if (!st->heir)
        return;
    st->heir->estate = NULL;
    st->heir = NULL;
    atomic_store(&st->attended, false);
}

/* The first of those who came in time, and after its last heir; else it waits. */
static void offer(struct estate *st) {
    struct lock_session *first = NULL;
    struct list_node *all = &st->client->sessions;
    for (struct list_node *n = all->prev; n != all; n = n->prev) {
        struct lock_session *s = LIST_ENTRY(n, struct lock_session, of_client);
        if (s->came_ms < st->left_ms - EARLY_MS || s->came <= st->tried)
            break;
        if (!s->estate)
            first = s;
    }
    list_remove(&st->of_client);
    if (first)
        attend(st, first);
    else
        list_append(&st->client->estates, &st->of_client);
}

static struct estate *estate_new(struct lock_client *client, int64_t now_ms) {
    struct estate *st = memory_zalloc(sizeof(*st));
    list_init(&st->of_client);
    st->client = client;
    st->left_ms = now_ms;
    st->refs = 1;
    return st;
}

/* ---- sessions come and go ------------------------------------------------------------------------ */

void heir_come(struct lock_engine *e, struct lock_session *s, int64_t now_ms) {
    struct lock_client *client = s->client;
    pthread_mutex_lock(&e->clients.mutex);
    list_append(&client->sessions, &s->of_client);
    s->came = ++client->comings;
    s->came_ms = now_ms;
    if (!list_empty(&client->estates))
        attend(LIST_ENTRY(list_first(&client->estates), struct estate, of_client), s);
    if (!atomic_load(&client->back) && client->brief <= BRIEF_MAX) {
        client->back_ms = now_ms;
        atomic_store(&client->kept, false);
        atomic_store(&client->back, true);
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void heir_go(struct lock_engine *e, struct lock_session *s, bool closes, int64_t now_ms) {
    struct lock_client *client = s->client;
    pthread_mutex_lock(&e->clients.mutex);
    list_remove(&s->of_client);
    struct estate *st = s->estate;
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

void heir_peer_closed(struct lock_engine *e, struct lock_session *s, struct peer *p, int64_t now_ms) {
    if (list_empty(&p->claims))
        return;
    pthread_mutex_lock(&e->clients.mutex);
    if (!s->left)
        s->left = estate_new(p->client, now_ms);
    p->estate = s->left;
    p->estate->refs++;
    pthread_mutex_unlock(&e->clients.mutex);
}

static void let_go(struct lock_engine *e, struct estate **at) {
    struct estate *st = *at;
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

void heir_gone(struct lock_engine *e, struct lock_session *s) {
    let_go(e, &s->left);
}

void heir_peer_freed(struct lock_engine *e, struct peer *p) {
    let_go(e, &p->estate);
}

void heir_peer_cleared(struct peer *p) {
    if (p->estate && --p->estate->refs == 0)
        memory_free(p->estate);
    p->estate = NULL;
}

/* ---- leases -------------------------------------------------------------------------------------- */

bool heir_left(struct shard *sh, struct claim *c, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    struct peer *p = c->peer;
    if (!c->renewing || !claim_is_live(c, now_ms) || c->rule->owner == LOCK_OWNER_CONNECTION || c->queue)
        return false;
    c->heritable = true;
    c->common = client_shares(p->client, c->rule, p->pooling);
    pthread_mutex_lock(&e->clients.mutex);
    if (c->common) {
        p->client->brief = 0;
    } else {
        if (!p->estate) /* its answer came behind its session's end */
            p->estate = estate_new(p->client, now_ms);
        if (!p->estate->offered)
            offer(p->estate);
        p->estate->offered = true;
    }
    pthread_mutex_unlock(&e->clients.mutex);
    return true;
}

bool heir_attends(const struct claim *c) {
    if (!c->heritable)
        return false;
    return c->common ? atomic_load(&c->peer->client->back) : atomic_load(&c->peer->estate->attended);
}

int64_t heir_look_ms(const struct claim *c) {
    int64_t wait = c->period_ms / 20;
    return wait < LOOK_MIN_MS ? LOOK_MIN_MS : wait > LOOK_MAX_MS ? LOOK_MAX_MS : wait;
}

static bool lost_to(const struct witness *w, const struct claim *c) {
    return w && w->lost && w->lost_fence == c->fence;
}

/* Whether somebody of the client has asked for the lock, of which this is the lease, since it came back. */
static bool asked_for(const struct claim *c) {
    for (const struct witness *w = c->entry->witnesses; w; w = w->next)
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
        c->heritable = c->renewing = false;
        return false;
    }
    atomic_store(&client->kept, true);
    return true;
}

/* The heir's number, or 0. One that was refused the lock by this lease does not hold it, and makes way. */
static uint64_t heir_of(struct lock_engine *e, struct estate *st, uint64_t refused) {
    pthread_mutex_lock(&e->clients.mutex);
    if (st->heir && st->heir->id == refused) {
        unattend(st);
        offer(st);
    }
    uint64_t id = st->heir ? st->heir->id : 0;
    pthread_mutex_unlock(&e->clients.mutex);
    return id;
}

bool heir_keeps(struct shard *sh, struct claim *c, int64_t now_ms) {
    if (c->common)
        return keeps_common(sh->engine, c, now_ms);
    struct estate *st = c->peer->estate;
    uint64_t id = heir_of(sh->engine, st, 0);
    while (id) {
        const struct peer *p = peer_find(sh, id);
        if (!p || !lost_to(witness_find(c->entry, p), c))
            break;
        id = heir_of(sh->engine, st, id);
    }
    if (id)
        atomic_store(&st->kept, true);
    return id != 0;
}
