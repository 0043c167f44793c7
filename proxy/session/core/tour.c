/*
 * Tours of all workers:
 *
 *      home ── visit ──> mailbox of the next ── visit ──> ... ──> mailbox of home ── done
 *
 * A worker whose loop has ended is passed by: its clients are gone. Knows nothing of what is carried.
 */
#include "proxy/session/core/private.h"
#include "proxy/session/core/tour.h"

void tour_stop_init(struct tour_stop *stop) {
    pthread_mutex_init(&stop->mutex, NULL);
    list_init(&stop->arrived);
    list_init(&stop->begun);
}

/* False: the worker takes no more. */
static bool tour_send(struct tour *t, struct worker *to) {
    struct tour_stop *stop = &to->tours;
    pthread_mutex_lock(&stop->mutex);
    bool open = !stop->closed;
    if (open)
        list_append(&stop->arrived, &t->link);
    pthread_mutex_unlock(&stop->mutex);
    if (open)
        ev_async_send(to->loop, &to->wake);
    return open;
}

static void tour_end(struct tour *t) {
    list_remove(&t->at_home);
    t->done(t);
}

/* From worker w on to the next one. */
static void tour_go(struct tour *t, struct worker *w) {
    const struct proxy_shared *shared = w->shared;
    while (t->next < shared->options.threads) {
        struct worker *to = shared->workers[t->next++];
        if (to != t->home && tour_send(t, to))
            return;
    }
    if (w == t->home)
        tour_end(t);
    else
        (void)tour_send(t, t->home); /* where home's loop has ended, tour_stop_clear finds it */
}

static void tour_visit(struct tour *t, struct worker *w) {
    t->stays = false;
    t->visit(t, w);
    if (!t->stays)
        tour_go(t, w);
}

void tour_start(struct tour *t, struct worker *home, void (*visit)(struct tour *t, struct worker *w),
                void (*done)(struct tour *t)) {
    t->home = home;
    t->next = 0;
    t->visit = visit;
    t->done = done;
    list_init(&t->link);
    list_init(&t->at_home);
    list_append(&home->tours.begun, &t->at_home);
    tour_visit(t, home);
}

void tour_leave(struct tour *t, struct worker *w) {
    tour_go(t, w);
}

static struct tour *tour_arrived(struct tour_stop *stop) {
    pthread_mutex_lock(&stop->mutex);
    struct list_node *n = list_shift(&stop->arrived);
    pthread_mutex_unlock(&stop->mutex);
    return n ? LIST_ENTRY(n, struct tour, link) : NULL;
}

void tour_arrivals(struct worker *w) {
    struct tour *t;
    while ((t = tour_arrived(&w->tours))) {
        if (t->home == w) {
            tour_end(t);
        } else {
            tour_visit(t, w);
        }
    }
}

void tour_stop_close(struct worker *w) {
    pthread_mutex_lock(&w->tours.mutex);
    w->tours.closed = true;
    pthread_mutex_unlock(&w->tours.mutex);
    tour_arrivals(w);
}

void tour_stop_clear(struct worker *w) {
    struct list_node *n;
    while ((n = list_first(&w->tours.begun)))
        tour_end(LIST_ENTRY(n, struct tour, at_home));
    pthread_mutex_destroy(&w->tours.mutex);
}
