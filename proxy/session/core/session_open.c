/*
 * A session begins: for a client that has connected.
 */
#include <stdio.h>
#include <string.h>

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
    s->active_us = worker_turn_us(w);
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
