/*
 * A keyed hash over bytes: a client that chooses keys or identities, and does not know the seed, cannot fill one bucket
 * of a table on purpose.
 */
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
