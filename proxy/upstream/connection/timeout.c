/*
 * The upstream's tick, every 100 ms while anything is in flight: late replies, whether the node is to blame, and what
 * follows.
 *
 * A script may run for any time, but meanwhile its node answers other connections (with BUSY at least):
 *
 *      late script's reply ──> PING over a connection of its own ──┬─ any answer (PONG, BUSY) ──> goes on waiting
 *                                                                  └─ none in upstream-timeout ──> it is given up
 *
 * Every few seconds it closes idle connections, and those of lanes and logins that have ended, or of nodes that serve
 * nothing. Unused nodes are freed.
 */
#include <poll.h>

#include "proxy/upstream/connection/private.h"

enum { SILENT_MS = 1000 }; /* after this time the topology is checked, before upstream-timeout has passed */

/* ---- probes ---- */

struct node_probe {
    struct upstream_request request;
    struct upstream_pin *pin; /* NULL: none is under way */
    bool answered;            /* whether the last probe was answered */
    int64_t ended_ms;         /* when the last probe ended */
};

static void probe_end(struct upstream_request *r, bool answered) {
    struct node_probe *p = LIST_ENTRY(r, struct node_probe, request);
    struct upstream_pin *pin = p->pin;
    invariant(pin, "a probe ends twice");
    p->pin = NULL;
    p->answered = answered;
    p->ended_ms = clock_ms();
    upstream_unpin(pin, answered);
}

static void probe_reply(struct upstream_request *r, const char *data, size_t len, bool last) {
    if (last)
        probe_end(r, true);
}

/* Ends a probe that failed. If the node refused the connection's login or database, it has answered. */
static void probe_fail(struct upstream_request *r, enum upstream_failure why, const char *error) {
    probe_end(r, why == UPSTREAM_REFUSED);
}

/* Whether the node answers on another connection. If the last answer is old, a PING is sent; meanwhile: true. */
static bool probe_answers(struct upstream_node *n, int64_t now) {
    static const struct upstream_request_ops ops = {.reply = probe_reply, .fail = probe_fail};
    static const struct upstream_pin_events none;
    static const struct upstream_lane lane = {.protocol = 2};
    static const struct upstream_claim own = {.client = NULL};
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    const char *error;
    if (!n->probe) {
        n->probe = memory_zalloc(sizeof(*n->probe));
        n->probe->ended_ms = INT64_MIN / 2;
    }
    struct node_probe *p = n->probe;
    if (p->pin)
        return true; /* a probe is under way, with its own timeout */
    if (now - p->ended_ms < n->u->timeout_ms)
        return p->answered;
    p->request.ops = &ops;
    p->pin = upstream_pin_open(n->u, n, &lane, &own, &none, &error);
    return p->pin &&
           !upstream_pin_submit(p->pin, &p->request, ping, sizeof(ping) - 1, false); /* the pin is connected */
}

/* ---- late replies ---- */

/* Whether the node has sent something that this process, stopped or short of processor time, has not read yet. */
static bool conn_has_news(const struct upstream_conn *c) {
    const struct iobuf *out = c->state == CONN_HANDSHAKE ? &c->handshake : &c->out;
    bool writes = c->state == CONN_CONNECTING || (c->state != CONN_SECURING && out->unsent > 0);
    struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    return poll(&p, 1, 0) > 0;
}

/* Whether a request may take its time, and the node answers a probe. Earlier requests count, too: a node writes replies
 * only after it has run all commands that it has read. */
static bool may_last(const struct upstream_conn *c, int64_t now) {
    LIST_EACH(r, &c->pending, const struct upstream_request, link) {
        if (r->open || !iobuf_sent(r->chunk, r->bytes + r->len - 1))
            return false;
        if (r->ops->may_last && r->ops->may_last(r))
            return probe_answers(c->node, now);
    }
    return false;
}

