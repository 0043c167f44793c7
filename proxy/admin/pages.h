/*
 * The pages of the operator's HTTP server: / /status.json /metrics /healthz /readyz.
 */
#pragma once

#include <stdbool.h>

#include "proxy/admin/http.h"
#include "proxy/admin/proxy_report.h"
#include "proxy/base/metric.h"

struct pages_source {
    struct admin_source admin;
    void *arg;
    void (*metrics)(void *arg, const struct metric_sink *sink);
    /* Returns what is missing before clients can be served (with `all`: before every key's node can be reached), as
     * part of a sentence; NULL: nothing. */
    const char *(*unready)(void *arg, bool all);
    /* Begins to gather the locks; http_gathered is called when admin.locks can show them. */
    void (*gather)(void *arg);
};

/* Opens the server for a listening socket, as http_open does, under the names of `options`; fills in the pages.
 * `source` is borrowed until the server is closed. */
struct http *pages_open(int listen_fd, struct pages_source *source, struct http_options *options);
