/*
 * lockkeeper --advise and --advise-from: PROXY ADVISE's report for a Redis without a proxy, or for a file with the
 * output of redis-cli MONITOR.
 */
#pragma once

#include <stdint.h>

#include "proxy/lock/rule.h"
#include "proxy/upstream/upstream.h"

/* Both print the report on standard output and errors on standard error. On SIGINT and SIGTERM they end early, with the
 * report so far. `rules` are the rules to compare patterns with. They return the exit status: 1 if MONITOR could not
 * begin anywhere, or the file can't be read. */

/* Listens to all masters for `for_ms`. */
int monitor_feed(const struct upstream_config *upstream, const struct lock_rules *rules, int64_t for_ms, uint64_t seed);
/* Reads a file; "-" is standard input. */
int monitor_feed_file(const char *path, const struct lock_rules *rules, uint64_t seed);
