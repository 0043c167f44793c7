/* Sessions come, change their identity and go. Knows no commands. Only the shards that a session has used know it, as a
 * peer: lock_session.shards has a bit for each. */
#include "proxy/lock/member.h"

#include "parser/invariant.h"
#include "proxy/base/mutex.h"
#include "proxy/base/units.h"

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
    SHARDS_FOREACH(sh, e, s->shards)
        peer_find(sh, s->id)->overlapped = true;
}

bool engine_session_library(struct lock_engine *e, struct lock_session *s, const char *name, size_t len) {
    bool multiplexes = client_library_multiplexes(name, len);
    if (multiplexes)
        engine_session_overlapped(e, s);
    return multiplexes;
}

/* ---- what closed sessions leave -------------------------------------------------------------------- */

/* Claims and contenders of closed sessions that are handled in a millisecond: a session may have 200,000 leases, and
 * Redis is told of each. */
enum { LEAVE_STEPS = 64 };

/* How many steps may still be taken in this millisecond. If this process stops, all may. */
static unsigned steps_left(struct lock_engine *e, int64_t now_ms) {
    if (atomic_load(&e->leaving))
        return UINT32_MAX;
    MUTEX_GUARD(&e->clients.mutex);
    if (e->leave_ms != now_ms)
        e->leave_steps = LEAVE_STEPS;
    e->leave_ms = now_ms;
    return e->leave_steps;
}

static void steps_taken(struct lock_engine *e, unsigned steps) {
    MUTEX_GUARD(&e->clients.mutex);
    e->leave_steps -= steps < e->leave_steps ? steps : e->leave_steps;
}

/* Handles a closed session's leases. They are kept for its client's other sessions if the session is pooled, and
 * abandoned otherwise. If the client's last session has closed meanwhile, the leases that were kept are abandoned, too.
 * Other threads may open and close sessions of the client meanwhile. The peer is not freed before the end. */
static void leave(struct shard *sh, struct peer *p, unsigned *steps, int64_t now_ms) {
    struct lock_engine *e = sh->engine;
    bool done = false;
    p->in_flight++;
    while (!done && *steps > 0) {
        --*steps;
        if (!p->leaving) {
            p->leaving = true;
            p->left_early = client_still_here(p);
            p->claims_left = p->claim_count;
            p->contenders_left = p->contender_count;
        }
        /* What stays moves to its list's end. After one round, the list is in its old order. */
        for (; p->contenders_left > 0 && *steps > 0 && !list_empty(&p->contenders); --*steps) {
            struct contender *w = LIST_ENTRY(list_first(&p->contenders), struct contender, of_peer);
            struct entry *en = w->entry;
            p->contenders_left--;
            list_remove(&w->of_peer);
            list_append(&p->contenders, &w->of_peer);
            if (!atomic_load(&e->leaving) && queue_leave(sh, w))
                continue;
            contender_remove(sh, w);
            entry_settle(sh, en);
        }
        for (; p->claims_left > 0 && *steps > 0 && !list_empty(&p->claims); --*steps) {
            struct claim *c = LIST_ENTRY(list_first(&p->claims), struct claim, of_peer);
            p->claims_left--;
            list_remove(&c->of_peer);
            list_append(&p->claims, &c->of_peer);
            if (!lease_owner_here(c))
                lease_abandon(sh, c, now_ms);
            lease_settle(sh, c, now_ms);
        }
        bool none = list_empty(&p->claims) && list_empty(&p->contenders);
        if (!none && p->contenders_left + p->claims_left > 0)
            continue;
        p->leaving = false;
        done = none || client_closed_peer(&e->clients, p) || !p->left_early;
    }
    p->in_flight--;
    if (!done) { /* engine_tick goes on with the peer */
        pthread_mutex_lock(&e->clients.mutex);
        list_remove(&p->closed_link);
        list_append(&e->departing, &p->closed_link);
        atomic_store(&e->departs, true);
        pthread_mutex_unlock(&e->clients.mutex);
    }
    peer_settle(sh, p);
}

