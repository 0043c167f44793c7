/*
 * Private to proxy/lock/: an answer on its way through the engine. learn.c takes from it what is known of the lock
 * now, apply.c what becomes of the claims.
 */
#ifndef LOCKKEEPER_LOCK_FINISH_H
#define LOCKKEEPER_LOCK_FINISH_H

#include "proxy/lock/state.h"

/* An engine_finish under way, its shard locked. */
struct outcome {
    struct lock_engine *e;
    struct shard *sh;
    const struct lock_plan *plan;
    const struct lock_result *result;
    struct peer *peer;
    struct entry *entry;                   /* NULL: nothing is known of the key */
    struct claim *claim;                   /* the plan's, while it is there */
    const char *command, *client, *holder; /* for incidents */
    size_t holder_len;
    struct occasion on; /* outcome_occasion's: most answers are none */
    uint64_t hash;
    int64_t now_ms;
    bool audit;          /* the command ran as it was, and `result` is inferred */
    const char *refusal; /* then: what enforcing would have answered */
};

/* Locks the shard and fills in what is known of the key; outcome_end is its other half. */
void outcome_start(struct outcome *f, struct lock_engine *e, uint64_t session_id, const struct lock_plan *plan,
                   const struct lock_result *result, const char *command, const char *client, int64_t now_ms);
void outcome_end(struct outcome *f);

/* What an incident is told. */
const struct occasion *outcome_occasion(struct outcome *f);
/* The key's entry, made if there is none. */
struct entry *outcome_entry(struct outcome *f);
/* The keyed hash of the value that the command was to write, or of a hash lock what value_of_field makes of it. */
uint64_t outcome_value(const struct outcome *f);
/* Whether the outcome is a refusal: HELD or FOREIGN. */
bool outcome_refused(const struct outcome *f);
/* Sets the claim's next deadline, or drops a claim that is over. Returns whether it is still there. */
bool outcome_schedule(struct outcome *f, struct claim *c);

/* ---- learn.c ---------------------------------------------------------------------------------- */

/* Learns from the answer which lease is live, and which are gone. */
void learn(struct outcome *f);
/* Ends all leases up to this fence. */
void learn_gone(struct outcome *f, uint64_t fence, enum lease_end why);
/* Notes that the session wanted the lock and did not get it. */
void learn_loss(struct outcome *f);
/* Learns from a command that does nothing but acquire, and did not: besides the loss, what it says of the workload. */
void learn_lost_attempt(struct outcome *f);
/* K1: learns from a refusal whose answer shows the value that is there. Returns whether the session is recognised. */
bool learn_answered(struct outcome *f);
/* K1: learns from a script of the application's that names what the lock is held with. */
void learn_named(struct outcome *f);
/* K2: learns from a command that has written the lease's own value anew. */
void learn_repeated(struct outcome *f);
/* Learns from the answer to a GET. */
void learn_read(struct outcome *f);
/* Keeps a contender, which is of use, for a while from now. */
void learn_touched(struct shard *sh, struct contender *w, const struct lock_rule *rule, int64_t now_ms);
/* Notes, under audit, that the session holds the lease of the value that it wrote, should the rule be enforced
 * later. */
void learn_wrote(struct outcome *f);
/* Notes that a session was shown the key's value. */
void learn_shown(struct shard *sh, struct entry *en, struct peer *p, const struct workload *f,
                 const struct lock_rule *rule, uint64_t fence, const char *value, size_t len, int64_t now_ms);

/* ---- apply.c --------------------------------------------------------------------------------- */

/* Makes the attempt the live lease. */
void apply_granted(struct outcome *f);
/* Makes the attempt the live lease of a lock that the engine knew nothing of, with the application's own expiry. */
void apply_acquired(struct outcome *f);
/* Has the claim of the live lease follow a command that was carried out on it, whoever's it is. */
void apply_done(struct outcome *f);
/* Settles a command that has freed the lock. */
void apply_freed(struct outcome *f);
void claim_value(struct outcome *f, struct claim *c);
/* Notes that the lease of `live` (NULL: not known) was released over another session than its own: a crossing. */
void apply_crossing(struct outcome *f, struct workload *workload, const struct claim *live);
/* Notes the value that the claim's lock holds. */
void claim_holds(struct outcome *f, struct claim *c, const char *value, size_t len);
/* Uses a claim up; NULL is allowed. */
void apply_spend(struct outcome *f, struct claim *c);
/* Reports what was refused, and why, or under audit what would be. */
void apply_refusal(struct outcome *f, enum lock_incident_kind kind, const char *why);
/* The claim with the live lease, where the script let the caller touch it whoever it is. */
struct claim *apply_touched(struct outcome *f);
/* Draws the consequences of a command on a list lock's queue (LOCK_QUEUE_*), in queue.c. */
void queue_apply(struct outcome *f);

/* Draws the consequences for claims, renewals and incidents, by the command's verb. */
void apply(struct outcome *f);

/* ---- tenure.c --------------------------------------------------------------------------------- */

/* Notes that the answer uses the claim up, which is still there: the tenure ends with it if its own session, or a
 * colleague of its pool, has released. */
void tenure_spent(struct outcome *f, const struct claim *c);
/* Notes that the session's release has been answered, whether its claim is still known or not. */
void tenure_released(struct outcome *f);

/* ---- data.c ----------------------------------------------------------------------------------- */

/* Settles a LOCK_PASS. */
void apply_pass(struct outcome *f);

/* ---- adopt.c ---------------------------------------------------------------------------------- */

/* Settles what a script of the application's has done. */
void apply_script(struct outcome *f);

#endif
