/*
 * Which node a request goes to, and what follows if the node redirects it, asks to repeat it, or is lost.
 *
 *      upstream_submit ──> place ──> conn_send ··> reply ──────────────────> ops->reply
 *                            ^                       │
 *                            ├── MOVED, ASK, NOSCRIPT at once: retry.c
 *                            ├── TRYAGAIN and similar after a delay: retry.c, wait_delay
 *                            ├── node out of reach, and the map is old: once there is a new one (wait_map)
 *                            └── lost connection, where nothing was sent or it may be repeated
 *                                               └── else ────────────────────> ops->fail
 *
 * Each kind of repeat is counted; at its limit the request ends with the node's error.
 */
#include "proxy/upstream/routing/routing.h"

/* ---- how requests end ---- */

/* Fails a request; `sent`: a byte of it left. */
static void router_fail(struct upstream_request *r, bool sent, const char *base) {
    invariant(r->in_flight, "a request fails that is not in flight");
    char text[512];
    outcome_text(text, sizeof(text), base, sent);
    list_remove(&r->link);
    if (r->ops->late && r->begun_us != INT64_MAX) {
        struct upstream_late late = {.node = "", .took_us = clock_us() - r->begun_us};
        r->ops->late(r, &late);
    }
    request_end(r);
    r->ops->fail(r, sent ? UPSTREAM_UNKNOWN : UPSTREAM_NOT_SENT, text);
}

bool router_pointless(struct upstream_request *r) {
    if (!r->ops->pointless || !r->ops->pointless(r))
        return false;
    router_fail(r, r->sent_before, "UPSTREAM the request is not needed any more");
    return true;
}

/* Tells the owner that the request was redirected, once per request. */
static void router_redirected(struct upstream_request *r) {
    bool before = r->was_redirected;
    r->was_redirected = true;
    if (!before && r->ops->redirected)
        r->ops->redirected(r);
}

/* ---- requests that wait: they are on no connection, and are sent again after a while ---- */

static void wait_for(struct upstream *u, struct upstream_request *r, int64_t ms) {
    invariant(r->delays < DELAYS_MAX && !r->placeholder && ms > 0, "a request waits for the %u. time", r->delays);
    r->delays++;
    r->conn = NULL;
    r->asking = false;
    r->hops = 0;
    r->for_map = false;
    r->retry_at_ms = clock_ms() + ms;
    list_append(&u->retrying, &r->link);
    upstream_timer(u, &u->retry, ms);
    router_redirected(r);
}

int64_t upstream_delay_ms(unsigned times) {
    if (times >= DELAYS_MAX)
        return -1;
    int64_t ms = DELAY_FIRST_MS << times;
    return ms < DELAY_LONGEST_MS ? ms : DELAY_LONGEST_MS;
}

bool wait_delay(struct upstream *u, struct upstream_request *r) {
    int64_t ms = upstream_delay_ms(r->delays);
    if (ms < 0 || (r->ops->may_wait && !r->ops->may_wait(r)))
        return false;
    wait_for(u, r, ms);
    return true;
}

/* Repeats a request after the next round of the topology, or after MAP_WAIT_MS. All requests of a connection wait
 * together, so that they keep their order. A request fails after the wait if its node is still the one that can't be
 * reached. The bytes are copied. False if it has waited too often. */
static bool wait_map(struct upstream *u, struct upstream_request *r) {
    if (r->delays >= DELAYS_MAX)
        return false;
    if (upstream_map_is_old(u, map_changed_ms())) /* another thread's map has changed since */
        u->above->now(u->topology);
    else
        upstream_want_map(u);
    if (!r->chunk) { /* the bytes are still the caller's */
        struct iobuf copy;
        iobuf_init(&copy, u->pool);
        r->bytes = iobuf_append_held(&copy, r->bytes, r->len, &r->chunk);
        iobuf_clear(&copy);
        invariant(r->chunk && r->chunk->refs > 0, "bytes are not kept");
    }
    wait_for(u, r, MAP_WAIT_MS);
    r->for_map = true;
    return true;
}

/* ---- placing ---- */

