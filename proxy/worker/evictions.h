/*
 * Whether Redis may evict locks when its memory is full. The first worker asks all masters at its start and then at
 * intervals. If Redis does not answer, nothing is reported.
 */
#ifndef LOCKKEEPER_WORKER_EVICTIONS_H
#define LOCKKEEPER_WORKER_EVICTIONS_H

#include "proxy/base/report.h"

struct worker;

/* Asks the nodes for their policy if the last answers are old. The first worker calls it, at most once a second. */
void evictions_tick(struct worker *w);
/* Reports the policy, and whether it may evict locks, for PROXY INFO and the status page. From any worker's thread. */
void evictions_report(struct worker *w, const struct report *r);

#endif
