/* MONITOR's lines: read as Redis writes them, and followed to the result of each command. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parser/command.h"
#include "proxy/advise/advise.h"
#include "proxy/monitor_tap/private.h"

struct rig {
    struct observer *observer;
    struct monitor_tap *overhear;
    int64_t now_ms;
};

static int set_up(void **state) {
    static struct rig rig;
    rig = (struct rig){.observer = observer_new(7), .now_ms = 1700000000000};
    rig.overhear = tap_new(rig.observer, 7, 0);
    *state = &rig;
    return 0;
}

static int tear_down(void **state) {
    struct rig *rig = *state;
    tap_free(rig->overhear);
    observer_free(rig->observer);
    return 0;
}

/* A line, 1 ms after the one before. */
static void hear_from(struct rig *rig, const char *from, const char *words) {
    char line[512];
    rig->now_ms++;
    snprintf(line, sizeof(line), "%lld.%06lld [0 %s] %s", (long long)(rig->now_ms / 1000),
             (long long)(rig->now_ms % 1000 * 1000), from, words);
    assert_true(tap_line(rig->overhear, line, strlen(line)));
}

static void hear(struct rig *rig, int port, const char *words) {
    char from[64];
    snprintf(from, sizeof(from), "127.0.0.1:%d", port);
    hear_from(rig, from, words);
}

struct lines {
    unsigned count;
    char text[16][ADVISE_LINE_MAX];
};

static void add_line(void *arg, const char *line, size_t len) {
    struct lines *l = arg;
    assert_true(l->count < 16);
    snprintf(l->text[l->count++], ADVISE_LINE_MAX, "%.*s", (int)len, line);
}

static const struct lines *lines_of(struct rig *rig) {
    static struct lines l;
    l.count = 0;
    tap_end(rig->overhear);
    advise_each(rig->observer, NULL, rig->now_ms, add_line, &l);
    return &l;
}

static void said(struct rig *rig, const char *part) {
    const struct lines *l = lines_of(rig);
    unsigned first = 0; /* after what is unsafe */
    while (first < l->count && strncmp(l->text[first], "UNSAFE", strlen("UNSAFE")) == 0)
        first++;
    if (l->count != first + 1 || !strstr(l->text[first], part))
        fail_msg("%u lines, the first: %s; not: %s", l->count, l->count ? l->text[0] : "", part);
}

/* ---- lines ---- */

static void lines_are_read(void **state) {
    static const char *const good[] = {
        "1700000000.123456 [0 127.0.0.1:4000] \"GET\" \"k\"",   "+1700000000.123456 [0 127.0.0.1:4000] \"GET\" \"k\"\r",
        "1700000000.123456 [15 [::1]:4000] \"GET\" \"] \\\"\"", "1700000000.123456 [0 lua] \"GET\" \"k\"",
        "1700000000.123456 [0 unix:/run/a b] \"GET\" \"k\"",
    };
    static const char *const from[] = {"127.0.0.1:4000", "127.0.0.1:4000", "[::1]:4000", "lua", "unix:/run/a b"};
    static const char *const bad[] = {"",
                                      "OK",
                                      "1700000000",
                                      "1700000000.123456",
                                      "1700000000.123456 ",
                                      "1700000000.12345 [0 a:1] \"GET\"",
                                      "1700000000.1234567 [0 a:1] \"GET\"",
                                      "x.123456 [0 a:1] \"GET\"",
                                      "1700000000.123456 [x a:1] \"GET\"",
                                      "1700000000.123456 [0 a:1 \"GET\"",
                                      "1700000000.123456 [0 ] \"GET\"",
                                      "1700000000.123456 [0 a:1] GET",
                                      "1700000000.123456 [99999999999 a:1] \"GET\"",
                                      "9999999999999999.123456 [0 a:1] \"GET\""};
    struct monitor_line line;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(monitor_line_read(&line, good[i], strlen(good[i])));
        assert_int_equal(line.time_ms, 1700000000123);
        assert_int_equal(line.from_len, strlen(from[i]));
        assert_memory_equal(line.from, from[i], line.from_len);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (monitor_line_read(&line, bad[i], strlen(bad[i])))
            fail_msg("taken for a line: %s", bad[i]);
    (void)state;
}

