/*
 * redis.call and redis.pcall: the commands that the scripts use, and those that applications send through them, on the
 * lock key and its guard record. A call of another command ends the program.
 *
 * Numbers become texts and answers become values as Redis has it: an integer is a number, nil is false, a status is a
 * table with `ok`, an error one with `err`.
 */
#include <inttypes.h>
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/slot.h"
#include "proxy/lock/rule.h"
#include "tests/sim/interpreter.h"

/* What commands are for. */
static struct model *model;
static int key_number;
static const char *lock_name, *guard_name;
static char watermark_name[LOCK_GUARD_EXTRA + SLOT_TAG_MAX + 3];

/* Pushes the answer; false: it is an error. */
typedef bool (*command_fn)(lua_State *L, int count);

/* ---- words and answers --------------------------------------------------------------------------- */

static void unknown(lua_State *L, const char *what) {
    const char *name = lua_tostring(L, 1);
    fprintf(stderr, "redis.call: %s: %s\n", name ? name : "", what);
    abort();
}

/* The command's word, of which the first is its name. Borrowed from Lua. */
static const char *word(lua_State *L, int i, size_t *len) {
    const char *text = lua_tolstring(L, i, len);
    if (!text)
        unknown(L, "a word is missing, or is neither text nor number");
    return text;
}

static const char *text_at(lua_State *L, int i) {
    return word(L, i, NULL);
}

static int64_t number_at(lua_State *L, int i) {
    char *end;
    const char *text = text_at(L, i);
    long long n = strtoll(text, &end, 10);
    if (*end || end == text)
        unknown(L, "a word is no number");
    return n;
}

static bool word_is(lua_State *L, int i, const char *name) {
    return strcmp(text_at(L, i), name) == 0;
}

/* Whether the command is for the guard record, and not for the lock. */
static bool guard_at(lua_State *L, int i) {
    const char *name = text_at(L, i);
    if (name != guard_name && name != lock_name) /* Lua has each text once */
        unknown(L, "the key is not one of KEYS");
    return name == guard_name;
}

static bool of_guard(lua_State *L) {
    return guard_at(L, 2);
}

static bool push_number(lua_State *L, int64_t n) {
    lua_pushnumber(L, (lua_Number)n);
    return true;
}

static bool push_nil(lua_State *L) {
    lua_pushboolean(L, 0);
    return true;
}

static bool push_table(lua_State *L, const char *field, const char *text) {
    lua_createtable(L, 0, 1);
    lua_pushstring(L, text);
    lua_setfield(L, -2, field);
    return strcmp(field, "ok") == 0;
}

static bool push_wrong_type(lua_State *L) {
    return push_table(L, "err", "WRONGTYPE Operation against a key holding the wrong kind of value");
}

static bool push_reply(lua_State *L, const struct model_reply *r) {
    switch (r->kind) {
    case REPLY_INT:
        return push_number(L, r->number);
    case REPLY_OK:
        return push_table(L, "ok", "OK");
    case REPLY_NIL:
        return push_nil(L);
    case REPLY_TEXT:
        lua_pushstring(L, r->text);
        return true;
    case REPLY_ERROR:
        break;
    }
    return push_wrong_type(L);
}

static struct model_key *lock_key(void) {
    return &model->keys[key_number];
}

static struct record *guard_record(void) {
    return &model->records[key_number];
}

/* Runs the command on the lock key as an application's. */
static bool native(lua_State *L, const struct model_command *c) {
    if (of_guard(L))
        unknown(L, "it is none for guard records");
    struct model_reply r = model_native(model, key_number, c);
    return push_reply(L, &r);
}

static struct model_command command_with(lua_State *L, enum model_op op, int value_at) {
    struct model_command c = {.op = op};
    if (value_at)
        snprintf(c.value, sizeof(c.value), "%s", text_at(L, value_at));
    return c;
}

static bool plain(lua_State *L, enum model_op op, int value_at) {
    struct model_command c = command_with(L, op, value_at);
    return native(L, &c);
}

/* ---- any key ------------------------------------------------------------------------------------- */

static bool do_exists(lua_State *L, int count) {
    (void)count;
    return push_number(L, of_guard(L) ? record_exists(guard_record()) : lock_key()->exists);
}

