/*
 * The scripts of scripts/lua/ for string locks on the model, line by line. Where one is changed there, it is changed
 * here; the differential test (model_against_redis.py) finds what was forgotten.
 */
#include "tests/sim/script.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static struct model_envelope acquire(struct script_run *r) {
    struct script_state s = script_look(r);
    if (s.token && is(s.lease_token, r->a->attempt))
        return script_envelope(script_success(r), LOCK_GRANTED, &s, model_pttl(r->m, r->key));
    if (is(r->a->right, "instead") && s.token && !s.wrong_type && is(s.lease_token, r->a->claim)) {
        model_native(r->m, r->key, &(struct model_command){.op = OP_DEL});
        script_forget(r, "1");
        s = script_look(r);
    }
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (s.value)
        return script_envelope(reply, s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
    if (!r->k->exists)
        return script_envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
    int64_t pttl;
    struct script_state mine = script_take(r, &s, r->a->command.value, &pttl);
    return script_envelope(reply, LOCK_GRANTED, &mine, pttl);
}

/* Whether less than half of its time would be left to the lock. */
static bool shortens(const struct script_run *r) {
    int64_t left = model_pttl(r->m, r->key);
    return r->a->command.ms > 0 && left >= 0 && r->a->command.ms <= left / 2;
}

static struct model_envelope replace(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may, xx = r->a->command.op == OP_SET_XX;
    int64_t pttl;
    if (s.token && is(s.lease_token, r->a->attempt))
        return script_envelope(script_success(r), LOCK_GRANTED, &s, model_pttl(r->m, r->key));
    if (!s.value) {
        struct model_reply reply = script_command(r);
        if (!r->k->exists)
            return script_envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
        struct script_state mine = script_take(r, &s, r->a->command.value, &pttl);
        return script_envelope(reply, LOCK_GRANTED, &mine, pttl);
    }
    struct model_args as_claim = *r->a;
    if (is(r->a->right, "suspect") && !shortens(r)) {
        as_claim.right = "claim";
        r->a = &as_claim;
    }
    enum lock_outcome how = script_may_touch(r, &s, &may);
    if (s.list) {
        may = false;
        how = s.token ? LOCK_HELD : LOCK_FOREIGN;
    }
    if (!may)
        return script_envelope(script_plain(xx ? REPLY_NIL : REPLY_ERROR), how, &s, NOT_ASKED);
    struct model_reply reply = script_command(r);
    if (!r->k->exists) {
        if (s.token)
            script_forget(r, "1");
        else
            script_disown(r, &s);
        return script_envelope(reply, s.token ? LOCK_RELEASED : how, &s, -2);
    }
    s.keeps_lease = r->a->command.keepttl;
    pttl = script_follow(r, &s, r->a->command.value, true);
    return script_envelope(reply, how, &s, pttl);
}

static struct model_envelope swap_in(struct script_run *r, const struct script_state *s) {
    struct model_reply reply = script_command(r);
    int64_t pttl;
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!r->k->exists)
        return script_envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
    struct script_state mine = script_take(r, s, r->a->command.value, &pttl);
    script_remember(r, s->value ? s->text : "");
    return script_envelope(reply, LOCK_GRANTED, &mine, pttl);
}

