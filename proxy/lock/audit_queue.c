/*
 * List locks under audit: who pushed which node, as far as this proxy has seen it, and what enforcing would have said.
 *
 *      RPUSH, LRANGE 0 0, LREM, ... as they came ──> nodes of the queue, by the keyed hash of their value
 *                                              └──> granted, released, lost_head, overwrite, foreign_release, ...
 *
 * Enforcing has these facts in the guard record (scripts/lua/list.lua), and the rules here are that file's. Nothing is
 * removed, and nothing is reported of a node whose push was not seen. A shard remembers some queues, those used last.
 */
#include "proxy/base/memory.h"
#include "proxy/lock/audit_private.h"

enum { QUEUES = 64, NODES_MAX = 1024, VACANCIES = 16 };

struct watched_node {
    struct watched_node *next;
    uint64_t node; /* its value */
    uint64_t session;
    struct lock_client *client; /* with a reference */
    uint32_t epoch;             /* the client's, at the push */
    int64_t looked_ms;          /* its owner has read the list, or pushed */
    bool reported;              /* as a dead head */
};

struct watched_queue {
    uint64_t hash; /* the key's; 0: the place is empty */
    int64_t used_ms;
    struct watched_node *nodes; /* in the order in which they were pushed */
    uint32_t count;
    uint64_t head; /* that was seen last; 0 none */
    int64_t head_ms;
    uint64_t vacant[VACANCIES]; /* parties that EXISTS told that there is no queue, and that have not pushed since */
};

/* ---- what is remembered ------------------------------------------------------------------------- */

static void node_free(struct shard *sh, struct watched_queue *q, struct watched_node **at) {
    struct watched_node *n = *at;
    *at = n->next;
    q->count--;
    client_put(&sh->engine->clients, n->client);
    memory_free(n);
}

static void queue_empty(struct shard *sh, struct watched_queue *q) {
    while (q->nodes)
        node_free(sh, q, &q->nodes);
    q->head = 0;
}

void watched_queues_clear(struct shard *sh) {
    for (size_t i = 0; sh->queues && i < QUEUES; i++)
        queue_empty(sh, &sh->queues[i]);
    memory_free(sh->queues);
    sh->queues = NULL;
}

static struct watched_queue *queue_find(struct shard *sh, uint64_t hash) {
    for (size_t i = 0; sh->queues && i < QUEUES; i++)
        if (sh->queues[i].hash == hash)
            return &sh->queues[i];
    return NULL;
}

/* The key's, or an empty place, or that of the queue which was used the longest time ago. */
static struct watched_queue *queue_get(struct finish *f) {
    struct shard *sh = f->sh;
    struct watched_queue *q = queue_find(sh, f->hash);
    if (!sh->queues)
        sh->queues = memory_zalloc(QUEUES * sizeof(*sh->queues));
    for (size_t i = 0; !q && i < QUEUES; i++)
        if (!sh->queues[i].hash)
            q = &sh->queues[i];
    if (!q) {
        q = &sh->queues[0];
        for (size_t i = 1; i < QUEUES; i++)
            if (sh->queues[i].used_ms < q->used_ms)
                q = &sh->queues[i];
    }
    if (q->hash != f->hash) {
        queue_empty(sh, q);
        *q = (struct watched_queue){.hash = f->hash};
    }
    q->used_ms = f->now_ms;
    return q;
}

static struct watched_node **node_find(struct watched_queue *q, uint64_t node) {
    struct watched_node **at = &q->nodes;
    while (*at && (*at)->node != node)
        at = &(*at)->next;
    return at;
}

/* `at` may be the list's end. */
static void node_gone(struct shard *sh, struct watched_queue *q, struct watched_node **at, uint64_t node) {
    if (q->head == node)
        q->head = 0;
    if (*at)
        node_free(sh, q, at);
}

/* ---- parties ------------------------------------------------------------------------------------ */

static bool shares(const struct finish *f) {
    return f->plan->rule->owner == LOCK_OWNER_ANY || client_shares(f->plan->rule, f->peer->overlapped);
}

static bool own_node(const struct finish *f, const struct watched_node *n) {
    return f->plan->rule->owner == LOCK_OWNER_ANY || n->session == f->peer->id ||
           (n->client == f->peer->client && shares(f));
}

/* Who names a node of its client's is believed to be its owner. */
static bool named_node(const struct finish *f, const struct lock_client *c) {
    return f->plan->rule->owner == LOCK_OWNER_AUTO && c == f->peer->client;
}

static bool owner_here(const struct finish *f, const struct watched_node *n) {
    const struct peer *p = peer_find(f->sh, n->session);
    return (p && !p->closed) ||
           (client_shares(f->plan->rule, p && p->overlapped) && atomic_load(&n->client->epoch) == n->epoch);
}

static uint64_t party(const struct finish *f) {
    return shares(f) ? f->peer->client->hash | 1 : f->peer->id << 1;
}

