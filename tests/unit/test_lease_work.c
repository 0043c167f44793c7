/* What the engine asks a worker for, and the worker no longer does, since it ends before the end of its turn. The leak
 * checker of the test's build finds what is not freed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/base/memory.h"
#include "proxy/config/config.h"
#include "proxy/session/core/session.h"
#include "proxy/session/locks/locks.h"

static void test_worker_ends_with_alarms(void **state) {
    static struct worker w;
    static struct session s;
    static struct proxy_shared shared;
    static const struct lock_rule rule = {.on_loss = LOCK_LOSS_ERROR};
    struct worker_job *job;
    struct lock_alarm alarm = {.lease = {.key = {.name = "lock:a", .len = 6}, .rule = &rule, .right = RIGHT_LOOK},
                               .session = &s.lock,
                               .session_id = 1,
                               .own = true};
    unsigned jobs = 0;
    struct config_errors errors = {0};
    struct config *config = config_load(1, (char *[]){(char[]){"lockkeeper"}, NULL}, &errors);
    assert_non_null(config);
    w.shared = &shared;
    w.config = config;
    s.worker = &w;
    list_init(&w.jobs);
    worker_enter(&w);
    locks_room.worker_opens(&w);
    lock_note_alarm(NULL, &alarm);
    lock_note_alarm(NULL, &alarm);
    locks_room.worker_closes(&w);
    for (; (job = LIST_SHIFT(&w.jobs, struct worker_job, link)); jobs++)
        memory_free(job);
    assert_int_equal(jobs, 1); /* for all alarms of the turn */
    worker_enter(NULL);
    config_unref(config);
    config_errors_clear(&errors);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worker_ends_with_alarms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
