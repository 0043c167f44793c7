/* The log: its two formats, its levels, whole lines from several threads, and opening it again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proxy/base/log.h"

#define TEXT_LINE "^[0-9]+:P [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} "
#define JSON_LINE                                                                                                      \
    "^\\{\"time\":\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z\",\"pid\":[0-9]+,"               \
    "\"role\":\"proxy\",\"level\":\"notice\",\"message\":\""

static char folder[64];

static void path_of(const char *name, char out[96]) {
    snprintf(out, 96, "%s/%s", folder, name);
}

/* The file's content, to be freed. */
static char *content(const char *name) {
    char path[96];
    path_of(name, path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 4 * 1024 * 1024);
    assert_non_null(text);
    assert_true(fread(text, 1, 4 * 1024 * 1024 - 1, f) > 0 || feof(f));
    fclose(f);
    return text;
}

static void assert_line(const char *text, const char *pattern) {
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&re, text, 0, NULL, 0) != 0)
        fail_msg("\"%s\" does not look like %s", text, pattern);
    regfree(&re);
}

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/lockkeeper-log-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    char path[96];
    path_of("log", path);
    log_set_level(LOG_LEVEL_NOTICE);
    log_set_json(false);
    return log_open(path) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    static const char *const NAMES[] = {"log", "log.1"};
    bool done = log_open(NULL);
    for (size_t i = 0; i < 2; i++) {
        char path[96];
        path_of(NAMES[i], path);
        unlink(path);
    }
    return done && rmdir(folder) == 0 ? 0 : -1;
}

static void test_text(void **state) {
    (void)state;
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("one %d", 1);
    log_verbose("two");
    log_notice("three");
    log_warning("four");
    char *text = content("log");
    char *save = NULL;
    assert_line(strtok_r(text, "\n", &save), TEXT_LINE "\\. one 1$");
    assert_line(strtok_r(NULL, "\n", &save), TEXT_LINE "- two$");
    assert_line(strtok_r(NULL, "\n", &save), TEXT_LINE "\\* three$");
    assert_line(strtok_r(NULL, "\n", &save), TEXT_LINE "# four$");
    assert_null(strtok_r(NULL, "\n", &save));
    assert_int_equal(strtol(text, NULL, 10), getpid());
    free(text);
}

static void test_levels(void **state) {
    (void)state;
    for (int set = LOG_LEVEL_DEBUG; set <= LOG_LEVEL_NOTHING; set++) {
        log_set_level((enum log_level)set);
        for (int level = LOG_LEVEL_DEBUG; level <= LOG_LEVEL_WARNING; level++) {
            assert_int_equal(log_enabled((enum log_level)level), level >= set);
            log_write((enum log_level)level, "set %d level %d", set, level);
        }
    }
    log_write(LOG_LEVEL_NOTHING, "never");
    char *text = content("log");
    assert_non_null(strstr(text, "set 3 level 3"));
    assert_null(strstr(text, "set 3 level 2"));
    assert_null(strstr(text, "set 4"));
    assert_null(strstr(text, "never"));
    free(text);
}

static void test_one_line(void **state) {
    (void)state;
    log_notice("client named %s", "x\n1:P 01 Jan 2026 00:00:00.000 # forged\r\x1b[2J\x7f");
    char *text = content("log");
    assert_int_equal(strchr(text, '\n') - text, strlen(text) - 1);
    assert_line(text, "client named x\\\\n1:P 01 Jan 2026 00:00:00.000 # forged\\\\x0d\\\\x1b\\[2J\\\\x7f");
    free(text);
}

static void test_json(void **state) {
    (void)state;
    log_set_json(true);
    log_notice("a \"quoted\" \\ thing\n\tand \xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\x92 bad \xff \xc3( \xed\xa0\x80 end");
    char *text = content("log");
    assert_line(text, JSON_LINE);
    assert_non_null(strstr(text, "\"message\":\"a \\\"quoted\\\" \\\\ thing\\n\\u0009and \xc3\xa9 \xe2\x82\xac "
                                 "\xf0\x9f\x94\x92 bad \\ufffd \\ufffd( \\ufffd\\ufffd\\ufffd end\"}\n"));
    free(text);
}