/* Every byte, as Redis's sdscatrepr writes it. */
static void words_are_read(void **state) {
    char text[2048] = "1.000000 [0 a:1] \"SET\" \"";
    size_t len = strlen(text);
    for (int c = 0; c < 256; c++) {
        const char *named = c ? strchr("\nn\rr\tt\aa\bb\\\\\"\"", c) : NULL;
        bool is_named = c == '\n' || c == '\r' || c == '\t' || c == '\a' || c == '\b' || c == '\\' || c == '"';
        if (is_named && named)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "\\%c", named[1]);
        else if (c >= ' ' && c <= '~')
            text[len++] = (char)c;
        else
            len += (size_t)snprintf(text + len, sizeof(text) - len, "\\x%02x", (unsigned)c);
    }
    text[len++] = '"';
    struct monitor_line line;
    struct text bytes = {0};
    struct resp_request request;
    resp_request_init(&request);
    assert_true(monitor_line_read(&line, text, len));
    assert_true(monitor_args_read(&line, &bytes, &request));
    assert_int_equal(request.argc, 2);
    assert_int_equal(request.argv[1].len, 256);
    for (int c = 0; c < 256; c++)
        assert_int_equal((unsigned char)bytes.data[request.argv[1].off + (size_t)c], c);
    text_clear(&bytes);
    resp_request_clear(&request);
    (void)state;
}

/* Valkey 8.1 does not escape quotes and backslashes. */
static void quotes_within_words(void **state) {
    static const char text[] = "1.000000 [0 a:1] \"EVAL\" \"return \"a\" .. 'b'\" \"\\x00\\n\"\\"
                               "end\\xff\" \"\"\"";
    static const char *const words[] = {"EVAL", "return \"a\" .. 'b'", NULL, "\""};
    struct monitor_line line;
    struct text bytes = {0};
    struct resp_request request;
    resp_request_init(&request);
    assert_true(monitor_line_read(&line, text, sizeof(text) - 1));
    assert_true(monitor_args_read(&line, &bytes, &request));
    assert_int_equal(request.argc, 4);
    for (size_t i = 0; i < 4; i++)
        if (words[i]) {
            assert_int_equal(request.argv[i].len, strlen(words[i]));
            assert_memory_equal(bytes.data + request.argv[i].off, words[i], strlen(words[i]));
        }
    assert_int_equal(request.argv[2].len, 8);
    assert_memory_equal(bytes.data + request.argv[2].off,
                        "\0\n\"\\"
                        "end\xff",
                        8);
    text_clear(&bytes);
    resp_request_clear(&request);
    (void)state;
}

static void garbage_is_counted(void **state) {
    struct rig *rig = *state;
    static const char *const bad[] = {"", "OK", "1700000000.123456 [0 a:1] \"GET", "1700000000.123456 [0 a:1] \"a\"b"};
    for (size_t i = 0; i < 4; i++)
        assert_false(tap_line(rig->overhear, bad[i], strlen(bad[i])));
    hear(rig, 1, "\"NOSUCH\" \"k\"");
    hear(rig, 1, "\"SET\"");
    hear(rig, 1, "\"SETNX\" \"k\"");
    assert_int_equal(tap_counts(rig->overhear)->garbage, 4);
    assert_int_equal(tap_counts(rig->overhear)->lines, 3);
    assert_int_equal(lines_of(rig)->count, 0);
}

/* ---- results ---- */

