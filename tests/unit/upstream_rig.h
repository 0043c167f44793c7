/*
 * The rig of test_upstream.c: real redis-server processes, misbehaving nodes (in the test's own loop), the loop itself,
 * and requests that store their results. Tests wait for conditions, with a deadline.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "parser/resp.h"
#include "parser/slot.h"
#include "proxy/base/log.h"
#include "proxy/net/readable.h"
#include "proxy/upstream/upstream.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses a part of it */

enum { DEADLINE_MS = 30000 };

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(void) {
    struct timespec t = {0, 5 * 1000 * 1000};
    nanosleep(&t, NULL);
}

/* ---- real servers ---- */

struct redis {
    pid_t pid;
    int port, bus_port;
    char address[32], folder[64], socket[96];
    bool cluster;
    redisContext *control;
};

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    close(fd);
    return ntohs(a.sin_port);
}

static void redis_connect(struct redis *s) {
    int64_t deadline = now_ms() + DEADLINE_MS;
    for (;;) {
        struct timeval limit = {5, 0};
        s->control = redisConnectWithTimeout("127.0.0.1", s->port, limit);
        if (s->control && !s->control->err) {
            redisReply *reply = redisCommand(s->control, "PING");
            bool up = reply && reply->type == REDIS_REPLY_STATUS;
            if (reply)
                freeReplyObject(reply);
            if (up)
                return;
        }
        if (s->control)
            redisFree(s->control);
        s->control = NULL;
        if (now_ms() > deadline)
            fail_msg("redis-server on port %d did not start", s->port);
        nap();
    }
}

/* (Re)starts the server on its port. */
static void redis_boot(struct redis *s) {
    static const char *common[] = {"--save", "", "--appendonly", "no", "--enable-debug-command", "yes", NULL};
    static const char *clustered[] = {"--cluster-enabled",
                                      "yes",
                                      "--cluster-node-timeout",
                                      "3000",
                                      "--cluster-require-full-coverage",
                                      "no",
                                      "--repl-diskless-sync-delay",
                                      "0",
                                      NULL};
    char port[16], bus[16];
    snprintf(port, sizeof(port), "%d", s->port);
    snprintf(bus, sizeof(bus), "%d", s->bus_port);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        const char *args[32] = {"redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", s->folder};
        int n = 7;
        for (const char **p = common; *p; p++)
            args[n++] = *p;
        args[n++] = s->cluster ? "--cluster-port" : "--unixsocket";
        args[n++] = s->cluster ? bus : s->socket;
        for (const char **p = clustered; s->cluster && *p; p++)
            args[n++] = *p;
        execvp("redis-server", (char *const *)(uintptr_t)args);
        _exit(127);
    }
    redis_connect(s);
}

