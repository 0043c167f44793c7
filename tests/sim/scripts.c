/*
 * The scripts of scripts/lua/ on the model, line by line. Where one is changed there, it is changed here; the
 * differential test (model_against_redis.py) finds what was forgotten.
 */
#include "tests/sim/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* look() */
struct state {
    bool value, wrong_type; /* the key exists; it is no string */
    bool list;              /* it is a list lock */
    bool token;             /* a lease is live */
    bool leased, keeps_lease;
    char text[MODEL_VALUE], lease_token[MODEL_TOKEN], owner[MODEL_NAME], proxy[MODEL_NAME];
    char attempt[MODEL_TOKEN], reply[MODEL_VALUE];
    uint64_t fence, last_fence;
};

static bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

struct run {
    struct model *m;
    int key;
    const struct model_args *a;
    struct model_key *k;
    struct model_guard *g;
};

static struct state examine(struct run *r) {
    model_expire(r->m, r->key);
    struct state s = {.value = r->k->exists, .wrong_type = r->k->exists && r->k->list};
    if (s.value && !s.wrong_type)
        memcpy(s.text, r->k->value, sizeof(s.text));
    if (!r->g->exists)
        return s;
    s.last_fence = r->g->fence;
    memcpy(s.attempt, r->g->attempt, sizeof(s.attempt));
    memcpy(s.reply, r->g->reply, sizeof(s.reply));
    s.list = model_is_queue(r->m, r->key);
    if (model_live(r->m, r->key) || model_queue_live(r->m, r->key)) {
        s.token = true;
        s.fence = r->g->fence;
        s.leased = r->g->leased;
        memcpy(s.lease_token, r->g->token, sizeof(s.lease_token));
        memcpy(s.owner, r->g->owner, sizeof(s.owner));
        memcpy(s.proxy, r->g->proxy, sizeof(s.proxy));
    }
    return s;
}

static bool seen_is(const struct run *r, const struct state *s) {
    return r->a->seen && s->value && !s->wrong_type && is(r->a->seen, s->text);
}

/* may_touch(): the outcome; *may says whether it is one. */
static enum lock_outcome may_touch(const struct run *r, const struct state *s, bool *may) {
    bool whoever = is(r->a->right, "any") || is(r->a->right, "operator");
    *may = true;
    if (s->token) {
        if (is(s->lease_token, r->a->claim) || whoever)
            return LOCK_DONE;
        if (is(r->a->right, "adopt") && is(s->owner, r->a->identity) && !is(s->proxy, r->a->proxy))
            return LOCK_ADOPTED;
        *may = false;
        return LOCK_HELD;
    }
    if (whoever)
        return LOCK_DONE;
    if (seen_is(r, s))
        return LOCK_OPEN;
    *may = false;
    return LOCK_FOREIGN;
}

static struct model_reply number(int64_t n) {
    return (struct model_reply){.kind = REPLY_INT, .number = n};
}

static struct model_reply plain(enum model_reply_kind kind) {
    return (struct model_reply){.kind = kind};
}

static struct model_reply text(const char *t) {
    struct model_reply r = {.kind = REPLY_TEXT};
    snprintf(r.text, sizeof(r.text), "%s", t);
    return r;
}

static struct model_reply success(const struct run *r) {
    const char *shape = model_shape(&r->a->command);
    return is(shape, "int") ? number(1) : is(shape, "ok") ? plain(REPLY_OK) : plain(REPLY_NIL);
}

static struct model_reply refusal(const struct run *r) {
    return is(model_shape(&r->a->command), "int") ? number(0) : plain(REPLY_NIL);
}

static struct model_envelope envelope(struct model_reply reply, enum lock_outcome outcome, const struct state *s,
                                      int64_t pttl_ms) {
    struct model_envelope e = {.reply = reply, .outcome = outcome, .pttl_ms = pttl_ms};
    if (s) {
        e.fence = s->fence;
        e.leased = s->leased;
        memcpy(e.owner, s->owner, sizeof(e.owner));
    }
    return e;
}

enum { NOT_ASKED = -3 };

static struct model_reply command(struct run *r) {
    return model_native(r->m, r->key, &r->a->command);
}

static bool failed(const struct model_reply *reply) {
    return reply->kind == REPLY_ERROR;
}

