/*
 * Growing text: for replies and pages that are composed piece by piece, off the hot path.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* {0} is an empty text. */
struct text {
    char *data; /* NUL-terminated once anything was added; NULL before that */
    size_t len;
    size_t cap;
};

/* Frees the bytes; the text is then empty. */
void text_clear(struct text *t);
void text_append(struct text *t, const void *data, size_t len);
/* Appends a bulk string of RESP. */
void text_bulk(struct text *t, const char *data, size_t len);
void text_printf(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vprintf(struct text *t, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
/* Appends bytes in readable form: a byte that is not printable ASCII becomes \xNN. */
void text_append_visible(struct text *t, const char *data, size_t len);
/* Does so for the first `max` bytes; "..." stands for the others. */
void text_append_shown(struct text *t, const char *data, size_t len, size_t max);
/* Makes room for len more bytes at the end; text_commit adds what was written there. */
char *text_reserve(struct text *t, size_t len);
void text_commit(struct text *t, size_t len);

/* Copies bytes as text, cut to fit `size`: a byte that is not printable ASCII becomes `other`. */
void text_printable(char *out, size_t size, const char *bytes, size_t len, char other);

/* Whether a word is this name, in any case. */
bool text_is(const char *word, size_t len, const char *name);
/* The index of the word in a NULL-terminated list of names, in any case; -1: it is none of them. */
int text_choice(const char *word, const char *const *names);
/* FNV-1a of the bytes. */
uint32_t text_hash(const char *bytes, size_t len);

enum { JSON_ESCAPED_MAX = 6 /* most bytes for one byte: \u0001 */ };
/* Writes the content of a JSON string (RFC 8259), without the quotes, at most JSON_ESCAPED_MAX bytes for each byte of
 * data. Invalid UTF-8 becomes U+FFFD. Returns the end. */
char *json_escape(char *out, const char *data, size_t len);
