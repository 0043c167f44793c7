/*
 * Glob matching with Redis's rules (* ? [abc] [^a] [a-z] and \ to quote), on bytes. It does not recurse, and takes at
 * most pattern_len * len steps for any pattern.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether all of `text` matches. Both are borrowed and may hold any bytes; an empty text matches the patterns ""
 * and "*", as in KEYS. */
bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t len);
/* Matches a pattern that a client chose, in at most *steps steps (bytes of the pattern that are read). The steps taken
 * are subtracted from *steps. If they do not suffice, *steps is 0 and the result is false. */
bool glob_match_within(const char *pattern, size_t pattern_len, const char *text, size_t len, size_t *steps);

/* The part of the text that a star of a pattern has matched. */
struct glob_piece {
    const char *text; /* borrowed from the text */
    size_t len;
};
/* Matches as glob_match does, and fills in what each star matched; the first stars match as little as possible. A
 * pattern of stars alone also matches the empty text. Returns how many stars there are; -1: no match, or more than
 * `max` stars. */
int glob_pieces(const char *pattern, size_t pattern_len, const char *text, size_t len, struct glob_piece *pieces,
                int max);
