/*
 * Writing RESP, and Redis's way of reading a decimal integer.
 */
#include "parser/resp.h"

#include <string.h>

/* "00" to "99". */
static const char pairs[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

char *resp_digits_write(char *end, uint64_t n) {
    uint32_t small;
    for (; n > UINT32_MAX; n /= 100) {
        end -= 2;
        memcpy(end, pairs + n % 100 * 2, 2);
    }
    for (small = (uint32_t)n; small >= 100; small /= 100) { /* divides in fewer steps */
        end -= 2;
        memcpy(end, pairs + small % 100 * 2, 2);
    }
    if (small >= 10) {
        end -= 2;
        memcpy(end, pairs + small * 2, 2);
    } else {
        *--end = (char)('0' + small);
    }
    return end;
}

size_t resp_header_write(char *out, char type, int64_t n) {
    out[0] = type;
    if (n >= 0 && n <= 9) {
        out[1] = (char)('0' + n);
        out[2] = '\r';
        out[3] = '\n';
        return 4;
    }
    char buf[RESP_HEADER_MAX];
    char *end = buf + sizeof buf;
    char *from = resp_digits_write(end, n < 0 ? 0 - (uint64_t)n : (uint64_t)n);
    if (n < 0) {
        *--from = '-';
    }
    size_t len = (size_t)(end - from);
    memcpy(out + 1, from, len);
    out[1 + len] = '\r';
    out[2 + len] = '\n';
    return len + 3;
}

size_t resp_bulk_size(size_t len) {
    if (len < 100) { /* the usual length, without dividing */
        return len + (len < 10 ? 6 : 7);
    }
    size_t size = 1 + 1 + 2 + len + 2;
    for (size_t n = len; n >= 10; n /= 10) {
        size++;
    }
    return size;
}

char *resp_bulk_write(char *out, const void *data, size_t len) {
    if (len < 100) {
        *out++ = '$';
        if (len >= 10) {
            *out++ = (char)('0' + len / 10);
        }
        *out++ = (char)('0' + len % 10);
        *out++ = '\r';
        *out++ = '\n';
    } else {
        out += resp_header_write(out, '$', (int64_t)len);
    }
    if (len) {
        memcpy(out, data, len);
    }
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
    if (negative) {
        s++;
    }
    /* The first digit is not 0: neither "-0" nor "007". */
    if (s == end || *s < '1' || *s > '9') {
        return false;
    }
    enum { SAFE_DIGITS = 18 }; /* so many can't overflow */
    uint64_t sum = 0;
    if (end - s <= SAFE_DIGITS) {
        for (; s < end; s++) {
            unsigned digit = (unsigned char)*s - (unsigned)'0';
            if (digit > 9) {
                return false;
            }
            sum = sum * 10 + digit;
        }
        *value = negative ? -(int64_t)sum : (int64_t)sum;
        return true;
    }
    uint64_t limit = negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t n = 0;
    for (; s < end; s++) {
        unsigned digit = (unsigned char)*s - (unsigned)'0';
        if (digit > 9 || n > (limit - digit) / 10) {
            return false;
        }
        n = n * 10 + digit;
    }
    *value = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}
