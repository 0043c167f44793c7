/*
 * list.lua on the model: the queue, whose its nodes are, and which of them are dead.
 */
#include "tests/sim/list_script.h"

#include <inttypes.h>
#include <stdio.h>

bool model_is_queue(const struct model *m, int key) {
    return m->keys[key].exists && m->keys[key].list && m->keys[key].guard.exists && m->queues[key].kind;
}

const struct model_guard *model_queue_live(struct model *m, int key) {
    model_expire(m, key);
    const struct model_guard *g = &m->keys[key].guard;
    const struct model_queue *q = &m->queues[key];
    bool live = model_is_queue(m, key) && g->token[0] && q->count && is(q->nodes[0], g->value) &&
                (q->until_ms == 0 || q->until_ms > m->now_ms);
    return live ? g : NULL;
}

void queue_look(struct queue_run *r, struct model *m, int key, const struct model_args *a) {
    *r = (struct queue_run){.m = m, .a = a, .k = &m->keys[key], .g = &m->keys[key].guard, .q = &m->queues[key]};
    model_expire(m, key);
    if (!model_is_queue(m, key) || !r->g->token[0] || !is(r->q->nodes[0], r->g->value))
        return;
    r->ends_ms = r->q->until_ms;
    if (model_queue_live(m, key)) {
        r->token = true;
        r->leased = r->g->leased;
        r->fence = r->g->fence;
        memcpy(r->owner, r->g->owner, sizeof(r->owner));
    } else {
        r->overdue = true;
    }
}

struct model_envelope queue_envelope(const struct queue_run *r, struct model_reply reply, enum lock_outcome outcome,
                                     bool with_state) {
    struct model_envelope e = {.reply = reply, .outcome = outcome, .pttl_ms = -3, .queue = true, .lost = r->lost};
    memcpy(e.granted, r->granted, sizeof(e.granted));
    if (!with_state || !r->token)
        return e;
    e.pttl_ms = r->ends_ms ? r->ends_ms - r->m->now_ms : -1;
    e.fence = r->fence;
    e.leased = r->leased;
    memcpy(e.owner, r->owner, sizeof(e.owner));
    return e;
}

struct model_envelope queue_plain(const struct queue_run *r, enum model_reply_kind kind, enum lock_outcome outcome) {
    return queue_envelope(r, (struct model_reply){.kind = kind}, outcome, true);
}

struct model_envelope queue_number(const struct queue_run *r, int64_t n, enum lock_outcome outcome) {
    return queue_envelope(r, (struct model_reply){.kind = REPLY_INT, .number = n}, outcome, true);
}

enum lock_outcome queue_in_the_way(const struct queue_run *r) {
    return r->token ? LOCK_HELD : LOCK_FOREIGN;
}

struct queue_record *queue_record_of(const struct queue_run *r, const char *node) {
    for (unsigned i = 0; i < r->q->record_count; i++)
        if (is(r->q->records[i].node, node))
            return &r->q->records[i];
    return NULL;
}

struct queue_party *queue_party_of(struct queue_run *r, const char *name, bool make) {
    struct model_queue *q = r->q;
    for (unsigned i = 0; i < q->party_count; i++)
        if (is(q->parties[i].name, name))
            return &q->parties[i];
    if (!make || q->party_count == QUEUE_PARTIES)
        return make ? &q->parties[0] : NULL;
    struct queue_party *p = &q->parties[q->party_count++];
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "%s", name);
    return p;
}

void queue_party_tidy(struct queue_run *r, struct queue_party *p) {
    if (!p->here && p->nodes == 0 && p->vacant == 0 && p->homeless_ms == 0 && p->crossed == 0 && !p->last[0] &&
        !p->denied[0])
        *p = r->q->parties[--r->q->party_count];
}

bool queue_counts(struct queue_run *r, const char *name) {
    const struct queue_party *p = queue_party_of(r, name, false);
    return p && p->here && (p->ends_ms == 0 || p->ends_ms > r->m->now_ms);
}

bool queue_has_left(struct queue_run *r, const char *name) {
    const struct queue_party *p = queue_party_of(r, name, false);
    return !p || !p->here || p->left;
}

int64_t queue_grace(const struct queue_run *r) {
    int64_t lease_ms = r->a->lease_ms;
    return lease_ms > 0 && lease_ms < QUEUE_LOOKS_WITHIN_MS ? lease_ms : QUEUE_LOOKS_WITHIN_MS;
}

static bool attended(struct queue_run *r, const struct queue_record *record) {
    if (queue_counts(r, record->party))
        return true;
    const struct queue_party *p = queue_party_of(r, record->party, false);
    if (!p || !p->here)
        return false;
    if (!p->left && !is(r->a->right, "own"))
        return queue_counts(r, record->identity);
    p = queue_party_of(r, record->identity, false);
    return p && p->homeless_ms > r->m->now_ms;
}

bool queue_homeless(struct queue_run *r) {
    const struct queue_party *p = queue_party_of(r, r->a->seen, false);
    return !p || p->nodes == 0;
}

