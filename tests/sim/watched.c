/*
 * Commands under audit: Redis runs them as they came, and the engine is told of their replies, as the session layer
 * does it (locks/observed_command.c). What they do to each other is the applications' own affair; what was acquired is
 * safe once the rule is enforced.
 */
#include "proxy/lock/lock_event.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim_world.h"

enum { NO_EXPIRY = -1, PAST = -2, KEPT = -3 };

void watched_launch(struct world *w, struct flight *f, enum lock_verb verb) {
    struct conn *c = &w->conns[f->conn];
    bool shows = f->command.op == OP_GETEX && f->command.ms == 0;
    f->observed = true;
    f->plan.key = world_key(f->key);
    f->plan.rule = w->rule;
    f->plan.verb = shows ? LOCK_READ : verb;
    f->plan.begun_ms = w->redis.now_ms;
    f->watched = engine_watch(w->proxies[f->proxy].engine, &c->session, &f->plan.key);
}

/* A batch that lost has set its guard record beside the lease, with the same value and nearly the same end. Until its
 * acquire.lua takes the record back, scripts take the batch's attempt for the holder, and refuse all others. No client
 * is told that it holds the lock, and the lock keeps its end; so the lease stands. */
bool watched_hidden(struct world *w, int key) {
    const struct model_guard *g = model_live(&w->redis, key);
    return g && strcmp(g->token, w->truth[key].stray) == 0;
}

bool watched_stands(struct world *w, int key) {
    const struct model_key *k = &w->redis.keys[key];
    bool same = k->exists && !k->list && strcmp(k->value, w->truth[key].value) == 0;
    return same && (!model_live(&w->redis, key) || watched_hidden(w, key));
}

static bool acquires(const struct flight *f) {
    const struct model_reply *r = &f->envelope.reply;
    switch (f->command.op) {
    case OP_SETNX:
        return r->number == 1;
    case OP_SET_NX:
        return r->kind == REPLY_OK;
    case OP_SET_NX_GET:
        return r->kind == REPLY_NIL;
    default:
        return false;
    }
}

void watched_run(struct world *w, struct flight *f) {
    struct truth *t = &w->truth[f->key];
    struct model_key *k = &w->redis.keys[f->key];
    const struct model_key before = *k;
    bool others = t->live && t->told && t->worker >= 0 && t->worker != f->worker;
    bool crossed = others && f->begun_step <= t->told_step; /* the engine can't know which came first */
    f->was_own = t->live && t->worker == f->worker;
    f->envelope = (struct model_envelope){.reply = model_native(&w->redis, f->key, &f->command), .outcome = LOCK_DONE};
    f->ran = true;
    flight_log(w, f, "as it came: ");
    if (!w->sc.audit_exact)
        return;
    check_passed(w, f->key, BY_OUTSIDE);
    f->ended_other = others && !crossed && !t->live;
    if (crossed && (!t->live || k->expire_ms != before.expire_ms)) {
        if (t->live)
            check_lease_ended(w, f->key);
        t->unclear = true;
    }
    bool overwrites = f->command.op == OP_SET_XX && f->envelope.reply.kind == REPLY_OK && !t->live && !crossed;
    if (!(acquires(f) || overwrites) || !k->exists)
        return;
    uint64_t max = t->max_fence;
    bool waits = !f->orphan && !f->ghost;
    *t = (struct truth){.live = true,
                        .observed = true,
                        .fence = UINT64_MAX - ++w->observed_leases,
                        .max_fence = max,
                        .session_id = f->session_id,
                        .worker = waits ? f->worker : -1,
                        .name = f->name,
                        .left = f->left,
                        .process = w->workers[f->worker].process,
                        .proxy = f->proxy,
                        .granted_ms = w->redis.now_ms};
    memcpy(t->value, k->value, sizeof(t->value));
    if (!waits)
        return;
    w->workers[f->worker].fence = t->fence;
    w->workers[f->worker].holds = true;
    w->workers[f->worker].lost_ms = 0;
}

void watched_enrolled(struct world *w, const struct flight *f, const struct model_guard *g) {
    struct truth *t = &w->truth[f->key];
    if (!f->was_own)
        world_fail(w, "S1", "worker %d's command has enrolled the lease of worker %d", f->worker, t->worker);
    if (g->fence <= t->max_fence)
        world_fail(w, "S2", "fence %" PRIu64 " after %" PRIu64, g->fence, t->max_fence);
    if (t->worker >= 0 && w->workers[t->worker].fence == t->fence)
        w->workers[t->worker].fence = g->fence;
    t->observed = false;
    t->fence = t->max_fence = g->fence;
    t->granted_ms = w->redis.now_ms; /* max-hold counts from the acquisition in the proxy: it is over no later */
    memcpy(t->token, g->token, sizeof(t->token));
}

/* ---- what the engine is told ------------------------------------------------------------------- */

