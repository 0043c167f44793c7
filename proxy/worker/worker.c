/*
 * The worker's loop: does each turn's collected work in ev_prepare. It knows no commands. A worker leaves, or it stops:
 *
 *   leave    no new clients; connected clients are served, and their leases renewed, for as long as they stay
 *
 *        0 s      connections whose handshake has begun are still accepted; new ones get no answer here, so that the
 *                 client's system repeats its SYN, by default after a second
 *        0.3 s    the listeners close (TLS handshakes go on): new connections and the repeated SYNs go to another
 *                 process. Sockets that both have (struct worker_socket) close at once: the other accepts what waits.
 *        then     no client is left in any thread: stop
 *        bound    stop; a session is closed between two requests, a second later in any case
 *
 *   stop     no new clients; each session is closed once all its replies are written, all within a bound
 *
 * A request that was read is answered; a request that was not read is not run. Only a stop gives a last expiry to the
 * leases that the proxy renews, some at a time: their owners still hold them when they connect to another proxy.
 */
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/handed_board.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/commands/commands.h"
#include "proxy/worker/private.h"

enum { CHUNKS_KEPT = 256, SHARED_TICK_MS = 100, TICKS_HELD = 10, RESUMED_AT_ONCE = 12, HANDOVERS_AT_ONCE = 4096 };
static const double ENGINE_LATE = 0.1, ENGINE_PAUSE = 0.05; /* seconds */

static const double TICK_SECONDS = 1.0, TICK_LATE = 0.05;
static const double HANDSHAKES_SECONDS = 0.3, LAST_SECONDS = 1.0, DRAIN_TICK_SECONDS = 0.05;

/* Takes the configuration that a reload has left. */
static void take_config(struct worker *w) {
    const struct config *config = atomic_exchange(&thread_of(w)->new_config, NULL);
    if (!config)
        return;
    config_unref(w->config);
    w->config = config;
    w->rules = config->rules;
    upstream_set_timeout(w->upstream, config->upstream_timeout_ms);
    slow_config(w);
    host_watch_doubt(w, DOUBT_ASKED);
    ROOMS_CALL(w, worker_rules, w);
}

static void free_closed(struct worker *w) {
    for (struct session *s; (s = LIST_FIRST(&w->closed, struct session, link));)
        session_free(s);
}

/* ---- the end of a worker ------------------------------------------------------------------------------ */

/* Has the kernel drop new handshakes (SYN) before a listener closes: that resets connections not accepted yet. */
static void refuse_handshakes(int fd) {
    enum { FLAGS_AT = 13, SYN = 0x02, ACK = 0x10 }; /* in the TCP header */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS_AT),   BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN | ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYN, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog program = {.len = ARRAY_SIZE(code), .filter = code};
    int family = AF_UNSPEC;
    socklen_t len = sizeof(family);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) != 0 || family == AF_UNIX)
        return; /* the other process has attached a filter of its own */
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
        log_warning(
            "connections that are made while this process stops may be lost: the system takes no socket filter");
}

/* Closes the sessions that may be closed now, or (the time is over) all. */
static void drain_sessions(struct worker *w, double now) {
    const struct worker_thread *t = thread_of(w);
    bool late = now >= t->drain_until;
    char byte;
    if (late)
        accept_drop_guests(w);
    LIST_EACH_SAFE(s, &w->sessions, struct session, link) {
        bool quiet = s->in_flight == 0 && s->out.unsent == 0;
        bool read = !t->drain_careful || (quiet && !s->input && !(s->tls && tls_has_more(s->tls)) &&
                                          recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0);
        /* the event that a blocked session waits for may come only after the end */
        if (late || (s->delays & DELAY_BLOCKED) || (quiet && read))
            session_close(s, "the proxy stops");
    }
}

