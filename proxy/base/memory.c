/* Allocation that aborts the process on failure. */
#include "proxy/base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void *checked(void *p, size_t size) {
    if (!p) {
        fprintf(stderr, "lockkeeper: out of memory: %zu bytes could not be allocated\n", size);
        abort();
    }
    return p;
}

void *memory_alloc(size_t size) {
    return checked(malloc(size ? size : 1), size);
}

void *memory_zalloc(size_t size) {
    return checked(calloc(1, size ? size : 1), size);
}

void *memory_realloc(void *old, size_t size) {
    return checked(realloc(old, size ? size : 1), size);
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

void memory_forget(void *p, size_t len) {
    if (p)
        explicit_bzero(p, len);
    free(p);
}

size_t memory_resident(void) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (!statm)
        return 0;
    if (fscanf(statm, "%*u %lu", &pages) != 1)
        pages = 0;
    fclose(statm);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

#ifdef __GLIBC__
/* Bytes of resident pages beyond what is allocated: the program itself, and free memory that malloc keeps. 0: not
 * known. */
static size_t idle_bytes(void) {
    size_t resident = memory_resident(), used = mallinfo2().uordblks;
    return resident > used ? resident - used : 0;
}
#endif

void memory_trim(void) {
#ifdef __GLIBC__
    enum { WORTH = 256 * 1024, CALLS_BETWEEN = 5 };
    static size_t kept; /* the least that stayed idle after a trim */
    static unsigned calls;
    if (++calls < CALLS_BETWEEN)
        return;
    calls = 0;
    size_t now = idle_bytes();
    if (now > kept + WORTH) {
        malloc_trim(0);
        kept = now = idle_bytes();
    }
    if (now < kept)
        kept = now;
#endif
}
