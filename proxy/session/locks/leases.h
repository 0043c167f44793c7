/*
 * The proxy's own calls on leases: renewals, releases for owners that have left (lease_work.c), and leases
 * whose owners may come back at another proxy (successors.c). Most are made for the engine's sink (locks.h).
 */
#pragma once

#include "proxy/session/locks/lock_call.h"

/* ---- lease_work.c ------------------------------------------------------------------------------------------ */

/* Releases the lease that an attempt has just acquired, by its token. `done` hears when Redis has answered, or can't be
 * asked: for attempts that witnesses have refused. So the lock may be another lease's, and no waiting session is told
 * that it is free. `done` NULL: waiting sessions are told. */
typedef void (*lock_undone_fn)(void *arg);
void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg);

/* Frees renewals that were asked for and not sent. */
void lock_renewals_close(struct worker *w);

/* ---- alarms.c: sessions hear that their leases are over ------------------------------------------------------- */

void alarms_close(struct worker *w);
/* Called once a second: asks Redis again about alarms of which it did not say whether they are true. */
void alarms_tick(struct worker *w);

/* ---- successors.c: leases whose owners may come back at another proxy ---------------------------------------- */

/* Called once a second by the first worker. Takes over those leases on the list whose owners have lately come to this
 * proxy. */
void successors_tick(struct worker *w);