/* Hands one part of the leases over, with parts 1 also of threads that have ended. Returns whether nothing is left. */
static bool hand_leases_over(struct worker *w, unsigned part, unsigned parts) {
    if (atomic_load(&w->shared->lets_go))
        return true;
    if (w->own_works >= HANDOVERS_AT_ONCE)
        return false;
    unsigned max = (unsigned)(HANDOVERS_AT_ONCE - w->own_works);
    unsigned asked = engine_handover(w->shared->engine, part, parts, max, worker_now(w));
    thread_of(w)->leases_handed += asked;
    return asked == 0;
}

static void drain_turn(struct worker *w) {
    double now = worker_steady(w);
    /* Sessions are closed at the end of each turn: a busy session is between two requests there. */
    drain_sessions(w, now);
    bool left = list_empty(&w->sessions) && list_empty(&thread_of(w)->guests);
    bool handed = left && hand_leases_over(w, 0, 1);
    worker_run_jobs(w);
    upstream_flush(w->upstream);
    free_closed(w);
    if (!left || (now < thread_of(w)->drain_until && (!handed || w->own_works > 0)))
        return;
    if (thread_of(w)->leases_handed > 0)
        log_notice("Leases that got a last expiry, for the proxy that their owners connect to next: %llu",
                   (unsigned long long)thread_of(w)->leases_handed);
    ev_break(w->loop, EVBREAK_ALL);
}

/* Begins to close sessions. `careful`: requests that have been sent are answered first. */
static void stop_begin(struct worker *w, bool careful) {
    invariant(!careful || !w->stopping, "a worker stops twice");
    engine_leave(w->shared->engine);
    w->stopping = true;
    ROOMS_CALL(w, worker_stops, w);
    presence_end(w);
    thread_of(w)->drain_careful = careful;
    ev_timer_stop(w->loop, &thread_of(w)->tick);
    accept_close(w, false);
    if (careful)
        return;
    accept_drop_guests(w);
    LIST_EACH_SAFE(s, &w->sessions, struct session, link)
        session_finish(s);
}

/* Checks at intervals whether the end is reached; the end of the turn does the rest. A thread that leaves stays until
 * the last client of any thread has left, since each thread renews its part of the leases. */
static void drain_tick(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    struct worker_thread *t = thread_of(w);
    double now = worker_steady(w);
    bool late = now >= t->drain_until;
    if (!w->stopping) {
        invariant(w->leaving, "a worker leaves that was not told to");
        if (t->accepting && now >= t->drain_from + HANDSHAKES_SECONDS)
            accept_close(w, false);
        if (!late && (atomic_load(&w->shared->accepting) > 0 || atomic_load(&w->shared->clients) > 0))
            return; /* a thread has not closed its listeners, or a client is connected */
        if (late && w->index == 0)
            log_notice(
                "Clients that are still connected after shutdown-timeout: %llu. Each is closed between two requests",
                (unsigned long long)atomic_load(&w->shared->clients));
        t->drain_until += LAST_SECONDS;
        stop_begin(w, true);
    }
    drain_sessions(w, now);
    hand_leases_over(w, w->index, w->shared->threads);
}

static void bound_set(struct worker *w, int64_t bound_ms) {
    invariant(bound_ms >= 0, "a bound of %lld ms", (long long)bound_ms);
    struct worker_thread *t = thread_of(w);
    t->drain_from = worker_steady(w);
    t->drain_until = t->drain_from + (double)bound_ms / 1000.;
    if (ev_is_active(&t->drain))
        return;
    ev_timer_init(&t->drain, drain_tick, DRAIN_TICK_SECONDS, DRAIN_TICK_SECONDS);
    t->drain.data = w;
    ev_timer_start(w->loop, &t->drain);
}

/* ---- the end of a turn -------------------------------------------------------------------------------- */

static void look_again(struct ev_loop *loop, struct ev_idle *look, int events) {
}

static void gathering_over(struct ev_loop *loop, struct ev_timer *timer, int events) {
}

