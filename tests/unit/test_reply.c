/* Replies: every vector whole, cut at every byte, byte by byte, and with others after it; reading replies; numbers.
 * Buffers are exactly as long as the bytes that have come, so that AddressSanitizer sees a read beyond them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/resp.h"

/* A vector's text with its length; NUL bytes may be in it. */
struct text {
    const char *s;
    size_t len;
};
#define TEXT(literal)                                                                                                  \
    { literal, sizeof(literal) - 1 }

/* A copy of the exact size. */
static char *copy_of(const char *s, size_t len) {
    char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, s, len);
    return copy;
}

/* ---- replies ----------------------------------------------------------------------------- */

static const struct {
    char type;
    struct text bytes;
} REPLIES[] = {
    {'+', TEXT("+OK\r\n")},
    {'+', TEXT("+\r\n")},
    {'+', TEXT("+a line that is longer than what is looked through by hand\r\n")},
    {'+', TEXT("+a\rb\nc\r\r\n")},
    {'-', TEXT("-ERR no such thing\r\n")},
    {':', TEXT(":0\r\n")},
    {':', TEXT(":-9223372036854775808\r\n")},
    {'$', TEXT("$-1\r\n")},
    {'$', TEXT("$0\r\n\r\n")},
    {'$', TEXT("$3\r\nfoo\r\n")},
    {'$', TEXT("$12\r\n+OK\r\n:1\r\n$-1\r\n")},
    {'*', TEXT("*-1\r\n")},
    {'*', TEXT("*0\r\n")},
    {'*', TEXT("*3\r\n$1\r\na\r\n$-1\r\n:5\r\n")},
    {'*', TEXT("*2\r\n*2\r\n+a\r\n*0\r\n*1\r\n*1\r\n*1\r\n$1\r\nx\r\n")},
    {'*', TEXT("*10\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n*-1\r\n")},
    {'_', TEXT("_\r\n")},
    {'#', TEXT("#t\r\n")},
    {',', TEXT(",3.14\r\n")},
    {',', TEXT(",-inf\r\n")},
    {'(', TEXT("(3492890328409238509324850943850943825024385\r\n")},
    {'!', TEXT("!21\r\nSYNTAX invalid syntax\r\n")},
    {'=', TEXT("=8\r\ntxt:text\r\n")},
    {'%', TEXT("%0\r\n")},
    {'%', TEXT("%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n_\r\n#f\r\n")},
    {'~', TEXT("~3\r\n:1\r\n,2\r\n~0\r\n")},
    {'>', TEXT(">3\r\n+message\r\n+channel\r\n$4\r\n\r\n\r\n\r\n")},
    {'+', TEXT("|1\r\n+ttl\r\n:3600\r\n+OK\r\n")},
    {'$', TEXT("|0\r\n$1\r\nx\r\n")},
    {'*', TEXT("|1\r\n+a\r\n*1\r\n:1\r\n|2\r\n+b\r\n+c\r\n+d\r\n*0\r\n*2\r\n:1\r\n:2\r\n")},
    {'*', TEXT("*3\r\n:1\r\n|1\r\n+a\r\n:2\r\n:2\r\n|1\r\n|0\r\n+a\r\n|1\r\n+x\r\n+y\r\n+z\r\n:3\r\n")},
    {'*', TEXT("*1\r\n|1\r\n+a\r\n+b\r\n$-1\r\n")},
};

enum { REPLY_COUNT = sizeof REPLIES / sizeof *REPLIES };

/* Frames the reply at the start of t, which comes in chunks: at first `first` bytes, then `step` at a time. */
static enum resp_status frame_in_steps(struct text t, size_t first, size_t step, char *type, size_t *used_in_all) {
    struct resp_reply r;
    enum resp_status status = RESP_MORE;
    size_t at = 0;
    resp_reply_init(&r);
    for (size_t chunk = first; status == RESP_MORE; chunk = step) {
        if (chunk > t.len - at) {
            chunk = t.len - at;
        }
        char *data = copy_of(t.s + at, chunk);
        size_t used, quick = at == 0 ? resp_reply_quick(data, chunk) : 0;
        assert_int_equal(resp_reply_begins(&r), at == 0);
        status = resp_reply_scan(&r, data, chunk, &used);
        assert_true(quick == 0 || (status == RESP_OK && used == quick && strchr("-!*~>%|", r.type) == NULL));
        free(data);
        assert_true(used <= chunk && (status != RESP_MORE || used == chunk));
        at += used;
        if (at == t.len) {
            break;
        }
    }
    *type = r.type;
    *used_in_all = at;
    return status;
}

