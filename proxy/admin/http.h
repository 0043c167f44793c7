/*
 * The operator's HTTP server: reading only, served by libmicrohttpd on a loop of the caller's.
 *
 *      caller's loop: http_fd readable, or http_wait_ms over ──> http_run ──┬─> new connections, a few at a time
 *                                                                           ├─> libmicrohttpd ──> a page's function
 *                                                                           └─> connections that are given up
 *
 * Whoever comes is let in: where there are too many connections, of one address or in all, the oldest one goes, of the
 * address that has most. A request that is sent at once is answered long before that; who sends it byte by byte, or
 * does not read the answer, is given up first, and after 10 s in any case. A connection serves one request.
 *
 * The Host that a request names has to be an address, localhost, or a name of this machine, so that a foreign web page
 * whose name was made to mean this address can't read what is here (DNS rebinding).
 *
 * It knows paths and HTTP, and nothing of what the pages say.
 */
#ifndef LOCKKEEPER_ADMIN_HTTP_H
#define LOCKKEEPER_ADMIN_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/text.h"

struct http;

struct http_page {
    const char *path;  /* "/metrics" */
    const char *query; /* what the request's query has to have, as "all" in /readyz?all; NULL: nothing */
    const char *type;  /* Content-Type */
    /* Appends the body and returns the status: 200, or 503. */
    unsigned (*render)(void *arg, struct text *body);
    /* Begins to gather what the page shows; http_gathered is to be called in a later turn, and not from http_run. All
     * who come meanwhile wait for it. NULL: there is nothing to be gathered. At most one of the pages has it. */
    void (*gather)(void *arg);
};

struct http_options {
    const struct http_page *pages; /* borrowed */
    size_t count;
    void *arg;                /* the pages' */
    const char *const *names; /* names under which the server is known, borrowed; "*" among them: any */
    size_t name_count;
};

/* Serves on a listening socket, which is given: http_close closes it. NULL if libmicrohttpd can't start; then the
 * socket is the caller's still. */
struct http *http_open(int listen_fd, const struct http_options *options);
/* A descriptor that is readable when http_run has something to do. */
int http_fd(const struct http *h);
/* The ms after which http_run wants to be called although nothing was readable; -1: never. */
long long http_wait_ms(struct http *h);
/* Answers the requests that have come, without waiting. */
void http_run(struct http *h);
/* Renders the page whose gathering was begun, for all who wait for it; http_run, which is to be called then, sends it.
 */
void http_gathered(struct http *h);
/* Closes the server and its socket; NULL is allowed. */
void http_close(struct http *h);

#endif
