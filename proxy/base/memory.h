/*
 * Allocation that never returns NULL: if memory runs out, the process ends with a log line, as Redis does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Each returns memory that the caller owns and frees with memory_free. */
void *memory_alloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_zalloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *memory_realloc(void *p, size_t size) __attribute__((returns_nonnull, warn_unused_result));
char *memory_strdup(const char *s) __attribute__((malloc, returns_nonnull, warn_unused_result));
/* A NUL-terminated copy of `len` bytes. */
char *memory_strndup(const char *s, size_t len) __attribute__((malloc, returns_nonnull, warn_unused_result));
void memory_free(void *p);
/* Overwrites and frees bytes that may be a secret; NULL is ignored. */
void memory_forget(void *p, size_t len);
/* Frees several; each may be NULL. */
#define MEMORY_FREE_ALL(...)                                                                                           \
    memory_free_several((void *const[]){__VA_ARGS__}, ARRAY_SIZE(((void *const[]){__VA_ARGS__})))
static inline void memory_free_several(void *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        memory_free(list[i]);
}

/* The number of elements of an array that is no pointer. */
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

/* Appends an element, not initialised, to an array that grows by this macro alone. Returns the element's address. The
 * array begins as NULL with a count of 0; the count may be lowered. The capacity is the power of two from the count on,
 * so it is stored nowhere. */
#define ARRAY_ADD(array, count)                                                                                        \
    __extension__({                                                                                                    \
        (array) = memory_for_one_more(array, count, sizeof(*(array)));                                                 \
        &(array)[(count)++];                                                                                           \
    })
static inline void *memory_for_one_more(void *array, size_t count, size_t size) {
    bool full = (count & (count - 1)) == 0; /* 0, or a power of two */
    return full || !array ? memory_realloc(array, (count ? 2 * count : 1) * size) : array;
}

/* Gives free memory between allocations back to the system, if the process has grown since the last time. To be called
 * once a second by one thread, for the memory of all. */
void memory_trim(void);
/* The resident memory of the process in bytes; 0: not known. */
size_t memory_resident(void);
