/*
 * The time of day, a clock that follows it but is never set, and the monotonic clock.
 */
#pragma once

#include <stdint.h>
#include <time.h>

/* The monotonic clock in microseconds, and in ms: all processes of one machine have it, and it is never set. */
static inline int64_t clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline int64_t clock_ms(void) {
    return clock_us() / 1000;
}

/* The wall clock, for people and other processes. It may be set. */
int64_t clock_wall_ms(void);
int64_t clock_wall_us(void);
/* The wall clock's time at the first call, plus the ms that have passed since. Leases are judged by this clock: it
 * never goes back, and is the same for all threads. */
int64_t clock_even_ms(void);
/* By how many ms the wall clock is ahead of clock_even_ms, because it was set. */
int64_t clock_set_by_ms(void);
