/* Writing RESP, and Redis's way of reading a decimal integer. */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <string.h>

char *resp_digits_write(char *end, uint64_t n) {
    do {
        *--end = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    return end;
}

size_t resp_header_write(char *out, char type, int64_t n) {
    char buf[RESP_HEADER_MAX];
    char *end = buf + sizeof buf;
    char *from = resp_digits_write(end, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
    if (n < 0)
        *--from = '-';
    size_t len = (size_t)(end - from);
    invariant_debug(len + 3 <= RESP_HEADER_MAX, "a header of %zu bytes", len + 3);
    out[0] = type;
    memcpy(out + 1, from, len);
    out[1 + len] = '\r';
    out[2 + len] = '\n';
    return len + 3;
}

size_t resp_bulk_size(size_t len) {
    size_t size = 1 + 1 + 2 + len + 2;
    for (size_t n = len; n >= 10; n /= 10)
        size++;
    return size;
}

char *resp_bulk_write(char *out, const void *data, size_t len) {
    out += resp_header_write(out, '$', (int64_t)len);
    if (len)
        memcpy(out, data, len);
    out += len;
    *out++ = '\r';
    *out++ = '\n';
    return out;
}

bool resp_integer(const char *s, size_t len, int64_t *value) {
    const char *end = s + len;
    if (len == 1 && *s == '0') {
        *value = 0;
        return true;
    }
    bool negative = len > 0 && *s == '-';
    if (negative)
        s++;
    /* The first digit is not 0: neither "-0" nor "007". 19 digits fit a uint64_t, and 20 are too many for an int64_t.
     */
    enum { DIGITS_MAX = 19 };
    if (s == end || *s < '1' || *s > '9' || end - s > DIGITS_MAX)
        return false;
    uint64_t n = 0;
    for (; s < end; s++) {
        unsigned digit = (unsigned char)*s - (unsigned)'0';
        if (digit > 9)
            return false;
        n = n * 10 + digit;
    }
    if (n > (uint64_t)INT64_MAX + negative)
        return false;
    *value = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}
