/*
 * A Redis module with the commands of newer servers that the running one lacks, for test_compare.py: a stand-in where
 * Redis 8.4 and Valkey 9 cannot be had. Commands that the server has stay the server's. It says itself what it needs of
 * the module interface, as module.c does.
 *
 *      DELIFEQ key value                                    Valkey 9
 *      DELEX key [IFEQ|IFNE|IFDEQ|IFDNE value]              Redis 8.4
 *      DIGEST key                                           Redis 8.4, though by another hash function here
 *      SET key value IFEQ|IFNE|IFDEQ|IFDNE value ...        Redis 8.4; Valkey 8.1 has IFEQ
 *      MSETEX n key value ... [NX] [EX s|PX ms]             Redis 8.4, Valkey 9
 *      HSETEX key [FNX|FXX] [EX s|PX ms] FIELDS n f v ...   Redis 8.0, Valkey 9; here the fields do not expire
 *      HGETEX key [EX s|PX ms] FIELDS n f ...
 *      HGETDEL key FIELDS n f ...
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/integration/module_api.h"

struct filter;
struct filter_ctx;

enum { REPLY_STRING = 0, REPLY_ERROR = 1, WORDS_MAX = 64 };

static int (*reply_null)(struct ctx *ctx);
static int (*reply_buffer)(struct ctx *ctx, const char *text, size_t len);
static int (*reply_type)(struct reply *reply);
static const char *(*reply_text)(struct reply *reply, size_t *len);
static struct string *(*make_string)(struct ctx *ctx, const char *text, size_t len);
static struct filter *(*add_filter)(struct ctx *ctx, void (*run)(struct filter_ctx *f), int flags);
static int (*filter_count)(struct filter_ctx *f);
static struct string *(*filter_at)(struct filter_ctx *f, int at);
static int (*filter_replace)(struct filter_ctx *f, int at, struct string *word);

static const struct api_function FUNCTIONS[] = {
    API_FUNCTIONS,
    {"RedisModule_ReplyWithNull", &reply_null},
    {"RedisModule_ReplyWithStringBuffer", &reply_buffer},
    {"RedisModule_CallReplyType", &reply_type},
    {"RedisModule_CallReplyStringPtr", &reply_text},
    {"RedisModule_CreateString", &make_string},
    {"RedisModule_RegisterCommandFilter", &add_filter},
    {"RedisModule_CommandFilterArgsCount", &filter_count},
    {"RedisModule_CommandFilterArgGet", &filter_at},
    {"RedisModule_CommandFilterArgReplace", &filter_replace},
};

static int knows_ifeq, knows_all;

static int is(const struct string *s, const char *word) {
    size_t len;
    const char *text = string_text(s, &len);
    return len == strlen(word) && strncasecmp(text, word, len) == 0;
}

static long long number(const struct string *s) {
    size_t len;
    return atoll(string_text(s, &len));
}

static int answer(struct ctx *ctx, struct reply *reply) {
    return answer_or(ctx, reply, "ERR syntax error");
}

/* ---- comparing ----------------------------------------------------------------------------------- */

static void digest(const char *text, size_t len, char hex[17]) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    snprintf(hex, 17, "%016llx", (unsigned long long)hash);
}

/* 'e' IFEQ, 'n' IFNE, 'E' IFDEQ, 'N' IFDNE, 0 another word. */
static char condition(const struct string *s) {
    return is(s, "ifeq") ? 'e' : is(s, "ifne") ? 'n' : is(s, "ifdeq") ? 'E' : is(s, "ifdne") ? 'N' : 0;
}

/* Whether the condition holds; -1: an error was answered. `value` NULL: there is no key. */
static int holds(struct ctx *ctx, char how, const struct string *with, struct reply *value) {
    size_t len = 0, with_len;
    char hex[17];
    const char *text = value ? reply_text(value, &len) : NULL, *other = string_text(with, &with_len);
    int equal;
    if (!text)
        return how == 'n' || how == 'N';
    if (how == 'E' || how == 'N') {
        if (with_len != 16) {
            reply_error(ctx, "ERR must be exactly 16 hexadecimal characters");
            return -1;
        }
        digest(text, len, hex);
        equal = strncasecmp(hex, other, 16) == 0;
    } else {
        equal = len == with_len && memcmp(text, other, len) == 0;
    }
    return equal == (how == 'e' || how == 'E');
}

static struct reply *value_of(struct ctx *ctx, struct string *key, int *wrong) {
    struct reply *r = call(ctx, "GET", "s", key);
    *wrong = r && reply_type(r) == REPLY_ERROR;
    if (r && !*wrong && reply_type(r) != REPLY_STRING) {
        free_reply(r);
        return NULL;
    }
    return r;
}

