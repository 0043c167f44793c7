/*
 * The upstream as a whole: creation and end, the timer that checks for late replies, flushing, and what PROXY INFO
 * shows.
 */
#include "proxy/upstream/routing/routing.h"
#include "proxy/upstream/topology/topology.h"

/* ---- life ---- */

static void on_start(struct ev_loop *loop, ev_timer *w, int revents) {
    upstream_announce(w->data, NULL);
}

/* Reads all addresses. False: one is malformed, or there is none. */
static bool addresses_read(const struct upstream_config *config, struct address *out) {
    for (size_t i = 0; i < config->address_count; i++)
        if (!address_parse(config->addresses[i], strlen(config->addresses[i]), &out[i]) || out[i].host[0] == '\0' ||
            (out[i].port == 0 && config->kind != UPSTREAM_STANDALONE))
            return false;
    return config->address_count > 0;
}

static const struct upstream_above above = {
    .lost = router_lost,
    .error = retry_on_error,
    .pointless = router_pointless,
    .no_node = router_no_node,
    .want = topology_want,
    .now = topology_now,
    .is_old = topology_is_old,
    .reason = topology_reason,
    .holds_back = verify_waits,
};

void upstream_set_timeout(struct upstream *u, int64_t timeout_ms) {
    invariant(timeout_ms > 0, "a timeout of %lld ms", (long long)timeout_ms);
    u->timeout_ms = timeout_ms;
    u->connect_ms = timeout_ms < CONNECT_LONGEST_MS ? timeout_ms : CONNECT_LONGEST_MS;
}

void upstream_set_late(struct upstream *u, int64_t us) {
    u->late_after_us = us;
}

struct upstream *upstream_new(struct ev_loop *loop, struct readable *readable, const struct upstream_config *config,
                              struct chunk_pool *pool, const struct upstream_events *events) {
    struct address *seeds = memory_zalloc((config->address_count + 1) * sizeof(*seeds));
    if (!addresses_read(config, seeds) || (config->kind == UPSTREAM_SENTINEL && !config->sentinel_name)) {
        memory_free(seeds);
        return NULL;
    }
    struct upstream *u = memory_zalloc(sizeof(*u));
    u->seeds = seeds;
    u->loop = loop;
    u->readable = readable;
    u->config = config;
    u->above = &above;
    u->pool = pool;
    u->events = *events;
    u->connections = config->connections > 0 ? config->connections : 1;
    upstream_set_timeout(u, config->timeout_ms);
    upstream_set_late(u, INT64_MAX);
    list_init(&u->nodes);
    list_init(&u->conns);
    list_init(&u->dirty);
    list_init(&u->graveyard);
    list_init(&u->retrying);
    list_init(&u->unpinned);
    list_init(&u->dedicated);
    u->random = (uint64_t)clock_ms() * 1000003u ^ (uint64_t)(uintptr_t)u;
    u->swept_ms = clock_ms();
    u->scratch = memory_alloc(READ_SCRATCH);
    ev_timer_init(&u->tick, upstream_tick, 0., 0.);
    ev_timer_init(&u->retry, wait_over, 0., 0.);
    ev_timer_init(&u->start, on_start, 0., 0.);
    ev_timer_init(&u->watch, replicas_watch, REPLICAS_WATCH_S, REPLICAS_WATCH_S);
    u->tick.data = u->retry.data = u->start.data = u->watch.data = u;
    /* Lowest priority: bytes that came during a long loop turn are read before a reply counts as late. */
    ev_set_priority(&u->tick, EV_MINPRI);
    if (config->kind == UPSTREAM_CLUSTER) {
        u->slots = memory_zalloc(SLOT_COUNT * sizeof(struct upstream_node *));
        u->topology = cluster_new(u);
    } else if (config->kind == UPSTREAM_SENTINEL) {
        u->topology = sentinel_new(u);
    } else {
        *ARRAY_ADD(u->masters, u->master_count) = node_get(u, &seeds[0]);
        u->covered = u->masters[0]->slots = SLOT_COUNT;
        ev_timer_start(u->loop, &u->start);
    }
    if (config->read_from != UPSTREAM_READ_MASTERS)
        ev_timer_start(u->loop, &u->watch);
    return u;
}

