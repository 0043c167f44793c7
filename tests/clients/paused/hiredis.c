/*
 * A worker with hiredis that reads, works, and writes under a lock: NAME=VALUE ... (run.py says what they mean).
 */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char RELEASE[] =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

static int words;
static char **word;

static const char *text(const char *name) {
    size_t len = strlen(name);
    for (int i = 0; i < words; i++)
        if (strncmp(word[i], name, len) == 0 && word[i][len] == '=')
            return word[i] + len + 1;
    fprintf(stderr, "no %s=\n", name);
    exit(1);
}

static redisContext *open_to(const char *port) {
    redisContext *c = redisConnect(text("host"), atoi(text(port)));
    if (!c || c->err) {
        fprintf(stderr, "connect: %s\n", c ? c->errstr : "no memory");
        exit(1);
    }
    return c;
}

static redisReply *checked(redisContext *c, redisReply *r) {
    if (!r ||
        (r->type == REDIS_REPLY_ERROR && strncmp(r->str, "FENCED ", 7) != 0 && strncmp(r->str, "LOST ", 5) != 0)) {
        fprintf(stderr, "%s\n", r ? r->str : c->errstr);
        exit(1);
    }
    return r;
}

/* Whether the lease is lost, as the rule's on-loss says it. Opens a closed connection anew. Frees the reply then. */
static int lost(redisContext **c, redisReply *r) {
    if (r && !(r->type == REDIS_REPLY_ERROR && strncmp(r->str, "LOST ", 5) == 0))
        return 0;
    if (r) {
        freeReplyObject(r);
        return 1;
    }
    redisFree(*c);
    *c = open_to("lock_port");
    return 1;
}

/* Whether no more work is wanted. */
static int done(void) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&in, 1, 0) > 0;
}

int main(int argc, char **argv) {
    words = argc - 1;
    word = argv + 1;
    const char *lock = text("lock"), *key = text("data");
    redisContext *locks = open_to("lock_port"),
                 *data = strcmp(text("data_port"), text("lock_port")) == 0 ? locks : open_to("data_port");
    long entered = 0, written = 0, fenced = 0;
    while (!done()) {
        char mine[64];
        snprintf(mine, sizeof(mine), "%s:%ld", text("name"), entered);
        redisReply *r = checked(locks, redisCommand(locks, "SET %s %s NX PX %s", lock, mine, text("lease")));
        int got = r->type == REDIS_REPLY_STATUS;
        freeReplyObject(r);
        if (!got) {
            usleep(1000);
            continue;
        }
        entered++;
        r = redisCommand(data, "GET %s", key);
        if (data == locks && lost(&locks, r)) {
            data = locks;
            fenced++;
            continue;
        }
        checked(data, r);
        long read = r->type == REDIS_REPLY_STRING ? atol(r->str) : 0;
        freeReplyObject(r);
        usleep((useconds_t)(atof(text("work")) * 1000));
        r = redisCommand(data, "SET %s %ld", key, read + 1);
        if (data == locks && lost(&locks, r)) {
            data = locks;
            fenced++;
            continue;
        }
        checked(data, r);
        written += r->type == REDIS_REPLY_STATUS;
        fenced += r->type == REDIS_REPLY_ERROR;
        freeReplyObject(r);
        r = redisCommand(locks, "EVAL %s 1 %s %s", RELEASE, lock, mine);
        if (data == locks && lost(&locks, r)) {
            data = locks;
            fenced++;
            continue;
        }
        freeReplyObject(checked(locks, r));
    }
    printf("{\"version\": \"%d.%d.%d\", \"entered\": %ld, \"written\": %ld, \"fenced\": %ld}\n", HIREDIS_MAJOR,
           HIREDIS_MINOR, HIREDIS_PATCH, entered, written, fenced);
    if (data != locks)
        redisFree(data);
    redisFree(locks);
    return 0;
}
