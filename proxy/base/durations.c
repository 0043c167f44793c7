/* The durations' table as data, and their sums. */
#include "proxy/base/durations.h"

#include <stddef.h>
#include <string.h>

struct duration_row {
    const char *family, *label, *value, *help;
    size_t offset; /* in struct durations */
};

#define DURATION_ROW(name, family, label, value, help) {family, label, value, help, offsetof(struct durations, name)},
static const struct duration_row rows[] = {DURATION_TABLE(DURATION_ROW)};
enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

void durations_add(struct durations *to, const struct durations *from) {
#define DURATION_ADD(name, ...) histogram_add(&to->name, &from->name);
    DURATION_TABLE(DURATION_ADD)
}

void durations_measure(const struct durations *d, const struct metric_sink *m) {
    for (const struct duration_row *first = rows; first < rows + ROW_COUNT; first++) {
        if (!first->help) /* its family has been passed on */
            continue;
        m->family(m->arg, first->family, "histogram", first->help);
        for (const struct duration_row *row = first; row < rows + ROW_COUNT; row++)
            if (strcmp(row->family, first->family) == 0)
                m->histogram(m->arg, row->label, row->value, (const struct histogram *)((const char *)d + row->offset));
    }
}
