/*
 * Loaded into a Redis (LD_PRELOAD): the time of day is ahead of the machine's by as many microseconds as the file says
 * that CLOCK names. What measures time (CLOCK_MONOTONIC) stays as it is. libfaketime cannot be loaded beside jemalloc.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_us;

static __attribute__((constructor)) void load(void) {
    int fd = open(getenv("CLOCK"), O_RDONLY | O_CLOEXEC);
    ahead_us = mmap(NULL, sizeof(*ahead_us), PROT_READ, MAP_SHARED, fd, 0);
    if (ahead_us == MAP_FAILED)
        abort();
    close(fd);
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + *ahead_us;
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}
