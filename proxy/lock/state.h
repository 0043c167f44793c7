/*
 * Private to proxy/lock/: what the engine remembers, and the functions its files share.
 *
 *      engine ── 16 shards, by the key's pattern; each its mutex ────┐
 *        │                                                           ├─ entries: one a lock key
 *        └─ clients, by identity (own mutex)                         │    ├─ claims, oldest first
 *                                                                    │    └─ contenders: what a session saw and lost
 *                                                                    ├─ peers: what the shard knows of a session
 *                                                                    │    └─ its claims and contenders here
 *                                                                    └─ timers: a heap of deadlines
 *
 * A claim is in its entry's list, in its peer's list, and (while it has a deadline) in the heap; a contender likewise.
 * A contended key has as many contenders as there are contenders, a session has few: look for one among its peer's. All
 * of that belongs to one shard, so one mutex is enough for everything a command does. An entry lives while it has a
 * claim or a contender; a peer while its session is open, or has claims, or a command in flight.
 *
 * Locks are taken in the order shard, then clients; never two shards at once.
 */
#ifndef LOCKKEEPER_LOCK_STATE_H
#define LOCKKEEPER_LOCK_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/workload.h"
#include "proxy/lock/hash.h"
#include "proxy/lock/script_constants.h"

enum {
    SHARDS = 16,
    PROCESS_ID_LEN = 36,
    CONTENDERES_A_PEER = 1024, /* a session's keys are mostly of one pattern, and so in one shard */
    CLAIMS_A_KEY = 256,        /* ended ones beyond that are forgotten, oldest first */
    RELEASERS = 4096,          /* places in the memory of who ever released under which rule */
    RETRY_MIN_MS = 100,        /* between attempts to renew */
    HELD_LONG_MS = 5 * 60 * 1000,
    RENEWAL_GRACE_MS = 1000, /* a renewal in flight at a lease's end is waited for */
    TICK_MAX_MS = 1000,
    FREE_CLAIMS = 64, /* a shard */
    FREE_ENTRIES = 64,
    ENTRY_NAME_KEPT = 24 /* entries with longer names are not kept */
};

#define NO_DEADLINE INT64_MAX
#define FAR_MS      ((int64_t)1 << 50) /* 35,000 years: a lease that ends later ends then, and sums don't overflow */

/* ---- deadlines ------------------------------------------------------------------------------- */

enum timer_kind { TIMER_CLAIM, TIMER_CONTENDER };

/* A place in a timer heap, embedded in a claim or a contender. */
struct timer {
    uint32_t place : 31; /* in the heap, from 1; 0: not there */
    uint32_t kind : 1;   /* enum timer_kind */
};

struct timer_slot {
    int64_t due_ms;
    struct timer *timer;
};

struct timer_heap {
    struct timer_slot *slots; /* from 1 */
    uint32_t count, cap;
};

/* Sets a timer's deadline; NO_DEADLINE takes it out. */
void timer_set(struct timer_heap *h, struct timer *t, int64_t due_ms);
/* The timer that is due first if it is due by now_ms, taken out of the heap; else NULL. */
struct timer *timer_due(struct timer_heap *h, int64_t now_ms);
/* When the next timer is due, or NO_DEADLINE. */
int64_t timer_next(const struct timer_heap *h);
void timer_heap_clear(struct timer_heap *h);

/* ---- clients --------------------------------------------------------------------------------- */

struct lock_client {
    struct table_link link; /* in its table */
    uint64_t hash;
    size_t refs;              /* sessions and peers; under the clients' mutex */
    uint32_t open;            /* open sessions; under the clients' mutex */
    atomic_uint epoch;        /* how often its last session closed */
    struct list_node orphans; /* peers of closed sessions that others of it may go on for; under the clients' mutex */
    /* heir.c's, under the clients' mutex but for the atomics: those who came to this identity, in that order; what
     * waits for one of them; where its connections are shared, whether anybody has come back since the last one left.
     */
    struct list_node sessions, estates;
    uint64_t comings;
    int64_t back_ms;
    unsigned brief;
    atomic_bool back, kept;
    size_t len;
    char name[]; /* NUL-terminated */
};

struct client_table {
    pthread_mutex_t mutex;
    struct hash_seed seed;
    struct table table;
};

