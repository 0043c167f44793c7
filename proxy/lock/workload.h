/*
 * Private to proxy/lock/: workloads, and what is learnt of them.
 *
 * A workload is one client's commands under one rule on one pattern of keys: what one application does to one kind of
 * lock. L6: what one application does never changes what another application's commands mean. The proxy therefore
 * learns of each workload, never of a whole client, whether its workers share connections. One shard has all keys of a
 * pattern, and so all of a workload.
 *
 * A session is pooled if its connection carries commands of several workers, and dedicated if it carries one worker's.
 * A crossing is a release over another session than the one that acquired. It shows that connections are pooled.
 * A loser is a session whose last attempt was refused.
 *
 *      *      workload ── session_stats: what one session did in the workload (in its peer)
 *         └─────── key_stats: what the workload did on one contended key (in its entry)
 *
 *      workload ── facts_tell ──> sink, and so Redis ──> engine_learnt ── fact ──> the same workload, here or elsewhere
 */
#ifndef LOCKKEEPER_LOCK_WORKLOAD_H
#define LOCKKEEPER_LOCK_WORKLOAD_H

#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/lock/engine.h"

struct shard;
struct peer;
struct entry;
struct contenders;
struct claim;

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
struct tally {
    float releases, acquired, lost;
};

/* D3: counts of lost attempts. A loss is followed if a release comes at once over the same session, and quiet if
 * none does. The index is the place in the session's row of lost attempts: [0] the first of a row, the last element the
 * eighth and later. Halved from time to time. */
struct aftermath {
    uint8_t total;
    uint8_t followed[AFTERMATH_ROWS], quiet[AFTERMATH_ROWS];
};

struct workload {
    struct table_link link; /* in its table */
    struct list_node idle;  /* in the order of use */
    uint64_t key;           /* of identity, rule and pattern */
    uint32_t refs;          /* session_stats, key_stats, claims */
    bool pooled;            /* its workers share connections: two crossings were seen */
    bool elsewhere;         /* another proxy has given it a lease */
    bool losers_release;    /* D3: its losers send a release right behind a lost attempt */
    bool losers_quiet;      /* sessions lost many attempts in a row without a release, here or at another proxy */
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
    int64_t used_ms;
    int64_t told_ms; /* when Redis was told last, by this proxy or another one */
    struct shard *shard;
    /* Texts for logs and PROXY commands, cut to fit. The pattern is whole. */
    char client[LOCK_WORKLOAD_NAME_MAX], pattern[LOCK_WORKLOAD_NAME_MAX], rule[LOCK_WORKLOAD_NAME_MAX];
    size_t identity_len, rule_len;
    char names[]; /* the identity, then the rule's pattern, both whole and without a NUL */
};

/* What this proxy wrote to Redis of a workload, or read there from another proxy. The workload itself need not
 * exist. */
struct fact {
    struct table_link link;
    struct list_node order; /* in the order of confirmation */
    uint64_t key;           /* the workload's */
    unsigned facts;         /* enum workload_fact */
    int64_t confirmed_ms;
};

/* What one session did in a workload. */
struct session_stats {
    struct list_node of_peer; /* the one used last first */
    struct workload *workload;
    uint8_t row; /* contended releases in a row over this session of leases that it had acquired */
};

/* What followed a lost attempt: it is not known yet; no release came at once; a release came. */
enum loss_next { LOSS_OPEN, LOSS_QUIET, LOSS_RELEASED };

/* A lost attempt. */
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

/* C4: a loser's release that is held back. One for each key and workload is remembered. */
struct held_release {
    uint64_t session_id; /* 0: none is held back */
    int64_t seen_ms;     /* when the proxy last decided about it */
    uint8_t row;         /* how many lost attempts of its session came before it */
    uint8_t silent;      /* quiet losses since then, each as far along in its row */
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

/* Numbers the workload of a session's identity for a key under a rule. `pattern`: the key's, hashed. */
uint64_t workload_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* Numbers a workload by the hashes of its identity, rule and pattern. */
uint64_t workload_number_of(uint64_t client, uint64_t rule, uint64_t pattern);
/* Finds the workload with this number; NULL: there is none. */
struct workload *workload_of_key(const struct shard *sh, uint64_t key);
/* Finds the workload with this number for one of its sessions; NULL: there is none. */
struct workload *workload_of(struct shard *sh, const struct peer *p, uint64_t number);
/* Finds the workload of a session's client, a rule and a pattern; NULL: there is none, or the rule is NULL. */
struct workload *workload_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* Returns the workload of a session that has tried to acquire this key, made if there is none. The session has its
 * session_stats there from now on. Never NULL. */
struct workload *workload_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                               const struct lock_key *key, int64_t now_ms);
void workload_ref(struct workload *f);
/* Gives a reference to a workload back; NULL is allowed. */
void workload_put(struct workload *f);
/* Frees workloads that were not used for WORKLOAD_IDLE_MS. */
void workload_trim(struct shard *sh, int64_t now_ms);
/* workload_init prepares a new shard. workload_clear frees its workloads. */
void workload_init(struct shard *sh);
void workload_clear(struct shard *sh);
/* Frees the statistics of a session that is forgotten, in all workloads. */
void session_stats_clear(struct peer *p);

