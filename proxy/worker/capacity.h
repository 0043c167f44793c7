/*
 * How many clients each master takes (maxclients), which limits how many connections single clients may have to it.
 * Asked by the first worker, at its start and now and then; where Redis does not tell, its default is assumed.
 */
#ifndef LOCKKEEPER_WORKER_CAPACITY_H
#define LOCKKEEPER_WORKER_CAPACITY_H

struct worker;

/* Asks the masters where the last answers are old. To be called once a second at most, by the first worker. */
void capacity_tick(struct worker *w);

#endif
