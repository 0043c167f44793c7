/*
 * Glob matching with Redis's rules (* ? [abc] [^a] [a-z] and \ to quote), on bytes; without recursion, and
 * in at most pattern_len * len steps whatever the pattern.
 */
#ifndef LOCKKEEPER_BASE_GLOB_H
#define LOCKKEEPER_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Whether all of `text` matches. Both are borrowed and may hold any bytes; an empty text matches the patterns ""
 * and "*", as in KEYS. */
bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t len);
/* Matches a pattern of somebody else's choice, in at most *steps steps (bytes of the pattern that are looked at),
 * which are taken off there. 0 is left where they were too few to tell, and the result is false. */
bool glob_match_within(const char *pattern, size_t pattern_len, const char *text, size_t len, size_t *steps);

/* What the stars of a pattern have matched. */
struct glob_piece {
    const char *text; /* borrowed from the text */
    size_t len;
};
/* Matches as glob_match does (a pattern of stars alone matches the empty text, too), and fills in what each star stands
 * for, the first ones as little as they can. Returns how many stars there are; -1: it does not match, or they are more
 * than `max`. */
int glob_pieces(const char *pattern, size_t pattern_len, const char *text, size_t len, struct glob_piece *pieces,
                int max);

#endif