static void test_long(void **state) {
    (void)state;
    char *message = malloc(100000);
    assert_non_null(message);
    memset(message, 1, 99999);
    message[99999] = '\0';
    log_notice("%s", message);
    log_set_json(true);
    log_notice("%s", message);
    free(message);
    char *text = content("log"), *second = strchr(text, '\n') + 1;
    assert_non_null(strstr(text, "\\x01...\n"));
    assert_non_null(strstr(second, "\\u0001...\"}\n"));
    assert_int_equal(strlen(second), strchr(second, '\n') + 1 - second);
    free(text);
}

static void test_errno(void **state) {
    (void)state;
    errno = EPROTO;
    log_notice("a line");
    assert_int_equal(errno, EPROTO);
}

/* A pipe in packet mode gives back what each write was. */
static void test_one_write(void **state) {
    (void)state;
    int ends[2], out = dup(STDOUT_FILENO);
    assert_true(out >= 0);
    assert_int_equal(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    fflush(stdout);
    assert_int_equal(dup2(ends[1], STDOUT_FILENO), STDOUT_FILENO);
    assert_true(log_open(""));
    log_notice("first");
    log_set_json(true);
    log_notice("second");
    dup2(out, STDOUT_FILENO);
    close(out);
    close(ends[1]);
    char packet[4096];
    ssize_t n = read(ends[0], packet, sizeof(packet) - 1);
    assert_true(n > 0);
    packet[n] = '\0';
    assert_line(packet, TEXT_LINE "\\* first\n$");
    n = read(ends[0], packet, sizeof(packet) - 1);
    assert_true(n > 0);
    packet[n] = '\0';
    assert_line(packet, JSON_LINE "second\"}\n$");
    assert_int_equal(read(ends[0], packet, sizeof(packet)), 0);
    close(ends[0]);
}

enum { THREADS = 4, LINES = 500 };

static void *writer(void *arg) {
    const char *name = arg;
    for (int i = 0; i < LINES; i++)
        log_notice("%s %d abcdefghijklmnopqrstuvwxyz %s", name, i, name);
    return NULL;
}

/* Lines of several threads, while the file is opened again: each is there once and whole. */
static void test_threads(void **state) {
    (void)state;
    static char names[THREADS][8] = {"one", "two", "three", "four"};
    pthread_t threads[THREADS];
    char path[96], old[96];
    path_of("log", path);
    path_of("log.1", old);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, writer, names[i]), 0);
    for (int i = 0; i < 200; i++)
        assert_true(log_open(path));
    assert_int_equal(rename(path, old), 0);
    assert_true(log_open(path));
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    log_notice("last");

    size_t lines = 0;
    const char *const files[] = {"log.1", "log"};
    for (size_t f = 0; f < 2; f++) {
        char *text = content(files[f]), *save = NULL;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++)
            assert_line(line, TEXT_LINE "\\* (last|(one|two|three|four) [0-9]+ abcdefghijklmnopqrstuvwxyz "
                                        "(one|two|three|four))$");
        free(text);
    }
    assert_int_equal(lines, THREADS * LINES + 1);
}

static void test_rotate(void **state) {
    (void)state;
    char path[96], old[96];
    path_of("log", path);
    path_of("log.1", old);
    log_notice("before");
    assert_int_equal(rename(path, old), 0);
    log_notice("still the old file");
    assert_true(log_open(path));
    log_notice("after");
    assert_false(log_open("/nonexistent/folder/log"));
    assert_int_equal(errno, ENOENT);
    log_notice("and on");
    char *first = content("log.1"), *second = content("log");
    assert_non_null(strstr(first, "still the old file"));
    assert_null(strstr(first, "after"));
    assert_null(strstr(second, "before"));
    assert_non_null(strstr(second, "after"));
    assert_non_null(strstr(second, "and on"));
    free(first);
    free(second);
}

