/*
 * Hash locks in the model: Redis's own commands on one field, the application's scripts (a reentrant lock, a lock of
 * many readers, as Redisson has them), and hash.lua in the words of its Lua.
 */
#include "tests/sim/hashes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/script.h"

int hash_find(const struct model_fields *h, const char *name) {
    for (unsigned i = 0; i < h->count; i++)
        if (is(h->at[i].name, name))
            return (int)i;
    return -1;
}

bool hash_has(const struct model_fields *h, const char *name) {
    return hash_find(h, name) >= 0;
}

void model_gone(struct model_key *k) {
    k->exists = k->list = k->hash = false;
    k->expire_ms = 0;
    memset(&k->fields, 0, sizeof(k->fields));
}

static struct model_reply number(int64_t n) {
    return (struct model_reply){.kind = REPLY_INT, .number = n};
}

static int64_t add(struct model_key *k, const char *name, int64_t by) {
    if (!k->exists) {
        model_gone(k);
        k->exists = k->hash = true;
    }
    struct model_fields *h = &k->fields;
    int i = hash_find(h, name);
    if (i < 0) {
        if (h->count == HASH_FIELDS)
            abort();
        i = (int)h->count++;
        snprintf(h->at[i].name, HASH_FIELD, "%s", name);
    }
    return h->at[i].count += by;
}

/* A hash without fields is none. */
static void removed(struct model_key *k, const char *name) {
    struct model_fields *h = &k->fields;
    int i = hash_find(h, name);
    h->at[i] = h->at[--h->count];
    memset(&h->at[h->count], 0, sizeof(h->at[0]));
    if (h->count == 0)
        model_gone(k);
}

static void pexpire(const struct model *m, struct model_key *k, int64_t ms) {
    k->expire_ms = m->now_ms + ms;
}

/* One owner, as often as it likes. */
static struct model_reply enter(struct model *m, struct model_key *k, const struct model_command *c) {
    if (k->exists && !hash_has(&k->fields, c->value))
        return number(k->expire_ms ? k->expire_ms - m->now_ms : -1);
    add(k, c->value, 1);
    pexpire(m, k, c->ms);
    return script_plain(REPLY_NIL);
}

/* Many readers; nobody's expiry is made shorter. */
static struct model_reply enter_reading(struct model *m, struct model_key *k, const struct model_command *c) {
    bool full = k->fields.count == HASH_FIELDS && !hash_has(&k->fields, c->value); /* with those who are dead */
    if (k->exists && (full || !hash_has(&k->fields, HASH_MODE)))
        return number(k->expire_ms ? k->expire_ms - m->now_ms : -1);
    int64_t left = k->exists ? k->expire_ms - m->now_ms : 0;
    if (!k->exists)
        add(k, HASH_MODE, 1);
    add(k, c->value, 1);
    pexpire(m, k, left > c->ms ? left : c->ms);
    return script_plain(REPLY_NIL);
}

static struct model_reply leave(struct model *m, struct model_key *k, const struct model_command *c) {
    if (!k->exists || !hash_has(&k->fields, c->value))
        return script_plain(REPLY_NIL);
    if (add(k, c->value, -1) > 0) {
        pexpire(m, k, c->ms);
        return number(0);
    }
    removed(k, c->value);
    if (k->exists && k->fields.count == 1 && hash_has(&k->fields, HASH_MODE))
        model_gone(k);
    return number(k->exists ? 0 : 1);
}

struct model_reply model_hash_native(struct model *m, int key, const struct model_command *c) {
    struct model_key *k = &m->keys[key];
    bool has = k->exists && hash_has(&k->fields, c->value);
    if (k->exists && !k->hash)
        return script_plain(REPLY_ERROR);
    switch (c->op) {
    case OP_HSETNX:
        if (!has)
            add(k, c->value, 1);
        return number(!has);
    case OP_HINCRBY:
        return number(add(k, c->value, c->by));
    case OP_HDEL:
        if (has)
            removed(k, c->value);
        return number(has);
    case OP_LUA_ENTER:
        return enter(m, k, c);
    case OP_LUA_READ:
        return enter_reading(m, k, c);
    case OP_LUA_LEAVE:
        return leave(m, k, c);
    case OP_LUA_RENEW:
        if (has)
            pexpire(m, k, c->ms);
        return number(has);
    default:
        abort();
    }
}

/* ---- hash.lua --------------------------------------------------------------------------------------- */

static struct model_envelope repeated(struct script_run *r, const struct script_state *s) {
    bool granted = s->token && is(s->lease_token, r->a->attempt), mine = s->token && is(s->lease_token, r->a->claim);
    return script_envelope(number(strtoll(s->reply, NULL, 10)),
                           granted ? LOCK_GRANTED
                           : mine  ? LOCK_DONE
                                   : LOCK_RELEASED,
                           s, model_pttl(r->m, r->key));
}

struct model_envelope model_hash_script(struct model *m, int key, const struct model_args *a) {
    struct script_run run = {.m = m, .key = key, .a = a, .k = &m->keys[key], .g = &m->keys[key].guard}, *r = &run;
    struct script_state s = script_look(r);
    const enum model_op op = a->command.op;
    char said[MODEL_VALUE], held[MODEL_VALUE];
    int64_t pttl;
    bool may;
    memcpy(held, r->g->value, sizeof(held));
    bool live = s.token && (is(s.lease_token, a->attempt) || is(s.lease_token, a->claim));
    if (r->g->exists && r->g->has_attempt && is(s.attempt, a->attempt) && (live || op != OP_HSETNX))
        return repeated(r, &s);
    if (!s.value) {
        struct model_reply reply = script_command(r);
        if (!r->k->exists)
            return script_envelope(reply, LOCK_FREE, NULL, -2);
        struct script_state mine = script_take(r, &s, a->command.value, &pttl);
        r->g->hash = true;
        snprintf(said, sizeof(said), "%" PRId64, reply.number);
        script_remember(r, said);
        return script_envelope(reply, LOCK_GRANTED, &mine, pttl);
    }
    if (!r->k->hash)
        return script_envelope(script_command(r), LOCK_ERROR, NULL, NOT_ASKED);
    enum lock_outcome how = script_may_touch(r, &s, &may);
    if (!may)
        return script_envelope(op == OP_HINCRBY ? script_plain(REPLY_ERROR) : number(0), how, &s, NOT_ASKED);
    struct model_reply reply = script_command(r);
    snprintf(said, sizeof(said), "%" PRId64, reply.number);
    if (s.token && !(r->k->exists && hash_has(&r->k->fields, held))) {
        script_forget(r, said);
        return script_envelope(reply, LOCK_RELEASED, &s, model_pttl(m, key));
    }
    s.keeps_lease = true;
    if (s.token) {
        pttl = script_follow(r, &s, held, false);
        script_remember(r, said);
    } else {
        pttl = model_pttl(m, key);
        script_disown(r, &s);
    }
    return script_envelope(reply, how, &s, pttl);
}
