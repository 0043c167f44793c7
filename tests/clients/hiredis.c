/*
 * hiredis through the proxy, its synchronous API. One feature a function; features.py says what the lines mean.
 */
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static redisContext *context;
static char failure[512]; /* of the feature that runs; empty: none so far */

static const char BYTES[] = "\0\1\2\xff\xfe\r\n$3\r\nfoo\r\n*1\r\n\0\0\r\n";
enum { BYTES_LEN = sizeof(BYTES) - 1, LARGE = 1 << 20, THREADS = 8, ROUNDS = 100 };

static void fail(const char *format, ...) {
    if (failure[0])
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(failure, sizeof(failure), format, args);
    va_end(args);
    for (char *p = failure; *p; p++)
        if (*p == '\r' || *p == '\n' || *p == '\t')
            *p = ' ';
}

/* An environment variable that has to be there. */
static const char *setting(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set\n", name);
        exit(1);
    }
    return value;
}

static redisContext *open_port(const char *port) {
    struct timeval limit = {8, 0};
    redisContext *c = redisConnectWithTimeout(setting("LK_HOST"), atoi(setting(port)), limit);
    if (!c || c->err) {
        fprintf(stderr, "connect: %s\n", c ? c->errstr : "no memory");
        exit(1);
    }
    redisSetTimeout(c, limit);
    return c;
}

/* ---- what is expected ----------------------------------------------------------------------------- */

/* A reply as text: "OK", "12", "(nil)", "[a b]", "-ERR ...". */
static void reply_text(const redisReply *r, char *out, size_t size) {
    size_t len = 0;
    if (!r) {
        snprintf(out, size, "(no reply)");
        return;
    }
    switch (r->type) {
    case REDIS_REPLY_INTEGER:
        snprintf(out, size, "%lld", r->integer);
        return;
    case REDIS_REPLY_NIL:
        snprintf(out, size, "(nil)");
        return;
    case REDIS_REPLY_ERROR:
        snprintf(out, size, "-%s", r->str);
        return;
    case REDIS_REPLY_ARRAY:
        len = (size_t)snprintf(out, size, "[");
        for (size_t i = 0; i < r->elements && len + 4 < size; i++) {
            if (i > 0)
                out[len++] = ' ';
            reply_text(r->element[i], out + len, size - len - 2);
            len += strlen(out + len);
        }
        snprintf(out + len, size - len, "]");
        return;
    default:
        snprintf(out, size, "%s", r->str);
    }
}

/* Runs a command and expects its reply; a wanted text that begins with '-' is the beginning of an error. */
static void want_on(redisContext *c, const char *wanted, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    redisReply *r = redisvCommand(c, format, args);
    va_end(args);
    reply_text(r, text, sizeof(text));
    if (wanted[0] == '-' ? strncmp(text, wanted, strlen(wanted)) != 0 : strcmp(text, wanted) != 0)
        fail("%s: expected %s, got %s", format, wanted, r ? text : c->errstr);
    if (r)
        freeReplyObject(r);
}

#define want(wanted, ...) want_on(context, wanted, __VA_ARGS__)

static void want_bytes(const char *data, size_t len, const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *r = redisvCommand(context, format, args);
    va_end(args);
    if (!r || r->type != REDIS_REPLY_STRING || r->len != len || memcmp(r->str, data, len) != 0)
        fail("%s: not the bytes that were written", format);
    if (r)
        freeReplyObject(r);
}

static long long number(const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *r = redisvCommand(context, format, args);
    va_end(args);
    long long n = r && r->type == REDIS_REPLY_INTEGER ? r->integer : -1000;
    if (r)
        freeReplyObject(r);
    return n;
}

/* ---- the features ----------------------------------------------------------------------------------- */

static void do_connect(void) {
    redisContext *c = open_port("LK_PORT");
    want_on(c, "PONG", "PING");
    want_on(c, "hello", "ECHO %s", "hello");
    want_on(c, "OK", "CLIENT SETNAME worker-1");
    want_on(c, "worker-1", "CLIENT GETNAME");
    if (strcmp(setting("LK_BACKEND"), "cluster") != 0) {
        want_on(c, "OK", "SELECT 3");
        want_on(c, "OK", "SET only three");
        want("(nil)", "GET only");
        want_on(c, "OK", "SELECT 0");
        want_on(c, "(nil)", "GET only");
    }
    want_on(c, "OK", "QUIT");
    redisFree(c);
}