static bool vacancy_taken(const struct finish *f, struct watched_queue *q) {
    for (size_t i = 0; i < VACANCIES; i++)
        if (q->vacant[i] == party(f)) {
            q->vacant[i] = 0;
            return true;
        }
    return false;
}

/* The oldest makes room. */
static void vacancy_noted(const struct finish *f, struct watched_queue *q) {
    memmove(q->vacant + 1, q->vacant, sizeof(q->vacant) - sizeof(q->vacant[0]));
    q->vacant[0] = party(f);
}

/* The lease of the head's owner, who has seen it there. */
static bool own_claim(const struct finish *f, const struct claim *c) {
    return f->plan->rule->owner == LOCK_OWNER_ANY || c->peer == f->peer ||
           (c->peer->client == f->peer->client && shares(f));
}

static void blame(struct finish *f, const struct lock_client *c) {
    f->holder = c->name;
    f->holder_len = c->len;
}

/* ---- commands ----------------------------------------------------------------------------------- */

static uint64_t value_hash(const struct finish *f, const char *value, size_t len) {
    return value ? hash_bytes(&f->e->value_seed, value, len) | 1 : 0;
}

/* Whether the lease that is believed live is for this node. */
static bool live_for(const struct audit *a, uint64_t node) {
    return a->live && a->live->queue && a->live->valued && (a->live->value | 1) == node;
}

/* Known to be gone, in whatever way. */
static void lease_over(struct audit *a) {
    if (a->live)
        learn_gone(a->f, a->live->fence, LEASE_TAKEN);
    a->live = NULL;
    a->mine = false;
}

/* Nothing has become of the lease. */
static enum lock_outcome waits(struct audit *a) {
    return audit_conclude(a, LOCK_DONE, 0);
}

static enum lock_outcome refused(struct audit *a) {
    return audit_conclude(a, a->live ? LOCK_HELD : LOCK_FOREIGN, a->live ? a->live->fence : 0);
}

/* The head is the caller's, and it knows. */
static enum lock_outcome holds(struct audit *a, uint64_t node) {
    if (live_for(a, node))
        return audit_conclude(a, LOCK_DONE, a->live->fence);
    a->result->pttl_ms = PTTL_NONE; /* unless the key has an expiry from before; nobody knows */
    return audit_grant(a);
}

static void look(struct finish *f, struct watched_queue *q) {
    for (struct watched_node *n = q->nodes; n; n = n->next)
        if (own_node(f, n))
            n->looked_ms = f->now_ms;
}

static void push(struct finish *f, struct watched_queue *q, uint64_t node) {
    struct watched_node **at = node_find(q, node);
    if (*at || q->count >= NODES_MAX)
        return;
    *at = memory_zalloc(sizeof(**at));
    **at = (struct watched_node){
        .node = node, .session = f->peer->id, .client = f->peer->client, .epoch = atomic_load(&f->peer->client->epoch)};
    client_ref(&f->e->clients, f->peer->client);
    q->count++;
}

static enum lock_outcome pushed(struct audit *a, struct watched_queue *q, uint64_t node) {
    struct finish *f = a->f;
    bool empty = a->sight->count <= a->sight->by, vacant = vacancy_taken(f, q);
    if (empty) {
        queue_empty(f->sh, q);
        lease_over(a);
    }
    bool refuses = !empty && (vacant || a->sight->queue == QUEUE_BEFORE);
    push(f, q, node);
    look(f, q);
    if (empty) {
        q->head = node;
        q->head_ms = f->now_ms;
        return vacant ? holds(a, node) : waits(a);
    }
    return refuses ? refused(a) : waits(a);
}

/* Why enforcing would have removed the head before it answered; NULL: it would not. */
static const char *dead(const struct audit *a, const struct watched_queue *q, const struct watched_node *n) {
    const struct finish *f = a->f;
    int64_t lease_ms = f->plan->rule->lease_ms;
    if (!owner_here(f, n))
        return "its owner has disconnected";
    if (live_for(a, n->node))
        return NULL;
    if (lease_ms && f->now_ms >= n->looked_ms + lease_ms)
        return "its owner has not read the list for the rule's lease";
    if (f->now_ms >= q->head_ms + QUEUE_LOOKS_WITHIN_MS)
        return "it has been the head for 5 s, and its owner has not looked";
    return NULL;
}

static void report_dead(struct audit *a, const struct watched_queue *q, struct watched_node *n) {
    const char *why = n->reported ? NULL : dead(a, q, n);
    if (!why)
        return;
    n->reported = true;
    struct occasion on = *finish_occasion(a->f);
    on.holder = n->client->name;
    on.holder_len = n->client->len;
    incident_report(a->f->sh, INCIDENT_LOST_HEAD, &on, "a dead node would be removed from the head of the queue: %s",
                    why);
}