void client_table_init(struct client_table *t, uint64_t seed);
void client_table_clear(struct client_table *t);
/* The client of that name, with one more reference; with `opens` one more open session, too. */
struct lock_client *client_get(struct client_table *t, const char *name, size_t len, bool opens);
void client_ref(struct client_table *t, struct lock_client *c);
/* Gives a reference back. */
void client_put(struct client_table *t, struct lock_client *c);
/* A closed session's peer has left something: it is looked at again when the client's last one closes. Nothing, where
 * that has happened. Returns whether it has not. */
bool client_orphan(struct client_table *t, struct peer *p);
/* The peer is about to be freed. */
void client_orphan_freed(struct client_table *t, struct peer *p);
/* Notes that one of the client's sessions has closed; the reference is kept. Returns whether it was the last. */
bool client_close(struct client_table *t, struct lock_client *c);

/* ---- what a shard remembers ------------------------------------------------------------------ */

/* A session, as far as a shard has to do with it. */
struct peer {
    struct table_link link;       /* in its table */
    uint64_t id;                  /* the session's */
    struct lock_session *session; /* valid until closed; NULL: none here */
    struct lock_client *client;
    uint64_t closed_at; /* the newest session's id when this one closed */
    uint32_t epoch;     /* the client's, when this session came to this shard */
    uint32_t in_flight; /* commands begun and not finished */
    bool closed;
    struct shard *shard;
    bool leaving;    /* its session has closed, and what it leaves is gone through: so many are still to come */
    bool left_early; /* others of its client were there when that began */
    uint32_t claims_left, contenders_left;
    uint32_t claim_count;
    struct list_node orphan; /* of its client's orphans, or of those that depart; under the clients' mutex */
    bool overlapped;         /* its commands may be several workers' */
    bool remote;           /* no session: the owner of a lease that another proxy gave, or this one before a restart */
    struct estate *estate; /* with a reference; of a closed session: what it left */
    uint32_t contender_count, session_stats_count, tenure_count;
    struct list_node claims, contenders; /* contenders: the one used last at the end */
    struct list_node tenures;            /* struct tenure, the newest at the end */
    struct list_node session_stats;      /* struct session_stats, the one used last first */
};

/* A contenders is who is at a lock key besides its holder. */
struct contenders {
    struct contender *list;
    struct key_stats *key_stats; /* a workload each */
    struct tenure *tenures;      /* a session each */
    int64_t length_ms;           /* of the key's last lease that was given here; 0 none known */
};

/* An entry is what is known of a lock key. */
struct entry {
    struct table_link link;        /* in its table, or of those to be used again */
    struct claim *claims;          /* oldest first */
    uint64_t live_fence;           /* newest lease known, and not known to be gone; 0 none */
    uint64_t live_since;           /* the token counter when it became known, or a newer one to be gone */
    uint64_t gone_fence;           /* newest lease known to be gone */
    struct contenders *contenders; /* NULL until somebody waits for the key, or reads it */
    uint32_t hash;                 /* the low half */
    uint32_t db;
    uint32_t len;
    uint16_t slot;
    uint16_t claim_count;
    char name[]; /* room for ENTRY_NAME_KEPT at least */
};

/* What few claims have, and so is not in each. */
struct claim_extra {
    int64_t
        deadline_ms;  /* a late release is not expected any more then; 0: as the claim's connection and lease have it */
    uint64_t sighted; /* the token counter when its value was shown last to who may speak for it; 0 never */
    int64_t one_shot_ms; /* a one-shot client acquired the lock: its renewal ends then (one_shot.c); 0: none did */
};

enum { RENEWAL_BITS = 19 };

