/*
 * Commands that wait at their node: BLPOP and similar (blocking.c), WAIT and WAITAOF (replica_wait.c), and how they are
 * ended early (unblock.c).
 */
#pragma once

#include "proxy/session/core/class.h"
#include "proxy/session/core/pin.h"

/* Handles BLPOP and similar commands, in a form that may block. */
enum dispatch_result blocking_dispatch(struct session *s, const struct request_class *k);
/* Whether a blocking request has no time limit: its client waits. */
bool blocking_lasts(const struct request *r);
/* How long the command may wait by its own timeout, as for upstream_pin_patient. */
int64_t blocking_patience(const struct command *c, const struct resp_request *r, const char *bytes);
/* Ends a session's blocking command for CLIENT UNBLOCK. Calls `place` with its node and the connection's number there,
 * since only the node knows whether it still blocks; the connection is not used again. True: it waits at several
 * masters (WAIT), and is ended at all of them, with Redis's error or with the counts so far. */
typedef void (*blocking_place_fn)(void *arg, const char *node, int64_t client);
bool blocking_unblock(struct session *s, bool error, blocking_place_fn place, void *arg);

/* ---- unblock.c ----------------------------------------------------------------------------------- */

/* Starts to end what blocks on a pin of a session with this lane, as CLIENT UNBLOCK with `how` does (borrowed:
 * "TIMEOUT", "ERROR"). It repeats the UNBLOCK, which may overtake the command. Calls `hopeless` if the node can't be
 * asked, or does not permit it to the session's user; `hopeless` may call unblock_stop. The caller stops it before the
 * pin is given back. */
struct unblock;
typedef void (*unblock_hopeless_fn)(void *arg);
struct unblock *unblock_start(struct worker *w, const struct upstream_lane *lane, struct upstream_pin *pin,
                              const char *how, unblock_hopeless_fn hopeless, void *arg);
/* Does the same for a session whose client has shut down its side. The reply is then an error for which unblock_done is
 * true, unless another reply was already on its way. Closes the session if it is hopeless. */
struct unblock *unblock_left(struct session *s, struct upstream_pin *pin);
/* Stops and frees an unblock; NULL is ignored. */
void unblock_stop(struct unblock *u);
bool unblock_done(const struct call_end *end);

/* ---- replica_wait.c -------------------------------------------------------------------------------------- */

/* Whether the command is WAIT or WAITAOF. */
bool wait_is(const struct command *c);
enum dispatch_result wait_dispatch(struct session *s, const struct request_class *k);
/* Ends the WAIT of a client that has shut down its side: it gets the counts so far. */
void wait_half_closed(struct request *r);
/* Ends a WAIT at all masters. False: it is already ending. */
bool wait_unblock(struct request *r, bool error);

/* The room's callbacks for sessions: a blocked session whose client has shut down its side gets the reply that the node
 * has so far. */
extern const struct session_room blocking_room;