/* Closes the connection if a time limit has passed. Returns whether something is in flight. */
static bool conn_check(struct upstream_conn *c, int64_t now) {
    int64_t silent_ms = now - c->progress_ms - (c->pin ? c->pin->patient_ms : 0);
    char reason[96];
    switch (c->state) {
    case CONN_RESOLVING:
    case CONN_CONNECTING:
    case CONN_SECURING:
    case CONN_HANDSHAKE:
        if (now < c->deadline_ms || conn_has_news(c))
            return true;
        snprintf(reason, sizeof(reason), "%s %lld ms",
                 c->unverified                ? "no Sentinel has confirmed that it is the master within"
                 : c->state == CONN_RESOLVING ? "no answer from the name server within"
                 : c->state == CONN_SECURING  ? "the TLS handshake took more than"
                                              : "no answer within",
                 (long long)c->u->connect_ms);
        conn_close(c, CONN_UNREACHABLE, reason);
        return false;
    case CONN_READY:
        if (c->in_flight == 0 && !c->pool && !c->pin)
            conn_close(c, CONN_IDLE, "retired");
        if (c->state == CONN_CLOSED || c->in_flight == 0)
            return false;
        /* The node owes nothing while the pin's owner set no time limit, can't take the reply, or has to send more. */
        if (c->paused || (c->pin && (c->pin->patient_ms == PIN_PATIENT || (c->pin->open && c->out.unsent == 0))))
            return false;
        if ((silent_ms < SILENT_MS && silent_ms < c->u->timeout_ms) || conn_has_news(c))
            return true;
        upstream_want_map(c->u);
        /* Another node may have taken over, and the node have vanished without closing its connections. A node that
         * slots are just moving to has served none yet. */
        if (c->node->served && c->node->slots == 0) {
            conn_close(c, CONN_REPLACED, "it is silent, and another node serves its slots");
            return false;
        }
        if (silent_ms < c->u->timeout_ms || may_last(c, now))
            return true;
        snprintf(reason, sizeof(reason), "did not answer for %lld ms", (long long)c->u->timeout_ms);
        conn_close(c, CONN_TIMEOUT, reason);
        return false;
    case CONN_CLOSED:
        break;
    }
    return false;
}

/* ---- the tick ---- */

void node_sweep(struct upstream *u) {
    int64_t now = clock_ms();
    LIST_EACH(c, &u->conns, struct upstream_conn, link) {
        if (c->state != CONN_READY || c->in_flight > 0 || (c->pin && c->pin->owned))
            continue;
        bool unused = c->node->slots == 0 && !c->node->master;
        if (!unused && !c->pin && dedicated_find(u, c->dedicated)) /* the node keeps state for its owner */
            continue;
        const struct upstream_lane *lane = conn_lane(c);
        if (unused || now - c->progress_ms > (c->pin ? PIN_IDLE_MS : IDLE_MS) || (lane && login_is_over(lane->login)))
            conn_close(c, CONN_IDLE, "idle");
    }
    LIST_EACH_SAFE(n, &u->nodes, struct upstream_node, link)
        if (n->slots == 0 && !n->master && list_empty(&n->pools) && n->pins == 0)
            node_forget(n);
}

void upstream_tick(struct ev_loop *loop, ev_timer *w, int revents) {
    struct upstream *u = w->data;
    int64_t now = clock_ms();
    bool open = false, busy = false;
    LIST_EACH(c, &u->conns, struct upstream_conn, link) {
        conn_login_again(c);
        busy |= conn_check(c, now);
    }
    if (now - u->swept_ms >= (int64_t)(TICK_SLOW_S * 1000)) {
        u->swept_ms = now;
        node_sweep(u);
    }
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        open |= c->state != CONN_CLOSED;
    if (!open) {
        ev_timer_stop(u->loop, &u->tick);
        u->tick_fast = false;
    } else if (busy != u->tick_fast) {
        upstream_set_tick(u, busy);
    }
}