static int64_t bound(struct run *r, bool *leased) {
    int64_t pttl = model_pttl(r->m, r->key);
    *leased = pttl == -1 && r->a->lease_ms > 0;
    if (*leased) {
        pttl = r->a->lease_ms;
        r->k->expire_ms = r->m->now_ms + pttl;
    }
    return pttl;
}

static void keep_guard(struct run *r, int64_t pttl) {
    r->g->expire_ms = pttl >= 0 ? r->m->now_ms + pttl + MODEL_GUARD_OUTLIVES_MS : 0;
}

static struct state own(struct run *r, const struct state *s, const char *token, const char *value, int64_t *pttl) {
    struct state mine = {.token = true};
    *pttl = bound(r, &mine.leased);
    uint64_t clock = (uint64_t)r->m->now_ms * 1000;
    r->m->us = r->m->us + 1 > clock ? r->m->us + 1 : clock;
    mine.fence = s->last_fence + 1 > r->m->us ? s->last_fence + 1 : r->m->us;
    struct model_guard *g = r->g;
    g->exists = g->has_value = true;
    g->fence = mine.fence;
    g->leased = mine.leased;
    g->extra = 0;
    snprintf(g->token, sizeof(g->token), "%s", token);
    snprintf(g->value, sizeof(g->value), "%s", value);
    snprintf(g->owner, sizeof(g->owner), "%s", r->a->identity);
    snprintf(g->proxy, sizeof(g->proxy), "%s", r->a->proxy);
    r->m->queues[r->key].kind = false;
    snprintf(mine.owner, sizeof(mine.owner), "%s", r->a->identity);
    keep_guard(r, *pttl);
    return mine;
}

static struct state take(struct run *r, const struct state *s, const char *value, int64_t *pttl) {
    return own(r, s, r->a->attempt, value, pttl);
}

static uint64_t token_number(const char *token) {
    const char *colon = strrchr(token, ':');
    return colon ? strtoull(colon + 1, NULL, 10) : 0;
}

static struct state look(struct run *r) {
    struct state s = examine(r);
    if (!r->a || !is(r->a->right, "enrol") || !seen_is(r, &s))
        return s;
    if (s.token && (!is(s.proxy, r->a->proxy) || token_number(s.lease_token) >= token_number(r->a->claim)))
        return s;
    int64_t pttl;
    own(r, &s, r->a->claim, s.text, &pttl);
    return examine(r);
}

static void disown(struct run *r, const struct state *s) {
    if (!s->token)
        r->g->token[0] = '\0';
}

static int64_t follow(struct run *r, struct state *s, const char *value, bool anew) {
    bool leased;
    int64_t pttl = bound(r, &leased);
    if (s->token) {
        s->leased = leased || (s->leased && s->keeps_lease);
        snprintf(r->g->value, sizeof(r->g->value), "%s", value);
        r->g->leased = s->leased;
        if (anew)
            r->g->extra = 0;
        keep_guard(r, pttl);
    } else {
        disown(r, s);
    }
    return pttl;
}

static void remember(struct run *r, const char *reply) {
    r->g->exists = r->g->has_attempt = true;
    snprintf(r->g->attempt, sizeof(r->g->attempt), "%s", r->a->attempt);
    snprintf(r->g->reply, sizeof(r->g->reply), "%s", reply);
}

static void forget(struct run *r, const char *reply) {
    r->g->token[0] = '\0';
    remember(r, reply);
    r->g->expire_ms = r->m->now_ms + MODEL_GUARD_OUTLIVES_MS;
}