bool queue_pools(struct queue_run *r) {
    enum { POOL = 3 };
    const struct queue_party *p = queue_party_of(r, r->a->identity, false);
    return is(r->a->right, "auto") && p && p->crossed >= POOL;
}

bool queue_shared(const struct queue_run *r) {
    return is(r->a->right, "client") || is(r->a->right, "any");
}

bool queue_near(const struct queue_run *r, const struct queue_record *record) {
    return record && !queue_shared(r) && !is(record->party, r->a->seen) && is(record->identity, r->a->identity);
}

bool queue_kin(struct queue_run *r, const struct queue_record *record) {
    return queue_near(r, record) && (is(r->a->right, "auto") || queue_has_left(r, record->party));
}

bool queue_mine(struct queue_run *r, const struct queue_record *record) {
    if (is(r->a->right, "any"))
        return true;
    if (!record)
        return false;
    bool client = is(r->a->right, "client") && is(record->identity, r->a->identity);
    return is(record->party, r->a->seen) || client || queue_kin(r, record);
}

void queue_guard_until(struct queue_run *r, int64_t pttl) {
    r->g->expire_ms = pttl >= 0 ? r->m->now_ms + pttl + MODEL_GUARD_OUTLIVES_MS : 0;
}

void queue_keep(struct queue_run *r) {
    if (!r->k->exists) {
        if (r->g->exists)
            r->g->expire_ms = r->m->now_ms + MODEL_GUARD_OUTLIVES_MS;
        return;
    }
    int64_t pttl = r->k->expire_ms ? r->k->expire_ms - r->m->now_ms : -1;
    if (r->a->lease_ms > 0 && pttl < r->a->lease_ms) {
        pttl = r->a->lease_ms;
        r->k->expire_ms = r->m->now_ms + pttl;
    }
    queue_guard_until(r, pttl);
}

void queue_refresh(struct queue_run *r, const char *name) {
    struct queue_party *p = queue_party_of(r, name, true);
    p->here = true;
    p->left = false;
    p->ends_ms = r->a->lease_ms > 0 ? r->m->now_ms + r->a->lease_ms : 0;
    r->g->exists = true;
}

bool queue_newest(struct queue_run *r, const struct queue_record *record, const char *node) {
    const struct queue_party *p = queue_party_of(r, record->party, false);
    return p && is(p->last, node);
}

void queue_unregister(struct queue_run *r, const char *node) {
    struct queue_record *record = queue_record_of(r, node);
    if (!record)
        return;
    struct queue_party *p = queue_party_of(r, record->party, true);
    if (is(p->last, node))
        p->last[0] = '\0';
    *record = r->q->records[--r->q->record_count];
    if (--p->nodes <= 0) {
        p->here = p->left = false;
        p->nodes = 0;
    }
    queue_party_tidy(r, p);
}

void queue_enter(struct queue_run *r, const char *node) {
    struct queue_record *record = queue_record_of(r, node);
    if (record && !is(record->party, r->a->seen)) {
        queue_unregister(r, node);
        record = NULL;
    }
    if (!record) {
        record = &r->q->records[r->q->record_count++];
        queue_party_of(r, r->a->seen, true)->nodes++;
    }
    snprintf(queue_party_of(r, r->a->seen, true)->last, QUEUE_NODE, "%s", node);
    snprintf(record->node, sizeof(record->node), "%s", node);
    snprintf(record->party, sizeof(record->party), "%s", r->a->seen);
    snprintf(record->attempt, sizeof(record->attempt), "%s", r->a->attempt);
    snprintf(record->identity, sizeof(record->identity), "%s", r->a->identity);
    r->g->exists = true;
}

void queue_end_lease(struct queue_run *r) {
    r->g->exists = true;
    r->g->token[0] = '\0';
    r->q->may.count = r->q->early.count = 0;
    r->q->early_at_ms = 0;
    r->token = r->leased = false;
    r->fence = 0;
}

void queue_take_out(struct queue_run *r, unsigned at) {
    struct model_queue *q = r->q;
    memmove(q->nodes[at], q->nodes[at + 1], (--q->count - at) * sizeof(q->nodes[0]));
    if (q->count == 0) {
        r->k->exists = r->k->list = false;
        r->k->expire_ms = 0;
    }
}

static bool dead(struct queue_run *r) {
    if (r->token)
        return false;
    if (r->overdue)
        return true;
    const struct queue_record *record = queue_record_of(r, r->q->nodes[0]);
    int64_t now = r->m->now_ms, since = r->q->head_at_ms;
    if (!record)
        return r->a->lease_ms > 0 && now >= since + r->a->lease_ms;
    if (!attended(r, record))
        return true;
    if (is(r->a->right, "own") && !queue_newest(r, record, r->q->nodes[0]))
        return true;
    return now >= since + QUEUE_LOOKS_WITHIN_MS;
}

