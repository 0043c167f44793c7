/* Allocation that aborts the process on failure. */
#include "proxy/base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>
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

void *memory_for_one_more(void *array, size_t count, size_t size) {
    bool full = (count & (count - 1)) == 0; /* 0, or a power of two */
    return full || !array ? memory_realloc(array, (count ? 2 * count : 1) * size) : array;
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

void memory_free_several(void *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(list[i]);
}

#ifdef __GLIBC__
/* Bytes of resident pages beyond what is allocated: the program itself, and free memory that malloc keeps. 0: not
 * known. */
static size_t idle_bytes(void) {
    char line[128] = "";
    unsigned long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, line, sizeof(line) - 1);
    close(fd);
    if (n <= 0 || sscanf(line, "%*u %lu", &pages) != 1)
        return 0;
    size_t resident = (size_t)pages * (size_t)sysconf(_SC_PAGESIZE), used = mallinfo2().uordblks;
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
