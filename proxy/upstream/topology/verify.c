/*
 * Behind Sentinels: whether a node is still the master after connections to it were lost. Another node may have become
 * the master meanwhile. The old master may be back, with old data or none, and act as a master until the Sentinels
 * reconfigure it. A lock acquired there could be acquired twice. So a new connection carries no requests until a round
 * that began after the loss has ended. If the round finds another master, map.c closes the connection.
 *
 *      handshake's end ──> verify_waits ── round ──> verify_over ──> conn_ready
 *
 * If no Sentinel answers, the last known master is used.
 */
#include "parser/invariant.h"
#include "proxy/upstream/topology/private.h"

/* Whether the node has to be verified: a connection to it was lost since the last round, or a round is overdue (if no
 * connection was open, none could be lost). */
static bool must_verify(const struct upstream_node *n, const struct topology *t) {
    return n->lost_ms > t->asked_ms || clock_ms() - t->asked_ms > 2 * t->calm_ms;
}

bool verify_waits(struct upstream_conn *c) {
    invariant(c->state == CONN_HANDSHAKE && c->handshake_left == 0, "state %d", (int)c->state);
    struct upstream *u = c->u;
    if (u->config->kind != UPSTREAM_SENTINEL || !must_verify(c->node, u->topology)) {
        c->unverified = false;
        return false;
    }
    if (!c->unverified)
        c->deadline_ms = clock_ms() + u->connect_ms;
    c->unverified = true;
    if (!u->topology->candidates)
        topology_now(u->topology);
    return true;
}

static void over(struct upstream_conn *c, void *arg) {
    if (c->unverified)
        conn_ready(c);
}

void verify_over(struct upstream *u) {
    conn_each(u, over, NULL);
}