static struct model_envelope swap(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may;
    if (s.token && is(s.lease_token, r->a->attempt)) {
        bool known = r->g->has_attempt && is(s.attempt, r->a->attempt) && s.reply[0];
        return script_envelope(known ? script_text(s.reply) : script_plain(REPLY_NIL), LOCK_GRANTED, &s,
                               model_pttl(r->m, r->key));
    }
    char done[MODEL_TOKEN];
    snprintf(done, sizeof(done), "%.*s*", MODEL_TOKEN - 2, r->a->attempt);
    if (r->g->exists && r->g->has_attempt && is(s.attempt, done)) /* repeated: it was data */
        return script_envelope(script_text(s.reply), LOCK_OPEN, NULL, NOT_ASKED);
    if (!s.value)
        return swap_in(r, &s);
    if (s.wrong_type)
        return script_envelope(script_command(r), script_is_data(r, &s) ? LOCK_OPEN : LOCK_ERROR, NULL, NOT_ASKED);
    uint64_t read = r->a->read_fence;
    bool stale = s.token ? read != 0 && read != s.fence : !script_seen_is(r, &s);
    enum lock_outcome how = script_may_touch(r, &s, &may);
    if (may && ((how == LOCK_DONE && !stale) || (how == LOCK_ADOPTED && read == 0))) {
        struct model_reply reply = script_command(r);
        if (!r->k->exists) {
            script_forget(r, "1");
            return script_envelope(reply, LOCK_RELEASED, &s, -2);
        }
        s.keeps_lease = r->a->command.keepttl;
        int64_t pttl = script_follow(r, &s, r->a->command.value, true);
        return script_envelope(reply, how, &s, pttl);
    }
    if (script_is_data(r, &s)) {
        struct model_reply reply = script_command(r);
        script_forget(r, s.text);
        memcpy(r->g->attempt, done, sizeof(done));
        return script_envelope(reply, how, &s, NOT_ASKED);
    }
    bool unchanged = !r->a->seen || script_seen_is(r, &s);
    if ((may && how == LOCK_OPEN) || (s.token && read != 0 && !stale && unchanged))
        return swap_in(r, &s);
    enum lock_outcome why = may ? LOCK_HELD : how;
    if (script_seen_is(r, &s))
        return script_envelope(script_plain(REPLY_ERROR), why, &s, NOT_ASKED);
    return script_envelope(script_text(s.text), why, &s, NOT_ASKED);
}

static struct model_envelope release(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may, shape_int = is(model_shape(&r->a->command), "int");
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt) &&
        !(s.token && is(s.lease_token, r->a->attempt)))
        return script_envelope(shape_int ? script_number(1) : script_text(s.reply), LOCK_RELEASED, NULL, -2);
    if (!s.value)
        return script_envelope(script_refusal(r), LOCK_FREE, NULL, -2);
    enum lock_outcome how = script_may_touch(r, &s, &may);
    if (!may) {
        if (!shape_int && s.wrong_type)
            return script_envelope(script_plain(REPLY_ERROR), LOCK_ERROR, NULL, NOT_ASKED);
        return script_envelope(script_refusal(r), how, &s, NOT_ASKED);
    }
    bool reads =
        s.token && shape_int && r->g->hash && !is(r->a->right, "operator") && hash_has(&r->k->fields, HASH_MODE);
    if (reads && r->k->fields.count > 2) {
        struct model_command hdel = {.op = OP_HDEL};
        memcpy(hdel.value, r->g->value, sizeof(hdel.value));
        model_native(r->m, r->key, &hdel);
        script_forget(r, "1");
        return script_envelope(script_number(1), how == LOCK_DONE ? LOCK_RELEASED : how, &s, model_pttl(r->m, r->key));
    }
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    script_forget(r, shape_int ? "1" : s.text);
    return script_envelope(reply, how == LOCK_DONE ? LOCK_RELEASED : how, &s, -2);
}

static bool ends_later(const struct script_run *r, int64_t pttl_ms) {
    const struct model_command *c = &r->a->command;
    return c->op == OP_PERSIST || (pttl_ms != -1 && c->ms > pttl_ms);
}

static bool may_extend(const struct script_run *r, const struct script_state *s) {
    if (!s->token || s->list || !s->same)
        return false;
    if (is(r->a->right, "leased"))
        return s->leased;
    return is(r->a->right, "later") && (s->leased || ends_later(r, model_pttl(r->m, r->key)));
}

static struct model_envelope extend(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may, shape_int = is(model_shape(&r->a->command), "int");
    if (!s.value)
        return script_envelope(script_command(r), LOCK_FREE, NULL, -2);
    enum lock_outcome how = script_may_touch(r, &s, &may);
    if (!may && may_extend(r, &s)) {
        may = true;
        how = LOCK_ADOPTED;
    }
    if (!may) {
        if (shape_int)
            return script_envelope(script_number(0), how, &s, NOT_ASKED);
        if (s.wrong_type)
            return script_envelope(script_plain(REPLY_ERROR), LOCK_ERROR, NULL, NOT_ASKED);
        return script_envelope(script_text(s.text), how, &s, NOT_ASKED);
    }
    int64_t before = r->k->expire_ms;
    if (s.leased)
        r->k->expire_ms = 0;
    struct model_reply reply = script_command(r);
    if (!r->k->exists) {
        if (s.token)
            script_forget(r, "1");
        else
            script_disown(r, &s);
        return script_envelope(reply, s.token ? LOCK_RELEASED : how, &s, -2);
    }
    if (s.leased && !r->k->expire_ms) {
        r->k->expire_ms = before;
        if (r->a->command.op == OP_PERSIST)
            reply = script_number(1);
        s.keeps_lease = true;
    }
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    char held[MODEL_VALUE];
    memcpy(held, s.token ? r->g->value : s.text, sizeof(held));
    int64_t pttl = script_follow(r, &s, held, false);
    return script_envelope(reply, how, &s, pttl);
}

