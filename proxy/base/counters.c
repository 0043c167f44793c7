/* The tables of counters and durations as data, and their sums. */
#include "proxy/base/counters.h"

#include "proxy/base/memory.h"

#define COUNTER_ROW(name, type, family, label, value, help)                                                            \
    {#name, type, family, label, value, help, offsetof(struct counter_sums, name)},
#define DURATION_ROW(name, family, label, value, help)                                                                 \
    {#name, "histogram", family, label, value, help, offsetof(struct durations, name)},
#define TABLE(name, TABLE_ROWS, ROW)                                                                                   \
    static const struct metric_row name##_rows[] = {TABLE_ROWS(ROW)};                                                  \
    const struct metric_table name = {name##_rows, ARRAY_SIZE(name##_rows)}

TABLE(client_counters, CLIENT_COUNTERS, COUNTER_ROW);
TABLE(upstream_counters, UPSTREAM_COUNTERS, COUNTER_ROW);
TABLE(request_counters, REQUEST_COUNTERS, COUNTER_ROW);
TABLE(wait_counters, WAIT_COUNTERS, COUNTER_ROW);
TABLE(permit_counters, PERMIT_COUNTERS, COUNTER_ROW);
TABLE(quorum_counters, QUORUM_COUNTERS, COUNTER_ROW);
TABLE(duration_histograms, DURATION_TABLE, DURATION_ROW);

void counters_sum(struct counter_sums *sums, const struct counters *c) {
#define COUNTER_SUM(name, ...) sums->name += counter_read(&c->name);
    COUNTER_TABLE(COUNTER_SUM)
}

void durations_add(struct durations *to, const struct durations *from) {
#define DURATION_ADD(name, ...) histogram_add(&to->name, &from->name);
    DURATION_TABLE(DURATION_ADD)
}