static __attribute__((noinline)) struct upstream_node *well_node(struct upstream *u, uint32_t affinity) {
    for (size_t i = 0; i < u->master_count; i++) {
        struct upstream_node *n = u->masters[(affinity + i) % u->master_count];
        if (!node_backing_off(n))
            return n;
    }
    return u->master_count > 0 ? u->masters[affinity % u->master_count] : NULL;
}

struct upstream_node *upstream_any_node(struct upstream *u, uint32_t affinity) {
    return u->master_count == 1 ? u->masters[0] : well_node(u, affinity);
}

static inline struct upstream_node *choose_node(struct upstream *u, const struct upstream_request *r) {
    invariant_debug(r->slot < SLOT_COUNT, "slot %d", r->slot);
    if (r->node)
        return r->node;
    if (r->slot >= 0 && u->slots)
        return u->slots[r->slot];
    return upstream_any_node(u, r->affinity);
}

const char *router_no_node(struct upstream *u) {
    upstream_want_map(u);
    if (u->closing)
        return "UPSTREAM the proxy is stopping";
    if (u->covered > 0)
        return "CLUSTERDOWN Hash slot not served"; /* the text is the same as a cluster node's */
    char reason[sizeof(u->error) - 16];
    u->above->reason(u->topology, reason, sizeof(reason));
    snprintf(u->error, sizeof(u->error), "UPSTREAM %s", reason);
    return u->error;
}

/* Queues a request on node `to`, or (NULL) on the one that serves its slot. Returns an error for outcome_unsent. */
static inline const char *place(struct upstream *u, struct upstream_request *r, struct upstream_node *to) {
    struct upstream_node *n = u->closing ? NULL : to ? to : choose_node(u, r);
    if (!n)
        return router_no_node(u);
    struct upstream_conn *c = node_conn(n, r);
    if (!c)
        return u->error;
    conn_send(c, r);
    return NULL;
}

bool upstream_may_be_replaced(const struct upstream *u, const struct upstream_node *n) {
    if (u->closing || !n || n->failures == 0)
        return false;
    return upstream_map_is_old(u, n->failed_ms) || upstream_map_is_old(u, map_changed_ms());
}

/* Whether a request whose node is out of reach waits until the map shows whether another node has taken over: a thread
 * without requests has not heard of a failover. */
static __attribute__((noinline)) bool await_map(struct upstream *u, struct upstream_request *r,
                                                struct upstream_node *to) {
    return !r->node && !r->asking && upstream_may_be_replaced(u, to ? to : choose_node(u, r)) && wait_map(u, r);
}

void router_place_again(struct upstream *u, struct upstream_request *r, struct upstream_node *to) {
    invariant(r->in_flight && !r->conn && !r->pinned, "a request is placed that has a connection");
    const char *error = place(u, r, to);
    if (!error)
        router_redirected(r);
    else if (!await_map(u, r, to))
        router_fail(r, r->sent_before, error);
}

/* Queues a request that has waited on its node, or ends it. */
static void router_repeat(struct upstream *u, struct upstream_request *r) {
    invariant(r->in_flight && !r->conn, "a request is repeated that has a connection");
    if (router_pointless(r))
        return;
    if (r->pinned) {
        router_fail(r, false, "UPSTREAM the node can't be reached");
        return;
    }
    const struct upstream_node *n = r->for_map && !u->closing ? choose_node(u, r) : NULL;
    r->for_map = false;
    if (!n || n->failures == 0) {
        router_place_again(u, r, NULL);
        return;
    }
    char base[512]; /* the request has waited, and no other node has taken over */
    conn_lost_text(base, sizeof(base), n->address, CONN_UNREACHABLE, n->reason);
    router_fail(r, r->sent_before, base);
}

void wait_map_ends(struct upstream *u, int64_t started_ms) {
    LIST_EACH(r, &u->retrying, struct upstream_request, link) {
        if (!r->for_map || r->retry_at_ms - MAP_WAIT_MS > started_ms)
            continue;
        r->retry_at_ms = clock_ms();
        upstream_timer(u, &u->retry, 0);
    }
}

