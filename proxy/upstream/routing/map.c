/*
 * The slot map of a cluster: which node serves which slot, and the list of masters that follows from it. A standalone
 * has no map and one master; so has an upstream behind Sentinels, once the master is known.
 *
 * Which replica may answer reads: read-from replicas | nearest.
 *
 *      a round of the topology ──> replicas_add ──┐
 *      each second ──> replicas_watch ── ROLE ──> "slave ... connected": it is in sync ──> upstream_replica
 *      an error, a lost connection, no answer within the second ──> it is not, until the next ROLE
 *
 * ROLE goes over the connection of the proxy's own questions, so that no client's request delays it. Its round trip is
 * what `nearest` compares.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "proxy/upstream/routing/routing.h"

static int by_address(const void *a, const void *b) {
    return strcmp((*(struct upstream_node *const *)a)->address, (*(struct upstream_node *const *)b)->address);
}

/* Lists the masters in the order of their addresses, the same in every thread and every proxy. */
static void list_masters(struct upstream *u) {
    u->master_count = 0;
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        if (n->slots > 0)
            *ARRAY_ADD(u->masters, u->master_count) = n;
    if (u->master_count > 0)
        qsort(u->masters, u->master_count, sizeof(struct upstream_node *), by_address);
}

/* When the map of a thread last changed. Each thread has its own map; a change in one is a hint for the others. */
static atomic_int_fast64_t changed_ms;

int64_t map_changed_ms(void) {
    return atomic_load_explicit(&changed_ms, memory_order_relaxed);
}

static void map_changed(struct upstream *u) {
    u->epoch++;
    atomic_store_explicit(&changed_ms, clock_ms(), memory_order_relaxed);
    upstream_may_forget(u);
}

void map_move(struct upstream *u, unsigned slot, struct upstream_node *to) {
    invariant(slot < SLOT_COUNT && to, "slot %u", slot);
    invariant(!u->slots[slot] || u->slots[slot]->slots > 0, "the node of slot %u serves none", slot);
    struct upstream_node *from = u->slots[slot];
    if (from == to)
        return;
    if (from)
        from->slots--;
    else
        u->covered++;
    u->slots[slot] = to;
    to->slots++;
    to->served = true;
    u->epoch++;
    invariant(u->covered <= SLOT_COUNT && to->slots <= u->covered, "%u slots of %u are at a node", to->slots,
              u->covered);
    if (to->slots == 1 || (from && from->slots == 0))
        list_masters(u);
}

bool map_replace(struct upstream *u, struct upstream_node *const *slots) {
    const size_t size = SLOT_COUNT * sizeof(struct upstream_node *);
    if (memcmp(u->slots, slots, size) == 0)
        return false;
    memcpy(u->slots, slots, size);
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        n->slots = 0;
    u->covered = 0;
    for (unsigned i = 0; i < SLOT_COUNT; i++) {
        if (slots[i]) {
            slots[i]->slots++;
            slots[i]->served = true;
            u->covered++;
        }
    }
    map_changed(u);
    list_masters(u);
    return true;
}

bool map_replace_master(struct upstream *u, struct upstream_node *n) {
    invariant(!u->slots && n, "a cluster has no one master");
    struct upstream_node *old = upstream_master(u, 0);
    if (old == n)
        return false;
    u->master_count = 0;
    *ARRAY_ADD(u->masters, u->master_count) = n;
    u->covered = n->slots = SLOT_COUNT;
    map_changed(u);
    if (!old)
        return true;
    old->slots = 0;
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        if (c->node == old)
            conn_close(c, CONN_REPLACED, "another node is the master now");
    return true;
}

void upstream_switch(struct upstream *u, struct upstream_node *n) {
    invariant(!u->topology, "a node is chosen beside Sentinels");
    (void)map_replace_master(u, n);
}

bool upstream_is_cluster(const struct upstream *u) {
    return u->slots != NULL;
}

bool upstream_has_topology(const struct upstream *u) {
    return u->topology != NULL;
}

uint64_t upstream_epoch(const struct upstream *u) {
    return u->epoch;
}

unsigned upstream_slots_covered(const struct upstream *u) {
    return u->covered;
}

