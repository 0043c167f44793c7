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
 *      workload ── session_stats: what one session did in the workload (in its peer)
 *         └─────── key_stats: what the workload did on one contended key (in its entry)
 *
 *      workload ── facts_tell ──> sink, and so Redis ──> engine_learnt ── fact ──> the same workload, here or elsewhere
 */
#pragma once

#include "parser/invariant.h"
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
    struct lock_times times;
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
    uint8_t row;       /* contended releases in a row over this session of leases that it had acquired */
    uint32_t attempts; /* over this session, to acquire */
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

/* workload_ref takes a reference to a workload, and returns the workload. workload_put gives one back. NULL is
 * allowed. */
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
