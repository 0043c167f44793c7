/*
 * How measured values are handed to whoever renders them (Prometheus text): families with a type and a help text, and
 * their samples. The folder that measures calls, the folder that knows the format is called.
 */
#ifndef LOCKKEEPER_BASE_METRIC_H
#define LOCKKEEPER_BASE_METRIC_H

struct histogram;

struct metric_sink {
    void *arg;
    /* A family begins; `type` is counter, gauge or histogram. Its name has no prefix. */
    void (*family)(void *arg, const char *name, const char *type, const char *help);
    /* A value of the family begun last. `suffix` follows the name ("" mostly). One label, or label NULL; its value is
     * any bytes, NUL-terminated. */
    void (*sample)(void *arg, const char *suffix, const char *label, const char *label_value, double value);
    /* All samples of a histogram that belong to one value of the label, in seconds; the label as above. */
    void (*histogram)(void *arg, const char *label, const char *label_value, const struct histogram *h);
};

#endif
