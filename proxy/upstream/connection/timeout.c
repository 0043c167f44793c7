/*
 * Connections that owe something: whether it is late, whose fault that is, and what follows. Called for each of them
 * every 100 ms while anything is in flight.
 */
#include <poll.h>
#include <stdio.h>

#include "proxy/upstream/connection/private.h"

enum { SILENT_MS = 1000 }; /* then the topology is looked at, before upstream-timeout is over */

/* Whether nothing is due of the node: its owner is patient, does not want the reply yet, or has to send on first. */
static bool owner_is_slow(const struct upstream_conn *c) {
    return c->paused || (c->pin && (c->pin->patient_ms == PIN_PATIENT || (c->pin->open && c->out.unsent == 0)));
}

/* Whether the node has done its part, and this process did not get to see it: it was stopped, or short of processor
 * time. */
static bool conn_has_news(const struct upstream_conn *c) {
    const struct iobuf *out = c->state == CONN_HANDSHAKE ? &c->handshake : &c->out;
    bool writes = c->state == CONN_CONNECTING || (c->state != CONN_SECURING && out->unsent > 0);
    struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    return poll(&p, 1, 0) > 0;
}

/* Closes a connection whose due reply does not come where the node has vanished without a word, and another one serves
 * what it served. Returns whether it did. */
static bool left_behind(struct upstream_conn *c) {
    struct upstream *u = c->u;
    upstream_want_map(u);
    if (!c->node->served || c->node->slots > 0) /* a new node that slots move to has none yet */
        return false;
    conn_close(c, CONN_REPLACED, "it is silent, and its slots are another one's");
    return true;
}

/* Whether something that the node has takes its time, while it answers others. The replies before it may be ready: a
 * node writes them when it has done all that it has read. */
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

/* What takes too long, up to the number of milliseconds. */
static const char *too_slow(const struct upstream_conn *c) {
    if (c->unverified)
        return "no Sentinel has said that it is the master still within";
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
