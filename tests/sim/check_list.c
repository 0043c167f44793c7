/*
 * The spectator of list locks: S1 to S5 for the holder's lease. For the queue: a node only leaves it by its owner's
 * command or because it is dead, and no dead head stays.
 */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/lock/script_constants.h"

static bool same_lease(const struct truth *t, const struct model_guard *g) {
    return t->live && g && t->fence == g->fence; /* its tokens are several where several may be the holder */
}

/* The worker that owns the node, -1 if no worker wants it any more. */
static int owner_of(const struct world *w, int key, const char *node) {
    for (int i = 0; i < WORKERS; i++) {
        const struct app_worker *k = &w->workers[i];
        if (k->alive && k->in_queue && k->key == key && strcmp(k->value, node) == 0)
            return i;
    }
    return -1;
}

/* Checks a grant, by S2 and S5. */
static void check_grant(struct world *w, const struct flight *f, const struct model_guard *g) {
    struct truth *t = &w->truth[f->key];
    bool stands = g && (strcmp(g->token, f->plan.attempt_token) == 0 ||
                        model_queue_seated(&w->redis, f->key, f->plan.attempt_token));
    bool early = g && model_queue_early(&w->redis, f->key, f->plan.attempt_token);
    if (early && same_lease(t, g))
        return; /* its token will stand for the lease, perhaps */
    if ((!stands && !early) || g->fence != f->envelope.fence) {
        world_fail(w, "S5", "told that it acquired, and the live lease is another's");
        return;
    }
    if (same_lease(t, g)) { /* repeated, or it may be the holder as well as another */
        bool joined = strcmp(t->token, f->plan.attempt_token) != 0;
        memcpy(t->token, f->plan.attempt_token, sizeof(t->token));
        t->session_id = f->session_id;
        t->proxy = f->proxy;
        t->name = f->name;
        t->left = f->left;
        t->told = t->told && !joined;
        return;
    }
    if (g->fence <= t->max_fence)
        world_fail(w, "S2", "fence %" PRIu64 " after %" PRIu64, g->fence, t->max_fence);
    int owner = owner_of(w, f->key, g->value);
    if (w->sc.apart && w->sc.queue_exact && f->envelope.outcome == LOCK_GRANTED && !f->orphan && !f->ghost &&
        f->worker != STRANGER && owner != f->worker)
        world_fail(w, "S5", "worker %d has looked for worker %d", f->worker, owner);
    *t = (struct truth){
        .live = true,
        .fence = g->fence,
        .max_fence = g->fence,
        .session_id = f->session_id,
        .worker = owner,
        .process = f->worker >= 0 ? w->workers[f->worker].process : -1,
        .proxy = f->proxy,
        .name = f->name,
        .left = f->left,
        .granted_ms = w->redis.now_ms,
    };
    memcpy(t->token, g->token, sizeof(t->token));
    bool believed = owner >= 0 && w->workers[owner].holds;
    if (owner >= 0 && (believed || (owner == f->worker && !f->orphan && !f->ghost))) {
        w->workers[owner].fence = g->fence;
        w->workers[owner].holds = true;
        w->workers[owner].lost_ms = 0;
    }
}

/* The node is not where it was. */
static void check_node_gone(struct world *w, const struct flight *f, const char *node, int owner) {
    const struct scenario *sc = &w->sc;
    const struct app_worker *k = &w->workers[owner];
    int64_t counts_ms = sc->rule.lease_ms < QUEUE_LOOKS_WITHIN_MS ? sc->rule.lease_ms : QUEUE_LOOKS_WITHIN_MS;
    bool stays = !sc->reconnects || (sc->apart && sc->rule.on_disconnect == LOCK_DISCONNECT_KEEP);
    bool settled = sc->connections == CONN_OWN && (sc->apart || !sc->deaths) && stays && !sc->restarts && !sc->loses &&
                   sc->rule.owner != LOCK_OWNER_ANY && f->kind != FLIGHT_OPERATOR;
    settled = settled && (sc->apart || f->command.op != OP_LSET); /* which says which place, not which node */
    bool had_lease = strcmp(w->truth[f->key].node, node) == 0;    /* S1 is looked at elsewhere */
    bool connected = false;
    for (int i = 0; i < CONNS; i++)
        connected = connected || (w->conns[i].open && w->conns[i].worker == owner);
    if (!settled || !connected || owner == f->worker || had_lease || k->lapsed)
        return;
    if (w->redis.now_ms < k->read_ms + counts_ms)
        world_fail(w, "S1", "node %s of worker %d went, and it was there %" PRId64 " ms ago", node, owner,
                   w->redis.now_ms - k->read_ms);
}

