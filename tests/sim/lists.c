/*
 * list_*.lua on the model, and what release.lua, extend.lua and renew.lua do with a list lock. Where one is changed
 * there, it is changed here; model_against_redis.py finds what was forgotten.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/model.h"

/* A script at work: look()'s state and list.lua's variables. */
struct queue_run {
    struct model *m;
    const struct model_args *a;
    struct model_key *k;
    struct model_guard *g;
    struct model_queue *q;
    bool token, overdue, leased;
    int64_t ends_ms;
    uint64_t fence;
    char owner[MODEL_NAME], granted[QUEUE_NODE];
    unsigned lost;
};

static bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

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

static void look(struct queue_run *r, struct model *m, int key, const struct model_args *a) {
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

static struct model_envelope envelope(const struct queue_run *r, struct model_reply reply, enum lock_outcome outcome,
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

static struct model_envelope plain(const struct queue_run *r, enum model_reply_kind kind, enum lock_outcome outcome) {
    return envelope(r, (struct model_reply){.kind = kind}, outcome, true);
}

static struct model_envelope number(const struct queue_run *r, int64_t n, enum lock_outcome outcome) {
    return envelope(r, (struct model_reply){.kind = REPLY_INT, .number = n}, outcome, true);
}

static enum lock_outcome in_the_way(const struct queue_run *r) {
    return r->token ? LOCK_HELD : LOCK_FOREIGN;
}

/* ---- list.lua ---------------------------------------------------------------------------------- */

static struct queue_record *record_of(const struct queue_run *r, const char *node) {
    for (unsigned i = 0; i < r->q->record_count; i++)
        if (is(r->q->records[i].node, node))
            return &r->q->records[i];
    return NULL;
}

static struct queue_party *party_of(struct queue_run *r, const char *name, bool make) {
    struct model_queue *q = r->q;
    for (unsigned i = 0; i < q->party_count; i++)
        if (is(q->parties[i].name, name))
            return &q->parties[i];
    if (!make || q->party_count == QUEUE_NODES)
        return make ? &q->parties[0] : NULL;
    struct queue_party *p = &q->parties[q->party_count++];
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "%s", name);
    return p;
}

static void party_tidy(struct queue_run *r, struct queue_party *p) {
    if (!p->here && p->nodes == 0 && p->vacant == 0 && !p->last[0])
        *p = r->q->parties[--r->q->party_count];
}

static bool counts(struct queue_run *r, const char *name) {
    const struct queue_party *p = party_of(r, name, false);
    return p && p->here && (p->ends_ms == 0 || p->ends_ms > r->m->now_ms);
}

static bool mine(struct queue_run *r, const struct queue_record *record, bool reads) {
    const char *right = r->a->right;
    if (is(right, "any"))
        return true;
    if (!record)
        return false;
    if (is(record->party, r->a->seen))
        return true;
    if (!is(record->identity, r->a->identity))
        return false;
    if (!is(right, "auto"))
        return is(right, "client");
    return !counts(r, r->a->seen) && (reads || strncmp(record->party, r->a->proxy, strlen(r->a->proxy)) != 0);
}

static void guard_until(struct queue_run *r, int64_t pttl) {
    r->g->expire_ms = pttl >= 0 ? r->m->now_ms + pttl + MODEL_GUARD_OUTLIVES_MS : 0;
}

static void keep_queue(struct queue_run *r) {
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
    guard_until(r, pttl);
}

static void refresh(struct queue_run *r, const char *name) {
    struct queue_party *p = party_of(r, name, true);
    p->here = true;
    p->ends_ms = r->a->lease_ms > 0 ? r->m->now_ms + r->a->lease_ms : 0;
    r->g->exists = true;
}

static bool newest(struct queue_run *r, const struct queue_record *record, const char *node) {
    const struct queue_party *p = party_of(r, record->party, false);
    return p && is(p->last, node);
}

static void enter(struct queue_run *r, const char *node) {
    struct queue_record *record = record_of(r, node);
    if (!record) {
        record = &r->q->records[r->q->record_count++];
        party_of(r, r->a->seen, true)->nodes++;
    }
    snprintf(party_of(r, r->a->seen, true)->last, QUEUE_NODE, "%s", node);
    snprintf(record->node, sizeof(record->node), "%s", node);
    snprintf(record->party, sizeof(record->party), "%s", r->a->seen);
    snprintf(record->attempt, sizeof(record->attempt), "%s", r->a->attempt);
    snprintf(record->identity, sizeof(record->identity), "%s", r->a->identity);
    r->g->exists = true;
}

static void unregister(struct queue_run *r, const char *node) {
    struct queue_record *record = record_of(r, node);
    if (!record)
        return;
    struct queue_party *p = party_of(r, record->party, true);
    if (is(p->last, node))
        p->last[0] = '\0';
    *record = r->q->records[--r->q->record_count];
    if (--p->nodes <= 0) {
        p->here = false;
        p->nodes = 0;
    }
    party_tidy(r, p);
}

static void end_lease(struct queue_run *r) {
    r->g->exists = true;
    r->g->token[0] = '\0';
    r->token = r->leased = false;
    r->fence = 0;
}

static void take_out(struct queue_run *r, unsigned at) {
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
    const struct queue_record *record = record_of(r, r->q->nodes[0]);
    int64_t now = r->m->now_ms, since = r->q->head_at_ms;
    if (!record)
        return r->a->lease_ms > 0 && now >= since + r->a->lease_ms;
    if (!counts(r, record->party) && !counts(r, record->identity))
        return true;
    if (is(r->a->right, "own") && !newest(r, record, r->q->nodes[0]))
        return true;
    return now >= since + QUEUE_LOOKS_WITHIN_MS;
}

/* Whether there is a head. */
static bool prune(struct queue_run *r) {
    struct model_queue *q = r->q;
    if (q->count && !q->kind) {
        end_lease(r);
        q->kind = true;
    }
    while (q->count) {
        if (!q->seen_head || !is(q->head, q->nodes[0])) {
            memcpy(q->head, q->nodes[0], sizeof(q->head));
            q->head_at_ms = r->m->now_ms;
            q->seen_head = q->kind = r->g->exists = true;
        }
        if (r->lost >= QUEUE_PRUNED_AT_ONCE || !dead(r))
            return true;
        char node[QUEUE_NODE];
        memcpy(node, q->nodes[0], sizeof(node));
        take_out(r, 0);
        unregister(r, node);
        if (r->overdue) {
            r->overdue = false;
            end_lease(r);
        }
        r->lost++;
        q->seen_head = false;
    }
    q->seen_head = false;
    q->head[0] = '\0';
    return false;
}

static void hold(struct queue_run *r) {
    struct model_guard *g = r->g;
    uint64_t clock = (uint64_t)r->m->now_ms * 1000;
    r->m->us = r->m->us + 1 > clock ? r->m->us + 1 : clock;
    r->fence = g->fence + 1 > r->m->us ? g->fence + 1 : r->m->us;
    r->token = true;
    r->leased = r->a->lease_ms > 0;
    r->ends_ms = r->leased ? r->m->now_ms + r->a->lease_ms : 0;
    memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
    snprintf(r->owner, sizeof(r->owner), "%s", r->a->identity);
    g->exists = g->has_value = r->q->kind = true;
    g->fence = r->fence;
    g->leased = r->leased;
    g->extra = 0;
    r->q->until_ms = r->ends_ms;
    snprintf(r->q->by, sizeof(r->q->by), "%s", r->a->seen);
    snprintf(g->token, sizeof(g->token), "%s", r->a->attempt);
    snprintf(g->value, sizeof(g->value), "%s", r->granted);
    snprintf(g->owner, sizeof(g->owner), "%s", r->a->identity);
    snprintf(g->proxy, sizeof(g->proxy), "%s", r->a->proxy);
}

static void remember(struct queue_run *r, const char *reply) {
    r->g->exists = r->g->has_attempt = true;
    snprintf(r->g->attempt, sizeof(r->g->attempt), "%s", r->a->attempt);
    snprintf(r->g->reply, sizeof(r->g->reply), "%s", reply);
}

static void remember_number(struct queue_run *r, int64_t n) {
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, n);
    remember(r, text);
}

