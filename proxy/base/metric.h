/*
 * How measured values are passed to the code that renders them. Tables of numbers contain all names for INFO,
 * /status.json and /metrics; /metrics also gets families with a type, a help text and samples. The folder that measures
 * calls the folder that knows the format.
 */
#ifndef LOCKKEEPER_BASE_METRIC_H
#define LOCKKEEPER_BASE_METRIC_H

#include <stddef.h>

#include "proxy/base/report.h"

struct histogram;

struct metric_sink {
    void *arg;
    /* A family begins; `type` is counter, gauge or histogram. The name has no prefix, except process_ for the standard
     * metrics of every program. */
    void (*family)(void *arg, const char *name, const char *type, const char *help);
    /* A value of the last family. `suffix` follows the name (usually ""). One label, or label NULL; its value may be
     * any bytes, NUL-terminated. */
    void (*sample)(void *arg, const char *suffix, const char *label, const char *label_value, double value);
    /* All samples of a histogram for one value of the label, in seconds. */
    void (*histogram)(void *arg, const char *label, const char *label_value, const struct histogram *h);
};

/* A row describes one number in a struct. A family's rows need not be adjacent; the first one has the help text, the
 * others NULL. */
struct metric_row {
    const char *name; /* in INFO and in /status.json */
    const char *type, *family, *label, *value, *help;
    size_t offset; /* of a uint64_t in the struct */
};

struct metric_table {
    const struct metric_row *rows;
    size_t count;
};

/* The number of a row in the struct at `values`. */
uint64_t metric_value(const struct metric_row *row, const void *values);
/* Passes on all rows as lines: name and number. */
void metric_table_report(const struct metric_table *t, const void *values, const struct report *r);
/* Passes on all rows as families, each once, in the order of their first rows. */
void metric_table_measure(const struct metric_table *t, const void *values, const struct metric_sink *m);

#endif
