/* Private to proxy/lock/: a script's answer on its way through the engine, by learn.c and apply.c. */
#pragma once

#include "proxy/lock/choose.h"

/* An answer that engine_finish is handling, with its shard locked. */
struct outcome {
    struct lock_engine *e;
    struct shard *sh;
    const struct lock_plan *plan;
    const struct lock_result *result;
    struct peer *peer;
    struct entry *entry;          /* NULL: nothing is known of the key */
    struct claim *claim;          /* the plan's; NULL once it is freed */
    const char *command, *client; /* for incidents */
    struct lock_incident on;      /* filled by outcome_occasion: most answers report no incident */
    int64_t now_ms;
    bool audit;          /* the command ran as it was, and `result` is inferred */
    const char *refusal; /* audit: what enforcing would have answered */
};

/* Locks the shard and fills in what is known of the key. outcome_end unlocks the shard. */
void outcome_start(struct outcome *f, struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms);
void outcome_end(struct outcome *f);

/* The key, client and command, for an incident. */
const struct lock_incident *outcome_occasion(struct outcome *f);
/* The key's entry, made if there is none. */
struct entry *outcome_entry(struct outcome *f);
/* The workload of the answer's session; NULL: nothing is known of the workload. */
static inline struct workload *outcome_workload(const struct outcome *f) {
    return workload_find(f->sh, f->peer, f->plan->rule, f->plan->pattern);
}
/* The keyed hash of the value that the command writes, or for a hash lock value_of_field's. */
static inline uint64_t outcome_value(const struct outcome *f) {
    return f->plan->field ? f->plan->field : hash_bytes(&f->e->value_seed, f->result->value, f->result->value_len);
}
/* Whether the outcome is a refusal: HELD or FOREIGN. */
static inline bool outcome_refused(const struct outcome *f) {
    return f->result->outcome == LOCK_HELD || f->result->outcome == LOCK_FOREIGN;
}
/* Sets the claim's next deadline, or drops a claim that is over. Returns whether it is still there. */
bool outcome_schedule(struct outcome *f, struct claim *c);

/* Notes the value that the command has written to the claim's lock. */
void claim_value(struct outcome *f, struct claim *c);
/* Notes a crossing: the lease of `live` (NULL: not known) was released over another session than it was acquired. */
void outcome_crossing(struct outcome *f, struct workload *workload, const struct claim *live);
/* Notes the value that the claim's lock holds. */
void claim_holds(struct outcome *f, struct claim *c, const char *value, size_t len);
/* Removes a claim that its release has used up. NULL is allowed. */
void outcome_spend(struct outcome *f, struct claim *c);
/* Reports a refusal and its reason. Under audit it reports what enforcing would have refused. */
void outcome_refusal(struct outcome *f, enum lock_incident_kind kind, const char *why);
/* The claim of the lease that the script has touched, of whichever session; NULL: none is known. */
struct claim *outcome_touched(struct outcome *f);
/* The answer uses up the claim, which still exists. Ends the claim's tenure too, if its own session or a pooled session
 * of its client has released. */
void tenure_spent(struct outcome *f, const struct claim *c);
/* Ends the session's tenure after its release, even if its claim is forgotten. */
void tenure_released(struct outcome *f);

/* ---- learn.c ---------------------------------------------------------------------------------- */

/* Learns from the answer which lease is live, and which have ended. */
void learn(struct outcome *f);
/* Ends all leases up to this fence. */
void learn_gone(struct outcome *f, uint64_t fence, enum lease_end why);
/* Notes that the session wanted the lock and did not get it. */
void learn_loss(struct outcome *f);
/* Learns from a lost attempt to acquire: besides the loss, what it says of the workload. */
void learn_lost_attempt(struct outcome *f);
/* K1: learns from a refusal whose answer shows the lock's value. Returns whether the session is recognised for the
 * lease: it may use the claim of the session that acquired. */
bool learn_answered(struct outcome *f);
/* K1: learns from a script of the application's that has the lock's value among its arguments. */
void learn_named(struct outcome *f);
/* K2: learns from a command that has written the value which the lease already had. */
void learn_repeated(struct outcome *f);
/* Learns from the answer to a GET. */
void learn_read(struct outcome *f);
/* Notes, under audit, which value the session wrote, for plan_enrolment. */
void learn_wrote(struct outcome *f);
/* Notes that a session was shown the key's value. */
void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct workload *f,
                 const struct lock_rule *rule, uint64_t fence, const char *value, size_t len, int64_t now_ms);

/* ---- apply.c --------------------------------------------------------------------------------- */

/* Makes the attempt's claim, with the value that the command has written. The entry exists. A key with very many claims
 * may forget the plan's claim for it. */
struct claim *outcome_claim(struct outcome *f, uint64_t fence);
/* Makes the attempt the live lease. */
void apply_granted(struct outcome *f);
/* Makes the attempt the live lease of a lock without an entry, with the application's own expiry. */
void apply_acquired(struct outcome *f);
/* Updates the claim of the live lease, of whichever session, after a command that was carried out on it. */
void apply_done(struct outcome *f);
/* Ends the claim of a command that has freed the lock besides its other purpose. */
void apply_freed(struct outcome *f);
/* Applies the answer to a command on a list lock's queue (LOCK_QUEUE_*). In list_lock.c. */
void queue_apply(struct outcome *f);

/* Applies the answer to claims, renewals and incidents, by the command's verb. */
void apply(struct outcome *f);
