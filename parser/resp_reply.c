/*
 * The reply framer: where a node's reply ends, for RESP2 and RESP3.
 *
 * One number replaces a stack: `pending` counts the elements that have to come before the reply is over. It begins at
 * one; an element takes one away, an aggregate adds its elements, an attribute adds its pairs and gives back the one it
 * took, since it is no element itself. At zero the reply is complete:
 *
 *   *2 \r\n  :1 \r\n  %1 \r\n  +k \r\n  +v \r\n
 *   2        1        2        1        0
 *
 * An element that is complete in the buffer is taken in one step. An element that is cut, or not in its usual form,
 * goes through the states byte by byte, which decide whether it is malformed.
 */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <string.h>

#include "parser/resp_length.h"

enum state {
    STATE_TYPE,    /* an element begins */
    STATE_LINE,    /* text up to CR LF */
    STATE_LINE_LF, /* ... its CR was the last byte */
    STATE_LENGTH,  /* the first byte of a length */
    STATE_DIGITS,  /* further digits */
    STATE_MINUS,   /* after "-": a "1" must follow, since "-1" is the null of RESP2 */
    STATE_CR,      /* the length is complete, CR LF must come */
    STATE_LF,
    STATE_PAYLOAD,
    STATE_PAYLOAD_CR,
    STATE_PAYLOAD_LF
};

enum kind {
    KIND_UNKNOWN,
    KIND_LINE,     /* + - : _ # , ( */
    KIND_BULK,     /* $ */
    KIND_BLOB,     /* ! = : a bulk that is never null */
    KIND_ARRAY,    /* * */
    KIND_SET,      /* ~ > : an array that is never null */
    KIND_MAP,      /* % */
    KIND_ATTRIBUTE /* | */
};

static const uint8_t kinds[256] = {
    ['+'] = KIND_LINE,  ['-'] = KIND_LINE, [':'] = KIND_LINE, ['_'] = KIND_LINE, ['#'] = KIND_LINE,
    [','] = KIND_LINE,  ['('] = KIND_LINE, ['$'] = KIND_BULK, ['!'] = KIND_BLOB, ['='] = KIND_BLOB,
    ['*'] = KIND_ARRAY, ['~'] = KIND_SET,  ['>'] = KIND_SET,  ['%'] = KIND_MAP,  ['|'] = KIND_ATTRIBUTE,
};

/* Far above any length that a node sends, and twice the value still fits an int64_t. */
#define LENGTH_MAX (INT64_MAX / 8)

/* A loop searches lines up to this length; for short lines a call of memchr costs more. */
enum { SHORT_LINE = 32 };

void resp_reply_init(struct resp_reply *r) {
    r->type = 0;
    r->state = STATE_TYPE;
    r->kind = KIND_UNKNOWN;
    r->number = 0;
    r->pending = 1;
}

int64_t resp_reply_ahead(const struct resp_reply *r) {
    return r->state == STATE_PAYLOAD ? r->number : 0;
}

/* The byte behind the first CR LF, or NULL. */
static const char *line_end(const char *p, const char *end) {
    while (p < end && (p = memchr(p, '\r', (size_t)(end - p))) && end - p >= 2) {
        if (resp_is_crlf(p))
            return p + 2;
        p++;
    }
    return NULL;
}

/* Replaces a pending aggregate by the elements that it announces. */
static bool add_elements(struct resp_reply *r, int64_t n) {
    invariant_debug(n >= 0 && r->pending > 0, "%lld elements, %lld pending", (long long)n, (long long)r->pending);
    int64_t more = r->kind == KIND_MAP || r->kind == KIND_ATTRIBUTE ? 2 * n : n;
    int64_t taken = r->kind == KIND_ATTRIBUTE ? 0 : 1;
    if (more > INT64_MAX - r->pending)
        return false;
    r->pending += more - taken;
    return true;
}

/* A length line has ended: r->number is its number, -1 for a null. */
static bool length_done(struct resp_reply *r) {
    invariant(r->pending > 0 && r->number >= -1, "%lld pending, length %lld", (long long)r->pending,
              (long long)r->number);
    r->state = STATE_TYPE;
    if (r->kind != KIND_BULK && r->kind != KIND_BLOB)
        return add_elements(r, r->number < 0 ? 0 : r->number);
    if (r->number < 0)
        r->pending--;
    else
        r->state = r->number ? STATE_PAYLOAD : STATE_PAYLOAD_CR;
    return true;
}

