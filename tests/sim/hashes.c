/*
 * Hash locks in the model: Redis's own commands on one field, and the application's scripts (a reentrant lock, a lock
 * of many readers, as Redisson has them).
 */
#include "tests/sim/hashes.h"

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
