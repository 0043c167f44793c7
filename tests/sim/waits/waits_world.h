/*
 * What waits.c and check_waits.c share: a proxy's threads, requests that wait, messages on their way, and what the
 * spectator knows of all that.
 */
#pragma once

#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/waits/private.h"
#include "tests/sim/call.h"
#include "tests/sim/sim_world.h"

enum {
    WAITS_THREADS = 2,
    WAITS_UPSTREAMS = 2, /* a thread's connections to Redis */
    WAITS_NODES = 2,     /* of a cluster */
    WAITS_MESSAGES = 64,
    WAITS_BYTES = 160, /* of a message, at most */
    WAITS_KEPT = 64
};

struct waits_thread;

/* A thread's connection to a node, which it listens over. */
struct waits_ear {
    struct waits_thread *thread;
    unsigned node, opened; /* how often it was */
    struct upstream_pin_events events;
    bool listens;
    int64_t hears_ms;            /* from when on, on the channel of all locks; 0: it does not */
    int64_t slot_ms[MODEL_KEYS]; /* on the channels of the keys' slots */
};

/* A thread of a proxy; its loop is this. */
struct waits_thread {
    struct world *world;
    unsigned proxy;
    struct worker worker;
    struct ev_async *async;
    int64_t woken_ms; /* when it will hear that it was woken; 0: it was not */
    struct waits_ear ears[WAITS_NODES];
};

/* An attempt, as wait.c knows it; the flight's, from when it was begun. */
struct waits_call {
    struct request request; /* first */
    struct lock_call lock;
    struct flight *flight;
    struct world *world;
    bool parked;  /* by request_park */
    bool waiting; /* it is in the queue, by what lock_wait has said */
    bool left, spoken, granted, undone, circle;
    int64_t last_try_ms;
    uint64_t fresh, arrival; /* its number of arrival, if it keeps no place; and its own */
    int64_t came_ms, began_ms;
    int64_t circle_ms; /* since when it has been in a circle; 0: it is not */
    long came_step;
};

struct waits_timer {
    struct ev_timer *timer; /* NULL: none */
    struct ev_loop *loop;
    int64_t due_ms;
};

struct waits_message {
    struct waits_ear *to; /* NULL: none */
    unsigned proxy_life, opened;
    int64_t due_ms;
    int key; /* that it tells of; -1: none */
    char bytes[WAITS_BYTES];
};

/* A place that its session may take again. */
struct waits_kept {
    int proxy, key;
    uint64_t session_id, arrival;
    int64_t until_ms;
};

struct waits {
    struct proxy_shared shared[PROXIES];
    struct worker *workers[PROXIES][WAITS_THREADS];
    struct waits_thread threads[PROXIES][WAITS_THREADS];
    struct session sessions[CONNS];
    struct waits_timer timers[FLIGHTS];
    struct waits_message messages[WAITS_MESSAGES];
    unsigned message_count;
    bool rings;                /* it is a timer's turn */
    bool crashes;              /* a proxy ends, and answers no attempt */
    int64_t skew_ms[PROXIES];  /* of their clocks, which are set now and then */
    char nodes[WAITS_NODES];   /* in name only */
    unsigned node[MODEL_KEYS]; /* where a key's slot is; and where a proxy believes it */
    unsigned believed[PROXIES][MODEL_KEYS];
    int64_t moved_ms[MODEL_KEYS]; /* when it moved last */
    /* The spectator's. */
    struct flight *joins; /* the attempt that joins at this moment */
    struct waits_kept kept[WAITS_KEPT];
    unsigned kept_count;
    uint64_t arrivals;
    char marked[80 * PROXIES]; /* the marks of the proxies that wait, before the script ran; how many messages there had
                                  been */
    uint64_t published;
    char told[48];               /* and the proxy that the last one is for */
    int64_t free_ms[MODEL_KEYS]; /* since when it has been free; 0: it is not */
    long free_step[MODEL_KEYS];
    int64_t known_ms[MODEL_KEYS][PROXIES]; /* since when a proxy has known that; 0: it does not */
    int64_t told_ms[MODEL_KEYS][PROXIES];  /* and that it is the one to try; 0: it does not */
    int64_t lost_ms[MODEL_KEYS];           /* when an attempt was lost, last */
};

/* Whether a thread hears of releases of a key's lock, or soon will. */
bool waits_listens(const struct world *w, const struct waits_thread *t, int key);

/* The spectator: after each change; after a command on a key. */
void waits_check(struct world *w);
void check_waits_key(struct world *w, int key);
/* An attempt has been sent by a client; it may join now, has joined, or goes past all queues. */
void check_waits_came(struct world *w, struct flight *f);
void check_waits_joins(struct world *w, struct flight *f);
void check_waits_joined(struct world *w, struct flight *f, const struct waits_call *c);
void check_waits_newcomer(struct world *w, const struct flight *f);
/* An incident says that the newcomer closes a circle. */
void check_waits_circle(struct world *w);
/* Its script has run. */
void check_waits_ran(struct world *w, const struct flight *f);
/* One that waits asks again; ends, as its flight's envelope says. */
void check_waits_try(struct world *w, struct flight *f);
void check_waits_end(struct world *w, struct flight *f);
/* A proxy has learnt of a command's end; a thread hears of a release that is its proxy's turn. */
void check_waits_learnt(struct world *w, const struct flight *f, const struct lock_result *r);
void check_waits_told(struct world *w, const struct waits_thread *t, int key);
