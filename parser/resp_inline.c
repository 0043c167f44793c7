/*
 * Inline requests ("SET k v" on a line of its own): words, quotes and escapes as redis-server reads them,
 * written anew as a multibulk.
 *
 *   bare word      up to a space, tab, CR or LF; a quote in it begins a quoted part
 *   "..."          \n \r \t \b \a, \xHH, a backslash before any other byte is that byte
 *   '...'          \' alone
 *   a closing quote must be followed by white space or the end
 *
 * It knows nothing of the bytes around the line.
 */
#include "parser/invariant.h"
#include "parser/resp.h"

#include <string.h>

const char resp_unbalanced_quotes[] = "Protocol error: unbalanced quotes in request";

/* Whether a byte is white space, as isspace() of the C locale has it. */
static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static char escaped(char c) {
    static const char letters[] = "nrtba";
    const char *at = memchr(letters, c, sizeof(letters) - 1);
    return at ? "\n\r\t\b\a"[at - letters] : c;
}

/* A word being written, or only measured where `out` is NULL. */
struct word {
    char *out;
    size_t len;
};

static void put(struct word *w, char c) {
    if (w->out)
        w->out[w->len] = c;
    w->len++;
}

static const char *read_double_quoted(const char *p, const char *end, struct word *w) {
    while (p < end && *p != '"') {
        if (*p == '\\' && end - p >= 4 && p[1] == 'x' && hex_digit(p[2]) >= 0 && hex_digit(p[3]) >= 0) {
            put(w, (char)(hex_digit(p[2]) * 16 + hex_digit(p[3])));
            p += 4;
        } else if (*p == '\\' && end - p >= 2) {
            put(w, escaped(p[1]));
            p += 2;
        } else {
            put(w, *p++);
        }
    }
    return p;
}

static const char *read_single_quoted(const char *p, const char *end, struct word *w) {
    while (p < end && *p != '\'') {
        if (*p == '\\' && end - p >= 2 && p[1] == '\'')
            p++;
        put(w, *p++);
    }
    return p;
}

/* Reads the word at p, which is no white space. Returns the byte behind it, NULL for unbalanced quotes. */
static const char *read_word(const char *p, const char *end, struct word *w) {
    invariant(p < end && !is_space(*p), "a word begins at white space");
    /* A bare word ends at fewer bytes than isspace() knows: Redis reads "a\vb" as one word. */
    while (p < end && *p != ' ' && *p != '\t' && *p != '\r' && *p != '\n') {
        if (*p != '"' && *p != '\'') {
            put(w, *p++);
            continue;
        }
        p = *p == '"' ? read_double_quoted(p + 1, end, w) : read_single_quoted(p + 1, end, w);
        if (p == end || (p + 1 < end && !is_space(p[1])))
            return NULL;
        return p + 1;
    }
    return p;
}

static const char *skip_space(const char *p, const char *end) {
    while (p < end && is_space(*p))
        p++;
    return p;
}

size_t resp_inline_bound(size_t line_len) {
    /* The worst case is words of one byte: "x " becomes "$1\r\nx\r\n", seven bytes for two. */
    return 4 * line_len + 2 * RESP_HEADER_MAX;
}

/* All words are measured before the first is written: a line may contain a password, of which nothing may stand in
 * `out` behind the request, nor after unbalanced quotes. */
int64_t resp_inline_encode(const char *line, size_t line_len, char *out) {
    const char *nul = memchr(line, '\0', line_len);
    const char *end = nul ? nul : line + line_len;
    int64_t argc = 0;
    for (const char *p = skip_space(line, end); p < end; p = skip_space(p, end)) {
        struct word measured = {NULL, 0};
        p = read_word(p, end, &measured);
        if (!p)
            return -1;
        argc++;
    }
    if (argc == 0)
        return 0;
    char *to = out + resp_header_write(out, '*', argc);
    for (const char *p = skip_space(line, end); p < end; p = skip_space(p, end)) {
        struct word word = {NULL, 0};
        (void)read_word(p, end, &word);
        to += resp_header_write(to, '$', (int64_t)word.len);
        word = (struct word){to, 0};
        p = read_word(p, end, &word);
        to += word.len;
        *to++ = '\r';
        *to++ = '\n';
    }
    invariant((size_t)(to - out) <= resp_inline_bound(line_len), "%zd bytes for a line of %zu", to - out, line_len);
    return to - out;
}
