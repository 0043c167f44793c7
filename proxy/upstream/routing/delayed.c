/*
 * Requests that are on no connection at present: they are sent again after a while.
 *
 *      TRYAGAIN and similar ──> wait_delay ──┐              ┌──> router_repeat ──> a node, or the end
 *      an old map           ──> wait_map ────┴─ retrying ───┴──> wait_stop (the proxy is stopping)
 *
 * It does not know why they wait, or which node they go to.
 */
#include <string.h>

#include "parser/invariant.h"
#include "proxy/upstream/routing/routing.h"

static void arm_retry(struct upstream *u, int64_t at_ms) {
    double wait = (double)(at_ms - clock_ms()) / 1000;
    if (wait < 0)
        wait = 0;
    if (ev_is_active(&u->retry) && ev_timer_remaining(u->loop, &u->retry) <= wait)
        return;
    ev_timer_stop(u->loop, &u->retry);
    ev_now_update(u->loop);
    ev_timer_set(&u->retry, wait, 0.);
    ev_timer_start(u->loop, &u->retry);
}

static void wait_for(struct upstream *u, struct upstream_request *r, int64_t ms) {
    invariant(r->delays < DELAYS_MAX && !r->placeholder && ms > 0, "a request waits for the %u. time", r->delays);
    r->delays++;
    r->conn = NULL;
    r->asking = false;
    r->hops = 0;
    r->for_map = false;
    r->retry_at_ms = clock_ms() + ms;
    list_append(&u->retrying, &r->link);
    arm_retry(u, r->retry_at_ms);
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

/* Copies the caller's bytes, if they are not copied yet. */
static void keep_bytes(struct upstream *u, struct upstream_request *r) {
    struct iobuf copy;
    if (r->chunk)
        return;
    iobuf_init(&copy, u->pool);
    r->bytes = iobuf_append_held(&copy, r->bytes, r->len, &r->chunk);
    iobuf_clear(&copy);
    invariant(r->chunk && r->chunk->refs > 0, "bytes are not kept");
}

bool wait_map(struct upstream *u, struct upstream_request *r) {
    if (r->delays >= DELAYS_MAX)
        return false;
    if (upstream_map_is_old(u, map_changed_ms())) /* another thread's map has changed since */
        u->above->now(u->topology);
    else
        upstream_want_map(u);
    keep_bytes(u, r);
    wait_for(u, r, MAP_WAIT_MS);
    r->for_map = true;
    return true;
}

void wait_map_ends(struct upstream *u, int64_t started_ms) {
    LIST_FOREACH(it, &u->retrying) {
        struct upstream_request *r = LIST_ENTRY(it, struct upstream_request, link);
        if (!r->for_map || r->retry_at_ms - MAP_WAIT_MS > started_ms)
            continue;
        r->retry_at_ms = clock_ms();
        arm_retry(u, r->retry_at_ms);
    }
}

void wait_over(struct upstream *u) {
    struct list_node due;
    list_init(&due);
    int64_t now = clock_ms(), next = INT64_MAX;
    LIST_FOREACH_SAFE(it, &u->retrying) {
        struct upstream_request *r = LIST_ENTRY(it, struct upstream_request, link);
        if (r->retry_at_ms <= now) {
            invariant(r->in_flight && !r->conn, "a request waits that has a connection");
            list_remove(it);
            list_append(&due, it);
        } else if (r->retry_at_ms < next) {
            next = r->retry_at_ms;
        }
    }
    if (next != INT64_MAX)
        arm_retry(u, next);
    struct list_node *n;
    while ((n = list_shift(&due)))
        router_repeat(u, LIST_ENTRY(n, struct upstream_request, link));
}

void wait_stop(struct upstream *u) {
    struct list_node *n;
    while ((n = list_shift(&u->retrying))) {
        struct upstream_request *r = LIST_ENTRY(n, struct upstream_request, link);
        router_fail(r, r->sent_before, "UPSTREAM the proxy is stopping");
    }
}
