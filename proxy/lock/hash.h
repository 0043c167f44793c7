/* A keyed hash over bytes: a client that does not know the seed cannot fill one bucket of a table on purpose. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct hash_seed {
    uint64_t k0, k1;
};

/* Makes two words of key from one seed. Different `purpose`s give independent hashes. */
struct hash_seed hash_seed_make(uint64_t seed, uint64_t purpose);
uint64_t hash_bytes(const struct hash_seed *seed, const void *data, size_t len);
/* A good mix of one number, not keyed. */
uint64_t hash_number(uint64_t n);

/* ---- patterns of keys ------------------------------------------------------------------------------ */

/* Keys that differ in numbers and identifiers alone have the same pattern (job:123:lock is job:*:lock). */
enum { ADVISE_PATTERN_MAX = 96 };

/* Writes the key's pattern as a glob, at most ADVISE_PATTERN_MAX bytes with the NUL; a longer one is cut, and ends with
 * a star. Returns its length. */
size_t advise_pattern(const char *key, size_t len, char out[ADVISE_PATTERN_MAX]);

/* Hashes a key's pattern without writing it. The hash is the same in every process. */
uint64_t advise_pattern_hash(const char *key, size_t len);
/* Hashes a pattern as advise_pattern wrote it: the result is what advise_pattern_hash gives for its keys. */
uint64_t advise_pattern_text_hash(const char *pattern, size_t len);

/* How much of a pattern is its stem: up to the last separator. */
size_t advise_stem(const char *pattern, size_t len);
