/*
 * common.lua on the model, line by line: which lease is live, who may touch it, and the guard record.
 */
#include "tests/sim/script.h"

#include <stdio.h>
#include <stdlib.h>

struct script_state script_examine(struct script_run *r) {
    model_expire(r->m, r->key);
    struct script_state s = {.value = r->k->exists, .wrong_type = r->k->exists && (r->k->list || r->k->hash)};
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
        const char *token = s.list && model_queue_seated(r->m, r->key, r->a->claim) ? r->a->claim : r->g->token;
        snprintf(s.lease_token, sizeof(s.lease_token), "%s", token);
        memcpy(s.owner, r->g->owner, sizeof(s.owner));
        memcpy(s.proxy, r->g->proxy, sizeof(s.proxy));
        const struct model_suspect *suspect = &r->m->suspects[r->key];
        s.same = r->a && is(s.owner, r->a->identity);
        s.elsewhere = r->a && !is(s.proxy, r->a->proxy);
        s.suspects = suspect->fence == s.fence ? suspect->count : 0;
    }
    return s;
}

bool script_seen_is(const struct script_run *r, const struct script_state *s) {
    return r->a->seen && s->value && !s->wrong_type && is(r->a->seen, s->text);
}

static void suspect(const struct script_run *r, struct script_state *s) {
    struct model_suspect *said = &r->m->suspects[r->key];
    if (is(said->attempt, r->a->attempt))
        return;
    said->fence = s->fence;
    said->count = ++s->suspects;
    snprintf(said->attempt, sizeof(said->attempt), "%s", r->a->attempt);
}

bool script_is_data(const struct script_run *r, const struct script_state *s) {
    bool readers = r->k->hash && hash_has(&r->k->fields, HASH_MODE) && r->k->expire_ms;
    return r->a->data_free && s->value && !s->token && !s->list && !readers;
}

/* may_touch(): the outcome; *may says whether it is one. */
enum lock_outcome script_may_touch(const struct script_run *r, struct script_state *s, bool *may) {
    bool whoever = is(r->a->right, "any") || is(r->a->right, "operator");
    *may = true;
    if (s->token) {
        if (is(s->lease_token, r->a->claim) || whoever)
            return LOCK_DONE;
        bool believed = is(r->a->right, "believe"), other = !is(s->proxy, r->a->proxy) || (believed && !s->list);
        if ((is(r->a->right, "adopt") || believed) && is(s->owner, r->a->identity) && other)
            return LOCK_ADOPTED;
        if (is(r->a->right, "suspect") && s->same && !s->list)
            suspect(r, s);
        *may = false;
        return LOCK_HELD;
    }
    if (whoever)
        return LOCK_DONE;
    if (script_is_data(r, s) || script_seen_is(r, s))
        return LOCK_OPEN;
    *may = false;
    return LOCK_FOREIGN;
}

struct model_reply script_number(int64_t n) {
    return (struct model_reply){.kind = REPLY_INT, .number = n};
}

struct model_reply script_plain(enum model_reply_kind kind) {
    return (struct model_reply){.kind = kind};
}

struct model_reply script_text(const char *t) {
    struct model_reply r = {.kind = REPLY_TEXT};
    snprintf(r.text, sizeof(r.text), "%s", t);
    return r;
}

struct model_reply script_success(const struct script_run *r) {
    const char *shape = model_shape(&r->a->command);
    return is(shape, "int") ? script_number(1) : is(shape, "ok") ? script_plain(REPLY_OK) : script_plain(REPLY_NIL);
}

struct model_reply script_refusal(const struct script_run *r) {
    return is(model_shape(&r->a->command), "int") ? script_number(0) : script_plain(REPLY_NIL);
}

static uint64_t token_number(const char *token) {
    const char *colon = strrchr(token, ':');
    return colon ? strtoull(colon + 1, NULL, 10) : 0;
}

struct model_envelope script_envelope(struct model_reply reply, enum lock_outcome outcome, const struct script_state *s,
                                      int64_t pttl_ms) {
    struct model_envelope e = {.reply = reply, .outcome = outcome, .pttl_ms = pttl_ms};
    if (s) {
        e.fence = s->fence;
        e.leased = s->leased;
        e.same = s->same;
        e.elsewhere = s->elsewhere;
        e.pooled = s->token && token_number(s->lease_token) % 2 == 1;
        e.suspects = s->suspects > 3 ? 3 : s->suspects;
        memcpy(e.owner, s->owner, sizeof(e.owner));
    }
    return e;
}

