/*
 * Private to proxy/lock/: workloads, and what is learnt of them.
 *
 * A workload is a client identity, a lock rule and a key pattern: what one application does to one kind of lock.
 * Whether its workers share connections is learnt of the workload, never of the identity as a whole: what one
 * application does does not change what another one's commands mean (L6). A shard has all keys of a pattern, and so the
 * whole of a workload.
 *
 *      workload ── session_stats: a session in the workload
 *         └───── key_stats: the workload's workers on one contended key (of its entry)
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
    WORKLOADS_A_SHARD = 1024, /* one more takes the place of one that nothing refers to */
    WORKLOAD_IDLE_MS = 60 * 60 * 1000,
    FACTS_A_SHARD = 2048, /* one more takes the place of the one that was confirmed first */
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

/* Lost attempts with a release right behind them over the same session, and without, by their place in the row of
 * attempts that the session had lost: [0] the first ones of a row, the last element all from there on. Halved from time
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
    bool pooled;            /* its workers share connections: releases were seen to cross */
    bool elsewhere;         /* another proxy has given it a lease */
    bool losers_release;    /* a release right behind a lost attempt is its loser's, and no colleague's */
    bool losers_quiet;      /* sessions lost many attempts in a row without a release, here or at another proxy */
    uint8_t longest_row;    /* attempts that a session lost in a row before a refused release; 0: none was refused */
    struct aftermath after;
    bool audited;         /* its rule is in audit: Redis is told nothing of it */
    bool crossed;         /* a release of its was seen to cross, here or at another proxy; stays so */
    uint8_t told;         /* enum workload_fact: what Redis has of it, as far as is known */
    uint8_t votes;        /* crossings seen */
    uint8_t twice;        /* releases seen in a row over one session */
    uint8_t row;          /* contended releases in a row over their own session */
    uint8_t follow_count; /* of `followed` */
    uint16_t followed;    /* of the last losses, a bit each: an EXPIRE of the loser's came right behind */
    struct tally n;
    int64_t used_ms;
    int64_t told_ms; /* when Redis was told last, by this proxy or another one */
    struct shard *shard;
    /* Texts for people, cut to fit; the pattern is whole. */
    char client[LOCK_WORKLOAD_NAME_MAX], pattern[LOCK_WORKLOAD_NAME_MAX], rule[LOCK_WORKLOAD_NAME_MAX];
    size_t identity_len, rule_len;
    char names[]; /* the identity and the rule's pattern, whole, without a NUL */
};

/* What is known of a workload that need not be there: it was told by this proxy before, or by another one. */
struct fact {
    struct table_link link;
    struct list_node order; /* in the order of confirmation */
    uint64_t key;           /* the workload's */
    unsigned facts;         /* enum workload_fact */
    int64_t confirmed_ms;
};

/* A session in a workload. */
struct session_stats {
    struct list_node of_peer; /* the one used last first */
    struct workload *workload;
    uint8_t row; /* contended releases in a row over itself, of leases acquired over itself */
};

/* What a session has sent behind its lost attempt: nothing so far, no release at once, a release. */
enum loss_next { LOSS_OPEN, LOSS_QUIET, LOSS_RELEASED };

/* A lost attempt. */
struct loss {
    int64_t time_ms;
    uint64_t session_id;
    uint16_t at_once_ms; /* a release within so many ms is the loser's */
    uint8_t next;        /* enum loss_next */
    uint8_t row;         /* the how manieth it was in the session's row of lost attempts */
    bool expired;        /* an EXPIRE came behind it */
};

struct losses {
    uint8_t count;
    struct loss at[KEY_STATS_DEBTS]; /* oldest first */
};

/* A release over a loser that is held back, of a session; one a key at a time is remembered. */
struct held_release {
    uint64_t session_id; /* 0: none is */
    int64_t seen_ms;     /* when it was asked for last */
    uint8_t row;         /* of lost attempts that it came behind */
    uint8_t silent;      /* losses since then in silence, as far along in their rows */
    bool again;          /* it came right behind a release of the key: its worker releases twice, perhaps */
};

struct key_stats {
    struct key_stats *next; /* of the entry */
    struct workload *workload;
    struct tally n;
    struct aftermath after;
    bool doubled;          /* two releases came for one lease: losers release here */
    int64_t released_ms;   /* when a release of the key was done last */
    uint8_t unlike_losers; /* losses in silence since a release was refused last, where losers would have released */
    struct held_release held;
    uint8_t value_count, value_next;
    uint64_t values[KEY_STATS_VALUES]; /* of the last acquisitions */
    struct losses debts;               /* each uses up a release */
    struct losses recent;              /* behind which an EXPIRE or a release may come */
    uint64_t live_fence;               /* of the lease that the following is said of; 0 none */
    int64_t asked_own_ms;              /* since when its own session asks for the lock in vain; 0 it does not */
    int64_t suspected_ms;              /* since when it is known to be suspicious; 0 it is not */
};

