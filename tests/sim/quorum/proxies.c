/*
 * Proxies: the proxy's own worker, sessions and engine, without sockets and threads. What they call of the worker's
 * thread and of libev is here, on each proxy's own clock; a proxy is its loop.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/base/clock.h"
#include "proxy/base/memory.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/permits.h"
#include "proxy/observe/observe.h"
#include "proxy/session/locks/lock_call.h"
#include "proxy/session/locks/locks.h"
#include "tests/sim/quorum/quorum_world.h"

enum { SECOND_MS = 1000, HANDOVERS = 100, ENDS_WITHIN_MS = 2000, BACK_WITHIN_MS = 4000 };

struct world *the_world;

static int64_t proxy_now(const struct q_proxy *p) {
    return q_clock_at(&p->clock, p->world->now_ms);
}

static struct q_proxy *proxy_of(struct ev_loop *loop) {
    return (struct q_proxy *)(void *)loop;
}

/* ---- clocks --------------------------------------------------------------------------------------------- */

int64_t clock_wall_us(void) {
    return the_world->now_ms * 1000;
}

int64_t clock_wall_ms(void) {
    return the_world->now_ms;
}

int64_t clock_even_ms(void) {
    return the_world->here ? proxy_now(the_world->here) : the_world->now_ms;
}

int64_t clock_set_by_ms(void) {
    return clock_wall_ms() - clock_even_ms();
}

int64_t worker_now(struct worker *w) {
    return proxy_now(proxy_of(w->loop));
}

double worker_steady(struct worker *w) {
    return (double)worker_now(w) / 1000.;
}

ev_tstamp ev_now(struct ev_loop *loop) {
    return (double)proxy_now(proxy_of(loop)) / 1000.;
}

/* ---- the worker's thread ------------------------------------------------------------------------------------ */

struct worker *worker_here(void) {
    return the_world->here ? &the_world->here->worker : NULL;
}

void worker_add_job(struct worker *w, struct worker_job *job) {
    list_init(&job->link);
    list_append(&w->jobs, &job->link);
}

void worker_engine_due(struct worker *w, int64_t in_ms) {
    struct q_proxy *p = proxy_of(w->loop);
    int64_t due_ms = q_clock_when(&p->clock, proxy_now(p) + in_ms);
    if (due_ms < p->engine_ms)
        p->engine_ms = due_ms;
}

void turn_begin(struct q_proxy *p) {
    p->world->here = p;
}

static void jobs_run(struct worker *w) {
    struct list_node *n;
    while ((n = list_shift(&w->jobs))) {
        struct worker_job *job = LIST_ENTRY(n, struct worker_job, link);
        job->run(w, job);
        memory_free(job);
    }
}

void turn_end(struct world *w) {
    struct q_proxy *p = w->here;
    struct list_node *n;
    jobs_run(&p->worker);
    while (list_shift(&p->worker.dirty))
        continue;
    while (list_shift(&p->worker.runnable))
        continue;
    clients_read(w);
    while ((n = list_shift(&p->worker.closed)))
        session_free(LIST_ENTRY(n, struct session, link));
    if (p->prepare)
        ev_cb(p->prepare)((struct ev_loop *)(void *)p, p->prepare, EV_PREPARE);
    w->here = NULL;
}

/* ---- libev ----------------------------------------------------------------------------------------------- */

void ev_timer_start(struct ev_loop *loop, struct ev_timer *timer) {
    struct q_proxy *p = proxy_of(loop);
    struct world *w = p->world;
    unsigned i = 0;
    ev_timer_stop(loop, timer);
    while (i < w->timer_count && w->timers[i].timer)
        i++;
    if (i == Q_TIMERS)
        abort();
    if (i == w->timer_count)
        w->timer_count++;
    int64_t due_ms = proxy_now(p) + (int64_t)ceil(timer->at * 1000. - 1e-4);
    w->timers[i] = (struct q_timer){timer, p, q_clock_when(&p->clock, due_ms)};
    timer->active = (int)i + 1;
}

void ev_timer_stop(struct ev_loop *loop, struct ev_timer *timer) {
    struct world *w = proxy_of(loop)->world;
    if (timer->active)
        w->timers[timer->active - 1].timer = NULL;
    timer->active = 0;
    while (w->timer_count > 0 && !w->timers[w->timer_count - 1].timer)
        w->timer_count--;
}

struct q_timer *timers_first(struct world *w) {
    struct q_timer *first = NULL;
    for (unsigned i = 0; i < w->timer_count; i++)
        if (w->timers[i].timer && (!first || w->timers[i].due_ms < first->due_ms))
            first = &w->timers[i];
    return first;
}

