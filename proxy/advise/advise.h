/*
 * PROXY ADVISE's words: from what the observer has seen of locks to the `lock` and `fence` lines that fit. It remembers
 * nothing itself. So live traffic and a capture of MONITOR get the same advice.
 *
 *      observer ──> rows of evidence ──> dead locks, fences, a line for each row, its risks
 */
#ifndef LOCKKEEPER_ADVISE_ADVISE_H
#define LOCKKEEPER_ADVISE_ADVISE_H

#include "proxy/observe/observe.h"

enum { ADVISE_LINE_MAX = 1024, ADVISE_ENOUGH = 10 /* acquisitions before a rule is advised */ };

/* Calls fn with a line for each dead lock, for each pattern of data under a lock, and for each pattern of locks and
 * client. Patterns with most events come first. fn must not call this module. */
void advise_each(struct observer *o, int64_t now_ms, void (*fn)(void *arg, const char *line, size_t len), void *arg);
/* Counts the patterns of keys that look like locks: with enough events to advise a rule, seen since then, and without a
 * match among the rules, even those that are off. */
size_t advise_unruled(struct observer *o, const struct lock_rules *rules, int64_t since_ms);

#endif
