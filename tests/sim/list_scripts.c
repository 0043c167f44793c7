/*
 * list_*.lua on the model, and what release.lua, extend.lua and renew.lua do with a list lock. Where one is changed
 * there, it is changed here; model_against_redis.py finds what was forgotten.
 */
#include "tests/sim/list_script.h"

#include <ctype.h>
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

static bool may_repeat(struct queue_run *r, const struct queue_record *record) {
    if (!queue_kin(r, record))
        return queue_mine(r, record);
    if (queue_has_left(r, record->party))
        return true;
    bool another = strncmp(record->party, r->a->proxy, strlen(r->a->proxy)) != 0;
    return queue_homeless(r) && (!queue_counts(r, record->party) || another);
}

/* The node is there: it keeps its place, and is the caller's. */
static struct model_envelope repeated_push(struct queue_run *r, const char *node, int at) {
    queue_enter(r, node);
    queue_refresh(r, r->a->seen);
    queue_remember_number(r, at + 1);
    if (at == 0 && r->token)
        queue_join(r, true);
    else if (at == 0)
        queue_hold(r, true);
    queue_keep(r);
    return queue_number(r, at + 1, at == 0 ? LOCK_GRANTED : LOCK_DONE);
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
    if (head && (vacant || r->a->command.op == OP_LPUSH || (record && !may_repeat(r, record)))) {
        queue_keep(r);
        return queue_plain(r, REPLY_ERROR, queue_in_the_way(r));
    }
    int at = head && queue_kin(r, record) ? queue_place_of(r, node) : -1;
    if (at >= 0)
        return repeated_push(r, node, at);
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
            queue_hold(r, true);
    }
    queue_keep(r);
    return queue_number(r, reply, queue_token_is_attempt(r) ? LOCK_GRANTED : LOCK_DONE);
}

static void told_vacant(struct queue_run *r) {
    struct queue_party *p = queue_party_of(r, r->a->seen, true);
    p->vacant = queue_shared(r) ? p->vacant + 1 : 1;
    r->g->exists = true;
}

/* What showing the head makes of the caller. */
enum step {
    STEP_NONE,
    STEP_HOLD,
    STEP_LEND,
    STEP_JOIN,
    STEP_STAY,
    STEP_KNOWN,
    STEP_SEATED,
    STEP_AGAIN,
    STEP_WAITS,
    STEP_EARLY,
    STEP_LATE
};

static enum step own_step(struct queue_run *r, const struct queue_record *record, bool away) {
    bool first =
        record && is(record->party, r->a->seen) && (queue_shared(r) || queue_newest(r, record, r->q->nodes[0]));
    if (!r->token)
        return first || !is(r->a->right, "auto") ? STEP_HOLD : STEP_LEND;
    if (!first)
        return STEP_KNOWN;
    return away || !is(r->q->by, r->a->seen) ? STEP_JOIN : STEP_STAY;
}

static enum step early_step(struct queue_run *r) {
    if (!queue_homeless(r))
        return r->token ? STEP_WAITS : STEP_NONE;
    const struct queue_seat *seat = queue_seat(r, &r->q->early);
    if (!queue_early(r) || !seat || is(seat->token, r->a->attempt))
        return STEP_EARLY;
    return seat->token[0] ? STEP_LATE : STEP_WAITS;
}

static enum step near_step(struct queue_run *r, const struct queue_record *record) {
    const struct queue_seat *seat = queue_seat(r, &r->q->may);
    if (r->token && seat) {
        if (is(seat->token, r->a->attempt) || queue_pools(r))
            return STEP_SEATED;
        return seat->token[0] ? STEP_AGAIN : STEP_WAITS;
    }
    if (!queue_has_left(r, record->party) && (is(r->a->right, "own") || (r->token && is(r->q->by, record->party))))
        return early_step(r);
    bool seated = queue_homeless(r) || queue_pools(r);
    if (!r->token)
        return seated ? STEP_HOLD : STEP_LEND;
    return seated ? STEP_JOIN : STEP_WAITS;
}

static enum lock_outcome come_early(struct queue_run *r) {
    if (!r->token) {
        queue_hold(r, false);
        r->q->may.count = 0;
        snprintf(r->g->token, sizeof(r->g->token), "%s:early", r->a->attempt);
    }
    if (!queue_early(r))
        r->q->early.count = 0;
    if (!queue_seat(r, &r->q->early))
        queue_take_seat(r, &r->q->early, true);
    r->q->early_at_ms = r->m->now_ms;
    memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
    return LOCK_ADOPTED;
}