struct claim {
    struct timer timer;
    uint32_t told_by; /* the low half of the number of the command or transaction that told its end last, if its answer
                       * crossed no other; else 0 */
    struct claim *next; /* of the entry, younger */
    struct entry *entry;
    struct peer *peer;
    struct list_node of_peer;
    const struct lock_rule *rule; /* with a reference to its set */
    struct workload *workload;    /* with a reference; NULL: none is known */
    uint64_t token;
    uint64_t fence; /* 0: the acquisition's outcome is unknown */
    uint64_t told;  /* the token counter when an answer last told its end */
    uint64_t value; /* keyed hash */
    uint32_t uses;  /* commands in flight that speak by it */
    uint32_t login;
    int64_t granted_ms;
    int64_t end_ms;                   /* when the lease ends, or ended; 0 never */
    int64_t renew_ms;                 /* when the next renewal is due, or was asked for */
    int64_t period_ms;                /* it is renewed for so long */
    struct claim_extra *extra;        /* NULL: all 0 */
    uint32_t renewals : RENEWAL_BITS; /* no more are counted than have room */
    uint32_t vouched : 1;             /* it was extended since a release was refused last */
    uint32_t suspects : 2;            /* releases of losers that were refused while it was live, SUSPECTS_MAX at most */
    uint32_t cut_short : 1;           /* it ended before its time, or a renewal was on its way */
    uint32_t looking : 1;             /* what is in flight is no renewal but a look */
    uint32_t looked : 1;              /* it has been looked at before its end */
    uint32_t shown : 1;     /* of a list lock's node that its session was shown and did not push: it may be the owner */
    uint32_t heritable : 1; /* its owner left: it is renewed for an heir, if there is one */
    uint32_t common : 1;    /* heritable: for whoever of the client comes back */
    uint32_t handing : 1;   /* its owner was sent away because this process stops */
    uint32_t unhanded : 1;  /* its last expiry was asked for in vain */
    uint32_t told_long : 1; /* that it is held for long was reported */
    uint32_t inherited : 1; /* one of the leases of its peer's estate: heir_counts */
    bool ended : 1;         /* the lease is not live any more */
    bool reserved : 1;      /* a release of it is in flight, not only queued */
    bool doubtful : 1;      /* a release of it got lost: used again only where there is nothing else */
    bool queue : 1;         /* of a list lock; its value is the node */
    bool valued : 1;        /* the value is known */
    bool leased : 1;        /* the expiry is the proxy's own */
    bool renewing : 1;      /* the proxy renews it */
    bool asked : 1;         /* a renewal is in flight, or a look */
    bool told_since : 1;    /* and an answer to a command has told the lease's end meanwhile */
    bool contended : 1;     /* other sessions of the workload lost attempts during the lease */
    bool self_lost : 1;     /* its own session did */
    bool taken : 1;         /* released by a session that never tried: its owner's release is still to come */
    bool reported : 1;      /* its owner's leaving was dealt with */
    bool scripted : 1;      /* a script of the application's is in flight that may release it */
    bool observed : 1;      /* inferred from a command that passed unchanged: Redis has no guard record of it */
    bool overwrote : 1;     /* observed: written over a lock that was there */
    uint16_t others;        /* observed: what other sessions have counted on top */
};

/* A contender is a session that may have to say something about a key's lease: what it lost there, and what it was
 * shown. */
struct contender {
    struct timer timer;
    struct contender *next, **at; /* of the entry, and the pointer to this one */
    struct entry *entry;
    struct peer *peer;
    struct list_node of_peer;
    uint64_t lost_fence; /* of the lease that it lost against; 0 none, foreign, or not known */
    uint64_t read_fence; /* 0 none, foreign, or unknown */
    uint64_t tried;      /* keyed hash of the value that it tried to write last; 0 none is known */
    uint64_t
        recognised;   /* K: fence of the lease that the session speaks for, although another one acquired it; 0 none */
    int64_t lost_ms;  /* since when it loses */
    uint64_t read_at; /* the number that the answer took of the token counter */
    int64_t touched_ms;
    int64_t memory_ms;                  /* kept so long after it was touched */
    bool lost;                          /* the last attempt to acquire was in vain: a loser */
    bool released;                      /* it has sent a release since its last attempt */
    bool shown_since;                   /* it was shown the value since then */
    uint8_t lost_row;                   /* attempts lost in a row, up to LOST_ROW_MAX: no release or lease in between */
    uint8_t suspicious_row;             /* of these, against the lease that is live, while it is suspicious */
    int64_t sent_ms;                    /* when its last attempt was lost, or it last released */
    int64_t held_ms;                    /* since when its release is held back; 0: none is */
    uint64_t held_fence;                /* of the lease that was live then */
    bool queued_own;                    /* it has pushed nodes into a list lock, as a party of its own */
    bool queued_client;                 /* likewise, for its client */
    uint32_t login;                     /* of the last push */
    const struct lock_rule *queue_rule; /* with a reference to its set, where it has pushed */
    bool seen_known;
    bool wrote; /* what was seen is what the session itself wrote: no reading of it */
    uint32_t seen_len, seen_cap;
    char *seen;
};

/* For fences: the newest lease that a session has acquired on a key and has not released itself. It is kept when the
 * claim is gone. */
