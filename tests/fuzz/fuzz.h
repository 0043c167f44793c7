/*
 * Shared by the fuzz targets: a failure with its reason, and cutting a stream where the input says.
 *
 * It knows nothing of RESP.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that must hold; libFuzzer keeps the input of an abort. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The sizes of the pieces that a stream comes in: a byte of the input each, used in turn. */
struct cuts {
    uint8_t sizes[4];
    size_t next;
};

/* Takes the cuts from the front of the input; false where it is too short for them. */
static inline int cuts_take(struct cuts *c, const uint8_t **data, size_t *size) {
    if (*size < sizeof c->sizes) {
        return 0;
    }
    memcpy(c->sizes, *data, sizeof c->sizes);
    c->next = 0;
    *data += sizeof c->sizes;
    *size -= sizeof c->sizes;
    return 1;
}

/* The size of the next piece: at least one byte. */
static inline size_t cuts_next(struct cuts *c) {
    return 1 + c->sizes[c->next++ % sizeof c->sizes] % 64;
}

/* A copy of exactly this size, so that AddressSanitizer sees a read beyond it. */
static inline char *exact_copy(const void *data, size_t size) {
    char *copy = malloc(size ? size : 1);
    CHECK(copy);
    if (size) {
        memcpy(copy, data, size);
    }
    return copy;
}
