/*
 * Orphans: what closed sessions have left, and the sessions that come after them. succession.c says which session may
 * be an orphan's successor, and why.
 */
#include "proxy/lock/ledger.h"

#include "parser/invariant.h"
#include "proxy/base/memory.h"

enum { BRIEF_MAX = 3 }; /* an orphan gets no successor after more successors that left before a renewal */

/* ---- successors, with the clients' mutex held --------------------------------------------------------- */

void orphan_attend(struct orphan *st, struct lock_session *s) {
    list_remove(&st->of_client);
    st->successor = s;
    st->tried = s->came;
    atomic_store(&st->kept, false);
    atomic_store(&st->attended, true);
    s->orphan = st;
    atomic_store(&s->attends, true);
}

void orphan_unattend(struct orphan *st) {
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
void orphan_offer(struct orphan *st) {
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
        orphan_attend(st, first);
    else
        list_append(&st->client->orphans, &st->of_client);
}

struct orphan *orphan_new(struct lock_client *client, int64_t now_ms) {
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
        orphan_attend(waiting, s);
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
        orphan_unattend(st);
        orphan_offer(st);
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
        orphan_unattend(st);
        st->left_ms = now_ms;
        st->brief += !atomic_load(&st->kept);
        if (st->brief <= BRIEF_MAX)
            orphan_offer(st);
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

void orphan_put(struct lock_engine *e, struct orphan **at) {
    struct orphan *st = *at;
    if (!st)
        return;
    *at = NULL;
    pthread_mutex_lock(&e->clients.mutex);
    invariant(st->refs > 0, "an orphan without references is given back");
    if (--st->refs == 0) {
        orphan_unattend(st);
        list_remove(&st->of_client);
        memory_free(st);
    }
    pthread_mutex_unlock(&e->clients.mutex);
}

void successor_peer_cleared(struct peer *p) {
    if (p->orphan && --p->orphan->refs == 0)
        memory_free(p->orphan);
    p->orphan = NULL;
}

/* ---- live leases ----------------------------------------------------------------------------------- */

/* Counts a live lease of its peer's orphan. With its first live lease, the orphan looks for a successor. */
void orphan_count(struct claim *c) {
    struct orphan *st = c->peer->orphan;
    if (c->succession == SUCCESSION_COUNTS)
        return;
    claim_succession_enter(c, SUCCESSION_COUNTS);
    if (++st->leases == 1 && !st->successor && st->brief <= BRIEF_MAX)
        orphan_offer(st);
}

void successor_counts(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_WAITS || !c->peer->orphan)
        return;
    pthread_mutex_lock(&sh->engine->clients.mutex);
    orphan_count(c);
    pthread_mutex_unlock(&sh->engine->clients.mutex);
}

void successor_over(struct shard *sh, struct claim *c) {
    if (c->succession != SUCCESSION_COUNTS)
        return;
    struct orphan *st = c->peer->orphan, *next;
    claim_succession_enter(c, SUCCESSION_WAITS);
    pthread_mutex_lock(&sh->engine->clients.mutex);
    if (--st->leases == 0 && st->successor) {
        orphan_unattend(st);
        list_append(&st->client->orphans, &st->of_client);
        next = first_waiting(st->client);
        if (next)
            orphan_offer(next);
    }
    pthread_mutex_unlock(&sh->engine->clients.mutex);
}