struct tenure {
    struct tenure *next, **at; /* of the entry, and the pointer to this one */
    struct list_node of_peer;
    struct entry *entry;
    struct peer *peer;
    const struct lock_rule *rule; /* with a reference to its set */
    struct workload *workload;    /* with a reference; NULL: none is known */
    uint64_t fence;
};

/* A row of contention.c's table. */
enum { CONTENTION_SETS = 16, CONTENTION_WAYS = 4, CONTENTION_KEY_MAX = 160 };
struct contention {
    uint64_t hash;
    int64_t minute; /* that lost[0] counts */
    uint32_t lost[CONTENTION_MINUTES];
    uint32_t db, len;
    bool used;
    char name[CONTENTION_KEY_MAX]; /* its beginning, where it is longer */
};

struct shard {
    pthread_mutex_t mutex;
    bool alone; /* the mutex is not needed */
    struct lock_engine *engine;
    struct table entries, peers, workloads;
    struct list_node idle_workloads; /* all workloads, in the order of use */
    struct table facts;              /* struct fact, facts.c's */
    struct list_node confirmed;      /* all of them, the one that was confirmed first in front */
    struct timer_heap timers;
    uint32_t live, claims;     /* claims believed live of leases that were given here, and all */
    struct claim *free_claims; /* a few to be used again */
    struct table_link *free_entries;
    uint32_t free_claim_count, free_entry_count;
    struct lock_stats stats;       /* the counters in it */
    struct contention *contention; /* NULL until an attempt is lost */
};

struct lock_engine {
    char process[PROCESS_ID_LEN + 1];
    struct lock_sink sink;
    struct hash_seed key_seed, value_seed;
    atomic_uint_fast64_t attempts;       /* token numbers given out */
    atomic_uint_fast64_t newest_session; /* greatest id opened */
    struct client_table clients;
    /* Under the clients' mutex: closed sessions' peers that are still to be gone through, and how many steps that may
     * take at the time `leave_ms`. */
    struct list_node departing;
    int64_t leave_ms;
    unsigned leave_steps;
    atomic_bool departs;                       /* there are some */
    atomic_uint_fast64_t releasers[RELEASERS]; /* hashes of (rule, identity) that released once */
    atomic_bool leaving;                       /* this process stops */
    atomic_bool elsewhere;                     /* another proxy has given a lease to a client that is here, too */
    struct shard shards[SHARDS];
};

static inline void shard_lock(struct shard *sh) {
    if (!sh->alone)
        pthread_mutex_lock(&sh->mutex);
}

static inline void shard_unlock(struct shard *sh) {
    if (!sh->alone)
        pthread_mutex_unlock(&sh->mutex);
}

/* ---- ledger.c -------------------------------------------------------------------------------- */

/* The hash of a key, and its pattern's in *pattern (NULL: not wanted). Keys of one pattern are in one shard. */
uint64_t ledger_hash(const struct lock_engine *e, const struct lock_key *key, uint64_t *pattern);
struct shard *ledger_shard(struct lock_engine *e, uint64_t hash);
/* The next number of an attempt, for its token. Even: an attempt of a workload that is pooled takes the odd one before
 * it, so that every proxy can tell by the lease's token. */
uint64_t ledger_number(struct lock_engine *e);
void ledger_init(struct lock_engine *e, uint64_t seed);
void ledger_clear(struct lock_engine *e);
/* Gives the memory of tables back that have become too large. */
void ledger_trim(struct shard *sh);

struct entry *entry_find(struct shard *sh, const struct lock_key *key, uint64_t hash);
struct entry *entry_get(struct shard *sh, const struct lock_key *key, uint64_t hash);
/* A new one; there is none yet. */
struct entry *entry_add(struct shard *sh, const struct lock_key *key, uint64_t hash, uint16_t slot);
/* Frees the entry if nothing is left in it. */
void entry_settle(struct shard *sh, struct entry *en);
struct lock_key entry_key(const struct entry *en);

struct peer *peer_find(struct shard *sh, uint64_t id);
struct peer *peer_get(struct shard *sh, struct lock_session *s);
/* Adds a peer of this number, of which there is none yet. */
struct peer *peer_add(struct shard *sh, uint64_t id, struct lock_client *client);
/* Adds a peer for the owner of a lease that another proxy gave to the client. Freed with its last claim. */
struct peer *peer_remote(struct shard *sh, struct lock_client *c);
/* Frees a closed peer that nothing refers to any more. */
void peer_settle(struct shard *sh, struct peer *p);
/* Frees a session's peer that says nothing of it, in the session's thread: peer_get makes the same again. */
void peer_forget(struct shard *sh, struct peer *p);

