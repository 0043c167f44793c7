/*
 * Redis's own commands on a lock key, in the model, and what its guard record says.
 */
#include "tests/sim/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESS_LEN = 36 }; /* of a token, the process's part */

void model_reset(struct model *m) {
    for (int key = 0; key < MODEL_KEYS; key++) {
        model_guard_clear(m, key);
        memset(&m->keys[key], 0, sizeof(m->keys[key]));
        m->queues[key].count = 0;
        m->watermarks[key] = 0;
    }
    m->now_ms = 0;
    m->clock_ms = 0;
    m->us = 0;
}

void model_free(struct model *m) {
    model_reset(m);
    for (int key = 0; key < MODEL_KEYS; key++)
        record_free(&m->records[key]);
}

/* ---- the guard record -------------------------------------------------------------------------- */

void model_guard_clear(struct model *m, int key) {
    struct model_queue *q = &m->queues[key];
    record_clear(&m->records[key]);
    memset(&m->keys[key].guard, 0, sizeof(m->keys[key].guard));
    q->kind = false;
    q->until_ms = 0;
}

/* Copies a text of the record, as much as there is room for; what is behind it is zero already. */
static bool text_of(const struct record *r, const char *name, char *out, size_t size) {
    const struct record_text *t = record_get(r, name, strlen(name));
    if (t)
        memcpy(out, t->data, t->len < size ? t->len : size - 1);
    return t;
}

static bool text_is(const struct record *r, const char *name, const char *text) {
    const struct record_text *t = record_get(r, name, strlen(name));
    return t && strcmp(t->data, text) == 0;
}

static int64_t number_of(const struct record *r, const char *name) {
    const struct record_text *t = record_get(r, name, strlen(name));
    return t ? strtoll(t->data, NULL, 10) : 0;
}

/* What others have counted, if it is said of this lease: FENCE:COUNT. */
static int64_t extra_of(const struct record *r, uint64_t fence) {
    const struct record_text *t = record_get(r, "extra", 5);
    char *colon = NULL;
    uint64_t of = t ? strtoull(t->data, &colon, 10) : 0;
    return colon && *colon == ':' && of == fence ? strtoll(colon + 1, NULL, 10) : 0;
}

/* The next line of a record's text, as much of it as there is room for. */
static const char *line_of(const char *text, char *out, size_t size) {
    size_t len = strcspn(text, "\n");
    memcpy(out, text, len < size ? len : size - 1);
    return text + len + (text[len] == '\n');
}

/* The short form: 1, token, value, fence, g, owner. Values in the model have one line. */
static void read_text(const char *text, struct model_guard *g) {
    char version[4] = "", fence[24] = "", leased[4] = "";
    text = line_of(text, version, sizeof(version));
    text = line_of(text, g->token, sizeof(g->token));
    text = line_of(text, g->value, sizeof(g->value));
    text = line_of(text, fence, sizeof(fence));
    text = line_of(text, leased, sizeof(leased));
    line_of(text, g->owner, sizeof(g->owner));
    g->text = g->has_value = true;
    g->fence = strtoull(fence, NULL, 10);
    g->leased = leased[0] == 'g';
    memcpy(g->proxy, g->token, PROCESS_LEN);
}

void model_guard_read(struct model *m, int key) {
    const struct record *r = &m->records[key];
    struct model_guard *g = &m->keys[key].guard;
    int64_t expire_ms = g->expire_ms;
    if (!record_exists(r)) {
        model_guard_clear(m, key);
        return;
    }
    memset(g, 0, sizeof(*g));
    g->exists = true;
    g->expire_ms = expire_ms;
    if (r->is_text) {
        read_text(r->text.data, g);
        m->queues[key].kind = false;
        m->queues[key].until_ms = 0;
        return;
    }
    text_of(r, "token", g->token, sizeof(g->token));
    g->has_value = text_of(r, "value", g->value, sizeof(g->value));
    text_of(r, "owner", g->owner, sizeof(g->owner));
    text_of(r, "proxy", g->proxy, sizeof(g->proxy));
    g->fence = (uint64_t)number_of(r, "fence");
    g->leased = g->fence && (uint64_t)number_of(r, "leased") == g->fence;
    g->extra = extra_of(r, g->fence);
    g->hash = text_is(r, "kind", "hash");
    m->queues[key].kind = text_is(r, "kind", "list");
    m->queues[key].until_ms = number_of(r, "until");
}

