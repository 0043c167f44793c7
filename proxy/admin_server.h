/*
 * The operator's HTTP server on the first worker's loop: admin-bind and admin-port.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/pages.h"
#include "proxy/config/config.h"
#include "proxy/listen.h"
#include "proxy/worker/worker.h"

struct admin_server;

/* Opens the port, or takes it from the inherited sockets, after those for clients. Call it before any thread starts, so
 * that a port in use is an error at start. NULL: errors were added to `errors`, or `set` is a trial and the port is in
 * use. admin_port must not be 0. */
struct admin_server *admin_server_open(struct listen_set *set, const struct config *config,
                                       struct config_errors *errors);
/* The listening socket, to pass to another process; borrowed. */
int admin_server_socket(const struct admin_server *m);
/* Begins to serve; `admin` is copied. unready: as in struct pages_source. The log says whether it did. */
void admin_server_start(struct admin_server *m, struct worker *first, const struct admin_source *admin,
                        const char *(*unready)(void *arg), void *unready_arg);
/* Ends the server: called in the loop's thread or after its end, before the worker is freed. NULL is allowed. */
void admin_server_close(struct admin_server *m);