void timer_rings(struct world *w, struct q_timer *t) {
    struct ev_timer *timer = t->timer;
    struct q_proxy *p = t->proxy;
    turn_begin(p);
    ev_timer_stop((struct ev_loop *)(void *)p, timer);
    ev_cb(timer)((struct ev_loop *)(void *)p, timer, EV_TIMER);
    turn_end(w);
}

void ev_prepare_start(struct ev_loop *loop, struct ev_prepare *prepare) {
    proxy_of(loop)->prepare = prepare;
}

void ev_prepare_stop(struct ev_loop *loop, struct ev_prepare *prepare) {
    (void)prepare;
    proxy_of(loop)->prepare = NULL;
}

void ev_idle_start(struct ev_loop *loop, struct ev_idle *idle) {
    (void)loop, (void)idle; /* there is another turn anyway */
}

void ev_idle_stop(struct ev_loop *loop, struct ev_idle *idle) {
    (void)loop, (void)idle;
}

void ev_io_start(struct ev_loop *loop, struct ev_io *io) {
    (void)loop, (void)io;
}

void ev_io_stop(struct ev_loop *loop, struct ev_io *io) {
    (void)loop, (void)io;
}

/* ---- life ------------------------------------------------------------------------------------------------- */

static void on_incident(void *arg, const struct lock_incident *incident) {
    struct world *w = ((struct q_proxy *)arg)->world;
    w->totals.overtaken += incident->kind == INCIDENT_OVERTAKEN;
    w->totals.remembered += incident->kind == INCIDENT_REMEMBERED;
    world_event(w, "incident %s: %s", lock_incident_name(incident->kind), incident->action);
}

static unsigned number_of(const struct lock_key *key) {
    return (unsigned)(key->name[key->len - 1] - '0');
}

static void on_renewal(void *arg, const struct lock_lease *lease) {
    struct q_proxy *p = arg;
    p->renews_ms[number_of(&lease->key)] = p->world->now_ms;
    lock_note_renewal(arg, lease);
}

/* The linker puts this in the place of engine_renewed. */
void __real_engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token,
                           const struct lock_result *r, int64_t now_ms);
void __wrap_engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token,
                           const struct lock_result *r, int64_t now_ms);
void __wrap_engine_renewed(struct lock_engine *e, const struct lock_key *key, uint64_t token,
                           const struct lock_result *r, int64_t now_ms) {
    struct q_proxy *p = the_world->here;
    __real_engine_renewed(e, key, token, r, now_ms);
    if (r->outcome == LOCK_DONE && r->leased)
        clients_renewed(p, number_of(key), r->pttl_ms);
}

static void worker_make(struct q_proxy *p) {
    static const struct session_room *const rooms[] = {&locks_room, NULL};
    static const struct session_hooks hooks = {.rooms = rooms};
    struct worker *v = &p->worker;
    memset(v, 0, sizeof(*v));
    v->shared = &p->shared;
    v->hooks = &hooks;
    v->loop = (struct ev_loop *)(void *)p;
    v->upstream = &p->redis;
    v->config = &p->config;
    v->rules = p->world->rules;
    v->waits = &p->world->waits;
    v->opened = true;
    v->probed_at = INFINITY; /* Redis is not asked whether clients have to log in */
    struct list_node *lists[] = {&v->sessions, &v->dirty, &v->gathering,  &v->runnable, &v->eased,
                                 &v->closed,   &v->jobs,  &v->free_calls, &v->slices};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    chunk_pool_init(&v->chunks, 4);
    locks_room.worker_opens(v);
}

/* The witnesses' names: all of them, or, if a majority is taken away, one of each proxy's own. */
static struct config_words witness_words(struct q_proxy *p) {
    static char *const names[] = {"witness:0", "witness:1", "witness:2"};
    bool one = p->world->broken == Q_ONE_WITNESS;
    return (struct config_words){.words = (char **)(uintptr_t)(names + (one ? p->index : 0)),
                                 .count = one ? 1 : Q_WITNESSES};
}

void proxy_start(struct world *w, unsigned i) {
    struct q_proxy *p = &w->proxies[i];
    unsigned life = p->life + 1;
    the_world = w;
    *p = (struct q_proxy){.world = w, .index = i, .life = life, .runs = true};
    p->clock = q_clock_new(w);
    snprintf(p->id, sizeof(p->id), "%08x-0000-4000-8000-%012x", i, life);
    p->redis = (struct upstream){.proxy = p, .server = w->master};
    struct lock_sink sink = {.arg = p,
                             .incident = on_incident,
                             .renew = on_renewal,
                             .release = lock_note_release,
                             .leave = lock_note_leaving,
                             .left = lock_note_left};
    p->shared.process_id = p->id;
    p->shared.threads = 1;
    p->shared.engine = engine_new(p->id, w->seed + life, &sink);
    p->shared.observer = observer_new(w->seed);
    p->shared.permits = permits_new(w->seed);
    p->config.client_identity = IDENTITY_ADDRESS;
    p->config.bulk_max = INT32_MAX;
    p->config.witness_timeout_ms = w->timeout_ms;
    p->config.witness_quarantine_ms = w->quarantine_ms;
    p->config.witnesses = witness_words(p);
    turn_begin(p);
    worker_make(p);
    p->engine_ms = w->now_ms;
    p->second_ms = w->now_ms + world_below(w, SECOND_MS);
    turn_end(w);
}