/* Of the first attempt it is assumed that the lock was free. */
static void setnx_expire_del(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 21; i++) {
        hear(rig, 1 + i % 3, "\"SETNX\" \"job:1:lock\" \"1\"");
        hear(rig, 1 + i % 3, "\"EXPIRE\" \"job:1:lock\" \"30\"");
        hear(rig, 1 + (i + 1) % 3, "\"SETNX\" \"job:1:lock\" \"1\"");
        hear(rig, 1 + i % 3, "\"DEL\" \"job:1:lock\"");
    }
    said(rig, "acquired 21, lost 21, released 21, overruns 0, without expiry 21; outside of the rules;");
    said(rig, "a connection for each worker; values constant;");
    said(rig, "events: lock job:*:lock");
    assert_int_equal(tap_counts(rig->overhear)->attempts, 42);
    assert_int_equal(tap_counts(rig->overhear)->assumed, 1);
    assert_int_equal(tap_counts(rig->overhear)->unsure, 0);
}

/* A lock that is acquired once is known like one that is acquired always. */
static void locks_by_number(void **state) {
    struct rig *rig = *state;
    char words[64];
    for (int i = 0; i < 20; i++) {
        snprintf(words, sizeof(words), "\"SET\" \"job:%d:lock\" \"v%d\" \"NX\" \"EX\" \"30\"", i, i);
        hear(rig, 1, words);
        snprintf(words, sizeof(words), "\"DEL\" \"job:%d:lock\"", i);
        hear(rig, 1, words);
    }
    said(rig, "values distinct; acquired 20, lost 0, released 20,");
    assert_int_equal(tap_counts(rig->overhear)->assumed, 20);
}

/* What replaces a key as a whole leaves nothing that is known. */
static void what_is_not_known_is_counted(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, "\"SETNX\" \"job:lock\" \"1\"");
        hear(rig, 1, "\"DEL\" \"job:lock\"");
        hear(rig, 1, "\"RENAME\" \"job:lock\" \"other\"");
        hear(rig, 1, "\"SETNX\" \"job:lock\" \"1\"");
        hear(rig, 1, "\"DEL\" \"job:lock\"");
    }
    assert_int_equal(tap_counts(rig->overhear)->unsure, 15);
    said(rig, "acquired 15, lost 0");
}

static void losers_that_delete(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 20; i++) {
        hear(rig, 1, "\"set\" \"job:lock\" \"1\" \"nx\" \"ex\" \"30\"");
        hear(rig, 2, "\"set\" \"job:lock\" \"1\" \"nx\" \"ex\" \"30\"");
        hear(rig, 2, "\"del\" \"job:lock\"");
        hear(rig, 1, "\"del\" \"job:lock\"");
    }
    said(rig, "losers delete: 20 times");
    said(rig, "in vain 20");
}

/* MSETEX acquires with NX, and HSETEX with FNX. */
static void newest_ways_to_acquire(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, "\"MSETEX\" \"2\" \"job:a\" \"1\" \"job:b\" \"1\" \"NX\" \"EX\" \"30\"");
        hear(rig, 2, "\"MSETEX\" \"2\" \"job:b\" \"1\" \"job:c\" \"1\" \"EX\" \"30\" \"nx\"");
        hear(rig, 2, "\"SET\" \"job:c\" \"1\" \"NX\" \"EX\" \"30\"");
        hear(rig, 2, "\"DEL\" \"job:c\"");
        hear(rig, 1, "\"DEL\" \"job:a\"");
        hear(rig, 1, "\"DEL\" \"job:b\"");
    }
    const struct lines *l = lines_of(rig);
    unsigned found = 0;
    for (unsigned i = 0; i < l->count; i++)
        found += strstr(l->text[i], "acquired 15,") != NULL;
    assert_int_equal(found, 3);
    assert_int_equal(tap_counts(rig->overhear)->unsure, 0);
}