static bool in_queue(const struct model_queue *q, const char *node) {
    for (unsigned i = 0; i < q->count; i++)
        if (strcmp(q->nodes[i], node) == 0)
            return true;
    return false;
}

static void check_nodes(struct world *w, const struct flight *f, const struct model_queue *before) {
    const struct model_queue *now = &w->redis.queues[f->key];
    bool refused = f->envelope.outcome == LOCK_HELD || f->envelope.outcome == LOCK_FOREIGN;
    unsigned gone = 0;
    for (unsigned i = 0; i < before->count; i++) {
        if (in_queue(now, before->nodes[i]))
            continue;
        gone++;
        int owner = owner_of(w, f->key, before->nodes[i]);
        if (owner >= 0)
            check_node_gone(w, f, before->nodes[i], owner);
    }
    /* S4: what is left of the queue is its end, in order. */
    if (f->kind == FLIGHT_COMMAND && refused &&
        (now->count + gone != before->count ||
         memcmp(now->nodes, before->nodes[gone], now->count * sizeof(now->nodes[0])) != 0))
        world_fail(w, "S4", "a refused command changed the queue");
}

/* Checks that no head stays without a holder. */
static void check_head(struct world *w, int key, bool live) {
    const struct model_queue *q = &w->redis.queues[key];
    const char *head = q->count ? q->nodes[0] : "";
    if (strcmp(w->head[key], head) != 0 || live) {
        snprintf(w->head[key], sizeof(w->head[key]), "%s", head);
        w->head_ms[key] = w->redis.now_ms;
    } else if (head[0] && w->redis.now_ms > w->head_ms[key] + QUEUE_LOOKS_WITHIN_MS + 1) {
        world_fail(w, "L1", "node %s is at the head of key %d for %" PRId64 " ms, and nobody holds it", head, key,
                   w->redis.now_ms - w->head_ms[key]);
    }
}

static bool session_open(const struct world *w, uint64_t id) {
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].open && w->conns[i].id == id)
            return true;
    return false;
}

/* Whether a party is a session of a proxy that runs, and which. */
static bool party_session(const struct world *w, const char *party, uint64_t *id) {
    const char *colon = strrchr(party, ':');
    for (unsigned i = 0; colon && i < w->sc.proxies; i++)
        if (strncmp(party, w->proxies[i].id, (size_t)(colon - party)) == 0) {
            *id = strtoull(colon + 1, NULL, 10);
            return true;
        }
    return false;
}

/* How long a node of a disconnected owner may be the head: until no session can come back for it any more, and for one
 * lease more if a colleague was shown it. */
static bool lingers(const struct world *w, int key, const struct queue_node *node, uint64_t id) {
    const struct scenario *sc = &w->sc;
    int64_t slack_ms = sc->slow || sc->pauses ? 15000 : 3000;
    if (sc->rule.on_disconnect != LOCK_DISCONNECT_KEEP)
        return false;
    if (sc->connections != CONN_OWN || sc->reconnects) /* a session may have come back for it */
        return true;
    if (model_queue_homeless(&w->redis, key, node->identity) > w->redis.now_ms - sc->rule.lease_ms - slack_ms)
        return true; /* one looks that has no node */
    /* Its proxy says that it has left once it has its last answer. */
    int64_t closed_ms = w->closed_ms[id % SESSIONS_KNOWN], heard_ms = w->heard_ms[id % SESSIONS_KNOWN];
    int64_t left_ms = heard_ms > closed_ms ? heard_ms : closed_ms;
    return w->redis.now_ms <= left_ms + QUEUE_LOOKS_WITHIN_MS + sc->rule.lease_ms + slack_ms;
}