static void test_replies(void **state) {
    (void)state;
    for (size_t i = 0; i < REPLY_COUNT; i++) {
        struct text t = REPLIES[i].bytes;
        char type;
        size_t used;
        for (size_t cut = 0; cut <= t.len; cut++) {
            assert_int_equal(frame_in_steps(t, cut, t.len, &type, &used), RESP_OK);
            assert_int_equal(type, REPLIES[i].type);
            assert_int_equal(used, t.len);
            if (cut < t.len) {
                struct text part = {t.s, cut};
                assert_int_equal(frame_in_steps(part, cut, 1, &type, &used), RESP_MORE);
            }
        }
        assert_int_equal(frame_in_steps(t, 1, 1, &type, &used), RESP_OK);
        assert_int_equal(used, t.len);
    }
}

/* The usual ones are found at one look; errors and what is cut never are. */
static void test_quick_replies(void **state) {
    (void)state;
    static const struct text usual[] = {
        TEXT("+OK\r\n"),    TEXT("+QUEUED\r\n"), TEXT(":1\r\n"),        TEXT(":-12345\r\n"),
        TEXT("$-1\r\n"),    TEXT("$0\r\n\r\n"),  TEXT("$3\r\nabc\r\n"), TEXT("$12\r\nabcdef\r\nghij\r\n"),
        TEXT("#t\r\n_\r\n")};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        size_t whole = usual[i].s[0] == '#' ? 0 : usual[i].len;
        for (size_t len = 0; len <= usual[i].len; len++) {
            char *data = copy_of(usual[i].s, len);
            size_t quick = resp_reply_quick(data, len);
            assert_true(whole == 0 ? quick == 0 || quick == 4 : quick == (len == whole ? whole : 0));
            free(data);
        }
    }
    assert_int_equal(resp_reply_quick("-MOVED 1 a:1\r\n", 14), 0);
    assert_int_equal(resp_reply_quick(">1\r\n+a\r\n", 8), 0);
}

static void test_replies_in_one_buffer(void **state) {
    (void)state;
    char *all = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&all, &len);
    for (size_t i = 0; i < REPLY_COUNT; i++) {
        fwrite(REPLIES[i].bytes.s, 1, REPLIES[i].bytes.len, f);
    }
    fclose(f);
    for (size_t step = 1; step <= len; step = step < 30 ? step + 1 : step * 2) {
        size_t at = 0;
        for (size_t i = 0; i < REPLY_COUNT; i++) {
            char type;
            size_t used;
            assert_int_equal(frame_in_steps((struct text){all + at, len - at}, step, step, &type, &used), RESP_OK);
            assert_int_equal(type, REPLIES[i].type);
            assert_int_equal(used, REPLIES[i].bytes.len);
            at += used;
        }
    }
    free(all);
}