/* DELIFEQ, DELEX and SET IFEQ do nothing if the key has another value. */
static void deletes_that_compare(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, "\"SET\" \"job:lock\" \"a\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 2, "\"SET\" \"job:lock\" \"b\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 2, "\"DELIFEQ\" \"job:lock\" \"b\"");
        hear(rig, 2, "\"SET\" \"job:lock\" \"b\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 1, "\"SET\" \"job:lock\" \"c\" \"IFEQ\" \"a\" \"PX\" \"30000\"");
        hear(rig, 1, "\"DELEX\" \"job:lock\" \"IFEQ\" \"a\"");
        hear(rig, 2, "\"SET\" \"job:lock\" \"b\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 1, "\"DELEX\" \"job:lock\" \"IFEQ\" \"c\"");
    }
    said(rig, "acquired 15, lost 45, released 15,");
    assert_int_equal(tap_counts(rig->overhear)->unsure, 0);
    hear(rig, 1, "\"SET\" \"job:lock\" \"a\" \"NX\" \"PX\" \"30000\"");
    hear(rig, 1, "\"DELEX\" \"job:lock\" \"IFNE\" \"b\""); /* the model does not say whether */
    assert_int_equal(tap_counts(rig->overhear)->unsure, 1);
}

/* The lock has ended by its expiry when it is deleted, and another client holds it. */
static void late_deletes(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 12; i++) {
        hear(rig, 1, "\"SET\" \"job:lock\" \"1\" \"NX\" \"PX\" \"100\"");
        rig->now_ms += 200;
        hear(rig, 2, "\"SET\" \"job:lock\" \"1\" \"NX\" \"PX\" \"1000\"");
        hear(rig, 1, "\"DEL\" \"job:lock\"");
        hear(rig, 2, "\"DEL\" \"job:lock\"");
    }
    said(rig, "acquired 24, lost 0");
    said(rig, "late 12");
    said(rig, "overruns 12");
}

static void a_dead_lock(void **state) {
    struct rig *rig = *state;
    hear(rig, 1, "\"DEL\" \"job:lock\"");
    hear(rig, 1, "\"SETNX\" \"job:lock\" \"1\"");
    hear(rig, 1, "\"DEL\" \"job:lock\"");
    hear(rig, 1, "\"SETNX\" \"job:lock\" \"1\"");
    static const char both[] = "id=1 addr=127.0.0.1:1 name=a user=default\nid=2 addr=127.0.0.1:2 name= user=default\n";
    static const char gone[] = "id=2 addr=127.0.0.1:2 name=b user=joe lib-name=x\n";
    tap_ask_clients(rig->overhear);
    tap_clients(rig->overhear, both, strlen(both));
    hear(rig, 2, "\"SETNX\" \"job:lock\" \"1\"");
    tap_ask_clients(rig->overhear);
    tap_clients(rig->overhear, gone, strlen(gone));
    for (int i = 0; i < 3; i++)
        hear(rig, 2, "\"SETNX\" \"job:lock\" \"1\"");
    const struct lines *l = lines_of(rig);
    assert_true(l->count > 0 && strstr(l->text[0], "dead lock: job:lock by 127.0.0.1: no expiry, its owner is gone"));
}

/* The line of a SETNAME comes before the reply to a CLIENT LIST that Redis ran earlier. */
static void a_name_that_is_newer_than_the_list(void **state) {
    struct rig *rig = *state;
    static const char before[] =
        "id=1 addr=127.0.0.1:1 name= user=default\nid=2 addr=127.0.0.1:2 name=old user=default\n";
    tap_ask_clients(rig->overhear);
    hear(rig, 1, "\"CLIENT\" \"SETNAME\" \"shop\"");
    tap_clients(rig->overhear, before, strlen(before));
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, "\"SETNX\" \"job:lock\" \"1\"");
        hear(rig, 1, "\"DEL\" \"job:lock\"");
    }
    said(rig, "name=shop: ");
}

/* Scripts' own lines say what they did; a script that acquires and has written nothing has lost. */
static void scripts(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, "\"SET\" \"job:lock\" \"a\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 2, "\"SET\" \"job:lock\" \"b\" \"NX\" \"PX\" \"30000\"");
        hear(rig, 1, "\"EVALSHA\" \"0123456789012345678901234567890123456789\" \"1\" \"job:lock\" \"a\"");
        hear_from(rig, "lua", "\"get\" \"job:lock\"");
        hear_from(rig, "lua", "\"del\" \"job:lock\"");
    }
    said(rig, "acquired 15, lost 15, released 15");
}

