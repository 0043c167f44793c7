/*
 * A lock command's script in the model: which one, with which words, and what its answer says. The words are those that
 * the proxy makes (arguments.lua; the scripts for the usual states have words of their own).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/interpreter.h"

enum { NOT_ASKED = -3, ELEMENTS = 6, ELEMENTS_OF_REFUSALS = 7 /* of clobber.lua */, ELEMENTS_OF_LISTS = 9 };

static bool is(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/* ---- words --------------------------------------------------------------------------------------- */

/* The next word of the command; NULL: the key. */
static void add(struct model_words *w, const char *word) {
    w->words[w->count++] = word;
}

static void add_number(struct model_words *w, int64_t n) {
    char *text = w->numbers[w->number_count++];
    snprintf(text, sizeof(w->numbers[0]), "%" PRId64, n);
    add(w, text);
}

static void add_expiry(struct model_words *w, int64_t ms) {
    if (ms > 0) {
        add(w, "PX");
        add_number(w, ms);
    } else if (ms < 0) {
        add(w, "PXAT");
        add(w, "1");
    }
}

static void add_set(struct model_words *w, const struct model_command *c) {
    add(w, c->value);
    add_expiry(w, c->ms);
    if (c->keepttl)
        add(w, "KEEPTTL");
    if (c->op == OP_SET_NX || c->op == OP_SET_NX_GET)
        add(w, "NX");
    if (c->op == OP_SET_XX)
        add(w, "XX");
    if (c->op == OP_SET_IFEQ) {
        add(w, "IFEQ");
        add(w, c->value);
    }
    if (c->op == OP_SET_GET || c->op == OP_SET_NX_GET)
        add(w, "GET");
}

/* DELEX's condition. */
static void add_comparison(struct model_words *w, const struct model_command *c) {
    static const char *const WORDS[] = {[IF_EQ] = "IFEQ", [IF_NE] = "IFNE", [IF_DEQ] = "IFDEQ"};
    char *digest = w->numbers[w->number_count++];
    if (c->compare == IF_ANY)
        return;
    add(w, WORDS[c->compare]);
    model_digest(c->value, digest);
    add(w, c->compare == IF_DEQ ? digest : c->value);
}

/* HSETEX, HGETDEL, HGETEX. */
static void add_field(struct model_words *w, const struct model_command *c) {
    if (c->op == OP_HSETEX)
        add(w, "FNX");
    if (c->op != OP_HGETDEL)
        add_expiry(w, c->ms);
    add(w, "FIELDS");
    add(w, "1");
    add(w, c->value);
    if (c->op == OP_HSETEX)
        add(w, is(c->value, HASH_MODE) ? "read" : "1");
}

void model_command_words(const struct model_command *c, struct model_words *w) {
    static const char *const NAMES[] = {
        [OP_SETNX] = "SETNX",     [OP_SET_NX] = "SET",      [OP_SET_NX_GET] = "SET",  [OP_SET] = "SET",
        [OP_SET_XX] = "SET",      [OP_GETSET] = "GETSET",   [OP_SET_GET] = "SET",     [OP_DEL] = "DEL",
        [OP_GETDEL] = "GETDEL",   [OP_PEXPIRE] = "PEXPIRE", [OP_PERSIST] = "PERSIST", [OP_GETEX] = "GETEX",
        [OP_INCRBY] = "INCRBY",   [OP_MSET] = "MSET",       [OP_GET] = "GET",         [OP_RPUSH] = "RPUSH",
        [OP_LPUSH] = "LPUSH",     [OP_LINDEX] = "LINDEX",   [OP_EXISTS] = "EXISTS",   [OP_LREM] = "LREM",
        [OP_LSET] = "LSET",       [OP_LPOP] = "LPOP",       [OP_HSETNX] = "HSETNX",   [OP_HINCRBY] = "HINCRBY",
        [OP_HDEL] = "HDEL",       [OP_DELIFEQ] = "DELIFEQ", [OP_SET_IFEQ] = "SET",    [OP_HSETEX] = "HSETEX",
        [OP_HGETDEL] = "HGETDEL", [OP_HGETEX] = "HGETEX",   [OP_DELEX] = "DELEX",     [OP_MSETEX] = "MSETEX",
        [OP_KINDS] = NULL};
    static const char *const WHEN[] = {NULL, "NX", "XX", "GT", "LT"};
    w->count = w->number_count = 0;
    if (!NAMES[c->op]) /* a script of the application's */
        abort();
    add(w, NAMES[c->op]);
    if (c->op == OP_MSETEX)
        add(w, "1");
    add(w, NULL);
    switch (c->op) {
    case OP_SET_NX:
    case OP_SET_NX_GET:
    case OP_SET:
    case OP_SET_XX:
    case OP_SET_IFEQ:
    case OP_SET_GET:
        add_set(w, c);
        break;
    case OP_PEXPIRE:
        add_number(w, c->ms);
        if (c->when != WHEN_ALWAYS)
            add(w, WHEN[c->when]);
        break;
    case OP_GETEX:
        add_expiry(w, c->ms);
        break;
    case OP_INCRBY:
        add_number(w, c->by);
        break;
    case OP_LINDEX:
        add(w, "0");
        break;
    case OP_LREM:
    case OP_LSET:
        add(w, c->op == OP_LREM ? "1" : "0");
        add(w, c->value);
        break;
    case OP_HSETNX:
        add(w, c->value);
        add(w, is(c->value, HASH_MODE) ? "read" : "1");
        break;
    case OP_HINCRBY:
        add(w, c->value);
        add_number(w, c->by);
        break;
    case OP_HSETEX:
    case OP_HGETDEL:
    case OP_HGETEX:
        add_field(w, c);
        break;
    case OP_DELEX:
        add_comparison(w, c);
        break;
    case OP_MSETEX:
        add(w, c->value);
        add(w, "NX");
        add_expiry(w, c->ms);
        break;
    case OP_SETNX:
    case OP_GETSET:
    case OP_MSET:
    case OP_RPUSH:
    case OP_LPUSH:
    case OP_HDEL:
    case OP_DELIFEQ:
        add(w, c->value);
        break;
    default:
        break;
    }
}

static void pass_on(const struct model_command *c) {
    struct model_words w;
    model_command_words(c, &w);
    for (unsigned i = 0; i < w.count; i++)
        if (w.words[i])
            interpreter_text(w.words[i]);
        else
            interpreter_key();
}

/* Passes what the session has seen, ARGV 8. */
static void pass_seen(const struct model_args *a) {
    char seen[LOCK_SEEN_MAX + 3];
    int len =
        snprintf(seen, sizeof(seen), "%s%s%s", a->data_free ? "*" : "", a->seen ? "=" : "", a->seen ? a->seen : "");
    interpreter_bytes(seen, (size_t)len);
}

static void pass_header(const struct model_args *a, const char *claim, int at, const char *shape) {
    interpreter_text(a->attempt);
    interpreter_text(claim);
    interpreter_text(a->identity);
    interpreter_text(a->proxy);
    interpreter_text(a->right);
    interpreter_number(a->lease_ms);
    interpreter_number((int64_t)a->read_fence);
    pass_seen(a);
    interpreter_number(at);
    interpreter_text(shape);
}

static void pass_number_or_none(int64_t n) {
    if (n)
        interpreter_number(n);
    else
        interpreter_text("");
}

/* Whether the script for the usual states goes first, as in lock_build_attempt and lock_build_usual_release. */
static bool usual_first(enum script_id id, const struct model_args *a) {
    const struct model_command *c = &a->command;
    if (id == SCRIPT_RELEASE)
        return c->op == OP_DEL && a->claim[0] && !is(a->right, "older") && !is(a->right, "spent");
    return id == SCRIPT_ACQUIRE && c->op != OP_SET_NX_GET && c->ms >= 0 && !a->late &&
           !is(a->right, "release_then_acquire");
}

static void pass_to_usual_acquire(const struct model_args *a) {
    const struct model_command *c = &a->command;
    int64_t ends_ms = c->ms ? c->ms : a->lease_ms;
    interpreter_text(a->attempt);
    interpreter_text(a->identity);
    interpreter_text(c->value);
    for (int i = 0; i < 2; i++)
        pass_number_or_none(ends_ms ? ends_ms + i * GUARD_OUTLIVES_MS : 0);
    if (!c->ms || a->waits)
        interpreter_text(!c->ms && a->lease_ms ? "g" : "");
    if (a->waits) {
        interpreter_number(a->here_ms > 0 ? a->here_ms : 0);
        if (a->next_ms < 0)
            interpreter_text("");
        else
            interpreter_number(a->next_ms);
    }
}

/* What tell.lua is told. */
static void pass_told(const struct model_args *a) {
    char told[32];
    int len = snprintf(told, sizeof(told), a->sharded ? "+0" : "=0");
    if (a->here_ms >= 0)
        len += snprintf(told + len, sizeof(told) - (size_t)len, ":%" PRId64, (int64_t)a->here_ms);
    interpreter_bytes(told, (size_t)len);
}

static void pass_to_usual_release(const struct model_args *a) {
    interpreter_text(a->attempt);
    interpreter_text(a->claim);
    if (!a->claim_fence || a->waits)
        interpreter_text(a->claim_fence ? "" : "DEL");
    if (a->waits)
        pass_told(a);
}

static void pass_to_release(const struct model_args *a) {
    interpreter_text(a->attempt);
    interpreter_text(a->claim);
    interpreter_text(a->identity);
    interpreter_text(a->proxy);
    interpreter_text(a->right);
    interpreter_number(a->lease_ms);
    interpreter_number((int64_t)a->read_fence);
    pass_seen(a);
    if (a->waits)
        pass_told(a);
    else
        interpreter_number(0);
    interpreter_text(model_shape(&a->command));
    pass_on(&a->command);
}

/* Of one lock key. */
static void pass_to_clobber(const struct model_args *a) {
    pass_header(a, "1", 0, "int");
    interpreter_text(a->claim);
    interpreter_text(a->right);
    interpreter_text(a->attempt);
    pass_seen(a);
    interpreter_text("");
    interpreter_text("0");
    pass_on(&a->command);
}

static void pass_to_adopt(const struct model_args *a) {
    pass_header(a, a->claim, 0, a->together ? "together" : "nil");
    if (!a->command.composed)
        interpreter_text(a->command.value);
}

enum script_id model_script_id(const struct model_args *a) {
    const struct model_command *c = &a->command;
    if (a->pass && model_may_pass(c))
        return SCRIPT_PASS;
    if (c->op == OP_LPOP)
        return SCRIPT_LIST_POP;
    if (c->op == OP_SET_IFEQ)
        return SCRIPT_SET_IF;
    if (c->op == OP_MSETEX)
        return SCRIPT_CLOBBER;
    if (c->op == OP_HSETNX || c->op == OP_HDEL)
        return SCRIPT_HASH;
    if (model_has_fields(c))
        return SCRIPT_FIELDS;
    switch (model_verb(c)) {
    case LOCK_ACQUIRE:
        return SCRIPT_ACQUIRE;
    case LOCK_REPLACE:
    case LOCK_REWRITE:
        return SCRIPT_REPLACE;
    case LOCK_SWAP:
        return SCRIPT_SWAP;
    case LOCK_RELEASE:
        return SCRIPT_RELEASE;
    case LOCK_EXTEND:
        return SCRIPT_EXTEND;
    case LOCK_COUNT_UP:
    case LOCK_COUNT_DOWN:
        return SCRIPT_COUNT;
    case LOCK_PASS:
        return SCRIPT_PASS;
    case LOCK_CLOBBER:
        return SCRIPT_CLOBBER;
    case LOCK_READ:
        return SCRIPT_READ;
    case LOCK_SCRIPT:
        return SCRIPT_ADOPT;
    case LOCK_QUEUE_PUSH:
        return SCRIPT_LIST_PUSH;
    case LOCK_QUEUE_READ:
        return SCRIPT_LIST_READ;
    case LOCK_QUEUE_REMOVE:
        return SCRIPT_LIST_REMOVE;
    case LOCK_QUEUE_SET:
        return SCRIPT_LIST_SET;
    default:
        abort();
    }
}

static void pass_words(enum script_id id, const struct model_args *a) {
    if (id == SCRIPT_ACQUIRE_USUAL) {
        pass_to_usual_acquire(a);
    } else if (id == SCRIPT_RELEASE_USUAL) {
        pass_to_usual_release(a);
    } else if (id == SCRIPT_ACQUIRE) {
        pass_header(a, a->late ? a->late : a->claim, model_value_at(&a->command), model_shape(&a->command));
        pass_on(&a->command);
    } else if (id == SCRIPT_RELEASE) {
        pass_to_release(a);
    } else if (id == SCRIPT_CLOBBER) {
        pass_to_clobber(a);
    } else if (id == SCRIPT_ADOPT) {
        pass_to_adopt(a);
    } else {
        pass_header(a, a->claim, model_value_at(&a->command), model_shape(&a->command));
        pass_on(&a->command);
    }
}

/* ---- answers ------------------------------------------------------------------------------------- */

static void malformed(const char *what) {
    fprintf(stderr, "a script's answer makes no sense: %s\n", what);
    abort();
}

static void read_flags(unsigned flags, struct model_envelope *e) {
    e->leased = flags & 1;
    e->pooled = flags >> 1 & 1;
    e->same = flags >> 2 & 1;
    e->suspects = flags >> 3 & 3;
    e->elsewhere = flags >> 5 & 1;
    e->shifted_ms = flags >> 6;
}

/* What an attempt that may wait is told behind the fence. Returns the end of the text. */
static char *read_more(char *colon, struct model_envelope *e) {
    char *end = colon;
    if (e->outcome == LOCK_HELD) {
        bool ends = colon[1] && colon[1] != ':';
        e->pttl_ms = ends ? strtoll(colon + 1, &end, 10) : -1;
        end = ends ? end : colon + 1;
    }
    if (*end == ':')
        e->waits_ms = strtoll(end + 1, &end, 10);
    return end;
}

/* The usual outcomes, in short (common.lua). */
static struct model_envelope read_short(const char *text, const struct model_args *a) {
    struct model_envelope e = {.outcome = LOCK_GRANTED};
    bool number = is(model_shape(&a->command), "int");
    int64_t ends_ms = a->command.ms ? a->command.ms : a->lease_ms;
    const char *fence = text;
    e.pttl_ms = ends_ms > 0 ? ends_ms : -1;
    if (*text == 'r') {
        e.outcome = LOCK_RELEASED;
        e.pttl_ms = -2;
        fence++;
    } else if (*text == 'h') {
        e.outcome = LOCK_HELD;
        e.pttl_ms = NOT_ASKED;
        read_flags((unsigned char)text[1] - '0', &e);
        fence += 2;
    } else {
        e.leased = *text == 'g';
        e.short_record = a->late;
        fence += e.leased;
    }
    char *end;
    e.fence = strtoull(fence, &end, 10);
    if (*end == ':' && a->waits)
        end = read_more(end, &e);
    if (*end || (end == fence && e.outcome != LOCK_RELEASED))
        malformed(text);
    if (end == fence)
        e.fence = a->claim_fence;
    bool held = e.outcome == LOCK_HELD;
    e.reply = (struct model_reply){.kind = number ? REPLY_INT : held ? REPLY_NIL : REPLY_OK, .number = number && !held};
    return e;
}

/* What Redis makes of the value on top of the stack. */
static struct model_reply read_reply(lua_State *L) {
    struct model_reply r = {.kind = REPLY_NIL};
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        r.kind = REPLY_INT;
        r.number = (int64_t)lua_tonumber(L, -1);
        return r;
    case LUA_TSTRING:
        r.kind = REPLY_TEXT;
        snprintf(r.text, sizeof(r.text), "%s", lua_tostring(L, -1));
        return r;
    case LUA_TBOOLEAN:
        if (lua_toboolean(L, -1))
            malformed("true");
        return r;
    case LUA_TTABLE:
        break;
    default:
        malformed(lua_typename(L, lua_type(L, -1)));
    }
    lua_getfield(L, -1, "err");
    r.kind = lua_isnil(L, -1) ? REPLY_OK : REPLY_ERROR;
    lua_pop(L, 1);
    return r;
}

