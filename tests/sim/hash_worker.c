/*
 * What applications do with hash locks: Redisson's reentrant lock and its read lock, by scripts and with a watchdog;
 * and a lock by HSETNX of one field. The same as worker.c, for scenarios of hash locks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/hash_locks.h"

#define FIELD "owner" /* HSETNX's value, the same for all workers */

static void start(struct world *w, struct app_worker *k, int worker) {
    do
        k->idiom = (enum idiom)(IDIOM_HASH + world_below(w, IDIOM_KINDS - IDIOM_HASH));
    while (!(w->sc.idioms & (1u << k->idiom)));
    k->key = (int)world_below(w, w->sc.keys);
    k->phase = PHASE_ACQUIRE;
    k->times = 0;
    k->newest = k->idiom == IDIOM_FIELD && w->sc.newest && world_chance(w, 60);
    if (k->idiom == IDIOM_FIELD)
        snprintf(k->value, sizeof(k->value), FIELD);
    else if (k->lives == 0 || k->value[0] != 'h') /* a process's UUID and the thread, for life */
        snprintf(k->value, sizeof(k->value), "h%d.%" PRIu64, worker, ++w->values);
}

/* A client that holds nothing, with a holder's commands. */
static void strange(struct world *w, struct app_worker *k, struct model_command *c) {
    static const enum model_op OPS[] = {OP_HDEL,    OP_HDEL,    OP_HSETNX, OP_HINCRBY, OP_DEL,
                                        OP_PEXPIRE, OP_PERSIST, OP_GETDEL, OP_SET_XX,  OP_GET};
    k->key = (int)world_below(w, w->sc.keys);
    const struct model_fields *h = &w->redis.keys[k->key].fields;
    *c = (struct model_command){.op = OPS[world_below(w, sizeof(OPS) / sizeof(OPS[0]))], .by = 1};
    c->ms = c->op == OP_PEXPIRE ? (world_chance(w, 80) ? 5000 : -1) : 0;
    snprintf(c->value, sizeof(c->value), "%s", h->count ? h->at[world_below(w, h->count)].name : FIELD);
    if (h->count == 0 && (c->op == OP_HSETNX || c->op == OP_HINCRBY)) /* it acquires nothing */
        c->op = OP_HDEL;
    if (w->sc.newest && world_chance(w, 50)) {
        c->ms = c->op == OP_HSETNX && world_chance(w, 50) ? 5000 : 0;
        c->op = c->op == OP_HDEL      ? OP_HGETDEL
                : c->op == OP_HSETNX  ? OP_HSETEX
                : c->op == OP_PEXPIRE ? OP_HGETEX
                                      : c->op;
    }
}

static bool holding(struct world *w, struct app_worker *k, int worker, struct model_command *c) {
    if (w->redis.now_ms >= k->until_ms) {
        if (w->sc.silent && world_chance(w, 10)) {
            world_event(w, "worker %d leaves its lock alone", worker);
            worker_give_up(w, worker);
            return false;
        }
        k->phase = PHASE_RELEASE;
        return true;
    }
    if ((k->idiom == IDIOM_FIELD && !k->newest) || !world_chance(w, 30))
        return false;
    c->op = k->idiom == IDIOM_FIELD ? OP_HGETEX : OP_LUA_RENEW;
    if (k->idiom == IDIOM_HASH && world_chance(w, 30))
        c->op = OP_LUA_ENTER; /* once more */
    return true;
}

bool hash_worker_command(struct world *w, int worker, struct model_command *c, bool *releases) {
    struct app_worker *k = &w->workers[worker];
    *releases = false;
    *c = (struct model_command){.op = OP_LUA_LEAVE, .ms = w->sc.expiry_ms};
    if (k->phase == PHASE_STRANGE) {
        strange(w, k, c);
        return true;
    }
    if (k->phase == PHASE_START)
        start(w, k, worker);
    if (k->phase == PHASE_HOLD && !holding(w, k, worker, c))
        return false;
    if (k->phase == PHASE_ACQUIRE) {
        c->op = k->idiom == IDIOM_HASH ? OP_LUA_ENTER : k->idiom == IDIOM_READ ? OP_LUA_READ : OP_HSETNX;
        bool ends = k->newest; /* the field; else the rule has the lease */
        if (c->op == OP_HSETNX && w->sc.newest && (ends || world_chance(w, 40))) {
            c->op = OP_HSETEX;
            c->ms = ends ? w->sc.expiry_ms : 0;
        }
        c->composed = c->op == OP_LUA_ENTER && world_chance(w, 20);
    } else if (k->phase == PHASE_RELEASE || k->phase == PHASE_FINALLY) {
        if (k->idiom == IDIOM_FIELD)
            c->op = world_chance(w, 50) ? (k->newest ? OP_HGETDEL : OP_HDEL) : OP_DEL;
        *releases = k->phase == PHASE_RELEASE && k->times <= 1;
    }
    memcpy(c->value, k->value, sizeof(c->value));
    return true;
}

static void no_answer(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    if (k->phase == PHASE_HOLD)
        return;
    k->value[0] = '\0'; /* it may have entered: its field then has no worker */
    worker_give_up(w, worker);
}

/* Notes that the worker takes itself for one of the holders. */
static void entered(struct world *w, int worker, const struct flight *f) {
    struct app_worker *k = &w->workers[worker];
    k->times++;
    if (k->phase == PHASE_HOLD)
        return;
    hash_check_belief(w, worker, f);
    w->granted++;
    k->until_ms = w->redis.now_ms + world_below(w, world_chance(w, 70) ? 200 : (unsigned)(w->sc.expiry_ms * 5 / 2));
    k->phase = PHASE_HOLD;
}

void hash_worker_answer(struct world *w, int worker, const struct flight *f, bool lost) {
    struct app_worker *k = &w->workers[worker];
    const struct model_reply *r = &f->envelope.reply;
    if (k->phase == PHASE_STRANGE)
        return;
    if (lost) {
        no_answer(w, worker);
        return;
    }
    switch (f->command.op) {
    case OP_LUA_ENTER:
    case OP_LUA_READ:
        if (r->kind == REPLY_NIL)
            entered(w, worker, f);
        else if (k->phase == PHASE_ACQUIRE)
            w->lost++, worker_give_up(w, worker);
        else
            worker_give_up(w, worker); /* its lock is another's by now */
        break;
    case OP_HSETNX:
    case OP_HSETEX:
        if (r->number == 1) {
            entered(w, worker, f);
        } else {
            w->lost++;
            worker_give_up(w, worker);
            k->phase = w->sc.finals && world_chance(w, 60) ? PHASE_FINALLY : PHASE_START;
        }
        break;
    case OP_LUA_RENEW:
        if (r->number == 0)
            worker_give_up(w, worker);
        break;
    case OP_HGETEX:
        if (r->kind == REPLY_NIL)
            worker_give_up(w, worker);
        break;
    case OP_LUA_LEAVE:
        if (r->kind == REPLY_INT && --k->times > 0)
            break; /* as often as it has entered */
        worker_start_again(w, worker);
        break;
    default:
        worker_start_again(w, worker);
        break;
    }
}
