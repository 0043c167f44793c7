/*
 * Reads a reply that is complete in memory, element by element, in the order of the bytes. It copies nothing and keeps
 * no state; the caller counts the elements.
 */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <string.h>

/* Reads the text from p up to CR LF. Returns the byte after CR LF, or NULL. */
static const char *read_line(const char *p, const char *end, struct resp_item *item) {
    item->str = p;
    for (; p < end; p++) {
        p = memchr(p, '\r', (size_t)(end - p));
        if (!p || end - p < 2) {
            return NULL;
        }
        if (p[1] == '\n') {
            item->len = (size_t)(p - item->str);
            return p + 2;
        }
    }
    return NULL;
}

/* A length line; its number goes to *n, and "-1" makes the item null where the type has nulls. */
static const char *read_length(const char *p, const char *end, struct resp_item *item, int64_t *n) {
    p = read_line(p, end, item);
    if (!p || !resp_integer(item->str, item->len, n)) {
        return NULL;
    }
    item->null = *n == -1 && (item->type == '$' || item->type == '*');
    item->len = 0;
    return *n >= 0 || item->null ? p : NULL;
}

static const char *read_blob(const char *p, const char *end, struct resp_item *item) {
    int64_t n;
    p = read_length(p, end, item, &n);
    if (!p || item->null) {
        return p;
    }
    int64_t here = end - p;
    if (n > here || here - n < 2 || p[n] != '\r' || p[n + 1] != '\n') {
        return NULL;
    }
    item->str = p;
    item->len = (size_t)n;
    invariant(n >= 0, "a blob has %lld bytes", (long long)n);
    return p + n + 2;
}

static const char *read_aggregate(const char *p, const char *end, struct resp_item *item) {
    int64_t n;
    p = read_length(p, end, item, &n);
    if (!p || item->null) {
        return p;
    }
    if (item->type == '%' || item->type == '|') {
        if (n > INT64_MAX / 2) {
            return NULL;
        }
        n *= 2;
    }
    item->num = n;
    return p;
}

static const char *read_boolean(const char *p, const char *end, struct resp_item *item) {
    p = read_line(p, end, item);
    if (!p || item->len != 1 || (*item->str != 't' && *item->str != 'f')) {
        return NULL;
    }
    item->num = *item->str == 't';
    return p;
}

static const char *read_item(const char *p, const char *end, struct resp_item *item) {
    switch (item->type) {
    case '+':
    case '-':
    case ',':
    case '(':
        return read_line(p, end, item);
    case ':':
        p = read_line(p, end, item);
        return p && resp_integer(item->str, item->len, &item->num) ? p : NULL;
    case '#':
        return read_boolean(p, end, item);
    case '_':
        item->null = true;
        p = read_line(p, end, item);
        return p && item->len == 0 ? p : NULL;
    case '$':
    case '!':
    case '=':
        return read_blob(p, end, item);
    case '*':
    case '~':
    case '>':
    case '%':
    case '|':
        return read_aggregate(p, end, item);
    default:
        return NULL;
    }
}

bool resp_item_read(const char **p, const char *end, struct resp_item *item) {
    invariant(*p && end, "a reply is read within its bytes");
    if (*p >= end) {
        return false;
    }
    *item = (struct resp_item){.type = **p, .str = *p + 1};
    const char *behind = read_item(*p + 1, end, item);
    if (!behind) {
        return false;
    }
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
