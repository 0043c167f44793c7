/* Private to proxy/lock/: what the ledger says of workloads, claims, lost attempts and tenures. Layers: ledger.h. */
#pragma once

#include "proxy/lock/ledger.h"

/* ---- workload.c ------------------------------------------------------------------------------------ */

/* Numbers a workload by the hashes of its identity, rule and pattern. L6: what one application does never changes what
 * another application's commands mean. workload_number: by the session's identity. */
static inline uint64_t workload_number_of(uint64_t client, uint64_t rule, uint64_t pattern) {
    return hash_number(client ^ hash_number(rule ^ pattern));
}
static inline uint64_t workload_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern) {
    return workload_number_of(p->client->hash, rule->hash, pattern);
}
/* Each finds a workload: the one with this number, the same for one of its sessions, or the one of a session's client,
 * a rule (NULL: none) and a pattern. NULL: there is none. */
struct workload *workload_of_key(const struct shard *sh, uint64_t key);
struct workload *workload_of(struct shard *sh, const struct peer *p, uint64_t number);
static inline struct workload *workload_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule,
                                             uint64_t pattern) {
    return rule ? workload_of(sh, p, workload_number(p, rule, pattern)) : NULL;
}
/* Finds the workload with this number, or makes it. */
struct workload *workload_get(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t number,
                              const struct lock_key *key, int64_t now_ms);
/* As workload_get, for a session that has tried to acquire this key: it has its session_stats there from now on. */
struct workload *workload_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                               const struct lock_key *key, int64_t now_ms);
/* Frees workloads that were not used for WORKLOAD_IDLE_MS. */
void workload_trim(struct shard *sh, int64_t now_ms);
/* workload_init prepares a new shard. workload_clear frees its workloads. */
void workload_init(struct shard *sh);
void workload_clear(struct shard *sh);

/* The session's statistics in the workload; NULL: it has not tried to acquire a lock of the workload, or long ago. */
struct session_stats *session_stats_find(const struct peer *p, const struct workload *f);

/* Whether the session is known to carry one worker's commands, although the workload may be pooled. */
bool workload_dedicated(const struct workload *f, const struct peer *p);
/* Whether the session counts as pooled by the rule alone, or because it is overlapped. */
bool rule_pools(const struct lock_rule *rule, bool overlapped);
/* Whether the session's commands may be several workers'. f NULL: nothing is known of the workload. */
bool workload_pooled(const struct workload *f, const struct peer *p, const struct lock_rule *rule);

/* Notes a crossing, the acquisition over one session and the release over the other: the rows of releases over their
 * own session begin anew. Either may be NULL. */
void workload_crossed(struct workload *f, struct peer *a, struct peer *b);
/* Counts a crossing that proves pooled connections. The second one makes the workload pooled, as workload_pool does. */
void workload_vote(struct shard *sh, struct workload *f, struct peer *a, struct peer *b, const struct lock_key *key,
                   int64_t now_ms);
/* Marks the workload as pooled, and reports the incident `shared` once. */
void workload_pool(struct shard *sh, struct workload *f, const struct lock_key *key, int64_t now_ms);
/* Learns a fact other than FACT_DEDICATED. Losers that are known to release are not quiet. Returns whether it is new.
 */
bool workload_learn(struct workload *f, enum workload_fact fact);
/* The facts of the workload, as bits of enum workload_fact. FACT_POOLED stays. FACT_LOSERS_RELEASE ends when a
 * refused release was the holder's (B2). FACT_DEDICATED ends for good with the first crossing. */
unsigned workload_facts(const struct workload *f);
/* Tells the sink the facts of the workload, if they differ from what Redis has. */
void facts_tell(struct workload *f);

/* The next two count besides on a key, if c is not NULL. */
void workload_count(struct workload *f, struct key_stats *c, enum tally_what what);
/* Takes back the count of a release that was not carried out. */
void workload_uncount(struct workload *f, struct key_stats *c);
/* D1: whether the releases exceed the acquisitions by so much, compared with the lost attempts, that losers must
 * have sent some. c may be NULL. */
bool workload_surplus(const struct workload *f, const struct key_stats *c);

