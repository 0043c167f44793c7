/* Failed invariants: what they count, tell and end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parser/invariant.h"

static char told[2048];
static int times;

static void tell(const char *text) {
    snprintf(told, sizeof(told), "%s", text);
    times++;
}

static int set_up(void **state) {
    (void)state;
    told[0] = '\0';
    times = 0;
    invariant_start(tell, false);
    return 0;
}

static int computed;
static int compute(void) {
    return ++computed;
}

static void test_holds(void **state) {
    (void)state;
    uint64_t before = invariant_failures();
    computed = 0;
    assert_true(invariant(compute() == 1, "computed %d times", compute()));
    assert_int_equal(computed, 1); /* the condition once, the text's values not at all */
    assert_int_equal(invariant_failures(), before);
    assert_int_equal(times, 0);
}

static bool grows(int from, int to) {
    return invariant(to > from, "S2: the fence grows: %d after %d", to, from);
}

static void test_told_once_and_counted(void **state) {
    (void)state;
    uint64_t before = invariant_failures();
    assert_false(grows(7, 5));
    assert_string_equal(strchr(told, ':'), strstr(told, ": S2"));
    assert_non_null(strstr(told, ": S2: the fence grows: 5 after 7 (to > from) in grows, test_invariant.c:"));
    assert_false(grows(9, 8));
    assert_true(grows(1, 2));
    assert_int_equal(times, 1);
    assert_int_equal(invariant_failures(), before + 2);
    invariant(times == 0, "another place"); /* is told for itself */
    assert_int_equal(times, 2);
    assert_int_equal(invariant_failures(), before + 3);
}

static void test_long_text_is_cut(void **state) {
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof(text));
    invariant(times == 1, "%.*s", (int)sizeof(text), text);
    assert_int_equal(times, 1);
    assert_in_range(strlen(told), 500, 1100);
}

enum { THREADS = 4, EACH = 1000 };

static void *fail_often(void *arg) {
    for (int i = 0; i < EACH; i++)
        grows(1, 0);
    return arg;
}

static void test_threads(void **state) {
    (void)state;
    uint64_t before = invariant_failures();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fail_often, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(invariant_failures(), before + THREADS * EACH);
}

/* Runs in a process of its own; returns how it ended, and what it wrote to standard error. */
static int end_of(void (*run)(void), char *out, size_t size) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL); /* cmocka and sanitizers may watch it */
        dup2(pipes[1], STDERR_FILENO);
        run();
        _exit(0);
    }
    close(pipes[1]);
    size_t len = 0;
    ssize_t n;
    while (len + 1 < size && (n = read(pipes[0], out + len, size - len - 1)) > 0)
        len += (size_t)n;
    out[len] = '\0';
    close(pipes[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void fail_fatally(void) {
    invariant_start(NULL, true);
    invariant(times == 2, "times is %d", times);
}

static void fail_again_fatally(void) {
    grows(3, 2); /* was told already */
    invariant_start(NULL, true);
    grows(3, 2);
}

static void hold_fatally(void) {
    invariant_start(NULL, true);
    invariant(times == 0, "times is %d", times);
}

static void fail_debug(void) {
    invariant_start(NULL, true);
    invariant_debug(times == 2, "times is %d", times);
}

static void test_fatal(void **state) {
    (void)state;
    char text[2048];
    int status = end_of(fail_fatally, text, sizeof(text));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "times is 0 (times == 2) in fail_fatally, test_invariant.c:"));
    status = end_of(fail_again_fatally, text, sizeof(text));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    status = end_of(hold_fatally, text, sizeof(text));
    assert_true(WIFEXITED(status));
    assert_string_equal(text, "");
}

static void fail_at_first(void) {
    invariant(times == 2, "times is %d", times);
}

/* Before invariant_start: unit tests, fuzzers and the simulator do not call it. */
static void test_fatal_from_the_start(void **state) {
    (void)state;
    char text[2048];
    int status = end_of(fail_at_first, text, sizeof(text));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "times is 0"));
}

static void test_debug_alone(void **state) {
    (void)state;
    char text[2048];
    int status = end_of(fail_debug, text, sizeof(text));
#ifdef NDEBUG
    assert_true(WIFEXITED(status));
#else
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fatal_from_the_start), /* the first */
        cmocka_unit_test_setup(test_holds, set_up),
        cmocka_unit_test_setup(test_told_once_and_counted, set_up),
        cmocka_unit_test_setup(test_long_text_is_cut, set_up),
        cmocka_unit_test_setup(test_threads, set_up),
        cmocka_unit_test_setup(test_fatal, set_up),
        cmocka_unit_test_setup(test_debug_alone, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
