/*
 * Workers with hiredis that contend for one lock, a thread a worker: NAME=VALUE ... (run.py and pools.py say what they
 * mean). Each has a connection of its own, or, with connections=N, each command takes any free one of N.
 */
#include <hiredis/hiredis.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { ZERO = 0, DELETED = 1, NOT_MINE = -1, FORGOTTEN = -2, UNSURE = -3, VALUE_SIZE = 40 };
enum { MOST_CONNECTIONS = 64, RETRIES = 500, RETRY_MS = 20 };

struct section {
    long long sent, entered, left, answered; /* microseconds */
    int outcome;
};

struct write {
    long long entered, sent, answered; /* microseconds */
    int done;
};

struct freed {
    long long sent, answered; /* microseconds: the lost attempt was sent, the release behind it answered */
};

struct worker {
    int number;
    int connection; /* its own; -1: any */
    int again;      /* its last command was sent more than once */
    long lost;      /* attempts in a row */
    pthread_t thread;
    long long end;
    double works, polls, forget, overrun;
    long attempts;
    struct freed *freed; /* releases of losers that freed something */
    size_t freed_count, freed_room;
    struct section *sections;
    size_t count, room;
    struct write *writes;
    size_t write_count, write_room;
};

/* The connections that workers take and give back. */
static redisContext *connections[MOST_CONNECTIONS];
static int taken[MOST_CONNECTIONS];
static int connection_count, free_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;

static int words;
static char **word;

static const char *optional(const char *name, const char *otherwise) {
    size_t len = strlen(name);
    for (int i = 0; i < words; i++)
        if (strncmp(word[i], name, len) == 0 && word[i][len] == '=')
            return word[i] + len + 1;
    return otherwise;
}