static bool repeated(const struct queue_run *r) {
    return r->g->exists && r->g->has_attempt && is(r->g->attempt, r->a->attempt);
}

static bool token_is_attempt(const struct queue_run *r) {
    return r->token && is(r->g->token, r->a->attempt);
}

static int place_of(const struct queue_run *r, const char *node) {
    for (unsigned i = 0; i < r->q->count; i++)
        if (is(r->q->nodes[i], node))
            return (int)i;
    return -1;
}

/* ---- the scripts ------------------------------------------------------------------------------- */

static struct model_envelope error(struct queue_run *r) {
    return envelope(r, (struct model_reply){.kind = REPLY_ERROR}, LOCK_ERROR, false);
}

static void spend_vacancy(struct queue_run *r) {
    struct queue_party *p = party_of(r, r->a->seen, true);
    p->vacant--;
    party_tidy(r, p);
}

static struct model_envelope push(struct queue_run *r) {
    const char *node = r->a->command.value;
    if (repeated(r))
        return number(r, strtoll(r->g->reply, NULL, 10), token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
    if ((r->k->exists && !r->k->list) || r->q->count == QUEUE_NODES)
        return error(r);
    bool head = r->k->exists && prune(r);
    const struct queue_record *record = record_of(r, node);
    if (record && is(record->attempt, r->a->attempt))
        return number(r, place_of(r, node) + 1, token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
    const struct queue_party *party = party_of(r, r->a->seen, false);
    bool vacant = party && party->vacant > 0;
    if (vacant)
        spend_vacancy(r);
    if (head && (vacant || r->a->command.op == OP_LPUSH || (record && !mine(r, record, false)))) {
        keep_queue(r);
        return plain(r, REPLY_ERROR, in_the_way(r));
    }
    snprintf(r->q->nodes[r->q->count++], QUEUE_NODE, "%s", node);
    r->k->exists = r->k->list = true;
    enter(r, node);
    refresh(r, r->a->seen);
    remember_number(r, r->q->count);
    int64_t reply = r->q->count;
    if (!head) {
        r->k->expire_ms = 0;
        end_lease(r);
        prune(r);
        if (vacant)
            hold(r);
    }
    keep_queue(r);
    return number(r, reply, token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
}

static void note_vacancy(struct queue_run *r) {
    party_of(r, r->a->seen, true)->vacant++;
    r->g->exists = true;
    r->g->token[0] = '\0';
}

static struct model_envelope read_queue(struct queue_run *r) {
    enum { VACANCY_MS = 60000 };
    const char *right = r->a->right;
    bool exists = r->a->command.op == OP_EXISTS;
    if (!r->k->exists || !r->k->list) {
        if (!r->k->exists && exists) {
            bool endless = r->g->exists && !r->g->expire_ms;
            note_vacancy(r);
            if (!endless && r->g->expire_ms < r->m->now_ms + VACANCY_MS)
                r->g->expire_ms = r->m->now_ms + VACANCY_MS;
            if (endless)
                r->g->expire_ms = r->m->now_ms + VACANCY_MS;
        }
        if (r->k->exists && !exists)
            return error(r);
        struct model_reply reply = {.kind = exists ? REPLY_INT : REPLY_NIL, .number = r->k->exists};
        return envelope(r, reply, r->k->exists ? LOCK_DONE : LOCK_FREE, false);
    }
    bool head = prune(r);
    struct queue_party *party = party_of(r, r->a->seen, false);
    if (exists && head && party && !is(right, "client") && !is(right, "any")) {
        party->vacant = 0;
        party_tidy(r, party);
    }
    if (counts(r, r->a->seen))
        refresh(r, r->a->seen);
    enum lock_outcome outcome = head ? in_the_way(r) : LOCK_FREE;
    const struct queue_record *record = head && !exists ? record_of(r, r->q->nodes[0]) : NULL;
    if (head && !exists && (token_is_attempt(r) || mine(r, record, true))) {
        bool shared = is(right, "client") || is(right, "any");
        bool own = record && is(record->party, r->a->seen) && (shared || newest(r, record, r->q->nodes[0]));
        bool known = r->token && (is(r->q->by, r->a->seen) || !own);
        if (token_is_attempt(r)) {
            memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
        } else if (!known) {
            hold(r);
        } else if (own && r->leased && !shared) {
            int64_t ends = r->m->now_ms + r->a->lease_ms;
            r->q->until_ms = r->ends_ms = ends > r->ends_ms ? ends : r->ends_ms;
        }
        outcome = !token_is_attempt(r) ? LOCK_DONE : own || !is(right, "auto") ? LOCK_GRANTED : LOCK_ADOPTED;
    }
    keep_queue(r);
    if (exists && !head) {
        party_of(r, r->a->seen, true)->vacant++;
        r->g->expire_ms = r->m->now_ms + VACANCY_MS;
    }
    struct model_reply reply = {.kind = exists ? REPLY_INT : head ? REPLY_TEXT : REPLY_NIL, .number = head};
    if (head)
        snprintf(reply.text, sizeof(reply.text), "%s", r->q->nodes[0]);
    return envelope(r, reply, outcome, true);
}

static struct model_envelope remove_node(struct queue_run *r) {
    const char *node = r->a->command.value;
    if (repeated(r))
        return envelope(r, (struct model_reply){.kind = REPLY_INT, .number = strtoll(r->g->reply, NULL, 10)},
                        LOCK_RELEASED, false);
    if (!r->k->exists || !r->k->list) {
        if (r->k->exists)
            return error(r);
        return envelope(r, (struct model_reply){.kind = REPLY_INT}, LOCK_FREE, false);
    }
    const struct queue_record *record = record_of(r, node);
    if (!(record || is(r->a->right, "any")) || !mine(r, record, false))
        return number(r, 0, r->token ? LOCK_HELD : record ? LOCK_FOREIGN : LOCK_FREE);
    int at = place_of(r, node);
    if (at < 0)
        return number(r, 0, r->token ? LOCK_HELD : LOCK_FREE);
    take_out(r, (unsigned)at);
    if (place_of(r, node) < 0)
        unregister(r, node);
    remember_number(r, 1);
    bool holder = at == 0 && r->token;
    uint64_t fence = r->fence;
    if (at == 0 && (r->token || r->overdue)) {
        r->overdue = false;
        end_lease(r);
    }
    prune(r);
    keep_queue(r);
    struct model_envelope e = number(r, 1, holder ? LOCK_RELEASED : LOCK_DONE);
    if (holder) {
        e.fence = fence;
        e.pttl_ms = -2;
        memcpy(e.owner, r->owner, sizeof(e.owner));
    }
    return e;
}

static struct model_envelope set_node(struct queue_run *r) {
    const char *node = r->a->command.value;
    bool list = r->k->exists && r->k->list, head = list && prune(r);
    if (!head) {
        if (list)
            keep_queue(r);
        return envelope(r, (struct model_reply){.kind = REPLY_ERROR}, LOCK_ERROR, false);
    }
    char old[QUEUE_NODE];
    memcpy(old, r->q->nodes[0], sizeof(old));
    struct queue_record *record = record_of(r, old), *other = record_of(r, node);
    if (other && is(other->attempt, r->a->attempt) && is(old, node))
        return plain(r, REPLY_OK, LOCK_DONE);
    if (!mine(r, record, false) || (other && !mine(r, other, false))) {
        keep_queue(r);
        return plain(r, REPLY_ERROR, in_the_way(r));
    }
    snprintf(r->q->nodes[0], QUEUE_NODE, "%s", node);
    if (place_of(r, old) < 0)
        unregister(r, old);
    enter(r, node);
    refresh(r, r->a->seen);
    snprintf(r->q->head, sizeof(r->q->head), "%s", node);
    if (r->token)
        snprintf(r->g->value, sizeof(r->g->value), "%s", node);
    keep_queue(r);
    return plain(r, REPLY_OK, LOCK_DONE);
}

static void remove_head(struct queue_run *r, const char *reply) {
    char node[QUEUE_NODE];
    memcpy(node, r->q->nodes[0], sizeof(node));
    take_out(r, 0);
    unregister(r, node);
    remember(r, reply ? reply : node);
    end_lease(r);
    prune(r);
    keep_queue(r);
}

/* may_touch() */
static enum lock_outcome may_touch(const struct queue_run *r, bool *may) {
    const char *right = r->a->right;
    bool whoever = is(right, "any") || is(right, "operator");
    *may = true;
    if (r->token && !is(r->g->token, r->a->claim) && !whoever && is(right, "adopt") && is(r->owner, r->a->identity) &&
        !is(r->g->proxy, r->a->proxy))
        return LOCK_ADOPTED;
    *may = whoever || (r->token && is(r->g->token, r->a->claim));
    return *may ? LOCK_DONE : in_the_way(r);
}

/* The head goes, by LPOP, DEL, or an expiry in the past. */
static struct model_envelope let_head_go(struct queue_run *r, struct model_reply reply, const char *said,
                                         enum lock_outcome outcome) {
    uint64_t fence = r->fence;
    bool held = r->token;
    remove_head(r, said);
    struct model_envelope e = envelope(r, reply, outcome, false);
    e.fence = fence;
    e.pttl_ms = -2;
    if (held)
        memcpy(e.owner, r->owner, sizeof(e.owner));
    return e;
}

static struct model_envelope pop(struct queue_run *r) {
    if (repeated(r) && !token_is_attempt(r)) {
        struct model_reply reply = {.kind = REPLY_TEXT};
        snprintf(reply.text, sizeof(reply.text), "%s", r->g->reply);
        return envelope(r, reply, LOCK_RELEASED, false);
    }
    if (!r->k->exists)
        return envelope(r, (struct model_reply){.kind = REPLY_NIL}, LOCK_FREE, false);
    if (!r->k->list)
        return error(r);
    bool may = false;
    enum lock_outcome how = LOCK_FOREIGN;
    if (r->token)
        how = may_touch(r, &may);
    if (!may && is(r->a->right, "any")) {
        may = true;
        how = LOCK_DONE;
    }
    if (!may)
        return plain(r, REPLY_NIL, in_the_way(r));
    struct model_reply reply = {.kind = REPLY_TEXT};
    snprintf(reply.text, sizeof(reply.text), "%s", r->q->nodes[0]);
    return let_head_go(r, reply, NULL, how == LOCK_ADOPTED ? how : LOCK_RELEASED);
}

/* release.lua where the key is a queue. */
static struct model_envelope release(struct queue_run *r) {
    bool may;
    if (repeated(r) && !token_is_attempt(r)) {
        struct model_envelope e =
            envelope(r, (struct model_reply){.kind = REPLY_INT, .number = 1}, LOCK_RELEASED, false);
        e.pttl_ms = -2;
        return e;
    }
    enum lock_outcome how = may_touch(r, &may);
    if (!may) {
        struct model_envelope e = number(r, 0, how);
        e.pttl_ms = -3;
        return e;
    }
    return let_head_go(r, (struct model_reply){.kind = REPLY_INT, .number = 1}, "1",
                       how == LOCK_DONE ? LOCK_RELEASED : how);
}

/* extend.lua where the key is a queue: PEXPIRE without a condition. */
static struct model_envelope extend(struct queue_run *r) {
    bool may;
    int64_t ms = r->a->command.ms;
    enum lock_outcome how = may_touch(r, &may);
    if (!may) {
        struct model_envelope e = number(r, 0, how);
        e.pttl_ms = -3;
        return e;
    }
    if (ms <= 0)
        return let_head_go(r, (struct model_reply){.kind = REPLY_INT, .number = 1}, "1", LOCK_RELEASED);
    r->k->expire_ms = r->m->now_ms + ms;
    if (r->token) {
        r->g->leased = r->leased = false;
        r->q->until_ms = r->ends_ms = r->k->expire_ms;
    }
    guard_until(r, ms);
    return number(r, 1, how);
}

struct model_envelope model_queue_script(struct model *m, int key, const struct model_args *a) {
    struct queue_run r;
    look(&r, m, key, a);
    switch (a->command.op) {
    case OP_RPUSH:
    case OP_LPUSH:
        return push(&r);
    case OP_LINDEX:
    case OP_EXISTS:
        return read_queue(&r);
    case OP_LREM:
        return remove_node(&r);
    case OP_LSET:
        return set_node(&r);
    case OP_LPOP:
        return pop(&r);
    case OP_DEL:
        return release(&r);
    case OP_PEXPIRE:
        return extend(&r);
    default:
        abort();
    }
}

struct model_envelope model_queue_renew(struct model *m, int key, const char *claim, const char *right,
                                        int64_t lease_ms) {
    struct model_args a = {.lease_ms = lease_ms, .right = right, .seen = ""};
    struct queue_run r;
    look(&r, m, key, &a);
    if (!r.token || !is(r.g->token, claim)) {
        struct model_envelope e = number(&r, 0, in_the_way(&r));
        e.pttl_ms = -3;
        return e;
    }
    if (!r.leased && (!is(right, "always") || r.ends_ms == 0))
        return number(&r, 0, LOCK_DONE);
    int64_t ends = m->now_ms + lease_ms;
    r.q->until_ms = r.ends_ms = ends > r.ends_ms ? ends : r.ends_ms;
    if (r.k->expire_ms && r.k->expire_ms < ends)
        r.k->expire_ms = ends;
    guard_until(&r, r.k->expire_ms ? r.k->expire_ms - m->now_ms : -1);
    return number(&r, 1, LOCK_DONE);
}

void model_queue_leave(struct model *m, int key, const char *party, int64_t lease_ms) {
    struct model_args a = {.lease_ms = lease_ms, .right = "auto", .seen = party, .identity = ""};
    struct queue_run r;
    look(&r, m, key, &a);
    struct queue_party *p = party_of(&r, party, false);
    if (p) {
        p->here = false;
        p->nodes = p->vacant = 0;
        p->last[0] = '\0';
        party_tidy(&r, p);
    }
    if (r.k->exists && r.k->list)
        prune(&r);
    keep_queue(&r);
}
