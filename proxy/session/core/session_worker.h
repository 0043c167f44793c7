/*
 * A worker, as sessions see it: one thread with its loop, its upstream, its sessions, and the memory and the clock that
 * they share. proxy/worker/ runs it and accepts its clients. The program owns what all workers share; all threads
 * borrow it. Each worker points to the configuration itself.
 */
#pragma once

#include <ev.h>
#include <pthread.h>
#include <stdatomic.h>
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
#include "proxy/upstream/upstream.h"

struct observer;
struct permit_ledger;
struct slowlog;
struct latency;
struct lock_engine;
struct handed_board;
struct incident_watch;
struct incidents;
struct incidents_ear;
struct tls_context;
struct waiting;
struct worker;
struct discovery_rows;
struct worker_locks;
struct lock_waits;
struct witnesses;
struct worker_watches;
struct wrong_logins;
struct lock_walk;
struct sockaddr_storage;

/* The most arguments of PROXY, and the bytes of an argument that are kept while the command runs. */
enum { PROXY_WORDS_MAX = 16, PROXY_WORD_MAX = 256 };

/* The source of PROXY WATCH's lines. Only the application knows the incidents. */
struct watch_source {
    struct incidents *incidents;
    const char *(*kinds)(size_t i); /* the names of the kinds of incidents, from 0 on; NULL after the last */
    /* Until `deaf`, `wake` is called, from any thread, when there may be more lines: it must only set a flag. */
    struct incidents_ear *(*listen)(struct incidents *i, void (*wake)(void *arg), void *arg);
    void (*deaf)(struct incidents *i, struct incidents_ear *ear);
    /* Begins a watch for the arguments of WATCH, while the thread listens. NULL: `error` gets the reason. */
    struct incident_watch *(*begin)(struct incidents *i, const char *const *words, const size_t *lens, size_t count,
                                    const char *(*kinds)(size_t i), struct text *error);
    void (*end)(struct incident_watch *watch);
    /* Calls fn with some of the new lines, without their ends; returns whether there are more now. */
    bool (*lines)(struct incident_watch *watch, void (*fn)(void *arg, const char *line, size_t len), void *arg);
};

/* What all workers share. */
struct proxy_shared {
    const char *version;
    const char *process_id; /* this process's UUID */
    int64_t started_ms;     /* wall clock */
    unsigned threads;
    const char *unix_path;   /* the unix socket's final path; it was bound under a temporary name. NULL: none */
    uint32_t stranger_login; /* the login of clients without login: the proxy's, 0, or UPSTREAM_LOGIN_STRANGER */
    struct tls_context *tls; /* borrowed; NULL: no TLS socket */
    struct tls_context *witness_tls; /* borrowed; NULL: plain */
    const char *upstream_text;       /* "cluster 127.0.0.1:7000 ...", as the process has started */
    _Atomic int64_t maxclients;      /* for the whole process; less than configured if descriptors are short */
    atomic_uint restart_needed;      /* how many directives have changed at a reload and need a restart */
    atomic_bool reload_failed;       /* the last reload failed; nothing was changed */
    atomic_int_fast64_t loaded_s;    /* when the configuration in force was read, since 1970 */
    atomic_int_fast64_t client_certificate_s,
        node_certificate_s; /* when the certificates expire, since 1970; 0: there is none */
    struct upstream_config upstream;
    struct lock_engine *engine;
    struct observer *observer;
    struct slowlog *slowlog;
    struct latency *latency;
    struct permit_ledger *permits; /* what sessions have taken from semaphores */
    struct waiting *waiting;       /* for waits/lock_wait.c; NULL: no worker was made yet */
    struct worker **workers;       /* one for each thread */
    atomic_uint_fast64_t next_session;
    atomic_uint_fast64_t clients; /* of all workers, to check maxclients */
    atomic_uint accepting;        /* workers whose listeners are open */
    bool reachable;               /* clients may come from other machines, as far as the listening sockets say */
    const char *space_mark;      /* for worker/same_redis.c: the mark of the process that leaves; NULL: there is none */
    struct handed_board *before; /* of the process that leaves; NULL: there was none */
    void (*let_go)(void *let_go_arg); /* tells the process that leaves to let its clients go */
    void *let_go_arg;
    atomic_bool lets_go;            /* this process lets its clients go: its leases get no last expiry */
    atomic_bool space_switches;     /* take-over switch: this process waits for the end of the process that leaves */
    atomic_int host_doubt;          /* for worker/same_redis.c */
    atomic_bool space_held;         /* no worker accepts clients, since the mark was not found yet */
    bool embedded;                  /* the node is a private redis-server, which is started again when it ends */
    atomic_uint embedded_ends;      /* how often it has ended */
    atomic_uint embedded_lost;      /* how many leases it held then */
    atomic_uint evictions;          /* for worker/questions.c */
    atomic_uint away;               /* for questions.c: how many processes have not followed, as far as is known */
    atomic_int_fast64_t came_ms;    /* when a session last got its identity */
    atomic_int_fast64_t paused;     /* how many requests wait for the end of a pause */
    atomic_uint pause_login;        /* the login of the session that sent PROXY PAUSE */
    atomic_int_fast64_t pause_mark; /* what PROXY PAUSE has written to Redis last of all; 0: nothing */
    /* Reloads the configuration; called from a worker's thread on an operator's request; may be NULL. False: it has
     * errors, which are in the log. True: `said` (of `size`) gets the names of changed directives that need a
     * restart. */
    bool (*reload)(void *arg, char *said, size_t size);
    /* For PROXY SWITCH: reads the upstream's address in the configuration (NULL, or the error, static), and notes that
     * it is the upstream now. As reload. */
    const char *(*next_upstream)(void *reload_arg, char *address, size_t size);
    void (*switched)(void *reload_arg, const char *address);
    void *reload_arg;
    /* Runs the PROXY subcommands that only report: appends the reply to words[0] words[1] ... as RESP. False if it does
     * not know the subcommand. Called in the worker's thread. */
    bool (*admin)(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count, bool resp3,
                  struct text *reply);
    void *admin_arg;
    const struct watch_source *watch; /* NULL: PROXY WATCH has no source */
};

