/*
 * Keys that differ in numbers and identifiers alone have the same pattern: what changes from key to key is a star
 * (job:123:lock is job:*:lock). Pure functions.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { ADVISE_PATTERN_MAX = 96 };

/* Writes the key's pattern as a glob, at most ADVISE_PATTERN_MAX bytes with the NUL; a longer one is cut, and ends with
 * a star. Returns its length. */
size_t advise_pattern(const char *key, size_t len, char out[ADVISE_PATTERN_MAX]);

/* Hashes a key's pattern without writing it. Keys with the same pattern have the same hash. Others have it only by
 * chance. The hash is the same in every process. */
uint64_t advise_pattern_hash(const char *key, size_t len);

/* Hashes a pattern as advise_pattern wrote it: the result is what advise_pattern_hash gives for its keys. */
uint64_t advise_pattern_text_hash(const char *pattern, size_t len);

/* How much of a pattern is its stem: up to the last separator. */
size_t advise_stem(const char *pattern, size_t len);