static struct model_envelope acquire(struct run *r) {
    struct state s = look(r);
    if (s.token && is(s.lease_token, r->a->attempt))
        return envelope(success(r), LOCK_GRANTED, &s, model_pttl(r->m, r->key));
    struct model_reply reply = command(r);
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (s.value)
        return envelope(reply, s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
    if (!r->k->exists)
        return envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
    int64_t pttl;
    struct state mine = take(r, &s, r->a->command.value, &pttl);
    return envelope(reply, LOCK_GRANTED, &mine, pttl);
}

static struct model_envelope replace(struct run *r) {
    struct state s = look(r);
    bool may, xx = r->a->command.op == OP_SET_XX;
    int64_t pttl;
    if (s.token && is(s.lease_token, r->a->attempt))
        return envelope(success(r), LOCK_GRANTED, &s, model_pttl(r->m, r->key));
    if (!s.value) {
        struct model_reply reply = command(r);
        if (!r->k->exists)
            return envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
        struct state mine = take(r, &s, r->a->command.value, &pttl);
        return envelope(reply, LOCK_GRANTED, &mine, pttl);
    }
    enum lock_outcome how = may_touch(r, &s, &may);
    if (s.list) {
        may = false;
        how = s.token ? LOCK_HELD : LOCK_FOREIGN;
    }
    if (!may)
        return envelope(plain(xx ? REPLY_NIL : REPLY_ERROR), how, &s, NOT_ASKED);
    struct model_reply reply = command(r);
    if (!r->k->exists) {
        forget(r, "1");
        return envelope(reply, LOCK_RELEASED, &s, -2);
    }
    s.keeps_lease = r->a->command.keepttl;
    pttl = follow(r, &s, r->a->command.value, true);
    return envelope(reply, how, &s, pttl);
}

static struct model_envelope swap_in(struct run *r, const struct state *s) {
    struct model_reply reply = command(r);
    int64_t pttl;
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!r->k->exists)
        return envelope(reply, LOCK_FREE, NULL, NOT_ASKED);
    struct state mine = take(r, s, r->a->command.value, &pttl);
    remember(r, s->value ? s->text : "");
    return envelope(reply, LOCK_GRANTED, &mine, pttl);
}

static struct model_envelope swap(struct run *r) {
    struct state s = look(r);
    bool may;
    if (s.token && is(s.lease_token, r->a->attempt)) {
        bool known = r->g->has_attempt && is(s.attempt, r->a->attempt) && s.reply[0];
        return envelope(known ? text(s.reply) : plain(REPLY_NIL), LOCK_GRANTED, &s, model_pttl(r->m, r->key));
    }
    if (!s.value)
        return swap_in(r, &s);
    if (s.wrong_type)
        return envelope(command(r), LOCK_ERROR, NULL, NOT_ASKED);
    uint64_t read = r->a->read_fence;
    bool stale = s.token ? read != 0 && read != s.fence : !seen_is(r, &s);
    enum lock_outcome how = may_touch(r, &s, &may);
    if (may && !stale) {
        if (how == LOCK_OPEN || (how == LOCK_ADOPTED && read != 0))
            return swap_in(r, &s);
        struct model_reply reply = command(r);
        if (!r->k->exists) {
            forget(r, "1");
            return envelope(reply, LOCK_RELEASED, &s, -2);
        }
        s.keeps_lease = r->a->command.keepttl;
        int64_t pttl = follow(r, &s, r->a->command.value, true);
        return envelope(reply, how, &s, pttl);
    }
    if (s.token && read != 0 && !stale)
        return swap_in(r, &s);
    enum lock_outcome why = may ? LOCK_HELD : how;
    if (seen_is(r, &s))
        return envelope(plain(REPLY_ERROR), why, &s, NOT_ASKED);
    return envelope(text(s.text), why, &s, NOT_ASKED);
}

static struct model_envelope release(struct run *r) {
    struct state s = look(r);
    bool may, shape_int = is(model_shape(&r->a->command), "int");
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt) &&
        !(s.token && is(s.lease_token, r->a->attempt)))
        return envelope(shape_int ? number(1) : text(s.reply), LOCK_RELEASED, NULL, -2);
    if (!s.value)
        return envelope(refusal(r), LOCK_FREE, NULL, -2);
    enum lock_outcome how = may_touch(r, &s, &may);
    if (!may) {
        if (!shape_int && s.wrong_type)
            return envelope(plain(REPLY_ERROR), LOCK_ERROR, NULL, NOT_ASKED);
        return envelope(refusal(r), how, &s, NOT_ASKED);
    }
    struct model_reply reply = command(r);
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    forget(r, shape_int ? "1" : s.text);
    return envelope(reply, how == LOCK_DONE ? LOCK_RELEASED : how, &s, -2);
}

