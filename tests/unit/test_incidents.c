/* Incidents, with times of the test's: what is kept, what is summed, what is logged; and hosts that are ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/admin/admin.h"
#include "proxy/base/log.h"

enum { ROWS = 256, START = 1000000, LOG_ROOM = 8 << 20 };

static char log_path[64];

static int set_up(void **state) {
    strcpy(log_path, "/tmp/lockkeeper-incidents-XXXXXX");
    int fd = mkstemp(log_path);
    if (fd < 0)
        return -1;
    close(fd);
    *state = incidents_new(ROWS);
    return log_open(log_path) ? 0 : -1;
}

static int tear_down(void **state) {
    incidents_free(*state);
    return log_open(NULL) && unlink(log_path) == 0 ? 0 : -1;
}

/* How many lines of the log have a word; `line` gets the last of them, if it is not NULL. */
static unsigned logged(const char *word, char line[4096]) {
    char *text = calloc(1, LOG_ROOM), *save = NULL;
    FILE *f = fopen(log_path, "r");
    unsigned count = 0;
    assert_true(text && f);
    assert_true(fread(text, 1, LOG_ROOM - 1, f) > 0 || feof(f));
    fclose(f);
    for (char *at = strtok_r(text, "\n", &save); at; at = strtok_r(NULL, "\n", &save)) {
        count += strstr(at, word) ? 1 : 0;
        if (line && strstr(at, word))
            snprintf(line, 4096, "%s", at);
    }
    free(text);
    return count;
}

static void add(struct incidents *i, const char *kind, const char *identity, int64_t ms) {
    struct incident incident = {.time_ms = START + ms,
                                .rule = "lock:*",
                                .key = "lock:a",
                                .key_len = 6,
                                .holder = "somebody",
                                .command = "DEL",
                                .action = "refused"};
    snprintf(incident.kind, sizeof(incident.kind), "%s", kind);
    snprintf(incident.identity, sizeof(incident.identity), "%s", identity);
    snprintf(incident.client, sizeof(incident.client), "%s:%d", identity, (int)(ms % 1000));
    incidents_add(i, &incident, incident.action);
}

struct seen {
    unsigned rows;
    uint64_t count;
    int64_t newest_ms, last_ms;
    const char *kind; /* only these; NULL: all */
};

static void see(void *arg, const struct incident *i) {
    struct seen *seen = arg;
    if (seen->kind && strcmp(seen->kind, i->kind) != 0)
        return;
    if (seen->rows == 0)
        seen->newest_ms = i->time_ms - START;
    assert_true(seen->rows == 0 || i->time_ms <= seen->last_ms);
    seen->rows++;
    seen->count += i->count;
    seen->last_ms = i->time_ms;
}

static struct seen look(struct incidents *i, const char *kind) {
    struct seen seen = {.kind = kind};
    assert_true(incidents_each(i, &(struct incident_filter){0}, 100000, see, &seen));
    return seen;
}

/* The first line goes at once, the others of ten seconds as one, and so on for as long as they come. */
static void test_repeats_are_counted(void **state) {
    struct incidents *i = *state;
    char line[4096];
    for (int ms = 0; ms < 35000; ms += 10) {
        add(i, "flood", "a", ms);
        if (ms % 1000 == 990)
            incidents_tell(i, START + ms, false);
    }
    assert_int_equal(logged("incident flood: DEL on lock:a by a:0, held by somebody: refused", NULL), 1);
    assert_int_equal(logged("incident flood", line), 4);
    assert_non_null(strstr(line, "incident flood x 1,000 in 10 s: last DEL on lock:a by a:"));
    for (int ms = 35000; ms < 60000; ms += 1000)
        incidents_tell(i, START + ms, false);
    assert_int_equal(logged("incident flood", line), 5);
    assert_non_null(strstr(line, "incident flood x 400 in 10 s"));
    add(i, "flood", "a", 61000); /* and then nothing is to be waited for */
    assert_int_equal(logged("incident flood:", NULL), 2);
    incidents_tell(i, START + 61000, true);
    assert_int_equal(logged("incident flood", NULL), 6);
}

static void test_a_clock_that_is_set_back(void **state) {
    struct incidents *i = *state;
    add(i, "flood", "a", 500000);
    add(i, "flood", "a", 500001);
    incidents_tell(i, START, false);
    assert_int_equal(logged("incident flood x 1 in 1 s", NULL), 1);
    add(i, "flood", "b", 1);
    assert_int_equal(logged("incident flood: DEL on lock:a by b", NULL), 1);
}