static enum lock_outcome take(struct queue_run *r, enum step step, bool own) {
    if (step == STEP_EARLY)
        return come_early(r);
    bool seated = r->token && model_queue_seated(r->m, (int)(r->k - r->m->keys), r->a->attempt);
    if (seated || queue_token_is_attempt(r)) {
        if (seated)
            memcpy(r->granted, r->q->nodes[0], sizeof(r->granted));
        return own && seated ? LOCK_GRANTED : LOCK_ADOPTED;
    }
    if (step == STEP_HOLD || step == STEP_LEND)
        queue_hold(r, step == STEP_HOLD);
    if (step == STEP_JOIN)
        queue_join(r, own);
    if (step == STEP_HOLD || step == STEP_JOIN)
        return own ? LOCK_GRANTED : LOCK_ADOPTED;
    if (step == STEP_LEND)
        return LOCK_ADOPTED;
    if (step == STEP_AGAIN || step == STEP_LATE)
        queue_seat(r, step == STEP_AGAIN ? &r->q->may : &r->q->early)->token[0] = '\0';
    if (step == STEP_AGAIN || step == STEP_LATE || step == STEP_WAITS)
        return LOCK_HELD;
    int64_t ends_ms = r->m->now_ms + r->a->lease_ms;
    if (step == STEP_STAY && r->leased && !queue_shared(r))
        r->q->until_ms = r->ends_ms = ends_ms > r->ends_ms ? ends_ms : r->ends_ms;
    return LOCK_DONE;
}

/* Whether the caller's party had left. */
static bool present(struct queue_run *r, bool exists) {
    const struct queue_party *p = queue_party_of(r, r->a->seen, false);
    bool away = p && p->here && p->left;
    if (queue_counts(r, r->a->seen) && (queue_shared(r) || !away))
        queue_refresh(r, r->a->seen);
    if (queue_shared(r))
        return away;
    if (is(r->a->right, "auto") && r->a->lease_ms > 0)
        queue_refresh(r, r->a->identity);
    if (!exists && queue_homeless(r)) {
        queue_party_of(r, r->a->identity, true)->homeless_ms = r->m->now_ms + queue_grace(r);
        r->g->exists = true;
    }
    return away;
}

static struct model_envelope read_nothing(struct queue_run *r, bool exists) {
    enum { VACANCY_MS = 60000 };
    if (!r->k->exists && exists) {
        bool lasts = r->g->exists && r->g->expire_ms >= r->m->now_ms + VACANCY_MS;
        told_vacant(r);
        r->g->token[0] = '\0';
        if (!lasts)
            r->g->expire_ms = r->m->now_ms + VACANCY_MS;
    }
    if (r->k->exists && !exists)
        return error(r);
    struct model_reply reply = {.kind = exists ? REPLY_INT : REPLY_NIL, .number = r->k->exists};
    return queue_envelope(r, reply, r->k->exists ? LOCK_DONE : LOCK_FREE, false);
}

static struct model_envelope read_queue(struct queue_run *r) {
    enum { VACANCY_MS = 60000 };
    bool exists = r->a->command.op == OP_EXISTS;
    if (!r->k->exists || !r->k->list)
        return read_nothing(r, exists);
    bool away = present(r, exists), head = queue_prune(r);
    struct queue_party *party = queue_party_of(r, r->a->seen, false);
    if (exists && head && party && !queue_shared(r)) {
        party->vacant = 0;
        queue_party_tidy(r, party);
    }
    enum lock_outcome outcome = head ? queue_in_the_way(r) : LOCK_FREE;
    if (head && !exists && !r->gone) {
        const struct queue_record *record = queue_record_of(r, r->q->nodes[0]);
        bool near = queue_near(r, record), mine = !near && queue_mine(r, record);
        enum step step = near ? near_step(r, record) : mine ? own_step(r, record, away) : STEP_NONE;
        if (step != STEP_NONE)
            outcome = take(r, step, mine);
    }
    queue_keep(r);
    if (exists && !head) {
        told_vacant(r);
        r->g->expire_ms = r->m->now_ms + VACANCY_MS;
    }
    struct model_reply reply = {.kind = exists ? REPLY_INT : head ? REPLY_TEXT : REPLY_NIL, .number = head};
    if (head)
        snprintf(reply.text, sizeof(reply.text), "%s", r->q->nodes[0]);
    return queue_envelope(r, reply, outcome, true);
}

