/*
 * Whether proxies that were before this Redis have stayed before another one. After a replica was promoted by hand, or
 * a name has moved, some proxies may go on before the Redis of before: two proxies then give out the same locks. Each
 * process writes every 10 s to one hash in Redis that it is there (presence.lua), and the answer names the processes
 * that were there when the data got a new replication id, and have not followed.
 *
 * A proxy writes once it has met another proxy's lease: before, there is nothing that could split, and no key of ours
 * is in Redis. Only a standalone and Sentinel's master are asked: a cluster's nodes agree on each slot's master. Two
 * Redis servers that never had the same data have nothing by which proxies could know of each other.
 */
#ifndef LOCKKEEPER_WORKER_PRESENCE_H
#define LOCKKEEPER_WORKER_PRESENCE_H

#include "proxy/base/report.h"

struct worker;

/* Writes that this process is there, if it has not lately. The first worker calls it, at most once a second. If the
 * proxy's own user may not, nothing is known, and nothing is logged. */
void presence_tick(struct worker *w);
/* Writes that this process ends. In the first worker's thread. */
void presence_end(struct worker *w);
/* How many processes have not followed, as far as is known. From any thread. */
unsigned presence_away(struct worker *w);

#endif