uint64_t upstream_map_print(struct upstream *u) {
    if (!u->slots || u->print_epoch == u->epoch + 1)
        return u->print;
    uint64_t print = 0;
    const struct upstream_node *last = NULL;
    for (uint64_t slot = 0; slot < SLOT_COUNT; slot++) {
        const struct upstream_node *n = u->slots[slot];
        if (n == last)
            continue;
        uint64_t mixed = (print ^ (n ? n->hash : 0) ^ slot << 32) * 0x9e3779b97f4a7c15u;
        print = mixed ^ mixed >> 29;
        last = n;
    }
    u->print = print;
    u->print_epoch = u->epoch + 1;
    return print;
}

size_t upstream_master_count(const struct upstream *u) {
    return u->master_count;
}

struct upstream_node *upstream_master(const struct upstream *u, size_t i) {
    return i < u->master_count ? u->masters[i] : NULL;
}

int upstream_slot_of_node(const struct upstream *u, const struct upstream_node *n) {
    int slot = 0;
    while (u->slots && slot < SLOT_COUNT && u->slots[slot] != n)
        slot++;
    return slot < SLOT_COUNT ? slot : SLOT_NONE;
}

struct upstream_node *upstream_node_of_slot(const struct upstream *u, int slot) {
    if (!u->slots)
        return upstream_master(u, 0);
    return slot >= 0 && slot < SLOT_COUNT ? u->slots[slot] : NULL;
}

/* ---- replicas ---- */

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
    LIST_EACH(n, &master->replicas, struct upstream_node, replica)
        count += serves(n);
    uint32_t pick = count > 0 ? affinity % count : 0;
    LIST_EACH(n, &master->replicas, struct upstream_node, replica)
        if (serves(n) && (u->config->read_from == UPSTREAM_READ_NEAREST ? n->watch->nearest : pick-- == 0))
            return n;
    return NULL;
}

/* The round trip to compare. The present choice's counts as a fifth shorter, so that equal nodes do not take turns. */
static int64_t distance(const struct upstream_node *n) {
    int64_t us = n->round_trip_us > 0 ? n->round_trip_us : INT64_MAX;
    return n->watch && n->watch->nearest ? us / 5 * 4 : us;
}

static void choose_nearest(struct upstream_node *master) {
    struct upstream_node *best = master;
    LIST_EACH(n, &master->replicas, struct upstream_node, replica)
        if (serves(n) && distance(n) < distance(best))
            best = n;
    LIST_EACH(n, &master->replicas, struct upstream_node, replica)
        if (n->watch)
            n->watch->nearest = n == best;
    if (master->watch)
        master->watch->nearest = master == best;
}

static void told(struct upstream_request *r, const char *data, size_t len, bool last) {
    static const char begin[] = "*5\r\n$5\r\nslave\r\n", up[] = "\r\n$9\r\nconnected\r\n:";
    struct replica_watch *w = LIST_ENTRY(r, struct replica_watch, request);
    struct upstream_node *n = w->node;
    if (!last)
        return;
    /* ROLE begins like this at a replica; `up` says that the link to its master is up. */
    w->in_sync =
        len > sizeof(begin) && memcmp(data, begin, sizeof(begin) - 1) == 0 && memmem(data, len, up, sizeof(up) - 1);
    if (n->master && n->failures > 0)
        node_works(n); /* its other connections may all be gone, and no read opens one before */
    if (data[0] == '-' && n->master && !w->warned)
        log_warning("Replica %s is not read from, since it refuses the proxy's ROLE: %.*s", n->address,
                    (int)strcspn(data + 1, "\r\n"), data + 1);
    w->warned = data[0] == '-';
    choose_nearest(n->master ? n->master : n);
}

static void not_told(struct upstream_request *r, enum upstream_failure why, const char *error) {
    LIST_ENTRY(r, struct replica_watch, request)->in_sync = false;
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

void replicas_watch(struct ev_loop *loop, ev_timer *timer, int revents) {
    struct upstream *u = timer->data;
    bool nearest = u->config->read_from == UPSTREAM_READ_NEAREST;
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        if (n->master || (nearest && !list_empty(&n->replicas)))
            ask(n);
}

void replicas_clear(struct upstream *u) {
    LIST_EACH(n, &u->nodes, struct upstream_node, link)
        node_is_replica(n, NULL);
}

void replicas_add(struct upstream_node *master, const struct address *at) {
    struct upstream_node *n = node_get(master->u, at);
    if (!n || n == master)
        return;
    node_is_replica(n, master);
    if (!n->watch)
        ask(n);
}