static const char *text(const char *name) {
    const char *found = optional(name, NULL);
    if (found)
        return found;
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

static int take(const struct worker *w) {
    if (w->connection >= 0)
        return w->connection;
    pthread_mutex_lock(&mutex);
    while (free_count == 0)
        pthread_cond_wait(&given, &mutex);
    unsigned int pick = 0;
    if (getrandom(&pick, sizeof(pick), 0) != (ssize_t)sizeof(pick))
        abort();
    int left = (int)(pick % (unsigned int)free_count--), i = 0;
    while (taken[i] || left-- > 0)
        i++;
    taken[i] = 1;
    pthread_mutex_unlock(&mutex);
    return i;
}

static void give(const struct worker *w, int i) {
    if (w->connection >= 0)
        return;
    pthread_mutex_lock(&mutex);
    taken[i] = 0;
    free_count++;
    pthread_cond_signal(&given);
    pthread_mutex_unlock(&mutex);
}

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void open_connection(int i) {
    struct timeval limit = {20, 0};
    const char *port = text("port"), *second = strchr(port, ',');
    if (second && i % 2 == 1)
        port = second + 1;
    redisContext *c = connections[i] = redisConnectWithTimeout(text("host"), atoi(port), limit);
    if (!c || c->err)
        fail(c ? c->errstr : "no memory");
    redisSetTimeout(c, limit);
    redisReply *r = redisCommand(c, "PING");
    if (!r)
        fail(c->errstr);
    freeReplyObject(r);
}

/* One command over one connection. With retry=1 a command whose connection fails is sent again. */
static redisReply *command(struct worker *w, int argc, const char **argv) {
    redisReply *r = NULL;
    int i = take(w), most = strcmp(optional("retry", "0"), "0") == 0 ? 0 : RETRIES;
    redisContext *c = connections[i];
    w->again = -1;
    while (!r && w->again < most) {
        if (w->again++ >= 0) {
            sleep_ms(RETRY_MS);
            if (redisReconnect(c) != REDIS_OK)
                continue;
            redisSetTimeout(c, (struct timeval){20, 0});
        }
        r = redisCommandArgv(c, argc, argv, NULL);
    }
    if (!r)
        fail(c->errstr);
    give(w, i);
    return r;
}

static redisReply *checked(redisReply *r) {
    if (r->type == REDIS_REPLY_ERROR)
        fail(r->str);
    return r;
}

/* Whether the lock has this value. */
static int is_value(struct worker *w, const char *value) {
    redisReply *r = checked(command(w, 2, (const char *[]){"GET", text("key")}));
    int mine = r->type == REDIS_REPLY_STRING && strcmp(r->str, value) == 0;
    freeReplyObject(r);
    return mine;
}

static int acquire(struct worker *w, const char *value) {
    redisReply *r = checked(command(w, 6, (const char *[]){"SET", text("key"), value, "NX", "PX", text("lease")}));
    int got = r->type == REDIS_REPLY_STATUS;
    freeReplyObject(r);
    /* The first reply may be lost, and the lock its own. */
    return got || (w->again && strcmp(text("value"), "lease") == 0 && is_value(w, value));
}

static int release(struct worker *w, const char *value) {
    if (number("compare") != 0 && !is_value(w, value))
        return NOT_MINE;
    redisReply *r = checked(command(w, 2, (const char *[]){"DEL", text("key")}));
    int outcome = r->integer ? DELETED : w->again ? UNSURE : ZERO;
    freeReplyObject(r);
    return outcome;
}

/* The write that the lock is for. */
static void do_write(struct worker *w, long long entered) {
    if (w->write_count == w->write_room) {
        w->write_room = w->write_room ? 2 * w->write_room : 256;
        w->writes = realloc(w->writes, w->write_room * sizeof(*w->writes));
        if (!w->writes)
            abort();
    }
    struct write *write = &w->writes[w->write_count++];
    write->entered = entered;
    write->sent = now();
    redisReply *r = command(w, 3, (const char *[]){"SET", text("data"), "written"});
    write->done = r->type == REDIS_REPLY_STATUS;
    if (r->type == REDIS_REPLY_ERROR && strncmp(r->str, "FENCED", 6) != 0)
        fail(r->str);
    freeReplyObject(r);
    write->answered = now();
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
    if (optional("data", NULL))
        do_write(w, s->entered);
    s->left = now();
    s->outcome = due(&w->forget, "forget") ? FORGOTTEN : release(w, value);
    s->answered = now();
}

/* An attempt in vain: with losers=1 its code releases all the same, after `tries` attempts in a row. */
static void lose(struct worker *w, const char *value, long long sent) {
    w->lost++;
    if (number("losers") == 0 || w->lost % atoi(optional("tries", "1")) != 0 || release(w, value) != DELETED)
        return;
    if (w->freed_count == w->freed_room) {
        w->freed_room = w->freed_room ? 2 * w->freed_room : 16;
        w->freed = realloc(w->freed, w->freed_room * sizeof(*w->freed));
        if (!w->freed)
            abort();
    }
    w->freed[w->freed_count++] = (struct freed){.sent = sent, .answered = now()};
}

static void *run(void *arg) {
    struct worker *w = arg;
    char value[VALUE_SIZE];
    while (now() < w->end) {
        make_value(w, value);
        long long sent = now();
        w->attempts++;
        if (acquire(w, value)) {
            w->lost = 0;
            do_section(w, value, sent);
        } else {
            lose(w, value, sent);
        }
        rest(w);
    }
    return NULL;
}

static void open_worker(struct worker *w, int n) {
    double place = number("seed") * number("workers") + n;
    double share = (n + part(number("seed") * 0.754877666)) / number("workers");
    w->number = n;
    w->works = part(place * 0.754877666);
    w->polls = part(place * 0.569840290);
    w->forget = share;
    w->overrun = part(share + 0.5 / number("workers"));
    w->connection = optional("connections", NULL) ? -1 : n;
}

static void print(const struct worker *workers, int count) {
    const char *comma = "";
    for (int n = 0; n < count; n++) {
        for (size_t i = 0; i < workers[n].count; i++, comma = ", ") {
            const struct section *s = &workers[n].sections[i];
            printf("%s[%d, %lld, %lld, %lld, %lld, %d]", comma, n, s->sent, s->entered, s->left, s->answered,
                   s->outcome);
        }
    }
    printf("], \"losers_freed\": [");
    comma = "";
    for (int n = 0; n < count; n++)
        for (size_t i = 0; i < workers[n].freed_count; i++, comma = ", ")
            printf("%s[%lld, %lld]", comma, workers[n].freed[i].sent, workers[n].freed[i].answered);
    printf("], \"writes\": [");
    comma = "";
    for (int n = 0; n < count; n++) {
        for (size_t i = 0; i < workers[n].write_count; i++, comma = ", ") {
            const struct write *s = &workers[n].writes[i];
            printf("%s[%d, %lld, %lld, %lld, %d]", comma, n, s->entered, s->sent, s->answered, s->done);
        }
    }
}

/* With ready=1 the workers begin when a line comes (program.py). */
static void await_start(void) {
    char line[16];
    if (strcmp(optional("ready", "0"), "0") == 0)
        return;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        fail("no line that says to begin");
}

int main(int argc, char **argv) {
    words = argc - 1;
    word = argv + 1;
    int count = (int)number("workers");
    struct worker *workers = calloc((size_t)count, sizeof(*workers));
    long attempts = 0, freed = 0;
    for (int n = 0; n < count; n++)
        open_worker(&workers[n], n);
    connection_count = free_count = atoi(optional("connections", text("workers")));
    if (connection_count > MOST_CONNECTIONS)
        fail("too many connections");
    for (int i = 0; i < connection_count; i++)
        open_connection(i);
    await_start();
    long long began = now(), end = began + (long long)(number("seconds") * 1e6);
    for (int n = 0; n < count; n++) {
        workers[n].end = end;
        pthread_create(&workers[n].thread, NULL, run, &workers[n]);
    }
    for (int n = 0; n < count; n++) {
        pthread_join(workers[n].thread, NULL);
        attempts += workers[n].attempts;
        freed += (long)workers[n].freed_count;
    }
    printf("{\"version\": \"%d.%d.%d\", \"attempts\": %ld, \"freed\": %ld, \"began\": %lld, \"sections\": [",
           HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH, attempts, freed, began);
    print(workers, count);
    for (int n = 0; n < count; n++) {
        free(workers[n].sections);
        free(workers[n].writes);
        free(workers[n].freed);
    }
    for (int i = 0; i < connection_count; i++)
        redisFree(connections[i]);
    printf("]}\n");
    free(workers);
    return 0;
}