static void do_auth(void) {
    redisContext *c = open_port("LK_LOGIN_PORT");
    want_on(c, "-NOAUTH", "GET a");
    want_on(c, "-WRONGPASS", "AUTH wrong");
    want_on(c, "OK", "AUTH %s", setting("LK_LOGIN_PASSWORD"));
    want_on(c, "PONG", "PING");
    redisFree(c);
    c = open_port("LK_PORT");
    want_on(c, "OK", "AUTH %s %s", setting("LK_USER"), setting("LK_PASSWORD"));
    want_on(c, "(nil)", "GET none");
    redisFree(c);
}

static void do_strings(void) {
    want("OK", "SET s v");
    want("v", "GET s");
    want("(nil)", "GET none");
    want("2", "APPEND s w");
    want("0", "SETNX s x");
    want("vw", "GETSET s y");
    want("(nil)", "SET s z EX 100 NX");
    want("42", "INCRBY n 42");
    want("1.5", "INCRBYFLOAT f 1.5");
    want("y", "GETDEL s");
}

static void do_binary(void) {
    want("OK", "SET %b %b", BYTES, (size_t)BYTES_LEN, BYTES, (size_t)BYTES_LEN);
    want_bytes(BYTES, BYTES_LEN, "GET %b", BYTES, (size_t)BYTES_LEN);
    want("1", "HSET bin f %b", BYTES, (size_t)BYTES_LEN);
    want_bytes(BYTES, BYTES_LEN, "HGET bin f");
    want("OK", "SET %b %b", "", (size_t)0, "", (size_t)0);
    want("", "GET %b", "", (size_t)0);
}

static void do_large(void) {
    char *value = malloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        value[i] = (char)(i * 31 + i / 256);
    want("OK", "SET large %b", value, (size_t)LARGE);
    want_bytes(value, LARGE, "GET large");
    free(value);
}

static void do_hashes(void) {
    want("2", "HSET h a 1 b two");
    want("[1 (nil) two]", "HMGET h a none b");
    want("[a 1 b two]", "HGETALL h");
    want("3", "HINCRBY h a 2");
    want("1", "HDEL h a none");
}

static void do_lists(void) {
    want("3", "RPUSH l a b c");
    want("[a b c]", "LRANGE l 0 -1");
    want("1", "LREM l 1 b");
    want("a", "LPOP l");
    want("(nil)", "RPOPLPUSH {q}none {q}to");
}

static void do_sets(void) {
    want("3", "SADD {s}1 a b c");
    want("2", "SADD {s}2 c d");
    want("[c]", "SINTER {s}1 {s}2");
    want("4", "SUNIONSTORE {s}3 {s}1 {s}2");
    want("1", "SISMEMBER {s}1 a");
}

static void do_zsets(void) {
    want("2", "ZADD z 1 a 2.5 b");
    want("2.5", "ZSCORE z b");
    want("[a 1 b 2.5]", "ZRANGE z 0 -1 WITHSCORES");
    want("6", "ZINCRBY z 5 a");
}

static void do_streams(void) {
    want("5-1", "XADD x 5-1 f v");
    want("[[5-1 [f v]]]", "XRANGE x - +");
    want("[[x [[5-1 [f v]]]]]", "XREAD STREAMS x 0");
    want("OK", "XGROUP CREATE x group 0");
    want("[[x [[5-1 [f v]]]]]", "XREADGROUP GROUP group me STREAMS x >");
    want("1", "XACK x group 5-1");
}

static void do_expiry(void) {
    want("OK", "SETEX e 100 v");
    if (number("TTL e") < 95)
        fail("TTL");
    want("1", "PERSIST e");
    want("1", "PEXPIRE e 30");
    time_t end = time(NULL) + 5;
    while (number("EXISTS e") == 1)
        if (time(NULL) > end) {
            fail("never expired");
            return;
        }
}

