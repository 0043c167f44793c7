/*
 * Allocation that cannot fail: out of memory ends the process with a line that says so, as Redis does.
 */
#ifndef LOCKKEEPER_BASE_MEMORY_H
#define LOCKKEEPER_BASE_MEMORY_H

#include <stddef.h>

/* Each returns memory that is the caller's, to be freed with memory_free. */
void *memory_alloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_zalloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_realloc(void *p, size_t size) __attribute__((returns_nonnull, warn_unused_result));
char *memory_strdup(const char *s) __attribute__((malloc, returns_nonnull, warn_unused_result));
/* A NUL-terminated copy of `len` bytes. */
char *memory_strndup(const char *s, size_t len) __attribute__((malloc, returns_nonnull, warn_unused_result));
void memory_free(void *p);
/* Gives the system what was freed and lies between what is in use, if the process has grown since the last time: for
 * once a second, and it does so every few seconds at most. All threads' memory; not to be called by two at once. */
void memory_trim(void);

#endif