/* Adds a claim in its place among the entry's. Takes a reference to the rule's set. */
struct claim *claim_add(struct shard *sh, struct entry *en, struct peer *p, const struct lock_rule *rule,
                        uint64_t token, uint64_t fence);
/* The first of an entry's claims, oldest first; NULL: it has none, or there is no entry (nothing is known of the
 * key). */
static inline struct claim *entry_claims(const struct entry *en) {
    return en ? en->claims : NULL;
}
/* The first of an entry's contenders; NULL: it has none, or there is no entry. */
static inline struct contender *entry_contender_list(const struct entry *en) {
    return en->contenders ? en->contenders->list : NULL;
}
static inline struct tenure *entry_tenures(const struct entry *en) {
    return en->contenders ? en->contenders->tenures : NULL;
}
static inline struct key_stats *entry_key_stats(const struct entry *en) {
    return en->contenders ? en->contenders->key_stats : NULL;
}
/* The entry's contenders, made if there is none; it goes with the entry. */
struct contenders *entry_contenders(struct entry *en);
struct claim *claim_find(const struct entry *en, uint64_t token);
/* What few claims have, to change it: made if there is none. */
struct claim_extra *claim_extra(struct claim *c);
static inline uint64_t claim_sighted(const struct claim *c) {
    return c->extra ? c->extra->sighted : 0;
}
/* When the renewal of a one-shot client's lock ends; 0: the lock is none of a one-shot client. */
static inline int64_t claim_one_shot(const struct claim *c) {
    return c->extra ? c->extra->one_shot_ms : 0;
}
/* What the expiry of the claim's lock was set to last; 0: it has none. */
static inline int64_t claim_length(const struct claim *c) {
    return c->period_ms > 0 ? c->period_ms : 0;
}
/* Takes the claim out and frees it. Its entry and peer stay, even empty. */
void claim_remove(struct shard *sh, struct claim *c);

struct contender *contender_find(const struct entry *en, const struct peer *p);
struct contender *contender_get(struct shard *sh, struct entry *en, struct peer *p);
void contender_see(struct contender *w, uint64_t fence, const char *value, size_t len);
void contender_forget_seen(struct contender *w);
/* Takes a contender out and frees it; its entry stays, even empty. */
void contender_remove(struct shard *sh, struct contender *w);

/* Writes a token, UUID:N, N of eight digits or more. Returns the length, without the NUL. Number 0: there is none. */
uint8_t token_write(const struct lock_engine *e, uint64_t number, char out[LOCK_TOKEN_MAX]);

/* ---- attribute.c ------------------------------------------------------------------------------ */

/* Whether connections count as shared by the rule, or by what is known of the session alone. */
bool client_shares(const struct lock_rule *rule, bool overlapped);
/* Whether the claim's session, or what it shares its connections with, may speak for it over others. */
bool claim_shared(const struct claim *c);
/* For how long the release of a lease that has ended is expected, where it stands in others' way. */
int64_t claim_memory(const struct claim *c);
/* When the late release of a lease that has ended is not expected any more. */
int64_t claim_deadline(const struct shard *sh, const struct claim *c);
/* Whether a claim has no say any more. */
bool claim_is_over(const struct shard *sh, const struct claim *c, int64_t now_ms);
bool claim_is_live(const struct claim *c, int64_t now_ms);
/* Notes that so many refused releases are known of now, or more. Returns whether that is news. */
bool claim_suspect(struct claim *c, uint32_t suspects);
/* A release that was its own, perhaps, has been used for an older claim (C3): once its lease is over, its own is
 * expected until then at most. */
void claim_expect_until(struct claim *c, int64_t deadline_ms);
/* Whether a release was refused while the lease was live, and its holder has not extended it since. `suspects`: how
 * many refused releases a script's answer has counted. */
bool claim_suspicious(const struct claim *c, uint32_t suspects);
/* The claim with the lease that is live, as far as is known, of this client; NULL: none. */
struct claim *claim_live(const struct entry *en, const struct lock_client *client, int64_t now_ms);
/* Whether the lease may have been released through another proxy, over another connection of a pool: it made way before
 * its end, and nothing says that its session is one worker's. */
