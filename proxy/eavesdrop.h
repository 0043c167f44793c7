/*
 * lockkeeper --advise and --advise-from: what PROXY ADVISE would say, of a Redis that nothing stands before, or of what
 * redis-cli MONITOR has written of one.
 */
#ifndef LOCKKEEPER_EAVESDROP_H
#define LOCKKEEPER_EAVESDROP_H

#include <stdint.h>

#include "proxy/lock/rule.h"
#include "proxy/upstream/upstream.h"

/* Both print the report on standard output, and what goes wrong on standard error; they end early, with the report so
 * far, on SIGINT and SIGTERM. `rules` are those that patterns are held against. The exit status is returned: 1 where
 * nothing could be listened to. */

/* Listens to all masters for so long. */
int eavesdrop(const struct upstream_config *upstream, const struct lock_rules *rules, int64_t for_ms, uint64_t seed);
/* Reads a file; "-" is standard input. */
int eavesdrop_file(const char *path, const struct lock_rules *rules, uint64_t seed);

#endif
