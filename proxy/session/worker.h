/*
 * A worker: one thread with its loop, its listeners, its upstream and its sessions.
 *
 *      loop turn:  in the order in which they became readable (readable.h):
 *                  sessions -> dispatch -> upstream queues      nodes -> replies -> session queues
 *      ev_prepare: sessions that may go on -> upstream_flush -> sessions' output -> free what was closed
 *                  (where there is output of sessions, upstream_flush waits for one more look at who is readable)
 *
 * Threads share the lock engine, the rules (immutable) and the incidents; nothing else.
 */
#ifndef LOCKKEEPER_SESSION_WORKER_H
#define LOCKKEEPER_SESSION_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/counters.h"
#include "proxy/base/metric.h"
#include "proxy/base/report.h"
#include "proxy/base/text.h"
#include "proxy/lock/advise.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/rule.h"
#include "proxy/upstream/upstream.h"

struct worker;
struct tls_context;

/* What the sessions need of the configuration; borrowed by all workers, constant while they run. */
struct session_options {
    int64_t bulk_max;
    int64_t query_buffer_limit;
    int64_t output_limit_hard, output_limit_soft, output_limit_soft_ms;
    int64_t timeout_ms;      /* idle clients; 0: never */
    int64_t keepalive_s;     /* 0: off */
    int64_t maxclients;      /* of the whole process */
    bool reuse_port;         /* another process may take the port over */
    const char *requirepass; /* NULL: none */
    unsigned identity;       /* IDENTITY_ bits */
    const char *version;
    const char *process_id; /* this process's UUID */
    int64_t started_ms;     /* wall clock */
    unsigned threads;
    int port;
    const char *announce_ip;   /* what CLUSTER SLOTS and its kin show; NULL: where the client connected to */
    int announce_port;         /* 0: the same */
    int announce_tls_port;     /* the same for who came over TLS */
    struct tls_context *tls;   /* borrowed; NULL: there is no TLS socket */
    int64_t tls_handshake_ms;  /* tls-handshake-timeout */
    bool monitored;            /* somebody may read metrics */
    const char *upstream_text; /* "cluster 127.0.0.1:7000 ...", for PROXY INFO */
};

enum { IDENTIFY_ADDRESS = 1, IDENTIFY_USER = 2, IDENTIFY_NAME = 4, IDENTIFY_PORT = 8 };

/* What all workers share. Owned by main. */
struct proxy_shared {
    struct session_options options;
    struct upstream_config upstream;
    struct lock_engine *engine;
    struct advisor *advisor;
    struct worker **workers; /* options.threads of them */
    atomic_uint_fast64_t next_session;
    atomic_uint_fast64_t clients; /* of all workers, for maxclients */
    atomic_uint evictions;        /* evictions.c's */
    atomic_int_fast64_t came_ms;  /* when a session last came to its identity */
    atomic_int_fast64_t paused;   /* of these, that wait for the end of a CLIENT PAUSE */
    /* Called from a worker's thread when an operator asks for a reload; may be NULL. False: `error` (of `size`) says
     * what is wrong. */
    bool (*reload)(void *arg, char *error, size_t size);
    void *reload_arg;
    /* The PROXY subcommands that only show something: appends the reply of words[0] words[1] ... as RESP; false if it
     * knows no such subcommand. Called in the worker's thread. */
    bool (*admin)(void *arg, struct worker *w, const char *const *words, const size_t *lens, size_t count, bool resp3,
                  struct text *reply);
    void *admin_arg;
};

/* A listening descriptor. */
struct worker_socket {
    int fd;
    bool tls; /* its clients begin with a handshake */
};

/* `index` from 0. Listening descriptors are given: the worker closes them. rules: a reference is taken.
 * `ready` is called once, in the worker's thread, when it accepts clients; error as in upstream_events. */
struct worker *worker_new(struct proxy_shared *shared, unsigned index, const struct worker_socket *sockets,
                          size_t socket_count, struct lock_rules *rules, void (*ready)(void *arg, const char *error),
                          void *ready_arg);
struct ev_loop *worker_loop(struct worker *w);
/* Runs until worker_stop has done its work. */
void worker_run(struct worker *w);
/* Thread-safe: stop accepting, finish what is in flight for at most drain_ms, return from worker_run. */
void worker_stop(struct worker *w, int64_t drain_ms);
/* Thread-safe: new rules from the worker's next turn on; a reference is taken. */
void worker_set_rules(struct worker *w, struct lock_rules *rules);
/* What operators may see, from a worker's own thread: PROXY INFO, PROXY LOCKS (pattern NULL: all), PROXY RULES. */
void worker_report_info(struct worker *w, const struct report *r);
void worker_report_locks(struct worker *w, const char *pattern, size_t len, const struct report *r);
void worker_report_rules(struct worker *w, const struct report *r);
/* For the status page: families whose workers share connections, locks that are fought over, nodes; one row each. */
void worker_report_shared(struct worker *w, const struct report *r);
void worker_report_contention(struct worker *w, const struct report *r);
void worker_report_nodes(struct worker *w, const struct report *r);
/* For /metrics, over all threads; and whether every slot's node can be reached, as far as is known. From the first
 * worker's own thread, where options.monitored is set. */
void worker_report_metrics(struct worker *w, const struct metric_sink *m);
bool worker_upstream_serves(struct worker *w);
/* PROXY ADVISE: a text without a name for each line. */
void worker_report_advice(struct worker *w, const struct report *r);
/* The engine's sink for leases (struct lock_sink): notes them for the worker whose thread calls the engine. */
void worker_note_renewal(void *arg, const struct lock_lease *lease);
void worker_note_release(void *arg, const struct lock_lease *lease);
void worker_note_leaving(void *arg, const struct lock_leaving *leaving);
void worker_note_left(void *arg, const struct lock_left *left);
/* After worker_run has returned. */
void worker_free(struct worker *w);

#endif
