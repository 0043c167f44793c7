/*
 * Histograms of durations by name: of commands, and of clients. All threads add to them. The tables are bounded: what
 * comes when a table is full counts in its last row, "(others)".
 */
#ifndef LOCKKEEPER_BASE_LATENCY_H
#define LOCKKEEPER_BASE_LATENCY_H

#include "proxy/base/metric.h"

enum latency_kind { LATENCY_COMMANDS, LATENCY_CLIENTS, LATENCY_KINDS };

struct latency;

struct latency *latency_new(void);
void latency_free(struct latency *l);
void latency_note(struct latency *l, enum latency_kind kind, const char *name, int64_t us);
/* Calls fn for each name that has come, in the order in which they came; fn must not call `l`. */
void latency_each(struct latency *l, enum latency_kind kind,
                  void (*fn)(void *arg, const char *name, const struct histogram *h), void *arg);
void latency_reset(struct latency *l);

#endif
