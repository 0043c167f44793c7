/*
 * Sessions: what their output keeps back (messages that wait for the end of a reply, the rest of a reply that was left
 * to its node, and since when the output is too long), their end, and the events that rooms hear of them. input.c makes
 * sessions and reads, flush.c writes.
 *
 * It knows no commands and no nodes. Nothing is freed here before the end of the loop turn.
 */
#include <string.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"

/* ---- marks: what the worker does with it at the end of the turn, or in the next one ------------------------ */

void session_mark_dirty(struct session *s) {
    if (!session_is_dirty(s))
        list_append(&s->worker->dirty, &s->dirty_link);
}

void session_mark_runnable(struct session *s) {
    if (!session_is_runnable(s) && s->state == SESSION_OPEN)
        list_append(&s->worker->runnable, &s->runnable_link);
}

/* ---- secrets --------------------------------------------------------------------------------------- */

/* Places where a request's password may be:
 *
 *      worker's scratch, session->input   overwritten here, and where bytes move from one to the other
 *      chunks on their way to nodes       marked here, overwritten when they are free (iobuf.h)
 *      commands queued by MULTI           overwritten when they are freed
 *      logins                             upstream/login.c's, while a session is logged in with them
 *
 * The buffers belong to the worker or the session, so these functions may write to them, although requests take them as
 * constant. */

void secret_overwrite(const char *data, size_t len) {
    if (len > 0 && len <= WORKER_SCRATCH)
        explicit_bzero((char *)(uintptr_t)data, len);
}

void secret_forget(struct session *s, const struct resp_request *r, const char *bytes) {
    if (s->state == SESSION_CLOSED) /* the buffer is gone, or its bytes were overwritten */
        return;
    s->worker->secret = true;
    for (size_t i = 1; i < r->argc; i++)
        secret_overwrite(bytes + r->argv[i].off, r->argv[i].len);
    if (list_empty(&s->requests))
        return;
    struct request *request =
        LIST_ENTRY(s->requests.prev, struct request, link); /* this request's, or one that ends sooner */
    upstream_secret(&request->call.up);
    LIST_FOREACH(it, &request->parts)
    upstream_secret(&LIST_ENTRY(it, struct call, link)->up);
}

/* ---- what the output keeps back -------------------------------------------------------------------- */

void session_within_limit(struct session *s) {
    invariant(s->over_soft_since <= 0 || s->worker->over_soft > 0, "no session is over its limit");
    if (s->over_soft_since > 0)
        s->worker->over_soft--;
    s->over_soft_since = 0;
}

static void session_held_free(struct session *s) {
    if (s->held)
        text_clear(s->held);
    memory_free(s->held);
    s->held = NULL;
}

void session_tell(struct session *s, const char *data, size_t len) {
    session_mark_dirty(s); /* also if it is held: the flush checks the limits */
    if (!s->held && !session_amid_reply(s)) {
        iobuf_append(&s->out, data, len);
        return;
    }
    if (!s->held)
        s->held = memory_zalloc(sizeof(*s->held));
    text_append(s->held, data, len);
    s->held_bytes += len;
}

void session_go_on(struct session *s) {
    struct list_node *n = s->delays & DELAY_OUTPUT ? list_first(&s->requests) : NULL;
    if (n)
        upstream_go_on(&LIST_ENTRY(n, struct request, link)->call.up);
    session_delay(s, DELAY_OUTPUT, false);
}

/* ---- life ------------------------------------------------------------------------------------------ */

void session_is_forwarded(struct session *s, const struct sockaddr_storage *reached) {
    invariant(!s->forwarded && !s->reached, "a session is forwarded twice");
    s->forwarded = true;
    if (!reached)
        return;
    s->reached = memory_alloc(sizeof(*reached));
    *s->reached = *reached;
}

void session_input_free(struct session *s) {
    if (!s->input)
        return;
    secret_overwrite(s->input->data + s->input->start, input_len(s->input));
    memory_free(s->input->data);
    resp_request_clear(&s->input->scanner);
    memory_free(s->input);
    s->input = NULL;
}

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
    if (!s->held || session_amid_reply(s))
        return;
    iobuf_append(&s->out, s->held->data, s->held->len);
    invariant(s->held_bytes >= s->held->len, "%zu bytes are held of %zu", s->held_bytes, s->held->len);
    s->held_bytes -= s->held->len;
    session_held_free(s);
    session_mark_dirty(s);
}
