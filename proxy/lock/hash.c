/*
 * A keyed hash by multiplications of whole words (the construction of wyhash, by Wang Yi). Knows only bytes.
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

/* The two halves of a product, each bit of which depends on many of both factors. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    return hash_number(a ^ hash_number(b));
#endif
}

/* Bytes as a number, the same on every machine. */
static inline uint64_t load_eight(const unsigned char *p) {
    uint64_t n;
    memcpy(&n, p, sizeof(n));
    return le64toh(n);
}

static inline uint64_t load_four(const unsigned char *p) {
    uint32_t n;
    memcpy(&n, p, sizeof(n));
    return le32toh(n);
}

/* The last words overlap with what is before them: there is no loop over single bytes. */
uint64_t hash_bytes(const struct hash_seed *seed, const void *data, size_t len) {
    static const uint64_t FIRST = 0xa0761d6478bd642fu, SECOND = 0xe7037ed1a0b428dbu;
    const unsigned char *p = data;
    uint64_t state = seed->k0 ^ FIRST, a = 0, b = 0;
    if (len > 16) {
        for (size_t left = len; left > 16; left -= 16, p += 16)
            state = fold(load_eight(p) ^ seed->k1 ^ SECOND, load_eight(p + 8) ^ state);
        p = (const unsigned char *)data + len;
        a = load_eight(p - 16);
        b = load_eight(p - 8);
    } else if (len >= 8) {
        a = load_eight(p);
        b = load_eight(p + len - 8);
    } else if (len >= 4) {
        a = load_four(p);
        b = load_four(p + len - 4);
    } else if (len > 0) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[len / 2] << 8 | p[len - 1];
    }
    return fold(fold(a ^ seed->k1 ^ SECOND, b ^ state) ^ seed->k0, len ^ seed->k1 ^ FIRST);
}