bool claim_spent_elsewhere(const struct lock_engine *e, const struct claim *c);
/* Whether the claim's lease, which its release has not found, may have been released through another proxy, so that the
 * release is meant for a lease that came after it (C6). A lease that is about to end may have ended by itself. */
bool attribute_made_way(const struct claim *c, int64_t now_ms);
/* Fills in the plan's claim, token, right and what the session has seen. */
void attribute(struct shard *sh, struct entry *en, struct peer *self, int64_t now_ms, struct lock_plan *plan);
/* Has the plan speak for this claim instead of the one that was chosen, if any. */
void attribute_to(struct shard *sh, struct entry *en, struct lock_plan *plan, struct claim *c, int64_t now_ms);
/* Finds (B2) the live lease that makes way for the session's next attempt: a release of it was refused, as far as is
 * known or as `suspects`, a script's count, says, and that release was the holder's. NULL: there is none. The claim
 * stays the entry's. */
struct claim *attribute_makes_way(const struct entry *en, const struct peer *self, uint32_t suspects, int64_t now_ms);
/* Whether this is the value that the session, or another whose readings count for it, was shown last. */
bool attribute_was_shown(const struct entry *en, const struct peer *self, const struct workload *f,
                         const struct lock_rule *rule, const char *value, size_t len);
/* Notes which claims have been sighted by a session that was shown this value. */
void attribute_sighting(struct shard *sh, struct entry *en, const struct peer *self, const struct workload *f,
                        const struct lock_rule *rule, const char *value, size_t len);

/* ---- aftermath.c ------------------------------------------------------------------------------- */

/* What is made of a release over a session whose last attempt was lost, in a workload that is not known. */
enum loser_release {
    LOSER_REFUSED,            /* it is a loser's, or may be */
    LOSER_BELIEVED,           /* it is a colleague's: the connection is pooled */
    LOSER_BELIEVED_BY_CHANCE, /* a colleague's too, but it came right behind the loss and proves nothing */
    LOSER_HELD_BACK           /* there is too little evidence yet: ask again in some ms */
};

/* Whether what came behind lost attempts shows that losers release. c may be NULL. */
bool aftermath_losers_release(const struct workload *f, const struct key_stats *c);
/* Within how many ms behind a loss a release is the loser's. */
int64_t aftermath_at_once_ms(const struct peer *p);
/* Within how many ms behind its session's last command a release comes without a thought. */
int64_t aftermath_soon_ms(const struct peer *p);
/* Notes that an attempt of the session was lost. */
void aftermath_lost(struct workload *f, struct key_stats *c, struct contender *w, int64_t now_ms);
/* Notes that the session tries again, or has acquired: no release came behind its last loss. */
void aftermath_tries_again(struct workload *f, struct key_stats *c, const struct peer *p);
/* Takes out the oldest loss, of which nothing more is expected. */
void aftermath_forget(struct workload *f, struct key_stats *c);
/* Takes out the losses before that time, once it is known what came behind them. */
void aftermath_tidy(struct workload *f, struct key_stats *c, int64_t before_ms, int64_t now_ms);
/* Notes a release for a lease of the client's over this session: a second one, where another session's is held back. */
void aftermath_second(struct workload *f, struct key_stats *c, const struct peer *p, int64_t now_ms);
/* Decides about a release over a loser (w, its contender) that has no claim; `live` is its client's live lease, as far
 * as is known, or NULL. `patient`: the caller can ask again later, as LOSER_HELD_BACK wants. `elsewhere`: other proxies
 * serve such clients, too. */
enum loser_release aftermath_release(struct workload *f, struct key_stats *c, struct contender *w,
                                     const struct claim *live, bool patient, bool elsewhere, int64_t now_ms);
/* Counts a lost attempt in a row against a suspicious lease; a lease that is not suspicious ends the row. */
void aftermath_row(struct contender *w, const struct claim *live);
/* Whether so many attempts were lost in a row without a release that the refused one was the holder's. */
bool aftermath_was_holders(const struct workload *f, const struct key_stats *c, const struct contender *w);
/* Notes that a release of a loser was refused on the key, here or at another proxy. */
void aftermath_refused(struct key_stats *c);
/* Notes that a refused release was the holder's: the workload's losers do not release. c may be NULL. */
void aftermath_mistaken(struct workload *f, struct key_stats *c);

/* ---- recognise.c ------------------------------------------------------------------------------ */

/* The value of a hash lock, as claims and contenders have it. The high half is the field's; the low half is its
 * content's, 0 where that is not known. `content` may be NULL. */
