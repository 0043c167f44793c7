/*
 * Releases that are held back (C4): the engine needs more evidence before it decides whose lease a release ends
 * (proxy/lock/aftermath.c).
 *
 *      release ──> engine_begin: held back ──> the session's input waits ──> 5 ms later the same bytes are read again
 *
 * The proxy keeps nothing of the request but its bytes, which stay in the session's input.
 */
#include <linux/tcp.h> /* its tcp_info has the smallest round trip, which netinet/tcp.h's lacks */
#include <netinet/in.h>
#include <sys/socket.h>

#include "parser/invariant.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/observing.h"
#include "proxy/session/locks/private.h"

static const double LOOK_S = 0.005;

void lock_hold_back(struct session *s) {
    struct worker_locks *locks = s->worker->locks;
    if (session_is_runnable(s) || s->state != SESSION_OPEN)
        return;
    list_append(&locks->held_back, &s->runnable_link);
    if (!ev_is_active(&locks->look))
        ev_timer_start(s->worker->loop, &locks->look);
}

static void on_look(struct ev_loop *loop, struct ev_timer *timer, int events) {
    struct worker *w = timer->data;
    list_splice(&w->runnable, &w->locks->held_back);
    learnt_glance(w);
}

void lock_holds_open(struct worker *w) {
    list_init(&w->locks->held_back);
    ev_timer_init(&w->locks->look, on_look, LOOK_S, 0.);
    w->locks->look.data = w;
}

void lock_holds_close(struct worker *w) {
    invariant(list_empty(&w->locks->held_back), "releases are held back in a worker that ends");
    ev_timer_stop(w->loop, &w->locks->look);
}

static uint16_t whole_ms(uint32_t us) {
    return us < UINT16_MAX * 1000u ? (uint16_t)(us / 1000) : UINT16_MAX;
}

void lock_note_trip(struct session *s) {
    struct tcp_info info;
    socklen_t len = sizeof(info);
    if (locks_of(s)->trip_known)
        return;
    locks_of(s)->trip_known = true;
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    s->lock.trip_ms = whole_ms(info.tcpi_rtt);
    s->lock.shortest_trip_ms = whole_ms(info.tcpi_min_rtt);
}
