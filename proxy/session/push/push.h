/*
 * What nodes say without being asked: subscriptions and MONITOR (pubsub.c), client-side caching (tracking.c), and what
 * a master sends its replicas (replica.c).
 */
#ifndef LOCKKEEPER_SESSION_PUSH_PUSH_H
#define LOCKKEEPER_SESSION_PUSH_PUSH_H

#include "proxy/session/core/pin.h"

/* ---- pubsub.c ------------------------------------------------------------------------------------ */

/* SUBSCRIBE and its kin, MONITOR. */
enum dispatch_result pubsub_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
/* In RESP2's subscribe mode: deals with what is not allowed there, and with PING. False: it goes its normal way. */
bool pubsub_restricts(const struct session *s);
enum dispatch_result pubsub_restricted(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
/* No reply is being written: messages that waited for that go out. */
void pubsub_release(struct session *s);
/* What a session listens to. */
struct pubsub_counts {
    int64_t channels, patterns, shards;
    bool monitor;
};
struct pubsub_counts pubsub_count(const struct session *s);
/* Ends all subscriptions: RESET, or the session is gone. */
void pubsub_drop(struct session *s);

/* ---- replica.c ----------------------------------------------------------------------------------- */

/* REPLCONF, SYNC, PSYNC. */
enum dispatch_result replica_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                      const char *bytes);
/* Whether what the session is sent is a master's stream: its requests are for replica_request then; c NULL: not in the
 * table. Works with no session->replica too. */
bool replica_streams(const struct session *s);
enum dispatch_result replica_request(struct session *s, const struct command *c, const struct resp_request *r,
                                     const char *bytes);
/* Some of the stream has been written. */
void replica_go_on(struct session *s);
/* The session is no replica any more, if it was one: RESET, another user, or it is gone. */
void replica_drop(struct session *s);

/* ---- tracking.c ---------------------------------------------------------------------------------- */

/* CLIENT TRACKING, CACHING, NO-TOUCH, TRACKINGINFO and GETREDIR: tracking_ask.c. */
enum dispatch_result tracking_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                       const char *bytes);
struct tracking_state {
    bool on, bcast;
    uint64_t redirect; /* the client who is told, 0: itself */
    bool broken;       /* and is gone */
};
struct tracking_state tracking_state(const struct session *s);
/* What CLIENT CACHING said of the next command. */
enum caching { CACHING_NONE, CACHING_YES, CACHING_NO };
enum caching tracking_next(const struct session *s);
/* It is said of the command at hand, which it was meant for when it came: MULTI, whose node was not known then. */
void tracking_next_set(struct session *s, enum caching caching);
/* These are called where there is a session->tracking. */
/* Once a second. */
void tracking_tick(struct session *s);
/* A request of the client has been dispatched. */
void tracking_request_ends(struct session *s);
/* Where it may have been made within an EXEC: CACHING does not outlast it, and if `stale` the client has read keys that
 * nobody tracks for it. */
void tracking_exec_ends(struct session *s, bool stale);
/* The CLIENT CACHING that has to go right before `c`, as a call of nobody's, or NULL. */
struct call *tracking_caching(struct session *s, struct call *c, const char **bytes, size_t *len);
/* RESET, or the session is gone; does nothing where there is none. */
void tracking_drop(struct session *s);

/* The client who is to be told (if it is still the same) is gone. */
void tracking_broken(struct session *s, uint64_t redirect);

#endif