static int64_t number_element(lua_State *L, int i) {
    lua_rawgeti(L, -1, i);
    if (lua_type(L, -1) != LUA_TNUMBER)
        malformed("an element is no number");
    int64_t n = (int64_t)lua_tonumber(L, -1);
    lua_pop(L, 1);
    return n;
}

static void text_element(lua_State *L, int i, char *out, size_t size) {
    lua_rawgeti(L, -1, i);
    if (lua_type(L, -1) != LUA_TSTRING)
        malformed("an element is no text");
    snprintf(out, size, "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
}

static struct model_envelope read_envelope(lua_State *L) {
    struct model_envelope e = {.reply = {.kind = REPLY_NIL}};
    char outcome[16];
    size_t elements = lua_objlen(L, -1);
    if (elements != ELEMENTS && elements != ELEMENTS_OF_REFUSALS && elements != ELEMENTS_OF_LISTS)
        malformed("so many elements");
    lua_rawgeti(L, -1, 1);
    if (lua_istable(L, -1) && lua_objlen(L, -1) == 1) { /* an array of one content of a field */
        lua_rawgeti(L, -1, 1);
        lua_remove(L, -2);
    }
    e.reply = read_reply(L);
    lua_pop(L, 1);
    text_element(L, 2, outcome, sizeof(outcome));
    if (!lock_outcome_parse(outcome, strlen(outcome), &e.outcome))
        malformed(outcome);
    e.fence = (uint64_t)number_element(L, 3);
    e.pttl_ms = number_element(L, 4);
    text_element(L, 5, e.owner, sizeof(e.owner));
    read_flags((unsigned)number_element(L, 6), &e);
    if (elements == ELEMENTS_OF_LISTS) {
        e.queue = true;
        e.lost = (unsigned)number_element(L, 7);
        text_element(L, 9, e.granted, sizeof(e.granted));
    }
    return e;
}

static struct model_envelope answer_of(lua_State *L, struct model *m, int key, const struct model_args *a) {
    struct model_envelope e = {.reply = {.kind = REPLY_ERROR}, .outcome = LOCK_ERROR, .pttl_ms = NOT_ASKED};
    if (L && lua_type(L, -1) == LUA_TSTRING && a)
        e = read_short(lua_tostring(L, -1), a);
    else if (L && lua_istable(L, -1))
        e = read_envelope(L);
    else if (L)
        malformed(lua_typename(L, lua_type(L, -1)));
    model_guard_read(m, key);
    return e;
}

static struct model_envelope run(struct model *m, int key, enum script_id id, const struct model_args *a) {
    return answer_of(interpreter_run(id), m, key, a);
}

/* ---- calls --------------------------------------------------------------------------------------- */

struct model_envelope model_script(struct model *m, int key, const struct model_args *a) {
    enum script_id id = model_script_id(a);
    model_expire(m, key);
    if (usual_first(id, a)) {
        enum script_id usual = id == SCRIPT_RELEASE ? SCRIPT_RELEASE_USUAL : SCRIPT_ACQUIRE_USUAL;
        interpreter_begin(m, key);
        pass_words(usual, a);
        lua_State *L = interpreter_run(usual);
        if (!L || lua_type(L, -1) != LUA_TNUMBER) /* 0: it has done nothing */
            return answer_of(L, m, key, a);
    }
    interpreter_begin(m, key);
    pass_words(id, a);
    return run(m, key, id, a);
}

void model_before(struct model *m, int key, const char *attempt) {
    model_expire(m, key);
    interpreter_begin(m, key);
    interpreter_text(attempt);
    interpreter_run(SCRIPT_ADOPT);
    model_guard_read(m, key);
}

bool model_run_free(struct model *m, int key, const char *claim) {
    bool with_others = claim[0] && claim[strlen(claim) - 2] % 2; /* any half of the claims */
    model_expire(m, key);
    interpreter_begin(m, key);
    interpreter_text(claim);
    lua_State *L = interpreter_run(with_others ? SCRIPT_FREE_ALL : SCRIPT_FREE);
    const char *answer = L ? lua_tostring(L, -1) : "0"; /* an error, too, has done nothing */
    bool released = answer && *answer == 'r';
    if (!released && (!answer || strcmp(answer, "0") != 0))
        malformed("free.lua");
    model_guard_read(m, key);
    return released;
}

/* Sends the claim to renew_all.lua, alone. Returns its digit. */
static char renew_with_others(struct model *m, int key, const char *claim, int64_t lease_ms) {
    interpreter_begin(m, key);
    interpreter_number(lease_ms);
    interpreter_number(lease_ms + GUARD_OUTLIVES_MS);
    interpreter_text(claim);
    lua_State *L = interpreter_run(SCRIPT_RENEW_ALL);
    if (L && (lua_type(L, -1) != LUA_TSTRING || strlen(lua_tostring(L, -1)) != 1))
        malformed("renew_all.lua");
    char answer = '0';
    if (L)
        answer = *lua_tostring(L, -1);
    model_guard_read(m, key);
    return answer;
}

struct model_envelope model_renew(struct model *m, int key, const char *claim, const char *right, int64_t lease_ms,
                                  int64_t left_ms) {
    char proxy[MODEL_TOKEN];
    snprintf(proxy, sizeof(proxy), "%.*s", (int)strcspn(claim, ":"), claim); /* a token begins with its proxy's name */
    struct model_args a = {.attempt = claim,
                           .identity = "",
                           .proxy = proxy,
                           .right = right,
                           .lease_ms = lease_ms,
                           .read_fence = (uint64_t)left_ms};
    model_expire(m, key);
    char answer = strcmp(right, "claim") == 0 ? renew_with_others(m, key, claim, lease_ms) : '0';
    if (answer != '0')
        return (struct model_envelope){
            .outcome = LOCK_DONE, .pttl_ms = lease_ms, .leased = true, .short_record = answer == '2'};
    interpreter_begin(m, key);
    pass_header(&a, claim, 0, "int");
    return run(m, key, SCRIPT_RENEW, NULL);
}

void model_queue_leave(struct model *m, int key, const char *party, const char *right, bool waits, int64_t lease_ms) {
    struct model_args a = {.attempt = "",
                           .identity = "",
                           .proxy = "",
                           .right = right,
                           .lease_ms = lease_ms,
                           .read_fence = waits,
                           .seen = party};
    model_expire(m, key);
    interpreter_begin(m, key);
    pass_header(&a, "", 0, "int");
    run(m, key, SCRIPT_LIST_LEAVE, NULL);
}
