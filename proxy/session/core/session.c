/*
 * Sessions: their end, and the events that rooms hear of them. session_open.c makes them, input.c reads, flush.c
 * writes.
 *
 * It knows no commands and no nodes. Nothing is freed here before the end of the loop turn.
 */
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"

void session_close(struct session *s, const char *reason) {
    if (s->state == SESSION_CLOSED)
        return;
    struct worker *w = s->worker;
    log_debug("client %llu: closed: %s", (unsigned long long)s->lock.id, reason);
    s->state = SESSION_CLOSED;
    ev_io_stop(w->loop, &s->io);
    stream_drop(s);
    session_go_on(s);
    struct list_node *n;
    while ((n = list_shift(&s->requests))) { /* their calls continue without it */
        struct request *r = LIST_ENTRY(n, struct request, link);
        r->session = NULL;
        if (r->done)
            request_reply(r, "", 0, true);
        else if (r->owner && r->owner->ops->left)
            r->owner->ops->left(r);
    }
    tls_free(s->tls); /* only now: a client that sees the close may rely on its blocking command having ended */
    invariant(list_empty(&s->requests) && !s->stream && !(s->delays & DELAY_OUTPUT),
              "a closed session keeps a request");
    s->tls = NULL;
    close(s->fd);
    s->fd = -1;
    ROOMS_CALL(w, closes, s);
    s->in_flight = 0;
    engine_session_close(w->shared->engine, &s->lock, worker_now(w));
    if (engine_departs(w->shared->engine))
        worker_engine_due(w, 1);
    iobuf_clear(&s->out);
    session_held_free(s);
    session_within_limit(s);
    session_input_free(s);
    list_remove(&s->dirty_link);
    list_remove(&s->runnable_link);
    list_remove(&s->link);
    list_append(&w->closed, &s->link);
    counter_sub(&w->counters.clients_connected, 1);
    atomic_fetch_sub(&w->shared->clients, 1);
}

void session_free(struct session *s) {
    invariant(s->state == SESSION_CLOSED && s->fd < 0 && list_empty(&s->requests), "state %d, descriptor %d",
              (int)s->state, s->fd);
    upstream_login_release(s->lane.login); /* only now: releases on disconnect still used its lane */
    list_remove(&s->link);
    memory_free(s->name);
    memory_free(s->user);
    memory_free(s->lib_name);
    memory_free(s->lib_version);
    memory_free(s->reached);
    memory_free(s);
}

void session_finish(struct session *s) {
    if (s->state != SESSION_OPEN)
        return;
    s->state = SESSION_FINISHING;
    stream_drop(s);
    session_mark_dirty(s);
}

void session_note_overlap(struct session *s) {
    if (s->overlaps && !s->lock.overlapped)
        engine_session_overlapped(s->worker->shared->engine, &s->lock);
}

/* ---- events for rooms -------------------------------------------------------------------------------- */

void session_tick(struct session *s) {
    ROOMS_CALL(s->worker, tick, s);
}

void session_reply_over(struct session *s) {
    ROOMS_CALL(s->worker, reply_over, s);
    if (s->held)
        session_release(s);
}
