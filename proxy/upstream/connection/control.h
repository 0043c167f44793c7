/*
 * Connections of the control plane: hiredis, over plain TCP or over TLS. Knows no commands.
 */
#pragma once

#include <hiredis/async.h>

#include "proxy/upstream/connection/connection.h"

/* Starts to connect to `number`, an address of at's host; commands may be queued at once. The caller owns the context,
 * as after redisAsyncConnect; it is attached to the loop, with TCP keep-alive. NULL with the reason in `why` on
 * failure. */
redisAsyncContext *control_connect(struct upstream *u, const struct address *at, const char *number, char *why,
                                   size_t size);

/* The only channel that contexts subscribe to. */
#define CONTROL_CHANNEL "+switch-master"
/* Why a callback got no reply: a text, valid during the callback. */
const char *control_error(const redisAsyncContext *ctx);