/* Handles the peers of the list, for as long as steps are left. Another thread may be freeing a peer that was taken
 * out, so the peer is looked for by its id. */
static void leave_all(struct lock_engine *e, struct list_node *from, unsigned *steps, int64_t now_ms) {
    while (*steps > 0) {
        pthread_mutex_lock(&e->clients.mutex);
        const struct peer *closed = LIST_SHIFT(from, struct peer, closed_link);
        uint64_t id = closed ? closed->id : 0;
        struct shard *sh = closed ? closed->shard : NULL;
        pthread_mutex_unlock(&e->clients.mutex);
        if (!sh)
            return;
        shard_lock(sh);
        struct peer *p = peer_find(sh, id);
        if (p)
            leave(sh, p, steps, now_ms);
        shard_unlock(sh);
    }
}

/* Abandons what earlier sessions of a client have left. The client's last session has closed, or has changed its
 * identity. If another session is closing at the same time, either this function sees what that session has left, or
 * that session sees that no session of the client is open. */
static void last_left(struct lock_engine *e, struct lock_client *client, unsigned *steps, int64_t now_ms) {
    leave_all(e, &client->closed_peers, steps, now_ms);
    MUTEX_GUARD(&e->clients.mutex);
    if (!list_empty(&client->closed_peers)) {
        list_splice(&e->departing, &client->closed_peers);
        atomic_store(&e->departs, true);
    }
}

bool member_departures(struct lock_engine *e, int64_t now_ms) {
    if (!atomic_load(&e->departs))
        return false;
    unsigned steps = steps_left(e, now_ms), before = steps;
    leave_all(e, &e->departing, &steps, now_ms);
    steps_taken(e, before - steps);
    MUTEX_GUARD(&e->clients.mutex);
    bool more = !list_empty(&e->departing);
    atomic_store(&e->departs, more);
    return more;
}

bool engine_departs(struct lock_engine *e) {
    return atomic_load(&e->departs);
}

/* ---- one-shot clients ------------------------------------------------------------------------------- */

/*
 * A one-shot client: a shell, a cron job or a CGI program acquires a lock over a connection that carries nothing else,
 * and closes the connection at once. Its job runs now, and a later connection of the same client releases the lock.
 *
 *      connect ── SETNX k 1 ── reply ──> close, within 100 ms ──> kept for the rule's `one-shot`
 *                                                                        │
 *      connect ── DEL k ── close (the job has ended) ────────────────────┴──> released, as C1 has it
 *
 * A worker that crashes looks alike, but for three signs together: the session layer sees two of them (struct
 * lock_session's one_shot), this file sees the time. If a sign is missing, the lock ends with its lease. So does a lock
 * under `owner connection`, since no other connection can release it, and the node of a list lock.
 *
 * The lock waits for no successor, since its client does not come back to work under it. L7: the client's job still
 * runs, so its lock stays. L1: it is renewed for the rule's `one-shot` at most, from its acquisition on.
 */
static void keep_one_shot(struct shard *sh, struct claim *c, int64_t now_ms) {
    enum { CLOSES_WITHIN_MS = 100 };
    const struct lock_rule *rule = c->rule;
    if (rule->one_shot_ms <= 0 || rule->on_disconnect != LOCK_DISCONNECT_KEEP || rule->owner == LOCK_OWNER_CONNECTION ||
        !claim_is_live(c, now_ms) || now_ms - c->granted_ms > CLOSES_WITHIN_MS || c->queue || c->shown ||
        c->release != RELEASE_NONE)
        return;
    /* the application has set no expiry */
    if (c->observed ? c->end_ms || rule->lease_ms <= 0 || rule->renew == LOCK_RENEW_NEVER : !c->leased || !c->renewing)
        return;
    struct lock_incident on = lease_occasion(c, now_ms);
    bool less = rule->max_hold_ms && rule->max_hold_ms < rule->one_shot_ms;
    int64_t kept_ms = less ? rule->max_hold_ms : rule->one_shot_ms;
    char time[32];
    units_time_text(kept_ms, time, sizeof(time));
    claim_extra(c)->one_shot_ms = c->granted_ms + kept_ms;
    c->reported = true;
    if (c->observed) /* Redis has set no expiry */
        c->end_ms = claim_one_shot(c);
    incident_report(sh, INCIDENT_ONE_SHOT, &on,
                    "its connection closed at once: %s for %s, or until this client sends DEL; if its job crashes, DEL "
                    "the lock; SET with NX and EX ends by itself",
                    c->observed ? "would be kept" : "kept", time);
}