/* The same path anew; where that can't be opened the old file is kept. */
static void test_reopen(void **state) {
    (void)state;
    char path[96], old[96];
    path_of("log", path);
    path_of("log.1", old);
    log_notice("before");
    assert_int_equal(rename(path, old), 0);
    assert_true(log_reopen());
    log_notice("after");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(log_reopen());
    assert_int_equal(errno, EISDIR);
    log_notice("lost with its file, and nobody waits");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* a log that waits for a reader ends the test */
    assert_false(log_reopen());
    alarm(0);
    assert_int_equal(errno, ENXIO);
    assert_int_equal(unlink(path), 0);
    assert_true(log_reopen());
    log_notice("and on");
    char *first = content("log.1"), *second = content("log");
    assert_non_null(strstr(first, "before"));
    assert_null(strstr(first, "after"));
    assert_line(second, "^" TEXT_LINE "\\* and on\n$");
    free(first);
    free(second);
    assert_true(log_open(NULL));
    assert_true(log_reopen());
    assert_true(log_open(path));
}

/* What a message is made of is there for machines, too, and never makes a line that is none. */
static void test_fields(void **state) {
    (void)state;
    static const struct log_field fields[] = {{.name = "key", .text = "a\"b\n\xff", .len = 5},
                                              {.name = "count", .number = -4940}};
    char wide[4000];
    memset(wide, '\1', sizeof(wide));
    const struct log_field all[] = {{.name = "wide", .text = wide, .len = sizeof(wide)},
                                    {.name = "cut", .text = "gone", .len = 4},
                                    {.name = "number", .number = 7}};
    log_write_fields(LOG_LEVEL_NOTICE, fields, 2, "a %s", "text");
    log_set_json(true);
    log_write_fields(LOG_LEVEL_NOTICE, fields, 2, "a %s", "text");
    log_write_fields(LOG_LEVEL_VERBOSE, fields, 2, "below the level");
    log_write_fields(LOG_LEVEL_NOTICE, all, 3, "%.*s", (int)sizeof(wide), wide);
    char *text = content("log"), *save = NULL;
    assert_line(strtok_r(text, "\n", &save), TEXT_LINE "\\* a text$");
    assert_non_null(
        strstr(strtok_r(NULL, "\n", &save), "\"message\":\"a text\",\"key\":\"a\\\"b\\n\\ufffd\",\"count\":-4940}"));
    assert_line(strtok_r(NULL, "\n", &save), "\"wide\":\"(.u0001)*\",\"cut\":\"\",\"number\":7}$");
    assert_null(strtok_r(NULL, "\n", &save));
    free(text);
}

/* A pipe without a reader does not block; lost lines are counted in the next line that is written. */
static void test_nobody_reads(void **state) {
    (void)state;
    enum { WRITTEN = 2000, ROOM = 1 << 20 };
    char path[96], *text = calloc(1, ROOM), wide[1500];
    assert_non_null(text);
    path_of("pipe", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_true(log_open(path));
    memset(wide, 'w', sizeof(wide) - 1);
    wide[sizeof(wide) - 1] = '\0';
    alarm(20); /* a log that waits ends the test */
    for (int i = 0; i < WRITTEN; i++)
        log_notice("line %d %s", i, wide);
    alarm(0);
    size_t len = 0;
    ssize_t n;
    while (len < ROOM - 1 && (n = read(reader, text + len, ROOM - 1 - len)) > 0)
        len += (size_t)n;
    int whole = 0;
    for (const char *p = text; (p = strstr(p, "* line ")); p++)
        whole++;
    assert_true(whole > 10 && whole < WRITTEN);
    assert_int_equal(text[len - 1], '\n');
    log_notice("somebody reads on");
    memset(text, 0, ROOM);
    assert_true(read(reader, text, ROOM - 1) > 0);
    char lost[80];
    snprintf(lost, sizeof(lost), "# %d log lines were lost: the reader was too slow\n", WRITTEN - whole);
    assert_non_null(strstr(text, lost));
    assert_non_null(strstr(text, "* somebody reads on\n"));
    close(reader);
    unlink(path);
    free(text);
}

int main(void) {
#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        LOG_TEST(test_text),   LOG_TEST(test_levels), LOG_TEST(test_one_line),  LOG_TEST(test_json),
        LOG_TEST(test_long),   LOG_TEST(test_errno),  LOG_TEST(test_one_write), LOG_TEST(test_threads),
        LOG_TEST(test_rotate), LOG_TEST(test_reopen), LOG_TEST(test_fields),    LOG_TEST(test_nobody_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
