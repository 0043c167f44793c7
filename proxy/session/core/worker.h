/*
 * A worker, as sessions see it: one thread with its loop, its upstream, its sessions, and the memory and the clock that
 * they share. How it runs, and how clients come to it, is proxy/worker/'s.
 */
#ifndef LOCKKEEPER_SESSION_CORE_WORKER_H
#define LOCKKEEPER_SESSION_CORE_WORKER_H

#include <ev.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "parser/resp.h"
#include "proxy/base/counters.h"
#include "proxy/base/histogram.h"
#include "proxy/base/iobuf.h"
#include "proxy/base/list.h"
#include "proxy/base/text.h"
#include "proxy/lock/rule.h"
#include "proxy/net/readable.h"
#include "proxy/session/core/room.h"
#include "proxy/session/core/shared.h"
#include "proxy/session/core/broadcast.h"

struct call;
struct discovery_rows;
struct worker_locks;
struct worker_watches;
struct wrong_logins;
struct lock_walk;

enum { WORKER_BYTES_FULL = 128 * 1024 * 1024, PROBE_ERROR_MAX = 256 };

/* What a node grants to those who have not logged in, as far as is known. Until it is, they are nobody. */
enum strangers { STRANGERS_UNKNOWN, STRANGERS_REFUSED, STRANGERS_SERVED };

enum pause_kind { PAUSE_NONE, PAUSE_WRITES, PAUSE_ALL };

/* A job is to be done at the end of the turn, in the worker's thread. Embedded first in memory that is the worker's to
 * free, once it has been run. */
struct worker_job {
    struct list_node link;
    void (*run)(struct worker *w, struct worker_job *job);
};

/* Long work, done a step each turn so that it holds up nobody: one after another. Embedded first in memory that is the
 * worker's to free, once it is done. */
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
    struct lock_rules *rules;
    struct chunk_pool chunks;
    struct counters counters;
    struct list_node sessions;       /* open */
    struct list_node dirty;          /* have output to write */
    struct list_node runnable;       /* may go on with requests that waited */
    size_t over_soft;                /* sessions above the soft limit of their output */
    struct list_node eased;          /* runnable in the next turn */
    struct list_node closed;         /* to be freed at the end of the turn */
    struct readable readable;        /* sessions and nodes, in this turn */
    struct list_node *free_requests; /* a stack */
    struct list_node free_calls;
    size_t free_request_count, free_call_count;
    struct list_node jobs;             /* struct worker_job: for the end of the turn */
    struct list_node slices;           /* struct worker_slices: the first one is being done */
    size_t own_works;                  /* requests of the proxy's own under way, which a stop waits for */
    struct worker_locks *locks;        /* locks/ */
    struct wrong_logins *wrong_logins; /* commands/wrong.c */
    struct lock_walk *walk;            /* the leases that PROXY LOCKS or TOP shows now; else NULL */
    struct worker_watches *watches;    /* push/watch.c; NULL until somebody watches */
    struct discovery_rows *discovered; /* cluster/discover.c */
    struct resp_request scanner;       /* for input that is complete in `scratch` */
    char *scratch;                     /* what a read puts its bytes in */
    struct text build;                 /* a request being put together */
    bool secret;                       /* a password was in a request: secret.h */
    int64_t now_ms;                    /* worker_now's; 0: not asked for yet */
    struct ev_async wake;
    struct ev_timer engine_tick;
    double engine_at;      /* when it is due */
    struct text functions; /* commands/pause_scripts.c's: the node's functions, while a pause lasts */
    double functions_at;   /* when it told them; 0: never */
    union {
        struct {
            enum pause_kind pause; /* CLIENT PAUSE, until pause_timer is due */
            uint32_t looks;        /* so many of the next requests PROXY ADVISE looks at for what they write */
        };
        uint64_t unusual; /* 0: neither. In one word, which each request looks at */
    };
    struct ev_timer pause_timer;
    struct broadcast_inbox broadcasts;
    bool leaving; /* another process, or none, serves new clients; the present ones are served until they leave */
    bool stopping;
    bool over;                                           /* its loop has ended: no turn comes any more */
    bool opened;                                         /* clients have been let in */
    void (*probed)(struct worker *w, const char *error); /* the answer to worker_probe is there */
    enum strangers strangers;                            /* the node's last word */
    uint8_t strangers_look;                              /* enum rights: whether they may look into the proxy */
    bool strangers_asked;                                /* the node is being asked for that */
    bool probing;                                        /* it is being asked again */
    bool word_doubted;                                   /* it has refused one of those whom it served */
    bool cannot_reset;                                   /* it lacks RESET, or calls it otherwise */
    double probed_at;                                    /* when it was asked last, by the loop's clock */
    double probe_failed_at;                              /* when there was no answer; 0: there always was */
    char probe_error[PROBE_ERROR_MAX];                   /* why: the error for who waited for it */
    uint64_t arrivals;                                   /* sessions that have come, or have become strangers again */
    uint64_t asked;                                      /* of these, when the node was asked last */
    uint64_t served; /* of these, when it was asked last and said that it serves them: they stay served */
    struct histogram lock_commands;  /* how long they took */
    struct histogram lock_waits;     /* of attempts that have waited and got the lock (rule option wait) */
    struct histogram lock_handovers; /* of these, since the release was seen */
};

