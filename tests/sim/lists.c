/*
 * List locks in the model: Redis's own commands on the queue, and what its guard record remembers of it.
 */
#include "tests/sim/lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/model.h"

static const struct model_reply NIL = {.kind = REPLY_NIL}, OK = {.kind = REPLY_OK}, WRONG = {.kind = REPLY_ERROR};

static struct model_reply number(int64_t n) {
    return (struct model_reply){.kind = REPLY_INT, .number = n};
}

static struct model_reply node_reply(const char *node) {
    struct model_reply r = {.kind = REPLY_TEXT};
    snprintf(r.text, sizeof(r.text), "%s", node);
    return r;
}

/* ---- Redis's commands -------------------------------------------------------------------------- */

static struct model_reply push(struct model_key *k, struct model_queue *q, const struct model_command *c) {
    if (q->count == QUEUE_NODES)
        return WRONG;
    if (!k->exists)
        k->expire_ms = 0;
    k->exists = k->list = true;
    unsigned at = q->count++;
    if (c->op == OP_LPUSH) {
        memmove(q->nodes[1], q->nodes[0], at * sizeof(q->nodes[0]));
        at = 0;
    }
    snprintf(q->nodes[at], QUEUE_NODE, "%s", c->value);
    return number(q->count);
}

/* A list without nodes is none. */
static void take_out(struct model_key *k, struct model_queue *q, unsigned at) {
    memmove(q->nodes[at], q->nodes[at + 1], (--q->count - at) * sizeof(q->nodes[0]));
    if (q->count == 0)
        model_gone(k);
}

/* The first one of those nodes alone. */
static struct model_reply take_out_node(struct model_key *k, struct model_queue *q, const char *node) {
    for (unsigned i = 0; i < q->count; i++)
        if (strcmp(q->nodes[i], node) == 0) {
            take_out(k, q, i);
            return number(1);
        }
    return number(0);
}

struct model_reply model_list_native(struct model *m, int key, const struct model_command *c) {
    struct model_key *k = &m->keys[key];
    struct model_queue *q = &m->queues[key];
    if (k->exists && !k->list)
        return WRONG;
    if (c->op == OP_RPUSH || c->op == OP_LPUSH)
        return push(k, q, c);
    if (!k->exists)
        return c->op == OP_LREM ? number(0) : c->op == OP_LSET ? WRONG : NIL;
    struct model_reply head = node_reply(q->nodes[0]);
    switch (c->op) {
    case OP_LINDEX:
        return head;
    case OP_LREM:
        return take_out_node(k, q, c->value);
    case OP_LSET:
        snprintf(q->nodes[0], QUEUE_NODE, "%s", c->value);
        return OK;
    case OP_LPOP:
        take_out(k, q, 0);
        return head;
    default:
        abort();
    }
}

/* ---- the guard record --------------------------------------------------------------------------- */

bool model_is_queue(const struct model *m, int key) {
    return m->keys[key].exists && m->keys[key].list && m->keys[key].guard.exists && m->queues[key].kind;
}

const struct model_guard *model_queue_live(struct model *m, int key) {
    model_expire(m, key);
    const struct model_guard *g = &m->keys[key].guard;
    const struct model_queue *q = &m->queues[key];
    bool live = model_is_queue(m, key) && g->token[0] && q->count && strcmp(q->nodes[0], g->value) == 0 &&
                (q->until_ms == 0 || q->until_ms > m->now_ms);
    return live ? g : NULL;
}

/* Whether the token is in the field, which has a line PARTY=TOKEN for each. */
static bool among(const struct model *m, int key, const char *field, const char *token) {
    const struct record_text *seats = record_get(&m->records[key], field, strlen(field));
    char line[LOCK_TOKEN_MAX + 2];
    if (!seats || !token || !token[0])
        return false;
    snprintf(line, sizeof(line), "=%s\n", token);
    return strstr(seats->data, line) != NULL;
}

bool model_queue_seated(const struct model *m, int key, const char *token) {
    return among(m, key, "may", token);
}

bool model_queue_early(const struct model *m, int key, const char *token) {
    return among(m, key, "early", token);
}

static const char *field_of(const struct model *m, int key, char letter, const char *name) {
    char field[QUEUE_TEXT + 2];
    int len = snprintf(field, sizeof(field), "%c:%s", letter, name);
    const struct record_text *t = record_get(&m->records[key], field, (size_t)len);
    return t ? t->data : NULL;
}

bool model_queue_node(const struct model *m, int key, const char *node, struct queue_node *out) {
    const char *party = field_of(m, key, 'n', node), *attempt = party ? strchr(party, '\n') : NULL;
    const char *identity = attempt ? strchr(attempt + 1, '\n') : NULL;
    if (!identity)
        return false;
    snprintf(out->party, sizeof(out->party), "%.*s", (int)(attempt - party), party);
    snprintf(out->identity, sizeof(out->identity), "%s", identity + 1);
    return true;
}

int64_t model_queue_homeless(const struct model *m, int key, const char *identity) {
    const char *until = field_of(m, key, 'h', identity);
    return until ? strtoll(until, NULL, 10) : 0;
}