static void do_multikey(void) {
    want("OK", "MSET mk:a 1 mk:b 2 mk:c 3 mk:d 4");
    want("[1 2 (nil) 3]", "MGET mk:a mk:b mk:none mk:c");
    want("4", "EXISTS mk:a mk:b mk:c mk:d mk:none");
    want("2", "DEL mk:a mk:b mk:none");
    want("2", "UNLINK mk:c mk:d");
}

static void piped(const char *wanted) {
    redisReply *r = NULL;
    char text[1024];
    if (redisGetReply(context, (void **)&r) != REDIS_OK) {
        fail("pipeline: %s", context->errstr);
        return;
    }
    reply_text(r, text, sizeof(text));
    if (strncmp(text, wanted, strlen(wanted)) != 0)
        fail("pipeline: expected %s, got %s", wanted, text);
    freeReplyObject(r);
}

static void do_pipeline(void) {
    char wanted[32];
    for (int i = 0; i < 200; i++) {
        redisAppendCommand(context, "SET p:%d %d", i, i);
        redisAppendCommand(context, "INCR count");
        redisAppendCommand(context, "LPUSH p:%d x", i);
        redisAppendCommand(context, "GET p:%d", i);
        redisAppendCommand(context, "MGET p:%d p:0", i);
    }
    for (int i = 0; i < 200 && !failure[0]; i++) {
        piped("OK");
        snprintf(wanted, sizeof(wanted), "%d", i + 1);
        piped(wanted);
        piped("-WRONGTYPE");
        snprintf(wanted, sizeof(wanted), "%d", i);
        piped(wanted);
        snprintf(wanted, sizeof(wanted), "[%d 0]", i);
        piped(wanted);
    }
}

static void do_scripts(void) {
    want("42", "EVAL %s 1 sc 42", "return redis.call('INCRBY', KEYS[1], ARGV[1])");
    redisReply *r = redisCommand(context, "SCRIPT LOAD %s", "return {KEYS[1], ARGV[1], 3, false, {ok = 'fine'}}");
    if (r && r->type == REDIS_REPLY_STRING)
        want("[sc arg 3 (nil) fine]", "EVALSHA %s 1 sc arg", r->str);
    else
        fail("SCRIPT LOAD");
    freeReplyObject(r);
    want("-NOSCRIPT", "EVALSHA %s 0", "0000000000000000000000000000000000000000");
    want("-ERR oops", "EVAL %s 0", "return redis.error_reply('ERR oops')");
}

static void do_scan(void) {
    for (int i = 0; i < 500; i++)
        want("OK", "SET scan:%d 1", i);
    static char seen[500];
    char cursor[32] = "0";
    int found = 0;
    do {
        redisReply *r = redisCommand(context, "SCAN %s MATCH scan:* COUNT 20", cursor);
        if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2) {
            fail("SCAN: %s", r ? r->str : context->errstr);
            return;
        }
        snprintf(cursor, sizeof(cursor), "%s", r->element[0]->str);
        for (size_t i = 0; i < r->element[1]->elements; i++) {
            int n = atoi(r->element[1]->element[i]->str + 5);
            found += !seen[n];
            seen[n] = 1;
        }
        freeReplyObject(r);
    } while (strcmp(cursor, "0") != 0);
    if (found != 500)
        fail("SCAN found %d of 500", found);
}

static void do_errors(void) {
    want("OK", "SET err text");
    want("-WRONGTYPE", "LPUSH err 1");
    want("-ERR value is not an integer", "INCR err");
    want("-ERR unknown command", "NOSUCHCOMMAND a");
    want("-ERR wrong number of arguments", "GET");
    want("text", "GET err");
}

static void *pool_work(void *arg) {
    redisContext *c = open_port("LK_PORT");
    long bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        redisReply *r = redisCommand(c, "INCR pool");
        bad += !r || r->type != REDIS_REPLY_INTEGER;
        freeReplyObject(r);
        r = redisCommand(c, "SET pool:%d %d", *(int *)arg, i);
        freeReplyObject(r);
        r = redisCommand(c, "GET pool:%d", *(int *)arg);
        bad += !r || r->type != REDIS_REPLY_STRING || atoi(r->str) != i;
        freeReplyObject(r);
    }
    redisFree(c);
    return (void *)bad;
}

