/*
 * What sentinel.c (which node is the master) and watch.c (subscriptions to Sentinels) share. Private to
 * proxy/upstream/.
 */
#ifndef LOCKKEEPER_UPSTREAM_SENTINEL_H
#define LOCKKEEPER_UPSTREAM_SENTINEL_H

#include "proxy/upstream/topology.h"

enum { SENTINELS_MAX = 32 };

/* A subscription to a Sentinel, made anew whenever it is lost. */
struct sentinel_watch {
    struct sentinel *sentinel;
    struct address at;
    bool known;             /* configured, or named by the Sentinel that answered last */
    redisAsyncContext *ctx; /* NULL: not connecting, or its name is being looked up */
    struct resolve *lookup; /* NULL: it is not */
    struct found found;     /* what its name means: tried one after the other */
    bool subscribed;
    ev_timer timer; /* connecting: the limit; not connected: when to try again */
    unsigned failures;
};

struct sentinel {
    struct topology topology; /* first */
    struct sentinel_watch *watches[SENTINELS_MAX];
    size_t watch_count;
    struct address first; /* the Sentinel to ask first, with has_first */
    bool has_first;
    struct address named; /* the master, as the Sentinel being asked has it */
    uint64_t named_epoch; /* its configuration epoch, 0: not known */
    uint64_t epoch;       /* of the master in use */
};

/* A Sentinel has announced another master. */
void sentinel_switched(struct sentinel *s, const struct address *by);

/* Begins to subscribe. */
struct sentinel_watch *watch_new(struct sentinel *s, const struct address *at);
void watch_free(struct sentinel_watch *w);
/* "up", "connecting", "down" */
const char *watch_state(const struct sentinel_watch *w);

#endif
