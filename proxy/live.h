/*
 * The configuration in force. --test-conf and a start try whether the system provides what it needs, before anything
 * changes. A reload applies the changes that are possible while clients are served: all of them, or none if the new
 * configuration has an error.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/metric.h"
#include "proxy/config/config.h"
#include "proxy/net/tls.h"
#include "proxy/session/core/shared.h"

struct secure {
    struct tls_context *clients, *nodes, *witnesses; /* NULL: plain */
};

/* Loads the files that the configuration names, and then overwrites its passphrases. False: all errors were added to
 * `errors`, and nothing was kept. */
bool secure_load(struct secure *s, struct config *config, struct config_errors *errors)
    __attribute__((warn_unused_result));
void secure_clear(struct secure *s);

/* Tries each step of a start (certificates, addresses and ports, the log, the pid file, the embedded redis-server) and
 * leaves nothing behind. All errors are added to `errors`, without those that follow from others. `ports` false: ports
 * are not tried, since sockets were passed to the process. True if there is no error at all. */
bool live_check(const struct config *config, bool ports, struct config_errors *errors);

/* Reports each host name of upstream and witness that does not resolve here and now. */
void live_look_up(const struct config *config, void (*tell)(const char *text));

/* Raises the limit of descriptors to the number that maxclients and the nodes need. If the system permits fewer, fewer
 * clients are allowed (shared->maxclients), as in Redis. Called at the start, and when a reload changes maxclients. */
void live_raise_limit(struct proxy_shared *shared, const struct config *config, int64_t maxclients);

struct live {
    pthread_mutex_t mutex; /* guards the following fields */
    int argc;
    char **argv;
    const struct config *config;           /* in force; a reload replaces it */
    char *switched;                        /* the upstream's address since PROXY SWITCH; NULL: there was none */
    const struct config *witnesses_before; /* has the witnesses before their last change; NULL: there was none */
    int64_t witnesses_again_ms;            /* when there may be another change */
    struct secure *secure;
    struct proxy_shared *shared;
};

/* Borrows everything but the configuration, to which it takes a reference. */
void live_init(struct live *l, int argc, char **argv, const struct config *config, struct secure *secure,
               struct proxy_shared *shared);
void live_clear(struct live *l);
/* Reads the configuration anew, and logs the result. False: there was an error, and nothing has changed. True: `said`
 * (NULL: not wanted) gets the names of the changed directives that need a restart, separated by blanks, as many as
 * fit. Any thread may call it; shared->reload is this function, with the struct live as its argument. */
bool live_reload(void *l, char *said, size_t size);
/* PROXY SWITCH: reads the configuration anew, and writes the address of its `upstream standalone`. NULL, or the error,
 * static. live_switched notes that the address is the upstream now, and reloads. Any thread may call them. */
const char *live_next_upstream(void *l, char *address, size_t size);
void live_switched(void *l, const char *address);
/* Reports the directives whose names match the report's pattern, with their values in force; passwords as "(set)". From
 * any thread. */
void live_show(void *l, const struct report *report);
