/*
 * What sessions ask of their worker: the time, the end of the turn, and whether the node lets everybody in.
 */
#include <string.h>
#include <time.h>

#include "proxy/base/memory.h"
#include "proxy/session/core/request.h"

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t worker_now(struct worker *w) {
    if (w->now_ms == 0)
        w->now_ms = wall_ms();
    return w->now_ms;
}

void worker_engine_arm(struct worker *w, double wait) {
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

/* The worker whose thread this is; NULL: it is nobody's. */
static _Thread_local struct worker *thread_worker;

void worker_enter(struct worker *w) {
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
    counter_add(&w->counters.slices, 1);
    if (!work->step(w, work)) {
        list_remove(&work->link);
        memory_free(work);
    }
    return !list_empty(&w->slices);
}

/* ---- who is let in ---------------------------------------------------------------------------------- */

/* Tells whether the node serves those who have not logged in; if it doesn't, they get Redis's limits for them. */
static void probed(struct call *c, const struct call_end *end) {
    struct worker *w = c->request->worker;
    if (!end->error)
        w->upstream_needs_auth = strncmp(end->reply, "-NOAUTH", 7) == 0;
    w->probing = false;
    request_reply(c->request, "", 0, true);
    w->probed(w, end->error);
}

void worker_probe(struct worker *w) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    if (w->probing)
        return;
    w->probing = true;
    struct upstream_lane lane = {.protocol = 2};
    struct request *request = request_internal(w);
    request->call.done = probed;
    call_submit_lane(&request->call, -1, &lane, ping, sizeof(ping) - 1);
}
