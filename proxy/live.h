/*
 * The configuration in force. A reload applies the changes that are possible while clients are served: all of them, or
 * none if the new configuration has an error.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/metric.h"
#include "proxy/config/config.h"
#include "proxy/start.h"
#include "proxy/session/core/shared.h"

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
    /* Raises the limit of descriptors for maxclients. Called for each new value; may lower
     * shared->maxclients. */
    void (*raise_limit)(void *arg, int64_t maxclients);
    void *arg;
};

/* Borrows everything but the configuration, to which it takes a reference. */
void live_init(struct live *l, int argc, char **argv, const struct config *config, struct secure *secure,
               struct proxy_shared *shared);
void live_clear(struct live *l);
/* Reads the configuration anew, and logs the result. False: there was an error, and nothing has changed. True: `said`
 * gets the names of the changed directives that need a restart, separated by blanks, as many as fit. Any thread may
 * call it; shared->reload is this function, with the struct live as its argument. */
bool live_reload(void *l, char *said, size_t size);
/* PROXY SWITCH: reads the configuration anew, and writes the address of its `upstream standalone` (`size` bytes). NULL,
 * or the error, static. live_switched notes that the address is the upstream now, and reloads. Any thread may call
 * them; `l` is the struct live. */
const char *live_next_upstream(void *l, char *address, size_t size);
void live_switched(void *l, const char *address);
/* Reports the directives whose names match (pattern NULL: all), with their values in force; passwords as "(set)". Any
 * thread may call it, with the struct live as its argument. */
void live_show(void *l, const char *pattern, size_t len, const struct report *report);
/* How long a leaving process serves its clients; how long a stop waits for requests in flight. */
int64_t live_shutdown_ms(struct live *l);
int64_t live_finish_ms(struct live *l);
