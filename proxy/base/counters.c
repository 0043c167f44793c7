/* The tables of counters and durations as data, and their sums. */
#include "proxy/base/counters.h"

#define COUNTER_ROW(name, type, family, label, value, help)                                                            \
    {#name, type, family, label, value, help, offsetof(struct counter_sums, name)},

#define TABLE(name, rows) const struct metric_table name = {rows, sizeof(rows) / sizeof(rows[0])}
static const struct metric_row client_rows[] = {CLIENT_COUNTERS(COUNTER_ROW)};
static const struct metric_row upstream_rows[] = {UPSTREAM_COUNTERS(COUNTER_ROW)};
static const struct metric_row request_rows[] = {REQUEST_COUNTERS(COUNTER_ROW)};
static const struct metric_row wait_rows[] = {WAIT_COUNTERS(COUNTER_ROW)};
static const struct metric_row permit_rows[] = {PERMIT_COUNTERS(COUNTER_ROW)};
static const struct metric_row quorum_rows[] = {QUORUM_COUNTERS(COUNTER_ROW)};
#define DURATION_ROW(name, family, label, value, help)                                                                 \
    {#name, "histogram", family, label, value, help, offsetof(struct durations, name)},
static const struct metric_row duration_rows[] = {DURATION_TABLE(DURATION_ROW)};

TABLE(client_counters, client_rows);
TABLE(upstream_counters, upstream_rows);
TABLE(request_counters, request_rows);
TABLE(wait_counters, wait_rows);
TABLE(permit_counters, permit_rows);
TABLE(quorum_counters, quorum_rows);
TABLE(duration_histograms, duration_rows);

void counters_sum(struct counter_sums *sums, const struct counters *c) {
#define COUNTER_SUM(name, ...) sums->name += counter_read(&c->name);
    COUNTER_TABLE(COUNTER_SUM)
}

void durations_add(struct durations *to, const struct durations *from) {
#define DURATION_ADD(name, ...) histogram_add(&to->name, &from->name);
    DURATION_TABLE(DURATION_ADD)
}
