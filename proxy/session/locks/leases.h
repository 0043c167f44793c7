/* The proxy's own calls, most of them for the engine's sink (locks.h). */
#pragma once

#include "proxy/session/locks/lock_call.h"

/* Makes a request of the proxy's own, to be sent as a call of the script, which may be repeated. A stop waits until
 * lock_own_done ends it. */
struct request *lock_own_request(struct worker *w, struct request_owner *owner, const struct request_owner_ops *ops,
                                 enum script_id id, call_done_fn done);
void lock_own_done(struct call *c, const struct call_end *end);

/* ---- lease_work.c ------------------------------------------------------------------------------------------ */

/* Releases the lease that an attempt has just acquired, by its token. `done`, for attempts that witnesses have refused,
 * hears when Redis has answered, or can't be asked. The lock may then be another lease's, so waiting sessions are told
 * that it is free only if `done` is NULL. */
typedef void (*lock_undone_fn)(void *arg);
void lock_undo(struct worker *w, const struct lock_call *l, lock_undone_fn done, void *arg);

/* Frees what was asked for and not sent, and alarms about which Redis is to be asked again. */
void lock_works_close(struct worker *w);

/* Once a second: asks Redis again about alarms of which it did not say whether they are true. */
void alarms_tick(struct worker *w);

/* ---- own_records.c: leases whose owners may come back at another proxy, and what is learnt of workloads -------- */

/* Once a second, in the first worker: takes over leases on the list whose owners have lately come to this proxy. */
void successors_tick(struct worker *w);
/* In the first worker: begins to read the record, before clients are accepted; reads on once a second. */
void learnt_begin(struct worker *w);
void learnt_tick(struct worker *w);
/* While a release is held back: what another proxy has just learnt may decide about it. */
void learnt_glance(struct worker *w);
