/*
 * PROXY ADVISE's words: from what the observer has seen of locks to the `lock` and `fence` lines that fit. It remembers
 * nothing itself. So live traffic and a capture of MONITOR get the same advice.
 *
 *      observer ──> rows of evidence ──> added up by pattern ──> unsafe use, dead locks, fences, a line for each
 */
#pragma once

#include "proxy/base/text.h"
#include "proxy/observe/observe.h"

enum {
    ADVISE_LINE_MAX = 1024,
    ADVISE_UNRULED_MAX = 96,
    ADVISE_ENOUGH = 10 /* acquisitions before a rule is advised */
};

/* Calls fn with each line: what is unsafe, worst first; dead locks; how many patterns match none of `rules` (NULL: not
 * said); data under locks; each pattern of locks, those with most events first. Clients of which the same is said have
 * one line. fn must not call this module. */
void advise_each(struct observer *o, const struct lock_rules *rules, int64_t now_ms,
                 void (*fn)(void *arg, const char *line, size_t len), void *arg);
/* Counts the patterns of keys that look like locks: with enough events to advise a rule, seen since then, and without a
 * match among the rules, even those that are off. */
size_t advise_unruled(struct observer *o, const struct lock_rules *rules, int64_t since_ms);
/* Writes that count as a sentence; ADVISE_UNRULED_MAX bytes are enough. */
void advise_unruled_text(size_t count, char *out, size_t size);
/* Appends the line of a row. For tests. */
void advise_line(const struct evidence *row, struct text *l);
