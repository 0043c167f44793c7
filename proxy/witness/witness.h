/*
 * Witnesses: independent Redis servers that remember which lease a lock has, so that a failover of the Redis that keeps
 * the locks can't forget it (docs/quorum.md). One set for each thread.
 *
 *      witness_take ──> the same script to each witness, at once ──> votes ──> witness_done_fn, as soon as they decide
 *
 * A witness that does not answer delays nothing: its call goes on until the time of the question is over.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ev_loop;
struct readable;
struct chunk_pool;
struct tls_context;
struct witnesses;

/* ---- the vote about one lease: what the answers amount to ---- */

enum { WITNESSES_MAX = 5 };

/* What a witness answers. */
enum witness_answer {
    WITNESS_DUE,         /* nothing yet */
    WITNESS_GRANTS,      /* its record is the lease's */
    WITNESS_HOLDS,       /* its record is another lease's */
    WITNESS_EMPTY,       /* it knows no lease with this fence, by which alone it was asked */
    WITNESS_LOW,         /* it knows a fence that is not below the lease's */
    WITNESS_QUARANTINED, /* it may have forgotten what it promised, and promises nothing yet */
    WITNESS_SILENT       /* it can't be reached, or has not answered in time */
};

/* The answers of all witnesses. */
struct vote {
    unsigned count;
    enum witness_answer answers[WITNESSES_MAX];
};

enum verdict {
    VERDICT_OPEN,    /* the answers that are due decide */
    VERDICT_GRANTED, /* a majority of all witnesses grants */
    VERDICT_LOW,     /* a majority would grant it a greater fence */
    VERDICT_HELD,    /* most of the answers name another lease */
    VERDICT_NONE     /* too few grant it */
};

/* How long a change of the set takes: all proxies change within one quarantine, and the leases that the last of them
 * got before end within another. Until then a newcomer does not vote, and no further change is made: so each majority
 * of the set before and each of the set behind have a witness in common. */
static inline int64_t witness_change_ms(int64_t quarantine_ms) {
    return 2 * quarantine_ms;
}

/* How many witnesses are a majority. */
unsigned vote_majority(unsigned count);
/* How many gave this answer. */
unsigned vote_count(const struct vote *v, enum witness_answer answer);
/* How many have answered, whatever they said. */
unsigned vote_answered(const struct vote *v);
/* Whether the lease would have a majority, if the other leases were over. */
bool vote_may_turn(const struct vote *v);
enum verdict vote_verdict(const struct vote *v);

/* ---- questions ---- */

enum { WITNESS_TOKEN_MAX = 64 };

struct witness_config {
    const char *const *addresses; /* copied, as are all texts */
    size_t count;
    struct tls_context *tls; /* borrowed; NULL: plain */
    const char *space;       /* a part of the records' names: which Redis's locks they are */
    int64_t timeout_ms, quarantine_ms;
};

/* A lease of a lock. A lease that another proxy gave has token "", and is known by its fence. */
struct witness_lease {
    uint32_t db;
    const char *name; /* the lock's; borrowed for the call */
    size_t len;
    const char *token;
    uint64_t fence;
};

/* What the witnesses have said of a lease. */
struct witness_word {
    struct vote vote;
    uint64_t fences[WITNESSES_MAX]; /* of a witness that answered LOW: the fence that it knows */
    char tokens[WITNESSES_MAX]
               [WITNESS_TOKEN_MAX]; /* of a witness that answered HOLDS: the other lease's; "" not known */
    int64_t quarantine_ms;          /* how long one of them is in quarantine yet, the longest */
};
/* Hears the votes once, perhaps inside witness_take. `word` is borrowed. */
typedef void (*witness_done_fn)(void *arg, const struct witness_word *word);

/* Makes the set of a thread, which owns loop, readable and pool. */
struct witnesses *witnesses_new(struct ev_loop *loop, struct readable *readable, struct chunk_pool *pool,
                                const struct witness_config *config);
/* Gives the set other witnesses: one name added, taken away or replaced. Questions that have begun end with
 * the witnesses that they began with. A witness that was not in the set does not vote for witness_change_ms.
 */
void witnesses_change(struct witnesses *set, const char *const *addresses, size_t count);
/* Ends all questions: their callers hear of it. Frees the set; NULL is ignored. */
void witnesses_free(struct witnesses *set);

/* Asks all witnesses to keep other leases out of a lock for `promise_ms`. over: a token that holds nothing any more, or
 * '=' and the token that the lease had at another proxy; "": none. The votes are counted after wait_ms at most. */
void witness_take(struct witnesses *set, const struct witness_lease *lease, const char *over, int64_t promise_ms,
                  int64_t wait_ms, witness_done_fn done, void *arg);
/* Tells all witnesses that a lease is over. The caller waits for no answer. */
void witness_free(struct witnesses *set, const struct witness_lease *lease);
/* Asks all witnesses whether they vote: for witness_look, and so that a quarantine begins soon after its cause. */
void witness_probe(struct witnesses *set);
/* Ends a witness's quarantine. `done` hears whether it has answered. Returns NULL, or the error, static. */
const char *witness_trust(struct witnesses *set, const char *address, size_t len,
                          void (*done)(void *arg, bool answered), void *arg);

/* What is known of a witness, from its last answer. */
struct witness_view {
    const char *address;
    const char *state;          /* "unknown", "up", "quarantined", "down" */
    bool votes;                 /* it is not known to be down or in quarantine */
    uint64_t answers, failures; /* in this thread */
    int64_t round_trip_us;      /* of late; 0: not known */
};
size_t witness_count(const struct witnesses *set);
void witness_look(const struct witnesses *set, size_t i, struct witness_view *view);