/* The workload's statistics on the key, or NULL. */
struct key_stats *key_stats_find(const struct entry *en, const struct workload *f);
/* Notes the value of an acquisition. */
static inline void key_stats_value(struct key_stats *c, uint64_t value) {
    c->values[c->value_next] = value;
    c->value_next = (uint8_t)((c->value_next + 1) % KEY_STATS_VALUES);
    c->value_count += c->value_count < KEY_STATS_VALUES;
}
/* Whether the values of the last acquisitions differ among themselves, or from `value`. */
static inline bool key_stats_varies(const struct key_stats *c, uint64_t value) {
    unsigned i = 0;
    while (i < c->value_count && c->values[i] == value)
        i++;
    return i < c->value_count;
}

/* Appends a loss. The caller takes the oldest one out first if the list is full. */
static inline struct loss *losses_add(struct losses *l, int64_t now_ms, uint64_t session_id) {
    l->at[l->count] = (struct loss){.time_ms = now_ms, .session_id = session_id};
    return &l->at[l->count++];
}
/* Whether the oldest loss is older than `before_ms`, or the list is full. */
static inline bool losses_over(const struct losses *l, int64_t before_ms) {
    return l->count == KEY_STATS_DEBTS || (l->count > 0 && l->at[0].time_ms < before_ms);
}
/* Takes out the oldest loss. */
static inline struct loss losses_take(struct losses *l) {
    struct loss oldest = l->at[0];
    memmove(l->at, l->at + 1, --l->count * sizeof(l->at[0]));
    return oldest;
}

/* ---- claim.c ---------------------------------------------------------------------------------- */

/* Whether other sessions of the client may use the claim. */
static inline bool claim_pooled(const struct claim *c) {
    return workload_pooled(c->workload, c->peer, c->rule);
}
/* For how many ms after its lease's end a pooled session's claim waits for its release. */
int64_t claim_memory(const struct claim *c);
/* When (ms) the claim stops waiting for the late release of its ended lease. */
int64_t claim_deadline(const struct shard *sh, const struct claim *c);
/* Whether the claim can be dropped: its lease has ended, and no release of it is expected any more. */
bool claim_is_over(const struct shard *sh, const struct claim *c, int64_t now_ms);
bool claim_is_live(const struct claim *c, int64_t now_ms);
/* Whether the rule's lock-delay keeps others out, behind the end of the claim's lease. */
bool claim_is_delayed(const struct claim *c, int64_t now_ms);
/* Notes that at least so many releases of losers were refused during the lease. Returns whether the claim had counted
 * fewer. */
bool claim_suspect(struct claim *c, uint32_t suspects);
/* C3: a release was counted for an older claim, and was perhaps this claim's. After its lease's end the claim waits for
 * its release until deadline_ms at most. */
void claim_expect_until(struct claim *c, int64_t deadline_ms);
/* Whether a release was refused while the lease was live, and its holder has not extended it since. */
static inline bool claim_suspicious(const struct claim *c) {
    return c->suspects > 0 && !c->vouched;
}
/* The client's claim whose lease is live, as far as this proxy knows; NULL: none. */
struct claim *claim_live(const struct entry *en, const struct lock_client *client, int64_t now_ms);
/* C6: whether the lease, which has ended before its time, may have been released through another proxy, over another
 * connection of a pool. A dedicated session's lease has not, nor has a lease that Redis may have forgotten. */
bool claim_spent_elsewhere(const struct lock_engine *e, const struct claim *c);
/* C6: a release by this claim did not find the claim's lease. Returns whether the release is meant for a later lease,
 * since its own lease may have been released through another proxy. A lease that is about to end may have expired. */
bool claim_made_way(const struct claim *c, int64_t now_ms);
/* Notes that a client has released under a rule, and is expected to release again. A client that never did uses the
 * locks as throttles. */
void releaser_note(struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c);
bool releaser_known(const struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c);
/* K: whether the session is recognised for the claim's lease: it knows the lock by its value, and may use the claim.
 * `w` is the session's contender on the key, or NULL. */
static inline bool recognised_for(const struct contender *w, const struct claim *c) {
    return w && w->recognised && w->recognised == c->fence && w->peer->client == c->peer->client;
}
/* Whether the session was recognised for a lease of which no claim is left, and so counts as a loser again. */
bool recognised_no_more(const struct entry *en, const struct contender *w);

/* ---- aftermath.c ------------------------------------------------------------------------------- */