static bool above_zero(const char *value) {
    char *end;
    long long n = strtoll(value, &end, 10);
    return *end || !value[0] || n > 0;
}

static struct model_envelope count(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may;
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt)) {
        bool mine = s.token && is(s.lease_token, r->a->attempt);
        return script_envelope(script_number(strtoll(s.reply, NULL, 10)), mine ? LOCK_GRANTED : LOCK_COUNTED, &s,
                               model_pttl(r->m, r->key));
    }
    int64_t before = r->k->expire_ms;
    enum lock_outcome how = script_may_touch(r, &s, &may);
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    const char *value = r->k->value;
    char said[MODEL_VALUE];
    snprintf(said, sizeof(said), "%" PRId64, reply.number);
    if (!s.value || (!s.token && !above_zero(s.text))) {
        if (!above_zero(value)) {
            bool leased;
            script_disown(r, &s);
            return script_envelope(reply, LOCK_FREE, NULL,
                                   s.value ? model_pttl(r->m, r->key) : script_bound(r, &leased));
        }
        int64_t pttl;
        r->k->expire_ms = 0;
        struct script_state mine = script_take(r, &s, value, &pttl);
        script_remember(r, said);
        return script_envelope(reply, LOCK_GRANTED, &mine, pttl);
    }
    char *end;
    int64_t now = strtoll(value, NULL, 10), was = strtoll(s.text, &end, 10), extra = r->g->exists ? r->g->extra : 0;
    if (may && (now <= 0 || (s.token && now <= extra))) {
        if (s.token) {
            snprintf(r->g->value, sizeof(r->g->value), "%s", value);
            script_forget(r, said);
            if (now > 0)
                script_keep_guard(r, model_pttl(r->m, r->key));
        } else {
            script_disown(r, &s);
        }
        return script_envelope(reply, LOCK_RELEASED, &s, model_pttl(r->m, r->key));
    }
    if (!may && s.token && was <= 0 && now > 0) {
        memcpy(r->k->value, s.text, sizeof(s.text));
        r->k->expire_ms = before;
        return script_envelope(script_plain(REPLY_ERROR), how, &s, NOT_ASKED);
    }
    if (!may) {
        int64_t by = now - was;
        bool remains = !s.token && !(r->g->exists && r->g->token[0]) && was <= extra && extra + by >= 0;
        extra = extra + by > 0 ? extra + by : 0;
        if (!remains && (now <= 0 || (s.token && now <= extra))) {
            memcpy(r->k->value, s.text, sizeof(s.text));
            r->k->expire_ms = before;
            return script_envelope(script_number(0), how, &s, NOT_ASKED);
        }
        r->g->exists = true;
        r->g->extra = extra;
    }
    s.keeps_lease = true;
    int64_t pttl;
    if (s.token) {
        pttl = script_follow(r, &s, value, false);
    } else {
        pttl = model_pttl(r->m, r->key);
        script_disown(r, &s);
        script_keep_guard(r, pttl > 0 ? pttl : 0);
    }
    script_remember(r, said);
    return script_envelope(reply, may ? how : LOCK_COUNTED, &s, pttl);
}

/* One lock key. */
static struct model_envelope clobber(struct script_run *r) {
    struct script_state s = script_look(r);
    bool may = true, endless = r->k->exists && !r->k->expire_ms;
    if (s.value) {
        enum lock_outcome how = script_may_touch(r, &s, &may);
        if (s.list) {
            may = false;
            how = s.token ? LOCK_HELD : LOCK_FOREIGN;
        }
        if (!may)
            return script_envelope(script_plain(REPLY_ERROR), how, &s, NOT_ASKED);
    }
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!s.token) {
        script_disown(r, &s);
        return script_envelope(reply, s.value ? LOCK_OPEN : LOCK_FREE, NULL, NOT_ASKED);
    }
    struct script_state now = script_examine(r);
    bool same = now.token && is(now.lease_token, s.lease_token) && endless == !r->k->expire_ms;
    if (!same)
        script_forget(r, "1");
    return script_envelope(reply, same ? LOCK_DONE : LOCK_RELEASED, NULL, NOT_ASKED);
}

