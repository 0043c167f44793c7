/*
 * Commands that wait at their node: BLPOP and its kin (blocking.c), WAIT and WAITAOF (wait.c), and how what waits there
 * is ended before its time (unblock.c).
 */
#ifndef LOCKKEEPER_SESSION_BLOCKING_BLOCKING_H
#define LOCKKEEPER_SESSION_BLOCKING_BLOCKING_H

#include "proxy/session/core/class.h"
#include "proxy/session/core/pin.h"

/* BLPOP and its kin, in a form that may block. */
enum dispatch_result blocking_dispatch(struct session *s, const struct request_class *k);
/* Whether a blocking request may take as long as it likes: its client waits. */
bool blocking_lasts(const struct request *r);
/* For how long the command says that it may wait, as upstream_pin_patient takes it. */
int64_t blocking_patience(const struct command *c, const struct resp_request *r, const char *bytes);
/* Ends for CLIENT UNBLOCK what a session is blocked in: calls `place` with the node where it is blocked, and who it is
 * there, for the node knows whether it still is; from here on this connection is used for nothing else any more. True:
 * it is at several masters (WAIT), and ends now at all of them, with Redis's error or with what they count by then. */
typedef void (*blocking_place_fn)(void *arg, const char *node, int64_t client);
bool blocking_unblock(struct session *s, bool error, blocking_place_fn place, void *arg);

/* ---- unblock.c ----------------------------------------------------------------------------------- */

/* Begins to end what blocks on a pin of the session's, as CLIENT UNBLOCK with `how` does (borrowed: "TIMEOUT",
 * "ERROR"), whatever overtakes what. Calls `hopeless`, which may stop it, where that can't be done: the node can't be
 * asked, or does not let the session's user. The caller stops it before the pin is given back. */
struct unblock;
typedef void (*unblock_hopeless_fn)(void *arg);
struct unblock *unblock_start(struct session *s, struct upstream_pin *pin, const char *how,
                              unblock_hopeless_fn hopeless, void *arg);
/* Begins to end what blocks on a pin of a session whose client says no more: the reply is an error then for which
 * unblock_done is true, unless there is another one already. Closes the session where it is hopeless. */
struct unblock *unblock_left(struct session *s, struct upstream_pin *pin);
/* Stops and frees an unblock; does nothing with NULL. */
void unblock_stop(struct unblock *u);
bool unblock_done(const struct call_end *end);

/* ---- wait.c -------------------------------------------------------------------------------------- */

/* Whether the command is WAIT or WAITAOF. */
bool wait_is(const struct command *c);
enum dispatch_result wait_dispatch(struct session *s, const struct command *c, const struct resp_request *r,
                                   const char *bytes);
/* Gives a client of a blocked session that will say no more what the nodes have for it already. */
void wait_half_closed(struct request *r);
/* Ends a WAIT at all masters. False: it is about to end already. */
bool wait_unblock(struct request *r, bool error);

/* What the room hears of sessions: that the client of a blocked one will say no more, which gets what the node has for
 * it already. */
extern const struct session_room blocking_room;

#endif
