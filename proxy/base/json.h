/*
 * Strings as JSON has them (RFC 8259).
 */
#ifndef LOCKKEEPER_BASE_JSON_H
#define LOCKKEEPER_BASE_JSON_H

#include <stddef.h>

enum { JSON_ESCAPED_MAX = 6 /* bytes that one byte can become: \u0001 */ };

/* Writes what stands between a string's quotes, at most JSON_ESCAPED_MAX bytes for each of data's; bytes that are no
 * UTF-8 become U+FFFD. Returns the end. */
char *json_escape(char *out, const char *data, size_t len);

#endif
