/*
 * What the files of proxy/session/push/ share: feeds (pubsub.c, pubsub_feed.c), the lanes of who tracks keys
 * (tracking.c, tracking_ask.c), and PROXY WATCH (watch.c).
 */
#ifndef LOCKKEEPER_SESSION_PUSH_PRIVATE_H
#define LOCKKEEPER_SESSION_PUSH_PRIVATE_H

#include "proxy/session/push/push.h"

/* ---- subscriptions ------------------------------------------------------------------------------- */

/* A connection with subscriptions. */
struct feed {
    struct list_node link;
    struct pubsub *of;
    struct upstream_pin *pin;
    struct upstream_node *node;
    struct text partial; /* the beginning of a message */
    int64_t shards;      /* shard channels subscribed here */
    enum pin_reason why;
    uint8_t protocol; /* of the connection: the session's may have changed since */
    bool greeted;     /* MONITOR: has said OK */
};

struct pubsub {
    struct session *session;
    struct list_node feeds;
    struct feed *main; /* of channels and patterns; NULL: none */
    bool monitor;
    int64_t channels, patterns;
    struct request *waiting; /* the request whose confirmations are to come */
    int64_t expected;        /* so many */
    struct text again;       /* SUBSCRIBE and its kin, should it be redirected, or its node be out of reach */
    int slot;                /* of that; -1: any */
    unsigned hops;
    struct text held; /* messages that wait for the end of a reply */
};

/* The number of shard channels on all nodes. */
int64_t pubsub_shards(const struct pubsub *p);
/* Whether nothing is subscribed, and nothing awaited. */
bool pubsub_idle(const struct pubsub *p);

/* `lost` (borrowed, may be gone) could not be told of the first subscription. Whether the request goes on, at the node
 * that has taken its place, or when it is known whether there is one. */
bool pubsub_anew(struct pubsub *p, const struct upstream_node *lost);

/* Lets messages go out that waited until no reply is being written. */
void pubsub_release(struct session *s);
/* The feed to a node, opened if there is none; NULL: *error says why. */
struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error);
void feed_free(struct feed *f);

/* ---- PROXY WATCH --------------------------------------------------------------------------------- */

/* What struct session_room has for workers whose sessions have watched. */
void watch_worker_closes(struct worker *w);

/* ---- tracking ------------------------------------------------------------------------------------ */

struct tracking {
    struct session *session; /* NULL until the nodes have agreed */
    uint32_t dedicated;
    bool on, bcast, optin, optout;
    bool no_touch;
    bool reopen; /* BCAST: a connection is missing */
    uint64_t epoch;
    bool caching_new; /* session->caching was said by the command at hand */
};

/* A lane of its own for a session, which it does not have yet; the caller's until it is taken or freed. */
struct tracking *tracking_new(struct session *s);
void tracking_free(struct worker *w, struct tracking *t);
/* The session's from now on: its requests go over that lane. It had none. */
void tracking_take(struct session *s, struct tracking *t);

/* What struct session_room has for sessions that track keys. */
void tracking_tick(struct session *s);
void tracking_request_over(struct session *s);
void tracking_pin_lane(const struct session *s, struct upstream_lane *lane);
struct call *tracking_before_call(struct session *s, struct call *c, const char **bytes, size_t *len);

#endif