/* Numbers the workload of a session's identity for a key under a rule. `pattern`: the key's, hashed. */
uint64_t workload_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* Numbers a workload by the hashes of its identity, rule and pattern. */
uint64_t workload_number_of(uint64_t client, uint64_t rule, uint64_t pattern);
/* Finds the workload of that number; NULL: nothing is known of it. */
struct workload *workload_of_key(const struct shard *sh, uint64_t key);
/* Finds the workload of that number, as seen from a session of its; NULL: nothing is known of it. */
struct workload *workload_of(struct shard *sh, const struct peer *p, uint64_t number);
/* Finds the workload by what it is numbered by; NULL also without a rule. */
struct workload *workload_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* The workload of a session that has tried for such a lock, made if there is none: the session belongs to it from now
 * on. Never NULL. */
struct workload *workload_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                               const struct lock_key *key, int64_t now_ms);
void workload_ref(struct workload *f);
/* Gives a reference to a workload back; NULL is allowed. */
void workload_put(struct workload *f);
/* Gives memory of workloads that were not used for long back. */
void workload_trim(struct shard *sh, int64_t now_ms);
/* Prepare a shard, which has no workloads yet, and free those that it has. */
void workload_init(struct shard *sh);
void workload_clear(struct shard *sh);
/* Frees what is known of a session that is forgotten. */
void session_stats_clear(struct peer *p);

/* The session's session_stats in the workload; NULL: it has never tried for a lock of the workload (or that was long
 * ago). */
struct session_stats *session_stats_find(const struct peer *p, const struct workload *f);

/* Whether the session's commands are surely its own worker's, although the workload is pooled. */
bool workload_owns(const struct workload *f, const struct peer *p);
/* Whether the session's commands on the workload's keys may be several workers'. f NULL: nothing is known. */
bool workload_shares(const struct workload *f, const struct peer *p, const struct lock_rule *rule);

/* Notes that a release came over another session than the acquisition: what was in a row is not. Either may be NULL. */
void workload_crossed(struct workload *f, struct peer *a, struct peer *b);
/* Notes that a release which crossed proves that connections are shared. Returns whether two such have been seen: the
 * workload is to be pooled. */
bool workload_vote(struct workload *f, struct peer *a, struct peer *b);
/* Notes that the workload's workers share connections, which is an incident once. */
void workload_pool(struct shard *sh, struct workload *f, const struct lock_key *key, int64_t now_ms);
/* Notes that a contended release came over the session that acquired. */
void workload_uncrossed(struct workload *f, struct peer *p);

/* Notes that the workload's losers send a release right behind a lost attempt. */
void workload_releases_lost(struct workload *f);
/* Notes that sessions lost many attempts in a row without a release, unless the workload's losers are known to release.
 */
void workload_quiet(struct workload *f);

/* What is known of the workload, as enum workload_fact. FACT_POOLED stays. FACT_LOSERS_RELEASE ends when a refused
 * release was the holder's (B2). FACT_DEDICATED ends with the first crossing, and is no fact again. */
unsigned workload_facts(const struct workload *f);
/* Has the workload know what another proxy or an earlier run has learnt of it: `facts` hold, `over` do not hold any
 * more. What the workload has seen itself wins. Returns whether the workload is pooled only since this call. */
bool workload_take(struct workload *f, unsigned facts, unsigned over);

/* ---- facts.c ---------------------------------------------------------------------------------------- */

/* Prepare a shard, which knows no facts yet, and free those that it knows. */
void facts_init(struct shard *sh);
void facts_clear(struct shard *sh);
/* Has a new workload start with what is known of it. */
void facts_recall(struct workload *f, int64_t now_ms);
/* Tells the sink what is known of the workload, where that differs from what Redis has. */
void facts_tell(struct workload *f);
/* Tells the sink once more, once a day, of a workload that was used since. */
void facts_refresh(struct workload *f, int64_t now_ms);

/* Notes that an EXPIRE came right behind a loss, or that none did. */
void workload_followed(struct workload *f, bool followed);
/* Whether the workload's losers send an EXPIRE behind a refused attempt. */
bool workload_losers_expire(const struct workload *f);

enum tally_what { TALLY_RELEASED, TALLY_ACQUIRED, TALLY_LOST };
void workload_count(struct workload *f, struct key_stats *c, enum tally_what what);
/* Takes back a release that was counted, and has not come to be. c may be NULL. */
void workload_uncount(struct workload *f, struct key_stats *c);
/* Whether there are so many releases more than acquisitions, compared with the lost attempts, that losers must have
 * sent some (D1). c may be NULL. */
bool workload_surplus(const struct workload *f, const struct key_stats *c);
/* Whether losers are known to release: by the surplus (D1), or by what came behind lost attempts (D3). c may be
 * NULL. */
bool workload_losers_release(const struct workload *f, const struct key_stats *c);

/* What is known of the workload on the key, or NULL. */
struct key_stats *key_stats_find(const struct entry *en, const struct workload *f);
struct key_stats *key_stats_get(struct entry *en, struct workload *f);
void key_stats_clear(struct contenders *contenders);
void key_stats_value(struct key_stats *c, uint64_t value);
/* Whether the last values differ, or this one differs from them. */
bool key_stats_varies(const struct key_stats *c, uint64_t value);

/* Appends a loss; where there is no room the oldest is to be taken out first. */
void losses_add(struct losses *l, int64_t now_ms, uint64_t session_id);
/* Whether the oldest loss is older than `before_ms`, or stands in the way of one more. */
bool losses_over(const struct losses *l, int64_t before_ms);
/* Takes out the oldest loss. */
struct loss losses_take(struct losses *l);

#endif
