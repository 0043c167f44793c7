/*
 * What is asked for a pin: its number at the node, and a new map. If the node is out of reach, there may have been a
 * failover that no request has found yet:
 *
 *      pin_take ──> none, or it fails before anything was sent ──> pin_await_map ──> a new map ──> pin_take
 *
 * It waits once: if the map still has the same node, the client gets the error.
 */
#include "parser/invariant.h"
#include "proxy/session/core/pin.h"
#include "proxy/session/core/private.h"

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

bool pin_await_map_first(struct session *s, const struct upstream_node *node) {
    struct upstream *u = s->worker->upstream;
    if (!upstream_may_be_replaced(u, node))
        return false;
    struct request *request = request_new(s, NULL);
    invariant(s->in_flight == 1, "%u requests are before it", s->in_flight);
    request->call.done = call_swallow; /* the session continues */
    upstream_await_map(u, &request->call.up);
    return true;
}
