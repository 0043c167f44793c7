/*
 * The end of a connection to a node: what it means for the node, and for the connection's pool or pin. The router
 * repeats or fails its requests.
 */
#include "proxy/upstream/connection/private.h"

/* ---- texts ---- */

void outcome_text(char *out, size_t size, const char *base, bool sent) {
    if (strncmp(base, "UPSTREAM ", 9) == 0)
        snprintf(out, size, "%.*s; %s", (int)(size - 64), base,
                 sent ? "the outcome of the request is unknown" : "the request was not sent");
    else
        snprintf(out, size, "%s", base);
}

const char *outcome_unsent(struct upstream *u, const char *base) {
    char text[sizeof(u->error)];
    outcome_text(text, sizeof(text), base, false);
    memcpy(u->error, text, sizeof(text));
    return u->error;
}

void conn_lost_text(char *out, size_t size, const char *address, enum conn_end end, const char *reason) {
    static const char *const what[CONN_SHUTDOWN + 1] = {
        [CONN_LOST] = "was lost", [CONN_UNREACHABLE] = "can't be reached", [CONN_REPLACED] = "is not used any more"};
    if (what[end])
        snprintf(out, size, "UPSTREAM node %s %s (%s)", address, what[end], reason);
    else if (end == CONN_TIMEOUT)
        snprintf(out, size, "UPSTREAM node %s %s", address, reason);
    else
        snprintf(out, size, "%s", end == CONN_REFUSED || end == CONN_FULL ? reason : "UPSTREAM the proxy is stopping");
}

/* ---- the end ---- */

/* Logs a refusal. Rate-limited: a client whose login was revoked may try as often as it likes. */
static void log_refusal(struct upstream_node *n, const char *reason) {
    int64_t now = clock_ms();
    n->refusals++;
    if (n->refusal_logged_ms > 0 && now - n->refusal_logged_ms < LOG_AGAIN_MS)
        return;
    if (n->refusals == 1)
        log_warning("Node %s refused a connection: %s", n->address, reason);
    else
        log_warning("Node %s refused %u connections, the last one: %s", n->address, n->refusals, reason);
    n->refusal_logged_ms = now;
    n->refusals = 0;
}

/* What an ended connection means for its node. */
static void conn_blame(struct upstream_conn *c, enum conn_end end, const char *reason) {
    struct upstream_node *n = c->node;
    bool failed;
    if (end == CONN_UNREACHABLE || end == CONN_LOST || end == CONN_TIMEOUT)
        n->lost_ms = clock_ms();
    if (c->proven && (end == CONN_LOST || end == CONN_TIMEOUT))
        upstream_may_forget(c->u);
    switch (end) {
    case CONN_UNREACHABLE:
        if (conn_lane(c)) /* else it may be where the node's name led before */
            node_failed(n, reason);
        upstream_want_map(c->u);
        break;
    case CONN_LOST:
    case CONN_TIMEOUT:
        /* The first loss before a reply may be of this connection alone. A pin may have waited for
         * its first reply for hours. */
        failed = !c->proven && !c->pin && (end != CONN_LOST || n->failures > 0 || n->doubted);
        n->doubted |= !c->proven && !c->pin;
        if (failed)
            node_failed(n, reason);
        else if (c->in_flight > 0)
            node_log(n, end == CONN_LOST ? "was lost" : "does not answer", reason);
        else
            log_verbose("Node %s: connection lost: %s", n->address, reason);
        upstream_want_map(c->u);
        break;
    case CONN_FULL:
        quota_note_full(n);
        if (c->pool && !c->dedicated) /* the lane's other connections are still open and go on */
            node_failed(n, reason);
        break;
    case CONN_REFUSED:
        log_refusal(n, reason);
        break;
    case CONN_REPLACED:
    case CONN_IDLE:
    case CONN_SHUTDOWN:
        break;
    }
}

void pin_close_idle(struct upstream_node *n, bool all) {
    for (bool more = true; more && !list_empty(&n->idle_pins); more = all)
        conn_close(LIST_ENTRY(n->idle_pins.prev, struct upstream_pin, link)->conn, CONN_IDLE, "its place is needed");
}

void conn_close(struct upstream_conn *c, enum conn_end end, const char *reason) {
    invariant(c->node && c->state != CONN_CLOSED, "a connection is closed twice");
    struct upstream *u = c->u;
    struct upstream_node *n = c->node;
    char why[REASON_MAX];
    snprintf(why, sizeof(why), "%s", reason);
    if (end == CONN_LOST && c->state != CONN_READY)
        end = CONN_UNREACHABLE;
    conn_blame(c, end, why);
    quota_give(n, &c->hold);

    struct list_node requests;
    list_init(&requests);
    list_splice(&requests, &c->pending);
    LIST_EACH(r, &requests, struct upstream_request, link)
        r->conn = NULL;
    uint32_t dedicated = c->state == CONN_READY ? c->dedicated : 0;
    conn_set_state(c, CONN_CLOSED);
    c->in_flight = 0;
    struct upstream_pin *pin = c->pin;
    invariant(c->pool || n->pins > 0, "the node has %u connections outside pools", n->pins);
    if (c->pool)
        conn_leave_pool(c);
    else
        n->pins--;
    if (pin) {
        pin->conn = NULL;
        quota_give(n, &pin->hold);
        if (pin->idle)
            pin_leave_idle(pin, n);
    }
    c->pin = NULL;
    c->node = NULL;
    u->above->lost(u, &requests, n, end, why);
    const struct upstream_dedicated *lane = dedicated_find(u, dedicated);
    if (lane && lane->events.lost && !u->closing)
        lane->events.lost(lane->events.arg);
    if (end == CONN_FULL)
        pin_close_idle(n, true);
    if (pin && pin->owned && pin->events.lost) {
        char error[512];
        conn_lost_text(error, sizeof(error), n->address, end, why);
        pin->events.lost(pin->events.arg, error);
    } else if (pin && !pin->owned && list_empty(&pin->link)) { /* it was idle; it is freed at the end of the turn */
        list_append(&u->unpinned, &pin->link);
    }
}

/* A pin in use goes on until it is given back: the state that it has built up is on the old machine. */
void conn_retire_all(struct upstream_node *n) {
    struct upstream *u = n->u;
    pin_close_idle(n, true);
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        if (c->node == n)
            conn_retire(c);
    /* An owner that hears of the end may open connections to the new machine, which stay: they come after `last`. */
    const struct list_node *last = u->conns.prev;
    for (struct list_node *it = &u->conns; it != last;) {
        it = it->next;
        struct upstream_conn *c = LIST_ENTRY(it, struct upstream_conn, link);
        if (c->node == n && c->dedicated)
            conn_close(c, CONN_LOST, "its name leads to another machine now");
    }
    upstream_wake(u);
}