uint64_t value_of_field(const struct hash_seed *seed, const char *name, size_t len, const char *content,
                        size_t content_len);
/* Whether both are of one field; of other values, whether they are the same. */
static inline bool value_same_field(uint64_t a, uint64_t b) {
    return (a ^ b) >> 32 == 0;
}

/* Whether the claim's lease is one that the session is recognised for (K). `w` is the session's contender on the key,
 * or NULL. */
static inline bool recognised_for(const struct contender *w, const struct claim *c) {
    return w && w->recognised && w->recognised == c->fence && w->peer->client == c->peer->client;
}
/* Whether the session has to count as a loser: it is one, or the lease that it was recognised for is forgotten. */
bool recognised_no_more(const struct entry *en, const struct contender *w);
/* K1: the session was shown this value, of the lease with this fence (0: not known), or named it. Where it is the value
 * that the session tried to write, and values tell workers apart, the session is recognised. Returns whether it is. */
bool recognise(struct shard *sh, struct contender *w, const struct lock_rule *rule, const struct workload *f,
               uint64_t fence, const char *value, size_t len, int64_t now_ms);
/* K1 of a hash lock: the session was shown this field, and what it has (NULL: only that it is there). Returns whether
 * the session is recognised. */
bool recognise_field(struct shard *sh, struct contender *w, const struct lock_rule *rule, const struct workload *f,
                     const char *name, size_t len, const char *content, size_t content_len, int64_t now_ms);

/* ---- tenure.c --------------------------------------------------------------------------------- */

/* The session's tenure of the key; NULL: it has none. */
struct tenure *tenure_find(const struct entry *en, const struct peer *p);
/* Notes that the claim's session has acquired its lease, if a fence names the lock. The session is connected here. */
void tenure_begin(struct shard *sh, const struct claim *c);
/* The lease of the claim gets this fence: call it before the claim does. */
void tenure_renumber(const struct claim *c, uint64_t fence);
/* All leases of the key with this fence or a greater one come before it now. */
void tenures_push_back(const struct entry *en, uint64_t fence);
/* Takes a tenure out and frees it; its entry and peer stay, even empty. */
void tenure_remove(struct tenure *t);
/* Frees the tenures of a session that closes, and entries in which nothing is left. */
void tenures_leave(struct shard *sh, struct peer *p);
/* Notes that the session has another identity: what is known of its former workloads does not count any more. */
void tenures_identify(struct peer *p);
/* Whether other sessions of the client than the one that acquired may write under the lease. */
bool claim_writes_for_others(const struct claim *c);
bool tenure_writes_for_others(const struct tenure *t);

/* ---- data.c ----------------------------------------------------------------------------------- */

/* Decides the plan's data_free, when its claim has been chosen. */
void data_attribute(const struct entry *en, const struct peer *self, int64_t now_ms, struct lock_plan *plan);
/* Decides whether a command may touch data that speaks for the lease which `earlier`, before it in its transaction, may
 * acquire. */
void data_follow(struct lock_plan *plan, const struct lock_plan *earlier);

/* ---- queue.c ---------------------------------------------------------------------------------- */

/* Fills in what the scripts for list locks are told: right and party. */
void queue_attribute(struct shard *sh, const struct peer *self, struct lock_plan *plan);
/* Declares dead what a closed session has pushed, unless others of its client are there for it. Returns whether the
 * contender has to stay for that. */
bool queue_leave(struct shard *sh, struct contender *w);
/* Gives back what a contender holds for its nodes. */
void queue_forget(struct contender *w);

/* ---- member.c --------------------------------------------------------------------------------- */

/* Goes on with what closed sessions have left. Returns whether there is more. No shard is locked. */
bool member_departures(struct lock_engine *e, int64_t now_ms);

/* ---- lease.c ---------------------------------------------------------------------------------- */

enum lease_end {
    LEASE_OVER,  /* its time was up */
    LEASE_GONE,  /* found to be gone, nobody here knows why */
    LEASE_TAKEN, /* released or taken over through this proxy */
};

/* Starts a claim's lease, or changes its end: pttl as the script gave it, at some time since since_ms; `leased` if that
 * is the proxy's own. */
void lease_set(struct shard *sh, struct claim *c, int64_t pttl_ms, bool leased, int64_t since_ms, int64_t now_ms);
/* Changes a lease's end to what an answer told to the command with the number `began`. Where another was told meanwhile
 * nobody knows which came first in Redis: the later end is believed, for the holder's sake. Returns whether none
 * was. */
