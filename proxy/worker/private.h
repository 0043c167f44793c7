/*
 * What the files of proxy/worker/ share: how a worker stops, its board for other threads, what metrics and reports take
 * from each other.
 */
#ifndef LOCKKEEPER_WORKER_PRIVATE_H
#define LOCKKEEPER_WORKER_PRIVATE_H

#include <stdatomic.h>

#include "proxy/session/core/session.h"
#include "proxy/worker/worker.h"

struct listener {
    struct ev_io io;
    struct worker *worker;
    bool tls, shared; /* as in struct worker_socket */
};

/* FIGURE(field, name, type, family, help): a number of a node, its name in INFO and its family at /metrics. */
#define NODE_FIGURES(FIGURE)                                                                                           \
    FIGURE(slots, "slots", "gauge", "upstream_slots", "Slots that the node serves.")                                   \
    FIGURE(connections, "connections", "gauge", "upstream_connections", "Shared connections to the node.")             \
    FIGURE(pinned, "pinned", "gauge", "upstream_pinned_connections",                                                   \
           "Connections to the node that one client has for itself.")                                                  \
    FIGURE(pins_refused, "pinned_refused", "counter", "upstream_pinned_refused_total",                                 \
           "Requests refused since there were as many such connections as there may be.")                              \
    FIGURE(in_flight, "in_flight", "gauge", "upstream_requests_in_flight",                                             \
           "Requests sent to the node and not answered.")                                                              \
    FIGURE(unsent_bytes, "unsent", "gauge", "upstream_unsent_bytes", "Bytes that wait to be written to the node.")     \
    FIGURE(requests, "requests", "counter", "upstream_requests_total", "Requests sent to the node.")                   \
    FIGURE(reconnects, "reconnects", "counter", "upstream_reconnects_total",                                           \
           "Connections to the node that replaced another.")                                                           \
    FIGURE(redirects, "redirects", "counter", "upstream_redirects_total", "MOVED and ASK from the node.")

/* What a worker knows of a node. */
struct node_figures {
    char address[256];
    const char *state;   /* upstream_node_info's */
    bool master, silent; /* silent: the last question to it was not answered */
#define FIGURE_FIELD(field, ...) uint64_t field;
    NODE_FIGURES(FIGURE_FIELD)
#undef FIGURE_FIELD
    struct histogram round_trips;
    int64_t round_trip_us; /* the longest of the threads' */
    unsigned pinned_max;   /* so many may be pinned, by all threads */
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
    struct histogram lock_commands, lock_waits, lock_handovers;
};

/* A worker with what runs it. */
struct worker_thread {
    struct worker worker; /* first */
    struct listener *listeners;
    size_t listener_count;
    struct list_node guests; /* clients that have no session yet: before their PROXY header, in TLS's handshake */
    double guest_logged;     /* when one that failed was last logged at notice */
    struct lost_node *lost;  /* lost.c's */
    size_t lost_count;
    uint64_t leases_handed;          /* that got a last expiry */
    struct eviction_state evictions; /* evictions.c's, in the first worker */
    int64_t evictions_ms;            /* when it last asked */
    int64_t capacity_ms;             /* the same of capacity.c */
    bool evictions_asking;
    double ticked;                       /* when it was last */
    unsigned punctual_ticks, held_ticks; /* in a row; without a question */
    struct ev_prepare prepare;
    struct ev_idle look;  /* active: the loop's next look at who is readable does not wait */
    struct ev_idle slice; /* active: there is long work, so that no turn waits */
    struct ev_timer tick, accept_pause;
    bool engine_waits; /* the engine's tick came late, and lets others go first */
    void (*ready)(void *arg, const char *error);
    void *ready_arg;
    bool accepting;
    bool drain_careful;                    /* while stopping: what clients have sent is read before they are closed */
    double drain_from, drain_until;        /* while leaving or stopping */
    struct ev_timer drain;                 /* likewise */
    atomic_int_fast64_t leave_ms, stop_ms; /* for how long at most; -1: not asked to */
    atomic_bool handed;                    /* before leave_ms: another process has the sockets */
    _Atomic(struct lock_rules *) new_rules;
    _Atomic(struct networks *) new_believed;
    struct networks *believed; /* who begins with a PROXY protocol header; NULL: nobody */
    struct node_board board;
};

static inline struct worker_thread *thread_of(const struct worker *w) {
    return (struct worker_thread *)(uintptr_t)w;
}

/* metrics.c: the table of node figures, for a struct node_figures. */
extern const struct metric_table node_figures_table;
/* Writes what is known of the nodes to the worker's board. */
void node_board_write(struct worker *w);
/* lost.c: asks masters that were lost whether they are back. To be called once a second. */
void lost_nodes_ask(struct worker *w);
/* Whether the node was asked so, and did not answer. */
bool lost_node_silent(struct worker *w, const char *address);
void lost_nodes_clear(struct worker *w);
/* Adds up the boards of all workers: this one's at this moment, the others' at most a second old. The caller frees
 * sum->nodes; sum->count is 0 at first. */
void node_board_sum(struct worker *w, struct node_board *sum);
/* Frees, at a turn's end, the sessions that were closed (worker.c). */
void worker_free_closed(struct worker *w);
/* Begin to leave or to stop, to be over after so many ms; and go on with a stop at each turn's end (drain.c). `handed`:
 * another process has all sockets, too. */
void drain_leave(struct worker *w, int64_t bound_ms, bool handed);
void drain_stop(struct worker *w, int64_t bound_ms);
void drain_turn(struct worker *w);

/* Finds what stands behind "name:" in INFO's page; *len up to the line's end. NULL: it is not there (evictions.c). */
const char *info_field(const char *page, size_t size, const char *name, size_t *len);

/* Add up the counters of all workers; and measure the process's memory. */
void counters_now(const struct proxy_shared *shared, struct counter_sums *sums);
long long resident_bytes(void);

#endif
