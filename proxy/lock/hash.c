/*
 * A keyed hash by multiplications of whole words (the construction of wyhash, by Wang Yi), and the patterns of keys.
 * Knows only bytes.
 */
#include "proxy/lock/hash.h"

#include <endian.h>
#include <stdbool.h>
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

/* Bytes, eight at most, as a number, the same on every machine. */
static inline uint64_t load(const unsigned char *p, size_t bytes) {
    uint64_t n = 0;
    memcpy(&n, p, bytes);
    return le64toh(n);
}

/* The last words overlap with what is before them: there is no loop over single bytes. */
uint64_t hash_bytes(const struct hash_seed *seed, const void *data, size_t len) {
    static const uint64_t FIRST = 0xa0761d6478bd642fu, SECOND = 0xe7037ed1a0b428dbu;
    const unsigned char *p = data;
    uint64_t state = seed->k0 ^ FIRST, a = 0, b = 0;
    if (len > 16) {
        for (size_t left = len; left > 16; left -= 16, p += 16)
            state = fold(load(p, 8) ^ seed->k1 ^ SECOND, load(p + 8, 8) ^ state);
        p = (const unsigned char *)data + len;
        a = load(p - 16, 8);
        b = load(p - 8, 8);
    } else if (len >= 8) {
        a = load(p, 8);
        b = load(p + len - 8, 8);
    } else if (len >= 4) {
        a = load(p, 4);
        b = load(p + len - 4, 4);
    } else if (len > 0) {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[len / 2] << 8 | p[len - 1];
    }
    return fold(fold(a ^ seed->k1 ^ SECOND, b ^ state) ^ seed->k0, len ^ seed->k1 ^ FIRST);
}

/* ---- patterns of keys ------------------------------------------------------------------------------ */

enum { DIGIT = 1, HEX = 2, LETTER = 4, SPECIAL = 8, DIGITS = DIGIT | HEX };

/* The class of each byte of a key. */
static const uint8_t KINDS[256] = {
    ['0' ... '9'] = DIGITS,
    ['a' ... 'f'] = LETTER | HEX,
    ['A' ... 'F'] = LETTER | HEX,
    ['g' ... 'z'] = LETTER,
    ['G' ... 'Z'] = LETTER,
    ['?'] = SPECIAL,
    ['['] = SPECIAL,
    [']'] = SPECIAL,
    ['\\'] = SPECIAL,
    ['*'] = SPECIAL,
};

static inline unsigned kind(char c) {
    return KINDS[(unsigned char)c];
}

static bool is_uuid(const char *p, size_t len) {
    if (len < 36 || p[8] != '-')
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? p[i] != '-' : !(kind(p[i]) & HEX))
            return false;
    }
    return len == 36 || !(kind(p[36]) & (LETTER | DIGIT));
}

struct pattern {
    char *out; /* NULL: only the hash is wanted */
    size_t len;
    uint64_t hash, last; /* hash: of all whole words of eight bytes; last: the bytes since */
    bool star;           /* the pattern ends with a star */
};

static inline uint64_t mixed(uint64_t hash, uint64_t word) {
    uint64_t x = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

static inline void put_byte(struct pattern *t, char c) {
    if (t->out) {
        t->out[t->len++] = c;
        return;
    }
    t->last = t->last << 8 | (unsigned char)c;
    if (++t->len % 8 == 0)
        t->hash = mixed(t->hash, t->last);
}

static inline void put_star(struct pattern *t) {
    if (!t->star && t->len + 2 <= ADVISE_PATTERN_MAX)
        put_byte(t, '*');
    t->star = true;
}

/* Reads a word of letters and digits. It is an identifier, and no name, if it is hexadecimal with a digit, or long with
 * several digits. It is written as a name, and taken back if its end shows that it is an identifier. */
static inline size_t put_word(struct pattern *t, const char *p, size_t len) {
    struct pattern before = *t;
    size_t digits = 0, hex = 0, n = 0;
    for (; n < len && (kind(p[n]) & (LETTER | DIGIT)); n++) {
        unsigned k = kind(p[n]);
        digits += k & DIGIT;
        hex += (k & HEX) / HEX;
        if (k & DIGIT)
            put_star(t);
        else if (t->len + 3 <= ADVISE_PATTERN_MAX) {
            put_byte(t, p[n]);
            t->star = false;
        }
    }
    if ((hex == n && n >= 8 && digits > 0) || (n >= 16 && digits >= 4)) {
        *t = before;
        put_star(t);
    }
    return n;
}

static inline void pattern_of(struct pattern *t, const char *key, size_t len) {
    for (size_t i = 0; i < len && t->len + 4 <= ADVISE_PATTERN_MAX;) {
        if (kind(key[i]) & HEX && is_uuid(key + i, len - i)) {
            put_star(t);
            i += 36;
        } else if (kind(key[i]) & (LETTER | DIGIT)) {
            i += put_word(t, key + i, len - i);
        } else { /* there is room for three bytes */
            if (kind(key[i]) & SPECIAL)
                put_byte(t, '\\');
            put_byte(t, key[i] == '\0' ? '?' : key[i]);
            t->star = false;
            i++;
        }
    }
    if (t->len + 4 > ADVISE_PATTERN_MAX) /* the key is cut: the star stands for the rest */
        put_star(t);
}

size_t advise_pattern(const char *key, size_t len, char out[ADVISE_PATTERN_MAX]) {
    struct pattern t = {.out = out};
    pattern_of(&t, key, len);
    out[t.len] = '\0';
    return t.len;
}

static uint64_t pattern_hash(const struct pattern *t) {
    return hash_number(mixed(mixed(t->hash, t->last), t->len));
}

uint64_t advise_pattern_hash(const char *key, size_t len) {
    struct pattern t = {.len = 0};
    pattern_of(&t, key, len);
    return pattern_hash(&t);
}

uint64_t advise_pattern_text_hash(const char *pattern, size_t len) {
    struct pattern t = {.len = 0};
    for (size_t i = 0; i < len; i++)
        put_byte(&t, pattern[i]);
    return pattern_hash(&t);
}

size_t advise_stem(const char *pattern, size_t len) {
    while (len > 0 && !memchr(":/|.#@-_", pattern[len - 1], 8))
        len--;
    return len;
}
