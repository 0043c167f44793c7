/*
 * Attempts and releases without acquire.lua and release.lua, as the proxy sends them (text.lua, free.lua):
 *
 *      attempt ── batch ──┬── all set, the fence is above the watermark ──> granted
 *                         ├── a record in the short form, of another ────> refused
 *                         └── all else ──> acquire.lua with '+', '-' or '!'
 *      release ── free.lua ──┬── 'r' ──> released
 *                            └── 'n' ──> release.lua
 *
 * Both may be sent twice, as scripts are.
 */
#include "tests/sim/sim_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PROCESS = 36 }; /* of a token */

/* ---- which way a command goes ------------------------------------------------------------------ */

static bool uses_short_form(const struct world *w, const struct flight *f) {
    return (w->sc.short_form >> f->proxy & 1) && f->kind == FLIGHT_COMMAND && !f->transaction && !f->observed &&
           !f->bare && !f->plan.rule->wait_ms;
}

static int64_t expiry_of(const struct flight *f) {
    return f->command.ms ? f->command.ms : f->plan.rule->lease_ms;
}

static bool may_batch(const struct flight *f) {
    bool set = f->command.op == OP_SETNX || f->command.op == OP_SET_NX;
    return set && f->command.ms >= 0 && expiry_of(f) > 0 && f->plan.verb == LOCK_ACQUIRE &&
           f->plan.right == RIGHT_CLAIM;
}

static bool may_free(const struct flight *f) {
    const struct lock_plan *p = &f->plan;
    return f->command.op == OP_DEL && p->short_record && p->verb == LOCK_RELEASE && p->right == RIGHT_CLAIM &&
           p->claim_fence && !p->seen_known && !p->data_free;
}

void short_launched(struct world *w, struct flight *f) {
    const struct proxy *p = &w->proxies[f->proxy];
    if (!uses_short_form(w, f))
        return;
    if (may_batch(f)) {
        f->way = WAY_BATCH;
        f->short_fence = engine_new_fence(p->engine, (uint64_t)((int64_t)model_clock_us(&w->redis) + p->skew_us));
    } else if (may_free(f)) {
        f->way = WAY_FREE;
    }
}

/* ---- what happens in Redis --------------------------------------------------------------------- */

static struct model_reply success(const struct flight *f, bool done) {
    bool number = f->command.op != OP_SET_NX;
    return (struct model_reply){.kind = number ? REPLY_INT : done ? REPLY_OK : REPLY_NIL, .number = number && done};
}

static void granted(struct flight *f) {
    f->envelope = (struct model_envelope){.reply = success(f, true),
                                          .outcome = LOCK_GRANTED,
                                          .fence = f->short_fence,
                                          .pttl_ms = expiry_of(f),
                                          .short_record = true,
                                          .leased = !f->command.ms};
    memcpy(f->envelope.owner, f->identity, sizeof(f->envelope.owner));
}

/* What the record says of the lease in the way. */
static void held(struct flight *f, const struct model_guard *g) {
    char last = g->token[0] ? g->token[strlen(g->token) - 1] : '0';
    f->envelope = (struct model_envelope){.reply = success(f, false),
                                          .outcome = LOCK_HELD,
                                          .fence = g->fence,
                                          .pttl_ms = -3,
                                          .leased = g->leased,
                                          .pooled = (last - '0') % 2 == 1,
                                          .same = strcmp(g->owner, f->identity) == 0,
                                          .elsewhere = strncmp(g->token, f->plan.attempt_token, PROCESS) != 0};
    memcpy(f->envelope.owner, g->owner, sizeof(f->envelope.owner));
}

static void run_batch(struct world *w, struct flight *f, const struct model_key *before) {
    const struct model_batch batch = {.attempt = f->plan.attempt_token,
                                      .value = f->command.value,
                                      .identity = f->identity,
                                      .fence = f->short_fence,
                                      .ms = expiry_of(f),
                                      .leased = !f->command.ms};
    struct model_batch_answer a = model_run_batch(&w->redis, f->key, &batch);
    model_clock_past(&w->redis, (uint64_t)((int64_t)f->short_fence - w->proxies[f->proxy].skew_us));
    bool own = a.found_text && strcmp(a.found.token, f->plan.attempt_token) == 0;
    f->sets = f->sets || a.set;
    f->raises = a.raised;
    f->goes_on = false;
    if (a.raised && !a.refused && a.set) {
        granted(f);
        check_script(w, f, before);
    } else if (a.found_text && !a.set && !own && !f->twice) {
        held(f, &a.found);
        check_script(w, f, before);
    } else {
        f->goes_on = true;
        f->late = a.set ? '!' : f->twice ? '+' : '-'; /* the first time may have set the lock */
        f->envelope = (struct model_envelope){.outcome = LOCK_UNKNOWN, .fence = f->short_fence};
        w->unfinished[f->key] = w->unfinished[f->key] || (a.set && a.refused);
        check_batch_left(w, f, a.set && !a.refused);
    }
}

static void run_free(struct world *w, struct flight *f, const struct model_key *before) {
    f->goes_on = !model_run_free(&w->redis, f->key, f->plan.claim_token);
    if (f->goes_on) {
        f->envelope = (struct model_envelope){.outcome = LOCK_UNKNOWN};
        if (memcmp(before, &w->redis.keys[f->key], sizeof(*before)) != 0)
            world_fail(w, "S4", "free.lua has changed something, and says that it has not");
        return;
    }
    f->envelope = (struct model_envelope){.reply = {.kind = REPLY_INT, .number = 1},
                                          .outcome = LOCK_RELEASED,
                                          .fence = f->plan.claim_fence,
                                          .pttl_ms = -2};
    check_script(w, f, before);
}

void short_run(struct world *w, struct flight *f, const struct model_key *before) {
    f->ran = true;
    if (f->way == WAY_BATCH)
        run_batch(w, f, before);
    else
        run_free(w, f, before);
    w->short_runs[f->way][f->goes_on]++;
    flight_log(w, f, f->way == WAY_BATCH ? "batch: " : "free.lua: ");
}

/* ---- what the proxy makes of the answer -------------------------------------------------------- */

bool short_goes_on(struct world *w, struct flight *f) {
    if (f->way == WAY_SCRIPT || !f->goes_on)
        return false;
    f->freed_twice = f->way == WAY_FREE && f->twice;
    f->way = WAY_SCRIPT;
    f->ran = f->goes_on = false;
    flight_log(w, f, "goes on: ");
    return true;
}

void short_settle(const struct world *w, struct flight *f) {
    enum lock_outcome outcome = f->envelope.outcome;
    bool gone = outcome == LOCK_FREE || outcome == LOCK_HELD || outcome == LOCK_FOREIGN;
    if (!f->freed_twice || !gone || !engine_claim_lasts(w->proxies[f->proxy].engine, &f->plan, w->redis.now_ms))
        return;
    f->envelope = (struct model_envelope){.reply = {.kind = REPLY_INT, .number = 1},
                                          .outcome = LOCK_RELEASED,
                                          .fence = f->plan.claim_fence,
                                          .pttl_ms = -2};
}