static void redis_start(struct redis *s, bool cluster) {
    memset(s, 0, sizeof(*s));
    s->cluster = cluster;
    s->port = free_port();
    s->bus_port = free_port();
    snprintf(s->address, sizeof(s->address), "127.0.0.1:%d", s->port);
    snprintf(s->folder, sizeof(s->folder), "/tmp/test_upstream.XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->socket, sizeof(s->socket), "%s/redis.sock", s->folder);
    redis_boot(s);
}

static void redis_kill(struct redis *s) {
    if (s->control)
        redisFree(s->control);
    s->control = NULL;
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    s->pid = 0;
}

static void redis_stop(struct redis *s) {
    redis_kill(s);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", s->folder);
    if (system(command) != 0)
        fprintf(stderr, "%s stays behind\n", s->folder);
}

/* Runs a command on a server beside the upstream; the reply is the caller's. */
static redisReply *redis_do(struct redis *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = redisvCommand(s->control, format, args);
    va_end(args);
    if (!reply)
        fail_msg("%s on port %d: %s", format, s->port, s->control->errstr);
    return reply;
}

#define REDIS_OK_REPLY(...)                                                                                            \
    do {                                                                                                               \
        redisReply *reply_ = redis_do(__VA_ARGS__);                                                                    \
        if (reply_->type == REDIS_REPLY_ERROR)                                                                         \
            fail_msg("%s", reply_->str);                                                                               \
        freeReplyObject(reply_);                                                                                       \
    } while (0)

static long long redis_number(struct redis *s, const char *command) {
    redisReply *reply = redis_do(s, command);
    assert_int_equal(reply->type, REDIS_REPLY_INTEGER);
    long long n = reply->integer;
    freeReplyObject(reply);
    return n;
}

static void redis_text(struct redis *s, const char *command, char *out, size_t size) {
    redisReply *reply = redis_do(s, command);
    snprintf(out, size, "%s", reply->str ? reply->str : "");
    freeReplyObject(reply);
}

/* Waits until the text of a reply contains something. */
static void redis_await(struct redis *s, const char *command, const char *part) {
    int64_t deadline = now_ms() + DEADLINE_MS;
    for (;;) {
        redisReply *reply = redis_do(s, command);
        bool found = reply->str && strstr(reply->str, part);
        freeReplyObject(reply);
        if (found)
            return;
        if (now_ms() > deadline)
            fail_msg("port %d: %s never said %s", s->port, command, part);
        nap();
    }
}

/* ---- the loop ---- */

struct rig {
    struct ev_loop *loop;
    struct readable readable;
    struct chunk_pool pool;
    struct upstream_config config;
    const char *addresses[4];
    struct upstream *u;
    ev_prepare prepare;
    bool hold; /* nothing is flushed */
    bool ready;
    char ready_error[512];
};

static void rig_prepare(struct ev_loop *loop, ev_prepare *w, int revents) {
    struct rig *rig = w->data;
    if (rig->u && !rig->hold)
        upstream_flush(rig->u);
}

static void rig_ready(void *arg, const char *error) {
    struct rig *rig = arg;
    assert_false(rig->ready);
    rig->ready = true;
    snprintf(rig->ready_error, sizeof(rig->ready_error), "%s", error ? error : "");
}

static void rig_open(struct rig *rig, enum upstream_kind kind, const char *address) {
    memset(rig, 0, sizeof(*rig));
    rig->loop = ev_loop_new(0);
    readable_init(&rig->readable, rig->loop);
    chunk_pool_init(&rig->pool, 64);
    rig->addresses[0] = address;
    rig->config = (struct upstream_config){
        .kind = kind, .addresses = rig->addresses, .address_count = 1, .connections = 1, .timeout_ms = 3000};
    ev_prepare_init(&rig->prepare, rig_prepare);
    rig->prepare.data = rig;
    ev_prepare_start(rig->loop, &rig->prepare);
}

static void rig_start(struct rig *rig) {
    struct upstream_events events = {.arg = rig, .ready = rig_ready};
    rig->u = upstream_new(rig->loop, &rig->readable, &rig->config, &rig->pool, &events);
    assert_non_null(rig->u);
}

static void rig_close(struct rig *rig) {
    if (rig->u)
        upstream_free(rig->u);
    ev_prepare_stop(rig->loop, &rig->prepare);
    chunk_pool_clear(&rig->pool);
    assert_int_equal(rig->pool.total_bytes, 0); /* every request gave its bytes back */
    readable_clear(&rig->readable);
    ev_loop_destroy(rig->loop);
}

static void rig_wake(struct ev_loop *loop, ev_timer *w, int revents) {
}

/* Runs one turn of the loop, of at most 10 ms. */
static void rig_turn(struct rig *rig) {
    ev_timer limit;
    ev_timer_init(&limit, rig_wake, 0.01, 0.);
    ev_now_update(rig->loop);
    ev_timer_start(rig->loop, &limit);
    ev_run(rig->loop, EVRUN_ONCE);
    ev_timer_stop(rig->loop, &limit);
}

#define AWAIT(rig, condition)                                                                                          \
    do {                                                                                                               \
        int64_t deadline_ = now_ms() + DEADLINE_MS;                                                                    \
        while (!(condition)) {                                                                                         \
            rig_turn(rig);                                                                                             \
            if (now_ms() > deadline_)                                                                                  \
                fail_msg("line %d: never came true: %s", __LINE__, #condition);                                        \
        }                                                                                                              \
    } while (0)

static void rig_run_ms(struct rig *rig, int64_t ms) {
    int64_t end = now_ms() + ms;
    while (now_ms() < end)
        rig_turn(rig);
}

/* ---- requests ---- */

struct call {
    struct upstream_request r;
    char *reply;
    size_t reply_len;
    unsigned parts, redirects;
    bool done, failed;
    enum upstream_failure why;
    char error[512];
    unsigned order; /* in which it ended */
    void (*hook)(struct call *c);
    void *hook_arg;
};

static unsigned call_order;

static void call_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct call *c = (struct call *)(void *)r;
    assert_false(c->done);
    c->reply = realloc(c->reply, c->reply_len + len + 1);
    memcpy(c->reply + c->reply_len, data, len);
    c->reply_len += len;
    c->reply[c->reply_len] = '\0';
    c->parts++;
    if (last) {
        assert_false(r->in_flight);
        c->done = true;
        c->order = ++call_order;
    }
    if (c->hook)
        c->hook(c);
}

static void call_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    struct call *c = (struct call *)(void *)r;
    assert_false(c->done);
    assert_false(r->in_flight);
    c->done = c->failed = true;
    c->why = why;
    snprintf(c->error, sizeof(c->error), "%s", error);
    c->order = ++call_order;
    if (c->hook)
        c->hook(c);
}

