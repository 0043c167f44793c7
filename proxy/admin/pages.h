/*
 * The operator's HTTP server: / /status.json /metrics /healthz /readyz, read-only, served by libmicrohttpd on the
 * caller's loop.
 *
 *      caller's loop: pages_fd readable, or pages_wait_ms over ──> pages_run ──┬─> new connections, a few at a time
 *                                                                              ├─> libmicrohttpd ──> a page
 *                                                                              └─> connections that are given up
 *
 * Every connection is accepted. If one address, or all together, have too many connections, the oldest connection of
 * the address with most is closed. A normal request is answered long before that. A client that sends byte by byte, or
 * does not read, is closed first, and after 10 s in any case. A connection serves one request.
 *
 * The Host of a request has to be an address, localhost, or a name of this machine. Otherwise a foreign web page could
 * read the pages, if its name was made to point to this address (DNS rebinding).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/proxy_report.h"
#include "proxy/base/metric.h"

struct pages;

struct pages_source {
    struct admin_source admin;
    const char *const *names; /* under which the server is known, borrowed; if "*" is among them, any */
    size_t name_count;
    void *arg;
    void (*metrics)(struct worker *w, const struct metric_sink *sink); /* w: that of `admin` */
    /* Returns what is missing before clients can be served (with `all`: before every key's node can be reached), as
     * part of a sentence; NULL: nothing. */
    const char *(*unready)(void *arg, bool all);
    /* Begins to gather the leases for the status page. pages_gathered must be called in a later turn, not from
     * pages_run; all requests for the page wait for it. */
    void (*gather)(void *arg);
};

/* Serves on a listening socket and takes it over: pages_close closes it. `source` is copied. NULL if libmicrohttpd
 * can't start; then the caller still owns the socket. */
struct pages *pages_open(int listen_fd, const struct pages_source *source);
/* A descriptor that is readable when pages_run has something to do. */
int pages_fd(const struct pages *p);
/* After how many ms pages_run must be called even if nothing is readable; -1: never. */
long long pages_wait_ms(struct pages *p);
/* Answers requests that have come, without blocking. */
void pages_run(struct pages *p);
/* Renders the status page, whose leases `admin` can show now, for all waiting requests. pages_run must be called next,
 * and sends it. */
void pages_gathered(struct pages *p);
/* Closes the server and its socket. */
void pages_close(struct pages *p);
/* Whether `host` ("proxy1:9090", "[::1]", "127.0.0.1:9090") is an address, localhost, this machine's own name, or one
 * of `names`, in any case and with any port. If "*" is among the names, every host is accepted. An address is always
 * safe: the name of a foreign web page can be made to point here, an address can't. */
bool host_is_ours(const char *host, const char *const *names, size_t count);
