/* What the files of proxy/advise/ share: the lines. */
#pragma once

#include "proxy/advise/advise.h"
#include "proxy/base/text.h"

/* What a report would say of a row, to tell clients that differ. */
struct verdict {
    const char *why, *owner; /* no rule since; NULL: it looks like a lock. The rule's owner. Static words */
    unsigned kinds, risks;
    bool few;     /* too little was seen for a rule */
    bool decided; /* enough was seen, or something unsafe */
};
struct verdict advise_verdict(const struct evidence *row);
/* Append the line of a row, of its dead lock, of a pair. */
void advise_line(const struct evidence *row, struct text *l);
void advise_dead_line(const struct evidence *row, struct text *l);
void advise_fence_line(const struct written_pair *pair, struct text *l);
/* Whether the row is of a counter that is a semaphore: more than one session keeps a number of it. */
bool advise_is_semaphore(const struct evidence *row);

/* The kinds of unsafe use, worst first. */
enum { RISK_LOSERS, RISK_LATE, RISK_ONE_SHOT, RISKS };
/* How often the row shows unsafe use of a kind; 0: never, or too seldom to say. */
uint64_t advise_risk(const struct evidence *row, unsigned kind);
/* Appends the line on it. `by`: other clients of the pattern have lines of their own, so that the client is named. */
void advise_risk_line(const struct evidence *row, unsigned kind, bool by, struct text *l);
