/*
 * The proxy's own calls: renewals, releases for owners that have left (lease_work.c), alarms (alarms.c), and records
 * that the proxies share (own_records.c). Most are made for the engine's sink (locks.h).
 */
#pragma once

#include "proxy/session/locks/lock_call.h"

/* Makes a request of the proxy's own for `owner`, for which a stop waits until lock_own_done ends it. The call may be
 * repeated. The caller sends what is in w->build as a call of the script. */
struct request *lock_own_request(struct worker *w, struct request_owner *owner, const struct request_owner_ops *ops,
                                 enum script_id id, call_done_fn done);
void lock_own_done(struct call *c, const struct call_end *end);

/* ---- lease_work.c ------------------------------------------------------------------------------------------ */

/* Releases the lease that an attempt has just acquired, by its token. `done` hears when Redis has answered, or can't be
 * asked: for attempts that witnesses have refused. So the lock may be another lease's, and no waiting session is told
 * that it is free. `done` NULL: waiting sessions are told. */
typedef void (*lock_undone_fn)(void *arg);
void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg);

/* Copies a lease with its key, for which `name` has room. */
void lock_lease_keep(struct lock_lease *to, const struct lock_lease *lease, char *name);
/* Builds the call of renew.lua, release.lua or list_leave.lua for a lease, by its token. `waits`: sessions may wait for
 * the lock. party NULL: the script takes none. */
void lock_build_lease(struct worker *w, enum script_id id, const struct lock_lease *lease, bool waits,
                      const char *party, size_t party_len);
/* Frees what was asked for and not sent. */
void lock_works_close(struct worker *w);

/* ---- alarms.c: sessions hear that their leases are over ------------------------------------------------------- */

void alarms_close(struct worker *w);
/* Called once a second: asks Redis again about alarms of which it did not say whether they are true. */
void alarms_tick(struct worker *w);

/* ---- own_records.c: leases whose owners may come back at another proxy, and what is learnt of workloads -------- */

/* Called once a second by the first worker. Takes over those leases on the list whose owners have lately come to this
 * proxy. */
void successors_tick(struct worker *w);
/* Begins to read the record. Called in the first worker, before clients are accepted. */
void learnt_begin(struct worker *w);
/* Called once a second. The first worker reads what was added to the record since. */
void learnt_tick(struct worker *w);
/* Called while a release is held back: what another proxy has just learnt may decide about it. Does nothing if no other
 * proxy is known. */
void learnt_glance(struct worker *w);