static void test_bad_replies(void **state) {
    (void)state;
    static const struct text bad[] = {
        TEXT("x"),
        TEXT("\r\n"),
        TEXT("HTTP/1.1 400 Bad Request\r\n"),
        TEXT("\0"),
        TEXT("$\r\n"),
        TEXT("$x\r\n"),
        TEXT("$-2\r\n"),
        TEXT("$-\r\n"),
        TEXT("$-10\r\n"),
        TEXT("$+1\r\na\r\n"),
        TEXT("$01\r\na\r\n"),
        TEXT("$1 \r\na\r\n"),
        TEXT("$1\na\r\n"),
        TEXT("$1\rxa\r\n"),
        TEXT("$1\r\nab\r\n"),
        TEXT("$1\r\na\n\r"),
        TEXT("$1\r\na\rx"),
        TEXT("$0\r\nx\r"),
        TEXT("$9223372036854775807\r\n"),
        TEXT("$99999999999999999999999\r\n"),
        TEXT("$?\r\n"),
        TEXT("*?\r\n"),
        TEXT("*-2\r\n"),
        TEXT("*00\r\n"),
        TEXT("*1\r\nx"),
        TEXT("*2\r\n+a\r\n$x"),
        TEXT("!-1\r\n"),
        TEXT("=-1\r\n"),
        TEXT("%-1\r\n"),
        TEXT("~-1\r\n"),
        TEXT(">-1\r\n"),
        TEXT("|-1\r\n"),
        TEXT("%9223372036854775807\r\n"),
        /* Nested counts that overflow together. */
        TEXT("*1152921504606846975\r\n*1152921504606846975\r\n*1152921504606846975\r\n*1152921504606846975\r\n"
             "*1152921504606846975\r\n*1152921504606846975\r\n*1152921504606846975\r\n*1152921504606846975\r\n"
             "*1152921504606846975\r\n"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (size_t cut = 0; cut <= bad[i].len; cut++) {
            char type;
            size_t used;
            assert_int_equal(frame_in_steps(bad[i], cut, bad[i].len, &type, &used), RESP_BAD);
            assert_int_equal(frame_in_steps(bad[i], cut, 1, &type, &used), RESP_BAD);
        }
    }
}

static void test_deep_reply(void **state) {
    (void)state;
    enum { DEPTH = 300 * 1000 };
    struct text t = {malloc(DEPTH * 4 + 4), DEPTH * 4 + 4};
    char *p = (char *)t.s;
    for (size_t i = 0; i < DEPTH; i++) {
        memcpy(p + 4 * i, i % 2 ? "*1\r\n" : "~1\r\n", 4);
    }
    memcpy(p + 4 * DEPTH, ":1\r\n", 4);
    char type;
    size_t used;
    assert_int_equal(frame_in_steps(t, t.len, 1, &type, &used), RESP_OK);
    assert_int_equal(used, t.len);
    assert_int_equal(frame_in_steps(t, 1, 5, &type, &used), RESP_OK);
    assert_int_equal(used, t.len);
    assert_ptr_equal(resp_item_end(t.s, t.s + t.len), t.s + t.len);
    free(p);
}

/* 512 MB through one buffer. */
static void test_huge_reply(void **state) {
    (void)state;
    enum { CHUNK = 1 << 20, CHUNKS = 512 };
    struct text head = TEXT("*2\r\n$536870912\r\n");
    struct resp_reply r;
    size_t used;
    char *chunk = malloc(CHUNK);
    memset(chunk, '\r', CHUNK);
    resp_reply_init(&r);
    assert_int_equal(resp_reply_scan(&r, head.s, head.len, &used), RESP_MORE);
    for (int i = 0; i < CHUNKS; i++) {
        assert_int_equal(resp_reply_scan(&r, chunk, CHUNK, &used), RESP_MORE);
        assert_int_equal(used, CHUNK);
    }
    assert_int_equal(resp_reply_scan(&r, "\r\n:1\r\n+next", 11, &used), RESP_OK);
    assert_int_equal(used, 6);
    free(chunk);
}

/* ---- items ------------------------------------------------------------------------------- */

static void check_item(struct text t, const char *expected) {
    char got[128];
    char *copy = copy_of(t.s, t.len);
    const char *p = copy;
    struct resp_item item;
    if (!resp_item_read(&p, copy + t.len, &item)) {
        snprintf(got, sizeof got, "false");
        assert_ptr_equal(p, copy);
    } else {
        snprintf(got, sizeof got, "%c%s '%.*s' %lld, %d left", item.type, item.null ? " null" : "", (int)item.len,
                 item.str, (long long)item.num, (int)(copy + t.len - p));
    }
    assert_string_equal(got, expected);
    free(copy);
}

static void test_items(void **state) {
    (void)state;
    static const struct {
        struct text bytes;
        const char *expected;
    } items[] = {
        {TEXT("+OK\r\n"), "+ 'OK' 0, 0 left"},
        {TEXT("-ERR x\r\n:1\r\n"), "- 'ERR x' 0, 4 left"},
        {TEXT("+a\rb\r\n"), "+ 'a\rb' 0, 0 left"},
        {TEXT(":-12\r\n"), ": '-12' -12, 0 left"},
        {TEXT(":9223372036854775807\r\n"), ": '9223372036854775807' 9223372036854775807, 0 left"},
        {TEXT("$3\r\nfoo\r\n"), "$ 'foo' 0, 0 left"},
        {TEXT("$0\r\n\r\n"), "$ '' 0, 0 left"},
        {TEXT("$-1\r\n"), "$ null '' 0, 0 left"},
        {TEXT("*-1\r\n"), "* null '' 0, 0 left"},
        {TEXT("*2\r\n:1\r\n:2\r\n"), "* '' 2, 8 left"},
        {TEXT("~1\r\n_\r\n"), "~ '' 1, 3 left"},
        {TEXT(">1\r\n_\r\n"), "> '' 1, 3 left"},
        {TEXT("%3\r\n"), "% '' 6, 0 left"},
        {TEXT("|1\r\n+a\r\n+b\r\n:1\r\n"), "| '' 2, 12 left"},
        {TEXT("_\r\n"), "_ null '' 0, 0 left"},
        {TEXT("#t\r\n"), "# 't' 1, 0 left"},
        {TEXT("#f\r\n"), "# 'f' 0, 0 left"},
        {TEXT(",1.5\r\n"), ", '1.5' 0, 0 left"},
        {TEXT("(123\r\n"), "( '123' 0, 0 left"},
        {TEXT("!5\r\nERR x\r\n"), "! 'ERR x' 0, 0 left"},
        {TEXT("=6\r\ntxt:ab\r\n"), "= 'txt:ab' 0, 0 left"},
        {TEXT(""), "false"},
        {TEXT("+"), "false"},
        {TEXT("+OK"), "false"},
        {TEXT("+OK\r"), "false"},
        {TEXT("+OK\n"), "false"},
        {TEXT(":\r\n"), "false"},
        {TEXT(":+1\r\n"), "false"},
        {TEXT(":1x\r\n"), "false"},
        {TEXT(":9223372036854775808\r\n"), "false"},
        {TEXT("#x\r\n"), "false"},
        {TEXT("#\r\n"), "false"},
        {TEXT("_x\r\n"), "false"},
        {TEXT("$3\r\nfo\r\n"), "false"},
        {TEXT("$3\r\nfoo\r"), "false"},
        {TEXT("$3\r\nfoooo"), "false"},
        {TEXT("$-2\r\n"), "false"},
        {TEXT("$9223372036854775807\r\nx"), "false"},
        {TEXT("%9223372036854775807\r\n"), "false"},
        {TEXT("!-1\r\n"), "false"},
        {TEXT("x\r\n"), "false"},
    };
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        check_item(items[i].bytes, items[i].expected);
    }
}