enum { WORKER_SCRATCH = 64 * 1024, LOCKS_SHOWN_MAX = 1000, OLDEST_SHOWN_MAX = 100 };

/* The time of this turn of the loop, which nobody sets (clock_even_ms). It is read when it is first asked for: most
 * turns don't. */
int64_t worker_now(struct worker *w);
/* A clock that nobody sets, in seconds, read anew: it tells how much time has passed. */
double worker_steady(struct worker *w);
/* The same in ms. */
static inline int64_t worker_steady_ms(struct worker *w) {
    return (int64_t)(worker_steady(w) * 1000. + 0.5);
}
/* Has the engine called in so many ms, if it would not be earlier, since leases may be due then. */
void worker_engine_due(struct worker *w, int64_t in_ms);
/* Sets the timer of the engine's next call, which is due in so many seconds. */
void worker_engine_arm(struct worker *w, double wait);
/* Makes the calling thread the worker's (NULL: nobody's); and tells whose it is. */
void worker_enter(struct worker *w);
struct worker *worker_here(void);
/* Has a job be done at the end of the turn. */
void worker_add_job(struct worker *w, struct worker_job *job);
/* Does the jobs that there are. */
void worker_run_jobs(struct worker *w);
/* NULL: whoever waits for the node's first word goes on waiting, it is being asked; or why there is none now. */
const char *worker_await_word(struct worker *w);
/* Has long work be begun, behind what others want, in a later turn. */
void worker_add_slices(struct worker *w, struct worker_slices *work);
/* Takes one step. Returns whether there are more to be taken. */
bool worker_run_slice(struct worker *w);
/* The lane of the proxy's questions for those who have not logged in. */
struct upstream_lane worker_strangers_lane(const struct worker *w);
/* Asks the node again whether it serves those who have not logged in; w->probed is called then. */
void worker_probe(struct worker *w);
/* The same, unless it was asked just now. */
void worker_probe_again(struct worker *w);
/* A node has refused a client who had not logged in: its word is asked for again, and counts for all who were served.
 */
void worker_doubt_word(struct worker *w);
/* Lets go on who waits in his input. */
void worker_wake_waiting(struct worker *w);
/* Somebody has come who has not logged in; returns who of them he is. The node is asked, if it was not just before. */
uint64_t worker_arrival(struct worker *w);
/* For once a second: the node is asked for those who have come since it was asked last. */
void worker_arrivals_look(struct worker *w);

#endif
