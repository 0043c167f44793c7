/*
 * Closes the connections that are not needed any more, every few seconds: idle ones, those of lanes and logins that
 * have ended, and those of nodes that serve nothing. Frees unused nodes.
 */
#include "proxy/upstream/connection/private.h"

static void close_unused(struct upstream_conn *c, void *arg) {
    const int64_t *now = arg;
    bool unused = c->node->slots == 0 && !c->node->master;
    int64_t idle_ms = c->pin ? PIN_IDLE_MS : IDLE_MS;
    if ((c->pin && c->pin->owned) || (!unused && !c->pin && dedicated_lives(c->u, c->dedicated)))
        return; /* the owner needs it, or the node keeps state for it */
    const struct upstream_lane *lane = conn_lane(c);
    if (c->state == CONN_READY && c->in_flight == 0 &&
        (unused || *now - c->progress_ms > idle_ms || (lane && login_is_over(lane->login))))
        conn_close(c, CONN_IDLE, "idle");
}

void node_sweep(struct upstream *u) {
    int64_t now = clock_ms();
    conn_each(u, close_unused, &now);
    LIST_FOREACH_SAFE(it, &u->nodes) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, link);
        if (n->slots == 0 && !n->master && list_empty(&n->pools) && n->pins == 0)
            node_forget(n);
    }
}

static void close_ended(struct upstream_conn *c, void *arg) {
    struct upstream *u = c->u;
    if (c->dedicated == 0 || dedicated_lives(u, c->dedicated) || (c->pin && c->pin->owned))
        return;
    if (c->in_flight == 0)
        conn_close(c, CONN_IDLE, "its lane has ended");
    else
        u->dedicated_ended = true;
}

void dedicated_sweep(struct upstream *u) {
    u->dedicated_ended = false;
    conn_each(u, close_ended, NULL);
}
