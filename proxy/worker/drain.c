/*
 * The two ways in which a worker ends: it leaves, or it stops.
 *
 *   leave    no new clients; clients that are connected are served, and their leases renewed, for as long as they stay
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
 * leases that the proxy renews, some at a time. So their owners still hold them when they connect to another proxy. It
 * knows no commands.
 */
#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/worker/private.h"

static const double HANDSHAKES_SECONDS = 0.3;
static const double LAST_SECONDS = 1.0;
static const double TICK_SECONDS = 0.05;
enum { HANDOVERS_AT_ONCE = 4096 };

/* Makes the kernel drop new handshakes (a SYN without an ACK) before a listener is closed. Closing a listener resets
 * connections that were not accepted yet, also those made between the last accept and the close. */
static void refuse_handshakes(int fd) {
    enum { FLAGS_AT = 13, SYN = 0x02, ACK = 0x10 }; /* in the TCP header */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS_AT),   BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN | ACK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYN, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    int family = AF_UNSPEC;
    socklen_t len = sizeof(family);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) != 0 || family == AF_UNIX)
        return; /* the other process has attached a filter of its own */
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
        log_warning(
            "connections that are made while this process stops may be lost: the system takes no socket filter");
}

/* Whether a session may be closed now, before the time is over. */
static bool done_with(const struct worker *w, const struct session *s) {
    if (s->delays & DELAY_BLOCKED) /* the event that it waits for may come only after the end */
        return true;
    if (s->in_flight > 0 || s->out.unsent > 0)
        return false;
    char byte;
    return !thread_of(w)->drain_careful ||
           (!s->input && !(s->tls && tls_has_more(s->tls)) && recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0);
}

static void drain_sessions(struct worker *w, double now) {
    if (now >= thread_of(w)->drain_until)
        accept_drop_guests(w);
    LIST_FOREACH_SAFE(it, &w->sessions) {
        struct session *s = LIST_ENTRY(it, struct session, link);
        if (now >= thread_of(w)->drain_until || done_with(w, s))
            session_close(s, "the proxy stops");
    }
}

/* Hands one part of the leases over. With parts 1 hands over all: another thread may have ended before this thread's
 * sessions did. Returns whether nothing is left. */
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

void drain_turn(struct worker *w) {
    double now = worker_steady(w);
    /* Sessions are closed at the end of each turn: a busy session is between two requests there. */
    drain_sessions(w, now);
    bool left = list_empty(&w->sessions) && list_empty(&thread_of(w)->guests);
    bool handed = left && hand_leases_over(w, 0, 1);
    worker_run_jobs(w);
    upstream_flush(w->upstream);
    worker_free_closed(w);
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
    accept_close(w);
    if (careful)
        return;
    accept_drop_guests(w);
    LIST_FOREACH_SAFE(it, &w->sessions)
    session_finish(LIST_ENTRY(it, struct session, link));
}

/* Continues to leave. A thread stays until the last client of any thread has left, since each thread renews its part of
 * the leases. */
static void leave_on(struct worker *w, double now) {
    invariant(w->leaving && !w->stopping, "a worker leaves that was not told to");
    struct worker_thread *t = thread_of(w);
    if (t->accepting && now >= t->drain_from + HANDSHAKES_SECONDS)
        accept_close(w);
    bool late = now >= t->drain_until;
    if (!late && (atomic_load(&w->shared->accepting) > 0 || atomic_load(&w->shared->clients) > 0))
        return; /* a thread has not closed its listeners, or a client is connected */
    if (late && w->index == 0)
        log_notice("Clients that are still connected after shutdown-timeout: %llu. Each is closed between two requests",
                   (unsigned long long)atomic_load(&w->shared->clients));
    t->drain_until += LAST_SECONDS;
    stop_begin(w, true);
}

/* Checks at intervals whether the end is reached, since the end of a session causes no event here. The end of the turn
 * does the rest. */
static void drain_tick(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    double now = worker_steady(w);
    if (!w->stopping)
        leave_on(w, now);
    if (!w->stopping)
        return;
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
    ev_timer_init(&t->drain, drain_tick, TICK_SECONDS, TICK_SECONDS);
    t->drain.data = w;
    ev_timer_start(w->loop, &t->drain);
}

void drain_leave(struct worker *w, int64_t bound_ms, bool handed) {
    struct worker_thread *t = thread_of(w);
    w->leaving = true;
    bound_set(w, bound_ms);
    ROOMS_CALL(w, worker_leaves, w);
    for (size_t i = 0; i < t->listener_count && t->accepting && !handed; i++)
        if (!t->listeners[i].shared)
            refuse_handshakes(t->listeners[i].io.fd);
    if (handed || !t->accepting)
        accept_close(w);
    else
        accept_close_shared(w);
}

void drain_stop(struct worker *w, int64_t bound_ms) {
    bound_set(w, bound_ms);
    stop_begin(w, false);
}
