#include "proxy/base/clock.h"

#include <stdatomic.h>
#include <time.h>

int64_t clock_wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_wall_ms(void) {
    return clock_wall_us() / 1000;
}

int64_t clock_even_ms(void) {
    static atomic_int_least64_t begun_ms; /* the wall clock's time when the monotonic clock began; 0: not read yet */
    int64_t passed_ms = clock_ms(), begun = atomic_load_explicit(&begun_ms, memory_order_relaxed);
    if (begun == 0) {
        int64_t now = clock_wall_ms() - passed_ms;
        if (atomic_compare_exchange_strong(&begun_ms, &begun, now))
            begun = now;
    }
    return begun + passed_ms;
}

int64_t clock_set_by_ms(void) {
    return clock_wall_ms() - clock_even_ms();
}
