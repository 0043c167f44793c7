/*
 * What pubsub.c (subscriptions, and what clients ask of them) and pubsub_feed.c (what comes from the nodes) share.
 */
#ifndef LOCKKEEPER_SESSION_PUBSUB_H
#define LOCKKEEPER_SESSION_PUBSUB_H

#include "proxy/session/pinned.h"

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

/* ---- pubsub.c ---- */

/* Shard channels on all nodes. */
int64_t pubsub_shards(const struct pubsub *p);
/* Nothing is subscribed, and nothing awaited. */
bool pubsub_idle(const struct pubsub *p);

/* `lost` (borrowed, may be gone) could not be told of the first subscription. Whether the request goes on, at the node
 * that has taken its place, or when it is known whether there is one. */
bool pubsub_anew(struct pubsub *p, const struct upstream_node *lost);

/* ---- pubsub_feed.c ---- */

/* The feed to a node, opened if there is none; NULL: *error says why. */
struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error);
void feed_free(struct feed *f);

#endif
