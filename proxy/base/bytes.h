/*
 * Operations on short texts without loops and calls: copies, and the first and last bytes as words. The words overlap
 * if the text is shorter than two words.
 */
#pragma once

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Copies like memcpy, without a call for up to 64 bytes. Returns the end of the copy. */
static inline char *bytes_copy(char *to, const char *from, size_t len) {
    if (len > 64) {
        memcpy(to, from, len);
    } else if (len > 32) {
        memcpy(to, from, 32);
        memcpy(to + len - 32, from + len - 32, 32);
    } else if (len >= 16) {
        memcpy(to, from, 16);
        memcpy(to + len - 16, from + len - 16, 16);
    } else if (len >= 8) {
        memcpy(to, from, 8);
        memcpy(to + len - 8, from + len - 8, 8);
    } else if (len >= 4) {
        memcpy(to, from, 4);
        memcpy(to + len - 4, from + len - 4, 4);
    } else if (len > 0) {
        to[0] = from[0];
        to[len / 2] = from[len / 2];
        to[len - 1] = from[len - 1];
    }
    return to + len;
}

/* The first eight bytes in memory order; a shorter text is padded with NULs. */
static inline uint64_t bytes_head(const char *p, size_t len) {
    uint64_t head = 0;
    uint32_t first, last;
    if (len >= 8) {
        memcpy(&head, p, 8);
    } else if (len >= 4) {
        memcpy(&first, p, 4);
        memcpy(&last, p + len - 4, 4);
        memcpy((char *)&head + len - 4, &last, 4);
        memcpy(&head, &first, 4);
    } else {
        memcpy(&head, p, len);
    }
    return head;
}

/* Converts eight digits in memory order to a number; false if a byte is not a digit. Reading fences this way earns 3 %
 * of the bound on acquire and release. */
static inline bool bytes_eight_digits(uint64_t word, uint64_t *n) {
    word = le64toh(word);
    if (((word & 0xf0f0f0f0f0f0f0f0u) | ((word + 0x0606060606060606u) & 0xf0f0f0f0f0f0f0f0u) >> 4) !=
        0x3333333333333333u)
        return false;
    word = (word & 0x0f0f0f0f0f0f0f0fu) * (10 * 0x100 + 1) >> 8;
    word = (word & 0x00ff00ff00ff00ffu) * (100 * 0x10000 + 1) >> 16;
    *n = (word & 0x0000ffff0000ffffu) * (10000 * 0x100000000u + 1) >> 32;
    return true;
}

/* Writes a number below 100,000,000 as eight digits: it splits the word into halves of four digits, then pairs, then
 * digits, and divides all lanes at once. Writing tokens this way earns 3 % of the bound on acquire and release. */
static inline uint64_t bytes_as_eight_digits(uint32_t n) {
    uint64_t word = n / 10000 | (uint64_t)(n % 10000) << 32, tens;
    tens = (word * 5243 >> 19) & 0x0000007f0000007fu;
    word = tens | (word - tens * 100) << 16;
    tens = (word * 103 >> 10) & 0x000f000f000f000fu;
    word = tens | (word - tens * 10) << 8;
    return htole64(word + 0x3030303030303030u);
}

/* Up to eight bytes from each end: input for hashes that only have to be cheap. */
struct bytes_ends {
    uint64_t head, tail;
};

static inline struct bytes_ends bytes_ends(const char *p, size_t len) {
    struct bytes_ends e = {0, 0};
    uint32_t first, last;
    if (len >= 8) {
        memcpy(&e.head, p, 8);
        memcpy(&e.tail, p + len - 8, 8);
    } else if (len >= 4) {
        memcpy(&first, p, 4);
        memcpy(&last, p + len - 4, 4);
        e.head = first;
        e.tail = last;
    } else if (len > 0) {
        e.head = (uint64_t)(unsigned char)p[0] << 8 | (unsigned char)p[len / 2];
        e.tail = (unsigned char)p[len - 1];
    }
    return e;
}

/* Whether two texts of that length are equal; without a call for up to 32 bytes. That earns 1 % of the bound on acquire
 * and release. */
static inline bool bytes_same(const char *a, const char *b, size_t len) {
    if (len > 32)
        return memcmp(a, b, len) == 0;
    struct bytes_ends of_a = bytes_ends(a, len), of_b = bytes_ends(b, len);
    if (of_a.head != of_b.head || of_a.tail != of_b.tail)
        return false;
    return len <= 16 || (memcmp(a + 8, b + 8, 8) == 0 && memcmp(a + len - 16, b + len - 16, 8) == 0);
}