static enum lock_outcome shown(struct audit *a, struct watched_queue *q, uint64_t node) {
    struct finish *f = a->f;
    if (a->live && !live_for(a, node)) /* its node is not the head any more */
        lease_over(a);
    if (node != q->head) {
        q->head = node;
        q->head_ms = f->now_ms;
    }
    struct watched_node *n = *node_find(q, node);
    bool own = n && own_node(f, n);
    if (n && !own)
        report_dead(a, q, n);
    look(f, q);
    return own ? holds(a, node) : waits(a);
}

static enum lock_outcome looked(struct audit *a, struct watched_queue *q) {
    if (a->sight->queue == QUEUE_HEAD)
        return shown(a, q, value_hash(a->f, a->sight->value, a->sight->value_len));
    look(a->f, q);
    return waits(a);
}

static enum lock_outcome removed(struct audit *a, struct watched_queue *q, uint64_t node) {
    struct watched_node **at = node_find(q, node);
    bool own = !*at || own_node(a->f, *at) || named_node(a->f, (*at)->client);
    enum lock_outcome outcome;
    if (!own)
        blame(a->f, (*at)->client);
    if (!live_for(a, node))
        outcome = own ? waits(a) : refused(a);
    else if (own_claim(a->f, a->live) || named_node(a->f, a->live->peer->client))
        outcome = audit_conclude(a, LOCK_RELEASED, a->live->fence);
    else
        outcome = audit_refuse(a, false);
    node_gone(a->f->sh, q, at, node);
    return outcome;
}

/* LSET: `value` is the new node, and `count` its place. Elsewhere than at the head the old one is not known. */
static enum lock_outcome changed(struct audit *a, struct watched_queue *q, uint64_t node) {
    struct watched_node *n = a->sight->count == 0 && q->head ? *node_find(q, q->head) : NULL;
    if (!n) {
        push(a->f, q, node);
        return audit_conclude(a, LOCK_OPEN, 0);
    }
    bool own = own_node(a->f, n), held = live_for(a, n->node);
    if (!own)
        blame(a->f, n->client);
    n->node = q->head = node;
    if (own)
        return held ? audit_conclude(a, LOCK_DONE, a->live->fence) : waits(a);
    return held ? audit_refuse(a, false) : refused(a);
}

static enum lock_outcome trimmed(struct audit *a, struct watched_queue *q) {
    bool known = q->nodes != NULL;
    queue_empty(a->f->sh, q);
    if (a->live && a->live->queue)
        return audit_refuse(a, false);
    return known ? refused(a) : audit_conclude(a, LOCK_OPEN, 0);
}

/* There was no such key, or no such node. */
static enum lock_outcome absent(struct audit *a, struct watched_queue *q) {
    struct finish *f = a->f;
    if (a->sight->verb == LOCK_QUEUE_REMOVE) { /* of a queue that may well be there */
        uint64_t node = value_hash(f, a->sight->value, a->sight->value_len);
        node_gone(f->sh, q, node_find(q, node), node);
        a->result->outcome = LOCK_FREE;
        settle(f);
        return LOCK_FREE;
    }
    queue_empty(f->sh, q);
    if (a->sight->queue == QUEUE_EXISTS)
        vacancy_noted(f, q);
    return audit_conclude(a, LOCK_FREE, 0);
}

enum lock_outcome audit_queue(struct audit *a) {
    if (a->sight->queue == QUEUE_EXISTS && a->sight->effect == EFFECT_DONE && !queue_find(a->f->sh, a->f->hash))
        return waits(a); /* of a lock that is no queue, most likely */
    struct watched_queue *q = queue_get(a->f);
    uint64_t node = value_hash(a->f, a->sight->value, a->sight->value_len);
    if (a->sight->effect == EFFECT_ABSENT)
        return absent(a, q);
    if (a->sight->verb == LOCK_QUEUE_PUSH)
        return pushed(a, q, node);
    if (a->sight->verb == LOCK_QUEUE_READ)
        return looked(a, q);
    if (a->sight->verb == LOCK_QUEUE_REMOVE)
        return removed(a, q, node);
    return a->sight->queue == QUEUE_TRIM ? trimmed(a, q) : changed(a, q, node);
}

bool audit_queue_released(struct audit *a, enum lock_outcome *outcome) {
    struct watched_queue *q = queue_find(a->f->sh, a->f->hash);
    if (!q)
        return false;
    if (a->sight->queue != QUEUE_POP) {
        queue_empty(a->f->sh, q);
        return false;
    }
    uint64_t node = value_hash(a->f, a->sight->value, a->sight->value_len);
    struct watched_node **at = node_find(q, node);
    bool others = *at && !live_for(a, node) && (a->live || !own_node(a->f, *at));
    if (others) {
        blame(a->f, (*at)->client);
        *outcome = refused(a);
    }
    node_gone(a->f->sh, q, at, node);
    return others;
}