/* ---- the clock --------------------------------------------------------------------------------- */

uint64_t model_clock_us(const struct model *m) {
    uint64_t now_us = (uint64_t)(m->now_ms + m->clock_ms) * 1000;
    return m->us + 1 > now_us ? m->us + 1 : now_us;
}

void model_clock_past(struct model *m, uint64_t us) {
    if (us > m->us)
        m->us = us;
}

/* ---- keys -------------------------------------------------------------------------------------- */

void model_expire(struct model *m, int key) {
    struct model_key *k = &m->keys[key];
    if (k->exists && k->expire_ms && m->now_ms >= k->expire_ms) {
        model_gone(k);
    }
    model_fields_expire(m, k);
    struct model_guard *g = &k->guard;
    if (g->exists && g->expire_ms && m->now_ms >= g->expire_ms)
        model_guard_clear(m, key);
    if (!k->exists || !k->list)
        m->queues[key].count = 0;
}

static void move_end(int64_t *expire_ms, int64_t by_ms) {
    if (*expire_ms)
        *expire_ms = *expire_ms > by_ms ? *expire_ms - by_ms : 1;
}

void model_set_clock(struct model *m, int64_t by_ms) {
    m->clock_ms += by_ms;
    if (by_ms < 0)
        m->us = 0;
    for (int key = 0; key < MODEL_KEYS; key++) {
        move_end(&m->keys[key].expire_ms, by_ms);
        for (unsigned i = 0; i < m->keys[key].fields.count; i++)
            move_end(&m->keys[key].fields.at[i].expire_ms, by_ms);
        move_end(&m->keys[key].guard.expire_ms, by_ms);
        move_end(&m->data[key].expire_ms, by_ms);
        move_end(&m->marks[key].expire_ms, by_ms);
    }
}

int64_t model_pttl(struct model *m, int key) {
    model_expire(m, key);
    const struct model_key *k = &m->keys[key];
    return !k->exists ? -2 : !k->expire_ms ? -1 : k->expire_ms - m->now_ms;
}

bool model_guard_current(const struct model *m, const struct model_guard *g) {
    return g->exists && (g->text || !g->expire_ms || g->expire_ms - m->now_ms >= GUARD_OUTLIVES_MS);
}

bool model_string_live(const struct model *m, const struct model_key *k) {
    const struct model_guard *g = &k->guard;
    int64_t later_ms = k->expire_ms - g->expire_ms;
    bool covers = !g->text || (k->expire_ms && later_ms >= -SHORT_APART_MS && later_ms <= SHORT_APART_MS);
    return k->exists && !k->list && !k->hash && g->token[0] && g->has_value && strcmp(g->value, k->value) == 0 &&
           covers && model_guard_current(m, g);
}

const struct model_guard *model_live(struct model *m, int key) {
    model_expire(m, key);
    const struct model_key *k = &m->keys[key];
    const struct model_guard *g = &k->guard;
    bool hash = k->hash && g->hash && !m->queues[key].kind && hash_has(&k->fields, g->value);
    bool live = k->exists && hash && model_guard_current(m, g) && g->token[0] && g->has_value;
    return live || model_string_live(m, k) ? g : NULL;
}

static struct model_reply text_reply(const char *text) {
    struct model_reply r = {.kind = REPLY_TEXT};
    snprintf(r.text, sizeof(r.text), "%s", text);
    return r;
}

static struct model_reply int_reply(int64_t n) {
    return (struct model_reply){.kind = REPLY_INT, .number = n};
}

