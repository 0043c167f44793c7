/*
 * One connection to a node: its states, and the requests that are queued and written.
 *
 *      conn_send ──> out (bytes) ── conn_flush ──> socket
 *               └──> pending (requests, in the order of their bytes) ──> reply.c
 *
 * The requests wait in `out` until the connection is ready; the handshake has a separate buffer.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "parser/invariant.h"
#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

void conn_want_write(struct upstream_conn *c, bool wanted) {
    if (wanted && c->fd >= 0 && !ev_is_active(&c->writable))
        ev_io_start(c->u->loop, &c->writable);
    else if (!wanted && ev_is_active(&c->writable))
        ev_io_stop(c->u->loop, &c->writable);
}

/* The states from which a connection may come into each state, as bits. A state comes after itself where another
 * address of the node is tried. */
static const unsigned STATES_BEFORE[] = {
    [CONN_RESOLVING] = 1u << CONN_RESOLVING, [CONN_CONNECTING] = 1u << CONN_RESOLVING | 1u << CONN_CONNECTING,
    [CONN_SECURING] = 1u << CONN_CONNECTING, [CONN_HANDSHAKE] = 1u << CONN_CONNECTING | 1u << CONN_SECURING,
    [CONN_READY] = 1u << CONN_HANDSHAKE,     [CONN_CLOSED] = (1u << CONN_CLOSED) - 1,
};

void conn_set_state(struct upstream_conn *c, enum conn_state state) {
    invariant(STATES_BEFORE[state] >> c->state & 1, "a connection comes from state %d into %d", (int)c->state,
              (int)state);
    struct upstream *u = c->u;
    c->state = state;
    switch (state) {
    case CONN_RESOLVING:
        break;
    case CONN_CONNECTING:
        conn_want_write(c, true);
        break;
    case CONN_SECURING:
        conn_want_write(c, false);
        break;
    case CONN_HANDSHAKE:
        ev_io_start(u->loop, &c->readable);
        conn_want_write(c, true);
        if (c->tls)
            tls_attach(c->tls, &c->readable);
        break;
    case CONN_READY:
        conn_want_write(c, false);
        c->progress_ms = clock_ms();
        conn_mark(c);
        break;
    case CONN_CLOSED:
        ev_io_stop(u->loop, &c->readable);
        conn_want_write(c, false);
        tls_free(c->tls);
        c->tls = NULL;
        if (c->fd >= 0)
            close(c->fd);
        c->fd = -1;
        iobuf_clear(&c->out);
        iobuf_clear(&c->handshake);
        memory_free(c->held);
        c->held = NULL;
        dedicated_drop_push(c);
        batch_end(c, false);
        list_remove(&c->dirty);
        for (struct conn_walk *walk = u->walks; walk; walk = walk->outer)
            if (walk->next == &c->link)
                walk->next = c->link.next;
        list_remove(&c->link);
        list_append(&u->graveyard, &c->link);
        break;
    }
}

void conn_free(struct upstream_conn *c) {
    invariant(c->in_flight == 0 && c->fd < 0 && list_empty(&c->pending), "%zu requests are in flight", c->in_flight);
    list_remove(&c->link);
    iobuf_clear(&c->handshake);
    memory_free(c);
}

void conn_each(struct upstream *u, void (*fn)(struct upstream_conn *c, void *arg), void *arg) {
    struct conn_walk walk = {.next = u->conns.next, .outer = u->walks};
    u->walks = &walk;
    while (walk.next != &u->conns) {
        struct upstream_conn *c = LIST_ENTRY(walk.next, struct upstream_conn, link);
        walk.next = walk.next->next;
        fn(c, arg);
    }
    u->walks = walk.outer;
}

/* ---- requests ---- */

void request_begin(struct upstream_request *r, int slot, struct upstream_node *to, const struct upstream_lane *lane,
                   const char *bytes, size_t len) {
    r->was_redirected = false;
    r->leading = r->hops = r->attempts = r->delays = 0;
    r->multi_refused = false;
    r->asking = r->eval = r->streaming = r->sent_before = r->placeholder = r->pinned = r->open = false;
    r->slot = slot;
    r->lane = *lane;
    r->conn = NULL;
    r->node = to;
    r->chunk = NULL;
    r->bytes = bytes;
    r->len = len;
}

/* Queues all bytes anew, without those of requests that were abandoned while they waited. */
static void conn_rebuild(struct upstream_conn *c) {
    invariant(c->state != CONN_READY, "bytes that may have left are queued anew");
    struct list_node waiting;
    list_init(&waiting);
    list_splice(&waiting, &c->pending);
    iobuf_clear(&c->out);
    c->in_flight = 0;
    c->rebuild = c->has_script = false;
    struct list_node *n;
    while ((n = list_shift(&waiting)))
        conn_send(c, LIST_ENTRY(n, struct upstream_request, link));
}

/* Fails the requests that are not needed any more, before they are sent. */
static void drop_pointless(struct upstream_conn *c) {
    invariant(c->state != CONN_READY, "requests are dropped that may have left");
    LIST_FOREACH_SAFE(n, &c->pending) {
        if (!c->u->above->pointless(LIST_ENTRY(n, struct upstream_request, link)))
            continue;
        c->in_flight--;
        c->rebuild = true;
    }
}

