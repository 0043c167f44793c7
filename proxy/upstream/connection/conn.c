/*
 * One connection to a node: its states, and the requests that are queued and written.
 *
 *      conn_send ──> out (bytes) ── conn_flush ──> socket
 *               └──> pending (requests, in the order of their bytes) ──> reply.c
 *
 * A batch is a request of several commands, from MULTI to EXEC, without requests of others between them, although the
 * connection is shared:
 *
 *      ──> MULTI  step  EVAL ...  step  EXEC
 *      <── +OK  +QUEUED  +QUEUED  +QUEUED  *3 ...
 *          └────────────┬────────────┘     └── the reply: reply.c
 *                  the leading ones: batch_take
 *
 * Of the leading replies only the first error is kept: a redirect, or the reason for an EXECABORT. If the node refuses
 * MULTI, each command has run by itself, and the reply of the middle command is delivered.
 */
#include <unistd.h>

#include "proxy/upstream/connection/private.h"

void conn_want_write(struct upstream_conn *c, bool wanted) {
    if (wanted && c->fd >= 0 && !ev_is_active(&c->writable))
        ev_io_start(c->u->loop, &c->writable);
    else if (!wanted && ev_is_active(&c->writable))
        ev_io_stop(c->u->loop, &c->writable);
}

/* The states before each state, as bits. A state comes after itself where another address of the node is tried. */
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
        text_clear(&c->held);
        text_clear(&c->push);
        batch_end(c, false);
        list_remove(&c->dirty);
        list_append(&u->graveyard, &c->dirty);
        break;
    }
}

void conn_free(struct upstream_conn *c) {
    invariant(c->in_flight == 0 && c->fd < 0 && list_empty(&c->pending), "%zu requests are in flight", c->in_flight);
    list_remove(&c->link);
    list_remove(&c->dirty);
    iobuf_clear(&c->handshake);
    memory_free(c);
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

/* No requests are sent that are not needed any more, and no bytes of requests that were abandoned. */
void conn_ready(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d, %u replies are due", (int)c->state,
              c->handshake_left);
    if (c->u->above->holds_back(c))
        return;
    LIST_EACH_SAFE(r, &c->pending, struct upstream_request, link)
        if (c->u->above->pointless(r)) {
            c->in_flight--;
            c->rebuild = true;
        }
    if (c->rebuild) {
        invariant(c->state != CONN_READY, "bytes that may have left are queued anew");
        struct upstream_request *r;
        struct list_node waiting;
        list_init(&waiting);
        list_splice(&waiting, &c->pending);
        iobuf_clear(&c->out);
        c->in_flight = 0;
        c->rebuild = c->has_script = false;
        while ((r = LIST_SHIFT(&waiting, struct upstream_request, link)))
            conn_send(c, r);
    }
    conn_set_state(c, CONN_READY);
    c->taken_us = clock_us();
    log_verbose("Connected to node %s", c->node->address);
}

