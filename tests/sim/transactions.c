/*
 * Transactions: each command is begun in the engine when it is queued, runs with the others at EXEC, and is finished by
 * its element of EXEC's array, as the session layer does it (transaction/ and commands/queued_form.c there). EXEC may
 * be refused for what was watched; DISCARD, a lost connection and a proxy's end leave everything undone.
 *
 *      none ── WATCH ──> watching ── MULTI ──> queueing ── EXEC ──> sent ──> ran ──> none
 *        └───────────────── MULTI ────────────────┘ └── DISCARD ──> none
 */
#include "tests/sim/transactions.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim_world.h"

static struct transaction *transaction_new(struct world *w, int worker, int conn) {
    for (size_t i = 0; i < TRANSACTIONS; i++) {
        struct transaction *t = &w->transactions[i];
        if (t->state != TRANSACTION_NONE)
            continue;
        *t = (struct transaction){
            .worker = worker, .conn = conn, .key = w->workers[worker].key, .session_id = w->conns[conn].id};
        w->workers[worker].transaction = t;
        w->conns[conn].reserved = true;
        return t;
    }
    return NULL;
}

/* Frees a transaction's worker and connection for others. */
static void let_go(struct world *w, struct transaction *t) {
    struct conn *c = &w->conns[t->conn];
    struct app_worker *k = &w->workers[t->worker];
    if (c->open && c->id == t->session_id)
        c->busy = 0, c->reserved = false;
    if (k->transaction == t)
        k->transaction = NULL;
}

static void transaction_free(struct world *w, struct transaction *t) {
    let_go(w, t);
    for (unsigned i = 0; i < t->count; i++)
        if (t->flights[i]->used && t->flights[i]->transaction == t)
            flight_free(t->flights[i]);
    t->state = TRANSACTION_NONE;
}

/* Undoes a transaction of which nothing was executed, as far as the proxy knows. */
static void undo(struct world *w, struct transaction *t) {
    struct app_worker *k = &w->workers[t->worker];
    bool watches = t->watches && k->transaction == t;
    for (unsigned i = 0; i < t->count; i++)
        flight_fail(w, t->flights[i], LOCK_NOT_SENT);
    if (watches && k->phase == PHASE_RELEASE) /* it looks again */
        k->phase = PHASE_COMPARE;
    transaction_free(w, t);
}

/* ---- WATCH --------------------------------------------------------------------------------------- */

static void look_at(struct world *w, int key, struct watched_key *out) {
    model_expire(&w->redis, key);
    const struct model_key *k = &w->redis.keys[key];
    *out = (struct watched_key){.exists = k->exists, .expire_ms = k->expire_ms, .fence = k->guard.fence};
    if (k->exists)
        memcpy(out->value, k->value, sizeof(out->value));
}

static bool watched_changed(struct world *w, const struct transaction *t) {
    struct watched_key now;
    look_at(w, t->key, &now);
    return now.exists != t->watched.exists || now.expire_ms != t->watched.expire_ms || now.fence != t->watched.fence ||
           strcmp(now.value, t->watched.value) != 0;
}

/* ---- MULTI ---------------------------------------------------------------------------------------- */

static void queue(struct world *w, struct transaction *t, const struct model_command *c) {
    struct app_worker *k = &w->workers[t->worker];
    struct flight *f = flight_new(w, FLIGHT_COMMAND);
    f->worker = t->worker;
    f->command = *c;
    f->own_fence = k->fence;
    f->transaction = t;
    f->releases = t->releases && t->count == t->decides;
    flight_launch(w, f, t->conn, k->key);
    w->conns[t->conn].busy = 0;             /* +QUEUED */
    for (unsigned i = 0; i < t->count; i++) /* of what is known only roughly, what follows it is no better known */
        f->crossed = f->crossed || (t->flights[i]->crossed && t->flights[i]->key == f->key);
    const struct lock_plan *acquirer = NULL;
    for (unsigned i = t->count; i > 0 && !f->observed; i--)
        if (!t->flights[i - 1]->observed && t->flights[i - 1]->key == f->key &&
            !engine_looks_back(&f->plan, &t->flights[i - 1]->plan, false, &acquirer))
            break;
    if (acquirer)
        engine_follow(w->proxies[f->proxy].engine, &f->plan, acquirer, w->redis.now_ms);
    t->flights[t->count++] = f;
}

