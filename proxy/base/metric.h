/*
 * How facts and measured values are passed to the code that renders them: the folder that knows a fact and the folder
 * that knows the format do not include each other. Tables of numbers have all names for INFO, /status.json and
 * /metrics.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What a worker reports. */
enum report_kind {
    REPORT_INFO,  /* sections of lines */
    REPORT_LOCKS, /* rows of the leases whose keys match the pattern */
    REPORT_TIMES, /* rows of how long locks were held and waited for, by patterns that match and by client */
    REPORT_TOP,   /* texts, one for each line: at most `max` of the most contended locks, then of the oldest leases */
    REPORT_RULES,
    REPORT_ADVICE, /* texts, one for each line */
    /* rows for the status page: nodes; contended locks; workloads whose workers share connections */
    REPORT_NODES,
    REPORT_CONTENTION,
    REPORT_SHARED
};

/* How facts are passed on: sections of lines (PROXY INFO), or rows of named fields (PROXY LOCKS); and which of them. */
struct report {
    const char *pattern; /* NULL: all */
    size_t pattern_len, max;
    void *arg;
    void (*section)(void *arg, const char *name);
    void (*line)(void *arg, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
    void (*row)(void *arg); /* a new row begins */
    void (*text)(void *arg, const char *name, const char *value, size_t len);
    void (*number)(void *arg, const char *name, int64_t value);
};

enum { HISTOGRAM_BOUNDS = 17 };

/* The bounds of histograms, from 50 µs to 10 s, in µs, growing. */
extern const int64_t histogram_bounds[HISTOGRAM_BOUNDS];

/* Durations, counted below fixed bounds; {0} is empty. A reader in another thread must synchronise with the writer. */
struct histogram {
    uint64_t counts[HISTOGRAM_BOUNDS + 1]; /* durations up to this bound, above the one before; the last: above all */
    uint64_t sum_us;
};

/* Counts a duration. A negative one (the clock was set back) counts as 0. */
void histogram_note(struct histogram *h, int64_t us);
void histogram_add(struct histogram *to, const struct histogram *from);

struct metric_sink {
    void *arg;
    /* A family begins; `type` is counter, gauge or histogram. The name has no prefix, except process_ for the standard
     * metrics of every program. */
    void (*family)(void *arg, const char *name, const char *type, const char *help);
    /* A value of the last family. `suffix` follows the name (usually ""). One label, or NULL; its value may be any
     * bytes, NUL-terminated. */
    void (*sample)(void *arg, const char *suffix, const char *label, const char *label_value, double value);
    /* All samples of a histogram for one value of the label, in seconds. */
    void (*histogram)(void *arg, const char *label, const char *label_value, const struct histogram *h);
};

/* A row describes one number in a struct. A family's rows need not be adjacent; the first one has the help text, the
 * others NULL. */
struct metric_row {
    const char *name; /* in INFO and in /status.json */
    const char *type, *family, *label, *value, *help;
    size_t offset; /* in the struct: of a struct histogram if that is the type, else of a uint64_t */
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