/* Neither another kind nor another client of the same kind is pushed out. */
static void test_a_flood_pushes_nobody_out(void **state) {
    struct incidents *i = *state;
    add(i, "rare", "a", 0);
    add(i, "flood", "quiet", 0);
    for (int ms = 0; ms < 9000; ms++)
        add(i, "flood", "a", ms);
    assert_int_equal(look(i, "rare").rows, 1);
    struct seen flood = look(i, "flood");
    assert_int_equal(flood.rows, 65);
    assert_int_equal(flood.count, 9001);
    assert_int_equal(flood.newest_ms, 8999);
    for (int ms = 9000; ms < 1000000; ms += 50)
        add(i, "flood", "a", ms);
    assert_int_equal(look(i, "flood").rows, ROWS);
    assert_int_equal(look(i, "rare").rows, 1);
}

struct sums {
    unsigned groups;
    uint64_t count, others, last;
    int64_t first_ms, last_ms; /* of "a" */
};

static void sum_up(void *arg, const struct incident_sum *s) {
    struct sums *sums = arg;
    assert_true(sums->groups == 0 || s->count <= sums->last);
    sums->last = s->count;
    sums->groups++;
    sums->count += s->count;
    assert_true(s->first_ms <= s->last->time_ms && s->last->key_len == 6);
    if (strcmp(s->last->identity, "(others)") == 0) {
        sums->others += s->count;
        assert_string_equal(s->last->rule, "");
    } else {
        assert_string_equal(s->last->rule, "lock:*");
    }
    if (strcmp(s->last->identity, "a") == 0) {
        sums->first_ms = s->first_ms - START;
        sums->last_ms = s->last->time_ms - START;
    }
}

static struct sums total(struct incidents *i) {
    struct sums sums = {0};
    incidents_sums(i, &(struct incident_filter){0}, 100000, sum_up, &sums);
    return sums;
}

/* Beyond the bound the sum stays complete, and a client that goes on still has its own group. */
static void test_sums_are_bounded(void **state) {
    struct incidents *i = *state;
    char name[32];
    for (int n = 0; n < 3000; n++) { /* all at once: no group has been quiet */
        snprintf(name, sizeof(name), "n%d", n);
        add(i, n % 2 ? "flood" : "rare", n == 7 ? "a" : name, n);
    }
    struct sums sums = total(i);
    assert_int_equal(sums.groups, 1024 + 2);
    assert_int_equal(sums.others, 3000 - 1024);
    assert_int_equal(sums.count, 3000);
    assert_int_equal(logged("incident", NULL), 200);
    add(i, "flood", "a", 20000);
    for (int ms = 3000; ms < 200000; ms += 1000) { /* what was not told at once is told by and by */
        unsigned before = logged("incident", NULL);
        incidents_tell(i, START + ms, false);
        assert_true(logged("incident", NULL) <= before + 20);
    }
    assert_int_equal(logged("incident", NULL), 200 + 824 + 2 + 1);
    for (int n = 0; n < 500; n++) {
        snprintf(name, sizeof(name), "late%d", n);
        add(i, "flood", name, 300000 + n);
    }
    sums = total(i);
    assert_int_equal(sums.count, 3501);
    assert_int_equal(sums.others, 3000 - 1024 + 500);
    assert_int_equal(sums.first_ms, 7);
    assert_int_equal(sums.last_ms, 20000);
}

static void test_hosts(void **state) {
    (void)state;
    static const char *const names[] = {"proxy1.example", "Two"};
    static const char *const any[] = {"*"};
    static const char *const ours[] = {"127.0.0.1",  "10.1.2.3:80", "[::1]",          "[fe80::1]:9090",   "localhost",
                                       "LocalHost.", "localhost:",  "proxy1.example", "PROXY1.EXAMPLE:1", "two."};
    static const char *const foreign[] = {"",
                                          ":1",
                                          "evil.example",
                                          "127.0.0.1.evil.example",
                                          "[::1",
                                          "[::1]x",
                                          "[]",
                                          "1.2.3",
                                          "localhost:80x",
                                          "a b",
                                          "two.evil",
                                          "localhost@evil",
                                          "."};
    char wide[400];
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        assert_true(host_is_ours(ours[i], names, 2));
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        assert_false(host_is_ours(foreign[i], names, 2));
    assert_false(host_is_ours("two", NULL, 0));
    assert_true(host_is_ours("evil.example:80", any, 1));
    memset(wide, 'x', sizeof(wide) - 1);
    wide[sizeof(wide) - 1] = '\0';
    assert_false(host_is_ours(wide, any, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_repeats_are_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_clock_that_is_set_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_flood_pushes_nobody_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_sums_are_bounded, set_up, tear_down),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
