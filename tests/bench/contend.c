/*
 * contend: workers of a legacy application that contend for one lock, in one process: SET key value NX PX, repeated
 * after a pause if refused; work; DEL; a pause. If several servers are named, the workers are spread over them. With
 * --notify the workers act like a library that waits on a channel, as Redisson does, each as a process of its own: a
 * release is a script that publishes to the channel, and the sleeping workers then try again.
 *
 *   contend --workers N --work-us N --between-us N --poll-us N --seconds N --key KEY [--notify CHANNEL] PORT ...
 *
 * Prints one line of JSON: acquisitions, each worker's turns; waits (first attempt to grant) and handovers (from
 * writing a DEL to reading the next grant, if an attempt came before the DEL) in µs; the time that work and its two
 * round trips took.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 4096, SAMPLES_MAX = 1 << 20, REPLY_MAX = 64 };

enum state { RESTS, ASKS, SLEEPS, WORKS, RELEASES, LISTENS };

struct worker {
    int fd;
    enum state state;
    int64_t due, asked, granted; /* µs; due 0: waits for a reply */
    unsigned long turns;
    char reply[REPLY_MAX];
    size_t len;
};

struct samples {
    uint32_t *us;
    size_t count;
};

static struct worker workers[WORKERS_MAX], listener;
static struct samples waits, handovers, sections;
static long worker_count, work_us, between_us, poll_us, seconds;
static const char *key, *channel;
static int64_t released_at;
static bool wanted; /* when the last DEL was written, after another worker's attempt */

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void note(struct samples *s, int64_t us) {
    if (!s->us)
        s->us = malloc(SAMPLES_MAX * sizeof(*s->us));
    if (s->us && s->count < SAMPLES_MAX)
        s->us[s->count++] = (uint32_t)us;
}

