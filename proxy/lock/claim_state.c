/*
 * The four states of a claim. No other file sets them, so that the steps between them are all here.
 *
 *      lease       granted ──> ended or cut short ──> awaits its owner        an answer may lead back to granted
 *      release     none <──> sent ──> doubtful <──> sent again
 *      renewal     idle ──> renewal or look asked ──> crossed ──> idle
 *      succession  none ──> waits <──> counts, or common
 */
#include "proxy/lock/ledger.h"

#include <assert.h>

inline void claim_lease_enter(struct claim *c, enum lease_state to) {
    assert(to != LEASE_ENDED || c->lease == LEASE_GRANTED);
    assert(to != LEASE_CUT_SHORT || c->lease == LEASE_GRANTED);
    assert(to != LEASE_AWAITS_OWNER || c->lease == LEASE_ENDED || c->lease == LEASE_CUT_SHORT);
    assert(to != LEASE_GRANTED || c->lease == LEASE_ENDED || c->lease == LEASE_CUT_SHORT);
    c->lease = to;
}

inline void claim_release_enter(struct claim *c, enum release_state to) {
    assert(to != RELEASE_NONE || c->release == RELEASE_SENT);
    assert(to != RELEASE_SENT || c->release == RELEASE_NONE);
    assert(to != RELEASE_SENT_AGAIN || claim_releasing(c) || claim_doubtful(c));
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
    assert(to != RENEWAL_IDLE || claim_asked(c));
    assert(to != LOOK_ASKED || c->renewal == RENEWAL_IDLE);
    assert(to != LOOK_CROSSED || c->renewal == LOOK_ASKED);
    /* a look whose owner leaves counts as a renewal */
    assert(to != RENEWAL_ASKED || c->renewal == RENEWAL_IDLE || c->renewal == LOOK_ASKED);
    assert(to != RENEWAL_CROSSED || c->renewal == RENEWAL_ASKED || c->renewal == LOOK_CROSSED);
    c->renewal = to;
}

inline void claim_end_told(struct claim *c) {
    if (c->renewal == RENEWAL_ASKED)
        claim_renewal_enter(c, RENEWAL_CROSSED);
    else if (c->renewal == LOOK_ASKED)
        claim_renewal_enter(c, LOOK_CROSSED);
}

inline void claim_succession_enter(struct claim *c, enum succession_state to) {
    assert(to != SUCCESSION_NONE || c->succession == SUCCESSION_COMMON);
    assert(to != SUCCESSION_COUNTS || c->succession == SUCCESSION_WAITS);
    assert(to != SUCCESSION_COMMON || c->succession != SUCCESSION_COUNTS); /* the orphan would count it for ever */
    c->succession = to;
}
