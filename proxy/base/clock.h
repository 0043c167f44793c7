/*
 * The time of day, and a clock like it that nobody sets.
 */
#ifndef LOCKKEEPER_BASE_CLOCK_H
#define LOCKKEEPER_BASE_CLOCK_H

#include <stdint.h>

/* The wall clock in ms: what people and other processes are told. It may be set. */
int64_t clock_wall_ms(void);
/* What the wall clock said when the process first asked, and the ms that have passed since: by this leases are
 * judged. It never goes back, and is the same for all threads. */
int64_t clock_even_ms(void);
/* By how many ms the wall clock is ahead of that, since it was set. */
int64_t clock_set_by_ms(void);

#endif
