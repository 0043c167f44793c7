/*
 * list_*.lua on the model, and what release.lua, extend.lua and renew.lua do with a list lock. Where one is changed
 * there, it is changed here; model_against_redis.py finds what was forgotten.
 */
#include "tests/sim/list_script.h"

#include <stdio.h>
#include <stdlib.h>

static struct model_envelope error(struct queue_run *r) {
    return queue_envelope(r, (struct model_reply){.kind = REPLY_ERROR}, LOCK_ERROR, false);
}

/* Whether EXISTS has told the caller that there is no queue. One push uses that up; a refused one is remembered. */
static bool spend_vacancy(struct queue_run *r, bool head) {
    struct queue_party *p = queue_party_of(r, r->a->seen, false);
    bool denied = p && is(p->denied, r->a->attempt);
    if (!p || (!denied && p->vacant == 0))
        return false;
    p->vacant -= !denied;
    if (head)
        snprintf(p->denied, sizeof(p->denied), "%s", r->a->attempt);
    queue_party_tidy(r, p);
    return true;
}

static struct model_envelope push(struct queue_run *r) {
    const char *node = r->a->command.value;
    if (queue_repeated(r))
        return queue_number(r, strtoll(r->g->reply, NULL, 10), queue_token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
    if ((r->k->exists && !r->k->list) || r->q->count == QUEUE_NODES)
        return error(r);
    bool head = r->k->exists && queue_prune(r);
    const struct queue_record *record = queue_record_of(r, node);
    if (record && is(record->attempt, r->a->attempt))
        return queue_number(r, queue_place_of(r, node) + 1, queue_token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
    bool vacant = spend_vacancy(r, head);
    if (head && (vacant || r->a->command.op == OP_LPUSH || (record && !queue_mine(r, record, false)))) {
        queue_keep(r);
        return queue_plain(r, REPLY_ERROR, queue_in_the_way(r));
    }
    snprintf(r->q->nodes[r->q->count++], QUEUE_NODE, "%s", node);
    r->k->exists = r->k->list = true;
    queue_enter(r, node);
    queue_refresh(r, r->a->seen);
    queue_remember_number(r, r->q->count);
    int64_t reply = r->q->count;
    if (!head) {
        r->k->expire_ms = 0;
        queue_end_lease(r);
        queue_prune(r);
        if (vacant)
            queue_hold(r);
    }
    queue_keep(r);
    return queue_number(r, reply, queue_token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
}

static void note_vacancy(struct queue_run *r) {
    queue_party_of(r, r->a->seen, true)->vacant++;
    r->g->exists = true;
    r->g->token[0] = '\0';
}

static struct model_envelope read_queue(struct queue_run *r) {
    enum { VACANCY_MS = 60000 };
    const char *right = r->a->right;
    bool exists = r->a->command.op == OP_EXISTS;
    if (!r->k->exists || !r->k->list) {
        if (!r->k->exists && exists) {
            bool lasts = r->g->exists && r->g->expire_ms >= r->m->now_ms + VACANCY_MS;
            note_vacancy(r);
            if (!lasts)
                r->g->expire_ms = r->m->now_ms + VACANCY_MS;
        }
        if (r->k->exists && !exists)
            return error(r);
        struct model_reply reply = {.kind = exists ? REPLY_INT : REPLY_NIL, .number = r->k->exists};
        return queue_envelope(r, reply, r->k->exists ? LOCK_DONE : LOCK_FREE, false);
    }
    bool head = queue_prune(r);
    struct queue_party *party = queue_party_of(r, r->a->seen, false);
    if (exists && head && party && !is(right, "client") && !is(right, "any")) {
        party->vacant = 0;
        queue_party_tidy(r, party);
    }
    if (queue_counts(r, r->a->seen))
        queue_refresh(r, r->a->seen);
    enum lock_outcome outcome = head ? queue_in_the_way(r) : LOCK_FREE;
    const struct queue_record *record = head && !exists ? queue_record_of(r, r->q->nodes[0]) : NULL;
    if (head && !exists && (queue_token_is_attempt(r) || queue_mine(r, record, true))) {
        bool shared = is(right, "client") || is(right, "any");
        bool own = record && is(record->party, r->a->seen) && (shared || queue_newest(r, record, r->q->nodes[0]));
        bool known = r->token && (is(r->q->by, r->a->seen) || !own);
        if (queue_token_is_attempt(r)) {
            memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
        } else if (!known) {
            queue_hold(r);
        } else if (own && r->leased && !shared) {
            int64_t ends = r->m->now_ms + r->a->lease_ms;
            r->q->until_ms = r->ends_ms = ends > r->ends_ms ? ends : r->ends_ms;
        }
        outcome = !queue_token_is_attempt(r) ? LOCK_DONE : own || !is(right, "auto") ? LOCK_GRANTED : LOCK_ADOPTED;
    }
    queue_keep(r);
    if (exists && !head) {
        queue_party_of(r, r->a->seen, true)->vacant++;
        r->g->expire_ms = r->m->now_ms + VACANCY_MS;
    }
    struct model_reply reply = {.kind = exists ? REPLY_INT : head ? REPLY_TEXT : REPLY_NIL, .number = head};
    if (head)
        snprintf(reply.text, sizeof(reply.text), "%s", r->q->nodes[0]);
    return queue_envelope(r, reply, outcome, true);
}

static struct model_envelope remove_node(struct queue_run *r) {
    const char *node = r->a->command.value;
    if (queue_repeated(r))
        return queue_envelope(r, (struct model_reply){.kind = REPLY_INT, .number = strtoll(r->g->reply, NULL, 10)},
                              LOCK_RELEASED, false);
    if (!r->k->exists || !r->k->list) {
        if (r->k->exists)
            return error(r);
        return queue_envelope(r, (struct model_reply){.kind = REPLY_INT}, LOCK_FREE, false);
    }
    const struct queue_record *record = queue_record_of(r, node);
    if (!(record || is(r->a->right, "any")) || !queue_mine(r, record, false))
        return queue_number(r, 0, r->token ? LOCK_HELD : record ? LOCK_FOREIGN : LOCK_FREE);
    int at = queue_place_of(r, node);
    if (at < 0)
        return queue_number(r, 0, r->token ? LOCK_HELD : LOCK_FREE);
    queue_take_out(r, (unsigned)at);
    if (queue_place_of(r, node) < 0)
        queue_unregister(r, node);
    queue_remember_number(r, 1);
    bool holder = at == 0 && r->token;
    uint64_t fence = r->fence;
    if (at == 0 && (r->token || r->overdue)) {
        r->overdue = false;
        queue_end_lease(r);
    }
    queue_prune(r);
    queue_keep(r);
    struct model_envelope e = queue_number(r, 1, holder ? LOCK_RELEASED : LOCK_DONE);
    if (holder) {
        e.fence = fence;
        e.pttl_ms = -2;
        memcpy(e.owner, r->owner, sizeof(e.owner));
    }
    return e;
}

static struct model_envelope set_node(struct queue_run *r) {
    const char *node = r->a->command.value;
    bool list = r->k->exists && r->k->list, head = list && queue_prune(r);
    if (!head) {
        if (list)
            queue_keep(r);
        return queue_envelope(r, (struct model_reply){.kind = REPLY_ERROR}, LOCK_ERROR, false);
    }
    char old[QUEUE_NODE];
    memcpy(old, r->q->nodes[0], sizeof(old));
    struct queue_record *record = queue_record_of(r, old), *other = queue_record_of(r, node);
    if (other && is(other->attempt, r->a->attempt) && is(old, node))
        return queue_plain(r, REPLY_OK, LOCK_DONE);
    if (!queue_mine(r, record, false) || (other && !queue_mine(r, other, false))) {
        queue_keep(r);
        return queue_plain(r, REPLY_ERROR, queue_in_the_way(r));
    }
    snprintf(r->q->nodes[0], QUEUE_NODE, "%s", node);
    if (queue_place_of(r, old) < 0)
        queue_unregister(r, old);
    queue_enter(r, node);
    queue_refresh(r, r->a->seen);
    snprintf(r->q->head, sizeof(r->q->head), "%s", node);
    if (r->token)
        snprintf(r->g->value, sizeof(r->g->value), "%s", node);
    queue_keep(r);
    return queue_plain(r, REPLY_OK, LOCK_DONE);
}

static void remove_head(struct queue_run *r, const char *reply) {
    char node[QUEUE_NODE];
    memcpy(node, r->q->nodes[0], sizeof(node));
    queue_take_out(r, 0);
    queue_unregister(r, node);
    queue_remember(r, reply ? reply : node);
    queue_end_lease(r);
    queue_prune(r);
    queue_keep(r);
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
    return *may ? LOCK_DONE : queue_in_the_way(r);
}

/* The head goes, by LPOP, DEL, or an expiry in the past. */
static struct model_envelope let_head_go(struct queue_run *r, struct model_reply reply, const char *said,
                                         enum lock_outcome outcome) {
    uint64_t fence = r->fence;
    bool held = r->token;
    remove_head(r, said);
    struct model_envelope e = queue_envelope(r, reply, outcome, false);
    e.fence = fence;
    e.pttl_ms = -2;
    if (held)
        memcpy(e.owner, r->owner, sizeof(e.owner));
    return e;
}

static struct model_envelope pop(struct queue_run *r) {
    if (queue_repeated(r) && !queue_token_is_attempt(r)) {
        struct model_reply reply = {.kind = REPLY_TEXT};
        snprintf(reply.text, sizeof(reply.text), "%s", r->g->reply);
        return queue_envelope(r, reply, LOCK_RELEASED, false);
    }
    if (!r->k->exists)
        return queue_envelope(r, (struct model_reply){.kind = REPLY_NIL}, LOCK_FREE, false);
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
        return queue_plain(r, REPLY_NIL, queue_in_the_way(r));
    struct model_reply reply = {.kind = REPLY_TEXT};
    snprintf(reply.text, sizeof(reply.text), "%s", r->q->nodes[0]);
    return let_head_go(r, reply, NULL, how == LOCK_ADOPTED ? how : LOCK_RELEASED);
}

/* release.lua where the key is a queue. */
static struct model_envelope release(struct queue_run *r) {
    bool may;
    if (queue_repeated(r) && !queue_token_is_attempt(r)) {
        struct model_envelope e =
            queue_envelope(r, (struct model_reply){.kind = REPLY_INT, .number = 1}, LOCK_RELEASED, false);
        e.pttl_ms = -2;
        return e;
    }
    enum lock_outcome how = may_touch(r, &may);
    if (!may) {
        struct model_envelope e = queue_number(r, 0, how);
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
        struct model_envelope e = queue_number(r, 0, how);
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
    queue_guard_until(r, ms);
    return queue_number(r, 1, how);
}

struct model_envelope model_queue_script(struct model *m, int key, const struct model_args *a) {
    struct queue_run r;
    queue_look(&r, m, key, a);
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
                                        int64_t lease_ms, int64_t left_ms) {
    struct model_args a = {.lease_ms = lease_ms, .right = right, .seen = ""};
    struct queue_run r;
    queue_look(&r, m, key, &a);
    if (!r.token || !is(r.g->token, claim)) {
        struct model_envelope e = queue_number(&r, 0, queue_in_the_way(&r));
        e.pttl_ms = -3;
        return e;
    }
    if (!r.leased && (!is(right, "always") || r.ends_ms == 0 || r.ends_ms - m->now_ms < left_ms / 2))
        return queue_number(&r, 0, LOCK_DONE);
    int64_t ends = m->now_ms + lease_ms;
    r.q->until_ms = r.ends_ms = ends > r.ends_ms ? ends : r.ends_ms;
    if (r.k->expire_ms && r.k->expire_ms < ends)
        r.k->expire_ms = ends;
    queue_guard_until(&r, r.k->expire_ms ? r.k->expire_ms - m->now_ms : -1);
    return queue_number(&r, 1, LOCK_DONE);
}

void model_queue_leave(struct model *m, int key, const char *party, int64_t lease_ms) {
    struct model_args a = {.lease_ms = lease_ms, .right = "auto", .seen = party, .identity = ""};
    struct queue_run r;
    queue_look(&r, m, key, &a);
    struct queue_party *p = queue_party_of(&r, party, false);
    if (p) {
        p->here = false;
        p->nodes = p->vacant = 0;
        p->last[0] = p->denied[0] = '\0';
        queue_party_tidy(&r, p);
    }
    if (r.k->exists && r.k->list)
        queue_prune(&r);
    queue_keep(&r);
}