static bool do_type(lua_State *L, int count) {
    (void)count;
    const struct model_key *k = lock_key();
    bool guard = of_guard(L), there = guard ? record_exists(guard_record()) : k->exists;
    bool hash = guard ? !guard_record()->is_text : k->hash;
    return push_table(L, "ok", !there ? "none" : hash ? "hash" : !guard && k->list ? "list" : "string");
}

static bool do_pttl(lua_State *L, int count) {
    (void)count;
    if (!of_guard(L))
        return push_number(L, model_pttl(model, key_number));
    const struct model_guard *g = &lock_key()->guard;
    if (!record_exists(guard_record()))
        return push_number(L, -2);
    return push_number(L, g->expire_ms ? g->expire_ms - model->now_ms : -1);
}

static enum model_condition condition_at(lua_State *L, int i, int count) {
    static const char *const NAMES[] = {"", "NX", "XX", "GT", "LT"};
    for (int when = WHEN_NX; i <= count && when <= WHEN_LT; when++)
        if (word_is(L, i, NAMES[when]))
            return (enum model_condition)when;
    if (i <= count)
        unknown(L, "a condition that it does not have");
    return WHEN_ALWAYS;
}

static bool do_pexpire(lua_State *L, int count) {
    struct model_command c = {.op = OP_PEXPIRE, .ms = number_at(L, 3), .when = condition_at(L, 4, count)};
    if (!of_guard(L))
        return native(L, &c);
    struct model_guard *g = &lock_key()->guard;
    int64_t until_ms = model->now_ms + c.ms;
    if (!record_exists(guard_record()) || !model_expires(c.when, g->expire_ms, until_ms))
        return push_number(L, 0);
    if (c.ms <= 0)
        model_guard_clear(model, key_number);
    else
        g->expire_ms = until_ms;
    return push_number(L, 1);
}

static bool do_persist(lua_State *L, int count) {
    (void)count;
    if (!of_guard(L))
        return plain(L, OP_PERSIST, 0);
    struct model_guard *g = &lock_key()->guard;
    bool had = record_exists(guard_record()) && g->expire_ms;
    g->expire_ms = 0;
    return push_number(L, had);
}

static bool do_del(lua_State *L, int count) {
    int64_t gone = 0;
    for (int i = 2; i <= count; i++) {
        if (guard_at(L, i)) {
            gone += record_exists(guard_record());
            model_guard_clear(model, key_number);
        } else {
            gone += model_native(model, key_number, &(struct model_command){.op = OP_DEL}).number;
        }
    }
    return push_number(L, gone);
}

