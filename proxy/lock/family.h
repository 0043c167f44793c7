/*
 * Private to proxy/lock/: families, and what is learnt of them.
 *
 * A family is a client identity, a lock rule and a key pattern: what one application does to one kind of lock. Whether
 * its workers share connections is learnt of the family, never of the identity as a whole: what one application does
 * does not change what another one's commands mean (L6). A shard has all keys of a pattern, and so the whole of a
 * family.
 *
 *      family ── habits: a session in the family
 *         └───── contests: the family's workers on one contended key (of its entry)
 *
 *      family ── facts_tell ──> sink, and so Redis ──> engine_learnt ── fact ──> the same family, here or elsewhere
 */
#ifndef LOCKKEEPER_LOCK_FAMILY_H
#define LOCKKEEPER_LOCK_FAMILY_H

#include "proxy/base/list.h"
#include "proxy/base/table.h"
#include "proxy/lock/engine.h"

struct shard;
struct peer;
struct entry;
struct crowd;
struct claim;

enum {
    FAMILIES_A_SHARD = 1024, /* one more takes the place of one that nothing refers to */
    FAMILY_IDLE_MS = 60 * 60 * 1000,
    FACTS_A_SHARD = 2048, /* one more takes the place of the one that was confirmed first */
    FACT_REFRESH_MS = 24 * 60 * 60 * 1000,
    HABITS_A_PEER = 64,
    CONTEST_VALUES = 8,
    AFTERMATH_ROWS = 8,
    CONTEST_DEBTS = 32
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

struct family {
    struct table_link link; /* in its table */
    struct list_node idle;  /* in the order of use */
    uint64_t key;           /* of identity, rule and pattern */
    uint32_t refs;          /* habits, contests, claims */
    bool pooled;            /* its workers share connections: releases were seen to cross */
    bool elsewhere;         /* another proxy has given it a lease */
    bool losers_release;    /* a release right behind a lost attempt is its loser's, and no colleague's */
    bool losers_quiet;      /* sessions lost many attempts in a row without a release, here or at another proxy */
    uint8_t longest_row;    /* attempts that a session lost in a row before a refused release; 0: none was refused */
    struct aftermath after;
    bool audited;         /* its rule is in audit: Redis is told nothing of it */
    bool crossed;         /* a release of its was seen to cross, here or at another proxy; stays so */
    uint8_t told;         /* enum family_fact: what Redis has of it, as far as is known */
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
    char client[LOCK_FAMILY_NAME_MAX], pattern[LOCK_FAMILY_NAME_MAX], rule[LOCK_FAMILY_NAME_MAX];
    size_t identity_len, rule_len;
    char names[]; /* the identity and the rule's pattern, whole, without a NUL */
};

/* What is known of a family that need not be there: it was told by this proxy before, or by another one. */
struct fact {
    struct table_link link;
    struct list_node order; /* in the order of confirmation */
    uint64_t key;           /* the family's */
    unsigned facts;         /* enum family_fact */
    int64_t confirmed_ms;
};

/* A session in a family. */
struct habit {
    struct list_node of_peer; /* the one used last first */
    struct family *family;
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
    struct loss at[CONTEST_DEBTS]; /* oldest first */
};

/* A release over a loser that is held back, of a session; one a key at a time is remembered. */
struct held_release {
    uint64_t session_id; /* 0: none is */
    int64_t seen_ms;     /* when it was asked for last */
    uint8_t row;         /* of lost attempts that it came behind */
    uint8_t silent;      /* losses since then in silence, as far along in their rows */
    bool again;          /* it came right behind a release of the key: its worker releases twice, perhaps */
};

struct contest {
    struct contest *next; /* of the entry */
    struct family *family;
    struct tally n;
    struct aftermath after;
    bool doubled;          /* two releases came for one lease: losers release here */
    int64_t released_ms;   /* when a release of the key was done last */
    uint8_t unlike_losers; /* losses in silence since a release was refused last, where losers would have released */
    struct held_release held;
    uint8_t value_count, value_next;
    uint64_t values[CONTEST_VALUES]; /* of the last acquisitions */
    struct losses debts;             /* each uses up a release */
    struct losses recent;            /* behind which an EXPIRE or a release may come */
    uint64_t live_fence;             /* of the lease that the following is said of; 0 none */
    int64_t asked_own_ms;            /* since when its own session asks for the lock in vain; 0 it does not */
    int64_t suspected_ms;            /* since when it is known to be suspicious; 0 it is not */
};

/* Numbers the family of a session's identity for a key under a rule. `pattern`: the key's, hashed. */
uint64_t family_number(const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* Numbers a family by the hashes of its identity, rule and pattern. */
uint64_t family_number_of(uint64_t client, uint64_t rule, uint64_t pattern);
/* Finds the family of that number; NULL: nothing is known of it. */
struct family *family_of_key(const struct shard *sh, uint64_t key);
/* Finds the family of that number, as seen from a session of its; NULL: nothing is known of it. */
struct family *family_of(struct shard *sh, const struct peer *p, uint64_t number);
/* Finds the family by what it is numbered by; NULL also without a rule. */
struct family *family_find(struct shard *sh, const struct peer *p, const struct lock_rule *rule, uint64_t pattern);
/* The family of a session that has tried for such a lock, made if there is none: the session belongs to it from now on.
 * Never NULL. */
struct family *family_join(struct shard *sh, struct peer *p, const struct lock_rule *rule, uint64_t number,
                           const struct lock_key *key, int64_t now_ms);
void family_ref(struct family *f);
/* Gives a reference to a family back; NULL is allowed. */
void family_put(struct family *f);
/* Gives memory of families that were not used for long back. */
void family_trim(struct shard *sh, int64_t now_ms);
/* Prepare a shard, which has no families yet, and free those that it has. */
void family_init(struct shard *sh);
void family_clear(struct shard *sh);
/* Frees what is known of a session that is forgotten. */
void habits_clear(struct peer *p);

/* The session's habit in the family; NULL: it has never tried for a lock of the family (or that was long ago). */
struct habit *habit_find(const struct peer *p, const struct family *f);

/* Whether the session's commands are surely its own worker's, although the family is pooled. */
bool family_owns(const struct family *f, const struct peer *p);
/* Whether the session's commands on the family's keys may be several workers'. f NULL: nothing is known. */
bool family_shares(const struct family *f, const struct peer *p, const struct lock_rule *rule);

/* Notes that a release came over another session than the acquisition: what was in a row is not. Either may be NULL. */
void family_crossed(struct family *f, struct peer *a, struct peer *b);
/* Notes that a release which crossed proves that connections are shared. Returns whether two such have been seen: the
 * family is to be pooled. */
bool family_vote(struct family *f, struct peer *a, struct peer *b);
/* Notes that the family's workers share connections, which is an incident once. */
void family_pool(struct shard *sh, struct family *f, const struct lock_key *key, int64_t now_ms);
/* Notes that a contended release came over the session that acquired. */
void family_uncrossed(struct family *f, struct peer *p);

/* Notes that the family's losers send a release right behind a lost attempt. */
void family_releases_lost(struct family *f);
/* Notes that sessions lost many attempts in a row without a release, unless the family's losers are known to release.
 */
void family_quiet(struct family *f);

/* What is known of the family, as enum family_fact. FACT_POOLED stays. FACT_LOSERS_RELEASE ends when a refused release
 * was the holder's (B2). FACT_DEDICATED ends with the first crossing, and is no fact again. */
unsigned family_facts(const struct family *f);
/* Has the family know what another proxy or an earlier run has learnt of it: `facts` hold, `over` do not hold any
 * more. What the family has seen itself wins. Returns whether the family is pooled only since this call. */
bool family_take(struct family *f, unsigned facts, unsigned over);

/* ---- facts.c ---------------------------------------------------------------------------------------- */

/* Prepare a shard, which knows no facts yet, and free those that it knows. */
void facts_init(struct shard *sh);
void facts_clear(struct shard *sh);
/* Has a new family start with what is known of it. */
void facts_recall(struct family *f, int64_t now_ms);
/* Tells the sink what is known of the family, where that differs from what Redis has. */
void facts_tell(struct family *f);
/* Tells the sink once more, once a day, of a family that was used since. */
void facts_refresh(struct family *f, int64_t now_ms);

/* Notes that an EXPIRE came right behind a loss, or that none did. */
void family_followed(struct family *f, bool followed);
/* Whether the family's losers send an EXPIRE behind a refused attempt. */
bool family_losers_expire(const struct family *f);

enum tally_what { TALLY_RELEASED, TALLY_ACQUIRED, TALLY_LOST };
void family_count(struct family *f, struct contest *c, enum tally_what what);
/* Takes back a release that was counted, and has not come to be. c may be NULL. */
void family_uncount(struct family *f, struct contest *c);
/* Whether there are so many releases more than acquisitions, compared with the lost attempts, that losers must have
 * sent some (D1). c may be NULL. */
bool family_surplus(const struct family *f, const struct contest *c);
/* Whether losers are known to release: by the surplus (D1), or by what came behind lost attempts (D3). c may be
 * NULL. */
bool family_losers_release(const struct family *f, const struct contest *c);

/* What is known of the family on the key, or NULL. */
struct contest *contest_find(const struct entry *en, const struct family *f);
struct contest *contest_get(struct entry *en, struct family *f);
void contests_clear(struct crowd *crowd);
void contest_value(struct contest *c, uint64_t value);
/* Whether the last values differ, or this one differs from them. */
bool contest_varies(const struct contest *c, uint64_t value);

/* Appends a loss; where there is no room the oldest is to be taken out first. */
void losses_add(struct losses *l, int64_t now_ms, uint64_t session_id);
/* Whether the oldest loss is older than `before_ms`, or stands in the way of one more. */
bool losses_over(const struct losses *l, int64_t before_ms);
/* Takes out the oldest loss. */
struct loss losses_take(struct losses *l);

#endif
