/*
 * Broadcasts: work that concerns the clients of all threads. A broadcast visits one worker after another, each in its
 * own thread, and ends at the worker where it began. So no two threads touch its data at once.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "proxy/base/list.h"

struct worker;

/* A broadcast, embedded in the structure with its data. All fields but `home` are private. */
struct broadcast {
    struct worker *home;
    struct list_node link;    /* in a mailbox */
    struct list_node at_home; /* in the home worker's list of broadcasts */
    bool stays;               /* set by `visit`: the visit continues until broadcast_leave */
    unsigned next;            /* the index of the next worker */
    void (*visit)(struct broadcast *t, struct worker *w);
    void (*done)(struct broadcast *t);
};

/* A worker's mailbox: broadcasts that have arrived, and those that it has started. */
struct broadcast_inbox {
    pthread_mutex_t mutex;
    struct list_node arrived;
    bool closed;
    struct list_node begun;
};

/* Starts a broadcast from a callback of the home worker: `visit` is called for every worker (home first), then `done`
 * at home, at once if there is only one thread. When `done` is called, its callee owns the broadcast again. */
void broadcast_start(struct broadcast *t, struct worker *home, void (*visit)(struct broadcast *t, struct worker *w),
                     void (*done)(struct broadcast *t));

/* Ends a visit to w for which `visit` had set `stays`. To be called from w's thread, in a later callback. */
void broadcast_leave(struct broadcast *t, struct worker *w);

void broadcast_inbox_init(struct broadcast_inbox *inbox);
/* Runs the broadcasts that have arrived at the worker, and sends them on. Called when the worker was woken. */
void broadcast_arrivals(struct worker *w);
/* Closes the mailbox of a worker whose loop has ended: later broadcasts skip this worker. */
void broadcast_inbox_close(struct worker *w);
/* Ends the broadcasts that this worker has started (calls `done`), after all threads have ended. */
void broadcast_inbox_clear(struct worker *w);
