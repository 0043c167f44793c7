/*
 * Messages to clients that are no replies: from nodes, for subscriptions and MONITOR (pubsub.c) and for client-side
 * caching (tracking.c); from the proxy, for incidents (incident_watch.c).
 */
#pragma once

#include "proxy/session/core/class.h"
#include "proxy/session/core/pin.h"

/* What the room keeps of a session. */
struct push_state {
    struct pubsub *pubsub;     /* NULL without subscriptions and MONITOR */
    struct watch *watch;       /* NULL without PROXY WATCH */
    struct tracking *tracking; /* NULL without CLIENT TRACKING and NO-TOUCH */
};
_Static_assert(sizeof(struct push_state) <= ROOM_LOCKS - ROOM_PUSH, "the room's state of a session fits");

static inline struct push_state *push_of(const struct session *s) {
    return session_room(s, ROOM_PUSH);
}

/* ---- pubsub.c ------------------------------------------------------------------------------------ */

/* Handles SUBSCRIBE and similar commands, and MONITOR. */
enum dispatch_result pubsub_dispatch(struct session *s, const struct request_class *k);
/* For RESP2's subscribe mode: whether it applies; handles all commands of the table except QUIT and RESET:
 * subscriptions, PING, and an error for the others. */
bool pubsub_restricts(const struct session *s);
enum dispatch_result pubsub_restricted(struct session *s, const struct request_class *k);
/* A session's subscriptions: the numbers of channels, patterns and shard channels; MONITOR. */
struct pubsub_counts {
    int64_t channels, patterns, shards;
    bool monitor;
};
struct pubsub_counts pubsub_count(const struct session *s);
/* pubsub_drop ends all subscriptions, tracking_drop tracking, watch_drop the watch, if there are any: after RESET, or
 * when the session has ended. */
void pubsub_drop(struct session *s);
void tracking_drop(struct session *s);
void watch_drop(struct session *s);

/* ---- tracking.c ---------------------------------------------------------------------------------- */

/* Handles CLIENT TRACKING, CACHING, NO-TOUCH, TRACKINGINFO and GETREDIR. */
enum dispatch_result tracking_dispatch(struct session *s, const struct request_class *k);
struct tracking_state {
    bool on, bcast;
};
struct tracking_state tracking_state(const struct session *s);

/* ---- incident_watch.c ---------------------------------------------------------------------------- */

/* Handles PROXY WATCH of a client with the right to it; `r` has its arguments from argument 2 on. */
enum dispatch_result watch_dispatch(struct session *s, const struct request_class *k);

/* The callbacks of each file. */
extern const struct session_room pubsub_room, tracking_room, watch_room;
