/*
 * What applications do with list locks: a queue whose head is the holder, plain and reentrant.
 */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void begin(struct world *w, struct app_worker *k) {
    do
        k->idiom = (enum idiom)(IDIOM_QUEUE + world_below(w, 2));
    while (!(w->sc.idioms & (1u << k->idiom)));
    k->key = (int)world_below(w, w->sc.keys);
    k->in_queue = false;
    k->phase = k->idiom == IDIOM_REENTRANT ? PHASE_VACANT : PHASE_PUSH;
}

static void new_node(struct world *w, char *node) {
    snprintf(node, MODEL_VALUE, "n%" PRIu64, ++w->values);
}

/* A client of another identity that tries to remove the head. */
static void strange(struct world *w, struct app_worker *k, struct model_command *c) {
    static const enum model_op OPS[] = {OP_DEL, OP_LPOP, OP_PEXPIRE, OP_LREM, OP_LSET, OP_LPUSH, OP_LINDEX, OP_EXISTS};
    k->key = (int)world_below(w, w->sc.keys);
    const struct model_queue *q = &w->redis.queues[k->key];
    c->op = OPS[world_below(w, sizeof(OPS) / sizeof(OPS[0]))];
    if (c->op == OP_LPUSH && !q->count)
        c->op = OP_LINDEX;
    c->ms = world_chance(w, 80) ? world_chance(w, 75) ? 5000 : 300 : -1;
    snprintf(c->value, sizeof(c->value), "strange%" PRIu64, ++w->values);
    if (c->op == OP_LREM && q->count)
        memcpy(c->value, q->nodes[world_below(w, q->count)], sizeof(c->value));
}

/* The connection is gone over which it saw itself at the head, and it has another. */
static bool reconnected(const struct world *w, const struct app_worker *k) {
    for (int i = 0; k->seat && i < CONNS; i++)
        if (w->conns[i].open && w->conns[i].id == k->seat)
            return false;
    return k->seat != 0;
}

static bool holding(struct world *w, struct app_worker *k, int worker, struct model_command *c) {
    if (reconnected(w, k)) { /* is its node still there? */
        c->op = OP_LINDEX;
        return true;
    }
    if (w->redis.now_ms < k->until_ms) {
        if (k->idiom != IDIOM_REENTRANT || !world_chance(w, 20))
            return false;
        c->op = OP_LSET;
        new_node(w, c->value);
        return true;
    }
    if (w->sc.silent && world_chance(w, 10)) {
        world_event(w, "worker %d leaves its lease alone", worker);
        worker_give_up(w, worker);
        return false;
    }
    k->phase = PHASE_RELEASE;
    return true;
}

bool list_worker_command(struct world *w, int worker, struct model_command *c, bool *releases) {
    struct app_worker *k = &w->workers[worker];
    *c = (struct model_command){.op = OP_LINDEX};
    *releases = false;
    if (k->phase == PHASE_START)
        begin(w, k);
    if (k->phase == PHASE_STRANGE) {
        strange(w, k, c);
        return true;
    }
    if (k->phase == PHASE_HOLD && !holding(w, k, worker, c))
        return false;
    if (k->phase == PHASE_WAIT && world_chance(w, 3)) {
        world_event(w, "worker %d walks away from the queue", worker);
        worker_give_up(w, worker);
        return false;
    }
    if (k->phase == PHASE_VACANT) {
        c->op = OP_EXISTS;
    } else if (k->phase == PHASE_PUSH) {
        c->op = OP_RPUSH;
        new_node(w, k->value);
        memcpy(c->value, k->value, sizeof(c->value));
    } else if (k->phase == PHASE_RELEASE) {
        c->op = OP_LREM;
        memcpy(c->value, k->value, sizeof(c->value));
        *releases = true;
        k->in_queue = false;
    }
    return true;
}

static void believes(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    check_list_belief(w, worker, f);
    w->granted++;
    k->until_ms = w->redis.now_ms + world_below(w, world_chance(w, 70) ? 200 : (unsigned)(w->sc.rule.lease_ms * 2));
    k->phase = PHASE_HOLD;
}

static void no_answer(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    if (k->phase == PHASE_HOLD && f->command.op == OP_LSET)
        worker_give_up(w, worker); /* it does not know what its node is called */
    else if (k->phase == PHASE_PUSH || k->phase == PHASE_RELEASE)
        worker_give_up(w, worker);
}

void list_worker_answer(struct world *w, int worker, const struct flight *f, bool lost) {
    struct app_worker *k = &w->workers[worker];
    const struct model_reply *r = &f->envelope.reply;
    if (lost) {
        no_answer(w, worker, f);
        return;
    }
    switch (k->phase) {
    case PHASE_VACANT:
        k->phase = r->kind == REPLY_INT && r->number == 0 ? PHASE_PUSH : PHASE_START;
        break;
    case PHASE_PUSH:
        if (r->kind != REPLY_INT) {
            w->lost++;
            worker_start_again(w, worker);
        } else if (k->idiom == IDIOM_REENTRANT) {
            believes(w, worker, f);
        } else {
            k->phase = PHASE_WAIT;
        }
        break;
    case PHASE_WAIT:
        if (r->kind == REPLY_TEXT && strcmp(r->text, k->value) == 0)
            believes(w, worker, f);
        else if (r->kind == REPLY_NIL)
            worker_give_up(w, worker); /* its node is gone */
        break;
    case PHASE_HOLD:
        if (f->command.op == OP_LSET && r->kind != REPLY_OK)
            worker_give_up(w, worker); /* it has lost the lock */
        if (f->command.op == OP_LINDEX && r->kind == REPLY_TEXT && strcmp(r->text, k->value) == 0)
            check_list_belief(w, worker, f);
        else if (f->command.op == OP_LINDEX)
            worker_give_up(w, worker);
        break;
    case PHASE_RELEASE:
        worker_start_again(w, worker);
        break;
    default:
        break;
    }
}
