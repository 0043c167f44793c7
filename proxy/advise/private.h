/* What the files of proxy/advise/ share: the counts of a pattern and a client, and the selection of keys. */
#ifndef LOCKKEEPER_ADVISE_PRIVATE_H
#define LOCKKEEPER_ADVISE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "proxy/advise/advise.h"
#include "proxy/lock/hash.h"

/* A session that has tried for locks of a pattern. */
struct advise_session {
    uint32_t id;  /* derived from its number; 0: none */
    uint32_t row; /* contended leases in a row that were released over the session that had acquired, this session */
};

enum { ADVISE_SESSIONS = 32, ADVISE_DEAD_LOST = 3 /* attempts lost before a lock without an owner counts as dead */ };

/* A row has the counts of a client's locks of one pattern. Each release is counted once, in the row of the lock's
 * acquirer. Exception: a loser's release, or one that is late or finds no lock, counts for its sender. */
struct advise_row {
    char pattern[ADVISE_PATTERN_MAX]; /* "": the row is empty */
    char client[ADVISE_CLIENT_MAX];
    char library[ADVISE_LIBRARY_MAX];
    uint64_t client_hash;
    size_t stem_len; /* of the pattern, up to the last separator */
    bool ruled;      /* the pattern matches a rule */
    bool audited;    /* the rule's mode is audit */
    bool waits;      /* the rule has `wait` */
    bool overlapped; /* several workers may share one of the sessions */
    unsigned kinds;
    int64_t last_ms;
    uint64_t last_value;
    uint64_t events;
    uint64_t acquired, lost, endless, valued, repeated;
    uint64_t sent;     /* all releases, whatever their result */
    uint64_t released; /* locks that a release has freed */
    uint64_t by_holder, crossed, by_other;
    uint64_t by_other_bare; /* the part of by_other that is not by a script, which may have compared */
    uint64_t losers;        /* releases that found a lock, by sessions that had lost */
    uint64_t refused;       /* refused by the proxy, without those of losers and late ones */
    uint64_t late, in_vain;
    uint64_t late_timed, late_ms; /* late releases with known lateness, and its sum */
    uint64_t one_shots;           /* locks without an expiry, of one-shot clients */
    uint64_t expired;             /* ended without a release */
    uint64_t stood, stood_ms;     /* how often, and how long in all, a lock was free after a release although others had
                                     asked for it: they slept */
    uint64_t row;                 /* as in struct advise_session, over all sessions */
    struct advise_session sessions[ADVISE_SESSIONS];
    uint64_t dead_hash; /* of the last key that was found dead */
    char dead_key[ADVISE_PATTERN_MAX];
};

enum { ADVISE_SHARDS = 16, ADVISE_GROUPS = 64, ADVISE_SCRIPTS = 256, FILTER_BITS = 1 << 16, ADVISE_LEFT = 4096 };

/* In advisor.left, a bit with the session's number: its client was a one-shot client. */
#define ADVISE_LEFT_ONE_SHOT ((uint64_t)1 << 63)

/* A group of keys that begin with the same few bytes (sample.c). */
struct advise_group {
    atomic_int_fast64_t minute; /* the minute that `events` counts */
    atomic_uint events, epoch;
    atomic_bool busy; /* only some of the group's keys are looked at */
};

/* A pattern of data that is written under locks of another pattern, with counts (fence.c). */
struct advise_pair {
    char pattern[ADVISE_PATTERN_MAX]; /* of the data; "": unused */
    char lock[ADVISE_PATTERN_MAX];    /* its n-th star stands for the same text as the data's n-th star */
    uint32_t db;
    uint64_t writes; /* sampled writes, by any client */
    uint64_t held;   /* by a client that held the lock */
    uint64_t late;   /* by a client that had held it, after the lease was over */
    int64_t last_ms; /* when the last held or late write came */
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
    atomic_int_fast64_t filter_ms; /* when the present filter was begun */
    atomic_uint present;
    _Atomic uint64_t filter[2][FILTER_BITS / 64];
    _Atomic uint64_t scripts[ADVISE_SCRIPTS]; /* the first bits of a SHA1, and what the script does */
    _Atomic uint64_t left[ADVISE_LEFT];       /* numbers of ended sessions, plus 1 */
    atomic_int_fast64_t lock_ms;              /* when a lock of a rule was last acquired; 0: never */
    pthread_mutex_t fences_mutex;
    struct advise_fences *fences; /* for fence.c; NULL: no lock was acquired yet */
};

/* The index of a key's group. */
size_t advise_group(const char *key, size_t len);
/* Whether the row looks like a lock: a rule is advised for it, or it has a rule that fits. */
bool advise_is_lock(const struct advise_row *row);
/* Writes the row's line; returns its length. */
size_t advise_line(const struct advise_row *row, char out[ADVISE_LINE_MAX]);
/* Writes the line of a pair. */
size_t advise_fence_line(const struct advise_pair *pair, char out[ADVISE_LINE_MAX]);
/* Calls fn with the line of each pair that deserves a fence, those with most writes first. */
void advisor_each_fence(struct advisor *a, void (*fn)(void *arg, const char *line, size_t len), void *arg);
void advisor_fences_free(struct advisor *a);
/* Whether the row has more releases than acquisitions because losers send some. */
bool advise_losers_delete(const struct advise_row *row);

/* A pattern of use that is risky under any rule (risk.c). */
enum advise_risk { ADVISE_RISK_LOSERS, ADVISE_RISK_LATE, ADVISE_RISK_ONE_SHOT, ADVISE_RISKS };
/* Writes the line of a risk; returns its length, or 0 if the row does not show the risk. */
size_t advise_risk_line(const struct advise_row *row, enum advise_risk risk, char out[ADVISE_LINE_MAX]);
/* Writes the line of a dead lock. `lost`: attempts since its owner left. */
size_t advise_dead_line(const struct advise_row *row, uint64_t lost, char out[ADVISE_LINE_MAX]);

#endif
