/*
 * What masters.c uses: INFO's pages as one (info.c), and waiting for disconnects (departed.c).
 */
#pragma once

#include "proxy/session/cluster/cluster.h"
#include "proxy/session/core/session.h"

/* Merges the replies of several nodes to INFO: the first one, with summed counts (info.c). */
void info_merge(const struct text *pages, size_t count, int64_t paused, struct text *out);

/* Waits until the nodes know of all clients that have left (departed.c). True: the current request must wait
 * (DISPATCH_WAIT) and is dispatched again. */
bool departed_wait(struct session *s) __attribute__((warn_unused_result));
