/* The counters' table as data, and their sums. */
#include "proxy/base/counters.h"

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
