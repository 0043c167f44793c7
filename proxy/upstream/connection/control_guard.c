/*
 * Checks what a node sends to hiredis. hiredis aborts the process (assert) on an unrequested reply, or on a malformed
 * published message: a hostile Sentinel or node could end the proxy. So this file creates hiredis's reply objects. If
 * an object would lead to the assert, the connection ends with a protocol error instead.
 */
#include <pthread.h>
#include <string.h>

#include "proxy/upstream/connection/control.h"

/* Limits of arrays: hiredis allocates all elements of an array once its length is known, without another limit. A
 * cluster has at most 16384 slots, and the entry of one slot, or of a master, is short. */
enum { MESSAGE_ELEMENTS = 3, ELEMENTS_MAX = 16384, NESTED_MAX = 1024 };

#if HIREDIS_MAJOR >= 1
typedef size_t array_size;
#else
typedef int array_size;
#endif

static pthread_once_t guarded_once = PTHREAD_ONCE_INIT;
static redisReplyObjectFunctions plain, guarded;

/* Whether this element of a message on a subscribed connection is valid: "subscribe", CHANNEL, number or "message",
 * CHANNEL, text. */
static bool message_part_ok(const redisReadTask *task, const char *text, size_t len) {
    switch (task->idx) {
    case 0:
        return task->type == REDIS_REPLY_STRING &&
               ((len == 9 && memcmp(text, "subscribe", 9) == 0) || (len == 7 && memcmp(text, "message", 7) == 0));
    case 1:
        return task->type == REDIS_REPLY_STRING && len == strlen(CONTROL_CHANNEL) &&
               memcmp(text, CONTROL_CHANNEL, len) == 0;
    default:
        return task->type == REDIS_REPLY_STRING || task->type == REDIS_REPLY_INTEGER;
    }
}

/* Whether the object may be created. `text` is for strings, `elements` for arrays. */
static bool object_ok(const redisReadTask *task, const char *text, size_t len, int64_t elements) {
    const redisAsyncContext *ctx = task->privdata;
    if (elements > (task->parent ? NESTED_MAX : ELEMENTS_MAX))
        return false;
    if (task->type > REDIS_REPLY_ERROR) /* the proxy has not sent HELLO 3, so RESP3 types are invalid */
        return false;
    if (ctx->replies.head) /* a request waits for it */
        return true;
    bool hears = ctx->c.flags & REDIS_SUBSCRIBED;
    if (!task->parent)
        return task->type == REDIS_REPLY_ERROR ||
               (hears && task->type == REDIS_REPLY_ARRAY && elements == MESSAGE_ELEMENTS);
    return hears && !task->parent->parent && message_part_ok(task, text, len);
}

/* Makes a string if it is permitted, else returns NULL, which hiredis takes for lack of memory. control_error tells the
 * cases apart: when memory runs out, the proxy aborts. */
static void *create_string(const redisReadTask *task, char *text, size_t len) {
    return object_ok(task, text, len, 0) ? plain.createString(task, text, len) : NULL;
}

static void *create_array(const redisReadTask *task, array_size elements) {
    return object_ok(task, "", 0, (int64_t)elements) ? plain.createArray(task, elements) : NULL;
}

static void *create_integer(const redisReadTask *task, long long value) {
    return object_ok(task, "", 0, 0) ? plain.createInteger(task, value) : NULL;
}

static void *create_nil(const redisReadTask *task) {
    return object_ok(task, "", 0, 0) ? plain.createNil(task) : NULL;
}

#if HIREDIS_MAJOR >= 1
static void *create_double(const redisReadTask *task, double value, char *text, size_t len) {
    return NULL;
}

static void *create_bool(const redisReadTask *task, int value) {
    return NULL;
}
#endif

static void make_guarded(void) {
    redisReader *reader = redisReaderCreate();
    plain = guarded = *reader->fn;
    redisReaderFree(reader);
    guarded.createString = create_string;
    guarded.createArray = create_array;
    guarded.createInteger = create_integer;
    guarded.createNil = create_nil;
#if HIREDIS_MAJOR >= 1
    guarded.createDouble = create_double;
    guarded.createBool = create_bool;
#endif
}

void control_guard(redisAsyncContext *ctx) {
    pthread_once(&guarded_once, make_guarded);
    ctx->c.reader->fn = &guarded;
    ctx->c.reader->privdata = ctx;
}

const char *control_error(const redisAsyncContext *ctx) {
    if (ctx->err == REDIS_ERR_OOM)
        return "it sent a reply without a request";
    return ctx->err && ctx->errstr && *ctx->errstr ? ctx->errstr : "the connection was lost";
}
