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
#include "proxy/session/core/shared.h"
#include "proxy/session/core/tour.h"

struct call;

enum { WORKER_BYTES_FULL = 128 * 1024 * 1024, LOCK_PROBES = 64 /* of a worker: attempts that others may join */ };

struct listener {
    struct ev_io io;
    struct worker *worker;
    bool tls;
};

/* locks/words.c's: the last expiry of a lock and its guard record's, as words of a call. */
struct lock_expiry {
    int64_t ms; /* 0: none yet */
    size_t len;
    char words[64];
};

enum pause_kind { PAUSE_NONE, PAUSE_WRITES, PAUSE_ALL };

/* What a worker knows of a node. The numbers are all of one type for metrics.c's table. */
struct node_figures {
    char address[256];
    const char *state; /* upstream_node_info's */
    bool master;
    uint64_t slots, connections, pinned, in_flight, unsent_bytes, requests, reconnects, redirects;
    struct histogram round_trips;
    int64_t round_trip_us; /* the longest of the threads' */
};

/* What Redis does where its memory is full. */
struct eviction_state {
    unsigned policy; /* evictions.c's number for it */
    bool evicts;     /* and there is a limit that it may reach */
    size_t master;   /* which of them */
};

/* What a worker leaves for other threads to read. */
struct node_board {
    pthread_mutex_t mutex;
    struct node_figures *nodes;
    size_t count;
    struct histogram lock_commands;
};

struct worker {
    struct proxy_shared *shared;
    unsigned index;
    struct ev_loop *loop;
    struct upstream *upstream;
    struct lock_rules *rules;
    struct chunk_pool chunks;
    struct counters counters;
    struct listener *listeners;
    size_t listener_count;
    struct list_node guests;         /* clients in their TLS handshake */
    double guest_logged;             /* when a failed one was last logged at notice */
    struct list_node sessions;       /* open */
    struct list_node hearing;        /* of these: redirect.c's, to whom other clients' messages may be redirected */
    struct list_node dirty;          /* have output to write */
    struct list_node runnable;       /* may go on with requests that waited */
    struct list_node closed;         /* to be freed at the end of the turn */
    struct readable readable;        /* sessions and nodes, in this turn */
    struct list_node *free_requests; /* a stack */
    struct list_node free_calls;
    size_t free_request_count, free_call_count;
    struct list_node *free_locks; /* locks/call.c's, a stack */
    size_t free_lock_count;
    struct list_node lease_notes;    /* renewals and releases that the engine has asked for */
    size_t lease_works;              /* those under way */
    uint64_t leases_handed;          /* that got a last expiry */
    int64_t lease_refused_ms;        /* when the log last said that one could not be renewed */
    struct eviction_state evictions; /* evictions.c's, in the first worker */
    int64_t evictions_ms;            /* when it last asked */
    bool evictions_asking;
    double ticked;                       /* when it was last */
    unsigned punctual_ticks, held_ticks; /* in a row; without a question */
    bool heirs_asking;                   /* heirs.c looks at the list */
    struct list_node discovered;         /* discover.c's: commands that the table lacks */
    struct list_node discovered_before;
    size_t discovered_count;
    struct resp_request scanner; /* for input that is complete in `scratch` */
    char *scratch;               /* what a read puts its bytes in */
    struct text build;           /* a request being put together */
    bool secret;                 /* a password was in a request: secret.h */
    struct lock_expiry lock_expiry;
    struct call *probes[LOCK_PROBES]; /* locks/join.c's, by the key's hash */
    uint32_t counters_seen;           /* locks/advise.c's */
    int64_t now_ms;                   /* worker_now's; 0: not asked for yet */
    struct ev_prepare prepare;
    struct ev_idle look; /* active: the loop's next look at who is readable does not wait */
    struct ev_async wake;
    struct ev_timer tick, engine_tick, accept_pause;
    double engine_at;      /* when engine_tick is due */
    bool engine_waits;     /* it came late, and lets others go first */
    enum pause_kind pause; /* CLIENT PAUSE, until pause_timer is due */
    struct ev_timer pause_timer;
    struct tour_stop tours;
    void (*ready)(void *arg, const char *error);
    void *ready_arg;
    bool accepting, stopping;
    bool opened;                    /* clients have been let in */
    bool upstream_needs_auth;       /* the node answers NOAUTH to who has not logged in */
    bool probing;                   /* it is being asked whether it still does */
    double drain_from, drain_until; /* while stopping */
    atomic_int_fast64_t stop_ms;    /* -1: not asked to stop */
    _Atomic(struct lock_rules *) new_rules;
    struct histogram lock_commands; /* how long they took */
    struct node_board board;
};

enum { WORKER_SCRATCH = 64 * 1024 };

/* The wall clock of this turn of the loop. It is read when it is first asked for: most turns don't. */
int64_t worker_now(struct worker *w);
/* Leases may be due in so many ms: the engine is called then, if it would not be earlier. */
void worker_engine_due(struct worker *w, int64_t in_ms);
/* Asks the node again whether it serves those who have not logged in. */
void worker_probe(struct worker *w);

#endif