/* What comes behind the command that decides: an expiry, a look, an expiry after all. */
static bool next_command(struct world *w, const struct transaction *t, struct model_command *c) {
    enum model_op op = t->flights[t->decides]->command.op;
    bool acquires = op == OP_SETNX || op == OP_SET_NX || op == OP_SET;
    unsigned behind = t->count - t->decides - 1;
    *c = (struct model_command){.op = OP_PEXPIRE, .ms = w->sc.expiry_ms};
    if (t->worker == STRANGER)
        return behind < 2 && worker_command(w, STRANGER, c, &(bool){false});
    if (!acquires)
        return false;
    if (behind == 0 && op == OP_SETNX)
        return true;
    c->op = OP_GET;
    return behind < 2 && world_chance(w, 30);
}

static void exec(struct world *w, struct transaction *t) {
    struct app_worker *k = &w->workers[t->worker];
    world_event(w, "worker %d: EXEC", t->worker);
    for (unsigned i = 0; i < t->count; i++) {
        struct flight *f = t->flights[i];
        f->own_fence = k->fence;
        if (!f->observed)
            engine_sent(w->proxies[f->proxy].engine, &f->plan);
    }
    t->state = TRANSACTION_SENT;
    w->conns[t->conn].busy = 1;
    worker_sent(w, t->worker, &t->flights[t->decides]->command, t->releases);
}

bool transaction_begins(struct world *w, int worker, int conn, const struct model_command *c, bool releases) {
    struct app_worker *k = &w->workers[worker];
    bool looks = c->op == OP_GET, strange = k->process < 0 && w->sc.transactions && world_chance(w, 20);
    bool watches = k->idiom == IDIOM_WATCH && (k->phase == PHASE_COMPARE || k->phase == PHASE_LOOK);
    bool scripted = k->idiom == IDIOM_SCRIPT && w->sc.transactions && world_chance(w, 30);
    bool queues = k->idiom == IDIOM_MULTI || scripted || (k->idiom == IDIOM_WATCH && !looks);
    if (!strange && (k->process < 0 || !(watches || queues)))
        return false;
    struct transaction *t = k->transaction ? k->transaction : transaction_new(w, worker, conn);
    if (!t)
        return true; /* too many at once: another time */
    if (watches) {
        t->state = TRANSACTION_WATCHING;
        t->watches = true;
        look_at(w, t->key, &t->watched);
        world_event(w, "worker %d: WATCH", worker);
        return false; /* what it looks with is sent as ever, over this connection */
    }
    t->state = TRANSACTION_QUEUEING;
    t->releases = releases;
    /* Some want a lock made anew, whatever was there. */
    if (k->idiom == IDIOM_MULTI && k->phase == PHASE_ACQUIRE && w->sc.strays && world_chance(w, 20)) {
        t->decides = 2;
        queue(w, t, c);
        queue(w, t, &(struct model_command){.op = OP_DEL});
    }
    queue(w, t, c);
    return true;
}

bool transaction_goes_on(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    struct transaction *t = k->transaction;
    struct model_command c;
    if (!t)
        return false;
    if (t->state == TRANSACTION_WATCHING) {
        if (k->phase != PHASE_ACQUIRE && k->phase != PHASE_RELEASE) /* UNWATCH */
            transaction_free(w, t);
        return false;
    }
    if (w->conns[t->conn].busy || flight_places(w) < FLIGHTS / 3)
        return true;
    if (w->sc.discards && world_chance(w, 6)) {
        world_event(w, "worker %d: DISCARD", worker);
        undo(w, t);
    } else if (next_command(w, t, &c)) {
        queue(w, t, &c);
    } else {
        exec(w, t);
    }
    return true;
}

