/*
 * SipHash with one round a word and three to finish (Aumasson and Bernstein's construction). Knows only bytes.
 */
#include "proxy/lock/hash.h"

#include <endian.h>
#include <string.h>

uint64_t hash_number(uint64_t n) {
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

struct hash_seed hash_seed_make(uint64_t seed, uint64_t purpose) {
    struct hash_seed s;
    s.k0 = hash_number(seed ^ hash_number(purpose));
    s.k1 = hash_number(s.k0 + seed);
    return s;
}

static uint64_t turn(uint64_t x, unsigned bits) {
    return (x << bits) | (x >> (64 - bits));
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[2] += v[3];
    v[1] = turn(v[1], 13) ^ v[0];
    v[3] = turn(v[3], 16) ^ v[2];
    v[0] = turn(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = turn(v[1], 17) ^ v[2];
    v[3] = turn(v[3], 21) ^ v[0];
    v[2] = turn(v[2], 32);
}

static void sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
}

/* Eight bytes as a number, the same on every machine. */
static uint64_t load_whole(const unsigned char *p) {
    uint64_t n;
    memcpy(&n, p, sizeof(n));
    return le64toh(n);
}

/* Fewer of them. */
static uint64_t load(const unsigned char *p, size_t len) {
    uint64_t n = 0;
    for (size_t i = 0; i < len; i++)
        n |= (uint64_t)p[i] << (8 * i);
    return n;
}

uint64_t hash_bytes(const struct hash_seed *seed, const void *data, size_t len) {
    const unsigned char *p = data;
    uint64_t v[4] = {
        seed->k0 ^ 0x736f6d6570736575u,
        seed->k1 ^ 0x646f72616e646f6du,
        seed->k0 ^ 0x6c7967656e657261u,
        seed->k1 ^ 0x7465646279746573u,
    };
    size_t whole = len & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8)
        sip_word(v, load_whole(p + i));
    uint64_t last = (uint64_t)len << 56;
    if (len > whole)
        last |= load(p + whole, len - whole);
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