static void say(struct worker *w, const char *const *words, size_t count) {
    char out[1024];
    int len = snprintf(out, sizeof(out), "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++)
        len += snprintf(out + len, sizeof(out) - (size_t)len, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    if (write(w->fd, out, (size_t)len) != len)
        fail("write");
    w->due = 0;
}

static void ask(struct worker *w) {
    char value[24];
    snprintf(value, sizeof(value), "%ld", (long)(w - workers));
    const char *words[] = {"SET", key, value, "NX", "PX", "30000"};
    say(w, words, 6);
    w->state = ASKS;
}

static void release(struct worker *w) {
    const char *words[] = {"DEL", key};
    const char *tells[] = {"EVAL", "redis.call('PUBLISH', KEYS[2], '0') return redis.call('DEL', KEYS[1])", "2", key,
                           channel};
    wanted = false;
    for (long i = 0; i < worker_count; i++)
        wanted |= workers[i].state == ASKS || workers[i].state == SLEEPS;
    released_at = now_us();
    say(w, channel ? tells : words, channel ? 5 : 2);
    w->state = RELEASES;
}

/* A worker's time has come. */
static void go_on(struct worker *w, int64_t now) {
    if (w->state == RESTS)
        w->asked = now;
    if (w->state == WORKS)
        release(w);
    else
        ask(w);
}

static void sleep_for(struct worker *w, enum state state, int64_t until) {
    w->state = state;
    w->due = until;
}

static void answered(struct worker *w, int64_t now) {
    if (w->reply[0] == '-') {
        fprintf(stderr, "%.*s\n", (int)w->len, w->reply);
        exit(1);
    }
    bool yes = w->reply[0] == '+' || memcmp(w->reply, ":1", 2) == 0;
    if (w->state == RELEASES) {
        if (!yes)
            fprintf(stderr, "a release was refused\n");
        note(&sections, now - w->granted);
        sleep_for(w, RESTS, now + between_us);
    } else if (yes) {
        note(&waits, now - w->asked);
        if (wanted && released_at)
            note(&handovers, now - released_at);
        released_at = 0;
        w->turns++;
        w->granted = now;
        sleep_for(w, WORKS, now + work_us);
    } else {
        sleep_for(w, SLEEPS, now + poll_us);
    }
    w->len = 0;
}

/* The channel has told of something: all that sleep try again, as each would in a process of its own. */
static void told(int fd) {
    char text[4096];
    if (read(fd, text, sizeof(text)) <= 0)
        fail("read");
    int64_t now = now_us();
    for (long i = 0; i < worker_count; i++)
        if (workers[i].state == SLEEPS)
            workers[i].due = now;
}

static void readable(struct worker *w) {
    if (w->state == LISTENS) {
        told(w->fd);
        return;
    }
    ssize_t n = read(w->fd, w->reply + w->len, sizeof(w->reply) - w->len);
    if (n <= 0)
        fail("read");
    w->len += (size_t)n;
    if (w->len >= 2 && w->reply[w->len - 1] == '\n')
        answered(w, now_us());
}

static int connect_to(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
        fail("connect");
    return fd;
}

static int compare(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void show(const char *name, struct samples *s) {
    uint64_t sum = 0;
    if (s->count)
        qsort(s->us, s->count, sizeof(*s->us), compare);
    for (size_t i = 0; i < s->count; i++)
        sum += s->us[i];
    printf("\"%s\": {\"count\": %zu, \"mean\": %.1f, \"p50\": %u, \"p99\": %u, \"max\": %u}, ", name, s->count,
           s->count ? (double)sum / (double)s->count : 0., s->count ? s->us[s->count / 2] : 0,
           s->count ? s->us[s->count * 99 / 100] : 0, s->count ? s->us[s->count - 1] : 0);
}

static void run(int poller, int64_t until) {
    for (int64_t now = now_us(); now < until; now = now_us()) {
        int64_t next = until;
        for (long i = 0; i < worker_count; i++) {
            struct worker *w = &workers[i];
            if (w->due && w->due <= now)
                go_on(w, now);
            if (w->due && w->due < next)
                next = w->due;
        }
        int64_t in = next - now_us();
        struct timespec wait = {.tv_sec = in > 0 ? in / 1000000 : 0, .tv_nsec = in > 0 ? in % 1000000 * 1000 : 0};
        struct epoll_event events[64];
        int n = epoll_pwait2(poller, events, 64, &wait, NULL);
        if (n < 0 && errno != EINTR)
            fail("epoll");
        for (int i = 0; i < n; i++)
            readable(events[i].data.ptr);
    }
}

static long number(const char *text) {
    return strtol(text, NULL, 10);
}

int main(int argc, char **argv) {
    int ports[16], port_count = 0;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-' && port_count < 16)
            ports[port_count++] = (int)number(name);
        else if (i + 1 < argc && strcmp(name, "--workers") == 0)
            worker_count = number(argv[++i]);
        else if (i + 1 < argc && strcmp(name, "--work-us") == 0)
            work_us = number(argv[++i]);
        else if (i + 1 < argc && strcmp(name, "--between-us") == 0)
            between_us = number(argv[++i]);
        else if (i + 1 < argc && strcmp(name, "--poll-us") == 0)
            poll_us = number(argv[++i]);
        else if (i + 1 < argc && strcmp(name, "--seconds") == 0)
            seconds = number(argv[++i]);
        else if (i + 1 < argc && strcmp(name, "--key") == 0)
            key = argv[++i];
        else if (i + 1 < argc && strcmp(name, "--notify") == 0)
            channel = argv[++i];
        else
            port_count = -1;
        if (port_count < 0)
            break;
    }
    if (port_count <= 0 || !key || worker_count < 1 || worker_count > WORKERS_MAX || seconds < 1) {
        fprintf(stderr,
                "contend --workers N --work-us N --between-us N --poll-us N --seconds N --key KEY [--notify CHANNEL] "
                "PORT ...\n");
        return 2;
    }
    int poller = epoll_create1(0);
    int64_t begun = now_us();
    for (long i = 0; i < worker_count; i++) {
        struct worker *w = &workers[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
        w->fd = connect_to(ports[i % port_count]);
        epoll_ctl(poller, EPOLL_CTL_ADD, w->fd, &event);
        sleep_for(w, RESTS, begun + 1000 * i % 20000 + 1);
    }
    if (channel) {
        const char *words[] = {"SUBSCRIBE", channel};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
        listener.fd = connect_to(ports[0]);
        say(&listener, words, 2);
        listener.state = LISTENS;
        epoll_ctl(poller, EPOLL_CTL_ADD, listener.fd, &event);
    }
    run(poller, begun + seconds * 1000000);
    unsigned long total = 0;
    printf("{");
    show("waits", &waits);
    show("handovers", &handovers);
    show("sections", &sections);
    printf("\"turns\": [");
    for (long i = 0; i < worker_count; i++) {
        total += workers[i].turns;
        printf("%s%lu", i ? ", " : "", workers[i].turns);
    }
    printf("], \"acquired\": %lu, \"seconds\": %.3f}\n", total, (double)(now_us() - begun) / 1e6);
    return 0;
}
