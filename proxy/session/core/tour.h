/*
 * Tours: work that concerns the clients of all threads. A tour visits each worker in that worker's own thread, one
 * after another, so that nothing it carries is touched by two threads at once, and ends where it began.
 */
#ifndef LOCKKEEPER_SESSION_CORE_TOUR_H
#define LOCKKEEPER_SESSION_CORE_TOUR_H

#include <pthread.h>
#include <stdbool.h>

#include "proxy/base/list.h"

struct worker;

/* Embedded in what it carries. Private but for `home`. */
struct tour {
    struct worker *home;
    struct list_node link;    /* in a mailbox */
    struct list_node at_home; /* in home's tours */
    bool stays;               /* set by `visit`: it goes on with tour_leave */
    unsigned next;            /* the worker to be visited next */
    void (*visit)(struct tour *t, struct worker *w);
    void (*done)(struct tour *t);
};

/* A worker's side: where tours arrive, and those that began here. */
struct tour_stop {
    pthread_mutex_t mutex;
    struct list_node arrived;
    bool closed;
    struct list_node begun;
};

/* Begins a tour from a callback of the home worker: `visit` is called for every worker (home first), `done` at home,
 * at once where there is one thread. The tour is the callee's of `done` again. */
void tour_start(struct tour *t, struct worker *home, void (*visit)(struct tour *t, struct worker *w),
                void (*done)(struct tour *t));

/* The visit to w is over, which had set `stays`: from w's thread, in a later callback. */
void tour_leave(struct tour *t, struct worker *w);

void tour_stop_init(struct tour_stop *stop);
/* The worker was woken: what has arrived goes on. */
void tour_arrivals(struct worker *w);
/* The worker's loop has ended: what comes from now on passes it by. */
void tour_stop_close(struct worker *w);
/* All threads have ended: tours that began here are over (`done` is called). */
void tour_stop_clear(struct worker *w);

#endif
