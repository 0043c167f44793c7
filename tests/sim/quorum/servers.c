/*
 * The servers: Redis, which fails over to an older state, and witnesses. They read requests as bytes, and run the
 * scripts of scripts/lua/ in the interpreter.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "tests/sim/quorum/quorum_world.h"

static bool word_is(const struct resp_request *r, const char *bytes, size_t i, const char *text) {
    size_t len;
    const char *word = request_arg(r, bytes, i, &len);
    return len == strlen(text) && memcmp(word, text, len) == 0;
}

static int64_t number_at(const struct resp_request *r, const char *bytes, size_t i) {
    char text[32];
    return strtoll(request_arg_text(r, bytes, i, text, sizeof(text)), NULL, 10);
}

/* ---- answers --------------------------------------------------------------------------------------- */

static void bulk(struct text *out, const char *data, size_t len) {
    text_printf(out, "$%zu\r\n", len);
    text_append(out, data, len);
    text_append(out, "\r\n", 2);
}

/* Writes the value on top of the stack as Redis does. */
static void encode(lua_State *L, struct text *out) {
    size_t len;
    const char *text;
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        text_printf(out, ":%" PRId64 "\r\n", (int64_t)lua_tonumber(L, -1));
        return;
    case LUA_TSTRING:
        text = lua_tolstring(L, -1, &len);
        bulk(out, text, len);
        return;
    case LUA_TTABLE:
        break;
    default:
        text_printf(out, "$-1\r\n");
        return;
    }
    lua_getfield(L, -1, "err");
    lua_getfield(L, -2, "ok");
    bool failed = !lua_isnil(L, -2), done = !lua_isnil(L, -1);
    if (failed || done)
        text_printf(out, "%c%s\r\n", failed ? '-' : '+', lua_tostring(L, failed ? -2 : -1));
    lua_pop(L, 2);
    if (failed || done)
        return;
    int count = (int)lua_objlen(L, -1);
    text_printf(out, "*%d\r\n", count);
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, -1, i);
        encode(L, out);
        lua_pop(L, 1);
    }
}

static void answer_with(lua_State *L, struct text *out) {
    if (L)
        encode(L, out);
    else
        text_printf(out, "-ERR the script has failed\r\n");
}

/* ---- Redis ----------------------------------------------------------------------------------------- */

/* Broken: what has lapsed counts as released. */
static void lapse(struct model *m, int key) {
    const struct record_text *token = record_get(&m->records[key], "token", 5);
    if (!m->keys[key].exists && token && token->len > 0)
        record_set(&m->records[key], "over", 4, token->data, token->len);
}

/* Runs a script on one lock. */
static lua_State *run_script(struct world *w, struct model *m, enum script_id id, int key, const struct resp_request *r,
                             const char *bytes) {
    bool acquires = id == SCRIPT_ACQUIRE || id == SCRIPT_ACQUIRE_USUAL;
    if (acquires && w->broken == Q_LAPSED_IS_RELEASED)
        lapse(m, key);
    interpreter_begin(m, key);
    for (size_t i = 5; i < r->argc; i++) {
        size_t len;
        const char *arg = request_arg(r, bytes, i, &len);
        interpreter_bytes(arg, len);
    }
    lua_State *L = interpreter_run(id);
    model_guard_read(m, key);
    w->totals.raised += id == SCRIPT_RAISE_FENCE;
    return L;
}

static int key_at(const struct resp_request *r, const char *bytes, size_t i) {
    size_t len;
    const char *name = request_arg(r, bytes, i, &len);
    return name[len - 1] - '0';
}

/* renew_all.lua on several locks: as on each of them, one after another. */
static void renew_all(struct model *m, const struct resp_request *r, const char *bytes, struct text *out) {
    int64_t keys = number_at(r, bytes, 2);
    char digits[Q_KEYS + 1] = "";
    for (int64_t i = 0; i < keys / 2; i++) {
        int key = key_at(r, bytes, (size_t)(3 + 2 * i));
        interpreter_begin(m, key);
        interpreter_number(number_at(r, bytes, (size_t)(3 + keys)));
        interpreter_number(number_at(r, bytes, (size_t)(4 + keys)));
        size_t len;
        const char *token = request_arg(r, bytes, (size_t)(5 + keys + i), &len);
        interpreter_bytes(token, len);
        lua_State *L = interpreter_run(SCRIPT_RENEW_ALL);
        digits[i] = L ? *lua_tostring(L, -1) : '0';
        model_guard_read(m, key);
    }
    bulk(out, digits, (size_t)keys / 2);
}

