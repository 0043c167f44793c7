/* Escapes in JSON strings. */
#include "proxy/base/json.h"

#include <stdio.h>
#include <string.h>

/* The length of the UTF-8 character at s, or 0 if the bytes are not valid UTF-8 (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF). */
static size_t utf8_length(const unsigned char *s, const unsigned char *end) {
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || (size_t)(end - s) < n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

char *json_escape(char *out, const char *data, size_t len) {
    const unsigned char *s = (const unsigned char *)data, *end = s + len;
    while (s < end) {
        size_t n = utf8_length(s, end);
        if (n == 0) {
            out += sprintf(out, "\\ufffd");
            s++;
        } else if (*s == '"' || *s == '\\') {
            *out++ = '\\';
            *out++ = (char)*s++;
        } else if (*s == '\n') {
            out += sprintf(out, "\\n");
            s++;
        } else if (*s < 0x20 || *s == 0x7f) {
            out += sprintf(out, "\\u%04x", (unsigned)*s++);
        } else {
            memcpy(out, s, n);
            out += n;
            s += n;
        }
    }
    return out;
}
