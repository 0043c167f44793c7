/*
 * The operator's HTTP server on the first worker's loop: admin-bind and admin-port.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "proxy/admin/pages.h"
#include "proxy/config/config.h"
#include "proxy/worker/worker.h"

struct admin_server;

/* Begins to serve on a listening socket, which it takes over; the log says whether it does. `admin` is copied. unready:
 * as in struct pages_source. */
struct admin_server *admin_server_new(int fd, const struct config *config, struct worker *first,
                                      const struct admin_source *admin, const char *(*unready)(void *arg),
                                      void *unready_arg);
/* Ends the server: called in the loop's thread or after its end, before the worker is freed. NULL is allowed. */
void admin_server_close(struct admin_server *m);