void conn_ready(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d, %u replies are due", (int)c->state,
              c->handshake_left);
    if (c->u->above->holds_back(c))
        return;
    drop_pointless(c);
    if (c->rebuild)
        conn_rebuild(c);
    conn_set_state(c, CONN_READY);
    c->taken_us = clock_us();
    log_verbose("Connected to node %s", c->node->address);
}

void conn_send_asking(struct upstream_conn *c) {
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    iobuf_append(&c->out, asking, sizeof(asking) - 1);
}

void conn_busy(struct upstream_conn *c) {
    if (c->state == CONN_READY)
        c->progress_ms = clock_ms();
    upstream_wake(c->u);
}

void conn_send_raw(struct upstream_conn *c, const char *bytes, size_t len) {
    iobuf_append(&c->out, bytes, len);
    if (c->state == CONN_READY)
        conn_mark(c);
}

void conn_more(struct upstream_conn *c, const char *bytes, size_t len, bool last) {
    struct upstream_request *r = LIST_ENTRY(c->pending.prev, struct upstream_request, link);
    invariant(!list_empty(&c->pending) && r->open && r->conn == c, "bytes belong to no open request");
    if (c->out.unsent == 0)
        conn_busy(c); /* the node is not late while its owner had nothing to send */
    if (last) {       /* the request's end is enough to tell later whether all of it was written */
        chunk_release(r->chunk);
        r->bytes = iobuf_append_held(&c->out, bytes, len, &r->chunk);
        r->len = len;
        r->open = false;
        if (r->begun_us != INT64_MAX) /* the time until its client had sent it does not count */
            r->begun_us = clock_us();
    } else {
        iobuf_append(&c->out, bytes, len);
    }
    if (c->state == CONN_READY)
        conn_mark(c);
}

void conn_pause(struct upstream_conn *c, bool pause) {
    invariant(c->state == CONN_READY || c->paused == pause, "a connection in state %d is paused", (int)c->state);
    if (c->paused == pause)
        return;
    c->paused = pause;
    if (pause) {
        c->timed_from_us = 0;
        if (!list_empty(&c->pending)) /* its client is slow, not the node */
            LIST_ENTRY(c->pending.next, struct upstream_request, link)->begun_us = INT64_MAX;
        ev_io_stop(c->u->loop, &c->readable);
    } else {
        ev_io_start(c->u->loop, &c->readable);
        if (c->tls)
            tls_resume(c->tls);
        conn_busy(c);
    }
}

void conn_leave_pool(struct upstream_conn *c) {
    invariant(c->pool && c->pool->conns[c->index] == c, "a connection leaves a pool in which it is not");
    c->pool->conns[c->index] = NULL;
    pool_release(c->pool);
    c->pool = NULL;
}

void conn_retire(struct upstream_conn *c) {
    if (!c->pool || c->dedicated) /* no other session uses a dedicated lane */
        return;
    conn_leave_pool(c);
    c->node->pins++;
    c->u->epoch++; /* a later request on another connection must not overtake those in flight on this one */
}

/* ---- writing ---- */

/* Whether part of the oldest request is unsent: the node's time begins when all of it was sent. */
static bool oldest_unsent(const struct upstream_conn *c) {
    struct list_node *n = list_first(&c->pending);
    if (!n)
        return false;
    const struct upstream_request *r = LIST_ENTRY(n, struct upstream_request, link);
    return r->open || !iobuf_sent(r->chunk, r->bytes + r->len - 1);
}

ssize_t conn_write(struct upstream_conn *c, struct iobuf *from) {
    return c->tls ? tls_write(c->tls, from) : iobuf_write(from, c->fd);
}

/* Times the newest request, if no other request is being timed: from before it is written, since its answer may be
 * there when the write returns. Requests on pins may wait for something, so they are not timed. Returns whether it
 * began. */
static bool conn_time(struct upstream_conn *c) {
    if (c->timed_from_us != 0 || c->pin || c->in_flight == 0)
        return false;
    c->timed_from_us = clock_us();
    c->timed_reply = c->replies + c->in_flight;
    return true;
}

/* Tells the pin's owner, if it waits, that some of what it queued has been written. */
static void pin_written(struct upstream_pin *pin) {
    invariant_debug(!pin->full || pin->open, "a whole request waits for more");
    if (!pin->full || pin->conn->out.unsent > PIN_UNSENT_LOW)
        return;
    pin->full = false;
    if (pin->owned && pin->events.drained)
        pin->events.drained(pin->events.arg);
}

void conn_flush(struct upstream_conn *c) {
    if (c->state != CONN_READY)
        return;
    bool due_later = oldest_unsent(c), timed = conn_time(c);
    ssize_t n = conn_write(c, &c->out);
    if (timed && n <= 0)
        c->timed_from_us = 0;
    if (n < 0) {
        /* Writing failed: reading, in the next loop turn, will find the end. What the node has sent before the end is
         * read first. */
        conn_want_write(c, false);
        shutdown(c->fd, SHUT_WR);
        return;
    }
    if (n > 0 && due_later)
        c->progress_ms = clock_ms();
    if (c->stuck && c->out.unsent == 0)
        c->taken_us = clock_us();
    c->stuck = c->out.unsent > 0;
    conn_want_write(c, c->out.unsent > 0);
    if (c->pin)
        pin_written(c->pin);
}