static void call_redirected(struct upstream_request *r) {
    ((struct call *)(void *)r)->redirects++;
}

static const struct upstream_request_ops call_ops = {
    .reply = call_reply, .fail = call_fail, .redirected = call_redirected};
static const struct upstream_lane plain_lane = {.login = 0, .db = 0, .protocol = 2};

static void call_init(struct call *c) {
    memset(c, 0, sizeof(*c));
    c->r.ops = &call_ops;
}

static void call_clear(struct call *c) {
    free(c->reply);
    c->reply = NULL;
}

/* Writes a multibulk of words; returns its length. */
static size_t encode(char *out, size_t size, const char *first, va_list args) {
    const char *words[16];
    size_t n = 0, len;
    for (const char *w = first; w; w = va_arg(args, const char *))
        words[n++] = w;
    len = (size_t)snprintf(out, size, "*%zu\r\n", n);
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(out + len, size - len, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    assert_true(len < size);
    return len;
}

/* Submits a command; its second word is the key where `keyed`. NULL or the error. */
static const char *call_try(struct rig *rig, struct call *c, const struct upstream_lane *lane, int slot,
                            const char *first, ...) {
    char bytes[16384];
    va_list args;
    va_start(args, first);
    size_t len = encode(bytes, sizeof(bytes), first, args);
    va_end(args);
    return upstream_submit(rig->u, &c->r, slot, lane, bytes, len);
}

#define CALL_ON(rig, c, lane, slot, ...)                                                                               \
    do {                                                                                                               \
        call_init(c);                                                                                                  \
        const char *refused_ = call_try(rig, c, lane, slot, __VA_ARGS__, NULL);                                        \
        if (refused_)                                                                                                  \
            fail_msg("line %d: %s", __LINE__, refused_);                                                               \
    } while (0)
#define CALL(rig, c, slot, ...) CALL_ON(rig, c, &plain_lane, slot, __VA_ARGS__)

#define ASSERT_REPLY(c, text)                                                                                          \
    do {                                                                                                               \
        if ((c)->failed)                                                                                               \
            fail_msg("line %d: failed: %s", __LINE__, (c)->error);                                                     \
        assert_true((c)->done);                                                                                        \
        assert_string_equal((c)->reply, text);                                                                         \
    } while (0)

#define ASSERT_FAILED(c, reason, text)                                                                                 \
    do {                                                                                                               \
        assert_true((c)->done);                                                                                        \
        if (!(c)->failed)                                                                                              \
            fail_msg("line %d: answered: %s", __LINE__, (c)->reply);                                                   \
        assert_string_equal((c)->error, text);                                                                         \
        assert_int_equal((c)->why, reason);                                                                            \
    } while (0)

/* Runs one command to its end and compares the reply. */
#define EXPECT(rig, slot, text, ...)                                                                                   \
    do {                                                                                                               \
        struct call once_;                                                                                             \
        CALL(rig, &once_, slot, __VA_ARGS__);                                                                          \
        AWAIT(rig, once_.done);                                                                                        \
        ASSERT_REPLY(&once_, text);                                                                                    \
        call_clear(&once_);                                                                                            \
    } while (0)

/* ---- nodes that misbehave ---- */

enum { FAKE_CONNS = 32 };

struct fake;

struct fake_conn {
    struct fake *fake;
    int fd;
    ev_io io;
    unsigned requests; /* reads so far */
};

struct fake {
    struct rig *rig;
    int fd, port;
    char address[64];
    ev_io io;
    struct fake_conn conns[FAKE_CONNS];
    unsigned accepted, moved;
    /* What came in one read. */
    void (*data)(struct fake_conn *c, const char *data, size_t len);
    void (*greet)(struct fake_conn *c);
    const char *answer;
    char slots[512]; /* the reply to CLUSTER SLOTS */
};

static void fake_say(struct fake_conn *c, const char *text) {
    assert_int_equal(send(c->fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void fake_hang_up(struct fake_conn *c) {
    if (c->fd < 0)
        return;
    ev_io_stop(c->fake->rig->loop, &c->io);
    close(c->fd);
    c->fd = -1;
}

static void fake_read(struct ev_loop *loop, ev_io *w, int revents) {
    struct fake_conn *c = w->data;
    static char bytes[65537];
    ssize_t n = read(c->fd, bytes, sizeof(bytes) - 1);
    if (n <= 0) {
        fake_hang_up(c);
        return;
    }
    bytes[n] = '\0';
    c->requests++;
    if (strstr(bytes, "SLOTS\r\n"))
        fake_say(c, c->fake->slots);
    else
        c->fake->data(c, bytes, (size_t)n);
}

static void fake_accept(struct ev_loop *loop, ev_io *w, int revents) {
    struct fake *f = w->data;
    int fd = accept(f->fd, NULL, NULL);
    if (fd < 0)
        return;
    struct fake_conn *c = &f->conns[f->accepted++ % FAKE_CONNS];
    if (c->fake)
        fake_hang_up(c);
    c->fake = f;
    c->fd = fd;
    c->requests = 0;
    ev_io_init(&c->io, fake_read, fd, EV_READ);
    c->io.data = c;
    ev_io_start(loop, &c->io);
    if (f->greet)
        f->greet(c);
}

static void fake_answer(struct fake_conn *c, const char *data, size_t len) {
    fake_say(c, c->fake->answer);
}

/* A node on a free port; a cluster's only master, if it is asked. */
static void fake_open(struct fake *f, struct rig *rig, const char *answer) {
    memset(f, 0, sizeof(*f));
    f->rig = rig;
    f->answer = answer;
    f->data = fake_answer;
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(f->fd, 64), 0);
    assert_int_equal(getsockname(f->fd, (struct sockaddr *)&a, &len), 0);
    f->port = ntohs(a.sin_port);
    snprintf(f->address, sizeof(f->address), "127.0.0.1:%d", f->port);
    snprintf(f->slots, sizeof(f->slots), "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n", f->port);
    ev_io_init(&f->io, fake_accept, f->fd, EV_READ);
    f->io.data = f;
    ev_io_start(rig->loop, &f->io);
}

static void fake_close(struct fake *f) {
    for (size_t i = 0; i < FAKE_CONNS; i++)
        if (f->conns[i].fake)
            fake_hang_up(&f->conns[i]);
    ev_io_stop(f->rig->loop, &f->io);
    close(f->fd);
}
