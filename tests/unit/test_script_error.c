/* Errors from inside scripts, with the texts of Redis 6.2 (src/scripting.c there) and 7.0: the remaining text is the
 * error of the command alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proxy/upstream/script.h"

#define SHA       "f52be91a2ed1bcb4d0e2dd2a0f4c7fd2e5e2c2a1"
#define RUNNING   "ERR Error running script (call to f_" SHA "): "
#define WRONGTYPE "WRONGTYPE Operation against a key holding the wrong kind of value"
#define READONLY  "READONLY You can't write against a read only replica."
#define MISCONF                                                                                                        \
    "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk. Commands "    \
    "that may modify the data set are disabled, because this instance is configured to report errors during writes "   \
    "if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about "   \
    "the RDB error."

static const struct {
    const char *error, *plain; /* NULL: it stays as it is */
} cases[] = {
    /* 6.2: what a command said inside redis.call; what Redis told the script instead of running one */
    {RUNNING "@user_script:1: " WRONGTYPE, WRONGTYPE},
    {RUNNING "@user_script:12: ERR value is not an integer or out of range",
     "ERR value is not an integer or out of range"},
    {RUNNING "@user_script:3: @user_script: 3: -" READONLY, READONLY},
    {RUNNING "@user_script:3: @user_script: 3: -" READONLY "  ", READONLY},
    {RUNNING "@user_script:3: @user_script: 3: -" MISCONF, MISCONF},
    {RUNNING "@user_script:3: @user_script: 3: -OOM command not allowed when used memory > 'maxmemory'.",
     "OOM command not allowed when used memory > 'maxmemory'."},
    {RUNNING "@user_script:7: @user_script: 7: The user executing the script can't run this command or subcommand",
     "ERR The user executing the script can't run this command or subcommand"},
    {RUNNING "@user_script:1: @user_script: 1: Unknown Redis command called from Lua script",
     "ERR Unknown Redis command called from Lua script"},
    /* 6.2, redis.pcall: the script has handed on the error */
    {"@user_script: 3: -" READONLY, READONLY},
    {"@user_script: 3: -" READONLY "  ", READONLY},
    {"@user_script: 7: The user executing the script can't run this command or subcommand",
     "ERR The user executing the script can't run this command or subcommand"},
    /* 7.0 */
    {WRONGTYPE " script: " SHA ", on @user_script:1.", WRONGTYPE},
    {"ERR value is out of range script: " SHA ", on @user_script:27.", "ERR value is out of range"},
    /* none is from a script */
    {WRONGTYPE, NULL},
    {"ERR Error running script (call to f_" SHA "): something else", NULL},
    {"ERR Error running script (call to f_", NULL},
    {RUNNING, NULL},
    {RUNNING "@user_script:1: ", NULL},
    {RUNNING "@user_script: 1", NULL},
    {"@user_script", NULL},
    {"@user_script:", NULL},
    {"@user_script: : -READONLY", NULL},
    {"@user_script: 3: ", NULL},
    {"@user_script: 3: -", NULL},
    {" script: " SHA ", on @user_script:1.", NULL},
    {"ERR script: short, on @user_script:1.", NULL},
    {"", NULL},
};

static void test_plain_errors(void **state) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char error[600], out[600] = "";
        size_t len = strlen(cases[i].error), out_len = 0;
        char *copy = error + sizeof(error) - len; /* at the end: nothing behind it may be looked at */
        memcpy(copy, cases[i].error, len);
        bool found = script_error_plain(copy, len, out, sizeof(out), &out_len);
        if (found != (cases[i].plain != NULL) ||
            (found && (out_len != strlen(out) || strcmp(out, cases[i].plain) != 0)))
            fail_msg("\"%s\" becomes \"%s\"", cases[i].error, found ? out : "(nothing)");
    }
}

static void test_no_room(void **state) {
    const char *error = cases[6].error, *plain = cases[6].plain;
    char out[100];
    size_t len = 0, need = strlen(plain);
    assert_true(need < sizeof(out));
    assert_false(script_error_plain(error, strlen(error), out, need - 1, &len));
    assert_true(script_error_plain(error, strlen(error), out, need, &len));
    assert_int_equal(len, need);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_errors),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
