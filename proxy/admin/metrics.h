/*
 * Metrics as Prometheus reads them.
 */
#ifndef LOCKKEEPER_ADMIN_METRICS_H
#define LOCKKEEPER_ADMIN_METRICS_H

#include "proxy/base/metric.h"
#include "proxy/base/text.h"

/* Appends the metrics that `collect` passes on, in the text exposition format 0.0.4, every name with the prefix
 * lockkeeper_. */
void metrics_render(void (*collect)(void *arg, const struct metric_sink *sink), void *arg, struct text *out);

#endif
