/*
 * Allocation that never returns NULL: if memory runs out, the process ends with a log line, as Redis does.
 */
#pragma once

#include <stddef.h>

/* Each returns memory that the caller owns and frees with memory_free. */
void *memory_alloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_zalloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_realloc(void *p, size_t size) __attribute__((returns_nonnull, warn_unused_result));
char *memory_strdup(const char *s) __attribute__((malloc, returns_nonnull, warn_unused_result));
/* A NUL-terminated copy of `len` bytes. */
char *memory_strndup(const char *s, size_t len) __attribute__((malloc, returns_nonnull, warn_unused_result));
void memory_free(void *p);
/* Gives free memory between allocations back to the system, if the process has grown since the last time. To be called
 * once a second; it acts every few seconds at most. It covers the memory of all threads, and must not be called by two
 * threads at once. */
void memory_trim(void);
