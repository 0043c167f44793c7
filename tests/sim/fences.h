/*
 * Data that is written under locks (`fence`) in the simulated world. The proxy's own code is what asks before each
 * write: proxy/session/fences/fenced_command.c and fence_transaction.c are compiled into the
 * simulator, with sessions and requests that are there in name only (fences/fences.c), and connections of their own
 * (fences/pins.c); their calls run fence.lua in the interpreter. Included by sim_world.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fences;
struct flight;
struct lock_rules;
struct world;

void fences_open(struct world *w);
void fences_close(struct world *w);
/* Adds the run's fence to a set of rules, if the run has one. It says which locks the engine keeps tenures of. */
void fences_add_rule(const struct world *w, struct lock_rules *rules);
/* A worker may write under its lock instead of what it would send. True: it does. */
bool fences_write(struct world *w, int worker, int conn);
/* Something that is on its way goes on; `at_once`: also what is long on its way. False: nothing does. */
bool fences_progress(struct world *w, bool at_once);
/* A worker was told that it has acquired; it is gone; the connection is about to be. */
void fences_acquired(struct world *w, int worker, const struct flight *f);
void fences_worker_died(struct world *w, int worker);
void fences_left(struct world *w, int conn);
/* Sets the timer of a blocked session; until_ms 0: stops it. */
struct ev_timer;
void fences_timer(struct world *w, struct ev_timer *timer, int64_t until_ms);
/* The data's node fails over, and loses watermarks. */
void fences_trouble(struct world *w);
/* Says how many writes there were since the start, in so many steps; false: too few of a kind to show anything. */
bool fences_enough(long steps);