/* ---- sessions --------------------------------------------------------------------------------------- */

/* Notes that a session of the client has closed; the caller keeps its reference. Returns whether it was the last. */
static bool client_close(struct client_table *t, struct lock_client *c) {
    MUTEX_GUARD(&t->mutex);
    invariant(c->open > 0, "a client without sessions has one less");
    bool last = --c->open == 0;
    if (last)
        atomic_fetch_add(&c->epoch, 1);
    return last;
}

void engine_session_identify(struct lock_engine *e, struct lock_session *s, const char *identity, size_t len,
                             int64_t now_ms) {
    struct lock_client *old = s->client, *new = client_get(&e->clients, identity, len, true);
    bool last = client_close(&e->clients, old);
    if (new != old || list_empty(&s->of_client)) {
        successor_go(e, s, false, now_ms);
        s->client = new;
        successor_come(e, s, now_ms);
    }
    SHARDS_FOREACH(sh, e, s->shards) {
        struct peer *p = peer_find(sh, s->id);
        client_ref(&e->clients, s->client);
        client_put(&e->clients, p->client);
        p->client = s->client;
        p->epoch = atomic_load(&p->client->epoch);
        session_stats_clear(p); /* the statistics belong to the old identity's workloads */
        LIST_EACH(t, &p->tenures, struct tenure, of_peer) {
            workload_put(t->workload);
            t->workload = NULL;
        }
        LIST_EACH(c, &p->claims, struct claim, of_peer) {
            workload_put(c->workload);
            c->workload = NULL;
        }
    }
    if (last) {
        unsigned steps = steps_left(e, now_ms), before = steps;
        last_left(e, old, &steps, now_ms);
        steps_taken(e, before - steps);
    }
    client_put(&e->clients, old);
}

void engine_session_close(struct lock_engine *e, struct lock_session *s, int64_t now_ms) {
    bool last = client_close(&e->clients, s->client);
    unsigned steps = steps_left(e, now_ms), before = steps;
    successor_go(e, s, true, now_ms);
    SHARDS_FOREACH(sh, e, s->shards) {
        struct peer *p = peer_find(sh, s->id);
        p->closed = true;
        if (!list_empty(&p->claims)) { /* before they are abandoned */
            pthread_mutex_lock(&e->clients.mutex);
            if (!s->left)
                s->left = orphan_new(p->client, now_ms);
            p->orphan = s->left;
            p->orphan->refs++;
            pthread_mutex_unlock(&e->clients.mutex);
        }
        p->closed_at = atomic_load(&e->newest_session);
        if (s->one_shot) { /* a session that stays long may have many claims: they are left in steps */
            LIST_EACH(c, &p->claims, struct claim, of_peer)
                keep_one_shot(sh, c, now_ms);
        }
        while (!list_empty(&p->tenures)) {
            struct tenure *t = LIST_ENTRY(list_first(&p->tenures), struct tenure, of_peer);
            struct entry *en = t->entry;
            tenure_remove(t);
            entry_settle(sh, en);
        }
        alarms_clear(p);
        if (list_empty(&p->claims) && list_empty(&p->contenders))
            peer_settle(sh, p);
        else
            leave(sh, p, &steps, now_ms);
    }
    if (last)
        last_left(e, s->client, &steps, now_ms);
    steps_taken(e, before - steps);
    orphan_put(e, &s->left);
    client_put(&e->clients, s->client);
    s->client = NULL;
    s->shards = 0;
}
