/*
 * What the files of proxy/session/push/ share: feeds (pubsub.c, pubsub_feed.c), the lanes of sessions that track keys
 * (tracking.c, tracking_ask.c), and PROXY WATCH (watch.c).
 */
#pragma once

#include "proxy/session/push/push.h"

/* ---- subscriptions ------------------------------------------------------------------------------- */

/* A connection with subscriptions. */
struct feed {
    struct list_node link;
    struct pubsub *of;
    struct upstream_pin *pin;
    struct upstream_node *node;
    struct text partial; /* the beginning of an incomplete message */
    int64_t shards;      /* shard channels subscribed here */
    enum pin_reason why;
    uint8_t protocol; /* of the connection; the session's may have changed since */
    bool greeted;     /* MONITOR: the OK has come */
};

struct pubsub {
    struct session *session;
    struct list_node feeds;
    struct feed *main; /* for channels and patterns; NULL: none */
    bool monitor;
    int64_t channels, patterns;
    struct request *waiting; /* the request that waits for confirmations */
    int64_t expected;        /* how many are due */
    struct text
        again; /* the bytes of a SUBSCRIBE or similar, to repeat it after a redirect, or if its node is out of reach */
    int slot;  /* its slot; -1: any */
    unsigned hops;
    struct text held; /* messages that wait for the end of a reply */
};

/* The number of shard channels on all nodes. */
int64_t pubsub_shards(const struct pubsub *p);
/* Whether nothing is subscribed, and no confirmation is due. */
bool pubsub_idle(const struct pubsub *p);

/* Called if the first subscription could not be sent to `lost` (borrowed, may be gone). Returns whether the request
 * continues: at the node that has taken over, or once the map shows whether there is one. */
bool pubsub_anew(struct pubsub *p, const struct upstream_node *lost);

/* Writes the messages that waited for the end of a reply. */
void pubsub_release(struct session *s);
/* The feed to a node, opened if needed; NULL: *error has the reason. */
struct feed *feed_to(struct pubsub *p, struct upstream_node *node, const char **error);
void feed_free(struct feed *f);

/* ---- PROXY WATCH --------------------------------------------------------------------------------- */

/* The room's callback for a worker, for PROXY WATCH. */
void watch_worker_closes(struct worker *w);

/* ---- tracking ------------------------------------------------------------------------------------ */

/* What CLIENT CACHING says for the next command: session->before. */
enum caching { CACHING_NONE, CACHING_YES, CACHING_NO };

/* What CLIENT TRACKING ON asks for. */
struct tracking_modes {
    bool on, bcast, optin, optout, noloop;
};

struct tracking {
    struct session *session; /* NULL until the nodes have agreed */
    uint32_t dedicated;
    struct tracking_modes modes;
    bool no_touch;
    bool reopen; /* BCAST: a connection is missing */
    uint64_t epoch;
    bool caching_new; /* the current command has set session->before */
    /* BCAST with NOLOOP: the keys that the session's lock scripts have changed in this turn of the loop, each behind
     * its length. */
    struct text own;
    unsigned own_turn;
};

/* Makes a dedicated lane for a session that has none; the caller owns it until tracking_take or tracking_free. */
struct tracking *tracking_new(struct session *s);
void tracking_free(struct worker *w, struct tracking *t);
/* Gives the lane to the session, which must have none: its requests now use it. */
void tracking_take(struct session *s, struct tracking *t);

/* Sets which events of the session are reported, after its wish has changed. */
void tracking_hears(struct session *s);

/* The room's callbacks for sessions that track keys. */
void tracking_tick(struct session *s);
void tracking_request_over(struct session *s);
void tracking_pin_lane(const struct session *s, struct upstream_lane *lane);
void tracking_lock_written(struct session *s, const char *key, size_t len);
struct call *tracking_before_call(struct session *s, struct call *c, const char **bytes, size_t *len);