static int64_t expiry_of(const struct model_command *c) {
    switch (c->op) {
    case OP_SETNX:
    case OP_GETSET:
    case OP_PERSIST:
    case OP_INCRBY:
        return NO_EXPIRY;
    case OP_SET_NX:
    case OP_SET_NX_GET:
    case OP_SET:
    case OP_SET_XX:
    case OP_SET_GET:
        return c->keepttl ? KEPT : c->ms > 0 ? c->ms : c->ms < 0 ? PAST : NO_EXPIRY;
    case OP_GETEX:
        return c->ms > 0 ? c->ms : c->ms < 0 ? PAST : KEPT;
    case OP_PEXPIRE:
        return c->ms > 0 ? c->ms : PAST;
    default:
        return KEPT;
    }
}

static enum lock_effect effect_of(const struct flight *f) {
    const struct model_reply *r = &f->envelope.reply;
    bool number = r->kind == REPLY_INT, nil = r->kind == REPLY_NIL;
    bool conditional = f->command.op == OP_PERSIST || f->command.when != WHEN_ALWAYS;
    if (r->kind == REPLY_ERROR)
        return EFFECT_NOTHING;
    switch (f->plan.verb) {
    case LOCK_ACQUIRE:
        return acquires(f) ? EFFECT_DONE : EFFECT_LOST;
    case LOCK_RELEASE:
        return (number ? r->number > 0 : !nil) ? EFFECT_DONE : EFFECT_ABSENT;
    case LOCK_EXTEND:
        if (number ? r->number == 0 : nil)
            return conditional && number ? EFFECT_NOTHING : EFFECT_ABSENT;
        return EFFECT_DONE;
    case LOCK_REPLACE:
    case LOCK_REWRITE:
    case LOCK_READ:
        return nil ? EFFECT_ABSENT : EFFECT_DONE;
    case LOCK_SCRIPT:
        return EFFECT_SCRIPTED;
    default:
        return EFFECT_DONE;
    }
}

static void tell(struct world *w, const struct flight *f, enum lock_effect effect) {
    const struct model_reply *r = &f->envelope.reply;
    const struct model_command *c = &f->command;
    char number[24];
    snprintf(number, sizeof(number), "%" PRId64, r->number);
    struct lock_event sight = {
        .key = world_key(f->key),
        .rule = f->plan.rule,
        .verb = f->plan.verb,
        .effect = effect,
        .watched = f->watched,
        .session_id = f->session_id,
        .login = 7,
        .begun_ms = f->plan.begun_ms,
        .pttl_ms = expiry_of(c),
        .by = c->by < 0 ? -c->by : c->by,
        .count = r->number,
        .refusal = "0",
        .command = "COMMAND",
        .client = "10.0.0.1:1234",
    };
    if (effect == EFFECT_DONE && sight.pttl_ms == PAST)
        sight.effect = EFFECT_REMOVED;
    enum lock_verb verb = f->plan.verb;
    if (verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_REWRITE || verb == LOCK_SWAP)
        sight.value = c->value;
    else if (f->ran && verb == LOCK_READ && r->kind == REPLY_TEXT)
        sight.value = r->text;
    else if (f->ran && (verb == LOCK_COUNT_UP || verb == LOCK_COUNT_DOWN))
        sight.value = number;
    if (f->ran && verb == LOCK_SWAP && r->kind == REPLY_TEXT)
        sight.old = r->text;
    sight.value_len = sight.value ? strlen(sight.value) : 0;
    sight.old_len = sight.old ? strlen(sight.old) : 0;
    w->raised = 0;
    engine_observe(w->proxies[f->proxy].engine, &sight, w->redis.now_ms);
    check_incidents(w, f);
    struct conn *conn = &w->conns[f->conn];
    if (conn->open && conn->id == f->session_id)
        conn->busy -= conn->busy > 0;
}

void watched_answer(struct world *w, struct flight *f) {
    struct truth *t = &w->truth[f->key];
    enum lock_effect effect = effect_of(f);
    /* What changed nothing, or only looked, does not tell the end that another which crossed has left open. */
    bool tells = effect == EFFECT_ABSENT || (effect == EFFECT_DONE && f->plan.verb != LOCK_READ);
    w->exact[f->key] = !f->crossed && (tells || w->exact[f->key]);
    tell(w, f, effect);
    if (w->conns[f->conn].id == f->session_id)
        w->conns[f->conn].lost_ms[f->key] = 0; /* it may have acquired */
    if (acquires(f) && t->live && t->worker == f->worker) {
        t->told = true;
        t->told_ms = w->redis.now_ms;
        t->told_step = w->step;
    }
    if (f->plan.verb == LOCK_READ)
        reading_shown(w, f, 0);
    if (!f->orphan)
        worker_answer(w, f->worker, f, false);
}

void watched_lost(struct world *w, struct flight *f, enum lock_outcome outcome) {
    if (f->proxy_life != w->proxies[f->proxy].life)
        return;
    tell(w, f, outcome == LOCK_NOT_SENT ? EFFECT_NOT_SENT : EFFECT_UNKNOWN);
    if (!f->orphan)
        worker_answer(w, f->worker, f, true);
}
