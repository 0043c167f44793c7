/* The tables of counters and durations as data, and their sums. */
#include "proxy/base/counters.h"

#include <string.h>

#define COUNTER_ROW(name, type, family, label, value, help)                                                            \
    {#name, type, family, label, value, help, offsetof(struct counter_sums, name)},

static const struct metric_row client_rows[] = {CLIENT_COUNTERS(COUNTER_ROW)};
static const struct metric_row upstream_rows[] = {UPSTREAM_COUNTERS(COUNTER_ROW)};
static const struct metric_row request_rows[] = {REQUEST_COUNTERS(COUNTER_ROW)};
static const struct metric_row wait_rows[] = {WAIT_COUNTERS(COUNTER_ROW)};
static const struct metric_row permit_rows[] = {PERMIT_COUNTERS(COUNTER_ROW)};
static const struct metric_row quorum_rows[] = {QUORUM_COUNTERS(COUNTER_ROW)};

const struct metric_table client_counters = {client_rows, sizeof(client_rows) / sizeof(client_rows[0])};
const struct metric_table upstream_counters = {upstream_rows, sizeof(upstream_rows) / sizeof(upstream_rows[0])};
const struct metric_table request_counters = {request_rows, sizeof(request_rows) / sizeof(request_rows[0])};
const struct metric_table wait_counters = {wait_rows, sizeof(wait_rows) / sizeof(wait_rows[0])};
const struct metric_table permit_counters = {permit_rows, sizeof(permit_rows) / sizeof(permit_rows[0])};
const struct metric_table quorum_counters = {quorum_rows, sizeof(quorum_rows) / sizeof(quorum_rows[0])};

void counters_sum(struct counter_sums *sums, const struct counters *c) {
#define COUNTER_SUM(name, ...) sums->name += counter_read(&c->name);
    COUNTER_TABLE(COUNTER_SUM)
}

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
