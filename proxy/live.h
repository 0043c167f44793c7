/*
 * The configuration that is in force: a reload brings a new one in, as far as that can be done while clients are
 * served, all of it or, where anything is wrong, nothing.
 */
#ifndef LOCKKEEPER_LIVE_H
#define LOCKKEEPER_LIVE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "proxy/base/report.h"
#include "proxy/config/config.h"
#include "proxy/secure.h"
#include "proxy/session/core/shared.h"

struct live {
    pthread_mutex_t mutex; /* of what follows */
    int argc;
    char **argv;
    struct config *config; /* what is in force */
    struct secure *secure;
    struct proxy_shared *shared;
    /* Has the system give what maxclients needs; called with each new value, and may set options.maxclients lower. */
    void (*raise_limit)(void *arg, int64_t maxclients);
    void *arg;
};

/* Borrows everything. shared->options has what sessions need of the configuration already. */
void live_init(struct live *l, int argc, char **argv, struct config *config, struct secure *secure,
               struct proxy_shared *shared);
void live_clear(struct live *l);
/* Reads the configuration anew, and tells the log what came of it. False: something is wrong, and nothing was changed.
 * True: `said` has the names of the directives that have changed and need a restart, with blanks between them, as many
 * as fit. Any thread may call it, as shared->reload with the struct live as its argument. */
bool live_reload(void *l, char *said, size_t size);
/* Reports the directives whose names match (pattern NULL: all), and their values that are in force; passwords as
 * "(set)". Any thread may call it, for the struct live. */
void live_show(void *l, const char *pattern, size_t len, const struct report *report);
/* How long clients are served by a process that leaves, and how long a stop may wait for what is in flight. */
int64_t live_shutdown_ms(struct live *l);
int64_t live_finish_ms(struct live *l);

#endif
