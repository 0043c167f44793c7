/*
 * A worker: one thread with its loop, its listeners, its upstream and its sessions.
 *
 *      loop turn:  in the order in which they became readable (readable.h):
 *                  sessions -> dispatch -> upstream queues      nodes -> replies -> session queues
 *      ev_prepare: sessions that may go on -> upstream_flush -> sessions' output -> free what was closed
 *                  (if sessions have output, upstream_flush waits for one more check for readable clients)
 *
 * Threads share the lock engine, the configuration (immutable) and the incidents; nothing else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/base/metric.h"
#include "proxy/lock/engine.h"
#include "proxy/session/core/session_worker.h"

struct ev_loop;
struct config;
struct worker;

/* A listening descriptor. */
struct worker_socket {
    int fd;
    unsigned thread; /* the index of the worker that accepts its clients */
    bool tls;        /* its clients begin with a handshake */
    bool shared;     /* another process has the same socket, and accepts the clients that this process does not */
    bool copy;       /* of another thread's descriptor: both are one socket */
};

/* How a worker comes by its clients. */
struct worker_opening {
    const struct worker_socket *sockets; /* of all threads; copied; the worker closes the descriptors of its own */
    size_t socket_count;
    /* Called once, in the worker's thread, when it accepts clients; error as in upstream_events. */
    void (*ready)(void *arg, const char *error);
    void *arg;
};
/* Makes a worker, `index` from 0. config: it takes a reference. */
struct worker *worker_new(struct proxy_shared *shared, unsigned index, const struct config *config,
                          const struct worker_opening *opening);
struct ev_loop *worker_loop(struct worker *w);
/* Runs until worker_stop or worker_leave has done its work. */
void worker_run(struct worker *w);
/* Has the worker stop accepting, finish requests in flight within bound_ms, and return from worker_run. Thread-safe. */
void worker_stop(struct worker *w, int64_t bound_ms);
/* Has the worker stop accepting, serve its clients until the last one of any thread has left, within bound_ms, and
 * return from worker_run. `handed`: another process also has the sockets. worker_stop may follow. Thread-safe. */
void worker_leave(struct worker *w, int64_t bound_ms, bool handed);
/* Replaces the worker's configuration: at once if it is the calling thread's worker, which must be between two events,
 * else in its next turn. It takes a reference. Thread-safe. */
void worker_set_config(struct worker *w, const struct config *config);
/* Reports what operators may see, from the worker's own thread. Of leases it shows the result of w->walk, none without
 * a walk. False: the pattern takes too long to match. */
bool worker_report(struct worker *w, enum report_kind kind, const struct report *r);
/* Reports for /metrics, over all threads, from the first worker's. */
void worker_report_metrics(struct worker *w, const struct metric_sink *m);
/* Whether, as far as is known, no lock could be had now, or with `all` the locks of some slots, or those under quorum,
 * could not; appends the reason to `why`. In the worker's thread. */
bool worker_unready(struct worker *w, bool all, struct text *why);
/* How many key patterns seen since then look like locks and match no rule. */
size_t worker_unruled(struct worker *w, int64_t since_ms);
/* Writes the mark by which a new process knows its Redis (same_redis.c), for two minutes. Calls `done` once, perhaps
 * before this function returns; `error` is Redis's or the proxy's error, borrowed, or NULL. In the first worker's
 * thread, and not again before `done` was called. */
void lock_space_mark(struct worker *w, const char *mark, void (*done)(void *arg, const char *error), void *arg);
/* Whether the error says that the proxy's own user may not use the mark. Then processes can't be compared. */
bool lock_space_forbidden(const char *error);
/* Frees a worker, after worker_run has returned. */
void worker_free(struct worker *w);