/* Walking through a framed reply ends where the framer said it does. */
static void test_items_agree_with_framing(void **state) {
    (void)state;
    for (size_t i = 0; i < REPLY_COUNT; i++) {
        struct text t = REPLIES[i].bytes;
        char *copy = copy_of(t.s, t.len);
        const char *p = copy;
        const char *end = copy + t.len;
        assert_ptr_equal(resp_item_end(copy, end), end);
        assert_null(resp_item_end(copy, end - 1));
        for (int64_t pending = 1; pending > 0;) {
            struct resp_item item;
            assert_true(resp_item_read(&p, end, &item));
            bool aggregate = strchr("*~>%|", item.type) != NULL;
            pending += (aggregate ? item.num : 0) - (item.type == '|' ? 0 : 1);
        }
        assert_ptr_equal(p, end);
        free(copy);
    }
    assert_null(resp_item_end("", ""));
}

/* ---- numbers ----------------------------------------------------------------------------- */

static void test_integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"7", 7},
                {"-1", -1},
                {"1234567890", 1234567890},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775807", -INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *const bad[] = {"",
                                      "-",
                                      "+1",
                                      "-0",
                                      "00",
                                      "01",
                                      "-01",
                                      " 1",
                                      "1 ",
                                      "1a",
                                      "a",
                                      "--1",
                                      "1.0",
                                      "0x1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "18446744073709551616",
                                      "99999999999999999999999999999999"};
    int64_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(resp_integer(good[i].text, strlen(good[i].text), &value));
        assert_true(value == good[i].value);
        char out[RESP_HEADER_MAX + 1];
        char expected[RESP_HEADER_MAX + 1];
        size_t len = resp_header_write(out, ':', value);
        assert_int_equal(len, snprintf(expected, sizeof expected, ":%s\r\n", good[i].text));
        assert_memory_equal(out, expected, len);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(resp_integer(bad[i], strlen(bad[i]), &value));
    }
    assert_false(resp_integer("1\0", 2, &value));
}

static void test_bulk_write(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 9, 10, 99, 100, 999, 1000, 12345};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *payload = malloc(sizes[i] + 1);
        char *out = malloc(resp_bulk_size(sizes[i]));
        memset(payload, 'p', sizes[i] + 1);
        assert_ptr_equal(resp_bulk_write(out, payload, sizes[i]), out + resp_bulk_size(sizes[i]));
        struct resp_item item;
        const char *p = out;
        assert_true(resp_item_read(&p, out + resp_bulk_size(sizes[i]), &item));
        assert_int_equal(item.len, sizes[i]);
        assert_memory_equal(item.str, payload, sizes[i]);
        free(out);
        free(payload);
    }
    char out[8];
    assert_ptr_equal(resp_bulk_write(out, NULL, 0), out + 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_quick_replies),
        cmocka_unit_test(test_replies_in_one_buffer),
        cmocka_unit_test(test_bad_replies),
        cmocka_unit_test(test_deep_reply),
        cmocka_unit_test(test_huge_reply),
        cmocka_unit_test(test_items),
        cmocka_unit_test(test_items_agree_with_framing),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_bulk_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
