/*
 * The request scanner. It does what redis-server 7.0 does with the same bytes, malformed ones included: what Redis
 * accepts is accepted, what Redis refuses is refused in its words and at the same byte.
 *
 *   data   *3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhel
 *                                        ^        ^
 *                                        pos      len       args_left 1, bulk_len 5
 *
 * take_arguments is the fast path for arguments that are complete and well formed. All others go through scan_argument
 * and scan_length_line, which hold the rules.
 */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parser/resp_length.h"

/* An argv of up to this many arguments is kept from one request to the next. */
enum { ARGV_KEEP = 256 };
/* The shortest argument is "$0\r\n\r\n". */
enum { RESP_ARGUMENT_MIN = 6 };

static const char *const TOO_BIG_INLINE = "Protocol error: too big inline request";
static const char *const TOO_BIG_COUNT = "Protocol error: too big mbulk count string";
static const char *const TOO_BIG_BULK = "Protocol error: too big bulk count string";
static const char *const INVALID_COUNT = "Protocol error: invalid multibulk length";
static const char *const INVALID_BULK = "Protocol error: invalid bulk length";
static const char *const UNAUTH_COUNT = "Protocol error: unauthenticated multibulk length";
static const char *const UNAUTH_BULK = "Protocol error: unauthenticated bulk length";

void resp_request_init(struct resp_request *r) {
    r->argv = r->argv_inline;
    r->argv_cap = RESP_ARGV_INLINE;
    resp_request_reset(r);
}

void resp_request_reset(struct resp_request *r) {
    if (r->argv_cap > ARGV_KEEP)
        resp_request_clear(r);
    r->form = RESP_EMPTY;
    r->len = 0;
    r->argc = 0;
    r->irregular = false;
    r->line_len = 0;
    r->error = NULL;
    r->pos = 0;
    r->seen = 0;
    r->args_left = 0;
    r->bulk_len = -1;
    r->quick = false;
}

void resp_request_clear(struct resp_request *r) {
    if (r->argv != r->argv_inline)
        free(r->argv);
    r->argv = r->argv_inline;
    r->argv_cap = RESP_ARGV_INLINE;
    r->argc = 0;
}

void resp_request_move(struct resp_request *to, struct resp_request *from) {
    bool inside = from->argv == from->argv_inline;
    invariant(to != from, "a scanner moves onto itself");
    *to = *from;
    if (inside)
        to->argv = to->argv_inline;
    if (from->error == from->error_text)
        to->error = to->error_text;
    resp_request_init(from);
}

/* What is wrong with a "$N" line in Redis's words, or NULL. `type` is its first byte; `text` may hold the result. */
static const char *bulk_line_error(char type, bool valid, int64_t bulk_len, const struct resp_limits *limits,
                                   char text[RESP_ERROR_TEXT]) {
    /* Redis reports a wrong type byte before it reports a wrong number. */
    if (type != '$') {
        /* Redis keeps its error replies to one line. */
        type = type == '\r' || type == '\n' ? ' ' : type;
        snprintf(text, RESP_ERROR_TEXT, "Protocol error: expected '$', got '%c'", type);
        return text;
    }
    if (!valid || bulk_len < 0 || bulk_len > limits->bulk_max)
        return INVALID_BULK;
    return bulk_len > RESP_UNAUTH_BULK_MAX && limits->unauthenticated ? UNAUTH_BULK : NULL;
}

static enum resp_status bad(const char **error, const char *text) {
    *error = text;
    return RESP_BAD;
}

/* Makes room for one more argument. Each argument took at least six bytes to arrive, so memory stays in proportion to
 * what the client really sent. */
static void grow_argv(struct resp_request *r) {
    invariant(r->argc == r->argv_cap, "an argv of %zu grows at %zu", r->argv_cap, r->argc);
    size_t cap = r->argv_cap * 2;
    struct resp_arg *argv = realloc(r->argv == r->argv_inline ? NULL : r->argv, cap * sizeof *argv);
    if (!argv) {
        fprintf(stderr, "Out of memory for the %zu arguments of a request\n", cap);
        abort();
    }
    if (r->argv == r->argv_inline)
        memcpy(argv, r->argv_inline, sizeof r->argv_inline);
    r->argv = argv;
    r->argv_cap = cap;
}

