/*
 * Pins: connections that only one caller uses, for requests that a shared connection can't carry.
 *
 *      upstream_pin_open   ──> from the node's idle pins, or a new connection ──> owned
 *      upstream_pin_borrow ──> a dedicated lane's connection, which stays in its pool ──> owned
 *      upstream_unpin ──> idle (clean, ready, quiet) ──> pinned anew, or closed by node_sweep
 *                    ├──> back to its lane (lent, clean)
 *                    └──> u->unpinned (anything else) ──> closed and freed by upstream_flush
 *
 * A caller may give a pin back from inside a callback of its connection: it is freed only at the end of the turn.
 */
#include "proxy/upstream/connection/private.h"

static struct upstream_pin *pin_new(struct upstream *u, const struct upstream_lane *lane) {
    struct upstream_pin *pin = memory_zalloc(sizeof(*pin));
    pin->u = u;
    pin->lane = *lane;
    list_init(&pin->link);
    return pin;
}

struct upstream_pin *upstream_pin_open(struct upstream *u, struct upstream_node *node, const struct upstream_lane *lane,
                                       const struct upstream_claim *claim, const struct upstream_pin_events *events,
                                       const char **error) {
    struct quota_hold hold = {0};
    if (!node || u->closing || !quota_take(node, claim, &hold)) {
        *error = outcome_unsent(u, !node || u->closing ? u->above->no_node(u) : u->error);
        return NULL;
    }
    struct upstream_pin *pin = NULL;
    LIST_EACH(idle, &node->idle_pins, struct upstream_pin, link)
        if (!pin && lane_equal(&idle->lane, lane))
            pin = idle;
    if (pin) {
        pin_leave_idle(pin, node);
    } else {
        if (node->idle_pin_count > 0 && quota_is_tight(node))
            pin_close_idle(node, false);
        pin = pin_new(node->u, lane);
        pin->conn = conn_open(node, NULL, pin);
    }
    if (!pin->conn) {
        memory_free(pin);
        quota_give(node, &hold);
        *error = outcome_unsent(u, u->error);
        return NULL;
    }
    pin->owned = true;
    pin->hold = hold;
    pin->events = *events;
    return pin;
}

struct upstream_pin *upstream_pin_borrow(struct upstream *u, struct upstream_node *node,
                                         const struct upstream_lane *lane, uint32_t affinity,
                                         const struct upstream_pin_events *events, const char **error) {
    const struct upstream_request like = {.affinity = affinity, .lane = *lane};
    invariant(lane->dedicated != 0, "a shared connection is lent");
    if (!node || u->closing) {
        *error = outcome_unsent(u, u->above->no_node(u));
        return NULL;
    }
    struct upstream_conn *c = node_conn(node, &like);
    *error = c ? NULL : outcome_unsent(u, u->error);
    if (!c || c->pin || c->in_flight > 0)
        return NULL;
    struct upstream_pin *pin = pin_new(u, lane);
    pin->conn = c;
    pin->owned = true;
    pin->events = *events;
    c->pin = pin;
    return pin;
}

const char *upstream_pin_submit(struct upstream_pin *pin, struct upstream_request *r, const char *bytes, size_t len,
                                bool asking) {
    if (!pin->conn)
        return outcome_unsent(pin->u, "UPSTREAM the connection to the node was lost");
    invariant(pin->owned && !pin->idle && !pin->open, "a pin that is not in use takes a request");
    request_begin(r, SLOT_NONE, pin->conn->node, &pin->lane, bytes, len);
    r->pinned = true;
    r->asking = asking;
    r->in_flight = true;
    conn_send(pin->conn, r);
    return NULL;
}

const char *upstream_pin_begin(struct upstream_pin *pin, struct upstream_request *r, bool asking) {
    const char *error = upstream_pin_submit(pin, r, "", 0, asking);
    if (!error)
        r->open = pin->open = true;
    return error;
}