void wait_over(struct ev_loop *loop, ev_timer *timer, int revents) {
    struct upstream *u = timer->data;
    struct list_node due;
    list_init(&due);
    int64_t now = clock_ms(), next = INT64_MAX;
    LIST_EACH_SAFE(r, &u->retrying, struct upstream_request, link) {
        if (r->retry_at_ms <= now) {
            invariant(r->in_flight && !r->conn, "a request waits that has a connection");
            list_remove(&r->link);
            list_append(&due, &r->link);
        } else if (r->retry_at_ms < next) {
            next = r->retry_at_ms;
        }
    }
    if (next != INT64_MAX)
        upstream_timer(u, &u->retry, next - now);
    struct upstream_request *r;
    while ((r = LIST_SHIFT(&due, struct upstream_request, link)))
        router_repeat(u, r);
}

void wait_stop(struct upstream *u) {
    struct upstream_request *r;
    while ((r = LIST_SHIFT(&u->retrying, struct upstream_request, link)))
        router_fail(r, r->sent_before, "UPSTREAM the proxy is stopping");
}

/* ---- submitting ---- */

/* Handles a request without a connection. NULL: it waits for the map; else the error. */
static __attribute__((noinline)) const char *not_taken(struct upstream *u, struct upstream_request *r,
                                                       const char *error) {
    invariant(!r->in_flight && !r->conn, "a request that was not taken is in flight");
    r->in_flight = await_map(u, r, NULL);
    return r->in_flight ? NULL : outcome_unsent(u, error);
}

/* Queues a request that request_begin has prepared. */
static inline const char *submit(struct upstream *u, struct upstream_request *r) {
    const char *error = place(u, r, NULL);
    r->in_flight = !error;
    return error ? not_taken(u, r, error) : NULL;
}

const char *upstream_submit(struct upstream *u, struct upstream_request *r, int slot, const struct upstream_lane *lane,
                            const char *bytes, size_t len) {
    request_begin(r, slot, NULL, lane, bytes, len);
    return submit(u, r);
}

const char *upstream_submit_read(struct upstream *u, struct upstream_request *r, int slot,
                                 const struct upstream_lane *lane, const char *bytes, size_t len, bool *replica) {
    struct upstream_node *n = upstream_replica(u, slot, r->affinity);
    request_begin(r, slot, NULL, lane, bytes, len);
    r->repeatable = true;
    r->lane.replica = 1;
    r->in_flight = *replica = n && !place(u, r, n);
    if (!*replica) {
        r->lane.replica = 0;
        return submit(u, r);
    }
    n->replica_reads++;
    return NULL;
}

const char *upstream_submit_login(struct upstream *u, struct upstream_request *r, uint32_t login) {
    static const struct upstream_lane lane = {.login = UPSTREAM_LOGIN_TRIED, .protocol = 2};
    size_t len;
    char *bytes = login_text(u->config->own, login, false, &len);
    if (!bytes)
        return "UPSTREAM the client's login is not known any more; the request was not sent";
    r->affinity = 0; /* one connection for all sessions */
    r->apart = UPSTREAM_TOGETHER;
    r->repeatable = true;
    request_begin(r, SLOT_NONE, NULL, &lane, bytes, len);
    const char *error = submit(u, r);
    upstream_secret(r);
    memory_forget(bytes, len);
    return error;
}

const char *upstream_submit_batch(struct upstream *u, struct upstream_request *r, int slot,
                                  const struct upstream_lane *lane, const char *bytes, size_t len) {
    uint8_t leading = r->leading;
    request_begin(r, slot, NULL, lane, bytes, len);
    r->leading = leading;
    invariant(leading > 0, "a batch without leading commands");
    return submit(u, r);
}

const char *upstream_submit_to(struct upstream *u, struct upstream_request *r, struct upstream_node *node,
                               const struct upstream_lane *lane, const char *bytes, size_t len) {
    request_begin(r, SLOT_NONE, node, lane, bytes, len);
    return submit(u, r);
}

void upstream_secret(struct upstream_request *r) {
    if (r->in_flight && r->chunk)
        r->chunk->secret = true;
}

void upstream_await_map(struct upstream *u, struct upstream_request *r) {
    static const struct upstream_lane none;
    request_begin(r, SLOT_NONE, NULL, &none, "", 0);
    r->pinned = r->in_flight = true;
    if (!wait_map(u, r)) /* the request has not waited yet, so wait_map accepts it */
        router_fail(r, false, "UPSTREAM the node can't be reached");
}

struct upstream_node *upstream_asked_node(const struct upstream_request *r) {
    return r->was_redirected && r->asking ? r->told : NULL;
}

