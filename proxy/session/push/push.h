/*
 * What clients are told without asking each time: what nodes say, of subscriptions and MONITOR (pubsub.c) and of
 * client-side caching (tracking.c), and what the proxy does, of incidents (watch.c).
 */
#ifndef LOCKKEEPER_SESSION_PUSH_PUSH_H
#define LOCKKEEPER_SESSION_PUSH_PUSH_H

#include "proxy/session/core/pin.h"

/* ---- pubsub.c ------------------------------------------------------------------------------------ */

/* Deals with SUBSCRIBE and its kin, and MONITOR. */
enum dispatch_result pubsub_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
/* In RESP2's subscribe mode: deals with what is in the table, but for QUIT and RESET: subscriptions, PING, and what is
 * not allowed there. */
bool pubsub_restricts(const struct session *s);
enum dispatch_result pubsub_restricted(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* What a session listens to: numbers of channels, patterns and shard channels; MONITOR. */
struct pubsub_counts {
    int64_t channels, patterns, shards;
    bool monitor;
};
struct pubsub_counts pubsub_count(const struct session *s);
/* Ends all subscriptions: RESET, or the session is gone. */
void pubsub_drop(struct session *s);

/* ---- tracking.c ---------------------------------------------------------------------------------- */

/* Deals with CLIENT TRACKING, CACHING, NO-TOUCH, TRACKINGINFO and GETREDIR (tracking_ask.c). */
enum dispatch_result tracking_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
struct tracking_state {
    bool on, bcast;
};
struct tracking_state tracking_state(const struct session *s);
/* Ends tracking: RESET, or the session is gone; does nothing where there is none. */
void tracking_drop(struct session *s);

/* ---- watch.c ------------------------------------------------------------------------------------- */

/* Deals with PROXY WATCH, whose client may look into the proxy; `r` has the words behind it from argument 2 on. */
enum dispatch_result watch_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                    const char *bytes);
/* Ends it: RESET, or the session is gone; does nothing where there is none. */
void watch_drop(struct session *s);

/* What the room hears of sessions. */
extern const struct session_room push_room;

#endif
