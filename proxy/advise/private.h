/* What the files of proxy/advise/ share: what is counted of a pattern and a client, and which keys are looked at. */
#ifndef LOCKKEEPER_ADVISE_PRIVATE_H
#define LOCKKEEPER_ADVISE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "proxy/advise/advise.h"
#include "proxy/lock/hash.h"

/* A session that has tried for locks of a pattern. */
struct advise_session {
    uint32_t id;  /* of its number; 0: none */
    uint32_t row; /* contended leases in a row that were released over the session that had acquired, this one */
};

enum { ADVISE_SESSIONS = 32, ADVISE_DEAD_LOST = 3 /* attempts lost, and a lock without an owner is dead */ };

/* A row is what is known of a client's locks of a pattern. Each release is counted once: where the lock was acquired,
 * or, of losers, late and in vain, where it comes from. */
struct advise_row {
    char pattern[ADVISE_PATTERN_MAX]; /* "": the row is empty */
    char client[ADVISE_CLIENT_MAX];
    char library[ADVISE_LIBRARY_MAX];
    uint64_t client_hash;
    size_t stem_len; /* of the pattern, up to the last separator */
    bool ruled;      /* the pattern is a rule's */
    bool audited;    /* whose mode is audit */
    bool waits;      /* who has `wait` */
    bool overlapped; /* one of the sessions */
    unsigned kinds;
    int64_t last_ms;
    uint64_t last_value;
    uint64_t events;
    uint64_t acquired, lost, endless, valued, repeated;
    uint64_t sent;     /* releases, whatever became of them */
    uint64_t released; /* locks that became free by one */
    uint64_t by_holder, crossed, by_other;
    uint64_t by_other_bare; /* of these: not by a script, which may have compared */
    uint64_t losers;        /* releases by who had lost and found a lock */
    uint64_t refused;       /* by the proxy, of others than losers and latecomers */
    uint64_t late, in_vain;
    uint64_t late_timed, late_ms; /* late releases whose lateness is known, and how late they were in all */
    uint64_t one_shots;           /* locks without an expiry, of one-shot clients */
    uint64_t expired;             /* ended without a release */
    uint64_t stood, stood_ms; /* how often, and how long in all, one was free after a release although others had asked
                                 for it: they were asleep */
    uint64_t row;             /* as in struct advise_session, of all */
    struct advise_session sessions[ADVISE_SESSIONS];
    uint64_t dead_hash; /* of the key that was found dead last */
    char dead_key[ADVISE_PATTERN_MAX];
};

enum { ADVISE_SHARDS = 16, ADVISE_GROUPS = 64, ADVISE_SCRIPTS = 256, FILTER_BITS = 1 << 16, ADVISE_LEFT = 4096 };

/* In advisor.left, beside the session's number: its client was a one-shot client. */
#define ADVISE_LEFT_ONE_SHOT ((uint64_t)1 << 63)

/* A group of keys that begin with the same few bytes (sample.c). */
struct advise_group {
    atomic_int_fast64_t minute; /* that events counts */
    atomic_uint events, epoch;
    atomic_bool busy; /* one key of some is looked at */
};

/* Data of a pattern that is written under locks of another, and how often (fence.c). */
struct advise_pair {
    char pattern[ADVISE_PATTERN_MAX]; /* of the data; "": there is none */
    char lock[ADVISE_PATTERN_MAX];    /* what the n-th star of the other stands for is this one's n-th */
    uint32_t db;
    uint64_t writes; /* that were looked at, whoever sent them */
    uint64_t held;   /* by who held the lock */
    uint64_t late;   /* by who had held it, and whose lease was over */
    int64_t last_ms; /* when one of these two came last */
};

struct advise_fences;
struct advise_place;
struct advise_shard {
    pthread_mutex_t mutex;
    struct advise_row *rows;
    struct advise_place *places;
};

struct advisor {
    struct hash_seed seed;
    struct advise_shard shards[ADVISE_SHARDS];
    struct advise_group groups[ADVISE_GROUPS];
    atomic_int_fast64_t filter_ms; /* when the present one of the two was begun */
    atomic_uint present;
    _Atomic uint64_t filter[2][FILTER_BITS / 64];
    _Atomic uint64_t scripts[ADVISE_SCRIPTS]; /* a SHA1's first bits, and what the script is */
    _Atomic uint64_t left[ADVISE_LEFT];       /* numbers of sessions that are gone, plus 1 */
    atomic_int_fast64_t lock_ms;              /* when a lock of a rule was acquired last; 0: never */
    pthread_mutex_t fences_mutex;
    struct advise_fences *fences; /* fence.c's; NULL: no lock has been acquired */
};

/* Where a key's group is in the table. */
size_t advise_group(const char *key, size_t len);
/* Whether a rule is advised for the row, or it has one that fits: it looks like a lock. */
bool advise_is_lock(const struct advise_row *row);
/* Writes the row's line; returns its length. */
size_t advise_line(const struct advise_row *row, char out[ADVISE_LINE_MAX]);
/* Writes the line of a pair. */
size_t advise_fence_line(const struct advise_pair *pair, char out[ADVISE_LINE_MAX]);
/* Calls fn with the line of each pair that is worth a fence, that with most writes first. */
void advisor_each_fence(struct advisor *a, void (*fn)(void *arg, const char *line, size_t len), void *arg);
void advisor_fences_free(struct advisor *a);
/* Whether the row's releases are too many for its acquisitions, because losers send some. */
bool advise_losers_delete(const struct advise_row *row);

/* A shape of traffic that is risky, whatever the rule says (risk.c). */
enum advise_risk { ADVISE_RISK_LOSERS, ADVISE_RISK_LATE, ADVISE_RISK_ONE_SHOT, ADVISE_RISKS };
/* Writes the line of a risk; returns its length, or 0 if the row does not show that risk. */
size_t advise_risk_line(const struct advise_row *row, enum advise_risk risk, char out[ADVISE_LINE_MAX]);
/* Writes the line of a dead lock: attempts that were lost since its owner left. */
size_t advise_dead_line(const struct advise_row *row, uint64_t lost, char out[ADVISE_LINE_MAX]);

#endif
