/* The hand of a worker of histories, with hiredis: hand NAME PORT. ../history/worker.py says what a line means. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 16, LINE_SIZE = 4096 };

static void connect_again(redisContext **c, const char *name, int port) {
    struct timeval limit = {8, 0};
    if (*c)
        redisFree(*c);
    *c = redisConnectWithTimeout("127.0.0.1", port, limit);
    if (!*c || (*c)->err)
        return;
    redisSetTimeout(*c, limit);
    if (strcmp(name, "-") != 0)
        freeReplyObject(redisCommand(*c, "CLIENT SETNAME %s", name));
}

static void print(const redisReply *r) {
    switch (r->type) {
    case REDIS_REPLY_NIL:
        puts("_");
        break;
    case REDIS_REPLY_INTEGER:
        printf(":%lld\n", r->integer);
        break;
    case REDIS_REPLY_ARRAY:
        putchar('*');
        for (size_t i = 0; i < r->elements; i++) {
            const redisReply *e = r->element[i];
            if (e->type == REDIS_REPLY_INTEGER)
                printf("%s%lld", i ? "\t" : "", e->integer);
            else
                printf("%s%s", i ? "\t" : "", e->str ? e->str : "");
        }
        putchar('\n');
        break;
    default:
        printf("%c%s\n", r->type == REDIS_REPLY_ERROR ? '-' : '+', r->str);
    }
}

int main(int argc, char **argv) {
    char line[LINE_SIZE];
    redisContext *c = NULL;
    if (argc != 3)
        return 1;
    while (fgets(line, sizeof(line), stdin)) {
        const char *word[MOST_WORDS];
        int words = 0;
        for (char *at = strtok(line, "\t\n"); at && words < MOST_WORDS; at = strtok(NULL, "\t\n"))
            word[words++] = at;
        if (!c || c->err)
            connect_again(&c, argv[1], atoi(argv[2]));
        redisReply *r = c && !c->err ? redisCommandArgv(c, words, word, NULL) : NULL;
        if (r)
            print(r);
        else
            printf("!%s\n", c ? c->errstr : "no memory");
        freeReplyObject(r);
        fflush(stdout);
    }
    if (c)
        redisFree(c);
    return 0;
}