struct model_reply script_command(struct script_run *r) {
    return model_native(r->m, r->key, &r->a->command);
}

bool script_failed(const struct model_reply *reply) {
    return reply->kind == REPLY_ERROR;
}

int64_t script_bound(struct script_run *r, bool *leased) {
    int64_t pttl = model_pttl(r->m, r->key);
    *leased = pttl == -1 && r->a->lease_ms > 0;
    if (*leased) {
        pttl = r->a->lease_ms;
        r->k->expire_ms = r->m->now_ms + pttl;
    }
    return pttl;
}

void script_keep_guard(struct script_run *r, int64_t pttl) {
    r->g->expire_ms = pttl >= 0 ? r->m->now_ms + pttl + MODEL_GUARD_OUTLIVES_MS : 0;
}

static struct script_state own(struct script_run *r, const struct script_state *s, const char *token, const char *value,
                               int64_t *pttl) {
    struct script_state mine = {.token = true};
    *pttl = script_bound(r, &mine.leased);
    uint64_t clock = (uint64_t)r->m->now_ms * 1000;
    r->m->us = r->m->us + 1 > clock ? r->m->us + 1 : clock;
    mine.fence = s->last_fence + 1 > r->m->us ? s->last_fence + 1 : r->m->us;
    struct model_guard *g = r->g;
    g->exists = g->has_value = true;
    g->hash = r->k->hash && !r->k->list;
    g->fence = mine.fence;
    g->leased = mine.leased;
    g->extra = 0;
    snprintf(g->token, sizeof(g->token), "%s", token);
    snprintf(g->value, sizeof(g->value), "%s", value);
    snprintf(g->owner, sizeof(g->owner), "%s", r->a->identity);
    snprintf(g->proxy, sizeof(g->proxy), "%s", r->a->proxy);
    r->m->queues[r->key].kind = false;
    snprintf(mine.owner, sizeof(mine.owner), "%s", r->a->identity);
    snprintf(mine.lease_token, sizeof(mine.lease_token), "%s", token);
    mine.same = true;
    script_keep_guard(r, *pttl);
    return mine;
}

struct script_state script_take(struct script_run *r, const struct script_state *s, const char *value, int64_t *pttl) {
    return own(r, s, r->a->attempt, value, pttl);
}

struct script_state script_look(struct script_run *r) {
    struct script_state s = script_examine(r);
    if (!r->a || !is(r->a->right, "enrol") || !script_seen_is(r, &s))
        return s;
    if (s.token && (!is(s.proxy, r->a->proxy) || token_number(s.lease_token) >= token_number(r->a->claim)))
        return s;
    int64_t pttl;
    own(r, &s, r->a->claim, s.text, &pttl);
    return script_examine(r);
}

void script_disown(struct script_run *r, const struct script_state *s) {
    if (!s->token)
        r->g->token[0] = '\0';
}

int64_t script_follow(struct script_run *r, struct script_state *s, const char *value, bool anew) {
    if (!s->token) {
        script_disown(r, s);
        return model_pttl(r->m, r->key);
    }
    bool leased;
    int64_t pttl = script_bound(r, &leased);
    s->leased = leased || (s->leased && s->keeps_lease);
    snprintf(r->g->value, sizeof(r->g->value), "%s", value);
    r->g->leased = s->leased;
    if (anew) {
        r->g->extra = 0;
        r->g->hash = false;
    }
    script_keep_guard(r, pttl);
    return pttl;
}

void script_remember(struct script_run *r, const char *reply) {
    r->g->exists = r->g->has_attempt = true;
    snprintf(r->g->attempt, sizeof(r->g->attempt), "%s", r->a->attempt);
    snprintf(r->g->reply, sizeof(r->g->reply), "%s", reply);
}

void script_forget(struct script_run *r, const char *reply) {
    r->g->token[0] = '\0';
    script_remember(r, reply);
    r->g->expire_ms = r->m->now_ms + MODEL_GUARD_OUTLIVES_MS;
}