static struct model_envelope extend(struct run *r) {
    struct state s = look(r);
    bool may, shape_int = is(model_shape(&r->a->command), "int");
    if (!s.value)
        return envelope(command(r), LOCK_FREE, NULL, -2);
    enum lock_outcome how = may_touch(r, &s, &may);
    if (!may) {
        if (shape_int)
            return envelope(number(0), how, &s, NOT_ASKED);
        if (s.wrong_type)
            return envelope(plain(REPLY_ERROR), LOCK_ERROR, NULL, NOT_ASKED);
        return envelope(text(s.text), how, &s, NOT_ASKED);
    }
    int64_t before = r->k->expire_ms;
    if (s.leased)
        r->k->expire_ms = 0;
    struct model_reply reply = command(r);
    if (!r->k->exists) {
        if (s.token)
            forget(r, "1");
        return envelope(reply, LOCK_RELEASED, &s, -2);
    }
    if (s.leased && !r->k->expire_ms) {
        r->k->expire_ms = before;
        if (r->a->command.op == OP_PERSIST)
            reply = number(1);
        s.keeps_lease = true;
    }
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    int64_t pttl = follow(r, &s, s.text, false);
    return envelope(reply, how, &s, pttl);
}

static bool above_zero(const char *value) {
    char *end;
    long long n = strtoll(value, &end, 10);
    return *end || !value[0] || n > 0;
}

static struct model_envelope count(struct run *r) {
    struct state s = look(r);
    bool may;
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt)) {
        bool mine = s.token && is(s.lease_token, r->a->attempt);
        return envelope(number(strtoll(s.reply, NULL, 10)), mine ? LOCK_GRANTED : LOCK_COUNTED, &s,
                        model_pttl(r->m, r->key));
    }
    int64_t before = r->k->expire_ms;
    struct model_reply reply = command(r);
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    const char *value = r->k->value;
    char said[MODEL_VALUE];
    snprintf(said, sizeof(said), "%" PRId64, reply.number);
    if (!s.value || (!s.token && !above_zero(s.text))) {
        if (!above_zero(value)) {
            bool leased;
            disown(r, &s);
            return envelope(reply, LOCK_FREE, NULL, s.value ? model_pttl(r->m, r->key) : bound(r, &leased));
        }
        int64_t pttl;
        r->k->expire_ms = 0;
        struct state mine = take(r, &s, value, &pttl);
        remember(r, said);
        return envelope(reply, LOCK_GRANTED, &mine, pttl);
    }
    enum lock_outcome how = may_touch(r, &s, &may);
    char *end;
    int64_t now = strtoll(value, NULL, 10), was = strtoll(s.text, &end, 10), extra = r->g->exists ? r->g->extra : 0;
    if (may && (now <= 0 || (s.token && now <= extra))) {
        if (s.token) {
            snprintf(r->g->value, sizeof(r->g->value), "%s", value);
            forget(r, said);
            if (now > 0)
                keep_guard(r, model_pttl(r->m, r->key));
        } else {
            disown(r, &s);
        }
        return envelope(reply, LOCK_RELEASED, &s, model_pttl(r->m, r->key));
    }
    if (!may && s.token && was <= 0 && now > 0) {
        memcpy(r->k->value, s.text, sizeof(s.text));
        r->k->expire_ms = before;
        return envelope(plain(REPLY_ERROR), how, &s, NOT_ASKED);
    }
    if (!may) {
        int64_t by = now - was;
        bool remains = !s.token && !(r->g->exists && r->g->token[0]) && was <= extra && extra + by >= 0;
        extra = extra + by > 0 ? extra + by : 0;
        if (!remains && (now <= 0 || (s.token && now <= extra))) {
            memcpy(r->k->value, s.text, sizeof(s.text));
            r->k->expire_ms = before;
            return envelope(number(0), how, &s, NOT_ASKED);
        }
        r->g->exists = true;
        r->g->extra = extra;
    }
    s.keeps_lease = true;
    int64_t pttl;
    if (s.token) {
        pttl = follow(r, &s, value, false);
    } else {
        pttl = model_pttl(r->m, r->key);
        disown(r, &s);
        keep_guard(r, pttl > 0 ? pttl : 0);
    }
    remember(r, said);
    return envelope(reply, may ? how : LOCK_COUNTED, &s, pttl);
}

/* One lock key. */
static struct model_envelope clobber(struct run *r) {
    struct state s = look(r);
    bool may = true, endless = r->k->exists && !r->k->expire_ms;
    if (s.value) {
        enum lock_outcome how = may_touch(r, &s, &may);
        if (s.list) {
            may = false;
            how = s.token ? LOCK_HELD : LOCK_FOREIGN;
        }
        if (!may)
            return envelope(plain(REPLY_ERROR), how, &s, NOT_ASKED);
    }
    struct model_reply reply = command(r);
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    bool same = r->k->exists && !r->k->list && s.value && !s.wrong_type && is(r->k->value, s.text) &&
                endless == !r->k->expire_ms;
    bool leased;
    if (r->k->exists && !r->k->list && !same)
        bound(r, &leased);
    if (s.token && !same)
        forget(r, "1");
    else
        disown(r, &s);
    return envelope(reply, !s.value ? LOCK_FREE : same ? LOCK_DONE : LOCK_RELEASED, NULL, NOT_ASKED);
}

