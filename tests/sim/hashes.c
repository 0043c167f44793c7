/*
 * Hash locks in the model: Redis's own commands on one field, and the application's scripts (a reentrant lock, a lock
 * of many readers, as Redisson has them).
 */
#include "tests/sim/hashes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/model.h"

int hash_find(const struct model_fields *h, const char *name) {
    for (unsigned i = 0; i < h->count; i++)
        if (strcmp(h->at[i].name, name) == 0)
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

static const struct model_reply NIL = {.kind = REPLY_NIL}, WRONG = {.kind = REPLY_ERROR};

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

void model_fields_expire(const struct model *m, struct model_key *k) {
    for (unsigned i = k->fields.count; i-- > 0;) {
        int64_t ends_ms = k->fields.at[i].expire_ms;
        if (ends_ms && m->now_ms >= ends_ms)
            removed(k, k->fields.at[i].name);
    }
}

int64_t model_lease_pttl(struct model *m, int key) {
    int64_t pttl = model_pttl(m, key), ends_ms = 0;
    const struct model_guard *g = model_live(m, key);
    const struct model_fields *h = &m->keys[key].fields;
    for (unsigned i = 0; i < h->count; i++) {
        if (g && strcmp(h->at[i].name, g->value) != 0)
            continue;
        if (!h->at[i].expire_ms)
            return pttl;
        ends_ms = h->at[i].expire_ms > ends_ms ? h->at[i].expire_ms : ends_ms;
    }
    bool earlier = ends_ms && (pttl < 0 || ends_ms - m->now_ms < pttl);
    return earlier ? ends_ms - m->now_ms : pttl;
}

static void pexpire(const struct model *m, struct model_key *k, int64_t ms) {
    k->expire_ms = m->now_ms + ms;
}

/* Enters a lock that one owner may enter any number of times. */
static struct model_reply enter(struct model *m, struct model_key *k, const struct model_command *c) {
    if (k->exists && !hash_has(&k->fields, c->value))
        return number(k->expire_ms ? k->expire_ms - m->now_ms : -1);
    add(k, c->value, 1);
    pexpire(m, k, c->ms);
    return NIL;
}

/* Enters a lock of many readers; no expiry is made shorter. */
static struct model_reply enter_reading(struct model *m, struct model_key *k, const struct model_command *c) {
    bool full = k->fields.count == HASH_FIELDS && !hash_has(&k->fields, c->value); /* including dead readers */
    if (k->exists && (full || !hash_has(&k->fields, HASH_MODE)))
        return number(k->expire_ms ? k->expire_ms - m->now_ms : -1);
    int64_t left = k->exists ? k->expire_ms - m->now_ms : 0;
    if (!k->exists)
        add(k, HASH_MODE, 1);
    add(k, c->value, 1);
    pexpire(m, k, left > c->ms ? left : c->ms);
    return NIL;
}

static struct model_reply leave(struct model *m, struct model_key *k, const struct model_command *c) {
    if (!k->exists || !hash_has(&k->fields, c->value))
        return NIL;
    if (add(k, c->value, -1) > 0) {
        pexpire(m, k, c->ms);
        return number(0);
    }
    removed(k, c->value);
    if (k->exists && k->fields.count == 1 && hash_has(&k->fields, HASH_MODE))
        model_gone(k);
    return number(k->exists ? 0 : 1);
}

/* The content of a field. */
static struct model_reply content(const struct model_key *k, const char *name) {
    int i = hash_find(&k->fields, name);
    struct model_reply r = {.kind = i < 0 ? REPLY_NIL : REPLY_TEXT};
    if (i >= 0 && strcmp(name, HASH_MODE) == 0)
        snprintf(r.text, sizeof(r.text), "read");
    else if (i >= 0)
        snprintf(r.text, sizeof(r.text), "%" PRId64, k->fields.at[i].count);
    return r;
}

static void expire_field(const struct model *m, struct model_key *k, const struct model_command *c) {
    k->fields.at[hash_find(&k->fields, c->value)].expire_ms = m->now_ms + c->ms;
}

/* HSETEX with FNX, HGETDEL, HGETEX. */
static struct model_reply one_field(struct model *m, struct model_key *k, const struct model_command *c, bool has) {
    struct model_reply old = content(k, c->value);
    if (c->op == OP_HSETEX && !has)
        add(k, c->value, 1);
    if (c->op == OP_HGETDEL && has)
        removed(k, c->value);
    if (c->ms > 0 && ((c->op == OP_HSETEX && !has) || (c->op == OP_HGETEX && has)))
        expire_field(m, k, c);
    return c->op == OP_HSETEX ? number(!has) : old;
}

struct model_reply model_hash_native(struct model *m, int key, const struct model_command *c) {
    struct model_key *k = &m->keys[key];
    bool has = k->exists && hash_has(&k->fields, c->value);
    if (k->exists && !k->hash)
        return WRONG;
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
    case OP_HSETEX:
    case OP_HGETDEL:
    case OP_HGETEX:
        return one_field(m, k, c, has);
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
