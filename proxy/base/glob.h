/*
 * Glob matching with Redis's rules (* ? [abc] [^a] [a-z] and \ to quote), on bytes; linear-time in practice
 * and without recursion.
 */
#ifndef LOCKKEEPER_BASE_GLOB_H
#define LOCKKEEPER_BASE_GLOB_H

#include <stdbool.h>
#include <stddef.h>

bool glob_match(const char *pattern, size_t pattern_len, const char *text, size_t len);

#endif
