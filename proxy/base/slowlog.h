/*
 * What requests took: the last slow requests; and histograms by name, of commands and of clients, whose tables are
 * bounded: what comes when a table is full counts in its last row, "(others)". All threads add to both.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proxy/base/metric.h"

/* A slow request. Texts are borrowed. Durations are in us, and begin when the proxy had read the request. */
struct slow_request {
    uint64_t id; /* set by slowlog_add */
    int64_t time_s;
    int64_t took_us;
    int64_t before_us; /* until it was on its way to the node */
    int64_t after_us;  /* since the answer was there */
    int64_t way_us;    /* of the time between: the way to the node and back, estimated */
    const char *command, *client, *name, *node;
};

struct slowlog;

struct slowlog *slowlog_new(void);
void slowlog_free(struct slowlog *log);
/* Adds a copy, and keeps `max` entries. */
void slowlog_add(struct slowlog *log, const struct slow_request *r, size_t max);
/* Calls fn for the newest entries, at most max, the newest first; fn must not call the log. */
void slowlog_each(struct slowlog *log, size_t max, void (*fn)(void *arg, const struct slow_request *r), void *arg);
size_t slowlog_len(struct slowlog *log);
/* Forgets all entries; numbers go on. */
void slowlog_reset(struct slowlog *log);

enum latency_kind { LATENCY_COMMANDS, LATENCY_CLIENTS, LATENCY_KINDS };

struct latency;

struct latency *latency_new(void);
void latency_free(struct latency *l);
void latency_note(struct latency *l, enum latency_kind kind, const char *name, int64_t us);
/* Calls fn for each name that has come, in the order in which they came; fn must not call `l`. */
void latency_each(struct latency *l, enum latency_kind kind,
                  void (*fn)(void *arg, const char *name, const struct histogram *h), void *arg);
void latency_reset(struct latency *l);