/* SET without an expiry, and counters and fields where the rule lacks their kind. */
static struct model_envelope pass(struct script_run *r) {
    struct script_state s = script_look(r);
    const enum model_op op = r->a->command.op;
    bool of_hash = op == OP_HSETNX || op == OP_HINCRBY || op == OP_HDEL, replaces = op == OP_SET, may = true;
    enum lock_outcome how = s.value ? script_may_touch(r, &s, &may) : LOCK_FREE;
    char held[MODEL_VALUE];
    memcpy(held, r->g->value, sizeof(held));
    if (s.list && replaces) {
        may = false;
        how = s.token ? LOCK_HELD : LOCK_FOREIGN;
    }
    if (!may && (replaces || (!s.list && s.wrong_type == of_hash)))
        return script_envelope(op == OP_HSETNX || op == OP_HDEL ? script_number(0) : script_plain(REPLY_ERROR), how, &s,
                               NOT_ASKED);
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!s.token) {
        script_disown(r, &s);
        return script_envelope(reply, how, &s, NOT_ASKED);
    }
    if (!r->k->exists || (r->g->hash && !replaces && !hash_has(&r->k->fields, held))) {
        script_forget(r, "1");
        return script_envelope(reply, LOCK_RELEASED, &s, model_pttl(r->m, r->key));
    }
    s.keeps_lease = !replaces || r->a->command.keepttl;
    int64_t pttl = script_follow(r, &s, r->g->hash && !replaces ? held : r->k->value, replaces);
    return script_envelope(reply, how, &s, pttl);
}

static struct model_envelope read_lock(struct script_run *r) {
    struct script_state s = script_look(r);
    struct model_reply reply = script_command(r);
    if (script_failed(&reply))
        return script_envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!s.value)
        return script_envelope(reply, LOCK_FREE, NULL, -2);
    return script_envelope(reply, s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
}

void model_before(struct model *m, int key, const char *attempt) {
    struct model_key *k = &m->keys[key];
    struct model_guard *g = &k->guard;
    model_expire(m, key);
    if (k->exists)
        return;
    snprintf(g->vacant, sizeof(g->vacant), "%s", attempt);
    g->fresh = !g->exists;
    if (g->fresh)
        g->expire_ms = m->now_ms + MODEL_VACANT_MS;
    g->exists = true;
}

/* What the lock is held with that a script has made, or NULL. `known`: it is an argument. */
static const char *made(const struct script_run *r, const struct script_state *s, bool *known) {
    const char *argument = r->a->command.composed ? "" : r->a->command.value;
    bool hash = s->value && r->k->hash;
    *known = hash ? hash_has(&r->k->fields, argument) : s->value && !s->wrong_type && is(s->text, argument);
    if (*known)
        return argument;
    return hash ? r->k->fields.at[0].name : s->value && !s->wrong_type ? s->text : NULL;
}

static struct model_envelope adopt_made(struct script_run *r, const struct script_state *s, int64_t pttl) {
    bool known;
    const char *value = made(r, s, &known);
    if (!value) {
        if (r->g->fresh)
            model_guard_clear(r->m, r->key);
        return script_envelope(script_plain(REPLY_NIL), s->value ? LOCK_FOREIGN : LOCK_FREE, NULL, pttl);
    }
    struct model_args args = *r->a;
    struct script_run run = *r;
    run.a = &args;
    if (r->k->hash && !known)
        args.lease_ms = 0;
    struct script_state mine = script_take(&run, s, value, &pttl);
    return script_envelope(script_text(value), LOCK_GRANTED, &mine, pttl);
}

