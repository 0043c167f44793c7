/*
 * Escapes for JSON strings (RFC 8259).
 */
#pragma once

#include <stddef.h>

enum { JSON_ESCAPED_MAX = 6 /* most bytes for one byte: \u0001 */ };

/* Writes the content of a JSON string, without the quotes, at most JSON_ESCAPED_MAX bytes for each byte of data.
 * Invalid UTF-8 becomes U+FFFD. Returns the end. */
char *json_escape(char *out, const char *data, size_t len);
