/*
 * The time of day, and a clock that follows it but is never set.
 */
#ifndef LOCKKEEPER_BASE_CLOCK_H
#define LOCKKEEPER_BASE_CLOCK_H

#include <stdint.h>

/* The wall clock in ms, for people and other processes. It may be set. */
int64_t clock_wall_ms(void);
/* The wall clock in microseconds. */
int64_t clock_wall_us(void);
/* The wall clock's time at the first call, plus the ms that have passed since. Leases are judged by this clock: it
 * never goes back, and is the same for all threads. */
int64_t clock_even_ms(void);
/* By how many ms the wall clock is ahead of clock_even_ms, because it was set. */
int64_t clock_set_by_ms(void);

#endif
