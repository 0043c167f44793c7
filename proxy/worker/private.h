/*
 * What the files of proxy/worker/ share: how a worker stops, its board for other threads, what metrics and reports take
 * from each other.
 */
#ifndef LOCKKEEPER_WORKER_PRIVATE_H
#define LOCKKEEPER_WORKER_PRIVATE_H

#include "proxy/session/core/session.h"
#include "proxy/worker/worker.h"

/* metrics.c: writes what is known of the nodes to the worker's board. */
void node_board_write(struct worker *w);
/* The same of all workers, as one: this one's at this moment, the others' at most a second old. The caller frees
 * sum->nodes; sum->count is 0 at first. */
void node_board_sum(struct worker *w, struct node_board *sum);
/* worker.c: for a turn's end. */
void worker_lease_work(struct worker *w);
void worker_free_closed(struct worker *w);
/* drain.c: begins to stop, to be over after so many ms; and goes on with it at each turn's end. */
void drain_begin(struct worker *w, int64_t bound_ms);
void drain_turn(struct worker *w);

/* A counter's sum over all workers, by its place in struct counters; the process's memory. */
uint64_t counters_sum(const struct proxy_shared *shared, size_t offset);
long long resident_bytes(void);

#endif