/* Whether releases go over other connections than pushes. */
static void note_crossing(struct queue_run *r, bool crosses, bool own) {
    enum { MOST = 9 };
    struct queue_party *p = queue_party_of(r, r->a->identity, true);
    if (crosses)
        p->crossed = p->crossed + 2 < MOST ? p->crossed + 2 : MOST;
    else if (own && p->crossed > 0)
        p->crossed--;
    queue_party_tidy(r, p);
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
    if (!(record || is(r->a->right, "any")) || !queue_mine(r, record))
        return queue_number(r, 0, r->token ? LOCK_HELD : record ? LOCK_FOREIGN : LOCK_FREE);
    int at = queue_place_of(r, node);
    if (at < 0)
        return queue_number(r, 0, r->token ? LOCK_HELD : LOCK_FREE);
    bool crosses = queue_kin(r, record) && !queue_has_left(r, record->party);
    bool own = record && is(record->party, r->a->seen);
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
    if (holder && is(r->a->right, "auto"))
        note_crossing(r, crosses, own);
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

/* The length of what stands before a node's count, and 0 where it has none that is set off. */
static size_t name_length(const char *node) {
    size_t len = strlen(node), count = len;
    while (len && isdigit((unsigned char)node[len - 1]))
        len--;
    return len && len < count && !isalnum((unsigned char)node[len - 1]) ? len : 0;
}

static bool counted_anew(const char *old, const char *node) {
    size_t len = name_length(old);
    return len && len == name_length(node) && memcmp(old, node, len) == 0;
}

static bool set_believed(struct queue_run *r, const struct queue_record *record, const char *old, const char *node) {
    if (!queue_mine(r, record) || !queue_kin(r, record))
        return queue_mine(r, record);
    if (queue_has_left(r, record->party) || queue_pools(r) || counted_anew(old, node))
        return true;
    return r->token && !is(r->q->by, record->party);
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
    if (!set_believed(r, record, old, node) || (other && !queue_mine(r, other))) {
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
    bool claims = is(r->g->token, r->a->claim) || model_queue_seated(r->m, (int)(r->k - r->m->keys), r->a->claim);
    *may = true;
    if (r->token && !claims && !whoever && (is(right, "adopt") || is(right, "believe")) &&
        is(r->owner, r->a->identity) && !is(r->g->proxy, r->a->proxy))
        return LOCK_ADOPTED;
    *may = whoever || (r->token && claims);
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
    bool early = queue_early(&r) && model_queue_early(m, key, claim);
    if (!r.token || (!is(r.g->token, claim) && !model_queue_seated(m, key, claim) && !early)) {
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

/* What the party may have been is nobody; those that came early may be the head's owner. */
static void lose_seats(struct queue_run *r, bool waits) {
    struct model_queue *q = r->q;
    struct queue_seats *const of[] = {&q->may, &q->early};
    for (int i = 0; i < 2; i++)
        if (queue_seat(r, of[i]))
            queue_seat(r, of[i])->token[0] = '\0';
    const struct queue_record *record = queue_record_of(r, r->g->value);
    if (!waits || !record || !is(record->party, r->a->seen) || !queue_early(r))
        return;
    for (unsigned i = 0; i < q->early.count && q->may.count < QUEUE_SEATS; i++)
        q->may.seats[q->may.count++] = q->early.seats[i];
    q->early.count = 0;
    q->early_at_ms = 0;
}

void model_queue_leave(struct model *m, int key, const char *party, bool waits, int64_t lease_ms) {
    struct model_args a = {.lease_ms = lease_ms, .right = "auto", .seen = party, .identity = ""};
    struct queue_run r;
    queue_look(&r, m, key, &a);
    struct queue_party *p = queue_party_of(&r, party, false);
    if (p) {
        p->vacant = 0;
        p->denied[0] = '\0';
    }
    if (p && !waits) {
        p->here = p->left = false;
        p->nodes = 0;
        p->last[0] = '\0';
    } else if (p && p->here) {
        p->left = true;
        p->ends_ms = m->now_ms + queue_grace(&r);
    }
    if (p)
        queue_party_tidy(&r, p);
    if (r.token)
        lose_seats(&r, waits);
    if (r.token && waits && r.ends_ms == 0 && is(r.q->by, party))
        r.q->until_ms = r.ends_ms = m->now_ms + queue_grace(&r);
    if (r.k->exists && r.k->list)
        queue_prune(&r);
    queue_keep(&r);
}