/* The queue has been pruned: a node whose owner has disconnected is not its head, once Redis was told. */
static void check_head_left(struct world *w, const struct flight *f) {
    const struct model_queue *q = &w->redis.queues[f->key];
    struct queue_node node;
    uint64_t id;
    if (!q->count || !model_queue_node(&w->redis, f->key, q->nodes[0], &node) || w->sc.loses ||
        w->sc.rule.owner == LOCK_OWNER_ANY || f->envelope.lost >= QUEUE_PRUNED_AT_ONCE ||
        model_queue_live(&w->redis, f->key) || !party_session(w, node.party, &id) || session_open(w, id) ||
        lingers(w, f->key, &node, id))
        return;
    for (size_t i = 0; i < FLIGHTS; i++) {
        const struct flight *o = &w->flights[i];
        if (o->used && o->key == f->key &&
            (o->kind == FLIGHT_LEAVE || o->kind == FLIGHT_RELEASE || o->session_id == id))
            return; /* it is being told, or there is more to come from that session */
    }
    world_fail(w, "L1", "node %s is at the head of key %d, and its owner has disconnected", q->nodes[0], f->key);
}

/* S5: sending it twice is sending it once. Its worker was told that there is no queue, and would take itself for the
 * holder. Of workers that may share a party the last push alone is remembered. */
static void check_denied(struct world *w, struct flight *f) {
    enum lock_outcome outcome = f->envelope.outcome;
    bool push = f->kind == FLIGHT_COMMAND && f->command.op == OP_RPUSH;
    bool known = w->sc.apart && !w->sc.pipelines && !w->sc.outside && !f->orphan && !f->ghost;
    if (push && known && f->denied && outcome == LOCK_DONE)
        world_fail(w, "S5", "worker %d's push was refused, and carried out when it was repeated", f->worker);
    f->denied = push && (f->denied || outcome == LOCK_HELD || outcome == LOCK_FOREIGN);
}

/* What the command's worker has done, as soon as Redis ran it. */
static void follow_worker(struct world *w, const struct flight *f) {
    if (f->kind != FLIGHT_COMMAND || f->orphan || f->ghost || f->worker < 0)
        return;
    struct app_worker *k = &w->workers[f->worker];
    if (f->command.op == OP_RPUSH && f->envelope.reply.kind == REPLY_INT)
        k->in_queue = true;
    if (f->command.op == OP_RPUSH)
        k->lapsed = false;
    else if (w->redis.now_ms >= k->read_ms + w->sc.rule.lease_ms)
        k->lapsed = true;
    if (f->command.op == OP_LSET && f->envelope.reply.kind == REPLY_OK && k->process >= 0)
        memcpy(k->value, f->command.value, sizeof(k->value));
    if (f->envelope.outcome != LOCK_ERROR)
        k->read_ms = w->redis.now_ms;
}

/* Redis has not been told of a disconnect. A worker that comes back meanwhile has no claim to its node if each
 * connection is a worker. */
static bool leaving(const struct world *w, int key) {
    for (size_t i = 0; i < FLIGHTS; i++)
        if (w->flights[i].used && w->flights[i].kind == FLIGHT_LEAVE && w->flights[i].key == key)
            return w->sc.rule.owner == LOCK_OWNER_CONNECTION;
    return false;
}

/* A party's disconnect has reached Redis. A worker that comes back before that keeps its seat for as long as
 * QUEUE_EARLY_MS says. */
static void check_party_left(struct world *w, const struct flight *f) {
    const char *session = strrchr(f->token_text, ':'); /* NULL: the party is a client */
    uint64_t id = session ? strtoull(session + 1, NULL, 10) : 0;
    if (!id || w->redis.now_ms - w->closed_ms[id % SESSIONS_KNOWN] <= QUEUE_EARLY_MS)
        return;
    for (int i = 0; i < WORKERS; i++)
        if (w->workers[i].key == f->key)
            w->workers[i].seat = 0;
}

