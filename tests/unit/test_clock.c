/*
 * proxy/base/clock.c, with clocks of this test's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "proxy/base/clock.h"

static int64_t wall, passed;

/* Takes the place of libc's. */
int clock_gettime(clockid_t id, struct timespec *t) {
    int64_t ms = id == CLOCK_REALTIME ? wall : passed;
    *t = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    return 0;
}

static void passes(int64_t ms) {
    wall += ms;
    passed += ms;
}

/* Leases continue as if the clock had not been set; a function that asks for the time gets the new time. */
static void test_it_is_set(void **state) {
    wall = 1700000000000;
    passed = 5000;
    assert_int_equal(clock_even_ms(), 1700000000000);
    assert_int_equal(clock_set_by_ms(), 0);
    passes(700);
    assert_int_equal(clock_even_ms(), 1700000000700);
    assert_int_equal(clock_wall_ms(), 1700000000700);
    wall -= 3600 * 1000;
    passes(100);
    assert_int_equal(clock_even_ms(), 1700000000800);
    assert_int_equal(clock_wall_ms(), 1700000000800 - 3600 * 1000);
    assert_int_equal(clock_set_by_ms(), -3600 * 1000);
    wall += 3 * 3600 * 1000;
    passes(100);
    assert_int_equal(clock_even_ms(), 1700000000900);
    assert_int_equal(clock_set_by_ms(), 2 * 3600 * 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_is_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