/* Does all the work that this turn's callbacks have left. Sessions that may go on send more upstream, and a failing
 * upstream lets more sessions go on: so it repeats until both are quiet.
 * If there are also replies to write, writing to the nodes is held back once, while the loop checks for readable
 * clients without waiting: their next requests join the same write. Otherwise clients form small groups that take turns
 * (where clients and Redis share a core, a node got only 2.7 requests at a time). Requests of sessions that went on are
 * not held back: the node has nothing else to do. */
static void turn_end(struct ev_loop *loop, struct ev_prepare *prepare, int events) {
    struct worker *w = prepare->data;
    struct list_node *n;
    bool looked = ev_is_active(&thread_of(w)->look);
    list_splice(&w->runnable, &w->eased);
    bool resumes = !list_empty(&w->runnable);
    list_splice(&w->dirty, &w->gathering);
    invariant_debug(w == worker_here(), "a turn ends in another thread");
    if (worker_run_slice(w))
        ev_idle_start(w->loop, &thread_of(w)->slice);
    else
        ev_idle_stop(w->loop, &thread_of(w)->slice);
    do {
        /* Of many sessions, the node gets the first requests while the others' are being made. */
        for (unsigned resumed = 1; (n = list_first(&w->runnable)); resumed++) {
            session_resume(LIST_ENTRY(n, struct session, runnable_link));
            if (resumed % RESUMED_AT_ONCE == 0)
                upstream_flush(w->upstream);
        }
        worker_run_jobs(w);
        if (!looked && !resumes && !w->stopping && !list_empty(&w->dirty) && upstream_waits(w->upstream))
            ev_idle_start(w->loop, &thread_of(w)->look);
        else
            upstream_flush(w->upstream);
        while ((n = list_first(&w->dirty)))
            session_flush(LIST_ENTRY(n, struct session, dirty_link));
    } while (!list_empty(&w->runnable) || !list_empty(&w->jobs));
    if (!list_empty(&w->gathering) && !ev_is_active(&thread_of(w)->gather)) {
        /* a turn in which the replies that still wait are written */
        ev_timer_set(&thread_of(w)->gather, GATHER_US / 1e6, 0.);
        ev_timer_start(w->loop, &thread_of(w)->gather);
    }
    invariant(list_empty(&w->dirty) && list_empty(&w->runnable), "a session is left at the end of a turn");
    if (upstream_has_unpinned(w->upstream) || !list_empty(&w->slices) || !list_empty(&w->eased))
        ev_idle_start(w->loop, &thread_of(w)->slice);
    if (looked)
        ev_idle_stop(w->loop, &thread_of(w)->look);
    if (!engine_departs(w->shared->engine)) /* their logins may still be needed */
        free_closed(w);
    if (w->stopping)
        drain_turn(w);
    w->now_ms = w->turn_us = 0;
}

/* ---- time ---------------------------------------------------------------------------------------- */

/* Sends the proxy's own questions, but not after the process was stopped: due work comes first. If ticks are always
 * late, it asks all the same. */
static void ask_around(struct worker *w, double now) {
    double since = now - thread_of(w)->ticked; /* a tick after a late one comes sooner */
    bool punctual = since > TICK_SECONDS - TICK_LATE && since < TICK_SECONDS + TICK_LATE;
    thread_of(w)->ticked = now;
    thread_of(w)->punctual_ticks = punctual ? thread_of(w)->punctual_ticks + 1 : 0;
    if (thread_of(w)->punctual_ticks < 2 && ++thread_of(w)->held_ticks < TICKS_HELD)
        return;
    thread_of(w)->held_ticks = 0;
    readiness_ask(w);
    lock_space_look(w);
    questions_tick(w);
    ROOMS_CALL(w, worker_asks, w);
}

