/*
 * These calls are linked in place of the system's (--wrap), also in libev and hiredis.
 */
#include "tests/fuzz/system.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "proxy/net/resolve.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/node.h"

enum { NANOSECONDS = 1000000000 };

static bool clock_stands;
static struct timespec clock_base[2]; /* of CLOCK_REALTIME and CLOCK_MONOTONIC */
static int64_t passed_ms;

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __real_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len);
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);

struct resolve *__wrap_resolve_start(struct ev_loop *loop, const char *host, int port, resolve_fn done, void *arg);
void __wrap_resolve_cancel(struct resolve *r);

int __wrap_clock_gettime(clockid_t id, struct timespec *t) {
    if (!clock_stands)
        return __real_clock_gettime(id, t);
    *t = clock_base[id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE];
    int64_t ns = t->tv_nsec + passed_ms % 1000 * 1000000;
    t->tv_sec += passed_ms / 1000 + ns / NANOSECONDS;
    t->tv_nsec = ns % NANOSECONDS;
    return 0;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)to;
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    int end, flags = fcntl(fd, F_GETFD);
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0) { /* hiredis asks how it went */
        errno = EISCONN;
        return -1;
    }
    if (to->sa_family != AF_INET || in->sin_addr.s_addr != htonl(INADDR_LOOPBACK) ||
        nodes_connect(ntohs(in->sin_port), &end) != 0) {
        errno = ECONNREFUSED;
        return -1;
    }
    CHECK(dup3(end, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) == fd);
    close(end);
    return 0;
}

/* The nodes are no TCP. */
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
    return level == IPPROTO_TCP ? 0 : __real_setsockopt(fd, level, name, value, len);
}

/* There are no names to look up. */
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
    struct addrinfo numeric = hints ? *hints : (struct addrinfo){.ai_family = AF_UNSPEC};
    numeric.ai_flags |= AI_NUMERICHOST;
    return __real_getaddrinfo(host, port, &numeric, found);
}

struct resolve {
    struct ev_loop *loop;
    struct ev_timer later; /* of no delay */
    resolve_fn done;
    void *arg;
};

static void name_unknown(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct resolve *r = timer->data;
    r->done(r->arg, NULL, gai_strerror(EAI_NONAME));
    free(r);
}

/* Nor does a thread wait: all that happens follows from the input. */
struct resolve *__wrap_resolve_start(struct ev_loop *loop, const char *host, int port, resolve_fn done, void *arg) {
    struct resolve *r = malloc(sizeof *r);
    CHECK(r != NULL);
    *r = (struct resolve){.loop = loop, .done = done, .arg = arg};
    ev_timer_init(&r->later, name_unknown, 0., 0.);
    r->later.data = r;
    ev_timer_start(loop, &r->later);
    return r;
}

void __wrap_resolve_cancel(struct resolve *r) {
    if (!r)
        return;
    ev_timer_stop(r->loop, &r->later);
    free(r);
}

int system_connect(int fd, const struct sockaddr *to, socklen_t len) {
    return __real_connect(fd, to, len);
}

void system_stop_clock(void) {
    __real_clock_gettime(CLOCK_REALTIME, &clock_base[0]);
    __real_clock_gettime(CLOCK_MONOTONIC, &clock_base[1]);
    passed_ms = 0;
    clock_stands = true;
}

void system_pass(int64_t ms) {
    passed_ms += ms;
}

void system_start_clock(void) {
    clock_stands = false;
}
