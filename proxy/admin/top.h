/*
 * PROXY TOP: the most contended locks, the locks held for longest, and the clients with most incidents, one line each.
 */
#ifndef LOCKKEEPER_ADMIN_TOP_H
#define LOCKKEEPER_ADMIN_TOP_H

#include <stddef.h>

#include "proxy/admin/proxy_report.h"

/* Calls fn with each line, at most `max` of each sort. The line is borrowed, has no end of line, and shows keys in
 * readable form. now_ms: the wall clock. */
void top_lines(const struct admin_source *source, size_t max, int64_t now_ms,
               void (*fn)(void *arg, const char *line, size_t len), void *arg);

#endif
