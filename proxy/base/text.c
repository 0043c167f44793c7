/* Growing text: one allocation, which doubles. */
#include "proxy/base/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "parser/invariant.h"
#include "proxy/base/memory.h"

void text_clear(struct text *t) {
    memory_free(t->data);
    *t = (struct text){0};
}

char *text_reserve(struct text *t, size_t len) {
    if (t->cap < t->len + len + 1) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        while (cap < t->len + len + 1)
            cap *= 2;
        t->data = memory_realloc(t->data, cap);
        t->cap = cap;
        invariant_debug(t->cap > t->len + len, "%zu bytes for %zu and %zu", t->cap, t->len, len);
    }
    return t->data + t->len;
}

void text_commit(struct text *t, size_t len) {
    invariant_debug(t->data && len < t->cap - t->len, "%zu bytes were reserved behind %zu of %zu", len, t->len, t->cap);
    t->len += len;
    t->data[t->len] = '\0';
}

void text_append(struct text *t, const void *data, size_t len) {
    char *at = text_reserve(t, len);
    if (len > 0)
        memcpy(at, data, len);
    text_commit(t, len);
}

void text_printable(char *out, size_t size, const char *bytes, size_t len, char other) {
    size_t n = len < size - 1 ? len : size - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : other;
    out[n] = '\0';
}

bool text_is(const char *word, size_t len, const char *name) {
    return strlen(name) == len && strncasecmp(word, name, len) == 0;
}

int text_choice(const char *word, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (strcasecmp(word, names[i]) == 0)
            return i;
    return -1;
}

void text_append_visible(struct text *t, const char *data, size_t len) {
    enum { VISIBLE_MAX = 4 };
    char *to = text_reserve(t, len * VISIBLE_MAX), *at = to;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c >= ' ' && c <= '~') {
            *at++ = (char)c;
            continue;
        }
        *at++ = '\\';
        *at++ = 'x';
        *at++ = "0123456789abcdef"[c >> 4];
        *at++ = "0123456789abcdef"[c & 15];
    }
    text_commit(t, (size_t)(at - to));
}

void text_append_shown(struct text *t, const char *data, size_t len, size_t max) {
    text_append_visible(t, data, len < max ? len : max);
    text_append(t, "...", len > max ? 3 : 0);
}

void text_vprintf(struct text *t, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    if (len > 0) {
        vsnprintf(text_reserve(t, (size_t)len), (size_t)len + 1, format, again);
        text_commit(t, (size_t)len);
    }
    va_end(again);
}

void text_printf(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_vprintf(t, format, args);
    va_end(args);
}

void text_bulk(struct text *t, const char *data, size_t len) {
    text_printf(t, "$%zu\r\n", len);
    text_append(t, data, len);
    text_append(t, "\r\n", 2);
}

uint32_t text_hash(const char *bytes, size_t len) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
    return hash;
}

/* The length of the UTF-8 character at s, or 0 if the bytes are not valid UTF-8 (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF). */
static size_t utf8_length(const unsigned char *s, const unsigned char *end) {
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || (size_t)(end - s) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
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
