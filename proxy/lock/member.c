/*
 * Sessions come, change their identity and go. Knows no commands.
 *
 * A session is known only to the shards that it used (a bit each in lock_session.shards); there it is a peer.
 */
#include "proxy/lock/state.h"

void engine_session_open(struct lock_engine *e, struct lock_session *s, uint64_t id, const char *identity, size_t len) {
    *s = (struct lock_session){.id = id};
    list_init(&s->of_client);
    s->client = client_get(&e->clients, identity, len, true);
    uint64_t newest = atomic_load(&e->newest_session);
    while (newest < id && !atomic_compare_exchange_weak(&e->newest_session, &newest, id))
        ;
}

void engine_session_overlapped(struct lock_engine *e, struct lock_session *s) {
    if (s->overlapped)
        return;
    s->overlapped = true;
    for (size_t i = 0; i < SHARDS; i++) {
        if (!(s->shards & (1u << i)))
            continue;
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        peer_find(sh, s->id)->overlapped = true;
        shard_unlock(sh);
    }
}

bool engine_session_library(struct lock_engine *e, struct lock_session *s, const char *name, size_t len) {
    bool multiplexes = client_library_multiplexes(name, len);
    if (multiplexes)
        engine_session_overlapped(e, s);
    return multiplexes;
}

/* A closed session's leases: kept for its client's other sessions where those share, abandoned otherwise. Those may
 * come and go meanwhile, in other threads. The peer is not freed. */
static void leave(struct shard *sh, struct peer *p, int64_t now_ms) {
    p->in_flight++;
    LIST_FOREACH_SAFE(n, &p->witnesses) {
        struct witness *w = LIST_ENTRY(n, struct witness, of_peer);
        struct entry *en = w->entry;
        if (!atomic_load(&sh->engine->leaving) && queue_leave(sh, w))
            continue;
        witness_remove(sh, w);
        entry_settle(sh, en);
    }
    LIST_FOREACH_SAFE(n, &p->claims) {
        struct claim *c = LIST_ENTRY(n, struct claim, of_peer);
        struct entry *en = c->entry;
        if (!lease_owner_here(c))
            lease_abandon(sh, c, now_ms);
        if (!lease_schedule(sh, c, now_ms))
            entry_settle(sh, en);
    }
    p->in_flight--;
}

static void close_peer(struct shard *sh, struct lock_session *s, int64_t now_ms) {
    struct peer *p = peer_find(sh, s->id);
    p->closed = true;
    heir_peer_closed(sh->engine, s, p, now_ms);
    p->closed_at = atomic_load(&sh->engine->newest_session);
    if (!list_empty(&p->claims) || !list_empty(&p->witnesses))
        atomic_fetch_add(&p->client->orphans, 1); /* before looking whether others are there: see last_left */
    leave(sh, p, now_ms);
    peer_settle(sh, p);
}

/* The client's last session closed, or calls itself otherwise: what its earlier ones left is abandoned now. Either this
 * sees that a session closing at the same time left something, or that one sees that nobody is there. */
static void last_left(struct lock_engine *e, struct lock_client *client, int64_t now_ms) {
    if (atomic_exchange(&client->orphans, 0) == 0)
        return;
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        TABLE_FOREACH(it, &sh->peers) {
            struct peer *p = LIST_ENTRY(it, struct peer, link);
            if (p->client == client && p->closed && !(list_empty(&p->claims) && list_empty(&p->witnesses))) {
                leave(sh, p, now_ms);
                peer_settle(sh, p);
            }
        }
        shard_unlock(sh);
    }
}

void engine_session_identify(struct lock_engine *e, struct lock_session *s, const char *identity, size_t len,
                             int64_t now_ms) {
    struct lock_client *old = s->client, *new = client_get(&e->clients, identity, len, true);
    bool last = client_close(&e->clients, old);
    if (new != old || list_empty(&s->of_client)) {
        heir_go(e, s, false, now_ms);
        s->client = new;
        heir_come(e, s, now_ms);
    }
    for (size_t i = 0; i < SHARDS; i++) {
        if (!(s->shards & (1u << i)))
            continue;
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        struct peer *p = peer_find(sh, s->id);
        client_ref(&e->clients, s->client);
        client_put(&e->clients, p->client);
        p->client = s->client;
        p->epoch = atomic_load(&p->client->epoch);
        habits_clear(p); /* it belongs to another identity's families now */
        LIST_FOREACH(it, &p->claims) {
            struct claim *c = LIST_ENTRY(it, struct claim, of_peer);
            family_put(c->family);
            c->family = NULL;
        }
        shard_unlock(sh);
    }
    if (last)
        last_left(e, old, now_ms);
    client_put(&e->clients, old);
}

void engine_session_close(struct lock_engine *e, struct lock_session *s, int64_t now_ms) {
    bool last = client_close(&e->clients, s->client);
    heir_go(e, s, true, now_ms);
    for (size_t i = 0; i < SHARDS; i++) {
        if (!(s->shards & (1u << i)))
            continue;
        struct shard *sh = &e->shards[i];
        shard_lock(sh);
        close_peer(sh, s, now_ms);
        shard_unlock(sh);
    }
    if (last)
        last_left(e, s->client, now_ms);
    heir_gone(e, s);
    client_put(&e->clients, s->client);
    s->client = NULL;
    s->shards = 0;
}
