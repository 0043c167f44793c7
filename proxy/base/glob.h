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

#endif
