/*
 * The operator's HTTP server: reading only, served by libmicrohttpd on a loop of the caller's.
 *
 *      caller's loop: http_fd readable, or http_wait_ms over ──> http_run ──> libmicrohttpd ──> a page's function
 *
 * It knows paths and HTTP, and nothing of what the pages say.
 */
#ifndef LOCKKEEPER_ADMIN_HTTP_H
#define LOCKKEEPER_ADMIN_HTTP_H

#include <stddef.h>

#include "proxy/base/text.h"

struct http;

struct http_page {
    const char *path; /* "/metrics" */
    const char *type; /* Content-Type */
    /* Appends the body and returns the status: 200, or 503. */
    unsigned (*render)(void *arg, struct text *body);
};

/* Serves `pages` (borrowed, `count` of them) on a listening socket, which is given: http_close closes it. NULL if
 * libmicrohttpd can't start. */
struct http *http_open(int listen_fd, const struct http_page *pages, size_t count, void *arg);
/* A descriptor that is readable when http_run has something to do. */
int http_fd(const struct http *h);
/* The ms after which http_run wants to be called although nothing was readable; -1: never. */
long long http_wait_ms(struct http *h);
/* Answers the requests that have come, without waiting. */
void http_run(struct http *h);
/* Closes the server and its socket; NULL is allowed. */
void http_close(struct http *h);

#endif