/* Takes as much of the text of a line as has come. */
static const char *line_bytes(struct resp_reply *r, const char *p, const char *end) {
    invariant(r->state == STATE_LINE || r->state == STATE_LINE_LF, "state %d", r->state);
    const char *behind = r->state == STATE_LINE_LF && *p == '\n' ? p + 1 : line_end(p, end);
    if (!behind) {
        r->state = end[-1] == '\r' ? STATE_LINE_LF : STATE_LINE;
        return end;
    }
    r->state = STATE_TYPE;
    r->pending--;
    return behind;
}

/* Returns the end of a line that is complete and short; NULL for other lines. */
static inline const char *short_line(const char *p, const char *end) {
    const char *near = end - p > SHORT_LINE ? p + SHORT_LINE : end;
    while (p < near && *p != '\r')
        p++;
    return end - p >= 2 && resp_is_crlf(p) ? p + 2 : NULL;
}

/* Takes the element at p in one step, if it is complete and in the usual form; else its type, and sets the state.
 * Returns the byte after what it took, or NULL for an unknown type. */
static inline const char *element(struct resp_reply *r, const char *p, const char *end) {
    char type = *p++;
    /* Only the first element of a reply, or the element after a leading attribute, has one element pending and no other
     * type set. */
    if (r->type == 0 || (r->type == '|' && r->pending == 1))
        r->type = type;
    const enum kind kind = kinds[(unsigned char)type];
    const char *behind;
    uint64_t n;
    switch (kind) {
    case KIND_LINE:
        behind = short_line(p, end);
        if (behind) {
            r->pending--;
            return behind;
        }
        r->state = STATE_LINE;
        return p;
    case KIND_BULK:
    case KIND_BLOB:
        behind = resp_length(p, end, &n);
        if (behind && (uint64_t)(end - behind) >= n + 2 && resp_is_crlf(behind + n)) {
            r->pending--;
            return behind + n + 2;
        }
        if (kind == KIND_BULK && end - p >= 4 && memcmp(p, "-1\r\n", 4) == 0) { /* a null is as common as a value */
            r->pending--;
            return p + 4;
        }
        break;
    case KIND_ARRAY:
    case KIND_SET:
    case KIND_MAP:
    case KIND_ATTRIBUTE:
        behind = resp_length(p, end, &n);
        if (behind) {
            r->kind = (uint8_t)kind;
            return add_elements(r, (int64_t)n) ? behind : NULL;
        }
        break;
    case KIND_UNKNOWN:
        return NULL;
    }
    r->kind = (uint8_t)kind;
    r->state = STATE_LENGTH;
    return p;
}

/* Goes on in the middle of an element. Returns NULL for malformed bytes. */
static const char *resume(struct resp_reply *r, const char *p, const char *end) {
    invariant(p < end && r->pending > 0, "%lld elements are pending", (long long)r->pending);
    const unsigned digit = (unsigned char)*p - (unsigned)'0';
    int64_t here = end - p;
    switch ((enum state)r->state) {
    case STATE_TYPE:
        break;
    case STATE_LINE:
    case STATE_LINE_LF:
        return line_bytes(r, p, end);
    case STATE_LENGTH:
        if (*p == '-' && (r->kind == KIND_BULK || r->kind == KIND_ARRAY)) {
            r->state = STATE_MINUS;
            return p + 1;
        }
        r->number = digit;
        r->state = digit ? STATE_DIGITS : STATE_CR;
        return digit < 10 ? p + 1 : NULL;
    case STATE_MINUS:
        r->number = -1;
        r->state = STATE_CR;
        return *p == '1' ? p + 1 : NULL;
    case STATE_DIGITS:
        if (*p == '\r') {
            r->state = STATE_LF;
            return p + 1;
        }
        if (digit > 9 || r->number > LENGTH_MAX / 10)
            return NULL;
        r->number = r->number * 10 + digit;
        return p + 1;
    case STATE_CR:
        r->state = STATE_LF;
        return *p == '\r' ? p + 1 : NULL;
    case STATE_LF:
        return *p == '\n' && length_done(r) ? p + 1 : NULL;
    case STATE_PAYLOAD:
        if (here < r->number) {
            r->number -= here;
            return end;
        }
        p += r->number;
        r->number = 0;
        r->state = STATE_PAYLOAD_CR;
        return p;
    case STATE_PAYLOAD_CR:
        r->state = STATE_PAYLOAD_LF;
        return *p == '\r' ? p + 1 : NULL;
    case STATE_PAYLOAD_LF:
        r->state = STATE_TYPE;
        r->pending--;
        return *p == '\n' ? p + 1 : NULL;
    }
    return NULL;
}

