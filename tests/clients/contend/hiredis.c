/*
 * Workers with hiredis that contend for one lock, a thread and a connection a worker: NAME=VALUE ... (run.py says what
 * they mean).
 */
#include <hiredis/hiredis.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { ZERO = 0, DELETED = 1, NOT_MINE = -1, FORGOTTEN = -2, VALUE_SIZE = 40 };

struct section {
    long long sent, entered, left, answered; /* microseconds */
    int outcome;
};

struct worker {
    int number;
    redisContext *c;
    pthread_t thread;
    long long end;
    double works, polls, forget, overrun;
    long attempts, freed;
    struct section *sections;
    size_t count, room;
};

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

static double number(const char *name) {
    return strtod(text(name), NULL);
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static double part(double x) {
    return x - floor(x);
}

static void sleep_ms(double ms) {
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(fmod(ms, 1000) * 1e6)};
    nanosleep(&t, NULL);
}

/* Numbers that fill their range evenly, so that few of them do as well as many random ones. */
static double work(struct worker *w) {
    w->works = part(w->works + 0.6180339887);
    return number("work_min") + (number("work_max") - number("work_min")) * w->works;
}

static void rest(struct worker *w) {
    w->polls = part(w->polls + 0.4142135624);
    sleep_ms(number("poll_min") + (number("poll_max") - number("poll_min")) * w->polls);
}

static int due(double *fault, const char *name) {
    *fault += number(name);
    int is = *fault >= 1;
    *fault = part(*fault);
    return is;
}

static void make_value(const struct worker *w, char *out) {
    const char *kind = text("value");
    if (strcmp(kind, "constant") == 0) {
        strcpy(out, "1");
    } else if (strcmp(kind, "worker") == 0) {
        snprintf(out, VALUE_SIZE, "worker-%d", w->number);
    } else {
        unsigned char bytes[16];
        if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
            abort();
        for (size_t i = 0; i < sizeof(bytes); i++)
            snprintf(out + 2 * i, VALUE_SIZE - 2 * i, "%02x", bytes[i]);
    }
}

static redisReply *checked(struct worker *w, redisReply *r) {
    if (!r || r->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s\n", r ? r->str : w->c->errstr);
        exit(1);
    }
    return r;
}

static int acquire(struct worker *w, const char *value) {
    redisReply *r = checked(w, redisCommand(w->c, "SET %s %s NX PX %s", text("key"), value, text("lease")));
    int got = r->type == REDIS_REPLY_STATUS;
    freeReplyObject(r);
    return got;
}

static int release(struct worker *w, const char *value) {
    redisReply *r;
    if (number("compare") != 0) {
        r = checked(w, redisCommand(w->c, "GET %s", text("key")));
        int mine = r->type == REDIS_REPLY_STRING && strcmp(r->str, value) == 0;
        freeReplyObject(r);
        if (!mine)
            return NOT_MINE;
    }
    r = checked(w, redisCommand(w->c, "DEL %s", text("key")));
    int outcome = r->integer ? DELETED : ZERO;
    freeReplyObject(r);
    return outcome;
}

static void do_section(struct worker *w, const char *value, long long sent) {
    if (w->count == w->room) {
        w->room = w->room ? 2 * w->room : 256;
        w->sections = realloc(w->sections, w->room * sizeof(*w->sections));
        if (!w->sections)
            abort();
    }
    struct section *s = &w->sections[w->count++];
    s->sent = sent;
    s->entered = now();
    double ms = work(w);
    if (due(&w->overrun, "overrun"))
        ms = number("lease") * (1.2 + w->works);
    sleep_ms(ms);
    s->left = now();
    s->outcome = due(&w->forget, "forget") ? FORGOTTEN : release(w, value);
    s->answered = now();
}

static void *run(void *arg) {
    struct worker *w = arg;
    char value[VALUE_SIZE];
    while (now() < w->end) {
        make_value(w, value);
        long long sent = now();
        w->attempts++;
        if (acquire(w, value))
            do_section(w, value, sent);
        else if (number("losers") != 0)
            w->freed += release(w, value) == DELETED;
        rest(w);
    }
    return NULL;
}

static void open_worker(struct worker *w, int n) {
    struct timeval limit = {20, 0};
    double place = number("seed") * number("workers") + n;
    double share = (n + part(number("seed") * 0.754877666)) / number("workers");
    w->number = n;
    w->works = part(place * 0.754877666);
    w->polls = part(place * 0.569840290);
    w->forget = share;
    w->overrun = part(share + 0.5 / number("workers"));
    w->c = redisConnectWithTimeout(text("host"), atoi(text("port")), limit);
    if (!w->c || w->c->err) {
        fprintf(stderr, "connect: %s\n", w->c ? w->c->errstr : "no memory");
        exit(1);
    }
    redisSetTimeout(w->c, limit);
    freeReplyObject(checked(w, redisCommand(w->c, "PING")));
}

int main(int argc, char **argv) {
    words = argc - 1;
    word = argv + 1;
    int count = (int)number("workers");
    struct worker *workers = calloc((size_t)count, sizeof(*workers));
    long attempts = 0, freed = 0;
    for (int n = 0; n < count; n++)
        open_worker(&workers[n], n);
    long long end = now() + (long long)(number("seconds") * 1e6);
    for (int n = 0; n < count; n++) {
        workers[n].end = end;
        pthread_create(&workers[n].thread, NULL, run, &workers[n]);
    }
    for (int n = 0; n < count; n++) {
        pthread_join(workers[n].thread, NULL);
        attempts += workers[n].attempts;
        freed += workers[n].freed;
    }
    printf("{\"version\": \"%d.%d.%d\", \"attempts\": %ld, \"freed\": %ld, \"sections\": [", HIREDIS_MAJOR,
           HIREDIS_MINOR, HIREDIS_PATCH, attempts, freed);
    const char *comma = "";
    for (int n = 0; n < count; n++) {
        for (size_t i = 0; i < workers[n].count; i++, comma = ", ") {
            const struct section *s = &workers[n].sections[i];
            printf("%s[%d, %lld, %lld, %lld, %lld, %d]", comma, n, s->sent, s->entered, s->left, s->answered,
                   s->outcome);
        }
        redisFree(workers[n].c);
        free(workers[n].sections);
    }
    printf("]}\n");
    free(workers);
    return 0;
}