static void do_pool(void) {
    pthread_t threads[THREADS];
    int names[THREADS];
    for (int i = 0; i < THREADS; i++) {
        names[i] = i;
        pthread_create(&threads[i], NULL, pool_work, &names[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        if (bad)
            fail("%ld wrong replies in thread %d", (long)bad, i);
    }
    want("800", "GET pool");
}

static void do_multi(void) {
    want("OK", "MULTI");
    want("QUEUED", "SET {t}a 1");
    want("QUEUED", "INCR {t}a");
    want("[OK 2]", "EXEC");
}

static void do_watch(void) {
    redisContext *c = open_port("LK_PORT");
    want("OK", "SET w 1");
    want("OK", "WATCH w");
    want_on(c, "OK", "SET w 10");
    want("OK", "MULTI");
    want("QUEUED", "SET w 2");
    want("(nil)", "EXEC");
    want("OK", "WATCH w");
    want("OK", "MULTI");
    want("QUEUED", "INCR w");
    want("[11]", "EXEC");
    redisFree(c);
}

static void *push_later(void *arg) {
    redisContext *c = open_port("LK_PORT");
    usleep(200000);
    freeReplyObject(redisCommand(c, "RPUSH %s later", (char *)arg));
    redisFree(c);
    return NULL;
}

static void do_blocking(void) {
    static char key[] = "bl";
    pthread_t thread;
    want("(nil)", "BLPOP bl 1");
    if (failure[0])
        return;
    pthread_create(&thread, NULL, push_later, key);
    want("[bl later]", "BRPOP bl 5");
    pthread_join(thread, NULL);
}

static void do_pubsub(void) {
    redisContext *c = open_port("LK_PORT");
    redisReply *r = NULL;
    char text[256];
    want_on(c, "[subscribe news 1]", "SUBSCRIBE news");
    want_on(c, "[psubscribe new* 2]", "PSUBSCRIBE new*");
    if (failure[0]) {
        redisFree(c);
        return;
    }
    long long receivers = number("PUBLISH news hello");
    if (receivers != 2 && strcmp(setting("LK_BACKEND"), "cluster") != 0) /* there, only those of one node are counted */
        fail("PUBLISH: %lld", receivers);
    for (int i = 0; i < 2; i++) {
        if (redisGetReply(c, (void **)&r) != REDIS_OK) {
            fail("no message: %s", c->errstr);
            break;
        }
        reply_text(r, text, sizeof(text));
        freeReplyObject(r);
        if (strcmp(text, "[message news hello]") != 0 && strcmp(text, "[pmessage new* news hello]") != 0)
            fail("not the message: %s", text);
    }
    want_on(c, "[unsubscribe news 1]", "UNSUBSCRIBE news");
    want_on(c, "[punsubscribe new* 0]", "PUNSUBSCRIBE new*");
    want_on(c, "(nil)", "GET none");
    redisFree(c);
}

static void do_reconnect(void) {
    char line[64];
    want("OK", "SET before 1");
    printf("restart\n");
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin)) {
        fail("no restart");
        return;
    }
    freeReplyObject(redisCommand(context, "PING"));
    if (!context->err)
        fail("the lost connection shows no error");
    if (redisReconnect(context) != REDIS_OK)
        fail("redisReconnect: %s", context->errstr);
    want("1", "GET before");
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } features[] = {
        {"connect", do_connect},   {"auth", do_auth},           {"strings", do_strings}, {"binary", do_binary},
        {"large", do_large},       {"hashes", do_hashes},       {"lists", do_lists},     {"sets", do_sets},
        {"zsets", do_zsets},       {"streams", do_streams},     {"expiry", do_expiry},   {"multikey", do_multikey},
        {"pipeline", do_pipeline}, {"scripts", do_scripts},     {"scan", do_scan},       {"errors", do_errors},
        {"pool", do_pool},         {"multi", do_multi},         {"watch", do_watch},     {"blocking", do_blocking},
        {"pubsub", do_pubsub},     {"reconnect", do_reconnect},
    };
    printf("version\t%d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        failure[0] = '\0';
        context = open_port("LK_PORT"); /* a failure in one feature doesn't lead to another's */
        features[i].run();
        redisFree(context);
        if (failure[0])
            printf("%s\tfail\t%s\n", features[i].name, failure);
        else
            printf("%s\tok\n", features[i].name);
        fflush(stdout);
    }
    return 0;
}