void check_list_script(struct world *w, struct flight *f, const struct model_queue *before) {
    struct truth *t = &w->truth[f->key];
    const struct model_guard *g = model_queue_live(&w->redis, f->key);
    bool own = t->live && f->worker >= 0 && f->worker == t->worker;
    bool releases_own = t->live && f->releases && f->own_fence == t->fence;
    f->was_own = own || releases_own;
    check_nodes(w, f, before);
    if (f->kind == FLIGHT_LEAVE)
        check_party_left(w, f);
    if (f->envelope.lost || w->redis.queues[f->key].count == 0)
        w->head[f->key][0] = '\0'; /* the same node may come again, by a push that is repeated */
    follow_worker(w, f);
    check_denied(w, f);
    bool again = t->live && g && strcmp(g->value, t->node) == 0; /* its own party takes over an adopted lease */
    if (t->live && !same_lease(t, g) && !again) {
        if (f->kind == FLIGHT_LEAVE)
            world_fail(w, "S1", "a party's leaving ended a lease");
        else if (!f->was_own)
            check_ended_by_other(w, f, t);
        check_lease_ended(w, f->key);
    } else if (t->live && !f->was_own && w->redis.queues[f->key].until_ms != before->until_ms) {
        int process = f->worker >= 0 ? w->workers[f->worker].process : -1;
        if (w->sc.rule.owner != LOCK_OWNER_ANY && (process != t->process || (w->sc.apart && t->worker >= 0)))
            world_fail(w, "S3", "the holder's end was moved by worker %d", f->worker);
    }
    bool grants =
        f->envelope.outcome == LOCK_GRANTED || (f->envelope.outcome == LOCK_ADOPTED && f->plan.verb == LOCK_QUEUE_READ);
    if (f->kind == FLIGHT_COMMAND && grants)
        check_grant(w, f, g);
    else if (g && !t->live)
        world_fail(w, "S2", "a lease became live that was not granted");
    if (w->sc.queue_exact && w->sc.never_wrong && releases_own && t->live && t->fence == f->own_fence &&
        !leaving(w, f->key))
        world_fail(w, "L2", "worker %d's release did not free its lock", f->worker);
    if (g && t->live)
        memcpy(t->node, g->value, sizeof(t->node));
    if (f->kind == FLIGHT_COMMAND && (f->plan.verb == LOCK_QUEUE_PUSH || f->plan.verb == LOCK_QUEUE_READ)) {
        check_head(w, f->key, model_queue_live(&w->redis, f->key) != NULL);
        check_head_left(w, f);
    }
}

/* S5, promise 4: no worker takes itself for the holder without being it, and never two. */
void check_list_belief(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    struct truth *t = &w->truth[f->key];
    enum lock_outcome outcome = f->envelope.outcome;
    /* HELD: it, or a colleague over the same connection, has seen its node there before. */
    bool held = outcome == LOCK_HELD && f->command.op == OP_LINDEX && f->envelope.fence;
    bool said =
        outcome == LOCK_GRANTED || outcome == LOCK_ADOPTED || (outcome == LOCK_DONE && f->envelope.fence) || held;
    /* An answer that is late, or a lease taken over near its end, leaves no time for a renewal. */
    bool prompt = w->redis.now_ms - f->ran_ms < w->sc.rule.lease_ms / 4 &&
                  w->redis.queues[f->key].until_ms - w->redis.now_ms >= w->sc.rule.lease_ms / 2;
    k->seat = held || !prompt ? 0 : f->session_id;
    if (!said) {
        if (w->sc.queue_exact)
            world_fail(w, "S5", "worker %d takes itself for the holder after '%s'", worker, world_outcome(outcome));
        return;
    }
    if (!t->live || t->fence != f->envelope.fence)
        return; /* over by now */
    for (int i = 0; i < WORKERS; i++)
        if (w->sc.queue_exact && i != worker && w->workers[i].alive && w->workers[i].holds &&
            w->workers[i].key == f->key)
            world_fail(w, "S2", "workers %d and %d take themselves for holders", worker, i);
    t->worker = worker;
    k->fence = t->fence;
    k->holds = true;
}

/* The lease of a connected holder goes on over the connection where it saw itself, also if that connection has replaced
 * another. */
void check_list_expired(struct world *w, int key) {
    const struct truth *t = &w->truth[key];
    const struct scenario *sc = &w->sc;
    const struct app_worker *k = t->worker >= 0 ? &w->workers[t->worker] : NULL;
    if (!sc->queue_kept || !k || !k->alive || k->phase != PHASE_HOLD || k->key != key || !k->seat ||
        strcmp(k->value, t->node) != 0 || w->redis.now_ms >= t->granted_ms + sc->rule.max_hold_ms)
        return;
    if (session_open(w, k->seat))
        world_fail(w, "renewal", "the lease of worker %d ended, and it is connected", t->worker);
}
