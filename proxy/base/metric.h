/*
 * How measured values are handed to whoever renders them: tables of numbers with all that INFO, /status.json and
 * /metrics call them; and for /metrics families with a type and a help text, and their samples. The folder that
 * measures calls, the folder that knows the format is called.
 */
#ifndef LOCKKEEPER_BASE_METRIC_H
#define LOCKKEEPER_BASE_METRIC_H

#include <stddef.h>

#include "proxy/base/report.h"

struct histogram;

struct metric_sink {
    void *arg;
    /* A family begins; `type` is counter, gauge or histogram. Its name has no prefix, but process_ where it is one of
     * those that every program has. */
    void (*family)(void *arg, const char *name, const char *type, const char *help);
    /* A value of the family begun last. `suffix` follows the name ("" mostly). One label, or label NULL; its value is
     * any bytes, NUL-terminated. */
    void (*sample)(void *arg, const char *suffix, const char *label, const char *label_value, double value);
    /* All samples of a histogram that belong to one value of the label, in seconds; the label as above. */
    void (*histogram)(void *arg, const char *label, const char *label_value, const struct histogram *h);
};

/* A row describes one number in a struct of them. A family's rows may stand apart; its first one has the help text, the
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
/* Hands over all rows as lines: name and number. */
void metric_table_report(const struct metric_table *t, const void *values, const struct report *r);
/* Hands over all rows as families, each once, in the order of their first rows. */
void metric_table_measure(const struct metric_table *t, const void *values, const struct metric_sink *m);

#endif