static struct model_envelope adopt(struct script_run *r) {
    struct script_state s = script_look(r);
    int64_t pttl = model_pttl(r->m, r->key), ends = !r->g->expire_ms ? -1 : r->g->expire_ms - r->m->now_ms;
    if (s.list && r->m->queues[r->key].kind)
        return script_envelope(script_plain(REPLY_NIL), s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
    if (s.token && is(s.lease_token, r->a->attempt))
        return script_envelope(script_text(r->g->value), LOCK_GRANTED, &s, pttl);
    if (r->a->together && r->g->exists && is(r->g->vacant, r->a->attempt))
        return adopt_made(r, &s, pttl);
    if (s.token) {
        bool moved = (pttl == -1) != (ends == -1) || (pttl >= 0 && pttl + MODEL_GUARD_OUTLIVES_MS != ends);
        if (moved) {
            pttl = script_bound(r, &s.leased);
            r->g->leased = s.leased;
            script_keep_guard(r, pttl);
        }
        return script_envelope(script_text(r->g->value), LOCK_HELD, &s, pttl);
    }
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt)) {
        struct script_state gone = {.fence = strtoull(s.reply, NULL, 10)};
        return script_envelope(script_plain(REPLY_NIL), LOCK_RELEASED, &gone, pttl);
    }
    bool known;
    const char *argument = made(r, &s, &known);
    if (known) {
        struct script_state mine = script_take(r, &s, argument, &pttl);
        return script_envelope(script_text(argument), LOCK_GRANTED, &mine, pttl);
    }
    if (r->g->exists && r->g->token[0] && (ends == -1 || ends >= MODEL_GUARD_OUTLIVES_MS)) {
        struct script_state gone = {.fence = s.last_fence};
        char fence[24];
        snprintf(fence, sizeof(fence), "%" PRIu64, s.last_fence);
        script_forget(r, fence);
        return script_envelope(script_plain(REPLY_NIL), LOCK_RELEASED, &gone, pttl);
    }
    return script_envelope(script_plain(REPLY_NIL), s.value ? LOCK_FOREIGN : LOCK_FREE, NULL, pttl);
}

static struct script_run run_on(struct model *m, int key, const struct model_args *a) {
    return (struct script_run){.m = m, .key = key, .a = a, .k = &m->keys[key], .g = &m->keys[key].guard};
}

struct model_envelope model_script(struct model *m, int key, const struct model_args *a) {
    model_expire(m, key);
    bool queue = model_is_queue(m, key) && (a->command.op == OP_DEL || a->command.op == OP_PEXPIRE);
    if (queue || (a->command.op >= OP_RPUSH && a->command.op <= OP_LPOP))
        return model_queue_script(m, key, a);
    struct script_run r = run_on(m, key, a);
    if (a->pass && model_may_pass(&a->command))
        return pass(&r);
    if (a->command.op >= OP_HSETNX && a->command.op <= OP_HDEL)
        return model_hash_script(m, key, a);
    switch (model_verb(&a->command)) {
    case LOCK_ACQUIRE:
        return acquire(&r);
    case LOCK_REPLACE:
    case LOCK_REWRITE:
        return replace(&r);
    case LOCK_SWAP:
        return swap(&r);
    case LOCK_RELEASE:
        return release(&r);
    case LOCK_EXTEND:
        return extend(&r);
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
        return count(&r);
    case LOCK_PASS:
        return pass(&r);
    case LOCK_CLOBBER:
        return clobber(&r);
    case LOCK_READ:
        return read_lock(&r);
    case LOCK_SCRIPT:
        return adopt(&r);
    case LOCK_QUEUE_PUSH:
    case LOCK_QUEUE_READ:
    case LOCK_QUEUE_REMOVE:
    case LOCK_QUEUE_SET:
    case LOCK_INSPECT:
    case LOCK_OPERATOR:
        break;
    }
    abort();
}

struct model_envelope model_renew(struct model *m, int key, const char *claim, const char *right, int64_t lease_ms,
                                  int64_t left_ms) {
    model_expire(m, key);
    if (model_is_queue(m, key))
        return model_queue_renew(m, key, claim, right, lease_ms, left_ms);
    struct script_run r = run_on(m, key, NULL);
    struct script_state s = script_look(&r);
    if (!s.value)
        return script_envelope(script_number(0), LOCK_FREE, NULL, -2);
    if (!s.token || !is(s.lease_token, claim))
        return script_envelope(script_number(0), s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
    int64_t left = model_pttl(m, key);
    bool own = is(right, "always") && left >= 0 && left >= left_ms / 2;
    bool renewed = !is(right, "look") && (s.leased || own);
    if (renewed && (left == -1 || left < lease_ms)) {
        r.k->expire_ms = m->now_ms + lease_ms;
        left = lease_ms;
    }
    script_keep_guard(&r, left);
    return script_envelope(script_number(renewed), LOCK_DONE, &s, left);
}
