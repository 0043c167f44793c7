/*
 * The vote of the witnesses about one lease: what their answers amount to. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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

/* How long the time of a change of the set is: all proxies change within one quarantine, and the leases that the last
 * of them was given before that end within another one. Until then, a newcomer does not vote, and no further change is
 * made: so each majority of the set before and of the set behind a change have a witness in common. */
static inline int64_t witness_change_ms(int64_t quarantine_ms) {
    return 2 * quarantine_ms;
}

/* How many witnesses are a majority. */
unsigned vote_majority(unsigned count);
/* How many gave this answer. */
unsigned vote_count(const struct vote *v, enum witness_answer answer);
/* How many have answered, whatever they said. */
unsigned vote_answered(const struct vote *v);
/* Whether the witnesses that hold other leases and those which grant would be a majority, if the other leases were
 * over. */
bool vote_may_turn(const struct vote *v);
enum verdict vote_verdict(const struct vote *v);
