/*
 * Random numbers of the simulators, which follow from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable
 * pseudorandom number generators", 2014), whose mix is hash_number.
 */
#pragma once

#include "proxy/lock/hash.h"

/* The next number of a sequence that begins with *state = its seed. */
static inline uint64_t chance_next(uint64_t *state) {
    uint64_t number = hash_number(*state);
    *state += 0x9e3779b97f4a7c15u;
    return number;
}

/* The seed of scenario `i` of a run, short enough to be written down. */
static inline uint64_t chance_seed(uint64_t seed, uint64_t i) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (z ^ (z >> 27)) & 0xffffffffffffu;
}
