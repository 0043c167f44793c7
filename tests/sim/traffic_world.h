/*
 * Traffic of applications as they are, with a spectator that sees everything: workers, their connections, what they ask
 * for and when, and of every lease the worker under it.
 *
 *      worker (traffic_worker.c) ── deed ──> connection ── command ──> front (an engine and the model, or the model)
 *         ^                                                   │
 *         └───────────── answer, a round trip later <─────────┴── truth: whose lease was it, did its holder still work
 *
 * Times of a plan are in round trips, those of the world in virtual milliseconds, TRAFFIC_TRIP to the round trip: that
 * makes the usual lease 3 s, so that neither the least nor the longest time for which a claim is remembered distorts
 * what is counted.
 */
#pragma once

#include "tests/sim/traffic_engine.h"

#ifndef TRAFFIC_TRIP_MS
#define TRAFFIC_TRIP_MS 50
#endif

enum { TRAFFIC_TRIP = TRAFFIC_TRIP_MS, TRAFFIC_APPS = 2, TRAFFIC_FRONTS = 2, TRAFFIC_TIMES = 4 };

/* ---- what traffic is like ---------------------------------------------------------------------- */

enum app_connections { APP_OWN, APP_POOL, APP_MULTIPLEXED };
enum app_pick { PICK_ANY, PICK_LAST_USED, PICK_FIRST_USED }; /* of the pool's free connections */
enum app_value { VALUE_SAME, VALUE_LEASE, VALUE_WORKER, VALUE_HOST, VALUE_KEY };
enum app_expire { EXPIRE_WITH_SET, EXPIRE_BY_HOLDER, EXPIRE_BY_ALL }; /* SET NX PX, or SETNX and an EXPIRE behind it */
enum app_dog { DOG_NONE, DOG_SELF, DOG_APART }; /* a watchdog's EXPIRE: over the worker's connection, or its own */

/* A span of time, in round trips. */
struct app_span {
    double from, to;
};

/* The workers of one application. What is 0 is the usual. Probabilities are those of a critical section. */
struct app_plan {
    const char *identity; /* "h1" */
    enum app_connections connections;
    enum app_pick pick;
    unsigned workers, pool;       /* 4, 3 */
    const char *keys[MODEL_KEYS]; /* "lock:job" */
    enum app_value value;
    enum app_expire expire;
    enum app_dog dog;
    bool compare;      /* GET, and DEL if it is their own value */
    bool heartbeat;    /* GET in the middle of the work */
    bool losers;       /* a worker that was refused DELs, too */
    bool twice;        /* DEL again behind each DEL */
    bool endless;      /* SETNX alone */
    bool throttle;     /* never a DEL */
    bool hand;         /* other workers DEL */
    bool fresh;        /* a new connection for each attempt and each section */
    bool library;      /* it says that it multiplexes */
    bool spread;       /* connections by turns over both proxies */
    double nested;     /* one more attempt in the middle of the work */
    double miss;       /* no DEL */
    double late;       /* work outlasts the lease */
    double gap;        /* a wait of more than a lease between GET and DEL */
    double reconnect;  /* before the DEL */
    double operators;  /* DELs by an operator, a round trip */
    double stall;      /* a command goes out later than its worker meant, as on a busy machine: its probability */
    unsigned hosts;    /* that VALUE_HOST tells apart */
    unsigned retries;  /* a loser tries so many times more before its DEL */
    unsigned all_late; /* the first sections are */
    double crash_each; /* the process dies so often, up to crash_last */
    double crash_last;
    double bursts[TRAFFIC_TIMES];          /* sections that begin in the 30 round trips behind these are late */
    struct app_span pauses[TRAFFIC_TIMES]; /* the process stands still */
    double lease;                          /* 60 */
    struct app_span work, rest, poll;      /* 3 to 20, 5 to 25, 3 to 15 */
    struct app_span stalled;               /* so much later */
};

struct world_plan {
    struct app_plan apps[TRAFFIC_APPS]; /* one without an identity in the second place: there is one alone */
    unsigned app_count;
    double trips; /* so long */
    bool bare;    /* no engine */
    bool instant; /* a command is begun, runs and is finished in one instant, else within its round trip */
    bool trace;   /* to standard output */
    uint64_t seed;
};

