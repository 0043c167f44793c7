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

inline void claim_lease_enter(struct claim *c, enum lease_state to) {
    invariant(to != LEASE_ENDED || c->lease == LEASE_GRANTED, "S1: a lease goes from %d to %d", (int)c->lease, (int)to);
    invariant(to != LEASE_CUT_SHORT || c->lease == LEASE_GRANTED, "S1: a lease goes from %d to %d", (int)c->lease,
              (int)to);
    invariant(to != LEASE_AWAITS_OWNER || c->lease == LEASE_ENDED || c->lease == LEASE_CUT_SHORT,
              "S1: a lease goes from %d to %d", (int)c->lease, (int)to);
    invariant(to != LEASE_GRANTED || c->lease == LEASE_ENDED || c->lease == LEASE_CUT_SHORT,
              "S1: a lease goes from %d to %d", (int)c->lease, (int)to);
    c->lease = to;
}

inline void claim_release_enter(struct claim *c, enum release_state to) {
    invariant(to != RELEASE_NONE || c->release == RELEASE_SENT, "a release goes from %d to %d", (int)c->release,
              (int)to);
    invariant(to != RELEASE_SENT || c->release == RELEASE_NONE, "a release goes from %d to %d", (int)c->release,
              (int)to);
    invariant(to != RELEASE_SENT_AGAIN || claim_releasing(c) || claim_doubtful(c), "a release goes from %d to %d",
              (int)c->release, (int)to);
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
    invariant(to != RENEWAL_IDLE || claim_asked(c), "S3: a renewal goes from %d to %d", (int)c->renewal, (int)to);
    invariant(to != LOOK_ASKED || c->renewal == RENEWAL_IDLE, "S3: a renewal goes from %d to %d", (int)c->renewal,
              (int)to);
    invariant(to != LOOK_CROSSED || c->renewal == LOOK_ASKED, "S3: a renewal goes from %d to %d", (int)c->renewal,
              (int)to);
    /* a look whose owner leaves counts as a renewal */
    invariant(to != RENEWAL_ASKED || c->renewal == RENEWAL_IDLE || c->renewal == LOOK_ASKED,
              "S3: a renewal goes from %d to %d", (int)c->renewal, (int)to);
    invariant(to != RENEWAL_CROSSED || c->renewal == RENEWAL_ASKED || c->renewal == LOOK_CROSSED,
              "S3: a renewal goes from %d to %d", (int)c->renewal, (int)to);
    c->renewal = to;
}

inline void claim_end_told(struct claim *c) {
    if (c->renewal == RENEWAL_ASKED)
        claim_renewal_enter(c, RENEWAL_CROSSED);
    else if (c->renewal == LOOK_ASKED)
        claim_renewal_enter(c, LOOK_CROSSED);
}

inline void claim_succession_enter(struct claim *c, enum succession_state to) {
    invariant(to != SUCCESSION_NONE || c->succession == SUCCESSION_COMMON, "a succession goes from %d to %d",
              (int)c->succession, (int)to);
    invariant(to != SUCCESSION_COUNTS || c->succession == SUCCESSION_WAITS, "a succession goes from %d to %d",
              (int)c->succession, (int)to);
    /* the orphan would count it for ever */
    invariant(to != SUCCESSION_COMMON || c->succession != SUCCESSION_COUNTS, "a succession goes from %d to %d",
              (int)c->succession, (int)to);
    c->succession = to;
}
