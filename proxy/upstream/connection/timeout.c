/*
 * Finds late replies: whether a reply is late, whether the node is to blame, and what follows. Called for each
 * connection every 100 ms while anything is in flight.
 */
#include <poll.h>
#include <stdio.h>

#include "proxy/upstream/connection/private.h"

enum { SILENT_MS = 1000 }; /* after this time the topology is checked, before upstream-timeout has passed */

/* Whether the node owes nothing at present: the pin's owner set no time limit, can't take the reply yet, or has to send
 * more first. */
static bool owner_is_slow(const struct upstream_conn *c) {
    return c->paused || (c->pin && (c->pin->patient_ms == PIN_PATIENT || (c->pin->open && c->out.unsent == 0)));
}

/* Whether the node has sent something that this process has not read yet, since it was stopped or short of processor
 * time. */
static bool conn_has_news(const struct upstream_conn *c) {
    const struct iobuf *out = c->state == CONN_HANDSHAKE ? &c->handshake : &c->out;
    bool writes = c->state == CONN_CONNECTING || (c->state != CONN_SECURING && out->unsent > 0);
    struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    return poll(&p, 1, 0) > 0;
}

/* Closes a connection whose reply is due, if another node has taken over the node's slots. The node has then vanished
 * without closing its connections. Returns whether it was closed. */
static bool left_behind(struct upstream_conn *c) {
    struct upstream *u = c->u;
    upstream_want_map(u);
    if (!c->node->served || c->node->slots > 0) /* a node that slots are just moving to has none yet */
        return false;
    conn_close(c, CONN_REPLACED, "it is silent, and another node serves its slots");
    return true;
}

/* Whether a request on the node may take its time, and the node answers a probe. Replies of earlier requests may be
 * ready: a node writes them only after it has run all commands that it has read. */
static bool may_last(const struct upstream_conn *c, int64_t now) {
    LIST_FOREACH(it, &c->pending) {
        const struct upstream_request *r = LIST_ENTRY(it, struct upstream_request, link);
        if (r->open || !iobuf_sent(r->chunk, r->bytes + r->len - 1))
            return false;
        if (r->ops->may_last && r->ops->may_last(r))
            return probe_answers(c->node, now);
    }
    return false;
}

/* The text up to the number of milliseconds. */
static const char *too_slow(const struct upstream_conn *c) {
    if (c->unverified)
        return "no Sentinel has confirmed that it is the master within";
    switch (c->state) {
    case CONN_RESOLVING:
        return "no answer from the name server within";
    case CONN_SECURING:
        return "the TLS handshake took more than";
    default:
        return "no answer within";
    }
}

bool conn_check(struct upstream_conn *c, int64_t now) {
    int64_t silent_ms = now - c->progress_ms - (c->pin ? c->pin->patient_ms : 0);
    char reason[96];
    switch (c->state) {
    case CONN_RESOLVING:
    case CONN_CONNECTING:
    case CONN_SECURING:
    case CONN_HANDSHAKE:
        if (now < c->deadline_ms || conn_has_news(c))
            return true;
        snprintf(reason, sizeof(reason), "%s %lld ms", too_slow(c), (long long)c->u->connect_ms);
        conn_close(c, CONN_UNREACHABLE, reason);
        return false;
    case CONN_READY:
        if (c->in_flight == 0 && !c->pool && !c->pin)
            conn_close(c, CONN_IDLE, "retired");
        if (c->state == CONN_CLOSED || c->in_flight == 0 || owner_is_slow(c))
            return false;
        if ((silent_ms < SILENT_MS && silent_ms < c->u->timeout_ms) || conn_has_news(c))
            return true;
        if (left_behind(c))
            return false;
        if (silent_ms < c->u->timeout_ms || may_last(c, now))
            return true;
        snprintf(reason, sizeof(reason), "did not answer for %lld ms", (long long)c->u->timeout_ms);
        conn_close(c, CONN_TIMEOUT, reason);
        return false;
    case CONN_CLOSED:
        return false;
    }
    return false;
}
