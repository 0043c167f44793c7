/*
 * What the status page shows, as JSON.
 */
#ifndef LOCKKEEPER_ADMIN_STATUS_H
#define LOCKKEEPER_ADMIN_STATUS_H

#include <stdbool.h>

#include "proxy/admin/proxy_report.h"

/* Appends one object: version, ready, figures (PROXY INFO's lines), nodes, locks, contention, times, shared, incidents.
 */
void status_json(const struct admin_source *source, bool ready, struct text *out);

#endif
