/*
 * Which replica may answer reads: read-from replicas | nearest.
 *
 *      a round of the topology ──> replicas_add ──┐
 *      each second ──> replicas_watch ── ROLE ──> "slave ... connected": it is in sync ──> upstream_replica
 *      an error, a lost connection, no answer within the second ──> it is not, until the next ROLE
 *
 * ROLE goes over the connection of the proxy's own questions, so that no client's request delays it. Its round trip is
 * what `nearest` compares. Reads return to the master in router.c and retry.c.
 */
#include <string.h>

#include "proxy/base/log.h"
#include "proxy/base/memory.h"
#include "proxy/upstream/routing/routing.h"

struct replica_watch {
    struct upstream_request request; /* ROLE, while in_flight */
    struct upstream_node *node;
    bool in_sync; /* its last ROLE says so, and nothing has gone wrong since */
    bool nearest; /* of its master and the master's replicas it has the shortest round trip */
    bool warned;  /* the log says that it refuses ROLE */
};

static bool serves(const struct upstream_node *n) {
    return n->watch && n->watch->in_sync && n->failures == 0;
}

void replicas_doubt(struct upstream_node *n) {
    if (n->watch)
        n->watch->in_sync = false;
}

struct upstream_node *upstream_replica(const struct upstream *u, int slot, uint32_t affinity) {
    const struct upstream_node *master = upstream_node_of_slot(u, slot);
    uint32_t count = 0;
    if (!master)
        return NULL;
    LIST_FOREACH(it, &master->replicas)
    count += serves(LIST_ENTRY(it, struct upstream_node, replica));
    uint32_t pick = count > 0 ? affinity % count : 0;
    LIST_FOREACH(it, &master->replicas) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, replica);
        if (serves(n) && (u->config->read_from == UPSTREAM_READ_NEAREST ? n->watch->nearest : pick-- == 0))
            return n;
    }
    return NULL;
}

/* ---- the nearest --------------------------------------------------------------------------------- */

/* The round trip by which nodes are compared. The present choice counts as a fifth shorter than it is, so that two
 * nodes that are as near do not take turns. */
static int64_t distance(const struct upstream_node *n) {
    int64_t us = n->round_trip_us > 0 ? n->round_trip_us : INT64_MAX;
    return n->watch && n->watch->nearest ? us / 5 * 4 : us;
}

static void choose_nearest(struct upstream_node *master) {
    struct upstream_node *best = master;
    LIST_FOREACH(it, &master->replicas) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, replica);
        if (serves(n) && distance(n) < distance(best))
            best = n;
    }
    LIST_FOREACH(it, &master->replicas) {
        struct replica_watch *w = LIST_ENTRY(it, struct upstream_node, replica)->watch;
        if (w)
            w->nearest = w->node == best;
    }
    if (master->watch)
        master->watch->nearest = master == best;
}

/* ---- ROLE ---------------------------------------------------------------------------------------- */

static struct replica_watch *watch_of(struct upstream_request *r) {
    return LIST_ENTRY(r, struct replica_watch, request);
}

/* Whether a reply to ROLE is that of a replica whose link to its master is up. */
static bool is_in_sync(const char *reply, size_t len) {
    static const char begin[] = "*5\r\n$5\r\nslave\r\n", up[] = "\r\n$9\r\nconnected\r\n:";
    return len > sizeof(begin) && memcmp(reply, begin, sizeof(begin) - 1) == 0 &&
           memmem(reply, len, up, sizeof(up) - 1);
}

static void told(struct upstream_request *r, const char *data, size_t len, bool last) {
    struct replica_watch *w = watch_of(r);
    struct upstream_node *n = w->node;
    if (!last)
        return;
    w->in_sync = is_in_sync(data, len);
    if (n->master && n->failures > 0)
        node_works(n); /* its other connections may all be gone, and no read opens one before */
    if (data[0] == '-' && n->master && !w->warned)
        log_warning("Replica %s is not read from, since it refuses the proxy's ROLE: %.*s", n->address,
                    (int)strcspn(data + 1, "\r\n"), data + 1);
    w->warned = data[0] == '-';
    choose_nearest(n->master ? n->master : n);
}

static void not_told(struct upstream_request *r, enum upstream_failure why, const char *error) {
    watch_of(r)->in_sync = false;
}

static void ask(struct upstream_node *n) {
    static const struct upstream_request_ops ops = {.reply = told, .fail = not_told};
    static const char role[] = "*1\r\n$4\r\nROLE\r\n";
    if (!n->watch) {
        n->watch = memory_zalloc(sizeof(*n->watch));
        n->watch->node = n;
        n->watch->request.ops = &ops;
        list_init(&n->watch->request.link);
    }
    struct replica_watch *w = n->watch;
    struct upstream_lane lane = {.dedicated = upstream_dedicated_own(n->u), .protocol = 2};
    if (w->request.in_flight || upstream_submit_to(n->u, &w->request, n, &lane, role, sizeof(role) - 1))
        w->in_sync = false; /* it has not answered for a second, or can't be reached */
}

void replicas_watch(struct upstream *u) {
    LIST_FOREACH(it, &u->nodes) {
        struct upstream_node *n = LIST_ENTRY(it, struct upstream_node, link);
        bool competes = u->config->read_from == UPSTREAM_READ_NEAREST && !list_empty(&n->replicas);
        if (n->master || competes)
            ask(n);
    }
}

/* ---- which nodes are replicas -------------------------------------------------------------------- */

void replicas_clear(struct upstream *u) {
    LIST_FOREACH(it, &u->nodes)
    node_is_replica(LIST_ENTRY(it, struct upstream_node, link), NULL);
}

void replicas_add(struct upstream_node *master, const struct address *at) {
    struct upstream_node *n = node_get(master->u, at);
    if (!n || n == master)
        return;
    node_is_replica(n, master);
    if (!n->watch)
        ask(n);
}
