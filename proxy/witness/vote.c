/*
 * Counts votes. Two majorities of the same witnesses have a witness in common: that is all that the protocol needs of
 * them. Witnesses that are silent or in quarantine count against a lease.
 */
#include "proxy/witness/vote.h"

#include "parser/invariant.h"

unsigned vote_majority(unsigned count) {
    return count / 2 + 1;
}

unsigned vote_count(const struct vote *v, enum witness_answer answer) {
    unsigned n = 0;
    for (unsigned i = 0; i < v->count; i++)
        n += v->answers[i] == answer;
    return n;
}

unsigned vote_answered(const struct vote *v) {
    return v->count - vote_count(v, WITNESS_DUE) - vote_count(v, WITNESS_SILENT);
}

bool vote_may_turn(const struct vote *v) {
    unsigned others = vote_count(v, WITNESS_HOLDS);
    return others > 0 && vote_count(v, WITNESS_GRANTS) + vote_count(v, WITNESS_LOW) + others >= vote_majority(v->count);
}

enum verdict vote_verdict(const struct vote *v) {
    invariant(v->count > 0 && v->count <= WITNESSES_MAX, "a vote of %u witnesses", v->count);
    unsigned granted = vote_count(v, WITNESS_GRANTS), low = vote_count(v, WITNESS_LOW);
    if (granted >= vote_majority(v->count))
        return VERDICT_GRANTED;
    if (vote_count(v, WITNESS_DUE) > 0) /* also where the rest can't change it: what they say makes the error's text */
        return VERDICT_OPEN;
    if (granted + low >= vote_majority(v->count))
        return VERDICT_LOW;
    return 2 * vote_count(v, WITNESS_HOLDS) > vote_answered(v) ? VERDICT_HELD : VERDICT_NONE;
}
