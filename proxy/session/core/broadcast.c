/*
 * Broadcasts of all workers:
 *
 *      home ── visit ──> mailbox of the next ── visit ──> ... ──> mailbox of home ── done
 *
 * A worker whose loop has ended is skipped: its clients are gone. It does not know what a broadcast is for.
 */
#include "parser/invariant.h"
#include "proxy/session/core/session_worker.h"

void broadcast_inbox_init(struct broadcast_inbox *inbox) {
    pthread_mutex_init(&inbox->mutex, NULL);
    list_init(&inbox->arrived);
    list_init(&inbox->begun);
}

/* Puts a broadcast into a worker's mailbox. False: the worker takes no more. */
static bool broadcast_send(struct broadcast *t, struct worker *to) {
    struct broadcast_inbox *inbox = &to->broadcasts;
    pthread_mutex_lock(&inbox->mutex);
    bool open = !inbox->closed;
    if (open)
        list_append(&inbox->arrived, &t->link);
    pthread_mutex_unlock(&inbox->mutex);
    if (open)
        ev_async_send(to->loop, &to->wake);
    return open;
}

static void broadcast_end(struct broadcast *t) {
    invariant(!list_empty(&t->at_home), "a broadcast ends twice");
    list_remove(&t->at_home);
    t->done(t);
}

/* Sends a broadcast from worker w on to the next one, or home. */
static void broadcast_go(struct broadcast *t, struct worker *w) {
    invariant(t->next <= w->shared->threads, "worker %u of %u", t->next, w->shared->threads);
    const struct proxy_shared *shared = w->shared;
    while (t->next < shared->threads) {
        struct worker *to = shared->workers[t->next++];
        if (to != t->home && broadcast_send(t, to))
            return;
    }
    if (w == t->home)
        broadcast_end(t);
    else
        (void)broadcast_send(t, t->home); /* if home's loop has ended, broadcast_inbox_clear finds it */
}

static void broadcast_visit(struct broadcast *t, struct worker *w) {
    invariant(list_empty(&t->link), "a broadcast is in a mailbox while it visits");
    t->stays = false;
    t->visit(t, w);
    if (!t->stays)
        broadcast_go(t, w);
}

void broadcast_start(struct broadcast *t, struct worker *home, void (*visit)(struct broadcast *t, struct worker *w),
                     void (*done)(struct broadcast *t)) {
    t->home = home;
    t->next = 0;
    t->visit = visit;
    t->done = done;
    list_init(&t->link);
    list_append(&home->broadcasts.begun, &t->at_home);
    broadcast_visit(t, home);
}

void broadcast_leave(struct broadcast *t, struct worker *w) {
    invariant(t->stays, "a visit ends that was over");
    broadcast_go(t, w);
}

void broadcast_arrivals(struct worker *w) {
    for (;;) {
        pthread_mutex_lock(&w->broadcasts.mutex);
        struct list_node *n = list_shift(&w->broadcasts.arrived);
        pthread_mutex_unlock(&w->broadcasts.mutex);
        if (!n)
            return;
        struct broadcast *t = LIST_ENTRY(n, struct broadcast, link);
        if (t->home == w)
            broadcast_end(t);
        else
            broadcast_visit(t, w);
    }
}

void broadcast_inbox_close(struct worker *w) {
    pthread_mutex_lock(&w->broadcasts.mutex);
    w->broadcasts.closed = true;
    pthread_mutex_unlock(&w->broadcasts.mutex);
    broadcast_arrivals(w);
}

void broadcast_inbox_clear(struct worker *w) {
    invariant(w->broadcasts.closed, "an open mailbox is cleared");
    for (struct broadcast *b; (b = LIST_FIRST(&w->broadcasts.begun, struct broadcast, at_home));)
        broadcast_end(b);
    pthread_mutex_destroy(&w->broadcasts.mutex);
}