static bool do_time(lua_State *L, int count) {
    (void)count;
    uint64_t us = model_clock_us(model), parts[] = {us / 1000000, us % 1000000};
    lua_createtable(L, 2, 0);
    for (int i = 0; i < 2; i++) {
        interpreter_push_digits(L, (int64_t)parts[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return true;
}

/* ---- strings ------------------------------------------------------------------------------------- */

/* An expiry's two words; one at a time of day is in the past. */
static int64_t expiry_at(lua_State *L, int i) {
    if (!word_is(L, i, "PX") && !word_is(L, i, "PXAT"))
        unknown(L, "an option that it does not have");
    return word_is(L, i, "PX") ? number_at(L, i + 1) : -1;
}

static bool do_get(lua_State *L, int count) {
    (void)count;
    if (!of_guard(L))
        return plain(L, OP_GET, 0);
    const struct record *r = guard_record();
    if (!record_exists(r))
        return push_nil(L);
    if (!r->is_text)
        return push_wrong_type(L);
    lua_pushlstring(L, r->text.data, r->text.len);
    return true;
}

/* MGET of the lock and its guard record: both are read whatever they are, and what is no string counts as missing. */
static bool do_mget(lua_State *L, int count) {
    const struct record *r = guard_record();
    const struct model_key *k = lock_key();
    if (count != 3 || guard_at(L, 2) || !guard_at(L, 3))
        unknown(L, "it is for the lock and its guard record alone");
    lua_createtable(L, 2, 0);
    if (k->exists && !k->list && !k->hash)
        plain(L, OP_GET, 0);
    else
        push_nil(L);
    lua_rawseti(L, -2, 1);
    if (record_exists(r) && r->is_text)
        lua_pushlstring(L, r->text.data, r->text.len);
    else
        push_nil(L);
    lua_rawseti(L, -2, 2);
    return true;
}

static bool do_getset(lua_State *L, int count) {
    (void)count;
    return plain(L, OP_GETSET, 3);
}

static bool do_getdel(lua_State *L, int count) {
    (void)count;
    return plain(L, OP_GETDEL, 0);
}

static bool do_delifeq(lua_State *L, int count) {
    (void)count;
    return plain(L, OP_DELIFEQ, 3);
}

static bool do_delex(lua_State *L, int count) {
    struct model_command c = command_with(L, OP_DELEX, count > 2 ? 4 : 0);
    char digest[MODEL_DIGEST];
    if (count > 2)
        c.compare = word_is(L, 3, "IFEQ") ? IF_EQ : word_is(L, 3, "IFNE") ? IF_NE : IF_DEQ;
    if (c.compare == IF_DEQ && !word_is(L, 3, "IFDEQ"))
        unknown(L, "a condition that it does not have");
    model_digest(lock_key()->value, digest);
    if (c.compare == IF_DEQ && strcmp(digest, c.value) == 0)
        snprintf(c.value, sizeof(c.value), "%s", lock_key()->value);
    return native(L, &c);
}

static bool do_digest(lua_State *L, int count) {
    (void)count;
    char digest[MODEL_DIGEST];
    if (of_guard(L))
        unknown(L, "it is none for guard records");
    if (lock_key()->list || lock_key()->hash)
        return push_wrong_type(L);
    if (!lock_key()->exists)
        return push_nil(L);
    model_digest(lock_key()->value, digest);
    lua_pushstring(L, digest);
    return true;
}

static bool do_msetex(lua_State *L, int count) {
    struct model_command c = command_with(L, OP_MSETEX, 4);
    if (number_at(L, 2) != 1 || guard_at(L, 3) || !word_is(L, 5, "NX"))
        unknown(L, "of one lock, with NX, alone");
    if (count > 5)
        c.ms = expiry_at(L, 6);
    struct model_reply r = model_native(model, key_number, &c);
    return push_reply(L, &r);
}

static bool do_setnx(lua_State *L, int count) {
    (void)count;
    return plain(L, OP_SETNX, 3);
}

static bool do_mset(lua_State *L, int count) {
    if (count != 3)
        unknown(L, "of one key alone");
    return plain(L, OP_MSET, 3);
}

/* A guard record in its short form. */
static bool set_guard(lua_State *L, int count) {
    size_t len;
    const char *text = word(L, 3, &len);
    bool keeps = count == 4 && word_is(L, 4, "KEEPTTL");
    if (!keeps && (count != 5 || !word_is(L, 4, "PX") || number_at(L, 5) <= 0))
        unknown(L, "other options than those of a guard record");
    int64_t expire_ms = keeps ? lock_key()->guard.expire_ms : model->now_ms + number_at(L, 5);
    model_guard_clear(model, key_number);
    record_make_text(guard_record(), text, len);
    lock_key()->guard.expire_ms = expire_ms;
    model->us = model_clock_us(model);
    return push_table(L, "ok", "OK");
}

/* Whether the lock has the value that is the i-th word. */
static bool has_value(lua_State *L, int i) {
    size_t len;
    const char *value = word(L, i, &len);
    const struct model_key *k = lock_key();
    return k->exists && !k->list && !k->hash && strlen(k->value) == len && memcmp(k->value, value, len) == 0;
}

static bool do_set(lua_State *L, int count) {
    struct model_command c = command_with(L, OP_SET, 3);
    const struct model_key *k = lock_key();
    bool nx = false, xx = false, get = false, differs = false;
    if (of_guard(L))
        return set_guard(L, count);
    for (int i = 4; i <= count; i++) {
        if (word_is(L, i, "NX"))
            nx = true;
        else if (word_is(L, i, "XX"))
            xx = true;
        else if (word_is(L, i, "GET"))
            get = true;
        else if (word_is(L, i, "KEEPTTL"))
            c.keepttl = true;
        else if (word_is(L, i, "IFEQ"))
            differs = !has_value(L, ++i);
        else
            c.ms = expiry_at(L, i++);
    }
    if (differs && k->exists && (k->list || k->hash))
        return push_wrong_type(L);
    if (differs)
        return push_nil(L);
    c.op = nx ? (get ? OP_SET_NX_GET : OP_SET_NX) : xx ? OP_SET_XX : get ? OP_SET_GET : OP_SET;
    return native(L, &c);
}

static bool do_getex(lua_State *L, int count) {
    struct model_command c = {.op = OP_GETEX, .ms = count > 2 ? expiry_at(L, 3) : 0};
    return native(L, &c);
}

static bool do_incrby(lua_State *L, int count) {
    (void)count;
    struct model_command c = {.op = OP_INCRBY, .by = number_at(L, 3)};
    const struct model_key *k = lock_key();
    bool text = k->exists && !k->list && !k->hash;
    if (!native(L, &c) && text) {
        lua_pop(L, 1);
        push_table(L, "err", "ERR value is not an integer or out of range");
    }
    return !lua_istable(L, -1);
}

/* ---- hashes -------------------------------------------------------------------------------------- */

/* A field of the lock, or of the guard record; false where there is none. */
static void push_field(lua_State *L, bool guard, int i) {
    size_t len;
    const char *name = word(L, i, &len);
    const struct record_text *t = guard ? record_get(guard_record(), name, len) : NULL;
    int at = guard ? -1 : hash_find(&lock_key()->fields, name);
    if (t)
        lua_pushlstring(L, t->data, t->len);
    else if (at < 0)
        lua_pushboolean(L, 0);
    else if (strcmp(name, HASH_MODE) == 0)
        lua_pushstring(L, "read");
    else
        lua_pushfstring(L, "%d", (int)lock_key()->fields.at[at].count);
}

/* Whether the key is there and no hash. */
static bool no_hash(bool guard) {
    return guard ? guard_record()->is_text : lock_key()->exists && !lock_key()->hash;
}

static bool do_hget(lua_State *L, int count) {
    (void)count;
    bool guard = of_guard(L);
    if (no_hash(guard))
        return push_wrong_type(L);
    push_field(L, guard, 3);
    return true;
}

static bool do_hmget(lua_State *L, int count) {
    bool guard = of_guard(L);
    if (no_hash(guard))
        return push_wrong_type(L);
    lua_createtable(L, count - 2, 0);
    for (int i = 3; i <= count; i++) {
        push_field(L, guard, i);
        lua_rawseti(L, -2, i - 2);
    }
    return true;
}

static bool do_hexists(lua_State *L, int count) {
    (void)count;
    size_t len;
    const char *name = word(L, 3, &len);
    bool guard = of_guard(L);
    if (no_hash(guard))
        return push_wrong_type(L);
    return push_number(L, guard ? record_get(guard_record(), name, len) != NULL : hash_has(&lock_key()->fields, name));
}

static bool do_hset(lua_State *L, int count) {
    int added = 0;
    if (!of_guard(L) || count % 2 != 0)
        unknown(L, "of guard records alone, fields and values");
    if (no_hash(true))
        return push_wrong_type(L);
    for (int i = 3; i < count; i += 2) {
        size_t name_len, len;
        const char *name = word(L, i, &name_len), *value = word(L, i + 1, &len);
        if (strcmp(name, "fence") == 0)
            model->us = model_clock_us(model);
        added += record_set(guard_record(), name, name_len, value, len);
    }
    return push_number(L, added);
}

static bool do_hdel(lua_State *L, int count) {
    size_t len;
    int gone = 0;
    if (!of_guard(L))
        return plain(L, OP_HDEL, 3);
    if (no_hash(true))
        return push_wrong_type(L);
    for (int i = 3; i <= count; i++) {
        const char *name = word(L, i, &len);
        gone += record_remove(guard_record(), name, len);
    }
    if (gone && !record_exists(guard_record()))
        model_guard_clear(model, key_number);
    return push_number(L, gone);
}

static bool do_hincrby(lua_State *L, int count) {
    (void)count;
    size_t len;
    const char *name = word(L, 3, &len);
    if (!of_guard(L)) {
        struct model_command c = command_with(L, OP_HINCRBY, 3);
        c.by = number_at(L, 4);
        return native(L, &c);
    }
    if (no_hash(true))
        return push_wrong_type(L);
    const struct record_text *old = record_get(guard_record(), name, len);
    int64_t n = (old ? strtoll(old->data, NULL, 10) : 0) + number_at(L, 4);
    char text[24];
    record_set(guard_record(), name, len, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, n));
    return push_number(L, n);
}

static bool do_hsetnx(lua_State *L, int count) {
    (void)count;
    return plain(L, OP_HSETNX, 3);
}

/* HSETEX with FNX, HGETDEL, HGETEX: of one field of the lock. What comes behind the expiry is FIELDS 1 and the field.
 */
static struct model_command field_command(lua_State *L, enum model_op op) {
    struct model_command c = {.op = op};
    int i = 3;
    if (op == OP_HSETEX && !word_is(L, i++, "FNX"))
        unknown(L, "it sets fields that are there");
    if (op != OP_HGETDEL && !word_is(L, i, "FIELDS")) {
        c.ms = expiry_at(L, i);
        i += 2;
    }
    if (!word_is(L, i, "FIELDS") || number_at(L, i + 1) != 1)
        unknown(L, "of one field alone");
    snprintf(c.value, sizeof(c.value), "%s", text_at(L, i + 2));
    return c;
}

static bool do_hsetex(lua_State *L, int count) {
    (void)count;
    struct model_command c = field_command(L, OP_HSETEX);
    return native(L, &c);
}

/* The answer on top is that of one field: puts it into an array. */
static bool in_array(lua_State *L, bool done) {
    if (done) {
        lua_createtable(L, 1, 0);
        lua_insert(L, -2);
        lua_rawseti(L, -2, 1);
    }
    return done;
}

static bool do_hgetdel(lua_State *L, int count) {
    (void)count;
    struct model_command c = field_command(L, OP_HGETDEL);
    return in_array(L, native(L, &c));
}

static bool do_hgetex(lua_State *L, int count) {
    (void)count;
    struct model_command c = field_command(L, OP_HGETEX);
    return in_array(L, native(L, &c));
}

static bool do_hpttl(lua_State *L, int count) {
    (void)count;
    if (of_guard(L) || !word_is(L, 3, "FIELDS") || number_at(L, 4) != 1)
        unknown(L, "of one field of a lock alone");
    if (no_hash(false))
        return push_wrong_type(L);
    int i = hash_find(&lock_key()->fields, text_at(L, 5));
    int64_t ends_ms = i < 0 ? 0 : lock_key()->fields.at[i].expire_ms;
    return in_array(L, push_number(L, i < 0 ? -2 : ends_ms ? ends_ms - model->now_ms : -1));
}

static bool do_hlen(lua_State *L, int count) {
    (void)count;
    if (no_hash(of_guard(L)))
        return push_wrong_type(L);
    return push_number(L, of_guard(L) ? guard_record()->count : lock_key()->fields.count);
}

static bool do_hkeys(lua_State *L, int count) {
    (void)count;
    const struct model_fields *h = &lock_key()->fields;
    if (of_guard(L))
        unknown(L, "it is none for guard records");
    if (no_hash(false))
        return push_wrong_type(L);
    lua_createtable(L, (int)h->count, 0);
    for (unsigned i = 0; i < h->count; i++) {
        lua_pushstring(L, h->at[i].name);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return true;
}

/* ---- lists --------------------------------------------------------------------------------------- */

static bool do_rpush(lua_State *L, int count) {
    if (count != 3)
        unknown(L, "of one node alone");
    return plain(L, OP_RPUSH, 3);
}

static bool do_lpush(lua_State *L, int count) {
    if (count != 3)
        unknown(L, "of one node alone");
    return plain(L, OP_LPUSH, 3);
}

static bool do_lindex(lua_State *L, int count) {
    (void)count;
    if (!word_is(L, 3, "0"))
        unknown(L, "of the head alone");
    return plain(L, OP_LINDEX, 0);
}

static bool do_lset(lua_State *L, int count) {
    (void)count;
    if (!word_is(L, 3, "0"))
        unknown(L, "of the head alone");
    return plain(L, OP_LSET, 4);
}

static bool do_lrem(lua_State *L, int count) {
    (void)count;
    if (!word_is(L, 3, "1"))
        unknown(L, "of one node alone");
    return plain(L, OP_LREM, 4);
}

static bool do_lpop(lua_State *L, int count) {
    if (count != 2)
        unknown(L, "of one node alone");
    return plain(L, OP_LPOP, 0);
}

static bool no_list(lua_State *L) {
    if (of_guard(L))
        unknown(L, "it is none for guard records");
    return lock_key()->exists && !lock_key()->list;
}

static bool do_llen(lua_State *L, int count) {
    (void)count;
    return no_list(L) ? push_wrong_type(L) : push_number(L, model->queues[key_number].count);
}

static bool do_lpos(lua_State *L, int count) {
    (void)count;
    const struct model_queue *q = &model->queues[key_number];
    const char *node = text_at(L, 3);
    if (no_list(L))
        return push_wrong_type(L);
    for (unsigned i = 0; i < q->count; i++)
        if (strcmp(q->nodes[i], node) == 0)
            return push_number(L, i);
    return push_nil(L);
}

static bool do_publish(lua_State *L, int count) {
    bool sharded = word_is(L, 1, "SPUBLISH");
    (void)count;
    if (model->publish && !model->publish(model->publish_arg, text_at(L, 2), text_at(L, 3), sharded))
        return push_table(L, "err", "ERR Unknown Redis command called from script");
    return push_number(L, 0);
}

/* ---- data under a lock ---------------------------------------------------------------------------- */

/* The data, or its watermark, that the command is for; NULL: it is for the lock or its guard record. */
static struct model_datum *datum_at(lua_State *L, int count) {
    const char *name = count > 1 ? lua_tostring(L, 2) : NULL;
    bool data = name && strncmp(name, "data:", 5) == 0, mark = name && strncmp(name, "mark:", 5) == 0;
    if (!data && !mark)
        return NULL;
    return data ? &model->data[key_number] : &model->marks[key_number];
}

static bool do_datum(lua_State *L, int count, struct model_datum *d) {
    if (d->expire_ms && d->expire_ms <= model->now_ms)
        *d = (struct model_datum){.exists = false};
    if (word_is(L, 1, "PTTL"))
        return push_number(L, !d->exists ? -2 : d->expire_ms ? d->expire_ms - model->now_ms : -1);
    if (word_is(L, 1, "SET")) {
        *d = (struct model_datum){.exists = true, .expire_ms = count > 3 ? model->now_ms + expiry_at(L, 4) : 0};
        snprintf(d->text, sizeof(d->text), "%s", text_at(L, 3));
        return push_table(L, "ok", "OK");
    }
    if (!word_is(L, 1, "GET"))
        unknown(L, "it is none for data");
    if (!d->exists)
        return push_nil(L);
    lua_pushstring(L, d->text);
    return true;
}

/* ---- the watermark of the slot -------------------------------------------------------------------- */

static bool do_watermark(lua_State *L, int count) {
    int64_t *expiry = &model->watermarks[key_number];
    if (word_is(L, 1, "PTTL"))
        return push_number(L, *expiry ? *expiry - model->now_ms : -2);
    if (word_is(L, 1, "PEXPIRETIME"))
        return push_number(L, *expiry ? *expiry : -2);
    if (!word_is(L, 1, "SET") || count != 5 || !word_is(L, 4, "PXAT"))
        unknown(L, "it is none for watermarks of slots");
    *expiry = number_at(L, 5);
    return push_table(L, "ok", "OK");
}

/* ---- a witness ------------------------------------------------------------------------------------ */

static bool do_info(lua_State *L, int count) {
    (void)count;
    lua_pushfstring(L, "# Server\r\nrun_id:%d\r\n", (int)model->run);
    return true;
}

/* A command on the mark. */
static bool on_mark(lua_State *L, int count, command_fn run) {
    int key = key_number;
    key_number = MODEL_MARK;
    lua_pushstring(L, guard_name);
    lua_replace(L, 2);
    bool done = run(L, count);
    key_number = key;
    return done;
}

static bool do_ping(lua_State *L, int count) {
    (void)count;
    return push_table(L, "ok", "PONG");
}

/* ---- calls --------------------------------------------------------------------------------------- */

static const struct named_command {
    const char *name;
    command_fn run;
} COMMANDS[] = {
    {"EXISTS", do_exists},   {"TYPE", do_type},   {"PTTL", do_pttl},       {"PEXPIRE", do_pexpire},
    {"DEL", do_del},         {"UNLINK", do_del},  {"PERSIST", do_persist}, {"TIME", do_time},
    {"GET", do_get},         {"SET", do_set},     {"SETNX", do_setnx},     {"GETSET", do_getset},
    {"MSET", do_mset},       {"GETEX", do_getex}, {"GETDEL", do_getdel},   {"INCRBY", do_incrby},
    {"DELIFEQ", do_delifeq}, {"HGET", do_hget},   {"HMGET", do_hmget},     {"HEXISTS", do_hexists},
    {"HINCRBY", do_hincrby}, {"HSET", do_hset},   {"HSETNX", do_hsetnx},   {"HDEL", do_hdel},
    {"HLEN", do_hlen},       {"HKEYS", do_hkeys}, {"RPUSH", do_rpush},     {"LPUSH", do_lpush},
    {"LINDEX", do_lindex},   {"LSET", do_lset},   {"LREM", do_lrem},       {"LPOP", do_lpop},
    {"LLEN", do_llen},       {"LPOS", do_lpos},   {"PUBLISH", do_publish}, {"SPUBLISH", do_publish},
    {"MGET", do_mget},       {"PING", do_ping},   {"HSETEX", do_hsetex},   {"HGETDEL", do_hgetdel},
    {"HGETEX", do_hgetex},   {"HPTTL", do_hpttl}, {"DELEX", do_delex},     {"DIGEST", do_digest},
    {"MSETEX", do_msetex},   {"INFO", do_info},
};

/* Redis writes a number with as many digits as tell it from others, 17 at most. */
static void number_to_text(lua_State *L, int i) {
    const lua_Number EXACT = 1e15;
    char text[40];
    lua_Number n = lua_tonumber(L, i);
    if (n > -EXACT && n < EXACT && n == (lua_Number)(int64_t)n)
        interpreter_push_digits(L, (int64_t)n);
    else
        lua_pushlstring(L, text, (size_t)snprintf(text, sizeof(text), "%.17g", n));
    lua_replace(L, i);
}

static void numbers_to_texts(lua_State *L, int count) {
    for (int i = 2; i <= count; i++)
        if (lua_type(L, i) == LUA_TNUMBER)
            number_to_text(L, i);
}

/* Whether this asks for a key that is never there. A node refuses that while the slot moves; here no slot does. */
static bool asks_for_room(lua_State *L, int count) {
    size_t len, guard_len = strlen(guard_name);
    if (count != 2 || !word_is(L, 1, "EXISTS"))
        return false;
    const char *key = word(L, 2, &len);
    return len > guard_len && memcmp(key, guard_name, guard_len) == 0 && strcmp(key + guard_len, ":none") == 0;
}

static bool call(lua_State *L) {
    int count = lua_gettop(L);
    lua_pushvalue(L, 1);
    lua_rawget(L, lua_upvalueindex(1));
    const struct named_command *c = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (count > 1 && lua_type(L, 2) == LUA_TSTRING && strcmp(lua_tostring(L, 2), watermark_name) == 0) {
        numbers_to_texts(L, count);
        return do_watermark(L, count);
    }
    if (!c)
        unknown(L, "there is no such command here");
    numbers_to_texts(L, count);
    if (asks_for_room(L, count))
        return push_number(L, 0);
    if (count > 1 && word_is(L, 2, WITNESS_MARK))
        return on_mark(L, count, c->run);
    struct model_datum *d = datum_at(L, count);
    return d ? do_datum(L, count, d) : c->run(L, count);
}

static int redis_call(lua_State *L) {
    return call(L) ? 1 : lua_error(L);
}

static int redis_pcall(lua_State *L) {
    call(L);
    return 1;
}

void commands_open(lua_State *L) {
    lua_createtable(L, 0, 2);
    lua_createtable(L, 0, sizeof(COMMANDS) / sizeof(COMMANDS[0]));
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        lua_pushlightuserdata(L, (void *)(uintptr_t)&COMMANDS[i]);
        lua_setfield(L, -2, COMMANDS[i].name);
    }
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, redis_call, 1);
    lua_setfield(L, -3, "call");
    lua_pushcclosure(L, redis_pcall, 1);
    lua_setfield(L, -2, "pcall");
}

void commands_begin(struct model *m, int key, const char *lock, const char *guard) {
    model = m;
    key_number = key;
    lock_name = lock;
    guard_name = guard;
    int head = (int)(strlen(guard) - strlen(lock)), tag = (int)strcspn(guard, "{");
    snprintf(watermark_name, sizeof(watermark_name), "%.*s%.*s", head, guard, head - tag - 1, guard + tag);
}
