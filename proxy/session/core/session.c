/*
 * Sessions: their life, their marks for the end of the loop turn, and their names. input.c reads, output.c writes.
 *
 * It knows no commands and no nodes. Nothing is freed here before the end of the loop turn.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/session/core/private.h"

struct session *session_new(struct worker *w, int fd, struct tls *tls, const char *address) {
    invariant(fd >= 0 && w == worker_here(), "descriptor %d", fd);
    struct session *s = memory_zalloc(sizeof(*s));
    s->worker = w;
    s->fd = fd;
    s->tls = tls;
    s->state = SESSION_OPEN;
    s->authenticated = w->config->requirepass == NULL;
    s->window = SESSION_WINDOW;
    s->lane.protocol = 2;
    s->lane.login = w->shared->stranger_login;
    s->hears = HEARS_FIRST;
    s->epoch = upstream_epoch(w->upstream);
    s->opened_ms = worker_now(w);
    s->last_active = ev_now(w->loop);
    snprintf(s->address, sizeof(s->address), "%s", address);
    list_init(&s->link);
    list_init(&s->dirty_link);
    list_init(&s->runnable_link);
    list_init(&s->requests);
    iobuf_init(&s->out, &w->chunks);
    list_append(&w->sessions, &s->link);
    uint64_t id = atomic_fetch_add(&w->shared->next_session, 1) + 1;
    engine_session_open(w->shared->engine, &s->lock, id, "", 0);
    session_identify(s);
    ev_io_init(&s->io, session_on_io, fd, EV_READ);
    s->io.data = s;
    ev_io_start(w->loop, &s->io);
    if (tls)
        tls_attach(tls, &s->io);
    s->arrival = worker_arrival(w);
    counter_add(&w->counters.clients_connected, 1);
    counter_add(&w->counters.clients_total, 1);
    log_debug("client %llu: connected from %s", (unsigned long long)id, address);
    return s;
}

void session_is_forwarded(struct session *s, const struct sockaddr_storage *reached) {
    invariant(!s->forwarded && !s->reached, "a session is forwarded twice");
    s->forwarded = true;
    if (!reached)
        return;
    s->reached = memory_alloc(sizeof(*reached));
    *s->reached = *reached;
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
    invariant(list_empty(&s->requests) && !s->stream && !s->holding, "a closed session keeps a request");
    s->tls = NULL;
    close(s->fd);
    s->fd = -1;
    for (const struct session_room *const *room = w->hooks->rooms; *room; room++)
        if ((*room)->closes)
            (*room)->closes(s);
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

void session_mark_dirty(struct session *s) {
    if (s->is_dirty)
        return;
    s->is_dirty = true;
    invariant_debug(list_empty(&s->dirty_link), "a session is dirty twice");
    list_append(&s->worker->dirty, &s->dirty_link);
}

void session_mark_runnable(struct session *s) {
    if (s->is_runnable || s->state != SESSION_OPEN)
        return;
    s->is_runnable = true;
    invariant(list_empty(&s->runnable_link), "a session is runnable twice");
    list_append(&s->worker->runnable, &s->runnable_link);
}

void session_mark_eased(struct session *s) {
    if (s->is_runnable || s->state != SESSION_OPEN)
        return;
    s->is_runnable = true;
    invariant(list_empty(&s->runnable_link), "a session is eased twice");
    list_append(&s->worker->eased, &s->runnable_link);
}

void session_identify(struct session *s) {
    unsigned fields = s->worker->config->client_identity;
    char text[LOCK_IDENTITY_MAX];
    char host[SESSION_ADDRESS_MAX];
    snprintf(host, sizeof(host), "%s", s->address);
    char *colon = strrchr(host, ':');
    if (colon && !(fields & IDENTITY_PORT))
        *colon = '\0';
    int n = snprintf(text, sizeof(text), "%s", fields & (IDENTITY_ADDRESS | IDENTITY_PORT) ? host : "");
    const char *user = s->user ? s->user : "default";
    if ((fields & IDENTITY_USER) && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " user=%s", user);
    if ((fields & IDENTITY_NAME) && s->name && n < (int)sizeof(text))
        n += snprintf(text + n, sizeof(text) - (size_t)n, " name=%s", s->name);
    size_t len = n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1;
    s->lock.login = s->lane.login;
    invariant(len < LOCK_IDENTITY_MAX, "an identity of %zu bytes", len);
    atomic_store_explicit(&s->worker->shared->came_ms, worker_now(s->worker), memory_order_relaxed);
    engine_session_identify(s->worker->shared->engine, &s->lock, text, len, worker_now(s->worker));
}

size_t session_who(const struct session *s, char *out, size_t size) {
    int n = snprintf(out, size, "%s%s%s", s->address, s->name ? " " : "", s->name ? s->name : "");
    return n < (int)size ? (size_t)n : size - 1;
}

const char *session_host(const struct session *s, char *out, size_t size) {
    struct in6_addr at;
    snprintf(out, size, "%s", s->address);
    char *colon = strrchr(out, ':'), *bracket = strrchr(out, ']');
    if (colon)
        *colon = '\0';
    if (out[0] != '[' || !bracket)
        return out;
    *bracket = '\0';
    if (inet_pton(AF_INET6, out + 1, &at) != 1)
        return out;
    memset(&at.s6_addr[8], 0, 8);
    inet_ntop(AF_INET6, &at, out, (socklen_t)size);
    return out;
}

void session_address_text(const struct sockaddr_storage *a, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(out, size, "%s:%d", host, ntohs(in->sin_port));
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)a;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(out, size, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else {
        snprintf(out, size, "unix:0");
    }
}

void session_note_overlap(struct session *s) {
    if (s->overlaps && !s->lock.overlapped)
        engine_session_overlapped(s->worker->shared->engine, &s->lock);
}

/* ---- events for rooms -------------------------------------------------------------------------------- */

void session_tick(struct session *s) {
    for (const struct session_room *const *room = s->worker->hooks->rooms; *room; room++)
        if ((*room)->tick)
            (*room)->tick(s);
}

void session_reply_over(struct session *s) {
    for (const struct session_room *const *room = s->worker->hooks->rooms; *room; room++)
        if ((*room)->reply_over)
            (*room)->reply_over(s);
    if (s->held)
        session_release(s);
}

struct upstream_lane session_pin_lane(const struct session *s) {
    struct upstream_lane lane = s->lane;
    for (const struct session_room *const *room = s->worker->hooks->rooms; lane.dedicated != 0 && *room; room++)
        if ((*room)->pin_lane)
            (*room)->pin_lane(s, &lane);
    return lane;
}