/* Whether there is a head. */
bool queue_prune(struct queue_run *r) {
    struct model_queue *q = r->q;
    if (q->count && !q->kind) {
        queue_end_lease(r);
        q->kind = true;
    }
    while (q->count) {
        if (!q->seen_head || !is(q->head, q->nodes[0])) {
            memcpy(q->head, q->nodes[0], sizeof(q->head));
            q->head_at_ms = r->m->now_ms;
            q->seen_head = q->kind = r->g->exists = true;
        }
        r->gone = dead(r);
        if (r->lost >= QUEUE_PRUNED_AT_ONCE || !r->gone)
            return true;
        char node[QUEUE_NODE];
        memcpy(node, q->nodes[0], sizeof(node));
        queue_take_out(r, 0);
        queue_unregister(r, node);
        if (r->overdue) {
            r->overdue = false;
            queue_end_lease(r);
        }
        r->lost++;
        q->seen_head = false;
    }
    q->seen_head = r->gone = false;
    q->head[0] = '\0';
    return false;
}

struct queue_seat *queue_seat(const struct queue_run *r, struct queue_seats *of) {
    for (unsigned i = 0; i < of->count; i++)
        if (is(of->seats[i].party, r->a->seen))
            return &of->seats[i];
    return NULL;
}

static bool among(const struct queue_seats *of, const char *token) {
    for (unsigned i = 0; token && token[0] && i < of->count; i++)
        if (is(of->seats[i].token, token))
            return true;
    return false;
}

bool model_queue_seated(const struct model *m, int key, const char *token) {
    return among(&m->queues[key].may, token);
}

bool model_queue_early(const struct model *m, int key, const char *token) {
    return among(&m->queues[key].early, token);
}

bool queue_early(const struct queue_run *r) {
    return r->q->early_at_ms >= r->m->now_ms - QUEUE_EARLY_MS;
}

void queue_take_seat(const struct queue_run *r, struct queue_seats *of, bool seated) {
    if (of->count == QUEUE_SEATS)
        of->count--; /* in Redis there is room for more than can be here */
    struct queue_seat *seat = &of->seats[of->count++];
    snprintf(seat->party, sizeof(seat->party), "%s", queue_shared(r) ? "" : r->a->seen);
    snprintf(seat->token, sizeof(seat->token), "%s", seated ? r->a->attempt : "");
}

void queue_join(struct queue_run *r, bool owns) {
    struct model_guard *g = r->g;
    snprintf(g->token, sizeof(g->token), "%s", r->a->attempt);
    snprintf(g->proxy, sizeof(g->proxy), "%s", r->a->proxy);
    memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
    queue_take_seat(r, &r->q->may, true);
    int64_t ends_ms = r->m->now_ms + r->a->lease_ms;
    if (r->a->lease_ms == 0 && !r->leased)
        r->ends_ms = 0;
    else if (owns && r->leased && ends_ms > r->ends_ms)
        r->ends_ms = ends_ms;
    r->q->until_ms = r->ends_ms;
    if (owns)
        snprintf(r->q->by, sizeof(r->q->by), "%s", r->a->seen);
}

void queue_hold(struct queue_run *r, bool seated) {
    struct model_guard *g = r->g;
    uint64_t clock = (uint64_t)r->m->now_ms * 1000;
    r->m->us = r->m->us + 1 > clock ? r->m->us + 1 : clock;
    r->fence = g->fence + 1 > r->m->us ? g->fence + 1 : r->m->us;
    r->token = true;
    r->leased = r->a->lease_ms > 0;
    r->ends_ms = r->leased ? r->m->now_ms + r->a->lease_ms : 0;
    if (seated)
        memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
    snprintf(r->owner, sizeof(r->owner), "%s", r->a->identity);
    g->exists = g->has_value = r->q->kind = true;
    g->fence = r->fence;
    g->leased = r->leased;
    g->extra = 0;
    r->q->until_ms = r->ends_ms;
    snprintf(r->q->by, sizeof(r->q->by), "%s", r->a->seen);
    snprintf(g->token, sizeof(g->token), "%s", r->a->attempt);
    snprintf(g->value, sizeof(g->value), "%s", r->q->nodes[0]);
    snprintf(g->owner, sizeof(g->owner), "%s", r->a->identity);
    snprintf(g->proxy, sizeof(g->proxy), "%s", r->a->proxy);
    r->q->may.count = 0;
    queue_take_seat(r, &r->q->may, seated);
}

void queue_remember(struct queue_run *r, const char *reply) {
    r->g->exists = r->g->has_attempt = true;
    snprintf(r->g->attempt, sizeof(r->g->attempt), "%s", r->a->attempt);
    snprintf(r->g->reply, sizeof(r->g->reply), "%s", reply);
}

void queue_remember_number(struct queue_run *r, int64_t n) {
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, n);
    queue_remember(r, text);
}

bool queue_repeated(const struct queue_run *r) {
    return r->g->exists && r->g->has_attempt && is(r->g->attempt, r->a->attempt);
}

bool queue_token_is_attempt(const struct queue_run *r) {
    return r->token && is(r->g->token, r->a->attempt);
}

int queue_place_of(const struct queue_run *r, const char *node) {
    for (unsigned i = 0; i < r->q->count; i++)
        if (is(r->q->nodes[i], node))
            return (int)i;
    return -1;
}
