/*
 * Pins of sessions: opened, counted for PROXY INFO, given back. If the node is out of reach, there may have been a
 * failover that no request has found yet:
 *
 *      pin_take ──> none, or it fails before anything was sent ──> pin_await_map ──> a new map ──> pin_take
 *
 * It waits once: if the map still has the same node, the client gets the error. It does not know what the pins are for.
 */
#include "parser/invariant.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

static _Atomic uint64_t *pin_counter(struct worker *w, enum pin_reason why) {
    switch (why) {
    case PIN_TRANSACTION:
        return &w->counters.pinned_transactions;
    case PIN_BLOCKING:
        return &w->counters.pinned_blocking;
    case PIN_SUBSCRIBED:
        return &w->counters.pinned_subscribed;
    case PIN_MONITOR:
        return &w->counters.pinned_monitor;
    case PIN_STREAM:
        return &w->counters.pinned_streams;
    }
    return NULL;
}

/* Whether a pin is kept until the client ends its use; transactions and long requests end by themselves. */
static bool pin_lasts(enum pin_reason why) {
    return why == PIN_BLOCKING || why == PIN_SUBSCRIBED || why == PIN_MONITOR;
}

struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error) {
    struct worker *w = s->worker;
    invariant(s->state != SESSION_CLOSED, "a closed session takes a pin");
    struct upstream_lane lane = session_pin_lane(s);
    if (why == PIN_SUBSCRIBED || why == PIN_MONITOR)
        lane.dedicated = 0; /* it reads no keys */
    char client[SESSION_ADDRESS_MAX];
    struct upstream_claim claim = {.client = session_host(s, client, sizeof(client)), .lasting = pin_lasts(why)};
    struct upstream_pin *pin = upstream_pin_open(w->upstream, node, &lane, &claim, events, error);
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
    int slot = SLOT_NONE;
    if (list.count > 0)
        slot = upstream_is_cluster(s->worker->upstream) ? key_list_slot(r, bytes, list.keys, (size_t)list.count) : 0;
    key_list_clear(&list);
    return slot;
}

void pin_ask_number(struct request *r, struct upstream_pin *pin, call_done_fn done, uint32_t index) {
    invariant(r->session, "a session that has ended asks for its number");
    static const char ask[] = "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n";
    if (*upstream_pin_number(pin) != 0)
        return;
    struct call *call = call_new(r, done);
    call->index = index;
    call_submit_pin(call, pin, ask, sizeof(ask) - 1, false);
}

void pin_number_learnt(struct upstream_pin *pin, const struct call_end *end) {
    struct resp_item item;
    const char *p = end->reply;
    if (!end->error)
        *upstream_pin_number(pin) = resp_item_read(&p, p + end->len, &item) && item.type == ':' ? item.num : -1;
}

/* ---- nodes out of reach ---------------------------------------------------------------------------- */

bool pin_await_map(struct call *c, const struct upstream_node *node) {
    struct upstream *u = c->request->worker->upstream;
    if (!upstream_may_be_replaced(u, node))
        return false;
    upstream_await_map(u, &c->up);
    return true;
}

static void map_is_there(struct call *c, const struct call_end *end) {
    (void)end;
    request_reply(c->request, "", 0, true); /* the session continues */
}

bool pin_await_map_first(struct session *s, const struct upstream_node *node) {
    struct upstream *u = s->worker->upstream;
    if (!upstream_may_be_replaced(u, node))
        return false;
    struct request *request = request_new(s, NULL);
    invariant(s->in_flight == 1, "%u requests are before it", s->in_flight);
    request->call.done = map_is_there;
    upstream_await_map(u, &request->call.up);
    return true;
}
