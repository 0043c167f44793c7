/*
 * Behind Sentinels: whether a node to which connections were lost is the master still. While this process was not
 * looking another one may have taken its place, and it may be back, with old data or none, and take itself for the
 * master until the Sentinels get to it. What would be acquired there would be acquired twice. So a new connection
 * carries nothing before a round that was begun since the loss has ended; where it finds another master, it is closed
 * by that (map.c).
 *
 *      handshake's end ──> verify_waits ── round ──> verify_over ──> conn_ready
 *
 * Where no Sentinel answers, the last one named is the master.
 */
#include "proxy/upstream/topology/private.h"

/* Whether the node has to be verified: a connection to it was lost since the last round, or (where none was open to be
 * lost) a round is overdue. */
static bool must_verify(const struct upstream_node *n, const struct topology *t) {
    return n->lost_ms > t->asked_ms || clock_ms() - t->asked_ms > 2 * t->kind->calm_ms;
}

bool verify_waits(struct upstream_conn *c) {
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