/* HMGET of a guard record's fields. */
static void read_fields(struct model *m, const struct resp_request *r, const char *bytes, struct text *out) {
    const struct record *record = &m->records[key_at(r, bytes, 1)];
    text_printf(out, "*%zu\r\n", r->argc - 2);
    for (size_t i = 2; i < r->argc; i++) {
        size_t len;
        const char *name = request_arg(r, bytes, i, &len);
        const struct record_text *t = record->is_text ? NULL : record_get(record, name, len);
        if (t)
            bulk(out, t->data, t->len);
        else
            text_printf(out, "$-1\r\n");
    }
}

/* The list of leases that were left. */
static bool run_list(struct q_data *d, const struct resp_request *r, const char *bytes, struct text *out) {
    size_t len = 0, found = 0;
    const char *entry = r->argc > 2 ? request_arg(r, bytes, r->argc - 1, &len) : NULL;
    bool add = word_is(r, bytes, 0, "ZADD"), remove = word_is(r, bytes, 0, "ZREM");
    struct text entries = {0};
    if (!add && !remove && !word_is(r, bytes, 0, "ZRANGEBYSCORE"))
        return false;
    for (size_t i = 0; i < Q_LEFT; i++) {
        bool same = d->left_len[i] == len && memcmp(d->left[i], entry, len) == 0;
        if (remove && same)
            d->left_len[i] = 0;
        if (add && found == 0 && (d->left_len[i] == 0 || d->left_score[i] < d->model.now_ms) && len <= Q_LEFT_BYTES) {
            memcpy(d->left[i], entry, len);
            d->left_len[i] = len;
            d->left_score[i] = number_at(r, bytes, 2);
            found++;
        }
        if (!add && !remove && d->left_len[i] > 0 && d->left_score[i] >= number_at(r, bytes, 2)) {
            bulk(&entries, d->left[i], d->left_len[i]);
            found++;
        }
    }
    if (add || remove)
        text_printf(out, ":1\r\n");
    else
        text_printf(out, "*%zu\r\n%s", found, "");
    text_append(out, entries.data, entries.len);
    text_clear(&entries);
    return true;
}

static enum script_id script_of(const struct resp_request *r, const char *bytes) {
    for (int id = 0; id < SCRIPT_TOTAL; id++)
        if (word_is(r, bytes, 1, script_get((enum script_id)id)->sha1))
            return (enum script_id)id;
    return SCRIPT_TOTAL;
}

static void redis_run(struct world *w, struct q_data *d, const struct resp_request *r, const char *bytes,
                      struct text *out) {
    struct model *m = &d->model;
    if (word_is(r, bytes, 0, "EVALSHA")) {
        enum script_id id = script_of(r, bytes);
        if (id == SCRIPT_RENEW_ALL)
            renew_all(m, r, bytes, out);
        else
            answer_with(run_script(w, m, id, key_at(r, bytes, 3), r, bytes), out);
    } else if (word_is(r, bytes, 0, "HMGET")) {
        read_fields(m, r, bytes, out);
    } else if (word_is(r, bytes, 0, "PEXPIRE")) {
        text_printf(out, ":1\r\n"); /* of the list of leases that were left, which is kept */
    } else if (word_is(r, bytes, 0, "XREVRANGE")) {
        text_printf(out, "*0\r\n"); /* no proxy tells the others what it has learnt of its clients */
    } else if (!run_list(d, r, bytes, out)) {
        fprintf(stderr, "Redis is sent what it does not know: %.60s\n", bytes);
        abort();
    }
}

/* ---- a witness ------------------------------------------------------------------------------------- */