/* Finds the end byte of the line at r->pos. Redis uses strchr, so a NUL byte hides the bytes after it. A line may have
 * RESP_INLINE_MAX bytes before its end byte; `too_big` is the error for more. */
static enum resp_status find_line_end(struct resp_request *r, const char *data, size_t len, char end_byte,
                                      const char *too_big, size_t *at) {
    invariant(r->pos <= len, "the scanner is at %zu of %zu bytes", r->pos, len);
    size_t from = r->seen > r->pos ? r->seen : r->pos;
    size_t limit = len - r->pos > RESP_INLINE_MAX ? r->pos + RESP_INLINE_MAX + 1 : len;
    const char *start = data + from, *end = NULL, *nul = NULL;
    if (from < limit && *start != '\0') {
        end = memchr(start, end_byte, limit - from);
        from = end ? (size_t)(end - data) : limit;
        nul = memchr(start, '\0', (size_t)(data + from - start));
    }
    r->seen = *at = nul ? (size_t)(nul - data) : from;
    if (end && !nul)
        return RESP_OK;
    return len - r->pos > RESP_INLINE_MAX ? bad(&r->error, too_big) : RESP_MORE;
}

static enum resp_status scan_inline(struct resp_request *r, const char *data, size_t len) {
    size_t at;
    enum resp_status status = find_line_end(r, data, len, '\n', TOO_BIG_INLINE, &at);
    if (status != RESP_OK)
        return status;
    r->line_len = at > 0 && data[at - 1] == '\r' ? at - 1 : at;
    r->len = at + 1;
    r->form = r->line_len ? RESP_INLINE : RESP_EMPTY;
    return RESP_OK;
}

/* Reads the length line at r->pos, well formed or not, and moves r->pos behind it. If *valid, *number is its number.
 * Redis waits for the byte after the CR, but does not check it. */
static enum resp_status scan_length_line(struct resp_request *r, const char *data, size_t len, const char *too_big,
                                         int64_t *number, bool *valid) {
    size_t at;
    enum resp_status status = find_line_end(r, data, len, '\r', too_big, &at);
    if (status != RESP_OK || len - at < 2)
        return status == RESP_OK ? RESP_MORE : status;
    *valid = at > r->pos && resp_integer(data + r->pos + 1, at - r->pos - 1, number);
    if (data[at + 1] != '\n')
        r->irregular = true;
    r->pos = at + 2;
    return RESP_OK;
}

/* Takes the line "*N", the number of arguments. */
static enum resp_status scan_count(struct resp_request *r, const char *data, size_t len,
                                   const struct resp_limits *limits) {
    int64_t count;
    bool valid;
    enum resp_status status = scan_length_line(r, data, len, TOO_BIG_COUNT, &count, &valid);
    if (status != RESP_OK)
        return status;
    if (!valid || count > INT_MAX)
        return bad(&r->error, INVALID_COUNT);
    if (count > RESP_UNAUTH_ARGS_MAX && limits->unauthenticated)
        return bad(&r->error, UNAUTH_COUNT);
    r->args_left = count > 0 ? (size_t)count : 0;
    return RESP_OK;
}

/* Takes the line "$N", the length of the next argument. */
static enum resp_status scan_bulk_len(struct resp_request *r, const char *data, size_t len,
                                      const struct resp_limits *limits) {
    int64_t bulk_len;
    bool valid;
    char type = r->pos < len ? data[r->pos] : '$';
    enum resp_status status = scan_length_line(r, data, len, TOO_BIG_BULK, &bulk_len, &valid);
    if (status != RESP_OK)
        return status;
    const char *error = bulk_line_error(type, valid, bulk_len, limits, r->error_text);
    if (error)
        return bad(&r->error, error);
    r->bulk_len = bulk_len;
    return RESP_OK;
}

