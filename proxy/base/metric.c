/* Tables of numbers, rendered as lines and as families of samples; histograms. */
#include "proxy/base/metric.h"

#include <string.h>

#include "parser/invariant.h"

uint64_t metric_value(const struct metric_row *row, const void *values) {
    uint64_t value;
    memcpy(&value, (const char *)values + row->offset, sizeof(value));
    return value;
}

void metric_table_report(const struct metric_table *t, const void *values, const struct report *r) {
    for (size_t i = 0; i < t->count; i++)
        r->line(r->arg, t->rows[i].name, "%llu", (unsigned long long)metric_value(&t->rows[i], values));
}

void metric_table_measure(const struct metric_table *t, const void *values, const struct metric_sink *m) {
    for (const struct metric_row *first = t->rows; first < t->rows + t->count; first++) {
        if (!first->help) /* its family has been passed on */
            continue;
        m->family(m->arg, first->family, first->type, first->help);
        bool histogram = strcmp(first->type, "histogram") == 0;
        for (const struct metric_row *row = first; row < t->rows + t->count; row++) {
            if (strcmp(row->family, first->family) != 0)
                continue;
            if (histogram)
                m->histogram(m->arg, row->label, row->value, (const void *)((const char *)values + row->offset));
            else
                m->sample(m->arg, "", row->label, row->value, (double)metric_value(row, values));
        }
    }
}

const int64_t histogram_bounds[HISTOGRAM_BOUNDS] = {50,     100,     250,     500,     1000,    2500,
                                                    5000,   10000,   25000,   50000,   100000,  250000,
                                                    500000, 1000000, 2500000, 5000000, 10000000};

void histogram_note(struct histogram *h, int64_t us) {
    unsigned i = 0;
    while (i < HISTOGRAM_BOUNDS && us > histogram_bounds[i])
        i++;
    h->counts[i]++;
    h->sum_us += us > 0 ? (uint64_t)us : 0;
}

void histogram_add(struct histogram *to, const struct histogram *from) {
    invariant(to != from, "a histogram is added to itself");
    for (unsigned i = 0; i <= HISTOGRAM_BOUNDS; i++)
        to->counts[i] += from->counts[i];
    to->sum_us += from->sum_us;
}
