/*
 * Behind Sentinels: whether a node to which connections were lost is the master still. While this process was not
 * looking another one may have taken its place, and it may be back, with old data or none, and take itself for the
 * master until the Sentinels get to it. What would be acquired there would be acquired twice. So a new connection
 * carries nothing before a round that was begun since the loss has ended; where it finds another master, it is closed
 * by that (map.c).
 *
 *      handshake's end ──> doubt_waits ── round ──> doubt_over ──> conn_ready
 *
 * Where no Sentinel answers, the last one named is the master.
 */
#include "proxy/upstream/topology/private.h"

/* Nothing was lost where nothing was open, but then a round is overdue. */
static bool is_doubtful(const struct upstream_node *n, const struct topology *t) {
    return n->lost_ms > t->asked_ms || clock_ms() - t->asked_ms > 2 * t->kind->calm_ms;
}

bool doubt_waits(struct upstream_conn *c) {
    struct upstream *u = c->u;
    if (u->config->kind != UPSTREAM_SENTINEL || !is_doubtful(c->node, u->topology)) {
        c->doubted = false;
        return false;
    }
    if (!c->doubted)
        c->deadline_ms = clock_ms() + u->connect_ms;
    c->doubted = true;
    if (!u->topology->candidates)
        topology_now(u->topology);
    return true;
}

static void over(struct upstream_conn *c, void *arg) {
    if (c->doubted)
        conn_ready(c);
}

void doubt_over(struct upstream *u) {
    conn_each(u, over, NULL);
}
