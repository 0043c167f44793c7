/*
 * A worker in hiredis, as semaphore.py has it: semaphore PORT SHAPE KEY. Each line on standard input forks one more
 * worker.
 */
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* The reply, which is no error; the caller frees it. */
static redisReply *got(redisReply *reply) {
    if (!reply || reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "semaphore: %s\n", reply ? reply->str : "no reply");
        exit(1);
    }
    return reply;
}

static void done(redisReply *reply) {
    freeReplyObject(got(reply));
}

static void take_count(redisContext *c, const char *key) {
    for (;;) {
        redisReply *reply = got(redisCommand(c, "INCR %s", key));
        long long count = reply->integer;
        freeReplyObject(reply);
        if (count <= 4)
            return;
        done(redisCommand(c, "DECR %s", key));
        pause_ms(2);
    }
}

static void take_token(redisContext *c, const char *key, char *have, size_t size) {
    for (have[0] = '\0'; !have[0];) {
        redisReply *reply = got(redisCommand(c, "BLPOP %s 5", key));
        if (reply->type == REDIS_REPLY_ARRAY)
            snprintf(have, size, "%s", reply->element[1]->str);
        freeReplyObject(reply);
    }
}

static void take_member(redisContext *c, const char *key, const char *have) {
    done(redisCommand(c, "MULTI"));
    done(redisCommand(c, "ZREMRANGEBYSCORE %s -inf 0", key));
    done(redisCommand(c, "ZADD %s %lld %s", key, (long long)time(NULL), have));
    done(redisCommand(c, "ZRANK %s %s", key, have));
    done(redisCommand(c, "EXEC"));
}

static void work(int port, const char *shape, const char *key) {
    redisContext *c = redisConnect("127.0.0.1", port);
    char have[64];
    if (!c || c->err)
        exit(1);
    done(redisCommand(c, "PING"));
    srand((unsigned)getpid());
    for (int n = 0;; n++) {
        snprintf(have, sizeof(have), "%d:%d", (int)getpid(), n);
        if (shape[0] == 'c')
            take_count(c, key);
        else if (shape[0] == 't')
            take_token(c, key, have, sizeof(have));
        else
            take_member(c, key, have);
        if (n == 0 && dprintf(1, "%d\n", (int)getpid()) < 0)
            exit(1);
        pause_ms(5 + rand() % 45);
        if (shape[0] == 'c')
            done(redisCommand(c, "DECR %s", key));
        else if (shape[0] == 't')
            done(redisCommand(c, "RPUSH %s %s", key, have));
        else
            done(redisCommand(c, "ZREM %s %s", key, have));
    }
}

int main(int argc, char **argv) {
    char line[16];
    if (argc < 4)
        return 1;
    signal(SIGCHLD, SIG_IGN);
    while (fgets(line, sizeof(line), stdin))
        if (fork() == 0)
            work(atoi(argv[1]), argv[2], argv[3]);
    return 0;
}
