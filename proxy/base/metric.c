/* Tables of numbers, rendered as lines and as families of samples. */
#include "proxy/base/metric.h"

#include <string.h>

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
        for (const struct metric_row *row = first; row < t->rows + t->count; row++)
            if (strcmp(row->family, first->family) == 0)
                m->sample(m->arg, "", row->label, row->value, (double)metric_value(row, values));
    }
}