static int delete_if(struct ctx *ctx, struct string *key, char how, const struct string *with, const char *type) {
    int wrong, done;
    struct reply *value = value_of(ctx, key, &wrong);
    if (wrong && type) {
        free_reply(value);
        return reply_error(ctx, type);
    }
    if (wrong)
        return answer(ctx, value);
    if (!value)
        return reply_number(ctx, 0);
    done = how ? holds(ctx, how, with, value) : 1;
    free_reply(value);
    return done < 0 ? 0 : done ? answer(ctx, call(ctx, "DEL", "!s", key)) : reply_number(ctx, 0);
}

static int delifeq(struct ctx *ctx, struct string **argv, int argc) {
    if (argc != 3)
        return reply_error(ctx, "ERR wrong number of arguments for 'delifeq' command");
    return delete_if(ctx, argv[1], 'e', argv[2], NULL);
}

static int delex(struct ctx *ctx, struct string **argv, int argc) {
    if (argc == 2)
        return answer(ctx, call(ctx, "DEL", "!s", argv[1]));
    if (argc != 4)
        return reply_error(ctx, "ERR wrong number of arguments for 'delex' command");
    if (!condition(argv[2]))
        return reply_error(ctx, "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE");
    return delete_if(ctx, argv[1], condition(argv[2]), argv[3],
                     "ERR Key should be of string type if conditions are specified");
}

static int digest_of(struct ctx *ctx, struct string **argv, int argc) {
    int wrong;
    size_t len;
    char hex[17];
    struct reply *value = argc == 2 ? value_of(ctx, argv[1], &wrong) : NULL;
    if (!value)
        return reply_null(ctx);
    if (wrong)
        return answer(ctx, value);
    const char *text = reply_text(value, &len);
    digest(text, len, hex);
    free_reply(value);
    return reply_buffer(ctx, hex, 16);
}

static int set_if(struct ctx *ctx, struct string **argv, int argc) {
    struct string *words[WORDS_MAX], *with = NULL;
    int n = 0, gets = 0, wrong;
    char how = 0;
    for (int i = 1; i < argc && n < WORDS_MAX; i++) {
        if (i > 2 && condition(argv[i]) && i + 1 < argc && !how) {
            how = condition(argv[i]);
            with = argv[++i];
        } else if (i > 2 && is(argv[i], "get")) {
            gets = 1;
        } else if (i > 2 && (is(argv[i], "nx") || is(argv[i], "xx") || condition(argv[i]))) {
            return reply_error(ctx, "ERR syntax error");
        } else {
            words[n++] = argv[i];
        }
    }
    if (!how)
        return reply_error(ctx, "ERR syntax error");
    struct reply *value = value_of(ctx, argv[1], &wrong);
    if (wrong)
        return answer(ctx, value);
    int done = holds(ctx, how, with, value);
    if (done == 1) {
        struct reply *set = call(ctx, "SET", "!v", words, (size_t)n);
        if (!gets || !set || reply_type(set) == REPLY_ERROR) {
            if (value)
                free_reply(value);
            return answer(ctx, set);
        }
        free_reply(set);
    }
    if (done >= 0 && gets && value)
        return answer(ctx, value);
    if (value)
        free_reply(value);
    return done >= 0 ? reply_null(ctx) : 0;
}

/* Gives SET with a condition that the server does not know to set_if. */
static void filter(struct filter_ctx *f) {
    int n = filter_count(f);
    if (n < 5 || !is(filter_at(f, 0), "set"))
        return;
    for (int i = 3; i < n; i++) {
        char how = condition(filter_at(f, i));
        if (how && !(how == 'e' && knows_ifeq)) {
            filter_replace(f, 0, make_string(NULL, "lk.setif", 8));
            return;
        }
    }
}

/* ---- MSETEX, and fields ---------------------------------------------------------------------------- */