static void bury(struct upstream *u) {
    struct upstream_conn *c;
    while ((c = LIST_FIRST(&u->graveyard, struct upstream_conn, dirty)))
        conn_free(c);
}

void upstream_free(struct upstream *u) {
    u->closing = true;
    upstream_dedicated_free(u, u->own_dedicated);
    LIST_EACH(c, &u->conns, struct upstream_conn, link)
        if (c->state != CONN_CLOSED)
            conn_close(c, CONN_SHUTDOWN, "");
    wait_stop(u);
    pin_close_unpinned(u);
    bury(u);
    if (u->topology)
        topology_free(u->topology);
    LIST_EACH_SAFE(n, &u->nodes, struct upstream_node, link)
        node_forget(n);
    ev_timer_stop(u->loop, &u->tick);
    invariant(u->node_count == 0 && list_empty(&u->conns) && list_empty(&u->graveyard), "%zu nodes are left",
              u->node_count);
    invariant(list_empty(&u->retrying) && list_empty(&u->unpinned), "requests wait in a freed upstream");
    ev_timer_stop(u->loop, &u->retry);
    ev_timer_stop(u->loop, &u->start);
    ev_timer_stop(u->loop, &u->watch);
    MEMORY_FREE_ALL(u->seeds, u->slots, u->masters, u->scratch, u);
}

bool upstream_has_unpinned(const struct upstream *u) {
    return !list_empty(&u->unpinned);
}

bool upstream_waits(const struct upstream *u) {
    return !list_empty(&u->dirty);
}

void upstream_flush(struct upstream *u) {
    struct upstream_conn *c;
    invariant(!u->closing, "a closed upstream is flushed");
    pin_close_unpinned(u);
    while ((c = LIST_SHIFT(&u->dirty, struct upstream_conn, dirty)))
        conn_flush(c);
    bury(u);
}

/* ---- PROXY INFO ---- */

bool upstream_node_lost(const struct upstream_node *n) {
    if (!n || !n->lost_ms)
        return false;
    LIST_EACH(pool, &n->pools, const struct upstream_pool, link)
        for (unsigned i = 0; i < n->u->connections + UPSTREAM_APARTS; i++)
            if (pool->conns[i] && pool->conns[i]->state == CONN_READY)
                return false;
    return true;
}

void upstream_each_node(const struct upstream *u, void (*fn)(void *arg, const struct upstream_node_info *info),
                        void *arg) {
    LIST_EACH(n, &u->nodes, const struct upstream_node, link) {
        bool ready = false, opening = false;
        struct upstream_node_info info = {.address = n->address,
                                          .master = n->slots > 0,
                                          .replica = n->master != NULL,
                                          .slots = n->slots,
                                          .requests = n->requests,
                                          .reconnects = n->connects > 0 ? n->connects - 1 : 0,
                                          .redirects = n->redirects,
                                          .replica_reads = n->replica_reads,
                                          .pinned_max = quota_limit(n),
                                          .pins_refused = n->pins_refused,
                                          .round_trips = &n->round_trips,
                                          .round_trip_us = n->round_trip_us};
        LIST_EACH(c, &u->conns, const struct upstream_conn, link) {
            if (c->node != n)
                continue;
            ready |= c->state == CONN_READY;
            opening |= c->state != CONN_READY;
            /* No client's request uses these connections. */
            if (c->pool && (c->pool->lane.login == UPSTREAM_LOGIN_ASKED ||
                            (c->pool->lane.dedicated && c->pool->lane.dedicated == u->own_dedicated)))
                continue;
            info.connections += c->pin == NULL;
            info.pinned += c->pin != NULL;
            info.in_flight += c->in_flight;
            info.unsent_bytes += c->out.unsent;
        }
        info.state = ready ? "up" : opening ? "connecting" : n->failures > 0 ? "down" : "idle";
        fn(arg, &info);
    }
}