static void witness_run(struct world *w, struct model *m, const struct resp_request *r, const char *bytes,
                        struct text *out) {
    enum script_id id = script_of(r, bytes);
    size_t len, over_len = 0;
    const char *name = request_arg(r, bytes, 3, &len), *over = "";
    bool probe = name[len - 1] == ':', takes = id == SCRIPT_WITNESS_TAKE && !probe;
    int key = probe ? (int)Q_KEYS : name[len - 1] - '0'; /* a probe's lock has no name */
    interpreter_begin_witness(m, key);
    for (size_t i = 5; i < r->argc; i++) {
        const char *arg = request_arg(r, bytes, i, &len);
        bool quarantine = id == SCRIPT_WITNESS_TAKE && i == 9;
        if (i == 7) {
            over = arg;
            over_len = len;
        }
        if (quarantine && w->broken == Q_NO_QUARANTINE)
            interpreter_number(0);
        else
            interpreter_bytes(arg, len);
    }
    size_t before = out->len;
    answer_with(interpreter_run(id), out);
    model_guard_read(m, key);
    bool granted = takes && out->len > before + 4 && memcmp(out->data + before + 4, "ok", 2) == 0;
    w->totals.given_up += granted && over_len > 0 && *over != '=';
    w->totals.moved += granted && over_len > 0 && *over == '=';
    w->totals.quarantined += takes && memmem(out->data + before, out->len - before, "quarantine", 10) != NULL;
}

static void request_read(struct resp_request *r, const struct text *bytes) {
    struct resp_limits limits = {.bulk_max = INT64_MAX};
    resp_request_init(r);
    if (resp_request_scan(r, bytes->data, bytes->len, &limits) != RESP_OK)
        abort();
}

bool server_released_by_name(const struct text *request) {
    enum { RIGHT_AT = 9 };
    struct resp_request r;
    request_read(&r, request);
    bool by_name = r.argc > RIGHT_AT && script_of(&r, request->data) == SCRIPT_RELEASE &&
                   !word_is(&r, request->data, RIGHT_AT, lock_right_text(RIGHT_CLAIM));
    resp_request_clear(&r);
    return by_name;
}

/* Notes a script and its answer in the trace. */
static void tell(struct world *w, unsigned server, const struct resp_request *r, const char *bytes,
                 const struct text *answer) {
    enum { SHOWN = 400 };
    char words[SHOWN] = "", said[SHOWN];
    size_t at = 0;
    if (!w->tell || script_of(r, bytes) == SCRIPT_TOTAL)
        return;
    for (size_t i = 3; i < r->argc && at < SHOWN - 100; i++) {
        size_t len;
        const char *word = request_arg(r, bytes, i, &len);
        if (i != 4)
            at += (size_t)snprintf(words + at, SHOWN - at, " %.*s", (int)(len < 60 ? len : 60), word);
    }
    snprintf(said, sizeof(said), "%.*s", (int)answer->len, answer->data);
    for (char *c = said; *c; c++)
        *c = *c == '\r' || *c == '\n' ? ' ' : *c;
    world_event(w, "server %u: %s%s -> %s", server, script_get(script_of(r, bytes))->name, words, said);
}

/* ---- all servers ----------------------------------------------------------------------------------- */

void server_run(struct world *w, unsigned server, const struct text *request, struct text *answer) {
    struct q_server *s = &w->servers[server];
    struct resp_request r;
    request_read(&r, request);
    s->data.model.now_ms = q_clock_at(&s->clock, w->now_ms);
    for (int key = 0; key < Q_KEYS; key++)
        model_expire(&s->data.model, key);
    if (server < Q_REDISES)
        redis_run(w, &s->data, &r, request->data, answer);
    else
        witness_run(w, &s->data.model, &r, request->data, answer);
    tell(w, server, &r, request->data, answer);
    resp_request_clear(&r);
}

/* ---- what is forgotten ----------------------------------------------------------------------------- */

