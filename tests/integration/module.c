/*
 * A Redis module with commands that no table has, for test_modules.py. It says itself what it needs of Redis's module
 * interface, so that nothing has to be installed: functions are looked up by name, and the structures below are those
 * of Redis 7.
 *
 *      lk.put key value             lk.get word key            keys by first, last, step
 *      lk.many count key ... word                              keys by a specification; the sum of their lengths
 *      lk.late words word ... key                              a key that only the module can find
 *      lk.box put key value                                    a subcommand with a key
 *      lk.wait key ms                                          blocks
 *      lk.masters                                              for all masters, added up
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/integration/module_api.h"

struct call_command;

/* ---- what Redis 7 offers ----------------------------------------------------------------------- */

struct info_version {
    int version;
    size_t history_size, spec_size, arg_size;
};

struct spec {
    const char *notes;
    uint64_t flags;
    int begin;
    union {
        int index;
        struct {
            const char *keyword;
            int from;
        } keyword;
    } begin_at;
    int find;
    struct {
        int number_at, first, step;
    } keynum;
};

struct info {
    const struct info_version *version;
    const char *summary, *complexity, *since;
    void *history;
    const char *tips;
    int arity;
    struct spec *specs;
    void *args;
};

enum { BEGIN_INDEX = 2, FIND_KEYNUM = 3, KEY_RO = 1, KEY_ACCESS = 16, HISTORY_SIZE = 16, ARG_SIZE = 72 };

static struct call_command *(*get_command)(struct ctx *ctx, const char *name);
static int (*create_sub)(struct call_command *parent, const char *name, command_fn *run, const char *flags, int first,
                         int last, int step);
static int (*set_info)(struct call_command *command, const struct info *info);
static int (*reply_simple)(struct ctx *ctx, const char *text);
static void *(*block)(struct ctx *ctx, command_fn *reply, command_fn *timeout,
                      void (*free_data)(struct ctx *ctx, void *data), long long ms);

static const struct api_function FUNCTIONS[] = {
    API_FUNCTIONS,
    {"RedisModule_GetCommand", &get_command},
    {"RedisModule_CreateSubcommand", &create_sub},
    {"RedisModule_SetCommandInfo", &set_info},
    {"RedisModule_ReplyWithSimpleString", &reply_simple},
    {"RedisModule_BlockClient", &block},
};

/* ---- the commands -------------------------------------------------------------------------------- */

static int answer(struct ctx *ctx, struct reply *reply) {
    return answer_or(ctx, reply, "ERR the call failed");
}

static int put(struct ctx *ctx, struct string **argv, int argc) {
    return argc == 3 ? answer(ctx, call(ctx, "SET", "ss", argv[1], argv[2])) : reply_error(ctx, "ERR lk.put key value");
}

static int get(struct ctx *ctx, struct string **argv, int argc) {
    return argc == 3 ? answer(ctx, call(ctx, "GET", "s", argv[2])) : reply_error(ctx, "ERR lk.get word key");
}

static int many(struct ctx *ctx, struct string **argv, int argc) {
    long long sum = 0;
    for (int i = 2; i < argc - 1; i++) {
        struct reply *reply = call(ctx, "STRLEN", "s", argv[i]);
        sum += reply ? reply_integer(reply) : 0;
        if (reply)
            free_reply(reply);
    }
    return reply_number(ctx, sum);
}

static int late(struct ctx *ctx, struct string **argv, int argc) {
    size_t len;
    int at = argc > 2 ? 2 + atoi(string_text(argv[1], &len)) : 0;
    if (asks_for_keys(ctx)) {
        if (at > 0 && at < argc)
            key_at(ctx, at);
        return 0;
    }
    return at > 0 && at < argc ? answer(ctx, call(ctx, "GET", "s", argv[at])) : reply_error(ctx, "ERR no key");
}

static int box(struct ctx *ctx, struct string **argv, int argc) {
    return argc == 4 ? answer(ctx, call(ctx, "SET", "ss", argv[2], argv[3])) : reply_error(ctx, "ERR lk.box put k v");
}

static int waited(struct ctx *ctx, struct string **argv, int argc) {
    return reply_simple(ctx, "WAITED");
}

static int wait_for(struct ctx *ctx, struct string **argv, int argc) {
    size_t len;
    if (argc != 3)
        return reply_error(ctx, "ERR lk.wait key ms");
    block(ctx, waited, waited, NULL, atoi(string_text(argv[2], &len)));
    return 0;
}

static int masters(struct ctx *ctx, struct string **argv, int argc) {
    return reply_number(ctx, 1);
}

int RedisModule_OnLoad(struct ctx *ctx, struct string **argv, int argc);
int RedisModule_OnLoad(struct ctx *ctx, struct string **argv, int argc) {
    static const struct info_version version = {1, HISTORY_SIZE, sizeof(struct spec), ARG_SIZE};
    if (!module_begin(ctx, "lk", FUNCTIONS, sizeof(FUNCTIONS) / sizeof(FUNCTIONS[0])))
        return 1;
    int wrong = create(ctx, "lk.put", put, "write", 1, 1, 1) | create(ctx, "lk.get", get, "readonly", 2, 2, 1) |
                create(ctx, "lk.many", many, "readonly", 0, 0, 0) |
                create(ctx, "lk.late", late, "readonly getkeys-api", 0, 0, 0) |
                create(ctx, "lk.box", NULL, "", 0, 0, 0) | create(ctx, "lk.wait", wait_for, "blocking", 1, 1, 1) |
                create(ctx, "lk.masters", masters, "readonly", 0, 0, 0) |
                create_sub(get_command(ctx, "lk.box"), "put", box, "write", 2, 2, 1);
    struct spec specs[] = {{.flags = KEY_RO | KEY_ACCESS,
                            .begin = BEGIN_INDEX,
                            .begin_at.index = 1,
                            .find = FIND_KEYNUM,
                            .keynum = {0, 1, 1}},
                           {.begin = 0}};
    struct info many_info = {.version = &version, .arity = -3, .specs = specs};
    struct info masters_info = {
        .version = &version, .arity = 1, .tips = "request_policy:all_shards response_policy:agg_sum"};
    wrong |= set_info(get_command(ctx, "lk.many"), &many_info);
    wrong |= set_info(get_command(ctx, "lk.masters"), &masters_info);
    return wrong ? 1 : 0;
}