bool upstream_pin_more(struct upstream_pin *pin, const char *bytes, size_t len, bool last) {
    invariant(pin->owned, "bytes come for a pin that is not in use");
    struct upstream_conn *c = pin->conn;
    if (!c || !pin->open)
        return true;
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
    pin->open = !last;
    pin->full = !last && c->out.unsent > PIN_UNSENT_MAX;
    return !pin->full;
}

void upstream_pin_send(struct upstream_pin *pin, const char *bytes, size_t len) {
    if (!pin->conn)
        return;
    iobuf_append(&pin->conn->out, bytes, len);
    if (pin->conn->state == CONN_READY)
        conn_mark(pin->conn);
}

void upstream_pin_stream(struct upstream_pin *pin, bool on) {
    pin->stream = on;
}

void upstream_pin_patient(struct upstream_pin *pin, int64_t ms) {
    pin->patient_ms = ms;
}

bool *upstream_pin_mark(struct upstream_pin *pin) {
    return &pin->mark;
}

int64_t *upstream_pin_number(struct upstream_pin *pin) {
    return &pin->number;
}

struct upstream_node *upstream_pin_node(const struct upstream_pin *pin) {
    return pin->conn ? pin->conn->node : NULL;
}

void upstream_unpin(struct upstream_pin *pin, bool clean) {
    invariant(pin->owned && !pin->idle && list_empty(&pin->link), "a pin is given back twice");
    pin->owned = false;
    if (pin->conn)
        quota_give(pin->conn->node, &pin->hold);
    pin->patient_ms = 0;
    pin->open = pin->full = false;
    memset(&pin->events, 0, sizeof(pin->events));
    struct upstream_conn *lent = pin->conn && pin->conn->pool ? pin->conn : NULL;
    if (lent && clean) { /* its lane goes on */
        lent->pin = NULL;
        pin->conn = NULL;
    } else if (lent) { /* the lane's next request opens another one */
        conn_leave_pool(lent);
        lent->node->pins++;
    } else if (clean && pin->conn && pin->conn->state == CONN_READY && pin->conn->in_flight == 0 &&
               pin->conn->out.unsent == 0 && !pin->stream && !conn_login_is_old(pin->conn) &&
               pin->conn->node->idle_pin_count < PINS_IDLE_MAX) {
        struct upstream_node *n = pin->conn->node;
        pin->conn->progress_ms = clock_ms();
        pin->idle = true;
        n->idle_pin_count++;
        list_prepend(&n->idle_pins, &pin->link);
        return;
    }
    /* The node must see the end of this connection before requests that others send from now on. */
    if (pin->conn && pin->conn->state == CONN_READY && pin->conn->in_flight > 0)
        shutdown(pin->conn->fd, SHUT_WR);
    list_append(&pin->u->unpinned, &pin->link);
}

/* Closes the connections of dedicated lanes that have ended, if nothing is in flight on them. */
static void close_ended(struct upstream *u) {
    u->dedicated_ended = false;
    LIST_EACH(c, &u->conns, struct upstream_conn, link) {
        if (c->state == CONN_CLOSED || c->dedicated == 0 || dedicated_find(u, c->dedicated) ||
            (c->pin && c->pin->owned))
            continue;
        if (c->in_flight == 0)
            conn_close(c, CONN_IDLE, "its lane has ended");
        else
            u->dedicated_ended = true;
    }
}

void pin_close_unpinned(struct upstream *u) {
    struct upstream_pin *pin;
    if (!u->dedicated_ended && list_empty(&u->unpinned)) /* as a rule */
        return;
    if (u->dedicated_ended)
        close_ended(u);
    while ((pin = LIST_FIRST(&u->unpinned, struct upstream_pin, link))) {
        invariant(!pin->owned && !pin->idle, "a pin in use is closed");
        if (pin->conn) /* the pin stays in the list until then: conn_close recognises it by that */
            conn_close(pin->conn, CONN_IDLE, "given back");
        list_remove(&pin->link);
        memory_free(pin);
    }
}
