/*
 * Whether a node whose reply to a script is late is still alive. A script may run for any time, but meanwhile the node
 * answers other connections (with BUSY at least).
 *
 *      late script's reply ──> PING over a connection of its own ──┬─ any answer (PONG, BUSY) ──> goes on waiting
 *                                                                  └─ none in upstream-timeout ──> it is given up
 *
 * It knows nothing of scripts: timeout.c asks at each of its checks.
 */
#include "parser/invariant.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/connection/private.h"

struct node_probe {
    struct upstream_request request;
    struct upstream_node *node;
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

static bool probe_start(struct node_probe *p) {
    invariant(!p->pin, "two probes are under way");
    static const struct upstream_request_ops ops = {.reply = probe_reply, .fail = probe_fail};
    static const struct upstream_pin_events none;
    static const struct upstream_lane lane = {.protocol = 2};
    static const struct upstream_claim own = {.client = NULL};
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    const char *error;
    p->pin = upstream_pin_open(p->node->u, p->node, &lane, &own, &none, &error);
    if (!p->pin)
        return false;
    p->request.ops = &ops;
    if (!upstream_pin_submit(p->pin, &p->request, ping, sizeof(ping) - 1, false))
        return true;
    upstream_unpin(p->pin, false);
    p->pin = NULL;
    return false;
}

bool probe_answers(struct upstream_node *n, int64_t now) {
    if (!n->probe) {
        n->probe = memory_zalloc(sizeof(*n->probe));
        n->probe->node = n;
        n->probe->ended_ms = INT64_MIN / 2;
    }
    struct node_probe *p = n->probe;
    if (p->pin)
        return true; /* a probe is under way, with its own timeout */
    if (now - p->ended_ms < n->u->timeout_ms)
        return p->answered;
    return probe_start(p);
}