bool lease_told(struct shard *sh, struct claim *c, const struct lock_result *r, uint64_t began, int64_t since_ms,
                int64_t now_ms);
/* Ends a claim's lease. The claim stays, for its late release; lease_schedule drops one that has no release to come. */
void lease_end(struct shard *sh, struct claim *c, enum lease_end why, int64_t now_ms);
/* Puts the claim's next deadline into the heap, or drops the claim where it is over; false then. */
bool lease_schedule(struct shard *sh, struct claim *c, int64_t now_ms);
/* Deals with the leases of an owner that left: incidents, renewal ends, release if the rule wants it. */
void lease_abandon(struct shard *sh, struct claim *c, int64_t now_ms);
/* Whether the client of a closed session has had others open ever since. */
bool client_still_here(const struct peer *p);
/* Whether somebody is there for whom the lease should be kept. */
bool lease_owner_here(const struct claim *c);

/* Notes that a client has released under a rule, and is expected to release again; who never did is a throttle. */
void releaser_note(struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c);
bool releaser_known(const struct lock_engine *e, const struct lock_rule *rule, const struct lock_client *c);

/* ---- one_shot.c -------------------------------------------------------------------------------- */

/* A one-shot client's session has closed. Keeps the locks that it acquired just before without an expiry: marks the
 * peer's claims, and reports each. To be called before anything else is done about what the session leaves. */
void one_shot_leaves(struct shard *sh, const struct peer *p, int64_t now_ms);

/* ---- heir.c ------------------------------------------------------------------------------------ */

/* Notes that a session has come to its identity (s->client), or goes from it; in the latter case, whether it closes.
 * Its peers are told next then, and heir_gone at last. No shard is locked. */
void heir_come(struct lock_engine *e, struct lock_session *s, int64_t now_ms);
void heir_go(struct lock_engine *e, struct lock_session *s, bool closes, int64_t now_ms);
void heir_gone(struct lock_engine *e, struct lock_session *s);
/* Notes that a session was refused a lock: it works under none that it has come back for. */
void heir_refused(struct lock_engine *e, const struct peer *p);
/* Tell of a closed session's peer, before what it leaves is dealt with; when it is freed; and with all of its kind. */
void heir_peer_closed(struct lock_engine *e, struct lock_session *s, struct peer *p, int64_t now_ms);
void heir_peer_freed(struct lock_engine *e, struct peer *p);
void heir_peer_cleared(struct peer *p);
/* Notes that the owner of a lease has left it. Returns whether it is renewed for who comes in its place. */
bool heir_left(struct shard *sh, struct claim *c, int64_t now_ms);
/* The lease of a heritable claim is live after all; is over, or the claim is being freed. An estate without leases
 * takes no heir from another one. */
void heir_counts(struct shard *sh, struct claim *c);
void heir_over(struct shard *sh, struct claim *c);
/* Has the lease of a closed session be renewed for the session of this peer, which has proved to be its owner (K). */
void heir_proved(struct shard *sh, struct claim *c, const struct peer *p, int64_t now_ms);
/* Whether somebody has come in the place of the lease's owner. */
bool heir_attends(const struct claim *c);
/* Whether the lease is to be renewed for who has come in its owner's place, which is about to be done. Only where
 * heir_attends. */
bool heir_keeps(struct shard *sh, struct claim *c, int64_t now_ms);
/* Tells the sink, for other proxies, that a lease was left, which ends at until_ms. */
void heir_tell(struct shard *sh, const struct claim *c, int64_t until_ms, int64_t now_ms);
/* The ms after which to look again whether somebody has come in the owner's place. */
int64_t heir_look_ms(const struct claim *c);

/* ---- contention.c ------------------------------------------------------------------------------ */

/* Counts an attempt to acquire the lock that was lost; `hash` is the key's. */
void contention_note(struct shard *sh, const struct lock_key *key, uint64_t hash, int64_t now_ms);

/* ---- incident.c -------------------------------------------------------------------------------- */

struct occasion {
    int64_t now_ms;
    struct lock_key key;
    const char *client, *holder, *command;
    size_t holder_len;
    const char *rule, *identity;
};
/* Reports to the sink; `format` makes the action's text, which never contains a value or a token. */
void incident_report(struct shard *sh, enum lock_incident_kind kind, const struct occasion *on, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
