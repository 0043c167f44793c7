/*
 * What the files of proxy/session/waits/ share.
 */
#pragma once

#include "proxy/session/core/session.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/sending.h"
#include "proxy/session/waits/wait.h"

struct release_channels;

/* A worker's part in waiting. */
struct worker_waits {
    struct lock_waits calls;   /* must be the first field: worker->waits */
    struct list_node sessions; /* the waiting sessions of this worker, each a struct wait */
    struct ev_async wake;      /* wakes this worker when another thread has mail for a session that waits here */
    struct release_channels *release_channels; /* release_channel.c; NULL: no session of this worker has waited yet */
    bool serving; /* the waiting sessions are to be served at the end of this turn of the event loop */
};
static inline struct worker_waits *waits_of_worker(const struct worker *w) {
    return (struct worker_waits *)(void *)w->waits;
}

/* lock_release_channel_open subscribes to the releases at other proxies, for the lock in `slot` (release_channel.c). It
 * is first called when a session here begins to wait; lock_release_channel_close ends it when the worker stops. Returns
 * whether this call began to subscribe: a message that is sent before the node knows of the subscription is lost. */
bool lock_release_channel_open(struct worker *w, uint16_t slot);
void lock_release_channel_close(struct worker *w);