static const struct model_reply NIL = {.kind = REPLY_NIL}, OK = {.kind = REPLY_OK}, WRONG = {.kind = REPLY_ERROR};

static void set_expiry(struct model *m, struct model_key *k, int64_t ms) {
    if (ms < 0)
        model_gone(k);
    k->expire_ms = ms > 0 ? m->now_ms + ms : 0;
}

static void set(struct model *m, struct model_key *k, const struct model_command *c) {
    bool keep = c->keepttl && k->exists;
    int64_t expire_ms = k->expire_ms;
    model_gone(k);
    k->exists = true;
    snprintf(k->value, sizeof(k->value), "%s", c->value);
    set_expiry(m, k, c->ms);
    if (keep)
        k->expire_ms = expire_ms;
}

bool model_expires(enum model_condition when, int64_t expire_ms, int64_t until_ms) {
    return when == WHEN_ALWAYS || (when == WHEN_NX && !expire_ms) || (when == WHEN_XX && expire_ms) ||
           (when == WHEN_GT && expire_ms && until_ms > expire_ms) ||
           (when == WHEN_LT && (!expire_ms || until_ms < expire_ms));
}

static struct model_reply pexpire(struct model *m, struct model_key *k, const struct model_command *c) {
    int64_t until = m->now_ms + c->ms;
    if (!k->exists || !model_expires(c->when, k->expire_ms, until))
        return int_reply(0);
    if (c->ms <= 0)
        model_gone(k);
    else
        k->expire_ms = until;
    return int_reply(1);
}

static struct model_reply incrby(struct model_key *k, const struct model_command *c) {
    if (k->exists && (k->list || k->hash))
        return WRONG;
    char *end;
    long long n = k->exists ? strtoll(k->value, &end, 10) : 0;
    if (k->exists && (*end || !k->value[0]))
        return WRONG;
    n += c->by;
    if (!k->exists)
        k->expire_ms = 0;
    k->exists = true;
    snprintf(k->value, sizeof(k->value), "%lld", n);
    return int_reply(n);
}

void model_digest(const char *value, char out[MODEL_DIGEST]) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *value; value++)
        hash = (hash ^ (unsigned char)*value) * 0x100000001b3u;
    snprintf(out, MODEL_DIGEST, "%016" PRIx64, hash);
}

bool model_says_no(const struct model_command *c, const struct model_key *k) {
    bool equal = strcmp(k->value, c->value) == 0; /* the digests are as equal as the values */
    if (c->op == OP_DELIFEQ)
        return !equal;
    return c->op == OP_DELEX && c->compare != IF_ANY && equal != (c->compare != IF_NE);
}

static struct model_reply delex(struct model_key *k, const struct model_command *c) {
    if (!k->exists)
        return int_reply(0);
    if (c->compare != IF_ANY && (k->list || k->hash))
        return WRONG;
    if (model_says_no(c, k))
        return int_reply(0);
    model_gone(k);
    return int_reply(1);
}