static void clients_leave(struct q_proxy *p) {
    for (unsigned i = 0; i < Q_CLIENTS; i++)
        if (p->world->clients[i].session && p->world->clients[i].proxy == p->index)
            client_leave(p->world, &p->world->clients[i], false);
}

static void worker_free(struct worker *v) {
    struct list_node *n;
    locks_room.worker_closes(v);
    while (v->free_request_count > 0 || v->free_call_count > 0)
        request_pools_shrink(v);
    while ((n = stack_pop(&v->free_requests)))
        memory_free(LIST_ENTRY(n, struct request, link));
    chunk_pool_clear(&v->chunks);
    text_clear(&v->build);
}

void proxy_kill(struct world *w, unsigned i) {
    struct q_proxy *p = &w->proxies[i];
    p->gone = true;
    clients_leave(p);
    wires_reset(&p->redis, true);
    turn_begin(p);
    locks_room.worker_ends(&p->worker);
    turn_end(w);
    worker_free(&p->worker);
    for (unsigned k = 0; k < Q_TIMERS; k++)
        if (w->timers[k].proxy == p)
            w->timers[k].timer = NULL;
    engine_free(p->shared.engine);
    observer_free(p->shared.observer);
    permits_free(p->shared.permits);
    p->runs = p->ends = false;
    p->back_ms = w->now_ms + world_below(w, BACK_WITHIN_MS);
}

void proxy_end(struct world *w, unsigned i) {
    struct q_proxy *p = &w->proxies[i];
    p->ends = true;
    p->back_ms = w->now_ms + ENDS_WITHIN_MS;
    turn_begin(p);
    engine_leave(p->shared.engine);
    p->worker.stopping = true;
    turn_end(w);
    clients_leave(p);
}

static int64_t later(int64_t a, int64_t b) {
    return a > b ? a : b;
}

void proxy_stop(struct world *w, unsigned i, int64_t ms) {
    struct q_proxy *p = &w->proxies[i];
    int64_t until_ms = p->stopped_until_ms = w->now_ms + ms;
    world_event(w, "proxy %u is stopped for %" PRId64 " ms", i, ms);
    w->totals.stops++;
    for (unsigned k = 0; k < w->timer_count; k++)
        if (w->timers[k].timer && w->timers[k].proxy == p)
            w->timers[k].due_ms = later(w->timers[k].due_ms, until_ms);
    LIST_EACH(m, &w->messages, struct q_message, link) {
        if (m->ran && m->upstream && m->upstream->proxy == p)
            m->due_ms = later(m->due_ms, until_ms);
    }
}

int64_t proxy_due(const struct q_proxy *p) {
    int64_t due_ms = p->engine_ms < p->second_ms ? p->engine_ms : p->second_ms;
    if (!p->runs || (p->ends && p->back_ms < due_ms))
        return p->back_ms;
    return later(due_ms, p->stopped_until_ms);
}

/* A proxy that ends gives its leases a last expiry, and waits for the answers. */
static void end_on(struct q_proxy *p) {
    struct world *w = p->world;
    turn_begin(p);
    unsigned asked = engine_handover(p->shared.engine, 0, 1, HANDOVERS, worker_now(&p->worker));
    turn_end(w);
    if (w->now_ms >= p->back_ms || (asked == 0 && p->worker.own_works == 0))
        proxy_kill(w, p->index);
}

void proxy_work(struct q_proxy *p) {
    struct world *w = p->world;
    if (!p->runs) {
        proxy_start(w, p->index);
        return;
    }
    turn_begin(p);
    if (w->now_ms >= p->engine_ms) {
        int64_t next_ms = engine_tick(p->shared.engine, 0, 1, worker_now(&p->worker));
        p->engine_ms = q_clock_when(&p->clock, proxy_now(p) + (next_ms > 0 ? next_ms : 1));
    }
    if (w->now_ms >= p->second_ms) {
        p->second_ms = w->now_ms + SECOND_MS;
        if (!p->ends)
            locks_room.worker_asks(&p->worker);
    }
    turn_end(w);
    wires_time_out(&p->redis);
    if (p->ends) {
        end_on(p);
        p->engine_ms = w->now_ms + 50;
    }
}
