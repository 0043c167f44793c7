/*
 * What sessions ask of their worker: the time, and the end of the turn.
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
    list_append(&w->jobs, &job->link);
}

void worker_run_jobs(struct worker *w) {
    for (struct worker_job *job; (job = LIST_SHIFT(&w->jobs, struct worker_job, link));) {
        invariant(job->run && w == worker_here(), "a job runs in another thread");
        job->run(w, job);
        memory_free(job);
    }
}

void worker_add_slices(struct worker *w, struct worker_slices *work) {
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
