/*
 * The ways of a request: which node it goes to, and what follows if the node redirects it, asks to repeat it, or is
 * lost.
 */
#pragma once

#include "proxy/upstream/connection/connection.h"

/* ---- for struct upstream_above, which describes them ---- */

void router_lost(struct upstream *u, struct list_node *requests, struct upstream_node *who, enum conn_end end,
                 const char *reason);
bool router_pointless(struct upstream_request *r);
const char *router_no_node(struct upstream *u);
bool retry_on_error(struct upstream *u, struct upstream_node *from, struct upstream_request *r, const char *text,
                    size_t len) __attribute__((warn_unused_result));

/* ---- router.c ---- */

/* Queues a request that was taken before on node `to`, or (NULL) on the node that serves its slot; else fails it. */
void router_place_again(struct upstream *u, struct upstream_request *r, struct upstream_node *to);
/* Repeats a request after a delay, which grows. False: it was repeated too often, or another would overtake it. */
bool wait_delay(struct upstream *u, struct upstream_request *r) __attribute__((warn_unused_result));
/* Ends the wait of requests that began to wait before the finished round began, at started_ms: the round may have
 * missed the change that later ones wait for. */
void wait_map_ends(struct upstream *u, int64_t started_ms);
/* The callback of u->retry: repeats the requests that have waited long enough. */
void wait_over(struct ev_loop *loop, ev_timer *timer, int revents);
/* Fails all waiting requests. */
void wait_stop(struct upstream *u);

/* ---- map.c ---- */

/* How often each replica is asked for its state, in seconds. */
#define REPLICAS_WATCH_S 1.
/* Forgets which nodes are replicas; replicas_add follows. */
void replicas_clear(struct upstream *u);
/* Notes that the node at this address is a replica of `master`. */
void replicas_add(struct upstream_node *master, const struct address *at);
/* The callback of u->watch: asks all replicas, and the masters that compete with them, for their state. */
void replicas_watch(struct ev_loop *loop, ev_timer *timer, int revents);
/* Sends no more reads to the replica until it has answered again that it is in sync. */
void replicas_doubt(struct upstream_node *replica);

/* Moves one slot, as a MOVED says. */
void map_move(struct upstream *u, unsigned slot, struct upstream_node *to);
/* Takes a whole new map: SLOT_COUNT nodes or NULL. True if it differs from the one before. */
bool map_replace(struct upstream *u, struct upstream_node *const *slots);
/* When a whole map, or a master, was last replaced in any thread of the process. */
int64_t map_changed_ms(void);
/* Makes a node the master (Sentinel). The connections to another one end. Returns whether the master changed. */
bool map_replace_master(struct upstream *u, struct upstream_node *n);
