/*
 * What the files of proxy/session/waits/ share.
 */
#pragma once

#include "proxy/session/core/session.h"
#include "proxy/session/locks/call_finish.h"
#include "proxy/session/locks/leases.h"
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

/* ---- release_channel.c ---- */

/* lock_release_channel_open subscribes to the releases at other proxies, for the lock in `slot`. It
 * is first called when a session here begins to wait; lock_release_channel_close ends it when the worker stops. Returns
 * whether this call began to subscribe: a message that is sent before the node knows of the subscription is lost. */
bool lock_release_channel_open(struct worker *w, uint16_t slot);
void lock_release_channel_close(struct worker *w);

/* ---- lock_wait.c: attempts that are held until the lock is free ---- */

/* Holds an attempt, under a rule with `wait`, that the script has answered with `e`. False: the attempt does not wait.
 */
bool lock_wait(struct call *c, struct lock_call *l, const struct lock_envelope *e);
/* Holds an attempt that was not sent yet, if other sessions are waiting before it. False: the attempt does not wait. */
bool lock_wait_behind(struct call *c, struct lock_call *l);
/* Allocates the wait of the request's attempt, and keeps these arguments (NULL: none): struct lock_waits. */
void lock_wait_keep(struct request *r, const struct lock_call *l, const struct lock_words *words);
/* The functions that struct session_room calls. */
void lock_waits_open(struct worker *w);
void lock_waits_close(struct worker *w);
void lock_waits_rules(struct worker *w);
void lock_wait_speaks(struct session *s);
/* A session has closed. */
void lock_wait_leaves(struct session *s);
