/*
 * How facts are passed to the code that renders them: sections of lines (PROXY INFO), or rows of named fields (PROXY
 * LOCKS). The folder that knows a fact calls the folder that knows the format; neither includes the other.
 */
#ifndef LOCKKEEPER_BASE_REPORT_H
#define LOCKKEEPER_BASE_REPORT_H

#include <stddef.h>
#include <stdint.h>

struct report {
    void *arg;
    void (*section)(void *arg, const char *name);
    void (*line)(void *arg, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
    void (*row)(void *arg); /* a new row begins */
    void (*text)(void *arg, const char *name, const char *value, size_t len);
    void (*number)(void *arg, const char *name, int64_t value);
};

#endif