static void script_texts(void **state) {
    struct rig *rig = *state;
    static const char acquire[] = "\"EVAL\" \"if redis.call('get', KEYS[1]) then return 0 end redis.call('set', "
                                  "KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1\" \"1\" \"job:lock\" \"a\" \"30000\"";
    static const char release[] = "\"EVAL\" \"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', "
                                  "KEYS[1]) end return 0\" \"1\" \"job:lock\" \"a\"";
    for (int i = 0; i < 15; i++) {
        hear(rig, 1, acquire);
        hear_from(rig, "lua", "\"get\" \"job:lock\"");
        hear_from(rig, "lua", "\"set\" \"job:lock\" \"a\" \"PX\" \"30000\"");
        hear(rig, 2, acquire);
        hear_from(rig, "lua", "\"get\" \"job:lock\"");
        hear(rig, 1, release);
        hear_from(rig, "lua", "\"get\" \"job:lock\"");
        hear_from(rig, "lua", "\"del\" \"job:lock\"");
    }
    said(rig, "acquired 15, lost 15, released 15");
}

static void counters_and_hashes(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < 200; i++) {
        hear(rig, 1, "\"INCR\" \"job:lock\"");
        hear(rig, 1, "\"DEL\" \"job:lock\"");
    }
    said(rig, "lock job:lock kind counter");
}

static void list_locks(void **state) {
    struct rig *rig = *state;
    char words[64];
    for (int i = 0; i < 20; i++) {
        snprintf(words, sizeof(words), "\"RPUSH\" \"job:lock\" \"n%d\"", i);
        hear(rig, 1, words);
        hear(rig, 1, "\"LINDEX\" \"job:lock\" \"0\"");
        snprintf(words, sizeof(words), "\"LREM\" \"job:lock\" \"1\" \"n%d\"", i);
        hear(rig, 1, words);
        hear(rig, 1, "\"DEL\" \"job:lock\"");
    }
    said(rig, "a list lock;");
    said(rig, "lock job:lock kind list");
}

/* What Redis says to PTTL counts from where its line stands among the others, whichever comes first. */
static void answers_count_where_they_stand(void **state) {
    struct rig *rig = *state;
    const char *key;
    size_t len;
    for (int order = 0; order < 2; order++) {
        char words[64];
        tap_self(rig->overhear, "word");
        hear(rig, 9, "\"ECHO\" \"word\"");
        snprintf(words, sizeof(words), "\"SET\" \"job%c:lock\" \"1\" \"NX\" \"EX\" \"5\"", 'a' + order);
        hear(rig, 1, words);
        assert_true(tap_asks(rig->overhear, &key, &len));
        assert_int_equal(len, 9);
        assert_false(tap_asks(rig->overhear, &key, &len));
        if (order == 0)
            tap_answer(rig->overhear, -1);
        snprintf(words, sizeof(words), "\"PTTL\" \"job%c:lock\"", 'a' + order);
        hear(rig, 9, words);
        if (order == 1)
            tap_answer(rig->overhear, -1);
        rig->now_ms += 60000;
        snprintf(words, sizeof(words), "\"SET\" \"job%c:lock\" \"1\" \"NX\"", 'a' + order);
        hear(rig, 2, words);
        const struct lines *l = lines_of(rig);
        assert_true(strstr(l->text[0], "acquired 1, lost 1") || strstr(l->text[1], "acquired 1, lost 1"));
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(lines_are_read),
        TEST(words_are_read),
        TEST(quotes_within_words),
        TEST(garbage_is_counted),
        TEST(setnx_expire_del),
        TEST(locks_by_number),
        TEST(what_is_not_known_is_counted),
        TEST(losers_that_delete),
        TEST(newest_ways_to_acquire),
        TEST(deletes_that_compare),
        TEST(late_deletes),
        TEST(a_dead_lock),
        TEST(a_name_that_is_newer_than_the_list),
        TEST(scripts),
        TEST(script_texts),
        TEST(counters_and_hashes),
        TEST(list_locks),
        TEST(answers_count_where_they_stand),
    };
    command_table_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
