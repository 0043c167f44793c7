/*
 * Broadcasts: work that concerns the clients of all threads. A broadcast visits each worker in that worker's own
 * thread, one after another, so that nothing it carries is touched by two threads at once, and ends where it began.
 */
#ifndef LOCKKEEPER_SESSION_CORE_BROADCAST_H
#define LOCKKEEPER_SESSION_CORE_BROADCAST_H

#include <pthread.h>
#include <stdbool.h>

#include "proxy/base/list.h"

struct worker;

/* A broadcast, embedded in what it carries. Private but for `home`. */
struct broadcast {
    struct worker *home;
    struct list_node link;    /* in a mailbox */
    struct list_node at_home; /* in home's broadcasts */
    bool stays;               /* set by `visit`: it goes on with broadcast_leave */
    unsigned next;            /* the worker to be visited next */
    void (*visit)(struct broadcast *t, struct worker *w);
    void (*done)(struct broadcast *t);
};

/* A worker's mailbox: broadcasts that have arrived, and those that began here. */
struct broadcast_inbox {
    pthread_mutex_t mutex;
    struct list_node arrived;
    bool closed;
    struct list_node begun;
};

/* Begins a broadcast from a callback of the home worker: `visit` is called for every worker (home first), `done` at
 * home, at once where there is one thread. The broadcast is the callee's of `done` again. */
void broadcast_start(struct broadcast *t, struct worker *home, void (*visit)(struct broadcast *t, struct worker *w),
                     void (*done)(struct broadcast *t));

/* The visit to w is over, which had set `stays`: from w's thread, in a later callback. */
void broadcast_leave(struct broadcast *t, struct worker *w);

void broadcast_inbox_init(struct broadcast_inbox *inbox);
/* Runs what has arrived at the worker, which was woken for it, and sends it on. */
void broadcast_arrivals(struct worker *w);
/* Closes the mailbox of a worker whose loop has ended: what comes from now on passes it by. */
void broadcast_inbox_close(struct worker *w);
/* Ends the broadcasts that began here (`done` is called), when all threads have ended. */
void broadcast_inbox_clear(struct worker *w);

#endif