static void data_copy(struct q_data *to, const struct q_data *from) {
    struct record records[MODEL_KEYS];
    memcpy(records, to->model.records, sizeof(records));
    *to = *from;
    memcpy(to->model.records, records, sizeof(records));
    for (int key = 0; key < MODEL_KEYS; key++) {
        const struct record *r = &from->model.records[key];
        record_clear(&to->model.records[key]);
        for (unsigned i = 0; i < r->count; i++)
            record_set(&to->model.records[key], r->fields[i].name.data, r->fields[i].name.len, r->fields[i].value.data,
                       r->fields[i].value.len);
    }
}

static void data_clear(struct q_data *d) {
    model_reset(&d->model);
    memset(d->left_len, 0, sizeof(d->left_len));
}

void server_follow(struct world *w, unsigned replica) {
    data_copy(&w->replicas[replica], &w->servers[w->master].data);
}

void server_fail_over(struct world *w, bool empty, const struct q_proxy *left) {
    w->totals.failovers++;
    if (empty) {
        world_event(w, "Redis comes back empty");
        data_clear(&w->servers[w->master].data);
        return;
    }
    unsigned replica = world_below(w, Q_REPLICAS), next = 1 - w->master;
    bool split = left || world_chance(w, 40);
    world_event(w, "Redis fails over%s", split ? ", and not all proxies see it yet" : "");
    data_copy(&w->servers[next].data, &w->replicas[replica]);
    w->master = next;
    w->totals.splits += split;
    for (unsigned i = 0; i < Q_PROXIES; i++)
        if (w->proxies[i].runs && (left ? &w->proxies[i] != left : !(split && world_chance(w, 60))))
            wires_reset(&w->proxies[i].redis, false);
    for (unsigned i = 0; i < Q_REPLICAS; i++)
        if (!split || world_chance(w, 50))
            server_follow(w, i);
}

bool witness_votes(struct world *w, unsigned witness) {
    const struct q_server *s = &w->servers[Q_REDISES + witness];
    const struct record *mark = &s->data.model.records[MODEL_MARK];
    const struct record_text *run = record_get(mark, "run", 3), *since = record_get(mark, "since", 5);
    int64_t now_ms = q_clock_at(&s->clock, w->now_ms);
    return run && since && strtol(run->data, NULL, 10) == (long)s->data.model.run &&
           strtoll(since->data, NULL, 10) + w->quarantine_ms <= now_ms;
}

bool witness_restart(struct world *w, unsigned witness, bool forgets) {
    struct q_server *s = &w->servers[Q_REDISES + witness];
    for (unsigned i = 0; i < Q_WITNESSES; i++)
        if (i != witness && !witness_votes(w, i))
            return false;
    world_event(w, "witness %u is started again%s", witness, forgets ? ", empty" : "");
    unsigned run = s->data.model.run + 1;
    if (forgets)
        data_clear(&s->data);
    s->data.model.run = run;
    s->stopped_until_ms = w->now_ms + world_below(w, 2000);
    for (unsigned i = 0; i < Q_PROXIES; i++)
        for (unsigned k = 0; k < w->proxies[i].witness_count; k++)
            if (w->proxies[i].runs && w->proxies[i].witnesses[k].server == Q_REDISES + witness)
                wires_reset(&w->proxies[i].witnesses[k], false);
    w->totals.forgot += forgets;
    w->totals.restarts += !forgets;
    return true;
}

/* ---- beginning and end ----------------------------------------------------------------------------- */

static void trust(struct q_server *s) {
    struct record *mark = &s->data.model.records[MODEL_MARK];
    record_set(mark, "run", 3, "0", 1);
    record_set(mark, "since", 5, "0", 1);
    model_guard_read(&s->data.model, MODEL_MARK);
}

void servers_open(struct world *w) {
    for (unsigned i = 0; i < Q_SERVERS; i++) {
        struct q_server *s = &w->servers[i];
        s->clock = q_clock_new(w);
        if (i >= Q_REDISES)
            trust(s);
    }
}

void servers_close(struct world *w) {
    for (unsigned i = 0; i < Q_SERVERS; i++)
        model_free(&w->servers[i].data.model);
    for (unsigned i = 0; i < Q_REPLICAS; i++)
        model_free(&w->replicas[i].model);
}
