/*
 * Durations, counted below fixed bounds from 50 µs to 10 s, for Prometheus. One writer; a reader in another thread must
 * synchronise with it.
 */
#ifndef LOCKKEEPER_BASE_HISTOGRAM_H
#define LOCKKEEPER_BASE_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BOUNDS = 17 };

/* The bounds, in µs, growing. */
extern const int64_t histogram_bounds[HISTOGRAM_BOUNDS];

/* A histogram of durations; {0} is an empty one. */
struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS +
                    1]; /* count of durations up to this bound and above the one before; the last: above all bounds */
    uint64_t sum_us;
};

/* Counts a duration. A negative one (the clock was set back) counts as 0. */
void histogram_note(struct histogram *h, int64_t us);
void histogram_add(struct histogram *to, const struct histogram *from);

#endif