static int msetex(struct ctx *ctx, struct string **argv, int argc) {
    int n = argc > 1 ? (int)number(argv[1]) : 0, nx = 0;
    struct string *words[WORDS_MAX];
    int options = 0;
    if (n < 1 || 2 + 2 * n > argc) {
        return asks_for_keys(ctx) ? 0 : reply_error(ctx, "ERR wrong number of arguments for 'msetex' command");
    }
    if (asks_for_keys(ctx)) {
        for (int i = 0; i < n; i++)
            key_at(ctx, 2 + 2 * i);
        return 0;
    }
    for (int i = 2 + 2 * n; i < argc && options + 2 < WORDS_MAX; i++) {
        if (is(argv[i], "nx"))
            nx = 1;
        else
            words[2 + options++] = argv[i];
    }
    for (int i = 0; nx && i < n; i++) {
        struct reply *there = call(ctx, "EXISTS", "s", argv[2 + 2 * i]);
        long long exists = reply_integer(there);
        free_reply(there);
        if (exists)
            return reply_number(ctx, 0);
    }
    for (int i = 0; i < n; i++) {
        words[0] = argv[2 + 2 * i];
        words[1] = argv[3 + 2 * i];
        struct reply *set = call(ctx, "SET", "!v", words, (size_t)(2 + options));
        if (!set || reply_type(set) == REPLY_ERROR)
            return answer(ctx, set);
        free_reply(set);
    }
    return reply_number(ctx, 1);
}

/* The index of the first field; 0: there is none. */
static int fields_at(struct string **argv, int argc) {
    for (int i = 2; i + 2 < argc; i++)
        if (is(argv[i], "fields"))
            return i + 2;
    return 0;
}

static int hsetex(struct ctx *ctx, struct string **argv, int argc) {
    int at = fields_at(argv, argc), fnx = argc > 2 && is(argv[2], "fnx"), fxx = argc > 2 && is(argv[2], "fxx");
    if (!at || (argc - at) % 2)
        return reply_error(ctx, "ERR syntax error");
    for (int i = at; (fnx || fxx) && i < argc; i += 2) {
        struct reply *there = call(ctx, "HEXISTS", "ss", argv[1], argv[i]);
        if (!there || reply_type(there) == REPLY_ERROR)
            return answer(ctx, there);
        long long exists = reply_integer(there);
        free_reply(there);
        if (exists ? fnx : fxx)
            return reply_number(ctx, 0);
    }
    struct reply *set = call(ctx, "HSET", "!sv", argv[1], argv + at, (size_t)(argc - at));
    if (!set || reply_type(set) == REPLY_ERROR)
        return answer(ctx, set);
    free_reply(set);
    return reply_number(ctx, 1);
}

static int hgetex(struct ctx *ctx, struct string **argv, int argc) {
    int at = fields_at(argv, argc);
    return at ? answer(ctx, call(ctx, "HMGET", "sv", argv[1], argv + at, (size_t)(argc - at)))
              : reply_error(ctx, "ERR syntax error");
}

static int hgetdel(struct ctx *ctx, struct string **argv, int argc) {
    int at = fields_at(argv, argc);
    if (!at)
        return reply_error(ctx, "ERR syntax error");
    struct reply *values = call(ctx, "HMGET", "sv", argv[1], argv + at, (size_t)(argc - at));
    if (values && reply_type(values) != REPLY_ERROR)
        free_reply(call(ctx, "HDEL", "!sv", argv[1], argv + at, (size_t)(argc - at)));
    return answer(ctx, values);
}

/* ---- loading --------------------------------------------------------------------------------------- */

/* Whether the server's SET has IFEQ. The key is one that no test has. A cluster's node that starts answers neither way.
 */
static int set_has_ifeq(struct ctx *ctx) {
    struct reply *reply = call(ctx, "SET", "cccc", "lk:none", "v", "IFEQ", "v");
    int known = reply && reply_type(reply) != REPLY_ERROR;
    if (reply)
        free_reply(reply);
    return known;
}

int RedisModule_OnLoad(struct ctx *ctx, struct string **argv, int argc);
int RedisModule_OnLoad(struct ctx *ctx, struct string **argv, int argc) {
    if (!module_begin(ctx, "newest", FUNCTIONS, sizeof(FUNCTIONS) / sizeof(FUNCTIONS[0])))
        return 1;
    /* Each fails where the server has the command, which is right. Then its SET has the conditions, too. */
    knows_ifeq = create(ctx, "delifeq", delifeq, "write fast", 1, 1, 1) != 0 || set_has_ifeq(ctx);
    create(ctx, "delex", delex, "write fast", 1, 1, 1);
    knows_all = create(ctx, "digest", digest_of, "readonly fast", 1, 1, 1) != 0;
    create(ctx, "lk.setif", set_if, "write deny-oom", 1, 1, 1);
    create(ctx, "msetex", msetex, "write deny-oom getkeys-api", 0, 0, 0);
    create(ctx, "hsetex", hsetex, "write deny-oom fast", 1, 1, 1);
    create(ctx, "hgetex", hgetex, "write fast", 1, 1, 1);
    create(ctx, "hgetdel", hgetdel, "write fast", 1, 1, 1);
    if (!knows_all)
        add_filter(ctx, filter, 0);
    return 0;
}
