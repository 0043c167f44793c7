/*
 * What waits.c and check_waits.c share: a proxy's threads, requests that wait, messages on their way, and what the
 * spectator knows of all that.
 */
#ifndef LOCKKEEPER_SIM_WAITS_WORLD_H
#define LOCKKEEPER_SIM_WAITS_WORLD_H

#include "proxy/lock/waiting.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/private.h"
#include "tests/sim/call.h"
#include "tests/sim/world.h"

enum {
    WAITS_THREADS = 2,
    WAITS_UPSTREAMS = 2, /* a thread's connections to Redis */
    WAITS_MESSAGES = 64,
    WAITS_KEPT = 64
};

/* A thread of a proxy; its loop is this. */
struct waits_thread {
    struct world *world;
    unsigned proxy;
    struct worker worker;
    struct worker_locks locks;
    struct ev_async *async;
    int64_t woken_ms; /* when it will hear that it was woken; 0: it was not */
    struct upstream_pin_events ear;
    bool listens;
    int64_t hears_ms; /* from when on */
};

/* An attempt, as wait.c knows it; the flight's, from when it was begun. */
struct waits_call {
    struct request request; /* first */
    struct lock_call lock;
    struct flight *flight;
    struct world *world;
    bool waiting; /* it is in the queue, by what lock_wait has said */
    bool left, spoken, granted, undone, circle;
    unsigned tries;
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
    struct waits_thread *to; /* NULL: none */
    unsigned proxy_life;
    int64_t due_ms;
    char text[80];
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
    bool rings;                                   /* it is a timer's turn */
    bool crashes;                                 /* a proxy ends, and answers nobody */
    int64_t skew_ms[PROXIES], jumped_ms[PROXIES]; /* of their clocks */
    /* The spectator's. */
    struct flight *joins; /* who joins at this moment */
    struct waits_kept kept[WAITS_KEPT];
    unsigned kept_count;
    uint64_t arrivals;
    char marked[80]; /* the mark of those who wait, before the script ran; and how many messages there had been */
    uint64_t published;
    int64_t free_ms[MODEL_KEYS]; /* since when it has been free; 0: it is not */
    long free_step[MODEL_KEYS];
    int64_t known_ms[MODEL_KEYS][PROXIES]; /* since when a proxy has known that; 0: it does not */
    int64_t lost_ms[MODEL_KEYS];           /* when an attempt was lost, last */
};

/* The spectator: after each change; after a command on a key. */
void waits_check(struct world *w);
void check_waits_key(struct world *w, int key);
/* An attempt has been sent by a client; it may join now, has joined, or goes past all queues. */
void check_waits_came(struct world *w, struct flight *f);
void check_waits_joins(struct world *w, struct flight *f);
void check_waits_joined(struct world *w, struct flight *f, const struct waits_call *c);
void check_waits_newcomer(struct world *w, const struct flight *f);
/* An incident says that who joins closes a circle. */
void check_waits_circle(struct world *w);
/* Its script has run. */
void check_waits_ran(struct world *w, const struct flight *f);
/* One that waits asks again; ends, as its flight's envelope says. */
void check_waits_try(struct world *w, struct flight *f);
void check_waits_end(struct world *w, struct flight *f);
/* A proxy has learnt of a command's end; a thread hears of a release. */
void check_waits_learnt(struct world *w, const struct flight *f, const struct lock_result *r);
void check_waits_told(struct world *w, const struct waits_thread *t, int key);

#endif
