/*
 * Sessions in a state that shared connections can't carry, each with connections of its own meanwhile: transactions,
 * blocking commands, subscriptions and MONITOR, requests that are passed on while they come.
 */
#ifndef LOCKKEEPER_SESSION_CORE_PIN_H
#define LOCKKEEPER_SESSION_CORE_PIN_H

#include "proxy/session/core/session.h"

enum pin_reason { PIN_TRANSACTION, PIN_BLOCKING, PIN_SUBSCRIBED, PIN_MONITOR, PIN_STREAM };

/* Open a pin in the session's lane, and give it back, as upstream_pin_open and upstream_unpin do, counted for PROXY
 * INFO. */
struct upstream_pin *pin_take(struct session *s, struct upstream_node *node, enum pin_reason why,
                              const struct upstream_pin_events *events, const char **error)
    __attribute__((warn_unused_result));
void pin_give(struct worker *w, struct upstream_pin *pin, enum pin_reason why, bool clean);

/* The one slot of all keys; 0 on a standalone, or SLOT_NONE, SLOT_SEVERAL. */
int pin_slot(struct session *s, const struct command *c, const struct resp_request *r, const char *bytes);
/* The node for a pin: the slot's, or where that is negative always the same one for a session. NULL: there is none. */
struct upstream_node *pin_node(const struct session *s, int slot);

/* Asks the node who a connection is there, where that is not known yet: in a part of the request, with this index,
 * whose `done` calls pin_number_learnt. */
void pin_ask_number(struct request *r, struct upstream_pin *pin, call_done_fn done, uint32_t index);
void pin_number_learnt(struct upstream_pin *pin, const struct call_end *end);

/* How often a pin's first request may find its node out of reach before the client hears of it: once before the map has
 * been asked for again, and once for that. */
enum { PIN_UNSENT_TWICE = 2 };

/* Waits for a new map where `node` (NULL: none) could not be reached, and nothing that was meant for it was sent, if
 * another node may have taken its place. True: the call's `done` gets an error when that is over, to look for the node
 * anew. */
bool pin_await_map(struct call *c, const struct upstream_node *node) __attribute__((warn_unused_result));
/* Waits for a new map as pin_await_map does, before the request at hand has taken its slot. True: it is to wait
 * (DISPATCH_WAIT). */
bool pin_await_map_first(struct session *s, const struct upstream_node *node) __attribute__((warn_unused_result));

#endif
