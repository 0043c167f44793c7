/*
 * Pins of sessions: opened, counted for PROXY INFO, given back. It does not know what the pins are for.
 */
#include "parser/invariant.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

static _Atomic uint64_t *pin_counter(struct worker *w, enum pin_reason why) {
    _Atomic uint64_t *const counters[] = {
        [PIN_TRANSACTION] = &w->counters.pinned_transactions, [PIN_BLOCKING] = &w->counters.pinned_blocking,
        [PIN_SUBSCRIBED] = &w->counters.pinned_subscribed,    [PIN_MONITOR] = &w->counters.pinned_monitor,
        [PIN_STREAM] = &w->counters.pinned_streams,
    };
    return counters[why];
}

struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error) {
    struct worker *w = s->worker;
    struct upstream_pin *pin = NULL;
    invariant(s->state != SESSION_CLOSED, "a closed session takes a pin");
    struct upstream_lane lane = s->lane;
    for (const struct session_room *const *room = w->hooks->rooms; lane.dedicated != 0 && *room; room++)
        if ((*room)->pin_lane)
            (*room)->pin_lane(s, &lane);
    if (why == PIN_SUBSCRIBED || why == PIN_MONITOR)
        lane.dedicated = 0; /* it reads no keys */
    char client[SESSION_ADDRESS_MAX];
    struct upstream_claim claim = {.client = session_host(s, client, sizeof(client)),
                                   /* transactions and long requests end by themselves */
                                   .lasting = why != PIN_TRANSACTION && why != PIN_STREAM};
    *error = NULL;
    if (why == PIN_TRANSACTION && s->lane.dedicated != 0) /* to the node it is one client, as NOLOOP wants it */
        pin = upstream_pin_borrow(w->upstream, node, &s->lane, (uint32_t)s->lock.id, events, error);
    if (!pin && !*error)
        pin = upstream_pin_open(w->upstream, node, &lane, &claim, events, error);
    if (!pin)
        return NULL;
    counter_add(&w->counters.pinned_connections, 1);
    counter_add(pin_counter(w, why), 1);
    return pin;
}

void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean) {
    invariant(pin && counter_read(pin_counter(w, why)) > 0, "no pin is counted for %d", (int)why);
    counter_sub(&w->counters.pinned_connections, 1);
    counter_sub(pin_counter(w, why), 1);
    upstream_unpin(pin, clean);
}

struct upstream_node *pin_node(const struct session *s, int slot) {
    struct upstream *u = s->worker->upstream;
    return slot >= 0 ? upstream_node_of_slot(u, slot) : upstream_any_node(u, (uint32_t)s->lock.id);
}

int pin_slot(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes) {
    struct key_list list;
    key_list_find(&list, c, r, bytes);
    int slot = key_list_slot(s, r, bytes, list.keys, list.count > 0 ? (size_t)list.count : 0);
    key_list_clear(&list);
    return slot;
}
