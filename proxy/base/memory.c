/* malloc, or the end of the process. */
#include "proxy/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void out_of_memory(size_t size) {
    fprintf(stderr, "lockkeeper: out of memory: %zu bytes could not be allocated\n", size);
    abort();
}

void *memory_alloc(size_t size) {
    void *p = malloc(size ? size : 1);
    if (!p)
        out_of_memory(size);
    return p;
}

void *memory_zalloc(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p)
        out_of_memory(size);
    return p;
}

void *memory_realloc(void *old, size_t size) {
    void *p = realloc(old, size ? size : 1);
    if (!p)
        out_of_memory(size);
    return p;
}

char *memory_strndup(const char *s, size_t len) {
    char *p = memory_alloc(len + 1);
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

char *memory_strdup(const char *s) {
    return memory_strndup(s, strlen(s));
}

void memory_free(void *p) {
    free(p);
}

void memory_trim(void) {
#ifdef __GLIBC__
    enum { WORTH = 1024 * 1024 };
    static size_t kept; /* free memory that malloc had after the last time; much of it has no pages any more */
    size_t now = mallinfo2().fordblks;
    if (now > kept && now - kept > WORTH) {
        malloc_trim(0);
        kept = now;
    } else if (now < kept) {
        kept = now;
    }
#endif
}
