/*
 * What the tests' Redis modules (module.c, newest.c) need of Redis's module interface, so that nothing has to be
 * installed. Functions are looked up by name.
 */
#pragma once

#include <stddef.h>

struct ctx;
struct string;
struct reply;
typedef int command_fn(struct ctx *ctx, struct string **argv, int argc);

enum { API = 1 };

static int (*get_api)(const char *name, void *to);
static void (*set_attributes)(struct ctx *ctx, const char *name, int version, int api);
static int (*create)(struct ctx *ctx, const char *name, command_fn *run, const char *flags, int first, int last,
                     int step);
static int (*reply_number)(struct ctx *ctx, long long n);
static int (*reply_error)(struct ctx *ctx, const char *text);
static int (*reply_call)(struct ctx *ctx, struct reply *reply);
static struct reply *(*call)(struct ctx *ctx, const char *name, const char *format, ...);
static long long (*reply_integer)(struct reply *reply);
static void (*free_reply)(struct reply *reply);
static const char *(*string_text)(const struct string *s, size_t *len);
static int (*asks_for_keys)(struct ctx *ctx);
static void (*key_at)(struct ctx *ctx, int at);

struct api_function {
    const char *name;
    void *to;
};

/* Rows for the functions above. */
#define API_FUNCTIONS                                                                                                  \
    {"RedisModule_SetModuleAttribs", &set_attributes}, {"RedisModule_CreateCommand", &create},                         \
        {"RedisModule_ReplyWithLongLong", &reply_number}, {"RedisModule_ReplyWithError", &reply_error},                \
        {"RedisModule_ReplyWithCallReply", &reply_call}, {"RedisModule_Call", &call},                                  \
        {"RedisModule_CallReplyInteger", &reply_integer}, {"RedisModule_FreeCallReply", &free_reply},                  \
        {"RedisModule_StringPtrLen", &string_text}, {"RedisModule_IsKeysPositionRequest", &asks_for_keys}, {           \
        "RedisModule_KeyAtPos", &key_at                                                                                \
    }

/* Looks the functions up, and names the module. Returns false if the server lacks one of them. */
static int module_begin(struct ctx *ctx, const char *name, const struct api_function *functions, size_t count) {
    get_api = *(int (**)(const char *, void *))(void *)ctx;
    for (size_t i = 0; i < count; i++)
        if (get_api(functions[i].name, functions[i].to) != 0)
            return 0;
    set_attributes(ctx, name, 1, API);
    return 1;
}

/* Answers as the command did that was called. `failed` is the error if the call itself failed. */
static int answer_or(struct ctx *ctx, struct reply *reply, const char *failed) {
    if (!reply)
        return reply_error(ctx, failed);
    reply_call(ctx, reply);
    free_reply(reply);
    return 0;
}