/* ---- replies that are not taken yet ---- */

/* Whether a request behind a reply that is not taken is the proxy's own, and can be sent over another connection. */
static bool may_move(const struct upstream_request *r) {
    return r->affinity == 0 && r->repeatable && r->leading == 0 && !r->open && !r->pinned && r->hops < HOPS_MAX;
}

bool upstream_hold(struct upstream_request *r) {
    struct upstream_conn *c = r->in_flight ? r->conn : NULL;
    if (!c || c->state != CONN_READY || !r->streaming)
        return false;
    conn_retire(c);
    LIST_EACH(behind, &c->pending, const struct upstream_request, link)
        if (behind->affinity != r->affinity && !behind->placeholder && !may_move(behind))
            return false;
    conn_pause(c, true);
    LIST_EACH_SAFE(behind, &c->pending, struct upstream_request, link) {
        if (behind->affinity == r->affinity || behind->placeholder)
            continue;
        upstream_abandon(behind); /* the reply on this connection is dropped; the placeholder keeps the bytes */
        invariant(!behind->in_flight && behind->hops < HOPS_MAX, "a request has moved %u times", behind->hops);
        behind->hops++;
        behind->in_flight = true;
        behind->sent_before = false;
        router_place_again(c->u, behind, NULL);
    }
    return true;
}

void upstream_set_apart(struct upstream_request *r) {
    if (r->in_flight && r->conn && !r->pinned)
        conn_retire(r->conn);
}

void upstream_go_on(struct upstream_request *r) {
    if (r->in_flight && r->conn)
        conn_pause(r->conn, false);
}

/* ---- lost connections ---- */

static bool was_sent(const struct upstream_request *r) {
    invariant(r->open || r->sent_before || r->chunk, "a request has no bytes");
    /* The node does not run an incomplete request. */
    return !r->open && (r->sent_before || iobuf_sent(r->chunk, r->bytes));
}

bool upstream_unsent(const struct upstream_request *r) {
    return r->in_flight && r->conn && !was_sent(r);
}

static bool may_repeat(struct upstream *u, const struct upstream_request *r, const struct upstream_node *who,
                       enum conn_end end) {
    if (r->pinned || r->placeholder || r->streaming || r->attempts >= ATTEMPTS_MAX)
        return false;
    if (r->lane.replica) /* the master may answer, whatever has happened to the replica */
        return !u->closing;
    if (end == CONN_REFUSED)
        return false; /* the same node would give the same result */
    const struct upstream_node *now = u->closing || r->node || r->asking ? NULL : choose_node(u, r);
    if (end != CONN_LOST && (!now || now == who))
        return false;
    return !was_sent(r) || r->repeatable;
}

void router_lost(struct upstream *u, struct list_node *requests, struct upstream_node *who, enum conn_end end,
                 const char *reason) {
    char base[512];
    conn_lost_text(base, sizeof(base), who->address, end, reason);

    /* Repeats go first: an owner that hears of a failure may submit requests, which must not overtake them. */
    struct upstream_request *r;
    struct list_node again, doomed;
    list_init(&again);
    list_init(&doomed);
    while ((r = LIST_SHIFT(requests, struct upstream_request, link)))
        list_append(may_repeat(u, r, who, end) ? &again : &doomed, &r->link);
    while ((r = LIST_SHIFT(&again, struct upstream_request, link))) {
        invariant(r->in_flight && r->attempts < ATTEMPTS_MAX, "a request was lost %u times", r->attempts);
        r->attempts++;
        r->sent_before = was_sent(r);
        if (r->lane.replica)
            replicas_doubt(who);
        r->lane.replica = 0;
        router_place_again(u, r, r->asking ? who : NULL);
    }
    while ((r = LIST_SHIFT(&doomed, struct upstream_request, link))) {
        bool sent = was_sent(r), waits = end == CONN_UNREACHABLE && !r->pinned && !r->placeholder && !r->open;
        if (waits && (!sent || r->repeatable) && await_map(u, r, who)) {
            r->sent_before = sent;
        } else if (end == CONN_REFUSED || end == CONN_FULL) {
            request_end(r);
            r->ops->fail(r, UPSTREAM_REFUSED, base);
        } else {
            router_fail(r, sent, base);
        }
    }
}