/* Takes arguments into arg...stop, from offset `from` of the data, while they are complete and in canonical form.
 * Returns the next free place, and moves *from. scan_argument judges the argument at which it stops. */
static inline struct resp_arg *take_arguments(struct resp_arg *arg, const struct resp_arg *stop, const char *data,
                                              size_t len, size_t *from) {
    const char *end = data + len;
    const char *p = data + *from;
    if (len < RESP_ARGUMENT_MIN)
        return arg;
    const char *last = end - RESP_ARGUMENT_MIN;
    while (arg < stop && p <= last && *p == '$') {
        uint64_t n;
        const char *q = resp_length_of_four(p + 1, end, &n);
        if (!q || (uint64_t)(end - q) < n + 2 || !resp_is_crlf(q + n))
            break;
        arg->off = (size_t)(q - data);
        arg->len = n;
        arg++;
        p = q + n + 2;
    }
    *from = (size_t)(p - data);
    return arg;
}

/* Lets take_arguments continue a request. */
static void take_more(struct resp_request *r, const char *data, size_t len) {
    struct resp_arg *arg = r->argv + r->argc;
    size_t room = r->argv_cap - r->argc;
    invariant_debug(r->argc <= r->argv_cap, "%zu arguments in an argv of %zu", r->argc, r->argv_cap);
    const struct resp_arg *stop = arg + (r->args_left < room ? r->args_left : room);
    size_t taken = (size_t)(take_arguments(arg, stop, data, len, &r->pos) - arg);
    r->argc += taken;
    r->args_left -= taken;
}

/* Takes the next argument, canonical or not. */
static enum resp_status scan_argument(struct resp_request *r, const char *data, size_t len,
                                      const struct resp_limits *limits) {
    if (r->bulk_len < 0) {
        enum resp_status status = scan_bulk_len(r, data, len, limits);
        if (status != RESP_OK)
            return status;
    }
    if (len - r->pos < (uint64_t)r->bulk_len + 2)
        return RESP_MORE;
    if (r->argc == r->argv_cap)
        grow_argv(r);
    struct resp_arg *arg = &r->argv[r->argc++];
    arg->off = r->pos;
    arg->len = (size_t)r->bulk_len;
    r->pos += arg->len + 2;
    if (!resp_is_crlf(data + arg->off + arg->len))
        r->irregular = true;
    r->bulk_len = -1;
    invariant(r->args_left > 0 && r->pos <= len, "%zu arguments are to come, at %zu of %zu bytes", r->args_left, r->pos,
              len);
    r->args_left--;
    return RESP_OK;
}

/* Whether no complete argument within `len` bytes can exceed the limits. */
static inline bool all_short(size_t len, const struct resp_limits *limits) {
    return len <= (uint64_t)limits->bulk_max && (len <= RESP_UNAUTH_BULK_MAX || !limits->unauthenticated);
}

static enum resp_status scan_arguments(struct resp_request *r, const char *data, size_t len,
                                       const struct resp_limits *limits) {
    while (r->args_left) {
        if (r->bulk_len < 0 && all_short(len, limits)) {
            take_more(r, data, len);
            if (!r->args_left)
                break;
        }
        enum resp_status status = scan_argument(r, data, len, limits);
        if (status != RESP_OK)
            return status;
    }
    r->len = r->pos;
    return RESP_OK;
}

