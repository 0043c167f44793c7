/*
 * A worker, as sessions see it: one thread with its loop, its upstream, its sessions, and the memory and the clock that
 * they share. proxy/worker/ runs it and accepts its clients.
 */
#pragma once

#include <ev.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/resp.h"
#include "proxy/base/clock.h"
#include "proxy/base/counters.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"
#include "proxy/base/text.h"
#include "proxy/config/config.h"
#include "proxy/lock/rule.h"
#include "proxy/net/readable.h"
#include "proxy/session/core/room.h"
#include "proxy/session/core/shared.h"

struct discovery_rows;
struct worker_locks;
struct lock_waits;
struct witnesses;
struct worker_watches;
struct wrong_logins;
struct lock_walk;

/*
 * Broadcasts: work that concerns the clients of all threads. A broadcast visits one worker after another, each in its
 * own thread, and ends at the worker where it began. So no two threads touch its data at once. Its structure is
 * embedded in the structure with its data; all fields but `home` are private.
 */
struct broadcast {
    struct worker *home;
    struct list_node link;    /* in a mailbox */
    struct list_node at_home; /* in the home worker's list of broadcasts */
    bool stays;               /* set by `visit`: the visit continues until broadcast_leave */
    unsigned next;            /* the index of the next worker */
    void (*visit)(struct broadcast *t, struct worker *w);
    void (*done)(struct broadcast *t);
};

/* A worker's mailbox: broadcasts that have arrived, and those that it has started. */
struct broadcast_inbox {
    pthread_mutex_t mutex;
    struct list_node arrived;
    bool closed;
    struct list_node begun;
};

enum { WORKER_BYTES_FULL = 128 * 1024 * 1024, PROBE_ERROR_MAX = 256 };

/* What a node permits to clients without login, as far as is known. Until it is known, they count as
 * unauthenticated. */
enum strangers { UNAUTHENTICATED_UNKNOWN, UNAUTHENTICATED_REFUSED, UNAUTHENTICATED_SERVED };

/* CLIENT PAUSE of writes or of all, PROXY PAUSE; the later one is the stricter. */
enum pause_kind { PAUSE_NONE, PAUSE_WRITES, PAUSE_ALL, PAUSE_PROXY };

/* A job for the end of the turn, in the worker's thread. First member of its memory, which the worker frees after the
 * job has run. */
struct worker_job {
    struct list_node link;
    void (*run)(struct worker *w, struct worker_job *job);
};

/* A long task, done in one step each turn so that it delays no session; one task after the other. First member of its
 * memory, which the worker frees when the task is done. */
struct worker_slices {
    struct list_node link;
    bool (*step)(struct worker *w, struct worker_slices *work); /* returns whether there is more */
};

enum {
    GATHER_US = 1000,
    GATHER_MOST_US = 50000
}; /* so long a reply may wait for the next one of its session: session_flush */

struct worker {
    struct proxy_shared *shared;
    const struct session_hooks *hooks;
    unsigned index;
    struct ev_loop *loop;
    struct upstream *upstream;
    const struct config *config; /* the snapshot in force in this thread; a reload replaces it between two events */
    struct lock_rules *rules;    /* the snapshot's */
    struct chunk_pool chunks;
    struct counters counters;
    struct list_node sessions;       /* open sessions */
    struct list_node dirty;          /* sessions with output to write */
    struct list_node gathering;      /* sessions whose output waits for the next replies: session_flush */
    struct list_node runnable;       /* sessions that may continue with waiting requests */
    size_t over_soft;                /* how many sessions are above the soft limit of their output */
    struct list_node eased;          /* sessions that become runnable in the next turn */
    struct list_node closed;         /* sessions to free at the end of the turn */
    struct readable readable;        /* readable sessions and nodes of this turn */
    struct list_node *free_requests; /* a stack */
    struct list_node free_calls;
    size_t free_request_count, free_call_count;
    struct list_node jobs;             /* struct worker_job, for the end of the turn */
    struct list_node slices;           /* struct worker_slices; the first one is in progress */
    size_t own_works;                  /* the proxy's own requests in flight, for which a stop waits */
    struct worker_locks *locks;        /* for locks/ */
    struct witnesses *witnesses;       /* for proxy/session/locks; NULL: there are none */
    struct lock_waits *waits;          /* for waits/ */
    struct wrong_logins *wrong_logins; /* for commands/local.c */
    struct lock_walk *walk;            /* the leases for the current PROXY LOCKS or TOP; else NULL */
    struct worker_watches *watches;    /* for push/incident_watch.c; NULL without watches */
    struct discovery_rows *discovered; /* for cluster/discover.c */
    struct resp_request scanner;       /* for input that is complete in `scratch` */
    char *scratch;                     /* the buffer for reads */
    struct text build;                 /* a request being encoded */
    bool secret;                       /* a request contained a password: secret_end of dispatch.c */
    int64_t now_ms;                    /* the result of worker_now; 0: not read in this turn */
    int64_t turn_us;                   /* the result of worker_turn_us; 0: not read in this turn */
    struct ev_async wake;
    struct ev_timer engine_tick;
    double engine_at; /* when it is due */
    union {
        struct {
            enum pause_kind pause : 2; /* until pause_timer fires */
            bool reads : 1;            /* replicas may answer reads: read-from */
            uint32_t struck : 29;      /* how many sessions get an error as the next answer: a lease is over */
            uint32_t looks;            /* how many of the next requests PROXY ADVISE examines for writes */
        };
        uint64_t unusual; /* 0: none. One word, since every request tests it */
    };
    struct ev_timer pause_timer;
    struct broadcast_inbox broadcasts;
    bool leaving; /* new clients are not accepted here any more; connected clients are served until they leave */
    bool stopping;
    bool over;                                           /* its loop has ended: there are no more turns */
    bool opened;                                         /* clients are accepted */
    void (*probed)(struct worker *w, const char *error); /* called with the result of worker_probe */
    enum strangers strangers;                            /* the node's last answer */
    uint8_t unauthenticated_look;      /* for commands/proxy_command.c: whether clients without login may use PROXY */
    bool unauthenticated_asked;        /* the node is being asked for these rights */
    bool probing;                      /* worker_probe is in progress */
    bool word_doubted;                 /* since then the node has refused a client without login that it had served */
    bool cannot_reset;                 /* the node lacks RESET, or has renamed it */
    bool redis_protected;              /* the node's last answer: protected-mode yes */
    double denied_logged;              /* when the log last said that a client was refused in protected mode */
    bool protection_hidden;            /* the node does not tell: it is not asked again */
    double probed_at;                  /* when it was last asked, by the loop's clock */
    double probe_failed_at;            /* when the last question failed; 0: it did not */
    char probe_error[PROBE_ERROR_MAX]; /* the reason: the error for sessions that waited for the answer */
    uint64_t arrivals;                 /* how many sessions without login have come (or have logged out) */
    uint64_t asked;                    /* the value of `arrivals` when the node was last asked */
    uint64_t served; /* the value of `arrivals` at the last question that it answered with "served": these sessions stay
                        served */
    struct durations durations; /* what it measures */
};

