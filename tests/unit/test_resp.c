/* Requests: every vector whole, cut at every byte, byte by byte, and with others after it. Buffers are exactly as long
 * as the bytes that have come, so that AddressSanitizer sees a read beyond them. */
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

static const struct resp_limits NO_LIMITS = {512 * 1024 * 1024, false};
static const struct resp_limits UNAUTHENTICATED = {512 * 1024 * 1024, true};

/* A copy of the exact size. */
static char *copy_of(const char *s, size_t len) {
    char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, s, len);
    return copy;
}

/* Scans s, of which at first `first` bytes come and then `step` at a time. */
static enum resp_status scan_in_steps(struct resp_request *r, struct text t, size_t first, size_t step,
                                      const struct resp_limits *limits) {
    for (size_t have = first;; have = have + step < t.len ? have + step : t.len) {
        char *data = copy_of(t.s, have);
        enum resp_status status = resp_request_scan(r, data, have, limits);
        free(data);
        if (status != RESP_MORE || have == t.len) {
            return status;
        }
    }
}

/* What a request is expected to be, as text: "MULTIBULK 12 irregular [SET][k]", "INLINE 7 line 5", "EMPTY 4",
 * "BAD Protocol error: ...", "MORE". */
static void describe(char *out, size_t size, const struct resp_request *r, enum resp_status status, const char *data) {
    FILE *f = fmemopen(out, size, "w");
    assert_non_null(f);
    if (status == RESP_MORE) {
        fprintf(f, "MORE");
    } else if (status == RESP_BAD) {
        fprintf(f, "BAD %s", r->error);
    } else if (r->form == RESP_EMPTY) {
        fprintf(f, "EMPTY %zu%s", r->len, r->irregular ? " irregular" : "");
    } else if (r->form == RESP_INLINE) {
        fprintf(f, "INLINE %zu line %zu", r->len, r->line_len);
    } else {
        fprintf(f, "MULTIBULK %zu%s ", r->len, r->irregular ? " irregular" : "");
        for (size_t i = 0; i < r->argc; i++) {
            fputc('[', f);
            for (size_t k = 0; k < r->argv[i].len; k++) {
                char c = data[r->argv[i].off + k];
                c ? fputc(c, f) : fputs("NUL", f);
            }
            fputc(']', f);
        }
    }
    fputc('\0', f);
    fclose(f);
}

static void check_request(struct text t, size_t first, size_t step, const struct resp_limits *limits,
                          const char *expected) {
    char got[256];
    struct resp_request r;
    resp_request_init(&r);
    describe(got, sizeof got, &r, scan_in_steps(&r, t, first, step, limits), t.s);
    if (strcmp(got, expected) != 0) {
        print_error("'%.*s', first %zu, step %zu\n", (int)t.len, t.s, first, step);
    }
    assert_string_equal(got, expected);
    resp_request_clear(&r);
}

/* Checks that what is left behind the first `head` bytes has the same end, or the same error, when it is scanned by
 * itself. */
static void check_body(struct text t, size_t head, size_t step, const struct resp_limits *limits,
                       const char *expected) {
    struct resp_request r;
    struct resp_body body;
    resp_request_init(&r);
    if (scan_in_steps(&r, (struct text){t.s, head}, head, 1, limits) != RESP_MORE || r.pos == 0) {
        resp_request_clear(&r);
        return;
    }
    resp_body_init(&body, &r);
    enum resp_status status = RESP_MORE;
    size_t at = r.pos, used = 0;
    for (; status == RESP_MORE && at < t.len; at += used) {
        size_t piece = step < t.len - at ? step : t.len - at;
        char *data = copy_of(t.s + at, piece);
        status = resp_body_scan(&body, data, piece, limits, &used);
        free(data);
    }
    char got[256];
    size_t compared = sizeof got;
    if (status == RESP_BAD) {
        snprintf(got, sizeof got, "BAD %s", body.error);
    } else if (status == RESP_MORE) {
        snprintf(got, sizeof got, "MORE");
    } else {
        compared = (size_t)snprintf(got, sizeof got, "MULTIBULK %zu", at);
    }
    if (strncmp(got, expected, compared) != 0) {
        print_error("'%.*s', head %zu, step %zu: %s, not %s\n", (int)t.len, t.s, head, step, got, expected);
    }
    assert_int_equal(strncmp(got, expected, compared), 0);
    resp_request_clear(&r);
}

