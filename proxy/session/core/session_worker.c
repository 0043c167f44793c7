/*
 * What sessions ask of their worker: the time, the end of the turn, and broadcasts of all workers:
 *
 *      home ── visit ──> mailbox of the next ── visit ──> ... ──> mailbox of home ── done
 *
 * A worker whose loop has ended is skipped: its clients are gone. It does not know what a broadcast is for.
 */
#include "parser/invariant.h"
#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/session.h"

int64_t worker_now(struct worker *w) {
    if (w->now_ms == 0)
        w->now_ms = clock_even_ms();
    return w->now_ms;
}

double worker_steady(struct worker *w) {
    return (double)clock_us() / 1e6;
}

void worker_engine_arm(struct worker *w, double wait) {
    invariant(wait >= 0, "the engine is due in %f s", wait);
    ev_timer_stop(w->loop, &w->engine_tick);
    ev_timer_set(&w->engine_tick, wait, 0.);
    ev_timer_start(w->loop, &w->engine_tick);
    w->engine_at = ev_now(w->loop) + wait;
}

void worker_engine_due(struct worker *w, int64_t in_ms) {
    double wait = (double)(in_ms > 1 ? in_ms : 1) / 1000.;
    if (ev_timer_remaining(w->loop, &w->engine_tick) > wait)
        worker_engine_arm(w, wait);
}

/* ---- the end of a turn ---------------------------------------------------------------------------- */

/* The worker of this thread; NULL: none. */
static _Thread_local struct worker *thread_worker;

void worker_enter(struct worker *w) {
    invariant(!thread_worker || !w, "a thread has two workers");
    thread_worker = w;
}

struct worker *worker_here(void) {
    return thread_worker;
}

void worker_add_job(struct worker *w, struct worker_job *job) {
    list_init(&job->link);
    list_append(&w->jobs, &job->link);
}

void worker_run_jobs(struct worker *w) {
    struct list_node *n;
    while ((n = list_shift(&w->jobs))) {
        struct worker_job *job = LIST_ENTRY(n, struct worker_job, link);
        invariant(job->run && w == worker_here(), "a job runs in another thread");
        job->run(w, job);
        memory_free(job);
    }
}

void worker_add_slices(struct worker *w, struct worker_slices *work) {
    list_init(&work->link);
    list_append(&w->slices, &work->link);
}

bool worker_run_slice(struct worker *w) {
    struct list_node *n = list_first(&w->slices);
    if (!n)
        return false;
    struct worker_slices *work = LIST_ENTRY(n, struct worker_slices, link);
    invariant(work->step, "work in slices has no step");
    counter_add(&w->counters.slices, 1);
    if (!work->step(w, work)) {
        list_remove(&work->link);
        memory_free(work);
    }
    return !list_empty(&w->slices);
}

/* ---- broadcasts ------------------------------------------------------------------------------------- */

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
    list_init(&t->at_home);
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
    struct list_node *n;
    while ((n = list_first(&w->broadcasts.begun)))
        broadcast_end(LIST_ENTRY(n, struct broadcast, at_home));
    pthread_mutex_destroy(&w->broadcasts.mutex);
}
