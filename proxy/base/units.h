/*
 * Sizes and times as configuration writes them, with Redis's units.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a size in bytes, in any case: "64mb", "1k" (1000), "1kb" (1024), "100". False: it is malformed. */
bool units_size(const char *text, int64_t *bytes) __attribute__((warn_unused_result));

/* Reads a time: "500ms", "30s", "5m", "1h", "1d"; a bare number has the unit `bare_ms` (1000: seconds, 1: ms). False:
 * it is malformed. */
bool units_time(const char *text, int64_t bare_ms, int64_t *ms) __attribute__((warn_unused_result));

/* Writes a time (not negative) in its largest exact unit ("30s", "1500ms", "0s"); returns the length, as snprintf. */
size_t units_time_text(int64_t ms, char *out, size_t size);

enum { UNITS_SPAN_SIZE = 32 };
/* Writes a time for people: in the largest unit of which there are at least two ("90 min"). Returns `out`. */
const char *units_span(int64_t ms, char out[UNITS_SPAN_SIZE]);