/* Scans a request that is incomplete or not in canonical form. */
static __attribute__((noinline)) enum resp_status scan_slowly(struct resp_request *r, const char *data, size_t len,
                                                              const struct resp_limits *limits) {
    invariant(r->argv && r->argc <= r->argv_cap, "%zu arguments in an argv of %zu", r->argc, r->argv_cap);
    if (r->quick) /* left by the request before; of this request nothing was kept */
        resp_request_reset(r);
    if (r->pos == 0) {
        if (len == 0)
            return RESP_MORE;
        if (data[0] != '*')
            return scan_inline(r, data, len);
        r->form = RESP_MULTIBULK;
        enum resp_status status = scan_count(r, data, len, limits);
        if (status != RESP_OK)
            return status;
        if (r->args_left == 0) {
            r->form = RESP_EMPTY;
            r->len = r->pos;
            return RESP_OK;
        }
    }
    return scan_arguments(r, data, len, limits);
}

inline enum resp_status resp_request_scan(struct resp_request *r, const char *data, size_t len,
                                          const struct resp_limits *limits) {
    if (r->pos == 0 && len >= 4 && data[0] == '*' && (unsigned char)data[1] - (unsigned)'1' < RESP_ARGV_INLINE &&
        resp_is_crlf(data + 2) && all_short(len, limits)) {
        size_t count = (size_t)(data[1] - '0'), pos = 4;
        struct resp_arg *stop = r->argv + count;
        struct resp_arg *arg = take_arguments(r->argv, stop, data, len, &pos);
        r->form = RESP_MULTIBULK;
        r->pos = pos;
        r->quick = arg == stop;
        if (r->quick) {
            r->argc = count;
            r->len = pos;
            return RESP_OK;
        }
        r->argc = (size_t)(arg - r->argv);
        r->args_left = count - r->argc;
    }
    return scan_slowly(r, data, len, limits);
}

bool resp_request_read(struct resp_request *r, const char *data, size_t len) {
    static const struct resp_limits limits = {.bulk_max = INT64_MAX};
    resp_request_init(r);
    return resp_request_scan(r, data, len, &limits) == RESP_OK;
}

/* The rest of a request that is forwarded while it arrives. Between calls only bulk_left is kept, or the part of a
 * length line that has come. It accepts and refuses what resp_request_scan does. */
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

/* Takes the next byte of a length line. RESP_OK: it was the last one. */
static enum resp_status take_line_byte(struct resp_body *b, char c, const struct resp_limits *limits) {
    if (!b->line_ended && c == '\r' && !b->line_hidden) {
        b->line_ended = true;
        return RESP_MORE;
    }
    if (!b->line_ended) {
        b->line_hidden |= c == '\0';
        if (b->line_len < sizeof b->line)
            b->line[b->line_len] = c;
        return ++b->line_len > RESP_INLINE_MAX ? bad(&b->error, TOO_BIG_BULK) : RESP_MORE;
    }
    invariant(b->bulk_left == 0, "a length line ends while %llu bytes of a bulk are due",
              (unsigned long long)b->bulk_left);
    int64_t bulk_len = 0;
    bool valid =
        b->line_len <= sizeof b->line && b->line_len > 0 && resp_integer(b->line + 1, b->line_len - 1, &bulk_len);
    /* For an empty line the type byte is its CR. */
    const char *error = bulk_line_error(b->line_len > 0 ? b->line[0] : '\r', valid, bulk_len, limits, b->error_text);
    if (error)
        return bad(&b->error, error);
    b->bulk_len = (uint64_t)bulk_len;
    b->bulk_left = b->bulk_len + 2;
    b->line_len = 0;
    b->line_ended = false;
    return RESP_OK;
}

/* Takes the line at *p where it is whole and canonical, as it nearly always is. */
static bool take_whole_line(struct resp_body *b, const char **p, const char *end, const struct resp_limits *limits) {
    uint64_t n;
    if (b->line_len > 0 || b->line_ended || **p != '$')
        return false;
    const char *behind = resp_length(*p + 1, end, &n);
    if (!behind || n > (uint64_t)limits->bulk_max || limits->unauthenticated)
        return false;
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
            if (!take_whole_line(b, &p, end, limits))
                status = take_line_byte(b, *p++, limits);
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
    if (status == RESP_BAD)
        return RESP_BAD;
    return b->args_left == 0 ? RESP_OK : RESP_MORE;
}