void conn_busy(struct upstream_conn *c) {
    if (c->state == CONN_READY)
        c->progress_ms = clock_ms();
    upstream_wake(c->u);
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

ssize_t conn_write(struct upstream_conn *c, struct iobuf *from) {
    return c->tls ? tls_write(c->tls, from) : iobuf_write(from, c->fd);
}

void conn_flush(struct upstream_conn *c) {
    if (c->state != CONN_READY)
        return;
    const struct upstream_request *oldest = LIST_ENTRY(c->pending.next, struct upstream_request, link);
    /* The node's time begins when all of the oldest request was sent. */
    bool due_later =
        !list_empty(&c->pending) && (oldest->open || !iobuf_sent(oldest->chunk, oldest->bytes + oldest->len - 1));
    /* Times the newest request from before it is written, since its answer may be there when the write returns. */
    bool timed = c->timed_from_us == 0 && !c->pin && c->in_flight > 0;
    if (timed) {
        c->timed_from_us = clock_us();
        c->timed_reply = c->replies + c->in_flight;
    }
    ssize_t n = conn_write(c, &c->out);
    if (timed && n <= 0)
        c->timed_from_us = 0;
    if (n < 0) {
        /* Reading will find the end, after what the node has sent before it. */
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
    struct upstream_pin *pin = c->pin;
    if (!pin)
        return;
    invariant_debug(!pin->full || pin->open, "a whole request waits for more");
    if (!pin->full || c->out.unsent > PIN_UNSENT_LOW)
        return;
    pin->full = false;
    if (pin->owned && pin->events.drained)
        pin->events.drained(pin->events.arg);
}

/* ---- batches ---- */

char *request_by_source(const struct upstream_request *r, size_t at, size_t *len) {
    static const char evalsha[] = "$7\r\nEVALSHA\r\n$40\r\n";
    const size_t sha1_len = 40;
    const char *end = r->bytes + r->len;
    const char *header_end = memchr(r->bytes + at, '\n', r->len - at);
    if (!header_end)
        return NULL;
    header_end++;
    const char *rest = header_end + sizeof(evalsha) - 1 + sha1_len + 2;
    if (rest > end || memcmp(header_end, evalsha, sizeof(evalsha) - 1) != 0)
        return NULL;

    const struct script *s = r->script;
    size_t cap = r->len + s->len + 64;
    char *bytes = memory_alloc(cap), *p = bytes;
    memcpy(p, r->bytes, (size_t)(header_end - r->bytes));
    p += header_end - r->bytes;
    p = resp_bulk_write(p, "EVAL", 4);
    p = resp_bulk_write(p, s->source, s->len);
    memcpy(p, rest, (size_t)(end - rest));
    p += end - rest;
    *len = (size_t)(p - bytes);
    invariant(*len <= cap, "%zu bytes in %zu", *len, cap);
    return bytes;
}

void conn_append_special(struct upstream_conn *c, struct upstream_request *r) {
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    size_t len = r->len;
    char *by_source = NULL;
    if (r->asking)
        iobuf_append(&c->out, asking, sizeof(asking) - 1);
    if (r->leading > 0 && r->script) {
        if (!c->has_script && !r->eval)
            by_source = request_by_source(r, r->script_at, &len);
        c->has_script = true;
        r->eval |= by_source != NULL;
    }
    r->bytes = iobuf_append_held(&c->out, by_source ? by_source : r->bytes, len, &r->chunk);
    r->len = len;
    memory_free(by_source);
}

void batch_end(struct upstream_conn *c, bool executed) {
    c->has_script = c->has_script && executed;
    c->led = 0;
    text_clear(&c->refusal);
}

void upstream_script_unknown(struct upstream *u) {
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        c->has_script = false;
}

/* ---- abandoned requests ---- */

/* Takes the place of an abandoned request whose reply is still due, and drops the reply. */
struct placeholder {
    struct upstream_request request;
    bool may_last; /* the abandoned request's may_last */
};

static void placeholder_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    invariant(r->placeholder && !r->conn, "a placeholder is freed in flight");
    memory_free(LIST_ENTRY(r, struct placeholder, request));
}

static void placeholder_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    if (last)
        placeholder_fail(r, UPSTREAM_UNKNOWN, NULL);
}

static bool placeholder_may_last(const struct upstream_request *r) {
    return LIST_ENTRY(r, const struct placeholder, request)->may_last;
}

void upstream_abandon(struct upstream_request *r) {
    static const struct upstream_request_ops ops = {
        .reply = placeholder_reply, .fail = placeholder_fail, .may_last = placeholder_may_last};
    struct upstream_conn *c = r->conn;
    if (!r->in_flight)
        return;
    if (!c || c->state != CONN_READY) {
        list_remove(&r->link);
        if (c) {
            invariant(c->in_flight > 0, "no request is in flight");
            c->in_flight--;
            c->rebuild = true;
        }
        request_end(r);
        return;
    }
    /* Its bytes have been sent, or others behind them have: a placeholder takes over its bytes and its place. */
    invariant(!r->placeholder, "a request that may be taken back is replaced");
    struct placeholder *s = memory_alloc(sizeof(*s));
    s->may_last = r->ops->may_last && r->ops->may_last(r);
    s->request = *r;
    s->request.ops = &ops;
    s->request.placeholder = true;
    list_init(&s->request.link);
    list_append(&r->link, &s->request.link); /* inserts the placeholder before r; the next line removes r */
    list_remove(&r->link);
    r->chunk = NULL;
    request_end(r);
}
