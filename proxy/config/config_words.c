/*
 * Splits lines of the configuration into words. The syntax is redis.conf's: words are separated by blanks. "..." has
 * the escapes \n \r \t \b \a \xHH; a \ before any other byte is that byte. '...' has only \'. A closing quote ends the
 * word. It knows no directives.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "proxy/base/memory.h"
#include "proxy/config/private.h"

void words_add(struct config_words *w, const char *text, size_t len) {
    w->words = memory_realloc(w->words, (w->count + 1) * sizeof(char *));
    w->words[w->count++] = memory_strndup(text, len);
}

void config_forget(char *text) {
    if (text)
        explicit_bzero(text, strlen(text));
    memory_free(text);
}

static void words_cut(struct config_words *w, size_t count) {
    while (w->count > count)
        config_forget(w->words[--w->count]);
}

void words_clear(struct config_words *w) {
    words_cut(w, 0);
    memory_free(w->words);
    w->words = NULL;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool is_blank(char c) {
    return isspace((unsigned char)c) != 0;
}

/* Reads one escape after a backslash inside "..."; returns how many bytes it took. */
static size_t read_escape(const char *p, const char *end, char *out) {
    if (*p == 'x' && end - p >= 3 && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
        *out = (char)(hex_digit(p[1]) * 16 + hex_digit(p[2]));
        return 3;
    }
    static const char NAMES[] = "nrtba", VALUES[] = "\n\r\t\b\a";
    const char *at = memchr(NAMES, *p, sizeof(NAMES) - 1);
    *out = at ? VALUES[at - NAMES] : *p;
    return 1;
}

/* Reads a quoted word after its opening quote into out. Returns its end after the closing quote. NULL if it is not
 * closed, or if no blank follows the closing quote. */
static const char *read_quoted(const char *p, const char *end, char quote, char *out, size_t *len) {
    while (p < end && *p != quote) {
        if (quote == '"' && *p == '\\' && end - p >= 2) {
            p++;
            p += read_escape(p, end, &out[(*len)++]);
        } else if (quote == '\'' && *p == '\\' && end - p >= 2 && p[1] == '\'') {
            out[(*len)++] = '\'';
            p += 2;
        } else {
            out[(*len)++] = *p++;
        }
    }
    if (p == end || (p + 1 < end && !is_blank(p[1])))
        return NULL;
    return p + 1;
}

const char *words_split(struct config_words *w, const char *line, size_t len) {
    const char *p = line, *end = line + len;
    const char *wrong = NULL;
    size_t before = w->count;
    char *word = memory_alloc(len + 1);
    while (!wrong) {
        while (p < end && is_blank(*p))
            p++;
        if (p == end)
            break;
        size_t n = 0;
        while (p && p < end && !is_blank(*p)) {
            if (*p == '"' || *p == '\'') {
                p = read_quoted(p + 1, end, *p, word, &n);
                break;
            }
            word[n++] = *p++;
        }
        if (!p)
            wrong = "unbalanced quotes: expected a closing quote, then a blank or the end of the line";
        else if (memchr(word, '\0', n))
            wrong = "a NUL byte: expected text";
        else
            words_add(w, word, n);
    }
    explicit_bzero(word, len + 1);
    memory_free(word);
    if (wrong)
        words_cut(w, before);
    return wrong;
}

/* Appends one word; true if all of it fits. Leaves room for an ellipsis. */
static bool show_append(const char *word, char *out, size_t size, size_t *n) {
    for (; *word; word++) {
        unsigned char c = (unsigned char)*word;
        if (*n + sizeof("\\xff...") > size)
            return false;
        *n += (size_t)snprintf(out + *n, size - *n, c < 0x20 || c == 0x7f ? "\\x%02x" : "%c", c);
    }
    return true;
}

void words_show(const struct config_words *w, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < w->count; i++) {
        if ((i > 0 && !show_append(" ", out, size, &n)) || !show_append(w->words[i], out, size, &n)) {
            snprintf(out + n, size - n, "...");
            return;
        }
    }
}

void words_show_word(const char *word, char *out, size_t size) {
    char *one = (char *)word; /* only read */
    struct config_words w = {.words = &one, .count = 1};
    words_show(&w, out, size);
}