/* ---- EXEC ------------------------------------------------------------------------------------------- */

/* No command comes between: the acquisition also counts for the commands behind it. */
static void check_followed(struct world *w, const struct transaction *t) {
    const struct flight *first = t->flights[t->decides];
    bool granted = first->envelope.outcome == LOCK_GRANTED && !first->observed;
    for (unsigned i = t->decides + 1; i < t->count && granted; i++) {
        const struct flight *f = t->flights[i];
        if (f->command.op == OP_PEXPIRE && f->envelope.outcome != LOCK_DONE && !f->observed)
            world_fail(w, "L2", "worker %d has acquired, and the PEXPIRE behind it in the transaction is refused",
                       t->worker);
    }
}

static void run(struct world *w, struct transaction *t) {
    t->state = TRANSACTION_RAN;
    t->aborted = t->watches && watched_changed(w, t);
    if (t->aborted)
        world_event(w, "worker %d's EXEC does nothing: what it watched has changed", t->worker);
    for (unsigned i = 0; i < t->count && !t->aborted; i++) {
        struct flight *f = t->flights[i];
        flight_run(w, f);
        if (!f->ran) /* a script of the application's: adopt.lua is right behind it */
            flight_run(w, f);
    }
    if (!t->aborted && t->worker != STRANGER)
        check_followed(w, t);
}

static void deliver(struct world *w, struct transaction *t) {
    if (t->aborted) {
        for (unsigned i = 0; i < t->count; i++)
            t->flights[i]->plan.undone = true;
        undo(w, t);
        return;
    }
    for (unsigned i = 0; i < t->count; i++)
        flight_deliver(w, t->flights[i]);
    transaction_free(w, t);
}

/* The outcome is lost. */
static void lose(struct world *w, struct transaction *t) {
    for (unsigned i = 0; i < t->count; i++)
        flight_fail(w, t->flights[i], LOCK_UNKNOWN);
    let_go(w, t);
    if (t->state == TRANSACTION_RAN)
        transaction_free(w, t);
}

void transaction_progress(struct world *w, struct transaction *t) {
    const struct flight *first = t->flights[0];
    bool gone = first->ghost || first->proxy_life != w->proxies[first->proxy].life;
    if (t->state == TRANSACTION_QUEUEING)
        return;
    if (gone) {
        if (t->state == TRANSACTION_SENT && world_chance(w, 50))
            run(w, t);
        transaction_free(w, t);
    } else if (t->state == TRANSACTION_SENT && w->sc.loses && world_chance(w, 4)) {
        undo(w, t);
    } else if (w->sc.loses && world_chance(w, 4)) {
        lose(w, t);
    } else if (t->state == TRANSACTION_SENT) {
        run(w, t);
    } else {
        deliver(w, t);
    }
}

bool transaction_answers(const struct flight *f) {
    return f->transaction->flights[f->transaction->decides] == f;
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static void end_early(struct world *w, struct transaction *t, bool proxy_gone) {
    if (t->state != TRANSACTION_WATCHING && t->state != TRANSACTION_QUEUEING)
        return;
    struct app_worker *k = &w->workers[t->worker];
    if (k->transaction == t && t->watches && k->phase == PHASE_RELEASE)
        k->phase = PHASE_COMPARE;
    if (proxy_gone)
        transaction_free(w, t);
    else
        undo(w, t);
}

void transaction_conn_lost(struct world *w, int conn, bool proxy_gone) {
    for (size_t i = 0; i < TRANSACTIONS; i++)
        if (w->transactions[i].state != TRANSACTION_NONE && w->transactions[i].conn == conn &&
            w->transactions[i].session_id == w->conns[conn].id)
            end_early(w, &w->transactions[i], proxy_gone);
}

void transaction_worker_died(struct world *w, int worker) {
    struct transaction *t = w->workers[worker].transaction;
    if (t)
        end_early(w, t, false);
    w->workers[worker].transaction = NULL;
}
