/*
 * From keys to patterns: what changes from key to key becomes a star (job:123:lock is job:*:lock). Knows no counts.
 */
#include "proxy/lock/advise_private.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_alpha(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_uuid(const char *p, size_t len) {
    if (len < 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? p[i] != '-' : !is_hex(p[i]))
            return false;
    }
    return len == 36 || !(is_alpha(p[36]) || is_digit(p[36]));
}

/* A word of letters and digits that is no name: a hash, an identifier. */
static bool is_identifier(const char *p, size_t len) {
    size_t digits = 0, hex = 0;
    for (size_t i = 0; i < len; i++) {
        digits += is_digit(p[i]);
        hex += is_hex(p[i]);
    }
    return (hex == len && len >= 8 && digits > 0) || (len >= 16 && digits >= 4);
}

struct pattern {
    char *out;
    size_t len;
};

static void put(struct pattern *t, char c) {
    bool special = c == '?' || c == '[' || c == ']' || c == '\\' || c == '*';
    if (t->len + 3 > ADVISE_PATTERN_MAX)
        return;
    if (c == '\0') {
        t->out[t->len++] = '?';
        return;
    }
    if (special)
        t->out[t->len++] = '\\';
    t->out[t->len++] = c;
}

static void put_star(struct pattern *t) {
    bool there = t->len > 0 && t->out[t->len - 1] == '*' && !(t->len > 1 && t->out[t->len - 2] == '\\');
    if (!there && t->len + 2 <= ADVISE_PATTERN_MAX)
        t->out[t->len++] = '*';
}

static void put_word(struct pattern *t, const char *p, size_t len) {
    if (is_identifier(p, len)) {
        put_star(t);
        return;
    }
    for (size_t i = 0; i < len; i++)
        if (is_digit(p[i]))
            put_star(t);
        else
            put(t, p[i]);
}

size_t advise_pattern(const char *key, size_t len, char out[ADVISE_PATTERN_MAX]) {
    struct pattern t = {.out = out};
    for (size_t i = 0; i < len && t.len + 4 <= ADVISE_PATTERN_MAX;) {
        size_t n = 0;
        if (is_uuid(key + i, len - i)) {
            put_star(&t);
            i += 36;
            continue;
        }
        while (i + n < len && (is_digit(key[i + n]) || is_alpha(key[i + n])))
            n++;
        put_word(&t, key + i, n);
        if (n == 0)
            put(&t, key[i]);
        i += n ? n : 1;
    }
    if (t.len + 4 > ADVISE_PATTERN_MAX) /* cut: what follows may be anything */
        put_star(&t);
    out[t.len] = '\0';
    return t.len;
}

size_t advise_stem(const char *pattern, size_t len) {
    for (; len > 0; len--) {
        char c = pattern[len - 1];
        if (c == ':' || c == '/' || c == '|' || c == '.' || c == '#' || c == '@' || c == '-' || c == '_')
            break;
    }
    return len;
}
