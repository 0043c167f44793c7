/*
 * Finds out which node serves which slots by rounds of questions over hiredis: a cluster's slots, or the master that
 * Sentinels watch.
 */
#ifndef LOCKKEEPER_UPSTREAM_TOPOLOGY_TOPOLOGY_H
#define LOCKKEEPER_UPSTREAM_TOPOLOGY_TOPOLOGY_H

#include "proxy/upstream/connection/connection.h"

struct topology *cluster_new(struct upstream *u);
struct topology *sentinel_new(struct upstream *u);
void topology_free(struct topology *t);
/* Asks for a round soon, at a limited rate, since something hints at a change. NULL is ignored. */
void topology_want(struct topology *t);
/* Whether the last round is so old that failovers may be unknown, or older than `since_ms`. No, for NULL. */
bool topology_is_old(const struct topology *t, int64_t since_ms);
/* The reason why nothing is known yet, for a reply or the log. */
void topology_reason(const struct topology *t, char *out, size_t size);

/* Asks for a round in the next loop turns, without the limit of the rate. */
void topology_now(struct topology *t);
/* Whether a connection has to wait for a round that verifies its node. If so, the round is started; conn_ready is
 * called after it. */
bool verify_waits(struct upstream_conn *c);

#endif
