/*
 * Attempts that wait (rule option `wait`) in the simulated world. The proxy's own code is what holds them:
 * proxy/session/waits/lock_wait.c and release_channel.c are compiled into the simulator, with a worker's loop, sessions
 * and requests that are there in name only (waits.c):
 *
 *      flight ── "held" ──> lock_wait ──> queue ──> lock_submit_next ──> the flight goes again
 *                                          ^  ^
 *             timers, on virtual time ─────┘  └──── PUBLISH of the scripts, which may get lost on its way
 *
 * And the spectator's part: which session came when, how long a lock has been free while a session waits for it, which
 * session waits for whose lock. Included by sim_world.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proxy/lock/engine.h"

struct flight;
struct model_args;
struct waits;
struct waits_call;
struct world;

void waits_open(struct world *w);
void waits_close(struct world *w);

/* What happens to a command or to the proxy's own work, told in the order in which a proxy would see it. */

/* It has been begun in the engine, and goes to Redis, unless it waits now (waits_held). */
void waits_launched(struct world *w, struct flight *f);
/* It is sent once more, with another plan. */
void waits_again(struct world *w, struct flight *f);
/* What its script is told. */
void waits_args(const struct world *w, const struct flight *f, struct model_args *a);
/* It has run. */
void waits_ran(struct world *w, struct flight *f);
/* Its answer is there; or it got lost, and is what flight_fail is told. True: it has been dealt with, and may be gone.
 */
bool waits_delivered(struct world *w, struct flight *f);
bool waits_failed(struct world *w, struct flight *f, enum lock_outcome outcome);
/* The engine has learnt of it, or the proxy of what it has released by itself. */
void waits_learnt(struct world *w, const struct flight *f, const struct lock_result *r);
/* Its session is gone, or with it its proxy. The flight may be gone as well. */
void waits_left(struct world *w, struct flight *f, bool proxy_gone);
/* A proxy's engine is about to be freed. */
void waits_proxy_gone(struct world *w, int proxy);
void waits_proxy_back(struct world *w, int proxy);
/* A proxy reports that an attempt would have waited in a circle. */
void waits_circle(struct world *w);
/* The rules have been replaced. */
void waits_rules(struct world *w);
/* A connection's client says more, while its attempt waits. */
void waits_speak(struct world *w, int conn);

/* Whether it waits, and is not on its way. */
bool waits_held(const struct flight *f);
/* The flight before which no other flight over its connection to Redis may go: they run in the order in which they were
 * sent, and so they are answered. */
struct flight *waits_first(struct world *w, struct flight *f);

/* Lets time pass, with all that is due meanwhile. */
void waits_pass_time(struct world *w, int64_t ms);
/* After each step. */
void waits_step_over(struct world *w);
/* Causes a fault of waiting attempts. */
void waits_trouble(struct world *w);
