/*
 * Private to proxy/lock/: what the engine remembers, and the lowest of its layers.
 *
 *      ledger.h     what is remembered                      ledger, client, incident
 *      evidence.h   what it says                            workload, claim, aftermath, contention
 *      lease.h      a lease in time                         lease, succession
 *      choose.h     before the script: whose claim it is    attribute, list_party, recognise
 *      outcome.h    after it: what its answer changes       outcome, learn, apply, list_lock
 *      engine.h     what the session layer calls            engine, member, audit, look
 *
 * A file calls its own layer and the layers above it in this list, and includes no header of a layer below it
 * (tests/unit/test_includes.py).
 *
 *      engine ── 16 shards, by the key's pattern; each its mutex ────┐
 *        │                                                           ├─ entries: one a lock key
 *        └─ clients, by identity (own mutex)                         │    ├─ claims, oldest first
 *                                                                    │    └─ contenders: what a session saw and lost
 *                                                                    ├─ peers: what the shard knows of a session
 *                                                                    │    └─ its claims and contenders here
 *                                                                    └─ timers: a heap of deadlines
 *
 * A claim is a lease as this proxy knows it, with the session that acquired it. A contender is what a session has lost
 * or was shown on a key. A client is all connections with one identity.
 *
 * A claim and a contender are each in their entry's list, in their peer's list, and in the heap while they have a
 * deadline. A contended key has many contenders, and a session has few, so the contender of a session is looked for in
 * its peer's list. One shard holds all of that, so a command needs one mutex. An entry lives while it has a claim or a
 * contender. A peer lives while its session is open, has claims, or has a command in flight.
 *
 * A thread locks a shard before the clients, and never two shards at once.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "parser/invariant.h"
#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/lock/engine.h"
#include "proxy/lock/hash.h"
#include "proxy/lock/script_constants.h"

enum {
    SHARDS = 16,
    PROCESS_ID_LEN = 36,
    CONTENDERS_A_PEER = 1024, /* a session's keys are mostly of one pattern, and so in one shard */
    CLAIMS_A_KEY = 256,       /* ended ones beyond that are forgotten, oldest first */
    RELEASERS = 32768,        /* places for pairs of a rule and a client that has released under it */
    RETRY_MIN_MS = 100,       /* between attempts to renew */
    HELD_LONG_MS = 5 * 60 * 1000,
    EARLY_MS = 1000,         /* a new connection may come before the proxy notices the old one's end */
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
/* The first timer, taken out of the heap, if it is due by now_ms; else NULL. */
struct timer *timer_due(struct timer_heap *h, int64_t now_ms);
/* When the next timer is due, or NO_DEADLINE. */
int64_t timer_next(const struct timer_heap *h);

/* ---- clients --------------------------------------------------------------------------------- */

