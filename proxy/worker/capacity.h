/*
 * How many clients each master accepts (maxclients), which limits how many connections single clients may have to it.
 * The first worker asks at its start and then at intervals. If Redis does not answer, its default is assumed.
 */
#ifndef LOCKKEEPER_WORKER_CAPACITY_H
#define LOCKKEEPER_WORKER_CAPACITY_H

struct worker;

/* Asks the masters whose answers are old. The first worker calls it, at most once a second. */
void capacity_tick(struct worker *w);

#endif
