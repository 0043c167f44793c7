/*
 * Audit: the engine watches commands that pass unchanged, and infers from their replies what its scripts would have
 * said.
 *
 *      command on a key in `mode audit` ──> as it came ──> node          engine_watch
 *      its reply ──> as it came ──> client                               engine_observe ──> claims, incidents
 *
 * The engine attributes the command when its reply comes, since replies come in the order in which Redis ran the
 * commands. A command that enforcing would have refused has been carried out, so that the lease which it met is over.
 * If a reply does not tell what became of the lock, the engine learns and reports nothing.
 */
#ifndef LOCKKEEPER_LOCK_AUDIT_H
#define LOCKKEEPER_LOCK_AUDIT_H

#include "proxy/lock/lock_event.h"

/* Tells the engine that a command of this session on a key is being sent. The session's peer is kept until
 * engine_observe, which is called once for each engine_watch. Returns the number for lock_event.watched. */
uint64_t engine_watch(struct lock_engine *e, struct lock_session *s, const struct lock_key *key);

/* Tells the engine the answer to a command under audit. Returns how enforcing would have answered, for PROXY ADVISE
 * and tests. */
enum lock_outcome engine_observe(struct lock_engine *e, const struct lock_event *sight, int64_t now_ms);

#endif