static void tick(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    /* After a burst memory is given back, by the pools, and by malloc. */
    chunk_pool_shrink(&w->chunks);
    request_pools_shrink(w);
    if (w->index == 0)
        memory_trim();
    ROOMS_CALL(w, worker_ticks, w);
    worker_arrivals_look(w);
    if (w->index == 0) {
        host_watch_tick(w);
        ask_around(w, ev_now(loop));
    }
    if (w->config->admin_port != 0 || w->shared->threads > 1)
        node_board_write(w);
    if (w->index > 0)
        readiness_ask(w);
    int64_t now_us = worker_turn_us(w), timeout = w->config->timeout_s;
    bool blocked = counter_read(&w->counters.pinned_blocking) > 0;
    if (timeout <= 0 && w->over_soft == 0 && !blocked && counter_read(&w->counters.clients_tracking) == 0)
        return; /* there is no work that depends on time */
    LIST_EACH_SAFE(s, &w->sessions, struct session, link) {
        if ((s->delays & DELAY_BLOCKED) && !session_half_closed(s) && session_left(s))
            session_close(s, "the client left while it was blocked");
        else if (timeout > 0 && (list_empty(&s->requests) || s->stream) && !(s->delays & DELAY_EVENT) &&
                 !(s->hears & HEARS_REPLY) && w->pause == PAUSE_NONE && now_us - s->active_us > timeout * 1000000)
            session_close(s, "idle");
        else if (s->over_soft_since > 0)
            session_mark_dirty(s);
        else if (s->hears & HEARS_TICK)
            ROOMS_CALL(w, tick, s);
    }
}

/* A late tick of the engine is put off once: a process that was stopped has not read yet which clients have left, and
 * their leases must not be renewed before that. Other threads get a moment to read, too. */
static void engine_due(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    thread_of(w)->engine_waits = !thread_of(w)->engine_waits && ev_now(loop) - w->engine_at > ENGINE_LATE;
    if (thread_of(w)->engine_waits) {
        worker_engine_arm(w, ENGINE_PAUSE);
        return;
    }
    w->now_ms = 0;
    unsigned threads = w->shared->threads;
    int64_t next = engine_tick(w->shared->engine, w->index, threads, worker_now(w));
    if (threads > 1 && next > SHARED_TICK_MS)
        next = SHARED_TICK_MS; /* commands in other threads can't wake this thread */
    worker_engine_arm(w, (double)(next > 0 ? next : 1) / 1000.);
}

/* ---- requests from other threads ------------------------------------------------------------------ */

static void worker_open(struct worker *w, const char *error);

static void woken(struct ev_loop *loop, struct ev_async *wake, int events) {
    struct worker *w = wake->data;
    take_config(w);
    broadcast_arrivals(w);
    if (thread_of(w)->space_waits && !atomic_load(&w->shared->space_held))
        worker_open(w, NULL);
    int64_t leave_ms = atomic_load(&thread_of(w)->leave_ms), stop_ms = atomic_load(&thread_of(w)->stop_ms);
    if (stop_ms >= 0 && !(w->stopping && !thread_of(w)->drain_careful)) {
        bound_set(w, stop_ms);
        stop_begin(w, false);
    } else if (leave_ms >= 0 && !w->leaving && !w->stopping) {
        struct worker_thread *t = thread_of(w);
        bool handed = atomic_load(&t->handed);
        w->leaving = true;
        bound_set(w, leave_ms);
        ROOMS_CALL(w, worker_leaves, w);
        for (size_t i = 0; i < t->listener_count && t->accepting && !handed; i++)
            if (!t->listeners[i].shared)
                refuse_handshakes(t->listeners[i].io.fd);
        accept_close(w, !handed && t->accepting);
    }
}

void worker_stop(struct worker *w, int64_t bound_ms) {
    atomic_store(&thread_of(w)->stop_ms, bound_ms);
    ev_async_send(w->loop, &w->wake);
}