/* What the spectator has counted. */
struct tally {
    uint64_t acquired;
    uint64_t wrong;     /* a release, or an attempt, ended the lease of a worker still at work */
    uint64_t by_again;  /* of `wrong`: by attempts */
    uint64_t lost;      /* the holder's own release was refused */
    uint64_t cut;       /* a watchdog's EXPIRE was refused, or the lease ended under it */
    uint64_t unexpired; /* the holder's first EXPIRE was refused */
    uint64_t moved;     /* another worker's EXPIRE moved the lease */
    uint64_t row, most; /* holders' releases refused one after the other: now, and at most */
    double idle;        /* round trips in which a key was held and no worker at work under it */
};

/* ---- the world --------------------------------------------------------------------------------- */

struct traffic;
struct app;
struct line;

/* A lease: one acquisition, as it really was. */
struct lease {
    struct lease *next; /* of all */
    struct app *app;
    struct line *line; /* it was acquired over */
    int key;
    char value[MODEL_VALUE];
    bool endless; /* it has no expiry of the application's */
    bool busy;    /* its holder is at work */
    bool rested;  /* and has not been since done_ms */
    int64_t done_ms;
};

/* A line: a connection of the application's. */
struct line {
    struct line *next; /* of all */
    struct front_line front;
    bool multiplexes;
    int proxy;
    int64_t free_ms; /* answered by then */
};

enum deed_kind { DEED_WAIT, DEED_TRY, DEED_READ, DEED_RELEASE, DEED_EXPIRE, DEED_PROLONG, DEED_RECONNECT };

/* What a worker does next. */
struct deed {
    enum deed_kind kind;
    int key;
    int64_t wait_ms;
    struct lease *mine; /* that it means, NULL none */
    bool endless;       /* DEED_TRY: without an expiry */
};

enum worker_kind { WORKER_USUAL, WORKER_FINISHER, WORKER_OPERATOR };

struct worker {
    struct worker *next; /* of all */
    struct app *app;
    enum worker_kind kind;
    unsigned place, number; /* among its application's; among all that ever were */
    struct line *line;      /* its own, or NULL */
    struct line *dog_line;  /* its watchdog's, or NULL */
    bool dead;
    bool decided; /* `deed` is still to be done */
    bool stalled; /* and its command goes out late */
    struct deed deed;
    struct line *used; /* what the command under way goes over */
    bool held_back;    /* its release is begun once more over that */
    struct front_call call;
    /* What the last answer said. */
    struct lease *got;
    bool shown;
    char seen[MODEL_VALUE];
    /* Fields that are traffic_worker.c's. */
    unsigned phase;
    int key;
    unsigned attempts, retried;
    struct lease *lease;
    int64_t end_ms;
    bool misses;
    char value[MODEL_VALUE];
};

struct app {
    struct app_plan plan;
    struct tally tally;
    int keys[MODEL_KEYS]; /* the model's numbers of its keys */
    unsigned key_count;
    struct worker **workers; /* the usual ones that live now */
    struct line **lines;     /* of a pool, or multiplexed */
    unsigned line_count;
    struct lease **handed; /* to be released by others, a ring */
    unsigned handed_count, handed_room, handed_first;
};

/* Runs it from beginning to end, and hands out each application's tally. */
void traffic_run(const struct world_plan *plan, struct tally tallies[TRAFFIC_APPS]);

/* ---- for traffic_worker.c ---------------------------------------------------------------------- */

int64_t traffic_now(const struct traffic *t);
int64_t traffic_trips(double trips);
/* A random number from 0 to below 1. */
double traffic_random(struct traffic *t);
unsigned traffic_below(struct traffic *t, unsigned n);
/* A random time within a span, in ms. */
int64_t traffic_within(struct traffic *t, struct app_span span);
/* With the mean 1. */
double traffic_exponential(struct traffic *t);
/* Notes that a lease's holder does not work under it any more. */
void traffic_done(struct traffic *t, struct lease *l);
void traffic_hand(struct app *a, struct lease *l);
struct lease *traffic_handed(struct app *a);

/* What the worker does next; what came of its last deed stands in it. */
struct deed worker_next(struct traffic *t, struct worker *k);