/* Work that concerns the clients of all threads. A broadcast visits one worker after another, each in its own thread,
 * and ends at the worker where it began. So no two threads touch its data at once. It is embedded in the structure with
 * its data; all fields but `home` are private. */
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

enum {
    WORKER_BYTES_FULL = 128 * 1024 * 1024,
    PROBE_ERROR_MAX = 256,
    GATHER_US = 1000, /* so long a reply may wait for the next one of its session: session_flush */
    GATHER_MOST_US = 50000
};

/* What a node permits to clients without login. Until it is known, they count as unauthenticated. */
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
    uint64_t served;            /* `arrivals` at the last question that it answered with "served": they stay so */
    struct durations durations; /* what it measures */
};

enum { WORKER_SCRATCH = 64 * 1024, LOCKS_SHOWN_MAX = 1000, OLDEST_SHOWN_MAX = 100 };

/* The time of this turn of the loop, from a clock that is never set (clock_even_ms); read when it is first needed. */
int64_t worker_now(struct worker *w);
/* A monotonic clock, in seconds, read at each call: for durations. */
double worker_steady(struct worker *w);
/* worker_steady in ms. */
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
/* worker_add_job adds a job for the end of the turn; worker_run_jobs runs all jobs. */
void worker_add_job(struct worker *w, struct worker_job *job);
void worker_run_jobs(struct worker *w);
/* Adds a long task, to begin in a later turn after the tasks before it. */
void worker_add_slices(struct worker *w, struct worker_slices *work);
/* Does one step of the current task. Returns whether there are more. */
bool worker_run_slice(struct worker *w);
/* The lane for the proxy's questions about clients without login. */
struct upstream_lane worker_unauthenticated_lane(const struct worker *w);
/* Whether a connection from this address is refused with WORKER_DENIED, since Redis is in protected mode and has no
 * password; logs it now and then. */
bool worker_denies(struct worker *w, const struct sockaddr_storage *peer);
extern const char WORKER_DENIED[];
/* Asks the node again whether it serves clients without login; w->probed gets the result. worker_probe_again does so
 * unless the node was asked just now. */
void worker_probe(struct worker *w);
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
 * at home, at once if there is only one thread; from then on its callee owns the broadcast. */
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
