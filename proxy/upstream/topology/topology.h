/*
 * Finds out which node serves which slots by rounds of questions over hiredis: a cluster's slots, or the master that
 * Sentinels watch.
 */
#pragma once

#include "proxy/upstream/connection/connection.h"

struct topology *cluster_new(struct upstream *u);
struct topology *sentinel_new(struct upstream *u);
void topology_free(struct topology *t);

/* For struct upstream_above, which describes them. */
void topology_want(struct topology *t);
void topology_now(struct topology *t);
bool topology_is_old(const struct topology *t, int64_t since_ms);
void topology_reason(const struct topology *t, char *out, size_t size);
bool verify_waits(struct upstream_conn *c);
