/*
 * Connections of the control plane: hiredis, over plain TCP or over TLS. Knows no commands.
 */
#ifndef LOCKKEEPER_UPSTREAM_CONNECTION_CONTROL_H
#define LOCKKEEPER_UPSTREAM_CONNECTION_CONTROL_H

#include <hiredis/async.h>

#include "proxy/upstream/connection/connection.h"

/* Starts to connect to the address `number`, which is what at's host means; commands may be queued at once. NULL with
 * the reason in `why` where that fails. The context is the caller's, as redisAsyncConnect has it, and attached to the
 * loop. TCP keep-alive is on. */
redisAsyncContext *control_connect(struct upstream *u, const struct address *at, const char *number, char *why,
                                   size_t size);

/* The one channel that contexts subscribe to. */
#define CONTROL_CHANNEL "+switch-master"
/* From now on the context's connection ends where the node sends what it was not asked for. For control_connect. */
void control_guard(redisAsyncContext *ctx);
/* Why a callback has got no reply: a text, valid during the callback. */
const char *control_error(const redisAsyncContext *ctx);

#endif