static void check_all_cuts(struct text t, const struct resp_limits *limits, const char *expected) {
    check_request(t, t.len, 1, limits, expected);
    check_request(t, 0, 1, limits, expected);
    for (size_t cut = 1; cut < t.len; cut++) {
        check_request(t, cut, t.len, limits, expected);
        check_body(t, cut, 1, limits, expected);
        check_body(t, cut, t.len, limits, expected);
    }
}

/* The errors are those of redis-server 7.0.15 for the same bytes. */
static const struct {
    struct text bytes;
    const char *expected;
} REQUESTS[] = {
    {TEXT(""), "MORE"},
    {TEXT("*1\r\n$4\r\nPING\r\n"), "MULTIBULK 14 [PING]"},
    {TEXT("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n"), "MULTIBULK 31 [SET][k][hello]"},
    {TEXT("*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), "MULTIBULK 19 [GET][]"},
    {TEXT("*1\r\n$0\r\n\r\n"), "MULTIBULK 10 []"},
    {TEXT("*2\r\n$10\r\n0123456789\r\n$12\r\n0123456789ab\r\n"), "MULTIBULK 40 [0123456789][0123456789ab]"},
    {TEXT("*10\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n$1\r\ni\r\n"
          "$1\r\nj\r\n"),
     "MULTIBULK 75 [a][b][c][d][e][f][g][h][i][j]"},
    {TEXT("*2\r\n$4\r\n*1\r\n\r\n$4\r\n\r\n\r\n\r\n"), "MULTIBULK 24 [*1\r\n][\r\n\r\n]"},
    {TEXT("*0\r\n"), "EMPTY 4"},
    {TEXT("*-1\r\n"), "EMPTY 5"},
    {TEXT("*-9223372036854775808\r\n"), "EMPTY 23"},
    {TEXT("*0\rx"), "EMPTY 4 irregular"},
    {TEXT("\n"), "EMPTY 1"},
    {TEXT("\r\n"), "EMPTY 2"},
    {TEXT("PING\n"), "INLINE 5 line 4"},
    {TEXT("PING\r\n"), "INLINE 6 line 4"},
    {TEXT("PING\r\r\n"), "INLINE 7 line 5"},
    {TEXT("a\rb\n"), "INLINE 4 line 3"},
    {TEXT("  \r\n"), "INLINE 4 line 2"},
    {TEXT("$1\r\n"), "INLINE 4 line 2"},
    {TEXT("PING"), "MORE"},
    /* Redis looks at neither the byte behind a length line's CR nor those behind a bulk. */
    {TEXT("*1\rx$4\rxPINGxx"), "MULTIBULK 14 irregular [PING]"},
    {TEXT("*1\r\n$4\r\nPING\n\r"), "MULTIBULK 14 irregular [PING]"},
    {TEXT("*1\r\n$4\r\nPING\rx"), "MULTIBULK 14 irregular [PING]"},
    {TEXT("*1\r\n$4\r\rPING\r\n"), "MULTIBULK 14 irregular [PING]"},
    /* A NUL byte hides the end of the line behind it. */
    {TEXT("PI\0NG\r\n"), "MORE"},
    {TEXT("*\0001\r\n"), "MORE"},
    {TEXT("*1\0\r\n$4\r\nPING\r\n"), "MORE"},
    {TEXT("*1\r\n$\0004\r\nPING\r\n"), "MORE"},
    {TEXT("*1\r\n\0\r\n"), "MORE"},
    {TEXT("*2\r\n$4\r\nE\0\0O\r\n$1\r\n\0\r\n"), "MULTIBULK 21 [ENULNULO][NUL]"},
    /* Nothing is wrong before the line has its CR and one byte more. */
    {TEXT("*x"), "MORE"},
    {TEXT("*x\r"), "MORE"},
    {TEXT("*1\r\nx"), "MORE"},
    {TEXT("*1\r\nx\r"), "MORE"},
    {TEXT("*\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*x\rx"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*-\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*-0\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*+1\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*01\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("* 1\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*1 \r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*1\n\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*2147483648\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*9223372036854775808\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*-9223372036854775809\r\n"), "BAD Protocol error: invalid multibulk length"},
    {TEXT("*2147483647\r\n$1\r\na\r\n"), "MORE"},
    {TEXT("*1\r\nfoo\r\n"), "BAD Protocol error: expected '$', got 'f'"},
    {TEXT("*2\r\n$1\r\na\r\n:1\r\n"), "BAD Protocol error: expected '$', got ':'"},
    {TEXT("*1\r\n\r\n"), "BAD Protocol error: expected '$', got ' '"},
    {TEXT("*1\r\n\n\r\n"), "BAD Protocol error: expected '$', got ' '"},
    {TEXT("*1\r\n\xe9\r\n"), "BAD Protocol error: expected '$', got '\xe9'"},
    {TEXT("*1\r\n$\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$x\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$-1\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$+4\r\nPING\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$ 4\r\nPING\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$4 \r\nPING\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$04\r\nPING\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$00\r\n\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$4PING\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$536870912\r\n"), "MORE"},
    {TEXT("*1\r\n$536870913\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$99999999999\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$9223372036854775807\r\n"), "BAD Protocol error: invalid bulk length"},
    {TEXT("*1\r\n$9223372036854775808\r\n"), "BAD Protocol error: invalid bulk length"},
};

enum { REQUEST_COUNT = sizeof REQUESTS / sizeof *REQUESTS };

static void test_requests(void **state) {
    (void)state;
    for (size_t i = 0; i < REQUEST_COUNT; i++) {
        check_all_cuts(REQUESTS[i].bytes, &NO_LIMITS, REQUESTS[i].expected);
    }
}

/* All complete vectors in one buffer, and each of them byte by byte with its successor behind it. */
static void test_requests_in_one_buffer(void **state) {
    (void)state;
    char *all = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&all, &len);
    for (size_t i = 0; i < REQUEST_COUNT; i++) {
        if (strncmp(REQUESTS[i].expected, "BAD", 3) != 0 && strcmp(REQUESTS[i].expected, "MORE") != 0) {
            fwrite(REQUESTS[i].bytes.s, 1, REQUESTS[i].bytes.len, f);
        }
    }
    fclose(f);
    for (size_t step = 1; step <= len; step = step < 20 ? step + 1 : step * 3) {
        struct resp_request r;
        resp_request_init(&r);
        size_t at = 0;
        for (size_t i = 0; i < REQUEST_COUNT; i++) {
            if (strncmp(REQUESTS[i].expected, "BAD", 3) == 0 || strcmp(REQUESTS[i].expected, "MORE") == 0) {
                continue;
            }
            char got[256];
            struct text rest = {all + at, len - at};
            enum resp_status status = scan_in_steps(&r, rest, step < rest.len ? step : rest.len, step, &NO_LIMITS);
            describe(got, sizeof got, &r, status, rest.s);
            assert_string_equal(got, REQUESTS[i].expected);
            at += r.len;
            resp_request_reset(&r);
        }
        assert_int_equal(at, len);
        resp_request_clear(&r);
    }
    free(all);
}

/* "*N\r\n" and N arguments of `len` bytes. */
static struct text build_request(size_t argc, size_t len) {
    char *out = malloc(RESP_HEADER_MAX + argc * resp_bulk_size(len));
    char *payload = malloc(len ? len : 1);
    assert_true(out && payload);
    memset(payload, 'x', len);
    char *p = out + resp_header_write(out, '*', (int64_t)argc);
    for (size_t i = 0; i < argc; i++) {
        p = resp_bulk_write(p, payload, len);
    }
    free(payload);
    return (struct text){out, (size_t)(p - out)};
}

static void test_limits_before_authentication(void **state) {
    (void)state;
    check_all_cuts((struct text)TEXT("*11\r\n"), &UNAUTHENTICATED,
                   "BAD Protocol error: unauthenticated multibulk length");
    check_all_cuts((struct text)TEXT("*11\r\n"), &NO_LIMITS, "MORE");
    check_all_cuts((struct text)TEXT("*1\r\n$16385\r\n"), &UNAUTHENTICATED,
                   "BAD Protocol error: unauthenticated bulk length");
    check_all_cuts((struct text)TEXT("*1\r\n$16385\r\n"), &NO_LIMITS, "MORE");
    check_all_cuts((struct text)TEXT("*1\r\n$536870913\r\n"), &UNAUTHENTICATED,
                   "BAD Protocol error: invalid bulk length");

    struct resp_request r;
    resp_request_init(&r);
    struct text most = build_request(RESP_UNAUTH_ARGS_MAX, RESP_UNAUTH_BULK_MAX);
    assert_int_equal(resp_request_scan(&r, most.s, most.len, &UNAUTHENTICATED), RESP_OK);
    assert_int_equal(r.argc, RESP_UNAUTH_ARGS_MAX);
    assert_int_equal(r.argv[9].len, RESP_UNAUTH_BULK_MAX);
    resp_request_clear(&r);
    free((char *)most.s);
}

static void test_bulk_limit(void **state) {
    (void)state;
    const struct resp_limits six = {6, false};
    check_all_cuts((struct text)TEXT("*1\r\n$6\r\nabcdef\r\n"), &six, "MULTIBULK 16 [abcdef]");
    check_all_cuts((struct text)TEXT("*1\r\n$7\r\nabcdefg\r\n"), &six, "BAD Protocol error: invalid bulk length");
    const struct resp_limits none = {INT64_MAX, false};
    check_all_cuts((struct text)TEXT("*1\r\n$9223372036854775807\r\nabc"), &none, "MORE");
}

/* Where a line's end does not come within 64 KiB. `prefix` is what comes before the line. */
static void check_long_line(const char *prefix, const char *begin, char end_byte, const char *error) {
    size_t at = strlen(prefix);
    struct text t = {malloc(at + 2 * RESP_INLINE_MAX), 0};
    char *s = (char *)t.s;
    memset(s, '1', at + 2 * RESP_INLINE_MAX);
    memcpy(s, prefix, at);
    memcpy(s + at, begin, strlen(begin));

    char expected[128];
    snprintf(expected, sizeof expected, "BAD %s", error);
    const size_t steps[] = {1, 7, 16 * 1024, 2 * RESP_INLINE_MAX + at};
    struct resp_request r;
    resp_request_init(&r);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (size_t extra = 0; extra < 3; extra++) {
            t.len = at + RESP_INLINE_MAX + extra;
            enum resp_status status = RESP_MORE;
            for (size_t have = 0; status == RESP_MORE && have < t.len;) {
                have = have + steps[i] < t.len ? have + steps[i] : t.len;
                status = resp_request_scan(&r, s, have, &NO_LIMITS);
            }
            assert_int_equal(status, extra ? RESP_BAD : RESP_MORE);
            if (extra) {
                assert_string_equal(r.error, error);
            }
            resp_request_clear(&r);
            resp_request_reset(&r);
        }
    }
    /* The last place for the end byte, and the first one where it is too late, however the bytes come. */
    t.len = at + 2 * RESP_INLINE_MAX;
    s[at + RESP_INLINE_MAX] = end_byte;
    enum resp_status whole = resp_request_scan(&r, s, t.len, &NO_LIMITS);
    if (end_byte == '\n') {
        assert_int_equal(whole, RESP_OK);
        assert_int_equal(r.line_len, RESP_INLINE_MAX);
    } else {
        /* A length line so long is found, and is no number. */
        assert_int_equal(whole, RESP_BAD);
        assert_string_not_equal(r.error, error);
    }
    resp_request_reset(&r);
    s[at + RESP_INLINE_MAX] = '1';
    s[at + RESP_INLINE_MAX + 1] = end_byte;
    assert_int_equal(resp_request_scan(&r, s, t.len, &NO_LIMITS), RESP_BAD);
    assert_string_equal(r.error, error);
    /* A NUL byte in front of the end byte. */
    resp_request_reset(&r);
    s[at + 100] = '\0';
    s[at + 200] = end_byte;
    assert_int_equal(resp_request_scan(&r, s, at + RESP_INLINE_MAX, &NO_LIMITS), RESP_MORE);
    assert_int_equal(resp_request_scan(&r, s, at + RESP_INLINE_MAX + 1, &NO_LIMITS), RESP_BAD);
    assert_string_equal(r.error, error);
    resp_request_clear(&r);
    free(s);
}

static void test_long_lines(void **state) {
    (void)state;
    check_long_line("", "", '\n', "Protocol error: too big inline request");
    check_long_line("", "*", '\r', "Protocol error: too big mbulk count string");
    check_long_line("*1\r\n", "$", '\r', "Protocol error: too big bulk count string");
    check_long_line("*2\r\n$1\r\na\r\n", "x", '\r', "Protocol error: too big bulk count string");
}

/* Bytes that were scanned are not looked at again: they may even change. */
static void test_no_rescanning(void **state) {
    (void)state;
    char *s = malloc(RESP_INLINE_MAX + 1);
    struct resp_request r;
    resp_request_init(&r);
    for (size_t have = 1; have <= RESP_INLINE_MAX; have++) {
        s[have - 1] = 'x';
        assert_int_equal(resp_request_scan(&r, s, have, &NO_LIMITS), RESP_MORE);
        s[have - 1] = '\n';
    }
    s[RESP_INLINE_MAX] = '\n';
    assert_int_equal(resp_request_scan(&r, s, RESP_INLINE_MAX + 1, &NO_LIMITS), RESP_OK);
    assert_int_equal(r.len, RESP_INLINE_MAX + 1);

    resp_request_reset(&r);
    s[0] = '*';
    assert_int_equal(resp_request_scan(&r, s, 1, &NO_LIMITS), RESP_MORE);
    for (size_t have = 2; have <= RESP_INLINE_MAX; have++) {
        s[have - 1] = '1';
        assert_int_equal(resp_request_scan(&r, s, have, &NO_LIMITS), RESP_MORE);
        s[have - 1] = '\r';
    }
    resp_request_clear(&r);
    free(s);
}

static void test_million_arguments(void **state) {
    (void)state;
    enum { ARGC = 1000 * 1000 };
    struct text t = build_request(ARGC, 3);
    struct resp_request r;
    resp_request_init(&r);
    for (size_t have = 0; have < t.len;) {
        have = have + 4099 < t.len ? have + 4099 : t.len;
        assert_int_equal(resp_request_scan(&r, t.s, have, &NO_LIMITS), have < t.len ? RESP_MORE : RESP_OK);
    }
    assert_int_equal(r.len, t.len);
    assert_int_equal(r.argc, ARGC);
    for (size_t i = 0; i < ARGC; i++) {
        assert_true(r.argv[i].len == 3 && memcmp(t.s + r.argv[i].off, "xxx\r\n", 5) == 0);
    }
    /* A request so large leaves nothing behind; a moderate one keeps its argv. */
    resp_request_reset(&r);
    assert_ptr_equal(r.argv, r.argv_inline);
    free((char *)t.s);

    t = build_request(100, 3);
    assert_int_equal(resp_request_scan(&r, t.s, t.len, &NO_LIMITS), RESP_OK);
    const struct resp_arg *argv = r.argv;
    resp_request_reset(&r);
    assert_int_equal(resp_request_scan(&r, t.s, t.len, &NO_LIMITS), RESP_OK);
    assert_ptr_equal(r.argv, argv);
    assert_int_equal(r.argc, 100);
    resp_request_clear(&r);
    free((char *)t.s);
}

/* A count costs nothing before its arguments come. */
static void test_announced_counts(void **state) {
    (void)state;
    struct text t = TEXT("*2147483647\r\n$1\r\na\r\n$1\r\nb\r\n$536870912\r\nx");
    struct resp_request r;
    resp_request_init(&r);
    assert_int_equal(resp_request_scan(&r, t.s, t.len, &NO_LIMITS), RESP_MORE);
    assert_int_equal(r.argc, 2);
    assert_ptr_equal(r.argv, r.argv_inline);
    resp_request_clear(&r);
}

/* Bulks around the sizes of the buffers and of the number of digits. */
static void test_bulk_sizes(void **state) {
    (void)state;
    static const size_t sizes[] = {0,    1,     8,     9,     10,    11,    99,    100,   101,   999,    1000,
                                   9999, 10000, 16383, 16384, 16385, 65535, 65536, 65537, 99999, 100000, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct text t = build_request(3, sizes[i]);
        for (size_t short_of = 0; short_of < 20 && short_of < t.len; short_of++) {
            struct resp_request r;
            resp_request_init(&r);
            char *data = copy_of(t.s, t.len - short_of);
            enum resp_status status = resp_request_scan(&r, data, t.len - short_of, &NO_LIMITS);
            free(data);
            assert_int_equal(status, short_of ? RESP_MORE : RESP_OK);
            assert_int_equal(resp_request_scan(&r, t.s, t.len, &NO_LIMITS), RESP_OK);
            assert_int_equal(r.len, t.len);
            assert_int_equal(r.argv[2].len, sizes[i]);
            assert_int_equal(r.argv[2].off, t.len - sizes[i] - 2);
            assert_false(r.irregular);
            resp_request_clear(&r);
        }
        free((char *)t.s);
    }
}

/* A scanner that moves at every byte comes to the same result, and leaves one behind that is ready for use. */
static void test_move(void **state) {
    (void)state;
    for (size_t i = 0; i < REQUEST_COUNT; i++) {
        struct text t = REQUESTS[i].bytes;
        struct resp_request r[2];
        enum resp_status status = RESP_MORE;
        size_t at = 0;
        resp_request_init(&r[0]);
        for (size_t have = 0; have <= t.len && status == RESP_MORE; have++) {
            status = resp_request_scan(&r[at], t.s, have, &NO_LIMITS);
            resp_request_move(&r[1 - at], &r[at]);
            assert_int_equal(resp_request_scan(&r[at], "*0\r\n", 4, &NO_LIMITS), RESP_OK);
            resp_request_clear(&r[at]);
            /* Nothing that moved may still be looked for where it was. */
            memset(&r[at], 0x5a, sizeof r[at]);
            at = 1 - at;
        }
        char got[256];
        describe(got, sizeof got, &r[at], status, t.s);
        assert_string_equal(got, REQUESTS[i].expected);
        resp_request_clear(&r[at]);
    }
}

/* ---- inline requests --------------------------------------------------------------------- */

static const struct {
    struct text line;
    const char *expected; /* the words in brackets, NULL: unbalanced quotes */
} LINES[] = {
    {TEXT(""), ""},
    {TEXT(" \t\v\f\r "), ""},
    {TEXT("PING"), "[PING]"},
    {TEXT("  SET  k\tv  "), "[SET][k][v]"},
    {TEXT("SET k \"a b\""), "[SET][k][a b]"},
    {TEXT("SET k ''"), "[SET][k][]"},
    {TEXT("\"\""), "[]"},
    {TEXT("\"\\x41\\x4a\\x4B\\xfg\\x\""), "[AJKxfgx]"},
    {TEXT("\"\\n\\r\\t\\b\\a\\\\\\\"\\q\""), "[\n\r\t\b\a\\\"q]"},
    {TEXT("'\\n\\'\\\\ \"'"), "[\\n'\\\\ \"]"},
    {TEXT("a\\n\\x41"), "[a\\n\\x41]"},
    {TEXT("fo\"o b\"ar"), NULL},
    {TEXT("fo\"o b\" ar"), "[foo b][ar]"},
    {TEXT("fo'o b'\tar"), "[foo b][ar]"},
    {TEXT("\"a\"b"), NULL},
    {TEXT("'a'b"), NULL},
    {TEXT("\"a\"\"b\""), NULL},
    {TEXT("\"a"), NULL},
    {TEXT("'a"), NULL},
    {TEXT("a\""), NULL},
    {TEXT("ok '"), NULL},
    {TEXT("\"a\\"), NULL},
    {TEXT("\"a\\\""), NULL},
    {TEXT("'a\\'"), NULL},
    {TEXT("\"\\x4"), NULL},
    {TEXT("a\vb \vc"), "[a\vb][c]"},
    {TEXT("\"a\"\vb"), "[a][b]"},
    {TEXT("\xe9 \xff\xa0"), "[\xe9][\xff\xa0]"},
    {TEXT("a b\r"), "[a][b]"},
    {TEXT("a b\0c"), "[a][b]"},
    {TEXT("\"a\0b\""), NULL},
};

/* Encodes a line into a buffer of exactly the promised bound. Returns the length, or -1; *out is the caller's. The
 * bytes behind what was encoded stay as they were: a line may contain a password. */
static int64_t encode_line(struct text line, char **out) {
    char *copy = copy_of(line.s, line.len);
    size_t bound = resp_inline_bound(line.len);
    *out = malloc(bound);
    assert_non_null(*out);
    memset(*out, 0x5a, bound);
    int64_t n = resp_inline_encode(copy, line.len, *out);
    for (size_t i = n > 0 ? (size_t)n : 0; i < bound; i++)
        assert_int_equal((*out)[i], 0x5a);
    free(copy);
    return n;
}

static void test_inline(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        char *out;
        int64_t n = encode_line(LINES[i].line, &out);
        if (!LINES[i].expected) {
            assert_int_equal(n, -1);
        } else if (!*LINES[i].expected) {
            assert_int_equal(n, 0);
        } else {
            char expected[128];
            char got[128];
            snprintf(expected, sizeof expected, "MULTIBULK %d %s", (int)n, LINES[i].expected);
            struct resp_request r;
            resp_request_init(&r);
            describe(got, sizeof got, &r, resp_request_scan(&r, out, (size_t)n, &NO_LIMITS), out);
            assert_string_equal(got, expected);
            resp_request_clear(&r);
        }
        free(out);
    }
}

/* The bound holds for the lines that grow most, up to the longest one. */
static void test_inline_bound(void **state) {
    (void)state;
    static const char *const patterns[] = {"x ", "x", "'' ", "\"\" ", "\\x00", "xx "};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        for (size_t len = 1; len <= RESP_INLINE_MAX; len = len < 300 ? len + 1 : len * 3) {
            char *line = malloc(len);
            for (size_t k = 0; k < len; k++) {
                line[k] = patterns[i][k % strlen(patterns[i])];
            }
            char *out;
            int64_t n = encode_line((struct text){line, len}, &out);
            assert_true(n == -1 || (size_t)n <= resp_inline_bound(len));
            free(out);
            free(line);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_requests_in_one_buffer),
        cmocka_unit_test(test_limits_before_authentication),
        cmocka_unit_test(test_bulk_limit),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_no_rescanning),
        cmocka_unit_test(test_million_arguments),
        cmocka_unit_test(test_announced_counts),
        cmocka_unit_test(test_bulk_sizes),
        cmocka_unit_test(test_move),
        cmocka_unit_test(test_inline),
        cmocka_unit_test(test_inline_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
