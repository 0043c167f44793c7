/*
 * Pins of sessions: connections that only one session uses, while it is in a state that shared connections can't carry.
 * These are transactions, blocking commands, subscriptions and MONITOR, and requests that are forwarded while they
 * arrive.
 */
#pragma once

#include "proxy/session/core/session.h"

enum pin_reason { PIN_TRANSACTION, PIN_BLOCKING, PIN_SUBSCRIBED, PIN_MONITOR, PIN_STREAM };

/* Open a pin in the session's lane, and give it back, like upstream_pin_open and upstream_unpin; counted for PROXY
 * INFO. A transaction of a session with a dedicated lane borrows that lane's connection. */
struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error)
    __attribute__((warn_unused_result));
void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean);

/* The slot of all keys; 0 on a standalone; or SLOT_NONE, SLOT_SEVERAL. */
int pin_slot(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* The node for a pin: the slot's node; for a negative slot always the same node for a session. NULL: there is none. */
struct upstream_node *pin_node(const struct session *s, int slot);

/* How often a pin's first request may find its node out of reach before the client gets an error: once before the map
 * is asked for, and once after. */
enum { PIN_UNSENT_TWICE = 2 };

/* Waits for a new map if `node` (NULL: none) could not be reached, nothing was sent to it, and another node may have
 * taken over. True: it waits; the call's `done` then gets an error, and the caller looks for the node again. */
bool pin_await_map(struct call *c, const struct upstream_node *node) __attribute__((warn_unused_result));
/* Waits for a new map like pin_await_map, before the current request has taken its slot. True: the request must wait
 * (DISPATCH_WAIT). */
bool pin_await_map_first(struct session *s, const struct upstream_node *node) __attribute__((warn_unused_result));
