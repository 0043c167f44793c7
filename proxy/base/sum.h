/*
 * Sums of numbers from outside: a node's counts may have any value.
 */
#pragma once

#include <stdint.h>

/* a + b, or the limit of the range if the sum is beyond it. */
static inline int64_t sum_add(int64_t a, int64_t b) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}
