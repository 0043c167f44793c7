/*
 * The operator's HTTP server: read-only, served by libmicrohttpd on the caller's loop.
 *
 *      caller's loop: http_fd readable, or http_wait_ms over ──> http_run ──┬─> new connections, a few at a time
 *                                                                           ├─> libmicrohttpd ──> a page's function
 *                                                                           └─> connections that are given up
 *
 * Every connection is accepted. If one address, or all together, have too many connections, the oldest connection of
 * the address with most is closed. A normal request is answered long before that. A client that sends byte by byte, or
 * does not read, is closed first, and after 10 s in any case. A connection serves one request.
 *
 * The Host of a request has to be an address, localhost, or a name of this machine. Otherwise a foreign web page could
 * read the pages, if its name was made to point to this address (DNS rebinding).
 *
 * It knows paths and HTTP, but not the contents of the pages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/text.h"

struct http;

struct http_page {
    const char *path;  /* "/metrics" */
    const char *query; /* a word that the request's query must contain, as "all" in /readyz?all; NULL: none */
    const char *type;  /* Content-Type */
    /* Appends the body and returns the status: 200, or 503. */
    unsigned (*render)(void *arg, struct text *body);
    /* Begins to gather the page's facts. http_gathered must be called in a later turn, not from http_run; all requests
     * for the page wait for it. NULL: there is nothing to gather. At most one page has it. */
    void (*gather)(void *arg);
};

struct http_options {
    const struct http_page *pages; /* borrowed */
    size_t count;
    void *arg;                /* passed to the pages' functions */
    const char *const *names; /* names under which the server is known, borrowed; if "*" is among them, any */
    size_t name_count;
};

/* Serves on a listening socket and takes it over: http_close closes it. NULL if libmicrohttpd can't start; then the
 * caller still owns the socket. */
struct http *http_open(int listen_fd, const struct http_options *options);
/* A descriptor that is readable when http_run has something to do. */
int http_fd(const struct http *h);
/* After how many ms http_run must be called even if nothing is readable; -1: never. */
long long http_wait_ms(struct http *h);
/* Answers requests that have come, without blocking. */
void http_run(struct http *h);
/* Renders the page whose facts have been gathered, for all waiting requests. http_run must be called next, and sends
 * it. */
void http_gathered(struct http *h);
/* Closes the server and its socket; NULL is allowed. */
void http_close(struct http *h);
/* Whether `host` ("proxy1:9090", "[::1]", "127.0.0.1:9090") is an address, localhost, this machine's own name, or one
 * of `names`, in any case and with any port. If "*" is among the names, every host is accepted. An address is always
 * safe: the name of a foreign web page can be made to point here, an address can't. */
bool host_is_ours(const char *host, const char *const *names, size_t count);
