/*
 * A take-over must not split the locks: the new process may have another upstream in its configuration, or the name of
 * the same upstream may have moved. Then two processes would give out one lock. So the process that leaves writes a
 * mark to its Redis, and the new one looks for the mark in its own before it accepts clients.
 *
 *      the process that leaves                        the new one
 *      SET mark ──> Redis                             held: no worker accepts clients
 *      the mark, in the environment ────────────────> GET mark ──┬─> the same: all workers open
 *                                                                └─> another, or none: it ends, and nothing has changed
 *
 * With `take-over switch` it does not end: the process that leaves closes its clients and ends, and the new one holds
 * all writes until the longest lease is over that the process before knew of.
 *
 * Run ids and replication ids change with a failover, and addresses differ for one server. The mark is data, as locks
 * are: where the mark is, the locks are.
 */
#ifndef LOCKKEEPER_WORKER_LOCK_SPACE_H
#define LOCKKEEPER_WORKER_LOCK_SPACE_H

#include <stdbool.h>

struct worker;

/* Writes the mark, for two minutes. Calls `done` once, perhaps before this function returns; `error` is Redis's or the
 * proxy's error, borrowed, or NULL. In the first worker's thread. The mark is copied. */
void lock_space_mark(struct worker *w, const char *mark, void (*done)(void *arg, const char *error), void *arg);
/* Whether the error says that the proxy's own user may not use the mark. Then processes can't be compared. */
bool lock_space_forbidden(const char *error);
/* Looks for the mark of shared->space_mark, and opens the workers that wait. If Redis has another mark or none, the
 * process ends with status 1, and the log says why. Does nothing while an answer is due. In the first worker's
 * thread; to be called again once a second while shared->space_held. */
void lock_space_look(struct worker *w);

#endif
