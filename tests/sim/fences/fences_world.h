/*
 * What fences.c and pins.c share: writes, and what is on its way to Redis for them.
 */
#pragma once

#include "proxy/session/fences/private.h"
#include "tests/sim/waits/waits_world.h"
#include "tests/sim/sim_world.h"

enum { CALLS_MAX = 256, PINS_MAX = 64, PIN_CALLS_MAX = 8, TIMERS_MAX = 64, ANSWER_MAX = 256 };

/* A write of a worker's, or one look at a lock (`is_look`). */
struct write {
    struct request request; /* first */
    struct world *world;
    bool is_look, exact, queued;
    bool waits; /* it blocks until something comes */
    bool lost;  /* a look has said so */
    bool slow;  /* it is long on its way */
    int worker, conn, key;
    unsigned life, in_vain; /* how often it has found nothing */
    uint64_t session_id, fence;
    uint64_t number, of;             /* its own; a look's: its write's */
    struct fence_question *question; /* in MULTI */
    struct fence_looks *looks;
    struct text bytes;
    struct list_node link;
};

/* A call on its way to Redis. */
struct sent {
    struct call *call; /* NULL: none */
    struct text bytes;
};

/* What WATCH has seen of a guard record, or of a watermark. */
struct seen {
    bool exists;
    int64_t expire_ms;
    uint64_t fence;
    char text[MODEL_TOKEN];
};

/* A connection of a session's own: what was sent over it runs in that order. */
struct upstream_pin {
    bool used;
    bool given; /* back: what is on it fails, and may have run */
    bool cut;   /* and no more of that runs */
    bool watches, multi, queued;
    struct write *of;
    struct seen seen;
    struct sent calls[PIN_CALLS_MAX];
    unsigned count;
};

struct fences_timer {
    struct ev_timer *timer; /* NULL: none */
    struct write *of;
    int64_t due_ms;
};

struct fences {
    struct world *world;
    struct waits_thread thread; /* the loop of all workers: what the time is */
    struct lock_rules *rules;
    struct proxy_shared shared[PROXIES];
    struct worker workers[PROXIES];
    struct session sessions[CONNS];
    struct sent sent[CALLS_MAX];
    struct upstream_pin pins[PINS_MAX];
    struct fences_timer timers[TIMERS_MAX];
    struct list_node writes;
    uint64_t writes_made;
    struct write *now; /* the worker whose bytes are being sent */
    unsigned life[WORKERS];
    uint64_t lease_session[WORKERS], lease_fence[WORKERS];
    uint64_t written[MODEL_KEYS]; /* the greatest fence of an exact write that was done; 0: or the watermark was lost */
};

/* The write whose request this is. */
struct write *fences_write_of(const struct request *r);
/* The session of a connection as it is now. */
struct session *fences_session(struct world *w, int conn);
/* Runs fence.lua for a write, whose answer is as Redis would write it; and looks at what came of it, for S7: of a
 * question without a write only where it is refused. */
void fences_run(struct world *w, const struct write *x, const struct text *bytes, char out[ANSWER_MAX]);
void fences_ran(struct world *w, struct write *x, bool refused);

/* pins.c: lets one thing go on that was sent over a connection of a session's own, or a timer ring. False: nothing
 * does. */
bool fences_pins_progress(struct world *w);
/* Ends a session's wait by CLIENT UNBLOCK. */
void fences_unblock_somebody(struct world *w);
void fences_pins_close(struct world *w);
/* How many writes were done over these pins, and how many of them by sessions that had waited. */
void fences_pins_totals(uint64_t *done, uint64_t *waited);