static struct model_envelope read_lock(struct run *r) {
    struct state s = look(r);
    struct model_reply reply = command(r);
    if (failed(&reply))
        return envelope(reply, LOCK_ERROR, NULL, NOT_ASKED);
    if (!s.value)
        return envelope(reply, LOCK_FREE, NULL, -2);
    return envelope(reply, s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
}

static struct model_envelope adopt(struct run *r) {
    struct state s = look(r);
    int64_t pttl = model_pttl(r->m, r->key), ends = !r->g->expire_ms ? -1 : r->g->expire_ms - r->m->now_ms;
    if (s.token && is(s.lease_token, r->a->attempt))
        return envelope(text(r->g->value), LOCK_GRANTED, &s, pttl);
    if (s.token) {
        bool moved = (pttl == -1) != (ends == -1) || (pttl >= 0 && pttl + MODEL_GUARD_OUTLIVES_MS != ends);
        if (moved) {
            pttl = bound(r, &s.leased);
            r->g->leased = s.leased;
            keep_guard(r, pttl);
        }
        return envelope(text(r->g->value), LOCK_HELD, &s, pttl);
    }
    if (r->g->exists && r->g->has_attempt && is(s.attempt, r->a->attempt)) {
        struct state gone = {.fence = strtoull(s.reply, NULL, 10)};
        return envelope(plain(REPLY_NIL), LOCK_RELEASED, &gone, pttl);
    }
    if (s.value && !s.wrong_type && is(s.text, r->a->command.value)) {
        struct state mine = take(r, &s, s.text, &pttl);
        return envelope(text(s.text), LOCK_GRANTED, &mine, pttl);
    }
    if (r->g->exists && r->g->token[0] && (ends == -1 || ends >= MODEL_GUARD_OUTLIVES_MS)) {
        struct state gone = {.fence = s.last_fence};
        char fence[24];
        snprintf(fence, sizeof(fence), "%" PRIu64, s.last_fence);
        forget(r, fence);
        return envelope(plain(REPLY_NIL), LOCK_RELEASED, &gone, pttl);
    }
    return envelope(plain(REPLY_NIL), s.value ? LOCK_FOREIGN : LOCK_FREE, NULL, pttl);
}

static struct run run_on(struct model *m, int key, const struct model_args *a) {
    return (struct run){.m = m, .key = key, .a = a, .k = &m->keys[key], .g = &m->keys[key].guard};
}

struct model_envelope model_script(struct model *m, int key, const struct model_args *a) {
    model_expire(m, key);
    bool queue = model_is_queue(m, key) && (a->command.op == OP_DEL || a->command.op == OP_PEXPIRE);
    if (queue || (a->command.op >= OP_RPUSH && a->command.op <= OP_LPOP))
        return model_queue_script(m, key, a);
    struct run r = run_on(m, key, a);
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

struct model_envelope model_renew(struct model *m, int key, const char *claim, const char *right, int64_t lease_ms) {
    model_expire(m, key);
    if (model_is_queue(m, key))
        return model_queue_renew(m, key, claim, right, lease_ms);
    struct run r = run_on(m, key, NULL);
    struct state s = look(&r);
    if (!s.value)
        return envelope(number(0), LOCK_FREE, NULL, -2);
    if (!s.token || !is(s.lease_token, claim))
        return envelope(number(0), s.token ? LOCK_HELD : LOCK_FOREIGN, &s, NOT_ASKED);
    int64_t left = model_pttl(m, key);
    if (!s.leased && (!is(right, "always") || left == -1))
        return envelope(number(0), LOCK_DONE, &s, left);
    if (left == -1 || left < lease_ms) {
        r.k->expire_ms = m->now_ms + lease_ms;
        r.g->expire_ms = m->now_ms + lease_ms + MODEL_GUARD_OUTLIVES_MS;
        left = lease_ms;
    }
    return envelope(number(1), LOCK_DONE, &s, left);
}