enum { WORKER_SCRATCH = 64 * 1024, LOCKS_SHOWN_MAX = 1000, OLDEST_SHOWN_MAX = 100 };

/* The time of this turn of the loop, from a clock that is never set (clock_even_ms). It is only read when first needed:
 * most turns don't need it. */
int64_t worker_now(struct worker *w);
/* A monotonic clock, in seconds, read at each call: for durations. */
double worker_steady(struct worker *w);
/* The same clock in ms. */
static inline int64_t worker_steady_ms(struct worker *w) {
    return (int64_t)(worker_steady(w) * 1000. + 0.5);
}
/* The time of this turn of the loop in us, from a monotonic clock, which is read when it is first needed. */
static inline int64_t worker_turn_us(struct worker *w) {
    if (w->turn_us == 0)
        w->turn_us = clock_us();
    return w->turn_us;
}
/* Calls the engine in so many ms at the latest, since leases may be due then. */
void worker_engine_due(struct worker *w, int64_t in_ms);
/* Sets the timer of the engine's next call, in seconds from now. */
void worker_engine_arm(struct worker *w, double wait);
/* worker_enter makes the calling thread the worker's (NULL: no worker's); worker_here returns the thread's worker. */
void worker_enter(struct worker *w);
struct worker *worker_here(void);
/* Adds a job for the end of the turn. */
void worker_add_job(struct worker *w, struct worker_job *job);
/* Runs all jobs. */
void worker_run_jobs(struct worker *w);
/* Adds a long task, to begin in a later turn after the tasks before it. */
void worker_add_slices(struct worker *w, struct worker_slices *work);
/* Does one step of the current task. Returns whether there are more. */
bool worker_run_slice(struct worker *w);
/* The lane for the proxy's questions about clients without login. */
struct upstream_lane worker_unauthenticated_lane(const struct worker *w);
/* Whether a connection from this address is refused, since Redis is in protected mode and has no password; logs it now
 * and then. WORKER_DENIED is the error for the client. */
struct sockaddr_storage;
bool worker_denies(struct worker *w, const struct sockaddr_storage *peer);
extern const char WORKER_DENIED[];
/* Asks the node again whether it serves clients without login; w->probed gets the result. */
void worker_probe(struct worker *w);
/* Does the same, unless the node was asked just now. */
void worker_probe_again(struct worker *w);
/* Notes that a node has refused a client without login: the node is asked again, and the answer applies also to
 * sessions that were served before. */
void worker_doubt_word(struct worker *w);
/* Lets sessions with waiting input continue. */
void worker_wake_waiting(struct worker *w);
/* Counts a new session without login, and returns its number. Asks the node, if it was not asked just before. */
uint64_t worker_arrival(struct worker *w);
/* To be called once a second: asks the node, if sessions without login have come since the last question. */
void worker_arrivals_look(struct worker *w);

/* Starts a broadcast from a callback of the home worker: `visit` is called for every worker (home first), then `done`
 * at home, at once if there is only one thread. When `done` is called, its callee owns the broadcast again. */
void broadcast_start(struct broadcast *t, struct worker *home, void (*visit)(struct broadcast *t, struct worker *w),
                     void (*done)(struct broadcast *t));

/* Ends a visit to w for which `visit` had set `stays`. To be called from w's thread, in a later callback. */
void broadcast_leave(struct broadcast *t, struct worker *w);

void broadcast_inbox_init(struct broadcast_inbox *inbox);
/* Runs the broadcasts that have arrived at the worker, and sends them on. Called when the worker was woken. */
void broadcast_arrivals(struct worker *w);
/* Closes the mailbox of a worker whose loop has ended: later broadcasts skip this worker. */
void broadcast_inbox_close(struct worker *w);
/* Ends the broadcasts that this worker has started (calls `done`), after all threads have ended. */
void broadcast_inbox_clear(struct worker *w);