/* C4: the decision about a release over a loser, or the like, in a workload of which nothing is known. */
enum loser_release {
    LOSER_REFUSED,  /* the release is the loser's own, or may be */
    LOSER_BELIEVED, /* the release is the holder's: a pool carries it over the loser's connection */
    LOSER_HELD_BACK /* there is too little evidence: the caller asks again in some ms */
};

/* Whether losers are known to release: by the surplus (D1), or by what followed lost attempts (D3). c may be NULL. */
bool workload_losers_release(const struct workload *f, const struct key_stats *c);
/* Within how many ms behind a lost attempt a release comes "at once". */
int64_t aftermath_at_once_ms(const struct peer *p);
/* Whether the key's last release is less than a round trip ago. A lease that was granted since cannot have been
 * released by its holder: the grant's reply is still on its way. w: the session that sends a release now, and sent one
 * before; c may be NULL. */
bool aftermath_behind_release(const struct key_stats *c, const struct contender *w, int64_t now_ms);
/* Notes that an attempt of the session was lost. */
void aftermath_lost(struct workload *f, struct key_stats *c, struct contender *w, int64_t now_ms);
/* Notes that the session tries again, or has acquired: its last loss is quiet (D3). */
void aftermath_tries_again(struct workload *f, struct key_stats *c, const struct peer *p);
/* Drops the losses before `before_ms` that are known to be followed or quiet. */
void aftermath_tidy(struct workload *f, struct key_stats *c, int64_t before_ms, int64_t now_ms);
/* C4: notes a release by this session. If a release of another session is held back, two came for one lease: losers
 * release. */
void aftermath_second(struct workload *f, struct key_stats *c, const struct peer *p, int64_t now_ms);
/* C4: decides about a release over a session without a claim, a loser or the holder of a lease that was released over
 * another session. `w` is its contender; `live` is its client's live lease, as far as this proxy knows, or NULL.
 * `patient`: the caller can ask again later, as LOSER_HELD_BACK wants. */
enum loser_release aftermath_release(struct workload *f, struct key_stats *c, struct contender *w,
                                     const struct claim *live, bool patient, int64_t now_ms);
/* B2: whether so many attempts were lost in a row without a release that the refused release was the holder's. */
bool aftermath_was_holders(const struct workload *f, const struct key_stats *c, const struct contender *w);
/* B2: notes that a refused release was the holder's, so that the workload's losers count as quiet. c may be NULL. */
void aftermath_mistaken(struct workload *f, struct key_stats *c);

/* ---- tenures: claim.c --------------------------------------------------------------------------------- */

/* The session's tenure of the key (struct tenure); NULL: it has none. */
struct tenure *tenure_find(const struct entry *en, const struct peer *p);
/* Starts the tenure of the claim's session, if a fence names the lock and the session is connected to this proxy.
 * `rule` applies to the key now. */
void tenure_begin(struct shard *sh, const struct claim *c, const struct lock_rule *rule);
/* Gives the tenure of the claim's lease this fence. To be called before the claim gets it. */
void tenure_renumber(const struct claim *c, uint64_t fence);
/* Whether the client's other sessions, too, may write under a lease that was acquired over this session. A multiplexed
 * connection carries a whole process. A lease acquired over another connection therefore belongs to another process,
 * unless the workload is known to pool its connections. */
static inline bool writes_for_others(const struct lock_rule *rule, const struct workload *f, const struct peer *p) {
    bool pool = rule->owner == LOCK_OWNER_CLIENT || (f && (f->facts & FACT_POOLED));
    return workload_pooled(f, p, rule) && (pool || !p->overlapped);
}
static inline bool claim_writes_for_others(const struct claim *c) {
    return writes_for_others(c->rule, c->workload, c->peer);
}

/* ---- contention.c ------------------------------------------------------------------------------ */

/* Counts an attempt to acquire the lock that was lost; `hash` is the key's. */
void contention_note(struct shard *sh, const struct lock_key *key, uint64_t hash, int64_t now_ms);
/* Counts the time since the session's last attempt: this attempt was lost too, or has acquired the lock. The first lost
 * attempt of a row begins a wait. */
void contention_waited(struct shard *sh, struct contender *w, const struct lock_plan *plan, int64_t now_ms);
/* Counts the time for which a lease was held that ends now, or ended at its time. A lease of another proxy, or one that
 * has ended before, does not count. claim_held_on takes that back: the lease has not ended. */
void claim_held(struct shard *sh, const struct claim *c, int64_t now_ms);
void claim_held_on(struct shard *sh, const struct claim *c);
