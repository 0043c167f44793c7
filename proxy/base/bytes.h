/*
 * Short texts without loops and calls: copies, and their first and last bytes as words. The words overlap where the
 * text is shorter than they are.
 */
#ifndef LOCKKEEPER_BASE_BYTES_H
#define LOCKKEEPER_BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* As memcpy; quick for up to 64 bytes. Returns the end of the copy. */
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

/* The first eight bytes as memory has them, fewer with NULs behind them. */
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

/* Up to eight bytes of each end: for hashes that only have to be cheap. */
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

#endif