void worker_leave(struct worker *w, int64_t bound_ms, bool handed) {
    atomic_store(&thread_of(w)->handed, handed);
    atomic_store(&thread_of(w)->leave_ms, bound_ms);
    ev_async_send(w->loop, &w->wake);
}

void worker_set_config(struct worker *w, const struct config *config) {
    config_unref(atomic_exchange(&thread_of(w)->new_config, config_ref(config)));
    if (w == worker_here())
        take_config(w);
    else
        ev_async_send(w->loop, &w->wake);
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* Begins to serve clients. A process that takes over first has to know that it serves the same Redis. */
static void worker_open(struct worker *w, const char *error) {
    invariant(!w->opened, "a worker opens twice");
    thread_of(w)->space_waits = atomic_load(&w->shared->space_held);
    if (thread_of(w)->space_waits)
        return;
    w->opened = true;
    int64_t left_ms = 0;
    if (atomic_load(&w->shared->space_switches) && handed_board_gone(w->shared->before, &left_ms) && left_ms > 0)
        pause_start(w, PAUSE_WRITES, left_ms);
    if (!w->stopping && !w->leaving)
        accept_start(w);
    thread_of(w)->ready(thread_of(w)->ready_arg, error);
}

static void probed(struct worker *w, const char *error) {
    if (!error && !w->opened && w->index == 0)
        capacity_tick(w); /* before any client can ask for connections */
    if (!w->opened && !w->stopping)
        worker_open(w, error);
}

static void upstream_ready(void *arg, const char *error) {
    struct worker *w = arg;
    if (error) {
        worker_open(w, error);
        return;
    }
    if (w->index == 0) {
        ROOMS_CALL(w, worker_begins, w);
        lock_space_look(w);
    }
    worker_probe(w);
}

static void upstream_noauth(void *arg) {
    worker_doubt_word(arg);
}

static void upstream_doubt(void *arg, bool readonly) {
    host_watch_doubt(arg, readonly ? DOUBT_READONLY : DOUBT_FAILED);
}

static void upstream_may_have_forgotten(void *arg) {
    struct worker *w = arg;
    engine_may_forget(w->shared->engine, worker_now(w));
}

static void worker_watchers(struct worker *w) {
    ev_prepare_init(&thread_of(w)->prepare, turn_end);
    thread_of(w)->prepare.data = w;
    ev_prepare_start(w->loop, &thread_of(w)->prepare);
    ev_idle_init(&thread_of(w)->look, look_again);
    ev_idle_init(&thread_of(w)->slice, look_again);
    ev_timer_init(&thread_of(w)->gather, gathering_over, 0., 0.);
    ev_async_init(&w->wake, woken);
    w->wake.data = w;
    ev_async_start(w->loop, &w->wake);
    ev_timer_init(&thread_of(w)->tick, tick, TICK_SECONDS, TICK_SECONDS);
    thread_of(w)->tick.data = w;
    ev_timer_start(w->loop, &thread_of(w)->tick);
    ev_timer_init(&w->engine_tick, engine_due, 0.01, 0.);
    ev_set_priority(&w->engine_tick, EV_MINPRI);
    w->engine_tick.data = w;
    worker_engine_arm(w, 0.01);
    broadcast_inbox_init(&w->broadcasts);
}

struct worker *worker_new(struct proxy_shared *shared, unsigned index, const struct config *config,
                          const struct worker_opening *opening) {
    struct worker *w = memory_zalloc(sizeof(struct worker_thread));
    invariant(index < shared->threads, "worker %u of %u", index, shared->threads);
    w->shared = shared;
    w->hooks = &commands_hooks;
    w->probed = probed;
    w->index = index;
    w->reads = shared->upstream.read_from != UPSTREAM_READ_MASTERS;
    if (config->requirepass) /* a client that has given requirepass is authenticated */
        w->strangers = UNAUTHENTICATED_SERVED;
    w->loop = ev_loop_new(EVFLAG_AUTO);
    readable_init(&w->readable, w->loop);
    w->config = config_ref(config);
    w->rules = config->rules;
    thread_of(w)->ready = opening->ready;
    thread_of(w)->ready_arg = opening->arg;
    atomic_init(&thread_of(w)->stop_ms, -1);
    atomic_init(&thread_of(w)->leave_ms, -1);
    struct list_node *const lists[] = {
        &w->sessions, &w->dirty,      &w->gathering, &w->runnable, &w->eased,
        &w->closed,   &w->free_calls, &w->jobs,      &w->slices,   &thread_of(w)->masters,
    };
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        list_init(lists[i]);
    chunk_pool_init(&w->chunks, CHUNKS_KEPT);
    resp_request_init(&w->scanner);
    w->scratch = memory_alloc(WORKER_SCRATCH);
    accept_init(w, opening->sockets, opening->socket_count);
    pthread_mutex_init(&thread_of(w)->board.mutex, NULL);
    worker_watchers(w);
    ROOMS_CALL(w, worker_opens, w);
    struct upstream_events events = {.arg = w,
                                     .ready = upstream_ready,
                                     .noauth = upstream_noauth,
                                     .doubt = upstream_doubt,
                                     .may_forget = upstream_may_have_forgotten};
    w->upstream = upstream_new(w->loop, &w->readable, &shared->upstream, &w->chunks, &events);
    slow_config(w);
    return w;
}

struct ev_loop *worker_loop(struct worker *w) {
    return w->loop;
}

void worker_run(struct worker *w) {
    worker_enter(w);
    ev_run(w->loop, 0);
    while (worker_run_slice(w))
        ;
    invariant(w->stopping || w->leaving, "a loop ends that was not told to stop");
    w->over = true;
    broadcast_inbox_close(w);
    worker_enter(NULL);
}

static void free_list(struct list_node *head, size_t offset) {
    struct list_node *n;
    while ((n = list_shift(head)))
        memory_free((char *)n - offset);
}

void worker_free(struct worker *w) {
    worker_enter(w);
    LIST_EACH_SAFE(s, &w->sessions, struct session, link)
        session_close(s, "the proxy stops");
    free_closed(w);
    invariant(list_empty(&w->sessions) && list_empty(&w->closed) && w->over_soft == 0,
              "%zu sessions are over their limit", w->over_soft);
    broadcast_inbox_clear(w);
    ROOMS_CALL(w, worker_ends, w);
    upstream_free(w->upstream); /* fails what is in flight, so that the slots go back to the free lists */
    accept_drop_guests(w);
    accept_close(w, false);
    struct list_node *n;
    while ((n = stack_pop(&w->free_requests)))
        memory_free(LIST_ENTRY(n, struct request, link));
    free_list(&w->free_calls, offsetof(struct call, link));
    ROOMS_CALL(w, worker_closes, w);
    free_list(&w->jobs, offsetof(struct worker_job, link));
    config_unref(atomic_exchange(&thread_of(w)->new_config, NULL));
    config_unref(w->config);
    invariant(counter_read(&w->counters.clients_connected) == 0 && counter_read(&w->counters.pinned_connections) == 0,
              "%llu clients, %llu pins", (unsigned long long)counter_read(&w->counters.clients_connected),
              (unsigned long long)counter_read(&w->counters.pinned_connections));
    resp_request_clear(&w->scanner);
    text_clear(&w->build);
    chunk_pool_clear(&w->chunks);
    memory_free(w->scratch);
    pthread_mutex_destroy(&thread_of(w)->board.mutex);
    memory_free(thread_of(w)->board.nodes);
    free_list(&thread_of(w)->masters, offsetof(struct asked_master, link));
    host_watch_clear(w);
    readable_clear(&w->readable);
    ev_loop_destroy(w->loop);
    memory_free(w);
    worker_enter(NULL);
}
