/* Private to proxy/lock/: leases in time. Layers: ledger.h. */
#pragma once

#include "proxy/lock/evidence.h"

/* ---- lease.c ---------------------------------------------------------------------------------- */

enum lease_end {
    LEASE_OVER,  /* its time was up */
    LEASE_GONE,  /* found to be gone, for a reason unknown to this proxy */
    LEASE_TAKEN, /* released or taken over through this proxy */
    LEASE_FORCED /* released by PROXY RELEASE */
};

/* Starts a claim's lease, or changes its end. pttl_ms is the lock's PTTL when the script ran, some time since since_ms.
 * `leased`: the expiry is the proxy's own. */
void lease_set(struct shard *sh, struct claim *c, int64_t pttl_ms, bool leased, int64_t since_ms, int64_t now_ms);
/* Sets a lease's end from the answer to the command `began`. If another answer has set it since, the order in Redis is
 * unknown, and the later end is kept, for the holder's sake. Returns whether none had. */
bool lease_told(struct shard *sh, struct claim *c, const struct lock_result *r, uint64_t began, int64_t since_ms,
                int64_t now_ms);
/* Ends a claim's lease. The claim stays, for its late release. lease_schedule drops a claim that waits for none. */
void lease_end(struct shard *sh, struct claim *c, enum lease_end why, int64_t now_ms);
/* Ends and reports a lease that another one has followed, as witnesses say. */
void lease_overtaken(struct shard *sh, struct claim *c, int64_t now_ms);
/* Puts the claim's next deadline into the heap. False: the claim was over, and is dropped. */
bool lease_schedule(struct shard *sh, struct claim *c, int64_t now_ms);
/* As lease_schedule. If the claim is dropped, frees its entry, too, unless something is left in it. */
void lease_settle(struct shard *sh, struct claim *c, int64_t now_ms);
/* The owner has left: reports the lease, ends its renewal, and releases the lock if the rule wants that. */
void lease_abandon(struct shard *sh, struct claim *c, int64_t now_ms);
/* For an incident that the proxy causes. */
struct lock_incident lease_occasion(const struct claim *c, int64_t now_ms);
/* Whether a session is open for which the lease should be renewed. */
bool lease_owner_here(const struct claim *c);

/* Runs the shard's timers that are due, or some of them if many are. */
void lease_tick(struct shard *sh, int64_t now_ms);
/* This process stops: asks for the last expiry of leases, `max` at most. Returns the number of these leases. */
unsigned lease_handover(struct shard *sh, unsigned max, int64_t now_ms);

/* Whether a command of the session's own says that its worker has let go of the leases that it had on the key. Commands
 * that extend a lease or read it do not. */
static inline bool alarms_end_by(enum lock_verb verb) {
    return verb != LOCK_EXTEND && verb != LOCK_READ && verb != LOCK_INSPECT;
}
/* The worker has let go of the leases on the key: it is not to hear of their ends. `but`: the token of a lease that
 * this does not concern; 0: none. */
void alarms_forget(struct peer *p, const struct lock_key *key, uint64_t but);

/* ---- succession.c ------------------------------------------------------------------------------------ */

/* The lease may have a successor from now on. If it counts for its orphan, it goes on counting, unless its client's
 * sessions have come to be pooled. */
void successor_may_come(struct shard *sh, struct claim *c);
/* The owner of a lease has left. Returns whether the lease may be renewed for a successor: the session of the same
 * client that comes in its place. */
bool successor_left(struct shard *sh, struct claim *c, int64_t now_ms);
/* K: the session of this peer has proved to own the lease of a closed session, which is renewed for it from now on. */
void successor_proved(struct shard *sh, struct claim *c, const struct peer *p, int64_t now_ms);
/* Whether a successor of the lease's owner is here. */
bool successor_attends(const struct claim *c);
/* Whether the lease is to be renewed now for its owner's successor. To be called only if successor_attends. */
bool successor_keeps(struct shard *sh, struct claim *c, int64_t now_ms);
/* Tells the sink, for other proxies, that the owner has left a lease which ends at until_ms. */
void successor_tell(struct shard *sh, const struct claim *c, int64_t until_ms, int64_t now_ms);
/* After how many ms to look again for a successor. */
int64_t successor_look_ms(const struct claim *c);
