/*
 * Where the host name of a standalone upstream leads. The name is looked up every dns-refresh, at a reload, and soon
 * after the node has failed. If it leads to another machine, all threads go there together, or none does: two threads
 * at two servers would give out one lock twice.
 *
 *      the name leads elsewhere ──> has the other Redis what this proxy has written?   (the mark)
 *                                   does it take a write?
 *                                   is the write seen at the old address too?          one server, or its replica: go
 *                                   does the old Redis take writes?                    no, it is a replica: go
 *                                                          │                           no, it is gone: go
 *                                                          └─> yes: stay there, and warn
 *
 * A Redis without the mark has other data. The proxy goes there only after the old Redis was out of reach three times
 * in a row.
 */
#ifndef LOCKKEEPER_WORKER_HOST_WATCH_H
#define LOCKKEEPER_WORKER_HOST_WATCH_H

#include <stdbool.h>
#include <stddef.h>

struct worker;

/* Looks the name up if it is due. To be called once a second, in the first worker's thread. */
void host_watch_tick(struct worker *w);
/* The node has failed in any thread, or answered as after a failover; `readonly`: with READONLY. Thread-safe. */
void host_watch_doubt(struct worker *w, bool readonly);
/* Has the name looked up at the next tick. Thread-safe. */
void host_watch_now(struct worker *w);
/* Copies why the upstream is not where its name leads; "": it is. Thread-safe. */
void host_watch_trouble(struct worker *w, char *out, size_t size);
void host_watch_clear(struct worker *w);

#endif
