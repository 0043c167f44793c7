/*
 * Inline requests ("SET k v" on a line of its own): words, quotes and escapes as redis-server reads them,
 * written anew as a multibulk.
 *
 *   bare word      up to a space, tab, CR or LF; a quote in it begins a quoted part
 *   "..."          \n \r \t \b \a, \xHH, a backslash before any other byte is that byte
 *   '...'          \' alone
 *   a closing quote must be followed by white space or the end
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

/* Reads the quoted part that begins at p, and adds its bytes to the word. Returns its closing quote, or the end. */
static const char *read_quoted(const char *p, const char *end, char *word, size_t *len) {
    char quote = *p++;
    while (p < end && *p != quote) {
        bool escape = *p == '\\' && end - p >= 2 && (quote == '"' || p[1] == '\'');
        if (escape && p[1] == 'x' && end - p >= 4 && hex_digit(p[2]) >= 0 && hex_digit(p[3]) >= 0) {
            word[(*len)++] = (char)(hex_digit(p[2]) * 16 + hex_digit(p[3]));
            p += 4;
        } else {
            word[(*len)++] = escape ? escaped(p[1]) : *p;
            p += escape ? 2 : 1;
        }
    }
    return p;
}

/* Reads the word at p, which is no white space. Returns the byte behind it, NULL for unbalanced quotes. */
static const char *read_word(const char *p, const char *end, char *word, size_t *len) {
    invariant(p < end && !is_space(*p), "a word begins at white space");
    /* A bare word ends at fewer bytes than isspace() knows: Redis reads "a\vb" as one word. */
    while (p < end && *p != ' ' && *p != '\t' && *p != '\r' && *p != '\n') {
        if (*p != '"' && *p != '\'') {
            word[(*len)++] = *p++;
            continue;
        }
        p = read_quoted(p, end, word, len);
        return p == end || (p + 1 < end && !is_space(p[1])) ? NULL : p + 1;
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

int64_t resp_inline_encode(const char *line, size_t line_len, char *out) {
    const char *nul = memchr(line, '\0', line_len);
    const char *end = nul ? nul : line + line_len;
    /* A word, and all of them, are written behind room for a header, and moved when its length is known. */
    char *words = out + RESP_HEADER_MAX, *to = words;
    int64_t argc = 0;
    for (const char *p = skip_space(line, end); p < end; p = skip_space(p, end)) {
        char *word = to + RESP_HEADER_MAX;
        size_t len = 0;
        p = read_word(p, end, word, &len);
        if (!p)
            return -1;
        to += resp_header_write(to, '$', (int64_t)len);
        memmove(to, word, len);
        to += len;
        *to++ = '\r';
        *to++ = '\n';
        argc++;
        invariant((size_t)(to - out) <= resp_inline_bound(line_len), "%zd bytes for a line of %zu", to - out, line_len);
    }
    if (argc == 0)
        return 0;
    size_t header = resp_header_write(out, '*', argc);
    memmove(out + header, words, (size_t)(to - words));
    return (int64_t)header + (to - words);
}