inline size_t resp_reply_quick(const char *data, size_t len) {
    const char *end = data + len, *behind;
    uint64_t n;
    if (len < 5) /* the shortest reply that fits is ":1\r\n" */
        return len == 4 && data[0] == ':' && resp_is_crlf(data + 2) && data[1] != '\r' ? len : 0;
    if (data[0] == '$') {
        behind = resp_length_of_four(data + 1, end, &n);
        if (behind)
            return (uint64_t)(end - behind) >= n + 2 && resp_is_crlf(behind + n) ? (size_t)(behind - data) + n + 2 : 0;
        return memcmp(data, "$-1\r\n", 5) == 0 ? 5 : 0;
    }
    if (memcmp(data, "+OK\r\n", 5) == 0)
        return 5;
    if (kinds[(unsigned char)data[0]] != KIND_LINE || data[0] == '-')
        return 0;
    behind = short_line(data + 1, end);
    return behind ? (size_t)(behind - data) : 0;
}

static __attribute__((noinline)) enum resp_status scan_slowly(struct resp_reply *r, const char *data, const char *p,
                                                              const char *end, size_t *used) {
    while (p < end) {
        const char *next = r->state == STATE_TYPE ? element(r, p, end) : resume(r, p, end);
        if (!next) {
            *used = (size_t)(p - data);
            return RESP_BAD;
        }
        p = next;
        invariant_debug(p <= end && r->pending >= 0, "%lld elements are pending", (long long)r->pending);
        if (r->pending == 0) {
            *used = (size_t)(p - data);
            return RESP_OK;
        }
    }
    *used = (size_t)(end - data);
    return RESP_MORE;
}

/* The fast path: most replies are one element that is complete. */
enum resp_status resp_reply_scan(struct resp_reply *r, const char *data, size_t len, size_t *used) {
    const char *p = data;
    if (r->state == STATE_TYPE && len > 0) {
        p = element(r, data, data + len);
        if (p && r->pending == 0) {
            *used = (size_t)(p - data);
            return RESP_OK;
        }
        if (!p) {
            *used = 0;
            return RESP_BAD;
        }
    }
    return scan_slowly(r, data, p, data + len, used);
}

/* ---- a reply that is complete in memory, element by element; the caller counts the elements -------- */

/* Reads the element of type item->type whose first line begins at p. Returns the byte after it, or NULL. */
static inline const char *read_item(const char *p, const char *end, struct resp_item *item) {
    const enum kind kind = kinds[(unsigned char)item->type];
    const char *behind = line_end(p, end);
    int64_t n;
    if (!behind || kind == KIND_UNKNOWN)
        return NULL;
    size_t len = (size_t)(behind - p) - 2;
    if (kind == KIND_LINE) {
        item->len = len;
        item->null = item->type == '_';
        if (item->type == ':')
            return resp_integer(p, len, &item->num) ? behind : NULL;
        item->num = item->type == '#' && *p == 't';
        if (item->type == '#')
            return len == 1 && (*p == 't' || *p == 'f') ? behind : NULL;
        return item->null && len > 0 ? NULL : behind;
    }
    if (!resp_integer(p, len, &n))
        return NULL;
    if (n < 0) {
        item->null = n == -1 && (kind == KIND_BULK || kind == KIND_ARRAY);
        return item->null ? behind : NULL;
    }
    if (kind == KIND_BULK || kind == KIND_BLOB) {
        if (n > end - behind - 2 || !resp_is_crlf(behind + n))
            return NULL;
        item->str = behind;
        item->len = (size_t)n;
        return behind + n + 2;
    }
    bool pairs = kind == KIND_MAP || kind == KIND_ATTRIBUTE;
    if (pairs && n > INT64_MAX / 2)
        return NULL;
    item->num = pairs ? 2 * n : n;
    return behind;
}

bool resp_item_read(const char **p, const char *end, struct resp_item *item) {
    invariant(*p && end, "a reply is read within its bytes");
    if (*p >= end)
        return false;
    *item = (struct resp_item){.type = **p, .str = *p + 1};
    const char *behind = read_item(*p + 1, end, item);
    if (!behind)
        return false;
    *p = behind;
    invariant(behind <= end, "an element ends %zd bytes behind the reply's end", behind - end);
    return true;
}

const char *resp_item_end(const char *p, const char *end) {
    struct resp_reply reply;
    size_t used;
    resp_reply_init(&reply);
    return p < end && resp_reply_scan(&reply, p, (size_t)(end - p), &used) == RESP_OK ? p + used : NULL;
}