static struct model_reply native(struct model *m, int key, const struct model_command *c) {
    struct model_key *k = &m->keys[key];
    bool text = k->exists && !k->list && !k->hash, other = k->exists && !text;
    struct model_reply old = text ? text_reply(k->value) : NIL;
    switch (c->op) {
    case OP_SETNX:
    case OP_MSETEX:
        if (k->exists)
            return int_reply(0);
        set(m, k, c);
        return int_reply(1);
    case OP_SET_NX:
        if (k->exists)
            return NIL;
        set(m, k, c);
        return OK;
    case OP_SET_NX_GET:
        if (other)
            return WRONG;
        if (!k->exists)
            set(m, k, c);
        return old;
    case OP_SET:
    case OP_MSET:
        set(m, k, c);
        return OK;
    case OP_SET_XX:
        if (!k->exists)
            return NIL;
        set(m, k, c);
        return OK;
    case OP_SET_IFEQ:
        if (other)
            return WRONG;
        if (!k->exists || strcmp(k->value, c->value) != 0)
            return NIL;
        set(m, k, c);
        return OK;
    case OP_GETSET:
    case OP_SET_GET:
        if (other)
            return WRONG;
        set(m, k, c);
        return old;
    case OP_DEL:
        if (!k->exists)
            return int_reply(0);
        model_gone(k);
        return int_reply(1);
    case OP_GETDEL:
        if (other)
            return WRONG;
        model_gone(k);
        return old;
    case OP_PEXPIRE:
        return pexpire(m, k, c);
    case OP_PERSIST:
        if (!k->exists || !k->expire_ms)
            return int_reply(0);
        k->expire_ms = 0;
        return int_reply(1);
    case OP_GETEX:
        if (other)
            return WRONG;
        if (k->exists && c->ms)
            set_expiry(m, k, c->ms);
        return old;
    case OP_INCRBY:
        return incrby(k, c);
    case OP_GET:
        return other ? WRONG : old;
    case OP_EXISTS:
        return int_reply(k->exists);
    case OP_RPUSH:
    case OP_LPUSH:
    case OP_LINDEX:
    case OP_LREM:
    case OP_LSET:
    case OP_LPOP:
        return model_list_native(m, key, c);
    case OP_LUA_SET:
        if (k->exists)
            return NIL;
        set(m, k, c);
        return OK;
    case OP_LUA_DEL:
    case OP_LUA_PEXPIRE:
    case OP_DELIFEQ:
        if (other)
            return WRONG;
        if (!k->exists || strcmp(k->value, c->value) != 0)
            return int_reply(0);
        if (c->op == OP_LUA_PEXPIRE)
            return pexpire(m, k, c);
        model_gone(k);
        return int_reply(1);
    case OP_DELEX:
        return delex(k, c);
    case OP_HSETNX:
    case OP_HINCRBY:
    case OP_HDEL:
    case OP_HSETEX:
    case OP_HGETDEL:
    case OP_HGETEX:
    case OP_LUA_ENTER:
    case OP_LUA_READ:
    case OP_LUA_LEAVE:
    case OP_LUA_RENEW:
        return model_hash_native(m, key, c);
    case OP_KINDS:
        break;
    }
    abort();
}

struct model_reply model_native(struct model *m, int key, const struct model_command *c) {
    model_expire(m, key);
    struct model_reply r = native(m, key, c);
    if (!m->keys[key].exists || !m->keys[key].list)
        m->queues[key].count = 0;
    return r;
}

/* ---- attempts without a script ------------------------------------------------------------------ */

/* PEXPIREAT ... GT. */
static bool raise_watermark(struct model *m, int key, int64_t to) {
    if (!m->watermarks[key] || to <= m->watermarks[key])
        return false;
    m->watermarks[key] = to;
    return true;
}

struct model_batch_answer model_run_batch(struct model *m, int key, const struct model_batch *b) {
    struct model_guard *g = &m->keys[key].guard;
    struct model_command set = {.op = OP_SET_NX, .ms = b->ms};
    struct model_batch_answer a = {.set = false};
    model_expire(m, key);
    a.raised = raise_watermark(m, key, (int64_t)b->fence);
    a.refused = g->exists;
    a.found_text = g->text;
    a.found = *g;
    if (!a.refused) {
        char text[2 * MODEL_NAME + MODEL_TOKEN + MODEL_VALUE];
        int len = snprintf(text, sizeof(text), "1\n%s\n%s\n%" PRIu64 "\n%s\n%s", b->attempt, b->value, b->fence,
                           b->leased ? "g" : "", b->identity);
        record_make_text(&m->records[key], text, (size_t)len);
        g->expire_ms = m->now_ms + b->ms;
        model_guard_read(m, key);
    }
    snprintf(set.value, sizeof(set.value), "%s", b->value);
    a.set = model_native(m, key, &set).kind == REPLY_OK;
    return a;
}

