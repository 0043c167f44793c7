/*
 * A request's ways: which node it goes to, and what becomes of it when the node sends it elsewhere, wants it again, or
 * is lost.
 */
#ifndef LOCKKEEPER_UPSTREAM_ROUTING_ROUTING_H
#define LOCKKEEPER_UPSTREAM_ROUTING_ROUTING_H

#include "proxy/upstream/connection/connection.h"

/* ---- router.c ---- */

/* Repeats or fails the requests of a connection that ended. `who` is the node. */
void router_lost(struct upstream *u, struct list_node *requests, struct upstream_node *who, enum conn_end end,
                 const char *reason);
/* Queues a request that was taken before on this node, or on the one that serves its slot (`to` NULL). It fails where
 * that can't be done. */
void router_place_again(struct upstream *u, struct upstream_request *r, struct upstream_node *to);
/* Queues a request that has waited on its node, or ends it. */
void router_repeat(struct upstream *u, struct upstream_request *r);
/* Fails a request; `sent`: a byte of it left. */
void router_fail(struct upstream_request *r, bool sent, const char *base);
/* Whether the request has waited in vain, and has failed for that. */
bool router_pointless(struct upstream_request *r);
/* Tells the owner, once a request, that it was redirected. */
void router_redirected(struct upstream_request *r);
/* The error for what has no node to go to. */
const char *router_no_node(struct upstream *u);

/* ---- retry.c ---- */

/* Takes a complete error reply without its '-' and CR LF. True: it was a redirect or the like, and the request, which
 * is in no list any more, is taken care of. */
bool retry_on_error(struct upstream *u, struct upstream_node *from, struct upstream_request *r, const char *text,
                    size_t len) __attribute__((warn_unused_result));
/* ---- wait.c ---- */

/* Has a request tried again, later each time. False where it was too often, or it would be overtaken. */
bool wait_delay(struct upstream *u, struct upstream_request *r) __attribute__((warn_unused_result));
/* Has a request tried again as soon as the map has been asked for again, within a bound, as all that a connection had,
 * so that they keep their order; it ends then if its node is still the one that can't be reached. The bytes are copied.
 * False where it was too often. */
bool wait_map(struct upstream *u, struct upstream_request *r) __attribute__((warn_unused_result));
/* Ends the wait of those who have waited for the map since before a round of the topology began, at started_ms, which
 * has ended. What others wait for may be news that this round has missed. */
void wait_map_ends(struct upstream *u, int64_t started_ms);
/* Repeats the requests that have waited long enough. */
void wait_over(struct upstream *u);
/* Fails all that wait. */
void wait_stop(struct upstream *u);

/* ---- map.c ---- */

/* Moves one slot, as a MOVED says. */
void map_move(struct upstream *u, unsigned slot, struct upstream_node *to);
/* Takes a whole new map: SLOT_COUNT nodes or NULL. True if it differs from the one before. */
bool map_replace(struct upstream *u, struct upstream_node *const *slots);
/* When a whole map, or a master, was last replaced in any thread of the process. */
int64_t map_changed_ms(void);
/* Puts another master in the place of the one (Sentinel), whose connections end. True if it is another. */
bool map_replace_master(struct upstream *u, struct upstream_node *n);

#endif
