/*
 * The scanner for the rest of a request that is forwarded while it arrives. It only counts the bytes still to come, so
 * a request of any size takes the same memory. It accepts and refuses the same bytes as resp_request.c.
 *
 *   $5\r\nhel|lo\r\n$3\r\n...        between calls: bulk_left, or the part of a length line that has come
 */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <string.h>

#include "parser/resp_length.h"

void resp_body_init(struct resp_body *b, const struct resp_request *r) {
    invariant(r->form == RESP_MULTIBULK && r->args_left > 0, "form %d with %zu arguments to come", (int)r->form,
              r->args_left);
    memset(b, 0, sizeof *b);
    b->args_left = r->args_left;
    if (r->bulk_len >= 0) {
        b->bulk_len = (uint64_t)r->bulk_len;
        b->bulk_left = b->bulk_len + 2;
    }
}

static enum resp_status bad(struct resp_body *b, const char *error) {
    b->error = error;
    return RESP_BAD;
}

static enum resp_status end_line(struct resp_body *b, const struct resp_limits *limits) {
    invariant(b->line_ended && b->bulk_left == 0, "a length line ends while %llu bytes of a bulk are due",
              (unsigned long long)b->bulk_left);
    int64_t bulk_len = 0;
    bool valid =
        b->line_len <= sizeof b->line && b->line_len > 0 && resp_integer(b->line + 1, b->line_len - 1, &bulk_len);
    /* For an empty line the type byte is its CR. */
    const char *error =
        resp_bulk_line_error(b->line_len > 0 ? b->line[0] : '\r', valid, bulk_len, limits, b->error_text);
    if (error) {
        return bad(b, error);
    }
    b->bulk_len = (uint64_t)bulk_len;
    b->bulk_left = b->bulk_len + 2;
    b->line_len = 0;
    b->line_ended = false;
    return RESP_OK;
}

/* Takes the next byte of a length line. RESP_OK: it was the last one. */
static enum resp_status take_line_byte(struct resp_body *b, char c, const struct resp_limits *limits) {
    if (b->line_ended) {
        return end_line(b, limits);
    }
    if (c == '\r' && !b->line_hidden) {
        b->line_ended = true;
        return RESP_MORE;
    }
    b->line_hidden |= c == '\0';
    if (b->line_len < sizeof b->line) {
        b->line[b->line_len] = c;
    }
    return ++b->line_len > RESP_INLINE_MAX ? bad(b, resp_too_big_bulk_line) : RESP_MORE;
}

/* Takes the line at *p where it is whole and canonical, as it nearly always is. */
static bool take_whole_line(struct resp_body *b, const char **p, const char *end, const struct resp_limits *limits) {
    uint64_t n;
    if (b->line_len > 0 || b->line_ended || **p != '$') {
        return false;
    }
    const char *behind = resp_length(*p + 1, end, &n);
    if (!behind || n > (uint64_t)limits->bulk_max || limits->unauthenticated) {
        return false;
    }
    b->bulk_len = n;
    b->bulk_left = n + 2;
    *p = behind;
    return true;
}

enum resp_status resp_body_scan(struct resp_body *b, const char *data, size_t len, const struct resp_limits *limits,
                                size_t *used) {
    const char *p = data, *end = data + len;
    enum resp_status status = RESP_MORE;
    while (b->args_left > 0 && p < end && status != RESP_BAD) {
        if (b->bulk_left == 0) {
            if (!take_whole_line(b, &p, end, limits)) {
                status = take_line_byte(b, *p++, limits);
            }
            continue;
        }
        uint64_t here = (uint64_t)(end - p);
        uint64_t n = b->bulk_left < here ? b->bulk_left : here;
        p += n;
        b->bulk_left -= n;
        b->args_left -= b->bulk_left == 0;
    }
    *used = (size_t)(p - data);
    invariant(*used <= len, "%zu bytes were used of %zu", *used, len);
    if (status == RESP_BAD) {
        return RESP_BAD;
    }
    return b->args_left == 0 ? RESP_OK : RESP_MORE;
}