struct lock_client {
    struct table_link link; /* in its table */
    uint64_t hash;
    size_t refs;       /* sessions and peers; under the clients' mutex */
    uint32_t open;     /* open sessions; under the clients' mutex */
    atomic_uint epoch; /* how often its last session closed */
    struct list_node
        closed_peers; /* peers of closed sessions whose claims may still be used; under the clients' mutex */
    /* Private to client.c and succession.c, under the clients' mutex but for the atomics. `sessions`: the open ones,
     * the last to come at the end. `orphans`: what closed sessions left and no session has taken over. `back`, for
     * pooled sessions: a session has come since the last one closed. */
    struct list_node sessions, orphans;
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
void client_put(struct client_table *t, struct lock_client *c);
/* Adds a closed session's peer that still has claims or contenders to the client's closed peers: they are looked at
 * again when the client's last session closes. False: that session has closed already, and the peer was not added. */
bool client_closed_peer(struct client_table *t, struct peer *p);
/* Whether the client of a closed session has had other sessions open ever since. */
bool client_still_here(const struct peer *p);

/* ---- workloads, and what is learnt of them ------------------------------------------------- */

/*
 * A workload is one client's commands under one rule on one pattern of keys: what one application does to one kind of
 * lock. L6: what one application does never changes what another application's commands mean. The proxy therefore
 * learns of each workload, never of a whole client, whether its workers share connections. One shard has all keys of a
 * pattern, and so all of a workload.
 *
 * A session is pooled if its connection carries commands of several workers, and dedicated if it carries one worker's.
 * A crossing is a release over another session than the one that acquired. It shows that connections are pooled.
 * A loser is a session whose last attempt was refused.
 *
 *      workload ── session_stats: what one session did in the workload (in its peer)
 *         └─────── key_stats: what the workload did on one contended key (in its entry)
 *
 *      workload ── facts_tell ──> sink, and so Redis ──> engine_learnt ── fact ──> the same workload, here or elsewhere
 */

enum {
    WORKLOADS_A_SHARD = 1024, /* a further one replaces one that nothing refers to */
    WORKLOAD_IDLE_MS = 60 * 60 * 1000,
    FACTS_A_SHARD = 2048, /* a further one replaces the one confirmed first */
    FACT_REFRESH_MS = 24 * 60 * 60 * 1000,
    SESSION_STATS_A_PEER = 64,
    KEY_STATS_VALUES = 8,
    AFTERMATH_ROWS = 8,
    KEY_STATS_DEBTS = 32
};

/* Releases, acquisitions and lost attempts, halved from time to time. */
enum tally_what { TALLY_RELEASED, TALLY_ACQUIRED, TALLY_LOST, TALLIES };
struct tally {
    float of[TALLIES];
};

/* D3: counts of lost attempts. A loss is followed if a release comes at once over the same session, else quiet. The
 * index is the place in the session's row of lost attempts; the last element is the eighth and later. Halved from time
 * to time. */
struct aftermath {
    uint8_t total;
    uint8_t followed[AFTERMATH_ROWS], quiet[AFTERMATH_ROWS];
};

struct workload {
    struct table_link link; /* in its table */
    struct list_node idle;  /* in the order of use */
    uint64_t key;           /* of identity, rule and pattern */
    uint32_t refs;          /* session_stats, key_stats, claims */
    unsigned facts;         /* enum workload_fact, but FACT_DEDICATED, which follows from `row` */
    bool elsewhere;         /* another proxy has given it a lease */
    uint8_t longest_row;    /* the longest row of lost attempts before a refused release; 0: none was refused */
    struct aftermath after;
    bool audited;         /* its rule is in audit: no fact of it is written to Redis */
    bool crossed;         /* a crossing was seen, here or at another proxy; never reset */
    uint8_t told;         /* enum workload_fact: what Redis has of it, as far as this proxy knows */
    uint8_t votes;        /* crossings that count for `pooled` */
    uint8_t twice;        /* how often a session released twice in a row */
    uint8_t row;          /* contended releases in a row over the session that had acquired */
    uint8_t follow_count; /* of `followed` */
    uint16_t followed;    /* F2: a bit for each of the last losses: 1 if the loser's EXPIRE came right behind it */
    struct tally n;
    struct lock_times times;
    int64_t used_ms;
    int64_t told_ms; /* when Redis was told last, by this proxy or another one */
    struct shard *shard;
    /* Texts for logs and PROXY commands, cut to fit. The pattern is whole. */
    char client[LOCK_WORKLOAD_NAME_MAX], pattern[LOCK_WORKLOAD_NAME_MAX], rule[LOCK_WORKLOAD_NAME_MAX];
    size_t identity_len, rule_len;
    char names[]; /* the identity, then the rule's pattern, both whole and without a NUL */
};

/* What this proxy wrote to Redis of a workload, or read there from another proxy. The workload itself need not exist.
 */
struct fact {
    struct table_link link;
    struct list_node order; /* in the order of confirmation */
    uint64_t key;           /* the workload's */
    unsigned facts;         /* enum workload_fact */
    int64_t confirmed_ms;
};

struct session_stats {
    struct list_node of_peer; /* the one used last first */
    struct workload *workload;
    uint8_t row;       /* contended releases in a row over this session of leases that it had acquired */
    uint32_t attempts; /* over this session, to acquire */
};

/* What followed a lost attempt: not known yet; no release at once; a release. */
enum loss_next { LOSS_OPEN, LOSS_QUIET, LOSS_RELEASED };

struct loss {
    int64_t time_ms;
    uint64_t session_id;
    uint16_t at_once_ms; /* a release within so many ms comes at once */
    uint8_t next;        /* enum loss_next */
    uint8_t row;         /* its place in the session's row of lost attempts, from 1 */
    bool expired;        /* an EXPIRE followed it */
};

struct losses {
    uint8_t count;
    struct loss at[KEY_STATS_DEBTS]; /* oldest first */
};

/* C4: a loser's release that is held back, one for each key and workload. */
struct held_release {
    uint64_t session_id; /* 0: none is held back */
    int64_t seen_ms;     /* when the proxy last decided about it */
    uint8_t silent;      /* quiet losses since then */
    bool again;          /* it came right behind a release of the key: perhaps its worker releases twice */
};

/* What a workload did on one contended key. */
struct key_stats {
    struct key_stats *next; /* of the entry */
    struct workload *workload;
    struct tally n;
    struct aftermath after;
    bool doubled;          /* C4: two releases came for one lease: losers release on this key */
    int64_t released_ms;   /* when a release freed the key last */
    uint8_t unlike_losers; /* B2: quiet losses since a release was refused last, at places where losers release */
    struct held_release held;
    uint8_t value_count, value_next;
    uint64_t values[KEY_STATS_VALUES]; /* hashes of the last acquisitions' values */
    struct losses debts;               /* D1: each uses up one release */
    struct losses recent;              /* an EXPIRE or a release may still follow them */
    uint64_t live_fence;               /* of the lease that the next two fields describe; 0: none */
    int64_t asked_own_ms; /* since when the lease's own session asks for the lock in vain; 0: it does not */
    int64_t suspected_ms; /* since when the lease is known to be suspicious; 0: it is not */
};

static inline void lock_times_held(struct lock_times *t, int64_t ms) {
    t->held_ms += ms;
    t->holds++;
    if (ms > t->longest_hold_ms)
        t->longest_hold_ms = ms;
}

/* workload_ref takes a reference to a workload, and returns the workload; workload_put gives one back. NULL is allowed.
 */
static inline struct workload *workload_ref(struct workload *f) {
    if (f)
        f->refs++;
    return f;
}
static inline void workload_put(struct workload *f) {
    if (f) {
        invariant_debug(f->refs > 0, "a workload without references is given back");
        f->refs--;
    }
}

/* ---- what a shard remembers ------------------------------------------------------------------ */

/* A bit in the ids of peers that stand for a session at another proxy. Sessions' ids are counted, and are lower. */
#define PEER_ELSEWHERE ((uint64_t)1 << 63)

/* What one shard knows of a session. */
struct peer {
    struct table_link link;       /* in its table */
    uint64_t id;                  /* the session's */
    struct lock_session *session; /* valid until closed; NULL: the session is not one of this proxy */
    struct lock_client *client;
    uint64_t closed_at; /* the newest session's id when this one closed */
    uint32_t epoch;     /* the client's, when this session came to this shard */
    uint32_t in_flight; /* commands begun and not finished */
    bool closed;
    struct shard *shard;
    bool leaving;    /* its session has closed, and member.c is going through its claims and contenders */
    bool left_early; /* the client had other sessions when that began */
    uint32_t claims_left, contenders_left; /* that member.c has still to look at */
    uint32_t claim_count;
    struct list_node
        closed_link; /* of its client's closed peers, or of the engine's `departing`; under the clients' mutex */
    bool overlapped; /* its commands may be several workers' */
    bool remote;     /* it stands for the owner of a lease that another proxy gave, or this one before a restart */
    struct orphan *orphan; /* with a reference; the leases that a closed session left */
    uint32_t contender_count, session_stats_count, tenure_count;
    struct list_node claims, contenders; /* contenders: the one used last at the end */
    struct list_node tenures;            /* struct tenure, the newest at the end */
    struct alarm *alarms;                /* leases of whose end the session is still to hear; NULL: none */
    struct list_node session_stats;      /* struct session_stats, the one used last first */
};

/* What a closed session has left. All but the atomics is under the clients' mutex. */
struct orphan {
    struct list_node of_client; /* of its client's orphans that wait for a successor */
    struct lock_client *client;
    struct lock_session *successor; /* NULL: it waits for a successor, or gets none any more */
    size_t refs;                    /* the peers of the closed sessions that left it, and a session that closes */
    uint64_t tried;                 /* `came` of its last successor */
    int64_t left_ms;
    uint64_t group;  /* of an orphan that was left at another proxy; otherwise 0 */
    unsigned leases; /* live leases, of sessions that do not count as pooled */
    unsigned brief;
    atomic_bool attended; /* it has a successor */
    atomic_bool kept;     /* a lease was renewed for the successor */
};

/* What is known of the sessions that want a lock key besides its holder. */
struct contenders {
    struct contender *list;
    struct key_stats *key_stats; /* one for each workload */
    struct tenure *tenures;      /* one for each session */
    int64_t length_ms;           /* of the key's last lease that this proxy gave; 0: none is known */
};

/* What this proxy knows of a lock key. */
struct entry {
    struct table_link link;        /* in its table, or in the list of free entries */
    struct claim *claims;          /* oldest first */
    uint64_t live_fence;           /* of the newest lease known, unless it is known to have ended; 0: none */
    uint64_t live_since;           /* the token counter when live_fence or gone_fence was set last */
    uint64_t gone_fence;           /* of the newest lease known to have ended */
    struct contenders *contenders; /* NULL until a session loses an attempt on the key, or reads it */
    uint32_t hash;                 /* the low half */
    uint32_t db;
    uint32_t len;
    uint16_t slot;
    uint16_t claim_count;
    char name[]; /* room for ENTRY_NAME_KEPT at least */
};

/* Fields that few claims need: kept apart, so that the other claims take less memory. */
struct claim_extra {
    int64_t deadline_ms; /* from then on no late release is expected; 0: claim_deadline computes it */
    uint64_t sighted; /* the token counter when a session that may use the claim was shown its value last; 0: never */
    int64_t one_shot_ms; /* when the renewal of a one-shot client's lock ends (member.c); 0: it is no such lock */
};

enum { RENEWAL_BITS = 18 };

/* Whether the lease is known to have ended, and how. A later answer may show it live again. */
enum lease_state {
    LEASE_GRANTED,     /* not known to have ended; claim_is_live compares the time, too */
    LEASE_ENDED,       /* at its time */
    LEASE_CUT_SHORT,   /* before end_ms, or while a renewal was in flight */
    LEASE_AWAITS_OWNER /* a session that never tried has released the lease: the owner's release is yet to come */
};

/* What has become of the claim's own release. A release that was carried out removes the claim. */
enum release_state {
    RELEASE_NONE,      /* none was sent; a queued release does not count until EXEC */
    RELEASE_SENT,      /* one is in flight */
    RELEASE_DOUBTFUL,  /* the answer got lost: the claim is used only if the session has no other claim */
    RELEASE_SENT_AGAIN /* the answer got lost, and another release is in flight */
};

/* What the proxy has asked Redis for the lease. Crossed: the answer to another command has set end_ms meanwhile. */
enum renewal_state {
    RENEWAL_IDLE,
    RENEWAL_ASKED, /* a renewal is in flight */
    RENEWAL_CROSSED,
    LOOK_ASKED, /* a script that only reads the lock's end is in flight */
    LOOK_CROSSED
};

/* For which sessions the lease of a closed session is renewed. */
enum succession_state {
    SUCCESSION_NONE,   /* for none */
    SUCCESSION_WAITS,  /* for the orphan's successor, once the lease is live again */
    SUCCESSION_COUNTS, /* for the orphan's successor; the live lease counts for the orphan */
    SUCCESSION_COMMON  /* for any session of the client: they are pooled */
};

struct claim {
    struct timer timer;
    uint32_t told_by;   /* the low half of the number of the command or transaction whose answer set end_ms last; 0:
                         * another answer was on its way meanwhile */
    struct claim *next; /* of the entry, younger */
    struct entry *entry;
    struct peer *peer;
    struct list_node of_peer;
    const struct lock_rule *rule; /* with a reference to its set */
    struct workload *workload;    /* with a reference; NULL: none is known */
    uint64_t token;
    uint64_t fence; /* 0: the acquisition's outcome is unknown */
    uint64_t told;  /* the token counter when an answer set end_ms last */
    uint64_t value; /* keyed hash */
    uint32_t uses;  /* commands in flight that use the claim's token */
    uint32_t login;
    int64_t granted_ms;
    int64_t end_ms;            /* when the lease ends, or ended; 0 never */
    int64_t renew_ms;          /* when the next renewal is due, or was asked for */
    int64_t period_ms;         /* a renewal sets the expiry to this */
    struct claim_extra *extra; /* NULL: all 0 */
    /* The counts come first, so that all bits fit into 8 bytes with `others`. */
    uint32_t renewals : RENEWAL_BITS; /* how many; counting stops at the greatest number */
    uint32_t suspects : 2;            /* releases of losers refused while the lease was live, SUSPECTS_MAX at most */
    /* The four states: each is entered by one function of ledger.c, which checks what it leaves. */
    enum lease_state lease : 2;
    enum release_state release : 2;
    enum renewal_state renewal : 3;
    enum succession_state succession : 2;
    /* Facts of the lease, each learnt by itself. */
    bool queue : 1;        /* of a list lock; its value is the node */
    bool shown : 1;        /* list lock: the session was shown the node, and may be its owner */
    bool valued : 1;       /* the value is known */
    bool rewritten : 1;    /* the value was changed during the lease */
    bool leased : 1;       /* the expiry is the proxy's own */
    bool short_record : 1; /* the guard record has the short form, unless another proxy has rewritten it since */
    bool observed : 1;     /* inferred from a command that passed unchanged: Redis has no guard record */
    bool overwrote : 1;    /* observed: the command wrote over an existing lock */
    bool contended : 1;    /* other sessions of the workload lost attempts during the lease */
    bool self_lost : 1;    /* the claim's own session lost an attempt during the lease */
    bool vouched : 1;      /* the lease was extended after a release was refused last */
    bool told_long : 1;    /* the incident held_long was reported */
    bool delays : 1;       /* the lease ended without its release: the rule's lock-delay counts from end_ms on */
    /* Not a part of `release`: a script may be in flight beside a release. */
    bool scripted : 1; /* a script of the application's that may release the lease is in flight */
    /* Not a part of `renewal`: decided while an answer is on its way. */
    bool renewing : 1; /* the proxy renews the lease */
    bool looked : 1;   /* the lock's end was read before the lease ends */
    /* Not a part of `succession`: a successor may prove itself before lease_abandon has come to the lease, and this
     * process also hands over leases that have a successor. */
    bool reported : 1; /* lease_abandon has handled the owner's leaving */
    bool handing : 1;  /* the owner was disconnected because this process stops */
    bool unhanded : 1; /* the last expiry was requested, and not set */
    uint16_t others;   /* observed: what other sessions have added to the counter */
};

/* What a session has lost or was shown on a key. It is a loser from a refused attempt until it acquires. */
struct contender {
    struct timer timer;
    struct contender *next, **at; /* next of the entry; the pointer to this contender */
    struct entry *entry;
    struct peer *peer;
    struct list_node of_peer;
    uint64_t lost_fence; /* of the lease that refused the last attempt; 0: none, foreign, or not known */
    uint64_t read_fence; /* of the lease whose value was shown last; 0: none, foreign, or not known */
    uint64_t tried;      /* keyed hash of the value that the session tried to write last; 0: none is known */
    uint64_t recognised; /* K: fence of a lease of another session that this session may use too; 0: none */
    int64_t lost_ms;     /* when the first attempt of the present row was lost */
    int64_t counted_ms;  /* up to when the time since lost_ms is in the workload's times */
    uint64_t read_at;    /* the token counter when the value was shown last */
    int64_t touched_ms;
    int64_t memory_ms;      /* kept so long after touched_ms */
    bool lost;              /* the session's last attempt was refused: it is a loser */
    bool released;          /* the session has sent a release since its last attempt */
    bool shown_since;       /* the session was shown the value since its last attempt */
    bool release_due;       /* its lease was released over another session: its own release may still come */
    uint8_t lost_row;       /* attempts lost in a row, up to LOST_ROW_MAX: no release or lease in between */
    uint8_t suspicious_row; /* attempts of that row lost against the live lease while it was suspicious */
    int64_t sent_ms;        /* when the session's last attempt was lost, or it last released */
    int64_t held_ms;        /* since when its release is held back; 0: none is */
    uint64_t held_fence;    /* of the lease that was live at held_ms */
    bool queued_own;        /* the session has pushed nodes into a list lock, as a party of its own */
    bool queued_client;     /* the session has pushed nodes, with its client as the party */
    uint32_t login;         /* of the last push */
    const struct lock_rule *queue_rule; /* of the last push, with a reference to its set */
    bool seen_known;
    bool wrote; /* `seen` is what the session itself wrote, and was not shown to it */
    uint32_t seen_len, seen_cap;
    char *seen;
};

/* For fences: the newest lease that a session has acquired on a key and not released itself. It outlives the claim. */
struct tenure {
    struct tenure *next, **at; /* next of the entry; the pointer to this tenure */
    struct list_node of_peer;
    struct entry *entry;
    struct peer *peer;
    const struct lock_rule *rule; /* with a reference to its set */
    struct workload *workload;    /* with a reference; NULL: none is known */
    uint64_t fence;
};

/* A lease of whose end its session is still to hear. */
struct alarm {
    struct alarm *next;           /* of the peer */
    const struct lock_rule *rule; /* with a reference to its set */
    uint64_t token;
    int64_t ended_ms;
    bool said; /* another incident has said it */
    uint32_t db, len;
    char name[];
};

/* A row of contention.c's table. */
enum { CONTENTION_SETS = 16, CONTENTION_WAYS = 4 };
struct contention {
    uint64_t hash;
    int64_t minute; /* that of.lost[0] counts */
    bool used;
    struct lock_contention of;
};

struct shard {
    pthread_mutex_t mutex;
    bool alone; /* the mutex is not needed */
    struct lock_engine *engine;
    struct table entries, peers, workloads;
    struct list_node idle_workloads; /* all workloads, in the order of use */
    struct table facts;              /* struct fact, workload.c's */
    struct list_node confirmed;      /* all facts, in the order of confirmation */
    struct timer_heap timers;
    uint32_t live, claims;     /* claims whose lease this proxy gave and believes live; all claims */
    struct claim *free_claims; /* up to FREE_CLAIMS to be used again */
    struct table_link *free_entries;
    uint32_t free_claim_count, free_entry_count;
    struct lock_stats stats;       /* its counters; the gauges are not used */
    struct contention *contention; /* NULL until an attempt is lost */
    struct lock_times others;      /* engine_other_times */
};

struct lock_engine {
    char process[PROCESS_ID_LEN + 1];
    struct lock_sink sink;
    struct hash_seed key_seed, value_seed;
    atomic_uint_fast64_t attempts;       /* token numbers given out */
    atomic_uint_fast64_t fences;         /* the last one that engine_new_fence has given out */
    atomic_uint_fast64_t fences_ahead;   /* so far are its fences ahead of the wall clock, in us */
    atomic_uint_fast64_t newest_session; /* greatest id opened */
    struct client_table clients;
    /* Under the clients' mutex: peers of closed sessions that member.c has still to go through, and how many steps it
     * may take at `leave_ms`. */
    struct list_node departing;
    int64_t leave_ms;
    unsigned leave_steps;
    atomic_bool departs;                       /* `departing` is not empty */
    atomic_uint_fast64_t releasers[RELEASERS]; /* hashes of (rule, identity) that released once */
    atomic_bool leaving;                       /* this process stops */
    atomic_bool elsewhere;                     /* another proxy has given a lease to a client of this proxy */
    atomic_int_fast64_t may_forget_ms;         /* Redis may have forgotten leases that it granted before */
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

/* Unlocks the shard `before` (NULL: none), and locks the next one that has a bit in `which`; NULL: there is no more. */
static inline struct shard *shard_next(struct lock_engine *e, struct shard *before, uint64_t which) {
    if (before)
        shard_unlock(before);
    for (struct shard *sh = before ? before + 1 : e->shards; sh < e->shards + SHARDS; sh++)
        if (which >> (sh - e->shards) & 1) {
            shard_lock(sh);
            return sh;
        }
    return NULL;
}

#define ALL_SHARDS UINT64_MAX
/* Walks the shards with a bit in `which`, each locked. The body must not leave by `break` or `return`. */
#define SHARDS_FOREACH(sh, e, which)                                                                                   \
    for (struct shard *sh = shard_next(e, NULL, which); sh; sh = shard_next(e, sh, which))

/* Walks all claims of a shard; the body may not remove them. */
#define CLAIMS_FOREACH(c, sh)                                                                                          \
    TABLE_EACH(c##_entry, &(sh)->entries, const struct entry, link)                                                    \
        for (struct claim *c = c##_entry->claims; c; c = c->next)

/* ---- ledger.c -------------------------------------------------------------------------------- */

/* Hashes a key, and its pattern into *pattern (NULL: not wanted). Keys of one pattern are in one shard. */
uint64_t ledger_hash(const struct lock_engine *e, const struct lock_key *key, uint64_t *pattern);
struct shard *ledger_shard(struct lock_engine *e, uint64_t hash);
/* Locks the shard of a key with this hash. *en: the key's entry, or NULL. */
struct shard *ledger_lock(struct lock_engine *e, const struct lock_key *key, uint64_t hash, struct entry **en);
/* The next number for an attempt's token, even. An attempt of a pooled workload takes the odd number before it, so that
 * every proxy sees by the lease's token that the workload is pooled. */
uint64_t ledger_number(struct lock_engine *e);
void ledger_init(struct lock_engine *e, uint64_t seed);
void ledger_clear(struct lock_engine *e);

struct entry *entry_find(struct shard *sh, const struct lock_key *key, uint64_t hash);
struct entry *entry_get(struct shard *sh, const struct lock_key *key, uint64_t hash);
/* Adds an entry for a key that has none yet. */
struct entry *entry_add(struct shard *sh, const struct lock_key *key, uint64_t hash, uint16_t slot);
/* Frees the entry if nothing is left in it. */
void entry_settle(struct shard *sh, struct entry *en);
struct lock_key entry_key(const struct entry *en);

struct peer *peer_find(struct shard *sh, uint64_t id);
struct peer *peer_get(struct shard *sh, struct lock_session *s);
/* Adds a peer of this number, of which there is none yet. */
struct peer *peer_add(struct shard *sh, uint64_t id, struct lock_client *client);
/* Frees a closed peer that nothing refers to any more. */
void peer_settle(struct shard *sh, struct peer *p);
/* Frees a peer that holds nothing; peer_get would make an equal one. Called in the session's thread. */
void peer_forget(struct shard *sh, struct peer *p);

/* Adds a claim to the entry, whose claims stay ordered by age. Takes a reference to the rule's set. */
struct claim *claim_add(struct shard *sh, struct entry *en, struct peer *p, const struct lock_rule *rule,
                        uint64_t token, uint64_t fence);
/* The oldest of an entry's claims; NULL: there is none. `en` may be NULL, here and below. */
static inline struct claim *entry_claims(const struct entry *en) {
    return en ? en->claims : NULL;
}
static inline struct contender *entry_contender_list(const struct entry *en) {
    return en && en->contenders ? en->contenders->list : NULL;
}
static inline struct tenure *entry_tenures(const struct entry *en) {
    return en && en->contenders ? en->contenders->tenures : NULL;
}
static inline struct key_stats *entry_key_stats(const struct entry *en) {
    return en && en->contenders ? en->contenders->key_stats : NULL;
}
/* The entry's struct contenders, made if there is none. It is freed with the entry. */
struct contenders *entry_contenders(struct entry *en);
struct claim *claim_find(const struct entry *en, uint64_t token);
/* The oldest claim of the lease with this fence. `client`: only of this client; NULL: of any. */
struct claim *claim_of_fence(const struct entry *en, uint64_t fence, const struct lock_client *client);
/* The claim's struct claim_extra, made if there is none. */
struct claim_extra *claim_extra(struct claim *c);
/* When the renewal of a one-shot client's lock ends; 0: no one-shot client acquired the lock. */
static inline int64_t claim_one_shot(const struct claim *c) {
    return c->extra ? c->extra->one_shot_ms : 0;
}
/* What the expiry of the claim's lock was set to last; 0: it has none. */
static inline int64_t claim_length(const struct claim *c) {
    return c->period_ms > 0 ? c->period_ms : 0;
}
/* Frees the claim. Its entry and peer stay, even empty; claim_drop frees the peer, too, if nothing refers to it. */
void claim_remove(struct shard *sh, struct claim *c);
void claim_drop(struct shard *sh, struct claim *c);

struct contender *contender_find(const struct entry *en, const struct peer *p);
/* What the session has lost and was shown on the key; NULL: nothing. */
struct contender *contender_of(struct shard *sh, const struct entry *en, const struct lock_session *s);
struct contender *contender_get(struct shard *sh, struct entry *en, struct peer *p);
/* Whether the value is what the session was shown, or wrote, last. */
bool contender_saw(const struct contender *w, const char *value, size_t len);
/* The contender was used now: it is kept for longer. */
void contender_touched(struct shard *sh, struct contender *w, const struct lock_rule *rule, int64_t now_ms);
void contender_forget_seen(struct contender *w);
/* Frees a contender. Its entry stays, even empty. */
void contender_remove(struct shard *sh, struct contender *w);

/* Gives back the reference that a contender holds for its nodes' rule. */
void queue_forget(struct contender *w);
/* Frees a tenure. Its entry and peer stay, even empty. */
void tenure_remove(struct tenure *t);
/* Frees a session's statistics in one workload, or in all. */
void session_stats_free(struct peer *p, struct session_stats *h);
/* Frees an alarm, or all of a session's. `at` points to it in the peer's list. */
void alarm_remove(struct alarm **at);
void alarms_clear(struct peer *p);
void session_stats_clear(struct peer *p);

/* Writes a token, UUID:N. Returns the length, without the NUL. Number 0: there is none. */
uint8_t token_write(const struct lock_engine *e, uint64_t number, char out[LOCK_TOKEN_MAX]);

/* ---- a claim's states: ledger.c ------------------------------------------------------------------------------- */

/* Whether the lease is known to have ended. */
static inline bool claim_ended(const struct claim *c) {
    return c->lease != LEASE_GRANTED;
}
/* Whether a release by this claim is in flight, and not only queued. */
static inline bool claim_releasing(const struct claim *c) {
    return c->release == RELEASE_SENT || c->release == RELEASE_SENT_AGAIN;
}
/* Whether the answer to a release by this claim got lost. */
static inline bool claim_doubtful(const struct claim *c) {
    return c->release == RELEASE_DOUBTFUL || c->release == RELEASE_SENT_AGAIN;
}
/* Whether a renewal or a look is in flight. */
static inline bool claim_asked(const struct claim *c) {
    return c->renewal != RENEWAL_IDLE;
}
static inline bool claim_looking(const struct claim *c) {
    return c->renewal == LOOK_ASKED || c->renewal == LOOK_CROSSED;
}
/* Whether the answer to another command has set the end while a renewal or a look was in flight. */
static inline bool claim_crossed(const struct claim *c) {
    return c->renewal == RENEWAL_CROSSED || c->renewal == LOOK_CROSSED;
}
/* Whether the owner has left, and the lease is renewed for its successor, if there is one. */
static inline bool claim_heritable(const struct claim *c) {
    return c->succession != SUCCESSION_NONE;
}

/* Each sets one state, and checks that the step exists. */
void claim_lease_enter(struct claim *c, enum lease_state to);
void claim_renewal_enter(struct claim *c, enum renewal_state to);
void claim_succession_enter(struct claim *c, enum succession_state to);

/* A release by this claim is sent, was not carried out, or its answer got lost. */
void claim_release_sent(struct claim *c);
void claim_release_undone(struct claim *c);
void claim_release_lost(struct claim *c);
/* The answer to another command has set the lease's end. */
void claim_end_told(struct claim *c);

/* ---- orphans: client.c ----------------------------------------------------------------------------- */

/* A session has come to its identity (s->client), or leaves it; `closes`: it closes, and the orphan that it leaves is
 * `left`, with a reference. No shard is locked. */
void successor_come(struct lock_engine *e, struct lock_session *s, int64_t now_ms);
void successor_go(struct lock_engine *e, struct lock_session *s, bool closes, int64_t now_ms);
/* Gives a reference to an orphan back, if there is one, and sets it to NULL. */
void orphan_put(struct lock_engine *e, struct orphan **at);
/* successor_counts: a heritable claim's lease is live, and counts for its orphan. successor_over: the lease has ended,
 * or the claim is being freed. An orphan without live leases gets no successor. */
void successor_counts(struct shard *sh, struct claim *c);
void successor_over(struct shard *sh, struct claim *c);
/* With the clients' mutex held: makes an orphan; gives it this successor in place of its own; gives it to the first
 * session that may be its next successor; counts a live lease for its peer's orphan. */
struct orphan *orphan_new(struct lock_client *client, int64_t now_ms);
void orphan_attend(struct orphan *st, struct lock_session *s);
void orphan_offer(struct orphan *st);
void orphan_count(struct claim *c);

/* ---- incident.c -------------------------------------------------------------------------------- */

/* Reports to the sink, with this kind in place of on->kind, and with the action that `format` makes in place of
 * on->action. It never contains a value or a token. */
void incident_report(struct shard *sh, enum lock_incident_kind kind, const struct lock_incident *on, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));
