/*
 * Faults: workers and processes die, connections are lost, proxies restart, people change locks around the proxies.
 */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void worker_dies(struct world *w, int worker) {
    struct app_worker *k = &w->workers[worker];
    if (!k->alive || k->process < 0)
        return;
    world_event(w, "worker %d dies", worker);
    transaction_worker_died(w, worker);
    if (w->fences)
        fences_worker_died(w, worker);
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flights[i];
        if (f->used && f->kind == FLIGHT_COMMAND && f->worker == worker)
            f->orphan = true;
    }
    k->alive = k->busy = false;
    k->depth = 0;
    for (int key = 0; key < MODEL_KEYS; key++)
        if (w->truth[key].live && w->truth[key].worker == worker)
            w->truth[key].worker = -1;
    k->fence = 0;
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].worker == worker)
            conn_close(w, i);
}

static void process_dies(struct world *w, int process) {
    for (int i = 0; i < WORKERS; i++)
        if (w->workers[i].process == process)
            worker_dies(w, i);
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].process == process)
            conn_close(w, i);
}

static unsigned conns_open(const struct world *w, int process) {
    unsigned n = 0;
    for (int i = 0; i < CONNS; i++)
        n += w->conns[i].open && w->conns[i].process == process;
    return n;
}

/* Whether acquire.lua follows a batch that has set the lock alone. */
static bool is_unfinished(const struct world *w, int key) {
    for (size_t i = 0; i < FLIGHTS; i++)
        if (w->flights[i].used && w->flights[i].key == key && w->flights[i].late == '!')
            return true;
    return false;
}

static void go_around(struct world *w) {
    int key = (int)world_below(w, w->sc.keys);
    struct model_command c = {.op = OP_SET, .ms = 1 + world_below(w, 2000)};
    static const enum model_op OPS[] = {OP_SET, OP_DEL, OP_PEXPIRE, OP_SET_NX};
    c.op = OPS[world_below(w, COUNT(OPS))];
    snprintf(c.value, sizeof(c.value), world_chance(w, 50) ? OUTSIDE : "1");
    /* Writing the very bytes that a lease has, before its end, does not show in Redis. */
    const struct model_guard *g = &w->redis.keys[key].guard;
    bool current = model_guard_current(&w->redis, g);
    if (c.op != OP_DEL && c.op != OP_PEXPIRE && current && strcmp(c.value, g->value) == 0)
        return;
    /* Of a lease in the short form, free.lua does not ask whether the end was moved. */
    if (c.op == OP_PEXPIRE && current && g->text)
        return;
    /* acquire.lua takes a lock for its batch's if the value is the batch's, and its end is not that of the record. */
    if (c.op == OP_PEXPIRE && is_unfinished(w, key))
        return;
    world_event(w, "around the proxy: op %d on key %d", (int)c.op, key);
    model_native(&w->redis, key, &c);
    check_passed(w, key, BY_OUTSIDE);
}

static void operate(struct world *w) {
    struct conn *c = &w->conns[STRANGER];
    if (!c->open)
        conn_open(w, STRANGER);
    if (c->busy || c->reserved || flight_places(w) < FLIGHTS / 3 || w->rule->mode == LOCK_MODE_AUDIT)
        return;
    struct flight *f = flight_new(w, FLIGHT_OPERATOR);
    f->command = (struct model_command){.op = OP_DEL};
    flight_launch(w, f, STRANGER, (int)world_below(w, w->sc.keys));
}

void trouble_strikes(struct world *w) {
    const struct scenario *sc = &w->sc;
    int process = (int)world_below(w, sc->processes);
    if (sc->deaths && world_chance(w, 12)) {
        if (world_chance(w, 15))
            process_dies(w, process);
        else
            worker_dies(w, (int)world_below(w, WORKERS));
    }
    if (sc->reconnects && world_chance(w, 12)) {
        int i = (int)world_below(w, CONNS);
        bool last = conns_open(w, w->conns[i].process) < 2 && w->conns[i].worker < 0;
        if (w->conns[i].process >= 0 && (!last || !sc->never_wrong))
            conn_close(w, i);
    }
    if (sc->restarts && world_chance(w, 2))
        proxy_restart(w, (int)world_below(w, sc->proxies));
    if (sc->renames && world_chance(w, 20)) {
        int i = (int)world_below(w, CONNS);
        for (unsigned tries = 0; tries < CONNS && (!w->conns[i].open || w->conns[i].process < 0); tries++)
            i = (i + 1) % CONNS;
        if (w->conns[i].open && w->conns[i].process >= 0)
            conn_rename(w, i);
    }
    if (sc->loses && world_chance(w, 10))
        w->storm_until_ms = w->redis.now_ms + world_below(w, (unsigned)(2 * sc->rule.lease_ms));
    if (sc->outside && world_chance(w, 10))
        go_around(w);
    if (sc->operators && world_chance(w, 10))
        operate(w);
    if (w->waits)
        waits_trouble(w);
    if (w->fences)
        fences_trouble(w);
    if ((sc->reloads || sc->audit) && world_chance(w, 15))
        rules_reload(w);
}
