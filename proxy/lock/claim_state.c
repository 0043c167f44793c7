/*
 * The four states of a claim. No other file sets them, so that the steps between them are all here.
 *
 *      lease       granted ──> ended or cut short ──> awaits its owner        an answer may lead back to granted
 *      release     none <──> sent ──> doubtful <──> sent again
 *      renewal     idle ──> renewal or look asked ──> crossed ──> idle
 *      succession  none ──> waits <──> counts, or common
 */
#include "proxy/lock/ledger.h"

#include "parser/invariant.h"

/* For each state, the states that it may come after, as bits. */
#define AFTER(state) (1u << (state))

static const unsigned LEASE_AFTER[] = {
    [LEASE_GRANTED] = AFTER(LEASE_ENDED) | AFTER(LEASE_CUT_SHORT),
    [LEASE_ENDED] = AFTER(LEASE_GRANTED),
    [LEASE_CUT_SHORT] = AFTER(LEASE_GRANTED),
    [LEASE_AWAITS_OWNER] = AFTER(LEASE_ENDED) | AFTER(LEASE_CUT_SHORT),
};
static const unsigned RELEASE_AFTER[] = {
    [RELEASE_NONE] = AFTER(RELEASE_SENT),
    [RELEASE_SENT] = AFTER(RELEASE_NONE),
    /* of a queued release, too, whose answer gets lost */
    [RELEASE_DOUBTFUL] = AFTER(RELEASE_NONE) | AFTER(RELEASE_DOUBTFUL) | AFTER(RELEASE_SENT_AGAIN),
    [RELEASE_SENT_AGAIN] = AFTER(RELEASE_SENT) | AFTER(RELEASE_DOUBTFUL) | AFTER(RELEASE_SENT_AGAIN),
};
/* A look becomes a renewal if the lease's owner leaves meanwhile. */
static const unsigned RENEWAL_AFTER[] = {
    [RENEWAL_IDLE] = AFTER(RENEWAL_ASKED) | AFTER(RENEWAL_CROSSED) | AFTER(LOOK_ASKED) | AFTER(LOOK_CROSSED),
    [RENEWAL_ASKED] = AFTER(RENEWAL_IDLE) | AFTER(LOOK_ASKED),
    [RENEWAL_CROSSED] = AFTER(RENEWAL_ASKED) | AFTER(LOOK_CROSSED),
    [LOOK_ASKED] = AFTER(RENEWAL_IDLE),
    [LOOK_CROSSED] = AFTER(LOOK_ASKED),
};
/* COUNTS to COMMON goes by WAITS: the orphan would count the lease for ever. */
static const unsigned SUCCESSION_AFTER[] = {
    [SUCCESSION_NONE] = AFTER(SUCCESSION_COMMON),
    [SUCCESSION_WAITS] =
        AFTER(SUCCESSION_NONE) | AFTER(SUCCESSION_WAITS) | AFTER(SUCCESSION_COUNTS) | AFTER(SUCCESSION_COMMON),
    [SUCCESSION_COUNTS] = AFTER(SUCCESSION_WAITS),
    [SUCCESSION_COMMON] = AFTER(SUCCESSION_NONE) | AFTER(SUCCESSION_WAITS) | AFTER(SUCCESSION_COMMON),
};

inline void claim_lease_enter(struct claim *c, enum lease_state to) {
    invariant(LEASE_AFTER[to] & AFTER(c->lease), "the lease of a claim goes from state %u to %u", c->lease, to);
    c->lease = to;
}

static inline void claim_release_enter(struct claim *c, enum release_state to) {
    invariant(RELEASE_AFTER[to] & AFTER(c->release), "the release of a claim goes from state %u to %u", c->release, to);
    c->release = to;
}

inline void claim_release_sent(struct claim *c) {
    if (!claim_releasing(c)) /* a transaction may release twice by one claim */
        claim_release_enter(c, claim_doubtful(c) ? RELEASE_SENT_AGAIN : RELEASE_SENT);
}

inline void claim_release_undone(struct claim *c) {
    claim_release_enter(c, claim_doubtful(c) ? RELEASE_DOUBTFUL : RELEASE_NONE);
}

void claim_release_lost(struct claim *c) {
    claim_release_enter(c, claim_releasing(c) ? RELEASE_SENT_AGAIN : RELEASE_DOUBTFUL);
}

inline void claim_renewal_enter(struct claim *c, enum renewal_state to) {
    invariant(RENEWAL_AFTER[to] & AFTER(c->renewal), "the renewal of a claim goes from state %u to %u", c->renewal, to);
    c->renewal = to;
}

inline void claim_end_told(struct claim *c) {
    if (c->renewal == RENEWAL_ASKED)
        claim_renewal_enter(c, RENEWAL_CROSSED);
    else if (c->renewal == LOOK_ASKED)
        claim_renewal_enter(c, LOOK_CROSSED);
}

inline void claim_succession_enter(struct claim *c, enum succession_state to) {
    invariant(SUCCESSION_AFTER[to] & AFTER(c->succession), "the succession of a claim goes from state %u to %u",
              c->succession, to);
    c->succession = to;
}
