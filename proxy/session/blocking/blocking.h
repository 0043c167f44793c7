/*
 * Commands that wait at their node: BLPOP and similar, WAIT and WAITAOF, and how they are ended early.
 */
#pragma once

#include "proxy/session/core/class.h"
#include "proxy/session/core/pin.h"

/* Handles BLPOP and similar commands, in a form that may block, WAIT and WAITAOF. */
enum dispatch_result blocking_dispatch(struct session *s, const struct request_class *k);
/* Ends a session's blocking command for CLIENT UNBLOCK. Calls `place` with its node and the connection's number there,
 * since only the node knows whether it still blocks; the connection is not used again. True: it waits at several
 * masters (WAIT), and is ended at all of them, with Redis's error or with the counts so far. */
typedef void (*blocking_place_fn)(void *arg, const char *node, int64_t client);
bool blocking_unblock(struct session *s, bool error, blocking_place_fn place, void *arg);

/* The room's callbacks for sessions: a blocked session whose client has shut down its side gets the reply that the node
 * has so far. */
extern const struct session_room blocking_room;
