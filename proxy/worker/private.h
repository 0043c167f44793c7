/* What the files of proxy/worker/ share. */
#pragma once

#include <stdatomic.h>

#include "proxy/session/core/session.h"
#include "proxy/worker/worker.h"

struct listener {
    struct ev_io io;
    struct worker *worker;
    bool tls, shared; /* as in struct worker_socket */
};

enum { MASTER_WHY_MAX = 200, HOST_TROUBLE_MAX = 480 };

struct node_figures {
    char address[256];
    struct upstream_node_info info; /* its address and round_trips are NULL */
    char why[MASTER_WHY_MAX];       /* why it gives no locks; "": it does, as far as is known */
    struct histogram round_trips;
};

/* What a worker knows of a master that it asks for locks (questions.c). */
struct asked_master {
    struct request_owner owner; /* of the question; first */
    struct list_node link;
    char address[256];
    bool asked;               /* a reply is due */
    int slot;                 /* one that it serves; SLOT_NONE: not known */
    bool refuses;             /* the node answered with the error in `why` */
    char why[MASTER_WHY_MAX]; /* why it gives no lock; "": it is well, as far as is known */
};

struct eviction_state {
    unsigned policy; /* when the memory is full: an index of POLICIES */
    bool evicts;     /* and there is a maxmemory that can be reached */
    size_t master;   /* the index of the master */
};

/* A worker's figures, for other threads to read. */
struct node_board {
    pthread_mutex_t mutex;
    struct node_figures *nodes;
    size_t count;
    struct durations durations;
    char host_trouble[HOST_TROUBLE_MAX]; /* for same_redis.c, in the first worker */
};

/* A worker with the state that only this folder needs. */
struct worker_thread {
    struct worker worker; /* first */
    struct listener *listeners;
    size_t listener_count;
    struct list_node guests;  /* clients without a session yet: before their PROXY header, or in the TLS handshake */
    double guest_logged;      /* when a failure was last logged at notice */
    struct host_watch *hosts; /* for same_redis.c; NULL: the upstream has no name */
    struct list_node masters; /* struct asked_master */
    uint64_t leases_handed;   /* how many got a last expiry */
    /* for questions.c, in the first worker */
    struct eviction_state evictions, evictions_found; /* as known; of the present round of questions */
    size_t evictions_due;                             /* answers of that round; 0: there is none */
    struct request_owner presence;                    /* of the request that writes that this process is there */
    int64_t evictions_ms;                             /* when it last asked the nodes */
    int64_t capacity_ms;                              /* when it last asked for maxclients */
    int64_t presence_ms;                              /* when questions_tick last asked */
    bool presence_asking;
    bool space_asking;                            /* same_redis.c has asked for the mark */
    bool space_waits;                             /* the worker will open once the mark is found */
    void (*marked)(void *arg, const char *error); /* for lock_space_mark */
    void *marked_arg;
    double ticked;                       /* time of the last tick */
    unsigned punctual_ticks, held_ticks; /* consecutive punctual ticks; consecutive ticks without questions to Redis */
    struct ev_prepare prepare;
    struct ev_idle look;  /* active: the loop's next check for readable descriptors does not wait */
    struct ev_idle slice; /* active: a long task is in progress, so no turn waits */
    struct ev_timer tick, accept_pause;
    struct ev_timer gather; /* active: sessions may be in worker.gathering */
    bool engine_waits;      /* the engine's tick came late, and was put off once */
    void (*ready)(void *arg, const char *error);
    void *ready_arg;
    bool accepting;
    bool drain_careful; /* while stopping: requests that clients have sent are read before their sessions are closed */
    double drain_from, drain_until;            /* while leaving or stopping */
    struct ev_timer drain;                     /* while leaving or stopping */
    atomic_int_fast64_t leave_ms, stop_ms;     /* the time limit; -1: not requested */
    atomic_bool handed;                        /* set before leave_ms: another process has the sockets */
    _Atomic(const struct config *) new_config; /* takes the place of worker.config; NULL: none */
    struct node_board board;
};

static inline struct worker_thread *thread_of(const struct worker *w) {
    return (struct worker_thread *)(uintptr_t)w;
}

/* ---- worker_metrics.c ---- */

/* The numbers of a node, for a struct upstream_node_info. */
extern const struct metric_table node_figures_table;
/* Whether the node can't be reached, or gives no locks. */
bool node_is_down(const struct node_figures *f);
/* Writes the state of the nodes to the worker's board. */
void node_board_write(struct worker *w);
/* Adds up the boards of all workers, to an empty sum: this worker's is current, the others' are at most a second old.
 * The caller frees sum->nodes. */
void node_board_sum(struct worker *w, struct node_board *sum);

/* ---- questions.c ---- */

/* Asks the masters whether they would give locks, once a second. */
void readiness_ask(struct worker *w);
/* Why the master gives no locks: an error, borrowed until the next readiness_ask. "": it does, or is no master. */
const char *readiness_trouble(struct worker *w, const char *address);
/* Asks the masters for maxclients, if the last answers are old. */
void capacity_tick(struct worker *w);
/* Asks the masters for their limits, and writes that this process is there, unless that was done lately. The first
 * worker calls it, at most once a second. */
void questions_tick(struct worker *w);
/* Reports the policy, and whether it may evict locks. From any worker's thread. */
void evictions_report(struct worker *w, const struct report *r);
/* Writes that this process ends. In the first worker's thread. */
void presence_end(struct worker *w);

/* ---- report.c ---- */

/* Adds up the counters of all workers. */
void counters_now(const struct proxy_shared *shared, struct counter_sums *sums);

/* ---- accept.c: listening sockets, and clients that have no session yet ---- */

/* Takes over the descriptors; accept_start begins to accept. */
void accept_init(struct worker *w, const struct worker_socket *sockets, size_t count);
void accept_start(struct worker *w);
/* Closes the sockets; with `shared_only` those that another process also has, which accepts the clients that wait.
 * Clients without a session yet go on. May be called twice. */
void accept_close(struct worker *w, bool shared_only);
/* Closes clients that have no session yet. */
void accept_drop_guests(struct worker *w);

/* ---- same_redis.c ---- */

/* Looks the name up if it is due: once a second, in the first worker's thread. */
void host_watch_tick(struct worker *w);
/* Why the name is looked up at the next tick: a reload; the node has failed in any thread; it has answered READONLY. */
enum doubt { DOUBT_NONE, DOUBT_ASKED, DOUBT_FAILED, DOUBT_READONLY };
/* Has the name looked up at the next tick, for the gravest reason so far. Thread-safe. */
void host_watch_doubt(struct worker *w, enum doubt doubt);
/* Copies why the upstream is not where its name leads; "": it is. Thread-safe. */
void host_watch_trouble(struct worker *w, char *out, size_t size);
void host_watch_clear(struct worker *w);
/* Looks for the mark of shared->space_mark, and opens the workers that wait. Another mark, or none, ends the process
 * with status 1. In the first worker's thread, once a second while shared->space_held. */
void lock_space_look(struct worker *w);