/* The session's statistics in the workload; NULL: the session has never tried to acquire a lock of the workload, or
 * it did so long ago. */
struct session_stats *session_stats_find(const struct peer *p, const struct workload *f);

/* Whether the session is known to be dedicated: its commands are one worker's, although the workload may be pooled.
 */
bool workload_owns(const struct workload *f, const struct peer *p);
/* Whether the session counts as pooled by the rule alone, or because it is overlapped. */
bool client_shares(const struct lock_rule *rule, bool overlapped);
/* Whether the session counts as pooled in the workload: its commands may be several workers'. f NULL: nothing is
 * known of the workload. */
bool workload_shares(const struct workload *f, const struct peer *p, const struct lock_rule *rule);

/* Notes a crossing, the acquisition over one session and the release over the other: the rows of releases over their
 * own session begin anew. Either may be NULL. */
void workload_crossed(struct workload *f, struct peer *a, struct peer *b);
/* Counts a crossing that proves pooled connections. Returns whether it was the second, so that the caller calls
 * workload_pool. */
bool workload_vote(struct workload *f, struct peer *a, struct peer *b);
/* Marks the workload as pooled, and reports the incident `shared` once. */
void workload_pool(struct shard *sh, struct workload *f, const struct lock_key *key, int64_t now_ms);
/* Notes that a contended release came over the session that acquired. */
void workload_uncrossed(struct workload *f, struct peer *p);

/* D3: notes that the workload's losers send a release right behind a lost attempt. */
void workload_releases_lost(struct workload *f);
/* Notes that sessions lost many attempts in a row without a release, unless the workload's losers are known to release.
 */
void workload_quiet(struct workload *f);

/* The facts of the workload, as bits of enum workload_fact. FACT_POOLED stays. FACT_LOSERS_RELEASE ends when a
 * refused release was the holder's (B2). FACT_DEDICATED ends for good with the first crossing. */
unsigned workload_facts(const struct workload *f);
/* Gives the workload what another proxy or an earlier run has learnt: `facts` hold, `over` do not hold any more.
 * What this proxy has seen itself wins. Returns whether this call has made the workload pooled. */
bool workload_take(struct workload *f, unsigned facts, unsigned over);

/* ---- facts.c ---------------------------------------------------------------------------------------- */

/* facts_init prepares a new shard. facts_clear frees its facts. */
void facts_init(struct shard *sh);
void facts_clear(struct shard *sh);
/* Gives a new workload the facts that the shard has of it. */
void facts_recall(struct workload *f, int64_t now_ms);
/* Tells the sink the workload's facts, if they differ from what Redis has. */
void facts_tell(struct workload *f);
/* Tells the sink the workload's facts again, if it was used since, once in FACT_REFRESH_MS. */
void facts_refresh(struct workload *f, int64_t now_ms);

/* F2: notes whether an EXPIRE came right behind a loss. */
void workload_followed(struct workload *f, bool followed);
/* F2: whether the workload's losers send an EXPIRE behind a refused attempt. */
bool workload_losers_expire(const struct workload *f);

enum tally_what { TALLY_RELEASED, TALLY_ACQUIRED, TALLY_LOST };
void workload_count(struct workload *f, struct key_stats *c, enum tally_what what);
/* Takes back the count of a release that was not carried out. c may be NULL. */
void workload_uncount(struct workload *f, struct key_stats *c);
/* D1: whether the releases exceed the acquisitions by so much, compared with the lost attempts, that losers must
 * have sent some. c may be NULL. */
bool workload_surplus(const struct workload *f, const struct key_stats *c);
/* Whether losers are known to release: by the surplus (D1), or by what followed lost attempts (D3). c may be NULL.
 */
bool workload_losers_release(const struct workload *f, const struct key_stats *c);

/* The workload's statistics on the key, or NULL. key_stats_get makes them if there are none. */
struct key_stats *key_stats_find(const struct entry *en, const struct workload *f);
struct key_stats *key_stats_get(struct entry *en, struct workload *f);
void key_stats_clear(struct contenders *contenders);
void key_stats_value(struct key_stats *c, uint64_t value);
/* Whether the values of the last acquisitions differ among themselves, or from `value`. */
bool key_stats_varies(const struct key_stats *c, uint64_t value);

/* Appends a loss. The caller takes the oldest one out first if the list is full. */
void losses_add(struct losses *l, int64_t now_ms, uint64_t session_id);
/* Whether the oldest loss is older than `before_ms`, or the list is full. */
bool losses_over(const struct losses *l, int64_t before_ms);
/* Takes out the oldest loss. */
struct loss losses_take(struct losses *l);

#endif
