/* What the files of proxy/advise/ share: the lines. */
#ifndef LOCKKEEPER_ADVISE_PRIVATE_H
#define LOCKKEEPER_ADVISE_PRIVATE_H

#include "proxy/advise/advise.h"

/* Whether the row looks like a lock: a rule is advised for it, or it has a rule that fits. */
bool advise_is_lock(const struct evidence *row);
/* Writes the row's line; returns its length. */
size_t advise_line(const struct evidence *row, char out[ADVISE_LINE_MAX]);
/* Writes the line of a pair. */
size_t advise_fence_line(const struct written_pair *pair, char out[ADVISE_LINE_MAX]);
/* Calls fn with the line of each pair that deserves a fence, those with most writes first. */
void advise_each_fence(struct observer *o, void (*fn)(void *arg, const char *line, size_t len), void *arg);
/* Whether the row has more releases than acquisitions because losers send some. */
bool advise_losers_delete(const struct evidence *row);

/* A pattern of use that is risky under any rule (risk.c). */
enum advise_risk { ADVISE_RISK_LOSERS, ADVISE_RISK_LATE, ADVISE_RISK_ONE_SHOT, ADVISE_RISKS };
/* Writes the line of a risk; returns its length, or 0 if the row does not show the risk. */
size_t advise_risk_line(const struct evidence *row, enum advise_risk risk, char out[ADVISE_LINE_MAX]);
/* Writes the line of a dead lock. */
size_t advise_dead_line(const struct evidence *row, char out[ADVISE_LINE_MAX]);

#endif