enum lock_verb model_verb(const struct model_command *c) {
    switch (c->op) {
    case OP_SETNX:
    case OP_MSETEX:
    case OP_SET_NX:
    case OP_SET_NX_GET:
        return LOCK_ACQUIRE;
    case OP_SET: /* without an expiry it writes data */
        return c->ms ? LOCK_REPLACE : LOCK_PASS;
    case OP_SET_XX:
    case OP_SET_IFEQ:
        return LOCK_REWRITE;
    case OP_GETSET:
    case OP_SET_GET:
        return LOCK_SWAP;
    case OP_DEL:
    case OP_GETDEL:
    case OP_DELIFEQ:
    case OP_DELEX:
        return LOCK_RELEASE;
    case OP_PEXPIRE:
    case OP_PERSIST:
    case OP_GETEX:
    case OP_HGETEX:
        return LOCK_EXTEND;
    case OP_INCRBY:
    case OP_HINCRBY:
        return c->by < 0 ? LOCK_COUNT_DOWN : LOCK_COUNT_UP;
    case OP_MSET:
        return LOCK_CLOBBER;
    case OP_GET:
        return LOCK_READ;
    case OP_RPUSH:
    case OP_LPUSH:
        return LOCK_QUEUE_PUSH;
    case OP_LINDEX:
    case OP_EXISTS:
        return LOCK_QUEUE_READ;
    case OP_LREM:
        return LOCK_QUEUE_REMOVE;
    case OP_LSET:
        return LOCK_QUEUE_SET;
    case OP_LPOP:
        return LOCK_RELEASE;
    case OP_LUA_SET:
    case OP_LUA_DEL:
    case OP_LUA_PEXPIRE:
    case OP_LUA_ENTER:
    case OP_LUA_READ:
    case OP_LUA_LEAVE:
    case OP_LUA_RENEW:
        return LOCK_SCRIPT;
    case OP_HSETNX:
    case OP_HSETEX:
        return LOCK_ACQUIRE;
    case OP_HDEL:
    case OP_HGETDEL:
        return LOCK_COUNT_DOWN;
    case OP_KINDS:
        break;
    }
    abort();
}

int model_value_at(const struct model_command *c) {
    enum lock_verb verb = model_verb(c);
    if (c->op == OP_HSETNX || c->op == OP_HINCRBY || c->op == OP_HDEL)
        return 3;
    if (model_has_fields(c)) /* behind the options, FIELDS and 1 */
        return 5 + (c->op == OP_HSETEX) + (c->op != OP_HGETDEL && c->ms ? 2 : 0);
    if (verb == LOCK_QUEUE_PUSH)
        return 3;
    if (verb == LOCK_QUEUE_REMOVE || verb == LOCK_QUEUE_SET)
        return 4;
    bool writes = verb == LOCK_ACQUIRE || verb == LOCK_REPLACE || verb == LOCK_REWRITE || verb == LOCK_SWAP;
    return writes || verb == LOCK_PASS ? 3 : 0;
}

const char *model_shape(const struct model_command *c) {
    switch (c->op) {
    case OP_SET_NX:
    case OP_SET:
    case OP_LSET:
        return "ok";
    case OP_SET_NX_GET:
    case OP_SET_XX:
    case OP_SET_IFEQ:
    case OP_GETSET:
    case OP_SET_GET:
    case OP_GETDEL:
    case OP_GETEX:
    case OP_HGETDEL:
    case OP_HGETEX:
    case OP_GET:
    case OP_LINDEX:
    case OP_LPOP:
        return "nil";
    default:
        return "int";
    }
}

bool model_may_pass(const struct model_command *c) {
    return c->op == OP_INCRBY || c->op == OP_HSETNX || c->op == OP_HINCRBY || c->op == OP_HDEL;
}

bool model_has_fields(const struct model_command *c) {
    return c->op == OP_HSETEX || c->op == OP_HGETDEL || c->op == OP_HGETEX;
}

bool model_compares(const struct model_command *c) {
    return c->op == OP_DELIFEQ || c->op == OP_DELEX;
}

bool model_names_value(const struct model_command *c) {
    return c->op == OP_DELIFEQ || (c->op == OP_DELEX && c->compare == IF_EQ);
}
