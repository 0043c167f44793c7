/*
 * Whether Redis may evict locks when its memory is full. Asked of all masters by the first worker, at its start and now
 * and then; where Redis does not tell, nothing is said.
 */
#ifndef LOCKKEEPER_WORKER_EVICTIONS_H
#define LOCKKEEPER_WORKER_EVICTIONS_H

#include "proxy/base/report.h"

struct worker;

/* Asks the nodes for their policy where the last answers are old. To be called once a second at most, by the first
 * worker. */
void evictions_tick(struct worker *w);
/* Reports for PROXY INFO and the status page the policy, and whether locks may be evicted by it. From any worker's
 * thread. */
void evictions_report(struct worker *w, const struct report *r);

#endif
